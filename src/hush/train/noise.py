"""The Gaussian noise that a round adds to its sum, once: ChaCha20 (RFC 8439) and Box-Muller in float64.

Each call uses a new key, which exists only during the call. torch's own generators would be faster and are not used: on
a CPU theirs starts from 32 bits, so an observer of one coordinate without gradient could try all seeds and subtract the
noise from every other coordinate, and its normals end at 5.8 standard deviations.
"""

import operator
import os
from collections.abc import Callable, Mapping
from functools import cache
from hashlib import blake2b
from math import pi
from typing import Any, SupportsIndex, final

import torch
from cryptography.hazmat.primitives.ciphers import Cipher
from cryptography.hazmat.primitives.ciphers.algorithms import ChaCha20
from torch import Tensor

from hush.errors import InvalidInput
from hush.numbers import checked_number

__all__ = ["Noise"]


NORMALS_PER_BLOCK = 8  # of ChaCha20, which has 16 words of 32 bits: 64 bits for each normal
CHUNK_NORMALS = {"cpu": 2**16, "cuda": 2**23}  # made at a time: what fits the CPU's cache, what fills the GPU
CHACHA20_CONSTANTS = (0x61707865, 0x3320646E, 0x79622D32, 0x6B206574)
MAX_SCALE = 1e36  # float32 ends at 3.4e38


@final
class Noise:
    """Adds N(0, scale²) to every coordinate of a round's sum.

    Guarantee: each coordinate becomes the float32 nearest to sum + scale · z, added in float64. Rounding a noisy sum
    is post-processing and reveals nothing more. Assumptions: ChaCha20 under a secret key is indistinguishable from
    random, and a float64 Box-Muller normal can stand for a real one: 63 bits for the radius (hence at most 9.35
    standard deviations, which a real normal exceeds once in 10^19), 64 for the angle, errors of about 1e-15.

    The key is 32 bytes of the operating system's entropy, new in every call, and never stored: noise is never repeated,
    not even by a resumed run, so it is never used with two different sums. ``insecure_seed`` makes the key a function
    of seed, round and rank: for tests, and not private.

    >>> Noise()
    Noise()
    >>> Noise(insecure_seed=1)
    Noise(insecure_seed=...)
    """

    __slots__ = ("__double_round", "__insecure_seed")

    def __init__(self, *, insecure_seed: SupportsIndex | None = None, compile: bool = False) -> None:
        """``compile`` fuses the cipher on CUDA devices; the key is an input of the compiled code, never part of it."""
        self.__insecure_seed = None if insecure_seed is None else _checked_integer("insecure_seed", insecure_seed)
        self.__double_round = _compiled_double_round() if compile else _double_round

    @torch.no_grad()
    def add_(self, sums: Mapping[str, Tensor], *, scale: float, round: SupportsIndex, rank: SupportsIndex = 0) -> None:
        """Add the noise of round ``round`` to float32 or float64 tensors in place, each on its device.

        Plain tensors that several ranks reduce must get noise on one rank only. A sharded tensor (FSDP2) gets it on
        every rank, each on its own shard. Inputs are refused before any noise is added.
        """
        scale = _checked_scale(scale)
        round, rank = _checked_integer("round", round), _checked_integer("rank", rank)
        locals_ = [_checked_local(name, tensor) for name, tensor in sums.items()]
        _check_apart(sums, locals_)
        if scale == 0:
            return
        key = self.__key(round, rank)
        # Some accelerators lack float64; their sums are copied to the CPU.
        workspaces = [(local if local.device.type in CHUNK_NORMALS else local.cpu()).contiguous() for local in locals_]
        # All sums of a device share one stream: hundreds of small tensors cost no more than one large tensor.
        for number, device in enumerate(dict.fromkeys(work.device for work in workspaces)):
            flats = [work.view(-1) for work in workspaces if work.device == device]
            self.__add_stream(key, number, flats, device, scale)
        for local, work in zip(locals_, workspaces, strict=True):
            if work is not local:
                local.copy_(work)

    def __add_stream(self, key: bytes, number: int, flats: list[Tensor], device: torch.device, scale: float) -> None:
        remaining = sum(flat.numel() for flat in flats)
        begin, normals = 0, torch.empty(0)
        for flat in flats:
            done = 0
            while done < flat.numel():
                if normals.numel() == 0:
                    blocks = -(-min(remaining, CHUNK_NORMALS[device.type]) // NORMALS_PER_BLOCK)
                    if device.type == "cpu":
                        words = _words_on_cpu(key, number, begin, blocks)
                    else:
                        words = _words_on_device(key, number, begin, blocks, device, self.__double_round)
                    begin, normals = begin + blocks, _normals(words).mul_(scale)
                part = flat[done : done + normals.numel()]
                part.copy_(normals[: part.numel()].add_(part).float())  # float64 tensors, too, get values of float32
                done, remaining, normals = done + part.numel(), remaining - part.numel(), normals[part.numel() :]

    @property
    def is_secure(self) -> bool:
        """Whether keys come from the operating system's entropy."""
        return self.__insecure_seed is None

    def __key(self, round: int, rank: int) -> bytes:
        if self.__insecure_seed is None:
            return os.urandom(32)
        # Text, since the seed may be of any size.
        text = f"{self.__insecure_seed} {round} {rank}".encode()
        return blake2b(text, digest_size=32, person=b"hush noise 1").digest()

    def __repr__(self) -> str:
        return "Noise()" if self.is_secure else "Noise(insecure_seed=...)"


def _normals(words: Tensor) -> Tensor:
    """As many standard normals in float64 as there are words: a radius and an angle give two normals."""
    # Above 0, so that the logarithm is finite, and as fine as 2^-63 near 0, where the tails come from.
    uniform = (words[:, : NORMALS_PER_BLOCK // 2] & (2**63 - 1)).double().add_(1).mul_(2.0**-63)
    radius = uniform.log_().mul_(-2).sqrt_()
    angle = words[:, NORMALS_PER_BLOCK // 2 :].double().mul_(2 * pi * 2.0**-64)
    return torch.cat([radius * angle.cos(), radius * angle.sin()], dim=1).view(-1)


def _words_on_cpu(key: bytes, number: int, begin: int, blocks: int) -> Tensor:
    """Blocks of ChaCha20 as rows of 8 words of 64 bits. Counter: the block, in 64 bits; nonce: the stream's number."""
    nonce = begin.to_bytes(8, "little") + number.to_bytes(8, "little")
    stream = bytearray(64 * blocks)
    Cipher(ChaCha20(key, nonce), mode=None).encryptor().update_into(bytes(len(stream)), stream)
    return torch.frombuffer(stream, dtype=torch.int64).view(blocks, NORMALS_PER_BLOCK)


def _words_on_device(
    key: bytes, number: int, begin: int, blocks: int, device: torch.device, double_round: Callable[[Tensor], Tensor]
) -> Tensor:
    """The same words as on the CPU, computed where they are used: a transfer would cost more than the cipher."""
    counter = torch.arange(begin, begin + blocks, device=device)
    fixed = torch.tensor(
        [*CHACHA20_CONSTANTS, *_words32(key), *_words32(number.to_bytes(8, "little"))], dtype=torch.int32
    )
    fixed = fixed.to(device, non_blocking=True)  # a blocking copy would wait for all work of the round
    start = torch.empty(16, blocks, dtype=torch.int32, device=device)
    start[:12], start[14:] = fixed[:12, None], fixed[12:, None]
    start[12:14] = counter.view(torch.int32).view(blocks, 2).t()
    state = start
    for _ in range(10):
        state = double_round(state)
    return (state + start).t().reshape(-1).view(torch.int64).view(blocks, NORMALS_PER_BLOCK)


@cache
def _compiled_double_round() -> Callable[[Tensor], Tensor]:
    return torch.compile(_double_round, fullgraph=True, dynamic=True)


def _double_round(state: Tensor) -> Tensor:
    """A tenth of ChaCha20: quarter rounds down the columns, then along the diagonals, of the state in each column."""
    words = list(state.unbind(0))
    for i in range(4):
        _quarter_round(words, i, 4 + i, 8 + i, 12 + i)
    for i in range(4):
        _quarter_round(words, i, 4 + (i + 1) % 4, 8 + (i + 2) % 4, 12 + (i + 3) % 4)
    return torch.stack(words)


def _quarter_round(words: list[Tensor], a: int, b: int, c: int, d: int) -> None:
    """32-bit additions wrap around."""
    for (x, y, z), bits in zip(((a, b, d), (c, d, b)) * 2, (16, 12, 8, 7), strict=True):
        words[x] = words[x] + words[y]
        mixed = words[z] ^ words[x]
        # The right shift copies the sign; the mask takes it off.
        words[z] = (mixed << bits) | ((mixed >> (32 - bits)) & ((1 << bits) - 1))


def _words32(data: bytes) -> list[int]:
    return [int.from_bytes(data[begin : begin + 4], "little", signed=True) for begin in range(0, len(data), 4)]


def _checked_local(name: str, tensor: Any) -> Tensor:
    """The part of a sum that lives in this process."""
    if hasattr(tensor, "to_local"):
        mesh = tensor.device_mesh
        for dim, placement in enumerate(tensor.placements):
            if mesh.size(dim) > 1 and not placement.is_shard():
                raise InvalidInput(
                    f"{name} is placed as {placement} over {mesh.size(dim)} ranks, each of which would add noise of "
                    "its own; shard it, or reduce it and add noise on one rank"
                )
        tensor = tensor.to_local()
    if not isinstance(tensor, Tensor) or tensor.dtype not in (torch.float32, torch.float64):
        kind = tensor.dtype if isinstance(tensor, Tensor) else type(tensor).__name__
        raise InvalidInput(f"the sum of {name} is {kind}; noise is added to sums in torch.float32 or torch.float64")
    return tensor


def _check_apart(sums: Mapping[str, Tensor], locals_: list[Tensor]) -> None:
    """Refuse one tensor under two names, which would get noise twice."""
    seen: dict[tuple[str, int], str] = {}
    for name, local in zip(sums, locals_, strict=True):
        if local.numel() == 0:
            continue
        first = seen.setdefault((str(local.device), local.data_ptr()), name)
        if first != name:
            raise InvalidInput(f"{first} and {name} are the same tensor; pass the sum of a tied parameter once")


def _checked_scale(scale: float) -> float:
    number = checked_number("scale", scale)
    if not 0 <= number <= MAX_SCALE:
        raise InvalidInput(f"scale={number}; pass a number from 0 (no noise) to {MAX_SCALE}")
    return number


def _checked_integer(name: str, number: SupportsIndex) -> int:
    try:
        integer = operator.index(number)
    except TypeError as error:
        raise InvalidInput(f"{name} is not a whole number") from error
    if integer < 0:
        raise InvalidInput(f"{name} is negative; pass a whole number of at least 0")
    return integer

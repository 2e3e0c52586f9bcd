"""Weighted Poisson sampling: a round draws every example independently with its own rate, in time of the batch size.

Legend: N examples, B blocks, H hits.

Method. Examples are ordered by the binary exponent of their rate and cut into blocks of 2^(k+3) places, where k is that
exponent: rate in [2^-(k+1), 2^-k). A block gets a Poisson(45/4) number of hits, each at a uniform place, so the hits
of its places are independent Poisson variables of mean 45/32 · 2^-k. A hit on example i counts with probability
-log(1 - rate_i) / (45/32 · 2^-k), at most 2 log 2 / (45/32) < 1; what counts is Poisson of mean -log(1 - rate_i), and
the example is drawn if there is any: probability rate_i, independently of all others. Rates of 1/2 and more are
decided one by one, eight to a block.

Rounding, always towards drawing less. A place takes the low bits of a word, hence is exactly uniform. Thresholds of
the Poisson law are rounded up to multiples of 2^-64, so the number of hits is at most the exact one; they differ with
probability below 2^-58 a block. The probability that a hit counts is lowered by 2^-49, more than four units in the
last place of log1p and the roundings after it, then rounded down to a multiple of 2^-53. Decisions one by one are
exact. So each draw is contained in a draw with exactly the given rates, and the probability of drawing example i lies
in [(1 - 2^-48) rate_i, rate_i]; below 2^-60, where nothing is ever drawn in practice, it may be anything down to 0.
"""

import operator
import os
from decimal import Decimal, localcontext
from hashlib import blake2b
from typing import Any, Self, SupportsIndex, final

import numpy as np
from cryptography.hazmat.primitives.ciphers import Cipher
from cryptography.hazmat.primitives.ciphers.algorithms import AES
from cryptography.hazmat.primitives.ciphers.modes import ECB
from numpy.typing import ArrayLike, NDArray

from hush.accounting.arguments import checked_rates
from hush.errors import InvalidInput

__all__ = ["Draws"]


Words = NDArray[np.uint64]

SEED_BYTES = 32
DENSE_BUCKET = 0  # of the rates of 1/2 and more
LAST_BUCKET = 59  # of all rates below 2^-59: the places of a larger block would overflow 64 bits
ZERO_BUCKET = 60  # of rates of 0, which are never drawn
PLACE_BITS = 3  # a block of bucket k has 2^(k + 3) places
HITS_PER_PLACE = 45 / 32  # times 2^-k; just above 2 log 2, what a rate of 1/2 needs
ROUNDED_DOWN = 1 - 2.0**-49  # lowers the probability that a hit counts; see "Rounding" above
CHUNK_RATES = 2**20  # that are sorted at a time
MAX_ROUNDS = 2**40
SLOT_BITS = 16


@final
class Draws:
    """The draws of a run: round t holds each example i independently with probability ``rates[i]``.

    Guarantee: the probability of each example is at most its rate and less by a factor of 2^-48 at most; examples and
    rounds are independent, to anyone who does not know the seed and cannot tell AES-256 from a random permutation.
    Draw and seed are secret: the seed comes from the operating system's entropy unless given (only a resumed run or a
    test gives one), no repr or pickle holds it, and ``state()`` is for owner-only files.

    A round is a function of seed and index, so a resumed run repeats its draws: otherwise a crash caused by a large
    draw would bias the sampling. A read-only array of rates is kept, any other is copied.

    >>> draws = Draws(np.array([0.0, 1.0, 0.0]))
    >>> draws
    Draws(3 examples)
    >>> draws.round(7)
    array([1])
    """

    __slots__ = ("__bucket_of", "__end", "__first", "__key", "__order", "__rates", "__seed", "__start")

    def __init__(self, rates: ArrayLike, *, seed: bytes | None = None) -> None:
        checked = checked_rates(rates)
        self.__rates = checked.copy() if checked.flags.writeable else checked
        self.__seed = _checked_seed(os.urandom(SEED_BYTES) if seed is None else seed)
        self.__key = blake2b(self.__seed, digest_size=32, person=b"hush draws 1").digest()
        size = np.zeros(ZERO_BUCKET, dtype=np.int64)
        for begin in range(0, checked.size, CHUNK_RATES):
            size += np.bincount(_bucket(checked[begin : begin + CHUNK_RATES]), minlength=ZERO_BUCKET + 1)[:ZERO_BUCKET]
        used = np.flatnonzero(size)
        # The used buckets, one after another in `order`: where each starts and ends, and the number of its first block.
        self.__bucket_of = used
        self.__end = np.cumsum(size[used])
        self.__start = self.__end - size[used]
        blocks = -(-size[used] // (np.int64(1) << (used + PLACE_BITS)))
        self.__first = np.concatenate([[0], np.cumsum(blocks)])
        one_bucket = used.size == 1 and size[used[0]] == checked.size
        self.__order = None if one_bucket else _order(checked, size)

    @property
    def num_examples(self) -> int:
        """How many examples the draws choose from."""
        return self.__rates.size

    @property
    def num_blocks(self) -> int:
        """How many parts of a round can go to different ranks."""
        return int(self.__first[-1])

    def round(self, index: SupportsIndex, *, rank: SupportsIndex = 0, world: SupportsIndex = 1) -> NDArray[np.int64]:
        """The examples of round ``index``, sorted; with ``world`` ranks, those that fall to ``rank``.

        The ranks' parts are disjoint and together are the draw of one process, whatever their number. A rank computes
        every world-th block only. Costs O(expected batch + number of blocks), and there are at most a quarter of the
        expected batch and 60 blocks.
        """
        index, world = _checked_integer("index", index, 0, MAX_ROUNDS), _checked_integer("world", world, 1, 2**31)
        rank = _checked_integer("rank", rank, 0, world)
        block_B = np.arange(rank, self.num_blocks, world)
        used_B = np.searchsorted(self.__first, block_B, side="right") - 1
        bucket_B = self.__bucket_of[used_B]
        hits_B = np.searchsorted(_POISSON, self._words(index, block_B, 0)[:, 0], side="right")
        hits_B[bucket_B == DENSE_BUCKET] = 1 << PLACE_BITS

        of_H = np.repeat(np.arange(block_B.size), hits_B)
        slot_H = np.arange(of_H.size) - np.repeat(np.cumsum(hits_B) - hits_B, hits_B)
        words = self._words(index, block_B[of_H], slot_H + 1)
        used_H, bucket_H = used_B[of_H], bucket_B[of_H]
        bits_H = bucket_H + PLACE_BITS
        place_H = (words[:, 0] & ((np.uint64(1) << bits_H.astype(np.uint64)) - np.uint64(1))).astype(np.int64)
        place_H = np.where(bucket_H == DENSE_BUCKET, slot_H, place_H)

        # Where the hit lies in `order`. The last block of a bucket has places that no example fills.
        room_H = self.__end[used_H] - self.__start[used_H] - ((block_B[of_H] - self.__first[used_H]) << bits_H)
        filled = np.flatnonzero(place_H < room_H)
        at = (self.__end[used_H] - room_H + place_H)[filled]
        example = at if self.__order is None else self.__order[at].astype(np.int64)
        counted = (words[filled, 1] >> np.uint64(11)) < _threshold(self.__rates[example], bucket_H[filled])
        return np.unique(example[counted])

    def _words(self, index: int, block: NDArray[np.int64], slot: NDArray[np.int64] | int) -> Words:
        """Two words for each (block, slot) of a round: AES-256 over the numbers of round, block and slot.

        This is counter mode with distinct counters of our choice, so that each rank computes only its own words, all in
        one call; ECB is the block cipher that counter mode is built on.
        """
        counters = np.empty((block.size, 2), dtype="<u8")
        counters[:, 0] = block
        counters[:, 1] = (index << SLOT_BITS) + slot
        encrypted = Cipher(AES(self.__key), ECB()).encryptor().update(counters.tobytes())
        return np.frombuffer(encrypted, dtype="<u8").astype(np.uint64, copy=False).reshape(-1, 2)

    def state(self) -> dict[str, Any]:
        """The state that repeats these draws. Owner-only: it reveals every draw of the run."""
        return {"kind": "hush draws 1", "num_examples": self.num_examples, "seed": self.__seed.hex()}

    @classmethod
    def from_state(cls, rates: ArrayLike, state: dict[str, Any]) -> Self:
        """The draws that ``state()`` was taken from, given the same rates."""
        if not isinstance(state, dict) or state.get("kind") != "hush draws 1":
            raise InvalidInput("this is not a state of Draws of this version; pass what Draws.state() gave")
        try:
            seed = bytes.fromhex(state["seed"])
        except (KeyError, TypeError, ValueError):
            raise InvalidInput("this state of Draws holds no seed; pass what Draws.state() gave, unchanged") from None
        draws = cls(rates, seed=seed)
        if draws.num_examples != state.get("num_examples"):
            raise InvalidInput(
                f"the state is of draws from {state.get('num_examples')!r} examples but there are "
                f"{draws.num_examples} rates; resume with the plan that the run began with"
            )
        return draws

    def __repr__(self) -> str:
        return f"Draws({self.num_examples} examples)"

    def __reduce__(self) -> tuple[object, ...]:
        raise TypeError("Draws holds the seed of a secret draw and is not pickled; store Draws.state() owner-only")

    def __copy__(self) -> Self:
        return self

    def __deepcopy__(self, memo: object) -> Self:
        return self  # nothing in it ever changes


def _bucket(rates: NDArray[np.float64]) -> NDArray[np.int64]:
    """k where a rate lies in [2^-(k+1), 2^-k). By exponent bits alone, so that ranks on different machines agree."""
    _, exponent = np.frexp(rates)
    bucket = np.clip(-exponent.astype(np.int64), DENSE_BUCKET, LAST_BUCKET)
    bucket[rates == 0] = ZERO_BUCKET
    return bucket


def _order(rates: NDArray[np.float64], size: NDArray[np.int64]) -> NDArray[np.integer]:
    """Examples by bucket, and by number within a bucket; those of rate 0 left out."""
    order = np.empty(int(size.sum()), dtype=np.int32 if rates.size <= 2**31 else np.int64)
    place = np.cumsum(size) - size
    for begin in range(0, rates.size, CHUNK_RATES):
        bucket = _bucket(rates[begin : begin + CHUNK_RATES])
        example = np.argsort(bucket.astype(np.uint8), kind="stable") + begin
        count = np.bincount(bucket, minlength=ZERO_BUCKET + 1)[:ZERO_BUCKET]
        done = 0
        for k in np.flatnonzero(count):
            order[place[k] : place[k] + count[k]] = example[done : done + count[k]]
            done += count[k]
        place += count
    return order


def _threshold(rates: NDArray[np.float64], bucket: NDArray[np.int64]) -> Words:
    """A hit counts if 53 random bits are below this: 2^53 times the probability, rounded down."""
    dense = bucket == DENSE_BUCKET
    needed = -np.log1p(-np.where(dense, 0.0, rates))
    share = np.where(dense, rates, np.ldexp(needed / HITS_PER_PLACE * ROUNDED_DOWN, bucket))
    return np.ldexp(share, 53).astype(np.uint64)


def _poisson_thresholds() -> Words:
    """2^64 P(hits <= c) for c = 0, 1, …, upwards: a block has as many hits as there are thresholds its word reaches."""
    thresholds: list[int] = []
    with localcontext(prec=60):
        mean = Decimal(HITS_PER_PLACE) * 2**PLACE_BITS
        term = total = (-mean).exp()
        while (threshold := int(total * 2**64) + 1) < 2**64:
            thresholds.append(threshold)
            term *= mean / len(thresholds)
            total += term
    return np.array(thresholds, dtype=np.uint64)


_POISSON = _poisson_thresholds()


def _checked_seed(seed: bytes) -> bytes:
    """The message never shows the seed."""
    if not isinstance(seed, bytes) or len(seed) != SEED_BYTES:
        size = f"{len(seed)} bytes" if isinstance(seed, bytes) else f"a {type(seed).__name__}"
        raise InvalidInput(f"the seed of Draws is {size}; leave it out, or pass {SEED_BYTES} bytes from os.urandom")
    return seed


def _checked_integer(name: str, number: SupportsIndex, low: int, high: int) -> int:
    try:
        integer = operator.index(number)
    except TypeError as error:
        raise InvalidInput(f"{name}={number!r} is not a whole number") from error
    if not low <= integer < high:
        raise InvalidInput(f"{name}={integer}; pass a whole number from {low} to {high - 1}")
    return integer

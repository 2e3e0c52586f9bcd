"""Checkpoints of a run: owner-only files to resume from, and the ledger that records which rounds were released.

A checkpoint holds everything that a run needs to resume (parameters, optimizer, scheduler, random states), so it must
never leave its owner. A checkpoint file is complete and unchanged, or it is not used. The ledger keeps what a run must
never forget: its plan, the seed of its draws, and the released rounds. Released models are written by
:mod:`hush.train.run_folder`.
"""

import hashlib
import io
import json
import os
import pickle
import random
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import IO, Any, Self, cast, final

import numpy as np
import torch
from torch import Tensor, nn
from torch.distributed.tensor import DTensor
from torch.optim import Optimizer
from torch.utils._pytree import tree_map_only

from hush.errors import InvalidInput
from hush.plan import Plan
from hush.plan.plan import fingerprint
from hush.storage import flush, read_json, whole_file
from hush.train.average import IterateAverage
from hush.train.distributed import Ranks, full_tensors, plain_tensors, shard_like, shard_optimizer_state

__all__ = [
    "Checkpoints",
    "Ledger",
    "buffers_digest",
    "capture",
    "check_storable",
    "durable_file",
    "frozen_digest",
    "plan_identity",
    "refuse_moved_buffers",
    "renew_random_states",
    "restore",
]


_MAGIC = b"hush checkpoint 1\n"
_DIGEST_LENGTH = 64  # hex digits of a SHA-256
_NAME = re.compile(r"round-(\d{6,})\.ckpt")


@final
class Checkpoints:
    """The newest few checkpoints of one run, a file each, in a folder that only its owner can read.

    Guarantee: once ``write`` returns, the checkpoint survives a crash of process and machine; a crash before that
    leaves the older ones as they were. ``newest`` returns only what was written, bit for bit, and runs no code that a
    file may hold.
    """

    def __init__(self, folder: Path, *, keep: int = 2) -> None:
        if keep < 1:
            raise InvalidInput(f"keep={keep} checkpoints leaves none to resume from; keep at least 1")
        self.folder = folder
        self.keep = keep

    def write(self, round: int, state: Mapping[str, Any]) -> None:
        """Store this state as the one after ``round`` rounds, then delete all but the newest.

        Checkpoints of later rounds are deleted too: a run that reaches this round again found them damaged.
        """
        self.folder.mkdir(mode=0o700, exist_ok=True)
        with durable_file(self.folder / f"round-{round:06d}.ckpt") as file:
            file.write(_MAGIC + b"0" * _DIGEST_LENGTH)
            hashed = _HashingWriter(file)
            try:
                torch.save(dict(state) | {"round": round}, cast(IO[bytes], hashed))
            except RuntimeError:  # torch hides the error of a full disk behind one of its own
                if hashed.failure is None:
                    raise
                raise hashed.failure from None
            file.seek(len(_MAGIC))
            file.write(hashed.digest.hexdigest().encode())
        stored = self._newest_first()
        kept = [path for reached, path in stored if reached <= round][: self.keep]
        for _, path in stored:
            if path not in kept:
                path.unlink()

    def newest(self) -> dict[str, Any] | None:
        """The newest undamaged checkpoint; None if there is none."""
        for round, path in self._newest_first():
            state = _read(path)
            if state is not None and state.get("round") == round:
                return state
        return None

    def _newest_first(self) -> list[tuple[int, Path]]:
        paths = self.folder.iterdir() if self.folder.is_dir() else ()
        by_round = [(int(match[1]), path) for path in paths if (match := _NAME.fullmatch(path.name))]
        return sorted(by_round, reverse=True)


@contextmanager
def durable_file(path: Path) -> Iterator[IO[bytes]]:
    """An owner-only ``whole_file`` whose name also survives a crash of the machine once the block is left."""
    with whole_file(path, owner_only=True) as file:
        yield file
    flush(path.parent)


def check_storable(owner: str, state: object) -> None:
    """Refuse a state that could be written but not read back without running code from the file."""
    buffer = io.BytesIO()
    try:
        torch.save(state, buffer)
        buffer.seek(0)
        torch.load(buffer, weights_only=True)
    except (pickle.PickleError, AttributeError, TypeError) as error:
        raise InvalidInput(
            f"the state of {owner} cannot be read back from a checkpoint without running code; its state_dict must "
            "hold tensors, numbers, strings and lists or dicts of them only"
        ) from error


def _read(path: Path) -> dict[str, Any] | None:
    """What a checkpoint file holds; None if it is damaged."""
    with path.open("rb") as file:
        magic, stated = file.read(len(_MAGIC)), file.read(_DIGEST_LENGTH)
        if magic != _MAGIC or hashlib.file_digest(file, "sha256").hexdigest().encode() != stated:
            return None
        file.seek(len(_MAGIC) + _DIGEST_LENGTH)
        try:
            return torch.load(file, map_location="cpu", weights_only=True)
        except (RuntimeError, pickle.PickleError) as error:
            raise InvalidInput(
                f"{path} has its digest but is not a checkpoint of plain tensors and numbers, so hush did not write "
                "it; remove it to resume from the one before"
            ) from error


class _HashingWriter(io.RawIOBase):
    """Writes to a file and digests what it writes; ``torch.save`` writes from front to back."""

    def __init__(self, file: IO[bytes]) -> None:
        self.file = file
        self.digest = hashlib.sha256()
        self.failure: OSError | None = None  # of the system, on a full disk

    def writable(self) -> bool:
        return True

    def write(self, data: Any) -> int:
        self.digest.update(data)
        try:
            return self.file.write(data)
        except OSError as error:
            self.failure = error
            raise


def capture(
    trainable: Mapping[str, nn.Parameter],
    optimizer: Optimizer,
    scheduler: Any | None,
    ranks: Ranks,
    average: IterateAverage | None = None,
) -> dict[str, Any]:
    """Parameters, optimizer, scheduler, average and the random states of all ranks, as tensors and plain values.

    All ranks call it together; on the first one, shards are gathered.
    """

    def gathered(shard: DTensor) -> Tensor:
        value = shard.full_tensor()
        return value.cpu() if ranks.is_first else value[:0]

    return {
        "parameters": {name: _map_shards(parameter.detach(), gathered) for name, parameter in trainable.items()},
        "optimizer": _map_shards(optimizer.state_dict(), gathered),
        "scheduler": None if scheduler is None else scheduler.state_dict(),
        "average": None if average is None else _map_shards(average.state(), gathered),
        "random": ranks.gather(_random_states()),
    }


def restore(
    state: Mapping[str, Any],
    trainable: Mapping[str, nn.Parameter],
    optimizer: Optimizer,
    scheduler: Any | None,
    ranks: Ranks,
    average: IterateAverage | None = None,
) -> None:
    """Restore what ``capture`` took, sharded as the model is now."""
    stored: Mapping[str, Tensor] = state["parameters"]
    wrong = sorted(
        name
        for name in {*stored, *trainable}
        if name not in stored or name not in trainable or stored[name].shape != trainable[name].shape
    )
    if wrong:
        raise InvalidInput(
            f"the checkpoint is of another model: {wrong[0]} and {len(wrong) - 1} more trainable parameters are "
            "missing or shaped differently in one of the two; build the model as it was when training began"
        )
    if (state["scheduler"] is None) != (scheduler is None):
        before = "no scheduler" if scheduler is not None else "a scheduler"
        raise InvalidInput(f"training began with {before}; resume it as it began")
    if (state.get("average") is None) != (average is None):  # version 0.1.0 had none
        before = "the last model" if average is not None else "a mean of models"
        raise InvalidInput(f"training began with {before} to release; resume it as it began", setting="average")
    with torch.no_grad():
        for name, parameter in trainable.items():
            parameter.copy_(shard_like(stored[name], parameter))
    try:
        optimizer.load_state_dict(shard_optimizer_state(state["optimizer"], optimizer))
    except (ValueError, KeyError, IndexError) as error:
        raise InvalidInput(f"the checkpoint is of another optimizer ({error}); resume training as it began") from error
    if scheduler is not None:
        scheduler.load_state_dict(state["scheduler"])
    if average is not None:
        average.load(state["average"])
    if len(state["random"]) == ranks.world:  # with another number of ranks they cannot be assigned
        _restore_random_states(state["random"][ranks.rank])


def renew_random_states() -> None:
    """New random states from the system's entropy, so that dropout and a collator's choices cannot be predicted.

    With a known seed (the Trainer of transformers sets all of these), an example's dropout mask would tell its position
    in the stream, and so how many examples were drawn before it.
    """
    random.seed()
    np.random.seed()  # noqa: NPY002 - the user's code may draw from it
    torch.seed()  # of every kind of device


def frozen_digest(model: nn.Module) -> str:
    """The digest of the frozen parameters: checkpoints leave them out, and a resumed run must have the same ones."""
    return _digest((name, p) for name, p in model.named_parameters() if not p.requires_grad)


def buffers_digest(model: nn.Module) -> str:
    """The digest of the buffers saved with a model. Training must not change them: that bypasses the noise."""
    return _digest(
        (f"{path}.{name}", buffer)
        for path, module in model.named_modules()
        for name, buffer in module.named_buffers(recurse=False)
        if name not in module._non_persistent_buffers_set
    )


def refuse_moved_buffers(model: nn.Module, digest: str) -> None:
    """Refuse a model whose buffers do not have this digest."""
    if buffers_digest(model) != digest:
        raise InvalidInput(
            "training changed a buffer of the model, which bypasses clipping and noise; find the module whose forward "
            "pass does so, and freeze it or replace it by one without running state"
        )


def _map_shards(tree: Any, change: Callable[[DTensor], Tensor]) -> Any:
    return tree_map_only(DTensor, change, tree)


def _digest(tensors: Iterable[tuple[str, Tensor]]) -> str:
    digest = hashlib.sha256()
    for name, tensor in tensors:
        for part in plain_tensors(tensor):
            digest.update(f"{name} {part.dtype} {tuple(part.shape)}\n".encode())
            value: Tensor = full_tensors(part.detach())
            digest.update(value.cpu().contiguous().flatten().view(torch.uint8).numpy().data)
    return digest.hexdigest()


def _random_states() -> dict[str, Any]:
    kind, words, *rest = np.random.get_state()  # noqa: NPY002 - the user's code may draw from it
    return {
        "torch": torch.get_rng_state(),
        "cuda": torch.cuda.get_rng_state_all() if torch.cuda.is_initialized() else [],
        "numpy": (kind, torch.from_numpy(np.asarray(words, dtype=np.int64)), *rest),
        "python": random.getstate(),
    }


def _restore_random_states(states: Mapping[str, Any]) -> None:
    torch.set_rng_state(states["torch"])
    if len(states["cuda"]) == torch.cuda.device_count():  # they do not apply to other hardware
        torch.cuda.set_rng_state_all(states["cuda"])
    kind, words, *rest = states["numpy"]
    np.random.set_state((kind, words.numpy(), *rest))  # noqa: NPY002
    random.setstate(states["python"])


_PLAN_SETTINGS = ("noise_multiplier", "noise_scale", "rounds", "batch_size", "clip_norm", "bound", "data_fingerprint")


@final
@dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class Ledger:
    """What a run must not forget. ``run`` is a random name; ``released`` and ``marks`` only grow, and are stored before
    a release appears."""

    run: str
    plan: dict[str, Any]
    insecure_seed: int | None
    draw_seed: str
    marks: tuple[str, ...] = ()
    released: tuple[int, ...] = ()
    finished: bool = False

    @classmethod
    def begin(
        cls, plan: Plan, insecure_seed: int | None, draw_seed: bytes, *, public_part: Mapping[str, int] | None = None
    ) -> Self:
        """The ledger of a new run; public_part: what was learnt before its first round."""
        run, identity = os.urandom(16).hex(), plan_identity(plan, public_part)
        return cls(run=run, plan=identity, insecure_seed=insecure_seed, draw_seed=draw_seed.hex())

    @classmethod
    def load(cls, path: Path) -> Self:
        """Read what ``store`` wrote."""
        try:
            content: dict[str, Any] = read_json(path)
            return cls(**{**content, "released": tuple(content["released"]), "marks": tuple(content["marks"])})
        except (ValueError, TypeError, KeyError) as error:
            raise InvalidInput(f"{path} is not the ledger of a run; restore it, or train in a new folder") from error

    def store(self, path: Path) -> None:
        """Replace the ledger at this path; it survives a crash once this returns."""
        with durable_file(path) as file:
            file.write(json.dumps(asdict(self), indent=2).encode())

    @property
    def last_released(self) -> int:
        """The last round whose model may have been seen by others; 0 if there is none."""
        return max(self.released, default=0)

    def with_marks(self, marks: Iterable[str]) -> Self:
        """The ledger with these marks added."""
        return replace(self, marks=tuple(dict.fromkeys((*self.marks, *marks))))

    def with_release(self, round: int, *, finished: bool) -> Self:
        """The ledger with one more release."""
        released = tuple(sorted({*self.released, round}))
        return replace(self, released=released, finished=self.finished or finished)

    def check(
        self, path: Path, plan: Plan, insecure_seed: int | None, *, public_part: Mapping[str, int] | None = None
    ) -> None:
        """Refuse to resume under another plan, with other seeding, or from another public part."""
        remedy = "resume it as it began, or train in a new folder"
        identity = plan_identity(plan, public_part)
        differ = [
            f"{name} {self.plan.get(name)!r} against {identity[name]!r}"
            for name in identity
            if self.plan.get(name) != identity[name]
        ]
        if differ:
            raise InvalidInput(f"{path} was begun under another plan than the one given: {', '.join(differ)}; {remedy}")
        if self.insecure_seed != insecure_seed:
            raise InvalidInput(
                f"{path} was begun with {_seeding(self.insecure_seed)}, but this training has "
                f"{_seeding(insecure_seed)}; {remedy}"
            )


def plan_identity(plan: Plan, public_part: Mapping[str, int] | None = None) -> dict[str, Any]:
    """What defines the training: settings, incidence, promises, weights, what is public, and what was learnt first."""
    held_out = None if plan.held_out is None else fingerprint(b"hush held out 1\n", plan.held_out)
    return {
        **{name: getattr(plan, name) for name in _PLAN_SETTINGS},
        "incidence": plan.incidence.fingerprint,
        "promises": plan.promises_fingerprint,
        "weights": fingerprint(b"hush weights 1\n", plan.weights),
        "slots": None if plan.slots is None else plan.slots.fingerprint,
        "skeletons": plan.skeleton_fingerprint,
        "held out": held_out,
        "public part": None if public_part is None else dict(public_part),
    }


def _seeding(insecure_seed: int | None) -> str:
    return "seeds from the system's entropy" if insecure_seed is None else f"insecure_seed={insecure_seed}"

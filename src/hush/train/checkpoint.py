"""Checkpoints, between the training loop and the disk: owner-only files that are whole and true, or are not taken.

A checkpoint holds everything that a run needs to go on, random states included, so it must never leave its owner.
Released models are written by :mod:`hush.train.release`.
"""

import hashlib
import io
import pickle
import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Any, cast, final

import torch

from hush.errors import InvalidInput
from hush.storage import flush, whole_file

__all__ = ["Checkpoints", "check_storable", "durable_file"]

_HEAD = b"hush checkpoint 1\n"
_DIGEST = 64  # hex digits of a SHA-256
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
        """Keep this state as the one after ``round`` rounds, then drop all but the newest.

        Later ones go too: a run that came here again found them damaged.
        """
        self.folder.mkdir(mode=0o700, exist_ok=True)
        with durable_file(self.folder / f"round-{round:06d}.ckpt") as file:
            file.write(_HEAD + b"0" * _DIGEST)
            hashed = _Hashed(file)
            torch.save(dict(state) | {"round": round}, cast(IO[bytes], hashed))
            file.seek(len(_HEAD))
            file.write(hashed.digest.hexdigest().encode())
        found = self._newest_first()
        kept = [path for reached, path in found if reached <= round][: self.keep]
        for _, path in found:
            if path not in kept:
                path.unlink()

    def newest(self) -> dict[str, Any] | None:
        """The newest checkpoint that is whole; None if there is none."""
        for round, path in self._newest_first():
            state = _read(path)
            if state is not None and state.get("round") == round:
                return state
        return None

    def _newest_first(self) -> list[tuple[int, Path]]:
        paths = self.folder.iterdir() if self.folder.is_dir() else ()
        found = [(int(match[1]), path) for path in paths if (match := _NAME.fullmatch(path.name))]
        return sorted(found, reverse=True)


@contextmanager
def durable_file(path: Path) -> Iterator[IO[bytes]]:
    """An owner-only ``whole_file`` whose name, too, survives a crash of the machine once the block is left."""
    with whole_file(path, owner_only=True) as file:
        yield file
    flush(path.parent)


def check_storable(what: str, state: object) -> None:
    """Refuse a state that could be written but not read back without running code from the file."""
    buffer = io.BytesIO()
    try:
        torch.save(state, buffer)
        buffer.seek(0)
        torch.load(buffer, weights_only=True)
    except (pickle.PickleError, AttributeError, TypeError) as error:
        raise InvalidInput(
            f"the state of {what} cannot be read back from a checkpoint without running code; its state_dict must hold "
            "tensors, numbers, strings and lists or dicts of them only"
        ) from error


def _read(path: Path) -> dict[str, Any] | None:
    """What a checkpoint file holds; None if it is damaged."""
    with path.open("rb") as file:
        head, stated = file.read(len(_HEAD)), file.read(_DIGEST)
        if head != _HEAD or hashlib.file_digest(file, "sha256").hexdigest().encode() != stated:
            return None
        file.seek(len(_HEAD) + _DIGEST)
        try:
            return torch.load(file, map_location="cpu", weights_only=True)
        except (RuntimeError, pickle.PickleError) as error:
            raise InvalidInput(
                f"{path} has its digest but is not a checkpoint of plain tensors and numbers, so somebody else wrote "
                "it; remove it to resume from the one before"
            ) from error


class _Hashed(io.RawIOBase):
    """A file to write through, which digests what passes; ``torch.save`` writes from front to back."""

    def __init__(self, file: IO[bytes]) -> None:
        self.file = file
        self.digest = hashlib.sha256()

    def writable(self) -> bool:
        return True

    def write(self, data: Any) -> int:
        self.digest.update(data)
        return self.file.write(data)

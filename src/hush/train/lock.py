"""One process at a time in a folder, below the run's ledger."""

import fcntl
import os
from pathlib import Path
from secrets import token_bytes
from typing import final
from weakref import finalize

from hush.errors import InvalidInput

__all__ = ["FolderLock"]

_WHY = "two trainings in one folder would release more rounds than planned"
_HELD: set[Path] = set()  # locks of this process, which the system would grant it twice


@final
class FolderLock:
    """A lock file that no other process holds, until ``release``, the end of this object or that of its process.

    The system takes the lock away as soon as this process closes the file elsewhere, after copying the folder, say. So
    ``check`` takes it again, and what the holder wrote into the file tells whether somebody had it in between.
    """

    def __init__(self, path: Path) -> None:
        self.path, self._process, self._name = path, os.getpid(), token_bytes(16)
        if path in _HELD:
            raise InvalidInput(f"this process already has {path.parent} open; close() that training first: {_WHY}")
        self._handle = os.open(path, os.O_RDWR | os.O_CREAT, 0o600)
        try:
            self._take()
            os.pwrite(self._handle, self._name, 0)
        except BaseException:
            os.close(self._handle)
            raise
        _HELD.add(path)
        self._unlock = finalize(self, _unlock, path, self._handle)

    def check(self) -> None:
        """Refuse to go on without the lock."""
        if not self._unlock.alive:
            raise InvalidInput(f"{self.path.parent} was closed; open the training again to go on")
        if os.getpid() != self._process:
            raise InvalidInput(f"{self.path.parent} belongs to the process that opened it, not to a fork of it")
        self._take()
        if os.pread(self._handle, len(self._name), 0) != self._name:
            raise InvalidInput(f"another process had {self.path.parent} open since; open the training again: {_WHY}")

    def release(self) -> None:
        """Let others in; doing it twice changes nothing."""
        self._unlock()

    def _take(self) -> None:
        try:
            fcntl.lockf(self._handle, fcntl.LOCK_EX | fcntl.LOCK_NB)  # not flock, which forked data loaders would share
        except OSError as error:
            why = f"wait for it, or end it: {_WHY}"
            raise InvalidInput(f"another process has {self.path.parent} open; {why}") from error


def _unlock(path: Path, handle: int) -> None:
    _HELD.discard(path)
    os.close(handle)

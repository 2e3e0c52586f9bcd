"""One process at a time in a folder, below the run's ledger."""

import fcntl
import os
from pathlib import Path
from typing import final
from weakref import finalize

from hush.errors import InvalidInput

__all__ = ["FolderLock"]

_HELD: set[Path] = set()  # locks of this process, which the system would grant it twice


@final
class FolderLock:
    """A lock file that no other process holds, until ``release``, the end of this object or that of its process."""

    def __init__(self, path: Path) -> None:
        self.path, self._process = path, os.getpid()
        why = "two trainings in one folder would release more rounds than planned"
        if path in _HELD:
            raise InvalidInput(f"this process already has {path.parent} open; close() that training first: {why}")
        handle = os.open(path, os.O_RDWR | os.O_CREAT, 0o600)
        try:
            fcntl.lockf(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)  # not flock, which forked data loaders would share
        except OSError as error:
            os.close(handle)
            raise InvalidInput(f"another process has {path.parent} open; wait for it, or end it: {why}") from error
        _HELD.add(path)
        self._unlock = finalize(self, _unlock, path, handle)

    def check(self) -> None:
        """Refuse to go on without the lock."""
        if not self._unlock.alive:
            raise InvalidInput(f"{self.path.parent} was closed; open the training again to go on")
        if os.getpid() != self._process:
            raise InvalidInput(f"{self.path.parent} belongs to the process that opened it, not to a fork of it")

    def release(self) -> None:
        """Let others in; doing it twice changes nothing."""
        self._unlock()


def _unlock(path: Path, handle: int) -> None:
    _HELD.discard(path)
    os.close(handle)

"""The folder of a run: what may leave the owner's hands, what may not, and a lock for one process at a time.

share/            plan, certificate, model, report: may leave
owner/            may not: mode 0700
  inputs/         the config and the files it names, as they were for what lies here
  data.key        the key of fingerprints, unless the config names another
  scan/ canaries/ plan/ audit/ report.html
  training/ID/    one folder for each training: its states, losses and batch sizes, and what it released
stages.json       which stage is done, under which inputs: fingerprints under the owner's key. For the owner
"""

import os
import re
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from secrets import token_hex
from typing import final

from hush.errors import InvalidInput
from hush.keyed import DataKey
from hush.train.lock import FolderLock

__all__ = ["RunPaths", "discard", "key_at", "opened"]

NAMES = {"share", "owner", "stages.json"}
_REMAINS = re.compile(r"\..+\.(tmp|old)")


@final
@dataclass(frozen=True, slots=True)
class RunPaths:
    """Where everything of a run lies."""

    root: Path

    @property
    def share(self) -> Path:
        """What may leave the owner's hands."""
        return self.root / "share"

    @property
    def owner(self) -> Path:
        """What may not."""
        return self.root / "owner"

    @property
    def stages(self) -> Path:
        return self.root / "stages.json"

    @property
    def inputs(self) -> Path:
        return self.owner / "inputs"

    @property
    def scan(self) -> Path:
        return self.owner / "scan"

    @property
    def canaries(self) -> Path:
        return self.owner / "canaries"

    @property
    def plan(self) -> Path:
        return self.owner / "plan"

    @property
    def trainings(self) -> Path:
        return self.owner / "training"

    @property
    def audit(self) -> Path:
        return self.owner / "audit"

    @property
    def report(self) -> Path:
        """With everything that the owner may see; the one in share/ has less."""
        return self.owner / "report.html"

    def check(self) -> None:
        """Refuse a place that holds anything but a run."""
        if not self.root.exists():
            return
        if not self.root.is_dir():
            raise InvalidInput(f"{self.root} is a file; name a folder for the run")
        foreign = sorted(
            entry.name
            for entry in self.root.iterdir()
            if entry.name not in NAMES and not _REMAINS.fullmatch(entry.name)
        )
        if not foreign and not (self.stages.is_file() or (self.owner / "lock").is_file()):
            # Names alone do not tell whose it is. A run begins with owner/, empty until the lock is in it.
            empty = self.owner.is_dir() and not any(self.owner.iterdir())
            foreign = sorted({entry.name for entry in self.root.iterdir()} - ({"owner"} if empty else set()))
        if foreign:
            raise InvalidInput(f"{self.root} holds something other than a run ({foreign[0]}); name a new folder")


@contextmanager
def opened(root: Path) -> Iterator[RunPaths]:
    """The folder of a run, made if need be, for this process alone; what a kill left half written is gone."""
    paths = RunPaths(root.resolve())
    paths.check()
    paths.owner.mkdir(mode=0o700, parents=True, exist_ok=True)
    paths.owner.chmod(0o700)
    lock = FolderLock(paths.owner / "lock")
    try:
        _clear_remains(paths)
        with _temporary_files_in(paths.owner / ".work.tmp"):
            yield paths
    finally:
        lock.release()


def discard(path: Path) -> None:
    """Remove a folder so that, whenever this is interrupted, it is there whole or not at all."""
    if path.exists():
        aside = path.with_name(f".{path.name}.{token_hex(8)}.tmp")
        path.replace(aside)
        shutil.rmtree(aside)


def key_at(path: Path) -> DataKey:
    """The key at this path, made on first use."""
    for left in path.parent.glob(f".{path.name}.*.tmp"):
        left.unlink(missing_ok=True)  # of a process that was killed here
    return DataKey.load_or_create(path)


@contextmanager
def _temporary_files_in(folder: Path) -> Iterator[None]:
    """Temporary files of this process and those it starts lie with the owner's: a kill leaves none elsewhere."""
    before, stated = tempfile.tempdir, os.environ.get("TMPDIR")
    folder.mkdir(mode=0o700)
    tempfile.tempdir = os.environ["TMPDIR"] = str(folder)
    try:
        yield
    finally:
        tempfile.tempdir = before
        if stated is None:
            del os.environ["TMPDIR"]
        else:
            os.environ["TMPDIR"] = stated
        shutil.rmtree(folder, ignore_errors=True)


def _clear_remains(paths: RunPaths) -> None:
    """Remove what was being written when a process was killed; a training looks after its own folder."""
    for place, folders, files in os.walk(paths.root):
        for name in filter(_REMAINS.fullmatch, [*folders, *files]):
            path = Path(place, name)
            shutil.rmtree(path) if path.is_dir() and not path.is_symlink() else path.unlink()
        within_training = Path(place) == paths.trainings
        folders[:] = [] if within_training else [name for name in folders if not _REMAINS.fullmatch(name)]

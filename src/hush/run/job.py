"""What every stage is given: the config, the folder, the key, what is done so far, and who is watching.

The first stage: is this the data of last time? Files are compared by size and time, and read if those differ.
"""

import json
import os
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, final

from hush.audit.settings import CanarySettings
from hush.console import counted
from hush.data import Corpus, read_corpus
from hush.data.text_readers import KINDS, kind_of
from hush.errors import InvalidInput
from hush.keys import DataKey
from hush.run.config import Config
from hush.run.folder import Record, RunPaths, StageName
from hush.run.sections import AuditSection

if TYPE_CHECKING:
    from hush.train.round import LiveNumbers

__all__ = ["DataStage", "Job", "Watch", "file_rows", "files_of", "unread_files"]


def _nothing(*_: object) -> None:
    pass


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class Watch:
    """Who is told: stage (name, "begins" or "kept"), work (what, done, of how many), live numbers, notices.

    stoppable: entered for as long as training lasts; what it gives is asked after each round whether to stop.
    """

    stage: Callable[[StageName, str], None] = _nothing
    work: Callable[[str, int, int], None] = _nothing
    live: "Callable[[LiveNumbers], None]" = _nothing
    notice: Callable[[str], None] = _nothing
    stoppable: Callable[[], AbstractContextManager[Callable[[], bool]]] = lambda: nullcontext(lambda: False)


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class Job:
    """A run under way. new_release: whether the owner asked for a further training of the same data."""

    config: Config
    paths: RunPaths
    key: DataKey
    record: Record
    watch: Watch = field(default_factory=Watch)
    new_release: bool = False

    def outputs(self, stage: StageName) -> dict[str, Any]:
        """What a finished stage left behind."""
        return self.record.stages[stage].outputs

    def fingerprint(self, *parts: object) -> str:
        """Under the owner's key: plain data that may hold private text."""
        return self.key.fingerprint_rows([json.dumps(part, sort_keys=True, default=str) for part in parts])

    @property
    def has_canaries(self) -> bool:
        return self.config.audit is not None and self.config.audit.canaries is not None

    @property
    def audit(self) -> AuditSection:
        """For stages that run only where there is an audit."""
        if self.config.audit is None:
            raise InvalidInput("the config asks for no audit; add the section audit")
        return self.config.audit

    @property
    def canaries(self) -> CanarySettings:
        """For stages that run only where there are canaries."""
        if self.audit.canaries is None:
            raise InvalidInput("the config asks for no canaries; add canaries to the section audit")
        return self.audit.canaries

    def scanned(self) -> Corpus:
        """The examples of the scan, in its order."""
        kept = self.paths.scan / "owner" / "data.parquet"  # there where the examples are not the rows of the source
        if kept.is_file():
            return read_corpus(kept)
        data = self.config.data
        return read_corpus(self.config.source, column=data.column, unit=data.unit)

    def corpus(self) -> Corpus:
        """The examples of the plan: those of the scan, and the canaries after them."""
        if not self.has_canaries:
            return self.scanned()
        return read_corpus(self.paths.canaries / "owner" / "data.parquet")

    def public(self, name: str) -> Path:
        """A public file about those examples: incidence.parquet or secrets.parquet."""
        return (self.paths.canaries if self.has_canaries else self.paths.scan) / "public" / name


CHUNK = 2**20  # bytes of a file that are read at once
SAVED = ("dataset_info.json", "dataset_dict.json")  # in a data set that was saved, whose files all belong to it
GIT = ("HEAD", "packed-refs", "refs/heads")  # what says which commits there are


@final
class DataStage:
    """Fingerprints of everything that the scan may read."""

    name: StageName = "data"
    needs: tuple[StageName, ...] = ()

    def settings(self, job: Job) -> Any:
        data, files = job.config.data, files_of(job.config.source, code=job.config.rules.about_code)
        stats = [(name, path.stat()) for name, path in files]
        seen = [[name, stat.st_size, stat.st_mtime_ns] for name, stat in stats]
        if not files:  # a name says nothing of the rows: they are always read
            return [job.config.source, data.column, data.unit, os.urandom(16).hex()]
        return [data.column, data.unit, seen]

    def run(self, job: Job) -> dict[str, Any]:
        config = job.config
        files = files_of(config.source, code=config.rules.about_code)
        if files:
            size = sum(path.stat().st_size for _, path in files)
            rows = file_rows(files, lambda done: job.watch.work("Reading", done, size))
            return {"fingerprint": job.key.fingerprint_rows(rows), "files": len(files), "bytes": size}
        corpus = read_corpus(config.source, column=config.data.column, unit=config.data.unit)
        return {"fingerprint": job.key.fingerprint_rows(corpus.texts()), "files": 0, "bytes": 0}

    def is_there(self, job: Job) -> bool:
        return True


def files_of(source: str, *, code: bool) -> list[tuple[str, Path]]:
    """The files that data lies in, by name, with their names in it; none for a data set that is known by name.

    Of a folder of code all but git's own, of which only what says where it stands.
    """
    root = Path(source)
    if root.is_file():
        return [(root.name, root)]
    found: list[Path] = []
    for place, folders, names in os.walk(root):
        folders[:] = [name for name in folders if name != ".git" and (code or not name.startswith("."))]
        found += [Path(place, name) for name in names if code or not name.startswith(".")]
    if code:
        for name in GIT:
            path = root / ".git" / name
            found += [path] if path.is_file() else path.rglob("*")
    return sorted((path.relative_to(root).as_posix(), path) for path in found if path.is_file())


def unread_files(source: str) -> list[str]:
    """What to say of files in a folder of texts or tables that nothing reads, since their names end otherwise."""
    folder = Path(source)
    if not folder.is_dir() or any((folder / name).is_file() for name in SAVED):
        return []
    unread = sum(kind_of(path) is None for _, path in files_of(source, code=False))
    endings = ", ".join(KINDS)
    return [f"left out, since their names end in none of {endings}: {counted(unread, 'file')}"] if unread else []


def file_rows(files: list[tuple[str, Path]], told: Any = None) -> Iterator[str | bytes]:
    """Names and contents in pieces, such that no two lists of files give the same rows."""
    done = 0
    for name, path in files:
        yield os.fsencode(name)
        with path.open("rb") as file:
            while piece := file.read(CHUNK):
                done += len(piece)
                if told is not None:
                    told(done)
                yield piece
        yield b""

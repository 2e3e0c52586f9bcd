"""The first stage: is this the data of last time? Files are compared by size and time, and read if those differ."""

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any, final

from hush.console import counted
from hush.corpus import read_corpus
from hush.corpus.formats import KINDS, kind_of
from hush.pipeline.job import Job
from hush.pipeline.record import StageName

__all__ = ["DataStage", "file_rows", "files_of", "unread_files"]

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

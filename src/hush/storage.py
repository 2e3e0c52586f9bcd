"""How results reach disk, below every stage: files and folders appear whole or not at all, tables say what they are.

One process at a time in a folder, below the run's ledger.
"""

import fcntl
import hashlib
import json
import os
import re
import shutil
import stat
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from secrets import token_bytes, token_hex
from typing import IO, TYPE_CHECKING, Any, Literal, final
from weakref import finalize

from hush.errors import InvalidInput

if TYPE_CHECKING:
    import pyarrow as pa
    import pyarrow.parquet as pq

__all__ = [
    "FolderLock",
    "arrow_file",
    "clear_leftovers",
    "discard",
    "file_digest",
    "flush",
    "folder_digest",
    "is_leftover",
    "parquet_file",
    "parquet_table",
    "read_table",
    "readable_like_folder",
    "record_digest",
    "temporary_beside",
    "whole_file",
    "whole_folder",
    "write_table",
]


@contextmanager
def whole_file(path: str | os.PathLike[str], *, owner_only: bool = False) -> Iterator[IO[bytes]]:
    """A binary file to write to, which takes its name, and replaces what is there, only once it is complete.

    A reader or a crash never meets half of one. With ``owner_only`` it is readable by its owner alone from the moment
    it exists.
    """
    target = Path(path)
    temporary = temporary_beside(target)
    handle = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600 if owner_only else 0o666)
    try:
        with os.fdopen(handle, "wb") as file:
            yield file
            file.flush()
            os.fsync(file.fileno())
        temporary.replace(target)
    except BaseException as error:
        temporary.unlink(missing_ok=True)
        if isinstance(error, OSError) and error.errno is not None and error.filename is None:
            error.filename = str(target)  # a full disk names no file
        raise


@contextmanager
def whole_folder(path: str | os.PathLike[str]) -> Iterator[Path]:
    """A new folder to fill, which takes its name, and replaces what is there, only once it is complete.

    On Linux the kernel exchanges old and new in one step, so a crash leaves one of the two. Where that step does not
    exist, the old folder is renamed first: a crash right then leaves it beside, under a name that ends in .old, and
    ``clear_leftovers`` gives it its name back.
    """
    target = Path(path).resolve()  # a link keeps pointing where it does
    target.parent.mkdir(parents=True, exist_ok=True)
    work = temporary_beside(target)
    work.mkdir()
    try:
        yield work
        for file in (*work.rglob("*"), work):
            flush(file)
        if not target.exists():
            work.replace(target)
        elif not _exchanged(work, target):
            aside = temporary_beside(target, ending="old")
            target.replace(aside)
            try:
                work.replace(target)
            except BaseException:
                aside.replace(target)
                raise
            with suppress(OSError):  # the new folder is in place; what is left of the old one is a left-over
                discard(aside)
        flush(target.parent)
    finally:
        shutil.rmtree(work, ignore_errors=True)  # what is left of it, or by now the old folder


def _exchanged(one: Path, other: Path) -> bool:
    """Swap two names in one step; False where the system has no such step."""
    import ctypes

    here, exchange = -100, 2  # AT_FDCWD, RENAME_EXCHANGE
    try:
        rename = ctypes.CDLL(None, use_errno=True).renameat2
    except (AttributeError, OSError, TypeError):
        return False
    return rename(here, os.fsencode(one), here, os.fsencode(other), exchange) == 0


_LEFTOVER = re.compile(r"\..+\.(tmp|old)")  # every temporary name that this version or 0.1.0 gives
_OF_TARGET = re.compile(r"\.(.+)\.[0-9a-f]{16}\.(tmp|old)")


def temporary_beside(path: Path, *, ending: Literal["tmp", "old"] = "tmp") -> Path:
    """A new hidden name beside ``path``: .NAME.TOKEN.tmp for what is being written or removed.

    .NAME.TOKEN.old is for what is whole, and moved out of the way while its successor takes the name.
    """
    return path.with_name(f".{path.name}.{token_hex(8)}.{ending}")


def is_leftover(name: str) -> bool:
    """Whether a file or folder of this name is what a killed process left; ask only about folders that hush owns.

    >>> is_leftover(".plan.0123456789abcdef.tmp"), is_leftover("plan")
    (True, False)
    """
    return _LEFTOVER.fullmatch(name) is not None


def clear_leftovers(
    folder: Path, *, of: str | None = None, recursive: bool = False, apart_from: Collection[Path] = ()
) -> None:
    """Remove what killed processes left in a folder, which only this process writes to while it does so.

    A .NAME.TOKEN.old whose successor never took its name is whole, so it gets the name back. of: only what belongs to
    the file or folder of this name, for folders that hush does not own. recursive: in the folders below too, except
    those in apart_from. Links are removed, and not followed.
    """
    if not folder.is_dir():
        return
    for path in sorted(folder.iterdir()):
        known = _OF_TARGET.fullmatch(path.name)
        if is_leftover(path.name) and (of is None or (known is not None and known[1] == of)):
            if known is not None and known[2] == "old" and not path.with_name(known[1]).exists():
                path.replace(path.with_name(known[1]))
                flush(folder)
            elif path.is_dir() and not path.is_symlink():
                shutil.rmtree(path)
            else:
                path.unlink(missing_ok=True)
    for path in sorted(folder.iterdir()) if recursive else ():
        if path.is_dir() and not path.is_symlink() and path not in apart_from:
            clear_leftovers(path, recursive=True, apart_from=apart_from)


def discard(path: Path) -> None:
    """Remove a folder, if it is there, such that a crash leaves all of it or, under its name, nothing."""
    if path.exists():
        aside = temporary_beside(path)
        path.replace(aside)
        shutil.rmtree(aside)


def flush(path: Path) -> None:
    """Have the system write a file or a folder's list of names to the disk."""
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def readable_like_folder(folder: Path) -> None:
    """Give everything below a folder the folder's own mode: some libraries make their files readable by one user."""
    mode = stat.S_IMODE(folder.stat().st_mode)
    for path in folder.rglob("*"):
        if not path.is_symlink():
            path.chmod(mode if path.is_dir() else mode & 0o666)


def file_digest(path: Path) -> str:
    """SHA-256 of a file's content, in hex: for public files; a plain hash of private content would betray guesses."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def folder_digest(folder: Path) -> str:
    """SHA-256 of the names and contents of all files below a folder, which are public once they are released.

    Folders that are links are not entered, and a name with a line break could pass for two files: whoever judges a
    folder that somebody else put together refuses both.
    """
    digest = hashlib.sha256(b"hush model 1\n")
    for path in sorted(path for path in folder.rglob("*") if path.is_file()):
        digest.update(f"{path.relative_to(folder).as_posix()}\n{file_digest(path)}\n".encode())
    return digest.hexdigest()


def record_digest(record: Mapping[str, Any]) -> str:
    """SHA-256 of a public record without its own digest, keys sorted."""
    content = {name: value for name, value in record.items() if name != "digest"}
    return hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()


def arrow_file(path: str | os.PathLike[str]) -> "pa.OSFile":
    """A file for Arrow to read, whatever its name is; one that cannot be opened is named in the error.

    It is read, never mapped into memory: the system ends a process (SIGBUS) that looks at a mapped page which somebody
    cut off meanwhile, or which the disk does not give back. Nor is it a file of Python's: a thread of Arrow that calls
    Python while the process exits may abort it (apache/arrow#50482). Readers pass use_threads=False: a
    process that exits then has no thread of Arrow's to end.
    """
    import pyarrow as pa

    with Path(path).open("rb"):  # Arrow's own errors lose the name
        return pa.OSFile(os.fsencode(path))  # as bytes, since Arrow takes text in UTF-8 alone


@contextmanager
def parquet_file(
    path: str | os.PathLike[str], *, buffer_bytes: int = 0, remedy: str = "write it again"
) -> Iterator["pq.ParquetFile"]:
    """A Parquet file to read from.

    What a row group holds of a column is read at once; with ``buffer_bytes``, only so much at a time. A file that ends
    too early then looks to Arrow like one with fewer rows, so whoever sets it counts them.

    A missing file stays a ``FileNotFoundError``. What turns out, inside the context, to be no whole Parquet file is an
    ``InvalidInput``, also where somebody cuts it short meanwhile. Other damage to a page shows where the writer left
    checksums, as hush does.
    """
    import pyarrow as pa
    import pyarrow.parquet as pq

    with arrow_file(path) as content:
        try:
            # To pre-buffer would be to hold all columns of a row group, whatever buffer_bytes says.
            yield pq.ParquetFile(content, buffer_size=buffer_bytes, pre_buffer=False, page_checksum_verification=True)
        except (pa.ArrowException, OSError, UnicodeDecodeError):  # the last of names of columns
            raise InvalidInput(f"{path} is not a readable Parquet file; {remedy}") from None


def parquet_table(
    path: str | os.PathLike[str], *, columns: Sequence[str] | None = None, remedy: str = "write it again"
) -> "pa.Table":
    """The whole of a ``parquet_file``, or those of these columns that it has."""
    with parquet_file(path, remedy=remedy) as file:
        return file.read(columns=None if columns is None else list(columns), use_threads=False)


def write_table(
    table: "pa.Table",
    path: str | os.PathLike[str],
    *,
    kind: str,
    metadata: Mapping[str, str] | None = None,
    owner_only: bool = False,
) -> None:
    """Write a table and its labels to ``path`` as a ``whole_file``."""
    import pyarrow.parquet as pq

    labels = {f"hush.{key}": value for key, value in (metadata or {}).items()} | {"hush.kind": kind}
    with whole_file(path, owner_only=owner_only) as file:
        pq.write_table(table.replace_schema_metadata(labels), file, compression="zstd", write_page_checksum=True)


def read_table(
    path: str | os.PathLike[str], *, kind: str, columns: tuple[str, ...]
) -> tuple["pa.Table", dict[str, str]]:
    """Read back a table that ``write_table`` wrote as this ``kind``, with its labels.

    A missing file stays a ``FileNotFoundError``; anything else that is not such a table is an ``InvalidInput``.
    """
    remedy = f"pass a file that hush wrote as {kind}"
    table = parquet_table(path, remedy=remedy)
    raw: dict[bytes, bytes] = table.schema.metadata or {}
    labels = {
        key.removeprefix(b"hush.").decode(errors="replace"): value.decode(errors="replace")
        for key, value in raw.items()
        if key.startswith(b"hush.")
    }
    if labels.get("kind") != kind:
        raise InvalidInput(f"{path} is not a hush {kind} file (its kind is {labels.get('kind')!r}); {remedy}")
    missing = [name for name in columns if name not in table.column_names]
    if missing:
        raise InvalidInput(f"{path} lacks the columns {missing}; {remedy}")
    twice = [name for name in columns if table.column_names.count(name) > 1]
    if twice:
        raise InvalidInput(f"{path} has several columns of the names {twice}; {remedy}")
    holes = [name for name in columns if table.column(name).null_count]
    if holes:
        raise InvalidInput(f"{path} has empty cells in the columns {holes}; {remedy}")
    return table, labels


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

"""Files and folders: written atomically, labelled, digested, read with checks, locked against a second process.

Below every stage. Files and folders appear complete or not at all; a table states which kind it is; whatever cannot be
read as what hush wrote is an InvalidInput that names the file.
"""

import fcntl
import hashlib
import io
import json
import math
import os
import re
import shutil
import stat
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
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
    "read_json",
    "read_table",
    "readable_like_folder",
    "record_digest",
    "strict_json",
    "table_digest",
    "temporary_beside",
    "whole_file",
    "whole_folder",
    "write_table",
]


@contextmanager
def whole_file(path: str | os.PathLike[str], *, owner_only: bool = False) -> Iterator[IO[bytes]]:
    """A binary file to write to. It gets its name, and replaces an older file, only once it is complete.

    Neither a reader nor a crash ever sees a part of it. With ``owner_only``, only its owner can read it from the moment
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
        if isinstance(error, OSError):
            _name_file(error, target)
        raise


def _name_file(error: OSError, path: Path) -> None:
    """Name the file in an error that names none, as that of a full disk."""
    if error.errno is not None and error.filename is None:
        error.filename = str(path)


@contextmanager
def whole_folder(path: str | os.PathLike[str]) -> Iterator[Path]:
    """A new folder to fill. It gets its name, and replaces an older folder, only once it is complete.

    On Linux the old and the new folder are exchanged by one system call, so a crash leaves one of the two. Where that
    call does not exist, the old folder is renamed first: a crash at that moment leaves it under a name
    ending in .old, and ``clear_leftovers`` renames it back.
    """
    target = Path(path).resolve()  # a link keeps its target
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
    except OSError as error:
        _name_file(error, target)
        raise
    finally:
        shutil.rmtree(work, ignore_errors=True)  # the unfinished folder, or after the exchange the old one


def _exchanged(first: Path, second: Path) -> bool:
    """Exchange two names in one step; False where the system has no such step."""
    import ctypes

    current_folder, exchange = -100, 2  # AT_FDCWD, RENAME_EXCHANGE
    try:
        rename = ctypes.CDLL(None, use_errno=True).renameat2
    except (AttributeError, OSError, TypeError):
        return False
    return rename(current_folder, os.fsencode(first), current_folder, os.fsencode(second), exchange) == 0


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
    """Make the system write a file, or the list of names in a folder, to the disk."""
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def readable_like_folder(folder: Path) -> None:
    """Give everything below a folder the folder's mode: some libraries write files that only one user can read."""
    mode = stat.S_IMODE(folder.stat().st_mode)
    for path in folder.rglob("*"):
        if not path.is_symlink():
            path.chmod(mode if path.is_dir() else mode & 0o666)


def file_digest(path: Path) -> str:
    """SHA-256 of a file's content, in hex. For public files: a plain hash of private content can confirm guesses."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def folder_digest(folder: Path) -> str:
    """SHA-256 of the names and contents of all files below a folder, which must be public.

    Links to folders are not followed, and a name with a line break could stand for two files: a check of a folder from
    an untrusted source must refuse both.
    """
    digest = hashlib.sha256(b"hush model 1\n")
    for path in sorted(path for path in folder.rglob("*") if path.is_file()):
        digest.update(f"{path.relative_to(folder).as_posix()}\n{file_digest(path)}\n".encode())
    return digest.hexdigest()


def record_digest(record: Mapping[str, Any]) -> str:
    """SHA-256 of a public record without its field ``digest``, keys sorted."""
    content = {name: value for name, value in record.items() if name != "digest"}
    return hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()


def arrow_file(path: str | os.PathLike[str]) -> "pa.OSFile":
    """A file for Arrow to read, with any name; an error names the file that cannot be opened.

    It is read, never mapped into memory: the system kills a process (SIGBUS) that touches a mapped page which was cut
    off meanwhile, or which the disk cannot read. It is not a Python file object either: a thread of Arrow that calls
    Python while the process exits may abort it (apache/arrow#50482). Readers pass use_threads=False, so that a process
    that exits has no thread of Arrow to end.
    """
    import pyarrow as pa

    with Path(path).open("rb"):  # Arrow's errors do not hold the name
        return pa.OSFile(os.fsencode(path))  # as bytes, since Arrow takes only UTF-8 as text


@contextmanager
def parquet_file(
    path: str | os.PathLike[str], *, buffer_bytes: int = 0, remedy: str = "write it again"
) -> Iterator["pq.ParquetFile"]:
    """A Parquet file to read from.

    A column of a row group is read at once; with ``buffer_bytes``, in pieces of this size. Arrow then takes a truncated
    file for one with fewer rows, so a caller that sets it must count the rows.

    A missing file stays a ``FileNotFoundError``. A file that turns out, inside the context, not to be a complete
    Parquet file is an ``InvalidInput``, also if it is truncated meanwhile. Other damage to a page is detected if the
    writer stored checksums, as hush does.
    """
    import pyarrow as pa
    import pyarrow.parquet as pq

    with arrow_file(path) as content:
        try:
            # Pre-buffering would hold all columns of a row group in memory, whatever buffer_bytes is.
            yield pq.ParquetFile(content, buffer_size=buffer_bytes, pre_buffer=False, page_checksum_verification=True)
        except (pa.ArrowException, OSError, UnicodeDecodeError):  # the last from names of columns
            raise InvalidInput(f"{path} is not a readable Parquet file; {remedy}") from None


def parquet_table(
    path: str | os.PathLike[str], *, columns: Sequence[str] | None = None, remedy: str = "write it again"
) -> "pa.Table":
    """A Parquet file as a table, or those of these columns that it has."""
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
    """Write a table with its kind and other labels atomically to ``path``."""
    with whole_file(path, owner_only=owner_only) as file:
        _write_parquet(table, file, kind, metadata)


def table_digest(table: "pa.Table", *, kind: str, metadata: Mapping[str, str] | None = None) -> str:
    """SHA-256, in hex, of the file that ``write_table`` would write, with this version of Arrow."""
    digest = hashlib.sha256()
    _write_parquet(table, _Sink(digest.update), kind, metadata)
    return digest.hexdigest()


class _Sink(io.RawIOBase):
    """A file that keeps nothing, and passes on what is written to it."""

    def __init__(self, update: Callable[[bytes], None]) -> None:
        self._update = update

    def writable(self) -> bool:
        return True

    def write(self, content: Any, /) -> int:
        self._update(content)
        return len(content)


def _write_parquet(table: "pa.Table", file: Any, kind: str, metadata: Mapping[str, str] | None) -> None:
    import pyarrow.parquet as pq

    labels = {f"hush.{key}": value for key, value in (metadata or {}).items()} | {"hush.kind": kind}
    pq.write_table(table.replace_schema_metadata(labels), file, compression="zstd", write_page_checksum=True)


def read_table(
    path: str | os.PathLike[str], *, kind: str, columns: tuple[str, ...]
) -> tuple["pa.Table", dict[str, str]]:
    """Read a table that ``write_table`` wrote as this ``kind``, with its labels.

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
    repeated = [name for name in columns if table.column_names.count(name) > 1]
    if repeated:
        raise InvalidInput(f"{path} has several columns of the names {repeated}; {remedy}")
    with_nulls = [name for name in columns if table.column(name).null_count]
    if with_nulls:
        raise InvalidInput(f"{path} has empty cells in the columns {with_nulls}; {remedy}")
    return table, labels


def strict_json(text: str) -> Any:
    """JSON in which names are unique within an object and every number is finite; a ValueError otherwise."""

    def unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
        if len({name for name, _ in pairs}) != len(pairs):
            raise ValueError("a name occurs twice")
        return dict(pairs)

    def refuse(constant: str) -> float:
        raise ValueError(f"{constant} is not a finite number")

    def finite(digits: str) -> float:
        return float(digits) if math.isfinite(float(digits)) else refuse(digits)

    try:
        return json.loads(text, object_pairs_hook=unique, parse_constant=refuse, parse_float=finite)
    except RecursionError:
        raise ValueError("it is nested too deeply") from None


def read_json(path: Path) -> Any:
    """The ``strict_json`` in a file; an InvalidInput if it is anything else."""
    try:
        return strict_json(path.read_text(encoding="utf-8"))
    except ValueError:
        raise InvalidInput(f"{path} is not JSON that hush wrote; restore it") from None


# One process at a time in the folder of a run.

_REASON = "two trainings in one folder would release more rounds than planned"
_HELD: set[Path] = set()  # locks of this process, which the system would grant it twice


@final
class FolderLock:
    """An exclusive lock on the folder of a run, until ``release``, the end of this object or the end of its process.

    The system drops the lock as soon as this process closes the lock file anywhere, for example after copying the
    folder. So ``check`` takes it again, and a random token in the file shows whether another process held it meanwhile.
    """

    def __init__(self, path: Path) -> None:
        self.path, self._process, self._token = path, os.getpid(), token_bytes(16)
        if path in _HELD:
            raise InvalidInput(f"this process already has {path.parent} open; close() that training first: {_REASON}")
        self._handle = os.open(path, os.O_RDWR | os.O_CREAT, 0o600)
        try:
            self._take()
            os.pwrite(self._handle, self._token, 0)
        except BaseException:
            os.close(self._handle)
            raise
        _HELD.add(path)
        self._unlock = finalize(self, _unlock, path, self._handle)

    def check(self) -> None:
        """Raise unless this process still holds the lock."""
        if not self._unlock.alive:
            raise InvalidInput(f"{self.path.parent} was closed; open the training again to continue")
        if os.getpid() != self._process:
            raise InvalidInput(f"{self.path.parent} belongs to the process that opened it, not to a fork of it")
        self._take()
        if os.pread(self._handle, len(self._token), 0) != self._token:
            raise InvalidInput(f"another process had {self.path.parent} open since; open the training again: {_REASON}")

    def release(self) -> None:
        """Release the lock; a second call does nothing."""
        self._unlock()

    def _take(self) -> None:
        try:
            fcntl.lockf(self._handle, fcntl.LOCK_EX | fcntl.LOCK_NB)  # not flock, which forked data loaders share
        except OSError as error:
            raise InvalidInput(
                f"another process has {self.path.parent} open; wait for it, or end it: {_REASON}"
            ) from error


def _unlock(path: Path, handle: int) -> None:
    _HELD.discard(path)
    os.close(handle)

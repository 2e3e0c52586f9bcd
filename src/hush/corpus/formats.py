"""One reader for each kind of file: Parquet, JSON lines, JSON, CSV and plain text, compressed or not.

Every reader streams rows in the file's order and yields a ``Broken`` in place of a row that it cannot read, so that the
position of an example never depends on its neighbours. What a message says of a broken row is where it is, never what
it holds: it may be the text of a secret.
"""

import csv
import io
import json
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Any, Literal, Protocol, final

import pyarrow as pa
import pyarrow.parquet as pq

from hush.errors import InvalidInput

__all__ = ["KINDS", "Broken", "CsvPart", "JsonPart", "ParquetPart", "Part", "TextPart", "kind_of"]

Unit = Literal["line", "file"]
Row = tuple[object, ...]

KINDS: Mapping[str, str] = {
    ".parquet": "parquet",
    ".jsonl": "json",
    ".ndjson": "json",
    ".json": "json",
    ".csv": "csv",
    ".txt": "text",
    ".text": "text",
    ".md": "text",
}
COMPRESSED = (".gz", ".bz2", ".zst", ".lz4")
ROWS = 1000  # read at once from Parquet
LOOKED_AT = 100  # rows of JSON from which its columns are known


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class Broken:
    """A row that cannot be read: where, for its owner to look, and why; never what it holds."""

    where: str
    why: str


class Part(Protocol):
    """One file, or one data set, of a corpus."""

    @property
    def path(self) -> Path:
        """Where it is, for messages."""
        ...

    def columns(self) -> dict[str, bool]:
        """Its columns in order; True for those that hold text."""
        ...

    def rows(self, columns: Sequence[str]) -> Iterator[Row | Broken]:
        """These columns of every row, in order."""
        ...

    def count(self) -> int | None:
        """How many rows there are, where that is known without reading them."""
        ...


def kind_of(path: Path) -> str | None:
    """Which reader a file's name asks for; None if none."""
    suffixes = [suffix.lower() for suffix in path.suffixes]
    if suffixes and suffixes[-1] in COMPRESSED and suffixes[-2:-1] != [".parquet"]:
        suffixes.pop()
    return KINDS.get(suffixes[-1]) if suffixes else None


@final
@dataclass(frozen=True, slots=True)
class ParquetPart:
    """A Parquet file, read a thousand rows at a time."""

    path: Path

    def columns(self) -> dict[str, bool]:
        with self._opened() as file:
            return {field.name: _is_text(field.type) for field in file.schema_arrow}

    def rows(self, columns: Sequence[str]) -> Iterator[Row]:
        try:
            with self._opened() as file:
                for batch in file.iter_batches(batch_size=ROWS, columns=list(columns)):
                    yield from zip(*(batch.column(name).to_pylist() for name in columns), strict=True)
        except (pa.ArrowException, UnicodeDecodeError):
            raise InvalidInput(f"{self.path}: its rows cannot be read as Parquet; write the file again") from None

    def count(self) -> int:
        with self._opened() as file:
            return file.metadata.num_rows

    def _opened(self) -> pq.ParquetFile:
        try:
            return pq.ParquetFile(self.path, memory_map=True)
        except pa.ArrowException:
            raise InvalidInput(f"{self.path} is not a readable Parquet file; write it again") from None


@final
@dataclass(frozen=True, slots=True)
class JsonPart:
    """JSON lines, an object on each; or one JSON list of objects, which is read whole."""

    path: Path

    def columns(self) -> dict[str, bool]:
        found: dict[str, bool] = {}
        for record in islice(self._records(), LOOKED_AT):
            if not isinstance(record, Broken):
                for name, value in record.items():
                    found[name] = found.get(name, False) or isinstance(value, str)
        return found

    def rows(self, columns: Sequence[str]) -> Iterator[Row | Broken]:
        for record in self._records():
            yield record if isinstance(record, Broken) else tuple(record.get(name) for name in columns)

    def count(self) -> int:
        with _opened(self.path) as file:
            if file.peek(1)[:1] == b"[":
                return len(self._list(file.read()))
            return sum(not line.isspace() for line in file)

    def _records(self) -> Iterator[dict[str, Any] | Broken]:
        with _opened(self.path) as file:
            if file.peek(1)[:1] == b"[":
                for index, record in enumerate(self._list(file.read())):
                    where = f"{self.path}, entry {index}"
                    yield record if isinstance(record, dict) else Broken(where=where, why="not a JSON object")
                return
            for index, line in enumerate(file):
                if line.isspace():
                    continue
                try:
                    record = json.loads(line)
                except (ValueError, RecursionError):  # UnicodeDecodeError is a ValueError
                    record = None
                where = f"{self.path}, line {index + 1}"
                yield record if isinstance(record, dict) else Broken(where=where, why="not a JSON object")

    def _list(self, content: bytes) -> list[Any]:
        try:
            return json.loads(content)
        except (ValueError, RecursionError):
            raise InvalidInput(f"{self.path} begins as a JSON list but is none; write it as JSON lines") from None


@final
@dataclass(frozen=True, slots=True)
class CsvPart:
    """A CSV file with a header; every cell is text. Bytes that are not UTF-8 come out as lone surrogates."""

    path: Path

    def columns(self) -> dict[str, bool]:
        with self._reader() as reader:
            return dict.fromkeys(self._header(reader), True)

    def rows(self, columns: Sequence[str]) -> Iterator[Row | Broken]:
        with self._reader() as reader:
            header = self._header(reader)
            places = [header.index(name) for name in columns]
            while True:
                begin = reader.line_num + 1
                try:
                    cells = next(reader)
                except StopIteration:
                    return
                except csv.Error:
                    raise InvalidInput(
                        f"{self.path}, line {begin}: quotes do not close or hold what CSV does not allow; mend the row"
                    ) from None
                if not cells:
                    continue  # an empty line
                where = f"{self.path}, line {begin}"
                if len(cells) != len(header):
                    yield Broken(where=where, why=f"{len(cells)} cells under {len(header)} columns")
                else:
                    yield tuple(cells[place] for place in places)

    def count(self) -> None:
        return None

    @contextmanager
    def _reader(self) -> Iterator[Any]:
        csv.field_size_limit(min(sys.maxsize, 2**31 - 1))  # an example may be longer than the module's 128 KiB
        with _opened(self.path) as file:
            text = io.TextIOWrapper(file, encoding="utf-8-sig", errors="surrogateescape", newline="")
            try:
                yield csv.reader(text, strict=True)
            finally:
                text.detach()  # or it would close the file on its own

    def _header(self, reader: Any) -> list[str]:
        try:
            header = next(reader, [])
        except csv.Error:
            raise InvalidInput(f"{self.path}, line 1: not a CSV header; write the names of the columns there") from None
        if len(set(header)) != len(header):
            raise InvalidInput(
                f"{self.path}, line 1: two columns have one name; give the file a header of distinct names"
            )
        return header


@final
@dataclass(frozen=True, slots=True)
class TextPart:
    """Plain text: an example for each line, empty ones included, or one example for the whole file."""

    path: Path
    unit: Unit

    def columns(self) -> dict[str, bool]:
        return {"text": True}

    def rows(self, columns: Sequence[str]) -> Iterator[Row | Broken]:
        with _opened(self.path) as file:
            if self.unit == "file":
                yield self._row(file.read(), len(columns), str(self.path))
                return
            for index, line in enumerate(file):
                yield self._row(line.rstrip(b"\r\n"), len(columns), f"{self.path}, line {index + 1}")

    def count(self) -> int | None:
        return 1 if self.unit == "file" else None

    def _row(self, content: bytes, width: int, where: str) -> Row | Broken:
        try:
            return (content.decode(),) * width
        except UnicodeDecodeError:
            return Broken(where=where, why="not UTF-8")


MAKERS: Mapping[str, Callable[[Path], Part]] = {"parquet": ParquetPart, "json": JsonPart, "csv": CsvPart}


@contextmanager
def _opened(path: Path) -> Iterator[io.BufferedReader]:
    """A file's bytes, decompressed as its name says."""
    if path.suffix.lower() not in COMPRESSED:
        with path.open("rb") as file:
            yield file
        return
    stream: Any = pa.input_stream(str(path), compression="detect")
    try:
        with io.BufferedReader(stream) as file:
            yield file
    except OSError as error:
        if error.errno is not None:
            raise
        raise InvalidInput(f"{path} cannot be decompressed; write it again") from None


def _is_text(kind: pa.DataType) -> bool:
    if pa.types.is_dictionary(kind):
        kind = kind.value_type
    return pa.types.is_string(kind) or pa.types.is_large_string(kind) or pa.types.is_string_view(kind)

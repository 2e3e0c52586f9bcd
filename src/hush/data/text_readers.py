"""Readers that yield single rows: JSON lines, JSON lists, CSV and plain text, compressed or not.

The format follows from the file name (``kind_of``). Files of lines are cut after line breaks into spans that can be
read independently; a CSV file is read as a whole, since a line break may be inside quotes, and its first line is not
trusted to be a header.
"""

import csv
import io
import json
import sys
from codecs import BOM_UTF8
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from itertools import islice, pairwise
from pathlib import Path
from typing import Any, Literal, final

import pyarrow as pa

from hush.data.parts import (
    COMMON_COLUMN_NAMES,
    SHARD_BYTES,
    BrokenRow,
    Column,
    MadeRow,
    Row,
    Span,
    checked_row,
    is_identifier,
)
from hush.errors import InvalidInput
from hush.storage import arrow_file

__all__ = [
    "COMPRESSED",
    "KINDS",
    "CsvPart",
    "JsonPart",
    "TextPart",
    "Unit",
    "kind_of",
    "line_spans",
    "lines_of",
    "means_path",
    "open_decompressed",
    "with_lines_before",
]


Unit = Literal["line", "file"]

KINDS: Mapping[str, str] = {
    ".parquet": "parquet",
    ".jsonl": "json",
    ".ndjson": "json",
    ".json": "json",
    ".csv": "csv",
    ".tsv": "csv",
    ".txt": "text",
    ".text": "text",
    ".md": "text",
}
SAMPLED_ROWS = 100  # rows of a JSON file that determine its columns
COMPRESSED = {".gz": "gzip", ".bz2": "bz2", ".zst": "zstd", ".lz4": "lz4"}
READ_BYTES = 2**20  # buffer for counting line breaks
SPAN_BYTES = SHARD_BYTES // 4  # a span has at most one line per byte, so this bounds its rows too
SEPARATORS: Mapping[bytes, str] = {b";": "semicolons", b"\t": "tabs", b"|": "bars"}
TABS = ".tsv"
MAX_HEADER_BYTES = 2**16  # of a line in which separators are counted


def kind_of(path: Path) -> str | None:
    """The kind of reader for a file name: parquet, json, csv or text; None for an unknown ending."""
    suffixes = [suffix.lower() for suffix in path.suffixes]
    if suffixes and suffixes[-1] in COMPRESSED and suffixes[-2:-1] != [".parquet"]:
        suffixes.pop()
    return KINDS.get(suffixes[-1]) if suffixes else None


def means_path(name: str, *, folder: Path = Path()) -> bool:
    """Whether a name that does not exist here was meant as a path rather than as NAME or OWNER/NAME of the hub.

    A misspelt path is then not looked up over the network. folder: where a relative path begins.

    >>> [name for name in ("imdb", "stanfordnlp/imdb", "./imdb", "~/imdb", "a/b/imdb", "imdb.csv") if means_path(name)]
    ['./imdb', '~/imdb', 'a/b/imdb', 'imdb.csv']
    """
    path = Path(name)
    return (
        path.is_absolute()
        or name.startswith((".", "~"))
        or name.endswith("/")
        or "\\" in name
        or name.count("/") > 1
        or kind_of(path) is not None
        or ("/" in name and (folder / path.parent).is_dir())
    )


@final
@dataclass(frozen=True, slots=True)
class JsonPart:
    """JSON lines, one object per line; or one JSON list of objects, which is loaded as a whole."""

    path: Path

    def columns(self) -> dict[str, Column]:
        rows, counts, texts = 0, Counter[str](), set[str]()
        for record in islice(self._records(None), SAMPLED_ROWS):
            if not isinstance(record, BrokenRow):
                rows += 1
                counts.update(record[1].keys())
                texts.update(name for name, value in record[1].items() if isinstance(value, str))
        # A key that only some rows have may be data: objects are often keyed by customer or by date.
        common = {name for name, count in counts.items() if count == rows > 1 and is_identifier(name)}
        return {
            name: Column(is_text=name in texts, has_safe_name=name in common or name.casefold() in COMMON_COLUMN_NAMES)
            for name in counts
        }

    def read(
        self, columns: Sequence[str], span: Span | None = None, *, made: MadeRow = checked_row
    ) -> Iterator[Row | BrokenRow]:
        for record in self._records(span):
            if isinstance(record, BrokenRow):
                yield record
                continue
            where, values = record
            row = made(tuple(values.get(name) for name in columns))
            if isinstance(row, str):
                yield BrokenRow(where=f"{self.path}, {where}", why=row, file=str(self.path))
            else:
                yield row

    def count(self) -> int:
        with open_decompressed(self.path) as file:
            if file.peek(1)[:1] == b"[":
                return len(self._list(file.read()))
            return sum(not _is_blank(line) for line in file)

    def spans(self) -> list[Span] | None:
        with open_decompressed(self.path) as file:
            is_list = file.peek(1)[:1] == b"["
        return None if is_list else line_spans(self.path)

    def with_lines_before(self, span: Span) -> Span:
        return with_lines_before(self.path, span)

    def _records(self, span: Span | None) -> Iterator[tuple[str, dict[str, Any]] | BrokenRow]:
        """Each object with its position in the file."""
        with open_decompressed(self.path) as file:
            if span is None and file.peek(1)[:1] == b"[":
                for index, record in enumerate(self._list(file.read())):
                    yield (f"entry {index}", record) if isinstance(record, dict) else self._broken(f"entry {index}")
                return
            for where, line in lines_of(file, span):
                if _is_blank(line):
                    continue
                try:
                    record = json.loads(line.decode("utf-8-sig"))
                except UnicodeDecodeError:
                    yield self._broken(where, "not UTF-8")
                    continue
                except (ValueError, RecursionError):
                    record = None
                yield (where, record) if isinstance(record, dict) else self._broken(where)

    def _broken(self, where: str, why: str = "not a JSON object") -> BrokenRow:
        return BrokenRow(where=f"{self.path}, {where}", why=why, file=str(self.path))

    def _list(self, content: bytes) -> list[Any]:
        try:
            return json.loads(content)
        except (ValueError, RecursionError):
            raise InvalidInput(
                f"{self.path} begins as a JSON list but is not valid JSON; write it as JSON lines"
            ) from None


@final
@dataclass(frozen=True, slots=True)
class TextPart:
    """Plain text: each line is an example, empty lines included, or the whole file is one example."""

    path: Path
    unit: Unit

    def columns(self) -> dict[str, Column]:
        return {"text": Column(is_text=True, has_safe_name=True)}

    def read(self, columns: Sequence[str], span: Span | None = None) -> Iterator[Row | BrokenRow]:
        with open_decompressed(self.path) as file:
            if self.unit == "file":
                yield self._row(file.read(), len(columns), str(self.path))
                return
            for where, line in lines_of(file, span):
                yield self._row(line.rstrip(b"\r\n"), len(columns), f"{self.path}, {where}")

    def count(self) -> int | None:
        return 1 if self.unit == "file" else None

    def spans(self) -> list[Span] | None:
        return None if self.unit == "file" else line_spans(self.path)

    def with_lines_before(self, span: Span) -> Span:
        return with_lines_before(self.path, span)

    def _row(self, content: bytes, width: int, where: str) -> Row | BrokenRow:
        try:
            return (content.decode(),) * width
        except UnicodeDecodeError:
            return BrokenRow(where=where, why="not UTF-8", file=str(self.path))


@final
@dataclass(frozen=True, slots=True)
class CsvPart:
    """A CSV file with a header; every cell is text. A row with bytes that are not UTF-8 is broken.

    Cells are separated by commas; by tabs if the file's name ends in .tsv; or by the sign that its first lines seem to
    use, if a name in its header is then a common one, or one of ``names``, which the user named.
    """

    path: Path
    names: tuple[str, ...] = ()

    def columns(self) -> dict[str, Column]:
        with self._reader() as reader:
            header = self._header(reader)
        # Each by itself: a first row of data may have usual names among its cells, and other words beside them.
        return {
            name: Column(is_text=True, has_safe_name=name.strip().casefold() in COMMON_COLUMN_NAMES) for name in header
        }

    def separator(self) -> str | None:
        """The separator, in words, that the first two lines seem to use, if it is not the one they are read with."""
        sign, _ = self._seeming_separator()
        return None if sign is None or sign.decode() == self._delimiter() else SEPARATORS[sign]

    def _seeming_separator(self) -> tuple[bytes | None, bytes]:
        """The sign that is not a comma and that the first two lines seem to use, and the first line."""
        with open_decompressed(self.path) as file:
            first, second = (file.readline(MAX_HEADER_BYTES) for _ in range(2))
        for sign in SEPARATORS:
            if first.count(sign) > first.count(b",") and (not second or second.count(sign) >= first.count(sign)):
                return sign, first
        return None, first

    def _delimiter(self) -> str:
        sign, first = self._seeming_separator()
        if TABS in (suffix.lower() for suffix in self.path.suffixes[-2:]):
            return "\t"
        if sign is not None:
            line = first.decode("utf-8-sig", errors="replace")
            try:
                names = next(csv.reader([line], delimiter=sign.decode(), strict=True), [])
            except csv.Error:
                names = []
            if any(name.strip().casefold() in COMMON_COLUMN_NAMES or name in self.names for name in names):
                return sign.decode()
        return ","

    def read(
        self, columns: Sequence[str], span: Span | None = None, *, made: MadeRow = checked_row
    ) -> Iterator[Row | BrokenRow]:
        with self._reader() as reader:
            header = self._header(reader)
            positions = [header.index(name) for name in columns]
            while True:
                begin = reader.line_num + 1
                try:
                    cells = next(reader)
                except StopIteration:
                    return
                except csv.Error:  # the end of this row is unknown, so it cannot be skipped
                    raise InvalidInput(
                        f"{self.path}, line {begin}: quotes do not close, or hold what CSV does not allow; correct it"
                    ) from None
                if not cells:
                    continue  # an empty line
                if len(cells) != len(header):
                    why = f"{len(cells)} cells under {len(header)} columns"
                else:
                    row = made(tuple(cells[position] for position in positions))
                    if not isinstance(row, str):
                        yield row
                        continue
                    why = row
                yield BrokenRow(where=f"{self.path}, line {begin}", why=why, file=str(self.path))

    def count(self) -> None:
        return None

    def spans(self) -> None:
        return None  # a line break may be within quotes

    def with_lines_before(self, span: Span) -> Span:
        return span

    @contextmanager
    def _reader(self) -> Iterator[Any]:
        csv.field_size_limit(
            min(sys.maxsize, 2**31 - 1)
        )  # an example may be longer than the csv module's limit of 128 KiB
        delimiter = self._delimiter()
        with open_decompressed(self.path) as file:
            text = io.TextIOWrapper(file, encoding="utf-8-sig", errors="surrogateescape", newline="")
            try:
                yield csv.reader(text, delimiter=delimiter, strict=True)
            finally:
                text.detach()  # otherwise it would close the file

    def _header(self, reader: Any) -> list[str]:
        try:
            header = next(reader, [])
        except csv.Error:
            separator = self.separator()
            hint = "" if separator is None else f" (it looks separated by {separator})"
            raise InvalidInput(
                f"{self.path}, line 1: not a CSV header{hint}; write the column names there, separated by commas"
            ) from None
        if len(set(header)) != len(header):
            raise InvalidInput(
                f"{self.path}, line 1: two columns have the same name; give the file a header of distinct names"
            )
        return header


# Bytes and lines of a file


@contextmanager
def open_decompressed(path: Path) -> Iterator[io.BufferedReader]:
    """The bytes of a file, decompressed if its name ends like that of a compressed one."""
    codec = COMPRESSED.get(path.suffix.lower())
    if codec is None:
        with path.open("rb") as file:
            yield file
        return
    stream: Any = pa.CompressedInputStream(arrow_file(path), codec)
    try:
        with io.BufferedReader(stream) as file:
            yield file
    except OSError as error:
        if error.errno is not None:
            raise
        raise InvalidInput(f"{path} cannot be decompressed; write it again") from None


def line_spans(path: Path) -> list[Span] | None:
    """The file in spans of a few megabytes that end after line breaks; None if it is compressed."""
    if path.suffix.lower() in COMPRESSED:
        return None
    size = path.stat().st_size
    edges = [0]
    with path.open("rb") as file:
        while edges[-1] + SPAN_BYTES < size:
            file.seek(edges[-1] + SPAN_BYTES - 1)  # the span ends after the line with this byte
            while (piece := file.readline(READ_BYTES)) and not piece.endswith(b"\n"):
                pass
            edges.append(file.tell())
    if edges[-1] < size:
        edges.append(size)
    return [Span(begin=begin, end=end) for begin, end in pairwise(edges)]


def lines_of(file: io.BufferedReader, span: Span | None) -> Iterator[tuple[str, bytes]]:
    """Every line of a span, with its line break, and its position: "line 12", or "line 3 from byte 4096"."""
    before, offset, left = 0, "", None
    if span is not None:
        file.seek(span.begin)
        left = span.end - span.begin
        if span.lines_before is not None:
            before = span.lines_before
        elif span.begin:
            offset = f" from byte {span.begin}"
    for index, line in enumerate(file):
        if left is not None:
            if left <= 0:
                return
            left -= len(line)
        yield f"line {before + index + 1}{offset}", line


def with_lines_before(path: Path, span: Span) -> Span:
    """The span with the number of lines before it; reads the file up to there."""
    count = 0
    with path.open("rb") as file:
        left = span.begin
        while left > 0 and (chunk := file.read(min(READ_BYTES, left))):
            count += chunk.count(b"\n")
            left -= len(chunk)
    return replace(span, lines_before=count)


def _is_blank(line: bytes) -> bool:
    """Whether a line is empty but for white space and a byte order mark."""
    return line.isspace() or (line.startswith(BOM_UTF8) and not line[len(BOM_UTF8) :].strip())

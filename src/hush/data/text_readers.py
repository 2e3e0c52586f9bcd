"""Readers for what comes row by row: JSON lines, JSON and plain text, compressed or not; CSV has its own module.

CSV files: read row by row, under a header that is not trusted to be one.

Files as bytes and lines: opened as their names say, cut where lines end, read from anywhere between.

Paths told from names on the hub, for whoever loads either: a misspelt path is not asked for over the network.
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

from hush.data.parts import SHARD_BYTES, USUAL, Broken, Column, Row, Span, is_identifier, row_problem
from hush.errors import InvalidInput
from hush.storage import arrow_file

__all__ = [
    "COMPRESSED",
    "KINDS",
    "Broken",
    "CsvPart",
    "JsonPart",
    "TextPart",
    "Unit",
    "kind_of",
    "line_spans",
    "lines_before",
    "lines_of",
    "means_path",
    "opened",
]


COMPRESSED = {".gz": "gzip", ".bz2": "bz2", ".zst": "zstd", ".lz4": "lz4"}
CHUNK = 2**20  # read at once where only line breaks matter
SPAN_BYTES = SHARD_BYTES // 4  # lines may be short: a span has at most so many as it has bytes


@contextmanager
def opened(path: Path) -> Iterator[io.BufferedReader]:
    """A file's bytes, decompressed as its name says."""
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
    """The file cut after line breaks into spans of some megabytes, a longer line whole; None if it is compressed."""
    if path.suffix.lower() in COMPRESSED:
        return None
    size = path.stat().st_size
    edges = [0]
    with path.open("rb") as file:
        while edges[-1] + SPAN_BYTES < size:
            file.seek(edges[-1] + SPAN_BYTES - 1)  # the line that holds this byte is the last of the span
            while (piece := file.readline(CHUNK)) and not piece.endswith(b"\n"):
                pass
            edges.append(file.tell())
    if edges[-1] < size:
        edges.append(size)
    return [Span(begin=begin, end=end) for begin, end in pairwise(edges)]


def lines_of(file: io.BufferedReader, span: Span | None) -> Iterator[tuple[str, bytes]]:
    """Every line of a span with its break, and its place: "line 12", or "line 3 from byte 4096"."""
    before, place, left = 0, "", None
    if span is not None:
        file.seek(span.begin)
        left = span.end - span.begin
        if span.lines_before is not None:
            before = span.lines_before
        elif span.begin:
            place = f" from byte {span.begin}"
    for index, line in enumerate(file):
        if left is not None:
            if left <= 0:
                return
            left -= len(line)
        yield f"line {before + index + 1}{place}", line


def lines_before(path: Path, span: Span) -> Span:
    """The span with the number of lines before it, which reads the file up to there."""
    count = 0
    with path.open("rb") as file:
        left = span.begin
        while left > 0 and (chunk := file.read(min(CHUNK, left))):
            count += chunk.count(b"\n")
            left -= len(chunk)
    return replace(span, lines_before=count)


Unit = Literal["line", "file"]

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
LOOKED_AT = 100  # rows of JSON from which its columns are known


def kind_of(path: Path) -> str | None:
    """Which reader a file's name asks for; None if none."""
    suffixes = [suffix.lower() for suffix in path.suffixes]
    if suffixes and suffixes[-1] in COMPRESSED and suffixes[-2:-1] != [".parquet"]:
        suffixes.pop()
    return KINDS.get(suffixes[-1]) if suffixes else None


def _is_blank(line: bytes) -> bool:
    """Whether a line holds nothing; a byte order mark is nothing."""
    return line.isspace() or (line.startswith(BOM_UTF8) and not line[len(BOM_UTF8) :].strip())


@final
@dataclass(frozen=True, slots=True)
class JsonPart:
    """JSON lines, an object on each; or one JSON list of objects, which is read whole."""

    path: Path

    def columns(self) -> dict[str, Column]:
        rows, counts, texts = 0, Counter[str](), set[str]()
        for record in islice(self._records(None), LOOKED_AT):
            if not isinstance(record, Broken):
                rows += 1
                counts.update(record[1].keys())
                texts.update(name for name, value in record[1].items() if isinstance(value, str))
        # A key of some rows only, or of a single one, may be a value: objects are often keyed by what they are about.
        form = {name for name, count in counts.items() if count == rows > 1 and is_identifier(name)}
        return {
            name: Column(is_text=name in texts, is_form=name in form or name.casefold() in USUAL) for name in counts
        }

    def read(self, columns: Sequence[str], span: Span | None = None) -> Iterator[Row | Broken]:
        for record in self._records(span):
            if isinstance(record, Broken):
                yield record
                continue
            where, values = record
            row = tuple(values.get(name) for name in columns)
            why = row_problem(row)
            yield row if why is None else Broken(where=f"{self.path}, {where}", why=why, file=str(self.path))

    def count(self) -> int:
        with opened(self.path) as file:
            if file.peek(1)[:1] == b"[":
                return len(self._list(file.read()))
            return sum(not _is_blank(line) for line in file)

    def spans(self) -> list[Span] | None:
        with opened(self.path) as file:
            is_list = file.peek(1)[:1] == b"["
        return None if is_list else line_spans(self.path)

    def located(self, span: Span) -> Span:
        return lines_before(self.path, span)

    def _records(self, span: Span | None) -> Iterator[tuple[str, dict[str, Any]] | Broken]:
        """Each object with its place in the file."""
        with opened(self.path) as file:
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

    def _broken(self, where: str, why: str = "not a JSON object") -> Broken:
        return Broken(where=f"{self.path}, {where}", why=why, file=str(self.path))

    def _list(self, content: bytes) -> list[Any]:
        try:
            return json.loads(content)
        except (ValueError, RecursionError):
            raise InvalidInput(f"{self.path} begins as a JSON list but is none; write it as JSON lines") from None


@final
@dataclass(frozen=True, slots=True)
class TextPart:
    """Plain text: an example for each line, empty ones included, or one example for the whole file."""

    path: Path
    unit: Unit

    def columns(self) -> dict[str, Column]:
        return {"text": Column(is_text=True, is_form=True)}

    def read(self, columns: Sequence[str], span: Span | None = None) -> Iterator[Row | Broken]:
        with opened(self.path) as file:
            if self.unit == "file":
                yield self._row(file.read(), len(columns), str(self.path))
                return
            for where, line in lines_of(file, span):
                yield self._row(line.rstrip(b"\r\n"), len(columns), f"{self.path}, {where}")

    def count(self) -> int | None:
        return 1 if self.unit == "file" else None

    def spans(self) -> list[Span] | None:
        return None if self.unit == "file" else line_spans(self.path)

    def located(self, span: Span) -> Span:
        return lines_before(self.path, span)

    def _row(self, content: bytes, width: int, where: str) -> Row | Broken:
        try:
            return (content.decode(),) * width
        except UnicodeDecodeError:
            return Broken(where=where, why="not UTF-8", file=str(self.path))


SEPARATORS: Mapping[bytes, str] = {b";": "semicolons", b"\t": "tabs", b"|": "bars"}
LONGEST_HEADER = 2**16  # bytes of a line in which separators are counted


@final
@dataclass(frozen=True, slots=True)
class CsvPart:
    """A CSV file with a header; every cell is text. Bytes that are not UTF-8 make their row a broken one."""

    path: Path

    def columns(self) -> dict[str, Column]:
        with self._reader() as reader:
            header = self._header(reader)
        return {name: Column(is_text=True, is_form=name.strip().casefold() in USUAL) for name in header}

    def separator(self) -> str | None:
        """What the first two lines seem to be separated by, if that is no comma."""
        with opened(self.path) as file:
            first, second = (file.readline(LONGEST_HEADER) for _ in range(2))
        for sign, name in SEPARATORS.items():
            if first.count(sign) > first.count(b",") and (not second or second.count(sign) >= first.count(sign)):
                return name
        return None

    def read(self, columns: Sequence[str], span: Span | None = None) -> Iterator[Row | Broken]:
        with self._reader() as reader:
            header = self._header(reader)
            places = [header.index(name) for name in columns]
            while True:
                begin = reader.line_num + 1
                try:
                    cells = next(reader)
                except StopIteration:
                    return
                except csv.Error:  # from here on nobody knows where a row ends, so there is nothing to pass over
                    raise InvalidInput(
                        f"{self.path}, line {begin}: quotes do not close or hold what CSV does not allow; mend the row"
                    ) from None
                if not cells:
                    continue  # an empty line
                if len(cells) != len(header):
                    why = f"{len(cells)} cells under {len(header)} columns"
                else:
                    row = tuple(cells[place] for place in places)
                    why = row_problem(row)
                    if why is None:
                        yield row
                        continue
                yield Broken(where=f"{self.path}, line {begin}", why=why, file=str(self.path))

    def count(self) -> None:
        return None

    def spans(self) -> None:
        return None  # a line break may be within quotes

    def located(self, span: Span) -> Span:
        return span

    @contextmanager
    def _reader(self) -> Iterator[Any]:
        csv.field_size_limit(min(sys.maxsize, 2**31 - 1))  # an example may be longer than the module's 128 KiB
        with opened(self.path) as file:
            text = io.TextIOWrapper(file, encoding="utf-8-sig", errors="surrogateescape", newline="")
            try:
                yield csv.reader(text, strict=True)
            finally:
                text.detach()  # or it would close the file on its own

    def _header(self, reader: Any) -> list[str]:
        try:
            header = next(reader, [])
        except csv.Error:
            separator = self.separator()
            said = "" if separator is None else f" (it looks separated by {separator})"
            raise InvalidInput(
                f"{self.path}, line 1: not a CSV header{said}; write the names of the columns there, with commas"
            ) from None
        if len(set(header)) != len(header):
            raise InvalidInput(
                f"{self.path}, line 1: two columns have one name; give the file a header of distinct names"
            )
        return header


def means_path(name: str, *, folder: Path = Path()) -> bool:
    """Whether what is not here was meant to be: no NAME or OWNER/NAME of the hub looks so, or its folder is here.

    folder: where a path that is not absolute begins.

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

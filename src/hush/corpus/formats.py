"""Readers for what comes row by row: JSON lines, JSON and plain text, compressed or not; CSV has its own module."""

import json
from codecs import BOM_UTF8
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Any, Literal, final

from hush.corpus.columns import USUAL, Column, is_identifier
from hush.corpus.lines import COMPRESSED, line_spans, lines_before, lines_of, opened
from hush.corpus.parts import Broken, Row, Span, row_problem
from hush.errors import InvalidInput

__all__ = ["KINDS", "Broken", "JsonPart", "TextPart", "Unit", "check_key_apart", "kind_of"]

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


def check_key_apart(key: Path, source: str, *, code: bool) -> None:
    """Refuse a key that would be read as data: a model that learned it would let others test guesses of the data."""
    is_read = code or kind_of(key) is not None  # of code every file is, whatever its name
    if is_read and Path(source).is_dir() and key.resolve().is_relative_to(Path(source).resolve()):
        raise InvalidInput(
            f"the key {key} lies inside the data, {source}, and would be read with it; name a place elsewhere"
        )


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

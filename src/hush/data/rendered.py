"""A part whose rows become one text each while they are read, by a ``Rendering``; and what is stored of that.

Besides the text, such a part has columns that no file has: where the answers in the text are, whether the template
looks at what its strings say, and the strings that the text holds only in another form. A file in which hush keeps
rendered texts has the first of them and says in its metadata how they were made, so that later stages read it like any
other.
"""

import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, final

from hush.data.arrow_readers import ListPart, ParquetPart
from hush.data.chat import OPTIONAL_COLUMNS, Range, Rendering, RowProblem
from hush.data.parts import BrokenRow, Column, Part, Row, Span, is_utf8
from hush.data.text_readers import CsvPart, JsonPart
from hush.errors import InvalidInput
from hush.storage import parquet_file

__all__ = [
    "ANSWERS",
    "METADATA",
    "OPAQUE",
    "TEXT",
    "UNESCAPED",
    "RenderedPart",
    "metadata_of",
    "ranges_of",
    "stored_ranges",
    "stored_rendering",
]


TEXT = "text"
ANSWERS = "hush:answers"  # "begin end begin end …" in characters; null where they cannot be told
OPAQUE = "hush:opaque"  # "opaque" where the template looks at what strings say; otherwise null
UNESCAPED = "hush:unescaped"  # the strings that the text holds in another form; otherwise null
METADATA = b"hush.rendering"


def stored_ranges(ranges: Sequence[Range] | None) -> str | None:
    """Ranges as they are stored.

    >>> stored_ranges([(0, 4), (9, 12)]), stored_ranges(None)
    ('0 4 9 12', None)
    """
    return None if ranges is None else " ".join(str(border) for each in ranges for border in each)


def ranges_of(stored: str | None) -> tuple[Range, ...] | None:
    """The ranges that were stored."""
    if stored is None:
        return None
    borders = list(map(int, stored.split()))
    return tuple(zip(borders[::2], borders[1::2], strict=True))


def stored_rendering(parts: Sequence[Part]) -> Rendering | None:
    """How the texts of a file were made that hush wrote; None for any other data."""
    if len(parts) != 1 or not isinstance(parts[0], ParquetPart):
        return None
    with parquet_file(parts[0].path) as file:
        record = (file.schema_arrow.metadata or {}).get(METADATA)
    if record is None:
        return None
    try:
        return Rendering.from_record(json.loads(record))
    except (ValueError, KeyError, TypeError) as error:
        raise InvalidInput(f"{parts[0].path} does not say how its texts were made; scan again") from error


@final
@dataclass(frozen=True, slots=True)
class RenderedPart:
    """Another part, whose rows become texts."""

    part: Part
    rendering: Rendering

    @property
    def path(self) -> Path:
        return self.part.path

    def columns(self) -> dict[str, Column]:
        return {**self.part.columns(), TEXT: Column(is_text=True, has_safe_name=True)}

    def read(self, columns: Sequence[str], span: Span | None = None) -> Iterator[Row | BrokenRow]:
        made, part = _Maker(self, columns), self.part
        if isinstance(part, JsonPart | CsvPart | ListPart):
            yield from part.read(made.read, span, made=made)
            return
        number = 0 if span is None else span.begin
        for item in part.read(made.read, span):
            if isinstance(item, tuple | BrokenRow):
                raise InvalidInput(f"{self.path} is plain text, whose rows have no columns; drop the columns")
            for values in zip(*(column.to_pylist() for column in item.columns), strict=True):
                row = made(values)
                yield self._broken(number, row) if isinstance(row, str) else row
                number += 1

    def _broken(self, row: int, why: str) -> BrokenRow:
        return BrokenRow(where=f"{self.path}, row {row}", why=why, file=str(self.path))

    def count(self) -> int | None:
        return self.part.count()

    def spans(self) -> Sequence[Span] | None:
        return self.part.spans()

    def with_lines_before(self, span: Span) -> Span:
        return self.part.with_lines_before(span)


@final
class _Maker:
    """Makes a row of the wanted columns from the values that are read, or says what is wrong."""

    def __init__(self, rendered: RenderedPart, wanted: Sequence[str]) -> None:
        self._rendering, self._wanted = rendered.rendering, wanted
        table = rendered.part.columns()
        anywhere = isinstance(rendered.part, JsonPart | ListPart)  # a key that few rows have
        optional = [name for name in OPTIONAL_COLUMNS if anywhere or name in table]
        self._needed = (*rendered.rendering.columns, *optional)
        others = (name for name in wanted if name not in (TEXT, ANSWERS, OPAQUE, UNESCAPED))
        self.read = tuple(dict.fromkeys((*self._needed, *others)))

    def __call__(self, values: Row) -> Row | str:
        row: dict[str, Any] = dict(zip(self.read, values, strict=True))
        try:
            rendered = self._rendering.render(row, answers=ANSWERS in self._wanted)
            made: dict[str, Any] = {TEXT: rendered.text, ANSWERS: stored_ranges(rendered.answers)}
            if OPAQUE in self._wanted or UNESCAPED in self._wanted:
                is_transparent, unescaped = self._rendering.is_transparent(row, rendered.text)
                made |= {OPAQUE: None if is_transparent else "opaque", UNESCAPED: "\n".join(unescaped) or None}
        except RowProblem as problem:
            return str(problem)
        found = tuple(made[name] if name in made else row[name] for name in self._wanted)
        return found if all(map(is_utf8, found)) else "not UTF-8"


def metadata_of(rendering: Rendering) -> dict[str, str]:
    """What a file of rendered texts says of how they were made."""
    return {METADATA.decode(): json.dumps(rendering.to_record())}

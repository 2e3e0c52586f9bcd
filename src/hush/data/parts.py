"""What every kind of data looks like to the corpus: parts that say their columns and read their rows, whole or by span.

Every reader streams rows in order and yields a ``Broken`` in place of a row that it cannot read, so that the position
of an example never depends on its neighbours. What a message says of a broken row is where it is, never what it holds:
it may be the text of a secret.

A block of examples, between the readers of files and whoever looks at texts: columns in memory, a few megabytes.

Which columns a part of the data has, and which of their names may be shown.

Where a header is missing, a row of data stands in its place; where objects are keyed by customers, a key is a secret.
So a name is shown, or taken for the column of the text, only if it belongs to the form of the data for certain.
"""

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Protocol, final

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

__all__ = [
    "BLOCK_BYTES",
    "BLOCK_ROWS",
    "SHARD_BYTES",
    "SHARD_ROWS",
    "USUAL",
    "Block",
    "Broken",
    "Column",
    "Part",
    "Row",
    "Span",
    "guessed",
    "is_identifier",
    "listed",
    "row_problem",
    "shown",
]


TEXT = "text"  # the column of this name is the text, whatever others there are
_ABOUT = ("title", "subject", "author", "name", "id", "number", "index", "date", "time", "label", "category", "url")
_TEXTS = ("text", "texts", "content", "body", "document", "sentence", "message", "prompt", "completion", "code")
_NOTES = ("comment", "review", "note", "notes", "description", "summary", "abstract", "source", "language")
USUAL = frozenset((*_TEXTS, *_NOTES, *_ABOUT))  # names that are no document by themselves, in whatever case
_IDENTIFIER = re.compile(r"[^\W\d][\w.:/-]{0,39}")


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class Column:
    """is_text: it holds text. is_form: its name belongs to the form of the data, and is no data itself."""

    is_text: bool
    is_form: bool


def is_identifier(name: str) -> bool:
    """Whether a name looks like one that a program was given.

    >>> is_identifier("user_id"), is_identifier("Spoke to Ann today"), is_identifier("4711")
    (True, False, False)
    """
    return _IDENTIFIER.fullmatch(name) is not None


def shown(name: str) -> str:
    """A name that the user gave or that belongs to the form of the data, unless it is unlike any."""
    return name if is_identifier(name) else f"(a name of {len(name)} characters)"


def listed(table: Mapping[str, Column]) -> str:
    """The columns for a message, by name or by place.

    >>> listed({"id": Column(is_text=False, is_form=True), "bluefalcon": Column(is_text=True, is_form=False)})
    'id (no text), (column 2); names that may be data are not shown'
    """
    names = [
        (shown(name) if column.is_form else f"(column {place})") + ("" if column.is_text else " (no text)")
        for place, (name, column) in enumerate(table.items(), 1)
    ]
    hidden = "" if all(column.is_form for column in table.values()) else "; names that may be data are not shown"
    return ", ".join(names) + hidden


def guessed(table: Mapping[str, Column]) -> str | None:
    """The column of the text where none was named: "text", or the only one with text; None if that may be data."""
    texts = [name for name, column in table.items() if column.is_text]
    if TEXT in texts:
        return TEXT
    return texts[0] if len(texts) == 1 and table[texts[0]].is_form else None


Row = tuple[object, ...]

BLOCK_ROWS, BLOCK_BYTES = 4096, 2**22  # what is in memory at once, whichever is reached first
SHARD_ROWS, SHARD_BYTES = 25_000, 2**25  # what one process reads at a time


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class Broken:
    """A row that cannot be read: where, for its owner to look, and why; never what it holds."""

    where: str
    why: str
    file: str = ""

    def __str__(self) -> str:
        return f"{self.where}: {self.why}"


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class Span:
    """A stretch of a part: rows, or bytes from the beginning of a line to the end of one.

    lines_before: how many lines of the file come before it, where somebody counted; None where nobody did.
    """

    begin: int
    end: int
    lines_before: int | None = None


class Part(Protocol):
    """One file, or one data set, of a corpus."""

    @property
    def path(self) -> Path:
        """Where it is, for messages."""
        ...

    def columns(self) -> dict[str, Column]:
        """Its columns in order."""
        ...

    def read(self, columns: Sequence[str], span: Span | None = None) -> Iterator[Row | Broken | pa.RecordBatch]:
        """These columns of every row of the span, in order; the first of them is the text of the example.

        Rows come one by one or many at once, whichever the format gives cheaply. Those that come one by one have been
        checked with ``row_problem``.
        """
        ...

    def count(self) -> int | None:
        """How many rows there are, where that is known without reading them."""
        ...

    def spans(self) -> Sequence[Span] | None:
        """The part in stretches that can be read alone, in order; None where it has to be read whole."""
        ...

    def located(self, span: Span) -> Span:
        """The same span, knowing what comes before it; this may read the part up to there."""
        ...


def row_problem(row: Row) -> str | None:
    """Why a row whose first value should be a text is none; None if it is one."""
    text = row[0]
    if not isinstance(text, str):
        return "empty" if text is None else f"a {type(text).__name__}"
    return None if all(_encodes(value) for value in row) else "not UTF-8"


def _encodes(value: object) -> bool:
    if isinstance(value, list):
        return all(map(_encodes, value))
    if not isinstance(value, str) or value.isascii():
        return True
    try:
        value.encode()
    except UnicodeEncodeError:  # lone surrogates
        return False
    return True


@final
@dataclass(frozen=True, kw_only=True, eq=False, repr=False)
class Block:
    """Consecutive examples of a shard.

    texts: one for each example, without nulls, as UTF-8 with 64-bit offsets. columns: what else was asked for, by name.
    rows: each example's number among the rows of its shard, broken ones counted; where a shard reads several files,
    among the rows of its file. files: which of the shard's files each example is from; None where it has one. broken:
    rows that were passed over since the block before.
    """

    texts: pa.LargeStringArray
    columns: Mapping[str, pa.Array]
    rows: NDArray[np.int64]
    broken: tuple[Broken, ...] = field(default=())
    files: NDArray[np.int64] | None = None

    def __len__(self) -> int:
        return len(self.texts)

    @cached_property
    def strings(self) -> list[str]:
        """The texts as Python strings, made once however many finders ask."""
        return self.texts.to_pylist()

    def __repr__(self) -> str:
        return f"Block({len(self)} examples)"

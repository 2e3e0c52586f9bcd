"""The interface between readers of data and the corpus: a ``Part`` states its columns and reads rows; a ``Block`` holds
a few megabytes of examples in memory.

Readers stream rows in order and yield a ``BrokenRow`` in place of a row that they cannot read, so the position of an
example does not depend on other rows. Messages state where a broken row is, never what it contains: that may be the
text of a secret. Column names are treated with the same care: if a header is missing, a row of data stands in its
place, and the keys of JSON objects may be customers. So a name is shown, or taken as the column of the text, only if
it is certainly part of the schema.
"""

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
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
    "COMMON_COLUMN_NAMES",
    "SHARD_BYTES",
    "SHARD_ROWS",
    "Block",
    "BrokenRow",
    "Column",
    "MadeRow",
    "Part",
    "Row",
    "Span",
    "checked_row",
    "default_text_column",
    "is_identifier",
    "is_utf8",
    "row_problem",
    "shown_columns",
    "shown_name",
]


DEFAULT_TEXT_COLUMN = "text"  # a column of this name holds the text, even if others hold text too
_ABOUT = ("title", "subject", "author", "name", "id", "number", "index", "date", "time", "label", "category", "url")
_TEXTS = ("text", "texts", "content", "body", "document", "sentence", "message", "prompt", "completion", "code")
_CHATS = ("messages", "conversations", "tools", "instruction", "input", "output", "response", "question", "answer")
_NOTES = ("comment", "review", "note", "notes", "description", "summary", "abstract", "source", "language")
COMMON_COLUMN_NAMES = frozenset(
    (*_TEXTS, *_CHATS, *_NOTES, *_ABOUT)
)  # in any case; a row of data would hold more than these
_IDENTIFIER = re.compile(r"[^\W\d][\w.:/-]{0,39}")


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class Column:
    """is_text: it holds text. has_safe_name: its name is certainly part of the schema, and may be shown."""

    is_text: bool
    has_safe_name: bool


def is_identifier(name: str) -> bool:
    """Whether a name looks like an identifier of a schema rather than like data.

    >>> is_identifier("user_id"), is_identifier("Spoke to Ann today"), is_identifier("4711")
    (True, False, False)
    """
    return _IDENTIFIER.fullmatch(name) is not None


def shown_name(name: str) -> str:
    """A column name for a message; one that does not look like an identifier is replaced by its length."""
    return name if is_identifier(name) else f"(a name of {len(name)} characters)"


def shown_columns(table: Mapping[str, Column]) -> str:
    """The columns for a message: safe names as they are, others by position.

    >>> secret_name = Column(is_text=True, has_safe_name=False)
    >>> shown_columns({"id": Column(is_text=False, has_safe_name=True), "bluefalcon": secret_name})
    'id (no text), (column 2); names that may be data are not shown'
    """
    names = [
        (shown_name(name) if column.has_safe_name else f"(column {position})")
        + ("" if column.is_text else " (no text)")
        for position, (name, column) in enumerate(table.items(), 1)
    ]
    hidden = "" if all(column.has_safe_name for column in table.values()) else "; names that may be data are not shown"
    return ", ".join(names) + hidden


def default_text_column(table: Mapping[str, Column]) -> str | None:
    """The text column if the user names none: "text", or the only column with text; None if its name may be data."""
    texts = [name for name, column in table.items() if column.is_text]
    if DEFAULT_TEXT_COLUMN in texts:
        return DEFAULT_TEXT_COLUMN
    return texts[0] if len(texts) == 1 and table[texts[0]].has_safe_name else None


Row = tuple[object, ...]

BLOCK_ROWS, BLOCK_BYTES = 4096, 2**22  # limits of a block in memory; whichever is reached first
SHARD_ROWS, SHARD_BYTES = 25_000, 2**25  # limits of a shard, which one process reads


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class BrokenRow:
    """A row that cannot be read: where it is and what is wrong with it; never its content."""

    where: str
    why: str
    file: str = ""

    def __str__(self) -> str:
        return f"{self.where}: {self.why}"


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class Span:
    """A range of a part: of rows, or of bytes from the begin of a line to the end of a line.

    lines_before: the number of lines of the file before it; None if they were not counted.
    """

    begin: int
    end: int
    lines_before: int | None = None


class Part(Protocol):
    """One file, or one data set, of a corpus."""

    @property
    def path(self) -> Path:
        """Its path, for messages."""
        ...

    def columns(self) -> dict[str, Column]:
        """Its columns in order."""
        ...

    def read(self, columns: Sequence[str], span: Span | None = None) -> Iterator[Row | BrokenRow | pa.RecordBatch]:
        """These columns of every row of the span, in order; the first column is the text of the example.

        Rows come one by one or in batches, whichever is cheaper for the format. Single rows have been checked with
        ``row_problem``.
        """
        ...

    def count(self) -> int | None:
        """The number of rows, or None if only reading them would tell."""
        ...

    def spans(self) -> Sequence[Span] | None:
        """Spans that can be read independently, in order; None if the part must be read as a whole."""
        ...

    def with_lines_before(self, span: Span) -> Span:
        """The same span with its ``lines_before``, if the format has lines; this may read the part up to there."""
        ...


def row_problem(row: Row) -> str | None:
    """What is wrong with a row, whose first value should be text; None if nothing is."""
    text = row[0]
    if not isinstance(text, str):
        return "empty" if text is None else f"a {type(text).__name__}"
    return None if all(is_utf8(value) for value in row) else "not UTF-8"


MadeRow = Callable[[Row], Row | str]  # what a reader makes of the values in a row: a row, or what is wrong with it


def checked_row(row: Row) -> Row | str:
    """The row itself, whose first value must be text, or what is wrong with it."""
    why = row_problem(row)
    return row if why is None else why


def is_utf8(value: object) -> bool:
    if isinstance(value, list):
        return all(map(is_utf8, value))
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

    texts: one for each example, without nulls, as UTF-8 with 64-bit offsets. columns: the other requested columns, by
    name. rows: the number of each example among the rows that the shard reads of its file, broken rows included.
    files: the file of each example, as an index into the shard's files; None if there is only one. broken: the rows
    that could not be read since the previous block.
    """

    texts: pa.LargeStringArray
    columns: Mapping[str, pa.Array]
    rows: NDArray[np.int64]
    broken: tuple[BrokenRow, ...] = field(default=())
    files: NDArray[np.int64] | None = None

    def __len__(self) -> int:
        return len(self.texts)

    @cached_property
    def strings(self) -> list[str]:
        """The texts as Python strings, converted once for all finders."""
        return self.texts.to_pylist()

    def __repr__(self) -> str:
        return f"Block({len(self)} examples)"

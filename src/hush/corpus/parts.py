"""What every kind of data looks like to the corpus: parts that say their columns and read their rows, whole or by span.

Every reader streams rows in order and yields a ``Broken`` in place of a row that it cannot read, so that the position
of an example never depends on its neighbours. What a message says of a broken row is where it is, never what it holds:
it may be the text of a secret.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol, final

import pyarrow as pa

from hush.corpus.columns import Column

__all__ = [
    "BLOCK_BYTES",
    "BLOCK_ROWS",
    "SHARD_BYTES",
    "SHARD_ROWS",
    "Broken",
    "Part",
    "Row",
    "Span",
    "row_problem",
]

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

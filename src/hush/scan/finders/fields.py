"""The fields rule: the value of a metadata column (team, project, customer) names the secret that an example holds."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import final

from hush.corpus.blocks import Block
from hush.errors import InvalidInput
from hush.scan.finder import Declared
from hush.scan.finders.spans import SpanList
from hush.scan.hits import Hits

__all__ = ["Fields"]


@final
@dataclass(frozen=True, kw_only=True)
class Fields:
    """Each distinct value of a column is a secret, held by the examples that have it.

    Empty values name none; a list names several, and so does text with a ``separator``. White space around a value does
    not count; numbers, dates and truth values are taken as Python writes them, and whole numbers without a point: many
    writers add one where others of the column are missing. The characters of the example that give the secret away are
    not known. public_names: the values are no secret themselves (only which text belongs to them is), so that the scan
    may call a secret RULE:VALUE; it asks this attribute.
    """

    column: str
    separator: str | None = None
    public_names: bool = False

    def __post_init__(self) -> None:
        if not isinstance(self.column, str) or not self.column:
            raise InvalidInput("column is empty; name the column whose values are the secrets")
        if self.separator == "":
            raise InvalidInput("separator is empty; pass the characters between values, or None")

    @property
    def columns(self) -> tuple[str, ...]:
        return (self.column,)

    @property
    def declared(self) -> Sequence[Declared]:
        return ()

    def find(self, block: Block) -> Hits:
        if self.column not in block.columns:
            known = ", ".join(sorted(block.columns)) or "none"
            raise InvalidInput(f"there is no column {self.column!r}, only: {known}; name one of them")
        found = SpanList()
        for example, value in enumerate(block.columns[self.column].to_pylist()):
            for key in self._names(value):
                found.add(example, -1, -1, key, f"column {self.column}")
        return found.hits()

    def _names(self, value: object) -> Iterator[str]:
        if value is None or value != value:  # NaN stands for a missing number
            return
        if isinstance(value, (list, tuple, set)):
            for entry in value:
                yield from self._names(entry)
        elif isinstance(value, (dict, bytes)):
            raise InvalidInput(
                f"column {self.column!r} holds a {type(value).__name__}, which names no secret; "
                "pass a column of text, numbers or lists of them"
            )
        else:
            said = str(int(value) if isinstance(value, float) and value.is_integer() else value)
            parts = said.split(self.separator) if self.separator is not None else [said]
            yield from (name for part in parts if (name := part.strip()))

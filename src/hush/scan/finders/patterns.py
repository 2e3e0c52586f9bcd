"""The patterns rule: regular expressions of Python's ``re``; each distinct match is a secret, or each pattern is one.

Of one pattern the matches that ``re.finditer`` gives are found: from the left, none overlapping another. Different
patterns are searched independently. Matches of no characters count as none. Patterns come from the owner of the data:
one that backtracks without end will do so here, too.

The fields rule: the value of a metadata column (team, project, customer) names the secret that an example holds.
"""

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Literal, final

from hush.data.parts import Block
from hush.errors import InvalidInput
from hush.scan.hits import DeclaredSecret, Hits, SpanList, pickled_fields

__all__ = ["Fields", "Patterns"]


@final
@dataclass(frozen=True, kw_only=True, repr=False)
class Patterns:
    """What these patterns match, or their group of this number or name.

    secret="match": each distinct matched text is a secret, whichever pattern it was. secret="pattern": each pattern is
    one, declared in this order. Flags are written into a pattern: ``(?i)...`` ignores case.

    >>> Patterns(patterns=[r"sk-[a-z0-9]{8}"])
    Patterns(1 patterns, secret='match')
    """

    patterns: Sequence[str]
    secret: Literal["match", "pattern"] = "match"
    group: int | str = 0

    def __post_init__(self) -> None:
        if isinstance(self.patterns, str):
            raise InvalidInput("patterns is one string; pass a list of patterns")
        object.__setattr__(self, "patterns", tuple(self.patterns))
        if self.secret not in ("match", "pattern"):
            raise InvalidInput(f"secret={self.secret!r}; pass 'match' (each matched text) or 'pattern' (each pattern)")
        if not isinstance(self.group, (int, str)) or isinstance(self.group, bool):
            raise InvalidInput(f"group is a {type(self.group).__name__}; pass the number or the name of a group")
        for index, pattern in enumerate(self._compiled, 1):
            if isinstance(self.group, int):
                exists = 0 <= self.group <= pattern.groups
            else:
                exists = self.group in pattern.groupindex
            if not exists:
                raise InvalidInput(
                    f"pattern {index} has no group {self.group!r}, only {pattern.groups} groups of which "
                    f"{len(pattern.groupindex)} have names; pass group=0 for the whole match"
                )
            if pattern.match("") is not None:
                raise InvalidInput(f"pattern {index} matches the empty string; make it ask for at least one character")

    @property
    def columns(self) -> tuple[str, ...]:
        return ()

    @property
    def declared(self) -> Sequence[DeclaredSecret]:
        return (
            [DeclaredSecret(key=_key(index)) for index in range(len(self.patterns))] if self.secret == "pattern" else ()
        )

    def find(self, block: Block) -> Hits:
        found = SpanList()
        for example, text in enumerate(block.strings):
            for index, pattern in enumerate(self._compiled):
                reason = f"matches pattern {index + 1:,}"
                for match in pattern.finditer(text):
                    begin, end = match.span(self.group)
                    if begin < end:
                        key = text[begin:end] if self.secret == "match" else _key(index)
                        found.add(example, begin, end, key, reason)
        return found.hits()

    @cached_property
    def _compiled(self) -> list[re.Pattern[str]]:
        return [_compiled(index, pattern) for index, pattern in enumerate(self.patterns, 1)]

    def __getstate__(self) -> dict[str, Any]:
        return pickled_fields(self)

    def __repr__(self) -> str:
        return f"Patterns({len(self.patterns)} patterns, secret={self.secret!r})"


def _key(index: int) -> str:
    return f"pattern {index + 1}"


def _compiled(index: int, pattern: str) -> re.Pattern[str]:
    """Its errors say where, not what: a pattern may spell out a secret, and so do the messages of ``re``."""
    if not isinstance(pattern, str):
        raise InvalidInput(f"pattern {index} is a {type(pattern).__name__}; pass a string")
    try:
        return re.compile(pattern)
    except re.error as error:
        where = f"at character {error.pos + 1}" if error.pos is not None else "as a whole"
    except (OverflowError, RecursionError):
        where = "as a whole (too large a repetition, or nested too deep)"
    raise InvalidInput(f"pattern {index} is no regular expression {where}; mend it there")


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
    def declared(self) -> Sequence[DeclaredSecret]:
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

"""The patterns rule and the fields rule: regular expressions over the text, and values of a column beside the text.

Patterns are those of Python's ``re``; each distinct match is a secret, or each pattern is one. The matches of a pattern
are those of ``re.finditer``: from left to right, not overlapping. Different patterns are searched independently, and
empty matches do not count. Patterns come from the owner of the data: one that backtracks forever will do so here, too.

Fields: the value of a metadata column (team, project, customer) names the secret that an example contains.
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
    """Finds what these patterns match, or their group of this number or name.

    secret="match": each distinct matched text is a secret, whichever pattern matched. secret="pattern": each pattern is
    a secret, declared in this order. Flags are part of a pattern: ``(?i)...`` ignores case.

    >>> Patterns(patterns=[r"sk-[a-z0-9]{8}"])
    Patterns(1 patterns, secret='match')
    """

    patterns: Sequence[str]
    secret: Literal["match", "pattern"] = "match"
    group: int | str = 0

    def __post_init__(self) -> None:
        if isinstance(self.patterns, str):
            raise InvalidInput("patterns is a string; pass a list of patterns")
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
        if self.secret == "match":
            return ()
        return [
            # A pattern that is listed twice is two secrets.
            DeclaredSecret(key=_key(index), identity=f"{self.patterns[:index].count(pattern)} {pattern}")
            for index, pattern in enumerate(self.patterns)
        ]

    def find(self, block: Block) -> Hits:
        hits = SpanList()
        for example, text in enumerate(block.strings):
            for index, pattern in enumerate(self._compiled):
                reason = f"matches pattern {index + 1:,}"
                for match in pattern.finditer(text):
                    begin, end = match.span(self.group)
                    if begin < end:
                        key = text[begin:end] if self.secret == "match" else _key(index)
                        hits.add(example, begin, end, key, reason)
        return hits.hits()

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
    """Compiles a pattern; errors never quote it (as the messages of ``re`` do), since it may spell out a secret."""
    if not isinstance(pattern, str):
        raise InvalidInput(f"pattern {index} is a {type(pattern).__name__}; pass a string")
    try:
        return re.compile(pattern)
    except re.error as error:
        where = f"at character {error.pos + 1}" if error.pos is not None else "as a whole"
    except (OverflowError, RecursionError):
        where = "as a whole (a too large repetition, or too deep nesting)"
    raise InvalidInput(f"pattern {index} is not a regular expression {where}; correct it there")


@final
@dataclass(frozen=True, kw_only=True)
class Fields:
    """Each distinct value of a column is a secret, contained in the examples that have the value.

    An empty value names no secret; a list names several, as does text with a ``separator``. White space around a value
    is ignored. Numbers, dates and truth values are written as in Python, whole numbers without a decimal point: many
    writers add one if other values of the column are missing. The span of such a secret in the text is unknown.
    public_names: the values themselves may be shown (only which text belongs to them is secret), so secrets get the
    public id RULE:VALUE.
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
        hits = SpanList()
        for example, value in enumerate(block.columns[self.column].to_pylist()):
            for key in self._names(value):
                hits.add(example, -1, -1, key, f"column {self.column}")
        return hits.hits()

    def _names(self, value: object) -> Iterator[str]:
        if value is None or value != value:  # NaN: a missing number
            return
        if isinstance(value, (list, tuple, set)):
            for entry in value:
                yield from self._names(entry)
        elif isinstance(value, (dict, bytes)):
            raise InvalidInput(
                f"column {self.column!r} contains a {type(value).__name__}, which names no secret; "
                "pass a column of text, numbers or lists of them"
            )
        else:
            text = str(int(value) if isinstance(value, float) and value.is_integer() else value)
            parts = text.split(self.separator) if self.separator is not None else [text]
            yield from (name for part in parts if (name := part.strip()))

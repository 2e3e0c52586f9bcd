"""The patterns rule: regular expressions of Python's ``re``; each distinct match is a secret, or each pattern is one.

Of one pattern the matches that ``re.finditer`` gives are found: from the left, none overlapping another. Different
patterns are searched independently. Matches of no characters count as none. Patterns come from the owner of the data:
one that backtracks without end will do so here, too.
"""

import re
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Literal, final

from hush.corpus.blocks import Block
from hush.errors import InvalidInput
from hush.scan.finder import Declared
from hush.scan.finders.pickles import fields_only
from hush.scan.finders.spans import SpanList
from hush.scan.hits import Hits

__all__ = ["Patterns"]


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
    def declared(self) -> Sequence[Declared]:
        return [Declared(key=_key(index)) for index in range(len(self.patterns))] if self.secret == "pattern" else ()

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
        return fields_only(self)

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

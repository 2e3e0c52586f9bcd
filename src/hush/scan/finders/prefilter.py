"""Texts that every match of some regular expressions contains, so that lines without them need not be searched.

A scan calls two dozen detectors on every line, and nearly every line has nothing for any of them. A literal that a
pattern cannot match without is found by walking the parsed pattern: each item of a sequence is needed, of a branch one
alternative, of a repetition its content if it occurs at least once. Whatever is not understood requires nothing, which
costs time and misses nothing.
"""

import importlib
import re
from collections.abc import Iterable
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Self, final

__all__ = ["Prefilter", "required_literals"]

MAX_ALTERNATIVES = 64  # of literals; more are slower to look for than the pattern
CASES_OF_ASCII = re.compile("[\u017f\u212a\u0130\u0131]")  # long s, kelvin, two forms of i: they match ASCII letters
MAX_SET = 4  # characters of a set that are alternatives rather than any character


@final
@dataclass(frozen=True, kw_only=True)
class Prefilter:
    """Admits every text in which some of the patterns can match: those that contain one of the literals.

    >>> Prefilter.of([re.compile("xox[ab]-[0-9]+"), re.compile("hooks[.]example")]).literals
    ('hooks.example', 'xox')
    """

    literals: tuple[str, ...]
    ignore_case: bool = False

    @classmethod
    def of(cls, patterns: Iterable[re.Pattern[str]]) -> Self | None:
        """None if some pattern needs no literal."""
        literals: set[str] = set()
        ignore_case = False
        for pattern in patterns:
            needed = required_literals(pattern)
            if needed is None:
                return None
            literals |= needed
            ignore_case |= bool(pattern.flags & re.IGNORECASE)
        if not 0 < len(literals) <= MAX_ALTERNATIVES:
            return None
        if ignore_case:
            if any(CASES_OF_ASCII.search(literal) for literal in literals):
                return None
            literals = {literal.lower() for literal in literals}
        return cls(literals=tuple(sorted(literals)), ignore_case=ignore_case)

    def admits(self, text: str) -> bool:
        """Whether the text contains one of the literals."""
        if self.ignore_case:
            if not text.isascii():
                return self._pattern.search(text) is not None
            text = text.lower()
        return any(literal in text for literal in self.literals)

    @cached_property
    def _pattern(self) -> re.Pattern[str]:
        return re.compile("|".join(map(re.escape, self.literals)), re.IGNORECASE)


def required_literals(pattern: re.Pattern[str]) -> frozenset[str] | None:
    """Texts without spaces of which every match contains one, in some case if the pattern ignores it; None if unknown.

    Spaces are left out because detectors may see lines with fewer of them.

    >>> sorted(required_literals(re.compile(r"(?:AKIA|ASIA)[0-9A-Z]{16}")) or ())
    ['KIA', 'SIA']
    """
    parser: Any = importlib.import_module("re._parser")
    return _of_sequence(parser.parse(pattern.pattern, pattern.flags))


def _of_sequence(items: Any) -> frozenset[str] | None:
    """The best of what the items of a sequence require: the longest literals, counted by their shortest."""
    required: list[frozenset[str]] = []
    run = ""
    for operator, argument in [*items, (None, None)]:
        if str(operator) == "LITERAL" and not chr(argument).isspace():
            run += chr(argument)
            continue
        if run:
            required.append(frozenset({run}))
        run = ""
        needed = _of_item(str(operator), argument)
        if needed:
            required.append(needed)
    return max(required, key=lambda literals: min(map(len, literals)), default=None)


def _of_item(operator: str, argument: Any) -> frozenset[str] | None:
    match operator:
        case "IN":
            literals = [chr(value) for kind, value in argument if str(kind) == "LITERAL" and not chr(value).isspace()]
            return frozenset(literals) if len(literals) == len(argument) <= MAX_SET else None
        case "BRANCH":
            alternatives = [_of_sequence(items) for items in argument[1]]
            return _union(alternatives)
        case "SUBPATTERN":
            _, added_flags, removed_flags, items = argument
            return None if added_flags or removed_flags else _of_sequence(items)
        case "MAX_REPEAT" | "MIN_REPEAT" | "POSSESSIVE_REPEAT":
            at_least, _, items = argument
            return _of_sequence(items) if at_least >= 1 else None
        case "ATOMIC_GROUP":
            return _of_sequence(argument)
        case _:
            return None


def _union(alternatives: list[frozenset[str] | None]) -> frozenset[str] | None:
    known = [literals for literals in alternatives if literals]
    return frozenset().union(*known) if len(known) == len(alternatives) else None

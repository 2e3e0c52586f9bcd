"""CODEOWNERS: who owns a path, as GitHub reads the file.

Patterns look like those of .gitignore with these differences: the last line that matches wins as a whole, "!" and "[ ]"
mean nothing special, so lines with them are left out, and a last segment "*" does not reach into folders below.
"""

import re
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Self, final

from hush.errors import InvalidInput
from hush.scan.code.reading import text_or_problem

__all__ = ["Owners"]

PLACES = (".github/CODEOWNERS", "CODEOWNERS", "docs/CODEOWNERS")  # the first that is there counts
_WORD = re.compile(r"(?:\\.|[^\s\\])+")
_OWNER = re.compile(r"@[\w.-]+(?:/[\w.-]+)?|[^@\s]+@[^@\s]+")


@final
@dataclass(frozen=True, kw_only=True)
class Owners:
    """Patterns with their owners, in the order of the file. skipped: numbers of lines that GitHub would leave out."""

    rules: tuple[tuple[str, tuple[str, ...]], ...] = field(repr=False)
    skipped: tuple[int, ...] = ()

    @classmethod
    def read(cls, root: Path) -> Self:
        """The owners that a repository states; an error if it has no such file."""
        for place in PLACES:
            text, problem = text_or_problem(root, place)
            if text is not None:
                return cls.parse(text)
            if problem != "missing":
                raise InvalidInput(f"{root / place} cannot be read: it is {problem}; mend the file")
        raise InvalidInput(
            f"{root} has no CODEOWNERS file, which rules by owners need; add one at {' or '.join(PLACES)}"
        )

    @classmethod
    def parse(cls, text: str) -> Self:
        """The rules of a file's text.

        >>> owners = Owners.parse("* @acme/all\\n/billing/ @acme/billing ana@acme.com\\n/billing/docs/")
        >>> [owners.of(path) for path in ("a.py", "billing/x/a.py", "billing/docs/a.md")]
        [('@acme/all',), ('@acme/billing', 'ana@acme.com'), ()]
        """
        rules: list[tuple[str, tuple[str, ...]]] = []
        skipped: list[int] = []
        for number, line in enumerate(text.removeprefix("\ufeff").split("\n"), start=1):
            words = _WORD.findall(line)
            if not words or words[0].startswith("#"):
                continue
            pattern, *rest = words
            comment = next((place for place, word in enumerate(rest) if word.startswith("#")), len(rest))
            owners = tuple(rest[:comment])
            if (
                pattern.startswith("!")
                or re.search(r"[\[\]]|\*\*\*", pattern)
                or not all(map(_OWNER.fullmatch, owners))
            ):
                skipped.append(number)
            else:
                rules.append((pattern, owners))
        return cls(rules=tuple(rules), skipped=tuple(skipped))

    def of(self, path: str) -> tuple[str, ...]:
        """The owners of a path from the root."""
        return next((owners for pattern, owners in reversed(self._compiled) if pattern.fullmatch(path)), ())

    @cached_property
    def _compiled(self) -> tuple[tuple[re.Pattern[str], tuple[str, ...]], ...]:
        return tuple((re.compile(_expression(pattern), re.DOTALL), owners) for pattern, owners in self.rules)


def _expression(pattern: str) -> str:
    """A regular expression for the paths that a pattern means.

    A pattern with a slash before its end starts at the root, any other one in any folder. It means a file of that name
    and everything below a folder of that name, except after a last segment "*", which means names right there.
    """
    anchored = "/" in pattern.rstrip("/")
    segments = pattern.strip("/").split("/")
    if segments == [""]:
        return r"(?!)"  # "/" means nothing
    below = "/.+" if pattern.endswith("/") else "" if segments[-1] == "*" else "(?:/.+)?"
    expression = "" if anchored else "(?:.+/)?"
    for number, segment in enumerate(segments):
        last = number == len(segments) - 1
        if segment == "**":
            expression += ".+" if last else "(?:.+/)?"
        else:
            expression += _segment(segment) + (below if last else "/")
    return expression


def _segment(segment: str) -> str:
    special = {"*": "[^/]*", "?": "[^/]"}
    tokens = re.findall(r"\\.|.", segment, re.DOTALL)
    return "[^/]+" if segment == "*" else "".join(special.get(token) or re.escape(token[-1]) for token in tokens)

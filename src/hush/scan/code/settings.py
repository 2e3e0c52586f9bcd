"""What the owner declares about a code repository, before anything of it is read: secrets, and how they spread."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import date
from typing import Literal, final

from hush.errors import InvalidInput
from hush.protection import Protection

__all__ = ["Chunks", "CodeSecret", "CodeSettings", "Contributors", "Imports"]


DEFAULT_LINES = 80


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class CodeSecret:
    """A secret project: its files are those under ``paths``, owned by ``owners`` or written by ``authors``.

    name: public, part of the secret's id. paths: globs as in .gitignore, from the repository's root. owners: as they
    stand in CODEOWNERS. authors: addresses, names of people as git knows them, or names of groups.
    """

    name: str
    paths: tuple[str, ...] = ()
    owners: tuple[str, ...] = ()
    authors: tuple[str, ...] = ()
    protection: Protection | None = None

    def __post_init__(self) -> None:
        if not self.name.strip():
            raise InvalidInput("a secret of a code rule has an empty name; name it, as in name: billing")
        if not (self.paths or self.owners or self.authors):
            raise InvalidInput(f"secret {self.name} has no files; give it paths, owners or authors")
        if not all(entry.strip() for entry in (*self.paths, *self.owners, *self.authors)):
            raise InvalidInput(f"secret {self.name} has an empty path, owner or author; remove the entry")


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class Imports:
    """How far secrets spread to files that import a secret's file.

    depth: 1 for direct imports, more for imports of imports, None for all of them, 0 for none.
    """

    depth: int | None = 0

    def __post_init__(self) -> None:
        if self.depth is not None and self.depth < 0:
            raise InvalidInput(f"depth={self.depth} of imports is below 0; pass 0 for none or None for all")


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class Contributors:
    """Who counts as having written a file: people with at least this share of its changes since this day.

    share: of the changes that git has for the file in that time; 0 means one commit is enough. since: by the author's
    date, in UTC. of: what a share is measured in, commits or added lines. groups: whether a person brings along
    everybody who is in a group with them.
    """

    share: float = 0.0
    since: date | None = None
    of: Literal["commits", "lines"] = "commits"
    groups: bool = False

    def __post_init__(self) -> None:
        if not 0.0 <= self.share <= 1.0:  # written so that NaN fails
            raise InvalidInput(f"share={self.share!r} of contributors is no number from 0 to 1; pass one, such as 0.2")
        if self.of not in ("commits", "lines"):
            raise InvalidInput(f"of={self.of!r} is not known; measure shares in 'commits' or 'lines'")


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class CodeSettings:
    """A whole code rule.

    authored: what makes a file one of a secret's ``authors``, taken together. contributors: if given, a secret spreads
    to files that the contributors of its own files wrote. groups: names of groups, and the addresses in each.
    """

    secrets: tuple[CodeSecret, ...]
    imports: Imports = Imports()
    contributors: Contributors | None = None
    authored: Contributors = Contributors()
    groups: Mapping[str, tuple[str, ...]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        names = [secret.name for secret in self.secrets]
        for name in names:
            if names.count(name) > 1:
                raise InvalidInput(f"two secrets are called {name}; give each its own name, or join their paths")


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class Chunks:
    """How a file is cut into examples: so many lines, or so many tokens, each. By default 80 lines.

    A token is a run of letters, digits and underscores, or any other single character that is no white space. overlap:
    how many lines, or tokens, a chunk repeats from the end of the one before.
    """

    lines: int | None = None
    tokens: int | None = None
    overlap: int = 0

    def __post_init__(self) -> None:
        if self.lines is not None and self.tokens is not None:
            raise InvalidInput(f"chunks of lines={self.lines} and of tokens={self.tokens}; give one of the two")
        if self.size < 1:
            raise InvalidInput(f"chunks of {self.size} {self.unit} hold nothing; pass 1 or more")
        if not 0 <= self.overlap < self.size:
            raise InvalidInput(f"overlap={self.overlap} must be 0 or more and below the {self.size} {self.unit}")

    @property
    def unit(self) -> Literal["lines", "tokens"]:
        """What the size counts."""
        return "lines" if self.tokens is None else "tokens"

    @property
    def size(self) -> int:
        """How many of them a chunk holds."""
        if self.tokens is not None:
            return self.tokens
        return DEFAULT_LINES if self.lines is None else self.lines

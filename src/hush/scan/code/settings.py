"""Settings of a code rule: the secret projects of a repository, how they spread, and how files are cut into chunks."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import date
from typing import Literal, TypeAlias, final

from hush.errors import InvalidInput
from hush.protection import Protection

__all__ = ["Chunks", "CodeSecret", "CodeSettings", "Contributors", "Hides", "Imports", "PublicPart"]


DEFAULT_LINES = 80  # of a chunk

Hides: TypeAlias = Literal["file", "definitions", "lines"]
PublicPart: TypeAlias = Literal["imports", "signatures", "docstrings"]


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class CodeSecret:
    """A secret project: its files are those under ``paths``, owned by ``owners`` or written by ``authors``.

    name: public, part of the secret's id. paths: globs as in .gitignore, from the repository's root. owners: as in
    CODEOWNERS. authors: addresses or names as in git, or names of groups.
    """

    name: str
    paths: tuple[str, ...] = ()
    owners: tuple[str, ...] = ()
    authors: tuple[str, ...] = ()
    protection: Protection | None = None

    def __post_init__(self) -> None:
        if not self.name.strip():
            raise InvalidInput("a secret of a code rule has an empty name; pass a name, such as billing")
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
            raise InvalidInput(f"depth={self.depth} of imports is negative; pass 0 for none or None for all")


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class Contributors:
    """Who counts as an author of a file: people with at least this share of its changes since this day.

    share: of the changes in git's history of the file; 0 means that one commit is enough. since: by author date, in
    UTC. of: whether a share counts commits or added lines. groups: whether the members of a person's groups count, too.
    """

    share: float = 0.0
    since: date | None = None
    of: Literal["commits", "lines"] = "commits"
    groups: bool = False

    def __post_init__(self) -> None:
        if not 0.0 <= self.share <= 1.0:  # written so that NaN fails
            raise InvalidInput(f"share={self.share!r} of contributors is not from 0 to 1; pass a number such as 0.2")
        if self.of not in ("commits", "lines"):
            raise InvalidInput(f"of={self.of!r} is not a unit of shares; pass 'commits' or 'lines'")


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class CodeSettings:
    """All settings of a code rule.

    authored: the share that a secret's ``authors`` together need to own a file. contributors: if given, a secret
    spreads to files by the contributors of its own files. groups: the addresses in each named group.

    hides: what of a file is secret: all of it, its definitions that use the secret, or its lines that do. public: what
    of a secret's own files is not hidden if definitions are.
    """

    secrets: tuple[CodeSecret, ...]
    imports: Imports = Imports()
    contributors: Contributors | None = None
    authored: Contributors = Contributors()
    groups: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    hides: Hides = "file"
    public: tuple[PublicPart, ...] = ()

    def __post_init__(self) -> None:
        if self.public and self.hides != "definitions":
            raise InvalidInput(
                f"public names parts of a secret's own files, but hides is {self.hides}: all of them is hidden; "
                "set hides to definitions, or drop public"
            )
        names = [secret.name for secret in self.secrets]
        for name in names:
            if names.count(name) > 1:
                raise InvalidInput(f"two secrets are called {name}; give each its own name, or combine their paths")

    @property
    def needs_history(self) -> bool:
        """Whether a secret has authors or spreads by contributors, which only git's history tells."""
        return self.contributors is not None or any(secret.authors for secret in self.secrets)


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class Chunks:
    """How a file is cut into examples: chunks of this many lines or tokens. The default is 80 lines.

    A token is a run of letters, digits and underscores, or any other single character except white space. overlap:
    the number of lines or tokens that a chunk repeats from the end of the previous one.
    """

    lines: int | None = None
    tokens: int | None = None
    overlap: int = 0

    def __post_init__(self) -> None:
        if self.lines is not None and self.tokens is not None:
            raise InvalidInput(f"chunks have lines={self.lines} and tokens={self.tokens}; pass one of the two")
        if self.size < 1:
            raise InvalidInput(f"chunks of {self.size} {self.unit} are empty; pass 1 or more")
        if not 0 <= self.overlap < self.size:
            raise InvalidInput(
                f"overlap={self.overlap}; pass 0 or more, and below the {self.size} {self.unit} of a chunk"
            )

    @property
    def unit(self) -> Literal["lines", "tokens"]:
        """The unit of the size."""
        return "lines" if self.tokens is None else "tokens"

    @property
    def size(self) -> int:
        """The number of lines or tokens in a chunk."""
        if self.tokens is not None:
            return self.tokens
        return DEFAULT_LINES if self.lines is None else self.lines

"""Patterns for paths as in .gitignore, for the rules of an owner and for folders that are walked without git."""

from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, final

from hush.errors import InvalidInput

if TYPE_CHECKING:
    from pathspec import GitIgnoreSpec

__all__ = ["Globs"]


@final
@dataclass(frozen=True)
class Globs:
    """Patterns of which the last one that matches decides; one that begins with ! takes paths out again.

    >>> globs = Globs(("services/billing/**", "*.sql", "!public.sql"))
    >>> [globs.match(path) for path in ("services/billing/a/b.py", "db/all.sql", "db/public.sql")]
    [True, True, False]
    """

    patterns: tuple[str, ...]

    def match(self, path: str) -> bool:
        """Whether a path, from the root and with slashes, is meant."""
        return self.verdict(path) is True

    def verdict(self, path: str) -> bool | None:
        """As ``match``, but None where no pattern has a word on the path."""
        return self._spec.check_file(path).include

    @cached_property
    def _spec(self) -> "GitIgnoreSpec":
        try:
            from pathspec import GitIgnoreSpec
        except ImportError:
            raise InvalidInput('patterns for paths need the pathspec library; pip install "hush[code]"') from None
        try:
            return GitIgnoreSpec.from_lines(self.patterns)
        except ValueError:
            raise InvalidInput(
                f"one of {len(self.patterns)} patterns for paths is not valid; write them as in .gitignore"
            ) from None

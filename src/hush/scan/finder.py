"""What every way of finding secrets looks like to the scan."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, Protocol, final, runtime_checkable

from hush.corpus.blocks import Block
from hush.protection import Protection
from hush.scan.hits import Hits

__all__ = ["Declared", "Finder", "Prepared", "Survey"]


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class Declared:
    """A secret that a rule names before any example is read; it exists even where no example contains it.

    key: as in ``Hits.keys``, private. name: for its public id, where the owner says that the name is public.
    """

    key: str = field(repr=False)
    name: str | None = None
    protection: Protection | None = None


class Finder(Protocol):
    """Finds secrets in one block at a time; the same block gives the same hits, whatever came before it.

    It is sent to other processes, so it pickles, and what is costly to build is built on first use there.
    """

    @property
    def columns(self) -> tuple[str, ...]:
        """Columns of the data that it looks at besides the text."""
        ...

    @property
    def declared(self) -> Sequence[Declared]:
        """The secrets that it knows beforehand, in any order: their public one is made later."""
        ...

    def find(self, block: Block) -> Hits:
        """Where the block's examples contain secrets."""
        ...


@runtime_checkable
class Survey(Protocol):
    """A rule that has to see the whole corpus before it can find anything: it counts by block, and merges."""

    @property
    def columns(self) -> tuple[str, ...]:
        """Columns of the data that it, or the finder that it makes, looks at besides the text."""
        ...

    def count(self, block: Block) -> Any:
        """What the finder must know of this block."""
        ...

    def merged(self, one: Any, other: Any) -> Any:
        """Both counts as one; in whatever order and grouping blocks are merged, the result is the same."""
        ...

    def finder(self, total: Any) -> Finder:
        """The finder, once everything is counted (None for a corpus without blocks)."""
        ...


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class Prepared:
    """A rule ready to run. protection: what its secrets are promised where they do not say so themselves.

    public_names: the keys of what is found are names that may be shown, and stand in the secrets' public ids. again:
    keys are the secrets' texts, which the finder may miss in other surroundings; they are looked for everywhere, as any
    "text" or as whole "words".
    """

    name: str
    finder: Finder | Survey
    protection: Protection
    public_names: bool = False
    again: Literal["text", "words"] | None = None

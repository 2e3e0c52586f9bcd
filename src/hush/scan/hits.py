"""The interface between finders and the rest of a scan: ``Finder`` and ``Survey``, and the ``Hits`` that they return.

A rule of the rules file becomes a ``PreparedRule`` (scanner.py), whose finder is applied to one block of examples at a
time (shard_tasks.py). A hit says which example contains which secret, where in its text, and why.
Shapes: H hits.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, fields, replace
from typing import Any, Literal, Protocol, Self, final, runtime_checkable

import numpy as np
from numpy.typing import ArrayLike, NDArray

from hush.data.parts import Block
from hush.errors import InvalidInput
from hush.protection import Protection

__all__ = ["DeclaredSecret", "Finder", "Hits", "PreparedRule", "SpanList", "Survey", "occurrences", "pickled_fields"]


@final
@dataclass(frozen=True, slots=True, kw_only=True, eq=False, repr=False)
class Hits:
    """Occurrences of secrets in the examples of a block, column by column.

    example_H: the row in the block. key_H: the index into ``keys``. begin_H, end_H: the span of characters in the text,
    -1 if the finder does not know it. reason_H: the index into ``reasons``. keys identify the secrets of one rule and
    are private: they may be the secrets' text. reasons are sentences for the owner and never contain secret text.
    doubtful: the reasons that state a doubt. A text with doubtful hits only is no secret: it is set aside.
    """

    example_H: NDArray[np.int64]
    key_H: NDArray[np.int64]
    begin_H: NDArray[np.int64]
    end_H: NDArray[np.int64]
    reason_H: NDArray[np.int64]
    keys: tuple[str, ...]
    reasons: tuple[str, ...]
    doubtful: frozenset[str] = frozenset()

    @classmethod
    def of(
        cls,
        example: ArrayLike,
        key: ArrayLike,
        *,
        keys: tuple[str, ...],
        reasons: tuple[str, ...],
        reason: ArrayLike = 0,
        begin: ArrayLike = -1,
        end: ArrayLike = -1,
        doubtful: frozenset[str] = frozenset(),
    ) -> Self:
        """Hits from columns with one entry per hit; a single number applies to all hits."""
        example_H = np.asarray(example, dtype=np.int64).reshape(-1)
        columns = [
            np.broadcast_to(np.asarray(values, dtype=np.int64), example_H.shape) for values in (key, begin, end, reason)
        ]
        key_H, begin_H, end_H, reason_H = columns
        if example_H.size and not (
            key_H.min() >= 0 and key_H.max() < len(keys) and reason_H.min() >= 0 and reason_H.max() < len(reasons)
        ):
            raise InvalidInput(
                f"a hit names a key outside [0, {len(keys)}) or a reason outside [0, {len(reasons)}); fix the finder"
            )
        return cls(
            example_H=example_H,
            key_H=key_H,
            begin_H=begin_H,
            end_H=end_H,
            reason_H=reason_H,
            keys=keys,
            reasons=reasons,
            doubtful=doubtful,
        )

    @classmethod
    def merged(cls, parts: Sequence[tuple[int, "Hits"]]) -> Self:
        """The hits of consecutive blocks as one; each part comes with the number of examples before its block.

        Sorted by example, begin, end, key and reason, without duplicates. Keys are in the order of their first
        occurrence (in the finder's order for keys with the same span), reasons in alphabetical order. This order
        reveals nothing about the text of the keys, and it does not depend on how the examples were cut into blocks.
        """
        keys, key_columns = _shared_table([(hits.keys, hits.key_H) for _, hits in parts])
        reasons, reason_columns = _shared_table([(hits.reasons, hits.reason_H) for _, hits in parts])
        columns = [
            np.concatenate([np.empty(0, dtype=np.int64), *arrays])
            for arrays in (
                [hits.example_H + before for before, hits in parts],
                [hits.begin_H for _, hits in parts],
                [hits.end_H for _, hits in parts],
                key_columns,
                reason_columns,
            )
        ]
        order_H = np.lexsort(columns[2::-1])  # stable: hits with the same span keep the finder's order
        present, first_K = np.unique(columns[3][order_H], return_index=True)
        by_appearance_K = present[np.argsort(first_K)]
        new_key_K = np.empty(len(keys), dtype=np.int64)
        new_key_K[by_appearance_K] = np.arange(len(keys))
        keys, columns[3] = tuple(keys[key] for key in by_appearance_K), new_key_K[columns[3]]
        order_H = np.lexsort(columns[::-1])
        columns = [column[order_H] for column in columns]
        new_H = np.ones(len(order_H), dtype=bool)
        new_H[1:] = np.any([column[1:] != column[:-1] for column in columns], axis=0)
        example_H, begin_H, end_H, key_H, reason_H = (column[new_H] for column in columns)
        return cls(
            example_H=example_H,
            key_H=key_H,
            begin_H=begin_H,
            end_H=end_H,
            reason_H=reason_H,
            keys=keys,
            reasons=reasons,
            doubtful=frozenset().union(*(hits.doubtful for _, hits in parts)),
        )

    @property
    def is_doubtful_H(self) -> NDArray[np.bool_]:
        """Which of the hits are doubtful."""
        return np.array([reason in self.doubtful for reason in self.reasons], dtype=np.bool_)[self.reason_H]

    def select(self, chosen_H: NDArray[np.bool_]) -> Self:
        """The chosen hits, with the same tables of keys and reasons."""
        columns = ("example_H", "key_H", "begin_H", "end_H", "reason_H")
        return replace(self, **{name: getattr(self, name)[chosen_H] for name in columns})

    def __len__(self) -> int:
        return len(self.example_H)

    def __repr__(self) -> str:
        return f"Hits({len(self)} hits of {len(self.keys)} secrets)"


def _shared_table(
    parts: Sequence[tuple[tuple[str, ...], NDArray[np.int64]]],
) -> tuple[tuple[str, ...], list[NDArray[np.int64]]]:
    """One sorted table of all names in use, and the indices of each part in that table."""
    present = [np.unique(index_H) for _, index_H in parts]
    table = sorted({names[index] for (names, _), used in zip(parts, present, strict=True) for index in used})
    index_of = {name: number for number, name in enumerate(table)}
    columns: list[NDArray[np.int64]] = []
    for (names, index_H), used in zip(parts, present, strict=True):
        new_of_old = np.zeros(len(names), dtype=np.int64)
        new_of_old[used] = [index_of[names[index]] for index in used]
        columns.append(new_of_old[index_H])
    return tuple(table), columns


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class DeclaredSecret:
    """A secret that a rule names before any example is read; it exists even if no example contains it.

    key: as in ``Hits.keys``, private. name: part of its public id, if the owner declared the name public. identity:
    what tells that it is the same secret in a later scan, if the key does not; private.
    """

    key: str = field(repr=False)
    name: str | None = None
    protection: Protection | None = None
    identity: str | None = field(default=None, repr=False)


class Finder(Protocol):
    """Finds secrets in one block at a time. The hits depend on the block alone, not on earlier blocks.

    A finder is sent to other processes: it can be pickled, and it builds costly state on first use there.
    """

    @property
    def columns(self) -> tuple[str, ...]:
        """Columns of the data that it reads besides the text."""
        ...

    @property
    def declared(self) -> Sequence[DeclaredSecret]:
        """The secrets known before any data is read, in any order: collect.py computes the public order."""
        ...

    def find(self, block: Block) -> Hits:
        """The occurrences of secrets in the block."""
        ...


@runtime_checkable
class Survey(Protocol):
    """A rule that must count over the whole corpus before its finder exists, such as word frequencies."""

    @property
    def columns(self) -> tuple[str, ...]:
        """Columns of the data that it, or the finder that it makes, reads besides the text."""
        ...

    def count(self, block: Block) -> Any:
        """The counts of one block."""
        ...

    def merged(self, first: Any, second: Any, /) -> Any:
        """The sum of two counts; the order and grouping of merges do not change the result."""
        ...

    def finder(self, total: Any) -> Finder:
        """The finder for the counts of the whole corpus (None for a corpus without examples)."""
        ...


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class PreparedRule:
    """A rule with its finder, ready to run. protection: for secrets that have no protection of their own.

    public_names: the keys of found secrets may be shown and become part of their public ids. literal_pass: the finder
    recognises secrets by context and may miss the same text in another context, so a second pass searches all examples
    for the found keys, as any "text" or only as whole words, of Unicode or, between other letters, of ASCII.
    distinctive: which keys also count inside words; none if None. hides_spans: the text around a secret is public, so
    every form of the secret's text is searched for (variants.py); otherwise a secret covers its examples as a whole.
    keys_are_texts: a found key is the text of its secret; the key of a secret project is only its name. find: the kind
    of the rule, empty for a finder of no rules file.
    """

    name: str
    finder: Finder | Survey
    protection: Protection
    public_names: bool = False
    literal_pass: Literal["text", "words", "ascii words"] | None = None
    distinctive: Callable[[str], bool] | None = None
    hides_spans: bool = False
    keys_are_texts: bool = True
    find: str = ""


# For the authors of finders


def pickled_fields(finder: Any) -> dict[str, Any]:
    """The fields of a dataclass finder without its cached properties: the state that is sent to other processes."""
    return {field.name: getattr(finder, field.name) for field in fields(finder)}


class SpanList:
    """Collects hits one by one, for finders that work on Python strings; each distinct hit is kept once."""

    def __init__(self) -> None:
        self._rows: dict[tuple[int, int, int, int, int], None] = {}
        self._keys: dict[str, int] = {}
        self._reasons: dict[str, int] = {}
        self._doubtful: set[str] = set()

    def add(self, example: int, begin: int, end: int, key: str, reason: str, *, doubt: str | None = None) -> None:
        """Adds a hit; a doubt about it becomes part of its reason."""
        if doubt is not None:
            reason = f"{reason}: {doubt}"
            self._doubtful.add(reason)
        key_number = self._keys.setdefault(key, len(self._keys))
        reason_number = self._reasons.setdefault(reason, len(self._reasons))
        self._rows[example, begin, end, key_number, reason_number] = None

    def hits(self) -> Hits:
        """All hits, sorted by example and span; keys and reasons in the order of their first use."""
        example, begin, end, key, reason = zip(*sorted(self._rows), strict=True) if self._rows else ((),) * 5
        keys, reasons = tuple(self._keys), tuple(self._reasons)
        doubtful = frozenset(self._doubtful)
        return Hits.of(example, key, keys=keys, reasons=reasons, reason=reason, begin=begin, end=end, doubtful=doubtful)

    def __repr__(self) -> str:
        return f"SpanList({len(self._rows)} hits of {len(self._keys)} secrets)"


def occurrences(text: str, part: str, begin: int, end: int) -> list[int]:
    """The positions of a non-empty ``part`` between two positions of the text, overlapping ones included."""
    positions: list[int] = []
    position = text.find(part, begin, end)
    while position >= 0:
        positions.append(position)
        position = text.find(part, position + 1, end)
    return positions

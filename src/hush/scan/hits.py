"""What a finder hands over: where the examples of a block contain secrets, column by column.

Shapes: H hits.

What every way of finding secrets looks like to the scan.

What a finder takes along to another process: its settings, and nothing that it built from them.

Hits gathered one by one, for finders that go through Python strings.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field, fields, replace
from typing import Any, Literal, Protocol, Self, final, runtime_checkable

import numpy as np
from numpy.typing import ArrayLike, NDArray

from hush.data.parts import Block
from hush.errors import InvalidInput
from hush.protection import Protection

__all__ = ["Declared", "Finder", "Hits", "Prepared", "SpanList", "Survey", "fields_only", "occurrences"]


@final
@dataclass(frozen=True, slots=True, kw_only=True, eq=False, repr=False)
class Hits:
    """Places where secrets were found.

    example_H: which row of the block; key_H: which of ``keys``; begin_H, end_H: which characters of its text, -1 where
    the finder cannot say; reason_H: which of ``reasons``. keys tell the secrets of one rule apart and are private: they
    may be the secrets' text. reasons are sentences for the owner, and hold no secret text.
    """

    example_H: NDArray[np.int64]
    key_H: NDArray[np.int64]
    begin_H: NDArray[np.int64]
    end_H: NDArray[np.int64]
    reason_H: NDArray[np.int64]
    keys: tuple[str, ...]
    reasons: tuple[str, ...]

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
    ) -> Self:
        """Hits from one entry each; a single number stands for all of them."""
        example_H = np.asarray(example, dtype=np.int64).reshape(-1)
        columns = [
            np.broadcast_to(np.asarray(values, dtype=np.int64), example_H.shape) for values in (key, begin, end, reason)
        ]
        key_H, begin_H, end_H, reason_H = columns
        if example_H.size and not (
            key_H.min() >= 0 and key_H.max() < len(keys) and reason_H.min() >= 0 and reason_H.max() < len(reasons)
        ):
            raise InvalidInput(
                f"a hit names a key outside [0, {len(keys)}) or a reason outside [0, {len(reasons)}); mend the finder"
            )
        return cls(
            example_H=example_H,
            key_H=key_H,
            begin_H=begin_H,
            end_H=end_H,
            reason_H=reason_H,
            keys=keys,
            reasons=reasons,
        )

    @classmethod
    def merged(cls, parts: Sequence[tuple[int, "Hits"]]) -> Self:
        """Hits of consecutive blocks, each with how many examples come before it, as one.

        Sorted by example, begin, end, key and reason, each once, with the keys that occur in the order in which they
        first do (of those at one place, as the finder gave them), and the reasons in their own. That order says nothing
        about the keys' text; and however the examples were cut into blocks, the result is the same.
        """
        keys, keys_of = _joined([(hits.keys, hits.key_H) for _, hits in parts])
        reasons, reasons_of = _joined([(hits.reasons, hits.reason_H) for _, hits in parts])
        columns = [
            np.concatenate([np.empty(0, dtype=np.int64), *arrays])
            for arrays in (
                [hits.example_H + before for before, hits in parts],
                [hits.begin_H for _, hits in parts],
                [hits.end_H for _, hits in parts],
                keys_of,
                reasons_of,
            )
        ]
        order_H = np.lexsort(columns[2::-1])  # stable: hits at one place stay as they are
        present, first_K = np.unique(columns[3][order_H], return_index=True)
        appearing_K = present[np.argsort(first_K)]
        place_K = np.empty(len(keys), dtype=np.int64)
        place_K[appearing_K] = np.arange(len(keys))
        keys, columns[3] = tuple(keys[key] for key in appearing_K), place_K[columns[3]]
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
        )

    def only(self, chosen_H: NDArray[np.bool_]) -> Self:
        """Some of the hits, of the same keys and reasons."""
        columns = ("example_H", "key_H", "begin_H", "end_H", "reason_H")
        return replace(self, **{name: getattr(self, name)[chosen_H] for name in columns})

    def __len__(self) -> int:
        return len(self.example_H)

    def __repr__(self) -> str:
        return f"Hits({len(self)} hits of {len(self.keys)} secrets)"


def _joined(
    parts: Sequence[tuple[tuple[str, ...], NDArray[np.int64]]],
) -> tuple[tuple[str, ...], list[NDArray[np.int64]]]:
    """One sorted table of the names that occur, and each part's numbers in it."""
    present = [np.unique(index_H) for _, index_H in parts]
    table = sorted({names[index] for (names, _), used in zip(parts, present, strict=True) for index in used})
    place = {name: number for number, name in enumerate(table)}
    numbers: list[NDArray[np.int64]] = []
    for (names, index_H), used in zip(parts, present, strict=True):
        new_of_old = np.zeros(len(names), dtype=np.int64)
        new_of_old[used] = [place[names[index]] for index in used]
        numbers.append(new_of_old[index_H])
    return tuple(table), numbers


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


def fields_only(finder: Any) -> dict[str, Any]:
    """The fields of a dataclass, without what its cached properties keep beside them."""
    return {field.name: getattr(finder, field.name) for field in fields(finder)}


class SpanList:
    """Hits so far; each distinct (example, span, key, reason) once."""

    def __init__(self) -> None:
        self._rows: dict[tuple[int, int, int, int, int], None] = {}
        self._keys: dict[str, int] = {}
        self._reasons: dict[str, int] = {}

    def add(self, example: int, begin: int, end: int, key: str, reason: str) -> None:
        key_number = self._keys.setdefault(key, len(self._keys))
        reason_number = self._reasons.setdefault(reason, len(self._reasons))
        self._rows[example, begin, end, key_number, reason_number] = None

    def hits(self) -> Hits:
        """All of them, by example, place, and in the order in which keys and reasons came up."""
        example, begin, end, key, reason = zip(*sorted(self._rows), strict=True) if self._rows else ((),) * 5
        keys, reasons = tuple(self._keys), tuple(self._reasons)
        return Hits.of(example, key, keys=keys, reasons=reasons, reason=reason, begin=begin, end=end)

    def __repr__(self) -> str:
        return f"SpanList({len(self._rows)} hits of {len(self._keys)} secrets)"


def occurrences(text: str, part: str, begin: int, end: int) -> list[int]:
    """Where ``part``, which is not empty, stands between two characters of the text, overlaps included."""
    found: list[int] = []
    at = text.find(part, begin, end)
    while at >= 0:
        found.append(at)
        at = text.find(part, at + 1, end)
    return found

"""What is done to one shard, wherever that is: count for the surveys, or find, and say what was read.

A task is sent once to each process; its results come back small. Nothing in a result depends on other shards: examples
are numbered within the shard. Shapes: N examples of the shard, F files of the shard.

What was found by its surroundings is looked for everywhere: a password is one, too, where nobody calls it so.

A pattern with a context, a detector of credentials or of names sees a secret in one example and misses the same text in
another. Once all shards were searched, the texts that such rules found are searched for as literals.
"""

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from functools import reduce
from itertools import pairwise
from typing import Any, Protocol, final

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from hush.data.parts import Block
from hush.data.shards import Readable
from hush.errors import InvalidInput
from hush.keys import LEAF_BYTES, DataKey
from hush.scan.finders.literals import Literals
from hush.scan.hits import Finder, Hits, Survey

__all__ = ["Count", "Elsewhere", "Find", "Found", "LookAgain", "Signer", "Total", "keyed_hashes"]


class Signer(Protocol):
    """What the rule of near copies needs of an example's text."""

    def signatures(self, block: Block) -> NDArray[Any]:
        """A row of numbers for each example of the block."""
        ...


@final
@dataclass(frozen=True, slots=True, kw_only=True, eq=False, repr=False)
class Found:
    """What was found in a shard.

    hits: for each rule, sorted. file_N, row_N: which file of the shard each example is from, and its row among those
    of the shard. skipped_F: broken rows of each file; rows_F: all its rows that the shard read. same_N: equal for equal
    texts. leaf_N: the rows' keyed fingerprints, if there is a key. ids: of the examples, if a column holds them.
    """

    hits: tuple[Hits, ...]
    file_N: NDArray[np.int64]
    row_N: NDArray[np.int64]
    rows_F: NDArray[np.int64]
    skipped_F: NDArray[np.int64]
    same_N: NDArray[np.uint64]
    leaf_N: NDArray[np.uint8] | None
    ids: pa.LargeStringArray | None
    signatures: NDArray[Any] | None

    def __repr__(self) -> str:
        return f"Found({len(self.same_N)} examples, {sum(map(len, self.hits))} hits)"


@final
@dataclass(frozen=True, kw_only=True)
class Count:
    """Counts a shard for each survey; None for a shard without examples.

    columns: all that the scan reads, here or later: which rows are broken must not depend on who asks.
    """

    surveys: tuple[Survey, ...]
    columns: tuple[str, ...]
    skip_bad: bool = False

    def __call__(self, shard: Readable) -> tuple[Any, ...]:
        totals: list[Any] = [None] * len(self.surveys)
        for block in shard.blocks(self.columns, skip_bad=self.skip_bad):
            if len(block):
                counts = [survey.count(block) for survey in self.surveys]
                totals = [
                    count if total is None else survey.merged(total, count)
                    for survey, total, count in zip(self.surveys, totals, counts, strict=True)
                ]
        return tuple(totals)


@final
@dataclass(frozen=True, kw_only=True)
class Find:
    """Runs all finders over a shard in one reading.

    columns: all that the scan reads. copy_key: drawn for one scan, so that no hash means anything after it. id_column:
    which column holds the examples' ids. signer: makes the signatures of near copies.
    """

    finders: tuple[Finder, ...]
    columns: tuple[str, ...]
    copy_key: bytes = field(repr=False)
    key: DataKey | None = None
    id_column: str | None = None
    signer: Signer | None = None
    skip_bad: bool = False

    def __call__(self, shard: Readable) -> Found:
        hits: list[list[tuple[int, Hits]]] = [[] for _ in self.finders]
        files, rows, same, leaves, signatures = [], [], [], [], []
        ids: list[pa.Array] = []
        place = {name: index for index, name in enumerate(shard.files)}
        skipped_F = np.zeros(len(shard.files), dtype=np.int64)
        before = 0
        for block in shard.blocks(self.columns, skip_bad=self.skip_bad):
            for broken in block.broken:
                skipped_F[place.get(broken.file, 0)] += 1
            if not len(block):
                continue
            for finder, found in zip(self.finders, hits, strict=True):
                found.append((before, _checked(finder.find(block), block)))
            files.append(np.zeros(len(block), dtype=np.int64) if block.files is None else block.files)
            rows.append(block.rows)
            same.append(keyed_hashes(block.texts, self.copy_key))
            if self.key is not None:
                leaves.append(_leaves(block, self.key))
            if self.id_column is not None:
                ids.append(_as_text(block.columns[self.id_column]))
            if self.signer is not None:
                signatures.append(self.signer.signatures(block))
            before += len(block)
        file_N = _concatenated(files, np.int64)
        return Found(
            hits=tuple(Hits.merged(found) for found in hits),
            file_N=file_N,
            row_N=_concatenated(rows, np.int64),
            rows_F=np.bincount(file_N, minlength=len(skipped_F)) + skipped_F,
            skipped_F=skipped_F,
            same_N=_concatenated(same, np.uint64),
            leaf_N=None if self.key is None else _concatenated(leaves, np.uint8).reshape(-1, LEAF_BYTES),
            ids=None if self.id_column is None else pa.concat_arrays([pa.array([], pa.large_string()), *ids]),
            signatures=np.concatenate(signatures) if signatures else None,
        )


@final
class Total:
    """All counts of a survey as one, merged in pairs of like size: no large one is copied for every small one.

    >>> class Sum:
    ...     def merged(self, one, other): return one + other
    >>> total = Total(Sum())
    >>> for count in range(10): total.add(count)
    >>> total.value()
    45
    """

    def __init__(self, survey: Survey) -> None:
        self._survey = survey
        self._held: list[tuple[int, Any]] = []  # how many were merged into each: falling powers of two

    def add(self, count: Any) -> None:
        """One more count; None counts nothing."""
        size = 1
        while count is not None and self._held and self._held[-1][0] == size:
            count, size = self._survey.merged(self._held.pop()[1], count), 2 * size
        if count is not None:
            self._held.append((size, count))

    def value(self) -> Any:
        """Everything so far; None if nothing was counted."""
        counts = [count for _, count in reversed(self._held)]
        return reduce(lambda one, other: self._survey.merged(other, one), counts) if counts else None


def _checked(hits: Hits, block: Block) -> Hits:
    """The hits, unless they are in no example of the block: the fault would show far from here, as another example."""
    if len(hits) and not 0 <= hits.example_H.min() <= hits.example_H.max() < len(block):
        raise InvalidInput(f"a finder has hits outside the {len(block)} examples of its block; mend the finder")
    return hits


def _concatenated(arrays: Sequence[NDArray[Any]], dtype: type[np.generic]) -> NDArray[Any]:
    return np.concatenate([np.empty((0, *(arrays[0].shape[1:] if arrays else ())), dtype=dtype), *arrays])


def keyed_hashes(texts: pa.LargeStringArray, key: bytes) -> NDArray[np.uint64]:
    """A 64-bit keyed hash of each text. Two different ones that share it would only make more be protected."""
    _, offsets, data = texts.buffers()
    content = memoryview(data) if data is not None else memoryview(b"")
    edges = np.frombuffer(offsets, dtype=np.int64)[texts.offset : texts.offset + len(texts) + 1].tolist()
    digests = [hashlib.blake2b(content[begin:end], digest_size=8, key=key).digest() for begin, end in pairwise(edges)]
    return np.frombuffer(b"".join(digests), dtype="<u8")


def _leaves(block: Block, key: DataKey) -> NDArray[np.uint8]:
    return np.frombuffer(b"".join(map(key.fingerprint_row, block.strings)), dtype=np.uint8).reshape(-1, LEAF_BYTES)


def _as_text(array: Any) -> pa.LargeStringArray:
    """A column of ids as text; null where there is none."""
    try:
        return array.cast(pa.large_string())
    except (pa.ArrowNotImplementedError, pa.ArrowInvalid):
        return pa.array([None if value is None else str(value) for value in array.to_pylist()], pa.large_string())


REASON = "the same text as one that this rule found elsewhere"


@final
@dataclass(frozen=True, slots=True, kw_only=True, eq=False, repr=False)
class Elsewhere:
    """What a shard holds of texts that were found before: hits for each rule, and how many examples were read."""

    hits: tuple[Hits, ...]
    examples: int


@final
@dataclass(frozen=True, kw_only=True, repr=False)
class LookAgain:
    """Searches a shard for the texts that rules found, one list of literals for each rule.

    columns: all that the scan reads, since which rows are broken must not depend on who asks.
    """

    literals: Sequence[Literals]
    columns: tuple[str, ...]
    skip_bad: bool = False

    def __call__(self, shard: Readable) -> Elsewhere:
        hits: list[list[tuple[int, Hits]]] = [[] for _ in self.literals]
        before = 0
        for block in shard.blocks(self.columns, skip_bad=self.skip_bad):
            if len(block):
                for one, found in zip(self.literals, hits, strict=True):
                    if one.values:
                        found.append((before, _with_reason(one.find(block))))
                before += len(block)
        return Elsewhere(hits=tuple(Hits.merged(found) for found in hits), examples=before)

    def __repr__(self) -> str:
        return f"LookAgain({len(self.literals)} rules)"


def _with_reason(hits: Hits) -> Hits:
    return replace(hits, reason_H=np.zeros(len(hits), dtype=np.int64), reasons=(REASON,))

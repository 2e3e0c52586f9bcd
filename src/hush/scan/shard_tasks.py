"""The tasks that an engine applies to each shard of a corpus: count, find, and search again for found texts.

``CountTask`` counts for the surveys (word frequencies). ``FindTask`` runs all finders in one reading.
``LiteralPassTask`` searches for texts that rules found by context: a pattern with a context or a detector of
credentials recognises a secret in one example and misses the same text in another, so that text is searched for as a
literal in all examples. ``VariantPassTask`` searches for all other forms of the secrets of rules that hide spans.

A task is sent once to each worker process and pickled by reference to this module; its results are small. A result
depends on one shard alone: examples are numbered within the shard.
Shapes: N examples of the shard, F files of the shard.
"""

import hashlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from functools import reduce
from itertools import pairwise
from typing import Any, final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from hush.data.parts import Block
from hush.data.shards import ReadableShard
from hush.errors import InvalidInput
from hush.keys import LEAF_BYTES, DataKey
from hush.scan.finders.literals import Literals
from hush.scan.finders.unicode import bytes_of
from hush.scan.hits import Finder, Hits, Survey
from hush.scan.near_copies import Copies
from hush.scan.normal_form import widened, within_lines
from hush.scan.rendered_texts import with_unescaped
from hush.scan.variants import Variants

__all__ = [
    "CountTask",
    "FindTask",
    "LiteralPassTask",
    "MergedCounts",
    "SearchResult",
    "ShardResult",
    "VariantPassTask",
    "keyed_hashes",
]


LITERAL_PASS_REASON = "the same text as one that this rule found elsewhere"


@final
@dataclass(frozen=True, kw_only=True)
class CountTask:
    """Counts a shard for each survey; the count is None for a shard without examples.

    columns: all columns that any task of the scan reads, so that every task skips the same broken rows.
    """

    surveys: tuple[Survey, ...]
    columns: tuple[str, ...]
    skip_bad: bool = False

    def __call__(self, shard: ReadableShard) -> tuple[Any, ...]:
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
class MergedCounts:
    """The sum of a survey's counts over all shards, merged in pairs of similar size to avoid copying large counts.

    >>> class Sum:
    ...     def merged(self, first, second): return first + second
    >>> total = MergedCounts(Sum())
    >>> for count in range(10): total.add(count)
    >>> total.value()
    45
    """

    def __init__(self, survey: Survey) -> None:
        self._survey = survey
        self._partial: list[tuple[int, Any]] = []  # number of merged counts (falling powers of two) and their sum

    def add(self, count: Any) -> None:
        """Adds the count of one shard; None adds nothing."""
        size = 1
        while count is not None and self._partial and self._partial[-1][0] == size:
            count, size = self._survey.merged(self._partial.pop()[1], count), 2 * size
        if count is not None:
            self._partial.append((size, count))

    def value(self) -> Any:
        """The sum so far; None if nothing was counted."""
        counts = [count for _, count in reversed(self._partial)]
        return reduce(lambda later, earlier: self._survey.merged(earlier, later), counts) if counts else None


@final
@dataclass(frozen=True, slots=True, kw_only=True, eq=False, repr=False)
class ShardResult:
    """The hits in one shard, and what the example index needs to know about its examples.

    hits: for each rule, sorted. file_N, row_N: the file of each example, as an index into the shard's files, and its
    row among the rows that the shard reads of that file. rows_F: rows read of each file, broken ones included;
    skipped_F: broken rows of each file. text_hash_N: equal for equal texts. characters_N: of each text. fingerprint_N:
    keyed fingerprints of the rows, if there is a key. ids: of the examples, if a column holds them. signatures: for
    near copies, if asked for.
    """

    hits: tuple[Hits, ...]
    file_N: NDArray[np.int64]
    row_N: NDArray[np.int64]
    rows_F: NDArray[np.int64]
    skipped_F: NDArray[np.int64]
    text_hash_N: NDArray[np.uint64]
    characters_N: NDArray[np.int64]
    fingerprint_N: NDArray[np.uint8] | None
    ids: pa.LargeStringArray | None
    signatures: NDArray[Any] | None

    @property
    def num_examples(self) -> int:
        return len(self.text_hash_N)

    def __repr__(self) -> str:
        return f"ShardResult({self.num_examples} examples, {sum(map(len, self.hits))} hits)"


@final
@dataclass(frozen=True, kw_only=True)
class FindTask:
    """Runs all finders over a shard in one reading.

    columns: all columns that any task of the scan reads. copy_key: drawn for one scan, so that its hashes are useless
    afterwards. id_column: the column with the examples' ids. copies: computes the signatures for near copies.
    hides_spans: the indices of the finders whose rule hides spans; their hits reach to the ends of words. in_chunks:
    examples are cut from files at line ends; see ``within_lines``.
    """

    finders: tuple[Finder, ...]
    columns: tuple[str, ...]
    copy_key: bytes = field(repr=False)
    key: DataKey | None = None
    id_column: str | None = None
    copies: Copies | None = None
    skip_bad: bool = False
    hides_spans: frozenset[int] = frozenset()
    in_chunks: bool = False

    def __call__(self, shard: ReadableShard) -> ShardResult:
        hits: list[list[tuple[int, Hits]]] = [[] for _ in self.finders]
        files, rows, hashes, characters, fingerprints, signatures = [], [], [], [], [], []
        ids: list[pa.Array] = []
        index_of_file = {name: index for index, name in enumerate(shard.files)}
        skipped_F = np.zeros(len(shard.files), dtype=np.int64)
        examples_before = 0
        for block in shard.blocks(self.columns, skip_bad=self.skip_bad):
            for broken in block.broken:
                skipped_F[index_of_file.get(broken.file, 0)] += 1
            if not len(block):
                continue
            for rule, finder in enumerate(self.finders):
                found = _checked(finder.find(block), block)
                if rule in self.hides_spans:
                    found = widened(found, block)
                    found = within_lines(found, block) if self.in_chunks else found
                found = with_unescaped(found, block, finder.find, hides_spans=rule in self.hides_spans)
                hits[rule].append((examples_before, found))
            files.append(np.zeros(len(block), dtype=np.int64) if block.files is None else block.files)
            rows.append(block.rows)
            hashes.append(keyed_hashes(block.texts, self.copy_key))
            characters.append(pc.call_function("utf8_length", [block.texts]).to_numpy())
            if self.key is not None:
                fingerprints.append(_fingerprints(block, self.key))
            if self.id_column is not None:
                ids.append(_as_text(block.columns[self.id_column]))
            if self.copies is not None:
                signatures.append(self.copies.signatures(block))
            examples_before += len(block)
        file_N = _concatenated(files, np.int64)
        return ShardResult(
            hits=tuple(Hits.merged(hits_of_blocks) for hits_of_blocks in hits),
            file_N=file_N,
            row_N=_concatenated(rows, np.int64),
            rows_F=np.bincount(file_N, minlength=len(skipped_F)) + skipped_F,
            skipped_F=skipped_F,
            text_hash_N=_concatenated(hashes, np.uint64),
            characters_N=_concatenated(characters, np.int64),
            fingerprint_N=None if self.key is None else _concatenated(fingerprints, np.uint8).reshape(-1, LEAF_BYTES),
            ids=None if self.id_column is None else pa.concat_arrays([pa.array([], pa.large_string()), *ids]),
            signatures=np.concatenate(signatures) if signatures else None,
        )


@final
@dataclass(frozen=True, slots=True, kw_only=True, eq=False, repr=False)
class SearchResult:
    """Hits of a later pass in one shard, for each rule that takes part, and the number of examples read."""

    hits: tuple[Hits, ...]
    num_examples: int


@final
@dataclass(frozen=True, kw_only=True, repr=False)
class LiteralPassTask:
    """Searches a shard for the texts that rules found in any shard: one list of literals for each rule.

    columns: all columns that any task of the scan reads, so that every task skips the same broken rows. hides_spans:
    the indices of the lists whose rule hides spans; their hits reach to the ends of words.
    """

    literals: Sequence[Literals]
    columns: tuple[str, ...]
    skip_bad: bool = False
    hides_spans: frozenset[int] = frozenset()
    in_chunks: bool = False

    def __call__(self, shard: ReadableShard) -> SearchResult:
        return _searched(shard, self.columns, [*map(self._search, range(len(self.literals)))], skip_bad=self.skip_bad)

    def _search(self, index: int) -> Callable[[Block], Hits] | None:
        literals = self.literals[index]
        if not literals.values:
            return None

        def in_block(block: Block) -> Hits:
            return _with_literal_reason(literals.find(block))

        def search(block: Block) -> Hits:
            found = in_block(block)
            if index in self.hides_spans:
                found = widened(found, block)
                found = within_lines(found, block) if self.in_chunks else found
            return with_unescaped(found, block, in_block, hides_spans=index in self.hides_spans)

        return search

    def __repr__(self) -> str:
        return f"LiteralPassTask({len(self.literals)} rules)"


@final
@dataclass(frozen=True, kw_only=True, repr=False)
class VariantPassTask:
    """Searches a shard for all forms of the secrets of rules that hide spans; columns as in ``LiteralPassTask``."""

    variants: Sequence[Variants]
    columns: tuple[str, ...]
    skip_bad: bool = False
    in_chunks: bool = False

    def __call__(self, shard: ReadableShard) -> SearchResult:
        def search_for(variants: Variants) -> Callable[[Block], Hits]:
            if self.in_chunks:
                return lambda block: within_lines(variants.find(block), block)
            return lambda block: with_unescaped(variants.find(block), block, variants.find, hides_spans=True)

        searches = [search_for(variants) if variants.keys else None for variants in self.variants]
        return _searched(shard, self.columns, searches, skip_bad=self.skip_bad)

    def __repr__(self) -> str:
        return f"VariantPassTask({len(self.variants)} rules)"


def _searched(
    shard: ReadableShard,
    columns: tuple[str, ...],
    searches: Sequence[Callable[[Block], Hits] | None],
    *,
    skip_bad: bool,
) -> SearchResult:
    """The hits of each search in a shard; None finds nothing."""
    hits: list[list[tuple[int, Hits]]] = [[] for _ in searches]
    examples_before = 0
    for block in shard.blocks(columns, skip_bad=skip_bad):
        if len(block):
            for search, hits_of_blocks in zip(searches, hits, strict=True):
                if search is not None:
                    hits_of_blocks.append((examples_before, search(block)))
            examples_before += len(block)
    return SearchResult(hits=tuple(map(Hits.merged, hits)), num_examples=examples_before)


def keyed_hashes(texts: pa.LargeStringArray, key: bytes) -> NDArray[np.uint64]:
    """A 64-bit keyed hash of each text. A collision is safe: it only makes one more example inherit a secret."""
    data, offset_N = bytes_of(texts)
    content, spans = memoryview(data.data), pairwise(offset_N.tolist())
    digests = [hashlib.blake2b(content[begin:end], digest_size=8, key=key).digest() for begin, end in spans]
    return np.frombuffer(b"".join(digests), dtype="<u8")


def _checked(hits: Hits, block: Block) -> Hits:
    """The hits, if all lie in examples of the block; otherwise they would count for examples of another block."""
    if len(hits) and not 0 <= hits.example_H.min() <= hits.example_H.max() < len(block):
        raise InvalidInput(f"a finder has hits outside the {len(block)} examples of its block; fix the finder")
    return hits


def _with_literal_reason(hits: Hits) -> Hits:
    return replace(hits, reason_H=np.zeros(len(hits), dtype=np.int64), reasons=(LITERAL_PASS_REASON,))


def _fingerprints(block: Block, key: DataKey) -> NDArray[np.uint8]:
    return np.frombuffer(b"".join(map(key.fingerprint_row, block.strings)), dtype=np.uint8).reshape(-1, LEAF_BYTES)


def _as_text(array: Any) -> pa.LargeStringArray:
    """A column of ids as text; null for an example without an id."""
    try:
        return array.cast(pa.large_string())
    except (pa.ArrowNotImplementedError, pa.ArrowInvalid):
        return pa.array([None if value is None else str(value) for value in array.to_pylist()], pa.large_string())


def _concatenated(arrays: Sequence[NDArray[Any]], dtype: type[np.generic]) -> NDArray[Any]:
    return np.concatenate([np.empty((0, *(arrays[0].shape[1:] if arrays else ())), dtype=dtype), *arrays])

"""In how many examples each word occurs: what the words rule counts by block and adds up over a corpus.

Shapes: W words.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Self, final

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from hush.corpus.blocks import Block
from hush.scan.finders.tokens import Tokens
from hush.scan.finders.utf8 import bytes_of, frozen, strings_of

__all__ = ["WordCounts"]

Run = tuple[NDArray[np.uint8], NDArray[np.int64], NDArray[np.int64]]
"""Distinct words one after another as UTF-8, where each begins, and its count."""


@final
@dataclass(frozen=True, kw_only=True, eq=False, repr=False)
class WordCounts:
    """Words and in how many examples each occurs.

    Held as several runs of distinct words, each less than half as long as the one before it: adding a block then costs
    in proportion to the block, not to all words so far, and nothing is ever changed in place.
    """

    runs: tuple[Run, ...]

    @classmethod
    def of(cls, block: Block, tokens: Tokens) -> Self:
        from hush.scan.finders.word_kernels import count_words

        return cls(runs=(count_words(*bytes_of(block.texts), tokens.table),))

    def plus(self, other: "WordCounts") -> "WordCounts":
        """Both as one."""
        runs: list[Run] = []
        for run in sorted([*self.runs, *other.runs], key=_size, reverse=True):
            runs.append(run)
            while len(runs) > 1 and 2 * _size(runs[-1]) >= _size(runs[-2]):
                runs.append(_joined([runs.pop(), runs.pop()]))
        return WordCounts(runs=tuple(runs))

    def ranked(self) -> tuple[pa.LargeStringArray, NDArray[np.int64]]:
        """All words and their counts, by falling count; words of equal count in the order of their code points."""
        letters, offset_W, count_W = _joined(self.runs)
        table = pa.table({"word": strings_of(letters, offset_W), "count": count_W})
        table = table.sort_by([("count", "descending"), ("word", "ascending")])
        return table.column("word").combine_chunks(), table.column("count").to_numpy()

    def __repr__(self) -> str:
        return f"WordCounts({len(self.runs)} runs)"


def _size(run: Run) -> int:
    return len(run[2])


def _joined(runs: Iterable[Run]) -> Run:
    from hush.scan.finders.word_kernels import merge_counts

    total, *others = runs
    for run in others:
        total = merge_counts(*map(frozen, total), *map(frozen, run))
    return total

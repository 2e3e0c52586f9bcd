"""The words rule: every word whose document frequency lies in a range is a secret; after the paper.

All examples are counted first (``Words``, a survey); what is then found (``ChosenWords``, a finder) are all places
where a chosen word stands.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, final

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from hush.corpus.blocks import Block
from hush.errors import InvalidInput
from hush.scan.finder import Declared
from hush.scan.finders.pickles import fields_only
from hush.scan.finders.tokens import Tokens
from hush.scan.finders.utf8 import bytes_of, frozen
from hush.scan.finders.word_counts import WordCounts
from hush.scan.hits import Hits

__all__ = ["ChosenWords", "Words"]


@final
@dataclass(frozen=True, kw_only=True)
class Words:
    """Words that occur in ``documents=(least, most)`` examples, or of rank ``ranks=(first, last)``; both ends count.

    Ranks count from 1 by falling number of examples; words in equally many go in the order of their code points.

    >>> Words(ranks=(5000, 6000)).ranks
    (5000, 6000)
    """

    documents: tuple[int, int] | None = None
    ranks: tuple[int, int] | None = None
    tokens: Tokens = field(default_factory=Tokens)

    def __post_init__(self) -> None:
        if (self.documents is None) == (self.ranks is None):
            raise InvalidInput(
                "words are chosen by documents=(least, most) or by ranks=(first, last); pass one of them"
            )
        name, given = ("documents", self.documents) if self.documents is not None else ("ranks", self.ranks)
        ends = tuple(given) if isinstance(given, (tuple, list)) else ()
        if len(ends) != 2 or not all(type(end) is int for end in ends) or not 1 <= ends[0] <= ends[1]:
            raise InvalidInput(
                f"{name}={given!r} is no range; pass two whole numbers, the first at least 1 and at most the second"
            )
        object.__setattr__(self, name, ends)

    @property
    def columns(self) -> tuple[str, ...]:
        return ()

    def count(self, block: Block) -> WordCounts:
        """In how many of the block's examples each word occurs."""
        return WordCounts.of(block, self.tokens)

    def merged(self, one: WordCounts, other: WordCounts) -> WordCounts:
        """Both counts as one; the order and grouping of merges change nothing that is found."""
        return one.plus(other)

    def finder(self, total: WordCounts | None) -> "ChosenWords":
        """Finds the words in the range."""
        if total is None:
            return ChosenWords(
                words=(), documents_W=np.empty(0, np.int64), rank_W=np.empty(0, np.int64), tokens=self.tokens
            )
        words, documents_W = total.ranked()
        low, high = 0, len(words)
        if self.ranks is not None:
            low, high = self.ranks[0] - 1, self.ranks[1]
        elif self.documents is not None:
            # The counts fall, so the range is one stretch.
            low = int(np.searchsorted(-documents_W, -self.documents[1], side="left"))
            high = int(np.searchsorted(-documents_W, -self.documents[0], side="right"))
        high = min(high, len(words))
        low = min(low, high)
        return ChosenWords(
            words=tuple(words.slice(low, high - low).to_pylist()),
            documents_W=documents_W[low:high],
            rank_W=np.arange(low + 1, high + 1),
            tokens=self.tokens,
        )


@final
@dataclass(frozen=True, kw_only=True, eq=False, repr=False)
class ChosenWords:
    """Finds every occurrence of these words, whole ones as the tokenisation has them; a word's key is the word.

    Shapes: W words. documents_W: in how many examples each occurs; rank_W: its place by that number.
    """

    words: tuple[str, ...]
    documents_W: NDArray[np.int64]
    rank_W: NDArray[np.int64]
    tokens: Tokens

    @property
    def columns(self) -> tuple[str, ...]:
        return ()

    @property
    def declared(self) -> Sequence[Declared]:
        return ()

    def find(self, block: Block) -> Hits:
        from hush.scan.finders.word_kernels import find_words

        found = find_words(*bytes_of(block.texts), self.tokens.table, *self._index)
        example_H, word_H, begin_H, end_H = found
        present, key_H = np.unique(word_H, return_inverse=True)
        return Hits.of(
            example_H,
            key_H,
            begin=begin_H,
            end=end_H,
            reason=key_H,
            keys=tuple(self.words[word] for word in present),
            reasons=tuple(
                f"word of rank {self.rank_W[word]:,} in {self.documents_W[word]:,} examples" for word in present
            ),
        )

    @cached_property
    def _index(self) -> tuple[NDArray[Any], ...]:
        """The words as a hash table."""
        from hush.scan.finders.word_kernels import word_index

        letters, offset_W = bytes_of(pa.array(self.words, pa.large_string()))
        return tuple(map(frozen, (letters, offset_W, *word_index(letters, offset_W))))

    def __getstate__(self) -> dict[str, Any]:
        return fields_only(self)

    def __repr__(self) -> str:
        return f"ChosenWords({len(self.words)} words)"

r"""The words rule: every word whose document frequency lies in a range is a secret.

``Words`` is a survey: it counts in how many examples each word occurs (``WordCounts``). Its finder, ``ChosenWords``,
then finds all occurrences of the chosen words. ``Tokens`` defines what a word is: a run of letters, or several such
runs with exactly one joiner between them; everything else separates words.

- ``letters="ascii"``: letters are a to z and A to Z. With ``lower``, the words of a text are exactly
  ``re.findall(r"[a-z]+(?:[-'][a-z]+)*", re.sub(r"\$[^$]*\$", " ", text.lower()))``. As in ``str.lower``, the Kelvin
  sign (U+212A) is a k, and İ (U+0130) an i followed by a separator.
- ``letters="unicode"``: letters are the code points for which ``str.isalpha`` is true, each with the combining marks
  that follow it. A word with é as two characters differs from one with é as one character, so texts should be composed
  (NFC) first. With ``lower``, each code point is replaced by its lower case if that is one character: İ stays, and Σ
  becomes σ also at the end of a word.
- ``skip_formulas``: from a dollar sign to the next one, both included, nothing is a word; a last dollar sign without a
  partner only separates.

Shapes: W words, H hits.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, Literal, Self, final

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from hush.data.parts import Block
from hush.errors import InvalidInput
from hush.scan.finders.unicode import bytes_of, folded, read_only, strings_of, token_table
from hush.scan.hits import DeclaredSecret, Hits, pickled_fields

__all__ = ["ChosenWords", "Tokens", "WordCounts", "Words"]


@final
@dataclass(frozen=True, kw_only=True)
class Tokens:
    """How texts are cut into words; the module docstring has the exact definition.

    >>> Tokens().words("The state-of-the-art $x^2$ isn't Caf\u00e9-'s")
    ['the', 'state-of-the-art', "isn't", 'caf', 's']
    >>> Tokens(letters="unicode", lower=False, joiners="", skip_formulas=False).words("Caf\u00e9 $x^2$ isn't")
    ['Café', 'x', 'isn', 't']
    """

    letters: Literal["ascii", "unicode"] = "ascii"
    lower: bool = True
    joiners: str = "-'"
    skip_formulas: bool = True

    def __post_init__(self) -> None:
        if self.letters not in ("ascii", "unicode"):
            raise InvalidInput(f"letters={self.letters!r} is not a set of letters; pass 'ascii' or 'unicode'")
        for index, joiner in enumerate(self.joiners):
            if joiner.isalpha() or (joiner == "$" and self.skip_formulas) or folded(joiner) != joiner:
                raise InvalidInput(
                    f"joiners: entry {index} is a letter, has a lower case, or is the dollar sign around formulas; "
                    "pass characters that only occur between letters, such as -'"
                )

    @property
    def table(self) -> NDArray[np.uint32]:
        """The role of each code point, for the compiled loops."""
        return token_table(self.letters, self.lower, self.joiners, self.skip_formulas)

    def words(self, text: str) -> list[str]:
        """The words of one text, in order and with repetitions; for inspection, not used on blocks."""
        from hush.scan.finders.text_kernels import split_words

        data, offset_N = bytes_of(pa.array([text], pa.large_string()))
        return strings_of(*split_words(data, offset_N, self.table)).to_pylist()


Run = tuple[NDArray[np.uint8], NDArray[np.int64], NDArray[np.int64]]
"""Distinct words: their concatenated UTF-8, the offset of each, and its count."""


@final
@dataclass(frozen=True, kw_only=True, eq=False, repr=False)
class WordCounts:
    """Words and the number of examples in which each occurs.

    Stored as several runs of distinct words, each less than half as long as the previous one: adding a block then costs
    time in proportion to the block, not to all words so far. Nothing is changed in place.
    """

    runs: tuple[Run, ...]

    @classmethod
    def of(cls, block: Block, tokens: Tokens) -> Self:
        from hush.scan.finders.text_kernels import count_words

        return cls(runs=(count_words(*bytes_of(block.texts), tokens.table),))

    def plus(self, other: "WordCounts") -> "WordCounts":
        """The sum of two counts."""
        runs: list[Run] = []
        for run in sorted([*self.runs, *other.runs], key=_size, reverse=True):
            runs.append(run)
            while len(runs) > 1 and 2 * _size(runs[-1]) >= _size(runs[-2]):
                runs.append(_merged_runs([runs.pop(), runs.pop()]))
        return WordCounts(runs=tuple(runs))

    def ranked(self) -> tuple[pa.LargeStringArray, NDArray[np.int64]]:
        """All words and their counts, by falling count; ties in the order of their code points."""
        letters, offset_W, count_W = _merged_runs(self.runs)
        table = pa.table({"word": strings_of(letters, offset_W), "count": count_W})
        table = table.sort_by([("count", "descending"), ("word", "ascending")])
        return table.column("word").combine_chunks(), table.column("count").to_numpy()

    def __repr__(self) -> str:
        return f"WordCounts({len(self.runs)} runs)"


def _size(run: Run) -> int:
    return len(run[2])


def _merged_runs(runs: Iterable[Run]) -> Run:
    from hush.scan.finders.text_kernels import merge_counts

    total, *others = runs
    for run in others:
        total = merge_counts(*map(read_only, total), *map(read_only, run))
    return total


@final
@dataclass(frozen=True, kw_only=True)
class Words:
    """Words that occur in ``documents=(least, most)`` examples, or of rank ``ranks=(first, last)``; both ends count.

    Ranks count from 1 by falling number of examples; ties are in the order of their code points.

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
                f"{name}={given!r} is not a range; pass two whole numbers, the first at least 1 and at most the second"
            )
        object.__setattr__(self, name, ends)

    @property
    def columns(self) -> tuple[str, ...]:
        return ()

    def count(self, block: Block) -> WordCounts:
        """The number of the block's examples in which each word occurs."""
        return WordCounts.of(block, self.tokens)

    def merged(self, first: WordCounts, second: WordCounts, /) -> WordCounts:
        """The sum of two counts; the order and grouping of merges do not change what is found."""
        return first.plus(second)

    def finder(self, total: WordCounts | None) -> "ChosenWords":
        """The finder of the words in the range."""
        if total is None:
            return ChosenWords(
                words=(), documents_W=np.empty(0, np.int64), rank_W=np.empty(0, np.int64), tokens=self.tokens
            )
        words, documents_W = total.ranked()
        low, high = 0, len(words)
        if self.ranks is not None:
            low, high = self.ranks[0] - 1, self.ranks[1]
        elif self.documents is not None:
            # The counts fall, so the chosen words are contiguous.
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
    """Finds every occurrence of these words as whole words of the tokenisation; a word's key is the word.

    documents_W: the number of examples in which each occurs; rank_W: its rank by that number.
    """

    words: tuple[str, ...]
    documents_W: NDArray[np.int64]
    rank_W: NDArray[np.int64]
    tokens: Tokens

    @property
    def columns(self) -> tuple[str, ...]:
        return ()

    @property
    def declared(self) -> Sequence[DeclaredSecret]:
        return ()

    def find(self, block: Block) -> Hits:
        from hush.scan.finders.text_kernels import find_words

        occurrences = find_words(*bytes_of(block.texts), self.tokens.table, *self._index)
        example_H, word_H, begin_H, end_H = occurrences
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
        from hush.scan.finders.text_kernels import word_index

        letters, offset_W = bytes_of(pa.array(self.words, pa.large_string()))
        return tuple(map(read_only, (letters, offset_W, *word_index(letters, offset_W))))

    def __getstate__(self) -> dict[str, Any]:
        return pickled_fields(self)

    def __repr__(self) -> str:
        return f"ChosenWords({len(self.words)} words)"

"""A large tokenizer with its rare tokens taken apart: what stays of Gemma-2's 256,000 in a model of few parameters.

Most of a small model would be embeddings of tokens that the corpus hardly holds. So only the most frequent tokens are
kept, under new numbers; any other is split into the two that the tokenizer merged it from, and so on until every piece
is kept. No text is lost, and no token stands for unknown text.

Shapes: T tokens.
"""

from collections import Counter
from dataclasses import dataclass
from functools import cache
from typing import Any, Self, final

import numpy as np
from numpy.typing import NDArray

from hush.errors import InvalidInput

__all__ = ["Vocabulary"]

Integers = NDArray[np.int64]


@final
@dataclass(frozen=True, slots=True, kw_only=True, eq=False, repr=False)
class Vocabulary:
    """strings: what each kept token stands for. The pieces of old token i are piece[begin[i] : begin[i] + length[i]].

    split_share: which share of the corpus' tokens was taken apart.
    """

    strings: tuple[str, ...]
    begin: Integers
    length: Integers
    piece: Integers
    split_share: float

    @classmethod
    def of(cls, model: dict[str, Any], counts: Counter[int], size: int) -> Self:
        """The `size` tokens to keep, from the `model` part of a tokenizer.json and the corpus' counts of its tokens."""
        if model.get("type") != "BPE":
            raise InvalidInput(
                f"the tokenizer's model is {model.get('type')!r}; rare tokens are split along BPE merges"
            )
        number: dict[str, int] = model["vocab"]
        parts: dict[int, tuple[int, int]] = {}
        for merge in model["merges"]:
            left, right = merge.split(" ") if isinstance(merge, str) else merge
            parts.setdefault(number[left + right], (number[left], number[right]))

        @cache
        def atoms(token: int) -> frozenset[int]:
            return frozenset({token}) if token not in parts else atoms(parts[token][0]) | atoms(parts[token][1])

        needed = set[int]().union(*(atoms(token) for token in counts))
        if len(needed) > size:
            raise InvalidInput(f"the corpus has {len(needed)} characters and other tokens without parts; keep as many")
        others = [token for token, _ in counts.most_common() if token not in needed]
        kept = sorted(needed | set(others[: size - len(needed)]))
        new = {old: place for place, old in enumerate(kept)}

        @cache
        def pieces(token: int) -> tuple[int, ...]:
            return (new[token],) if token in new else pieces(parts[token][0]) + pieces(parts[token][1])

        begin, length = np.zeros((2, max(counts) + 1), dtype=np.int64)
        flat: list[int] = []
        for token in counts:
            begin[token], length[token] = len(flat), len(pieces(token))
            flat += pieces(token)
        string = {old: text for text, old in number.items()}
        split = sum(count for token, count in counts.items() if token not in new)
        return cls(
            strings=tuple(string[old] for old in kept),
            begin=begin,
            length=length,
            piece=np.array(flat, dtype=np.int64),
            split_share=split / counts.total(),
        )

    def renumbered(self, token_T: Integers) -> Integers:
        """A text's tokens as kept ones."""
        length_T = self.length[token_T]
        shift_T = self.begin[token_T] - (np.cumsum(length_T) - length_T)
        return self.piece[np.repeat(shift_T, length_T) + np.arange(length_T.sum())]

"""The data of ``fit``: a corpus as tokens, read and fingerprinted in one pass, and batches of it by example number."""

from collections.abc import Callable, Iterator
from typing import final

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from hush.corpus import Corpus
from hush.keyed import DataKey
from hush.train.collate import Collator
from hush.train.collate import Corpus as Tokens
from hush.train.pretrained import Pretrained

__all__ = ["Batches", "Counted", "tokenised"]

SHORTEST = 32  # tokens: below it, shapes of their own cost more than padding
CHUNK = 1000  # texts that a tokenizer gets at once

Counted = Callable[[int, int], None]
"""Is told how many of how many are read."""


@final
class Batches:
    """Batches on the device by example number, each of one of a few lengths; ``round`` is the one that is under way."""

    def __init__(self, tokens: Tokens, collator: Collator, device: torch.device) -> None:
        self._tokens, self._collator, self._device = tokens, collator, device
        self.round = 0
        longest = int(tokens.lengths.max(initial=1))
        doubled = [SHORTEST * 2**power for power in range(20)]
        self.buckets = [length for length in doubled if length < longest] + [max(1, longest)]

    def of(
        self, examples: NDArray[np.int64], length: int | None = None, *, round: int | None = None
    ) -> dict[str, Tensor]:
        """These examples, padded to this length, or to the least that holds them all; as in another round, if asked."""
        if length is None:
            longest = int(self._tokens.lengths[examples].max(initial=0))
            length = next(bucket for bucket in self.buckets if bucket >= longest)
        rows = [self._tokens[example] for example in examples.tolist()]
        now = self.round if round is None else round
        batch = self._collator(rows, examples=examples, round=now, length=length)
        return {name: tensor.to(self._device) for name, tensor in batch.items()}


def tokenised(
    corpus: Corpus, pretrained: Pretrained, key: DataKey | None, reading: Counted | None = None
) -> tuple[Tokens, str | None]:
    """Every example as tokens, and the fingerprint of the very texts they were made from: the data is read once."""
    tokens: list[NDArray[np.int32]] = []

    def passing() -> Iterator[str]:
        for texts in _chunks(corpus.texts()):
            rows = pretrained.tokenizer(texts, truncation=True, max_length=pretrained.max_length)["input_ids"]
            tokens.extend(np.asarray(row, dtype=np.int32) for row in rows)
            if reading is not None:
                reading(len(tokens), len(corpus))
            yield from texts

    fingerprint = None
    if key is not None:
        fingerprint = key.fingerprint_rows(passing())
    else:
        for _ in passing():
            pass
    return Tokens(tokens), fingerprint  # pyright: ignore[reportArgumentType]


def _chunks(texts: Iterator[str]) -> Iterator[list[str]]:
    chunk: list[str] = []
    for text in texts:
        chunk.append(text)
        if len(chunk) == CHUNK:
            yield chunk
            chunk = []
    if chunk:
        yield chunk

"""Batches by example number: of ordinary texts, of private texts with slots, and of what is public of them."""

from typing import final

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from hush.train.language_models import Collator, TokenizedTexts
from hush.train.slots.texts import SkeletonTexts, SlotTexts

__all__ = ["Batches", "SkeletonBatches", "doubling_lengths"]


SHORTEST_BUCKET = 32  # tokens: below it, further shapes cost more than padding


def doubling_lengths(longest: int) -> list[int]:
    """Lengths to pad to: 32, 64, … and the longest.

    >>> doubling_lengths(100)
    [32, 64, 100]
    """
    doubled = [SHORTEST_BUCKET * 2**power for power in range(20)]
    return [length for length in doubled if length < longest] + [longest]


@final
class Batches:
    """Batches on the device by example number, each padded to one of a few lengths; ``round`` is the current round.

    Guarantee: the lengths are 32, 64, … and the collator's, to which texts are truncated, whatever the data: padding
    moves the last digits of a score, so a length taken from the data would tell others how long its longest text is.
    """

    def __init__(
        self, tokens: TokenizedTexts | SlotTexts | SkeletonTexts, collator: Collator, device: torch.device
    ) -> None:
        self._tokens, self._collator, self._device = tokens, collator, device
        self.round = 0
        self.buckets = doubling_lengths(collator.length)

    def of(
        self, examples: NDArray[np.int64], length: int | None = None, *, round: int | None = None
    ) -> dict[str, Tensor]:
        """These examples in this round, padded to this length, or to the shortest bucket that holds them."""
        if length is None:
            longest = int(self._tokens.lengths[examples].max(initial=0))
            length = next(bucket for bucket in self.buckets if bucket >= longest)
        rows = [self._tokens[example] for example in examples.tolist()]
        batch = self._collator(rows, examples=examples, round=self.round if round is None else round, length=length)
        return {name: tensor.to(self._device) for name, tensor in batch.items()}


@final
class SkeletonBatches:
    """Batches of the public stream by example number: skeletons, and examples without a secret.

    The one collate with which a :class:`~hush.train.public.stream.PublicStream` takes examples with slots: it is made
    from public tokens alone, so it cannot hand out what stands in a slot. ``round`` is the current round.

    Guarantee: a batch is a function of the skeletons of its examples, the round and the collator.
    """

    def __init__(self, texts: SkeletonTexts, collator: Collator, device: torch.device | str = "cpu") -> None:
        self.texts = texts
        self._batches = Batches(texts, collator, torch.device(device))

    def __call__(self, examples: NDArray[np.int64], *, round: int = 0) -> dict[str, Tensor]:
        return self._batches.of(examples, round=round)

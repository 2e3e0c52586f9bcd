"""The score of a training: the mean loss on the examples that the plan holds out, before, between and after rounds."""

from collections.abc import Callable, Mapping
from typing import final

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from hush.train.clipping import Loss
from hush.train.private_training import PrivateTraining
from hush.train.scores import LOSS, LOSS_BEFORE
from hush.train.settings import EVALUATIONS_PER_RUN
from hush.train.side_effect_free import mean_loss

__all__ = ["Evaluation"]


@final
class Evaluation:
    """Scores a training before its first round, every few rounds, and after its last.

    batch_of makes a batch from example numbers, always the same one: what masked models have to predict must not change
    from round to round. size: how many examples the model sees at once. before: the loss before the public part, if
    there was one.
    """

    def __init__(
        self,
        training: PrivateTraining,
        loss: Loss,
        batch_of: Callable[[NDArray[np.int64]], Mapping[str, Tensor]],
        examples: NDArray[np.int64],
        *,
        size: int,
        every: int | None = None,
        before: float | None = None,
        autocast: torch.dtype | None = None,
    ) -> None:
        self._training, self._loss, self._batch_of, self._autocast = training, loss, batch_of, autocast
        self._examples, self._size, self._before = examples, size, before
        self._every = every or max(1, training.plan.rounds // EVALUATIONS_PER_RUN)

    def __call__(self) -> None:
        """Score the model if that is due and not done; after a resume this writes what a crash prevented."""
        round = self._training.round
        due = round % self._every == 0 or round == self._training.plan.rounds
        if self._examples.size and due and not self._training.is_scored:
            before = {LOSS_BEFORE: self._before} if self._before is not None and round == 0 else {}
            self._training.record_scores({LOSS: self.loss(), **before})

    def loss(self) -> float:
        """The held-out loss of what would be released now. All ranks compute it, since the model may be sharded."""
        with self._training.released_model():
            return mean_loss(
                self._training.model,
                self._loss,
                self._batch_of,
                self._examples,
                size=self._size,
                autocast=self._autocast,
            )

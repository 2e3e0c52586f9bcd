"""How good the model is on the way: its loss on the examples that the plan holds out, which bear no secret.

Such scores may be shown (:mod:`hush.plan.held_out` says why); losses of private examples may not.
"""

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import final

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from hush.train.language import Loss
from hush.train.layout import cut_again
from hush.train.private import PrivateTraining

__all__ = ["LOSS", "TIMES", "Evaluation"]

LOSS = "held-out loss"  # the mean over examples
TIMES = 20  # how often a run is evaluated, unless it is told


@final
class Evaluation:
    """Scores a training before its first round, every few rounds, and after its last.

    batch_of makes a batch from example numbers, the same one whenever it is asked: what masked models have to guess
    must not change from round to round. size: how many examples the model sees at once.
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
        autocast: torch.dtype | None = None,
    ) -> None:
        self._training, self._loss, self._batch_of, self._autocast = training, loss, batch_of, autocast
        self._parts = [examples[begin : begin + size] for begin in range(0, examples.size, size)]
        self._every = every or max(1, training.plan.rounds // TIMES)

    def __call__(self) -> None:
        """Score the model if it is due and not done; after a resume that is what a crash kept from being written."""
        round = self._training.round
        due = round % self._every == 0 or round == self._training.plan.rounds
        if self._parts and due and not self._training.is_scored:
            self._training.record_scores({LOSS: self.loss()})

    def loss(self) -> float:
        """Of the model as it is now. With several ranks all compute it: the model may be cut over them."""
        model = self._training.model
        device = next(model.parameters()).device
        with _at_rest(model), torch.autocast(device.type, dtype=self._autocast, enabled=self._autocast is not None):
            losses = [self._loss(model, self._batch_of(part)).double().cpu() for part in self._parts]
        return float(torch.cat(losses).mean())


@contextmanager
def _at_rest(model: nn.Module) -> Iterator[None]:
    """Without dropout and gradients; afterwards every module is in the mode that it was in, and cut as it was."""
    modes = [(module, module.training) for module in model.modules()]
    try:
        model.eval()
        with torch.no_grad():
            yield
    finally:
        for module, training in modes:
            module.training = training
        cut_again(model)

"""The score of a training: the mean loss on the examples that the plan holds out, before, between and after rounds."""

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import final

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from hush.train.clipping import Loss
from hush.train.distributed import reshard
from hush.train.private_training import PrivateTraining

__all__ = ["LOSS", "Evaluation", "example_losses", "mean_loss"]

EVALUATIONS_PER_RUN = 20  # about as many as a run has, unless evaluate_every is given
LOSS = "held-out loss"  # the score: the mean over the examples that the plan holds out


@final
class Evaluation:
    """Scores a training before its first round, every few rounds, and after its last.

    batch_of makes a batch from example numbers, always the same one: what masked models have to predict must not change
    from round to round. size: how many examples the model sees at once.
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
        self._examples, self._size = examples, size
        self._every = every or max(1, training.plan.rounds // EVALUATIONS_PER_RUN)

    def __call__(self) -> None:
        """Score the model if that is due and not done; after a resume this writes what a crash prevented."""
        round = self._training.round
        due = round % self._every == 0 or round == self._training.plan.rounds
        if self._examples.size and due and not self._training.is_scored:
            self._training.record_scores({LOSS: self.loss()})

    def loss(self) -> float:
        """The held-out loss of the model as it is now. All ranks compute it, since the model may be sharded."""
        return mean_loss(
            self._training.model, self._loss, self._batch_of, self._examples, size=self._size, autocast=self._autocast
        )


def mean_loss(
    model: nn.Module,
    loss: Loss,
    batch_of: Callable[[NDArray[np.int64]], Mapping[str, Tensor]],
    examples: NDArray[np.int64],
    *,
    size: int,
    autocast: torch.dtype | None = None,
) -> float:
    """The mean loss of the model as it is now over these examples, ``size`` of them at once; leaves no trace."""
    return float(example_losses(model, loss, batch_of, examples, size=size, autocast=autocast).mean())


def example_losses(
    model: nn.Module,
    loss: Loss,
    batch_of: Callable[[NDArray[np.int64]], Mapping[str, Tensor]],
    examples: NDArray[np.int64],
    *,
    size: int,
    autocast: torch.dtype | None = None,
) -> Tensor:
    """The loss of each of these examples, in float64; leaves no trace."""
    device = next(model.parameters()).device
    parts = (examples[begin : begin + size] for begin in range(0, examples.size, size))
    with (
        _evaluation_mode(model),
        torch.autocast(device.type, dtype=autocast, enabled=autocast is not None),
    ):
        losses = [loss(model, batch_of(part)).double().cpu() for part in parts]
    return torch.cat(losses)


@contextmanager
def _evaluation_mode(model: nn.Module) -> Iterator[None]:
    """Without dropout and gradients; afterwards every module has its mode again, and shards are resharded."""
    modes = [(module, module.training) for module in model.modules()]
    try:
        model.eval()
        with torch.no_grad():
            yield
    finally:
        for module, training in modes:
            module.training = training
        reshard(model)

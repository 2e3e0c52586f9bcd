"""What the tests that attack the training stage share: losses, batches and models to attack with, norms to judge by."""

import math
from typing import Any

import torch
from torch import Tensor, nn

from hush.train.clipping import Clipper
from hush.train.preconditions import refuse_coupled
from hush.train.probes import probe


def all_real(size: int) -> Tensor:
    """A mask without padding."""
    return torch.ones(size, dtype=torch.bool)


def norm_of(sums: dict[str, Tensor]) -> float:
    """Over all parameters together."""
    return math.sqrt(sum(float(value.double().square().sum()) for value in sums.values()))


def squares(model: nn.Module, batch: Any) -> Tensor:
    """A loss for any model of x, also one that gives a tuple."""
    y = model(batch["x"])
    return (y[0] if isinstance(y, tuple) else y).flatten(1).square().mean(1) * 3


def unlabelled(batch: dict[str, Tensor], row: int) -> dict[str, Tensor]:
    """The batch with nothing to learn in this row."""
    labels = batch["labels"].clone()
    labels[row] = -100
    return batch | {"labels": labels}


def tried(model: nn.Module, loss: Any, batch: dict[str, Tensor]) -> None:
    """What PrivateTraining does before its first round."""
    refuse_coupled(model)
    size = len(next(iter(batch.values())))
    probe(model, loss, batch, all_real(size), clipper=Clipper(model, loss, clip_norm=1.0))


class Around(nn.Module):
    """A model that uses its part in its own way."""

    def __init__(self, part: nn.Module, use: Any) -> None:
        super().__init__()
        self.part, self.use = part, use

    def forward(self, x: Tensor) -> Tensor:
        return self.use(self.part, x)

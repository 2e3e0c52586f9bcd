"""The mean of the last iterates, released in place of the last one.

The last model holds the noise of the last rounds in full; in the mean over many models most of it cancels. The mean is
post-processing: a function of models that the promise covers already, each of which might have been released.
"""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any, final

import torch
from torch import Tensor, nn

from hush.errors import InvalidInput
from hush.train.distributed import reshard, shard_like

__all__ = ["IterateAverage"]


@final
class IterateAverage:
    """The running mean of the trained parameters after each of the last ``share`` of the rounds.

    Before the first of these rounds there is no mean, and what is released or scored is the model as it is. It takes
    the memory of one more copy of what is trained, in its type; while the mean is shown, of two.
    """

    def __init__(self, model: nn.Module, trainable: Mapping[str, nn.Parameter], *, share: float, rounds: int) -> None:
        if not 0 < share <= 1:
            raise InvalidInput(
                "pass a share of the rounds, above 0 and up to 1, such as 0.3", setting="average", value=share
            )
        self._model, self._trainable = model, trainable
        self.first = rounds - max(1, round(share * rounds)) + 1
        """The first round whose model is part of the mean, counted from 1."""
        self.count = 0
        self._mean: dict[str, Tensor] = {}

    @torch.no_grad()
    def update(self, round: int) -> None:
        """Add the model after this round, counted from 1."""
        if round < self.first:
            return
        self.count += 1
        for name, parameter in self._trainable.items():
            value = parameter.detach()
            if self.count == 1:
                self._mean[name] = value.clone()
            else:
                self._mean[name].add_(value - self._mean[name], alpha=1 / self.count)

    @contextmanager
    def shown(self) -> Iterator[None]:
        """Inside the block the model has the mean as its parameters; afterwards its own, bit for bit."""
        if not self.count:
            yield
            return
        reshard(self._model)
        own = {name: parameter.detach().clone() for name, parameter in self._trainable.items()}
        self._set(self._mean)
        try:
            yield
        finally:
            reshard(self._model)
            self._set(own)

    def keep(self) -> None:
        """Give the model the mean for good, and forget it."""
        if self.count:
            reshard(self._model)
            self._set(self._mean)
            self.count, self._mean = 0, {}

    def state(self) -> dict[str, Any]:
        """What a checkpoint keeps of it."""
        return {"first": self.first, "count": self.count, "parameters": self._mean}

    def load(self, state: Mapping[str, Any]) -> None:
        """Restore a state, sharded as the model is now."""
        if state["first"] != self.first:
            raise InvalidInput(
                f"training began with the mean of the models from round {state['first']} on, now it would be from "
                f"round {self.first} on; resume it as it began",
                setting="average",
            )
        self.count = state["count"]
        self._mean = {
            name: shard_like(value.to(self._trainable[name].device), self._trainable[name])
            for name, value in state["parameters"].items()
        }

    @torch.no_grad()
    def _set(self, values: Mapping[str, Tensor]) -> None:
        for name, parameter in self._trainable.items():
            parameter.copy_(values[name])

"""Evaluation without side effects: losses of a model that leave its state and all random states as they were.

Probes and dry runs evaluate the model on examples of a round before these are summed. Every evaluation draws the same
random numbers, and nothing that training does later depends on them.
"""

import contextlib
import random
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from hush.errors import InvalidInput
from hush.train.distributed import reshard

__all__ = [
    "Batch",
    "Loss",
    "SideEffectFreeLoss",
    "equal",
    "example_losses",
    "mean_loss",
    "reseed",
    "without_side_effects",
]

Loss = Callable[[nn.Module, Mapping[str, Tensor]], Tensor]
Batch = dict[str, Tensor]


@dataclass(frozen=True, slots=True, kw_only=True)
class SideEffectFreeLoss:
    """Repeatable evaluations of a loss; inside ``without_side_effects`` they leave no trace."""

    model: nn.Module
    loss: Loss
    autocast: torch.dtype | None

    @property
    def reduced(self) -> bool:
        """Whether the model computes in reduced precision."""
        halves = any(p.dtype in (torch.float16, torch.bfloat16) for p in self.model.parameters())
        return self.autocast is not None or halves

    def losses(self, batch: Batch, *, eval_mode: bool = False, gradients: bool = False) -> Tensor:
        """One loss per example; the same random numbers in every call."""
        if eval_mode:
            self.model.eval()
        reseed()
        device = next(iter(batch.values())).device.type
        with (
            torch.set_grad_enabled(gradients),
            # Weights that were cast without gradients must not be cached for an evaluation that needs gradients.
            torch.autocast(device, dtype=self.autocast, enabled=self.autocast is not None, cache_enabled=False),
        ):
            losses = self.loss(self.model, batch)
        if not gradients:
            reshard(self.model)
        slots = len(next(iter(batch.values())))
        if not isinstance(losses, Tensor) or losses.shape != (slots,) or not losses.is_floating_point():
            got = f"{losses.dtype} {tuple(losses.shape)}" if isinstance(losses, Tensor) else type(losses).__name__
            raise InvalidInput(
                f"the loss of {slots} examples came back as {got}; it must be a float tensor of shape ({slots},), one "
                "loss per example. A model's own outputs.loss is an average over the batch: compute the loss from the "
                "logits without reducing over examples"
            )
        return losses


@contextlib.contextmanager
def without_side_effects(model: nn.Module) -> Iterator[None]:
    """Restore the modes and buffers of the model and every random state afterwards."""
    modes = {module: module.training for module in model.modules()}
    buffers = {name: buffer.detach().clone() for name, buffer in model.named_buffers()}
    python_state, numpy_state = random.getstate(), np.random.get_state()  # noqa: NPY002 - models may draw from it
    devices = range(torch.cuda.device_count()) if torch.cuda.is_initialized() else ()
    try:
        with torch.random.fork_rng(devices=list(devices)):
            yield
    finally:
        random.setstate(python_state)
        np.random.set_state(numpy_state)  # noqa: NPY002
        for module, training in modes.items():
            module.training = training
        with torch.no_grad():
            for name, buffer in model.named_buffers():
                if name in buffers and buffer.shape == buffers[name].shape and not equal(buffer, buffers[name]):
                    buffer.copy_(buffers[name])


def reseed() -> None:
    """Set every generator that a model may draw from to the same state; only inside ``without_side_effects``."""
    random.seed(0)
    np.random.seed(0)  # noqa: NPY002
    torch.manual_seed(0)


def equal(left: Tensor, right: Tensor) -> bool:
    """Whether two tensors hold the same values, with NaN equal to NaN."""
    return left.shape == right.shape and bool(((left == right) | ((left != left) & (right != right))).all())


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


@contextlib.contextmanager
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

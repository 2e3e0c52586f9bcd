"""Repeatable evaluations of a loss that leave no trace in the model or in any random state; the probes' footing."""

import contextlib
import random
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor, nn

from hush.errors import InvalidInput
from hush.train.layout import cut_again

__all__ = ["OTHER_SHAPE", "Batch", "Loss", "Trial", "equal", "reseed", "undisturbed"]

Loss = Callable[[nn.Module, Mapping[str, Tensor]], Tensor]
Batch = dict[str, Tensor]

# Other shapes may take other kernels; a true coupling by counts or statistics is far larger.
OTHER_SHAPE = {False: 1e-3, True: 5e-2}  # by whether the model computes in reduced precision


@dataclass(frozen=True, slots=True, kw_only=True)
class Trial:
    """Repeatable evaluations of the loss."""

    model: nn.Module
    loss: Loss
    autocast: torch.dtype | None

    @property
    def reduced(self) -> bool:
        halves = any(p.dtype in (torch.float16, torch.bfloat16) for p in self.model.parameters())
        return self.autocast is not None or halves

    def losses(self, batch: Batch, *, still: bool = False, gradients: bool = False) -> Tensor:
        """One loss per example; the same random numbers in every call."""
        if still:
            self.model.eval()
        reseed()
        device = next(iter(batch.values())).device.type
        with (
            torch.set_grad_enabled(gradients),
            # Weights that were cast without gradients must not be kept for the next evaluation, which may want them.
            torch.autocast(device, dtype=self.autocast, enabled=self.autocast is not None, cache_enabled=False),
        ):
            losses = self.loss(self.model, batch)
        if not gradients:
            cut_again(self.model)
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
def undisturbed(model: nn.Module) -> Iterator[None]:
    """Put modes, buffers and every random state back afterwards."""
    modes = {module: module.training for module in model.modules()}
    buffers = {name: buffer.detach().clone() for name, buffer in model.named_buffers()}
    numbers, legacy = random.getstate(), np.random.get_state()  # noqa: NPY002 - models may draw from it
    devices = range(torch.cuda.device_count()) if torch.cuda.is_initialized() else ()
    try:
        with torch.random.fork_rng(devices=list(devices)):
            yield
    finally:
        random.setstate(numbers)
        np.random.set_state(legacy)  # noqa: NPY002
        for module, training in modes.items():
            module.training = training
        with torch.no_grad():
            for name, buffer in model.named_buffers():
                if name in buffers and buffer.shape == buffers[name].shape and not equal(buffer, buffers[name]):
                    buffer.copy_(buffers[name])


def equal(one: Tensor, other: Tensor) -> bool:
    """Whether two tensors hold the same values, NaN in the same places included."""
    return one.shape == other.shape and bool(((one == other) | ((one != one) & (other != other))).all())


def reseed() -> None:
    """Set every generator that a model may draw from to the same state; only inside undisturbed."""
    random.seed(0)
    np.random.seed(0)  # noqa: NPY002
    torch.manual_seed(0)

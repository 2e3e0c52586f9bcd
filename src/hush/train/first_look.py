"""The first look at a kind of batch, before its gradients are taken: a trial that leaves no trace in the model.

It tells how each site is used, from which the routes are chosen, and refuses models whose examples cannot be told apart
by the first dimension. For a head that is ours to compute it tells whether its losses are the model's own.
"""

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import final

import torch
from torch import Tensor, nn

from hush.errors import InvalidInput
from hush.train.head import Head
from hush.train.language import Loss
from hush.train.site_taps import SiteTaps
from hush.train.sites import Use
from hush.train.trial import undisturbed

__all__ = ["FirstLook", "Uses", "head_agrees"]

Batch = Mapping[str, Tensor]
Forward = Callable[[Batch], Tensor]
Uses = dict[str, list[Use]]  # by site


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class FirstLook:
    """Looks at how the sites are used in a forward pass, in which they are tapped."""

    taps: SiteTaps
    forward: Forward
    gives_losses: bool  # and not the input of a head

    def uses(self, batch: Batch) -> Uses:
        """How each site is used in a forward pass on this batch."""
        size = len(next(iter(batch.values())))
        self.taps.fit_whole(size)
        for site in self.taps.sites:
            site.uses = []
        devices = {value.device for value in batch.values() if value.device.type != "cpu"}
        try:
            with torch.no_grad(), torch.random.fork_rng(devices), _no_short_cuts():
                losses = self.forward(batch)
        except InvalidInput:
            raise
        except (RuntimeError, AssertionError, ValueError, IndexError) as error:
            odd = [
                (shape[:1] == (1,), f"{site.name} got {shape}")
                for site in self.taps.sites
                for use in site.uses or ()
                for shape in use.shapes
                if shape[:1] != (size,)
            ]
            if not odd:
                raise
            seen = [text for shared, text in odd if not shared] or [text for _, text in odd]
            raise InvalidInput(
                f"the forward pass fails while gradients are taken example by example ({error}). There are {size} "
                f"examples, and {', '.join(seen[:3])}: the examples must lie along the first dimension of every "
                "trained layer's input; freeze these layers, or write the model so"
            ) from error
        finally:
            uses = {site.name: site.uses or [] for site in self.taps.sites}
            for site in self.taps.sites:
                site.uses = None
        if self.gives_losses and losses.shape != (size,):
            raise InvalidInput(f"the loss has shape {tuple(losses.shape)} for {size} examples; return one for each")
        return uses

    def refuse_ambiguous(self, uses: Uses, batch: Batch) -> None:
        """A second look with one example more: what has a row per example must grow with it.

        Otherwise a mask of T × T, say, would be dealt out to the examples in a micro-batch of just T of them.
        """
        size = len(next(iter(batch.values())))
        if size == 1:
            return  # a first dimension of 1 is right for both
        more = self.uses({name: torch.cat([value, value[:1]]) for name, value in batch.items()})
        for name in uses:
            for use, other in zip(uses[name], more[name], strict=False):
                for one, two in zip(use.shapes, other.shapes, strict=True):
                    if one[:1] == (size,) == two[:1]:
                        raise InvalidInput(
                            f"module {name} got an input of shape {one} for {size} examples and for {size + 1}: "
                            "its first dimension is not that of the examples, and has their number by chance; choose "
                            "another size of micro-batch"
                        )


def head_agrees(
    head: Head, batch: Batch, *, model: nn.Module, loss: Loss, forward: Forward, autocast: torch.dtype | None
) -> bool:
    """Whether the chunked head gives an example the loss that the model and the loss function give it.

    forward gives the input of the head, where that is bypassed.
    """
    first = {name: value[:1] for name, value in batch.items()}
    labels, attended = first["labels"], first.get("attention_mask")
    inside = torch.ones_like(labels) if attended is None or attended.shape != labels.shape else attended
    # Every token is learnt here: an example without labels would agree with anything.
    first["labels"] = torch.where(inside > 0, labels.clamp_min(0), labels)
    with undisturbed(model), torch.no_grad():
        model.eval()
        try:
            with head.bypassed():
                hidden = forward(first)
            ours, *_ = head.losses(hidden, first["labels"], first["labels"].shape[1])
        except torch.OutOfMemoryError:
            raise
        except RuntimeError:  # what follows the head, a bias apart from it, say, cannot do with its input
            return False
        with torch.autocast(hidden.device.type, dtype=autocast, enabled=autocast is not None):
            theirs = loss(model, first)
    return torch.allclose(ours, theirs.float(), rtol=1e-4 if hidden.dtype == torch.float32 else 0.02)


@contextmanager
def _no_short_cuts() -> Iterator[None]:
    """Without gradients, torch's transformers take a path around their layers; they will not when they train."""
    enabled = torch.backends.mha.get_fastpath_enabled()
    torch.backends.mha.set_fastpath_enabled(False)
    try:
        yield
    finally:
        torch.backends.mha.set_fastpath_enabled(enabled)

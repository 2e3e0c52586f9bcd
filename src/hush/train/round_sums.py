"""The sums behind one update: clipped gradients of each micro-batch as it comes, noise once when the round ends.

:class:`~hush.train.private.PrivateTraining` says when a round begins and ends; here are model, loss and clipper. The
first micro-batches are tried out before they are summed (:mod:`hush.train.probes`), and the first one with padding.
"""

from collections.abc import Mapping
from typing import final

import numpy as np
import torch
import torch.distributed as dist
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.distributed.tensor import DTensor

from hush.plan import Plan
from hush.train.clipping import Clipped, Clipper, Loss
from hush.train.distributed import Ranks
from hush.train.layout import cut_again, is_sharded, through_flat
from hush.train.noise import Noise
from hush.train.positions import most_positions, refuse_longer
from hush.train.probes import is_padded, probe
from hush.train.public import PublicStream
from hush.train.refusals import refuse_batch, refuse_coupled
from hush.train.state import renew_random_states

__all__ = ["RoundSums"]


@final
class RoundSums:
    """The sums of one round after another, for each of the model's trainable parameters.

    under_way says that something was added to a round that has not ended.

    Guarantee: a round's sum is handed out once, after the plan's noise was added to it.
    """

    def __init__(
        self,
        model: nn.Module,
        loss: Loss,
        plan: Plan,
        ranks: Ranks,
        *,
        insecure_seed: int | None,
        compile: bool,
        autocast: torch.dtype | None,
        public: PublicStream | None,
    ) -> None:
        self._model, self._loss, self._ranks, self._autocast, self._public = model, loss, ranks, autocast, public
        self.trainable = {name: p for name, p in model.named_parameters() if p.requires_grad}
        self._clipper = Clipper(model, loss, clip_norm=plan.clip_norm, compile=compile, autocast=autocast)
        self._noise = Noise(insecure_seed=insecure_seed, compile=compile)
        self._scale = plan.clip_norm * plan.training_noise_multiplier
        self._most_positions = most_positions(model)
        self._probed = self._tried_padding = self.under_way = False

    def begin(self) -> None:
        """Make ready for a round; what was added to one that was left in the middle is dropped."""
        if self.under_way:
            self._clipper.take()
            self.under_way = False
        refuse_coupled(self._model)  # model.train() may have thawed something
        cut_again(self._model)  # evaluation may have put shards together
        if self._noise.is_secure:
            renew_random_states()

    def add(self, batch: Mapping[str, Tensor], real: NDArray[np.bool_]) -> Clipped:
        """Add the clipped gradients of a micro-batch; real is its mask of real examples."""
        refuse_batch(batch, len(real))
        refuse_longer(batch, self._most_positions)
        self.under_way = True
        device = next(iter(self.trainable.values())).device
        mask = torch.as_tensor(real).to(device, non_blocking=True)  # no waiting for the last micro-batch
        if not (self._probed and self._tried_padding):
            self._probe_if_due(batch, torch.as_tensor(real), device)
        return self._clipper.accumulate(batch, mask)

    def public_part(self, round: int) -> dict[str, Tensor]:
        """What the public stream adds to the update of this round, the same on every rank."""
        if self._public is None:
            return {}
        found = self._public.gradients(self._model, self._loss, self.trainable, round=round, autocast=self._autocast)
        if self._ranks.world > 1:  # replicas agree to the last bit, whatever their kernels do
            for gradient in found.values():
                if not isinstance(gradient, DTensor):
                    through_flat([gradient], lambda flat: dist.broadcast(flat, src=0))
        return found

    def noisy(self, round: int) -> tuple[dict[str, Tensor], Tensor]:
        """End the round: the sums over all ranks with their noise, and their norm without it, for the owner only."""
        found = self._ranks.noisy_sum(
            self._clipper.take(), self.trainable, noise=self._noise, scale=self._scale, round=round
        )
        self.under_way = False
        return found

    def signal_to_noise(self, norm: Tensor) -> Tensor | None:
        """The norm of a sum over what is expected of its noise; None where there is no noise."""
        dimensions = sum(parameter.numel() for parameter in self.trainable.values())
        return norm / (self._scale * dimensions**0.5) if self._scale else None

    def _probe_if_due(self, batch: Mapping[str, Tensor], real: Tensor, device: torch.device) -> None:
        """Try out examples until they are conclusive, and later the first that have padding, if none had any so far."""
        padded = not self._tried_padding and is_padded(batch, real)
        sharded = is_sharded(self._model)
        if self._probed and not (self._ranks.most(padded) if sharded else padded):
            return
        if sharded:  # its forward pass communicates, so that all ranks must try the same examples
            here = {key: value.cpu() for key, value in batch.items()}, real
            _, (there, real) = max(self._ranks.gather((padded, here)), key=lambda offer: offer[0])
            batch = {key: value.to(device) for key, value in there.items()}
        plain = Clipper(self._model, self._loss, clip_norm=self._clipper.clip_norm, autocast=self._autocast)
        with torch.autocast(device.type, enabled=False):  # the caller's, which is not what the model computes in
            found = probe(self._model, self._loss, batch, real.to(device), clipper=plain, autocast=self._autocast)
        self._probed |= found.conclusive
        self._tried_padding |= found.padded

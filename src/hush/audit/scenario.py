"""One secret as an attacker meets it: what it may be, where it stands, and how the model is trained.

Legend: R runs, M candidates, N examples with the secret, O other examples, D trained parameters, T rounds, … the shape
of one example.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Self, final

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.func import functional_call, grad, vmap

from hush.accounting import posterior
from hush.accounting.inputs import checked_noise, checked_rates, checked_rounds
from hush.errors import InvalidInput
from hush.plan import Plan
from hush.train.clipping import Loss

__all__ = ["Scenario", "flat_parameters"]


@final
@dataclass(frozen=True, kw_only=True, repr=False, eq=False)
class Scenario:
    """A secret that is one of M candidates with equal chances, and the training of a small model on it.

    data holds one row per example; the rows ``holders`` contain the secret, and whatever they are in ``data`` they are
    replaced by those of a candidate: candidates[key][c, i] is what example holders[i] is if c is the secret. loss gives
    one loss per example, as in training. Every run begins with the parameters of ``model`` as they are, on a CPU. The
    optimizer is plain stochastic gradient descent, so that two iterates give the noisy sum between them.

    What it stands for is public: the model, every other example, the candidates, rates, noise and clip norm. Only which
    candidate is the true one, the draws and the noise are not.
    """

    model: nn.Module
    loss: Loss
    data: Mapping[str, Tensor]
    holders: NDArray[np.int64]
    candidates: Mapping[str, Tensor]
    rates: NDArray[np.float64]
    noise_multiplier: float
    rounds: int
    batch_size: float
    clip_norm: float
    learning_rate: float

    def __post_init__(self) -> None:
        holders = np.asarray(self.holders, dtype=np.int64)
        sizes = {len(value) for value in self.data.values()}
        if len(sizes) != 1 or self.data.keys() != self.candidates.keys():
            raise InvalidInput("data and candidates must be tensors under the same names, one row per example in data")
        (size,) = sizes
        if (
            holders.ndim != 1
            or np.unique(holders).size != holders.size
            or not np.all((holders >= 0) & (holders < size))
        ):
            raise InvalidInput(f"holders must be different numbers of examples, from 0 to {size - 1}")
        shapes = {tuple(value.shape[:2]) for value in self.candidates.values()}
        if len(shapes) != 1 or next(iter(shapes))[1:] != holders.shape or next(iter(shapes))[0] < 2:
            raise InvalidInput(
                f"candidates have the first dimensions {sorted(shapes)}; pass at least two candidates, each with a row "
                f"for each of the {holders.size} examples that hold the secret"
            )
        if not (0 < self.learning_rate < np.inf and 0 < self.clip_norm < np.inf and 0 < self.batch_size < np.inf):
            raise InvalidInput("learning_rate, clip_norm and batch_size must be finite and above 0")
        object.__setattr__(self, "holders", holders)
        object.__setattr__(self, "rates", checked_rates(self.rates, length=size))
        object.__setattr__(self, "rounds", checked_rounds(self.rounds))
        object.__setattr__(self, "noise_multiplier", checked_noise(self.noise_multiplier))

    @classmethod
    def of_plan(
        cls,
        plan: Plan,
        secret: int,
        *,
        model: nn.Module,
        loss: Loss,
        data: Mapping[str, Tensor],
        candidates: Mapping[str, Tensor],
        learning_rate: float,
    ) -> Self:
        """The scenario of one secret of a plan, which gives the rest."""
        return cls(
            model=model, loss=loss, data=data, candidates=candidates, learning_rate=learning_rate,
            holders=plan.incidence.examples_of(secret).astype(np.int64), rates=plan.rates, rounds=plan.rounds,
            noise_multiplier=plan.noise_multiplier, batch_size=plan.batch_size, clip_norm=plan.clip_norm,
        )  # fmt: skip

    @property
    def num_candidates(self) -> int:
        """How many things the secret may be."""
        return len(next(iter(self.candidates.values())))

    @property
    def prior(self) -> float:
        """Chance of naming the secret before training."""
        return 1 / self.num_candidates

    @property
    def certified(self) -> float:
        """Upper bound on the chance of naming it after training, if training does what this scenario says."""
        return posterior(
            self.rates[self.holders], noise_multiplier=self.noise_multiplier, rounds=self.rounds, prior=self.prior
        )

    @property
    def update(self) -> float:
        """What a noisy sum is multiplied by before it is taken off the parameters."""
        return self.learning_rate / self.batch_size

    @property
    def noise(self) -> float:
        """Standard deviation of each coordinate of a noisy sum."""
        return self.noise_multiplier * self.clip_norm

    @cached_property
    def other_examples(self) -> NDArray[np.int64]:
        """The examples that do not hold the secret."""
        return np.setdiff1d(np.arange(self.rates.size), self.holders)

    @cached_property
    def others(self) -> dict[str, Tensor]:
        """Their content: O × …"""
        return {key: value[torch.as_tensor(self.other_examples)] for key, value in self.data.items()}

    def data_with(self, candidate: int) -> dict[str, Tensor]:
        """All examples, if this candidate is the secret."""
        where = torch.as_tensor(self.holders)
        return {key: value.index_copy(0, where, self.candidates[key][candidate]) for key, value in self.data.items()}

    def clipped_gradients(self, parameters_RD: Tensor, batch: Mapping[str, Tensor], *, per_run: bool) -> Tensor:
        """Gradient of each example at each run's parameters, clipped: R × examples × D. One that is not finite is 0.

        per_run: whether the batch has its own examples for each run, R × examples × …, or the same for all.
        """
        over_runs = vmap(vmap(grad(self._loss_at), in_dims=(None, 0)), in_dims=(0, 0 if per_run else None))
        found = over_runs(parameters_RD, dict(batch)).detach()
        norm = found.norm(dim=-1, keepdim=True)
        scale = (self.clip_norm / norm.clamp_min(1e-300 if norm.dtype == torch.float64 else 1e-30)).clamp_max(1.0)
        return torch.where(norm.isfinite(), found * scale, 0.0)

    def _loss_at(self, flat_D: Tensor, example: dict[str, Tensor]) -> Tensor:
        parameters, begin = {}, 0
        for name, parameter in self.model.named_parameters():
            if parameter.requires_grad:
                parameters[f"model.{name}"] = flat_D[begin : begin + parameter.numel()].view(parameter.shape)
                begin += parameter.numel()
        alone = {key: value.unsqueeze(0) for key, value in example.items()}
        return functional_call(self._asked, parameters, (alone,)).sum()

    @cached_property
    def _asked(self) -> nn.Module:
        return _LossOf(self.model, self.loss)

    def __repr__(self) -> str:
        return (
            f"Scenario({self.num_candidates} candidates in {self.holders.size} of {self.rates.size} examples, "
            f"{self.rounds} rounds)"
        )


class _LossOf(nn.Module):
    """A model together with its loss, so that both are evaluated at parameters given from outside."""

    def __init__(self, model: nn.Module, loss: Loss) -> None:
        super().__init__()
        self.model, self.loss = model, loss

    def forward(self, batch: Mapping[str, Tensor]) -> Tensor:
        return self.loss(self.model, batch)


def flat_parameters(model: nn.Module) -> Tensor:
    """The trained parameters, one after another, as a copy."""
    return torch.cat([p.detach().reshape(-1) for p in model.parameters() if p.requires_grad]).clone()

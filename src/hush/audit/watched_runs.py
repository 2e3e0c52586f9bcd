"""Real trainings, watched: the loop of ``hush.train`` with every iterate kept, for attacks on the trainer itself."""

from collections.abc import Mapping
from copy import deepcopy

import numpy as np
import torch
from torch import Tensor

from hush.audit.scenario import Scenario, flat_parameters
from hush.audit.transcripts import Transcripts
from hush.errors import InvalidInput
from hush.plan import Plan
from hush.train.private import PrivateTraining

__all__ = ["train_watched_runs", "watch"]


def watch(private: PrivateTraining, data: Mapping[str, Tensor]) -> Tensor:
    """Train to the end on these examples, a row for each, and keep what an attacker may see: rounds + 1 models × D."""
    _check_plain(private)
    seen = [flat_parameters(private.model)]
    for round in private.rounds():
        for examples in round.micro_batches():
            rows = torch.as_tensor(examples.examples)
            private.accumulate({key: value[rows] for key, value in data.items()}, examples.real)
        private.step()
        seen.append(flat_parameters(private.model))
    private.close()
    return torch.stack(seen)


def train_watched_runs(
    scenario: Scenario,
    plan: Plan,
    *,
    runs: int,
    rng: np.random.Generator,
    insecure_seed: int | None = None,
    micro_batch: int = 32,
) -> Transcripts:
    """Train ``runs`` models under the plan, each on a candidate drawn uniformly; every iterate is kept.

    Without a seed each run has draws and noise of its own from the operating system; with one, runs are independent as
    far as anyone can tell who does not know it, and can be repeated.
    """
    if runs < 1:
        raise InvalidInput(f"runs={runs}; train at least one")
    if plan.rounds != scenario.rounds or plan.rates.size != scenario.rates.size:
        raise InvalidInput(
            f"the plan has {plan.rounds} rounds over {plan.rates.size} examples, the scenario {scenario.rounds} over "
            f"{scenario.rates.size}; make the scenario of this plan"
        )
    truth_R = rng.integers(scenario.num_candidates, size=runs)
    iterates: list[Tensor] = []
    for run, candidate in enumerate(truth_R.tolist()):
        model = deepcopy(scenario.model)
        optimizer = torch.optim.SGD([p for p in model.parameters() if p.requires_grad], lr=scenario.learning_rate)
        seed = None if insecure_seed is None else insecure_seed * 2**32 + run
        private = PrivateTraining(
            model, optimizer, plan, loss=scenario.loss, micro_batch=micro_batch, insecure_seed=seed
        )
        iterates.append(watch(private, scenario.data_with(candidate)))
    return Transcripts(iterates=torch.stack(iterates), released=tuple(range(plan.rounds + 1)), truth=truth_R)


def _check_plain(private: PrivateTraining) -> None:
    """Iterates give the noisy sums only where a step is the gradient times a constant."""
    groups = private.optimizer.param_groups
    plain = isinstance(private.optimizer, torch.optim.SGD) and private.scheduler is None
    if not plain or any(group["momentum"] or group["weight_decay"] or group["maximize"] for group in groups):
        raise InvalidInput("the attack reads noisy sums off the iterates; train with plain SGD, without a schedule")

"""Many independent trainings of a small model at once: the very update of a round, with the runs as one more dimension.

Per-example gradients by ``torch.func``; nothing is shared with the training stage, so that it serves as a second
implementation of the round as well.
"""

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from hush.audit.scenario import Scenario, flat_parameters
from hush.audit.transcripts import Transcripts
from hush.errors import InvalidInput

__all__ = ["train_small_runs"]


def train_small_runs(scenario: Scenario, *, runs: int, generator: torch.Generator) -> Transcripts:
    """Train ``runs`` models from the same start, each on a candidate drawn uniformly; every iterate is kept.

    A round draws each example with its rate, clips and sums the gradients, adds noise once and divides by the expected
    batch size.
    """
    if runs < 1:
        raise InvalidInput(f"runs={runs}; train at least one")
    start_D = flat_parameters(scenario.model)
    truth_R = torch.randint(scenario.num_candidates, (runs,), generator=generator)
    secret = {key: value[truth_R] for key, value in scenario.candidates.items()}
    iterates = start_D.new_empty(runs, scenario.rounds + 1, start_D.numel())
    iterates[:, 0] = start_D
    for round in range(scenario.rounds):
        now_RD = iterates[:, round].clone()
        total_RD = torch.zeros_like(now_RD)
        for examples, batch, per_run in (
            (scenario.holders, secret, True),
            (scenario.other_examples, scenario.others, False),
        ):
            if examples.size:
                drawn = _drawn(scenario.rates[examples], runs, generator).to(now_RD.dtype)
                gradients = scenario.clipped_gradients(now_RD, batch, per_run=per_run)
                total_RD += torch.einsum("rn,rnd->rd", drawn, gradients)
        noise_RD = torch.randn(total_RD.shape, generator=generator, dtype=total_RD.dtype)
        iterates[:, round + 1] = now_RD - scenario.update * (total_RD + scenario.noise * noise_RD)
    return Transcripts(iterates=iterates, released=tuple(range(scenario.rounds + 1)), truth=truth_R.numpy())


def _drawn(rates: NDArray[np.float64], runs: int, generator: torch.Generator) -> Tensor:
    """Which examples each run draws, each with its own rate: R × examples."""
    return torch.rand(runs, rates.size, generator=generator, dtype=torch.float64) < torch.as_tensor(rates)

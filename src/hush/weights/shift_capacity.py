"""Weights by capacities proportional to the Gaussian shifts of the promises: a forecast that costs no accounting.

Where the noise is well above 1, the accountant allows secret j an expected count proportional to its shift mu_j =
Phi^-1(ceiling) - Phi^-1(prior), whatever batch size and rounds are. So one sweep of linear programs over c, with
capacities c * mu_j, shows for every share of weight kept which signal is possible, and at which batch size. Plans are
made with the accountant's own counts afterwards.

Legend: N examples, S secrets.
"""

from dataclasses import dataclass
from typing import final

import numpy as np

from hush.accounting.signal import SignalBudget, budget_of
from hush.arrays import Array
from hush.incidence import Incidence
from hush.weights.linear_program import Program
from hush.weights.solve import solve_several

__all__ = ["KeptWeights", "swept_weights", "weights_keeping"]


STRENGTH_FACTOR = 2.0**-0.5  # from each capacity of the sweep to the next
MAX_STEPS = 24  # of the sweep: capacities down to a 4,000th of those that keep everything
STEPS_AT_ONCE = 4  # solved before the next ones are asked for
TOLERANCE = 1e-3  # of the linear programs: a forecast needs no more


@final
@dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class KeptWeights:
    """Weights, and the share of their weight that examples with secrets keep under them."""

    share: float
    weight_N: Array

    def budget(self, incidence: Incidence, *, shift_S: Array, batch_size: float, rounds: int) -> SignalBudget:
        """The forecast signal budget of these weights."""
        return budget_of(incidence, self.weight_N, shift_S=shift_S, batch_size=batch_size, rounds=rounds)


def swept_weights(incidence: Incidence, shift_S: Array, *, least_share: float) -> list[KeptWeights]:
    """Weights from all examples down to the first that keep less than ``least_share``, each under tighter capacities.

    shift_S: mu of each secret; one without a limit is infinite.
    """
    bearing_N = incidence.secrets_per_example > 0
    everything = KeptWeights(share=1.0, weight_N=np.ones(incidence.num_examples))
    swept = [everything]
    is_limited_S = (shift_S > 0) & np.isfinite(shift_S)
    strength = float((incidence.examples_per_secret[is_limited_S] / shift_S[is_limited_S]).max(initial=0.0))
    if strength == 0:
        return swept
    program = Program.of(incidence, np.inf)
    for begin in range(1, MAX_STEPS + 1, STEPS_AT_ONCE):
        strengths = [strength * STRENGTH_FACTOR**step for step in range(begin, begin + STEPS_AT_ONCE)]
        for weights in solve_several(program, [each * shift_S for each in strengths], tolerance=TOLERANCE):
            swept.append(KeptWeights(share=float(weights.values[bearing_N].mean()), weight_N=weights.values))
            if swept[-1].share < least_share:
                return swept
    return swept


def weights_keeping(swept: list[KeptWeights], share: float) -> KeptWeights:
    """The weights of a sweep interpolated to this share, or its last ones if none keeps so little.

    A mean of two feasible weights is feasible for the mean of their capacities.
    """
    above = [kept for kept in swept if kept.share >= share]
    below = [kept for kept in swept if kept.share < share]
    if not below:
        return above[-1]
    high, low = above[-1], below[0]
    part = (share - low.share) / (high.share - low.share) if high.share > low.share else 1.0
    part = min(max(part, 0.0), 1.0)
    mixed_N = part * high.weight_N + (1 - part) * low.weight_N
    return KeptWeights(share=part * high.share + (1 - part) * low.share, weight_N=mixed_N)

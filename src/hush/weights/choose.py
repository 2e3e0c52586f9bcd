"""From promises to sampling rates: weights by one of three kinds of capacity, then the least noise for them.

"none" keeps every example; "paper" gives secret j the capacity strength * mu_j, mu_j the KL divergence its promise
allows; "accounted" asks the accountant how often each secret may be drawn at a given noise.

Legend: N examples, S secrets, Q promised points of a secret.

Weights for capacities that come from the accountant: the flattest rates at a given noise.

At a given noise the accountant allows secret j an expected count of s_j per round. Rates are batch_size * w / sum(w),
so with k = sum(w) / batch_size the program is: the largest k for which weights in [0, 1] of sum k * batch_size exist
with the weights of each secret's examples at most k * s_j together. The largest sum V(k) for a given k is a linear
program, concave in k, so Newton's method on V(k) = k * batch_size from above, with the dual as slope, never steps
below the answer. Soundness never rests on this: whatever weights come out, the accountant certifies them.
"""

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Literal

import numpy as np

from hush.accounting import Calibration, calibrate, capacity
from hush.accounting.arguments import Bound
from hush.accounting.calibration import MOST_COUNT
from hush.accounting.divergences import kl_target
from hush.errors import CannotCertify, InfeasiblePlan, InvalidInput
from hush.incidence import Incidence
from hush.weights.linear_program import Array, Program
from hush.weights.solve import Weights, solve_program, solve_several

MOST_STEPS = 40


class TooLittleNoise(InfeasiblePlan):
    """No rates reach the batch size at this noise. `most` holds the rates, as weights, of the largest batch."""

    def __init__(self, batch_size: float, most: Weights) -> None:
        self.most = most
        self.largest_batch = max(0, math.floor(most.objective * (1 - 2e-3)))  # a little less, so that it surely works
        holds = f"at most {self.largest_batch} examples; lower batch_size or" if self.largest_batch else "none;"
        super().__init__(
            f"batch_size={batch_size:g} is more than this noise allows: with every secret drawn as often as its "
            f"promise permits a batch holds {holds} raise the noise"
        )


def flattest_weights(
    program: Program,
    count_S: Array,
    batch_size: float,
    *,
    tolerance: float = 1e-4,
    warm_start: Weights | None = None,
) -> Weights:
    """Weights of the largest sum whose rates draw secret j an expected count_S[j] times a round, or less.

    warm_start: the answer for larger counts, if there is one; it also tells where to begin.
    """
    total = float(program.num_columns) if warm_start is None else warm_start.bound
    scale = max(total / batch_size, 1.0)
    found = warm_start
    for _ in range(MOST_STEPS):
        found = solve_program(program.with_capacity(scale * count_S), tolerance=tolerance, warm_start=found)
        if found.objective >= batch_size * max(1.0, scale * (1 - 2 * tolerance)):
            return found
        if scale == 1.0:  # rates are the weights themselves, and still too few
            raise TooLittleNoise(batch_size, found)
        slope = float(count_S @ found.dual)
        level = found.bound - scale * slope  # V(k) <= k * slope + level for every k, by duality
        crossing = level / (batch_size - slope) if slope < batch_size else found.bound / batch_size
        scale = max(1.0, min(crossing, found.bound / batch_size))
    if found is None or found.objective < batch_size:
        raise InfeasiblePlan(f"no weights for batch_size={batch_size:g} were found in {MOST_STEPS} steps; lower it")
    return found  # nearly there: these rates need a little more noise, which the accountant will say


Capacity = Literal["accounted", "paper", "none"]

Progress = Callable[[int, int], None]

KEPT = 1e-6  # an example whose weight is above this counts as kept
NOISE_TOLERANCE = 5e-3  # how closely the noise that keeps a given share is searched for
MOST_TRIES = 24
SECANTS = 10  # of them follow the secant; it may creep, so the others halve what is left
MOST_PRIORS = 64  # distinct priors that the accountant is asked about when counts are chosen
LEAST_NOISE = 1e-3  # below this the search for the noise stops
SHRINKS = 4  # how often counts are reduced until the noise that was asked for is proven


@dataclass(frozen=True, kw_only=True)
class Choice:
    """Weights, the rates they mean, and the least noise that keeps every promise at these rates."""

    setting: float
    weight_N: Array
    rate_N: Array
    gap: float
    calibration: Calibration
    solution: Weights | None

    @property
    def kept_fraction(self) -> float:
        """Share of the examples that are ever used."""
        return float(np.mean(self.weight_N > KEPT))

    @property
    def total_weight(self) -> float:
        """Sum of the weights."""
        return float(self.weight_N.sum())

    @property
    def effective_size(self) -> float:
        """(sum w)^2 / sum w^2: how many equally used examples would be as diverse."""
        return self.total_weight**2 / float(self.weight_N @ self.weight_N)

    @property
    def noise_multiplier(self) -> float:
        """The least noise that keeps every promise at these rates."""
        return self.calibration.noise_multiplier


@dataclass(frozen=True, kw_only=True)
class Chooser:
    """One data set with its promises, batch size and rounds; answers for any capacity."""

    incidence: Incidence
    prior_SQ: Array
    ceiling_SQ: Array
    batch_size: float
    rounds: int
    bound: Bound
    tolerance: float

    def __post_init__(self) -> None:
        if not 0 < self.batch_size < np.inf:  # NaN fails
            raise InvalidInput(f"batch_size={self.batch_size}; pass the expected number of examples per round, above 0")
        if self.batch_size > self.incidence.num_examples:
            raise InfeasiblePlan(
                f"batch_size={self.batch_size:g} needs sampling probabilities above 1; lower it to at most "
                f"{self.incidence.num_examples}, the number of examples"
            )

    @cached_property
    def program(self) -> Program:
        """The linear program; its capacities are replaced for each question."""
        return Program.of(self.incidence, np.inf)

    @cached_property
    def mu_S(self) -> Array:
        """KL divergence that each secret's promise allows (the strictest of its points)."""
        return kl_target(self.prior_SQ, self.ceiling_SQ).min(axis=1)

    @cached_property
    def strength_that_keeps_all(self) -> float:
        """The least strength at which the paper's capacities bind nowhere."""
        need_S = np.divide(
            self.incidence.examples_per_secret, self.mu_S, where=self.mu_S > 0, out=np.zeros_like(self.mu_S)
        )
        return float(need_S.max(initial=0.0)) or 1.0

    @cached_property
    def everything(self) -> Choice:
        """All weights 1."""
        return self._choice(np.ones(self.incidence.num_examples), 0.0, np.inf, None)

    def paper(self, strength: float) -> Choice:
        """Capacities strength * mu_j."""
        return next(self.paper_sweep([strength]))

    def paper_sweep(self, strengths: Sequence[float]) -> Iterator[Choice]:
        """As ``paper``, for each strength in turn."""
        capacities = [strength * self.mu_S for strength in strengths]
        answers = solve_several(self.program, capacities, tolerance=self.tolerance)
        for strength, found in zip(strengths, answers, strict=True):
            yield self._choice(found.values, found.gap, strength, found)

    def accounted(self, noise_multiplier: float, *, share: float = 1.0, warm_start: Choice | None = None) -> Choice:
        """Capacities from the accountant at this noise, or a share of them.

        The noise that the choice needs may be a little less, since the program works to a tolerance, or a hair more,
        since it takes the count for a Poisson one.
        """
        count_S = share * self.counts(noise_multiplier)
        start = None if warm_start is None else warm_start.solution
        found = flattest_weights(self.program, count_S, self.batch_size, tolerance=self.tolerance, warm_start=start)
        return self._choice(found.values, found.gap, noise_multiplier, found)

    def proven_at(self, noise_multiplier: float) -> Choice:
        """As ``accounted``, with the counts reduced until the choice is proven to need no more than this noise."""
        share, choice = 1.0, None
        for _ in range(SHRINKS):
            choice = self.accounted(noise_multiplier, share=share, warm_start=choice)
            need = choice.noise_multiplier
            if need <= noise_multiplier:
                return choice
            binding = choice.calibration.binding
            allowed, used = self.counts(noise_multiplier)[binding], self.counts(need)[binding]
            share *= min(float((allowed / used).min(initial=1.0)), 1.0) * (1 - 1e-3)
        raise CannotCertify(
            f"noise_multiplier={noise_multiplier:.6g} was aimed at, but the weights found still need a little more; "
            "ask for about 1 % more"
        )

    def keeping(self, share: float, *, progress: Progress | None = None) -> Choice:
        """The least noise at which the examples with secrets keep this share of their weight, capacities accounted.

        The sum of the weights is then known beforehand, and with it the scale between weights and rates, so each noise
        that is tried costs one linear program. The noise is found to 0.5 %, on the side that keeps enough. A batch of
        more examples than that share keeps them all the same: rates cannot exceed 1.
        """
        high, best = self.everything.noise_multiplier, None
        bearing = int(np.count_nonzero(self.incidence.secrets_per_example))
        target = max(self.incidence.num_examples - (1 - share) * bearing, self.batch_size)
        low, low_missing, high_missing = 0.0, np.inf, target - self.incidence.num_examples
        start: Weights | None = None
        for tries in range(MOST_TRIES):
            if high <= max(low * (1 + NOISE_TOLERANCE), LEAST_NOISE):
                break
            follow = np.isfinite(low_missing) and tries < SECANTS
            secant = low_missing / (low_missing - high_missing) if follow else 0.5
            lowest = max(low, high / 4)
            tried = lowest * (high / lowest) ** float(np.clip(secant, 0.1, 0.9))
            program = self.program.with_capacity(target / self.batch_size * self.counts(tried))
            start = solve_program(program, tolerance=self.tolerance, warm_start=start)
            missing = target - start.objective
            if missing > 0:
                low, low_missing = tried, missing
            else:
                high, high_missing, best = tried, missing, start
            if progress is not None:
                progress(tries + 1, MOST_TRIES)
        if best is None:
            return self.everything
        found = self._choice(best.values, best.gap, high, best)
        return min(self.everything, found, key=lambda choice: choice.noise_multiplier)

    def counts(self, noise_multiplier: float) -> Array:
        """Expected count per round that the accountant allows each secret at this noise.

        It ends above the most examples that a secret has: their rates cannot sum to more, so a larger one binds nobody.
        """
        settings: dict[str, Any] = {"noise_multiplier": noise_multiplier, "rounds": self.rounds, "bound": self.bound}
        most = min(1.0 + self.incidence.examples_per_secret.max(initial=0), MOST_COUNT)
        return capacity(self._few_prior_SQ, self.ceiling_SQ, most=most, **settings)

    @cached_property
    def _few_prior_SQ(self) -> Array:
        """Priors rounded up to a few: each costs time, and counts only guide the choice."""
        distinct: Array = np.unique(self.prior_SQ)
        if distinct.size <= MOST_PRIORS:
            return self.prior_SQ
        grid: Array = np.geomspace(float(distinct[0]), float(distinct[-1]), MOST_PRIORS)
        grid[-1] = distinct[-1]
        rounded_SQ: Array = grid[np.searchsorted(grid, self.prior_SQ)]
        return np.where(rounded_SQ < self.ceiling_SQ, rounded_SQ, self.prior_SQ)

    def _choice(self, weight_N: Array, gap: float, setting: float, solution: Weights | None) -> Choice:
        rate_N = rates_of(weight_N, self.batch_size)
        calibration = calibrate(
            self.incidence,
            prior=self.prior_SQ,
            ceiling=self.ceiling_SQ,
            rates=rate_N,
            rounds=self.rounds,
            bound=self.bound,
        )
        return Choice(
            setting=setting, weight_N=weight_N, rate_N=rate_N, gap=gap, calibration=calibration, solution=solution
        )


def rates_of(weight_N: Array, batch_size: float) -> Array:
    """Sampling probabilities batch_size * w / sum(w); an error if any would exceed 1."""
    total, peak = float(weight_N.sum()), float(weight_N.max(initial=0.0))
    if total <= 0:
        raise InfeasiblePlan("no example keeps any weight: every one bears a secret without capacity; raise it")
    if batch_size * peak > total * (1 + 1e-12):
        raise InfeasiblePlan(
            f"batch_size={batch_size:g} needs sampling probabilities up to {batch_size * peak / total:.3g} > 1; lower "
            f"batch_size to at most {int(total / peak)} or raise the capacity"
        )
    return np.minimum(batch_size * weight_N / total, 1.0)

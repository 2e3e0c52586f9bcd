"""From promises to sampling rates: weights under one of three kinds of capacity, then the least noise for them.

"none" keeps every example; "paper" gives secret j the capacity strength * mu_j, with mu_j the KL divergence that its
promise allows; "accounted" asks the accountant how often each secret may be drawn at a given noise.

Accounted capacities give the flattest rates at a given noise. There the accountant allows secret j an expected count of
s_j per round. Rates are batch_size * w / sum(w), so with k = sum(w) / batch_size the program is: the largest k for
which weights in [0, 1] of sum k * batch_size exist such that the weights of the examples of secret j sum to at most k *
s_j. The largest sum V(k) for a given k is a linear program and concave in k, so Newton's method on V(k) = k *
batch_size from above, with the dual as slope, never steps below the answer.

Soundness does not depend on the weights: whatever they are, the accountant certifies their rates.

Legend: N examples, S secrets, Q promised points of a secret.
"""

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Literal, SupportsIndex

import numpy as np
from numpy.typing import ArrayLike

from hush.accounting import Calibration
from hush.accounting.arguments import Bound, checked_choice, checked_rounds
from hush.accounting.divergences import kl_target
from hush.accounting.sampling_error import planning_ceiling
from hush.arrays import Array, Progress
from hush.errors import CannotCertify, InfeasiblePlan, InvalidInput, Setting
from hush.incidence import Incidence
from hush.numbers import checked_number, counted
from hush.protection import promise_arrays
from hush.weights.accounts import Account, OneRelease, Question
from hush.weights.linear_program import Program, Weights
from hush.weights.solve import checked_tolerance, solve_program, solve_several

__all__ = [
    "BatchTooLarge",
    "Capacity",
    "Choice",
    "Chooser",
    "TooLittleLeft",
    "TooLittleNoise",
    "checked_batch_size",
    "flattest_weights",
    "make_chooser",
    "rates_of",
]

Capacity = Literal["accounted", "paper", "none"]

KEPT_WEIGHT = 1e-6  # an example whose weight is above this counts as kept
MAX_SCALE_STEPS = 40  # of Newton's method for the scale between counts and capacities; a few are enough
MIN_NOISE = 1e-3  # noise multiplier below which the searches for the least noise stop
NOISE_TOLERANCE = 5e-3  # relative width at which the search for the noise that keeps a given share stops
MAX_NOISE_TRIALS = 24  # of that search
MAX_SECANT_TRIALS = 10  # of those follow the secant, which can converge slowly; the others bisect
MAX_COUNT_REDUCTIONS = 8  # until the noise that was asked for is proven
ENDLESS_NOISE = 1e6  # at which every secret with anything left may be drawn as often as its examples allow
COUNT_MARGIN = 1e-3  # relative margin of each such reduction
BATCH_MARGIN = 2e-3  # by which a suggested batch size stays below the largest one, so that it works


class BatchTooLarge(InfeasiblePlan, InvalidInput):
    """The batch size exceeds the number of examples: no plan can meet it, and no other setting can help."""


class TooLittleNoise(InfeasiblePlan):
    """No rates reach the batch size at this noise. ``weights`` holds the rates of the largest possible batch."""

    def __init__(self, batch_size: float, weights: Weights) -> None:
        self.weights, self.batch_size = weights, batch_size
        self.largest_batch = max(0, math.floor(weights.objective * (1 - BATCH_MARGIN)))
        possible = f"holds at most {self.largest_batch} examples" if self.largest_batch else "is empty"
        super().__init__(
            Setting("batch_size"),
            f"={batch_size:g} is more than this noise allows: with every secret drawn as often as its promise permits, "
            f"a batch {possible}; lower ",
            Setting("batch_size"),
            " or raise the noise",
            setting="batch_size",
        )


class TooLittleLeft(InfeasiblePlan):
    """No noise keeps the share of the data that was asked for; ``weights`` keep the most that is possible."""

    def __init__(self, total: float, weights: Weights) -> None:
        self.weights = weights
        super().__init__(
            f"weights that sum to {total:.6g} were asked for, and with any noise they sum to at most "
            f"{weights.objective:.6g}, since nothing is left of some secrets; lower ",
            Setting("keep"),
            setting="keep",
        )


def checked_batch_size(batch_size: float, num_examples: int, *, held_out: int = 0, bearing: int | None = None) -> float:
    """The expected number of examples in a round: above 0, and at most the examples that can be drawn.

    Those are the examples that are not held out; or, if only these are drawn, those with a secret: ``bearing``.
    """
    number = checked_number("batch_size", batch_size)
    if not 0 < number < math.inf:  # NaN fails
        raise InvalidInput(
            Setting("batch_size"),
            f"={number:g}; pass a number above 0, the expected number of examples in a round",
            setting="batch_size",
        )
    available = num_examples - held_out if bearing is None else bearing
    if number > available:
        of_all = f" that are not held out, of {num_examples:,}" if held_out else ""
        if bearing is not None:
            of_all = f" with a secret, of {num_examples:,}; only these are drawn"
        raise BatchTooLarge(
            Setting("batch_size"),
            f"={number:g} is more than the {counted(available, 'example')}{of_all}; lower it to at most {available}",
            setting="batch_size",
        )
    return number


@dataclass(frozen=True, kw_only=True)
class Choice:
    """Weights, the rates they give, and the least noise that keeps every promise at these rates.

    Rates are computed when they are asked for: kept, they would be as large as the weights. ``setting`` is the strength
    or the noise multiplier for which the weights were chosen; infinite if all are 1.
    """

    setting: float
    batch_size: float
    weight_N: Array
    gap: float
    calibration: Calibration
    solution: Weights | None

    @property
    def rate_N(self) -> Array:
        """Sampling probabilities."""
        return rates_of(self.weight_N, self.batch_size)

    @property
    def kept_fraction(self) -> float:
        """Share of the examples that are ever used."""
        return float(np.mean(self.weight_N > KEPT_WEIGHT))

    @property
    def total_weight(self) -> float:
        """Sum of the weights."""
        return float(self.weight_N.sum())

    @property
    def effective_size(self) -> float:
        """(sum w)^2 / sum w^2: the number of equally used examples that would be as diverse."""
        return self.total_weight**2 / float(self.weight_N @ self.weight_N)

    @property
    def noise_multiplier(self) -> float:
        """The least noise that keeps every promise at these rates."""
        return self.calibration.noise_multiplier


def make_chooser(
    incidence: Incidence,
    prior: ArrayLike,
    ceiling: ArrayLike,
    batch_size: float,
    rounds: SupportsIndex,
    bound: Bound,
    tolerance: float,
    *,
    account: Account | None = None,
    target: Array | None = None,
) -> "Chooser":
    """A Chooser from unchecked arguments."""
    if incidence.num_examples == 0:
        raise InvalidInput("the incidence has no examples; there is nothing to train on")
    checked_choice("bound", bound, Bound)
    prior_SQ, ceiling_SQ = promise_arrays(prior, ceiling, incidence.num_secrets)
    return Chooser(
        incidence=incidence,
        prior_SQ=prior_SQ,
        ceiling_SQ=ceiling_SQ,
        batch_size=checked_batch_size(batch_size, incidence.num_examples),
        rounds=checked_rounds(rounds),
        bound=bound,
        tolerance=checked_tolerance(tolerance),
        account=OneRelease() if account is None else account,
        target_SQ=planning_ceiling(prior_SQ, ceiling_SQ) if target is None else target,
    )


@dataclass(frozen=True, kw_only=True)
class Chooser:
    """One data set with its promises, batch size and rounds; chooses weights under any capacity.

    ceiling_SQ holds the promised ceilings. All posteriors are proven below target_SQ, which leaves room for what
    computed draws and noise add. account: how noise and counts follow from the promises (``hush.weights.accounts``).
    """

    incidence: Incidence
    prior_SQ: Array
    ceiling_SQ: Array
    batch_size: float
    rounds: int
    bound: Bound
    tolerance: float
    account: Account
    target_SQ: Array

    @cached_property
    def question(self) -> Question:
        """What is asked of the account."""
        return Question(
            incidence=self.incidence,
            prior_SQ=self.prior_SQ,
            target_SQ=self.target_SQ,
            rounds=self.rounds,
            bound=self.bound,
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
    def all_examples(self) -> Choice:
        """All weights 1."""
        return self._choice(np.ones(self.incidence.num_examples), 0.0, np.inf, None)

    def paper(self, strength: float) -> Choice:
        """Capacities strength * mu_j."""
        program = self.program.with_capacity(strength * self.mu_S)
        return self._solved(solve_program(program, tolerance=self.tolerance), strength)

    def paper_sweep(self, strengths: Sequence[float]) -> Iterator[Choice]:
        """As ``paper``, for each strength in turn."""
        capacities = [strength * self.mu_S for strength in strengths]
        answers = solve_several(self.program, capacities, tolerance=self.tolerance)
        for strength, weights in zip(strengths, answers, strict=True):
            yield self._solved(weights, strength)

    def accounted(self, noise_multiplier: float, *, warm_start: Choice | None = None) -> Choice:
        """Capacities from the accountant at this noise.

        The noise that the choice needs may be slightly smaller, since the program is solved to a tolerance, or slightly
        larger, since the capacities assume Poisson counts.
        """
        weights = flattest_weights(
            self.program,
            self.counts(noise_multiplier),
            self.batch_size,
            tolerance=self.tolerance,
            warm_start=None if warm_start is None else warm_start.solution,
        )
        return self._solved(weights, noise_multiplier)

    def proven_at(self, noise_multiplier: float) -> Choice:
        """As ``accounted``, with the counts reduced until the choice is proven to need at most this noise."""
        allowed_S = self.counts(noise_multiplier)
        count_S, weights = allowed_S, None
        for _ in range(MAX_COUNT_REDUCTIONS):
            weights = flattest_weights(
                self.program, count_S, self.batch_size, tolerance=self.tolerance, warm_start=weights
            )
            choice = self._solved(weights, noise_multiplier)
            if choice.noise_multiplier <= noise_multiplier:
                return choice
            count_S = count_S * self.account.reduction(self.question, choice.calibration, choice.rate_N, allowed_S)
            count_S = count_S * (1 - COUNT_MARGIN)
        raise CannotCertify(
            "no weights were proven for exactly this noise, the last ones need slightly more; pass about 1 % more",
            setting="noise_multiplier",
            value=noise_multiplier,
        )

    def least_noise_keeping(self, share: float, *, progress: Progress | None = None) -> Choice:
        """The least noise at which the examples with secrets keep this share of their weight, capacities accounted.

        The sum of the weights is then known in advance, and with it the scale between weights and rates, so each noise
        that is tried costs one linear program. The noise is found to 0.5 %, on the side that keeps enough. A batch with
        more examples than that share keeps them all: rates cannot exceed 1.
        """
        high, best = self.all_examples.noise_multiplier, None
        bearing = int(np.count_nonzero(self.incidence.secrets_per_example))
        target = max(self.incidence.num_examples - (1 - share) * bearing, self.batch_size)
        low, low_missing, high_missing = 0.0, np.inf, target - self.incidence.num_examples
        weights: Weights | None = None
        if math.isinf(high):  # nothing is left of some secrets, so their examples cannot all be kept
            low, low_missing, high, high_missing, best = self._noise_reaching(target)
        for trial in range(MAX_NOISE_TRIALS):
            if high <= max(low * (1 + NOISE_TOLERANCE), MIN_NOISE):
                break
            use_secant = np.isfinite(low_missing) and trial < MAX_SECANT_TRIALS
            secant = low_missing / (low_missing - high_missing) if use_secant else 0.5
            lowest = max(low, high / 4)
            noise = lowest * (high / lowest) ** float(np.clip(secant, 0.1, 0.9))
            program = self.program.with_capacity(target / self.batch_size * self.counts(noise))
            weights = solve_program(program, tolerance=self.tolerance, warm_start=weights)
            missing = target - weights.objective
            if missing > 0:
                low, low_missing = noise, missing
            else:
                high, high_missing, best = noise, missing, weights
            if progress is not None:
                progress(trial + 1, MAX_NOISE_TRIALS)
        if best is None:
            return self.all_examples
        return min(self.all_examples, self._solved(best, high), key=lambda choice: choice.noise_multiplier)

    def _noise_reaching(self, target: float) -> tuple[float, float, float, float, Weights]:
        """Two noises, a factor of 4 apart, of which the larger one allows this sum of weights; and what is missing."""

        def solved(noise: float) -> Weights:
            program = self.program.with_capacity(target / self.batch_size * self.counts(noise))
            return solve_program(program, tolerance=self.tolerance)

        endless = solved(ENDLESS_NOISE)
        if endless.objective < target:
            raise TooLittleLeft(target, endless)
        noise, low, low_missing = 1.0, 0.0, np.inf
        while noise < ENDLESS_NOISE:
            weights = solved(noise)
            if weights.objective >= target:
                return low, low_missing, noise, target - weights.objective, weights
            noise, low, low_missing = 4 * noise, noise, target - weights.objective
        return low, low_missing, ENDLESS_NOISE, target - endless.objective, endless

    def counts(self, noise_multiplier: float) -> Array:
        """Expected count per round that the accountant allows each secret at this noise.

        Counts are capped above the largest number of examples of any secret: rates cannot sum to more, so a larger
        count never binds.
        """
        return self.account.counts(self.question, noise_multiplier)

    def _solved(self, weights: Weights, setting: float) -> Choice:
        return self._choice(weights.values, weights.gap, setting, weights)

    def _choice(self, weight_N: Array, gap: float, setting: float, solution: Weights | None) -> Choice:
        calibration = self.account.calibrate(self.question, rates_of(weight_N, self.batch_size))
        return Choice(
            setting=setting,
            batch_size=self.batch_size,
            weight_N=weight_N,
            gap=gap,
            calibration=calibration,
            solution=solution,
        )


def flattest_weights(
    program: Program,
    count_S: Array,
    batch_size: float,
    *,
    tolerance: float = 1e-4,
    warm_start: Weights | None = None,
) -> Weights:
    """Weights of the largest sum whose rates draw secret j at most count_S[j] times a round in expectation.

    warm_start: the answer for larger counts, if there is one; it also determines where to begin.
    """
    total = float(program.num_columns) if warm_start is None else warm_start.bound
    scale = max(total / batch_size, 1.0)
    weights = warm_start
    for _ in range(MAX_SCALE_STEPS):
        weights = solve_program(program.with_capacity(scale * count_S), tolerance=tolerance, warm_start=weights)
        if weights.objective >= batch_size * max(1.0, scale * (1 - 2 * tolerance)):
            return weights
        if scale == 1.0:  # rates are the weights themselves, and their sum is still too small
            raise TooLittleNoise(batch_size, weights)
        slope = float(count_S @ weights.dual)
        level = weights.bound - scale * slope  # V(k) <= k * slope + level for every k, by duality
        crossing = level / (batch_size - slope) if slope < batch_size else weights.bound / batch_size
        scale = max(1.0, min(crossing, weights.bound / batch_size))
    if weights is None or weights.objective < batch_size:
        raise InfeasiblePlan(
            "no weights for ",
            Setting("batch_size"),
            f"={batch_size:g} were found in {MAX_SCALE_STEPS} steps; lower it",
            setting="batch_size",
        )
    return weights  # nearly there: the accountant computes the slightly larger noise that these rates need


def rates_of(weight_N: Array, batch_size: float) -> Array:
    """Sampling probabilities batch_size * w / sum(w); an error if any would exceed 1."""
    total, peak = float(weight_N.sum()), float(weight_N.max(initial=0.0))
    if total <= 0:
        raise InfeasiblePlan("no example keeps any weight: every one has a secret without capacity; raise the capacity")
    if batch_size * peak > total * (1 + 1e-12):
        raise InfeasiblePlan(
            Setting("batch_size"),
            f"={batch_size:g} needs sampling probabilities up to {batch_size * peak / total:.3g} > 1; lower ",
            Setting("batch_size"),
            f" to at most {int(total / peak)} or raise the capacity",
            setting="batch_size",
        )
    return np.minimum(batch_size * weight_N / total, 1.0)

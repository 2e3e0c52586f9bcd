"""Ways of accounting: what a promise allows a release at some noise, and the noise that given rates need.

The choice of weights asks two questions: how often may each secret be drawn at this noise, and what is the least noise
for these rates? One release that stands alone answers them by the bounds of the accountant. In a chain
(``hush.plan.chain``) the answers come from what all releases may do together: the first release of a series from the
noise at which as many releases like it keep every promise, a later one from the limits that were announced, and a
release under a filter from the log-moments that it may spend.

Legend: N examples, S secrets, Q promised points of a secret.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Protocol, final

import numpy as np
from numpy.typing import NDArray

from hush.accounting import Calibration, calibrate, capacity
from hush.accounting.accountant import ACCURACY
from hush.accounting.arguments import Bound
from hush.accounting.calibration import MAX_COUNT, MAX_NOISE, MIN_NOISE, least_safe
from hush.accounting.moments import calibrate_moments, moment_capacity
from hush.accounting.releases import Shape, limit_capacity, limit_posterior
from hush.arrays import Array
from hush.errors import CannotCertify, InfeasiblePlan, Setting
from hush.incidence import Incidence

__all__ = [
    "FULLY_USED",
    "Account",
    "Announced",
    "Budgets",
    "EqualSeries",
    "OneRelease",
    "Question",
    "intensities",
    "limit_posteriors",
]

EPS = 2.0**-52
MAX_DISTINCT_PRIORS = 64  # for which the accountant computes counts
LIMIT_STEP = 1e-3  # relative; limits lie on a grid of this step, so that secrets share them; tightness only
UNSHARED = 256  # different limits that are evaluated at a time, so few that each has a bound of its own; tightness only
MAX_PROOF_STEPS = 40  # secrets that may in turn need more noise than those before
FULLY_USED = 0.99  # a secret binds if a release uses more than this share of what it may


@final
@dataclass(frozen=True, kw_only=True)
class Question:
    """The promises of one release, its rounds, and the bound that proves them; target_SQ: posteriors to stay below."""

    incidence: Incidence
    prior_SQ: Array
    target_SQ: Array
    rounds: int
    bound: Bound

    @property
    def most(self) -> float:
        """A count that no secret exceeds: rates cannot sum to more, so a larger capacity never binds."""
        return min(1.0 + self.incidence.examples_per_secret.max(initial=0), MAX_COUNT)

    @cached_property
    def rounded_prior_SQ(self) -> Array:
        """Priors rounded up to MAX_DISTINCT_PRIORS values: each costs time, and counts only guide the choice."""
        distinct: Array = np.unique(self.prior_SQ)
        if distinct.size <= MAX_DISTINCT_PRIORS:
            return self.prior_SQ
        grid: Array = np.geomspace(float(distinct[0]), float(distinct[-1]), MAX_DISTINCT_PRIORS)
        grid[-1] = distinct[-1]
        rounded_SQ: Array = grid[np.searchsorted(grid, self.prior_SQ)]
        return np.where(rounded_SQ < self.target_SQ, rounded_SQ, self.prior_SQ)


class Account(Protocol):
    """One way of accounting."""

    def counts(self, question: Question, noise_multiplier: float) -> Array:
        """Expected count per round that each secret may have at this noise; it only guides the choice of weights."""
        ...

    def calibrate(self, question: Question, rate_N: Array) -> Calibration:
        """The least noise proven to keep every promise at these rates; infinite if none does."""
        ...

    def reduction(self, question: Question, calibration: Calibration, rate_N: Array, allowed_S: Array) -> Array | float:
        """Factors, at most 1, for counts whose rates were found to need more noise than that of allowed_S."""
        ...


def _by_the_binding(account: Account, question: Question, calibration: Calibration, allowed_S: Array) -> float:
    """One factor for all: by how much the noise that is needed allows more to the secrets that need it."""
    binding = calibration.binding
    used_S = account.counts(question, calibration.noise_multiplier)
    return min(float((allowed_S[binding] / used_S[binding]).min(initial=1.0)), 1.0)


@final
@dataclass(frozen=True)
class OneRelease:
    """One release, and no other about the same secrets."""

    def counts(self, question: Question, noise_multiplier: float) -> Array:
        """By the accountant, for Poisson counts."""
        return capacity(
            question.rounded_prior_SQ,
            question.target_SQ,
            noise_multiplier=noise_multiplier,
            rounds=question.rounds,
            bound=question.bound,
            most=question.most,
        )

    def calibrate(self, question: Question, rate_N: Array) -> Calibration:
        """By the accountant, for exactly these rates."""
        return calibrate(
            question.incidence,
            prior=question.prior_SQ,
            ceiling=question.target_SQ,
            rates=rate_N,
            rounds=question.rounds,
            bound=question.bound,
        )

    def reduction(self, question: Question, calibration: Calibration, rate_N: Array, allowed_S: Array) -> Array | float:
        """As for every noise."""
        return _by_the_binding(self, question, calibration, allowed_S)


@final
@dataclass(frozen=True, kw_only=True)
class EqualSeries:
    """The first of ``count`` releases alike, each of which may draw every secret ``growth`` times as often."""

    count: int
    growth: float

    def shapes(self, question: Question, noise_multiplier: float) -> tuple[Shape, ...]:
        """Of all releases, at this noise."""
        return (Shape(noise_multiplier=noise_multiplier, rounds=question.rounds),) * self.count

    def counts(self, question: Question, noise_multiplier: float) -> Array:
        """As many as leave room for all releases and for their growth."""
        limit_S = limit_capacity(
            question.rounded_prior_SQ,
            question.target_SQ,
            shapes=self.shapes(question, noise_multiplier),
            bound=question.bound,
            most=min(self.growth * question.most, MAX_COUNT),
        )
        return limit_S / self.growth

    def needed(self, question: Question, rate_N: Array) -> Array:
        """The intensity for which each secret is to have room in every release."""
        return rounded_limits(self.growth * intensities(question.incidence, rate_N))

    def calibrate(self, question: Question, rate_N: Array) -> Calibration:
        """For Poisson counts with the intensities of these rates, times the growth, in every release."""
        need_S = self.needed(question, rate_N)
        _refuse_certain_draws(need_S)

        def posterior(noise: float, secrets: NDArray[np.int64]) -> Array:
            return limit_posteriors(
                need_S[secrets],
                self.shapes(question, noise),
                prior_SQ=question.prior_SQ[secrets],
                below_SQ=question.target_SQ[secrets],
                bound=question.bound,
            )

        noise, posterior_SQ = _least_noise(question, need_S, posterior)
        return _calibrated(question, self.count * question.rounds, noise, posterior_SQ, need_S > 0)

    def reduction(self, question: Question, calibration: Calibration, rate_N: Array, allowed_S: Array) -> Array | float:
        """As for every noise."""
        return _by_the_binding(self, question, calibration, allowed_S)


@final
@dataclass(frozen=True, kw_only=True)
class Announced:
    """A release of a series whose shape and limits were announced: neither noise nor weights can change them.

    posterior_SQ: after all releases of the series, whatever is done inside the limits.
    """

    shape: Shape
    limit_S: Array
    posterior_SQ: Array

    def counts(self, question: Question, noise_multiplier: float) -> Array:
        """The limits, at the announced noise or more."""
        room = noise_multiplier >= self.shape.noise_multiplier
        return np.minimum(self.limit_S, question.most) if room else np.zeros_like(self.limit_S)

    def calibrate(self, question: Question, rate_N: Array) -> Calibration:
        """The announced noise if these rates are inside the limits, otherwise infinite."""
        mean_S = intensities(question.incidence, rate_N)
        inside = bool(np.all(mean_S <= self.limit_S))
        near_S = (mean_S > FULLY_USED * self.limit_S) & (mean_S > 0)
        noise = self.shape.noise_multiplier if inside else math.inf
        return _calibrated(question, question.rounds, noise, self.posterior_SQ, near_S)

    def reduction(self, question: Question, calibration: Calibration, rate_N: Array, allowed_S: Array) -> Array | float:
        """Secret by secret: an intensity is larger than the sum of the rates."""
        mean_S = intensities(question.incidence, rate_N)
        return np.where(mean_S > self.limit_S, self.limit_S / np.maximum(mean_S, self.limit_S), 1.0)


@final
@dataclass(frozen=True, kw_only=True)
class Budgets:
    """A release under a filter: log-moments at fixed orders that it may spend on each secret.

    posterior_SQ: after the releases so far, whatever each of them spends of what it may.
    """

    order_SQ: Array
    conceded_SQ: Array
    granted_SQ: Array
    posterior_SQ: Array

    def counts(self, question: Question, noise_multiplier: float) -> Array:
        """For Poisson counts."""
        return moment_capacity(
            self.order_SQ,
            self.granted_SQ,
            conceded=self.conceded_SQ,
            noise_multiplier=noise_multiplier,
            rounds=question.rounds,
            most=question.most,
        )

    def calibrate(self, question: Question, rate_N: Array) -> Calibration:
        """For exactly these rates; infinite if a secret is drawn on which nothing may be spent."""
        drawn_S = intensities(question.incidence, rate_N) > 0
        if np.any(drawn_S & ~(self.granted_SQ > 0).all(axis=1)):
            return _calibrated(question, question.rounds, math.inf, self.posterior_SQ, ~drawn_S & drawn_S)
        noise, _, binding = calibrate_moments(
            question.incidence,
            order=self.order_SQ,
            conceded=self.conceded_SQ,
            budget=self.granted_SQ,
            rates=rate_N,
            rounds=question.rounds,
        )
        bind_S = np.zeros(len(drawn_S), dtype=bool)
        bind_S[binding] = True
        return _calibrated(question, question.rounds, noise, self.posterior_SQ, bind_S)

    def reduction(self, question: Question, calibration: Calibration, rate_N: Array, allowed_S: Array) -> Array | float:
        """As for every noise."""
        return _by_the_binding(self, question, calibration, allowed_S)


def intensities(incidence: Incidence, rate_N: Array) -> Array:
    """Sum of -log(1 - rate) over the examples of each secret, rounded up; infinite where a rate is 1.

    A count with independent draws is dominated by a Poisson count with this mean.

    >>> graph = Incidence.from_pairs([0, 1], [0, 0], num_examples=2, num_secrets=1)
    >>> intensities(graph, np.array([0.1, 0.2])).round(4).tolist()
    [0.3285]
    """
    with np.errstate(divide="ignore"):
        mean = -np.log1p(-rate_N[incidence.example_of_entry])
    secret = np.repeat(np.arange(incidence.num_secrets), incidence.examples_per_secret)
    total_S = np.bincount(secret, mean, minlength=incidence.num_secrets)
    # Each logarithm and each addition of terms of one sign costs at most 2 EPS of the sum (E5).
    return np.asarray(total_S * (1 + 2 * EPS * (incidence.examples_per_secret + 2)))


def rounded_limits(limit_S: Array) -> Array:
    """Limits rounded up to a geometric grid, so that many secrets share one; 0 and infinity stay as they are."""
    some = (limit_S > 0) & np.isfinite(limit_S)
    step = np.ceil(np.log(limit_S, where=some, out=np.zeros_like(limit_S)) / math.log1p(LIMIT_STEP))
    return np.where(some, np.maximum(np.exp(step * math.log1p(LIMIT_STEP)), limit_S), limit_S)


def limit_posteriors(
    limit: Array, shapes: Sequence[Shape], *, prior_SQ: Array, below_SQ: Array, bound: Bound, accuracy: float = ACCURACY
) -> Array:
    """As ``limit_posterior``, where bounds that are not below these are computed again, no limits sharing a bound.

    With many secrets limits that are nearly equal share the bound of the largest, which may miss a ceiling.
    """
    posterior_SQ = limit_posterior(limit, shapes, prior=prior_SQ, bound=bound, accuracy=accuracy)
    above = np.flatnonzero(~(posterior_SQ <= below_SQ).all(axis=1))
    if not above.size:
        return posterior_SQ
    rows, which = np.unique(limit[above].reshape(above.size, -1), axis=0, return_inverse=True)
    order = above[np.argsort(which.ravel(), kind="stable")]
    sizes = np.bincount(which.ravel(), minlength=len(rows))
    ends = np.cumsum([sizes[begin : begin + UNSHARED].sum() for begin in range(0, len(rows), UNSHARED)])
    for part in np.split(order, ends[:-1]):
        again = limit_posterior(limit[part], shapes, prior=prior_SQ[part], bound=bound, accuracy=accuracy)
        posterior_SQ[part] = np.minimum(posterior_SQ[part], again)
    return posterior_SQ


def _calibrated(
    question: Question, rounds: int, noise: float, posterior_SQ: Array, binding_S: NDArray[np.bool_]
) -> Calibration:
    return Calibration(
        noise_multiplier=noise,
        posterior=posterior_SQ,
        ceiling=question.target_SQ,
        binding=np.flatnonzero(binding_S).astype(np.int64),
        bound=question.bound,
        rounds=rounds,
    )


def _refuse_certain_draws(need_S: Array) -> None:
    certain = int(np.count_nonzero(np.isinf(need_S)))
    if certain:
        raise InfeasiblePlan(
            f"{certain} secrets are in examples that are drawn in every round, for which a series has no limit; lower ",
            Setting("batch_size"),
            " below the number of examples, or keep more of them",
            setting="batch_size",
        )


def _least_noise(
    question: Question, need_S: Array, posterior: Callable[[float, NDArray[np.int64]], Array]
) -> tuple[float, Array]:
    """The least noise at which every secret keeps its promises, and all posteriors at it."""
    posterior_SQ = question.prior_SQ.copy()
    drawn = np.flatnonzero(need_S > 0)
    tight = drawn[(question.prior_SQ[drawn] >= question.target_SQ[drawn]).any(axis=1)]
    if tight.size:
        raise InfeasiblePlan(
            f"secret {int(tight[0])} has prior = ceiling and examples that are drawn ({tight.size} such secrets): "
            "no finite noise suffices; raise its ceiling or set the rates of its examples to 0"
        )
    if not drawn.size:
        return 0.0, posterior_SQ
    slack_S = np.log(question.target_SQ[drawn] / question.prior_SQ[drawn]).min(axis=1)
    worst, noise = int(drawn[(need_S[drawn] / slack_S).argmax()]), 0.0
    for _ in range(MAX_PROOF_STEPS):
        secret = np.array([worst])

        def excess(sigma: float, secret: NDArray[np.int64] = secret) -> float:
            return float(np.log(posterior(sigma, secret) / question.target_SQ[secret]).max())

        least = least_safe(excess, unsafe=noise, start=0.25, least=MIN_NOISE, most=MAX_NOISE)
        if least is None:
            break
        noise = least
        posterior_SQ[drawn] = posterior(noise, drawn)
        excess_S = np.log(posterior_SQ[drawn] / question.target_SQ[drawn]).max(axis=1)
        if np.all(excess_S <= 0):
            return noise, posterior_SQ
        worst = int(drawn[excess_S.argmax()])
    raise CannotCertify(f"no noise up to {MAX_NOISE:.0e} was proven for this series; raise the ceilings")

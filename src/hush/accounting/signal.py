"""The signal budget: how much the private rounds of a plan can teach, forecast before any training.

Everything here is a forecast, not a bound: the certified noise is always the accountant's. B private examples of a
round add up to a gradient of norm B (in clip norms) if all of them agree. Over T rounds that is B T, and the noise
along any one direction has a standard deviation of sigma sqrt(T). Their quotient, S = B sqrt(T) / sigma, is the signal.

Closed form (docs/proofs, "Signal budget"). In many rounds with a weak signal each, the dominating pair of a secret
tends to N(mu, 1) against N(0, 1) with mu^2 = T s^2 (exp(1 / sigma^2) - 1), s being the expected number of its examples
in a round. A promise (p, r) allows mu = Phi^-1(r) - Phi^-1(p), which gives sigma. If the noise is well above 1, sigma
is s sqrt(T) / mu, and S no longer depends on batch size and rounds: it is the limit, the least mu_j W / g_j over the
secrets, with g_j the weight of the examples of secret j and W that of all private examples.

Legend: S secrets, Q promised points of a secret, N examples.
"""

import math
from dataclasses import dataclass
from typing import Literal, Self, final

import numpy as np
from numpy.typing import ArrayLike
from scipy.special import ndtri

from hush.arrays import Array
from hush.incidence import Incidence

__all__ = [
    "GradientStatistics",
    "Prediction",
    "SignalBudget",
    "Verdict",
    "batch_at_elbow",
    "budget_of",
    "gaussian_shift",
    "noise_forecast",
    "signal_of",
]


ELBOW_SHIFT = (
    0.5  # mu / (s sqrt(T)) at the elbow: sqrt(ln(1 + x^2)) / x is 0.945 there, so 94 % of the limit is reached
)
ALIGNMENT = (
    0.14  # norm of the mean clipped gradient, in clip norms: measured for BERT-Tiny at its start (docs/planning)
)

# S / sqrt(d) of the trainings in docs/studies (table in docs/planning): up to 0.012 they ended within 0.01 of their
# start; from 0.09 to 0.5 they learnt 9 to 26 % of what no protection gains, after the public part 3.5 %; from 5 to 20,
# 35 to 60 %.
HOPELESS, LITTLE = 0.05, 1.0

Verdict = Literal["hopeless", "little", "promising"]


def gaussian_shift(prior_SQ: ArrayLike, ceiling_SQ: ArrayLike) -> Array:
    """Phi^-1(ceiling) - Phi^-1(prior) of each secret, of its strictest point: what N(mu, 1) against N(0, 1) may differ.

    Exact up to float rounding. It is the mu of mu-GDP [Dong19]: a posterior of Phi(Phi^-1(p) + mu) is the ceiling.

    >>> gaussian_shift([[1e-10]], [[1e-3]]).round(3).tolist()
    [3.271]
    """
    return (ndtri(np.asarray(ceiling_SQ, dtype=np.float64)) - ndtri(np.asarray(prior_SQ, dtype=np.float64))).min(axis=1)


def noise_forecast(shift: ArrayLike, count: ArrayLike, *, rounds: int) -> Array:
    """The noise multiplier that a secret needs, about: [ln(1 + (mu / (s sqrt(T)))^2)]^(-1/2).

    shift: its mu. count: s, the expected number of its examples in a round. A forecast: within 4 % of the accountant's
    noise for 12 to 100 examples in the table of docs/noise, 14 % above it for a single one. It may be 10 % too small
    where the noise is below about (1 + s) / sqrt(2), since draws of several examples at once are left out.

    >>> round(float(noise_forecast(gaussian_shift([[1e-10]], [[1e-3]]), 100 * 2048 / 1.7e6, rounds=2000)[0]), 2)
    1.79
    """
    mu, total = np.asarray(shift, dtype=np.float64), np.asarray(count, dtype=np.float64) * math.sqrt(rounds)
    with np.errstate(divide="ignore", over="ignore"):
        shift_per_draw = np.where(total > 0, mu / np.where(total > 0, total, 1.0), np.inf)
        return np.sqrt(1.0 / np.log1p(shift_per_draw**2))


def signal_of(batch_size: float, *, rounds: int, noise_multiplier: float) -> float:
    """B sqrt(T) / sigma: all signal over the noise in one direction, if all clipped gradients pointed the same way.

    batch_size: the expected number of private examples in a round. Infinite without noise, 0 without private examples.

    >>> round(signal_of(2048, rounds=2000, noise_multiplier=10.8))
    8480
    """
    if batch_size == 0:
        return 0.0
    return batch_size * math.sqrt(rounds) / noise_multiplier if noise_multiplier > 0 else math.inf


def batch_at_elbow(limit: float, *, rounds: int) -> float:
    """The batch size 2 S / sqrt(T) beyond which a larger one buys nothing: the signal is at 94 % of its limit S.

    >>> round(batch_at_elbow(8500, rounds=2000))
    380
    """
    return limit / (ELBOW_SHIFT * math.sqrt(rounds))


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class SignalBudget:
    """The signal of a plan, and what more compute could make of it: a forecast, not a bound.

    batch_size: of the plan. private_batch: the expected number of examples with a secret in a round. limit: the signal
    that no batch size and no number of rounds exceeds by much, at these weights. elbow: the batch size of the plan
    beyond which a larger one buys nothing; infinite where no secret limits it.
    """

    batch_size: float
    private_batch: float
    rounds: int
    noise_multiplier: float
    limit: float
    elbow: float

    @property
    def signal(self) -> float:
        """S = B sqrt(T) / sigma, B being the expected number of private examples."""
        return signal_of(self.private_batch, rounds=self.rounds, noise_multiplier=self.noise_multiplier)

    @property
    def at_elbow(self) -> float:
        """The forecast signal with the batch at the elbow."""
        return self.limit * math.sqrt(math.log1p(ELBOW_SHIFT**2)) / ELBOW_SHIFT

    def record(self) -> dict[str, float | int | None]:
        """As plain data; what is infinite is None."""
        values = {
            "signal": self.signal,
            "limit": self.limit,
            "elbow": self.elbow,
            "private_batch": self.private_batch,
            "batch_size": self.batch_size,
            "rounds": self.rounds,
            "noise_multiplier": self.noise_multiplier,
        }
        return {name: value if math.isfinite(value) else None for name, value in values.items()}


def budget_of(
    incidence: Incidence,
    weight_N: Array,
    *,
    shift_S: Array,
    batch_size: float,
    rounds: int,
    noise_multiplier: float | None = None,
) -> SignalBudget:
    """The signal budget of these weights; without a noise multiplier at the forecast one.

    >>> graph = Incidence.from_pairs(range(100), [0] * 100, num_examples=100, num_secrets=1)
    >>> budget = budget_of(graph, np.ones(100), shift_S=np.array([3.27]), batch_size=10, rounds=400)
    >>> round(budget.limit, 2), round(budget.elbow, 3), round(budget.signal, 2)
    (3.27, 0.327, 3.27)
    """
    total = float(weight_N.sum())
    private = float(weight_N[incidence.secrets_per_example > 0].sum())
    weight_before = np.concatenate([[0.0], np.cumsum(weight_N[incidence.example_of_entry])])
    weight_S = np.maximum(np.diff(weight_before[incidence.offset_S]), 0.0)
    drawn_S = weight_S > 1e-12 * max(total, 1.0)  # tightness only: rounding
    least = float((shift_S[drawn_S] / weight_S[drawn_S]).min(initial=math.inf))
    noise = noise_multiplier
    if noise is None:
        count_S = batch_size * weight_S[drawn_S] / total
        noise = float(noise_forecast(shift_S[drawn_S], count_S, rounds=rounds).max(initial=0.0))
    return SignalBudget(
        batch_size=batch_size,
        private_batch=batch_size * private / total if total > 0 else 0.0,
        rounds=rounds,
        noise_multiplier=noise,
        limit=least * private if private > 0 else 0.0,
        elbow=batch_at_elbow(least * total, rounds=rounds) if total > 0 else math.inf,
    )


# What the signal means for one model.


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class GradientStatistics:
    """What public gradients say about a model: how far they agree, and in how many directions noise counts.

    alignment: the norm of the mean clipped gradient, in clip norms. effective_dimension: that of noise in the metric of
    the clipping, the number of trained parameters for the uniform one. examples: on how many it was measured.
    """

    parameters: int
    alignment: float
    effective_dimension: float
    examples: int


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class Prediction:
    """The expected signal of all private rounds over all their noise, and what that has meant in our studies.

    ceiling: S / sqrt(d), as if all gradients agreed. expected: S a / sqrt(d_eff) from public gradients, or None where
    there were none. A forecast, not a bound.
    """

    parameters: int
    ceiling: float
    expected: float | None = None
    statistics: GradientStatistics | None = None

    @classmethod
    def of(cls, signal: float, parameters: int, statistics: GradientStatistics | None = None) -> Self:
        """The prediction for a model with this many trained parameters.

        >>> Prediction.of(1600, 12_000_000).verdict, Prediction.of(40, 12_000_000).verdict
        ('little', 'hopeless')
        """
        expected = None
        if statistics is not None:
            expected = signal * statistics.alignment / math.sqrt(max(statistics.effective_dimension, 1.0))
        return cls(
            parameters=parameters,
            ceiling=signal / math.sqrt(max(parameters, 1)),
            expected=expected,
            statistics=statistics,
        )

    @property
    def verdict(self) -> Verdict:
        """What trainings of our studies with such a signal have learnt; hopeless is well below the noise.

        An alignment above ALIGNMENT does not count in favour: it is that of a model's start, and falls as it learns.
        """
        comparable = self.ceiling
        if self.expected is not None and self.statistics is not None:
            comparable = self.expected / max(self.statistics.alignment, ALIGNMENT)
        if comparable < HOPELESS:
            return "hopeless"
        return "little" if comparable < LITTLE else "promising"

    def record(self) -> dict[str, float | int | str | None]:
        """As plain data; what is infinite is None."""
        statistics = self.statistics
        return {
            "parameters": self.parameters,
            "ceiling": self.ceiling if math.isfinite(self.ceiling) else None,
            "expected": self.expected if self.expected is not None and math.isfinite(self.expected) else None,
            "alignment": None if statistics is None else statistics.alignment,
            "effective_dimension": None if statistics is None else statistics.effective_dimension,
            "public_examples": None if statistics is None else statistics.examples,
            "verdict": self.verdict,
        }

"""Confidence limits for attack success: exact binomial limits, multiple comparisons, and excess over a baseline.

Every number called ``level`` is a probability of error, such as 0.01, not a confidence. The level of a family of
comparisons is the probability of one error anywhere in it.

:class:`Excess` separates memorisation from generalisation: any model continues "12345" with "6789", whether or not it
saw that text. The fraction of training sequences that come out is compared with that of the same sequences on a
reference model that never saw them (paired), or of sequences of the same kind that the model never saw (two samples).
Its limits hold for any number of sequences, without approximation: each of two probabilities has Clopper-Pearson
limits, at levels that together make up the requested one, and the difference lies between their extremes. They are
wider than approximate limits [Newcombe98]. They treat sequences as drawn at random, on given models.
"""

import operator
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Self, SupportsIndex, final

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy.special import betainc, betainccinv, betaincinv
from scipy.stats import hypergeom

from hush.errors import InvalidInput

__all__ = ["LEVEL", "Excess", "Success", "exceeded", "excess_over_held_out", "excess_over_reference", "holm_adjusted"]


LEVEL = 0.01  # of error, unless asked for otherwise
RELATIVE_ROUNDING = 1e-9  # limits are moved outwards by this; the inverse beta function is off by up to 1e-11


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class Success:
    """How often an attack succeeded in independent runs.

    Guarantee: if the runs are independent and each succeeds with the same probability (or, for a lower limit, with at
    most some probability), ``lower`` lies above it with probability at most ``level``, and ``upper`` below it with
    probability at most ``level`` (Clopper and Pearson: exact tails of the binomial law, no approximation). Canaries of
    one run are not independent: count only one of them. barred: runs that are not eligible as hits, whatever came out.

    >>> attack = Success(hits=8, runs=10)
    >>> round(attack.lower(0.025), 4), round(attack.upper(0.025), 4)
    (0.4439, 0.9748)
    """

    hits: int
    runs: int
    barred: int = 0

    def __post_init__(self) -> None:
        for name in ("hits", "runs", "barred"):
            object.__setattr__(self, name, _checked_count(name, getattr(self, name)))
        if not 0 <= self.hits <= self.runs - self.barred or self.barred < 0 or self.runs < 1:
            raise InvalidInput(
                f"hits={self.hits} of runs={self.runs}, barred={self.barred}; pass at least one run, and at most "
                "runs - barred hits"
            )

    @property
    def rate(self) -> float:
        """Share of the runs that succeeded."""
        return self.hits / self.runs

    def lower(self, level: float = LEVEL) -> float:
        """One-sided lower limit, rounded down."""
        error = checked_level(level)
        if self.hits == 0:
            return 0.0
        return float(betaincinv(self.hits, self.runs - self.hits + 1, error)) * (1 - RELATIVE_ROUNDING)

    def upper(self, level: float = LEVEL) -> float:
        """One-sided upper limit, rounded up."""
        error = checked_level(level)
        if self.hits == self.runs:
            return 1.0
        return min(1.0, float(betainccinv(self.hits + 1, self.runs - self.hits, error)) * (1 + RELATIVE_ROUNDING))

    def interval(self, level: float = LEVEL) -> tuple[float, float]:
        """Both limits; the probability that one of them is wrong is at most ``level``."""
        half = checked_level(level) / 2
        return self.lower(half), self.upper(half)

    def p_value(self, bound: float) -> float:
        """Probability of at least as many hits if each run succeeded with probability ``bound``.

        It is below a level exactly where ``lower`` of that level is above the bound.

        >>> Success(hits=3, runs=3).p_value(0.5)
        0.125
        """
        if not 0 <= bound <= 1:  # this form also refuses NaN
            raise InvalidInput(f"bound={bound!r} is not a probability; pass a number from 0 to 1")
        if self.hits == 0:
            return 1.0
        return float(betainc(self.hits, self.runs - self.hits + 1, bound))

    def at_best(self) -> Self:
        """The same runs, as if every eligible one had succeeded."""
        return replace(self, hits=self.runs - self.barred)


def holm_adjusted(p_values: ArrayLike) -> NDArray[np.float64]:
    """p-values after Holm's correction for multiple comparisons.

    Guarantee: rejecting those at most ``level`` makes an error anywhere with probability at most ``level``, however the
    comparisons depend on each other.

    >>> holm_adjusted([0.01, 0.04, 0.03]).round(3).tolist()
    [0.03, 0.06, 0.06]
    """
    values = np.asarray(p_values, dtype=np.float64)
    if values.ndim != 1 or not np.all((values >= 0) & (values <= 1)):
        raise InvalidInput("p_values must be a flat sequence of numbers from 0 to 1")
    order = np.argsort(values, kind="stable")
    factor = np.arange(values.size, 0, -1)
    adjusted = np.empty_like(values)
    adjusted[order] = np.minimum(1.0, np.maximum.accumulate(values[order] * factor))
    return adjusted


def exceeded(successes: Sequence[Success], bounds: ArrayLike, *, level: float = LEVEL) -> NDArray[np.bool_]:
    """Which attacks succeeded more often than their certified upper bounds allow.

    Guarantee: if every bound holds, the probability that any attack is flagged is at most ``level``.

    >>> exceeded([Success(hits=9, runs=10), Success(hits=5, runs=10)], [0.3, 0.5]).tolist()
    [True, False]
    """
    bound = np.asarray(bounds, dtype=np.float64)
    if bound.shape != (len(successes),):
        raise InvalidInput(
            f"{len(successes)} attacks but bounds of shape {bound.shape}; pass one bound for each attack"
        )
    p_values = [success.p_value(float(limit)) for success, limit in zip(successes, bound, strict=True)]
    return holm_adjusted(p_values) <= checked_level(level)


def checked_level(level: float) -> float:
    """A probability of error below one half; 0.99 is refused, because it is most likely meant as a confidence."""
    if not 0 < level < 0.5:
        raise InvalidInput(
            "the level is a probability of error; pass a small one, such as 0.01", setting="level", value=level
        )
    return float(level)


def _checked_count(name: str, number: SupportsIndex) -> int:
    try:
        return operator.index(number)
    except TypeError as error:
        raise InvalidInput(f"{name}={number!r} is not a whole number; pass an int") from error


# Memorised or generalised: the excess over a baseline.


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class Excess:
    """How much more often sequences come out than they would without having been trained on.

    lower, upper: limits of the difference; the probability that one is wrong is at most ``level``. p_value: the
    probability of at least this excess if training on the sequences made no difference (one-sided, exact).
    """

    trained: Success
    other: Success
    lower: float
    upper: float
    level: float
    p_value: float

    @property
    def difference(self) -> float:
        """The fraction that came out, minus the fraction that comes out anyway."""
        return self.trained.rate - self.other.rate

    @property
    def is_memorised(self) -> bool:
        """Whether some sequences come out because they were trained on, at this level."""
        return self.p_value <= self.level


def excess_over_reference(hit: ArrayLike, reference_hit: ArrayLike, *, level: float = LEVEL) -> Excess:
    """The excess of the model over a reference that never saw the sequences; entry i of both is sequence i.

    Only pairs that differ carry information. With a share π of such pairs, of which a share θ comes out of the model
    and the others out of the reference, the difference of the two probabilities is π (2θ − 1). Both shares have limits
    at half the level: π among all pairs; θ, given their number, among those that differ. The p-value is McNemar's
    exact test.

    >>> excess = excess_over_reference([True] * 9 + [False], [True] * 2 + [False] * 8, level=0.05)
    >>> round(excess.difference, 3), round(excess.lower, 3), round(excess.p_value, 4)
    (0.7, 0.021, 0.0078)
    """
    hit_N, other_N = _flags("hit", hit), _flags("reference_hit", reference_hit)
    if hit_N.shape != other_N.shape:
        raise InvalidInput(
            f"{hit_N.size} sequences on the model but {other_N.size} on the reference; try the same ones on both"
        )
    runs, half = hit_N.size, checked_level(level) / 2
    gained, differing = int((hit_N & ~other_N).sum()), int((hit_N != other_N).sum())
    share = Success(hits=differing, runs=runs).interval(half)
    gained_share = Success(hits=gained, runs=differing).interval(half) if differing else (0.0, 1.0)
    least, most = 2 * gained_share[0] - 1, 2 * gained_share[1] - 1
    return Excess(
        trained=Success(hits=int(hit_N.sum()), runs=runs),
        other=Success(hits=int(other_N.sum()), runs=runs),
        lower=least * share[0 if least > 0 else 1],
        upper=most * share[1 if most > 0 else 0],
        level=level,
        p_value=Success(hits=gained, runs=differing).p_value(0.5) if differing else 1.0,
    )


def excess_over_held_out(trained: Success, held_out: Success, *, level: float = LEVEL) -> Excess:
    """The excess of sequences the model was trained on over sequences of the same kind that it never saw.

    The samples are independent, so limits at the level 1 − √(1 − level) each hold jointly at the level. The p-value is
    Fisher's exact test.

    >>> excess = excess_over_held_out(Success(hits=45, runs=50), Success(hits=5, runs=50), level=0.05)
    >>> round(excess.difference, 3), round(excess.lower, 3), excess.is_memorised
    (0.8, 0.529, True)
    """
    each_level = float(-np.expm1(np.log1p(-checked_level(level)) / 2))
    trained_limits, held_out_limits = trained.interval(each_level), held_out.interval(each_level)
    hits, runs = trained.hits + held_out.hits, trained.runs + held_out.runs
    return Excess(
        trained=trained,
        other=held_out,
        lower=trained_limits[0] - held_out_limits[1],
        upper=trained_limits[1] - held_out_limits[0],
        level=level,
        p_value=min(1.0, float(hypergeom.sf(trained.hits - 1, runs, hits, trained.runs))),
    )


def _flags(name: str, values: ArrayLike) -> NDArray[np.bool_]:
    array = np.asarray(values)
    if array.dtype != np.bool_ or array.ndim != 1 or not array.size:
        raise InvalidInput(
            f"{name} has shape {array.shape} and type {array.dtype}; pass True or False for each sequence, at least one"
        )
    return array

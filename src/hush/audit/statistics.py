"""Counting how often an attack succeeds, and what such counts prove: exact limits, and many comparisons at once.

Every number called ``level`` is a probability of error, such as 0.01, not a confidence. A family of comparisons has the
level that one error anywhere in it may have.

Memorised or generalised? "12345" goes on with "6789" in any model, whether or not it ever saw that text.

What a model says of sequences it was trained on is laid beside what tells memory and skill apart: the same sequences
on a reference model that never saw them (pairs), or sequences of the same kind that the model never saw (two samples).
The excess is the difference of the two fractions.

Limits hold for any number of sequences, without approximation: each of two probabilities has its Clopper-Pearson
limits, at levels that together make up the one asked for, and the difference lies between their extremes. They are
wider than approximate ones [Newcombe98]. They treat sequences as drawn at random, on given models.
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


LEVEL = 0.01
ROUNDING = 1e-9  # relative; the inverse beta function is off by up to 1e-11, and limits are moved outwards by this


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class Success:
    """How often an attack succeeded in independent runs.

    Guarantee: if the runs are independent and each succeeds with the same probability (or, for a lower limit, with at
    most some probability), ``lower`` lies above it with probability at most ``level``, and ``upper`` below it with
    probability at most ``level`` (Clopper and Pearson: exact tails of the binomial law, no approximation). Canaries of
    one run are not independent: let one of them count. barred: runs that could count as no hit, whatever came out.

    >>> attack = Success(hits=8, runs=10)
    >>> round(attack.lower(0.025), 4), round(attack.upper(0.025), 4)
    (0.4439, 0.9748)
    """

    hits: int
    runs: int
    barred: int = 0

    def __post_init__(self) -> None:
        for name in ("hits", "runs", "barred"):
            object.__setattr__(self, name, _whole(name, getattr(self, name)))
        if not 0 <= self.hits <= self.runs - self.barred or self.barred < 0 or self.runs < 1:
            raise InvalidInput(
                f"hits={self.hits} of runs={self.runs}, barred={self.barred}; pass at least one run, and no more hits "
                "than runs that are not barred"
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
        return float(betaincinv(self.hits, self.runs - self.hits + 1, error)) * (1 - ROUNDING)

    def upper(self, level: float = LEVEL) -> float:
        """One-sided upper limit, rounded up."""
        error = checked_level(level)
        if self.hits == self.runs:
            return 1.0
        return min(1.0, float(betainccinv(self.hits + 1, self.runs - self.hits, error)) * (1 + ROUNDING))

    def interval(self, level: float = LEVEL) -> tuple[float, float]:
        """Both limits; the two errors together have at most this level."""
        half = checked_level(level) / 2
        return self.lower(half), self.upper(half)

    def p_value(self, bound: float) -> float:
        """Probability of at least as many hits if each run succeeded with probability ``bound``.

        It is below a level exactly where ``lower`` of that level is above the bound.

        >>> Success(hits=3, runs=3).p_value(0.5)
        0.125
        """
        if not 0 <= bound <= 1:  # written so that NaN is refused
            raise InvalidInput(f"bound={bound!r} is not a probability; pass a number from 0 to 1")
        if self.hits == 0:
            return 1.0
        return float(betainc(self.hits, self.runs - self.hits + 1, bound))

    def at_best(self) -> Self:
        """The same runs, had all of them succeeded that could."""
        return replace(self, hits=self.runs - self.barred)


def holm_adjusted(p_values: ArrayLike) -> NDArray[np.float64]:
    """p-values after Holm's correction: those at most ``level`` are errors together with probability at most ``level``.

    However the comparisons depend on each other.

    >>> holm_adjusted([0.01, 0.04, 0.03]).round(3).tolist()
    [0.03, 0.06, 0.06]
    """
    found = np.asarray(p_values, dtype=np.float64)
    if found.ndim != 1 or not np.all((found >= 0) & (found <= 1)):
        raise InvalidInput("p_values must be a flat sequence of numbers from 0 to 1")
    order = np.argsort(found, kind="stable")
    factor = np.arange(found.size, 0, -1)
    adjusted = np.empty_like(found)
    adjusted[order] = np.minimum(1.0, np.maximum.accumulate(found[order] * factor))
    return adjusted


def exceeded(successes: Sequence[Success], bounds: ArrayLike, *, level: float = LEVEL) -> NDArray[np.bool_]:
    """Which attacks did better than their certified upper bounds allow.

    Guarantee: if every bound holds, the probability that any of them is named is at most ``level``.

    >>> exceeded([Success(hits=9, runs=10), Success(hits=5, runs=10)], [0.3, 0.5]).tolist()
    [True, False]
    """
    bound = np.asarray(bounds, dtype=np.float64)
    if bound.shape != (len(successes),):
        raise InvalidInput(
            f"{len(successes)} attacks but bounds of shape {bound.shape}; pass one bound for each attack"
        )
    found = [success.p_value(float(limit)) for success, limit in zip(successes, bound, strict=True)]
    return holm_adjusted(found) <= checked_level(level)


def checked_level(level: float) -> float:
    """A probability of error below one half: 0.99 is most likely meant as a confidence, and is refused."""
    if not 0 < level < 0.5:
        raise InvalidInput(f"level={level!r} is a probability of error; pass a small one, such as 0.01")
    return float(level)


def _whole(name: str, number: SupportsIndex) -> int:
    try:
        return operator.index(number)
    except TypeError as error:
        raise InvalidInput(f"{name}={number!r} is not a whole number") from error


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class Excess:
    """How much more often sequences come out than without having been trained on.

    lower, upper: limits of the difference; both hold at once but with probability ``level``. p_value: the probability
    of at least this excess if training on the sequences made no difference (one-sided, exact).
    """

    trained: Success
    other: Success
    lower: float
    upper: float
    level: float
    p_value: float

    @property
    def difference(self) -> float:
        """The fraction that came out, less the fraction that comes out anyway."""
        return self.trained.rate - self.other.rate

    @property
    def is_memorised(self) -> bool:
        """Whether some sequences come out because they were trained on, at this level."""
        return self.p_value <= self.level


def excess_over_reference(hit: ArrayLike, reference_hit: ArrayLike, *, level: float = LEVEL) -> Excess:
    """The same sequences on the model and on a reference that never saw them; entry i of both is sequence i.

    Only pairs that differ tell anything. With a share π of such pairs, of which a share θ comes out of the model and
    the others out of the reference, the difference of the two probabilities is π (2θ − 1). Both shares have limits at
    half the level: π among all pairs; θ, given their number, among those that differ. The p-value is McNemar's exact
    test.

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
    ours = Success(hits=gained, runs=differing).interval(half) if differing else (0.0, 1.0)
    least, most = 2 * ours[0] - 1, 2 * ours[1] - 1
    return Excess(
        trained=Success(hits=int(hit_N.sum()), runs=runs),
        other=Success(hits=int(other_N.sum()), runs=runs),
        lower=least * share[0 if least > 0 else 1],
        upper=most * share[1 if most > 0 else 0],
        level=level,
        p_value=Success(hits=gained, runs=differing).p_value(0.5) if differing else 1.0,
    )


def excess_over_held_out(trained: Success, held_out: Success, *, level: float = LEVEL) -> Excess:
    """Sequences the model was trained on beside sequences of the same kind that it never saw.

    The samples are independent, so limits at level 1 − √(1 − level) each hold together at the level. The p-value is
    Fisher's exact test.

    >>> excess = excess_over_held_out(Success(hits=45, runs=50), Success(hits=5, runs=50), level=0.05)
    >>> round(excess.difference, 3), round(excess.lower, 3), excess.is_memorised
    (0.8, 0.529, True)
    """
    each = float(-np.expm1(np.log1p(-checked_level(level)) / 2))
    ours, others = trained.interval(each), held_out.interval(each)
    hits, runs = trained.hits + held_out.hits, trained.runs + held_out.runs
    return Excess(
        trained=trained,
        other=held_out,
        lower=ours[0] - others[1],
        upper=ours[1] - others[0],
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

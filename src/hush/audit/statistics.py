"""Counting how often an attack succeeds, and what such counts prove: exact limits, and many comparisons at once.

Every number called ``level`` is a probability of error, such as 0.01, not a confidence. A family of comparisons has the
level that one error anywhere in it may have.
"""

import operator
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Self, SupportsIndex, final

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy.special import betainc, betainccinv, betaincinv

from hush.errors import InvalidInput

__all__ = ["LEVEL", "Success", "exceeded", "holm_adjusted"]

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

"""What attacks reached, laid beside what was certified: the rows of an audit, and whether one of them breaks a promise.

A row fails if its lower limit lies above the certified bound. All rows together have one level: Holm's procedure takes
them from the most to the least remarkable, and each is shown with the limits at which it was decided. A row without a
certified bound is shown as such, and so is one that could not have failed, whatever came out: both are neither passed
nor failed.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal, Protocol, Self, final

import numpy as np

from hush.audit.statistics import LEVEL, Success, checked_level, holm_adjusted
from hush.errors import InvalidInput

__all__ = ["Attempt", "Row", "Together", "Verdict", "judge"]

SMALLEST = 1e-300  # p-values below it are shown as it
STEPS = 60  # of a bisection

MECHANISM = "mechanism"  # the attack on a simulation of the plan: it says nothing about what training did

Status = Literal["failed", "kept", "could not fail", "not comparable"]


class Measured(Protocol):
    """What an attack reached, with limits that are wrong with a given probability at most."""

    def lower(self, level: float, /) -> float: ...

    def upper(self, level: float, /) -> float: ...

    def at_best(self) -> "Measured":
        """The same tries, had all of them succeeded."""
        ...


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class Together:
    """One attempt on each of several secrets of one run, which may fall together: they share the model.

    Guarantee: whatever the dependence, ``lower`` lies above the mean of their chances with probability at most
    ``level``, and ``upper`` below it with probability at most ``level`` (Markov's inequality). For one secret these are
    the limits of Clopper and Pearson. barred: tries that could count as no hit, whatever came out.

    >>> Together(hits=5, tried=10).lower(0.01), Together(hits=5, tried=10).p_value(0.001)
    (0.005, 0.002)
    """

    hits: int
    tried: int
    barred: int = 0

    def __post_init__(self) -> None:
        if not 0 <= self.hits <= self.tried - self.barred or self.barred < 0 or self.tried < 1:
            raise InvalidInput(
                f"hits={self.hits} of tried={self.tried}, barred={self.barred}; pass at least one try, and no more "
                "hits than are not barred"
            )

    @property
    def rate(self) -> float:
        return self.hits / self.tried

    def lower(self, level: float) -> float:
        return checked_level(level) * self.rate

    def upper(self, level: float) -> float:
        return 1 - checked_level(level) * (1 - self.rate)

    def p_value(self, bound: float) -> float:
        """The most that so many hits can have as their probability if the chances have this mean."""
        if not 0 <= bound <= 1:  # written so that NaN is refused
            raise InvalidInput(f"bound={bound!r} is not a probability; pass a number from 0 to 1")
        return min(1.0, bound / self.rate) if self.hits else 1.0

    def at_best(self) -> Self:
        """The same tries, had all of them succeeded that could."""
        return replace(self, hits=self.tried - self.barred)


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class Attempt:
    """An attack before it is judged. name: a secret's id or a class of them.

    certified: the proven bound on its success from this prior; None where nothing is proven, and ``reason`` says why.
    measured is None where an attack could not be carried out at all. reached: the estimated chance, where it is not
    hits / runs. canaries: whether it is about planted secrets alone.
    """

    attack: str
    name: str
    prior: float | None
    certified: float | None
    ceiling: float | None
    measured: Measured | None
    hits: int | None = None
    runs: int | None = None
    reached: float | None = None
    reason: str = ""
    canaries: bool = False

    def __post_init__(self) -> None:
        for name in ("prior", "certified", "ceiling"):
            value = getattr(self, name)
            if value is not None and not 0 <= value <= 1:  # written so that NaN, which nothing is above, is refused
                raise InvalidInput(f"{name}={value!r} is not a probability; pass None where nothing is known")

    @property
    def p_value(self) -> float | None:
        """How remarkable it is if the bound holds; None where it cannot be compared."""
        if self.certified is None or self.measured is None:
            return None
        if isinstance(self.measured, Success | Together):
            return self.measured.p_value(self.certified)
        return _p_value(self.measured, self.certified)


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """An attack, judged. lower and upper are one-sided limits of its success, each at ``level``."""

    attempt: Attempt
    level: float
    lower: float | None
    upper: float | None
    p_value: float | None
    status: Status

    def to_dict(self) -> dict[str, Any]:
        """Plain data for JSON: names, counts and numbers."""
        one = self.attempt
        return {
            "attack": one.attack,
            "name": one.name,
            "prior": one.prior,
            "certified": one.certified,
            "ceiling": one.ceiling,
            "hits": one.hits,
            "runs": one.runs,
            "reached": one.reached,
            "lower": self.lower,
            "upper": self.upper,
            "level": self.level,
            "adjusted_p_value": self.p_value,
            "status": self.status,
            "reason": one.reason,
            "canaries": one.canaries,
        }


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class Verdict:
    """All rows, and what they come to."""

    rows: tuple[Row, ...]
    level: float

    @property
    def failed(self) -> bool:
        """Whether an attack did better than was certified."""
        return any(row.status == "failed" for row in self.rows)

    @property
    def powerless(self) -> int:
        """How many rows could not have failed."""
        return sum(row.status == "could not fail" for row in self.rows)

    @property
    def status(self) -> Literal["failed", "kept", "model not judged", "nothing to compare"]:
        """ "kept" says that no attack on the model broke the promise though one could have, never that none can."""
        if self.failed:
            return "failed"
        kept = {row.attempt.attack for row in self.rows if row.status == "kept"}
        return "kept" if kept - {MECHANISM} else "model not judged" if kept else "nothing to compare"


def judge(attempts: Sequence[Attempt], *, level: float = LEVEL) -> Verdict:
    """Hold every attempt against its bound.

    Guarantee: if every certified bound holds, the verdict is "failed" with probability at most ``level``, however the
    attempts depend on each other.

    >>> hit = Attempt(attack="naming", name="canary", prior=1e-4, certified=2e-4, ceiling=1e-3,
    ...               measured=Success(hits=1, runs=1), hits=1, runs=1)
    >>> judge([hit]).status
    'failed'
    """
    checked_level(level)
    found = [(place, value) for place, attempt in enumerate(attempts) if (value := attempt.p_value) is not None]
    p_values = np.array([value for _, value in found])
    adjusted = holm_adjusted(p_values)
    rejected = int(np.count_nonzero(adjusted <= level))
    rows: list[Row | None] = [None] * len(attempts)
    for position, index in enumerate(np.argsort(p_values, kind="stable").tolist()):  # as Holm takes them
        # What is not rejected is shown at the level of the first that was not.
        each = level / (len(found) - min(position, rejected))
        place = found[index][0]
        otherwise: Status = "kept" if _could_fail(attempts[place], each) else "could not fail"
        status: Status = "failed" if adjusted[index] <= level else otherwise
        rows[place] = _row(attempts[place], each, float(adjusted[index]), status)
    for place, attempt in enumerate(attempts):
        if rows[place] is None:
            rows[place] = _row(attempt, level, None, "not comparable")
    return Verdict(rows=tuple(row for row in rows if row is not None), level=level)


def _could_fail(attempt: Attempt, level: float) -> bool:
    """Whether the same tries, had all of them succeeded, would show more than was certified."""
    if attempt.measured is None:
        return False
    best = replace(attempt, measured=attempt.measured.at_best()).p_value
    return best is not None and best <= level


def _row(attempt: Attempt, level: float, p_value: float | None, status: Status) -> Row:
    measured = attempt.measured
    return Row(
        attempt=attempt,
        level=level,
        lower=None if measured is None else float(measured.lower(level)),
        upper=None if measured is None else float(measured.upper(level)),
        p_value=p_value,
        status=status,
    )


def _p_value(measured: Measured, bound: float) -> float:
    """The smallest level whose lower limit is above the bound, rounded up: limits fall with the level."""
    low, high = np.log(SMALLEST), np.log(0.4999)
    if not measured.lower(float(np.exp(high))) > bound:
        return 1.0
    for _ in range(STEPS):
        middle = (low + high) / 2
        if measured.lower(float(np.exp(middle))) > bound:
            high = middle
        else:
            low = middle
    return float(np.exp(high))

"""What attacks reached, laid beside what was certified: the rows of an audit, and whether one of them breaks a promise.

A row fails if its lower limit lies above the certified bound. All rows together have one level: Holm's procedure takes
them from the most to the least remarkable, and each is shown with the limits at which it was decided. A row without a
certified bound is shown as such, and so is one that could not have failed, whatever came out: both are neither passed
nor failed.

From what attacks found to rows that can be judged: which prior, which certified bound, and what counts as one run.

mechanism   the worst case of a secret, simulated: many runs
extraction  one prompt for each secret, chosen before anything is seen: its first place that is drawn about as often as
            any of its places, the longest prompt that fits
naming      the first canary of a run; the others share its model. Further runs may be added
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal, Protocol, Self, final

import numpy as np
from numpy.typing import NDArray

from hush.audit.canaries import Canary
from hush.audit.exposure import Ranked
from hush.audit.folders import CANARIES, AuditedRun
from hush.audit.mechanism import MechanismAttack
from hush.audit.statistics import LEVEL, Success, checked_level, holm_adjusted
from hush.errors import InvalidInput
from hush.scan.rules.promises import prior_among

__all__ = [
    "Attempt",
    "NamedRun",
    "Row",
    "Together",
    "Verdict",
    "extraction_attempts",
    "first_tries",
    "judge",
    "mechanism_attempt",
    "named_run",
    "naming_attempt",
]


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


Point = tuple[float, float | None, float | None]  # prior, certified, ceiling
MOST_ROWS = 20  # secrets that get a row each; more are judged by class


def mechanism_attempt(run: AuditedRun, secret: int, point: int, found: MechanismAttack | None) -> Attempt:
    """The simulated worst case; None where there is no noise to simulate."""
    prior, certified, ceiling = run.point(secret, point)
    return Attempt(
        attack=MECHANISM,
        name=run.plan.secret_ids[secret],
        prior=prior,
        certified=certified,
        ceiling=ceiling,
        measured=found,
        runs=None if found is None else found.detected.runs,
        reached=None if found is None else found.success,
        reason=run.why_not,
    )


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class NamedRun:
    """One run in which the first canary was to be named. planting: tells plantings apart, and says nothing else.

    told: whether the model could name it at all, its tokens being those of no other candidate.
    """

    model: str
    planting: str
    hit: bool
    prior: float
    certified: float | None
    told: bool = True


def named_run(run: AuditedRun, canary: Canary, planting: str, found: Ranked) -> NamedRun:
    """What this run adds: the prior is what the ranked candidates leave."""
    prior = prior_among(found.ranked)
    return NamedRun(
        model=run.digest,
        planting=planting,
        hit=found.rank == 1 and found.told,
        prior=prior,
        certified=run.certified(run.secret(canary.id), prior),
        told=found.told,
    )


def naming_attempt(run: AuditedRun, canary: Canary, runs: Sequence[NamedRun]) -> Attempt:
    """Naming the first canary in independent runs, this one first, held against the largest of their bounds.

    Runs are independent if each was trained anew on canaries drawn anew: trained twice on the same canary, a model may
    name it twice for the same reason.
    """
    for name, values in (("model", {one.model for one in runs}), ("planting", {one.planting for one in runs})):
        if len(values) < len(runs):
            raise InvalidInput(f"two of these {len(runs)} runs have the same {name}; add runs trained on new canaries")
    secret = run.secret(canary.id)
    prior = max(one.prior for one in runs)
    bounds = [one.certified for one in runs if one.certified is not None]
    hits = sum(one.hit for one in runs)
    return Attempt(
        attack="naming",
        name=canary.id,
        prior=prior,
        certified=max(bounds) if len(bounds) == len(runs) else None,
        ceiling=float(run.plan.ceiling[secret, 0]) if run.plan.prior[secret, 0] == prior else None,
        measured=Success(hits=hits, runs=len(runs), barred=sum(not one.told for one in runs)),
        hits=hits,
        runs=len(runs),
        reason=run.why_not or ("" if len(bounds) == len(runs) else "a run that was added certifies nothing"),
        canaries=True,
    )


def first_tries(
    secret_N: NDArray[np.int64], rate_N: NDArray[np.float64], fits: Sequence[NDArray[np.bool_]]
) -> dict[int, tuple[int, int]]:
    """For each secret the one try that counts: the first row with the first of these columns that fits it.

    rate_N: how often training drew each row, which is public. A plan leaves some examples out: what was learnt from
    others would not come out there. So rows count that were drawn at least half as often as any of their secret.
    """
    found: dict[int, tuple[int, int]] = {}
    known_N = np.logical_or.reduce(fits) & (secret_N >= 0)
    most_S = np.zeros(int(secret_N.max(initial=-1)) + 1)
    np.maximum.at(most_S, secret_N[known_N], rate_N[known_N])
    known_N[known_N] = rate_N[known_N] >= most_S[secret_N[known_N]] / 2
    for column, fits_N in enumerate(fits):
        rows = np.flatnonzero(fits_N & known_N)
        secrets, first = np.unique(secret_N[rows], return_index=True)
        for secret, place in zip(secrets.tolist(), first.tolist(), strict=True):
            found.setdefault(secret, (int(rows[place]), column))
    return found


def extraction_attempts(
    run: AuditedRun, hit_of: Mapping[int, bool | None], classes: Mapping[int, str], *, canary_prior: float = 0.0
) -> list[Attempt]:
    """A row for each secret; canaries, and many secrets, by class: secrets of one model may fall together.

    hit_of: whether it came out; None where nothing that came out would count. Such a try keeps its place in the family,
    since which tries are so may depend on the secrets, but it is none that could have failed. canary_prior: of
    canaries, where one answer may say several of their candidates; else it is the promised one.
    """
    points: dict[int, Point] = {secret: run.point(secret, int(run.plan.prior[secret].argmin())) for secret in hit_of}
    for secret, point in points.items():
        if classes.get(secret) == CANARIES and point[0] < canary_prior:
            points[secret] = (canary_prior, run.certified(secret, canary_prior), None)  # promised is nothing from there
    alone = [secret for secret in hit_of if classes.get(secret) != CANARIES]
    alone = alone if len(alone) <= MOST_ROWS else []
    members: dict[str, list[int]] = {}
    for secret in hit_of:
        if secret not in alone:
            members.setdefault(classes.get(secret, "secrets"), []).append(secret)
    return [
        *(_attempt_on(run, run.plan.secret_ids[secret], [secret], points, hit_of) for secret in alone),
        *(
            replace(_attempt_on(run, f"{name} (all {len(own)})", own, points, hit_of), canaries=name == CANARIES)
            for name, own in members.items()
        ),
    ]


def _attempt_on(
    run: AuditedRun,
    name: str,
    own: Sequence[int],
    points: Mapping[int, Point],
    hit_of: Mapping[int, bool | None],
) -> Attempt:
    """A class has the mean of its secrets' numbers: a share of them comes out, and so much of it is allowed."""
    hits = [hit_of[secret] for secret in own]
    found = Together(hits=hits.count(True), tried=len(own), barred=hits.count(None))
    certified = [bound for bound in (points[secret][1] for secret in own) if bound is not None]
    ceilings = [ceiling for ceiling in (points[secret][2] for secret in own) if ceiling is not None]
    return Attempt(
        attack="extraction",
        name=name,
        prior=_mean([points[secret][0] for secret in own]),
        certified=_mean(certified) if len(certified) == len(own) else None,
        ceiling=_mean(ceilings) if len(ceilings) == len(own) else None,
        measured=found,
        hits=found.hits,
        runs=found.tried,
        reason=run.why_not,
    )


def _mean(values: Sequence[float]) -> float:
    """That of equal numbers is exactly their number: it is shown rounded away from what would flatter."""
    return math.fsum(values) / len(values)

"""The verdict of an audit: attempts compared with the certified bounds, at one level of error for all rows.

An attempt is what an attack reached, with the prior it starts from and the certified bound that holds there:

mechanism   the simulated worst case of a secret, in all releases of its chain so far: many runs
extraction  one prompt for each secret, fixed before anything is tried: of its spans the first that is drawn about as
            often as any other, with the longest prompt that fits
naming      the first canary of a run, since the others share its model. Independent runs can be added; the models of
            several releases of a chain are one try together, and the bound is that of the chain

A row fails if its lower limit lies above the certified bound. All rows together have one level: Holm's procedure takes
them in the order of their p-values, and each row shows the limits at which it was decided. A row without a certified
bound, and one that could not have failed whatever came out, are marked so: they neither pass nor fail.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal, Protocol, Self, final

import numpy as np
from numpy.typing import NDArray

from hush.audit.canaries import Canary
from hush.audit.exposure import CanaryRank
from hush.audit.folders import CANARY_CLASS, AuditedRun
from hush.audit.mechanism import MechanismAttack
from hush.audit.statistics import LEVEL, Success, checked_level, holm_adjusted
from hush.errors import InvalidInput
from hush.scan.rules.promises import prior_among

__all__ = [
    "Attempt",
    "DependentSuccess",
    "NamedRun",
    "Verdict",
    "VerdictRow",
    "counted_tries",
    "extraction_attempts",
    "judge",
    "mechanism_attempt",
    "named_run",
    "naming_attempt",
]


MIN_P_VALUE = 1e-300  # smaller p-values are reported as this
MAX_P_VALUE = 0.4999  # levels of error are below one half; larger p-values are reported as 1
BISECTION_STEPS = 60  # halves log(0.5 / 1e-300), about 690, to below 1e-15
MAX_SECRET_ROWS = 20  # secrets that get a row each; more are judged by class

MECHANISM = "mechanism"  # the attack on a simulation of the plan: it says nothing about what training did

Status = Literal["failed", "kept", "could not fail", "not comparable"]


class Measured(Protocol):
    """What an attack reached, with limits that are wrong with at most a given probability."""

    def lower(self, level: float, /) -> float: ...

    def upper(self, level: float, /) -> float: ...

    def at_best(self) -> "Measured":
        """The same tries, as if every one had succeeded that could."""
        ...


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class DependentSuccess:
    """How often an attack succeeded, one try on each of several secrets of one run.

    The tries depend on each other, because they share the model. Guarantee: whatever the dependence, ``lower`` lies
    above the mean of the success probabilities with probability at most ``level``, and ``upper`` below it with
    probability at most ``level`` (Markov's inequality). For one secret these are the Clopper-Pearson limits. barred:
    tries that are not eligible as hits, whatever came out.

    >>> DependentSuccess(hits=5, tried=10).lower(0.01), DependentSuccess(hits=5, tried=10).p_value(0.001)
    (0.005, 0.002)
    """

    hits: int
    tried: int
    barred: int = 0

    def __post_init__(self) -> None:
        if not 0 <= self.hits <= self.tried - self.barred or self.barred < 0 or self.tried < 1:
            raise InvalidInput(
                f"hits={self.hits} of tried={self.tried}, barred={self.barred}; pass at least one try, and at most "
                "tried - barred hits"
            )

    @property
    def rate(self) -> float:
        return self.hits / self.tried

    def lower(self, level: float) -> float:
        return checked_level(level) * self.rate

    def upper(self, level: float) -> float:
        return 1 - checked_level(level) * (1 - self.rate)

    def p_value(self, bound: float) -> float:
        """Upper bound on the probability of as many hits if the success probabilities have the mean ``bound``."""
        if not 0 <= bound <= 1:  # this form also refuses NaN
            raise InvalidInput(f"bound={bound!r} is not a probability; pass a number from 0 to 1")
        return min(1.0, bound / self.rate) if self.hits else 1.0

    def at_best(self) -> Self:
        """The same tries, as if every eligible one had succeeded."""
        return replace(self, hits=self.tried - self.barred)


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class Attempt:
    """What an attack reached, before it is judged. name: a secret's id, or a class of secrets.

    certified: the proven bound on its success from this prior; None where nothing is proven, and ``reason`` says why.
    measured is None where the attack could not be carried out. reached: the estimated success probability, where it is
    not hits / runs. canaries: whether it concerns planted canaries only. releases: how many releases were attacked
    together.
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
    releases: int = 1

    def __post_init__(self) -> None:
        for name in ("prior", "certified", "ceiling"):
            value = getattr(self, name)
            if value is not None and not 0 <= value <= 1:  # this form also refuses NaN
                raise InvalidInput(f"{name}={value!r} is not a probability; pass None where it is unknown")

    @property
    def p_value(self) -> float | None:
        """The p-value of the hypothesis that the certified bound holds; None where there is nothing to compare."""
        if self.certified is None or self.measured is None:
            return None
        if isinstance(self.measured, Success | DependentSuccess):
            return self.measured.p_value(self.certified)
        return _p_value(self.measured, self.certified)


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class VerdictRow:
    """A judged attempt. lower and upper are one-sided limits of its success probability, each at ``level``."""

    attempt: Attempt
    level: float
    lower: float | None
    upper: float | None
    p_value: float | None
    status: Status

    def to_dict(self) -> dict[str, Any]:
        """Plain data for JSON: names, counts and numbers."""
        attempt = self.attempt
        return {
            "attack": attempt.attack,
            "name": attempt.name,
            "prior": attempt.prior,
            "certified": attempt.certified,
            "ceiling": attempt.ceiling,
            "hits": attempt.hits,
            "runs": attempt.runs,
            "reached": attempt.reached,
            "lower": self.lower,
            "upper": self.upper,
            "level": self.level,
            "adjusted_p_value": self.p_value,
            "status": self.status,
            "reason": attempt.reason,
            "canaries": attempt.canaries,
            "releases": attempt.releases,
        }


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class Verdict:
    """All rows of an audit, and the overall status."""

    rows: tuple[VerdictRow, ...]
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
        """ "kept": no attack on the model broke the promise though one could have; never that no attack can."""
        if self.failed:
            return "failed"
        kept = {row.attempt.attack for row in self.rows if row.status == "kept"}
        return "kept" if kept - {MECHANISM} else "model not judged" if kept else "nothing to compare"


def judge(attempts: Sequence[Attempt], *, level: float = LEVEL) -> Verdict:
    """Compare every attempt with its certified bound.

    Guarantee: if every certified bound holds, the verdict is "failed" with probability at most ``level``, however the
    attempts depend on each other.

    >>> hit = Attempt(attack="naming", name="canary", prior=1e-4, certified=2e-4, ceiling=1e-3,
    ...               measured=Success(hits=1, runs=1), hits=1, runs=1)
    >>> judge([hit]).status
    'failed'
    """
    checked_level(level)
    comparable = [(index, value) for index, attempt in enumerate(attempts) if (value := attempt.p_value) is not None]
    p_values = np.array([value for _, value in comparable])
    adjusted = holm_adjusted(p_values)
    rejected = int(np.count_nonzero(adjusted <= level))
    rows: list[VerdictRow | None] = [None] * len(attempts)
    for position, order in enumerate(np.argsort(p_values, kind="stable").tolist()):  # the order of Holm's procedure
        # Attempts that are not rejected are shown at the level of the first that was not.
        row_level = level / (len(comparable) - min(position, rejected))
        index = comparable[order][0]
        status: Status = "failed" if adjusted[order] <= level else "kept"
        if status == "kept" and not _could_fail(attempts[index], row_level):
            status = "could not fail"
        rows[index] = _row(attempts[index], row_level, float(adjusted[order]), status)
    for index, attempt in enumerate(attempts):
        if rows[index] is None:
            rows[index] = _row(attempt, level, None, "not comparable")
    return Verdict(rows=tuple(row for row in rows if row is not None), level=level)


def _could_fail(attempt: Attempt, level: float) -> bool:
    """Whether the same tries would exceed the certified bound if every eligible one succeeded."""
    if attempt.measured is None:
        return False
    best = replace(attempt, measured=attempt.measured.at_best()).p_value
    return best is not None and best <= level


def _row(attempt: Attempt, level: float, p_value: float | None, status: Status) -> VerdictRow:
    measured = attempt.measured
    return VerdictRow(
        attempt=attempt,
        level=level,
        lower=None if measured is None else float(measured.lower(level)),
        upper=None if measured is None else float(measured.upper(level)),
        p_value=p_value,
        status=status,
    )


def _p_value(measured: Measured, bound: float) -> float:
    """The smallest level whose lower limit is above the bound, rounded up: lower limits rise with the level."""
    low, high = np.log(MIN_P_VALUE), np.log(MAX_P_VALUE)
    if not measured.lower(float(np.exp(high))) > bound:
        return 1.0
    for _ in range(BISECTION_STEPS):
        middle = (low + high) / 2
        if measured.lower(float(np.exp(middle))) > bound:
            high = middle
        else:
            low = middle
    return float(np.exp(high))


# From the results of attacks to attempts.

PromisedPoint = tuple[float, float | None, float | None]  # prior, certified, ceiling


def mechanism_attempt(run: AuditedRun, secret: int, point: int, attack: MechanismAttack | None) -> Attempt:
    """The attempt on the simulated worst case of a secret; attack is None where there is no noise to simulate."""
    prior, certified, ceiling = run.promised_point(secret, point)
    return Attempt(
        attack=MECHANISM,
        name=run.plan.secret_ids[secret],
        prior=prior,
        certified=certified,
        ceiling=ceiling,
        measured=attack,
        runs=None if attack is None else attack.detected.runs,
        reached=None if attack is None else attack.success,
        reason=run.uncertified_reason,
        releases=len(run.used_on(secret)),
    )


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class NamedRun:
    """Whether the attack named the first canary of one run. planting: the random id of its canaries.

    told: whether the canary can be named at all, that is, whether no other candidate has the same tokens.
    """

    model: str
    planting: str
    hit: bool
    prior: float
    certified: float | None
    told: bool = True


def named_run(
    run: AuditedRun, canary: Canary, planting: str, rank: CanaryRank, *, together_with: Sequence[AuditedRun] = ()
) -> NamedRun:
    """The naming result of this run; the prior is one among the ranked candidates.

    together_with: earlier releases whose models were attacked too. If one of them certifies nothing, neither does the
    chain about all of them.
    """
    prior = prior_among(rank.ranked)
    is_certified = not any(release.uncertified_reason for release in together_with)
    return NamedRun(
        model=run.digest,
        planting=planting,
        hit=rank.rank == 1 and rank.told,
        prior=prior,
        certified=run.certified_posterior(run.secret_index(canary.id), prior) if is_certified else None,
        told=rank.told,
    )


def naming_attempt(run: AuditedRun, canary: Canary, runs: Sequence[NamedRun], *, releases: int = 1) -> Attempt:
    """Naming the first canary in independent runs, this one first, compared with the largest of their bounds.

    Runs are independent if each was trained anew on newly drawn canaries: two models trained on the same canary may
    name it for the same reason.
    """
    for name, what in (("model", "model"), ("planting", "canaries")):
        if len({getattr(named, name) for named in runs}) < len(runs):
            raise InvalidInput(f"two of these {len(runs)} runs have the same {what}; add runs trained on new canaries")
    secret = run.secret_index(canary.id)
    prior = max(named.prior for named in runs)
    bounds = [named.certified for named in runs if named.certified is not None]
    hits = sum(named.hit for named in runs)
    return Attempt(
        attack="naming",
        name=canary.id,
        prior=prior,
        certified=max(bounds) if len(bounds) == len(runs) else None,
        ceiling=float(run.plan.ceiling[secret, 0]) if run.plan.prior[secret, 0] == prior else None,
        measured=Success(hits=hits, runs=len(runs), barred=sum(not named.told for named in runs)),
        hits=hits,
        runs=len(runs),
        reason=run.uncertified_reason or ("" if len(bounds) == len(runs) else "an added run certifies nothing"),
        canaries=True,
        releases=releases,
    )


def counted_tries(
    secret_N: NDArray[np.int64], rate_N: NDArray[np.float64], fits: Sequence[NDArray[np.bool_]]
) -> dict[int, tuple[int, int]]:
    """The one try of each secret that counts, as (row, column): the first row with the first column of ``fits``.

    rate_N: the sampling rate of each row's example, which is public. A plan leaves some examples out, and a prompt from
    such an example would not bring out what was learnt from others. So only rows are considered whose rate is at least
    half the largest of their secret.
    """
    tries: dict[int, tuple[int, int]] = {}
    usable_N = np.logical_or.reduce(fits) & (secret_N >= 0)
    max_rate_S = np.zeros(int(secret_N.max(initial=-1)) + 1)
    np.maximum.at(max_rate_S, secret_N[usable_N], rate_N[usable_N])
    usable_N[usable_N] = rate_N[usable_N] >= max_rate_S[secret_N[usable_N]] / 2
    for column, fits_N in enumerate(fits):
        rows = np.flatnonzero(fits_N & usable_N)
        secrets, first = np.unique(secret_N[rows], return_index=True)
        for secret, position in zip(secrets.tolist(), first.tolist(), strict=True):
            tries.setdefault(secret, (int(rows[position]), column))
    return tries


def extraction_attempts(
    run: AuditedRun, hit_by_secret: Mapping[int, bool | None], classes: Mapping[int, str], *, canary_prior: float = 0.0
) -> list[Attempt]:
    """An attempt for each secret; canaries, and secrets where there are many, by class.

    hit_by_secret: whether the secret came out; None where that is not eligible as a hit. Such a try keeps its place in
    its class, because which tries are so may depend on the secrets, but it could not have failed. canary_prior: the
    prior of canaries where one answer may contain several of their candidates; else the promised prior holds.
    """
    points: dict[int, PromisedPoint] = {
        secret: run.promised_point(secret, int(run.plan.prior[secret].argmin())) for secret in hit_by_secret
    }
    for secret, point in points.items():
        if classes.get(secret) == CANARY_CLASS and point[0] < canary_prior:
            # No ceiling: nothing is promised from this prior.
            points[secret] = (canary_prior, run.certified_posterior(secret, canary_prior), None)
    single = [secret for secret in hit_by_secret if classes.get(secret) != CANARY_CLASS]
    single = single if len(single) <= MAX_SECRET_ROWS else []
    members: dict[str, list[int]] = {}
    for secret in hit_by_secret:
        if secret not in single:
            members.setdefault(classes.get(secret, "secrets"), []).append(secret)
    return [
        *(_attempt_on(run, run.plan.secret_ids[secret], [secret], points, hit_by_secret) for secret in single),
        *(
            replace(
                _attempt_on(run, f"{name} (all {len(secrets)})", secrets, points, hit_by_secret),
                canaries=name == CANARY_CLASS,
            )
            for name, secrets in members.items()
        ),
    ]


def _attempt_on(
    run: AuditedRun,
    name: str,
    secrets: Sequence[int],
    points: Mapping[int, PromisedPoint],
    hit_by_secret: Mapping[int, bool | None],
) -> Attempt:
    """The attempt on a class of secrets: the share that came out, against the mean of their bounds."""
    hits = [hit_by_secret[secret] for secret in secrets]
    success = DependentSuccess(hits=hits.count(True), tried=len(secrets), barred=hits.count(None))
    certified = [bound for bound in (points[secret][1] for secret in secrets) if bound is not None]
    ceilings = [ceiling for ceiling in (points[secret][2] for secret in secrets) if ceiling is not None]
    return Attempt(
        attack="extraction",
        name=name,
        prior=_mean([points[secret][0] for secret in secrets]),
        certified=_mean(certified) if len(certified) == len(secrets) else None,
        ceiling=_mean(ceilings) if len(ceilings) == len(secrets) else None,
        measured=success,
        hits=success.hits,
        runs=success.tried,
        reason=run.uncertified_reason,
    )


def _mean(values: Sequence[float]) -> float:
    """The mean, exact for equal numbers: bounds are shown rounded to the safe side, which would show an error."""
    return math.fsum(values) / len(values)

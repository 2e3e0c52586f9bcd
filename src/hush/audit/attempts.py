"""From what attacks found to rows that can be judged: which prior, which certified bound, and what counts as one run.

mechanism   the worst case of a secret, simulated: many runs
extraction  one prompt for each secret, chosen before anything is seen: its first place that is drawn about as often as
            any of its places, the longest prompt that fits
naming      the first canary of a run; the others share its model. Further runs may be added
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import final

import numpy as np
from numpy.typing import NDArray

from hush.audit.audited_run import AuditedRun
from hush.audit.canaries import Canary
from hush.audit.exposure import Ranked
from hush.audit.mechanism import MechanismAttack
from hush.audit.places import CANARIES
from hush.audit.statistics import Success
from hush.audit.verdict import MECHANISM, Attempt, Together
from hush.errors import InvalidInput
from hush.scan.public_formats import prior_among

__all__ = ["NamedRun", "extraction_attempts", "first_tries", "mechanism_attempt", "named_run", "naming_attempt"]

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

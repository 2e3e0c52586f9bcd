"""Several releases about the same secrets: posteriors of an adversary who holds all of their models.

The releases of one secret have unlike rates, noise and rounds. Given settings that do not depend on what earlier models
showed, all together are dominated by the product of their pairs: the parts of one run (docs/proofs.md, "Unlike
releases"). A series announces limits before its first release: `limit_posterior` and `limit_capacity` give what holds
for everything that stays inside them (docs/proofs.md, "Series"). ``hush.accounting.moments`` is for settings that may
depend on earlier models.

Legend: S secrets, Q promised points of a secret, R releases, C measures of how often a secret is drawn.
"""

import heapq
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import count as counting
from typing import SupportsIndex, overload

import numpy as np
from numpy.typing import ArrayLike

from hush.accounting.accountant import (
    ACCURACY,
    FINEST_WIDTH,
    SPREAD_WIDTHS,
    Crowd,
    Indices,
    Workers,
    count_tail,
    lower_posterior,
    noiseless_posterior,
    prior_rows,
    rounded_up,
    upper_posterior,
)
from hush.accounting.arguments import (
    Bound,
    Side,
    check_side,
    checked_accuracy,
    checked_choice,
    checked_noise,
    checked_priors,
    checked_rates,
    checked_rounds,
)
from hush.accounting.calibration import MAX_COUNT, checked_promises, largest_means
from hush.accounting.counts import CountLaw, count_law, poisson_law
from hush.accounting.one_round import Part
from hush.arrays import Array, Progress
from hush.errors import InvalidInput, Setting
from hush.incidence import Incidence

__all__ = [
    "MAX_RELEASES",
    "Shape",
    "joint_posterior",
    "joint_posteriors",
    "limit_capacity",
    "limit_posterior",
]

MAX_RELEASES, MAX_TOTAL_ROUNDS = 1000, 10**11  # of one chain (E37), (E38)
JOINT_GROUPS = 256  # into which secrets are grouped by what all releases tell; speed only
LIMIT_GROUPS = 1024  # the same for limits, of which tables of capacities give fewer; speed only
PAST_GROUPS = 32  # into which secrets are grouped by what earlier releases allowed; speed only
LEAST_SHARE = 1e-3  # of the largest measure of a group, at which it may be divided; tightness only
RESOLVED_SHARE, COARSEST = 0.02, 1e-2  # accuracy relative to the width of a group, and at most; tightness only
TINY = 1e-300  # prevents division by 0; tightness only
LEAST_MEASURE = 1e-8  # of the largest secret's: below it secrets count as alike; tightness only

PartsOf = Callable[
    [Indices, float], list[Part]
]  # what dominates all releases of these secrets; and the tail to concede


@dataclass(frozen=True, slots=True, kw_only=True)
class Shape:
    """Noise and rounds of one release, announced or past. Limits: noise at least, rounds at most.

    >>> Shape(noise_multiplier=2.0, rounds=1000)
    Shape(noise_multiplier=2.0, rounds=1000)
    """

    noise_multiplier: float
    rounds: int

    def __post_init__(self) -> None:
        object.__setattr__(self, "noise_multiplier", checked_noise(self.noise_multiplier))
        object.__setattr__(self, "rounds", checked_rounds(self.rounds))


# One secret.


@overload
def joint_posterior(
    rates: Sequence[ArrayLike],
    *,
    noise_multipliers: Sequence[float],
    rounds: Sequence[SupportsIndex],
    prior: float,
    bound: Bound = "blowup",
    side: Side = "upper",
    accuracy: float = ACCURACY,
) -> float: ...
@overload
def joint_posterior(
    rates: Sequence[ArrayLike],
    *,
    noise_multipliers: Sequence[float],
    rounds: Sequence[SupportsIndex],
    prior: ArrayLike,
    bound: Bound = "blowup",
    side: Side = "upper",
    accuracy: float = ACCURACY,
) -> float | Array: ...
def joint_posterior(
    rates: Sequence[ArrayLike],
    *,
    noise_multipliers: Sequence[float],
    rounds: Sequence[SupportsIndex],
    prior: ArrayLike,
    bound: Bound = "blowup",
    side: Side = "upper",
    accuracy: float = ACCURACY,
) -> float | Array:
    """Probability with which an adversary names the secret after several trainings, from each prior.

    rates, noise_multipliers and rounds have one entry for each release: the sampling probabilities of the examples
    that contain the secret in that release (none, if it is not there), its noise multiplier, and its rounds.

    Guarantee: as of `posterior`, for settings that do not depend on what earlier models showed. If a release was
    chosen by looking at an earlier one, this is no bound in general; see `limit_posterior`, and
    ``hush.accounting.moments``.

    >>> once = joint_posterior([[0.01] * 50], noise_multipliers=[2.0], rounds=[100], prior=1e-6)
    >>> twice = joint_posterior(
    ...     [[0.01] * 50, [0.02] * 30], noise_multipliers=[2.0, 3.0], rounds=[100, 50], prior=1e-6
    ... )
    >>> round(once, 6), round(twice, 6)
    (0.024718, 0.051369)
    """
    shapes = _shapes(noise_multipliers, rounds)
    _checked_number_of("rates", len(rates), len(shapes))
    rates_R = [checked_rates(each) for each in rates]
    priors = checked_priors(prior)
    check_side(bound, side)
    accuracy = checked_accuracy(accuracy)
    flat = priors.ravel()
    if flat.size == 0:
        return priors.copy()
    tail = count_tail(float(flat.min()), _total_rounds(shapes))
    parts = _merged(
        [
            Part(law=count_law(rate_N[rate_N > 0], tail=tail), sigma=shape.noise_multiplier, rounds=shape.rounds)
            for rate_N, shape in zip(rates_R, shapes, strict=True)
        ]
    )
    if side == "upper":
        answer = upper_posterior(parts, flat, bound=bound, accuracy=accuracy)
    else:
        answer = lower_posterior(parts, flat, accuracy=accuracy)
    return float(answer[0]) if priors.ndim == 0 else answer.reshape(priors.shape)


def _shapes(noise_multipliers: Sequence[float], rounds: Sequence[SupportsIndex]) -> list[Shape]:
    """One shape for each release, of which there is at least one."""
    _checked_number_of("rounds", len(rounds), len(noise_multipliers))
    shapes = [
        Shape(noise_multiplier=sigma, rounds=int(times))
        for sigma, times in zip(noise_multipliers, map(checked_rounds, rounds), strict=True)
    ]
    return _checked_shapes(shapes, "noise_multipliers")


def _checked_shapes(shapes: Sequence[Shape], name: str = "shapes") -> list[Shape]:
    if not 1 <= len(shapes) <= MAX_RELEASES:
        raise InvalidInput(Setting(name), f" has {len(shapes)} releases; pass 1 to {MAX_RELEASES}", setting=name)
    if _total_rounds(shapes) > MAX_TOTAL_ROUNDS:
        raise InvalidInput(f"all releases together may have {MAX_TOTAL_ROUNDS:.0e} rounds", setting="rounds",
                           value=_total_rounds(shapes))  # fmt: skip
    return list(shapes)


def _checked_number_of(name: str, given: int, expected: int) -> None:
    if given != expected:
        raise InvalidInput(
            Setting(name), f" has {given} entries for {expected} releases; pass one for each release", setting=name
        )


def _total_rounds(shapes: Sequence[Shape]) -> int:
    return sum(shape.rounds for shape in shapes)


def _merged(parts: Sequence[Part]) -> list[Part]:
    """The parts, those with one noise and the same law taken together."""
    merged: list[Part] = []
    for part in parts:
        for i, other in enumerate(merged):
            if part.sigma == other.sigma and _same(part.law, other.law):
                merged[i] = Part(law=other.law, sigma=other.sigma, rounds=other.rounds + part.rounds)
                break
        else:
            merged.append(part)
    return merged


def _same(one: CountLaw, other: CountLaw) -> bool:
    if one is other:
        return True
    facts, others = ((law.lowest, law.certain, law.lifted, law.relative_error, law.log_idle) for law in (one, other))
    return facts == others and np.array_equal(one.mass, other.mass)


# Many secrets.


def joint_posteriors(
    graphs: Sequence[Incidence],
    *,
    rates: Sequence[ArrayLike],
    noise_multipliers: Sequence[float],
    rounds: Sequence[SupportsIndex],
    prior: ArrayLike,
    bound: Bound = "blowup",
    accuracy: float = ACCURACY,
    progress: Progress | None = None,
) -> Array:
    """Probability with which an adversary names each secret after several trainings.

    One graph, rates, noise multiplier and number of rounds for each release. Row j of every graph is the same secret; a
    secret that a release does not contain has no examples there. prior and the answer are as in `posteriors`.

    Guarantee: every entry is an upper bound, for settings that do not depend on what earlier models showed. Secrets
    share a bound, which costs a few percent where the releases draw them alike, and up to a factor of 2 or 3 where
    each release draws other ones more often; `joint_posterior` gives the tight one for a single secret.

    >>> first = Incidence.from_pairs([0, 1, 1], [0, 0, 1], num_examples=2, num_secrets=2)
    >>> second = Incidence.from_pairs([0, 0, 1, 2], [0, 1, 1, 1], num_examples=3, num_secrets=2)
    >>> joint_posteriors(
    ...     [first, second], rates=[0.1, 0.05], noise_multipliers=[1.0, 1.5], rounds=[100, 100], prior=1e-6
    ... ).round(4).tolist()
    [0.0187, 0.0016]
    """
    shapes = _shapes(noise_multipliers, rounds)
    _checked_number_of("graphs", len(graphs), len(shapes))
    _checked_number_of("rates", len(rates), len(shapes))
    num_secrets = graphs[0].num_secrets
    for number, graph in enumerate(graphs):
        if graph.num_secrets != num_secrets:
            raise InvalidInput(
                Setting("graphs"),
                f"[{number}] has {graph.num_secrets} secrets, the first {num_secrets}; give every graph a row for each "
                "secret, in the same order",
                setting="graphs",
            )
    rates_R = [checked_rates(each, length=graph.num_examples) for each, graph in zip(rates, graphs, strict=True)]
    checked_choice("bound", bound, Bound)
    prior_SQ = prior_rows(prior, num_secrets)
    tail = count_tail(float(prior_SQ.min(initial=0.5)), _total_rounds(shapes))
    crowds = [Crowd(graph, rate_N, tail=tail) for graph, rate_N in zip(graphs, rates_R, strict=True)]
    measures: list[Array] = []
    log_idle_S = np.zeros(num_secrets)
    for crowd, shape in zip(crowds, shapes, strict=True):
        measures += _measures(crowd.mean_S, crowd.square_S, shape)[: 2 if crowd.has_mixed_rates else 1]
        log_idle_S += shape.rounds * crowd.log_idle_S

    def parts_of(member: Indices, tail: float) -> list[Part]:
        del tail  # the crowds' own
        return [
            Part(law=crowd.law(member), sigma=shape.noise_multiplier, rounds=shape.rounds)
            for crowd, shape in zip(crowds, shapes, strict=True)
        ]

    joint = _Joint(
        prior_SQ=prior_SQ,
        measure_SC=np.column_stack(measures),
        log_idle_S=log_idle_S,
        parts_of=parts_of,
        rounds=_total_rounds(shapes),
        bound=bound,
        accuracy=checked_accuracy(accuracy),
        most_groups=JOINT_GROUPS,
        progress=progress,
    )
    posterior_SQ = joint.posteriors()
    return posterior_SQ if np.ndim(prior) == 2 else posterior_SQ[:, 0]


def _measures(mean_S: Array, square_S: Array, shape: Shape) -> list[Array]:
    """How much a release tells, roughly: rounds times (mean / noise)^2, and the share of it that spreads less."""
    noise = max(shape.noise_multiplier, 1e-3)  # tightness only
    strength_S = shape.rounds * (mean_S / noise) ** 2
    spread_S = shape.rounds * mean_S * square_S / (noise * noise) / SPREAD_WIDTHS
    return [strength_S, spread_S]


def _width(measure_sC: Array, floor: float, total_s: Array | None = None) -> float:
    """The log of the measure of a group's dominating laws over that of its least member, or over the floor."""
    largest = float(measure_sC.max(axis=0).sum())
    least = float((measure_sC.sum(axis=1) if total_s is None else total_s).min())
    return float(np.log(largest / max(least, floor, TINY))) if largest > floor else 0.0


def alike(measure_SC: Array, member: Indices, most: int) -> list[Indices]:
    """The members in at most `most` groups, those split first whose largest and smallest secret differ most.

    Nothing but speed and tightness depends on the groups: what is proven holds for any.
    """
    if member.size == 0:
        return []
    total_S = measure_SC.sum(axis=1)
    floor = LEAST_MEASURE * float(total_S[member].max())
    order = counting()
    groups: list[tuple[float, int, Indices]] = []

    def keep(part: Indices) -> None:
        heapq.heappush(groups, (-_width(measure_SC[part], floor, total_S[part]), next(order), part))

    keep(member)
    while len(groups) < most and groups[0][0] < -2 * FINEST_WIDTH:
        _, _, part = heapq.heappop(groups)
        measure_sC = measure_SC[part]
        column = int(np.ptp(measure_sC, axis=0).argmax())
        measure_s = measure_sC[:, column]
        high, low = float(measure_s.max()), float(measure_s.min())
        upper = measure_s > np.sqrt(high * max(low, LEAST_SHARE * high))
        if not upper.any() or upper.all():
            upper = measure_s == high
        keep(part[upper])
        keep(part[~upper])
    return [part for _, _, part in sorted(groups)]


@dataclass(frozen=True, kw_only=True)
class _Joint:
    """The posteriors of many secrets after all releases, each group by laws that dominate its members in each."""

    prior_SQ: Array
    measure_SC: Array
    log_idle_S: Array
    parts_of: PartsOf
    rounds: int
    bound: Bound
    accuracy: float
    most_groups: int
    progress: Progress | None

    def posteriors(self) -> Array:
        """An upper bound for each secret and point."""
        posterior_SQ = noiseless_posterior(self.log_idle_S[:, None], 1, self.prior_SQ)
        drawn = np.flatnonzero(self.log_idle_S < 0)
        groups = alike(self.measure_SC, drawn, self.most_groups)
        for member, bounds in zip(groups, Workers(progress=self.progress).map(self._at, groups), strict=True):
            posterior_SQ[member] = np.minimum(posterior_SQ[member], bounds)
        return posterior_SQ

    def _at(self, member: Indices) -> Array:
        prior_mq = self.prior_SQ[member]
        distinct, where = rounded_up(prior_mq)
        parts = _merged(self.parts_of(member, count_tail(float(distinct[0]), self.rounds)))
        # What sharing a bound costs need not be resolved finely.
        coarse = min(COARSEST, RESOLVED_SHARE * _width(self.measure_SC[member], 0.0))
        bounds = upper_posterior(parts, distinct, bound=self.bound, accuracy=max(self.accuracy, coarse))
        return bounds[where].reshape(prior_mq.shape)


# Limits.


def limit_posterior(
    limit: ArrayLike,
    shapes: Sequence[Shape],
    *,
    prior: ArrayLike,
    bound: Bound = "blowup",
    accuracy: float = ACCURACY,
) -> Array:
    """Posterior of each secret after all announced releases, for counts up to Poisson(limit) in every round.

    limit: one number for each secret (the same in every release), or a row with one number for each release. prior: one
    number, one per secret, or several per secret. The answer has the shape of prior with one row for each secret.

    Guarantee: an upper bound for everything inside the limits: in release r at most shapes[r].rounds rounds, noise of
    at least shapes[r].noise_multiplier, and rates whose sum of -log(1 - rate) over the secret's examples is at most the
    limit. Also if what is done inside them was chosen by looking at earlier models. It never rises later.

    >>> shapes = [Shape(noise_multiplier=3.0, rounds=1000)] * 12
    >>> limit_posterior([0.05, 0.1], shapes, prior=1e-10).round(6).tolist()
    [4e-06, 0.004789]
    """
    announced = _checked_shapes(shapes)
    limit_SR = _limit_rows("limit", limit, len(announced))
    num_secrets = len(limit_SR)
    checked_choice("bound", bound, Bound)
    prior_SQ = prior_rows(prior, num_secrets)
    measures: list[Array] = []
    for limit_S, shape in zip(limit_SR.T, announced, strict=True):
        measures += _measures(limit_S, np.zeros(num_secrets), shape)[:1]

    def parts_of(member: Indices, tail: float) -> list[Part]:
        return _poisson_parts(limit_SR[member].max(axis=0).tolist(), announced, tail)

    joint = _Joint(
        prior_SQ=prior_SQ,
        measure_SC=np.column_stack(measures),
        log_idle_S=-limit_SR @ np.array([float(shape.rounds) for shape in announced]),
        parts_of=parts_of,
        rounds=_total_rounds(announced),
        bound=bound,
        accuracy=checked_accuracy(accuracy),
        most_groups=LIMIT_GROUPS,
        progress=None,
    )
    posterior_SQ = joint.posteriors()
    return posterior_SQ if np.ndim(prior) == 2 else posterior_SQ[:, 0]


def _limit_rows(name: str, limit: ArrayLike, releases: int) -> Array:
    """Limits as a row for each secret, with one number for each release."""
    limits = np.asarray(limit, dtype=np.float64)
    if limits.ndim < 2:
        limits = np.repeat(limits.reshape(-1, 1), releases, axis=1)
    if limits.ndim != 2 or limits.shape[1] != releases:
        raise InvalidInput(
            Setting(name),
            f" has shape {limits.shape} for {releases} releases; pass one number for each secret, or a row of "
            f"{releases}",
            setting=name,
        )
    if not np.all((limits >= 0) & (limits <= MAX_COUNT)):
        raise InvalidInput(Setting(name), f" must be numbers from 0 to {MAX_COUNT:g}, expected draws in a round; an "
                           "example with rate 1 has no limit", setting=name)  # fmt: skip
    return limits


def _poisson_parts(means: Sequence[float], shapes: Sequence[Shape], tail: float) -> list[Part]:
    """Poisson counts with one mean for each release; equal releases are one part."""
    laws = {mean: poisson_law(mean, tail=tail) for mean in set(means)}
    return _merged(
        [
            Part(law=laws[mean], sigma=shape.noise_multiplier, rounds=shape.rounds)
            for mean, shape in zip(means, shapes, strict=True)
        ]
    )


def limit_capacity(
    prior: ArrayLike,
    ceiling: ArrayLike,
    *,
    shapes: Sequence[Shape],
    past: ArrayLike | None = None,
    bound: Bound = "blowup",
    accuracy: float = ACCURACY,
    most: float = MAX_COUNT,
) -> Array:
    """Largest limit for each secret, the same in every release to come, at which it keeps its promises after all.

    past: limits of the first releases, a row for each secret; without it all releases are to come. Everything else is
    as in `capacity`, which this is where all releases have the same noise.

    Guarantee: `limit_posterior` at the past and this limit was proven to be at most the ceiling. 0 where no limit is.

    >>> shapes = [Shape(noise_multiplier=3.0, rounds=1000)] * 12
    >>> limit_capacity(1e-10, 1e-3, shapes=shapes).round(3).tolist()
    [0.087]
    """
    announced = _checked_shapes(shapes)
    prior_SQ, ceiling_SQ = checked_promises(prior, ceiling)
    past_SR = np.zeros((len(prior_SQ), 0)) if past is None else np.asarray(past, dtype=np.float64)
    if past_SR.ndim != 2 or past_SR.shape[1] >= len(announced) or len(past_SR) not in (1, len(prior_SQ)):
        raise InvalidInput(
            Setting("past"),
            f" has shape {past_SR.shape} for {len(prior_SQ)} secrets and {len(announced)} releases; pass a row for "
            "each secret, with fewer entries than there are releases",
            setting="past",
        )
    begun = past_SR.shape[1]
    past_SR = np.broadcast_to(_limit_rows("past", past_SR, begun), (len(prior_SQ), begun))
    rounds = _total_rounds(announced)
    limit_S = np.zeros(len(prior_SQ))
    members = [np.arange(len(prior_SQ))]
    if begun:
        measures = [_measures(past_S, np.zeros(len(past_S)), shape)[0]
                    for past_S, shape in zip(past_SR.T, announced, strict=False)]  # fmt: skip
        members = alike(np.column_stack(measures), members[0], PAST_GROUPS)
    for member in members:
        spent = past_SR[member].max(axis=0).tolist()

        def parts_at(mean: float, tail: float, spent: Sequence[float] = spent) -> list[Part]:
            return _poisson_parts([*spent, *[mean] * (len(announced) - begun)], announced, tail)

        limit_S[member] = largest_means(
            prior_SQ[member], ceiling_SQ[member], parts_at=parts_at, rounds=rounds, bound=bound, accuracy=accuracy,
            most=most,
        )  # fmt: skip
    return limit_S

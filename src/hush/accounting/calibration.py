"""Calibration: the least noise that keeps every promise, and the largest expected count that a promise allows.

Calibration begins at the noise that the most demanding secret needs. All secrets are checked there in coarse groups;
those not proven safe are checked again in finer groups; those still not proven safe in the finest groups raise the
noise. More noise never raises a posterior (it is post-processing), so what is proven at some noise stays proven above
it. Searches end on the safe side: they return a value that was proven safe. All constants affect tightness and speed
only.

Legend: S secrets, Q promised points of a secret, N examples.
"""

import os
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from itertools import repeat
from typing import SupportsIndex

import numpy as np
from numpy.typing import ArrayLike

from hush.accounting.accountant import (
    ACCURACY,
    COARSE_GROUPS,
    FINEST_WIDTH,
    Crowd,
    Evaluator,
    Group,
    Indices,
    Workers,
    count_tail,
    noiseless_posterior,
    posteriors_at,
    upper_posterior,
)
from hush.accounting.arguments import (
    Bound,
    checked_accuracy,
    checked_choice,
    checked_noise,
    checked_priors,
    checked_rates,
    checked_rounds,
)
from hush.accounting.counts import poisson_law
from hush.accounting.one_round import Part
from hush.arrays import Array, Progress
from hush.errors import CannotCertify, InfeasiblePlan, InvalidInput
from hush.incidence import Incidence
from hush.numbers import checked_number, rounded_up
from hush.protection import promise_arrays

TOLERANCE = 1e-3  # relative width of the bracket whose safe end is returned
SPLIT_FACTOR = 8  # groups that are not proven safe are split into groups this much narrower
MIN_NOISE, MAX_NOISE = 1e-3, 1e9  # noise multipliers between which the search stays
BINDING_SHARE = 0.005  # a secret binds if this much less noise would break its promise
BINDING_WIDTH = 1e-3  # of the groups that separate binding secrets: sharing a law costs about as much noise
BINDING_CANDIDATES = 0.7  # log distance of a value from its limit up to which a secret may bind
MAX_COUNT = 1e6  # expected draws of a secret in one round
MIN_COUNT = 1e-12  # a smaller expected count is reported as 0; tightness only
MAX_TABLE_POINTS = 256  # means in the table that many promises share
TABLE_STEP = 2e-3  # relative distance of these means, where MAX_TABLE_POINTS allow it
MAX_SINGLE_SEARCHES = 16  # with more promises than this, they share a table

PartsAt = Callable[[float, float], Sequence[Part]]  # what is released if counts have this mean; and the tail to concede


@dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class Calibration:
    """Noise that keeps every promise. Invariant: posterior <= ceiling at every promised point of every secret.

    posterior and ceiling have one entry per secret, or one row per secret where several points are promised.
    binding lists the secrets whose promise about 0.5 % less noise would break; all others are proven to hold with 0.5 %
    less.
    """

    noise_multiplier: float
    posterior: Array
    ceiling: Array
    binding: Indices
    bound: Bound
    rounds: int

    def __post_init__(self) -> None:
        broken = ~(self.posterior <= self.ceiling)
        if broken.any():
            raise CannotCertify(f"{int(broken.sum())} posteriors exceed their ceilings; this calibration is void")

    def __repr__(self) -> str:
        return (
            f"Calibration(noise_multiplier={rounded_up(self.noise_multiplier, 6)}, secrets={len(self.posterior)}, "
            f"binding={self.binding.size}, bound={self.bound!r}, rounds={self.rounds})"
        )


def calibrate(
    incidence: Incidence,
    *,
    prior: ArrayLike,
    ceiling: ArrayLike,
    rates: ArrayLike,
    rounds: SupportsIndex,
    bound: Bound = "blowup",
    accuracy: float = ACCURACY,
    progress: Progress | None = None,
) -> Calibration:
    """The least noise multiplier under which every secret keeps all its promises, with all posteriors at it.

    prior and ceiling: one number, one per secret, or several points per secret (m x q, all must hold). rates: one
    sampling probability per example, or one for all. progress, if given, is called with (done, total) now and then.

    Guarantee: the noise returned is proven safe by the chosen bound for every secret (the safe end of the search,
    never its midpoint), and is 0 where no noise is needed. Every posterior is an upper bound.

    >>> incidence = Incidence.from_pairs([0, 1, 1], [0, 0, 1], num_examples=3, num_secrets=2)
    >>> calibration = calibrate(incidence, prior=1e-6, ceiling=[0.01, 0.1], rates=0.1, rounds=100)
    >>> round(calibration.noise_multiplier, 2), calibration.binding.tolist()
    (1.07, [0])
    """
    rate_N = checked_rates(rates, length=incidence.num_examples)
    count = checked_rounds(rounds)
    checked_choice("bound", bound, Bound)
    prior_SQ, ceiling_SQ = promise_arrays(prior, ceiling, incidence.num_secrets)
    checked_priors(prior_SQ)
    crowd = Crowd(incidence, rate_N, tail=count_tail(float(prior_SQ.min(initial=0.5)), count))
    value_at = posteriors_at(prior_SQ, rounds=count, bound=bound, accuracy=checked_accuracy(accuracy))
    search = Search(
        crowd=crowd,
        evaluator=Evaluator(value_at=value_at, workers=Workers(progress=progress)),
        free_SQ=noiseless_posterior(crowd.log_idle_S[:, None], count, prior_SQ),
        limit_SQ=ceiling_SQ,
        slack_S=np.log(ceiling_SQ / prior_SQ).min(axis=1),
        name=f"the bound {bound!r}",
        tight="prior = ceiling",
    )
    sigma, posterior_SQ, binding = search.solve()
    several = np.ndim(prior) == 2 or np.ndim(ceiling) == 2
    return Calibration(
        noise_multiplier=sigma,
        posterior=posterior_SQ if several else posterior_SQ[:, 0],
        ceiling=ceiling_SQ if several else ceiling_SQ[:, 0],
        binding=binding,
        bound=bound,
        rounds=count,
    )


@dataclass(frozen=True, kw_only=True)
class Search:
    """The search for the least noise multiplier at which every value, a posterior say, is at most its limit.

    free_SQ: the values without noise, which are upper bounds with any noise. slack_S: how much a promise allows, on
    any scale; 0 where it allows nothing. name and tight: of the bound, and of a promise that allows nothing, for
    messages.
    """

    crowd: Crowd
    evaluator: Evaluator
    free_SQ: Array
    limit_SQ: Array
    slack_S: Array
    name: str
    tight: str

    def solve(self) -> tuple[float, Array, Indices]:
        """The noise, every value at it, and the secrets that bind."""
        value_SQ = self.free_SQ.copy()
        needy = np.flatnonzero(~(value_SQ <= self.limit_SQ).all(axis=1))
        if needy.size == 0:
            return 0.0, value_SQ, np.empty(0, dtype=np.int64)
        self._refuse_impossible(needy)
        drawn = np.flatnonzero(self.crowd.mean_S > 0)
        sigma = self._least_noise(self._most_demanding(needy), 0.0)
        sigma, proven = self._prove(drawn, sigma, value_SQ)
        groups = [group for at, group in proven if at < sigma]  # the values of the others are known at this very noise
        for group, bounds in zip(groups, self.evaluator.evaluate(groups, sigma), strict=True):
            value_SQ[group.member] = np.minimum(value_SQ[group.member], bounds)  # both are upper bounds
        return sigma, value_SQ, self._binding(value_SQ, drawn, sigma)

    def _refuse_impossible(self, needy: Indices) -> None:
        tight = needy[~(self.slack_S[needy] > 0)]
        if tight.size:
            raise InfeasiblePlan(
                f"secret {int(tight[0])} has {self.tight} and examples that are drawn ({tight.size} such secrets): "
                "no finite noise suffices; raise its ceiling or set the rates of its examples to 0"
            )

    def _most_demanding(self, needy: Indices) -> Group:
        """The secret that probably needs the most noise: the largest mean count relative to what its promise allows."""
        rank_S = self.crowd.mean_S[needy] / self.slack_S[needy]
        return next(self.crowd.grouped(needy[[int(rank_S.argmax())]], FINEST_WIDTH))

    def _prove(self, member: Indices, sigma: float, value_SQ: Array) -> tuple[float, list[tuple[float, Group]]]:
        """Raise sigma until every secret is proven safe at it; also the groups that prove it, each with its sigma."""
        safe: list[tuple[float, Group]] = []
        waiting = list(self.crowd.grouped(member, self.crowd.coarse_width(member, COARSE_GROUPS)))
        while waiting:
            unproven: list[tuple[float, Group]] = []
            for group, bounds in zip(waiting, self.evaluator.evaluate(waiting, sigma), strict=True):
                fails = ~(bounds <= self.limit_SQ[group.member]).all(axis=1)  # NaN fails
                proven, rest = group.member[~fails], group.member[fails]
                value_SQ[proven] = np.minimum(value_SQ[proven], bounds[~fails])
                if proven.size:
                    safe.append((sigma, Group(member=proven, law=group.law, width=group.width)))
                if rest.size:
                    excess = self._excess(rest, bounds[fails])
                    unproven.append((excess, Group(member=rest, law=group.law, width=group.width)))
            waiting = [group for _, group in unproven if group.is_finest]
            coarse = [group for _, group in unproven if not group.is_finest]
            for width in {group.width for group in coarse}:
                again = np.sort(np.concatenate([group.member for group in coarse if group.width == width]))
                waiting.extend(self.crowd.grouped(again, max(FINEST_WIDTH, width / SPLIT_FACTOR)))
            if unproven and not coarse:
                sigma = self._least_noise(max(unproven, key=lambda pair: pair[0])[1], sigma)
        return sigma, safe

    def _binding(self, value_SQ: Array, drawn: Indices, sigma: float) -> Indices:
        """The secrets that no group proves safe with slightly less noise. A coarse group proves most of the others."""
        near = (np.log(value_SQ[drawn]) > np.log(self.limit_SQ[drawn]) - BINDING_CANDIDATES).any(axis=1)
        unproven, width = drawn[near], np.inf
        while unproven.size and width > BINDING_WIDTH:
            width = min(self.crowd.coarse_width(unproven, COARSE_GROUPS), max(BINDING_WIDTH, width / SPLIT_FACTOR))
            groups = list(self.crowd.grouped(unproven, width))
            fails = [
                group.member[~(bounds <= self.limit_SQ[group.member]).all(axis=1)]
                for group, bounds in zip(
                    groups, self.evaluator.evaluate(groups, sigma * (1 - BINDING_SHARE)), strict=True
                )
            ]
            unproven = np.sort(np.concatenate(fails))
        return unproven

    def _least_noise(self, group: Group, unsafe: float) -> float:
        """The least noise that is safe for one group."""

        def excess(sigma: float) -> float:
            return self._excess(group.member, self.evaluator.at(group, sigma))

        sigma = least_safe(excess, unsafe=unsafe, start=0.25, least=MIN_NOISE, most=MAX_NOISE)
        if sigma is None:
            raise CannotCertify(
                f"secret {int(group.member[0])} needs a noise multiplier above {MAX_NOISE:.0e} under "
                f"{self.name}; raise its ceiling or draw its examples less often"
            )
        return sigma

    def _excess(self, member: Indices, bounds: Array) -> float:
        """Largest log(value / limit): safe exactly if it is at most 0."""
        return float(np.log(bounds / self.limit_SQ[member]).max())


# The largest expected count.


def capacity(
    prior: ArrayLike,
    ceiling: ArrayLike,
    *,
    noise_multiplier: float,
    rounds: SupportsIndex,
    bound: Bound = "blowup",
    accuracy: float = ACCURACY,
    most: float = MAX_COUNT,
) -> Array:
    """Largest s such that a Poisson(s) number of the secret's examples per round keeps the promise, for each secret.

    prior and ceiling as in `calibrate`: one number, one per secret, or several points per secret (all must hold; the
    smallest capacity counts). The answer has one entry per secret (a single one for two plain numbers), at most `most`:
    the search stops there, since a large count takes long to account for.

    Guarantee: a secret whose rates satisfy sum of -log(1 - rate) <= s keeps its promise, since its count is then
    dominated by the Poisson law. The answer errs downwards: by about 0.1 %; where many promises share a table by 1 %
    if they allow about as much, by a few percent if not, and more where a ceiling is next to its prior.

    >>> round(float(capacity(1e-10, 1e-3, noise_multiplier=2.0, rounds=2000)[0]), 3)
    0.135
    """
    sigma, count = checked_noise(noise_multiplier), checked_rounds(rounds)

    def parts_at(mean: float, tail: float) -> list[Part]:
        return [Part(law=poisson_law(mean, tail=tail), sigma=sigma, rounds=count)]

    prior_SQ, ceiling_SQ = checked_promises(prior, ceiling)
    return largest_means(
        prior_SQ, ceiling_SQ, parts_at=parts_at, rounds=count, bound=bound, accuracy=accuracy, most=most
    )


def checked_promises(prior: ArrayLike, ceiling: ArrayLike) -> tuple[Array, Array]:
    """Priors and ceilings of as many secrets as they have rows."""
    sizes = [np.shape(values)[0] for values in (prior, ceiling) if np.ndim(values)]
    prior_SQ, ceiling_SQ = promise_arrays(prior, ceiling, sizes[0] if sizes else 1)
    checked_priors(prior_SQ)
    return prior_SQ, ceiling_SQ


def largest_means(
    prior_SQ: Array,
    ceiling_SQ: Array,
    *,
    parts_at: PartsAt,
    rounds: int,
    bound: Bound,
    accuracy: float,
    most: float,
) -> Array:
    """For each secret the largest mean, as it was proven, at which the parts of this mean keep its promises."""
    checked_choice("bound", bound, Bound)
    accuracy, limit = checked_accuracy(accuracy), checked_number("most", most)
    if not MIN_COUNT < limit <= MAX_COUNT:
        raise InvalidInput(
            f"pass an expected count above {MIN_COUNT} and at most {MAX_COUNT:g}", setting="most", value=most
        )
    points, where = np.unique(np.stack([prior_SQ.ravel(), ceiling_SQ.ravel()]), axis=1, return_inverse=True)

    def value_at(mean: float, member: Indices) -> Array:
        priors, which = np.unique(points[0][member], return_inverse=True)
        parts = parts_at(mean, count_tail(float(priors[0]), rounds))  # one law serves all priors
        return upper_posterior(parts, priors, bound=bound, accuracy=accuracy)[which]

    curves = Curves(value_at=value_at, most=limit)
    mean_P = curves.largest(points[1], np.flatnonzero(points[0] < points[1]))
    return mean_P[where.ravel()].reshape(prior_SQ.shape).min(axis=1)


@dataclass(frozen=True, kw_only=True)
class Curves:
    """A value, a posterior say, as a function of the expected count, for points P: one increasing curve for each.

    value_at: upper bounds at a mean, for some of the points. Their limits are best sorted where they share a curve.
    """

    value_at: Callable[[float, Indices], Array]
    most: float

    def largest(self, limit_P: Array, able: Indices) -> Array:
        """For each point a mean that is proven safe and close to the largest such mean; 0 where none of `able` is."""
        mean_P = np.zeros(limit_P.size)
        if able.size > MAX_SINGLE_SEARCHES:
            able = able[self.value_at(MIN_COUNT, able) <= limit_P[able]]
        if able.size > MAX_SINGLE_SEARCHES:
            mean_P[able] = self._table(able, limit_P[able])
        else:
            low = 0.0
            for point in able.tolist():
                # On the same curve, a higher limit allows a little more.
                low = self._search(np.array([point]), limit_P[[point]], guess=low or 0.1)
                mean_P[point] = low
        return mean_P

    def _table(self, member: Indices, limit_m: Array) -> Array:
        """As ``largest``, by a table of means: octaves first, then steps inside those that hold an answer."""
        low = self._search(member, limit_m) or MIN_COUNT  # where all are safe
        high = max(self._search(member, limit_m, every=False, guess=low), low)
        octaves = max(int(np.ceil(np.log2(high / low))), 1)
        factor = (high / low) ** (1 / octaves)
        begin_o: Array = low * factor ** np.arange(octaves + 1)
        begin_m = self._climb(member, limit_m, begin_o)
        steps = int(np.clip(np.log(factor) / TABLE_STEP, 1, MAX_TABLE_POINTS // np.unique(begin_m).size))
        mean_m = begin_m.copy()
        for begin in begin_o[:-1].tolist():  # no octave begins at the last
            inside = np.flatnonzero(begin_m == begin)
            means = begin * factor ** np.linspace(0.0, 1.0, steps + 1)
            mean_m[inside] = np.maximum(begin, self._climb(member[inside], limit_m[inside], means))
        return np.minimum(mean_m, self.most)  # the last mean may exceed it by rounding

    def _climb(self, member: Indices, limit_m: Array, means: Array) -> Array:
        """For each member the last of these ascending means up to which all are safe; 0 where the first is not."""
        mean_m, left, workers = np.zeros(member.size), np.arange(member.size), os.cpu_count() or 1
        with ThreadPoolExecutor(workers) as pool:  # the array work runs outside the interpreter lock
            for batch in np.split(means, range(workers, means.size, workers)):
                if left.size == 0:
                    break
                safe = np.ones(left.size, dtype=np.bool_)
                for mean, bounds in zip(batch, pool.map(self.value_at, batch, repeat(member[left])), strict=True):
                    safe &= bounds <= limit_m[left]
                    mean_m[left[safe]] = mean
                left = left[safe]
        return mean_m

    def _search(self, member: Indices, limit_m: Array, *, every: bool = True, guess: float = 0.1) -> float:
        """A mean close to the largest that is safe for every member, or for any; 0 where none is."""
        worst = np.max if every else np.min

        def excess(inverse: float) -> float:
            return float(worst(np.log(self.value_at(1 / inverse, member) / limit_m)))

        # The largest safe mean is one over the least safe inverse of a mean.
        start = 1 / min(max(guess, MIN_COUNT), self.most)
        inverse = least_safe(excess, start=start, least=1 / self.most, most=1 / MIN_COUNT)
        return 0.0 if inverse is None else 1 / inverse


def least_safe(
    excess: Callable[[float], float], *, unsafe: float = 0.0, start: float, least: float, most: float
) -> float | None:
    """The least x, within TOLERANCE, with excess(x) <= 0; None if it is above `most`, `least` if it is below that.

    `unsafe` is an x that is known to be unsafe, or 0; the search begins at `start`. The excess decreases in x, nearly
    linearly in its logarithm, so each probe aims just above the root of the secant; a bisection step follows a probe
    that reduces the bracket too little. Guarantee: excess(x) <= 0 was evaluated at the value returned.
    """
    low, high = unsafe, max(unsafe * (1 + 4 * TOLERANCE), start)
    low_excess, high_excess = np.inf, excess(high)
    factor = 1.05 if unsafe > 0 else 2.0
    while not high_excess <= 0:  # written so that NaN is not safe
        low, low_excess = high, high_excess
        if high >= most:
            return None
        high, factor = min(high * factor, most), factor * factor
        high_excess = excess(high)
    while low == 0.0 and high > least:
        probe = max(high / 2, least)
        probe_excess = excess(probe)
        if not probe_excess <= 0:
            low, low_excess = probe, probe_excess
        else:
            high, high_excess = probe, probe_excess
    missed = False
    while high > max(low, least) * (1 + TOLERANCE):
        share = low_excess / (low_excess - high_excess) if np.isfinite(low_excess) and not missed else 0.5
        probe = low * (high / low) ** float(np.clip(share, 0.05, 0.95)) * (1 + 0.3 * TOLERANCE)
        probe = min(max(probe, low * (1 + 0.3 * TOLERANCE)), high * (1 - 0.3 * TOLERANCE))
        probe_excess = excess(probe)
        width = high / low
        if not probe_excess <= 0:
            low, low_excess = probe, probe_excess
        else:
            high, high_excess = probe, probe_excess
        missed = (high / low - 1) > 0.5 * (width - 1)
    return high  # proven safe; never the midpoint

"""Posteriors of one secret, and of many secrets at one noise.

One secret: from the sampling rates of its examples to the success of an adversary. Many secrets: those whose counts
have nearly the same mean and spread share one dominating law, so that one evaluation serves the group. Labels (E5) and
(E30) refer to docs/proofs.md.

Legend: S secrets, Q priors of a secret, N examples.
"""

import os
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from itertools import pairwise
from typing import SupportsIndex, TypeVar, overload

import numpy as np
from numpy.typing import ArrayLike, NDArray

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
from hush.accounting.blowup import blowup_lower, blowup_upper
from hush.accounting.counts import EPS, CountLaw, count_law, joined_law
from hush.accounting.divergences import kl_upper, renyi_upper
from hush.accounting.one_round import Part
from hush.arrays import Array, Progress
from hush.errors import InvalidInput, Setting
from hush.incidence import Incidence

Indices = NDArray[np.int64]
Task = TypeVar("Task")

ACCURACY = 1e-3  # default of the relative excess to aim for; tightness only
BLOCK_ENTRIES = 2**20  # of the graph that are summed at once, to bound the memory
COUNT_TAIL_SHARE = 1e-9  # of the prior, over all rounds: mass of the count's tail that is conceded; tightness only
MIN_COUNT_TAIL = 1e-310  # tightness only
MAX_ALLOWANCE = 0.05  # share of round-off in a bound above which the Renyi bound is computed too; tightness only
NOISELESS_ROUNDING = 1e5 * EPS  # relative error of the noiseless bound (E5)
FINEST_WIDTH = 2e-4  # relative width of the finest groups: sharing a law costs almost no noise; tightness only
SPREAD_WIDTHS = 8  # widths in mean that a group may differ in spread; tightness only
COARSE_GROUPS = 384  # into which secrets are grouped first; speed only
MAX_DISTINCT = 48  # priors or orders evaluated for one group; more are rounded up to a grid; tightness only (E30)


@overload
def posterior(
    rates: ArrayLike,
    *,
    noise_multiplier: float,
    rounds: SupportsIndex,
    prior: float,
    bound: Bound = "blowup",
    side: Side = "upper",
    accuracy: float = ACCURACY,
) -> float: ...
@overload
def posterior(
    rates: ArrayLike,
    *,
    noise_multiplier: float,
    rounds: SupportsIndex,
    prior: ArrayLike,
    bound: Bound = "blowup",
    side: Side = "upper",
    accuracy: float = ACCURACY,
) -> float | Array: ...
def posterior(
    rates: ArrayLike,
    *,
    noise_multiplier: float,
    rounds: SupportsIndex,
    prior: ArrayLike,
    bound: Bound = "blowup",
    side: Side = "upper",
    accuracy: float = ACCURACY,
) -> float | Array:
    """Probability with which an adversary names the secret after training, from each prior.

    rates are the sampling probabilities of the examples that contain the secret; noise_multiplier 0 means no noise:
    the adversary then learns the secret exactly when any of its examples is ever drawn. A prior bounds the probability
    of every candidate given the rest of the data.

    Guarantee: with side="upper" the answer is always an upper bound; with side="lower" it is the success of an explicit
    attack on the dominating pair, so the true value for the bound "blowup" lies between the two. It is the least that
    can be promised from that pair; for particular gradients less may be true. `accuracy` is the
    relative excess to aim for; a smaller one costs time, a larger one never costs safety.

    >>> round(posterior([0.001] * 100, noise_multiplier=2.0, rounds=1000, prior=1e-10), 7)
    2.1e-06
    """
    rate_N = checked_rates(rates)
    sigma, count = checked_noise(noise_multiplier), checked_rounds(rounds)
    priors = checked_priors(prior)
    check_side(bound, side)
    accuracy = checked_accuracy(accuracy)
    flat = priors.ravel()
    if flat.size == 0:
        return priors.copy()
    law = count_law(rate_N[rate_N > 0], tail=count_tail(float(flat.min()), count))
    parts = [Part(law=law, sigma=sigma, rounds=count)]
    if side == "upper":
        answer = upper_posterior(parts, flat, bound=bound, accuracy=accuracy)
    else:
        answer = lower_posterior(parts, flat, accuracy=accuracy)
    return float(answer[0]) if priors.ndim == 0 else answer.reshape(priors.shape)


def count_tail(prior: float, rounds: int) -> float:
    """Mass of the count's tail that may be conceded at this prior without a visible effect on the answer."""
    return max(COUNT_TAIL_SHARE * prior / rounds, MIN_COUNT_TAIL)


def upper_posterior(parts: Sequence[Part], priors: Array, *, bound: Bound, accuracy: float) -> Array:
    """Upper bounds for all parts together: the requested bound, or the noiseless limit where that is smaller."""
    drawn = [part for part in parts if part.law.log_idle < 0.0]
    noiseless = _noiseless(drawn, priors)
    if all(part.sigma == 0.0 for part in drawn):
        return noiseless
    if bound == "kl":
        bounds = kl_upper(drawn, priors, accuracy=accuracy)
    elif bound == "renyi":
        bounds = renyi_upper(drawn, priors, accuracy=accuracy)
    else:
        bounds, allowance = blowup_upper(drawn, priors, accuracy=accuracy)
        loose = allowance > MAX_ALLOWANCE
        if loose.any():  # deep valleys between the modes of a run: another certified bound may be better
            bounds[loose] = np.minimum(bounds[loose], renyi_upper(drawn, priors[loose], accuracy=accuracy))
    # fmin: where a bound is NaN the noiseless limit, which always holds, remains.
    return np.maximum(priors, np.fmin(noiseless, bounds))


def _noiseless(drawn: Sequence[Part], priors: Array) -> Array:
    """The noiseless limit of all parts together; these draw the secret with some probability."""
    return noiseless_posterior(sum(part.rounds * part.law.log_idle for part in drawn), 1, priors)


def noiseless_posterior(log_idle: float | Array, rounds: int, priors: Array) -> Array:
    """1 - (1 - p) * P(never drawn), rounded up (E5): the answer without noise, and an upper bound with any noise.

    Noise is post-processing. log_idle is the log-probability that one round draws none of the examples.
    """
    exponent = np.log1p(-priors) + rounds * np.asarray(log_idle)
    bound = np.minimum(1.0, -np.expm1(exponent) * (1 + NOISELESS_ROUNDING))
    return np.where(np.asarray(log_idle) == 0.0, priors, bound)


def lower_posterior(parts: Sequence[Part], priors: Array, *, accuracy: float) -> Array:
    """Success of an explicit attack on all parts together."""
    drawn = [part for part in parts if part.law.log_idle < 0.0]
    if not drawn:
        return priors.copy()
    if all(part.sigma == 0.0 for part in drawn):
        return np.maximum(priors, _noiseless(drawn, priors) * (1 - 2 * NOISELESS_ROUNDING))
    return blowup_lower(drawn, priors, accuracy=accuracy)


# Groups of secrets.


@dataclass(frozen=True, slots=True, kw_only=True)
class Group:
    """Secrets that share one law, which dominates the count of each: a bound for this law holds for all of them."""

    member: Indices
    law: CountLaw
    width: float

    @property
    def is_finest(self) -> bool:
        """So narrow that splitting it would not matter."""
        return self.width <= FINEST_WIDTH


class Crowd:
    """The sampling rates of the examples of every secret, and groups of secrets that are drawn about equally often."""

    def __init__(self, incidence: Incidence, rate_N: Array, *, tail: float) -> None:
        self._incidence, self._rate_N, self._tail = incidence, rate_N, tail
        offset_S, size_S = incidence.offset_S, incidence.examples_per_secret
        self.mean_S, self.square_S, log_idle_S = (np.zeros(incidence.num_secrets) for _ in range(3))
        edges = np.searchsorted(offset_S, np.arange(0, incidence.num_entries, BLOCK_ENTRIES))
        for first, last in pairwise([*edges.tolist(), incidence.num_secrets]):
            secret = np.repeat(np.arange(last - first), size_S[first:last])
            rate = rate_N[incidence.example_of_entry[offset_S[first] : offset_S[last]]]
            self.mean_S[first:last] = np.bincount(secret, rate, minlength=last - first)
            self.square_S[first:last] = np.bincount(secret, rate * rate, minlength=last - first)  # mean less variance
            with np.errstate(divide="ignore"):
                log_idle_S[first:last] = np.bincount(secret, np.log1p(-rate), minlength=last - first)
        # Terms of one sign, added one after another: each costs at most EPS of their sum (E5).
        self.log_idle_S = log_idle_S * (1 + EPS * size_S)
        self._size_S, self._only_rate_S = size_S, _only_rates(incidence, rate_N)

    @property
    def has_mixed_rates(self) -> bool:
        """Whether any secret has examples of different rates: means alone do not tell how their counts spread."""
        return bool(np.isnan(self._only_rate_S[self._size_S > 0]).any())

    def coarse_width(self, member: Indices, max_groups: int) -> float:
        """The narrowest width, FINEST_WIDTH times a power of 2, that gives at most this many groups."""
        width = FINEST_WIDTH
        while np.unique(self._keys(member, width)).size > max_groups:
            width *= 2
        return width

    def grouped(self, member: Indices, width: float) -> Iterator[Group]:
        """Groups of secrets whose means differ by at most a factor of 1 + width, with similar spread."""
        keys = self._keys(member, width)
        order = np.argsort(keys, kind="stable")
        for part in np.split(member[order], np.flatnonzero(np.diff(keys[order])) + 1):
            yield Group(member=part, law=self.law(part), width=width)

    def law(self, member: Indices) -> CountLaw:
        """A law that dominates the count of each of these secrets."""
        return joined_law([self._rates(int(secret)) for secret in self._largest(member)], tail=self._tail)

    def _largest(self, member: Indices) -> Indices:
        """The members without those that another one dominates: of equal rates throughout, but fewer."""
        rate_m = self._only_rate_S[member]
        mixed = np.isnan(rate_m)
        if mixed.all():
            return member
        even = member[~mixed]
        even = even[np.lexsort((self._size_S[even], rate_m[~mixed]))]
        last = np.append(np.diff(self._only_rate_S[even]) > 0, True)
        return np.concatenate([member[mixed], even[last]])

    def _keys(self, member: Indices, width: float) -> Indices:
        mean = np.floor(np.log(self.mean_S[member]) / width).astype(np.int64)
        spread = np.floor(self.square_S[member] / self.mean_S[member] / (SPREAD_WIDTHS * width)).astype(np.int64)
        return mean * (1 << 20) + spread

    def _rates(self, secret: int) -> Array:
        graph = self._incidence
        return self._rate_N[graph.example_of_entry[graph.offset_S[secret] : graph.offset_S[secret + 1]]]


def posteriors(
    incidence: Incidence,
    *,
    prior: ArrayLike,
    noise_multiplier: float,
    rates: ArrayLike,
    rounds: SupportsIndex,
    bound: Bound = "blowup",
    accuracy: float = ACCURACY,
    progress: Progress | None = None,
) -> Array:
    """Probability with which an adversary names each secret after training.

    prior: one number, one per secret, or several per secret (m x q); the answer has one entry per secret, or a row of
    q. rates: one sampling probability per example, or one for all.

    Guarantee: every entry is an upper bound. Secrets drawn about equally often share a bound, which may cost a few
    percent; `posterior` gives the tight one for a single secret.

    >>> incidence = Incidence.from_pairs([0, 1, 1], [0, 0, 1], num_examples=3, num_secrets=3)
    >>> posteriors(incidence, prior=1e-6, noise_multiplier=1.0, rates=0.1, rounds=100).round(4).tolist()
    [0.0177, 0.0005, 0.0]
    """
    rate_N = checked_rates(rates, length=incidence.num_examples)
    sigma, count = checked_noise(noise_multiplier), checked_rounds(rounds)
    checked_choice("bound", bound, Bound)
    prior_SQ = prior_rows(prior, incidence.num_secrets)
    crowd = Crowd(incidence, rate_N, tail=count_tail(float(prior_SQ.min(initial=0.5)), count))
    value_at = posteriors_at(prior_SQ, rounds=count, bound=bound, accuracy=checked_accuracy(accuracy))
    evaluator = Evaluator(value_at=value_at, workers=Workers(progress=progress))
    posterior_SQ = noiseless_posterior(crowd.log_idle_S[:, None], count, prior_SQ)
    drawn = np.flatnonzero(crowd.mean_S > 0)
    if drawn.size and sigma > 0:
        groups = list(crowd.grouped(drawn, crowd.coarse_width(drawn, COARSE_GROUPS)))
        for group, bounds in zip(groups, evaluator.evaluate(groups, sigma), strict=True):
            posterior_SQ[group.member] = np.minimum(posterior_SQ[group.member], bounds)
    return posterior_SQ if np.ndim(prior) == 2 else posterior_SQ[:, 0]


def prior_rows(prior: ArrayLike, num_secrets: int) -> Array:
    """Priors as a row for each secret: from one number, one per secret, or several per secret."""
    priors = checked_priors(prior)
    if priors.ndim > 2 or (priors.ndim > 0 and priors.shape[0] != num_secrets):
        raise InvalidInput(
            Setting("prior"),
            f" has shape {priors.shape} but there are {num_secrets} secrets; pass one number, one for each "
            "secret, or a row for each secret",
            setting="prior",
        )
    rows = priors if priors.ndim == 2 else priors.reshape(-1, 1)
    return np.broadcast_to(rows, (num_secrets, rows.shape[1]))


def _only_rates(incidence: Incidence, rate_N: Array) -> Array:
    """The one rate of all of a secret's examples; NaN where they differ, or where there are none."""
    only_S = np.full(incidence.num_secrets, np.nan)
    some = incidence.examples_per_secret > 0
    if some.any():
        first = incidence.example_of_entry[incidence.offset_S[:-1][some]]
        if (rate_N == rate_N[0]).all():
            only_S[some] = rate_N[first]
        else:
            begin = incidence.offset_S[:-1][some]
            rate = rate_N[incidence.example_of_entry]
            low, high = np.minimum.reduceat(rate, begin), np.maximum.reduceat(rate, begin)
            only_S[some] = np.where(low == high, low, np.nan)
    return only_S


ValueAt = Callable[["Group", float], Array]  # upper bounds for the members of a group at a noise multiplier


def posteriors_at(prior_SQ: Array, *, rounds: int, bound: Bound, accuracy: float) -> ValueAt:
    """Posteriors of a group's members, each at its own priors, for one training."""

    def at(group: Group, sigma: float) -> Array:
        prior_mq = prior_SQ[group.member]
        distinct, where = rounded_up(prior_mq)
        parts = [Part(law=group.law, sigma=sigma, rounds=rounds)]
        bounds = upper_posterior(parts, distinct, bound=bound, accuracy=accuracy)
        return bounds[where].reshape(prior_mq.shape)

    return at


@dataclass(frozen=True, kw_only=True)
class Workers:
    """One thread for each core: the array work runs outside the interpreter lock, so threads help."""

    progress: Progress | None
    _done: list[int] = field(default_factory=lambda: [0, 0])  # tasks finished, and started

    def map(self, work: Callable[[Task], Array], tasks: Sequence[Task]) -> list[Array]:
        """The results in the order of the tasks."""
        self._done[1] += len(tasks)
        results: list[Array] = []
        with ThreadPoolExecutor(max_workers=os.cpu_count()) as pool:
            for result in pool.map(work, tasks):
                results.append(result)
                self._done[0] += 1
                if self.progress is not None:
                    self.progress(*self._done)
        return results


@dataclass(frozen=True, kw_only=True)
class Evaluator:
    """Upper bounds for groups of secrets."""

    value_at: ValueAt
    workers: Workers

    def at(self, group: Group, sigma: float) -> Array:
        """Bounds for a group's members at this noise."""
        return self.value_at(group, sigma)

    def evaluate(self, groups: Sequence[Group], sigma: float) -> list[Array]:
        """Bounds for the members of each group."""

        def work(group: Group) -> Array:
            return self.value_at(group, sigma)

        return self.workers.map(work, groups)


def rounded_up(values: Array) -> tuple[Array, Indices]:
    """Distinct values to evaluate, and for each given value the index of one at least as large (E30)."""
    distinct: Array = np.unique(values)
    if distinct.size > MAX_DISTINCT:  # bounds grow with prior and order, so larger ones are safe
        largest = float(distinct[-1])
        distinct = np.geomspace(float(distinct[0]), largest, MAX_DISTINCT)
        distinct[-1] = largest
    return distinct, np.searchsorted(distinct, values.ravel()).astype(np.int64)

"""Every posterior of a plan again, from its graph, weights and noise: what ``verify`` says about promises.

Calibration's search, pruning, groups and joined laws play no part. A secret is proven alone, by the accountant, or as
one of a group: if a law of counts dominates the count of every member, its posterior from the largest of their priors
bounds the posterior of each (docs/proofs.md, "Verification"). Groups begin as the secrets for which the plan states the
same posteriors. That is a hint, and nothing rests on it: a wrong hint costs time. Members that the bound of their group
does not settle are divided into narrower groups, and in the end each is judged alone; only there can a secret fail.
Labels (E5), (E6) and (E8) refer to docs/proofs.md.

Legend: S secrets, Q promised points of a secret, K counts, N examples of a secret.
"""

import math
import os
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from hush.accounting import posterior
from hush.accounting.accountant import ACCURACY, count_tail, noiseless_posterior, upper_posterior
from hush.accounting.arguments import Bound
from hush.accounting.counts import EPS, CountLaw, count_law
from hush.accounting.one_round import Part
from hush.arrays import Array, Progress
from hush.plan.plan import Plan

__all__ = ["Alone", "Fault", "Judgement", "are_proven", "judge"]

Indices = NDArray[np.int64]
Side = Literal["largest", "smallest"]
Fault = Literal["broken", "larger than stated", "binding"]

MAX_MACHINE_DIFFERENCE = 1e-9  # relative: another machine may round a posterior to a larger value than the stated one
MAX_BOUND_DIFFERENCE = 5e-3  # relative, of two upper bounds of one number: each is within 1e-3 of the true value
FINE_ACCURACY = 1e-4  # at which a posterior is computed again before it counts as broken
BINDING_CANDIDATES = 0.5  # share of its ceiling that the posterior of a binding secret exceeds
BINDS_BELOW = 0.995  # share of the noise at which a secret that breaks its promise must be listed as binding
HOLDS_BELOW = 0.98  # share of the noise at which a secret that keeps its promise must not be listed
SHARED_BOUND_MARGIN = 0.02  # by which a listed secret may miss its ceiling: secrets drawn alike share a bound
PARTS = 8  # into which a group is divided; speed only
SMALL_GROUP = 4  # members that are judged alone rather than divided; speed only
MAX_FAULTS = 1000  # after which a plan has failed for good, and the rest is not looked at
CHUNK_ENTRIES = 1 << 20  # of a (count, secret) or (secret, example) matrix computed at a time; memory only
TINY_COUNT = 1e-300  # stands for a mean count of 0, which has no logarithm; speed only
MANY_EXAMPLES = 1024  # of one secret: its law is merged from blocks; speed only


@dataclass(frozen=True, slots=True, kw_only=True)
class Judgement:
    """The secrets about which a plan states something wrong, by kind. complete: no secret was left out."""

    secrets: dict[Fault, list[int]]
    complete: bool


def judge(plan: Plan, progress: Progress | None = None) -> Judgement:
    """Prove every stated posterior, and that exactly the listed secrets bind. progress counts the secrets settled.

    Guarantee: without a fault every stated posterior is an upper bound, up to MAX_MACHINE_DIFFERENCE, and at most its
    ceiling.
    """
    return _Court(plan, progress).judge()


def are_proven(plan: Plan, secret: int, prior: Array, stated: Array, recomputed: Array) -> bool:
    """Whether posteriors from these priors are at most the stated ones; recomputed are upper bounds."""
    return Alone(plan, secret, prior).proves(stated, recomputed)


@dataclass(frozen=True, eq=False)
class Alone:
    """Posteriors of one secret from these priors, each computed when it is first asked for."""

    plan: Plan
    secret: int
    prior_Q: Array

    @cached_property
    def now(self) -> Array:
        return self._posteriors()

    @cached_property
    def fine(self) -> Array:
        return self._posteriors(accuracy=FINE_ACCURACY)

    @cached_property
    def tight(self) -> Array:
        """By the tight bound, whatever the plan's bound is."""
        return self.fine if self.plan.bound == "blowup" else self._posteriors(bound="blowup", accuracy=FINE_ACCURACY)

    @cached_property
    def where_binding_ones_break(self) -> Array:
        return self._posteriors(share=BINDS_BELOW, accuracy=FINE_ACCURACY)

    @cached_property
    def where_others_hold(self) -> Array:
        return self._posteriors(share=HOLDS_BELOW)

    def _posteriors(self, *, share: float = 1.0, bound: Bound | None = None, accuracy: float = ACCURACY) -> Array:
        """Upper bounds with a share of the plan's noise."""
        plan = self.plan
        return np.asarray(
            posterior(
                plan.rates[plan.incidence.examples_of(self.secret)],
                noise_multiplier=plan.noise_multiplier * share,
                rounds=plan.rounds,
                prior=self.prior_Q,
                bound=plan.bound if bound is None else bound,
                accuracy=accuracy,
            )
        )

    def proves(self, stated_Q: Array, recomputed_Q: Array) -> bool:
        """Whether these posteriors, upper bounds by the plan's bound, or others are at most the stated ones.

        They may be too large because of discretisation, or because the search for the best order ended at another
        order. So before they count as larger, a finer bound of the same kind and then the tight one are computed.
        """
        limit_Q = stated_Q * (1 + MAX_MACHINE_DIFFERENCE)
        if np.all(recomputed_Q <= limit_Q):
            return True
        finer_Q = np.minimum(recomputed_Q, self.fine)
        return bool(np.all(finer_Q <= limit_Q) or np.all(np.minimum(finer_Q, self.tight) <= limit_Q))

    def faults(self, ceiling_Q: Array, stated_Q: Array, *, listed: bool) -> list[Fault]:
        """What is wrong with a secret of these ceilings and stated posteriors that is listed as binding, or not."""
        now_Q = self.now
        if not np.all(now_Q <= ceiling_Q):
            now_Q = np.minimum(now_Q, self.fine)
        faults: list[Fault] = []
        if not np.all(now_Q <= ceiling_Q):
            faults.append("broken")
        elif not self.proves(stated_Q, now_Q):
            faults.append("larger than stated")
        may_bind = bool(np.any(now_Q > BINDING_CANDIDATES * ceiling_Q))
        if listed:
            if not (may_bind and np.any(self.where_others_hold > (1 - SHARED_BOUND_MARGIN) * ceiling_Q)):
                faults.append("binding")
        elif may_bind and np.any(self.where_binding_ones_break > (1 + MAX_BOUND_DIFFERENCE) * ceiling_Q):
            faults.append("binding")
        return faults


class _Court:
    """All secrets of a plan: groups first, single secrets where groups do not settle it."""

    def __init__(self, plan: Plan, progress: Progress | None) -> None:
        self._plan, self._progress = plan, progress
        self._draws = _Draws(plan)
        self._total = plan.incidence.num_secrets
        self._listed_S = np.zeros(self._total, dtype=bool)
        self._listed_S[plan.binding] = True
        self._limit_SQ = np.minimum(plan.ceiling, plan.posterior * (1 + MAX_MACHINE_DIFFERENCE))
        self._bound_SQ = self._draws.noiseless(plan.prior)
        self._settled_S = np.zeros(self._total, dtype=bool)
        self._faults: dict[Fault, list[int]] = {"broken": [], "larger than stated": [], "binding": []}
        _, self._hint_S = np.unique(plan.posterior, axis=0, return_inverse=True)
        self._hint_S = self._hint_S.ravel()

    def judge(self) -> Judgement:
        proven_S = _everywhere(self._bound_SQ <= self._limit_SQ)  # without any noise
        with ThreadPoolExecutor(max_workers=os.cpu_count()) as pool:
            self._pool = pool
            self._done(self._without_binding(np.flatnonzero(proven_S)))
            self._settle(np.flatnonzero(~proven_S), self._keeps_what_is_stated)
            self._settle(self._open(~self._listed_S), self._holds_with_less_noise)
            self._settle(self._open(self._listed_S), self._binds)
        complete = bool(self._settled_S.all())
        return Judgement(secrets={kind: sorted(found) for kind, found in self._faults.items()}, complete=complete)

    def _open(self, among_S: NDArray[np.bool_]) -> Indices:
        return np.flatnonzero(among_S & ~self._settled_S)

    def _without_binding(self, member: Indices) -> Indices:
        """The members that are not listed as binding and too far from their ceilings to be."""
        far = _everywhere(self._bound_SQ[member] <= BINDING_CANDIDATES * self._plan.ceiling[member])
        return member[far & ~self._listed_S[member]]

    def _done(self, member: Indices) -> None:
        self._settled_S[member] = True
        if self._progress is not None and member.size:
            self._progress(int(np.count_nonzero(self._settled_S)), self._total)

    # Questions about a group. Each returns which members its bound settles.

    def _keeps_what_is_stated(self, member: Indices) -> NDArray[np.bool_]:
        limit = self._limit_SQ[member]
        bound = self._bounds(member, ACCURACY)
        self._bound_SQ[member] = np.minimum(self._bound_SQ[member], bound)
        near = _everywhere(bound <= limit * (1 + MAX_BOUND_DIFFERENCE))
        if not (bound <= limit)[near].all():  # the plan may have been computed at another resolution
            again = self._bounds(member[near], FINE_ACCURACY)
            self._bound_SQ[member[near]] = np.minimum(self._bound_SQ[member[near]], again)
        return _everywhere(self._bound_SQ[member] <= limit)

    def _holds_with_less_noise(self, member: Indices) -> NDArray[np.bool_]:
        limit = (1 + MAX_BOUND_DIFFERENCE) * self._plan.ceiling[member]
        return _everywhere(self._bounds(member, ACCURACY, share=BINDS_BELOW) <= limit)

    def _binds(self, member: Indices) -> NDArray[np.bool_]:
        """By the smallest count of the group. Its bound is not rounded down, hence the margin."""
        ceiling = (1 + MAX_BOUND_DIFFERENCE) * self._plan.ceiling[member]
        may_bind = self._bounds(member, ACCURACY, side="smallest") > BINDING_CANDIDATES * ceiling
        less = self._bounds(member, ACCURACY, side="smallest", share=HOLDS_BELOW)
        return ~_everywhere(~may_bind) & ~_everywhere(~(less > (1 - SHARED_BOUND_MARGIN) * ceiling))

    def _bounds(self, member: Indices, accuracy: float, *, share: float = 1.0, side: Side = "largest") -> Array:
        """Upper bounds of a law that dominates the count of every member, one for each point.

        With side="smallest": of a law that is dominated by the count of every member.
        """
        plan, prior = self._plan, self._plan.prior[member]
        prior_Q = prior.max(axis=0) if side == "largest" else prior.min(axis=0)
        law = self._draws.law(member, side=side, tail=count_tail(float(prior_Q.min()), plan.rounds))
        part = Part(law=law, sigma=plan.noise_multiplier * share, rounds=plan.rounds)
        return upper_posterior([part], prior_Q, bound=plan.bound, accuracy=accuracy)

    # From groups to single secrets.

    def _settle(self, member: Indices, question: Callable[[Indices], NDArray[np.bool_]]) -> None:
        """Ask the question of groups, of parts of those where the answer is no, and so on."""
        waiting = _split(member[np.argsort(self._hint_S[member], kind="stable")], self._hint_S)
        while waiting and sum(map(len, self._faults.values())) < MAX_FAULTS:
            rest: list[Indices] = []
            for group, settles in zip(waiting, self._pool.map(question, waiting), strict=True):
                only_one = question != self._keeps_what_is_stated
                self._done(group[settles] if only_one else self._without_binding(group[settles]))
                if not settles.all():
                    rest.append(group[~settles])
            judged = self._pool.map(self._judge_alone, rest)
            waiting = []
            for group, (done, faults) in zip(rest, judged, strict=True):
                for kind, secrets in faults.items():
                    self._faults[kind] += secrets
                self._done(group[done])
                waiting += self._parts(group[~done])

    def _parts(self, member: Indices) -> list[Indices]:
        """Narrower groups: sorted by what differs most, mean count or a prior, and cut into equal parts."""
        if member.size <= SMALL_GROUP:
            return [member[i : i + 1] for i in range(member.size)]
        mean_S = np.maximum(self._draws.mean_S[member], TINY_COUNT)
        keys = np.log(np.column_stack([mean_S, self._plan.prior[member]]))
        widest = int(np.ptp(keys, axis=0).argmax())
        return np.array_split(member[np.argsort(keys[:, widest], kind="stable")], min(PARTS, member.size))

    def _judge_alone(self, member: Indices) -> tuple[NDArray[np.bool_], dict[Fault, list[int]]]:
        """Judge the secret with the largest mean count, and all members with exactly its rates and priors."""
        plan = self._plan
        first = int(member[self._draws.mean_S[member].argmax()])
        same = self._draws.same_rates(first, member) & _everywhere(plan.prior[member] == plan.prior[first])
        alone = Alone(plan, first, plan.prior[first])
        faults: dict[Fault, list[int]] = {}
        for secret in member[same].tolist():
            for kind in alone.faults(plan.ceiling[secret], plan.posterior[secret], listed=bool(self._listed_S[secret])):
                faults.setdefault(kind, []).append(secret)
        return same, faults


def _everywhere(mask_SQ: NDArray[np.bool_]) -> NDArray[np.bool_]:
    """Which rows are true throughout."""
    return np.asarray(mask_SQ.all(axis=1))


def _split(member: Indices, key_S: NDArray[np.integer]) -> list[Indices]:
    """Members, sorted by their keys, as one array for each key."""
    if not member.size:
        return []
    return np.split(member, np.flatnonzero(np.diff(key_S[member])) + 1)


# Laws of counts that dominate a whole group.


class _Draws:
    """The rates of every secret's examples, and laws that dominate the counts of several secrets."""

    def __init__(self, plan: Plan) -> None:
        incidence = plan.incidence
        self._rate, self.size_S = plan.rates[incidence.example_of_entry], incidence.examples_per_secret
        drawn = self._rate > 0
        if not drawn.all():
            self.size_S = _totals(drawn, self.size_S).astype(np.int64)
            self._rate = self._rate[drawn]
        self._offset_S = np.concatenate([[0], np.cumsum(self.size_S)])
        self.mean_S = _totals(self._rate, self.size_S)
        with np.errstate(divide="ignore"):
            log_idle_S = _totals(np.log1p(-self._rate), self.size_S)
        # Terms of one sign, added in any order: each costs at most EPS of their sum (E5).
        self._log_idle_S = log_idle_S * (1 + EPS * self.size_S)
        self._rounds = plan.rounds

    def noiseless(self, prior_SQ: Array) -> Array:
        """Posteriors of an adversary who learns every secret that is ever drawn."""
        return noiseless_posterior(self._log_idle_S[:, None], self._rounds, prior_SQ)

    def same_rates(self, secret: int, member: Indices) -> NDArray[np.bool_]:
        """Which members have exactly the rates of this secret, in any order."""
        size = int(self.size_S[secret])
        same = (member == secret) | (self.size_S[member] == size)
        alike = np.flatnonzero(same)[: max(1, CHUNK_ENTRIES // max(size, 1))]
        rates = np.sort(self._padded(member[alike], size), axis=1)
        own = np.sort(self._padded(np.array([secret]), size), axis=1)
        same[:] = member == secret
        same[alike] |= _everywhere(rates == own)
        return same

    def law(self, member: Indices, *, side: Side, tail: float) -> CountLaw:
        """A law that dominates the count of every member; or, with side="smallest", one that each dominates.

        The largest survival function of all, raised by its error (E8); or the smallest, as it was computed. `tail`:
        mass above the last count that is stored; it only affects tightness.
        """
        errors, lengths, parts = [0.0], [1], list[Array]()
        for survival_K, error in self._survivals(member, side, tail):
            parts.append(survival_K)
            errors.append(error)
            lengths.append(survival_K.size)
        pick = np.maximum if side == "largest" else np.minimum
        survival_K = parts[0]
        for other_K in parts[1:]:
            size = max(survival_K.size, other_K.size)
            # Beyond its end a survival function is at most its last value, and it may be as low as 0.
            beyond = "edge" if side == "largest" else "constant"
            survival_K, other_K = (np.pad(each, (0, size - each.size), mode=beyond) for each in (survival_K, other_K))
            survival_K = pick(survival_K, other_K)
        raised = 1 + max(errors) + EPS * (max(lengths) + 4) if side == "largest" else 1.0  # (E8)
        survival_K = np.minimum(1.0, survival_K * raised)
        survival_K[0] = 1.0
        mass_K = survival_K[:-1] - survival_K[1:]
        lowest = int(np.argmax(mass_K > 0))
        idle = self._log_idle_S[member]
        return CountLaw(
            lowest=lowest,
            mass=mass_K[lowest:],
            certain=float(survival_K[-1]),
            lifted=0.0,
            relative_error=EPS,  # of one difference (E8)
            log_idle=float(idle.min() if side == "largest" else idle.max()),
        )

    def _survivals(self, member: Indices, side: Side, tail: float) -> Iterator[tuple[Array, float]]:
        """Largest or smallest survival functions P(count >= k) of parts of the members, with their relative errors."""
        pick = np.max if side == "largest" else np.min
        many = self.size_S[member] > MANY_EXAMPLES
        for secret in member[many].tolist():
            law = count_law(self._padded(np.array([secret]), int(self.size_S[secret]))[0], tail=tail)
            above_K = np.append(law.mass, law.certain)[::-1].cumsum()[::-1]
            yield np.concatenate([np.ones(law.lowest), above_K]), law.relative_error + EPS * above_K.size  # (E7), (E8)
        few = member[~many]
        few = few[np.argsort(self.size_S[few], kind="stable")]
        top = _last_count(float(self.mean_S[few].max(initial=0.0)), tail)
        while few.size:
            widest = np.maximum(self.size_S[few], top + 2) * np.arange(1, few.size + 1)
            part, few = np.split(few, [max(1, int(np.searchsorted(widest, CHUNK_ENTRIES)))])
            rate_SN = self._padded(part, int(self.size_S[part[-1]]))
            survival_KS = _survival(rate_SN, top)
            # Of the recursion and of the sums of its entries (E6).
            yield pick(survival_KS, axis=1), EPS * (4 * (rate_SN.shape[1] + 2) + top + 2)

    def _padded(self, member: Indices, width: int) -> Array:
        """The rates of each member as a row, filled up with zeros."""
        column = np.arange(width)
        used = column < self.size_S[member][:, None]
        place = np.where(used, self._offset_S[member][:, None] + column, 0)
        return np.where(used, self._rate[place], 0.0) if self._rate.size else np.zeros(used.shape)


def _totals(values: NDArray[Any], size_S: Indices) -> Array:
    """Sums of values, of which each secret has this many, one secret after another."""
    total_S = np.zeros(size_S.size)
    some = size_S > 0
    begin_S = np.concatenate([[0], np.cumsum(size_S)])[:-1]
    if some.any():
        total_S[some] = np.add.reduceat(values, begin_S[some], dtype=np.float64)
    return total_S


def _survival(rate_SN: Array, top: int) -> Array:
    """P(count >= k) for k = 0..top + 1 and each row, example after example. Only sums and products of numbers >= 0."""
    mass_KS = np.zeros((top + 2, len(rate_SN)))  # the last state means "more than top", and is never left
    mass_KS[0] = 1.0
    for rate_S in np.ascontiguousarray(rate_SN.T):
        moved_KS = mass_KS[:-1] * rate_S
        mass_KS[:-1] *= 1.0 - rate_S
        mass_KS[1:] += moved_KS
    return mass_KS[::-1].cumsum(axis=0)[::-1]


def _last_count(mean: float, tail: float) -> int:
    """A count that is exceeded with probability below `tail`, by Chernoff's bound for the Poisson law."""
    count = math.ceil(mean) + 1
    while mean > 0 and count - mean + count * math.log(mean / count) > math.log(tail):
        count += 1
    return count

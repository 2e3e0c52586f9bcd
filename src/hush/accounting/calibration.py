"""The least noise that keeps every promise, for one secret or a hundred thousand.

Begin at the noise that the most demanding secret needs. Check everyone there in coarse groups; whoever is not proven
safe is checked again in finer groups; whoever still is not, in the finest ones, raises the noise. More noise never
raises a posterior (it is post-processing), so what was proven at some noise stays proven above it.

Legend: S secrets, Q promised points of a secret, N examples.
"""

from dataclasses import dataclass
from typing import SupportsIndex

import numpy as np
from numpy.typing import ArrayLike

from hush.accounting.counts import Array
from hush.accounting.evaluate import COARSE_GROUPS, Evaluator, Progress
from hush.accounting.groups import FINEST, Crowd, Group, Indices
from hush.accounting.inputs import (
    Bound,
    checked_accuracy,
    checked_choice,
    checked_priors,
    checked_rates,
    checked_rounds,
)
from hush.accounting.search import least_safe
from hush.accounting.secret import ACCURACY, count_tail, noiseless_posterior
from hush.errors import CannotCertify, InfeasiblePlan
from hush.incidence import Incidence
from hush.protection import promise_arrays
from hush.rounding import rounded_up

FINER = 8  # groups that are not proven safe are cut this much finer
LEAST_NOISE, MOST_NOISE = 1e-3, 1e9  # the search stays between these
BINDING = 0.005  # a secret binds if this much less noise would break its promise
SHARP = 1e-3  # width of the groups in which they are told apart: sharing a law costs about as much noise
NEAR = 0.7  # posteriors this close to their ceiling, in log, are looked at when binding secrets are named


@dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class Calibration:
    """Noise that keeps every promise. Invariant: posterior <= ceiling at every promised point of every secret.

    posterior and ceiling have one entry per secret, or one row per secret where several points are promised.
    binding lists the secrets whose promise would break with about 0.5 % less noise; all others are proven to hold with
    0.5 % less.
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
    evaluator = Evaluator(
        prior_SQ=prior_SQ, rounds=count, bound=bound, accuracy=checked_accuracy(accuracy), progress=progress
    )
    search = _Search(crowd=crowd, evaluator=evaluator, prior_SQ=prior_SQ, ceiling_SQ=ceiling_SQ)
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
class _Search:
    """The search for one noise multiplier; holds the inputs so that its steps read as steps."""

    crowd: Crowd
    evaluator: Evaluator
    prior_SQ: Array
    ceiling_SQ: Array

    def solve(self) -> tuple[float, Array, Indices]:
        """The noise, every posterior at it, and the secrets that bind."""
        posterior_SQ = noiseless_posterior(self.crowd.log_idle_S[:, None], self.evaluator.rounds, self.prior_SQ)
        needy = np.flatnonzero(~(posterior_SQ <= self.ceiling_SQ).all(axis=1))
        if needy.size == 0:
            return 0.0, posterior_SQ, np.empty(0, dtype=np.int64)
        self._refuse_impossible(needy)
        drawn = np.flatnonzero(self.crowd.mean_S > 0)
        sigma = self._settle(self._most_demanding(needy), 0.0)
        sigma, proven = self._prove(drawn, sigma, posterior_SQ)
        groups = [group for at, group in proven if at < sigma]  # the others' posteriors are known at this very noise
        for group, found in zip(groups, self.evaluator.evaluate(groups, sigma), strict=True):
            posterior_SQ[group.member] = np.minimum(posterior_SQ[group.member], found)  # both are upper bounds
        return sigma, posterior_SQ, self._binding(posterior_SQ, drawn, sigma)

    def _refuse_impossible(self, needy: Indices) -> None:
        tight = needy[(self.prior_SQ[needy] >= self.ceiling_SQ[needy]).any(axis=1)]
        if tight.size:
            raise InfeasiblePlan(
                f"secret {int(tight[0])} has prior = ceiling and examples that are drawn ({tight.size} such secrets): "
                "no finite noise suffices; raise its ceiling or set its examples' rates to 0"
            )

    def _most_demanding(self, needy: Indices) -> Group:
        """The secret that probably needs most noise: mean count against what the promise allows."""
        slack_S = np.log(self.ceiling_SQ[needy] / self.prior_SQ[needy]).min(axis=1)
        rank_S = self.crowd.mean_S[needy] / slack_S
        return next(self.crowd.grouped(needy[[int(rank_S.argmax())]], FINEST))

    def _prove(self, member: Indices, sigma: float, posterior_SQ: Array) -> tuple[float, list[tuple[float, Group]]]:
        """Raise sigma until every secret is proven safe at it; also the groups in which they were, with the sigma."""
        safe: list[tuple[float, Group]] = []
        waiting = list(self.crowd.grouped(member, self.crowd.coarse_width(member, COARSE_GROUPS)))
        while waiting:
            unproven: list[tuple[float, Group]] = []
            for group, found in zip(waiting, self.evaluator.evaluate(waiting, sigma), strict=True):
                fails = ~(found <= self.ceiling_SQ[group.member]).all(axis=1)  # NaN fails
                proven, rest = group.member[~fails], group.member[fails]
                posterior_SQ[proven] = np.minimum(posterior_SQ[proven], found[~fails])
                if proven.size:
                    safe.append((sigma, Group(member=proven, law=group.law, width=group.width)))
                if rest.size:
                    excess = self._excess(rest, found[fails])
                    unproven.append((excess, Group(member=rest, law=group.law, width=group.width)))
            waiting = [group for _, group in unproven if group.is_finest]
            coarse = [group for _, group in unproven if not group.is_finest]
            for width in {group.width for group in coarse}:
                again = np.sort(np.concatenate([group.member for group in coarse if group.width == width]))
                waiting.extend(self.crowd.grouped(again, max(FINEST, width / FINER)))
            if unproven and not coarse:
                sigma = self._settle(max(unproven, key=lambda pair: pair[0])[1], sigma)
        return sigma, safe

    def _binding(self, posterior_SQ: Array, drawn: Indices, sigma: float) -> Indices:
        """The secrets that no group proves safe with a little less noise. Most are in a coarse one already."""
        near = (np.log(posterior_SQ[drawn]) > np.log(self.ceiling_SQ[drawn]) - NEAR).any(axis=1)
        unproven, width = drawn[near], np.inf
        while unproven.size and width > SHARP:
            width = min(self.crowd.coarse_width(unproven, COARSE_GROUPS), max(SHARP, width / FINER))
            groups = list(self.crowd.grouped(unproven, width))
            fails = [
                group.member[~(found <= self.ceiling_SQ[group.member]).all(axis=1)]
                for group, found in zip(groups, self.evaluator.evaluate(groups, sigma * (1 - BINDING)), strict=True)
            ]
            unproven = np.sort(np.concatenate(fails))
        return unproven

    def _settle(self, group: Group, unsafe: float) -> float:
        """The least noise that is safe for one group."""

        def excess(sigma: float) -> float:
            return self._excess(group.member, self.evaluator.at(group, sigma))

        found = least_safe(excess, unsafe=unsafe, start=0.25, least=LEAST_NOISE, most=MOST_NOISE)
        if found is None:
            raise CannotCertify(
                f"secret {int(group.member[0])} needs a noise multiplier above {MOST_NOISE:.0e} under the bound "
                f"{self.evaluator.bound!r}; raise its ceiling or draw its examples less often"
            )
        return found

    def _excess(self, member: Indices, found: Array) -> float:
        """Largest log(posterior / ceiling): safe exactly if it is at most 0."""
        return float(np.log(found / self.ceiling_SQ[member]).max())

"""Posteriors of many secrets at one noise, group by group.

Legend: S secrets, Q priors of a secret, N examples.
"""

import os
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import SupportsIndex

import numpy as np
from numpy.typing import ArrayLike

from hush.accounting.counts import Array
from hush.accounting.groups import Crowd, Group, Indices
from hush.accounting.inputs import (
    Bound,
    checked_accuracy,
    checked_choice,
    checked_noise,
    checked_priors,
    checked_rates,
    checked_rounds,
)
from hush.accounting.secret import ACCURACY, count_tail, noiseless_posterior, upper_posterior
from hush.errors import InvalidInput
from hush.incidence import Incidence

Progress = Callable[[int, int], None]

COARSE_GROUPS = 384
MOST_PRIORS = 48  # distinct priors evaluated for one group; more are rounded up to a grid


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
    """What an adversary can end up with, for every secret at once.

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
    priors = checked_priors(prior)
    if priors.ndim > 2 or (priors.ndim > 0 and priors.shape[0] != incidence.num_secrets):
        raise InvalidInput(f"prior has shape {priors.shape} but there are {incidence.num_secrets} secrets")
    rows = priors if priors.ndim == 2 else priors.reshape(-1, 1)
    prior_SQ = np.broadcast_to(rows, (incidence.num_secrets, rows.shape[1]))
    crowd = Crowd(incidence, rate_N, tail=count_tail(float(prior_SQ.min(initial=0.5)), count))
    evaluator = Evaluator(
        prior_SQ=prior_SQ, rounds=count, bound=bound, accuracy=checked_accuracy(accuracy), progress=progress
    )
    found_SQ = noiseless_posterior(crowd.log_idle_S[:, None], count, prior_SQ)
    drawn = np.flatnonzero(crowd.mean_S > 0)
    if drawn.size and sigma > 0:
        groups = list(crowd.grouped(drawn, crowd.coarse_width(drawn, COARSE_GROUPS)))
        for group, found in zip(groups, evaluator.evaluate(groups, sigma), strict=True):
            found_SQ[group.member] = np.minimum(found_SQ[group.member], found)
    return found_SQ if priors.ndim == 2 else found_SQ[:, 0]


@dataclass(frozen=True, kw_only=True)
class Evaluator:
    """Upper bounds for groups of secrets, each at its own priors."""

    prior_SQ: Array
    rounds: int
    bound: Bound
    accuracy: float
    progress: Progress | None
    _done: list[int] = field(default_factory=lambda: [0, 0])  # evaluations finished, and begun

    def at(self, group: Group, sigma: float) -> Array:
        """Posteriors of a group's members at this noise."""
        prior_mq = self.prior_SQ[group.member]
        distinct, where = _rounded_up(prior_mq)
        found = upper_posterior(group.law, sigma, self.rounds, distinct, bound=self.bound, accuracy=self.accuracy)
        return found[where].reshape(prior_mq.shape)

    def evaluate(self, groups: Sequence[Group], sigma: float) -> list[Array]:
        """Posteriors for each group; the array work runs outside the interpreter lock, so threads help."""
        self._done[1] += len(groups)
        results: list[Array] = []

        def work(group: Group) -> Array:
            return self.at(group, sigma)

        with ThreadPoolExecutor(max_workers=os.cpu_count()) as pool:
            for found in pool.map(work, groups):
                results.append(found)
                self._done[0] += 1
                if self.progress is not None:
                    self.progress(*self._done)
        return results


def _rounded_up(priors: Array) -> tuple[Array, Indices]:
    """Distinct priors to evaluate, and for each given one the index of one at least as large."""
    distinct: Array = np.unique(priors)
    if distinct.size > MOST_PRIORS:  # the posterior grows with the prior, so a larger one is safe
        largest = float(distinct[-1])
        distinct = np.geomspace(float(distinct[0]), largest, MOST_PRIORS)
        distinct[-1] = largest
    return distinct, np.searchsorted(distinct, priors.ravel()).astype(np.int64)

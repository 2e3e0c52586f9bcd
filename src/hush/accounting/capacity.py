"""How often a secret may be drawn: the largest expected count per round that a promise allows at a given noise."""

import os
from concurrent.futures import ThreadPoolExecutor
from itertools import repeat
from typing import SupportsIndex

import numpy as np
from numpy.typing import ArrayLike

from hush.accounting.counts import Array, poisson_law
from hush.accounting.groups import Indices
from hush.accounting.inputs import (
    Bound,
    checked_accuracy,
    checked_choice,
    checked_noise,
    checked_number,
    checked_priors,
    checked_rounds,
)
from hush.accounting.search import least_safe
from hush.accounting.secret import ACCURACY, count_tail, upper_posterior
from hush.errors import InvalidInput
from hush.protection import promise_arrays

MOST_COUNT = 1e6  # no secret is drawn more often than this in one round
LEAST_COUNT = 1e-12
GRID, STEP = 256, 2e-3  # points of the table that many promises share, at most; relative distance, where they suffice
FEW = 16  # up to so many promises are searched one by one


def capacity(
    prior: ArrayLike,
    ceiling: ArrayLike,
    *,
    noise_multiplier: float,
    rounds: SupportsIndex,
    bound: Bound = "blowup",
    accuracy: float = ACCURACY,
    most: float = MOST_COUNT,
) -> Array:
    """Largest s such that a Poisson(s) number of the secret's examples per round keeps the promise, for each secret.

    prior and ceiling as in `calibrate`: one number, one per secret, or several points per secret (all must hold; the
    smallest capacity counts). The answer has one entry per secret (one in all for two plain numbers), at most `most`:
    larger ones are not looked for, since a large count takes long to account for.

    Guarantee: a secret whose rates satisfy sum of -log(1 - rate) <= s keeps its promise, since its count is then
    dominated by the Poisson law. The answer errs downwards: by about 0.1 %; where many promises share a table by 1 %
    if they allow about as much, by a few percent if not, and more where a ceiling is next to its prior.

    >>> round(float(capacity(1e-10, 1e-3, noise_multiplier=2.0, rounds=2000)[0]), 3)
    0.135
    """
    sigma, count = checked_noise(noise_multiplier), checked_rounds(rounds)
    checked_choice("bound", bound, Bound)
    sizes = [np.shape(values)[0] for values in (prior, ceiling) if np.ndim(values)]
    prior_SQ, ceiling_SQ = promise_arrays(prior, ceiling, sizes[0] if sizes else 1)
    checked_priors(prior_SQ)
    accuracy, limit = checked_accuracy(accuracy), checked_number("most", most)
    if not LEAST_COUNT < limit <= MOST_COUNT:
        raise InvalidInput(f"most={most!r}; pass an expected count above {LEAST_COUNT} and at most {MOST_COUNT:g}")
    points, where = np.unique(np.stack([prior_SQ.ravel(), ceiling_SQ.ravel()]), axis=1, return_inverse=True)
    curves = _Curves(points[0], sigma=sigma, rounds=count, bound=bound, accuracy=accuracy, most=limit)
    return curves.largest(points[1])[where.ravel()].reshape(prior_SQ.shape).min(axis=1)


class _Curves:
    """Posterior as a function of the expected count, for promised points P: one curve for each distinct prior."""

    def __init__(
        self, prior_P: Array, *, sigma: float, rounds: int, bound: Bound, accuracy: float, most: float
    ) -> None:
        self._prior_P, self._sigma, self._rounds = prior_P, sigma, rounds
        self._bound: Bound = bound
        self._accuracy, self._most = accuracy, most

    def largest(self, ceiling_P: Array) -> Array:
        """For each point a mean proven safe and close to the largest one; 0 where none is."""
        found_P = np.zeros(ceiling_P.size)
        able = np.flatnonzero(self._prior_P < ceiling_P)
        if able.size > FEW:
            able = able[self._posteriors(LEAST_COUNT, able) <= ceiling_P[able]]
        if able.size > FEW:
            found_P[able] = self._table(able, ceiling_P[able])
        else:
            low = 0.0
            for point in able.tolist():
                # With the same prior, a higher ceiling allows a little more.
                low = self._search(np.array([point]), ceiling_P[[point]], guess=low or 0.1)
                found_P[point] = low
        return found_P

    def _table(self, member: Indices, ceiling_m: Array) -> Array:
        """From the least mean that any member needs to the most: octaves first, then steps in those that hold any."""
        low = self._search(member, ceiling_m) or LEAST_COUNT  # where all are safe
        high = max(self._search(member, ceiling_m, every=False, guess=low), low)
        octaves = max(int(np.ceil(np.log2(high / low))), 1)
        factor = (high / low) ** (1 / octaves)
        begin_o: Array = low * factor ** np.arange(octaves + 1)
        begin_m = self._climb(member, ceiling_m, begin_o)
        steps = int(np.clip(np.log(factor) / STEP, 1, GRID // np.unique(begin_m).size))
        found_m = begin_m.copy()
        for begin in begin_o[:-1].tolist():  # the last is the highest there is
            own = np.flatnonzero(begin_m == begin)
            found = self._climb(member[own], ceiling_m[own], begin * factor ** np.linspace(0.0, 1.0, steps + 1))
            found_m[own] = np.maximum(begin, found)
        return np.minimum(found_m, self._most)  # the highest, but for a rounding

    def _climb(self, member: Indices, ceiling_m: Array, means: Array) -> Array:
        """For each member the last of these ascending means up to which all are safe; 0 where the first is not."""
        found_m, left, workers = np.zeros(member.size), np.arange(member.size), os.cpu_count() or 1
        with ThreadPoolExecutor(workers) as pool:  # the array work runs outside the interpreter lock
            for some in np.split(means, range(workers, means.size, workers)):
                if left.size == 0:
                    break
                safe = np.ones(left.size, dtype=np.bool_)
                for mean, found in zip(some, pool.map(self._posteriors, some, repeat(member[left])), strict=True):
                    safe &= found <= ceiling_m[left]
                    found_m[left[safe]] = mean
                left = left[safe]
        return found_m

    def _search(self, member: Indices, ceiling_m: Array, *, every: bool = True, guess: float = 0.1) -> float:
        """A mean close to the largest that is safe for every member, or for any; 0 where none is."""
        worst = np.max if every else np.min

        def excess(inverse: float) -> float:
            return float(worst(np.log(self._posteriors(1 / inverse, member) / ceiling_m)))

        # The largest safe mean is one over the least safe inverse of a mean.
        start = 1 / min(max(guess, LEAST_COUNT), self._most)
        inverse = least_safe(excess, start=start, least=1 / self._most, most=1 / LEAST_COUNT)
        return 0.0 if inverse is None else 1 / inverse

    def _posteriors(self, mean: float, member: Indices) -> Array:
        """Upper bounds on the members' posteriors for a Poisson count with this mean; one law serves all priors."""
        priors, where = np.unique(self._prior_P[member], return_inverse=True)
        law = poisson_law(mean, tail=count_tail(float(priors[0]), self._rounds))
        found = upper_posterior(law, self._sigma, self._rounds, priors, bound=self._bound, accuracy=self._accuracy)
        return found[where]

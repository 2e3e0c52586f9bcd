"""How often a secret may be drawn: the largest expected count per round that a promise allows at a given noise."""

from typing import SupportsIndex

import numpy as np
from numpy.typing import ArrayLike

from hush.accounting.counts import Array, poisson_law
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
GRID, STEP = 256, 2e-3  # points of the table that many ceilings share, at most; relative distance, where they suffice
FEW = 16  # up to so many ceilings are searched one by one


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
    dominated by the Poisson law. The answer errs downwards, by about 0.1 % (1 % where many ceilings share a table).

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
    answer = np.empty(points.shape[1])
    for p in np.unique(points[0]):
        rows = points[0] == p
        table = _Curve(prior=float(p), sigma=sigma, rounds=count, bound=bound, accuracy=accuracy, most=limit)
        answer[rows] = table.largest(points[1, rows])
    return answer[where.ravel()].reshape(prior_SQ.shape).min(axis=1)


class _Curve:
    """Posterior as a function of the expected count, for one prior."""

    def __init__(self, *, prior: float, sigma: float, rounds: int, bound: Bound, accuracy: float, most: float) -> None:
        self._prior, self._sigma, self._rounds = prior, sigma, rounds
        self._bound: Bound = bound
        self._accuracy, self._most = accuracy, most

    def posterior(self, mean: float) -> float:
        """Upper bound on the posterior for a Poisson count with this mean."""
        law = poisson_law(mean, tail=count_tail(self._prior, self._rounds))
        priors = np.array([self._prior])
        found = upper_posterior(law, self._sigma, self._rounds, priors, bound=self._bound, accuracy=self._accuracy)
        return float(found[0])

    def largest(self, ceilings: Array) -> Array:
        """For each ceiling, in ascending order, a mean proven safe and close to the largest one; 0 where none is."""
        found = np.zeros(ceilings.size)
        start, low = 0, self._search(float(ceilings[0]))
        while low == 0.0 and start + 1 < ceilings.size:  # nothing is safe under this ceiling
            start += 1
            low = self._search(float(ceilings[start]))
        rest = ceilings[start:]
        if rest.size <= FEW:
            for i, ceiling in enumerate(rest.tolist()):
                low = self._search(ceiling, guess=low)  # a higher ceiling allows a little more
                found[start + i] = low
        else:
            found[start:] = self._table(low, self._search(float(rest[-1]), guess=low), rest)
        return found

    def _table(self, low: float, high: float, ceilings: Array) -> Array:
        points = int(np.clip(np.log(high / low) / STEP, 1, GRID - 1)) + 1
        means: Array = np.geomspace(low, max(high, low), points)
        posteriors = np.array([self.posterior(float(mean)) for mean in means])
        reached = np.searchsorted(np.maximum.accumulate(posteriors), ceilings, side="right")
        return np.where(reached > 0, means[np.maximum(reached - 1, 0)], 0.0)

    def _search(self, ceiling: float, *, guess: float = 0.1) -> float:
        """The largest safe mean is one over the least safe inverse of a mean."""
        if ceiling <= self._prior:
            return 0.0

        def excess(inverse: float) -> float:
            return float(np.log(self.posterior(1 / inverse) / ceiling))

        start = 1 / min(max(guess, LEAST_COUNT), self._most)
        inverse = least_safe(excess, start=start, least=1 / self._most, most=1 / LEAST_COUNT)
        return 0.0 if inverse is None else 1 / inverse

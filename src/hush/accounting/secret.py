"""One secret: from the sampling rates of its examples to what an adversary can end up with."""

from typing import SupportsIndex, overload

import numpy as np
from numpy.typing import ArrayLike

from hush.accounting.attack import blowup_lower
from hush.accounting.blowup import blowup_upper
from hush.accounting.counts import EPS, Array, CountLaw, count_law
from hush.accounting.divergences import kl_upper, renyi_upper
from hush.accounting.inputs import (
    Bound,
    Side,
    checked_accuracy,
    checked_choice,
    checked_noise,
    checked_priors,
    checked_rates,
    checked_rounds,
)
from hush.errors import InvalidInput

ACCURACY = 1e-3
LOOSE = 0.05  # share of round-off in a bound above which others are tried


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
    the adversary then learns the secret exactly when any of its examples is ever drawn.

    Guarantee: with side="upper" the answer is an upper bound, always; with side="lower" it is the success of an
    explicit attack on the dominating pair, so the truth for the bound "blowup" lies between the two.
    `accuracy` is the relative excess aimed for; a finer one costs time, a coarser one never costs safety.

    >>> round(posterior([0.001] * 100, noise_multiplier=2.0, rounds=1000, prior=1e-10), 7)
    2.1e-06
    """
    rate_N = checked_rates(rates)
    sigma, count = checked_noise(noise_multiplier), checked_rounds(rounds)
    priors = checked_priors(prior)
    checked_choice("bound", bound, Bound)
    checked_choice("side", side, Side)
    accuracy = checked_accuracy(accuracy)
    if side == "lower" and bound != "blowup":
        raise InvalidInput(f"side='lower' is an attack, whatever the bound; drop bound={bound!r}")
    flat = priors.ravel()
    if flat.size == 0:
        return priors.copy()
    law = count_law(rate_N[rate_N > 0], tail=count_tail(float(flat.min()), count))
    if side == "upper":
        answer = upper_posterior(law, sigma, count, flat, bound=bound, accuracy=accuracy)
    else:
        answer = _lower_posterior(law, sigma, count, flat, accuracy=accuracy)
    return float(answer[0]) if priors.ndim == 0 else answer.reshape(priors.shape)


def count_tail(prior: float, rounds: int) -> float:
    """Mass of the count's tail that may be conceded at this prior without showing in the answer."""
    return max(1e-9 * prior / rounds, 1e-310)


def upper_posterior(law: CountLaw, sigma: float, rounds: int, priors: Array, *, bound: Bound, accuracy: float) -> Array:
    """Upper bounds for a law of counts: the asked bound, or the noiseless limit where that is smaller."""
    ceiling = noiseless_posterior(law.log_idle, rounds, priors)
    if sigma == 0.0 or law.log_idle == 0.0:
        return ceiling
    if bound == "kl":
        found = kl_upper(law, sigma, rounds, priors, accuracy=accuracy)
    elif bound == "renyi":
        found = renyi_upper(law, sigma, rounds, priors, accuracy=accuracy)
    else:
        found, allowance = blowup_upper(law, sigma, rounds, priors, accuracy=accuracy)
        loose = allowance > LOOSE
        if loose.any():  # deep valleys between the modes of a run: another certified bound may be better
            found[loose] = np.minimum(found[loose], renyi_upper(law, sigma, rounds, priors[loose], accuracy=accuracy))
    # fmin: where nothing was found (NaN) the noiseless limit, which always holds, stands.
    return np.maximum(priors, np.fmin(ceiling, found))


def noiseless_posterior(log_idle: float | Array, rounds: int, priors: Array) -> Array:
    """1 - (1 - p) * P(never drawn), rounded up: the answer without noise, and an upper bound with any (noise is
    post-processing). log_idle is the log-probability that one round draws none of the examples."""
    exponent = np.log1p(-priors) + rounds * np.asarray(log_idle)
    return np.where(np.asarray(log_idle) == 0.0, priors, np.minimum(1.0, -np.expm1(exponent) * (1 + 1e5 * EPS)))


def _lower_posterior(law: CountLaw, sigma: float, rounds: int, priors: Array, *, accuracy: float) -> Array:
    if law.log_idle == 0.0:
        return priors.copy()
    if sigma == 0.0:
        return np.maximum(priors, noiseless_posterior(law.log_idle, rounds, priors) * (1 - 2e5 * EPS))
    return blowup_lower(law, sigma, rounds, priors, accuracy=accuracy)

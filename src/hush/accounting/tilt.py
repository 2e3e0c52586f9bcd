"""Where to tilt: the exponent that brings a tail of a given depth into the bulk of the T-fold law."""

import numpy as np
from scipy.special import ndtri

from hush.accounting.counts import Array


def depth(prior: float) -> float:
    """-log of the tail to look at, less the polynomial factor that a normal tail would have."""
    return 0.5 * max(0.0, -float(ndtri(prior))) ** 2


def find_tilt(value: Array, log_mass: Array, rounds: int, target: float, *, guess: float = 1.0) -> float:
    """A tilt whose Chernoff exponent T (tilt * mean - log M) is close to `target`; 0 for a target of 0.

    The exponent grows with the tilt, continuously, but can be very steep when one round has two modes; so the
    bisection runs until the exponent, not the tilt, is close. Only speed and tightness depend on the answer.
    """
    if target <= 0.0:
        return 0.0
    close = 0.5 + 0.01 * target

    def miss(tilt: float) -> float:
        exponent = log_mass + tilt * value
        peak = float(exponent.max())
        weight = np.exp(exponent - peak)
        total = float(weight.sum())
        return rounds * (tilt * float(weight @ value) / total - peak - float(np.log(total))) - target

    low, high, tilt = 0.0, np.inf, guess
    for _ in range(200):
        error = miss(tilt)
        if abs(error) <= close:
            break
        low, high = (low, tilt) if error > 0 else (tilt, high)
        if not np.isfinite(high):
            tilt *= 4.0
        elif low == 0.0:
            tilt /= 4.0
        else:
            tilt = 0.5 * (low + high)
        if tilt > 1e18 or tilt < 1e-18 or high - low < 1e-14 * high:
            break
    return tilt

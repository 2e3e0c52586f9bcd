"""One-dimensional searches that end on the safe side."""

from collections.abc import Callable

import numpy as np

from hush.errors import CannotCertify

TOLERANCE = 1e-3  # relative width of the bracket whose safe end is returned
LEAST_NOISE, MOST_NOISE = 1e-3, 1e9


def least_safe(excess: Callable[[float], float], unsafe: float, *, name: str) -> float:
    """The least noise, within TOLERANCE, at which excess(noise) <= 0. Guarantee: proven safe at the value returned.

    `unsafe` is a noise known not to be safe, 0 if none is. The excess falls with the noise, nearly linearly in its
    logarithm, so each probe aims just above the secant's root; a plain bisection step follows any that misses.
    """
    low, high = unsafe, max(unsafe * (1 + 4 * TOLERANCE), 0.25)
    low_excess, high_excess = np.inf, excess(high)
    factor = 1.05 if unsafe > 0 else 2.0
    while high_excess > 0:
        low, low_excess = high, high_excess
        high, factor = high * factor, factor * factor
        if high > MOST_NOISE:
            raise CannotCertify(f"{name} needs a noise multiplier above {MOST_NOISE:.0e}; raise its ceiling")
        high_excess = excess(high)
    while low == 0.0 and high > LEAST_NOISE:
        probe = high / 2
        found = excess(probe)
        if found > 0:
            low, low_excess = probe, found
        else:
            high, high_excess = probe, found
    missed = False
    while high > max(low, LEAST_NOISE) * (1 + TOLERANCE):
        share = low_excess / (low_excess - high_excess) if np.isfinite(low_excess) and not missed else 0.5
        probe = low * (high / low) ** float(np.clip(share, 0.05, 0.95)) * (1 + 0.3 * TOLERANCE)
        probe = min(max(probe, low * (1 + 0.3 * TOLERANCE)), high * (1 - 0.3 * TOLERANCE))
        found = excess(probe)
        width = high / low
        if found > 0:
            low, low_excess = probe, found
        else:
            high, high_excess = probe, found
        missed = (high / low - 1) > 0.5 * (width - 1)
    return high  # proven safe; never the midpoint

"""One-dimensional searches that end on the safe side."""

from collections.abc import Callable

import numpy as np

TOLERANCE = 1e-3  # relative width of the bracket whose safe end is returned


def least_safe(
    excess: Callable[[float], float], *, unsafe: float = 0.0, start: float, least: float, most: float
) -> float | None:
    """The least x, within TOLERANCE, with excess(x) <= 0; None if it is above `most`, `least` if it is below that.

    `unsafe` is an x known not to be safe, 0 if none is; the search begins at `start`. The excess falls with x, nearly
    linearly in its logarithm, so each probe aims just above the secant's root; a plain bisection step follows any
    that misses. Guarantee: proven safe at the value returned.
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
        found = excess(probe)
        if not found <= 0:
            low, low_excess = probe, found
        else:
            high, high_excess = probe, found
    missed = False
    while high > max(low, least) * (1 + TOLERANCE):
        share = low_excess / (low_excess - high_excess) if np.isfinite(low_excess) and not missed else 0.5
        probe = low * (high / low) ** float(np.clip(share, 0.05, 0.95)) * (1 + 0.3 * TOLERANCE)
        probe = min(max(probe, low * (1 + 0.3 * TOLERANCE)), high * (1 - 0.3 * TOLERANCE))
        found = excess(probe)
        width = high / low
        if not found <= 0:
            low, low_excess = probe, found
        else:
            high, high_excess = probe, found
        missed = (high / low - 1) > 0.5 * (width - 1)
    return high  # proven safe; never the midpoint

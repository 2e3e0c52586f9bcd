"""T independent rounds: the law of a sum of lattice values, by FFT after an exponential tilt.

Tilting multiplies the mass at v by exp(tilt * v) and divides by the total M; the T-fold law of the tilted masses is
the tilted T-fold law, exactly, so undoing the tilt afterwards loses nothing. What it gains: the values of interest,
deep in the tail, are in the bulk of the tilted law, where the FFT's absolute round-off is harmless.
Every error is bounded and handed on: `entry_error` (round-off of one entry), `wrapped` (tilted mass outside the
window, which the circular FFT folds back into it), `growth` (relative rounding of the weights, all rounds together).
"""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from scipy.fft import irfft, next_fast_len, rfft

from hush.accounting.counts import EPS, Array

Indices = NDArray[np.int64]

OUTSIDE = 1e-15  # tilted mass allowed outside the window
NEGLIGIBLE = 1e-30  # powers of the spectrum below this are set to 0 and counted as error
FINEST = 2.0**-50  # of the largest value: a finer lattice numbers its places beyond what an integer holds
UNDERFLOW = 1e-300  # more tilted mass than can be lost to underflow
CHERNOFF = np.geomspace(0.06, 14.0, 10)  # exponents tried for the window, in units of 1 / deviation


@dataclass(frozen=True, slots=True, kw_only=True)
class Composed:
    """Law of the sum of T rounds on the lattice: mass at (first + i) * step is tilted[i] exp(log_norm - tilt v)."""

    first: int
    step: float
    tilt: float
    log_norm: float
    tilted: Array
    entry_error: float
    wrapped: float
    growth: float

    @property
    def values(self) -> Array:
        """The lattice values of the window."""
        return (self.first + np.arange(self.tilted.size, dtype=np.float64)) * self.step


def numbered_step(step: float, value: Array) -> float:
    """This step, or the finest one by which these values have places: a coarser lattice is looser, never wrong."""
    return max(step, FINEST * float(np.abs(value).max(initial=0.0)))


def compose(
    index: Indices, mass: Array, *, step: float, tilt: float, rounds: int, largest_size: int
) -> Composed | float:
    """Law of the sum of `rounds` independent draws of index * step; if it needs more than largest_size entries, about
    the step that would do."""
    used = mass > 0
    value = index[used].astype(np.float64) * step
    log_mass, turned = np.log(mass[used]), tilt * value
    largest = float((np.abs(log_mass) + np.abs(turned)).max())  # every exponent is rounded relative to this
    log_weight = log_mass + turned
    peak = float(log_weight.max())
    weight = np.exp(log_weight - peak)
    total = float(weight.sum())
    weight /= total
    low, high = _window(value, log_weight - peak - np.log(total), rounds)
    if (high - low) / step > largest_size:
        return (high - low) / largest_size
    first, last = int(np.floor(low / step)) - 1, int(np.ceil(high / step)) + 1
    tilted, entry_error, wrapped, most = _fold(index[used], weight, rounds, first, last - first + 1)
    return Composed(
        first=first,
        step=step,
        tilt=tilt,
        log_norm=rounds * (peak + float(np.log(total))),
        tilted=tilted,
        entry_error=entry_error,
        wrapped=wrapped,
        growth=float(np.expm1(rounds * EPS * (64 + 2 * largest + most))),
    )


def _fold(index: Indices, weight: Array, rounds: int, first: int, least_size: int) -> tuple[Array, float, float, int]:
    """The T-fold masses over the window, with entry_error, wrapped, and the most masses that one entry adds up."""
    size = least_size if rounds == 1 else int(next_fast_len(least_size, real=True))
    place = index - first if rounds == 1 else index % size
    entry, most = np.bincount(place, weight, minlength=size).astype(np.float64), int(np.bincount(place).max())
    if rounds == 1:
        return entry, 0.0, UNDERFLOW, most
    power, power_error = _power(entry, rounds)
    folded = irfft(power, n=size)
    round_off = 8 * EPS * np.log2(size + 1) * float(np.abs(power).sum())
    return np.roll(folded, -(first % size)), 2.0 / size * (power_error + round_off), 2 * OUTSIDE, most


def _window(value: Array, log_weight: Array, rounds: int) -> tuple[float, float]:
    """An interval outside of which, on either side, the T-fold law has at most OUTSIDE mass (Chernoff).

    Of a single round, which is not folded, the window holds everything.
    """
    if rounds == 1:
        return float(value.min()), float(value.max())
    weight = np.exp(log_weight)
    mean = float(weight @ value)
    centred = value - mean
    deviation = max(float(np.sqrt(rounds * (weight @ (centred * centred)))), 1e-300)
    ends: list[float] = []
    for sign in (-1.0, 1.0):
        support = rounds * float((sign * centred).max())  # the sum can never lie farther out than this
        s = (CHERNOFF / deviation)[:, None]
        with np.errstate(over="ignore"):
            log_moment = np.log(np.exp(sign * s * centred + log_weight).sum(axis=1))
        reach = (rounds * log_moment - np.log(OUTSIDE)) / s[:, 0]
        ends.append(rounds * mean + sign * min(support, float(reach.min()) * (1 + 1e-9)))
    return ends[0], ends[1]


def _power(weight: Array, rounds: int) -> tuple[NDArray[np.complex128], float]:
    """The spectrum of the weights to the power T where that is not negligible, and a bound on its summed error.

    The heaviest entry is transformed by hand (it only turns the phase), so the FFT's error is relative to the mass
    of the others. |(z + e)^T - z^T| <= T e (|z| + e)^(T - 1); the phase T * angle(z) is rounded to T |angle| ulps.
    """
    size = weight.size
    heaviest = int(weight.argmax())
    rest = np.roll(weight, -heaviest)
    top, rest[0] = rest[0], 0.0
    spectrum = rfft(rest)
    error = 8 * EPS * np.log2(size + 1) * float(rest.sum()) + 2 * EPS
    spectrum += top
    magnitude = np.abs(spectrum)
    with np.errstate(divide="ignore"):
        log_power = rounds * np.log(magnitude)
    slope = rounds * np.exp((rounds - 1) * np.log(np.minimum(magnitude, 1.0) + error))
    kept = np.flatnonzero(log_power > np.log(NEGLIGIBLE))
    angle = rounds * np.angle(spectrum[kept])
    turn = (kept * ((rounds * heaviest) % size)) % size * (2 * np.pi / size)  # whole turns are taken off in integers
    power = np.zeros_like(spectrum)
    power[kept] = np.exp(log_power[kept] + 1j * (angle - turn))
    phase_error = 4 * EPS * (8 + np.abs(angle)) * np.exp(log_power[kept])
    return power, error * float(slope.sum()) + float(phase_error.sum()) + NEGLIGIBLE * size

"""T independent rounds: the law of a sum of lattice values, by FFT after an exponential tilt.

Tilting multiplies the mass at v by exp(tilt * v) and divides by the total M; the T-fold law of the tilted masses is
the tilted T-fold law, exactly, so undoing the tilt afterwards loses nothing. What it gains: the values of interest,
deep in the tail, are in the bulk of the tilted law, where the FFT's absolute round-off is harmless.
Every error is bounded and handed on: `entry_error` (round-off of one entry), `wrapped` (tilted mass outside the
window, which the circular FFT folds back into it), `growth` (relative rounding of the weights, all rounds together).

How fine to cut, where to look: steers tightness and speed. No guarantee rests on anything in this file.
"""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from scipy.fft import irfft, next_fast_len, rfft
from scipy.special import ndtri

from hush.accounting.counts import EPS, Array, CountLaw
from hush.accounting.one_round import LEFT, gives_away, log_ratio, right_end

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


FEWEST_CELLS, MOST_CELLS = 512, 1 << 15
CONCEDED_SHARE = 0.01  # of the accuracy asked for: how much of the excess conceding may cost
PILOT = 512  # points of the rough round that the choice is made from
STEEPEST = 1e6  # exponents beyond this gain nothing, and their rounding would drown the answer


@dataclass(frozen=True, slots=True, kw_only=True)
class Resolution:
    """Right end and number of cells of the table, lattice step, tilt, and depth of the tail it aims at."""

    end: float
    cells: int
    step: float
    tilt: float
    depth: float


def choose_resolution(law: CountLaw, sigma: float, rounds: int, prior: float, *, accuracy: float) -> Resolution | None:
    """What makes the excess of log B over log(prior) come out about `accuracy` too large (docs/proofs, "How fine").

    None if a single draw gives the secret away. Spreading adds variance to the log ratio; an extra variance v raises
    log B by about v/2 * max(tilt - 1, 1/S), S the deviation of the tilted log ratio of the whole run. Success may
    be conceded on a share of the prior that is small against the excess: the nearer the end of the table, the less
    of the tilted law piles up there.
    """
    end = right_end(prior, rounds, share=CONCEDED_SHARE * accuracy)
    if gives_away(law, sigma, end=end):
        return None
    pilot = _try_out(law, sigma, rounds, prior, end)
    if pilot.excess < 1.0:
        end = right_end(prior, rounds, share=CONCEDED_SHARE * accuracy * pilot.excess)
        if gives_away(law, sigma, end=end):
            return None
        pilot = _try_out(law, sigma, rounds, prior, end)
    allowed = 2 * accuracy * pilot.excess / max(pilot.tilt - 1.0, 1.0 / pilot.deviation)
    slope = np.gradient(pilot.value, pilot.u)
    width = np.sqrt(0.25 * 6 * allowed / max(rounds * float(pilot.weight @ (slope * slope)), 1e-300))
    cells = int(np.clip((end - LEFT) / float(np.clip(width, 1e-9, 1.0)), FEWEST_CELLS, MOST_CELLS))
    step = _lattice_step(pilot.value, pilot.weight, 0.75 * allowed / rounds)
    # Where a run is decided by its one largest round, the threshold is that round's; the lattice must resolve it.
    jump = float(np.interp(-ndtri(prior / rounds), pilot.u, pilot.value))
    if jump > 0.0:
        step = min(step, jump * np.sqrt(10 * accuracy))
    return Resolution(end=end, cells=cells, step=step, tilt=pilot.tilt, depth=depth(prior))


def depth(prior: float) -> float:
    """-log of the tail to look at, less the polynomial factor that a normal tail would have."""
    return 0.5 * max(0.0, -float(ndtri(prior))) ** 2


@dataclass(frozen=True, slots=True, kw_only=True)
class _Pilot:
    """A rough round: points u, log ratios, tilted weights; deviation and rough excess log(B / prior) of the run."""

    u: Array
    value: Array
    weight: Array
    tilt: float
    deviation: float
    excess: float


def _try_out(law: CountLaw, sigma: float, rounds: int, prior: float, end: float) -> _Pilot:
    u = np.linspace(LEFT, end, PILOT)
    value = log_ratio(law, sigma, u, end=end)
    log_q = -0.5 * u * u
    log_q -= np.log(np.exp(log_q).sum())
    tilt = find_tilt(value, log_q, rounds, depth(prior))
    exponent = log_q + tilt * value
    weight = np.exp(exponent - float(exponent.max()))
    weight /= weight.sum()
    mean = float(weight @ value)
    deviation = max(float(np.sqrt(rounds * (weight @ (value - mean) ** 2))), 1e-300)
    excess = min(1.0, deviation * max(tilt * deviation, 1.0))
    return _Pilot(u=u, value=value, weight=weight, tilt=tilt, deviation=deviation, excess=excess)


def retilt(index: Indices, mass: Array, step: float, resolution: Resolution, rounds: int) -> float:
    """The tilt for the lattice law itself, which may differ from the pilot's where one round has two modes."""
    used = mass > 0
    return find_tilt(
        index[used].astype(np.float64) * step, np.log(mass[used]), rounds, resolution.depth, guess=resolution.tilt
    )


def _lattice_step(value: Array, weight: Array, variance: float) -> float:
    """Largest step whose split adds at most this variance a round: at most step |v| near 0, step^2 / 6 elsewhere."""
    low, high = 1e-18, 10.0
    size = np.abs(value)
    while high > 1.02 * low:
        middle = np.sqrt(low * high)
        added = float(weight @ np.minimum(middle * size, middle * middle / 6))
        low, high = (middle, high) if added <= variance else (low, middle)
    return low


def find_tilt(value: Array, log_mass: Array, rounds: int, target: float, *, guess: float = 1.0) -> float:
    """A tilt whose Chernoff exponent T (tilt * mean - log M) is close to `target`; 0 for a target of 0.

    The exponent grows with the tilt, continuously, but can be very steep when one round has two modes; so the
    bisection runs until the exponent, not the tilt, is close. Only speed and tightness depend on the answer.
    """
    if target <= 0.0:
        return 0.0
    close, most = 0.5 + 0.01 * target, min(1e18, STEEPEST / max(float(np.abs(value).max()), 1e-300))

    def miss(tilt: float) -> float:
        exponent = log_mass + tilt * value
        peak = float(exponent.max())
        weight = np.exp(exponent - peak)
        total = float(weight.sum())
        return rounds * (tilt * float(weight @ value) / total - peak - float(np.log(total))) - target

    low, high, tilt = 0.0, np.inf, min(guess, most)
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
        if tilt > most or tilt < 1e-18 or high - low < 1e-14 * high:
            break
    return tilt

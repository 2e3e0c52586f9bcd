"""Composition of T independent rounds: the law of a sum of lattice values, by FFT after an exponential tilt.

The rounds of a training depend on each other; together they are dominated by independent ones [Zhu22, adaptive
composition of dominating pairs] (docs/proofs.md, "Rounds compose").

Tilting multiplies the mass at v by exp(tilt * v) and divides by the total M; the T-fold law of the tilted masses is the
tilted T-fold law, exactly, so undoing the tilt afterwards loses nothing. The values of interest, deep in the tail, are
in the bulk of the tilted law, where the absolute round-off of the FFT is harmless. Every error is bounded and returned:
`entry_error` (round-off of one entry), `wrapped` (tilted mass outside the window, which the circular FFT folds back
into it), `growth` (relative rounding of the weights, all rounds together). Labels (E22) to (E24) and (E26) refer to
docs/proofs.md.

The second group chooses the resolution: cells, lattice step and tilt. It affects tightness and speed; no guarantee
depends on it (docs/proofs.md, "How fine").
"""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from scipy.fft import irfft, next_fast_len, rfft
from scipy.special import ndtri

from hush.accounting.counts import EPS, CountLaw
from hush.accounting.one_round import LEFT_END, gives_away, log_ratio, right_end
from hush.arrays import Array

Indices = NDArray[np.int64]

MAX_OUTSIDE = 1e-15  # tilted mass allowed outside the window on either side (E24)
WINDOW_ROUNDING = 1e-9  # relative error of the Chernoff reach of the window (E24)
NEGLIGIBLE_POWER = 1e-30  # powers of the spectrum below this are set to 0 and counted as error (E23)
UNDERFLOW_MASS = 1e-300  # more tilted mass than underflow can lose in a single round (E26)
MIN_RELATIVE_STEP = 2.0**-50  # of the largest value: int64 cannot number the places of a finer lattice
TINY = 1e-300  # prevents division by 0; tightness only
CHERNOFF_EXPONENTS = np.geomspace(0.06, 14.0, 10)  # tried for the window, in 1 / deviation; tightness only (E24)


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
    """This step, or the finest one that can number these values: a coarser lattice is looser, never wrong."""
    return max(step, MIN_RELATIVE_STEP * float(np.abs(value).max(initial=0.0)))


def compose(
    index: Indices, mass: Array, *, step: float, tilt: float, rounds: int, largest_size: int
) -> Composed | float:
    """Law of the sum of `rounds` independent draws of index * step.

    If it needs more than largest_size entries: roughly the step at which it would fit.
    """
    used = mass > 0
    value = index[used].astype(np.float64) * step
    log_mass, tilt_exponent = np.log(mass[used]), tilt * value
    largest = float((np.abs(log_mass) + np.abs(tilt_exponent)).max())  # exponents are rounded relative to this
    log_weight = log_mass + tilt_exponent
    peak = float(log_weight.max())
    weight = np.exp(log_weight - peak)
    total = float(weight.sum())
    weight /= total
    low, high = _window(value, log_weight - peak - np.log(total), rounds)
    if (high - low) / step > largest_size:
        return (high - low) / largest_size
    first, last = int(np.floor(low / step)) - 1, int(np.ceil(high / step)) + 1
    tilted, entry_error, wrapped, masses_per_place = _fold(index[used], weight, rounds, first, last - first + 1)
    return Composed(
        first=first,
        step=step,
        tilt=tilt,
        log_norm=rounds * (peak + float(np.log(total))),
        tilted=tilted,
        entry_error=entry_error,
        wrapped=wrapped,
        growth=float(np.expm1(rounds * EPS * (64 + 2 * largest + masses_per_place))),  # (E22)
    )


def _fold(index: Indices, weight: Array, rounds: int, first: int, least_size: int) -> tuple[Array, float, float, int]:
    """The T-fold masses over the window, with entry_error, wrapped, and the largest number of masses at one place."""
    size = least_size if rounds == 1 else int(next_fast_len(least_size, real=True))
    place = index - first if rounds == 1 else index % size
    entry, masses_per_place = (
        np.bincount(place, weight, minlength=size).astype(np.float64),
        int(np.bincount(place).max()),
    )
    if rounds == 1:
        return entry, 0.0, UNDERFLOW_MASS, masses_per_place
    power, power_error = _power(entry, rounds)
    folded = irfft(power, n=size)
    round_off = 8 * EPS * np.log2(size + 1) * float(np.abs(power).sum())  # of the inverse FFT (E23)
    entry_error = 2.0 / size * (power_error + round_off)  # the half spectrum counts twice, normalised (E23)
    return np.roll(folded, -(first % size)), entry_error, 3 * MAX_OUTSIDE, masses_per_place


def _window(value: Array, log_weight: Array, rounds: int) -> tuple[float, float]:
    """An interval outside of which, on either side, the T-fold law has at most MAX_OUTSIDE mass (Chernoff).

    A single round is not folded: its window holds everything.
    """
    if rounds == 1:
        return float(value.min()), float(value.max())
    weight = np.exp(log_weight)
    mean = float(weight @ value)
    centred = value - mean
    deviation = max(float(np.sqrt(rounds * (weight @ (centred * centred)))), TINY)
    ends: list[float] = []
    for sign in (-1.0, 1.0):
        support = rounds * float((sign * centred).max())  # the sum cannot lie farther out
        s = (CHERNOFF_EXPONENTS / deviation)[:, None]
        with np.errstate(over="ignore"):
            log_moment = np.log(np.exp(sign * s * centred + log_weight).sum(axis=1))
        reach = (rounds * log_moment - np.log(MAX_OUTSIDE)) / s[:, 0]
        ends.append(rounds * mean + sign * min(support, float(reach.min()) * (1 + WINDOW_ROUNDING)))
    return ends[0], ends[1]


def _power(weight: Array, rounds: int) -> tuple[NDArray[np.complex128], float]:
    """The spectrum of the weights to the power T where that is not negligible, and a bound on its summed error (E23).

    The heaviest entry is transformed by hand (it only turns the phase), so the error of the FFT is relative to the mass
    of the others. |(z + e)^T - z^T| <= T e (|z| + e)^(T - 1); the phase T * angle(z) is rounded relative to its size.
    """
    size = weight.size
    heaviest = int(weight.argmax())
    rest = np.roll(weight, -heaviest)
    top, rest[0] = rest[0], 0.0
    spectrum = rfft(rest)
    error = 8 * EPS * np.log2(size + 1) * float(rest.sum()) + 2 * EPS  # (E23)
    spectrum += top
    magnitude = np.abs(spectrum)
    with np.errstate(divide="ignore"):
        log_power = rounds * np.log(magnitude)
    slope = rounds * np.exp((rounds - 1) * np.log(np.minimum(magnitude, 1.0) + error))
    kept = np.flatnonzero(log_power > np.log(NEGLIGIBLE_POWER))
    angle = rounds * np.angle(spectrum[kept])
    turn = (
        (kept * ((rounds * heaviest) % size)) % size * (2 * np.pi / size)
    )  # whole turns are removed in integer arithmetic
    power = np.zeros_like(spectrum)
    power[kept] = np.exp(log_power[kept] + 1j * (angle - turn))
    phase_error = 4 * EPS * (8 + np.abs(angle)) * np.exp(log_power[kept])  # (E23)
    return power, error * float(slope.sum()) + float(phase_error.sum()) + NEGLIGIBLE_POWER * size


# The choice of the resolution: tightness and speed only.

MIN_CELLS, MAX_CELLS = 512, 1 << 15  # the former is assumed by (E18)
CONCEDED_EXCESS = 0.01  # of the requested accuracy: the share that conceding may cost
PILOT_POINTS = 512  # of the rough round from which the resolution is chosen
MAX_TILTED_EXPONENT = 1e6  # larger ones gain nothing, and their rounding would exceed the answer
MIN_STEP, MAX_STEP = 1e-18, 10.0  # of the lattice, in log ratio; tightness only
MIN_TILT, MAX_TILT = 1e-18, 1e18  # tightness only
MAX_TILT_STEPS = 200
MIN_CELL_WIDTH = 1e-9  # tightness only
TILT_RESOLUTION = 1e-14  # relative width at which the bisection for the tilt stops; tightness only


@dataclass(frozen=True, slots=True, kw_only=True)
class Resolution:
    """Right end and number of cells of the table, lattice step, tilt, and depth of the tail it aims at."""

    end: float
    cells: int
    step: float
    tilt: float
    depth: float


def choose_resolution(law: CountLaw, sigma: float, rounds: int, prior: float, *, accuracy: float) -> Resolution | None:
    """The resolution at which log B comes out too large by about `accuracy` of its excess over log(prior).

    None if a single draw reveals the secret. See docs/proofs.md, "How fine". Spreading adds variance to the log ratio;
    an extra variance v raises log B by about v/2 * max(tilt - 1, 1/S), S the deviation of the tilted log ratio of the
    whole run. Success may be conceded on a share of the prior that is small compared with the excess: the nearer the
    end of the table, the less of the tilted law accumulates there.
    """
    end = right_end(prior, rounds, share=CONCEDED_EXCESS * accuracy)
    if gives_away(law, sigma, end=end):
        return None
    pilot = _run_pilot(law, sigma, rounds, prior, end)
    if pilot.excess < 1.0:
        end = right_end(prior, rounds, share=CONCEDED_EXCESS * accuracy * pilot.excess)
        if gives_away(law, sigma, end=end):
            return None
        pilot = _run_pilot(law, sigma, rounds, prior, end)
    allowed = 2 * accuracy * pilot.excess / max(pilot.tilt - 1.0, 1.0 / pilot.deviation)
    slope = np.gradient(pilot.value, pilot.u)
    width = np.sqrt(0.25 * 6 * allowed / max(rounds * float(pilot.weight @ (slope * slope)), TINY))
    cells = int(np.clip((end - LEFT_END) / float(np.clip(width, MIN_CELL_WIDTH, 1.0)), MIN_CELLS, MAX_CELLS))
    step = _lattice_step(pilot.value, pilot.weight, 0.75 * allowed / rounds)
    # Where the largest round alone decides a run, the threshold is that of this round; the lattice must resolve it.
    jump = float(np.interp(-ndtri(prior / rounds), pilot.u, pilot.value))
    if jump > 0.0:
        step = min(step, jump * np.sqrt(10 * accuracy))
    return Resolution(end=end, cells=cells, step=step, tilt=pilot.tilt, depth=depth(prior))


def depth(prior: float) -> float:
    """-log of the tail of interest, without the polynomial factor of a normal tail."""
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


def _run_pilot(law: CountLaw, sigma: float, rounds: int, prior: float, end: float) -> _Pilot:
    u = np.linspace(LEFT_END, end, PILOT_POINTS)
    value = log_ratio(law, sigma, u, end=end)
    log_q = -0.5 * u * u
    log_q -= np.log(np.exp(log_q).sum())
    tilt = find_tilt(value, log_q, rounds, depth(prior))
    exponent = log_q + tilt * value
    weight = np.exp(exponent - float(exponent.max()))
    weight /= weight.sum()
    mean = float(weight @ value)
    deviation = max(float(np.sqrt(rounds * (weight @ (value - mean) ** 2))), TINY)
    excess = min(1.0, deviation * max(tilt * deviation, 1.0))
    return _Pilot(u=u, value=value, weight=weight, tilt=tilt, deviation=deviation, excess=excess)


def retilt(index: Indices, mass: Array, step: float, resolution: Resolution, rounds: int) -> float:
    """The tilt for the lattice law itself, which may differ from that of the pilot where one round has two modes."""
    used = mass > 0
    return find_tilt(
        index[used].astype(np.float64) * step, np.log(mass[used]), rounds, resolution.depth, guess=resolution.tilt
    )


def _lattice_step(value: Array, weight: Array, variance: float) -> float:
    """Largest step whose split adds at most this variance a round: at most step |v| near 0, step^2 / 6 elsewhere."""
    low, high = MIN_STEP, MAX_STEP
    size = np.abs(value)
    while high > 1.02 * low:
        middle = np.sqrt(low * high)
        added = float(weight @ np.minimum(middle * size, middle * middle / 6))
        low, high = (middle, high) if added <= variance else (low, middle)
    return low


def find_tilt(value: Array, log_mass: Array, rounds: int, target: float, *, guess: float = 1.0) -> float:
    """A tilt whose Chernoff exponent T (tilt * mean - log M) is close to `target`; 0 for a target of 0.

    The exponent grows continuously with the tilt, but can be very steep when one round has two modes; so the bisection
    runs until the exponent, not the tilt, is close. Only speed and tightness depend on the answer.
    """
    if target <= 0.0:
        return 0.0
    close = 0.5 + 0.01 * target
    largest = min(MAX_TILT, MAX_TILTED_EXPONENT / max(float(np.abs(value).max()), TINY))

    def miss(tilt: float) -> float:
        exponent = log_mass + tilt * value
        peak = float(exponent.max())
        weight = np.exp(exponent - peak)
        total = float(weight.sum())
        return rounds * (tilt * float(weight @ value) / total - peak - float(np.log(total))) - target

    low, high, tilt = 0.0, np.inf, min(guess, largest)
    for _ in range(MAX_TILT_STEPS):
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
        if tilt > largest or tilt < MIN_TILT or high - low < TILT_RESOLUTION * high:
            break
    return tilt

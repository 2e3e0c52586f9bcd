"""Composition of independent rounds: the law of a sum of lattice values, by FFT after an exponential tilt.

The rounds of a training depend on each other; together they are dominated by independent ones [Zhu22, adaptive
composition of dominating pairs] (docs/proofs.md, "Rounds compose"). Trainings with unlike laws or noise are unlike
terms of one sum: their spectra, each to the power of its rounds, are multiplied ("Unlike releases").

Tilting multiplies the mass at v by exp(tilt * v) and divides by the total M; the T-fold law of the tilted masses is the
tilted T-fold law, exactly, so undoing the tilt afterwards loses nothing. The values of interest, deep in the tail, are
in the bulk of the tilted law, where the absolute round-off of the FFT is harmless. Every error is bounded and returned:
`entry_error` (round-off of one entry), `wrapped` (tilted mass outside the window, which the circular FFT folds back
into it), `growth` (relative rounding of the weights, all rounds together). Labels (E22) to (E24), (E26) and (E37)
refer to docs/proofs.md.

The second group chooses the resolution: cells, lattice step and tilt. It affects tightness and speed; no guarantee
depends on it (docs/proofs.md, "How fine").
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from scipy.fft import irfft, next_fast_len, rfft
from scipy.special import ndtri

from hush.accounting.counts import EPS
from hush.accounting.one_round import LEFT_END, Part, log_ratio, right_end
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
    """Law of the sum of all rounds on the lattice: mass at (first + i) * step is tilted[i] exp(log_norm - tilt v)."""

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


@dataclass(frozen=True, slots=True, kw_only=True)
class Term:
    """Independent draws that enter the sum: the atoms of one draw, mass at index * step, and how many rounds draw."""

    index: Indices
    mass: Array
    rounds: int


def compose(terms: Sequence[Term], *, step: float, tilt: float, largest_size: int) -> Composed | float:
    """Law of the sum of all draws of all terms, under one tilt.

    If it needs more than largest_size entries: roughly the step at which it would fit.
    """
    weighted = [_tilted(term, step, tilt) for term in terms]
    low, high = _window(weighted)
    if (high - low) / step > largest_size:
        return (high - low) / largest_size
    first, last = int(np.floor(low / step)) - 1, int(np.ceil(high / step)) + 1
    tilted, entry_error, wrapped, masses_per_place = _fold(weighted, first, last - first + 1)
    norms = [term.rounds * term.log_total for term in weighted]
    growth = sum(
        term.rounds * EPS * (64 + 2 * term.largest + masses)  # (E22)
        for term, masses in zip(weighted, masses_per_place, strict=True)
    )
    growth += 4 * EPS * (len(norms) - 1) * sum(map(abs, norms))  # of adding the norms (E37)
    return Composed(
        first=first,
        step=step,
        tilt=tilt,
        log_norm=sum(norms),
        tilted=tilted,
        entry_error=entry_error,
        wrapped=wrapped,
        growth=float(np.expm1(growth)),
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class _Weighted:
    """The tilted atoms of a term. largest: size of the exponents, relative to which they are rounded."""

    index: Indices
    value: Array
    weight: Array
    log_weight: Array
    log_total: float
    largest: float
    rounds: int


def _tilted(term: Term, step: float, tilt: float) -> _Weighted:
    used = term.mass > 0
    index = term.index[used]
    value = index.astype(np.float64) * step
    log_mass, tilt_exponent = np.log(term.mass[used]), tilt * value
    log_weight = log_mass + tilt_exponent
    peak = float(log_weight.max())
    weight = np.exp(log_weight - peak)
    total = float(weight.sum())
    weight /= total
    return _Weighted(
        index=index,
        value=value,
        weight=weight,
        log_weight=log_weight - peak - np.log(total),
        log_total=peak + float(np.log(total)),
        largest=float((np.abs(log_mass) + np.abs(tilt_exponent)).max()),
        rounds=term.rounds,
    )


def _fold(terms: Sequence[_Weighted], first: int, least_size: int) -> tuple[Array, float, float, list[int]]:
    """The masses of the sum over the window, entry_error, wrapped, and per term the most masses at one place."""
    single = sum(term.rounds for term in terms) == 1
    size = least_size if single else int(next_fast_len(least_size, real=True))
    entries: list[Array] = []
    masses_per_place: list[int] = []
    for term in terms:
        place = term.index - first if single else term.index % size
        entries.append(np.bincount(place, term.weight, minlength=size).astype(np.float64))
        masses_per_place.append(int(np.bincount(place).max()))
    if single:
        return entries[0], 0.0, UNDERFLOW_MASS, masses_per_place
    power, power_error = _product(entries, [term.rounds for term in terms])
    folded = irfft(power, n=size)
    round_off = 8 * EPS * np.log2(size + 1) * float(np.abs(power).sum())  # of the inverse FFT (E23)
    entry_error = 2.0 / size * (power_error + round_off)  # the half spectrum counts twice, normalised (E23)
    return np.roll(folded, -(first % size)), entry_error, 3 * MAX_OUTSIDE, masses_per_place


def _window(terms: Sequence[_Weighted]) -> tuple[float, float]:
    """An interval outside of which, on either side, the law of the sum has at most MAX_OUTSIDE mass (Chernoff).

    Log-moments of independent draws add up. A single round is not folded: its window holds everything.
    """
    if sum(term.rounds for term in terms) == 1:
        return float(terms[0].value.min()), float(terms[0].value.max())
    mean, variance = 0.0, 0.0
    centred: list[Array] = []
    for term in terms:
        weight = np.exp(term.log_weight)
        each = float(weight @ term.value)
        centred.append(term.value - each)
        mean += term.rounds * each
        variance += term.rounds * float(weight @ (centred[-1] * centred[-1]))
    deviation = max(float(np.sqrt(variance)), TINY)
    ends: list[float] = []
    for sign in (-1.0, 1.0):
        s = (CHERNOFF_EXPONENTS / deviation)[:, None]
        support, log_moment = 0.0, np.zeros(s.size)
        for term, around in zip(terms, centred, strict=True):
            support += term.rounds * float((sign * around).max())  # the sum cannot lie farther out
            with np.errstate(over="ignore"):
                log_moment += term.rounds * np.log(np.exp(sign * s * around + term.log_weight).sum(axis=1))
        reach = (log_moment - np.log(MAX_OUTSIDE)) / s[:, 0]
        ends.append(mean + sign * min(support, float(reach.min()) * (1 + WINDOW_ROUNDING)))
    return ends[0], ends[1]


def _product(weights: Sequence[Array], rounds: Sequence[int]) -> tuple[NDArray[np.complex128], float]:
    """The product of the spectra to their powers T where it is not negligible, and a bound on its summed error (E23).

    The heaviest entry is transformed by hand (it only turns the phase), so the error of the FFT is relative to the mass
    of the others. |(z + e)^T - z^T| <= T e (|z| + e)^(T - 1); the phase T * angle(z) is rounded relative to its size.
    Several factors are replaced one after another (E37).
    """
    size = weights[0].size
    half = size // 2 + 1
    kept = np.arange(half)
    log_power, angle, turned, turn = np.zeros(half), np.zeros(half), np.zeros(half), 0
    log_most, shares, log_growth = np.zeros(half), np.zeros(half), 0.0
    for weight, times in zip(weights, rounds, strict=True):
        heaviest = int(weight.argmax())
        rest = np.roll(weight, -heaviest)
        top, rest[0] = rest[0], 0.0
        spectrum = rfft(rest)
        error = 8 * EPS * np.log2(size + 1) * float(rest.sum()) + 2 * EPS  # (E23)
        spectrum += top
        magnitude = np.abs(spectrum)
        most = np.minimum(magnitude, 1.0) + error
        log_most += times * np.log(most)
        shares += (times * error) / most
        log_growth += times * error
        with np.errstate(divide="ignore"):
            log_power += times * np.log(magnitude[kept])
        phase = times * np.angle(spectrum[kept])
        angle, turned, turn = angle + phase, turned + np.abs(phase), turn + times * heaviest
        left = log_power > np.log(NEGLIGIBLE_POWER)
        kept, log_power, angle, turned = kept[left], log_power[left], angle[left], turned[left]
    count = len(weights)
    turns = (kept * (turn % size)) % size * (2 * np.pi / size)  # whole turns are removed in integer arithmetic
    power = np.zeros(half, dtype=np.complex128)
    power[kept] = np.exp(log_power + 1j * (angle - turns))
    phase_error = (3 + count) * EPS * (8 * count + turned) * np.exp(log_power)  # (E23), (E37)
    dropped = NEGLIGIBLE_POWER * size * (math.exp(log_growth) if count > 1 else 1.0)  # (E37)
    with np.errstate(under="ignore"):
        power_error = float((shares * np.exp(log_most)).sum())
    return power, power_error + float(phase_error.sum()) + dropped


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


def _nearest_end(parts: Sequence[Part], prior: float, accuracy: float, excess: float = 1.0) -> float:
    return right_end(prior, sum(part.rounds for part in parts), share=CONCEDED_EXCESS * accuracy * excess)


def choose_resolution(parts: Sequence[Part], prior: float, *, accuracy: float) -> Resolution:
    """The resolution at which log B comes out too large by about `accuracy` of its excess over log(prior).

    For parts that are hidden. See docs/proofs.md, "How fine". Spreading adds variance to the log ratio;
    an extra variance v raises log B by about v/2 * max(tilt - 1, 1/S), S the deviation of the tilted log ratio of the
    whole run. Success may be conceded on a share of the prior that is small compared with the excess: the nearer the
    end of the table, the less of the tilted law accumulates there.
    """
    end = _nearest_end(parts, prior, accuracy)
    pilot = _run_pilot(parts, prior, end)
    if pilot.excess < 1.0:
        end = _nearest_end(parts, prior, accuracy, pilot.excess)
        pilot = _run_pilot(parts, prior, end)
    allowed = 2 * accuracy * pilot.excess / max(pilot.tilt - 1.0, 1.0 / pilot.deviation)
    slopes = [np.gradient(value, pilot.u) for value in pilot.values]
    steepness = sum(
        part.rounds * float(weight @ (slope * slope))
        for part, weight, slope in zip(parts, pilot.weights, slopes, strict=True)
    )
    width = np.sqrt(0.25 * 6 * allowed / max(steepness, TINY))
    cells = int(np.clip((end - LEFT_END) / float(np.clip(width, MIN_CELL_WIDTH, 1.0)), MIN_CELLS, MAX_CELLS))
    rounds = sum(part.rounds for part in parts)
    shares = [part.rounds / rounds for part in parts]
    step = _lattice_step(pilot.values, pilot.weights, shares, 0.75 * allowed / rounds)
    # Where the largest round alone decides a run, the threshold is that of this round; the lattice must resolve it.
    jump = max(
        float(np.interp(-ndtri(prior / part.rounds), pilot.u, value))
        for part, value in zip(parts, pilot.values, strict=True)
    )
    if jump > 0.0:
        step = min(step, jump * np.sqrt(10 * accuracy))
    return Resolution(end=end, cells=cells, step=step, tilt=pilot.tilt, depth=depth(prior))


def depth(prior: float) -> float:
    """-log of the tail of interest, without the polynomial factor of a normal tail."""
    return 0.5 * max(0.0, -float(ndtri(prior))) ** 2


@dataclass(frozen=True, slots=True, kw_only=True)
class _Pilot:
    """A rough run: points u; log ratios and tilted weights of a round of each part; deviation and rough excess
    log(B / prior) of the run.
    """

    u: Array
    values: list[Array]
    weights: list[Array]
    tilt: float
    deviation: float
    excess: float


def _run_pilot(parts: Sequence[Part], prior: float, end: float) -> _Pilot:
    u = np.linspace(LEFT_END, end, PILOT_POINTS)
    values = [log_ratio(part.law, part.sigma, u, end=end) for part in parts]
    log_q = -0.5 * u * u
    log_q -= np.log(np.exp(log_q).sum())
    rounds = [part.rounds for part in parts]
    tilt = find_tilt(values, [log_q] * len(parts), rounds, depth(prior))
    weights: list[Array] = []
    variance = 0.0
    for value, times in zip(values, rounds, strict=True):
        exponent = log_q + tilt * value
        weight = np.exp(exponent - float(exponent.max()))
        weight /= weight.sum()
        mean = float(weight @ value)
        variance += times * float(weight @ (value - mean) ** 2)
        weights.append(weight)
    deviation = max(float(np.sqrt(variance)), TINY)
    excess = min(1.0, deviation * max(tilt * deviation, 1.0))
    return _Pilot(u=u, values=values, weights=weights, tilt=tilt, deviation=deviation, excess=excess)


def retilt(terms: Sequence[Term], step: float, resolution: Resolution) -> float:
    """The tilt for the lattice law itself, which may differ from that of the pilot where one round has two modes."""
    used = [term.mass > 0 for term in terms]
    return find_tilt(
        [term.index[where].astype(np.float64) * step for term, where in zip(terms, used, strict=True)],
        [np.log(term.mass[where]) for term, where in zip(terms, used, strict=True)],
        [term.rounds for term in terms],
        resolution.depth,
        guess=resolution.tilt,
    )


def _lattice_step(values: Sequence[Array], weights: Sequence[Array], shares: Sequence[float], variance: float) -> float:
    """Largest step whose split adds at most this variance a round, on average over the rounds of all parts.

    It adds at most step |v| near 0, step^2 / 6 elsewhere.
    """
    low, high = MIN_STEP, MAX_STEP
    sizes = [np.abs(value) for value in values]
    while high > 1.02 * low:
        middle = np.sqrt(low * high)
        added = sum(
            share * float(weight @ np.minimum(middle * size, middle * middle / 6))
            for share, weight, size in zip(shares, weights, sizes, strict=True)
        )
        low, high = (middle, high) if added <= variance else (low, middle)
    return low


def find_tilt(
    values: Sequence[Array],
    log_masses: Sequence[Array],
    rounds: Sequence[int],
    target: float,
    *,
    guess: float = 1.0,
) -> float:
    """A tilt whose Chernoff exponent, the sum of T (tilt * mean - log M), is close to `target`; 0 for a target of 0.

    The exponent grows continuously with the tilt, but can be very steep when one round has two modes; so the bisection
    runs until the exponent, not the tilt, is close. Only speed and tightness depend on the answer.
    """
    if target <= 0.0:
        return 0.0
    close = 0.5 + 0.01 * target
    farthest = max(float(np.abs(value).max()) for value in values)
    largest = min(MAX_TILT, MAX_TILTED_EXPONENT / max(farthest, TINY))

    def miss(tilt: float) -> float:
        reached = 0.0
        for value, log_mass, times in zip(values, log_masses, rounds, strict=True):
            exponent = log_mass + tilt * value
            peak = float(exponent.max())
            weight = np.exp(exponent - peak)
            total = float(weight.sum())
            reached += times * (tilt * float(weight @ value) / total - peak - float(np.log(total)))
        return reached - target

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

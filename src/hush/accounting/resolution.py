"""How fine to cut, where to look: steers tightness and speed. No guarantee rests on anything in this file."""

from dataclasses import dataclass

import numpy as np
from scipy.special import ndtri

from hush.accounting.compose import Indices
from hush.accounting.counts import Array, CountLaw
from hush.accounting.one_round import LEFT, gives_away, log_ratio, right_end

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

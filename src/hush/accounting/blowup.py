"""The tight bound: the blow-up function of T rounds at the prior, from above, by a lattice that dominates.

B(p) = max{P(E) : Q(E) <= p} = min over t of t p + H(t), H(t) = E_Q[(R - t)+], R the likelihood ratio of the whole
run. So one upper bound on H at one t is already an upper bound on B, and the best t is only a matter of tightness.
H grows when R is spread with its mean kept, and that is all the discretisation ever does (docs/proofs).
"""

import numpy as np

from hush.accounting.compose import Composed, Indices, compose, numbered_step
from hush.accounting.counts import EPS, Array, CountLaw
from hush.accounting.one_round import Round, discretise, spread
from hush.accounting.resolution import Resolution, choose_resolution, retilt

LARGEST_SIZE = 1 << 23  # entries of the T-fold lattice
REACH = 30.0  # priors up to this many times the one aimed at may be served by its composition
UNDERFLOW = 1e-306  # more than rounding to 0 can take from any result
STEEPEST = 600.0  # exponents beyond this are left out of the search for the best threshold


def blowup_upper(law: CountLaw, sigma: float, rounds: int, priors: Array, *, accuracy: float) -> tuple[Array, Array]:
    """Upper bounds on the best success probability from each prior, and the share of each that is mere allowance
    for round-off. Guarantee: never below the true value.

    One composition serves every prior at which that allowance is negligible; the others get their own.
    """
    best, allowance = np.ones_like(priors), np.ones_like(priors)
    waiting = np.argsort(priors, kind="stable")
    while waiting.size:
        prior = float(priors[waiting[0]])
        resolution = choose_resolution(law, sigma, rounds, prior, accuracy=accuracy)
        if resolution is None:
            break  # a single draw gives the secret away, from this prior and from all larger ones
        cells = discretise(law, sigma, end=resolution.end, cells=resolution.cells)
        bounds, slack = _bounds(cells, resolution, rounds, priors[waiting])
        better = bounds <= best[waiting]
        best[waiting[better]], allowance[waiting[better]] = bounds[better], slack[better]
        served = (slack <= 1e-2 * accuracy) & (priors[waiting] <= REACH * prior)
        served[0] = True
        waiting = waiting[~served]
    return best, allowance


def split(q_mass: Array, value: Array, step: float) -> tuple[Indices, Array]:
    """Move atoms to the lattice points around them, keeping both the Q-mass and the P-mass of each."""
    below = np.floor(value / step)
    index = below.astype(np.int64)
    weight = np.clip(np.expm1(value - below * step) / np.expm1(step), 0.0, 1.0)
    return np.concatenate([index, index + 1]), np.concatenate([q_mass * (1 - weight), q_mass * weight])


def _bounds(cells: Round, resolution: Resolution, rounds: int, priors: Array) -> tuple[Array, Array]:
    """Upper bounds at each prior, and how much of each is allowance for round-off (relative)."""
    atom_mass, atom_value = spread(cells)
    composed, total_p = _lattice_law(atom_mass, atom_value, resolution, rounds)
    conceded = cells.conceded_over(rounds)
    inflate_q = float(np.exp(rounds * cells.q_error))  # Q-masses are a factor of H
    inflate_p = float(np.exp(rounds * 4 * EPS * (2 + float(np.abs(atom_value).max()))))  # ratios are one of B
    threshold, excess, error = hockey_stick(composed, total_p, rounds, log_prior=float(np.log(priors[0])))
    height = inflate_q * (excess + error)
    bounds, slack = np.empty_like(priors), np.empty_like(priors)
    for i, log_prior in enumerate(np.log(priors)):
        with np.errstate(over="ignore"):  # a threshold too high for the prior is merely a useless candidate
            candidates = np.exp(threshold + log_prior) + height
        best = int(candidates.argmin())
        inflate_t = 1 + EPS * (8 + 2 * abs(log_prior) + 2 * abs(threshold[best]))  # t p comes from two logarithms
        bounds[i] = min(1.0, conceded + inflate_p * inflate_t * float(candidates[best]))
        inside = 0 < best < candidates.size - 1  # at either end, another composition may see a better threshold
        slack[i] = inflate_q * error[best] / bounds[i] if inside else np.inf
    return bounds, slack


def _lattice_law(mass: Array, value: Array, resolution: Resolution, rounds: int) -> tuple[Composed, float]:
    """The T-fold law of the atoms on the lattice, and the P-mass of one round."""
    step = numbered_step(resolution.step, value)
    while True:
        index, split_mass = split(mass, value, step)
        tilt = retilt(index, split_mass, step, resolution, rounds)
        composed = compose(index, split_mass, step=step, tilt=tilt, rounds=rounds, largest_size=LARGEST_SIZE)
        if isinstance(composed, Composed):
            return composed, _p_mass(index, split_mass, step)
        step = max(2 * step, composed)  # a coarser lattice is looser, never wrong


def _p_mass(index: Indices, mass: Array, step: float) -> float:
    """Total of mass * exp(index * step), rounded up."""
    used = mass > 0
    value = index[used].astype(np.float64) * step
    return float(np.exp(np.log(mass[used]) + value).sum()) * (1 + EPS * (64 + 2 * float(np.abs(value).max())))


def hockey_stick(composed: Composed, total_p: float, rounds: int, *, log_prior: float) -> tuple[Array, Array, Array]:
    """Thresholds log t, H(t) as computed, and a bound on its error, all for the lattice pair.

    For tilt >= 1 both tails are summed from the right, where the weights fall; for tilt < 1 the P-tail is the total
    less the left part, since exp((1 - tilt) v) would amplify round-off far to the right. Weights are relative to a
    centre near the threshold for this prior, and the scale is kept as a logarithm: it may be far below any double.
    """
    tilt, size = composed.tilt, composed.tilted.size
    value, tilted = composed.values, np.maximum(composed.tilted, 0.0)
    centre = _centre(composed, log_prior)
    u = value - centre
    near = np.flatnonzero(np.abs(u) * max(tilt, 1.0) <= STEEPEST)
    begin, end = int(near[0]), int(near[-1]) + 1
    log_scale = composed.log_norm + (1 - tilt) * centre
    with np.errstate(under="ignore", over="ignore"):
        q_right = _right_sums(tilted[begin:] * np.exp(-tilt * u[begin:]))[: end - begin]
        local = np.exp((1 - tilt) * u[begin:end])
        right = np.exp(u[begin:end]) * q_right
    loss = 4 * EPS * (size + 4 * STEEPEST + abs(composed.log_norm) + abs(tilt * centre)) + composed.growth
    if tilt >= 1.0:
        with np.errstate(under="ignore"):
            p_right = _right_sums(tilted[begin:] * np.exp((1 - tilt) * u[begin:]))[: end - begin]
        spill = composed.entry_error * _geometric(tilt - 1.0, composed.step, size) + composed.wrapped
        excess = scaled(log_scale, np.maximum(p_right - right, 0.0))
        error = scaled(log_scale, spill * local + loss * p_right)
    else:
        p_left = np.cumsum(tilted[:end] * np.exp((1 - tilt) * u[:end]))[begin:]
        whole = np.exp(rounds * np.log(total_p)) * (1 + 4 * EPS)
        terms = _geometric(1.0 - tilt, composed.step, size) + 1 + _geometric(tilt, composed.step, size)
        spill = 2 * composed.entry_error * terms + composed.wrapped
        excess = np.maximum(whole - scaled(log_scale, p_left + right), 0.0)
        error = scaled(log_scale, spill * local + loss * (p_left + right)) + 4 * EPS * whole
    return value[begin:end], excess, error + UNDERFLOW


def _centre(composed: Composed, log_prior: float) -> float:
    """The largest lattice value whose own Q-mass, as far as it is known, is about the prior; else the heaviest."""
    with np.errstate(divide="ignore"):
        log_mass = np.log(np.maximum(composed.tilted, composed.entry_error)) - composed.tilt * composed.values
    heavy = np.flatnonzero(log_mass + composed.log_norm >= log_prior)
    return float(composed.values[heavy[-1] if heavy.size else int(composed.tilted.argmax())])


def scaled(log_scale: float, amount: Array) -> Array:
    """exp(log_scale) * amount for amounts >= 0, without leaving the range of doubles on the way."""
    with np.errstate(divide="ignore", over="ignore", under="ignore"):
        return np.exp(log_scale + np.log(amount))


def _right_sums(terms: Array) -> Array:
    """Sums of all terms strictly to the right of each position."""
    sums = np.cumsum(terms[::-1])[::-1]
    return np.append(sums[1:], 0.0)


def _geometric(rate: float, step: float, size: int) -> float:
    """Sum over n >= 1 of exp(-rate * step * n), at most `size` terms."""
    exponent = min(rate * step, STEEPEST)
    return min(float(size), 1.0 / float(np.expm1(exponent))) if exponent > 0 else float(size)

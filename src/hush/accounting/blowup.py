"""The blow-up function of a run at the prior: an upper bound by a dominating lattice, a lower bound by an attack.

A run consists of parts, whose rounds may have unlike laws and noise; a single training is one part.
B(p) = max{P(E) : Q(E) <= p} = min over t of t p + H(t), H(t) = E_Q[(R - t)+], R the likelihood ratio of the whole
run. So one upper bound on H at one t is already an upper bound on B, and the best t is only a matter of tightness.
H grows when R is spread with its mean kept, and the discretisation does nothing else.

The lower bound is an attack: a test that anybody could run, with its exact success and false-alarm probabilities. The
test adds up, over the rounds, the log ratio of each output's cell rounded to a lattice, and answers "yes" when the sum
passes a threshold or any output lies beyond the table. The blow-up function is at least what such a test achieves. It
shares the cells with the upper bound, but no spreading: the two laws of the sum, with and without the secret, are
composed separately from exact cell masses, and every error is subtracted.

Labels (E20), (E21), (E25) to (E29) and (E37) refer to docs/proofs.md.
"""

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
from scipy.special import ndtr

from hush.accounting.composition import (
    CONCEDED_EXCESS,
    Composed,
    Indices,
    Resolution,
    Term,
    choose_resolution,
    compose,
    numbered_step,
    retilt,
)
from hush.accounting.counts import EPS, without_lifted
from hush.accounting.one_round import (
    CONCEDED_SHIFT,
    Part,
    Round,
    conceded_over,
    discretise,
    hidden_parts,
    spread,
    with_revealed,
)
from hush.arrays import Array

LARGEST_SIZE = 1 << 23  # entries of the lattice of a run; weights that underflow rely on it (E26)
LARGEST_JOINT_SIZE = 1 << 21  # the same where several spectra are multiplied; memory only
LEAST_LEFT = 1e-300  # false alarms that are left to a test of the other parts; tightness only
MAX_PRIOR_RATIO = 30.0  # priors up to this multiple may share the composition of the smallest; tightness only
MAX_SHARED_ALLOWANCE = 1e-2  # of the accuracy: with more round-off a prior gets its own composition; tightness only
UNDERFLOW_RESULT = 1e-306  # more than rounding to 0 can take from any result (E26)
UNDERFLOW_SUM = 1e-315  # more than 2**23 weighted terms lose that are rounded to 0, 2**-1074 each (E26)
MAX_THRESHOLD_EXPONENT = 600.0  # thresholds beyond it are not tried; tightness only, the error terms rely on it (E25)
TOTAL_ROUNDING = 4 * EPS  # relative error of the total P-mass to the power T (E27)
ATTACK_ROUNDING = 4 * EPS  # per round, of forming the P-masses (E29)
REVEALED_ROUNDING = 1e-9  # relative, of the probabilities of the test "is any output beyond the table?" (E29)
MIN_ATTACK_EXPONENT, MAX_ATTACK_EXPONENT = -700.0, 600.0  # of the weights in a tail sum (E29)


def blowup_upper(parts: Sequence[Part], priors: Array, *, accuracy: float) -> tuple[Array, Array]:
    """Upper bounds on the best success probability from each prior, and the share of each that is allowance for
    round-off. Guarantee: never below the true value.

    One composition serves all priors at which that allowance is negligible; the others get their own.
    """
    best, allowance = np.ones_like(priors), np.ones_like(priors)
    waiting = np.argsort(priors, kind="stable")
    while waiting.size:
        prior = float(priors[waiting[0]])
        hidden, _ = hidden_parts(parts, prior, share=CONCEDED_EXCESS * accuracy)
        if not hidden:
            break  # a single draw reveals the secret, from this prior and from all larger ones
        bounds, slack = _bounds(hidden, priors[waiting], accuracy)
        bounds = with_revealed(parts, hidden, bounds)
        better = bounds <= best[waiting]
        best[waiting[better]], allowance[waiting[better]] = bounds[better], slack[better]
        served = (slack <= MAX_SHARED_ALLOWANCE * accuracy) & (priors[waiting] <= MAX_PRIOR_RATIO * prior)
        served[0] = True
        waiting = waiting[~served]
    return best, allowance


def split(q_mass: Array, value: Array, step: float) -> tuple[Indices, Array]:
    """Move atoms to the lattice points around them, keeping both the Q-mass and the P-mass of each."""
    below = np.floor(value / step)
    index = below.astype(np.int64)
    weight = np.clip(np.expm1(value - below * step) / np.expm1(step), 0.0, 1.0)
    return np.concatenate([index, index + 1]), np.concatenate([q_mass * (1 - weight), q_mass * weight])


def _bounds(parts: Sequence[Part], priors: Array, accuracy: float) -> tuple[Array, Array]:
    """Upper bounds at each prior, and how much of each is allowance for round-off (relative)."""
    resolution = choose_resolution(parts, float(priors[0]), accuracy=accuracy)
    tables = [discretise(part.law, part.sigma, end=resolution.end, cells=resolution.cells) for part in parts]
    atoms = [spread(cells) for cells in tables]
    rounds = [part.rounds for part in parts]
    composed, total_p = _lattice_law(atoms, rounds, resolution)
    conceded = conceded_over(tables, rounds)
    rounding = TOTAL_ROUNDING * len(parts)  # (E27), (E37)
    q_error = sum(times * cells.q_error for times, cells in zip(rounds, tables, strict=True))
    p_error = sum(
        times * 4 * EPS * (2 + float(np.abs(value).max()))  # ratios are a factor of B (E20)
        for times, (_, value) in zip(rounds, atoms, strict=True)
    )
    inflate_q, inflate_p = float(np.exp(q_error)), float(np.exp(p_error))  # Q-masses are a factor of H (E18)
    threshold, excess, error = hockey_stick(composed, total_p, rounding, log_prior=float(np.log(priors[0])))
    height = inflate_q * (excess + error)
    bounds, slack = np.empty_like(priors), np.empty_like(priors)
    for i, log_prior in enumerate(np.log(priors)):
        with np.errstate(over="ignore"):  # a threshold too high for the prior is a useless candidate
            candidates = np.exp(threshold + log_prior) + height
        best = int(candidates.argmin())
        inflate_t = 1 + EPS * (8 + 2 * abs(log_prior) + 2 * abs(threshold[best]))  # (E28)
        bounds[i] = min(1.0, conceded + inflate_p * inflate_t * float(candidates[best]))
        inside = 0 < best < candidates.size - 1  # at either end, another composition may have a better threshold
        slack[i] = inflate_q * error[best] / bounds[i] if inside else np.inf
    return bounds, slack


def _lattice_law(
    atoms: Sequence[tuple[Array, Array]], rounds: Sequence[int], resolution: Resolution
) -> tuple[Composed, float]:
    """The law of all rounds on the lattice, and the P-mass of their tables, the latter rounded up but for (E27)."""
    step = max(numbered_step(resolution.step, value) for _, value in atoms)
    while True:
        terms: list[Term] = []
        for (mass, value), times in zip(atoms, rounds, strict=True):
            index, split_mass = split(mass, value, step)
            terms.append(Term(index=index, mass=split_mass, rounds=times))
        tilt = retilt(terms, step, resolution)
        composed = compose(terms, step=step, tilt=tilt, largest_size=_largest_size(terms))
        if isinstance(composed, Composed):
            return composed, float(np.exp(sum(term.rounds * np.log(_p_mass(term, step)) for term in terms)))
        step = max(2 * step, composed)  # a coarser lattice is looser, never wrong


def _largest_size(terms: Sequence[Term]) -> int:
    return LARGEST_SIZE if len(terms) == 1 else LARGEST_JOINT_SIZE


def _p_mass(term: Term, step: float) -> float:
    """Total of mass * exp(index * step), rounded up (E21)."""
    used = term.mass > 0
    value = term.index[used].astype(np.float64) * step
    rounding = EPS * (64 + 2 * float(np.abs(value).max()))  # (E21)
    return float(np.exp(np.log(term.mass[used]) + value).sum()) * (1 + rounding)


def hockey_stick(
    composed: Composed, total_p: float, rounding: float, *, log_prior: float
) -> tuple[Array, Array, Array]:
    """Thresholds log t, H(t) as computed, and a bound on its error, all for the lattice pair.

    total_p is the P-mass of all tables together, with this relative error.

    For tilt >= 1 both tails are summed from the right, where the weights fall; for tilt < 1 the P-tail is the total
    less the left part, since exp((1 - tilt) v) would amplify round-off far to the right. Weights are relative to a
    centre near the threshold for this prior, and the scale is kept as a logarithm, since it may underflow.
    """
    tilt, size = composed.tilt, composed.tilted.size
    value, tilted = composed.values, np.maximum(composed.tilted, 0.0)
    centre = _centre(composed, log_prior)
    u = value - centre
    near = np.flatnonzero(np.abs(u) * max(tilt, 1.0) <= MAX_THRESHOLD_EXPONENT)
    begin, end = int(near[0]), int(near[-1]) + 1
    log_scale = composed.log_norm + (1 - tilt) * centre
    with np.errstate(under="ignore", over="ignore"):
        q_right = _right_sums(tilted[begin:] * np.exp(-tilt * u[begin:]))[: end - begin]
        local = np.exp((1 - tilt) * u[begin:end])
        right = np.exp(u[begin:end]) * q_right
    # Of weighted sums (E25), and of the weights (E22).
    loss = 4 * EPS * (size + 4 * MAX_THRESHOLD_EXPONENT + abs(composed.log_norm) + abs(tilt * centre)) + composed.growth
    if tilt >= 1.0:
        with np.errstate(under="ignore"):
            p_right = _right_sums(tilted[begin:] * np.exp((1 - tilt) * u[begin:]))[: end - begin]
        spill = composed.entry_error * _geometric(tilt - 1.0, composed.step, size) + composed.wrapped
        excess = scaled(log_scale, np.maximum(p_right - right, 0.0))
        error = scaled(log_scale, spill * local + loss * p_right + UNDERFLOW_SUM)
    else:
        p_left = np.cumsum(tilted[:end] * np.exp((1 - tilt) * u[:end]))[begin:]
        total = total_p * (1 + rounding)
        terms = _geometric(1.0 - tilt, composed.step, size) + 1 + _geometric(tilt, composed.step, size)
        spill = 2 * composed.entry_error * terms + composed.wrapped
        excess = np.maximum(total - scaled(log_scale, p_left + right), 0.0)
        error = scaled(log_scale, spill * local + loss * (p_left + right)) + rounding * total
    return value[begin:end], excess, error + UNDERFLOW_RESULT


def _centre(composed: Composed, log_prior: float) -> float:
    """The largest lattice value whose Q-mass, as far as it is known, is at least the prior; else the heaviest one."""
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
    exponent = min(rate * step, MAX_THRESHOLD_EXPONENT)
    return min(float(size), 1.0 / float(np.expm1(exponent))) if exponent > 0 else float(size)


# The lower bound.


def blowup_lower(parts: Sequence[Part], priors: Array, *, accuracy: float) -> Array:
    """Success that an explicit attack achieves from each prior. Guarantee: never above the true blow-up function."""
    # an attack may only use mass that the true law has
    own = [replace(part, law=without_lifted(part.law)) for part in parts]
    return np.array([_attack_at(own, float(p), accuracy) for p in priors])


def _attack_at(parts: Sequence[Part], prior: float, accuracy: float) -> float:
    hidden, end = hidden_parts(parts, prior, share=CONCEDED_EXCESS * accuracy)
    revealing = [part for part in parts if part not in hidden]
    if not revealing:
        return max(prior, _attack_on(hidden, prior, accuracy))
    # The test "is any output beyond the table?", and if none is, a test of the other parts, or a guess.
    beyond, log_missed = 0.0, 0.0
    for part in revealing:
        drawn = (
            max(0.0, -float(np.expm1(part.law.log_idle)) - part.law.certain)
            * float(ndtr(CONCEDED_SHIFT))
            * (1 - REVEALED_ROUNDING)
        )
        log_missed += part.rounds * float(np.log1p(-drawn)) if drawn < 1 else -np.inf
        if part.sigma > 0:  # without noise there is no false alarm
            beyond += part.rounds * float(ndtr(-end)) * (1 + REVEALED_ROUNDING)
    caught, left = -float(np.expm1(log_missed)), max(0.0, prior - beyond)
    if hidden and left >= LEAST_LEFT:
        left = max(left, _attack_on(hidden, left, accuracy))
    return max(prior, caught + (1 - caught) * left)


def _attack_on(parts: Sequence[Part], prior: float, accuracy: float) -> float:
    """The attack where no draw reveals the secret."""
    resolution = choose_resolution(parts, prior, accuracy=accuracy)
    tables = [discretise(part.law, part.sigma, end=resolution.end, cells=resolution.cells) for part in parts]
    finite = [np.isfinite(cells.log_mean) for cells in tables]
    q_masses = [cells.q_mass[where] for cells, where in zip(tables, finite, strict=True)]
    log_means = [cells.log_mean[where] for cells, where in zip(tables, finite, strict=True)]
    p_masses = [q_mass * np.exp(log_mean) for q_mass, log_mean in zip(q_masses, log_means, strict=True)]
    rounds = [part.rounds for part in parts]
    step = max(numbered_step(resolution.step, log_mean) for log_mean in log_means)
    while True:
        indices = [np.rint(log_mean / step).astype(np.int64) for log_mean in log_means]
        without, with_secret = (
            [Term(index=i, mass=mass, rounds=times) for i, mass, times in zip(indices, masses, rounds, strict=True)]
            for masses in (q_masses, p_masses)
        )
        tilt = retilt(without, step, resolution)
        largest = _largest_size(without)
        false = compose(without, step=step, tilt=tilt, largest_size=largest)
        hit = compose(with_secret, step=step, tilt=max(tilt - 1, 0.0), largest_size=largest)
        if isinstance(false, Composed) and isinstance(hit, Composed):
            break
        step = max([2 * step, *(wider for wider in (false, hit) if isinstance(wider, float))])  # a weaker test
    return _best_test(tables, rounds, false, hit, prior)


def _best_test(tables: Sequence[Round], rounds: Sequence[int], false: Composed, hit: Composed, prior: float) -> float:
    """Largest proven success among threshold tests whose false-alarm probability is proven to be at most the prior."""
    false_tail, false_error = _tail(false)
    hit_tail, hit_error = _tail(hit)
    false_log_error, hit_log_error, beyond, log_missed = 0.0, 0.0, 0.0, 0.0
    for cells, times in zip(tables, rounds, strict=True):
        false_log_error += times * (cells.q_error + ATTACK_ROUNDING)
        hit_log_error += times * (cells.q_error + float(cells.ratio_error.max()) + ATTACK_ROUNDING)
        beyond += times * cells.beyond
        log_missed += times * float(np.log1p(-cells.attainable)) if cells.attainable < 1 else -np.inf
    inflate, deflate = float(np.exp(false_log_error)), float(np.exp(-hit_log_error))
    caught = -float(np.expm1(log_missed))
    # Thresholds run over the window of the false alarms; below its own window the hit tail is complete, above it 0.
    hits = np.append(np.maximum(hit_tail - hit_error, 0.0), 0.0)
    where = np.clip(false.first - hit.first + np.arange(false_tail.size + 1), 0, hits.size - 1)
    false_alarm = inflate * np.append(false_tail + false_error, false_error[-1]) + beyond
    success = caught + deflate * hits[where]
    false_alarm, success = np.minimum(false_alarm[::-1], 1.0), np.minimum(success[::-1], 1.0)
    allowed = int(np.searchsorted(np.maximum.accumulate(false_alarm), prior, side="right"))
    if allowed == 0:
        return 0.0
    best = float(success[:allowed].max())
    if allowed < success.size and false_alarm[allowed] > false_alarm[allowed - 1]:  # randomise between two tests
        share = (prior - false_alarm[allowed - 1]) / (false_alarm[allowed] - false_alarm[allowed - 1])
        best = max(best, float(success[allowed - 1] + share * (success[allowed] - success[allowed - 1])))
    return best


def _tail(composed: Composed) -> tuple[Array, Array]:
    """Mass at and above each lattice point of the window, and a bound on its error."""
    value = composed.values
    centre = float(value[int(composed.tilted.argmax())])
    exponent = -composed.tilt * (value - centre)
    clipped = np.clip(exponent, MIN_ATTACK_EXPONENT, MAX_ATTACK_EXPONENT)
    weight = np.where(exponent < MIN_ATTACK_EXPONENT, 0.0, np.exp(clipped))
    exponents = -MIN_ATTACK_EXPONENT + abs(composed.log_norm) + abs(composed.tilt * centre)
    log_scale = composed.log_norm - composed.tilt * centre
    at_least = np.cumsum((np.maximum(composed.tilted, 0.0) * weight)[::-1])[::-1]
    floor = np.exp(MIN_ATTACK_EXPONENT)  # what the weights set to 0 could have added
    error = composed.entry_error * np.cumsum(weight[::-1])[::-1] + composed.wrapped * np.maximum(weight, floor)
    error += (4 * EPS * (value.size + exponents) + composed.growth) * at_least + floor  # (E25), (E29)
    return scaled(log_scale, at_least), scaled(log_scale, error) + UNDERFLOW_RESULT

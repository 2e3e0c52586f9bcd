"""A lower bound that is an attack: a test anyone could run, with its exact success and false-alarm probabilities.

The test adds up, over the rounds, the log ratio of each output's cell rounded to a lattice, and answers "yes" when
the sum passes a threshold or any output lies beyond the table. Whatever such a test achieves, the blow-up function
is at least that. It shares the cells with the upper bound, but no spreading: the two laws of the sum, with and
without the secret, are composed separately from exact cell masses, and every error is taken off.
"""

import numpy as np

from hush.accounting.blowup import LARGEST_SIZE, STEEPEST, choose_resolution, retilt
from hush.accounting.compose import Composed, Indices, compose
from hush.accounting.counts import EPS, Array, CountLaw
from hush.accounting.one_round import Round, discretise


def blowup_lower(law: CountLaw, sigma: float, rounds: int, priors: Array, *, accuracy: float) -> Array:
    """Success that an explicit attack reaches from each prior. Guarantee: never above the true blow-up function."""
    return np.array([_one_prior(law, sigma, rounds, float(p), accuracy) for p in priors])


def _one_prior(law: CountLaw, sigma: float, rounds: int, prior: float, accuracy: float) -> float:
    resolution = choose_resolution(law, sigma, rounds, prior, accuracy=accuracy)
    cells = discretise(law, sigma, end=resolution.end, cells=resolution.cells)
    finite = np.isfinite(cells.log_mean)
    q_mass, log_mean = cells.q_mass[finite], cells.log_mean[finite]
    p_mass = q_mass * np.exp(log_mean)
    false_tail, hit_tail, step = None, None, resolution.step
    while false_tail is None or hit_tail is None:
        index = np.rint(log_mean / step).astype(np.int64)
        tilt = retilt(index, q_mass, step, resolution, rounds)
        false_tail = _tail(index, q_mass, step, tilt, rounds)
        hit_tail = _tail(index, p_mass, step, max(tilt - 1.0, 0.0), rounds)
        step *= 2
    return max(prior, _best_test(cells, finite, false_tail, hit_tail, law.lifted, rounds, prior))


def _tail(index: Indices, mass: Array, step: float, tilt: float, rounds: int) -> tuple[int, Array, Array] | None:
    """Sums of the composed masses at and above each lattice point of the window, and their error bounds."""
    composed = compose(index, mass, step=step, tilt=tilt, rounds=rounds, largest_size=LARGEST_SIZE)
    return None if composed is None else (composed.first, *_untilted_tail(composed))


def _untilted_tail(composed: Composed) -> tuple[Array, Array]:
    value = composed.values
    centre = float(value[int(composed.tilted.argmax())])
    exponent = np.clip(-composed.tilt * (value - centre), -STEEPEST, STEEPEST)
    scale = np.exp(composed.log_norm - composed.tilt * centre)
    weight = np.exp(exponent)
    at_least = np.cumsum((np.maximum(composed.tilted, 0.0) * weight)[::-1])[::-1]
    error = composed.entry_error * np.cumsum(weight[::-1])[::-1] + composed.wrapped * weight
    error += (4 * EPS * value.size + composed.growth) * at_least
    return scale * at_least, scale * error


def _best_test(
    cells: Round,
    finite: np.ndarray,
    false_tail: tuple[int, Array, Array],
    hit_tail: tuple[int, Array, Array],
    lifted: float,
    rounds: int,
    prior: float,
) -> float:
    """Largest proven success among threshold tests whose false-alarm probability is proven to be at most the prior."""
    inflate = float(np.exp(rounds * (cells.q_error + 4 * EPS)))
    deflate = float(np.exp(-rounds * (cells.q_error + float(cells.ratio_error[finite].max()) + 4 * EPS)))
    caught = -float(np.expm1(rounds * np.log1p(-min(cells.attainable, 1.0)))) if cells.attainable < 1 else 1.0
    # Thresholds run over the window of the false alarms; below its own window the hit tail is whole, above it 0.
    hits = np.append(np.maximum(hit_tail[1] - hit_tail[2], 0.0), 0.0)
    where = np.clip(false_tail[0] - hit_tail[0] + np.arange(false_tail[1].size + 1), 0, hits.size - 1)
    false_alarm = inflate * np.append(false_tail[1] + false_tail[2], false_tail[2][-1]) + rounds * cells.beyond
    success = caught + deflate * hits[where] - rounds * lifted
    false_alarm, success = np.minimum(false_alarm[::-1], 1.0), np.minimum(success[::-1], 1.0)
    allowed = int(np.searchsorted(np.maximum.accumulate(false_alarm), prior, side="right"))
    if allowed == 0:
        return 0.0
    best = float(success[:allowed].max())
    if allowed < success.size and false_alarm[allowed] > false_alarm[allowed - 1]:  # toss a coin between two tests
        share = (prior - false_alarm[allowed - 1]) / (false_alarm[allowed] - false_alarm[allowed - 1])
        best = max(best, float(success[allowed - 1] + share * (success[allowed] - success[allowed - 1])))
    return best

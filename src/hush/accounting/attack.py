"""A lower bound that is an attack: a test anyone could run, with its exact success and false-alarm probabilities.

The test adds up, over the rounds, the log ratio of each output's cell rounded to a lattice, and answers "yes" when
the sum passes a threshold or any output lies beyond the table. Whatever such a test achieves, the blow-up function
is at least that. It shares the cells with the upper bound, but no spreading: the two laws of the sum, with and
without the secret, are composed separately from exact cell masses, and every error is taken off.
"""

import numpy as np
from scipy.special import ndtr

from hush.accounting.blowup import LARGEST_SIZE, UNDERFLOW, scaled
from hush.accounting.compose import Composed, compose, numbered_step
from hush.accounting.counts import EPS, Array, CountLaw, without_lifted
from hush.accounting.one_round import CLEAR, Round, discretise, right_end
from hush.accounting.resolution import CONCEDED_SHARE, choose_resolution, retilt

SMALLEST, LARGEST = 700.0, 600.0  # weights stay between exp(-SMALLEST) and exp(LARGEST)


def blowup_lower(law: CountLaw, sigma: float, rounds: int, priors: Array, *, accuracy: float) -> Array:
    """Success that an explicit attack reaches from each prior. Guarantee: never above the true blow-up function."""
    return np.array([_one_prior(law, sigma, rounds, float(p), accuracy) for p in priors])


def _one_prior(law: CountLaw, sigma: float, rounds: int, prior: float, accuracy: float) -> float:
    law = without_lifted(law)  # an attack may only count on mass that is really there
    resolution = choose_resolution(law, sigma, rounds, prior, accuracy=accuracy)
    if resolution is None:  # the test "is any output beyond the table?", and a guess if none is
        nearest = right_end(prior, rounds, share=CONCEDED_SHARE * accuracy)  # no farther than the end that was tried
        beyond = rounds * float(ndtr(-nearest)) * (1 + 1e-9)
        drawn = max(0.0, -float(np.expm1(law.log_idle)) - law.certain) * float(ndtr(CLEAR)) * (1 - 1e-9)
        caught = -float(np.expm1(rounds * np.log1p(-drawn))) if drawn < 1 else 1.0
        return max(prior, caught + (1 - caught) * max(0.0, prior - beyond))
    cells = discretise(law, sigma, end=resolution.end, cells=resolution.cells)
    finite = np.isfinite(cells.log_mean)
    q_mass, log_mean = cells.q_mass[finite], cells.log_mean[finite]
    p_mass = q_mass * np.exp(log_mean)
    step = numbered_step(resolution.step, log_mean)
    while True:
        index = np.rint(log_mean / step).astype(np.int64)
        tilt = retilt(index, q_mass, step, resolution, rounds)
        false = compose(index, q_mass, step=step, tilt=tilt, rounds=rounds, largest_size=LARGEST_SIZE)
        hit = compose(index, p_mass, step=step, tilt=max(tilt - 1, 0.0), rounds=rounds, largest_size=LARGEST_SIZE)
        if isinstance(false, Composed) and isinstance(hit, Composed):
            break
        step = max([2 * step, *(wider for wider in (false, hit) if isinstance(wider, float))])  # a weaker test
    return max(prior, _best_test(cells, false, hit, rounds, prior))


def _best_test(cells: Round, false: Composed, hit: Composed, rounds: int, prior: float) -> float:
    """Largest proven success among threshold tests whose false-alarm probability is proven to be at most the prior."""
    false_tail, false_error = _tail(false)
    hit_tail, hit_error = _tail(hit)
    inflate = float(np.exp(rounds * (cells.q_error + 4 * EPS)))
    deflate = float(np.exp(-rounds * (cells.q_error + float(cells.ratio_error.max()) + 4 * EPS)))
    caught = -float(np.expm1(rounds * np.log1p(-cells.attainable))) if cells.attainable < 1 else 1.0
    # Thresholds run over the window of the false alarms; below its own window the hit tail is whole, above it 0.
    hits = np.append(np.maximum(hit_tail - hit_error, 0.0), 0.0)
    where = np.clip(false.first - hit.first + np.arange(false_tail.size + 1), 0, hits.size - 1)
    false_alarm = inflate * np.append(false_tail + false_error, false_error[-1]) + rounds * cells.beyond
    success = caught + deflate * hits[where]
    false_alarm, success = np.minimum(false_alarm[::-1], 1.0), np.minimum(success[::-1], 1.0)
    allowed = int(np.searchsorted(np.maximum.accumulate(false_alarm), prior, side="right"))
    if allowed == 0:
        return 0.0
    best = float(success[:allowed].max())
    if allowed < success.size and false_alarm[allowed] > false_alarm[allowed - 1]:  # toss a coin between two tests
        share = (prior - false_alarm[allowed - 1]) / (false_alarm[allowed] - false_alarm[allowed - 1])
        best = max(best, float(success[allowed - 1] + share * (success[allowed] - success[allowed - 1])))
    return best


def _tail(composed: Composed) -> tuple[Array, Array]:
    """Mass at and above each lattice point of the window, and a bound on its error."""
    value = composed.values
    centre = float(value[int(composed.tilted.argmax())])
    exponent = -composed.tilt * (value - centre)
    weight = np.where(exponent < -SMALLEST, 0.0, np.exp(np.clip(exponent, -SMALLEST, LARGEST)))
    exponent_error = SMALLEST + abs(composed.log_norm) + abs(composed.tilt * centre)
    log_scale = composed.log_norm - composed.tilt * centre
    at_least = np.cumsum((np.maximum(composed.tilted, 0.0) * weight)[::-1])[::-1]
    floor = np.exp(-SMALLEST)  # what the weights set to 0 could have added
    error = composed.entry_error * np.cumsum(weight[::-1])[::-1] + composed.wrapped * np.maximum(weight, floor)
    error += (4 * EPS * (value.size + exponent_error) + composed.growth) * at_least + floor
    return scaled(log_scale, at_least), scaled(log_scale, error) + UNDERFLOW

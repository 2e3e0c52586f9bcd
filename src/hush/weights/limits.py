"""Where a request cannot be met: the least noise that would do, and the secret that alone stands in the way.

All of it runs on the way to an error message, or when a reader asks; a plan never depends on it.
"""

from collections.abc import Callable

import numpy as np

from hush.accounting import calibrate
from hush.accounting.inputs import Bound
from hush.errors import HushError, InfeasiblePlan
from hush.incidence import Incidence
from hush.rounding import rounded_up
from hush.weights.accounted import TooLittleNoise
from hush.weights.choose import LEAST_NOISE, Array, Chooser
from hush.weights.solve import solve_program

Namer = Callable[[int], str]

CLOSE = 5e-3  # how closely the least noise is searched for
MOST_DOUBLINGS = 40
TRIES = 5


def noise_without(
    secret: int,
    incidence: Incidence,
    prior_SQ: Array,
    ceiling_SQ: Array,
    *,
    rates: Array,
    rounds: int,
    bound: Bound,
) -> float:
    """The noise that the same rates would need if nothing were promised about this secret."""
    rest = np.delete(np.arange(incidence.num_secrets), secret)
    return calibrate(
        incidence.select(secrets=rest),
        prior=prior_SQ[rest],
        ceiling=ceiling_SQ[rest],
        rates=rates,
        rounds=rounds,
        bound=bound,
    ).noise_multiplier


def least_noise(chooser: Chooser, *, without: int | None = None) -> float:
    """The least noise at which rates up to 1 reach the batch size, as closely as CLOSE, on the side that works.

    without: a secret to leave out of account. By bisection over the noise; a larger one never allows less.
    """

    def reaches(noise: float) -> bool:
        count_S = chooser.counts(noise)
        if without is not None:
            count_S[without] = np.inf
        most = solve_program(chooser.program.with_capacity(count_S), tolerance=chooser.tolerance)
        return most.objective >= chooser.batch_size

    low, high = 0.0, 1.0
    for _ in range(MOST_DOUBLINGS):
        if reaches(high):
            break
        low, high = high, 2 * high
    else:
        raise InfeasiblePlan(f"no noise up to {low:.3g} allows batch_size={chooser.batch_size:g}; lower it")
    while high > max(low * (1 + CLOSE), LEAST_NOISE):
        middle = float(np.sqrt(low * high)) if low > 0 else high / 4
        low, high = (low, middle) if reaches(middle) else (middle, high)
    return high


def explained(chooser: Chooser, noise: float, problem: TooLittleNoise, name: Namer) -> InfeasiblePlan:
    """The error for a noise whose capacities leave no plan of this batch size, with what would help."""
    try:
        least = _proven(chooser, least_noise(chooser))
    except HushError as error:
        return InfeasiblePlan(f"{problem} ({error})")
    text = (
        f"noise_multiplier={noise:.6g} gives the secrets too little capacity for batch_size={chooser.batch_size:g}; "
        f"raise it to at least {rounded_up(least)}"
    )
    if problem.largest_batch > 0:
        text += f", or lower batch_size to at most {problem.largest_batch}, the most that this noise allows"
    forcing = np.flatnonzero(problem.most.dual > 1e-6)
    if forcing.size == 1:
        one = int(forcing[0])
        relaxed = least_noise(chooser, without=one)
        text += f". {name(one)} alone forces it: without its promise a noise of {rounded_up(relaxed)} would do"
    return InfeasiblePlan(text)


def _proven(chooser: Chooser, noise: float) -> float:
    """The first of a few slightly larger noises at which a plan is proven."""
    for _ in range(TRIES):
        try:
            chooser.proven_at(noise)
            return noise
        except HushError:
            noise *= 1 + CLOSE
    raise InfeasiblePlan(f"about {noise:.4g} would be needed, but no plan was proven there")

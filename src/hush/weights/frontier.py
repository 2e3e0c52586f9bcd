"""The frontier: how much noise buys how much data, over a sweep of capacities.

Where a request cannot be met: the least noise that would do, and the secret that alone stands in the way.

All of it runs on the way to an error message, or when a reader asks; a plan never depends on it.
"""

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any, SupportsIndex

import numpy as np
from numpy.typing import ArrayLike

from hush.accounting import calibrate
from hush.accounting.arguments import Bound, checked_choice, checked_number, checked_rounds
from hush.errors import HushError, InfeasiblePlan, InvalidInput
from hush.incidence import Incidence
from hush.numbers import rounded_up
from hush.protection import promise_arrays
from hush.weights.choose import LEAST_NOISE, Array, Capacity, Choice, Chooser, Progress, TooLittleNoise
from hush.weights.solve import checked_tolerance, solve_program

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


POINTS = 11
KEEP = 0.9  # share of the weight of examples with secrets that a plan keeps unless told otherwise
NOISE_STEP = 2.0**-0.25  # from each noise of the default sweep to the next
PAPER_STEP = 0.5  # from each strength of the paper's sweep to the next


@dataclass(frozen=True, slots=True, kw_only=True)
class FrontierRow:
    """One point: what was asked (strength, or noise aimed at), what is kept, and the noise it needs.

    kept_fraction is the share of all examples with a weight above 1e-6, kept_weight the share of their weight that the
    examples with secrets keep.
    """

    setting: float
    kept_fraction: float
    kept_weight: float
    total_weight: float
    effective_size: float
    noise_multiplier: float
    noise_per_gradient: float
    binding: tuple[int, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Frontier:
    """Rows from the most data kept to the least, and which of them is the default choice."""

    capacity: Capacity
    bound: Bound
    rows: tuple[FrontierRow, ...]

    @property
    def best(self) -> FrontierRow:
        """The default choice: least noise among the rows in which examples with secrets keep 90 % of their weight."""
        enough = [row for row in self.rows if row.kept_weight >= KEEP] or [self.rows[0]]
        return min(enough, key=lambda row: row.noise_multiplier)

    def records(self) -> list[dict[str, Any]]:
        """The rows as plain dictionaries; a setting that bounds nothing is None."""
        return [asdict(row) | {"setting": row.setting if math.isfinite(row.setting) else None} for row in self.rows]


def frontier(
    incidence: Incidence,
    *,
    prior: ArrayLike,
    ceiling: ArrayLike,
    batch_size: float,
    rounds: SupportsIndex,
    bound: Bound = "blowup",
    capacity: Capacity = "accounted",
    settings: Sequence[float] | None = None,
    tolerance: float = 1e-4,
    progress: Progress | None = None,
) -> Frontier:
    """Kept data against noise, for a sweep of capacities.

    settings: noise multipliers to aim at ("accounted"), or strengths ("paper"); by default 11 of them, each a constant
    factor below the one before, from the one that keeps everything. Points that leave no feasible plan end the sweep.

    Guarantee: the noise of every row is proven to keep every promise at that row's rates.
    """
    chooser = make_chooser(incidence, prior, ceiling, batch_size, rounds, bound, tolerance)
    checked_choice("capacity", capacity, Capacity)
    choices = sweep(chooser, capacity, settings, progress=progress)
    return Frontier(capacity=capacity, bound=bound, rows=tuple(_row(chooser, choice) for choice in choices))


def make_chooser(
    incidence: Incidence,
    prior: ArrayLike,
    ceiling: ArrayLike,
    batch_size: float,
    rounds: SupportsIndex,
    bound: Bound,
    tolerance: float,
) -> Chooser:
    """A Chooser from arguments as users give them."""
    if incidence.num_examples == 0:
        raise InvalidInput("the incidence has no examples; there is nothing to train on")
    checked_choice("bound", bound, Bound)
    prior_SQ, ceiling_SQ = promise_arrays(prior, ceiling, incidence.num_secrets)
    return Chooser(
        incidence=incidence,
        prior_SQ=prior_SQ,
        ceiling_SQ=ceiling_SQ,
        batch_size=checked_number("batch_size", batch_size),
        rounds=checked_rounds(rounds),
        bound=bound,
        tolerance=checked_tolerance(tolerance),
    )


def sweep(
    chooser: Chooser, capacity: Capacity, settings: Iterable[float] | None, *, progress: Progress | None = None
) -> list[Choice]:
    """A choice for each setting, largest first; with accounted capacities each is warm-started from the one before."""
    if capacity == "none" and settings is not None:
        raise InvalidInput("capacity='none' has no settings to sweep; leave them out")
    asked = None if settings is None else _checked_settings(settings)
    everything = chooser.everything
    if capacity == "none" or (asked is None and everything.noise_multiplier == 0):  # nothing to gain
        return [everything]
    choices, wanted = ([everything], _default_settings(chooser, capacity)) if asked is None else ([], asked)
    last: Choice | None = None
    by_strength = chooser.paper_sweep(wanted)
    for done, setting in enumerate(wanted):
        try:
            if capacity == "paper":
                last = next(by_strength)
            elif setting >= everything.noise_multiplier:
                last = replace(everything, setting=setting)
            else:
                last = chooser.accounted(setting, warm_start=last)
        except InfeasiblePlan as error:
            if not choices:
                raise (
                    explained(chooser, setting, error, "secret {}".format)
                    if isinstance(error, TooLittleNoise)
                    else error
                ) from error
            break  # smaller ones are infeasible too
        choices.append(last)
        if progress is not None:
            progress(done + 1, len(wanted))
    return choices


def _default_settings(chooser: Chooser, capacity: Capacity) -> list[float]:
    """Below the one that keeps everything, each a constant factor below the one before."""
    if capacity == "paper":
        first, step = chooser.strength_that_keeps_all, PAPER_STEP
    else:
        first, step = chooser.everything.noise_multiplier, NOISE_STEP
    return [first * step**k for k in range(1, POINTS)]


def _checked_settings(settings: Iterable[float]) -> list[float]:
    try:
        wanted = sorted((checked_number("setting", setting) for setting in settings), reverse=True)
    except TypeError as error:
        raise InvalidInput(f"settings={settings!r}; pass a sequence of numbers") from error
    if not wanted or not all(0 < setting < math.inf for setting in wanted):
        raise InvalidInput(f"settings={wanted}; pass at least one, each a finite number above 0")
    return wanted


def _row(chooser: Chooser, choice: Choice) -> FrontierRow:
    bearing = chooser.incidence.secrets_per_example > 0
    return FrontierRow(
        setting=choice.setting,
        kept_fraction=choice.kept_fraction,
        kept_weight=float(choice.weight_N[bearing].mean()) if bearing.any() else 1.0,
        total_weight=choice.total_weight,
        effective_size=choice.effective_size,
        noise_multiplier=choice.noise_multiplier,
        noise_per_gradient=choice.noise_multiplier / chooser.batch_size,
        binding=tuple(choice.calibration.binding.tolist()),
    )

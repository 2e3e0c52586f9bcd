"""The frontier of noise against kept data, over a sweep of capacities; and what would help where no plan exists.

The functions of the second group run only for an error message or when a reader asks: the least noise that would work,
and the single secret that forces it. A plan never depends on them.
"""

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any, SupportsIndex

import numpy as np
from numpy.typing import ArrayLike

from hush.accounting import calibrate
from hush.accounting.arguments import Bound, checked_choice
from hush.accounting.signal import budget_of, gaussian_shift
from hush.arrays import Array, Progress
from hush.errors import HushError, InfeasiblePlan, InvalidInput, Setting
from hush.incidence import Incidence
from hush.numbers import checked_number, rounded_up
from hush.weights.choose import MIN_NOISE, Capacity, Choice, Chooser, TooLittleNoise, make_chooser
from hush.weights.solve import solve_program

__all__ = [
    "KEEP",
    "Frontier",
    "FrontierRow",
    "explained",
    "frontier",
    "frontiers",
    "least_noise",
    "noise_without",
    "sweep",
]

KEEP = 0.9  # default of the setting ``keep``: share of the weight of examples with secrets that a plan keeps
NUM_POINTS = 11  # of the default sweep
NOISE_FACTOR = 2.0**-0.25  # from each noise of the default sweep to the next
STRENGTH_FACTOR = 0.5  # from each strength of the paper's sweep to the next
LEAST_NOISE_TOLERANCE = 5e-3  # relative width at which the search for the least noise stops
MAX_DOUBLINGS = 40  # of the noise in that search
MAX_PROOF_TRIALS = 5  # slightly larger noises at which a plan is tried before none is suggested
BINDING_DUAL = 1e-6  # a secret with a larger dual limits the batch


@dataclass(frozen=True, slots=True, kw_only=True)
class FrontierRow:
    """One point: the setting (strength, or target noise), what is kept, and the noise it needs.

    kept_fraction is the share of all examples with a weight above 1e-6, kept_weight the share of their weight that the
    examples with secrets keep. signal is that of the private rounds, and elbow the batch size beyond which a larger one
    buys nothing with these weights; both are forecasts (:mod:`hush.accounting.signal`).
    """

    setting: float
    kept_fraction: float
    kept_weight: float
    total_weight: float
    effective_size: float
    noise_multiplier: float
    noise_per_gradient: float
    binding: tuple[int, ...]
    signal: float
    elbow: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Frontier:
    """Rows from the most data kept to the least at one batch size, and the row that is the default choice."""

    capacity: Capacity
    bound: Bound
    batch_size: float
    rounds: int
    rows: tuple[FrontierRow, ...]

    @property
    def best(self) -> FrontierRow:
        """The default choice: least noise among the rows in which examples with secrets keep 90 % of their weight."""
        enough = [row for row in self.rows if row.kept_weight >= KEEP] or [self.rows[0]]
        return min(enough, key=lambda row: row.noise_multiplier)

    def records(self) -> list[dict[str, Any]]:
        """The rows as plain dictionaries; what is infinite is None."""
        sizes = {"batch_size": self.batch_size, "rounds": self.rounds}
        return [
            {name: None if value == math.inf else value for name, value in asdict(row).items()} | sizes
            for row in self.rows
        ]


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

    settings: target noise multipliers ("accounted"), or strengths ("paper"); by default 11 of them, each a constant
    factor below the previous one, from the one that keeps everything. The sweep ends at the first infeasible point.

    Guarantee: the noise of every row is proven to keep every promise at that row's rates.
    """
    chooser = make_chooser(incidence, prior, ceiling, batch_size, rounds, bound, tolerance)
    checked_choice("capacity", capacity, Capacity)
    choices = sweep(chooser, capacity, settings, progress=progress)
    rows = tuple(_row(chooser, choice) for choice in choices)
    return Frontier(capacity=capacity, bound=bound, batch_size=chooser.batch_size, rounds=chooser.rounds, rows=rows)


def frontiers(
    incidence: Incidence,
    *,
    batch_size: Iterable[float],
    rounds: Iterable[SupportsIndex],
    progress: Progress | None = None,
    **arguments: Any,
) -> tuple[Frontier, ...]:
    """``frontier`` for every pair of batch size and rounds, rounds outermost; both in the order given.

    Batches beyond the elbow of their rows have no more signal, and need more work.

    >>> graph = Incidence.from_pairs(range(20), [0] * 20, num_examples=100, num_secrets=1)
    >>> compared = frontiers(graph, prior=1e-10, ceiling=1e-3, batch_size=[2, 10, 50], rounds=[100], capacity="none")
    >>> [(made.batch_size, round(made.rows[0].signal, 1)) for made in compared], round(compared[0].rows[0].elbow, 1)
    ([(2.0, 2.7), (10.0, 3.2), (50.0, 3.3)], 3.3)
    """
    pairs = [(size, count) for count in rounds for size in batch_size]
    if not pairs:
        raise InvalidInput("pass at least one batch size and one number of rounds", setting="batch_size")
    made: list[Frontier] = []
    for number, (size, count) in enumerate(pairs):

        def report(done: int, total: int, number: int = number) -> None:
            if progress is not None:
                progress(number * total + done, len(pairs) * total)

        made.append(frontier(incidence, batch_size=size, rounds=count, progress=report, **arguments))
    return tuple(made)


def sweep(
    chooser: Chooser, capacity: Capacity, settings: Iterable[float] | None, *, progress: Progress | None = None
) -> list[Choice]:
    """A choice for each setting, largest first; with accounted capacities each starts from the previous one."""
    if capacity == "none" and settings is not None:
        raise InvalidInput("capacity='none' has no settings to sweep; leave them out")
    checked = None if settings is None else _checked_settings(settings)
    everything = chooser.all_examples
    if capacity == "none" or (checked is None and everything.noise_multiplier == 0):  # nothing to gain
        return [everything]
    choices, points = ([everything], _default_settings(chooser, capacity)) if checked is None else ([], checked)
    last: Choice | None = None
    by_strength = chooser.paper_sweep(points)
    for done, setting in enumerate(points):
        try:
            if capacity == "paper":
                last = next(by_strength)
            elif setting >= everything.noise_multiplier:
                last = replace(everything, setting=setting)
            else:
                last = chooser.accounted(setting, warm_start=last)
        except InfeasiblePlan as error:
            if choices:
                break  # smaller ones are infeasible too
            if isinstance(error, TooLittleNoise):
                raise explained(chooser, setting, error, "secret {}".format) from error
            raise
        choices.append(last)
        if progress is not None:
            progress(done + 1, len(points))
    return choices


def _default_settings(chooser: Chooser, capacity: Capacity) -> list[float]:
    """Below the one that keeps everything, each a constant factor below the previous one."""
    if capacity == "paper":
        first, factor = chooser.strength_that_keeps_all, STRENGTH_FACTOR
    else:
        first, factor = chooser.all_examples.noise_multiplier, NOISE_FACTOR
    return [first * factor**k for k in range(1, NUM_POINTS)]


def _checked_settings(settings: Iterable[float]) -> list[float]:
    try:
        points = sorted((checked_number("setting", setting) for setting in settings), reverse=True)
    except TypeError as error:
        raise InvalidInput(f"settings={settings!r}; pass a sequence of numbers") from error
    if not points or not all(0 < setting < math.inf for setting in points):
        raise InvalidInput(f"settings={points}; pass at least one, each a finite number above 0")
    return points


def _row(chooser: Chooser, choice: Choice) -> FrontierRow:
    bearing = chooser.incidence.secrets_per_example > 0
    budget = budget_of(
        chooser.incidence,
        choice.weight_N,
        shift_S=gaussian_shift(chooser.prior_SQ, chooser.target_SQ),
        batch_size=chooser.batch_size,
        rounds=chooser.rounds,
        noise_multiplier=choice.noise_multiplier,
    )
    return FrontierRow(
        setting=choice.setting,
        kept_fraction=choice.kept_fraction,
        kept_weight=float(choice.weight_N[bearing].mean()) if bearing.any() else 1.0,
        total_weight=choice.total_weight,
        effective_size=choice.effective_size,
        noise_multiplier=choice.noise_multiplier,
        noise_per_gradient=choice.noise_multiplier / chooser.batch_size,
        binding=tuple(choice.calibration.binding.tolist()),
        signal=budget.signal,
        elbow=budget.elbow,
    )


# What would help where no plan exists.


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
    """The least noise at which rates up to 1 reach the batch size, to LEAST_NOISE_TOLERANCE, on the side that works.

    without: a secret whose promise is ignored. By bisection over the noise: a larger one never allows less.
    """

    def reaches(noise: float) -> bool:
        count_S = chooser.counts(noise)
        if without is not None:
            count_S[without] = np.inf
        largest = solve_program(chooser.program.with_capacity(count_S), tolerance=chooser.tolerance)
        return largest.objective >= chooser.batch_size

    low, high = 0.0, 1.0
    for _ in range(MAX_DOUBLINGS):
        if reaches(high):
            break
        low, high = high, 2 * high
    else:
        raise InfeasiblePlan(
            f"no noise up to {low:.3g} allows ",
            Setting("batch_size"),
            f"={chooser.batch_size:g}; lower it",
            setting="batch_size",
        )
    while high > max(low * (1 + LEAST_NOISE_TOLERANCE), MIN_NOISE):
        middle = float(np.sqrt(low * high)) if low > 0 else high / 4
        low, high = (low, middle) if reaches(middle) else (middle, high)
    return high


def explained(chooser: Chooser, noise: float, problem: TooLittleNoise, name_of: Callable[[int], str]) -> InfeasiblePlan:
    """The error for a noise that allows no plan of this batch size, with what would help."""
    try:
        least = _proven(chooser, least_noise(chooser))
    except HushError as error:
        return InfeasiblePlan(*problem.args, f" ({error})", setting="batch_size")
    parts = [
        Setting("noise_multiplier"),
        f"={noise:.6g} gives the secrets too little capacity for ",
        Setting("batch_size"),
        f"={chooser.batch_size:g}; raise it to at least {rounded_up(least)}",
    ]
    if problem.largest_batch > 0:
        parts += [
            ", or lower ",
            Setting("batch_size"),
            f" to at most {problem.largest_batch}, the most that this noise allows",
        ]
    binding = np.flatnonzero(problem.weights.dual > BINDING_DUAL)
    if binding.size == 1:
        secret = int(binding[0])
        relaxed = rounded_up(least_noise(chooser, without=secret))
        parts.append(f". {name_of(secret)} alone forces it: without its promise a noise of {relaxed} would be enough")
    return InfeasiblePlan(*parts, setting="noise_multiplier")


def _proven(chooser: Chooser, noise: float) -> float:
    """The first of a few slightly larger noises at which a plan is proven."""
    for _ in range(MAX_PROOF_TRIALS):
        try:
            chooser.proven_at(noise)
            return noise
        except HushError:
            noise *= 1 + LEAST_NOISE_TOLERANCE
    raise InfeasiblePlan(f"about {noise:.4g} is needed, but no plan was proven there")

"""Stage 3 in one call: check, reduce, solve, map back, certify."""

import os
import time
from collections.abc import Iterator
from dataclasses import dataclass
from typing import final

import numpy as np
from numpy.typing import ArrayLike

from hush.accounting.inputs import checked_number
from hush.errors import CannotCertify, InvalidInput
from hush.incidence import Incidence
from hush.weights.certify import Certified, boxed, certify
from hush.weights.program import Array, Program, Progress
from hush.weights.reduce import Reduction, reduced, unreduced
from hush.weights.solvers import SOLVERS, Candidate, Task

__all__ = ["Start", "Weights", "checked_tolerance", "solve_program", "solve_weights", "solved", "weights_of"]

Start = tuple[Array, Array]  # values of the columns and duals of the rows, from which a solve begins

SMALL = 10_000  # entries up to which simplex is tried first: exact, and about as fast (measured)
MEDIUM = 100_000  # entries up to which simplex takes seconds: tried where the first solver fell short


@final
@dataclass(frozen=True, eq=False, repr=False, kw_only=True)
class Weights:
    """Weights that respect every capacity, with a proof of how good they are.

    Invariant: 0 <= values <= upper, objective = sum of values <= best possible sum <= bound, and
    gap = (bound - objective) / bound. dual has one entry per secret: what one more unit of its capacity would buy.
    start is where a warm-started solve begins; it promises nothing.
    """

    values: Array
    dual: Array
    objective: float
    bound: float
    gap: float
    upper: float
    start: Array
    solver: str
    seconds: float

    def __post_init__(self) -> None:
        if not (0 <= self.gap <= 1 and self.objective <= self.bound * (1 + 1e-12)):
            raise CannotCertify(f"objective {self.objective} and bound {self.bound} contradict each other")
        if self.values.size and not (self.values.min() >= 0 and self.values.max() <= self.upper):
            raise CannotCertify(f"weights leave [0, {self.upper}]; they are void")
        for array in (self.values, self.dual, self.start):
            array.flags.writeable = False

    def __repr__(self) -> str:
        return (
            f"Weights({len(self.values)} examples, objective={self.objective:.6g}, gap={self.gap:.2g}, "
            f"solver={self.solver!r})"
        )


def solve_weights(
    incidence: Incidence,
    capacity: ArrayLike,
    *,
    upper: float = 1.0,
    tolerance: float = 1e-4,
    warm_start: Weights | None = None,
    solver: str | None = None,
    progress: Progress | None = None,
) -> Weights:
    """Weights of the largest sum under which the examples of each secret weigh at most its capacity together.

    capacity: one number, or one per secret; infinite ones never bind, those below 1e-290 count as 0. upper bounds every
    weight. tolerance is the largest certified relative gap that is accepted. warm_start: the answer to a similar
    question, such as the same graph under other capacities. solver: None chooses by size. progress is called with
    (done, total) now and then.

    Guarantee: every capacity holds (up to 1e-12 of itself, the rounding of a sum), and no weights with these
    capacities have a sum above ``bound``, whatever the solver did. CannotCertify where the gap is above tolerance.

    >>> incidence = Incidence.from_pairs([0, 1, 1], [0, 0, 1], num_examples=3, num_secrets=2)
    >>> weights = solve_weights(incidence, [0.5, 2.0])
    >>> weights.values.tolist(), weights.objective
    ([0.5, 0.0, 1.0], 1.5)
    """
    program = Program.of(incidence, capacity, upper=upper)
    return solve_program(program, tolerance=tolerance, warm_start=warm_start, solver=solver, progress=progress)


def solve_program(
    program: Program,
    *,
    tolerance: float = 1e-4,
    warm_start: Weights | None = None,
    solver: str | None = None,
    progress: Progress | None = None,
    threads: int | None = None,
) -> Weights:
    """As ``solve_weights``, for a program that is at hand; ``program.with_capacity`` saves building it again.

    threads: how many to use at most, None for one per core; the answer does not depend on it.
    """
    goal = checked_tolerance(tolerance)
    start = _checked_start(program, warm_start)
    if solver is not None and solver not in SOLVERS:
        raise InvalidInput(f"solver={solver!r}; choose one of {', '.join(map(repr, SOLVERS))}, or None")
    return solved(program, goal, start=start, solver=solver, progress=progress, threads=threads)


def solved(
    program: Program,
    goal: float,
    *,
    start: Start | None = None,
    solver: str | None = None,
    progress: Progress | None = None,
    threads: int | None = None,
) -> Weights:
    """As ``solve_program``, from arguments that are checked, and from any start."""
    begin = time.perf_counter()
    answer = _best(program, start, goal, solver, progress, threads or os.cpu_count() or 1)
    proof = answer.proof
    if not proof.gap <= goal:
        raise CannotCertify(
            f"the best weights found have a sum of {proof.objective:.6g} and the best possible sum is at most "
            f"{proof.bound:.6g}: a certified gap of {proof.gap:.2g}, above tolerance={goal:.2g}; ask for a larger "
            "tolerance, or choose another solver"
        )
    return weights_of(program, proof, answer.start_S, answer.solver, time.perf_counter() - begin)


def weights_of(program: Program, proof: Certified, start_S: Array, solver: str, seconds: float) -> Weights:
    """What was proven, as an answer."""
    return Weights(
        values=proof.value_N,
        dual=proof.dual_S,
        objective=proof.objective,
        bound=proof.bound,
        gap=proof.gap,
        upper=float(program.upper_N.max(initial=0.0)),
        start=start_S,
        solver=solver,
        seconds=seconds,
    )


@final
@dataclass(frozen=True, eq=False)
class _Answer:
    solver: str
    proof: Certified
    start_S: Array


@final
class _Judge:
    """Certifies candidates for a reduction against the whole program; keeps the best."""

    def __init__(self, reduction: Reduction, goal: float, solver: str) -> None:
        self.reduction, self.goal, self.solver = reduction, goal, solver
        self.best: _Answer | None = None
        self.last: Candidate | None = None

    def __call__(self, found: Candidate) -> bool:
        """Whether the candidate is within the goal."""
        self.last = found
        small = self.reduction.program
        primal_N = self.reduction.primal(boxed(found.primal_N, small.num_columns, small.upper_N))
        dual_S = self.reduction.dual(boxed(found.dual_S, small.num_rows, 1.0))
        proof = certify(self.reduction.original, primal_N, dual_S, tolerance=self.goal)
        if self.best is None or proof.gap < self.best.proof.gap:
            start_S = self.reduction.start(boxed(found.start_S, small.num_rows, 1.0))
            self.best = _Answer(self.solver, proof, start_S)
        return proof.gap <= self.goal

    def answer(self, found: Candidate) -> _Answer:
        """The best so far, this last one included."""
        if found is not self.last or self.best is None:
            self(found)
        if self.best is None:
            raise CannotCertify("a candidate was judged and not kept; this is a bug")
        return self.best


def _best(
    program: Program,
    start: Start | None,
    goal: float,
    solver: str | None,
    progress: Progress | None,
    threads: int,
) -> _Answer:
    """The first answer within the goal, or the best of those that fall short."""
    best: _Answer | None = None
    for reduction, name in _attempts(program, solver):
        small = reduction.program
        if small.num_columns == 0:
            nothing = np.zeros(small.num_rows)
            answer = _Judge(reduction, goal, "reduction").answer(Candidate(np.empty(0), nothing, nothing))
        else:
            judge = _Judge(reduction, goal, name)
            task = Task(
                program=small,
                tolerance=goal,
                decided=float(reduction.fixed_N.sum()),
                start=None if start is None else (reduction.inward(start[0]), start[1][reduction.row_S]),
                judge=judge,
                progress=progress,
                threads=threads,
            )
            answer = judge.answer(SOLVERS[name](task))
        if best is None or answer.proof.gap < best.proof.gap:
            best = answer
        if best.proof.gap <= goal:
            break
        start = best.proof.value_N, best.start_S
    if best is None:
        raise CannotCertify("no attempt was made to solve the program; this is a bug")
    return best


def _attempts(program: Program, solver: str | None) -> Iterator[tuple[Reduction, str]]:
    """What to try, in order: the program to solve, and the solver. The way back can cost a little: then do without."""
    reduction = reduced(program)
    names = [solver] if solver else ["newton", "simplex"]
    if solver is None and reduction.program.num_entries <= SMALL:
        names.reverse()
    for whole in (False, True):
        if whole:
            reduction = unreduced(program)
        for name in names:
            if name == "newton" or solver or reduction.program.num_entries <= MEDIUM:
                yield reduction, name


def checked_tolerance(tolerance: float) -> float:
    """A relative gap that can be asked for."""
    goal = checked_number("tolerance", tolerance)
    if not 0 < goal < 1:
        raise InvalidInput(f"tolerance={goal}; pass a relative gap strictly between 0 and 1, such as 1e-4")
    return goal


def _checked_start(program: Program, warm_start: Weights | None) -> Start | None:
    if warm_start is None:
        return None
    sizes = len(warm_start.values), len(warm_start.dual)
    if sizes != (program.num_columns, program.num_rows):
        raise InvalidInput(
            f"warm_start has {sizes[0]} examples and {sizes[1]} secrets, the program {program.num_columns} and "
            f"{program.num_rows}; start from weights of the same graph"
        )
    return warm_start.values, warm_start.start

"""Stage 3 in one call: check, reduce, solve, map back, certify.

Stage 3, candidates: solvers behind one small interface. Nothing they return is believed (see certify).

A solver takes a task and returns a primal and a dual candidate. On the way it may show candidates to the task's judge,
which certifies them and says whether they will do.

Stage 3 for a sweep: one graph under several capacities.

What does not depend on the capacities is found once (see Program.arrangement). A point whose capacities are a share of
another's, both so small that no upper bound counts, has the other's answer times this share. Of the other points every
second one starts halfway between the answers beside it: points a factor of two apart have too little in common for a
start from one of them alone to help (measured). Points that wait for none are solved first, a few at a time, which
keeps every core busy where one solve cannot. Every answer is certified by itself, wherever it came from.
"""

import os
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any, final

import numpy as np
from numpy.typing import ArrayLike

from hush.accounting.arguments import checked_number
from hush.errors import CannotCertify, InvalidInput
from hush.incidence import Incidence
from hush.weights.linear_program import Array, Certified, Program, Progress, boxed, certify
from hush.weights.presolve import Reduction, reduced, unreduced

__all__ = [
    "SOLVERS",
    "Candidate",
    "Solver",
    "Start",
    "Task",
    "Weights",
    "checked_tolerance",
    "newton",
    "simplex",
    "solve_program",
    "solve_several",
    "solve_weights",
    "solved",
    "weights_of",
]


@final
@dataclass(frozen=True, eq=False)
class Candidate:
    """What a solver proposes: values per column, duals per row, and duals from which a similar program should start."""

    primal_N: Array
    dual_S: Array
    start_S: Array


@final
@dataclass(frozen=True, eq=False, kw_only=True)
class Task:
    """A program to solve until the judge is content.

    tolerance is the gap to aim for, relative to the objective plus what has been decided beforehand. start: values
    and duals of a similar program. threads is how many a solver may use; its answer does not depend on it.
    """

    program: Program
    tolerance: float = 1e-4
    decided: float = 0.0
    start: tuple[Array, Array] | None = None
    judge: Callable[[Candidate], bool] = lambda candidate: True
    progress: Progress | None = None
    threads: int = 1


Solver = Callable[[Task], Candidate]


def simplex(task: Task) -> Candidate:
    """HiGHS dual simplex: a vertex, for small programs; it uses no start and stops at its own tolerances."""
    from scipy.optimize import linprog
    from scipy.sparse import csc_array

    program = task.program
    shape = program.num_rows, program.num_columns
    matrix = csc_array((np.ones(program.num_entries), program.row_of_entry, program.offset_N), shape=shape)
    unit = float(program.upper_N.mean()) or 1.0  # its tolerances are absolute: measure weights in a typical size
    most_S = program.loads(program.upper_N)  # what a row can hold anyway; the library takes no infinite capacity
    solve: Any = linprog  # its type stubs know neither sparse matrices nor arrays of bounds
    found = solve(
        -np.ones(program.num_columns),
        A_ub=matrix,
        b_ub=np.minimum(program.capacity_S, most_S) / unit,
        bounds=np.column_stack([np.zeros(program.num_columns), program.upper_N / unit]),
        method="highs-ds",
        options={"primal_feasibility_tolerance": 1e-9, "dual_feasibility_tolerance": 1e-9},
    )
    if found.x is None:
        return Candidate(np.zeros(program.num_columns), np.zeros(program.num_rows), np.zeros(program.num_rows))
    dual_S: Array = -np.asarray(found.ineqlin.marginals, dtype=np.float64)
    return Candidate(found.x * unit, dual_S, dual_S)


def newton(task: Task) -> Candidate:
    """The proximal Newton method (see newton): for programs of any size, from a start if there is one."""
    from hush.weights.newton import ProximalNewton

    return ProximalNewton(task).found


SOLVERS: dict[str, Solver] = {"newton": newton, "simplex": simplex}


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


AT_ONCE = 4  # each needs its own reduced program: about 0.3 GB at 10 million entries


def solve_several(program: Program, capacities: Iterable[ArrayLike], *, tolerance: float = 1e-4) -> Iterator[Weights]:
    """As ``solve_program`` under each of the capacities, in their order; the answers do not depend on the cores.

    Neighbours in this order should be neighbours in strength: then they help each other.
    """
    goal = checked_tolerance(tolerance)
    points = [program.with_capacity(capacity) for capacity in capacities]
    larger = _larger(points, float(program.upper_N.min()) if program.num_columns else 0.0)
    between = {k for k in range(1, len(points) - 1, 2) if k not in larger and k not in larger.values()}
    cores = os.cpu_count() or 1
    workers = min(AT_ONCE, cores)
    answers: dict[int, Future[Weights]] = {}

    def solve(k: int) -> Weights:
        """Waits only for points that were begun before it."""
        if k in larger:
            found = _share_of(points[k], points[larger[k]], answers[larger[k]].result(), goal)
            if found is not None:
                return found
        start = _halfway(answers[k - 1].result(), answers[k + 1].result()) if k in between else None
        return solved(points[k], goal, start=start, threads=cores // workers)

    with ThreadPoolExecutor(workers) as pool:
        for k in sorted(range(len(points)), key=lambda k: (k in between, k in larger)):
            answers[k] = pool.submit(solve, k)
        try:
            for k in range(len(points)):
                yield answers[k].result()
        finally:
            pool.shutdown(cancel_futures=True)  # where the sweep is left early


def _larger(points: Sequence[Program], least_upper: float) -> dict[int, int]:
    """For each point that is a share of another, both without upper bounds that count, the largest such point.

    A weight is at most the capacity of any secret it touches, so capacities up to the upper bounds make those idle.
    """
    larger: dict[int, int] = {}
    families: list[int] = []
    small = [k for k, point in enumerate(points) if _most(point) <= least_upper]
    for k in sorted(small, key=lambda k: -_most(points[k])):
        for family in families:
            share = _most(points[k]) / _most(points[family])
            if np.allclose(points[k].capacity_S, share * points[family].capacity_S, rtol=1e-9, atol=0.0):
                larger[k] = family
                break
        else:
            if _most(points[k]) > 0:
                families.append(k)
    return larger


def _most(program: Program) -> float:
    return float(program.capacity_S.max(initial=0.0))


def _share_of(program: Program, larger: Program, answer: Weights, goal: float) -> Weights | None:
    """The answer to a larger point as one to this point, if it is good enough.

    It is in exact arithmetic: of columns with rows both the sum and the gap shrink alike; others do not change.
    """
    begin = time.perf_counter()
    share = _most(program) / _most(larger)
    proof = certify(program, share * answer.values, answer.dual, tolerance=goal)
    if not proof.gap <= goal:
        return None
    return weights_of(program, proof, answer.start, answer.solver, time.perf_counter() - begin)


def _halfway(left: Weights, right: Weights) -> Start:
    values: Array = (left.values + right.values) / 2
    return values, (left.start + right.start) / 2

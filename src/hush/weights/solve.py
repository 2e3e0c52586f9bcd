"""Solving the linear program: presolve, a solver, certification; one program, or one graph under several capacities.

A solver is a function from a ``Task`` to a ``Candidate``; ``SOLVERS`` lists them. While it runs it may offer
candidates, which are certified for the original program at once, so it can stop as soon as one is good enough.

For a sweep, everything that does not depend on the capacities is computed once (see ``Program.arrangement``). A point
whose capacities are a multiple of another point's, both so small that no upper bound binds, has the answer of the other
times that factor. Every second one of the remaining points starts halfway between the answers of its neighbours: a
start from one neighbour alone, a factor of two away, does not help (measured). Points that wait for no other are solved
first, a few in parallel, which uses every core where one solve cannot. Every answer is certified on its own.
"""

import os
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import replace
from typing import Any, final

import numpy as np
from numpy.typing import ArrayLike

from hush.arrays import Array, Progress
from hush.errors import CannotCertify, InvalidInput, Setting
from hush.incidence import Incidence
from hush.numbers import checked_number
from hush.weights.linear_program import Candidate, Program, Task, Weights, certify
from hush.weights.newton import newton
from hush.weights.presolve import Reduction, reduced, unreduced

__all__ = ["SOLVERS", "checked_tolerance", "simplex", "solve_program", "solve_several", "solve_weights"]

SIMPLEX_FIRST_ENTRIES = 10_000  # up to this size simplex is tried first: exact, and about as fast (measured)
SIMPLEX_MAX_ENTRIES = 100_000  # up to this size simplex takes seconds: tried where newton fell short
MAX_PARALLEL_SOLVES = 4  # each needs its own reduced program: about 0.3 GB at 10 million entries


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
    """Weights of the largest sum under which the examples of each secret together weigh at most its capacity.

    capacity: one number, or one per secret; infinite ones never bind, those below 1e-290 count as 0. upper bounds every
    weight. tolerance is the largest certified relative gap that is accepted. warm_start: the answer to a similar
    program, such as the same graph under other capacities. solver: None chooses by size. progress is called with
    (done, total) now and then.

    Guarantee: every capacity holds for the exact sum of the weights, and no weights with these capacities have a sum
    above ``bound``, whatever the solver did. CannotCertify where the gap is above tolerance.

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
    warm_start: Weights | Candidate | None = None,
    solver: str | None = None,
    progress: Progress | None = None,
    threads: int | None = None,
) -> Weights:
    """As ``solve_weights``, for an existing program; ``program.with_capacity`` avoids building it again.

    threads: how many to use at most, None for one per core; the answer does not depend on it.
    """
    begin = time.perf_counter()
    goal, start = checked_tolerance(tolerance), _checked_start(program, warm_start)
    if solver is not None and solver not in SOLVERS:
        raise InvalidInput(f"choose one of {', '.join(map(repr, SOLVERS))}, or None", setting="solver", value=solver)
    best: Weights | None = None
    for reduction, name in _attempts(program, solver):
        small = reduction.program
        judge = _Judge(reduction, goal)
        task = Task(
            program=small,
            tolerance=goal,
            decided=float(reduction.fixed_N.sum()),
            start=None if start is None else _reduced_start(reduction, start),
            accept=judge.accepts,
            progress=progress,
            threads=threads or os.cpu_count() or 1,
        )
        if small.num_columns:
            answer = replace(judge.best(SOLVERS[name](task)), solver=name)
        else:
            answer = replace(judge.best(Candidate(np.empty(0), np.zeros(small.num_rows))), solver="reduction")
        if best is None or answer.gap < best.gap:
            best = answer
        if best.gap <= goal:
            return replace(best, seconds=time.perf_counter() - begin)
        start = Candidate(best.values, best.start)
    if best is None:
        raise CannotCertify("no attempt was made to solve the program; this is a bug")
    raise CannotCertify(
        f"the best weights have a sum of {best.objective:.6g} and the best possible sum is at most {best.bound:.6g}: a "
        f"certified gap of {best.gap:.2g}, above ",
        Setting("tolerance"),
        f"={goal:.2g}; pass a larger one, or choose another solver",
        setting="tolerance",
    )


def simplex(task: Task) -> Candidate:
    """HiGHS dual simplex: a vertex, for small programs; it uses no start and stops at its own tolerances."""
    from scipy.optimize import linprog
    from scipy.sparse import csc_array

    program = task.program
    shape = program.num_rows, program.num_columns
    matrix = csc_array((np.ones(program.num_entries), program.row_of_entry, program.offset_N), shape=shape)
    unit = float(program.upper_N.mean()) or 1.0  # its tolerances are absolute: measure weights in a typical size
    room_S = program.loads(program.upper_N)  # the largest possible loads; the library takes no infinite capacity
    solve: Any = linprog  # its type stubs know neither sparse matrices nor arrays of bounds
    result = solve(
        -np.ones(program.num_columns),
        A_ub=matrix,
        b_ub=np.minimum(program.capacity_S, room_S) / unit,
        bounds=np.column_stack([np.zeros(program.num_columns), program.upper_N / unit]),
        method="highs-ds",
        options={"primal_feasibility_tolerance": 1e-9, "dual_feasibility_tolerance": 1e-9},
    )
    if result.x is None:
        return Candidate(np.zeros(program.num_columns), np.zeros(program.num_rows))
    return Candidate(result.x * unit, -np.asarray(result.ineqlin.marginals, dtype=np.float64))


SOLVERS: dict[str, Callable[[Task], Candidate]] = {"newton": newton, "simplex": simplex}


def _attempts(program: Program, solver: str | None) -> Iterator[tuple[Reduction, str]]:
    """What to try, in order: a reduction and a solver for it. Mapping back can cost accuracy: the last do without."""
    reduction = reduced(program)
    names = [solver] if solver else ["newton", "simplex"]
    if solver is None and reduction.program.num_entries <= SIMPLEX_FIRST_ENTRIES:
        names.reverse()
    for original in (False, True):
        if original:
            reduction = unreduced(program)
        for name in names:
            if name == "newton" or solver or reduction.program.num_entries <= SIMPLEX_MAX_ENTRIES:
                yield reduction, name


@final
class _Judge:
    """Certifies candidates for a reduced program against the original program, and keeps the best answer."""

    def __init__(self, reduction: Reduction, goal: float) -> None:
        self._reduction, self._goal = reduction, goal
        self._best: Weights | None = None
        self._last: Candidate | None = None

    def accepts(self, candidate: Candidate) -> bool:
        """Whether the certified gap of the candidate is within the goal."""
        return self._certified(candidate).gap <= self._goal

    def best(self, last: Candidate) -> Weights:
        """The best answer so far, with the solver's last candidate included."""
        if self._best is None or last is not self._last:
            self._certified(last)
        if self._best is None:
            raise CannotCertify("a candidate was certified and not kept; this is a bug")
        return self._best

    def _certified(self, candidate: Candidate) -> Weights:
        self._last = candidate
        answer = self._reduction.certify(candidate, tolerance=self._goal)
        if self._best is None or answer.gap < self._best.gap:
            self._best = answer
        return answer


def checked_tolerance(tolerance: float) -> float:
    """A relative gap strictly between 0 and 1."""
    goal = checked_number("tolerance", tolerance)
    if not 0 < goal < 1:
        raise InvalidInput(
            "pass a relative gap strictly between 0 and 1, such as 1e-4", setting="tolerance", value=goal
        )
    return goal


def _checked_start(program: Program, warm_start: Weights | Candidate | None) -> Candidate | None:
    if warm_start is None:
        return None
    start = Candidate(warm_start.values, warm_start.start) if isinstance(warm_start, Weights) else warm_start
    sizes = len(start.primal_N), len(start.dual_S)
    if sizes != (program.num_columns, program.num_rows):
        raise InvalidInput(
            f"warm_start has {sizes[0]} examples and {sizes[1]} secrets, the program {program.num_columns} and "
            f"{program.num_rows}; start from weights of the same graph"
        )
    return start


def _reduced_start(reduction: Reduction, start: Candidate) -> Candidate:
    return Candidate(reduction.reduced_primal(start.primal_N), start.dual_S[reduction.row_S])


# One graph under several capacities.


def solve_several(program: Program, capacities: Iterable[ArrayLike], *, tolerance: float = 1e-4) -> Iterator[Weights]:
    """As ``solve_program`` under each of the capacities, in their order; the answers do not depend on the cores.

    Capacities of similar size should be neighbours in this order: then their answers are good starts for each other.
    """
    goal = checked_tolerance(tolerance)
    points = [program.with_capacity(capacity) for capacity in capacities]
    larger = _multiples(points, float(program.upper_N.min()) if program.num_columns else 0.0)
    between = {k for k in range(1, len(points) - 1, 2) if k not in larger and k not in larger.values()}
    cores = os.cpu_count() or 1
    workers = min(MAX_PARALLEL_SOLVES, cores)
    answers: dict[int, Future[Weights]] = {}

    def solve(k: int) -> Weights:
        """Waits only for points that were submitted before it."""
        if k in larger:
            answer = _scaled_answer(points[k], points[larger[k]], answers[larger[k]].result(), goal)
            if answer is not None:
                return answer
        start = _halfway(answers[k - 1].result(), answers[k + 1].result()) if k in between else None
        return solve_program(points[k], tolerance=goal, warm_start=start, threads=cores // workers)

    with ThreadPoolExecutor(workers) as pool:
        for k in sorted(range(len(points)), key=lambda k: (k in between, k in larger)):
            answers[k] = pool.submit(solve, k)
        try:
            for k in range(len(points)):
                yield answers[k].result()
        finally:
            pool.shutdown(cancel_futures=True)  # where the caller leaves the sweep early


def _multiples(points: Sequence[Program], least_upper: float) -> dict[int, int]:
    """For each point that is a multiple of a larger one, both without upper bounds that bind, the largest such point.

    A weight is at most the capacity of any of its secrets, so with capacities up to the upper bounds these never bind.
    """
    larger: dict[int, int] = {}
    families: list[int] = []
    small = [k for k, point in enumerate(points) if _largest_capacity(point) <= least_upper]
    for k in sorted(small, key=lambda k: -_largest_capacity(points[k])):
        for family in families:
            share = _largest_capacity(points[k]) / _largest_capacity(points[family])
            if np.allclose(points[k].capacity_S, share * points[family].capacity_S, rtol=1e-9, atol=0.0):
                larger[k] = family
                break
        else:
            if _largest_capacity(points[k]) > 0:
                families.append(k)
    return larger


def _largest_capacity(program: Program) -> float:
    return float(program.capacity_S.max(initial=0.0))


def _scaled_answer(program: Program, larger: Program, answer: Weights, goal: float) -> Weights | None:
    """The answer to a larger point, scaled to this one, if it is good enough.

    In exact arithmetic it is: for columns in some row, the sum and the gap shrink by the same factor; other columns do
    not change.
    """
    begin = time.perf_counter()
    share = _largest_capacity(program) / _largest_capacity(larger)
    scaled = certify(program, share * answer.values, answer.dual, start_S=answer.start, tolerance=goal)
    if not scaled.gap <= goal:
        return None
    return replace(scaled, solver=answer.solver, seconds=time.perf_counter() - begin)


def _halfway(left: Weights, right: Weights) -> Candidate:
    values: Array = (left.values + right.values) / 2
    return Candidate(values, (left.start + right.start) / 2)

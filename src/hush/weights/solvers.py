"""Stage 3, candidates: solvers behind one small interface. Nothing they return is believed (see certify).

A solver takes a task and returns a primal and a dual candidate. On the way it may show candidates to the task's judge,
which certifies them and says whether they will do.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, final

import numpy as np

from hush.weights.program import Array, Program, Progress

__all__ = ["SOLVERS", "Candidate", "Solver", "Task", "newton", "simplex"]


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

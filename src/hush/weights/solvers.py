"""Stage 3, candidates: solvers behind one small interface. Nothing they return is believed (see certify).

A solver takes a program, duals to start from, the relative gap to aim for and a progress callback; it returns a
primal and a dual candidate.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, final

import numpy as np

from hush.weights.program import Array, Program, Progress

__all__ = ["SOLVERS", "Candidate", "Solver", "newton", "simplex"]


@final
@dataclass(frozen=True, eq=False)
class Candidate:
    """What a solver proposes: values per column, duals per row, and duals from which a similar program should start."""

    primal_N: Array
    dual_S: Array
    start_S: Array


Solver = Callable[[Program, Array | None, float, Progress | None], Candidate]


def simplex(program: Program, start_S: Array | None, tolerance: float, progress: Progress | None) -> Candidate:
    """HiGHS dual simplex: a vertex, for small programs; it uses no start and stops at its own tolerances."""
    from scipy.optimize import linprog
    from scipy.sparse import csc_array

    shape = program.num_rows, program.num_columns
    matrix = csc_array((np.ones(program.num_entries), program.row_of_entry, program.offset_N), shape=shape)
    unit = float(program.upper_N.mean()) or 1.0  # its tolerances are absolute: measure weights in a typical size
    solve: Any = linprog  # its type stubs know neither sparse matrices nor arrays of bounds
    found = solve(
        -np.ones(program.num_columns),
        A_ub=matrix,
        b_ub=program.capacity_S / unit,
        bounds=np.column_stack([np.zeros(program.num_columns), program.upper_N / unit]),
        method="highs-ds",
        options={"primal_feasibility_tolerance": 1e-9, "dual_feasibility_tolerance": 1e-9},
    )
    if found.x is None:
        return Candidate(np.zeros(program.num_columns), np.zeros(program.num_rows), np.zeros(program.num_rows))
    dual_S: Array = -np.asarray(found.ineqlin.marginals, dtype=np.float64)
    return Candidate(found.x * unit, dual_S, dual_S)


def newton(program: Program, start_S: Array | None, tolerance: float, progress: Progress | None) -> Candidate:
    """The smoothed Newton method (see newton): for programs of any size, from a start if there is one."""
    from hush.weights.newton import SmoothedNewton

    run = SmoothedNewton(program, start_S, tolerance, progress)
    return Candidate(run.certified.value_N, run.certified.dual_S, run.last_S)


SOLVERS: dict[str, Solver] = {"newton": newton, "simplex": simplex}

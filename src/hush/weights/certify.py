"""Stage 3, believing nothing: from any two candidates to a feasible answer and a proven bound on the best one.

Weak duality: for every y >= 0 and every feasible w,  sum w <= c.y + sum of u_i max(0, 1 - price_i), where price_i is
the sum of y over the secrets of example i. So whatever a solver returns, its primal candidate is made feasible, its
dual candidate non-negative, and the distance between the two numbers is computed here. A solver's status is not read.
Rounding: the objective is exact to its last digit, the bound is rounded up. Shapes: N columns, S rows.
"""

import math
from dataclasses import dataclass
from itertools import pairwise
from typing import final

import numpy as np

from hush.errors import CannotCertify
from hush.weights.program import Array, Program

__all__ = ["FEASIBILITY", "Certified", "boxed", "certify", "dual_bound", "feasible", "relative_gap"]

FEASIBILITY = 1e-12  # relative excess over a capacity that rounding in a sum may leave
_EPS = float(np.finfo(np.float64).eps)
_TINY = float(np.finfo(np.float64).tiny)


@final
@dataclass(frozen=True, eq=False, kw_only=True)
class Certified:
    """A feasible point, a dual, and the proof of how far the point can be from the best: objective <= best <= bound."""

    value_N: Array
    dual_S: Array
    objective: float
    bound: float

    @property
    def gap(self) -> float:
        """The share of the bound that the objective may be missing; 0 is optimal."""
        return relative_gap(self.objective, self.bound)


def relative_gap(objective: float, bound: float) -> float:
    """(bound - objective) / bound, never negative, 0 where both are 0; infinite where either is no finite number."""
    if not (math.isfinite(objective) and math.isfinite(bound)):
        return math.inf  # nothing is proven, and NaN would pass for small in a comparison
    return max(bound - objective, 0.0) / max(bound, _TINY)


def certify(program: Program, primal_N: object, dual_S: object, *, tolerance: float = 0.0) -> Certified:
    """The best certified pair from two candidates, which may be anything at all.

    The dual is polished by coordinate minimisation only where the gap is above ``tolerance`` without it.
    """
    from hush.weights.kernels import exact_sum

    dual = boxed(dual_S, program.num_rows, 1.0)  # at 1 a row covers all its columns: more would only cost
    dual[np.isinf(program.capacity_S)] = 0.0  # any other value would make the bound infinite
    price_N = program.prices(dual)
    bound = dual_bound(program, dual, price_N)
    value_N = feasible(program, boxed(primal_N, program.num_columns, program.upper_N), price_N)
    objective = exact_sum(value_N)
    if relative_gap(objective, bound) > tolerance:
        dual, bound = _polished(program, dual, price_N, bound)
    return Certified(value_N=value_N, dual_S=dual, objective=objective, bound=bound)


def dual_bound(program: Program, dual_S: Array, price_N: Array) -> float:
    """The dual's value, rounded up: no feasible point has a larger objective.

    Terms are rounded up one by one; the sums carry their own rounding errors, and the last factor covers the rest.
    """
    from hush.weights.kernels import exact_sum, uncovered_sum

    finite = np.isfinite(program.capacity_S)
    rows = exact_sum(program.capacity_S[finite] * dual_S[finite])
    columns = uncovered_sum(program.offset_N, price_N, program.upper_N, _EPS)
    return (rows + columns) * (1 + 8 * _EPS)


def feasible(program: Program, value_N: Array, price_N: Array) -> Array:
    """A point of the program near ``value_N`` (which lies in the box), and no worse for having slack.

    Overfull rows are shrunk, then the columns that are worth their price are raised, then all others. A column that
    found no room in its turn finds none later, so each has one turn.
    """
    from hush.weights.kernels import fill_slack, scale_rows, shrink_rows

    by_row = program.offset_S, program.column_of_entry
    by_column = program.offset_N, program.row_of_entry
    capacity_S, upper_N = program.capacity_S, program.upper_N
    value_N = value_N.copy()
    load_S = program.loads(value_N)
    shrink_rows(*by_row, *by_column, capacity_S, upper_N, load_S, value_N)
    np.maximum(value_N, 0.0, out=value_N)
    load_S = program.loads(value_N)
    for lowest, highest in pairwise((-np.inf, 1.0, 1.0 + 1e-3, np.inf)):
        fill_slack(*by_column, capacity_S, upper_N, price_N, lowest, highest, 16 * _EPS, load_S, value_N)
    for _ in range(8):  # running loads drift by rounding; what counts are the loads summed afresh
        load_S = program.loads(value_N)
        if scale_rows(*by_row, capacity_S, load_S, _EPS, value_N) == 0:
            return value_N
    load_S = program.loads(value_N)
    excess = float(np.max(load_S / np.maximum(capacity_S, _TINY)))
    if excess > 1 + FEASIBILITY:
        raise CannotCertify(
            f"a load stays {excess - 1:.3g} above its capacity after repair; raise capacities below {_TINY:.3g} or set "
            "them to 0"
        )
    return value_N


def _polished(program: Program, dual_S: Array, price_N: Array, bound: float) -> tuple[Array, float]:
    """One pass of exact coordinate minimisation over the rows, kept only where the recomputed bound is lower."""
    from hush.weights.kernels import polish_dual

    dual, price = dual_S.copy(), price_N.copy()
    polish_dual(program.offset_S, program.column_of_entry, program.capacity_S, program.upper_N, price, dual)
    # Inflated a little, it covers columns whose price is 1 up to rounding, so that their error terms vanish; these grow
    # with a column's rows.
    dual *= 1 + 4 * (int(np.diff(program.offset_N).max(initial=0)) + 16) * _EPS
    value = dual_bound(program, dual, program.prices(dual))
    return (dual, value) if value < bound else (dual_S, bound)


def boxed(values: object, size: int, upper: Array | float) -> Array:
    """What a solver returned, made into numbers in [0, upper]; what cannot be read as such counts as 0."""
    try:
        array = np.array(values, dtype=np.float64)
    except (TypeError, ValueError):
        return np.zeros(size)
    if array.shape != (size,):
        return np.zeros(size)
    array[~np.isfinite(array)] = 0.0
    return np.clip(array, 0.0, upper)

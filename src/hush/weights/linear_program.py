"""Stage 3: the linear program that chooses weights, as data.

    maximise  sum of w_i    subject to    sum of w_i over G_j <= c_j for every secret j,    0 <= w_i <= u_i

Columns are examples (or merged groups of them), rows are secrets; the matrix is 0/1 and kept both ways round, since
solvers walk it by column and certificates by row. Shapes: N columns, S rows.

Stage 3, believing nothing: from any two candidates to a feasible answer and a proven bound on the best one.

Weak duality: for every y >= 0 and every feasible w,  sum w <= c.y + sum of u_i max(0, 1 - price_i), where price_i is
the sum of y over the secrets of example i. So whatever a solver returns, its primal candidate is made feasible, its
dual candidate non-negative, and the distance between the two numbers is computed here. A solver's status is not read.
Rounding: the objective is exact to its last digit, the bound is rounded up. Shapes: N columns, S rows.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from itertools import pairwise
from threading import Lock
from typing import Self, final

import numpy as np
from numpy.typing import ArrayLike, NDArray

from hush.accounting.arguments import checked_number
from hush.errors import CannotCertify, InvalidInput
from hush.incidence import Incidence

__all__ = [
    "FEASIBILITY",
    "Arrangement",
    "Array",
    "Certified",
    "Indices",
    "Program",
    "Progress",
    "boxed",
    "certify",
    "checked_capacity",
    "checked_upper",
    "dual_bound",
    "feasible",
    "relative_gap",
]


Array = NDArray[np.float64]
Indices = NDArray[np.integer]
Progress = Callable[[int, int], None]  # called with (done, total)

LEAST = 1e-290  # below it products are subnormal, and their rounding is no longer small against themselves


@final
@dataclass(frozen=True, eq=False, kw_only=True)
class Arrangement:
    """What reductions need of a program under any capacities: columns in a good order, and what rows hold at most.

    ``order_N`` lists the columns by length and first row, ``offset_N`` and ``row_of_entry`` hold them in this order.
    """

    order_N: Indices
    offset_N: NDArray[np.int64]
    row_of_entry: Indices
    degree_N: Indices
    room_S: Array
    private_S: Array


@final
class Shared:
    """A place for the arrangement of programs that differ in their capacities only; any thread may ask first."""

    def __init__(self) -> None:
        self._lock = Lock()
        self._found: Arrangement | None = None

    def arrangement(self, find: Callable[[], Arrangement]) -> Arrangement:
        """What ``find`` found when it was first asked."""
        with self._lock:
            if self._found is None:
                self._found = find()
            return self._found


@final
@dataclass(frozen=True, eq=False, kw_only=True)
class Program:
    """The program with its matrix both ways round. Rows and columns are lists in ascending order.

    Row j holds the columns ``column_of_entry[offset_S[j]:offset_S[j + 1]]``, column i the rows
    ``row_of_entry[offset_N[i]:offset_N[i + 1]]``. Capacities may be infinite; upper bounds are finite.
    """

    offset_S: NDArray[np.int64]
    column_of_entry: Indices
    offset_N: NDArray[np.int64]
    row_of_entry: Indices
    capacity_S: Array
    upper_N: Array
    _shared: Shared = field(default_factory=Shared, repr=False)

    @classmethod
    def of(cls, incidence: Incidence, capacity: ArrayLike, *, upper: float = 1.0) -> Self:
        """The program of a graph: one capacity for all secrets or one each, one upper bound for all weights."""
        from hush.weights.sparse_kernels import transposed

        capacity_S = checked_capacity(capacity, incidence.num_secrets)
        bound = checked_upper(upper)
        offset_N, row_of_entry = transposed(incidence.offset_S, incidence.example_of_entry, incidence.num_examples)
        return cls(
            offset_S=incidence.offset_S,
            column_of_entry=incidence.example_of_entry,
            offset_N=offset_N,
            row_of_entry=row_of_entry,
            capacity_S=capacity_S,
            upper_N=np.full(incidence.num_examples, bound),
        )

    def with_capacity(self, capacity: ArrayLike) -> Self:
        """The same matrix and bounds under other capacities; the matrix and its arrangement are shared."""
        return replace(self, capacity_S=checked_capacity(capacity, self.num_rows))

    @property
    def arrangement(self) -> Arrangement:
        """The columns arranged for reductions; found once for all capacities."""
        return self._shared.arrangement(self._arranged)

    def _arranged(self) -> Arrangement:
        from hush.weights.presolve_kernels import arranged, private_sums

        order_N, offset_N, row_of_entry = arranged(self.offset_N, self.row_of_entry, self.num_rows)
        return Arrangement(
            order_N=order_N,
            offset_N=offset_N,
            row_of_entry=row_of_entry,
            degree_N=np.diff(self.offset_N).astype(np.int32),
            room_S=self.loads(self.upper_N),
            private_S=private_sums(self.offset_S, self.column_of_entry, self.offset_N, self.upper_N),
        )

    @property
    def num_rows(self) -> int:
        """Secrets."""
        return len(self.offset_S) - 1

    @property
    def num_columns(self) -> int:
        """Examples, or groups of them."""
        return len(self.offset_N) - 1

    @property
    def num_entries(self) -> int:
        """Ones in the matrix."""
        return len(self.column_of_entry)

    def loads(self, value_N: Array) -> Array:
        """What each row holds at these values, summed in order in double precision."""
        from hush.weights.sparse_kernels import spread_sums

        return spread_sums(self.offset_N, self.row_of_entry, value_N, self.num_rows)

    def prices(self, dual_S: Array) -> Array:
        """What each column's rows cost at these duals."""
        from hush.weights.sparse_kernels import list_sums

        return list_sums(self.offset_N, self.row_of_entry, dual_S)


def checked_capacity(capacity: ArrayLike, num_secrets: int) -> Array:
    """One capacity per secret, each at least 0; infinite ones never bind.

    Those below 1e-290 count as 0, the safe side: whatever keeps a capacity of 0 keeps them, too.
    """
    try:
        array = np.asarray(capacity, dtype=np.float64)
    except (TypeError, ValueError, OverflowError) as error:
        raise InvalidInput("capacity must be a number or one number for each secret") from error
    if array.ndim == 0:
        array = np.full(num_secrets, float(array))
    if array.shape != (num_secrets,):
        raise InvalidInput(f"capacity has shape {array.shape}; pass one number or {num_secrets}, one for each secret")
    wrong = ~(array >= 0)  # written so that NaN is wrong
    if wrong.any():
        where = int(wrong.argmax())
        raise InvalidInput(f"capacity[{where}]={array[where]} is not a capacity; every one must be at least 0")
    return np.where(array < LEAST, 0.0, array)


def checked_upper(upper: float) -> float:
    """The common upper bound of all weights: finite, and large enough to compute with."""
    bound = checked_number("upper", upper)
    if not (LEAST <= bound < math.inf):
        raise InvalidInput(f"upper={bound}; the weights need a finite upper bound of at least {LEAST:g}")
    return bound


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
    from hush.weights.sparse_kernels import exact_sum

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
    from hush.weights.sparse_kernels import exact_sum, uncovered_sum

    finite = np.isfinite(program.capacity_S)
    rows = exact_sum(program.capacity_S[finite] * dual_S[finite])
    columns = uncovered_sum(program.offset_N, price_N, program.upper_N, _EPS)
    return (rows + columns) * (1 + 8 * _EPS)


def feasible(program: Program, value_N: Array, price_N: Array) -> Array:
    """A point of the program near ``value_N`` (which lies in the box), and no worse for having slack.

    Overfull rows are shrunk, then the columns that are worth their price are raised, then all others. A column that
    found no room in its turn finds none later, so each has one turn.
    """
    from hush.weights.sparse_kernels import fill_slack, scale_rows, shrink_rows

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
    from hush.weights.sparse_kernels import polish_dual

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

"""The linear program that chooses the weights, what solvers propose for it, and the certified answer.

    maximise  sum of w_i    subject to    sum of w_i over G_j <= c_j for every secret j,    0 <= w_i <= u_i

Columns are examples (or merged groups of them), rows are secrets. The matrix is 0/1 and is stored by row and by column,
since solvers walk it by column and certificates by row.

Nothing that a solver returns is believed. Weak duality: for every y >= 0 and every feasible w, sum w <= c.y + sum of
u_i max(0, 1 - price_i), where price_i is the sum of y over the secrets of example i. So ``certify`` makes the proposed
values feasible and the proposed duals non-negative, and computes the distance between the two sums itself. A solver's
status is never read. Rounding: capacities hold for the exact sums of the values, the objective is off by its last digit
at most, and the bound is rounded up by more than that, so it is never below the objective.

Shapes: N columns, S rows.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from itertools import pairwise
from threading import Lock
from typing import Self, final

import numpy as np
from numpy.typing import ArrayLike, NDArray

from hush.arrays import Array, Progress
from hush.errors import CannotCertify, InvalidInput, Setting
from hush.incidence import Incidence
from hush.numbers import checked_number

__all__ = [
    "Arrangement",
    "Candidate",
    "Indices",
    "Program",
    "Task",
    "Weights",
    "certify",
    "checked_capacity",
    "checked_upper",
    "clipped",
    "dual_bound",
    "feasible",
    "relative_gap",
]

Indices = NDArray[np.integer]

SMALLEST_POSITIVE = 1e-290  # below it products are subnormal, and their relative rounding error is no longer small
SMALLEST_DUAL = 1e-17  # smaller ones count as 0: no product with a positive capacity is subnormal then
_EPS = float(np.finfo(np.float64).eps)
_TINY = float(np.finfo(np.float64).tiny)


@final
@dataclass(frozen=True, eq=False, kw_only=True)
class Arrangement:
    """What presolve needs of a program whatever its capacities are: its columns in a good order, and sums over rows.

    ``order_N`` lists the columns by length and first row; ``offset_N`` and ``row_of_entry`` hold them in this order.
    ``room_S`` is the sum of the upper bounds in a row, ``private_S`` that of the columns that are in no other row.
    """

    order_N: Indices
    offset_N: NDArray[np.int64]
    row_of_entry: Indices
    degree_N: Indices
    room_S: Array
    private_S: Array


@final
class _SharedArrangement:
    """The arrangement of programs that differ only in their capacities: computed once, by the first thread to ask."""

    def __init__(self) -> None:
        self._lock = Lock()
        self._arrangement: Arrangement | None = None

    def get(self, compute: Callable[[], Arrangement]) -> Arrangement:
        """The arrangement, computed on the first call."""
        with self._lock:
            if self._arrangement is None:
                self._arrangement = compute()
            return self._arrangement


@final
@dataclass(frozen=True, eq=False, kw_only=True)
class Program:
    """The program, with its matrix stored by row and by column. Rows and columns are lists in ascending order.

    Row j holds the columns ``column_of_entry[offset_S[j]:offset_S[j + 1]]``; column i is in the rows
    ``row_of_entry[offset_N[i]:offset_N[i + 1]]``. Capacities may be infinite; upper bounds are finite.
    """

    offset_S: NDArray[np.int64]
    column_of_entry: Indices
    offset_N: NDArray[np.int64]
    row_of_entry: Indices
    capacity_S: Array
    upper_N: Array
    _shared: _SharedArrangement = field(default_factory=_SharedArrangement, repr=False)

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
        """The columns arranged for presolve; computed once for all capacities."""
        return self._shared.get(self._compute_arrangement)

    def _compute_arrangement(self) -> Arrangement:
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
        """The sum of these values in each row, added in order in double precision."""
        from hush.weights.sparse_kernels import spread_sums

        return spread_sums(self.offset_N, self.row_of_entry, value_N, self.num_rows)

    def prices(self, dual_S: Array) -> Array:
        """The price of each column: the sum of these duals over its rows."""
        from hush.weights.sparse_kernels import list_sums

        return list_sums(self.offset_N, self.row_of_entry, dual_S)


def checked_capacity(capacity: ArrayLike, num_secrets: int) -> Array:
    """One capacity per secret, each at least 0; infinite ones never bind.

    Capacities below 1e-290 count as 0, which is the safe side: weights that respect 0 respect them too.
    """
    try:
        array = np.asarray(capacity, dtype=np.float64)
    except (TypeError, ValueError, OverflowError) as error:
        raise InvalidInput("capacity must be a number or one number for each secret") from error
    if array.ndim == 0:
        array = np.full(num_secrets, float(array))
    if array.shape != (num_secrets,):
        raise InvalidInput(f"capacity has shape {array.shape}; pass one number or {num_secrets}, one for each secret")
    wrong = ~(array >= 0)  # NaN is wrong
    if wrong.any():
        position = int(wrong.argmax())
        raise InvalidInput(f"capacity[{position}]={array[position]} is not a capacity; every one must be at least 0")
    return np.where(array < SMALLEST_POSITIVE, 0.0, array)


def checked_upper(upper: float) -> float:
    """The common upper bound of all weights: finite, and large enough to compute with."""
    bound = checked_number("upper", upper)
    if not (SMALLEST_POSITIVE <= bound < math.inf):
        raise InvalidInput(
            Setting("upper"),
            f"={bound}; the weights need a finite upper bound of at least {SMALLEST_POSITIVE:g}",
            setting="upper",
        )
    return bound


# What a solver is asked, what it proposes, and the certified answer.


@final
@dataclass(frozen=True, eq=False)
class Candidate:
    """Unproven values of the columns and duals of the rows: what a solver proposes, or starts from."""

    primal_N: Array
    dual_S: Array


@final
@dataclass(frozen=True, eq=False, kw_only=True)
class Task:
    """A program for a solver, which may stop as soon as ``accept`` returns true for a candidate.

    tolerance is the gap to aim for, relative to the objective plus ``decided``, the sum of what presolve has fixed.
    start: values and duals of a similar program. threads is how many a solver may use; its answer does not depend on
    it.
    """

    program: Program
    tolerance: float = 1e-4
    decided: float = 0.0
    start: Candidate | None = None
    accept: Callable[[Candidate], bool] = lambda candidate: True
    progress: Progress | None = None
    threads: int = 1


@final
@dataclass(frozen=True, eq=False, repr=False, kw_only=True)
class Weights:
    """The answer to a linear program: weights that respect every capacity, with a proof of how good they are.

    Invariant: 0 <= values <= upper, objective = sum of values <= best possible sum <= bound, and gap = (bound -
    objective) / bound, rounded up. dual has one entry per secret: how much one more unit of its capacity would add to
    the sum. start holds the duals from which a warm-started solve begins; nothing is proven about them.
    """

    values: Array
    dual: Array
    objective: float
    bound: float
    gap: float
    upper: float
    start: Array
    solver: str = ""
    seconds: float = 0.0

    def __post_init__(self) -> None:
        if not (0 <= self.gap <= 1 and self.objective <= self.bound):  # NaN fails
            raise CannotCertify(
                f"objective {self.objective} and bound {self.bound} contradict each other or are not finite"
            )
        if self.values.size and not (self.values.min() >= 0 and self.values.max() <= self.upper):
            raise CannotCertify(f"weights leave [0, {self.upper}]; they are void")
        for array in (self.values, self.dual, self.start):
            array.flags.writeable = False

    def __repr__(self) -> str:
        return (
            f"Weights({len(self.values)} examples, objective={self.objective:.6g}, gap={self.gap:.2g}, "
            f"solver={self.solver!r})"
        )


def relative_gap(objective: float, bound: float) -> float:
    """(bound - objective) / bound, rounded up, from 0 to 1; 0 where both are 0, infinite where either is not finite."""
    if not (math.isfinite(objective) and math.isfinite(bound)):
        return math.inf  # nothing is proven, and NaN would count as small in a comparison
    return min(max(bound - objective, 0.0) / max(bound, _TINY) * (1 + 2 * _EPS), 1.0)


def certify(
    program: Program, primal_N: object, dual_S: object, *, start_S: Array | None = None, tolerance: float = 0.0
) -> Weights:
    """The best certified answer from any values and duals, whatever they are.

    The dual is polished by coordinate minimisation only where the gap without that is above ``tolerance``.

    Guarantee: the exact sum of the values of each row is at most its capacity, and no feasible values have a sum above
    the bound. CannotCertify where overflow leaves no such answer.
    """
    from hush.weights.sparse_kernels import compensated_sum

    dual = clipped(dual_S, program.num_rows, 1.0)  # at 1 a row covers all its columns: more would only cost
    dual[np.isinf(program.capacity_S) | (dual < SMALLEST_DUAL)] = 0.0  # where infinite, more would make the bound so
    price_N = program.prices(dual)
    bound = dual_bound(program, dual, price_N)
    value_N = feasible(program, clipped(primal_N, program.num_columns, program.upper_N), price_N)
    objective = compensated_sum(value_N)
    if relative_gap(objective, bound) > tolerance:
        dual, bound = _polished(program, dual, price_N, bound)
    return Weights(
        values=value_N,
        dual=dual,
        objective=objective,
        bound=bound,
        gap=relative_gap(objective, bound),
        upper=float(program.upper_N.max(initial=0.0)),
        start=dual if start_S is None else start_S,
    )


def dual_bound(program: Program, dual_S: Array, price_N: Array) -> float:
    """The dual objective, rounded up: no feasible point has a larger objective, nor a larger computed objective.

    Prices are rounded down. The last factor covers all other roundings, each EPS / 2: two in a term of a sum, one in
    the sum, in the sum of both, in the objective, in the factor and in the product make 7, and there is room for 16.
    The second-order errors of compensated sums come on top.
    """
    from hush.weights.sparse_kernels import compensated_sum, uncovered_sum

    finite = np.isfinite(program.capacity_S)
    rows = compensated_sum(program.capacity_S[finite] * dual_S[finite])
    columns = uncovered_sum(program.offset_N, price_N, program.upper_N, _EPS)
    second_order = (max(program.num_rows, program.num_columns) * _EPS) ** 2
    return (rows + columns) * (1 + (8 * _EPS + second_order))


def feasible(program: Program, value_N: Array, price_N: Array) -> Array:
    """``value_N`` (which lies in the box), changed in place to a feasible point without slack that a column could use.

    Overfull rows are shrunk, then the columns that are worth their price are raised, then all others. A column without
    room in its turn has none later, so each column has one turn. What rounding leaves too much is scaled away at last.

    Guarantee: the exact sum of each row is at most its capacity.
    """
    from hush.weights.sparse_kernels import fill_slack, scale_rows, shrink_rows

    by_row = program.offset_S, program.column_of_entry
    by_column = program.offset_N, program.row_of_entry
    capacity_S, upper_N = program.capacity_S, program.upper_N
    load_S = program.loads(value_N)
    shrink_rows(*by_row, *by_column, capacity_S, upper_N, load_S, value_N)
    np.maximum(value_N, 0.0, out=value_N)
    load_S = program.loads(value_N)
    for lowest, highest in pairwise((-np.inf, 1.0, 1.0 + 1e-3, np.inf)):
        fill_slack(*by_column, capacity_S, upper_N, price_N, lowest, highest, 16 * _EPS, load_S, value_N)
    scale_rows(*by_row, capacity_S, program.loads(value_N), _EPS, value_N)  # running loads drift by rounding
    return value_N


def _polished(program: Program, dual_S: Array, price_N: Array, bound: float) -> tuple[Array, float]:
    """One pass of exact coordinate minimisation over the rows, kept only if the recomputed bound is lower."""
    from hush.weights.sparse_kernels import polish_dual

    dual, price = dual_S.copy(), price_N.copy()
    polish_dual(program.offset_S, program.column_of_entry, program.capacity_S, program.upper_N, price, dual)
    # Inflated slightly, it covers columns whose price is 1 up to rounding, so that their error terms vanish. These
    # terms grow with the number of a column's rows.
    dual *= 1 + 4 * (int(np.diff(program.offset_N).max(initial=0)) + 16) * _EPS
    dual[dual < SMALLEST_DUAL] = 0.0
    value = dual_bound(program, dual, program.prices(dual))
    return (dual, value) if value < bound else (dual_S, bound)


def clipped(values: object, size: int, upper: Array | float) -> Array:
    """Whatever a solver returned as numbers in [0, upper]; what is not a finite number counts as 0."""
    try:
        array = np.array(values, dtype=np.float64)
    except (TypeError, ValueError):
        return np.zeros(size)
    if array.shape != (size,):
        return np.zeros(size)
    array[~np.isfinite(array)] = 0.0
    return np.clip(array, 0.0, upper, out=array)

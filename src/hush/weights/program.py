"""Stage 3: the linear program that chooses weights, as data.

    maximise  sum of w_i    subject to    sum of w_i over G_j <= c_j for every secret j,    0 <= w_i <= u_i

Columns are examples (or merged groups of them), rows are secrets; the matrix is 0/1 and kept both ways round, since
solvers walk it by column and certificates by row. Shapes: N columns, S rows.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from threading import Lock
from typing import Self, final

import numpy as np
from numpy.typing import ArrayLike, NDArray

from hush.accounting.inputs import checked_number
from hush.errors import InvalidInput
from hush.incidence import Incidence

__all__ = ["Arrangement", "Array", "Indices", "Program", "Progress", "checked_capacity", "checked_upper"]

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
        from hush.weights.kernels import transposed

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
        from hush.weights.merge_kernels import arranged
        from hush.weights.reduce_kernels import private_sums

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
        from hush.weights.kernels import spread_sums

        return spread_sums(self.offset_N, self.row_of_entry, value_N, self.num_rows)

    def prices(self, dual_S: Array) -> Array:
        """What each column's rows cost at these duals."""
        from hush.weights.kernels import list_sums

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

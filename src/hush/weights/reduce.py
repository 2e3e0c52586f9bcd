"""Stage 3, before solving: decide exactly what can be decided, and keep the way back to all examples.

Rows that cannot bind go, columns in no row take their upper bound, equal columns become one, and columns that some
optimum leaves at 0 go; again while that changes something. The optimum of what is left, plus what was decided, is the
optimum of the whole. Shapes: N columns and S rows of the original program.
"""

from dataclasses import dataclass
from typing import final

import numpy as np
from numpy.typing import NDArray

from hush.weights.program import Array, Indices, Program

__all__ = ["Reduction", "reduced", "unreduced"]

ROUNDS = 20  # each round is exact, so stopping early is too
PAYS = 0.01  # share of the columns that a round must decide for the next one to be worth its time


@final
@dataclass(frozen=True, eq=False, kw_only=True)
class Reduction:
    """A smaller program and the way back.

    Column i of the original is the share ``share_N[i]`` of column ``column_N[i]`` of the smaller one, or
    ``fixed_N[i]`` where that is -1; ``row_S`` lists the rows that are left. ``bounding`` (smaller) and ``bounding_N``
    (original) name the row whose capacity is a column's upper bound, or -1.
    """

    program: Program
    original: Program
    bounding: Indices
    bounding_N: Indices
    row_S: Indices
    column_N: Indices
    share_N: Array
    fixed_N: Array
    dual_S: Array

    def primal(self, value: Array) -> Array:
        """Values of all original columns."""
        if not len(value):
            return self.fixed_N.copy()
        return np.where(self.column_N >= 0, self.share_N * value[self.column_N], self.fixed_N)

    def inward(self, value_N: Array) -> Array:
        """Values of the smaller program's columns from values of all original ones."""
        inside = self.column_N >= 0
        return np.bincount(self.column_N[inside], value_N[inside], self.program.num_columns).astype(np.float64)

    def start(self, start: Array) -> Array:
        """Duals of all original rows to start from, with nothing repaired."""
        full_S = self.dual_S.copy()
        full_S[self.row_S] = start
        return full_S

    def dual(self, dual: Array) -> Array:
        """Duals of all original rows."""
        from hush.weights.reduce_kernels import cover_columns

        small, covered = self.program, np.array(dual, dtype=np.float64)
        cover_columns(small.offset_N, small.row_of_entry, self.bounding, covered)
        full_S = self.dual_S.copy()
        full_S[self.row_S] = covered
        cover_columns(self.original.offset_N, self.original.row_of_entry, self.bounding_N, full_S)
        return full_S


@final
class _Work:
    """The original program with the decisions so far."""

    def __init__(self, program: Program) -> None:
        self.program = program
        self.upper_N = program.upper_N.copy()
        self.open_N = np.ones(program.num_columns, dtype=np.bool_)
        self.open_S = np.ones(program.num_rows, dtype=np.bool_)
        self.degree_N = np.diff(program.offset_N).astype(np.int32)
        self.fixed_N = np.zeros(program.num_columns)
        self.dual_S = np.zeros(program.num_rows)
        self.bounding_N = np.full(program.num_columns, -1)

    def settle(self) -> None:
        from hush.weights.reduce_kernels import settle

        for _ in range(ROUNDS):
            decided = settle(
                self.program.offset_S,
                self.program.column_of_entry,
                self.program.capacity_S,
                self.upper_N,
                self.open_N,
                self.open_S,
                self.degree_N,
                self.fixed_N,
                self.dual_S,
                self.bounding_N,
            )
            if decided <= PAYS * self.program.num_columns:
                return

    def merged(self) -> Reduction:
        """What is open, with equal columns merged into one of their joint upper bound."""
        from hush.weights.kernels import transposed
        from hush.weights.reduce_kernels import chosen, compacted, equal_columns, least_rows

        row_S = np.flatnonzero(self.open_S)
        number_S = np.full(self.program.num_rows, -1, dtype=np.int64)
        number_S[row_S] = np.arange(len(row_S))
        offset, row, key = compacted(self.program.offset_N, self.program.row_of_entry, self.open_N, number_S)
        order = np.argsort(key)
        group = equal_columns(offset, row, key, order)
        first = order[np.diff(group[order], prepend=-1) > 0]
        upper = self.upper_N[self.open_N]
        total: Array = np.bincount(group, weights=upper, minlength=len(first)).astype(np.float64)
        offset, row = chosen(offset, row, first)
        column_N = np.full(self.program.num_columns, -1, dtype=np.int64)
        column_N[self.open_N] = group
        share_N = np.zeros(self.program.num_columns)
        share_N[self.open_N] = upper / total[group]  # evenly, where their bounds are equal
        offset_S, column = transposed(offset, row, len(row_S))
        capacity_S = self.program.capacity_S[row_S]
        # A column cannot exceed the least capacity of its rows; solvers do better when they are told.
        bounding = least_rows(offset, row, capacity_S, total)
        bounded = bounding >= 0
        total[bounded] = capacity_S[bounding[bounded]]
        program = Program(
            offset_S=offset_S,
            column_of_entry=column,
            offset_N=offset,
            row_of_entry=row,
            capacity_S=capacity_S,
            upper_N=total,
        )
        return Reduction(
            program=program,
            original=self.program,
            bounding=bounding,
            bounding_N=self.bounding_N,
            row_S=row_S,
            column_N=column_N,
            share_N=share_N,
            fixed_N=self.fixed_N,
            dual_S=self.dual_S,
        )

    def drop(self, reduction: Reduction) -> bool:
        """Decide what domination decides in the merged program, if it is enough to pay for another round."""
        from hush.weights.reduce_kernels import dominated_columns, implied_rows

        small = reduction.program
        most = 40 * small.num_entries
        columns: NDArray[np.bool_] = dominated_columns(*_lists(small), small.capacity_S, small.upper_N, most)
        rows: NDArray[np.bool_] = implied_rows(*_lists(small), small.capacity_S)
        if int(columns.sum()) + int(rows.sum()) <= PAYS * small.num_columns:
            return False
        self.open_N[self.open_N] = ~columns[reduction.column_N[self.open_N]]
        for j in reduction.row_S[rows]:
            self.open_S[j] = False
            begin, end = self.program.offset_S[j], self.program.offset_S[j + 1]
            self.degree_N[self.program.column_of_entry[begin:end]] -= 1
        return True


def unreduced(program: Program) -> Reduction:
    """The program itself, for when the way back from a smaller one has cost too much."""
    n, m = program.num_columns, program.num_rows
    return Reduction(
        program=program,
        original=program,
        bounding=np.full(n, -1),
        bounding_N=np.full(n, -1),
        row_S=np.arange(m),
        column_N=np.arange(n),
        share_N=np.ones(n),
        fixed_N=np.zeros(n),
        dual_S=np.zeros(m),
    )


def reduced(program: Program) -> Reduction:
    """The program that is left after all exact reductions that pay."""
    work = _Work(program)
    for _ in range(ROUNDS):
        work.settle()
        reduction = work.merged()
        if not work.drop(reduction):
            return reduction
    work.settle()
    return work.merged()


def _lists(program: Program) -> tuple[Indices, Indices, Indices, Indices]:
    return program.offset_S, program.column_of_entry, program.offset_N, program.row_of_entry

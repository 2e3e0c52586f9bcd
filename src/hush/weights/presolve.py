"""Presolve: exact reductions of the linear program before a solver runs, and the map back to all examples.

Rows that cannot bind are dropped, columns in no row take their upper bound, equal columns are merged, and columns that
some optimum leaves at 0 are dropped; this repeats while it changes something. The optimum of the reduced program plus
what was decided is the optimum of the original program. Shapes: N columns and S rows of the original program.
"""

from dataclasses import dataclass
from typing import final

import numpy as np
from numpy.typing import NDArray

from hush.arrays import Array
from hush.weights.linear_program import Candidate, Indices, Program, Weights, certify, clipped

__all__ = ["Reduction", "reduced", "unreduced"]


MAX_ROUNDS = 20  # each round is exact, so stopping early is exact too
MAX_TRACKED_SHARE = 0.05  # of the rows decided at once: up to this it pays to track which rows a decision touches
MIN_DECIDED_SHARE = 0.01  # of the columns: a round that decides fewer is not followed by another
MAX_COMPARISONS_PER_ENTRY = 40  # in the search for dominated columns


@final
@dataclass(frozen=True, eq=False, kw_only=True)
class Reduction:
    """A smaller program and the map back to the original.

    Column i of the original is the share ``upper_N[i] / total[k]`` of column k = ``column_N[i]`` of the smaller one, or
    ``fixed_N[i]`` where that is -1; ``row_S`` lists the rows that remain. ``bounding`` (smaller) and ``bounding_N``
    (original) name the row whose capacity is a column's upper bound, or -1.
    """

    program: Program
    original: Program
    bounding: Indices
    bounding_N: Indices
    row_S: Indices
    column_N: Indices
    upper_N: Array
    total: Array
    fixed_N: Array
    dual_S: Array

    def primal(self, value: Array) -> Array:
        """Values of all original columns."""
        from hush.weights.presolve_kernels import split

        return split(value, self.total, self.upper_N, self.column_N, self.fixed_N)

    def reduced_primal(self, value_N: Array) -> Array:
        """Values of the smaller program's columns from values of all original columns."""
        from hush.weights.presolve_kernels import joined

        return joined(value_N, self.column_N, self.program.num_columns)

    def start(self, start: Array) -> Array:
        """Duals of all original rows to start from; unlike those of ``dual`` they are not repaired."""
        full_S = self.dual_S.copy()
        full_S[self.row_S] = start
        return full_S

    def dual(self, dual: Array) -> Array:
        """Duals of all original rows, raised so that they cover bounds which the original columns do not have."""
        from hush.weights.presolve_kernels import cover_columns

        small, covered = self.program, np.array(dual, dtype=np.float64)
        cover_columns(small.offset_N, small.row_of_entry, self.bounding, covered)
        full_S = self.dual_S.copy()
        full_S[self.row_S] = covered
        cover_columns(self.original.offset_N, self.original.row_of_entry, self.bounding_N, full_S)
        return full_S

    def certify(self, candidate: Candidate, *, tolerance: float) -> Weights:
        """A candidate for the smaller program, mapped back and certified for the original program."""
        small = self.program
        primal = clipped(candidate.primal_N, small.num_columns, small.upper_N)
        dual = clipped(candidate.dual_S, small.num_rows, 1.0)
        return certify(
            self.original, self.primal(primal), self.dual(dual), start_S=self.start(dual), tolerance=tolerance
        )


@final
class _Presolve:
    """The original program with the decisions so far."""

    def __init__(self, program: Program) -> None:
        self.program = program
        self.arrangement = program.arrangement
        self.upper_N = program.upper_N.copy()
        self.open_N = np.ones(program.num_columns, dtype=np.bool_)
        self.open_S = np.ones(program.num_rows, dtype=np.bool_)
        self.degree_N = self.arrangement.degree_N.copy()
        self.fixed_N = np.zeros(program.num_columns)
        self.dual_S = np.zeros(program.num_rows)
        self.bounding_N = np.full(program.num_columns, -1, dtype=np.int32)
        self.room_S, self.private_S = self.arrangement.room_S.copy(), self.arrangement.private_S.copy()
        self.count_S = np.diff(program.offset_S)
        self.lost_S, self.gained_S = np.zeros_like(self.count_S), np.zeros_like(self.count_S)
        self.highest = float(self.upper_N.max(initial=0.0))
        at_once_S = (program.capacity_S >= self.room_S) | (program.capacity_S <= self.private_S)
        self.tracking = np.count_nonzero(at_once_S) <= MAX_TRACKED_SHARE * program.num_rows

    def settle(self) -> None:
        """Rounds of decisions about rows and columns, while they decide enough."""
        from hush.weights.presolve_kernels import settle

        for _ in range(MAX_ROUNDS):
            decided = settle(
                *_lists(self.program),
                self.program.capacity_S,
                self.upper_N,
                self.open_N,
                self.open_S,
                self.degree_N,
                self.fixed_N,
                self.dual_S,
                self.bounding_N,
                self.room_S,
                self.private_S,
                self.count_S,
                self.lost_S,
                self.gained_S,
                self.highest,
                self.tracking,
            )
            if not self.tracking:
                self._revisit_all_rows()
            elif decided <= MIN_DECIDED_SHARE * self.program.num_columns:
                return

    def _revisit_all_rows(self) -> None:
        """Make the next round visit every row."""
        self.lost_S[:] = self.gained_S[:] = np.diff(self.program.offset_S)
        self.tracking = True

    def merged(self) -> Reduction:
        """The undecided rest, with equal columns merged into one that has the sum of their upper bounds."""
        from hush.weights.presolve_kernels import compacted, least_rows, merged
        from hush.weights.sparse_kernels import transposed

        row_S = np.flatnonzero(self.open_S)
        number_S = np.full(self.program.num_rows, -1, dtype=np.int32)
        number_S[row_S] = np.arange(len(row_S))
        base = self.arrangement
        source, offset, row = compacted(base.order_N, base.offset_N, base.row_of_entry, self.open_N, number_S)
        column_N = np.full(self.program.num_columns, -1, dtype=np.int32)
        offset, row, total = merged(source, offset, row, self.upper_N, column_N)
        offset_S, column = transposed(offset, row, len(row_S))
        capacity_S = self.program.capacity_S[row_S]
        # A column cannot exceed the least capacity of its rows; solvers do better with this as an explicit bound.
        bounding = least_rows(offset, row, capacity_S, total)
        bounded = bounding >= 0
        upper = total.copy()
        upper[bounded] = capacity_S[bounding[bounded]]
        program = Program(
            offset_S=offset_S,
            column_of_entry=column,
            offset_N=offset,
            row_of_entry=row,
            capacity_S=capacity_S,
            upper_N=upper,
        )
        return Reduction(
            program=program,
            original=self.program,
            bounding=bounding,
            bounding_N=self.bounding_N,
            row_S=row_S,
            column_N=column_N,
            upper_N=self.upper_N,
            total=total,
            fixed_N=self.fixed_N,
            dual_S=self.dual_S,
        )

    def drop(self, reduction: Reduction) -> bool:
        """Drop what domination decides in the merged program, if that is enough to pay for another round."""
        from hush.weights.presolve_kernels import dominated_columns, implied_rows

        small = reduction.program
        most = MAX_COMPARISONS_PER_ENTRY * small.num_entries
        columns: NDArray[np.bool_] = dominated_columns(*_lists(small), small.capacity_S, small.upper_N, most)
        rows: NDArray[np.bool_] = implied_rows(*_lists(small), small.capacity_S)
        if int(columns.sum()) + int(rows.sum()) <= MIN_DECIDED_SHARE * small.num_columns:
            return False
        self.open_N[self.open_N] = ~columns[reduction.column_N[self.open_N]]
        for j in reduction.row_S[rows]:
            self.open_S[j] = False
            begin, end = self.program.offset_S[j], self.program.offset_S[j + 1]
            self.degree_N[self.program.column_of_entry[begin:end]] -= 1
        self._revisit_all_rows()
        return True


def unreduced(program: Program) -> Reduction:
    """The program itself as its own reduction: the map back from a smaller one can cost accuracy."""
    n, m = program.num_columns, program.num_rows
    return Reduction(
        program=program,
        original=program,
        bounding=np.full(n, -1, dtype=np.int32),
        bounding_N=np.full(n, -1, dtype=np.int32),
        row_S=np.arange(m),
        column_N=np.arange(n, dtype=np.int32),
        upper_N=program.upper_N,
        total=program.upper_N,
        fixed_N=np.zeros(n),
        dual_S=np.zeros(m),
    )


def reduced(program: Program) -> Reduction:
    """The program that remains after all exact reductions that pay."""
    work = _Presolve(program)
    for _ in range(MAX_ROUNDS):
        work.settle()
        reduction = work.merged()
        if not work.drop(reduction):
            return reduction
        del reduction  # before the next one is made: each is as large as the graph
    work.settle()
    return work.merged()


def _lists(program: Program) -> tuple[Indices, Indices, Indices, Indices]:
    return program.offset_S, program.column_of_entry, program.offset_N, program.row_of_entry

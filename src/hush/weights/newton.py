"""The solver for large programs, a proximal Newton method: proximal steps on the primal, each a semismooth Newton
solve of its dual.

The dual, min over y >= 0 of c.y + sum of u_i max(0, gain_i) with gain_i = 1 - price_i, has kinks. A proximal term
around a centre rounds them off over a width: the best response of a column climbs from 0 to its upper bound while its
gain crosses the width, and where it climbs at zero gain it stays at the centre. Moving the centre to the response lets
the method end at a width that is still wide, where Newton's method needs few steps; shrinking the width around a fixed
centre needs up to five times as many (measured). Only columns on the climb have curvature, so a Newton step is a small
sparse system, and columns far from the climb can be held constant for a while. The whole matrix is passed over a few
dozen times, where a first-order method needs hundreds of passes. Shapes: N columns, S rows.
"""

from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from typing import final

import numpy as np

from hush.arrays import Array
from hush.weights.linear_program import Candidate, Indices, Task

__all__ = ["newton"]


NUM_RANGES = 4  # ranges of columns, the same on every machine: results must not depend on the number of cores
MIN_ENTRIES_FOR_THREADS = 100_000  # below it threads cost more than they save
MAX_PASSES = 200  # over the whole matrix before giving up
MAX_NEWTON_STEPS = 10  # on the near columns before the held ones are evaluated again
INITIAL_WIDTH = 0.5  # at which any start converges in a few steps
WARM_WIDTH = 0.1  # for a start that fits the capacities exactly
WIDTH_FACTOR = 0.65  # from each width to the next
INITIAL_DAMPING = 1e-2  # a good value for the first step after a move of the centre
MAX_START_MISFIT = 0.15  # above it a cold start is better (measured)


@final
@dataclass(frozen=True, eq=False)
class _Columns:
    """Some columns of a program, and what all others add to the loads and the dual while they are held constant."""

    offset_N: Indices
    row_of_entry: Indices
    upper_N: Array
    centre_N: Array
    held_load_S: Array
    held_value: float


@final
@dataclass(frozen=True, eq=False)
class _Response:
    """The dual at some y: smoothed and plain value, the response's sum and loads, each column's share and gain."""

    dual_S: Array
    smooth: float
    plain: float
    total: float
    load_S: Array
    share_N: Array
    gain_N: Array


def newton(task: Task) -> Candidate:
    """The first candidate that ``task.accept`` accepts, or the last one; from ``task.start`` if there is one."""
    return _ProximalNewton(task).solve()


@final
class _ProximalNewton:
    """The state of one solve."""

    def __init__(self, task: Task) -> None:
        self.task = task
        program = task.program
        self.room_S = program.loads(program.upper_N)
        self.capacity_S = np.minimum(program.capacity_S, self.room_S)  # finite, and no tighter than before
        nothing, middle_N = np.zeros(program.num_rows), np.full(program.num_columns, 0.5)
        self.all = _Columns(program.offset_N, program.row_of_entry, program.upper_N, middle_N, nothing, 0.0)
        self.width, self.reach = INITIAL_WIDTH, 2.0
        self.damping: float = INITIAL_DAMPING
        # Less damping pays only where the last digits are asked for (measured).
        self.least_damping, self.max_products = (3e-4, 40) if task.tolerance > 3e-6 else (1e-5, 100)
        self.pool: ThreadPoolExecutor | None = None

    def solve(self) -> Candidate:
        """Passes over the matrix until a candidate is accepted."""
        if self.task.threads == 1:
            return self._run(self._begin())
        with ThreadPoolExecutor(min(NUM_RANGES, self.task.threads)) as self.pool:  # starts no thread before it has work
            return self._run(self._begin())

    def _begin(self) -> _Response:
        """The first response: from the start, or from duals that grow with what does not fit.

        The better a start fits the capacities, the narrower the first width.
        """
        if self.task.start is not None:
            value_N, dual_S = self.task.start.primal_N, self.task.start.dual_S
            cold, self.width = self.all, WARM_WIDTH
            share_N = np.divide(value_N, cold.upper_N, out=np.zeros_like(value_N), where=cold.upper_N > 0)
            self.all = replace(cold, centre_N=np.clip(share_N, 0.0, 1.0))
            at = self._respond(self.all, np.maximum(dual_S, 0.0))
            misfit = self._residual(at) / max(at.plain, 1e-300)
            if misfit < MAX_START_MISFIT:
                self.width += misfit
                return self._respond(self.all, at.dual_S)
            self.all, self.width = cold, INITIAL_WIDTH
        average = self.task.program.num_columns / max(self.task.program.num_entries, 1)
        short_S = 1 - np.divide(self.capacity_S, self.room_S, out=np.ones_like(self.room_S), where=self.room_S > 0)
        return self._respond(self.all, 2 * average * short_S)

    def _run(self, at: _Response) -> Candidate:
        caution = 1.0
        for _ in range(MAX_PASSES):
            goal = self._goal(at)
            estimate = caution * (self._rounding(at) + 0.4 * self._residual(at))  # what repair costs (measured)
            self._report(self.task.tolerance * estimate / max(goal, 1e-300))
            if estimate <= goal:
                candidate = self._candidate(at)
                if self.task.accept(candidate):
                    return candidate
                caution *= 1.5
            at = self._descend(at)
        return self._candidate(at)

    def _candidate(self, at: _Response) -> Candidate:
        return Candidate(at.share_N * self.all.upper_N, at.dual_S)

    def _goal(self, at: _Response) -> float:
        """The gap to aim for, in units of the objective."""
        return self.task.tolerance * (at.plain + self.task.decided)

    def _report(self, gap: float) -> None:
        """Progress in digits, as the gap falls from 1 to the tolerance."""
        if self.task.progress is not None:
            share = np.log(min(max(gap, self.task.tolerance), 1.0)) / np.log(min(self.task.tolerance, 0.5))
            self.task.progress(int(100 * min(share, 1.0)), 100)

    def _descend(self, before: _Response) -> _Response:
        """Newton steps with the far columns held, until they settle; around a new centre if they had settled before."""
        from hush.weights.newton_kernels import newton_step, selected

        moving = self._settled(before)
        columns, at = self._near(before, self.width * (WIDTH_FACTOR if moving else 1.0))
        if moving:
            # Held columns stay at their bounds, and so at their centres: the near ones determine the smoothed value.
            self.all, columns = replace(self.all, centre_N=before.share_N), replace(columns, centre_N=at.share_N)
            self.width, self.damping = WIDTH_FACTOR * self.width, max(self.damping, INITIAL_DAMPING)
            before = at = self._respond(columns, at.dual_S)
        for _ in range(MAX_NEWTON_STEPS):
            if self._settled(at):
                break
            slope_S = self.capacity_S - at.load_S
            free_S = (at.dual_S > 0) | (slope_S < 0)
            climbing = (at.share_N > 0) & (at.share_N < 1)
            number, offset, row = selected(columns.offset_N, columns.row_of_entry, climbing)
            curvature = columns.upper_N[number] / self.width
            while True:
                damping_S = self.damping / self.width * self.room_S
                step_S = newton_step(offset, row, curvature, slope_S, free_S, damping_S, 0.2, self.max_products)
                # A row whose columns all stop climbing has no curvature to stop its step: a part of the width is as
                # far as the model can see.
                np.clip(step_S, -0.25 * self.width, 0.25 * self.width, out=step_S)
                trial, achieved = self._trial(columns, at, slope_S, step_S)
                if achieved > 0.75:
                    self.damping = max(self.damping / 2, self.least_damping)
                elif achieved < 0.3:
                    self.damping *= 4
                if achieved > 0.05 or self.damping > 1e3:
                    break
            if achieved <= 0:
                self.damping = INITIAL_DAMPING
                break
            at = trial
        after = self._respond(self.all, at.dual_S)
        if after.smooth <= before.smooth:
            self.reach = max(0.8 * self.reach, 2.0)
            return after
        self.reach *= 2  # held columns were not constant: hold fewer
        return self._respond(self.all, before.dual_S)

    def _trial(self, columns: _Columns, at: _Response, slope_S: Array, step_S: Array) -> tuple[_Response, float]:
        """The response after a step, and its descent as a share of the predicted one."""
        trial = self._respond(columns, np.maximum(at.dual_S + step_S, 0.0))
        predicted = -0.5 * _dot(slope_S, trial.dual_S - at.dual_S)
        return trial, (at.smooth - trial.smooth) / predicted if predicted > 0 else 0.0

    def _settled(self, at: _Response) -> bool:
        """Whether more steps around this centre would gain little compared with its distance, or with the goal."""
        return self._residual(at) <= max(self._rounding(at), 0.4 * self._goal(at))

    def _near(self, at: _Response, width: float) -> tuple[_Columns, _Response]:
        """The columns on or near the climb, and their response; the others are held where they are."""
        from hush.weights.newton_kernels import selected

        near = np.abs(at.gain_N) <= width * self.reach
        if np.count_nonzero(near) > 0.6 * near.size:
            return self.all, at
        number, offset, row = selected(self.all.offset_N, self.all.row_of_entry, near)
        nothing = np.zeros_like(at.load_S)
        columns = _Columns(offset, row, self.all.upper_N[number], self.all.centre_N[number], nothing, 0.0)
        alone = self._respond(columns, at.dual_S)
        held_load_S, held_value = at.load_S - alone.load_S, at.total - alone.total
        more = held_value - _dot(held_load_S, at.dual_S)
        here = replace(alone, smooth=alone.smooth + more, plain=alone.plain + more, total=at.total, load_S=at.load_S)
        return replace(columns, held_load_S=held_load_S, held_value=held_value), here

    def _rounding(self, at: _Response) -> float:
        """What the distance to the centre costs: the plain dual minus the response's value at the same prices."""
        return at.plain - at.total - _dot(at.dual_S, self.capacity_S - at.load_S)

    def _residual(self, at: _Response) -> float:
        """Overfull rows and slack in rows with a price, in units of the objective."""
        slope_S = self.capacity_S - at.load_S
        unsettled = np.abs(np.where(at.dual_S > 0, slope_S, np.minimum(slope_S, 0.0)))
        return _dot(unsettled, np.maximum(at.dual_S, at.dual_S.mean()))

    def _respond(self, columns: _Columns, dual_S: Array) -> _Response:
        from hush.weights.newton_kernels import respond

        size, entries = len(columns.upper_N), len(columns.row_of_entry)
        ranges = NUM_RANGES if entries > MIN_ENTRIES_FOR_THREADS else 1
        cuts = np.searchsorted(columns.offset_N, np.linspace(0, entries, ranges + 1))
        cuts[0], cuts[-1] = 0, size  # columns without rows belong to a range too
        share_N, gain_N = np.empty(size), np.empty(size)
        loads = np.empty((ranges, len(dual_S)))
        lists = columns.offset_N, columns.row_of_entry, columns.upper_N, columns.centre_N

        def part(k: int) -> tuple[float, float, float]:
            return respond(cuts[k], cuts[k + 1], *lists, dual_S, self.width, share_N, gain_N, loads[k])

        if ranges == 1 or self.pool is None:
            parts = [part(k) for k in range(ranges)]
        else:
            parts = list(self.pool.map(part, range(ranges)))
        smooth, plain, total = (sum(terms) for terms in zip(*parts, strict=True))
        linear = columns.held_value + _dot(self.capacity_S - columns.held_load_S, dual_S)
        load_S = columns.held_load_S + loads.sum(axis=0)
        return _Response(dual_S, linear + smooth, linear + plain, columns.held_value + total, load_S, share_N, gain_N)


def _dot(left: Array, right: Array) -> float:
    """Without BLAS, whose threads would wait actively while ours work."""
    return float((left * right).sum())

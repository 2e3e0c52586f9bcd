"""Stage 3, the large-scale solver: a semismooth Newton method on the smoothed dual, made for 0/1 packing in a box.

The dual, min over y >= 0 of c.y + sum of u_i max(0, gain_i) with gain_i = 1 - price_i, has kinks. Rounded off over a
width it is smooth: the best response of a column climbs from 0 to its upper bound while its gain crosses the width,
and only columns on the climb have curvature. They get fewer as the width shrinks, so a Newton step is a small sparse
system, and columns far from the climb can be held constant for a while. The whole matrix is passed over a few dozen
times, where a first-order method needs hundreds of passes. Shapes: N columns, S rows.
"""

import os
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import final

import numpy as np

from hush.weights.certify import Certified, certify
from hush.weights.program import Array, Indices, Program, Progress

__all__ = ["SmoothedNewton"]

RANGES = 4  # columns are cut into as many ranges on every machine: results must not depend on the number of cores
FEW = 100_000  # entries below which threads cost more than they save
STAGES = 200  # passes over the whole matrix before giving up
STEPS = 10  # Newton steps on the near columns before the held ones are looked at again
WIDEST = 0.5  # a width at which any start converges in a few steps


@final
@dataclass(frozen=True, eq=False)
class _Columns:
    """Some columns of a program, and what all others add to the loads and the dual while they are held constant."""

    offset_N: Indices
    row_of_entry: Indices
    upper_N: Array
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


@final
class SmoothedNewton:
    """One solve. ``certified`` holds the best pair found; above the tolerance it is only a candidate.

    ``last_S`` are the duals of the smoothed program, which certification has not polished: the better start for a
    similar program.
    """

    def __init__(
        self, program: Program, start_S: Array | None, tolerance: float, progress: Progress | None = None
    ) -> None:
        self.program, self.tolerance, self.progress = program, tolerance, progress
        self.room_S = program.loads(program.upper_N)
        self.capacity_S = np.minimum(program.capacity_S, self.room_S)  # finite, and no tighter than before
        nothing = np.zeros(program.num_rows)
        self.all = _Columns(program.offset_N, program.row_of_entry, program.upper_N, nothing, 0.0)
        self.damping, self.reach = 1e-2, 2.0
        # Less damping pays only where the last digits are asked for (measured).
        self.least_damping, self.most_products = (3e-4, 40) if tolerance > 3e-6 else (1e-5, 100)
        with ThreadPoolExecutor(min(RANGES, os.cpu_count() or 1)) as self.pool:
            self.certified = self._run(self._begin(start_S))

    def _begin(self, start_S: Array | None) -> _Response:
        """The first response: from equal duals at which the average column costs 1, or from a start.

        A start is worth as narrow a width as it fits the capacities: one from quite another program is smoothed away.
        """
        self.width = WIDEST
        if start_S is None:
            average = self.program.num_columns / max(self.program.num_entries, 1)
            return self._respond(self.all, np.full(self.program.num_rows, average))
        self.width = WIDEST / 8
        at = self._respond(self.all, np.maximum(start_S, 0.0))
        misfit = self._residual(at) / max(at.plain, 1e-300)
        self.width = min(max(2 * misfit, 20 * self.tolerance), WIDEST)
        return self._respond(self.all, at.dual_S)

    def _run(self, at: _Response) -> Certified:
        best: Certified | None = None
        for _ in range(STAGES):
            goal = self.tolerance * at.plain
            rounding, residual = self._rounding(at), self._residual(at)
            estimate = 0.4 * rounding + 0.6 * residual  # what certification leaves of the two (measured)
            self._report(estimate / max(at.plain, 1e-300))
            if estimate <= goal:
                proof = certify(self.program, at.share_N * self.program.upper_N, at.dual_S, tolerance=self.tolerance)
                best = proof if best is None or proof.gap < best.gap else best
                self.last_S = at.dual_S
                if best.gap <= self.tolerance:
                    return best
                rounding = max(rounding, 2 * goal)  # the estimate was too rosy
            if rounding > 1.4 * goal and self._settled(at, goal):
                self.width *= min(max(1.2 * goal / rounding, 0.4), 0.7)
                at = self._respond(self.all, at.dual_S)
            at = self._descend(at, goal)
        self.last_S = at.dual_S
        return best or certify(self.program, at.share_N * self.program.upper_N, at.dual_S)

    def _report(self, gap: float) -> None:
        """Progress in digits, as the gap falls from 1 to the tolerance."""
        if self.progress is not None:
            share = np.log(min(max(gap, self.tolerance), 1.0)) / np.log(min(self.tolerance, 0.5))
            self.progress(int(100 * min(share, 1.0)), 100)

    def _descend(self, before: _Response, goal: float) -> _Response:
        """Newton steps with the far columns held, until the residual is below the target."""
        from hush.weights.newton_kernels import newton_step, selected

        columns = self._near(before)
        at = self._respond(columns, before.dual_S)
        for _ in range(STEPS):
            if self._settled(at, goal):
                break
            slope_S = self.capacity_S - at.load_S
            free_S = (at.dual_S > 0) | (slope_S < 0)
            climbing = (at.share_N > 0) & (at.share_N < 1)
            number, offset, row = selected(columns.offset_N, columns.row_of_entry, climbing)
            curvature = columns.upper_N[number] / self.width
            while True:
                damping_S = self.damping / self.width * self.room_S
                step_S = newton_step(offset, row, curvature, slope_S, free_S, damping_S, 0.1, self.most_products)
                # A row whose columns all stop climbing has no curvature to stop its step: the width is as far as the
                # model can see.
                np.clip(step_S, -0.5 * self.width, 0.5 * self.width, out=step_S)
                trial, kept = self._trial(columns, at, slope_S, step_S)
                if kept > 0.75:
                    self.damping = max(self.damping / 2, self.least_damping)
                elif kept < 0.3:
                    self.damping *= 4
                if kept > 0.05 or self.damping > 1e3:
                    break
            if kept <= 0:
                self.damping = 1e-2
                break
            at = trial
        after = self._respond(self.all, at.dual_S)
        if after.smooth <= before.smooth:
            self.reach = max(0.8 * self.reach, 2.0)
            return after
        self.reach *= 2  # held columns were not constant after all: hold fewer
        return before

    def _trial(self, columns: _Columns, at: _Response, slope_S: Array, step_S: Array) -> tuple[_Response, float]:
        """The response after a step, and the share of the promised descent that it kept."""
        trial = self._respond(columns, np.maximum(at.dual_S + step_S, 0.0))
        promised = -0.5 * _dot(slope_S, trial.dual_S - at.dual_S)
        return trial, (at.smooth - trial.smooth) / promised if promised > 0 else 0.0

    def _settled(self, at: _Response, goal: float) -> bool:
        """Whether more steps at this width would gain little: the width, or already the goal, is what matters."""
        return self._residual(at) <= max(self._rounding(at) - 1.4 * goal, 0.6 * goal)

    def _near(self, at: _Response) -> _Columns:
        """The columns on or near the climb; the others are held where they are."""
        from hush.weights.newton_kernels import selected

        near = np.abs(at.gain_N) <= self.width * self.reach
        if np.count_nonzero(near) > 0.6 * near.size:
            return self.all
        number, offset, row = selected(self.all.offset_N, self.all.row_of_entry, near)
        nothing = np.zeros_like(at.load_S)
        columns = _Columns(offset, row, self.all.upper_N[number], nothing, 0.0)
        alone = self._respond(columns, at.dual_S)
        held_load_S = at.load_S - alone.load_S
        held = at.total - alone.total
        return _Columns(offset, row, columns.upper_N, held_load_S, held)

    def _rounding(self, at: _Response) -> float:
        """What rounding the kinks costs: the plain dual minus the response's value at the same prices."""
        return at.plain - at.total - _dot(at.dual_S, self.capacity_S - at.load_S)

    def _residual(self, at: _Response) -> float:
        """Overfull rows and slack in rows with a price, in units of the objective."""
        slope_S = self.capacity_S - at.load_S
        unsettled = np.abs(np.where(at.dual_S > 0, slope_S, np.minimum(slope_S, 0.0)))
        return _dot(unsettled, np.maximum(at.dual_S, at.dual_S.mean()))

    def _respond(self, columns: _Columns, dual_S: Array) -> _Response:
        from hush.weights.newton_kernels import respond

        size, entries = len(columns.upper_N), len(columns.row_of_entry)
        ranges = RANGES if entries > FEW else 1
        cuts = np.searchsorted(columns.offset_N, np.linspace(0, entries, ranges + 1))
        cuts[0], cuts[-1] = 0, size  # columns without rows belong to a range too
        share_N, gain_N = np.empty(size), np.empty(size)
        loads = np.empty((ranges, len(dual_S)))
        lists = columns.offset_N, columns.row_of_entry, columns.upper_N

        def part(k: int) -> tuple[float, float, float]:
            return respond(cuts[k], cuts[k + 1], *lists, dual_S, self.width, share_N, gain_N, loads[k])

        parts = [part(0)] if ranges == 1 else list(self.pool.map(part, range(ranges)))
        smooth, plain, total = (sum(terms) for terms in zip(*parts, strict=True))
        linear = columns.held_value + _dot(self.capacity_S - columns.held_load_S, dual_S)
        load_S = columns.held_load_S + loads.sum(axis=0)
        return _Response(dual_S, linear + smooth, linear + plain, columns.held_value + total, load_S, share_N, gain_N)


def _dot(left: Array, right: Array) -> float:
    """Not through BLAS, whose threads would wait actively beside ours."""
    return float((left * right).sum())

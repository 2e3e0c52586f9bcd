"""Inner loops of the proximal Newton method, compiled by Numba on first use; import only inside functions.

Nothing here needs to be trusted: candidates are certified in ``linear_program``. Shapes: N columns, S rows.
"""

from typing import Any

import numpy as np
from numba import njit

from hush.weights.sparse_kernels import compiled

# pyright: basic


def regrouped(function: Any) -> Any:
    """As ``compiled``, with sums in the fastest order: only for steps, whose effect is checked."""
    return njit(cache=True, nogil=True, fastmath={"reassoc", "contract"})(function)


@compiled
def respond(begin, end, offset, row, upper, centre, dual, width, share, gain, load):
    """The best response to the duals in the smoothed program, for the columns begin..end, and its sums.

    Column i takes the share f of its upper bound that maximises u_i (gain_i f - width / 2 (f - centre_i)^2) over
    [0, 1], where gain_i = 1 - price_i. Writes share, gain and this range's load of each row; returns the smoothed and
    the plain dual's terms and the sum of the response.
    """
    load[:] = 0.0
    smooth, plain, total = 0.0, 0.0, 0.0
    for i in range(begin, end):
        price = 0.0
        for entry in range(offset[i], offset[i + 1]):
            price += dual[row[entry]]
        t = 1.0 - price
        f = min(max(centre[i] + t / width, 0.0), 1.0)
        away = f - centre[i]
        share[i], gain[i] = f, t
        smooth += upper[i] * (f * t - 0.5 * width * away * away)
        plain += upper[i] * max(t, 0.0)
        if f > 0.0:
            w = f * upper[i]
            total += w
            for entry in range(offset[i], offset[i + 1]):
                load[row[entry]] += w
    return smooth, plain, total


@compiled
def selected(offset, row, keep):
    """The columns where ``keep`` holds, with their numbers."""
    count, entries = 0, 0
    for i in range(keep.size):
        if keep[i]:
            count += 1
            entries += offset[i + 1] - offset[i]
    number = np.empty(count, np.int64)
    start = np.empty(count + 1, np.int64)
    lists = np.empty(entries, np.int32)
    start[0] = 0
    k, at = 0, 0
    for i in range(keep.size):
        if keep[i]:
            number[k] = i
            for entry in range(offset[i], offset[i + 1]):
                lists[at] = row[entry]
                at += 1
            k += 1
            start[k] = at
    return number, start, lists


@regrouped
def newton_step(offset, row, curvature, slope, free, damping, tolerance, most):
    """Solve (sum of curvature_i a_i a_i' + diag(damping)) d = -slope over the free rows, roughly.

    Conjugate gradients with a diagonal preconditioner, at most ``most`` steps, down to ``tolerance`` of the slope.
    Columns a_i are those inside their bounds, the only ones with curvature. They are multiplied in single precision,
    which is enough for a rough solve: twice as much of it fits into the fast cache.
    """
    size = slope.size
    inverse = damping.copy()
    for i in range(curvature.size):
        for entry in range(offset[i], offset[i + 1]):
            inverse[row[entry]] += curvature[i]
    keep = free.astype(np.float64)
    step, residual = np.zeros(size), np.empty(size)
    direction, image = np.empty(size, np.float32), np.empty(size, np.float32)
    inner, norm = 0.0, 0.0
    for j in range(size):
        # A row without columns has neither curvature nor damping, and nothing to move for.
        inverse[j] = keep[j] / inverse[j] if inverse[j] > 0.0 else 0.0
        residual[j] = -slope[j] * keep[j]
        direction[j] = residual[j] * inverse[j]
        inner += residual[j] * direction[j]
        norm += residual[j] * residual[j]
        image[j] = damping[j] * direction[j]
    enough = tolerance * tolerance * norm
    for _ in range(most):
        if norm <= enough:
            break
        for i in range(curvature.size):
            total = 0.0
            for entry in range(offset[i], offset[i + 1]):
                total += direction[row[entry]]
            total *= curvature[i]
            for entry in range(offset[i], offset[i + 1]):
                image[row[entry]] += total
        bend = 0.0
        for j in range(size):
            bend += direction[j] * image[j]  # direction is 0 outside the free rows
        if not bend > 0.0:
            break
        length = inner / bend
        norm, next_inner = 0.0, 0.0
        for j in range(size):
            step[j] += length * direction[j]
            residual[j] -= length * keep[j] * image[j]
            square = residual[j] * residual[j]
            norm += square
            next_inner += square * inverse[j]
        ratio = next_inner / inner
        inner = next_inner
        for j in range(size):
            direction[j] = residual[j] * inverse[j] + ratio * direction[j]
            image[j] = damping[j] * direction[j]
    return step

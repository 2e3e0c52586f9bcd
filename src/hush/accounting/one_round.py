"""One round of training as a finite table of cells: what a test can learn about one secret from one noisy sum.

With the secret's examples the round's output is N(K, sigma^2), K their count (law P); with their gradients zeroed it
is N(0, sigma^2) (law Q). In units u = x / sigma the likelihood ratio R(u) = sum_k pi_k exp(u m_k - m_k^2 / 2),
m_k = k / sigma, increases in u. The line is cut into cells; each stores its exact Q-mass and the exact mean of R over
it. Beyond the right end Q has almost no mass: there success is conceded, which costs almost nothing and keeps the table
short for every sigma. Q-mass left of the table is lifted to the first edge.

`spread` turns the cells into atoms that dominate the round; the cells themselves are an exact coarsening of it, on
which the explicit attack of ``blowup`` is built. Labels (E12) to (E14), (E18), (E19) and (E37) refer to docs/proofs.md.

Legend: U edges of cells, K counts.
"""

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
from scipy.special import ndtr, ndtri

from hush.accounting.counts import EPS, CountLaw
from hush.arrays import Array

LEFT_END = -9.0  # of the table; the Q-mass below it, 1e-19, is lifted; tightness only (E12)
MIN_RIGHT_END = 3.0  # tightness only
MAX_RIGHT_END = 37.5  # the last point where normal tails and exp(u^2 / 2) are ordinary doubles (E13)
CONCEDED_SHIFT = 9.0  # beyond the right end: a count shifted farther is conceded as a whole (E13)
CONCEDED_SHARE = 1e-9  # of the prior: Q-mass beyond the right end, all rounds together; tightness only
MIN_CONCEDED = 1e-307  # the smallest Q-mass beyond the right end that ndtri is asked for; tightness only
TAIL_ROUNDING = 1e-12  # relative error of normal tails and of conceded mass (E12), (E14)
UNDERFLOW_MASS = 1e-310  # more P-mass than underflow can lose in any table (E14)
MIN_RATIO_ERROR = 1e-300  # so that no cell has width 0 (E19)
REVEALED_ROUNDING = 1e-9  # relative, of the probability that a part draws the secret (E37)
CHUNK_ENTRIES = 1 << 20  # of a (count, cell) matrix computed at a time; sums over counts rely on it (E19)


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Part:
    """Rounds with one law of counts and one noise multiplier: one training, or one release among several."""

    law: CountLaw
    sigma: float
    rounds: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Round:
    """One round, cut into cells. Every `…_error` and `conceded` are upper bounds, `attainable` is a lower bound.

    q_mass is the Q-mass of each cell, with a relative error of at most q_error; log_mean is the log of the mean ratio
    over the cell and log_ratio_U the log ratio at the edges, with errors of at most ratio_error (one per cell).
    conceded is the P-mass beyond the right end or marked certain; attainable is the P-mass that surely lies beyond the
    right end, beyond its Q-mass. q_left is the Q-mass left of the table, where the ratio lies between idle (its limit)
    and that at the first edge.
    """

    log_ratio_U: Array
    q_mass: Array
    log_mean: Array
    ratio_error: Array
    q_error: float
    q_left: float
    idle: float
    beyond: float
    conceded: float
    attainable: float


def conceded_over(tables: Sequence[Round], rounds: Sequence[int]) -> float:
    """Probability under P that any round of any table is conceded, each table used this often, rounded up (E14)."""
    if any(table.conceded >= 1 for table in tables):
        return 1.0
    log_kept = sum(times * math.log1p(-table.conceded) for table, times in zip(tables, rounds, strict=True))
    return min(1.0, -math.expm1(log_kept) * (1 + TAIL_ROUNDING))


def right_end(prior: float, rounds: int, *, share: float = CONCEDED_SHARE) -> float:
    """The end of the table: the Q-mass beyond it is at most this share of the prior, all rounds together."""
    return float(np.clip(-ndtri(max(share * prior / rounds, MIN_CONCEDED)), MIN_RIGHT_END, MAX_RIGHT_END))


def gives_away(law: CountLaw, sigma: float, *, end: float) -> bool:
    """Whether a single drawn example is shifted so far beyond `end` that the round reveals the secret."""
    return max(law.lowest, 1) > sigma * (end + CONCEDED_SHIFT)


def hidden_parts(parts: Sequence[Part], prior: float, *, share: float = CONCEDED_SHARE) -> tuple[list[Part], float]:
    """The parts in which a single draw does not reveal the secret, and the end of the table where the others do.

    Without the others there are fewer rounds and the table ends earlier, where yet another part may reveal it.
    """
    hidden: list[Part] = list(parts)
    end = 0.0
    while hidden:
        end = right_end(prior, sum(part.rounds for part in hidden), share=share)
        left = [part for part in hidden if not gives_away(part.law, part.sigma, end=end)]
        if len(left) == len(hidden):
            break
        hidden = left
    return hidden, end


def with_revealed(parts: Sequence[Part], hidden: Sequence[Part], bounds: Array) -> Array:
    """Bounds for the hidden parts, raised to bounds for all: success is granted where another part draws the secret.

    Otherwise the outputs of the other parts have the law Q, which tells nothing.
    """
    if len(hidden) == len(parts):
        return bounds
    idle = sum(part.rounds * part.law.log_idle for part in parts if part not in hidden)
    revealed = min(1.0, -math.expm1(idle) * (1 + REVEALED_ROUNDING))
    return np.minimum(1.0, (revealed + (1 - revealed) * bounds) * (1 + 4 * EPS))  # roundings of this line (E37)


def discretise(law: CountLaw, sigma: float, *, end: float, cells: int) -> Round:
    """Cut the line from LEFT_END to `end` into equal cells."""
    edge_U = np.linspace(LEFT_END, end, cells + 1)
    width = (end - LEFT_END) / cells
    q_mass = _cell_masses(edge_U)
    shifts = _shifts(law, sigma, end)
    log_ratio_U, share_U = _log_ratio_at(shifts, edge_U)
    q_error = (12 * end + 128) * EPS / width  # of normal tails and shifted edges, relative to a cell (E18)
    # Only counts above 0 have an error, and each as a difference ratio_k - 1; share_U bounds their part of R.
    sum_error = law.relative_error + TAIL_ROUNDING + EPS * shifts.mass_K.size  # of sums over counts (E14)
    count_error = 2 * q_error + law.relative_error + EPS * (8 + 2 * end * end)  # (E19)
    log_error = 4 * EPS * np.maximum(np.abs(log_ratio_U[:-1]), np.abs(log_ratio_U[1:]))  # (E19)
    ratio_error = count_error * share_U[1:] + log_error
    ratio_error += MIN_RATIO_ERROR
    past_end = float(shifts.mass_K @ ndtr(shifts.mean_K - end))
    return Round(
        log_ratio_U=log_ratio_U,
        q_mass=q_mass,
        log_mean=_log_mean_over(shifts, edge_U, q_mass),
        ratio_error=ratio_error,
        q_error=q_error,
        q_left=float(ndtr(LEFT_END)) * (1 + TAIL_ROUNDING),
        idle=float(shifts.mass_K[shifts.mean_K == 0.0].sum()),
        beyond=float(ndtr(-end)) * (1 + TAIL_ROUNDING),
        conceded=min(1.0, (shifts.outside + past_end) * (1 + sum_error) + UNDERFLOW_MASS),
        attainable=(past_end + shifts.dropped * float(ndtr(CONCEDED_SHIFT))) * (1 - sum_error),
    )


def spread(cells: Round) -> tuple[Array, Array]:
    """Atoms (Q-mass, log ratio) that dominate the round, two for each cell: for the blow-up function and moments.

    Each cell's mean ratio is written as a mixture of the ratios at its two ends: a mean-preserving spread, so every
    convex functional of the ratio only grows. Errors are covered by moving the mean up and widening the ends; the
    Q-mass left of the table is lifted into it.
    """
    mass, value = _spread(cells, cells.ratio_error)
    mass[cells.q_mass.size] += cells.q_left  # onto the upper end of the first cell
    return mass, value


def spread_from_one(cells: Round) -> tuple[Array, Array]:
    """The same for a divergence, a convex functional that is smallest at ratio 1: errors move the mean away from 1.

    In a cell with ratios on both sides of 1 either direction may increase the result, so each end gets the larger mass.
    The Q-mass left of the table has ratios below 1, and counts with the smallest of them.
    """
    above, below = cells.log_ratio_U[:-1] >= cells.ratio_error, cells.log_ratio_U[1:] <= -cells.ratio_error
    (down, value), (up, _) = _spread(cells, -cells.ratio_error), _spread(cells, cells.ratio_error)
    size = cells.q_mass.size
    lower, upper = np.where(above, up[:size], down[:size]), np.where(below, down[size:], up[size:])
    with np.errstate(divide="ignore"):
        return np.concatenate([lower, upper, [cells.q_left]]), np.append(value, np.log(cells.idle))


def _spread(cells: Round, shift: Array) -> tuple[Array, Array]:
    """Lower ends first, then upper ends."""
    low, high = cells.log_ratio_U[:-1] - cells.ratio_error, cells.log_ratio_U[1:] + cells.ratio_error
    moved = np.where(np.isfinite(cells.log_mean), cells.log_mean + shift, high)  # a mean that underflowed is moved up
    weight = np.clip(np.expm1(np.clip(moved, low, high) - low) / np.expm1(high - low), 0.0, 1.0)
    upper = cells.q_mass * weight
    return np.concatenate([cells.q_mass - upper, upper]), np.concatenate([low, high])


def log_ratio(law: CountLaw, sigma: float, u: Array, *, end: float) -> Array:
    """log R(u) without the counts that are conceded for this `end`."""
    shifts = _shifts(law, sigma, end)
    return _log_ratio_at(shifts, u)[0]


@dataclass(frozen=True, slots=True, kw_only=True)
class _Shifts:
    """The counts kept, as shifts m = k / sigma with their masses; `outside` is the mass of all others."""

    mean_K: Array
    mass_K: Array
    outside: float
    dropped: float

    @property
    def mostly_idle(self) -> bool:
        """Whether most rounds draw none of the secret's examples: R is then computed through R - 1."""
        return self.mean_K.size > 0 and self.mean_K[0] == 0.0 and self.mass_K[0] > 0.5

    def chunks(self, columns: int) -> Iterator[tuple[Array, Array]]:
        """Shifts as a column and their masses, in bounded chunks; count 0 is left out when mostly idle."""
        rows = max(1, CHUNK_ENTRIES // columns)
        for start in range(int(self.mostly_idle), self.mean_K.size, rows):
            yield self.mean_K[start : start + rows, None], self.mass_K[start : start + rows]


def _shifts(law: CountLaw, sigma: float, end: float) -> _Shifts:
    mean_K = law.counts / sigma
    keep = (mean_K <= end + CONCEDED_SHIFT) & (law.mass > 0)  # larger counts are conceded as a whole (E13)
    dropped = float(law.mass[~keep].sum())
    return _Shifts(mean_K=mean_K[keep], mass_K=law.mass[keep], outside=law.certain + dropped, dropped=dropped)


def _log_ratio_at(shifts: _Shifts, u: Array) -> tuple[Array, Array]:
    """log R at the points u, and the sum of mass_k (ratio_k + 1) over counts above 0, relative to R."""
    if shifts.mostly_idle:
        excess, counted = np.zeros_like(u), float(shifts.mass_K[1:].sum())
        for mean_k, mass_k in shifts.chunks(u.size):
            excess += mass_k @ np.expm1(mean_k * (u - 0.5 * mean_k))
        log_r = np.log1p(excess - shifts.outside)
        return log_r, np.minimum((excess + 2 * counted) * np.exp(-log_r), 2.0)
    log_r = np.full_like(u, -np.inf)
    with np.errstate(divide="ignore"):
        for mean_k, mass_k in shifts.chunks(u.size):
            terms = np.log(mass_k)[:, None] + mean_k * (u - 0.5 * mean_k)
            peak = terms.max(axis=0)
            log_r = np.logaddexp(log_r, peak + np.log(np.exp(terms - peak).sum(axis=0)))
    return log_r, np.ones_like(u)


def _log_mean_over(shifts: _Shifts, edge_U: Array, q_mass: Array) -> Array:
    """log of the mean of R over each cell; -inf where the mass under P underflows."""
    total = np.zeros_like(q_mass)
    if shifts.mostly_idle:
        for mean_k, mass_k in shifts.chunks(edge_U.size):
            total += mass_k @ (_cell_masses(edge_U - mean_k) - q_mass)
        return np.log1p(total / q_mass - shifts.outside)
    for mean_k, mass_k in shifts.chunks(edge_U.size):
        total += mass_k @ _cell_masses(edge_U - mean_k)
    with np.errstate(divide="ignore"):
        return np.log(total / q_mass)


def _cell_masses(edge: Array) -> Array:
    """Standard normal mass between neighbouring edges (last axis), each from the tail on its own side of 0."""
    tail = ndtr(-np.abs(edge))
    signed = np.where(edge < 0, tail, -tail)
    return np.diff(signed, axis=-1) + ((edge[..., :-1] < 0) & (edge[..., 1:] >= 0))

"""The bounds by KL and Renyi divergence: from a divergence to a posterior and back, and the divergences of a run.

Reference lemma (docs/proofs.md): if the run's law P under every candidate has F(P || Q) <= F(Bern(r) || Bern(p)) for
one fixed Q, then nobody who gives each candidate a prior of at most p names the right one with probability above r.
`…_target` gives the right-hand side, rounded down; `…_posterior` the largest r for a divergence, rounded up. Formulas
use the rise r - p and logarithms, so priors down to 1e-300 and ceilings up to 1 - 1e-12 keep their digits. All
functions take arrays and broadcast.

The divergences of a run are sums over the atoms of `spread`, which dominate the round, so they err upwards by
construction, by less than 1e-3. T rounds have T times the KL, and T times the log-moment, of one round. Success is
conceded beyond the table, and the divergences are conditioned on staying inside (docs/proofs.md, "Conceding a tail").

Labels (E1) to (E4), (E15) to (E17) and (E37) refer to docs/proofs.md.
"""

import math
from collections.abc import Sequence

import numpy as np
from numpy.typing import ArrayLike, NDArray

from hush.accounting.counts import EPS
from hush.accounting.one_round import (
    Part,
    Round,
    conceded_over,
    discretise,
    hidden_parts,
    spread,
    spread_from_one,
    with_revealed,
)
from hush.arrays import Array

KL_ROUNDING = 64 * EPS  # relative error of the formulas for KL (E1)
KL_INFLATION = 1 + KL_ROUNDING  # (E1)
RENYI_INFLATION = 1 + 1e-10  # of the log-moment, for orders of at least 1.001, where terms cancel (E2)
MIN_BERNOULLI_POWER = 0.386  # (1 + d)^alpha - 1 - alpha d >= this (alpha - 1) d^alpha for d >= 1, alpha < 2 (E3)
START_ROUNDING = 1e-9  # relative error of the starting point (E3)
MAX_EXPONENT = 700.0  # of the formulas for the starting point (E3)
FINAL_ROUNDING = 1e-12  # relative margin above the last Newton step (E4)
MAX_STEP_SHARE = 0.999  # of the rise, for one Newton step (E4)
STEP_TOLERANCE = 1e-14  # relative step at which Newton's method stops; tightness only (E4)
TINY = 1e-300  # prevents division by 0 (E4)
NEWTON_STEPS = 60  # each function is convex in r, so steps from above stay above: any number is safe; tightness only
SERIES_BELOW = 0.1  # |d|, or alpha |d|, below which the series is used (E1), (E2)
KL_SERIES_DEGREE = 18  # (E1)
RENYI_SERIES_DEGREE = 14  # (E2)
FAR_EXPONENT = 30.0  # of (1 + d)^alpha, above which the moment is computed from logarithms (E2)

CELLS, MAX_CELLS = 2048, 1 << 15  # the former at an accuracy of 1e-3; tightness only
ORDERS: Array = 1.0 + np.geomspace(1e-3, 1e4, 57)  # where the search begins; tightness only, but for the least (E2)
ORDER_REFINEMENTS = 3  # of the search for the best order; tightness only
KL_SERIES = [(n - 1) / math.factorial(n) for n in range(2, 23)]  # of (R log R - R + 1) / v², R = e^v; rest 1e-21 (E15)
DIVERGENCE_ROUNDING = 64 * EPS  # relative error of evaluating and adding the terms (E15), (E16)
MAX_WEAK_EXPONENT = 0.01  # order * |log R| below which the moment is computed through its excess (E16)
WEAK_REMAINDER = 100  # order^5 |v|^5 over this bounds all terms of degree 5 and more (E16)


def kl_target(prior: ArrayLike, ceiling: ArrayLike) -> Array:
    """Largest KL divergence that still keeps the promise: KL(Bern(ceiling) || Bern(prior)), rounded down.

    >>> round(float(kl_target(1e-10, 1e-3)), 6)
    0.015119
    """
    p, r = np.asarray(prior, dtype=np.float64), np.asarray(ceiling, dtype=np.float64)
    return _kl(p, r - p) * (1 - KL_ROUNDING)


def kl_posterior(divergence: ArrayLike, prior: ArrayLike) -> Array:
    """Largest r with KL(Bern(r) || Bern(prior)) <= divergence, rounded up; 1 if no r < 1 reaches it.

    >>> round(float(kl_posterior(0.015118586, 1e-10)), 6)
    0.001
    """
    p, level = np.broadcast_arrays(*(np.asarray(x, dtype=np.float64) for x in (prior, divergence)))
    level = level * KL_INFLATION
    # Above the root, since KL >= rise^2 / (2 (p + rise)) (E3); two square roots, since their product may underflow.
    rise = level + np.hypot(level, np.sqrt(2 * p) * np.sqrt(level))
    for _ in range(NEWTON_STEPS):
        rise = np.minimum(rise, 1 - p)
        slope = np.log1p(rise / p) - _log1m(rise / (1 - p))
        step = np.maximum(_kl(p, rise) - level, 0.0) / np.maximum(slope, TINY)
        rise = rise - step
        if np.all(step <= STEP_TOLERANCE * rise):
            break
    return _above(p, rise, _kl(p, 1 - p) <= level)


def renyi_posterior(log_moment: ArrayLike, prior: ArrayLike, order: ArrayLike) -> Array:
    """Largest r whose binary log-moment of this order is at most `log_moment`, rounded up."""
    p, level, alpha = np.broadcast_arrays(*(np.asarray(x, dtype=np.float64) for x in (prior, log_moment, order)))
    level = level * RENYI_INFLATION
    rise = _renyi_start(alpha, p, level)
    for _ in range(NEWTON_STEPS):
        rise = np.minimum(rise, 1 - p)
        up, down = np.log1p(rise / p), _log1m(rise / (1 - p))
        here = log_moment_of_bernoullis(alpha, p, rise)
        # moment / slope, without the common factor (r / p)^(alpha - 1) so that nothing overflows
        slope = np.maximum(-np.expm1((alpha - 1) * (down - up)), TINY)  # 0 only where nothing is left to gain
        reach = np.exp(here - (alpha - 1) * up) / (alpha * slope)
        step = -np.expm1(np.minimum(level - here, 0.0)) * reach
        rise = rise - np.minimum(step, MAX_STEP_SHARE * rise)
        if np.all(step <= STEP_TOLERANCE * rise):
            break
    return _above(p, rise, log_moment_of_bernoullis(alpha, p, 1 - p) <= level)


def _renyi_start(alpha: Array, p: Array, level: Array) -> Array:
    """A rise above the root of the log-moment, close enough for Newton: the least of three upper bounds (E3).

    With d = rise / p and E = exp(level) - 1, each follows from dropping a non-negative part of the moment:
    (p + rise)^alpha p^(1 - alpha) <= exp(level); and E / p >= (1 + d)^alpha - 1 - alpha d, which is at least
    alpha (alpha - 1) / 2 * d^2 / (1 + d), and for d >= 1 at least d^alpha * min(1, MIN_BERNOULLI_POWER (alpha - 1)).
    """
    with np.errstate(divide="ignore", over="ignore"):
        log_excess = level + np.log(-np.expm1(-level)) - np.log(p)
        total = np.expm1(np.minimum((level - np.log(p)) / alpha, MAX_EXPONENT))
        e = np.exp(np.minimum(log_excess - np.log(alpha * (alpha - 1) / 2), MAX_EXPONENT))
        quadratic = 0.5 * (e + np.sqrt(e) * np.sqrt(e + 4))
        least_power = np.minimum(1.0, MIN_BERNOULLI_POWER * (alpha - 1))
        power = np.exp(np.minimum((log_excess - np.log(least_power)) / alpha, MAX_EXPONENT))
        d = np.minimum(np.minimum(total, quadratic), np.maximum(power, 1.0))
        for _ in range(4):  # (1 + d)^alpha <= 1 + alpha d + E / p, used with the d so far on the right
            d = np.minimum(d, np.expm1(np.logaddexp(log_excess, np.log1p(alpha * d)) / alpha))
    return p * d * (1 + START_ROUNDING)


def _above(p: Array, rise: Array, always: NDArray[np.bool_]) -> Array:
    """p + rise with a margin above the last Newton step (E4); 1 where every r is allowed, or nothing is known (NaN)."""
    posterior = p + rise * (1 + FINAL_ROUNDING) + p * EPS  # (E4)
    return np.where(always | np.isnan(rise), 1.0, np.minimum(1.0, posterior))


def _kl(p: Array, rise: Array) -> Array:
    """KL(Bern(p + rise) || Bern(p)) as a sum of two non-negative parts, so nothing cancels."""
    return p * _entropy_excess(rise / p) + (1 - p) * _entropy_excess(-rise / (1 - p))


def _entropy_excess(d: Array) -> Array:
    """(1 + d) log(1 + d) - d for d >= -1; by its series where that would cancel."""
    small = np.abs(d) < SERIES_BELOW
    s = np.where(small, d, 0.0)
    series = np.zeros_like(s)
    for n in range(KL_SERIES_DEGREE, 1, -1):  # sum of (-1)^n d^n / (n (n - 1)), from the smallest term up
        series = s * series + (-1) ** n / (n * (n - 1))
    e = np.where(small, 1.0, np.maximum(d, -1.0))
    with np.errstate(divide="ignore", invalid="ignore"):
        direct = np.where(e > -1, (1 + e) * np.log1p(e) - e, 1.0)
    return np.where(small, s * s * series, direct)


def log_moment_of_bernoullis(alpha: Array, p: Array, rise: Array) -> Array:
    """log of r^alpha p^(1 - alpha) + (1 - r)^alpha (1 - p)^(1 - alpha) at r = p + rise."""
    d, e = rise / p, rise / (1 - p)
    up, down = np.log1p(d), _log1m(e)
    excess = p * _power_excess(alpha, d, up) + (1 - p) * _power_excess(alpha, -e, down)
    far = alpha * up > FAR_EXPONENT  # where the moment may overflow, and nothing cancels
    log_far = np.logaddexp(alpha * up + np.log(p), alpha * down + np.log1p(-p))
    return np.where(far, np.maximum(log_far, 0.0), np.log1p(np.where(far, 0.0, excess)))


def _power_excess(alpha: Array, d: Array, log1p_d: Array) -> Array:
    """(1 + d)^alpha - 1 - alpha d, never negative; by its series where that would cancel."""
    small = np.abs(alpha * d) < SERIES_BELOW
    s = np.where(small, d, 0.0)
    term = alpha * (alpha - 1) / 2 * s * s
    series = term
    for n in range(3, RENYI_SERIES_DEGREE + 1):
        term = term * (alpha - n + 1) / n * s
        series = series + term
    exponent = np.minimum(alpha * log1p_d, 40.0)  # larger ones are not used
    return np.where(small, series, np.expm1(exponent) - alpha * d)


def _log1m(x: Array) -> Array:
    """log(1 - x) for x up to 1, kept finite (E2)."""
    return np.log1p(-np.minimum(x, 1 - EPS / 2))  # (E2)


# The divergences of a run.


def kl_upper(parts: Sequence[Part], priors: Array, *, accuracy: float) -> Array:
    """Upper bounds on the posterior from each prior through the KL divergence, as in the paper."""
    hidden, tables, rounds = _tables(parts, priors, accuracy)
    if not hidden:
        return np.ones_like(priors)
    divergence = sum(times * _kl_round(cells) for cells, times in zip(tables, rounds, strict=True))
    divergence *= 1 + EPS * (len(hidden) - 1)  # of adding terms that are not negative (E37)
    return with_revealed(parts, hidden, _add_conceded(tables, rounds, kl_posterior(divergence, priors)))


def renyi_upper(parts: Sequence[Part], priors: Array, *, accuracy: float) -> Array:
    """Upper bounds on the posterior from each prior through the Renyi divergence of the best order."""
    hidden, tables, rounds = _tables(parts, priors, accuracy)
    best = np.ones_like(priors)
    if not hidden:
        return best
    orders = ORDERS
    for _ in range(ORDER_REFINEMENTS):  # each order gives a valid bound; search around the best ones so far
        log_moment = np.zeros(orders.size)
        for cells, times in zip(tables, rounds, strict=True):
            log_moment += times * log_moments_of_round(cells, orders)
        log_moment *= 1 + EPS * (len(hidden) - 1)  # (E37)
        bounds = renyi_posterior(log_moment[:, None], priors[None, :], orders[:, None])
        best = np.minimum(best, bounds.min(axis=0))
        orders = _around(orders, np.unique(bounds.argmin(axis=0)))
    return with_revealed(parts, hidden, _add_conceded(tables, rounds, best))


def _tables(parts: Sequence[Part], priors: Array, accuracy: float) -> tuple[list[Part], list[Round], list[int]]:
    """The parts in which no single draw reveals the secret, a table of one round for each, and their rounds."""
    hidden, end = hidden_parts(parts, float(priors.min()))
    rounds = [part.rounds for part in hidden]
    tables = [discretise(part.law, part.sigma, end=end, cells=_cells(accuracy)) for part in hidden]
    return hidden, tables, rounds


def _cells(accuracy: float) -> int:
    """Number of cells: the excess of a divergence is of second order in the width of a cell."""
    return min(MAX_CELLS, max(CELLS, int(CELLS * math.sqrt(1e-3 / accuracy))))


def _around(orders: Array, chosen: NDArray[np.int64]) -> Array:
    """Orders between the neighbours of the chosen ones."""
    below, above = orders[np.maximum(chosen - 1, 0)] - 1, orders[np.minimum(chosen + 1, orders.size - 1)] - 1
    share = np.linspace(0.0, 1.0, 9)
    finer: Array = 1 + below[:, None] ** (1 - share) * above[:, None] ** share
    return np.unique(finer)


def excess_entropy(value: Array) -> Array:
    """R log R - R + 1 where log R is the value: never negative, with all digits also near R = 1 (E15)."""
    near = np.abs(value) < 1
    v, far = np.where(near, value, 0.0), np.where(near, 1.0, value)
    with np.errstate(invalid="ignore"):
        outside = np.where(np.isneginf(far), 1.0, np.exp(far) * (far - 1) + 1)
    return np.where(near, v * v * np.polynomial.polynomial.polyval(v, KL_SERIES), outside)


def _kl_round(cells: Round) -> float:
    """KL of one round given that it stays inside the table, rounded up."""
    q, value = spread_from_one(cells)
    # The rest of E_Q[R log R] is the P-mass less the Q-mass of the table: at most the Q-mass beyond it (E15).
    total = float(q @ excess_entropy(value)) * (1 + cells.q_error + DIVERGENCE_ROUNDING) + cells.beyond
    stays = 1 - cells.conceded
    return total / stays - float(np.log1p(-cells.conceded)) if stays > 0 else np.inf


def log_moments_of_round(cells: Round, orders: Array) -> Array:
    """log E_Q[R^order] of one round given that it stays inside the table, rounded up, for each order."""
    if cells.conceded >= 1:
        return np.full(orders.size, np.inf)
    strength = float(np.abs(cells.log_ratio_U).max())
    moments = [
        _weak_log_moment(cells, order) if order * strength < MAX_WEAK_EXPONENT else _log_moment(cells, order)
        for order in orders.tolist()
    ]
    return np.array(moments) - orders * np.log1p(-cells.conceded)


def _weak_log_moment(cells: Round, order: float) -> float:
    """Where all ratios are close to 1: through R^order - 1 - order (R - 1), small and never negative (E16)."""
    q, v = spread_from_one(cells)
    c2, c3, c4 = ((order**n - order) / math.factorial(n) for n in (2, 3, 4))
    fifth = order**5 / WEAK_REMAINDER * np.abs(v) ** 5  # at least all further terms together
    excess = v * v * (c2 + v * (c3 + v * c4)) + fifth
    excess = np.where(v < 0, np.minimum(excess, order - 1), excess)  # it decreases from order - 1 at -inf to 0 at v = 0
    # The rest of E_Q[R^order] - 1 is order - 1 times the Q-mass beyond the table, at most.
    return math.log1p(float(q @ excess) * (1 + cells.q_error + DIVERGENCE_ROUNDING) + order * cells.beyond)


def _log_moment(cells: Round, order: float) -> float:
    q, value = spread(cells)
    keep = q > 0
    weighted = order * value[keep] + np.log(q[keep])
    peak = float(weighted.max())
    rounding = EPS * (64 + 2 * float((np.abs(order * value[keep]) + np.abs(np.log(q[keep]))).max()))  # (E17)
    return peak + math.log(float(np.exp(weighted - peak).sum())) + cells.q_error + rounding


def _add_conceded(tables: Sequence[Round], rounds: Sequence[int], inside: Array) -> Array:
    conceded = conceded_over(tables, rounds)
    return np.minimum(1.0, (conceded + (1 - conceded) * inside) * (1 + 4 * EPS))  # roundings of this line (E17)

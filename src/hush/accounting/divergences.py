"""KL and Renyi divergence of a whole run, and the posteriors they allow.

Both are sums over the atoms of `spread`, which dominate the round, so they err upwards by construction; the step is
fine enough that they do so by less than 1e-3. Rounds add up: T rounds have T times the KL, and T times the
log-moment, of one. What lies beyond the table is granted to the adversary, and the divergences are those of the rest,
conditioned on staying inside (docs/proofs, "Conceding a tail").
"""

import math

import numpy as np
from numpy.typing import NDArray

from hush.accounting.bounds import kl_posterior, renyi_posterior
from hush.accounting.counts import EPS, Array, CountLaw
from hush.accounting.one_round import Round, discretise, gives_away, right_end, spread, spread_from_one

CELLS, MOST_CELLS = 2048, 1 << 15  # the former at an accuracy of 1e-3
KL_SERIES = [(n - 1) / math.factorial(n) for n in range(2, 23)]  # of (R log R - R + 1) / v², R = e^v; the rest: 1e-21
ORDERS: Array = 1.0 + np.geomspace(1e-3, 1e4, 57)  # where the search for the best order begins


def kl_upper(law: CountLaw, sigma: float, rounds: int, priors: Array, *, accuracy: float) -> Array:
    """Upper bounds on the posterior from each prior through the KL divergence, as in the paper."""
    end = right_end(float(priors.min()), rounds)
    if gives_away(law, sigma, end=end):
        return np.ones_like(priors)
    cells = discretise(law, sigma, end=end, cells=_cells(accuracy))
    return _add_conceded(cells, rounds, kl_posterior(rounds * _kl_round(cells), priors))


def renyi_upper(law: CountLaw, sigma: float, rounds: int, priors: Array, *, accuracy: float) -> Array:
    """Upper bounds on the posterior from each prior through the Renyi divergence of the best order."""
    end = right_end(float(priors.min()), rounds)
    best = np.ones_like(priors)
    if gives_away(law, sigma, end=end):
        return best
    cells = discretise(law, sigma, end=end, cells=_cells(accuracy))
    orders = ORDERS
    for _ in range(3):  # each order gives a valid bound; search around the best ones so far
        log_moment = rounds * _log_moments(cells, orders)
        found = renyi_posterior(log_moment[:, None], priors[None, :], orders[:, None])
        best = np.minimum(best, found.min(axis=0))
        orders = _around(orders, np.unique(found.argmin(axis=0)))
    return _add_conceded(cells, rounds, best)


def _cells(accuracy: float) -> int:
    """The excess of a divergence is of second order in the width of a cell."""
    return min(MOST_CELLS, max(CELLS, int(CELLS * math.sqrt(1e-3 / accuracy))))


def _around(orders: Array, chosen: NDArray[np.int64]) -> Array:
    """Orders between the neighbours of the chosen ones."""
    below, above = orders[np.maximum(chosen - 1, 0)] - 1, orders[np.minimum(chosen + 1, orders.size - 1)] - 1
    share = np.linspace(0.0, 1.0, 9)
    finer: Array = 1 + below[:, None] ** (1 - share) * above[:, None] ** share
    return np.unique(finer)


def excess_entropy(value: Array) -> Array:
    """R log R - R + 1 where log R is the value: never negative, to 64 units in the last place also near R = 1."""
    near = np.abs(value) < 1
    v, far = np.where(near, value, 0.0), np.where(near, 1.0, value)
    with np.errstate(invalid="ignore"):
        outside = np.where(np.isneginf(far), 1.0, np.exp(far) * (far - 1) + 1)
    return np.where(near, v * v * np.polynomial.polynomial.polyval(v, KL_SERIES), outside)


def _kl_round(cells: Round) -> float:
    """KL of one round given that it stays inside the table, rounded up."""
    q, value = spread_from_one(cells)
    # The rest of E_Q[R log R] is P- less Q-mass of the table: at most the Q-mass beyond it.
    total = float(q @ excess_entropy(value)) * (1 + cells.q_error + 64 * EPS) + cells.beyond
    stays = 1 - cells.conceded
    return total / stays - float(np.log1p(-cells.conceded)) if stays > 0 else np.inf


def _log_moments(cells: Round, orders: Array) -> Array:
    """log E_Q[R^order] of one round given that it stays inside the table, rounded up, for each order."""
    if cells.conceded >= 1:
        return np.full(orders.size, np.inf)
    strength = float(np.abs(cells.log_ratio_U).max())
    found = [_weak_log_moment(cells, a) if a * strength < 0.01 else _log_moment(cells, a) for a in orders.tolist()]
    return np.array(found) - orders * np.log1p(-cells.conceded)


def _weak_log_moment(cells: Round, order: float) -> float:
    """Where all ratios are close to 1: through R^order - 1 - order (R - 1), small and never negative."""
    q, v = spread_from_one(cells)
    c2, c3, c4 = ((order**n - order) / math.factorial(n) for n in (2, 3, 4))
    fifth = order**5 / 100 * np.abs(v) ** 5  # more than all further terms together, for order * |v| < 0.01
    excess = v * v * (c2 + v * (c3 + v * c4)) + fifth
    excess = np.where(v < 0, np.minimum(excess, order - 1), excess)  # it falls to 0 at v = 0, from order - 1 at -inf
    # The rest of E_Q[R^order] - 1 is order - 1 times the Q-mass beyond the table, at most.
    return math.log1p(float(q @ excess) * (1 + cells.q_error + 64 * EPS) + order * cells.beyond)


def _log_moment(cells: Round, order: float) -> float:
    q, value = spread(cells)
    keep = q > 0
    weighted = order * value[keep] + np.log(q[keep])
    peak = float(weighted.max())
    rounding = EPS * (64 + 2 * float((np.abs(order * value[keep]) + np.abs(np.log(q[keep]))).max()))
    return peak + math.log(float(np.exp(weighted - peak).sum())) + cells.q_error + rounding


def _add_conceded(cells: Round, rounds: int, inside: Array) -> Array:
    conceded = cells.conceded_over(rounds)
    return np.minimum(1.0, conceded + (1 - conceded) * inside)

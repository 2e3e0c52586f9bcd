"""KL and Renyi divergence of a whole run, and the posteriors they allow.

Both are sums over the atoms of `spread`, which dominate the round, so they err upwards by construction; the step is
fine enough that they do so by less than 1e-3. Rounds add up: T rounds have T times the KL, and T times the
log-moment, of one. What lies beyond the table is granted to the adversary, and the divergences are those of the rest,
conditioned on staying inside (docs/proofs, "Conceding a tail").
"""

import numpy as np

from hush.accounting.bounds import kl_posterior, renyi_posterior
from hush.accounting.counts import EPS, Array, CountLaw
from hush.accounting.one_round import Round, discretise, right_end, spread

CELLS = 2048
ORDERS = 1.0 + np.geomspace(1e-3, 1e4, 57)  # where the search for the best order begins


def kl_upper(law: CountLaw, sigma: float, rounds: int, priors: Array) -> Array:
    """Upper bounds on the posterior from each prior through the KL divergence, as in the paper."""
    cells = _cells(law, sigma, rounds, priors)
    divergence = rounds * _kl_round(cells)
    return _add_conceded(cells, rounds, kl_posterior(divergence, priors))


def renyi_upper(law: CountLaw, sigma: float, rounds: int, priors: Array) -> Array:
    """Upper bounds on the posterior from each prior through the Renyi divergence of the best order."""
    cells = _cells(law, sigma, rounds, priors)
    best = np.ones_like(priors)
    orders = ORDERS
    for _ in range(3):  # each order gives a valid bound; search around the best ones so far
        log_moment = rounds * _log_moments(cells, orders)
        found = renyi_posterior(log_moment[:, None], priors[None, :], orders[:, None])
        best = np.minimum(best, found.min(axis=0))
        chosen = np.unique(found.argmin(axis=0))
        edges = np.stack([orders[np.maximum(chosen - 1, 0)], orders[np.minimum(chosen + 1, orders.size - 1)]])
        orders = 1 + np.unique(np.geomspace(edges[0] - 1, edges[1] - 1, 9))
    return _add_conceded(cells, rounds, best)


def _cells(law: CountLaw, sigma: float, rounds: int, priors: Array) -> Round:
    return discretise(law, sigma, end=right_end(float(priors.min()), rounds), cells=CELLS)


def _kl_round(cells: Round) -> float:
    """KL of one round given that it stays inside the table, rounded up."""
    q, value = spread(cells, away=True)
    small = np.abs(value) < 1e-3
    s = np.where(small, value, 0.0)
    series = s * s * (1 / 2 + s * (1 / 3 + s * (1 / 8 + s * (1 / 30 + s / 144))))
    v = np.where(small, 1.0, value)
    excess = np.where(small, series, np.exp(v) * (v - 1) + 1)  # R log R - R + 1, never negative
    total = float(q @ excess) * (1 + cells.q_error + 64 * EPS) + _imbalance(cells)
    stays = 1 - cells.conceded
    return total / stays - float(np.log1p(-cells.conceded)) if stays > 0 else np.inf


def _log_moments(cells: Round, orders: Array) -> Array:
    """log E_Q[R^order] of one round given that it stays inside the table, rounded up, for each order."""
    q, value = spread(cells, away=True)
    keep = q > 0
    log_q, value = np.log(q[keep]), value[keep]
    result = np.empty(orders.size)
    for position, order in enumerate(orders):
        exponent = order * value
        if float(exponent.max()) < 1e-2:  # weak: sum R^order - 1 - order (R - 1), which is small and never negative
            excess = np.expm1(exponent) - order * np.expm1(value)
            tiny = np.abs(exponent) < 1e-4
            excess[tiny] = value[tiny] ** 2 * (
                order * (order - 1) / 2 + value[tiny] * ((order**3 - order) / 6 + value[tiny] * (order**4 - order) / 24)
            )
            total = float(np.exp(log_q) @ excess) * (1 + cells.q_error + 64 * EPS)
            log_moment = float(np.log1p(total + order * _imbalance(cells)))
        else:
            weighted = exponent + log_q
            peak = float(weighted.max())
            log_moment = peak + float(np.log(np.exp(weighted - peak).sum()))
            log_moment += cells.q_error + EPS * (64 + 2 * float(np.abs(weighted).max()))
        result[position] = log_moment - order * np.log1p(-cells.conceded) if cells.conceded < 1 else np.inf
    return result


def _imbalance(cells: Round) -> float:
    """How much more Q-mass than P-mass the conceded ends may hold: what E_Q[R - 1] over the table can exceed 0 by."""
    return cells.beyond + cells.q_left


def _add_conceded(cells: Round, rounds: int, inside: Array) -> Array:
    conceded = -np.expm1(rounds * np.log1p(-cells.conceded)) if cells.conceded < 1 else 1.0
    return np.minimum(1.0, conceded + (1 - conceded) * inside)

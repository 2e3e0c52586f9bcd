"""The Renyi filter: releases whose settings may depend on what earlier models showed.

Each promised point of a secret gets an order at its first release, by a fixed rule, and a budget: the largest
log-moment of this order that keeps the promise. Every release spends its own; what all have spent stays within the
budget (docs/proofs.md, "Filter"). The order stays, whatever happens: with an order chosen afterwards the sum is no
bound.

Without conceding a tail, the improbable event that a round draws all of a secret's examples could decide a moment. So
each release may concede a probability that is fixed with the promise, at most MAX_RELEASES times in all, and the whole
is set aside from the start. Labels (E2), (E14), (E30) and (E38) refer to docs/proofs.md.

Legend: S secrets, Q promised points of a secret, P points.
"""

from typing import SupportsIndex

import numpy as np
from numpy.typing import ArrayLike
from scipy.special import ndtr

from hush.accounting.accountant import (
    COARSE_GROUPS,
    FINEST_WIDTH,
    MIN_COUNT_TAIL,
    Crowd,
    Evaluator,
    Group,
    Indices,
    ValueAt,
    Workers,
    rounded_up,
)
from hush.accounting.arguments import checked_noise, checked_rates, checked_rounds
from hush.accounting.calibration import MAX_COUNT, MIN_COUNT, Curves, Search, checked_promises
from hush.accounting.counts import EPS, CountLaw, poisson_law
from hush.accounting.divergences import (
    CELLS,
    RENYI_INFLATION,
    log_moment_of_bernoullis,
    log_moments_of_round,
    renyi_posterior,
)
from hush.accounting.one_round import MAX_RIGHT_END, MIN_RIGHT_END, conceded_over, discretise, gives_away
from hush.accounting.releases import MAX_RELEASES
from hush.arrays import Array, Progress
from hush.errors import InvalidInput, Setting
from hush.incidence import Incidence
from hush.numbers import checked_number

__all__ = [
    "calibrate_moments",
    "choose_orders",
    "conceded_allowance",
    "filter_posterior",
    "log_moments",
    "moment_budget",
    "moment_capacity",
]

RESERVED_SHARE = 1e-3  # of the way from prior to ceiling, set aside for what all releases concede; tightness only
BUDGET_STEP = 1e-9  # relative, by which a budget is lowered where rounding breaks its promise; tightness only
TAIL_SHARE = 0.1  # of what a release may concede, for the tail of the counts; tightness only
END_STEPS = 40  # of the bisection for the end of the table; tightness only
END_MARGIN = 1e-6  # of the conceded probability, left for its rounding; tightness only
LEAST_MOMENT = 1e-300  # of a secret that is drawn: 0 means that it never is (E38)
ORDERS: Array = 1.0 + np.geomspace(2e-3, 1e3, 264)  # among which `choose_orders` chooses, 5 % apart; tightness only
CHUNK_POINTS = 1000  # for which orders are compared at a time; memory only


def conceded_allowance(prior: ArrayLike, ceiling: ArrayLike) -> Array:
    """The probability that a single release may concede at each promised point: fixed with the promise.

    >>> f"{float(conceded_allowance(1e-10, 1e-3)):.1e}"
    '1.0e-09'
    """
    return _reserve(prior, ceiling) / (MAX_RELEASES * (1 + 4 * EPS))  # rounded down (E38)


def _reserve(prior: ArrayLike, ceiling: ArrayLike) -> Array:
    p, r = np.asarray(prior, dtype=np.float64), np.asarray(ceiling, dtype=np.float64)
    return RESERVED_SHARE * (r - p)


def moment_budget(prior: ArrayLike, ceiling: ArrayLike, order: ArrayLike) -> Array:
    """Largest sum of log-moments of this order, over all releases, that keeps the promise. Rounded down.

    Guarantee: `filter_posterior` of anything up to it is at most the ceiling.

    >>> round(float(moment_budget(1e-10, 1e-3, 2.25)), 3)
    13.238
    """
    p, r, alpha = np.broadcast_arrays(*(np.asarray(x, dtype=np.float64) for x in (prior, ceiling, order)))
    budget = np.maximum(log_moment_of_bernoullis(alpha, p, r - p - _reserve(p, r)) / RENYI_INFLATION, 0.0)
    for _ in range(4):  # the posterior is rounded up: lower the budget until the promise is kept as it will be checked
        broken = ~(filter_posterior(budget, p, r, alpha) <= r)
        if not broken.any():
            break
        budget = np.where(broken, budget * (1 - BUDGET_STEP), budget)
    return np.where(filter_posterior(budget, p, r, alpha) <= r, budget, 0.0)


def filter_posterior(spent: ArrayLike, prior: ArrayLike, ceiling: ArrayLike, order: ArrayLike) -> Array:
    """Posterior after releases that have spent these log-moments: what the filter proves. Rounded up.

    The ceiling enters through what was set aside for conceding. Where nothing was spent the prior stands.

    >>> float(filter_posterior(0.0, 1e-10, 1e-3, 2.0))
    1e-10
    """
    s, p, r, alpha = np.broadcast_arrays(*(np.asarray(x, dtype=np.float64) for x in (spent, prior, ceiling, order)))
    inside = renyi_posterior(s, p, alpha)
    bound = np.minimum(1.0, (inside + _reserve(p, r)) * (1 + 4 * EPS))  # (E38)
    return np.where(s == 0.0, p, bound)


def choose_orders(prior: ArrayLike, ceiling: ArrayLike, *, intensity: ArrayLike, rounds: SupportsIndex) -> Array:
    """For each promised point the order whose budget needs the least noise: a deterministic rule, used once.

    intensity: Poisson intensity of each secret's count in a round; rounds: of all releases together, as they are
    expected. A row for each secret. Any order is safe, as long as it is chosen before the first release and kept.

    >>> choose_orders(1e-10, 1e-3, intensity=0.12, rounds=2000).round(2).tolist()
    [[2.02]]
    """
    count = checked_rounds(rounds)
    prior_SQ, ceiling_SQ = checked_promises(prior, ceiling)
    mean_S = np.broadcast_to(np.asarray(intensity, dtype=np.float64), (len(prior_SQ),))
    if not np.all((mean_S >= 0) & (mean_S <= MAX_COUNT)):
        raise InvalidInput(Setting("intensity"), f" must be numbers from 0 to {MAX_COUNT:g}", setting="intensity")
    mean_SQ = np.broadcast_to(mean_S[:, None], prior_SQ.shape)
    points, where = np.unique(
        np.stack([prior_SQ.ravel(), ceiling_SQ.ravel(), mean_SQ.ravel()]), axis=1, return_inverse=True
    )
    order_P = np.ones(points.shape[1])
    for begin in range(0, order_P.size, CHUNK_POINTS):
        part = points[:, begin : begin + CHUNK_POINTS]
        order_P[begin : begin + CHUNK_POINTS] = _best_orders(part[0], part[1], part[2], count)
    return order_P[where.ravel()].reshape(prior_SQ.shape)


def _best_orders(prior_P: Array, ceiling_P: Array, mean_P: Array, rounds: int) -> Array:
    """The order with the least noise in the approximation of many rounds: a round's ratio is exp of a normal variable.

    There E[R^a] - 1 is about E[exp(a (a - 1) K K' / (2 sigma^2)) - 1] with independent K, K' of variance and mean s.
    """
    order = ORDERS[:, None]
    budget = moment_budget(prior_P, ceiling_P, order) / rounds
    budget = np.maximum(budget, LEAST_MOMENT)
    s = np.maximum(mean_P, MIN_COUNT)
    # log(1 + s^2 (exp(x) - 1)) = budget at x = a (a - 1) / (2 sigma^2): one draw in both copies.
    x = np.log1p(np.expm1(np.minimum(budget, 700.0)) / (s * s))
    need = order * (order - 1) / np.maximum(x, LEAST_MOMENT)
    return ORDERS[need.argmin(axis=0)]


# What a release spends.


def log_moments(
    incidence: Incidence,
    *,
    rates: ArrayLike,
    noise_multiplier: float,
    rounds: SupportsIndex,
    order: ArrayLike,
    conceded: ArrayLike,
    below: ArrayLike | None = None,
    progress: Progress | None = None,
) -> Array:
    """What one release spends: its log-moments at each secret's orders, given that nothing is conceded. S x Q.

    order and conceded (`conceded_allowance`) have a row for each secret. 0 exactly where the secret is never drawn, and
    infinite where the noise is too small for any moment.

    Guarantee: every entry is an upper bound, and no release concedes more than allowed. Secrets drawn about equally
    often share a bound; where it is not below these numbers, a row for each secret, they are bounded again more finely.

    >>> incidence = Incidence.from_pairs([0, 1, 1], [0, 0, 1], num_examples=3, num_secrets=3)
    >>> log_moments(
    ...     incidence, rates=0.1, noise_multiplier=3.0, rounds=100, order=[[4.0]] * 3, conceded=[[1e-9]] * 3
    ... ).round(4).tolist()
    [[2.9825], [0.7204], [0.0]]
    """
    rate_N = checked_rates(rates, length=incidence.num_examples)
    sigma, count = checked_noise(noise_multiplier), checked_rounds(rounds)
    order_SQ, conceded_SQ = _rows(order, conceded, incidence.num_secrets)
    crowd = _crowd(incidence, rate_N, conceded_SQ, count)
    moment_SQ = _free(crowd, order_SQ)
    drawn = np.flatnonzero(crowd.mean_S > 0)
    if drawn.size and sigma > 0:
        evaluator = Evaluator(value_at=_moments_at(order_SQ, conceded_SQ, count), workers=Workers(progress=progress))
        width = crowd.coarse_width(drawn, COARSE_GROUPS)
        while drawn.size:
            groups = list(crowd.grouped(drawn, width))
            for group, bounds in zip(groups, evaluator.evaluate(groups, sigma), strict=True):
                moment_SQ[group.member] = bounds
            if below is None or width <= FINEST_WIDTH:
                break
            over = np.flatnonzero((moment_SQ > np.asarray(below)).any(axis=1))
            drawn, width = np.intersect1d(drawn, over), FINEST_WIDTH
    return moment_SQ


def calibrate_moments(
    incidence: Incidence,
    *,
    order: ArrayLike,
    conceded: ArrayLike,
    budget: ArrayLike,
    rates: ArrayLike,
    rounds: SupportsIndex,
    progress: Progress | None = None,
) -> tuple[float, Array, Indices]:
    """The least noise at which one release spends at most this budget, what it spends, and the secrets that bind.

    order, conceded and budget have a row for each secret.

    Guarantee: as of `calibrate`: the noise returned was proven, and every log-moment is an upper bound.

    >>> incidence = Incidence.from_pairs([0, 1, 1], [0, 0, 1], num_examples=3, num_secrets=2)
    >>> noise, spent, binding = calibrate_moments(
    ...     incidence, order=[[4.0]] * 2, conceded=[[1e-9]] * 2, budget=[[1.0]] * 2, rates=0.1, rounds=100
    ... )
    >>> round(noise, 2), bool((spent <= 1.0).all()), binding.tolist()
    (4.99, True, [0])
    """
    rate_N = checked_rates(rates, length=incidence.num_examples)
    count = checked_rounds(rounds)
    order_SQ, conceded_SQ = _rows(order, conceded, incidence.num_secrets)
    budget_SQ = np.asarray(budget, dtype=np.float64)
    if budget_SQ.shape != order_SQ.shape:
        raise InvalidInput(
            Setting("budget"),
            f" has shape {budget_SQ.shape}; pass {order_SQ.shape}, as of the orders",
            setting="budget",
        )
    crowd = _crowd(incidence, rate_N, conceded_SQ, count)
    search = Search(
        crowd=crowd,
        evaluator=Evaluator(value_at=_moments_at(order_SQ, conceded_SQ, count), workers=Workers(progress=progress)),
        free_SQ=_free(crowd, order_SQ),
        limit_SQ=budget_SQ,
        slack_S=np.sqrt(np.maximum(budget_SQ, 0.0)).min(axis=1),
        name="its Renyi order",
        tight="nothing left of its budget",
    )
    return search.solve()


def _rows(order: ArrayLike, conceded: ArrayLike, num_secrets: int) -> tuple[Array, Array]:
    order_SQ, conceded_SQ = (np.asarray(x, dtype=np.float64) for x in (order, conceded))
    for name, rows in (("order", order_SQ), ("conceded", conceded_SQ)):
        if rows.ndim != 2 or len(rows) != num_secrets or rows.shape != order_SQ.shape:
            raise InvalidInput(
                Setting(name), f" has shape {rows.shape}; pass a row for each of {num_secrets} secrets, equally long",
                setting=name,
            )  # fmt: skip
    if not np.all((order_SQ >= ORDERS[0]) & (order_SQ <= ORDERS[-1])):
        raise InvalidInput(Setting("order"), f" must lie in [{ORDERS[0]:g}, {ORDERS[-1]:g}]", setting="order")
    if not np.all((conceded_SQ >= 0) & (conceded_SQ < 1)):
        raise InvalidInput(Setting("conceded"), " must be probabilities", setting="conceded")
    return order_SQ, conceded_SQ


def _crowd(incidence: Incidence, rate_N: Array, conceded_SQ: Array, rounds: int) -> Crowd:
    return Crowd(incidence, rate_N, tail=_count_tail(conceded_SQ, rounds))


def _count_tail(conceded: Array, rounds: int) -> float:
    return max(TAIL_SHARE * float(conceded.min(initial=0.5)) / rounds, MIN_COUNT_TAIL)


def _free(crowd: Crowd, order_SQ: Array) -> Array:
    """Moments without noise: 0 where the secret is never drawn."""
    return np.where(crowd.mean_S[:, None] > 0, np.inf, 0.0) * np.ones_like(order_SQ)


def _moments_at(order_SQ: Array, conceded_SQ: Array, rounds: int) -> ValueAt:
    def at(group: Group, sigma: float) -> Array:
        order_mq = order_SQ[group.member]
        distinct, where = rounded_up(order_mq)  # a log-moment grows with its order (E38)
        least = float(conceded_SQ[group.member].min())
        return _run_moments(group.law, sigma, rounds, distinct, least)[where].reshape(order_mq.shape)

    return at


def _run_moments(law: CountLaw, sigma: float, rounds: int, orders: Array, conceded: float) -> Array:
    """Upper bounds on the log-moments of all rounds, given that none is conceded; infinite if too much would be."""
    end = _end(law, sigma, rounds, conceded)
    if end is None or gives_away(law, sigma, end=end):
        return np.full(orders.size, np.inf)
    cells = discretise(law, sigma, end=end, cells=CELLS)
    if not conceded_over([cells], [rounds]) <= conceded:
        return np.full(orders.size, np.inf)
    moments = rounds * log_moments_of_round(cells, orders) * (1 + 4 * EPS)  # (E38)
    return np.maximum(moments, LEAST_MOMENT)


def _end(law: CountLaw, sigma: float, rounds: int, conceded: float) -> float | None:
    """The nearest end of the table beyond which all rounds together concede at most this; None if there is none."""
    allowed = conceded / rounds * (1 - END_MARGIN)

    def beyond(end: float) -> float:
        return law.certain + float(law.mass @ ndtr(law.counts / sigma - end))

    low, high = MIN_RIGHT_END, MAX_RIGHT_END
    if sigma <= 0 or not beyond(high) <= allowed:
        return None
    for _ in range(END_STEPS):
        middle = 0.5 * (low + high)
        low, high = (low, middle) if beyond(middle) <= allowed else (middle, high)
    return high


def moment_capacity(
    order: ArrayLike,
    budget: ArrayLike,
    *,
    conceded: ArrayLike,
    noise_multiplier: float,
    rounds: SupportsIndex,
    most: float = MAX_COUNT,
) -> Array:
    """Largest Poisson intensity of each secret's count with which one release spends at most this budget.

    order, budget and conceded have a row for each secret.

    Guarantee: as of `capacity`: each answer was proven. 0 where none is.

    >>> moment_capacity([[2.25]], [[4.0]], conceded=[[1e-9]], noise_multiplier=2.0, rounds=2000).round(3).tolist()
    [0.07]
    """
    sigma, count = checked_noise(noise_multiplier), checked_rounds(rounds)
    order_SQ, conceded_SQ = _rows(order, conceded, len(np.asarray(order)))
    budget_SQ = np.broadcast_to(np.asarray(budget, dtype=np.float64), order_SQ.shape)
    limit = checked_number("most", most)
    if not MIN_COUNT < limit <= MAX_COUNT:
        raise InvalidInput(
            f"pass an expected count above {MIN_COUNT} and at most {MAX_COUNT:g}", setting="most", value=most
        )
    points, where = np.unique(
        np.stack([order_SQ.ravel(), budget_SQ.ravel(), conceded_SQ.ravel()]), axis=1, return_inverse=True
    )

    def value_at(mean: float, member: Indices) -> Array:
        distinct, which = rounded_up(points[0][member])
        least = points[2][member].min()
        law = poisson_law(mean, tail=_count_tail(np.array([least]), count))
        return _run_moments(law, sigma, count, distinct, float(least))[which]

    curves = Curves(value_at=value_at, most=limit)
    able = np.flatnonzero(points[1] > 0) if sigma > 0 else np.empty(0, dtype=np.int64)
    return curves.largest(points[1], able)[where.ravel()].reshape(order_SQ.shape).min(axis=1)

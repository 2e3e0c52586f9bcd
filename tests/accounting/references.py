"""Second routes to what the accountant computes. They share no code with it: closed forms, direct sums, simulation.

The pair is P = law of N(K, sigma^2) against Q = N(0, sigma^2), T times; B(p) = max{P(E) : Q(E) <= p}. A test anyone
could run is a lower bound on B; a law that dominates is an upper bound. Tests get this module as the fixture
`reference`; benchmarks/soundness_sweep.py loads it by its path.
"""

import itertools
import math
from typing import Any, NamedTuple

import mpmath
import numpy as np
from numpy.typing import NDArray
from scipy import fft, integrate, special, stats

Array = NDArray[np.float64]


# --- counts -----------------------------------------------------------------------------------------------------


def count_masses(rates: Array) -> Array:
    """Law of the number of draws, one draw at a time; scipy's binomial where all rates are equal."""
    rates = np.asarray(rates, dtype=np.float64)
    if rates.size and np.all(rates == rates[0]):
        return np.asarray(stats.binom.pmf(np.arange(rates.size + 1), rates.size, rates[0]), dtype=np.float64)
    mass = np.ones(1)
    for rate in rates:
        longer = np.zeros(mass.size + 1)
        longer[:-1] = mass * (1 - rate)
        longer[1:] += mass * rate
        mass = longer
    return mass


def count_masses_by_enumeration(rates: Array) -> Array:
    """The same by going through all 2^n outcomes, each sum exact to one rounding; n <= 12."""
    terms: list[list[float]] = [[] for _ in range(len(rates) + 1)]
    for drawn in itertools.product((0, 1), repeat=len(rates)):
        terms[sum(drawn)].append(math.prod(r if d else 1 - r for r, d in zip(rates, drawn, strict=True)))
    return np.array([math.fsum(term) for term in terms])


def count_survival_in_high_precision(rates: Array, digits: int = 60) -> list[Any]:
    """P(K >= k) for k = 0..n with `digits` digits, by the recursion in mpmath."""
    with mpmath.workdps(digits):
        mass = [mpmath.mpf(1)]
        for rate in rates:
            r = mpmath.mpf(float(rate))
            mass = [
                (mass[k] * (1 - r) if k < len(mass) else 0) + (mass[k - 1] * r if k else 0)
                for k in range(len(mass) + 1)
            ]
        tail, total = [], mpmath.mpf(0)
        for m in reversed(mass):
            total += m
            tail.append(total)
        return tail[::-1]


# --- attacks with closed forms: lower bounds ---------------------------------------------------------------------


def gaussian_posterior(prior: float, *, shift: float, rounds: int) -> float:
    """B(p) = Phi(Phi^-1(p) + shift sqrt(T)) where every round adds the same shift / sigma."""
    return float(special.ndtr(special.ndtri(prior) + shift * math.sqrt(rounds)))


def one_round_posterior(rates: Array, sigma: float, prior: float) -> float:
    """B(p) of a single round: the likelihood ratio rises with the output, so the best test is a threshold on it."""
    mass = count_masses(rates)
    cut = -special.ndtri(prior)
    return float(mass @ special.ndtr(np.arange(mass.size) / sigma - cut))


def one_round_excess_in_high_precision(rates: Array, sigma: float, prior: float, claimed: float) -> float:
    """claimed / B(p) - 1 of a single round, with 60 digits: below 0 if an upper bound was claimed that is none."""
    with mpmath.workdps(60):
        survival = [*count_survival_in_high_precision(rates), mpmath.mpf(0)]
        p, z = mpmath.mpf(prior), mpmath.mpf(float(special.ndtri(prior)))
        for _ in range(6):  # Newton on the logarithm of the normal tail, from 16 digits
            z -= mpmath.log(mpmath.ncdf(z) / p) * mpmath.ncdf(z) / mpmath.npdf(z)
        terms = [
            (survival[k] - survival[k + 1]) * mpmath.ncdf(z + k / mpmath.mpf(sigma)) for k in range(len(rates) + 1)
        ]
        return float(mpmath.mpf(claimed) / mpmath.fsum(terms) - 1)


def two_round_posterior(rates: Array, sigma: float, prior: float) -> float:
    """B(p) of two rounds: the best test is a threshold on the sum of two losses, one integral over the first output.

    Given the first output, the second must pass a level of its own, whose tails are normal ones: digits are kept down
    to the smallest priors. The threshold is found by bisection; the integrals are sums over a fine grid.
    """
    mass = count_masses(rates)
    mean = np.arange(mass.size) / sigma
    u = np.linspace(-12.0, 38.0, 20_001)
    weight = (u[1] - u[0]) / math.sqrt(2 * math.pi)
    grid = np.linspace(-40.0, 80.0, 400_001)
    grid_loss = log_ratio(mass, sigma, grid * sigma)
    loss = log_ratio(mass, sigma, u * sigma)
    q = weight * np.exp(-0.5 * u * u)
    p = weight * np.exp(-0.5 * (u[:, None] - mean) ** 2) @ mass

    def tails(threshold: float) -> tuple[float, float]:
        level = np.interp(threshold - loss, grid_loss, grid, left=-40.0, right=80.0)
        return float(p @ (special.ndtr(mean - level[:, None]) @ mass)), float(q @ special.ndtr(-level))

    low, high = 2 * float(grid_loss[0]), 2 * float(grid_loss[-1])
    for _ in range(100):
        middle = 0.5 * (low + high)
        low, high = (middle, high) if tails(middle)[1] > prior else (low, middle)
    return tails(high)[0]


def exceedance_attack(mass: Array, sigma: float, rounds: int, prior: float) -> float:
    """Say yes when more rounds than a limit have an output above a level; the best level and limit, a coin between.

    The number of such rounds is binomial with and without the secret, so both error probabilities are closed forms.
    """
    level = np.concatenate([np.linspace(-3, 8, 111), np.linspace(8.25, 37.5, 118)])
    exceed_q = special.ndtr(-level)
    exceed_p = np.minimum(special.ndtr(np.arange(mass.size)[None, :] / sigma - level[:, None]) @ mass, 1.0)
    limit = _least_limit(exceed_q, rounds, prior)
    below = np.maximum(limit - 1, 0)  # "at least this many" has a false-alarm probability above the prior
    alarm, alarm_more = _tail_sides(below, rounds, exceed_q)[1], _tail_sides(limit, rounds, exceed_q)[1]
    hit, hit_more = _tail_sides(below, rounds, exceed_p)[0], _tail_sides(limit, rounds, exceed_p)[0]
    with np.errstate(divide="ignore", invalid="ignore"):
        coin = np.clip(np.where(alarm > alarm_more, (prior - alarm_more) / (alarm - alarm_more), 0.0), 0.0, 1.0)
    success = np.where(alarm_more <= prior, hit_more + coin * (hit - hit_more), 0.0)
    return float(max(prior, np.nanmax(success)))


def sum_attack(rates: Array, sigma: float, rounds: int, prior: float) -> float:
    """Say yes when the sum of all outputs is above a level.

    Without the secret the sum is normal; with it, normal around the total count. The total of any subset of the
    examples, each at the subset's least rate, is binomial and dominated by the total, so it may stand in for it.
    """
    ordered = np.sort(np.asarray(rates, dtype=np.float64))[::-1]
    ordered = ordered[ordered > 0]
    if ordered.size == 0:
        return prior
    sizes = np.unique(np.geomspace(1, ordered.size, 12).astype(int))
    if ordered[-1] == ordered[0]:
        sizes = sizes[-1:]
    cut, deviation = -special.ndtri(prior), sigma * math.sqrt(rounds)
    best = prior
    for size in sizes:
        draws, rate = int(size) * rounds, float(ordered[size - 1])
        spread = math.sqrt(draws * rate * (1 - rate))
        around = draws * rate + spread * np.linspace(-12, 12, 4001)
        near = np.arange(200) if draws * rate < 100 else np.empty(0)
        count = np.unique(np.clip(np.floor(np.concatenate([around, near])), 0, draws))
        at_least = np.append(_at_least(count.astype(np.int64), draws, rate), 0.0)
        at_least[at_least < 1e-200] = 0.0  # digits are lost there; what is left out counts for less
        success = special.ndtr(count / deviation - cut) @ (at_least[:-1] - at_least[1:])
        best = max(best, float(success))
    return best


def best_attack(rates: Array, sigma: float, rounds: int, prior: float) -> float:
    """The best of the attacks above: a lower bound on B(p)."""
    rates = np.asarray(rates, dtype=np.float64)
    found = [
        prior,
        exceedance_attack(count_masses(rates), sigma, rounds, prior),
        sum_attack(rates, sigma, rounds, prior),
    ]
    always = int(np.count_nonzero(rates == 1.0))
    if always:
        found.append(gaussian_posterior(prior, shift=always / sigma, rounds=rounds))
    return max(found)


def noiseless_posterior(rates: Array, rounds: int, prior: float) -> float:
    """1 - (1 - p) prod (1 - rate)^T: without noise the secret is known exactly when it was ever drawn."""
    with mpmath.workdps(40):
        idle = mpmath.fprod([1 - mpmath.mpf(float(rate)) for rate in rates])
        return float(1 - (1 - mpmath.mpf(prior)) * idle**rounds)


def _at_least(k: NDArray[np.int64], n: int, rate: Array | float) -> Array:
    """P(Bin(n, rate) >= k), elementwise, with relative accuracy down to about 1e-200."""
    return np.where(k <= 0, 1.0, special.betainc(np.maximum(k, 1), np.maximum(n - k + 1, 1), rate)) * (k <= n)


def _tail_sides(k: NDArray[np.int64], n: int, rate: Array) -> tuple[Array, Array]:
    """Lower and upper bounds on P(Bin(n, rate) >= k).

    The incomplete beta function loses digits to underflow far below 1e-200. There the tail is its first term times
    a sum of falling products: at least 200 of them, at most a geometric series. 1e-8 covers the rounding of gammaln.
    """
    found = _at_least(k, n, rate)
    inside = np.clip(k, 0, n)
    log_mass = special.gammaln(n + 1.0) - special.gammaln(inside + 1.0) - special.gammaln(n - inside + 1.0)
    log_mass += special.xlogy(inside, rate) + special.xlog1py(n - inside, -rate)
    odds = rate / np.maximum(1 - rate, 1e-300)
    first = np.minimum((n - inside) / (inside + 1) * odds, 1.0)
    term, total = np.ones_like(odds), np.ones_like(odds)
    for i in range(200):
        term = term * np.minimum(np.maximum(n - inside - i, 0) / (inside + 1 + i) * odds, 1.0)
        total += term
    mass = np.exp(log_mass)
    deep = (k > n * rate) & (k <= n) & (log_mass < -300.0)
    with np.errstate(divide="ignore", over="ignore"):
        low, high = mass * total * (1 - 1e-8), np.minimum(mass / np.maximum(1 - first, 1e-16) * (1 + 1e-8), 1.0)
    return np.where(deep, low, found), np.where(deep, high, found)


def _least_limit(rate: Array, rounds: int, prior: float) -> NDArray[np.int64]:
    """For each rate the least k with P(Bin(T, rate) >= k) <= prior, by bisection."""
    low, high = np.zeros(rate.shape, dtype=np.int64), np.full(rate.shape, rounds + 1, dtype=np.int64)
    while np.any(high - low > 1):
        middle = (low + high) // 2
        safe = _tail_sides(middle, rounds, rate)[1] <= prior
        low, high = np.where(safe, low, middle), np.where(safe, middle, high)
    return high


# --- direct convolution: a bracket -------------------------------------------------------------------------------


class Bracket(NamedTuple):
    """Two proven sides of one number."""

    low: float
    high: float


def log_ratio(mass: Array, sigma: float, x: Array) -> Array:
    """Privacy loss of one round at output x."""
    k = np.arange(mass.size)
    terms = (2 * k * np.asarray(x)[..., None] - k * k) / (2 * sigma * sigma)
    return special.logsumexp(terms, axis=-1, b=mass)


class Release(NamedTuple):
    """One training about the secret."""

    rates: Array
    sigma: float
    rounds: int


def direct_bracket(rates: Array, sigma: float, rounds: int, prior: float, *, step: float, reach: float) -> Bracket:
    """B(p) of one training, as below."""
    return joint_bracket([Release(rates, sigma, rounds)], prior, step=step, reach=reach)


def joint_bracket(releases: list[Release], prior: float, *, step: float, reach: float) -> Bracket:
    """B(p) of several trainings by direct convolution of the privacy loss of all rounds on a lattice, no FFT.

    Cells are the outputs whose loss lies between neighbouring lattice points, up to a loss of `reach`. Low: the test
    on the sum of cell numbers, which is a test. High: every loss rounded up, and beyond `reach` success granted, in
    B(p) <= t p + E_P[(1 - t / R)+].
    """
    total_p, total_q, total = np.ones(1), np.ones(1), np.ones(1)
    lowest, log_inside = 0, 0.0
    for rates, sigma, rounds in releases:
        mass = count_masses(rates)
        first = math.floor(float(log_ratio(mass, sigma, np.array([-50.0 * sigma]))[0]) / step)
        number = np.arange(first, math.ceil(reach / step) + 1)
        edge = _output_at_loss(mass, sigma, number[1:-1].astype(np.float64) * step)
        edge = np.concatenate([[-np.inf], edge, [np.inf]])
        p = _masses(edge, mass, sigma)
        q = _masses(edge, np.ones(1), sigma)
        total_p, total_q = _convolved(p, rounds, total_p), _convolved(q, rounds, total_q)
        # The rounds inside the lattice, losses rounded up, and the chance that any round leaves it.
        total = _convolved(p[:-1], rounds, total)
        lowest += rounds * (first + 1)
        log_inside += rounds * math.log1p(-p[-1])
    # Low: thresholds on the sum, the last cell (loss above `reach`) counting like any other.
    tail_p, tail_q = np.cumsum(total_p[::-1]), np.cumsum(total_q[::-1])
    low = float(np.interp(prior, np.append(0.0, tail_q), np.append(0.0, tail_p)))
    loss = (lowest + np.arange(total.size)) * step
    right = np.cumsum(total[::-1])[::-1]
    weighted = np.cumsum((total * np.exp(-loss))[::-1])[::-1]
    granted = np.exp(loss + math.log(prior)) + right - np.exp(loss) * weighted
    return Bracket(low, min(1.0, -math.expm1(log_inside) + float(granted.min())))


def _convolved(mass: Array, rounds: int, total: Array) -> Array:
    """The total convolved T times with the mass. Masses below 1e-150 are dropped: their products would be denormal.

    One factor is taken in pieces, short enough that the products of each are not spread over threads.
    """
    base = np.where(mass < 1e-150, 0.0, mass)
    for _ in range(rounds):
        longer = np.zeros(total.size + base.size - 1)
        for begin in range(0, base.size, 4096):
            piece = np.convolve(total, base[begin : begin + 4096])
            longer[begin : begin + piece.size] += piece
        total = np.where(longer < 1e-150, 0.0, longer)
    return total


def _output_at_loss(mass: Array, sigma: float, loss: Array) -> Array:
    """The output at which one round's privacy loss takes these values, by bisection."""
    low, high = np.full(loss.shape, -60.0 * sigma), np.full(loss.shape, 60.0 * sigma + mass.size)
    for _ in range(80):
        middle = 0.5 * (low + high)
        above = log_ratio(mass, sigma, middle) > loss
        low, high = np.where(above, low, middle), np.where(above, middle, high)
    return high


def _masses(edge: Array, mass: Array, sigma: float) -> Array:
    total = np.zeros(edge.size - 1)
    for k, weight in enumerate(mass):
        z = (edge - k) / sigma
        upper, lower = special.ndtr(-z), special.ndtr(z)
        total += weight * np.where(z[:-1] > 0, upper[:-1] - upper[1:], lower[1:] - lower[:-1])
    return total


def plain_fft_posterior(rates: Array, sigma: float, rounds: int, prior: float, *, step: float, size: int) -> float:
    """B(p) = min over t of t p + E_P[(1 - t / R)+] from the law of the loss under P alone, by a plain FFT.

    Enough where B(p) itself is far above round-off, whatever the prior: only P is composed, nothing is tilted, and
    each loss is split between its two neighbours on the lattice so that its mean is kept. An estimate, not a bound.
    """
    mass = count_masses(rates)
    mass = mass[mass > 1e-40]
    edge = np.concatenate([[-np.inf], np.linspace(-9 * sigma, mass.size - 1 + 9 * sigma, 100_001), [np.inf]])
    p, q = _masses(edge, mass, sigma), _masses(edge, np.ones(1), sigma)
    kept = (p > 1e-18) & (q > 0)
    loss = np.log(p[kept]) - np.log(q[kept])
    below = np.floor(loss / step)
    share = loss / step - below
    place = below.astype(np.int64)
    lattice = np.bincount(place % size, p[kept] * (1 - share), minlength=size)
    lattice += np.bincount((place + 1) % size, p[kept] * share, minlength=size)
    total = np.maximum(fft.irfft(fft.rfft(lattice) ** rounds, size), 0.0)
    # The last fifth of the circle holds the negative losses.
    negative = size // 5
    total, value = np.roll(total, negative), (np.arange(size) - negative) * step
    right = np.cumsum(total[::-1])[::-1]
    weighted = np.cumsum((total * np.exp(-value))[::-1])[::-1]
    near = (value > 0) & (value < -math.log(prior) + 2)
    granted = np.exp(value[near] + math.log(prior)) + right[near] - np.exp(value[near]) * weighted[near]
    return float(granted.min())


# --- simulation --------------------------------------------------------------------------------------------------


class Estimate(NamedTuple):
    """A mean over independent runs and its standard error."""

    value: float
    error: float


class Tails(NamedTuple):
    """Tails of the log ratio of a whole run beyond one threshold, with and without the secret."""

    p: Estimate
    q: Estimate


class Simulation:
    """Log ratios of whole runs, drawn with the secret or from a law tilted towards or beyond it.

    tilt 1 draws with the secret. In general a round is drawn from the density proportional to q R^tilt, cut into a
    fine table of outputs, and each run carries its weights back to P and Q. Weights are right for the table's own
    law, in which the output is rounded: a coarsening, so the tails are those of a test on rounded outputs.
    """

    def __init__(
        self, rates: Array, sigma: float, rounds: int, *, runs: int, rng: np.random.Generator, tilt: float = 1.0
    ) -> None:
        mass = count_masses(rates)
        mass = mass[: int(np.flatnonzero(mass > 1e-25)[-1]) + 1]
        edge = np.concatenate([[-np.inf], np.linspace(-8 * sigma, mass.size - 1 + 9 * sigma, 60_001), [np.inf]])
        p, q = _masses(edge, mass, sigma), _masses(edge, np.ones(1), sigma)
        kept = (p > 0) & (q > 0)
        p, q = p[kept], q[kept]
        loss = np.log(p) - np.log(q)
        weight = q * np.exp(tilt * loss)
        norm = float(weight.sum())
        self._tilt, self._log_norm = tilt, rounds * math.log(norm)
        self.loss = np.zeros(runs)
        cumulative = np.cumsum(weight / norm)
        for begin in range(0, runs, 2000):
            part = slice(begin, min(begin + 2000, runs))
            draw = rng.random((part.stop - begin, rounds))
            where = np.minimum(np.searchsorted(cumulative, draw), loss.size - 1)
            self.loss[part] = loss[where].sum(axis=1)

    def and_then(self, other: "Simulation") -> None:
        """Each run is followed by a run of the other, drawn with the same tilt."""
        if other._tilt != self._tilt:
            raise ValueError(f"tilts differ: {self._tilt} and {other._tilt}")
        self.loss = self.loss + other.loss
        self._log_norm += other._log_norm

    def tails(self, threshold: float) -> Tails:
        """P(L > threshold) and Q(L > threshold)."""
        above = self.loss > threshold
        hits = np.where(above, np.exp((1 - self._tilt) * self.loss + self._log_norm), 0.0)
        alarms = np.where(above, np.exp(-self._tilt * self.loss + self._log_norm), 0.0)
        return Tails(_estimate(hits), _estimate(alarms))

    def posterior(self, prior: float) -> Estimate:
        """B(p) = min over t of t p + E_P[(1 - t / R)+], each side estimated from the runs.

        In logarithms: a steep tilt draws ratios beyond any float. No t above 1 / p is of use, since B(p) <= 1; a tilt
        that leaves no run below it has drawn nothing of what decides, and is refused.
        """
        log_p, most = (1 - self._tilt) * self.loss + self._log_norm, -math.log(prior)

        def gain(threshold: float) -> Array:
            above = np.maximum(self.loss - threshold, 0.0)
            with np.errstate(divide="ignore"):  # log 0 where a run is not above it
                return np.exp(log_p + np.log(-np.expm1(-above)))

        lowest = float(np.quantile(self.loss, 0.001))
        if lowest >= most:
            raise ValueError(f"tilt={self._tilt} draws no run with a log ratio below {most:.4g}; tilt less")
        grid = np.linspace(lowest, min(float(self.loss.max()), most), 300)
        best = float(min(grid, key=lambda t: math.exp(t - most) + float(gain(t).mean())))
        found = _estimate(gain(best))
        return Estimate(math.exp(best - most) + found.value, found.error)


def _estimate(values: Array) -> Estimate:
    return Estimate(float(values.mean()), float(values.std(ddof=1) / math.sqrt(values.size)))


# --- divergences -------------------------------------------------------------------------------------------------


def kl_by_quadrature(rates: Array, sigma: float) -> float:
    """KL(P || Q) of one round: integral of q (R log R - R + 1), which is never negative."""
    mass = count_masses(rates)

    def density(x: float) -> float:
        loss = float(log_ratio(mass, sigma, np.array([x]))[0])
        return math.exp(-0.5 * (x / sigma) ** 2) / (sigma * math.sqrt(2 * math.pi)) * _excess(loss)

    ends = np.linspace(-10 * sigma, mass.size + 12 * sigma, 60)
    return math.fsum(
        integrate.quad(density, a, b, epsabs=0, epsrel=1e-10, limit=200)[0] for a, b in itertools.pairwise(ends)
    )


def _excess(loss: float) -> float:
    """R log R - R + 1 at log R = loss."""
    if abs(loss) < 1e-4:
        return loss * loss / 2 + loss**3 / 3 + loss**4 / 8
    return math.exp(loss) * loss - math.expm1(loss)


def moment_in_closed_form(rates: Array, sigma: float, order: int) -> float:
    """E_Q[R^order] of one round for a whole order: a sum over tuples of counts."""
    mass = count_masses(rates)
    terms = []
    for counts in itertools.product(range(mass.size), repeat=order):
        pairs = (sum(counts) ** 2 - sum(k * k for k in counts)) / 2
        terms.append(math.prod(mass[k] for k in counts) * math.exp(pairs / sigma**2))
    return math.fsum(terms)


# --- binary divergences, in high precision ------------------------------------------------------------------------


def binary_kl(prior: float, ceiling: Any) -> Any:
    """KL(Bern(r) || Bern(p)) with 400 digits."""
    with mpmath.workdps(400):
        p, r = mpmath.mpf(prior), mpmath.mpf(ceiling)
        return r * mpmath.log(r / p) + (1 - r) * mpmath.log((1 - r) / (1 - p))


def binary_log_moment(prior: float, ceiling: Any, order: float) -> Any:
    """log of r^a p^(1-a) + (1-r)^a (1-p)^(1-a) with 400 digits."""
    with mpmath.workdps(400):
        p, r, a = mpmath.mpf(prior), mpmath.mpf(ceiling), mpmath.mpf(order)
        return mpmath.log(r**a * p ** (1 - a) + (1 - r) ** a * (1 - p) ** (1 - a))

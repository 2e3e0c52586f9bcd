"""The law of the number of a secret's examples in one round: exact Poisson-binomial laws, single or joined.

Replacing a law by a stochastically larger one never lowers a reported posterior, so every shortcut here moves mass up:
the far upper tail becomes `certain` (success is conceded), the far lower tail is lifted to `lowest`, and a group of
secrets gets the pointwise largest survival function of its members. Labels (E6) to (E11) refer to docs/proofs.md.

Legend: S secrets of a group, N examples of a secret, K counts.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
from scipy.special import gammaln

from hush.arrays import Array

EPS = float(np.finfo(np.float64).eps)
BLOCK_EXAMPLES = 64  # examples convolved one by one before blocks are merged pairwise; speed only
MAX_LIFTED = 1e-25  # mass lifted at the lower end of a wide law, per trim; tightness only (E11)
LIFTED_ROUNDING = 1e-9  # relative error of the lifted mass, subtracted by the attack (E11)
POISSON_TAIL_ROUNDING = 1e-9  # relative error of the Chernoff bound of a Poisson tail (E10)
RAISED_ROUNDING = 4 * EPS  # of raising a survival function by its error (E8)


@dataclass(frozen=True, slots=True, kw_only=True)
class CountLaw:
    """Law of the number of a secret's examples in one round.

    mass[i] is P(K = lowest + i). `certain` is the mass above the stored range; `lifted` bounds the mass moved up to
    `lowest`. `relative_error` bounds the rounding of each entry of mass. log_idle is log P(K = 0), stored separately
    because 1 - P(K > 0) would lose its digits.
    """

    lowest: int
    mass: Array
    certain: float
    lifted: float
    relative_error: float
    log_idle: float

    @property
    def counts(self) -> Array:
        """The counts that `mass` refers to, as floats."""
        return self.lowest + np.arange(self.mass.size, dtype=np.float64)


def count_law(rates: Array, *, tail: float) -> CountLaw:
    """Exact law of a sum of independent Bernoulli(rate) draws, its far tail (below `tail`) marked certain.

    >>> law = count_law(np.array([0.5, 0.5]), tail=1e-12)
    >>> law.mass.tolist()
    [0.25, 0.5, 0.25]
    """
    return joined_law([rates], tail=tail)


def joined_law(groups: Sequence[Array], *, tail: float) -> CountLaw:
    """Smallest law that stochastically dominates the count of every secret of a group."""
    small = [rates for rates in groups if rates.size <= BLOCK_EXAMPLES * 4]
    laws = [_merge_blocks(rates, tail) for rates in groups if rates.size > BLOCK_EXAMPLES * 4]
    if small:
        laws.append(_join_matrix(_pad(small), tail))
    return _without_empty_ends(_join(laws))


def poisson_law(mean: float, *, tail: float) -> CountLaw:
    """Poisson law with this mean; it dominates every set of rates with sum of -log(1 - rate) at most `mean`."""
    top = _poisson_top(np.array([mean]), tail)
    k = np.arange(top + 1, dtype=np.float64)
    with np.errstate(divide="ignore"):
        log_mass = k * np.log(mean) - mean - gammaln(k + 1) if mean > 0 else np.where(k == 0, 0.0, -np.inf)
    mass = np.exp(log_mass)
    # The rounding of the exponent is a relative error of the mass (E9).
    error = 8 * EPS * (1 + float(np.max(np.abs(log_mass[np.isfinite(log_mass)]))) + float(gammaln(top + 1.0)))
    certain = min(1.0, _poisson_tail(mean, top + 1) * (1 + POISSON_TAIL_ROUNDING))
    return _trim(CountLaw(lowest=0, mass=mass, certain=certain, lifted=0.0, relative_error=error, log_idle=-mean), tail)


def without_lifted(law: CountLaw) -> CountLaw:
    """The law without the lifted mass: a part of the true law, for lower bounds."""
    mass = law.mass.copy()
    mass[0] = max(0.0, mass[0] - law.lifted * (1 + LIFTED_ROUNDING))
    return replace(law, mass=mass, lifted=0.0)


def _pad(groups: Sequence[Array]) -> Array:
    width = max(1, max(rates.size for rates in groups))
    rate_SN = np.zeros((len(groups), width))
    for row, rates in zip(rate_SN, groups, strict=True):
        row[: rates.size] = rates
    return rate_SN


def _poisson_tail(mean: float, k: int) -> float:
    """Chernoff: P(K >= k) <= exp(k - mean) (mean / k)^k, for Poisson and Poisson-binomial K alike; 1 below the mean."""
    if k <= mean:
        return 1.0
    return float(np.exp(k - mean + k * (np.log(mean) - np.log(k)))) if mean > 0 else 0.0


def _poisson_top(mean_S: Array, tail: float) -> int:
    """A count above which the Chernoff tail of every mean is below `tail`."""
    mean = float(mean_S.max(initial=0.0))
    low, high = int(np.ceil(mean)), int(np.ceil(mean)) + 1
    while _poisson_tail(mean, high + 1) > tail:
        low, high = high, high + max(1, 2 * (high - low))
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (low, middle) if _poisson_tail(mean, middle + 1) <= tail else (middle, high)
    return high


def _join_matrix(rate_SN: Array, tail: float) -> CountLaw:
    """Convolve example after example for all secrets at once; the top state absorbs all larger counts."""
    top = min(rate_SN.shape[1], _poisson_top(rate_SN.sum(axis=1), tail))
    mass_KS = np.zeros((top + 2, rate_SN.shape[0]))  # state top + 1 means "more than top"
    mass_KS[0] = 1.0
    for step, rate_S in enumerate(np.ascontiguousarray(rate_SN.T)):
        reach = min(step + 1, top)
        over_S = mass_KS[top] * rate_S if step >= top else 0.0
        moved_KS = mass_KS[:reach] * rate_S
        mass_KS[: reach + 1] *= 1.0 - rate_S
        mass_KS[1 : reach + 1] += moved_KS
        mass_KS[top + 1] += over_S
    error = EPS * (4 * (rate_SN.shape[1] + 2) + top + 2)  # of the recursion and of the sums below (E6)
    survival_K = np.cumsum(mass_KS[::-1], axis=0)[::-1].max(axis=1)
    with np.errstate(divide="ignore"):
        log_idle = float(np.log1p(-rate_SN).sum(axis=1).min())
    if rate_SN.shape[0] > 1:
        return _raised(survival_K, error, lowest=0, lifted=0.0, log_idle=log_idle)
    return CountLaw(
        lowest=0,
        mass=mass_KS[:-1, 0],
        certain=float(survival_K[-1]),
        lifted=0.0,
        relative_error=error,
        log_idle=log_idle,
    )


def _merge_blocks(rates: Array, tail: float) -> CountLaw:
    """Law of many draws: blocks by the direct recursion, then a tree of direct convolutions, trimmed on both ends.

    Direct convolution only adds non-negative numbers, so the tails keep their relative accuracy; with an FFT they would
    not.
    """
    pieces = 2 * (rates.size // BLOCK_EXAMPLES + 1)
    laws = [
        _join_matrix(rates[start : start + BLOCK_EXAMPLES][None, :], 0.0)
        for start in range(0, rates.size, BLOCK_EXAMPLES)
    ]
    while len(laws) > 1:
        pairs = [_convolve(a, b, tail / pieces) for a, b in zip(laws[::2], laws[1::2], strict=False)]
        laws = pairs + laws[len(laws) & ~1 :]
    return laws[0]


def _convolve(a: CountLaw, b: CountLaw, tail: float) -> CountLaw:
    mass = np.convolve(a.mass, b.mass)
    rounding = EPS * (min(a.mass.size, b.mass.size) + 2)  # (E7)
    return _trim(
        CountLaw(
            lowest=a.lowest + b.lowest,
            mass=mass,
            certain=a.certain + b.certain,  # union bound
            lifted=a.lifted + b.lifted,
            relative_error=a.relative_error + b.relative_error + rounding,
            log_idle=a.log_idle + b.log_idle,
        ),
        tail,
    )


def _trim(law: CountLaw, tail: float) -> CountLaw:
    """Concede the upper end below `tail`; lift the lower end below MAX_LIFTED to the first count kept."""
    above = np.cumsum(law.mass[::-1])[::-1]
    below = np.cumsum(law.mass)
    stop = int(np.count_nonzero(above > tail))
    start = int(np.count_nonzero(below <= MAX_LIFTED)) if law.mass.size > BLOCK_EXAMPLES else 0
    start = min(start, max(stop - 1, 0))
    stop = max(stop, start + 1)
    mass = law.mass[start:stop].copy()
    moved = float(below[start - 1]) if start else 0.0
    mass[0] += moved
    conceded = float(above[stop]) if stop < law.mass.size else 0.0
    return replace(
        law,
        lowest=law.lowest + start,
        mass=mass,
        certain=law.certain + conceded * (1 + law.relative_error),
        lifted=law.lifted + moved,
    )


def _without_empty_ends(law: CountLaw) -> CountLaw:
    """Drop the counts at either end that cannot occur."""
    possible = np.flatnonzero(law.mass > 0)
    if possible.size == 0:
        return law
    begin, end = int(possible[0]), int(possible[-1]) + 1
    return replace(law, lowest=law.lowest + begin, mass=law.mass[begin:end])


def _join(laws: Sequence[CountLaw]) -> CountLaw:
    if len(laws) == 1:
        return laws[0]
    lowest = min(law.lowest for law in laws)
    stop = max(law.lowest + law.mass.size for law in laws)
    survival_K = np.zeros(stop - lowest + 1)
    for law in laws:
        survival_k = np.full(survival_K.size, law.certain)  # above the stored range only the certain mass remains
        begin = law.lowest - lowest
        survival_k[begin : begin + law.mass.size] += np.cumsum(law.mass[::-1])[::-1]
        survival_k[:begin] = 1.0
        np.maximum(survival_K, survival_k, out=survival_K)
    return _raised(
        survival_K,
        max(law.relative_error for law in laws) + EPS * (survival_K.size + 2),  # (E8)
        lowest=lowest,
        lifted=max(law.lifted for law in laws),
        log_idle=min(law.log_idle for law in laws),
    )


def _raised(survival_K: Array, error: float, *, lowest: int, lifted: float, log_idle: float) -> CountLaw:
    """The law of this survival function P(K >= lowest + i), raised by its relative error so that it dominates (E8).

    Differences of a rounded survival function may have few correct digits of the true law. The raised survival function
    defines a law of its own, and its differences have all digits of that law.
    """
    raised_K = np.minimum(1.0, survival_K * (1 + error + RAISED_ROUNDING))
    raised_K[0] = 1.0
    return CountLaw(
        lowest=lowest,
        mass=raised_K[:-1]
        - raised_K[1:],  # never negative: survival functions decrease, and rounding keeps their order
        certain=float(raised_K[-1]),
        lifted=lifted,
        relative_error=EPS,  # of one difference (E8)
        log_idle=log_idle,
    )

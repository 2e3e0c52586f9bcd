"""Memorised or generalised? "12345" goes on with "6789" in any model, whether or not it ever saw that text.

What a model says of sequences it was trained on is laid beside what tells memory and skill apart: the same sequences
on a reference model that never saw them (pairs), or sequences of the same kind that the model never saw (two samples).
The excess is the difference of the two fractions.

Limits hold for any number of sequences, without approximation: each of two probabilities has its Clopper-Pearson
limits, at levels that together make up the one asked for, and the difference lies between their extremes. They are
wider than approximate ones [Newcombe98]. They treat sequences as drawn at random, on given models.
"""

from dataclasses import dataclass
from typing import final

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy.stats import hypergeom

from hush.audit.statistics import LEVEL, Success, checked_level
from hush.errors import InvalidInput

__all__ = ["Excess", "excess_over_held_out", "excess_over_reference"]


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class Excess:
    """How much more often sequences come out than without having been trained on.

    lower, upper: limits of the difference; both hold at once but with probability ``level``. p_value: the probability
    of at least this excess if training on the sequences made no difference (one-sided, exact).
    """

    trained: Success
    other: Success
    lower: float
    upper: float
    level: float
    p_value: float

    @property
    def difference(self) -> float:
        """The fraction that came out, less the fraction that comes out anyway."""
        return self.trained.rate - self.other.rate

    @property
    def is_memorised(self) -> bool:
        """Whether some sequences come out because they were trained on, at this level."""
        return self.p_value <= self.level


def excess_over_reference(hit: ArrayLike, reference_hit: ArrayLike, *, level: float = LEVEL) -> Excess:
    """The same sequences on the model and on a reference that never saw them; entry i of both is sequence i.

    Only pairs that differ tell anything. With a share π of such pairs, of which a share θ comes out of the model and
    the others out of the reference, the difference of the two probabilities is π (2θ − 1). Both shares have limits at
    half the level: π among all pairs; θ, given their number, among those that differ. The p-value is McNemar's exact
    test.

    >>> excess = excess_over_reference([True] * 9 + [False], [True] * 2 + [False] * 8, level=0.05)
    >>> round(excess.difference, 3), round(excess.lower, 3), round(excess.p_value, 4)
    (0.7, 0.021, 0.0078)
    """
    hit_N, other_N = _flags("hit", hit), _flags("reference_hit", reference_hit)
    if hit_N.shape != other_N.shape:
        raise InvalidInput(
            f"{hit_N.size} sequences on the model but {other_N.size} on the reference; try the same ones on both"
        )
    runs, half = hit_N.size, checked_level(level) / 2
    gained, differing = int((hit_N & ~other_N).sum()), int((hit_N != other_N).sum())
    share = Success(hits=differing, runs=runs).interval(half)
    ours = Success(hits=gained, runs=differing).interval(half) if differing else (0.0, 1.0)
    least, most = 2 * ours[0] - 1, 2 * ours[1] - 1
    return Excess(
        trained=Success(hits=int(hit_N.sum()), runs=runs),
        other=Success(hits=int(other_N.sum()), runs=runs),
        lower=least * share[0 if least > 0 else 1],
        upper=most * share[1 if most > 0 else 0],
        level=level,
        p_value=Success(hits=gained, runs=differing).p_value(0.5) if differing else 1.0,
    )


def excess_over_held_out(trained: Success, held_out: Success, *, level: float = LEVEL) -> Excess:
    """Sequences the model was trained on beside sequences of the same kind that it never saw.

    The samples are independent, so limits at level 1 − √(1 − level) each hold together at the level. The p-value is
    Fisher's exact test.

    >>> excess = excess_over_held_out(Success(hits=45, runs=50), Success(hits=5, runs=50), level=0.05)
    >>> round(excess.difference, 3), round(excess.lower, 3), excess.is_memorised
    (0.8, 0.529, True)
    """
    each = float(-np.expm1(np.log1p(-checked_level(level)) / 2))
    ours, others = trained.interval(each), held_out.interval(each)
    hits, runs = trained.hits + held_out.hits, trained.runs + held_out.runs
    return Excess(
        trained=trained,
        other=held_out,
        lower=ours[0] - others[1],
        upper=ours[1] - others[0],
        level=level,
        p_value=min(1.0, float(hypergeom.sf(trained.hits - 1, runs, hits, trained.runs))),
    )


def _flags(name: str, values: ArrayLike) -> NDArray[np.bool_]:
    array = np.asarray(values)
    if array.dtype != np.bool_ or array.ndim != 1 or not array.size:
        raise InvalidInput(
            f"{name} has shape {array.shape} and type {array.dtype}; pass True or False for each sequence, at least one"
        )
    return array

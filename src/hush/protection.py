"""The promise about a secret: from which prior an adversary may rise to which ceiling.

Shapes: S secrets, Q promised points per secret.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Self, final

import numpy as np
from numpy.typing import ArrayLike

from hush.arrays import Array
from hush.errors import InvalidInput, Setting

__all__ = ["Protection", "promise_arrays"]


_RULE = "a promise needs 0 < prior <= ceiling < 1; lower the prior or raise the ceiling"


@final
@dataclass(frozen=True, slots=True, init=False, repr=False)
class Protection:
    """The promise about one secret: an adversary with a prior of at most ``prior`` ends at ``ceiling`` or below.

    Several (prior, ceiling) points may be promised at once; all of them must hold. ``points`` is sorted and without
    duplicates. Invariant: 0 < prior <= ceiling < 1 at every point.

    >>> Protection(1e-10, 1e-3)
    Protection(prior=1e-10, ceiling=0.001)
    >>> Protection.of((1e-4, 0.5), (1e-10, 1e-3)).priors
    (1e-10, 0.0001)
    """

    points: tuple[tuple[float, float], ...]

    def __init__(self, prior: float, ceiling: float) -> None:
        object.__setattr__(self, "points", (_checked_point((prior, ceiling)),))

    @classmethod
    def of(cls, *points: tuple[float, float]) -> Self:
        """Promise several (prior, ceiling) points, all of which must hold."""
        if not points:
            raise InvalidInput("a protection without points promises nothing; pass at least one (prior, ceiling)")
        protection = object.__new__(cls)
        object.__setattr__(protection, "points", tuple(sorted({_checked_point(point) for point in points})))
        return protection

    @property
    def priors(self) -> tuple[float, ...]:
        """The prior of each point, ascending."""
        return tuple(prior for prior, _ in self.points)

    @property
    def ceilings(self) -> tuple[float, ...]:
        """The ceiling of each point, in the order of ``priors``."""
        return tuple(ceiling for _, ceiling in self.points)

    def holds(self, posterior_of: Callable[[float], float]) -> bool:
        """Whether an upper bound on the posterior stays at or below the ceiling at every promised prior.

        Guarantee: true only if every comparison succeeds; a NaN never counts as kept.

        >>> Protection.of((1e-10, 1e-3), (1e-4, 0.1)).holds(lambda prior: 1e4 * prior)
        False
        """
        return all(posterior_of(prior) <= ceiling for prior, ceiling in self.points)

    def __repr__(self) -> str:
        if len(self.points) == 1:
            return f"Protection(prior={self.points[0][0]!r}, ceiling={self.points[0][1]!r})"
        return f"Protection.of({', '.join(map(repr, self.points))})"


def _checked_point(point: tuple[float, float]) -> tuple[float, float]:
    try:
        prior, ceiling = map(float, point)
    except (TypeError, ValueError, OverflowError) as error:
        raise InvalidInput(f"{point!r} is not a (prior, ceiling) pair of numbers; {_RULE}") from error
    if not 0.0 < prior <= ceiling < 1.0:  # written so that NaN fails
        raise InvalidInput(
            Setting("prior"), f"={prior!r}, ", Setting("ceiling"), f"={ceiling!r}: {_RULE}", setting="ceiling"
        )
    return prior, ceiling


def promise_arrays(prior: ArrayLike, ceiling: ArrayLike, num_secrets: int) -> tuple[Array, Array]:
    """Priors and ceilings as two fresh float64 arrays of shape (num_secrets, q), checked entry by entry.

    Each argument is one number for all, one per secret (shape (m,)), or several points per secret (shape (m, q)).

    >>> prior_SQ, ceiling_SQ = promise_arrays(1e-10, [1e-3, 2e-4], 2)
    >>> ceiling_SQ.tolist()
    [[0.001], [0.0002]]
    """
    prior_SQ = _by_secret("prior", prior, num_secrets)
    ceiling_SQ = _by_secret("ceiling", ceiling, num_secrets)
    widths = {prior_SQ.shape[1], ceiling_SQ.shape[1]}
    if 0 in widths or len(widths - {1}) > 1:
        raise InvalidInput(
            Setting("prior"),
            f" has {prior_SQ.shape[1]} points per secret and ",
            Setting("ceiling"),
            f" {ceiling_SQ.shape[1]}; give both the same number of points, at least 1 (a single one is repeated)",
            setting="ceiling",
        )
    shape = (num_secrets, max(widths))
    prior_SQ, ceiling_SQ = (np.broadcast_to(array, shape).copy() for array in (prior_SQ, ceiling_SQ))
    broken_SQ = ~((prior_SQ > 0.0) & (prior_SQ <= ceiling_SQ) & (ceiling_SQ < 1.0))
    if broken_SQ.any():
        secret, point = np.argwhere(broken_SQ)[0].tolist()
        raise InvalidInput(
            f"secret {secret} has ",
            Setting("prior"),
            f"={float(prior_SQ[secret, point])!r}, ",
            Setting("ceiling"),
            f"={float(ceiling_SQ[secret, point])!r} ({int(broken_SQ.any(axis=1).sum())} secrets of {num_secrets} break "
            f"the rule): {_RULE}",
            setting="ceiling",
        )
    return prior_SQ, ceiling_SQ


def _by_secret(name: str, values: ArrayLike, num_secrets: int) -> Array:
    """``values`` with a row per secret, or a single row for all of them."""
    expected = f"pass one number, {num_secrets} numbers (one per secret) or an array of shape ({num_secrets}, points)"
    try:
        array = np.asarray(values)
    except ValueError as error:
        raise InvalidInput(Setting(name), f" has rows of different lengths; {expected}", setting=name) from error
    if array.size and array.dtype.kind not in "fiu":
        raise InvalidInput(Setting(name), f" holds {array.dtype} values, not real numbers; {expected}", setting=name)
    if array.ndim == 0:
        return array.astype(np.float64).reshape(1, 1)
    if array.ndim > 2 or array.shape[0] != num_secrets:
        raise InvalidInput(
            Setting(name), f" has shape {array.shape} but there are {num_secrets} secrets; {expected}", setting=name
        )
    return array.astype(np.float64).reshape(num_secrets, 1 if array.ndim == 1 else array.shape[1])

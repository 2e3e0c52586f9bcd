"""What computed draws and noise may add to a posterior: their distance in total variation from ideal ones.

A posterior is proven for exact Bernoulli draws and exact normal noise. Training computes both from random words of 64
bits, so the law of what it releases differs a little from the ideal one. If the two differ by at most eta in total
variation, whatever the secret is, then no adversary succeeds more often than with the ideal one by more than eta
(docs/proofs, "Sampling error"). A plan leaves room for it below each ceiling; how much is needed is known only when the
number of trained parameters is.

Legend: S secrets, Q promised points of a secret.
"""

import math
from typing import SupportsIndex

import numpy as np

from hush.accounting.arguments import checked_rounds
from hush.arrays import Array
from hush.numbers import checked_positive, checked_size

__all__ = [
    "MAX_NOISE_STREAMS",
    "draw_error",
    "noise_error",
    "planning_ceiling",
    "sampling_error",
    "with_sampling_error",
]


EPS = 2.0**-52
DRAW_ERROR_PER_BLOCK = 2.0**-58  # (E31)
PARTIAL_BLOCKS = 60  # (E31), one for each binary exponent of a rate
NOISE_ERROR_PER_NORMAL = 2.0**-64  # (E32)
MAX_NOISE_STREAMS = 1024  # (E32), processes times devices; training with more is refused
UNPAIRED_PER_STREAM = 4  # (E32), normals whose partner is not used, and so is not counted either
RESERVED_SHARE = 1e-3  # tightness only: of the way from prior to ceiling, that plans leave to the sampling error


def draw_error(*, batch_size: float, rounds: SupportsIndex) -> float:
    """The total variation between all computed draws of a run and ideal ones, at most. Rounded up.

    >>> f"{draw_error(batch_size=2048, rounds=2000):.1e}"
    '4.0e-12'
    """
    blocks = checked_positive("batch_size", batch_size) / 4 + PARTIAL_BLOCKS
    return DRAW_ERROR_PER_BLOCK * checked_rounds(rounds) * blocks * (1 + 4 * EPS)  # (E31)


def noise_error(trained_parameters: SupportsIndex, *, rounds: SupportsIndex) -> float:
    """The total variation between all noise of a run and normal noise whose radius is not cut off, at most. Rounded up.

    >>> f"{noise_error(7 * 10**9, rounds=2000):.1e}"
    '7.6e-07'
    """
    normals = checked_size("trained_parameters", trained_parameters) + UNPAIRED_PER_STREAM * MAX_NOISE_STREAMS
    return NOISE_ERROR_PER_NORMAL * (checked_rounds(rounds) * normals) * (1 + 4 * EPS)  # (E32)


def sampling_error(trained_parameters: SupportsIndex, *, batch_size: float, rounds: SupportsIndex) -> float:
    """What the computed draws and noise of a run add to any posterior, at most: the sum of both distances.

    Guarantee: rounded up, and the same number on every machine.

    >>> f"{sampling_error(4_400_000, batch_size=2048, rounds=2000):.1e}"
    '4.8e-10'
    """
    total = draw_error(batch_size=batch_size, rounds=rounds) + noise_error(trained_parameters, rounds=rounds)
    return min(math.nextafter(total, math.inf), 1.0)


def with_sampling_error(posterior: Array | float, error: float) -> Array:
    """Posteriors plus a sampling error, rounded up and at most 1.

    >>> with_sampling_error(np.array([0.5, 1.0]), 0.25).tolist()
    [0.7500000000000001, 1.0]
    """
    return np.minimum(np.nextafter(np.asarray(posterior) + error, np.inf), 1.0)


def planning_ceiling(prior_SQ: Array, ceiling_SQ: Array) -> Array:
    """The posteriors that a plan aims at: below the ceilings by what it leaves to the sampling error.

    A share of the way from prior to ceiling, so that a promise that can be kept still can be. It costs less than
    1e-4 of the noise where ceilings are many times their priors.

    >>> round(float(planning_ceiling(np.array([[0.1]]), np.array([[0.2]]))[0, 0]), 6)
    0.1999
    """
    return np.maximum(ceiling_SQ - RESERVED_SHARE * (ceiling_SQ - prior_SQ), prior_SQ)


# Several releases share what plans leave to the sampling error (docs/proofs, "Sampling error of several releases").


def room_left(posterior_SQ: Array, ceiling_SQ: Array) -> float:
    """The least distance of a posterior from its ceiling, rounded up: a run whose error is larger is refused.

    >>> room_left(np.array([[0.1]]), np.array([[0.25]])), room_left(np.zeros((0, 1)), np.zeros((0, 1)))
    (0.15000000000000002, 0.0)
    """
    if not posterior_SQ.size:
        return 0.0
    return math.nextafter(max(float((ceiling_SQ - posterior_SQ).min()), 0.0), math.inf)


def reserve(prior_SQ: Array, ceiling_SQ: Array) -> float:
    """What plans leave to the sampling error below every ceiling that is above its prior, at least; rounded down.

    >>> f"{reserve(np.array([[1e-10], [0.5]]), np.array([[1e-3], [0.5]])):.4g}"
    '1e-06'
    """
    able = prior_SQ < ceiling_SQ
    room = float((ceiling_SQ[able] - prior_SQ[able]).min(initial=1.0))
    return RESERVED_SHARE * room * (1 - 4 * EPS)  # (E39)


def chain_ceiling(prior_SQ: Array, ceiling_SQ: Array, total: float) -> Array:
    """As ``planning_ceiling``, where all releases together may add ``total``: prior where a ceiling has no such room.

    >>> chain_ceiling(np.array([[0.1, 0.1]]), np.array([[0.2, 0.1000001]]), 1e-4).round(4).tolist()
    [[0.1999, 0.1]]
    """
    below_SQ = np.nextafter(ceiling_SQ - total, 0.0)
    return np.maximum(np.minimum(planning_ceiling(prior_SQ, ceiling_SQ), below_SQ), prior_SQ)

"""What is promised in a release of a chain, and the error where too little is left of it."""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import final

import numpy as np
from numpy.typing import NDArray

from hush.accounting.arguments import Bound
from hush.arrays import Array
from hush.errors import InfeasiblePlan
from hush.incidence import Incidence
from hush.plan.earlier import History
from hush.settings import AUTO, Auto
from hush.weights.accounts import intensities

__all__ = [
    "EPS",
    "LEAST_INTENSITY",
    "MOST_INTENSITY",
    "REMEDY_MARGIN",
    "Indices",
    "Promised",
    "ReleaseRefused",
    "examples_with",
]

EPS = 2.0**-52
REMEDY_MARGIN = 0.01  # relative, of a ceiling that a message suggests, for what a ceiling leaves to sampling
LEAST_INTENSITY, MOST_INTENSITY = 1e-9, 1e3  # for which orders are chosen; tightness only

Indices = NDArray[np.int64]


class ReleaseRefused(InfeasiblePlan):
    """Too little is left of the promises of some secrets. ``secrets`` holds the ids of all of them."""

    def __init__(self, *parts: str, secrets: Sequence[str], setting: str | None = None) -> None:
        self.secrets = tuple(secrets)
        super().__init__(*parts, setting=setting)


@final
@dataclass(frozen=True, kw_only=True)
class Promised:
    """What is promised in this release: its secrets by row, and the graph of the examples that can be drawn."""

    history: History
    incidence: Incidence
    prior_SQ: Array
    ceiling_SQ: Array
    bound: Bound
    batch_size: float | Auto
    rounds: int | Auto

    @cached_property
    def usual_S(self) -> Array:
        """How often each secret is drawn if all weights are 1, roughly: its intensity."""
        size = self.incidence.num_examples
        rate = 0.5 if self.batch_size == AUTO else min(float(self.batch_size) / max(size, 1), 0.5)
        return np.clip(intensities(self.incidence, np.full(size, rate)), LEAST_INTENSITY, MOST_INTENSITY)

    @cached_property
    def raised(self) -> tuple[str, ...]:
        """Ids whose ceiling is higher than in an earlier plan. Computing it checks that priors are as before."""
        return self.history.raised(self.prior_SQ, self.ceiling_SQ)


def examples_with(graph: Incidence, secrets: Indices) -> int:
    """How many examples contain any of these secrets."""
    return int(np.unique(np.concatenate([[], *(graph.examples_of(one) for one in secrets.tolist())])).size)

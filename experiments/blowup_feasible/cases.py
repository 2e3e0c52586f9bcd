"""What the study asks: the paper's setting, the grid at each scale, and how a question names its run in the log.

The setting: 1.7 million abstracts, expected batch 2048, 2000 rounds, every example drawn at the same rate; a secret in
so many examples, prior 1e-10, ceilings from 2e-4 to 1e-3. The noise is what the promise needs, by KL as in the paper
or by the blow-up function.
"""

from dataclasses import asdict, dataclass
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

__all__ = ["FULL", "PRIOR", "RATE", "ROUNDS", "SMALL", "Array", "PeerCase", "Point", "Promise", "Scale", "Table"]

Array = NDArray[np.float64]
Table = Literal["connect the dots", "privacy buckets"]

RATE, ROUNDS, PRIOR = 2048 / 1.7e6, 2000, 1e-10


@dataclass(frozen=True, kw_only=True)
class Promise:
    """One secret in so many examples, and what is promised for it: a question about the least noise."""

    examples: int
    prior: float = PRIOR
    ceiling: float = 1e-3

    def key(self) -> dict[str, Any]:
        return {"part": "noise", **asdict(self)}


@dataclass(frozen=True, kw_only=True)
class Point:
    """One secret at one noise: what can an adversary with this prior end up with?"""

    examples: int
    noise_multiplier: float
    prior: float = PRIOR

    @property
    def rates(self) -> Array:
        return np.full(self.examples, RATE)

    def key(self, part: str) -> dict[str, Any]:
        return {"part": part, **asdict(self)}


@dataclass(frozen=True, kw_only=True)
class PeerCase:
    """The same point for dp_accounting: the lattice's interval, and how it makes one round's table."""

    point: Point
    interval: float
    table: Table = "connect the dots"

    def key(self) -> dict[str, Any]:
        return {**self.point.key("peer"), "interval": self.interval, "table": self.table}


@dataclass(frozen=True, kw_only=True)
class Scale:
    """How much of the grid is done.

    intervals go with every promise. finest, which takes longest, only with ceilings of 1e-3; runs are simulated for
    the same. scan: noise multipliers at which one example and 100 examples are compared. deep: promises for a prior
    of 1e-20.
    """

    promises: tuple[Promise, ...]
    intervals: tuple[float, ...]
    finest: float
    bucket_interval: float
    scan: tuple[float, ...]
    scan_interval: float
    deep: tuple[Promise, ...]
    simulated_runs: int
    by_examples: tuple[Promise, ...]
    by_prior: tuple[Promise, ...]
    by_ceiling: tuple[Promise, ...]


SMALL = Scale(
    promises=(Promise(examples=1), Promise(examples=100)),
    intervals=(1e-1,),
    finest=1e-2,
    bucket_interval=1e-2,
    scan=(1.2, 8.0),
    scan_interval=1e-2,
    deep=(Promise(examples=100, prior=1e-20, ceiling=1e-9),),
    simulated_runs=200,
    by_examples=(Promise(examples=1), Promise(examples=100)),
    by_prior=(Promise(examples=100, prior=1e-6), Promise(examples=100)),
    by_ceiling=(Promise(examples=100), Promise(examples=100, ceiling=0.1)),
)
FULL = Scale(
    promises=tuple(Promise(examples=k, ceiling=r) for k in (1, 10, 30, 100, 300) for r in (2e-4, 1e-3)),
    intervals=(1e-2, 1e-3),
    finest=1e-4,
    bucket_interval=1e-3,
    scan=(0.9, 1.0, 1.1, 1.2, 1.3, 1.4, 1.5, 1.6, 1.8, 2.0, 2.5, 3.0, 4.0, 7.0, 15.0, 31.0, 73.0),
    scan_interval=1e-3,
    deep=tuple(Promise(examples=100, prior=1e-20, ceiling=10.0**-e) for e in (3, 6, 9, 12, 14, 16)),
    simulated_runs=20_000,
    by_examples=tuple(Promise(examples=k) for k in (1, 2, 5, 10, 20, 30, 50, 100, 200, 300, 500, 1000)),
    by_prior=tuple(Promise(examples=100, prior=10.0**-e) for e in (20, 15, 12, 10, 8, 6, 5, 4)),
    by_ceiling=tuple(Promise(examples=100, ceiling=r) for r in (1e-6, 1e-5, 1e-4, 2e-4, 1e-3, 1e-2, 0.1, 0.5)),
)

"""What is trained, in which order: a short tuning of the learning rate for every arm with noise, then all arms.

Tuning uses a fifth of the rounds and the validation part; what is reported is the test part. The arm in the middle of a
sweep tries every rate, the others try the one that was best there and its two neighbours: less noise bears more.
"""

import math
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from experiments.runs import RunLog
from experiments.secret_words.arms import alike, planned

__all__ = ["FREE", "NOISELESS", "Bench", "Job", "chosen_rate", "final", "tuning_around", "tuning_middles"]

FREE = "no protection"  # neither clipped nor noisy
TUNING_SEED, TUNING_SHARE = 100, 5
KINDS = (FREE, "clipped", "paper, all data", "paper, program", "hush, all data", "hush")  # each has its sweep
NOISELESS = (FREE, "clipped")


@dataclass(frozen=True, slots=True, kw_only=True)
class Bench:
    """Where things lie, and how large the runs are. Workers are processes on one device, which share it."""

    work: Path
    log: Path
    rounds: int
    batch_size: int
    micro_batch: int
    vocabulary: int
    rates: tuple[float, ...]
    seeds: int
    workers: int
    compile: bool
    start: Path
    until: float | None  # on the clock of time.time(): no run begins later, whichever process or stage it is in

    @property
    def minutes(self) -> float | None:
        """That are left."""
        return None if self.until is None else (self.until - time.time()) / 60

    @property
    def plans(self) -> Path:
        return self.work / "plans"


@dataclass(frozen=True, slots=True)
class Job:
    arm: str
    noise: bool
    rate: float
    seed: int
    rounds: int

    @property
    def key(self) -> dict[str, Any]:
        names = {"arm": self.arm, "noise": self.noise, "learning_rate": self.rate}
        return {**names, "seed": self.seed, "rounds": self.rounds}


def tuning_middles(bench: Bench, log: RunLog) -> Iterator[Job]:
    """Every learning rate at the middle of every sweep."""
    for kind in KINDS:
        middle = _middle(bench, kind)
        if middle is not None:  # a sweep may be empty: nothing feasible
            yield from _tuning(bench, log, middle, kind)


def tuning_around(bench: Bench, log: RunLog) -> Iterator[Job]:
    """The other arms with noise, once the middles are tuned. Without noise there is nothing that differs."""
    same = alike(bench.plans)
    for kind in KINDS:
        for name in _names(bench, kind):
            if kind not in NOISELESS and name == same[name, True] and name != _middle(bench, kind):
                yield from _tuning(bench, log, name, kind)


def final(bench: Bench, log: RunLog) -> Iterator[Job]:
    """What the table needs first, seed by seed; then the panels."""
    same = alike(bench.plans)
    noisy = [(name, kind) for kind in KINDS if kind != "clipped" for name in _names(bench, kind)]
    noisy = [(name, kind) for name, kind in noisy if kind == FREE or name == same[name, True]]
    clean = [(name, "clipped") for (name, noise), other in same.items() if not noise and name == other]
    table = [(name, kind) for name, kind in noisy if name == _middle(bench, kind)]
    for group in (table, [*clean, *(entry for entry in noisy if entry not in table)]):
        for seed in range(bench.seeds):
            for name, kind in group:
                rate = chosen_rate(log, name, kind, bench)
                if rate is not None:
                    yield Job(name, kind not in NOISELESS, rate, seed, bench.rounds)


def chosen_rate(log: RunLog, name: str, kind: str, bench: Bench) -> float | None:
    """The learning rate with the lowest validation loss in the arm's tuning; None before all were tried."""
    tuned = _middle(bench, kind) if kind in NOISELESS else name
    tried = [] if tuned is None else [(log.outcome(job.key), job.rate) for job in _tuning(bench, log, tuned, kind)]
    if not tried or any(outcome is None for outcome, _ in tried):
        return None
    losses = [(outcome["validation"], rate) for outcome, rate in tried if outcome]
    # One that diverged (nan) is no candidate; if all did, there is no rate to go on with.
    return min(((loss, rate) for loss, rate in losses if math.isfinite(loss)), default=(math.nan, None))[1]


def _tuning(bench: Bench, log: RunLog, name: str, kind: str) -> list[Job]:
    """The rates that an arm tries: none while the middle of its sweep is not tuned, which says where to look."""
    rates = sorted(bench.rates)
    middle = _middle(bench, kind)
    if middle is not None and name != middle:
        best = chosen_rate(log, middle, kind, bench)
        place = None if best is None else rates.index(best)
        rates = [] if place is None else rates[max(0, place - 1) : place + 2]
    return [Job(name, kind not in NOISELESS, rate, TUNING_SEED, max(1, bench.rounds // TUNING_SHARE)) for rate in rates]


def _names(bench: Bench, kind: str) -> list[str]:
    """The planned arms of a kind, from all data downwards."""
    if kind == FREE:
        return [FREE]
    label = "paper, all data" if kind == "clipped" else kind
    return [arm.name for arm in planned(bench.plans) if arm.label == label]


def _middle(bench: Bench, kind: str) -> str | None:
    names = _names(bench, kind)
    return names[len(names) // 2] if names else None

"""What is trained, in which order: a short tuning of the learning rate for every arm with noise, then all arms.

Tuning goes by the loss on the validation part; reported is the test part. With a fifth of the rounds, the arm in
the middle of a sweep tries every rate, the others try the one that was best there and its two neighbours: less noise
bears more. With all rounds, both ends of each sweep then try what was best and the rate below: long runs prefer smaller
steps. Where both ends choose the same, so do the arms between; otherwise these try as well.
"""

import math
import time
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

from experiments.runs import RunLog
from experiments.secret_words.arms import alike, planned
from hush.storage import file_digest, folder_digest

__all__ = [
    "FREE", "NOISELESS", "Bench", "Job", "chosen_rate", "final", "settling_between", "settling_ends", "tuning_around",
    "tuning_middles",
]  # fmt: skip

FREE = "no protection"  # neither clipped nor noisy
TUNING_SEED, TUNING_SHARE = 100, 5
KINDS = (FREE, "clipped", "paper, all data", "paper, program", "hush, all data", "hush")  # each has its sweep
NOISELESS = (FREE, "clipped")
Kinded = tuple[str, str]  # an arm and its kind


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

    @property
    def start_digest(self) -> str:
        """Runs say what they began with: pretraining on a GPU gives other bits each time."""
        return (folder_digest if self.start.is_dir() else file_digest)(self.start)[:12]


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
    for name, kind in _trained(bench):
        if kind not in NOISELESS and name != _middle(bench, kind):
            yield from _tuning(bench, log, name, kind)


def settling_ends(bench: Bench, log: RunLog) -> Iterator[Job]:
    """The first runs of full length, once an arm is tuned: they choose its rate."""
    for end in dict.fromkeys(end for arm in _trained(bench) for end in _ends(bench, *arm)):
        yield from _settling(bench, log, *end)


def settling_between(bench: Bench, log: RunLog) -> Iterator[Job]:
    """The other arms of the sweeps whose ends do not agree."""
    for name, kind in _trained(bench):
        ends = _ends(bench, name, kind)
        if kind not in NOISELESS and (name, kind) not in ends and _agreed(bench, log, ends) is None:
            yield from _settling(bench, log, name, kind)


def final(bench: Bench, log: RunLog) -> Iterator[Job]:
    """Every arm with its rate, seed by seed: a study cut short compares all of them."""
    for seed in range(bench.seeds):
        for name, kind in _trained(bench):
            rate = chosen_rate(log, name, kind, bench)
            if rate is not None:
                yield Job(name, kind not in NOISELESS, rate, seed, bench.rounds)


def chosen_rate(log: RunLog, name: str, kind: str, bench: Bench) -> float | None:
    """The learning rate with the lowest validation loss after all rounds; None before one of its runs ended."""
    return _agreed(bench, log, _ends(bench, name, kind)) or _settled(bench, log, name, kind)


def _tuning(bench: Bench, log: RunLog, name: str, kind: str) -> list[Job]:
    """The rates that an arm tries: none while the middle of its sweep is not tuned, which says where to look."""
    rates = sorted(bench.rates)
    middle = _middle(bench, kind)
    if middle is not None and name != middle:
        best = _best(log, _tuning(bench, log, middle, kind))
        rates = [] if best is None else rates[max(0, rates.index(best) - 1) : rates.index(best) + 2]
    return [Job(name, kind not in NOISELESS, rate, TUNING_SEED, max(1, bench.rounds // TUNING_SHARE)) for rate in rates]


def _settling(bench: Bench, log: RunLog, name: str, kind: str) -> list[Job]:
    """The rate that the short tuning chose, and the one below."""
    rates = sorted(bench.rates)
    best = _best(log, _tuning(bench, log, name, kind))
    rates = [] if best is None else rates[max(0, rates.index(best) - 1) : rates.index(best) + 1]
    return [Job(name, kind not in NOISELESS, rate, 0, bench.rounds) for rate in rates]


def _best(log: RunLog, jobs: list[Job]) -> float | None:
    """The rate with the lowest validation loss; None before all were tried."""
    tried = [(log.outcome(job.key), job.rate) for job in jobs]
    if not tried or any(outcome is None for outcome, _ in tried):
        return None
    losses = [(outcome["validation"], rate) for outcome, rate in tried if outcome]
    # One that diverged (nan) is no candidate; if all did, there is no rate to go on with.
    return min(((loss, rate) for loss, rate in losses if math.isfinite(loss)), default=(math.nan, None))[1]


@cache
def _trained(bench: Bench) -> list[Kinded]:
    """The arms and their kinds, without those that train nearly the same as another; from all data downwards."""
    same = alike(bench.plans)
    noisy = [(name, kind) for kind in KINDS if kind not in NOISELESS for name in _names(bench, kind)]
    clean = [(name, "clipped") for (name, noise), other in same.items() if not noise and name == other]
    return [(FREE, FREE), *clean, *((name, kind) for name, kind in noisy if name == same[name, True])]


def _ends(bench: Bench, name: str, kind: str) -> list[Kinded]:
    """The arms with most and with least noise of this one's sweep. Without noise, one that stands for all."""
    if kind in NOISELESS:
        middle = _middle(bench, kind)
        return [] if middle is None else [(middle, kind)]
    method = name.split("-")[0]
    sweep = [arm for arm in _trained(bench) if arm[1] not in NOISELESS and arm[0].split("-")[0] == method]
    return [sweep[0], sweep[-1]]


def _agreed(bench: Bench, log: RunLog, arms: list[Kinded]) -> float | None:
    """The rate that all of these have chosen."""
    rates = {_settled(bench, log, *arm) for arm in arms}
    return rates.pop() if len(rates) == 1 else None


def _settled(bench: Bench, log: RunLog, name: str, kind: str) -> float | None:
    """The best of an arm's own runs of full length, as far as they have ended."""
    return _best(log, [job for job in _settling(bench, log, name, kind) if log.outcome(job.key)])


def _names(bench: Bench, kind: str) -> list[str]:
    """The planned arms of a kind, from all data downwards."""
    if kind == FREE:
        return [FREE]
    label = "paper, all data" if kind == "clipped" else kind
    return [arm.name for arm in planned(bench.plans) if arm.label == label]


def _middle(bench: Bench, kind: str) -> str | None:
    names = _names(bench, kind)
    return names[len(names) // 2] if names else None

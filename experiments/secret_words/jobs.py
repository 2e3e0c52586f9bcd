"""What is trained, in which order: a short tuning of the learning rate for every kind of arm alike, then all arms.

Tuning uses a fifth of the rounds and the validation part; what is reported is the test part. Each job is one line of
the study's log, so that the study goes on where it stopped, on this machine or on another.
"""

import math
import multiprocessing
import time
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch

import hush
from experiments.runs import RunLog
from experiments.secret_words.arms import alike, planned
from experiments.secret_words.data import PARTS, Prepared
from experiments.secret_words.training import Task, mean_loss_of, new_model, train_ordinarily, train_under

__all__ = ["FREE", "KINDS", "Bench", "Job", "chosen_rate", "run_jobs"]

FREE = "no protection"  # neither clipped nor noisy
CLEAN = 1e-9  # times the noise: what the clipping and the weights alone cost
TUNING_SEED, TUNING_SHARE = 100, 5
KINDS = (FREE, "clipped", "paper, all data", "paper, program", "hush, all data", "hush")  # each has its learning rate


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


def chosen_rate(log: RunLog, kind: str, bench: Bench) -> float | None:
    """The learning rate with the lowest validation loss in the tuning; None before all were tried."""
    tried = [(log.outcome(job.key), job.rate) for job in _tuning(bench, kind)]
    if not tried or any(outcome is None for outcome, _ in tried):
        return None
    losses = [(outcome["validation"], rate) for outcome, rate in tried if outcome]
    # One that diverged (nan) is no candidate; if all did, there is no rate to go on with.
    return min(((loss, rate) for loss, rate in losses if math.isfinite(loss)), default=(math.nan, None))[1]


def run_jobs(bench: Bench) -> None:
    """Everything that is left to do and has time."""
    for stage in ("tuning", "final"):
        log = RunLog(bench.log)
        jobs = (
            [job for kind in KINDS for job in _tuning(bench, kind)] if stage == "tuning" else list(_final(bench, log))
        )
        left = [job for job in jobs if log.outcome(job.key) is None]
        print(f"{len(jobs) - len(left)} of {len(jobs)} runs are there, {len(left)} to do", flush=True)
        if bench.workers == 1:
            _begin(bench)
            for job in left:
                _work(job)
        else:
            context = multiprocessing.get_context("spawn")
            with ProcessPoolExecutor(bench.workers, context, initializer=_begin, initargs=(bench,)) as pool:
                list(pool.map(_work, left))


def _names(bench: Bench, kind: str) -> list[str]:
    """The planned arms of a kind, from all data downwards."""
    arms = planned(bench.work / "plans")
    if kind == FREE:
        return [FREE]
    return [arm.name for arm in arms if arm.label == ("paper, all data" if kind == "clipped" else kind)]


def _tuning(bench: Bench, kind: str) -> list[Job]:
    """Every learning rate at the middle of the kind's sweep."""
    names, rounds = _names(bench, kind), max(1, bench.rounds // TUNING_SHARE)
    middle = names[len(names) // 2 : len(names) // 2 + 1]  # a sweep may be empty: nothing feasible
    noise = kind not in (FREE, "clipped")
    return [Job(name, noise, rate, TUNING_SEED, rounds) for name in middle for rate in bench.rates]


def _final(bench: Bench, log: RunLog) -> Iterator[Job]:
    """What the table needs first, seed by seed; then the panels."""
    rates = {kind: chosen_rate(log, kind, bench) for kind in KINDS}
    own = {kind: _names(bench, kind) for kind in KINDS}
    middle = {names[len(names) // 2] for names in own.values() if names}
    same = alike(bench.work / "plans")
    first = [name for (name, noise), other in same.items() if noise and name == other]
    noisy = [(name, kind, kind != FREE) for kind in KINDS if kind != "clipped" for name in own[kind]]
    noisy = [entry for entry in noisy if entry[0] in {FREE, *first}]
    clean = [(name, "clipped", False) for (name, noise), other in same.items() if not noise and name == other]
    table = [entry for entry in noisy if entry[0] in middle]
    for group in (table, [*clean, *(entry for entry in noisy if entry not in table)]):
        for seed in range(bench.seeds):
            for name, kind, noise in group:
                rate = rates[kind]
                if rate is not None:
                    yield Job(name, noise, rate, seed, bench.rounds)


_state: dict[str, Any] = {}  # of this worker


def _begin(bench: Bench) -> None:
    torch.set_float32_matmul_precision("high")
    rows = Prepared.load(bench.work, PARTS).rows
    task = Task.of(rows, vocabulary=bench.vocabulary, micro_batch=bench.micro_batch)
    minutes = None if bench.until is None else (bench.until - time.time()) / 60
    _state.update(bench=bench, task=task, log=RunLog(bench.log, minutes=minutes))


def _work(job: Job) -> None:
    _state["log"].run(job.key, lambda: _outcome(job, _state["bench"], _state["task"]))


def _outcome(job: Job, bench: Bench, task: Task) -> dict[str, Any]:
    model = new_model(task, bench.start)
    if job.arm == FREE:
        train_ordinarily(
            task, model, batch_size=bench.batch_size, rounds=job.rounds, learning_rate=job.rate, seed=job.seed,
            compile=bench.compile, part="train",
        )  # fmt: skip
    else:
        plan = hush.Plan.load(bench.work / "plans" / job.arm)
        # Fewer rounds, as in the tuning, keep every promise too.
        plan = replace(plan, rounds=job.rounds, noise_scale=plan.noise_scale if job.noise else CLEAN)
        train_under(plan, task, model, learning_rate=job.rate, seed=job.seed, compile=bench.compile)
    return {part: mean_loss_of(task, model, part) for part in ("validation", "test")}

"""The runs themselves. Each job is one line of the study's log, so that the study goes on where it stopped, on this
machine or on another; several processes may share one device."""

from dataclasses import replace
from typing import Any

import torch

import hush
from experiments.runs import RunLog, worker_map
from experiments.secret_words.data import PARTS, Prepared
from experiments.secret_words.schedule import (
    FREE,
    Bench,
    Job,
    final,
    settling_between,
    settling_ends,
    tuning_around,
    tuning_middles,
)
from experiments.secret_words.training import Task, mean_loss_of, new_model, train_ordinarily, train_under

__all__ = ["run_jobs"]

CLEAN = 1e-9  # times the noise: what the clipping and the weights alone cost


def run_jobs(bench: Bench) -> None:
    """Everything that is left to do and has time."""
    with worker_map(bench.workers, _begin, bench) as run:
        # Each reads what the one before has found.
        for jobs_of in (tuning_middles, tuning_around, settling_ends, settling_between, final):
            log = RunLog(bench.log)
            jobs = list(jobs_of(bench, log))
            left = [job for job in jobs if log.outcome(job.key) is None]
            print(f"{len(jobs) - len(left)} of {len(jobs)} runs are there, {len(left)} to do", flush=True)
            list(run(_work, left))


_state: dict[str, Any] = {}  # of this worker


def _begin(bench: Bench) -> None:
    torch.set_float32_matmul_precision("high")
    rows = Prepared.load(bench.work, PARTS).rows
    task = Task.of(rows, vocabulary=bench.vocabulary, micro_batch=bench.micro_batch)
    _state.update(bench=bench, task=task, log=RunLog(bench.log, minutes=bench.minutes))


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
        plan = hush.Plan.load(bench.plans / job.arm)
        # Fewer rounds, as in the tuning, keep every promise too.
        plan = replace(plan, rounds=job.rounds, noise_scale=plan.noise_scale if job.noise else CLEAN)
        train_under(plan, task, model, learning_rate=job.rate, seed=job.seed, compile=bench.compile)
    losses = {part: mean_loss_of(task, model, part) for part in ("validation", "test")}
    return {**losses, "start": bench.start_digest}

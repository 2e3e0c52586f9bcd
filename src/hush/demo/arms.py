"""The arms: the same model on the same data, for the same rounds, under four plans. hush's own is a ``hush run``.

Without protection there is a plan, too, since only plans are trained: all data, no clipping, and noise scaled down to
nothing, which marks it a simulation that certifies nothing.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import final

import numpy as np

from hush.audit.canary_files import read_canaries
from hush.corpus import read_corpus
from hush.demo.scores import Canaries, attacked
from hush.demo.sizes import LENGTH, Size
from hush.errors import HushError
from hush.keyed import DataKey
from hush.pipeline.folder import RunPaths
from hush.plan import Plan
from hush.plan.held_out import graph_of_training, held_out_examples, make_plan_holding_out
from hush.report.inputs import read_evaluations
from hush.report.numbers import kept_weight
from hush.train.evaluation import LOSS
from hush.train.fit import Stopped, fit
from hush.train.recipe import Recipe, Runtime
from hush.train.rounds import LiveNumbers
from hush.weights.frontier import FrontierRow, frontier

__all__ = ["ARMS", "HUSH", "OTHERS", "Arm", "Result", "Task", "plan_of", "result_of", "train_arm"]

Told = Callable[[int], None]
NO_CLIPPING = 1e6  # far above the norm of any example's gradient here
NO_NOISE = 1e-18  # what the planned noise is multiplied by; with the clip norm above, below float32's resolution


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class Arm:
    """A way to train. name: of its folder; title: in tables; meaning: a sentence for whoever sees it first."""

    name: str
    title: str
    meaning: str


NONE = Arm(name="none", title="no protection", meaning="plain training: no clipping, no noise, nothing promised")
PAPER = Arm(name="paper", title="paper, all data", meaning="the paper's proof by KL divergence, on all data")
PROGRAM = Arm(
    name="paper-program",
    title="paper, program",
    meaning="the same proof, with the paper's linear program leaving out as much data as hush does, or less",
)
HUSH = Arm(name="hush", title="hush", meaning="the tight proof, with data weighted by what it costs")
OTHERS = (NONE, PAPER, PROGRAM)
ARMS = (*OTHERS, HUSH)


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class Task:
    """An arm to train beside a run of hush whose plan is made. folder: of the demo; base: of the first model."""

    arm: Arm
    size: Size
    folder: Path
    base: Path


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class Result:
    """What came of an arm. noise_multiplier: what was added; kept: of their weight, by examples with secrets.

    certified: the largest posterior of any secret, None where nothing is certified; share: the largest of its ceiling.
    curve: (round, loss on examples that were held out).
    """

    arm: Arm
    noise_multiplier: float
    kept: float
    certified: float | None
    share: float | None
    curve: tuple[tuple[int, float], ...]
    canaries: Canaries

    @property
    def loss(self) -> float:
        """At the end of training."""
        return self.curve[-1][1]


def plan_of(arm: Arm, planned: Plan) -> Plan:
    """The plan of another arm, for the promises, rounds and batches of hush's own, with the same examples held out."""
    same = partial(
        make_plan_holding_out,
        planned.incidence,
        held_out_examples(planned),
        prior=planned.prior,
        ceiling=planned.ceiling,
        batch_size=planned.batch_size,
        rounds=planned.rounds,
        secret_ids=planned.secret_ids,
        data_fingerprint=planned.data_fingerprint,
    )
    if arm == NONE:
        return same(capacity="none", clip_norm=NO_CLIPPING, noise_scale=NO_NOISE)
    if arm == PAPER:
        return same(capacity="none", bound="kl")
    if arm == PROGRAM:
        return same(capacity="paper", strength=_strength(planned), bound="kl")
    raise HushError(f"{arm.name} is no arm beside hush; its plan is the run's own")


def _strength(planned: Plan) -> float:
    """The paper's c with the least noise among those that keep as much data as hush; the largest if none does."""
    sweep = partial(
        frontier,
        graph_of_training(planned),
        prior=planned.prior,
        ceiling=planned.ceiling,
        batch_size=planned.batch_size,
        rounds=planned.rounds,
        bound="kl",
        capacity="paper",
    )

    def enough(rows: Sequence[FrontierRow]) -> Sequence[FrontierRow]:
        return [row for row in rows if row.kept_weight >= kept_weight(planned)] or rows[:1]

    least = enough(sweep().rows[1:])[-1].setting  # the first row keeps everything
    fine = sweep(settings=np.geomspace(least, least / 2, 9).tolist()).rows
    return min(enough(fine), key=lambda row: row.noise_multiplier).setting


def train_arm(task: Task, told: Told) -> Result:
    """Plan, train, evaluate and attack an arm, in a folder of its own beside the run; told of every round."""
    run, size = RunPaths(task.folder / "run"), task.size
    plan = plan_of(task.arm, Plan.load(run.plan))
    folder = task.folder / task.arm.name

    def progress(live: LiveNumbers) -> None:
        told(live.round)

    recipe = Recipe(model=str(task.base), learning_rate=size.learning_rate, warmup=size.warmup, max_length=LENGTH)
    ended = fit(
        plan,
        recipe,
        read_corpus(run.canaries / "owner" / "data.parquet"),
        key=DataKey.load(run.owner / "data.key"),
        output=folder,
        runtime=Runtime(
            micro_batch=size.batch_size, save_every=size.save_every, evaluate_every=size.save_every, device="cpu"
        ),
        progress=progress,
    )
    if isinstance(ended, Stopped):
        raise HushError(f"the training in {folder} stopped after round {ended.round}, which nobody asked for")
    return result_of(task, plan, ended.release)


def result_of(task: Task, plan: Plan, release: Path) -> Result:
    """Numbers of a finished training, of which this was released."""
    planting = read_canaries(RunPaths(task.folder / "run").canaries)
    real = plan.certificate.is_real
    return Result(
        arm=task.arm,
        noise_multiplier=plan.noise_multiplier if real else 0.0,
        kept=kept_weight(plan),
        certified=float(plan.posterior.max()) if real else None,
        share=float((plan.posterior / plan.ceiling).max()) if real else None,
        curve=tuple((row["round"], row[LOSS]) for row in read_evaluations(release)),
        canaries=attacked(release / "model", planting, length=LENGTH, candidates=task.size.candidates),
    )

"""The arms: the same model on the same data, for the same rounds, under four plans. hush's own is a ``hush run``.

Without protection there is a plan, too, since only plans are trained: all data, no clipping, and noise scaled down to
nothing, which marks it a simulation that certifies nothing.

Arms side by side: processes of one thread each, since a model this small gains nothing from more.

They are started before there is anything to do, so that loading the libraries costs no waiting.

What a trained model gives away: how far up its canaries rank, and whether it says them. The same for every arm.
"""

import multiprocessing
import os
import signal
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ProcessPoolExecutor, wait
from concurrent.futures.process import BrokenProcessPool
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from types import TracebackType
from typing import Any, Self, final

import numpy as np
import torch

from hush.audit.canaries import CanarySet, read_canaries
from hush.audit.exposure import CanaryRank, rank_canary
from hush.audit.models import Subject, load_subject, matching_tokens
from hush.data import read_corpus
from hush.demo.company import LENGTH, Size
from hush.errors import HushError
from hush.keys import DataKey
from hush.plan import Plan
from hush.plan.make import graph_of_training, held_out_examples, make_plan_holding_out
from hush.report.numbers import kept_weight
from hush.report.report import read_evaluations
from hush.run.folder import RunPaths
from hush.scan.engines import available_cores
from hush.train.fit import LOSS, Stopped, fit
from hush.train.round import LiveNumbers
from hush.train.settings import Recipe, Runtime
from hush.weights.frontier import FrontierRow, frontier

__all__ = [
    "ARMS",
    "HUSH",
    "OTHERS",
    "Arm",
    "Canaries",
    "InTurn",
    "Result",
    "Task",
    "Workers",
    "attacked",
    "plan_of",
    "quietly",
    "result_of",
    "still_libraries",
    "train_arm",
]


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class Canaries:
    """What an attack gets back of the canaries. said: how many the model says word for word when prompted."""

    ranked: tuple[CanaryRank, ...]
    said: int

    @property
    def exposure(self) -> float:
        """The mean over the canaries, in bits."""
        return float(np.mean([one.exposure for one in self.ranked]))

    @property
    def named(self) -> int:
        """How many come first among their candidates."""
        return sum(one.rank == 1 for one in self.ranked)


def attacked(model: Path, planting: CanarySet, *, length: int, candidates: int) -> Canaries:
    """Rank every canary among its candidates, and prompt the model with the text before it."""
    subject, tokenizer = load_subject(str(model))
    ranked = tuple(
        rank_canary(subject, tokenizer, canary, planting.candidates, max_length=length, max_candidates=candidates)
        for canary in planting.canaries
    )
    said = sum(
        _says(subject, tokenizer, canary.template.before, planting.candidates.text(canary.truth))
        for canary in planting.canaries
    )
    return Canaries(ranked=ranked, said=said)


def _says(subject: Subject, tokenizer: Any, before: str, secret: str) -> bool:
    """Whether the likeliest bytes after the prompt are the secret; over bytes, text splits anywhere."""
    prompt, target = (torch.tensor([tokenizer(text)["input_ids"]]) for text in (before, secret))
    return int(matching_tokens(subject, prompt, target)[0]) == target.shape[1]


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


MOMENT = 0.3  # seconds between looks at how far everybody is


def still_libraries() -> None:
    """One thread for this process, and no bars or warnings of the libraries beneath."""
    import torch
    from transformers.utils import logging

    torch.set_num_threads(1)
    logging.disable_progress_bar()
    logging.set_verbosity_error()


@contextmanager
def quietly() -> Iterator[None]:
    """``still_libraries`` for a while; afterwards they are as they were."""
    import torch
    from transformers.utils import logging

    threads, verbosity, bars = torch.get_num_threads(), logging.get_verbosity(), logging.is_progress_bar_enabled()
    try:
        still_libraries()
        yield
    finally:
        torch.set_num_threads(threads)
        logging.set_verbosity(verbosity)
        if bars:
            logging.enable_progress_bar()


@final
class Workers:
    """Processes that train the arms beside hush's own; they end with this object."""

    def __init__(self, most: int) -> None:
        context = multiprocessing.get_context("spawn")
        self._rounds: Any = context.RawArray("q", len(OTHERS))
        count = min(most, available_cores())
        self._pool = ProcessPoolExecutor(count, mp_context=context, initializer=_prepare, initargs=(self._rounds,))
        self._futures: list[Future[Result]] = []
        self._started = [self._pool.submit(os.getpid) for _ in range(count)]
        self._processes = list((self._pool._processes or {}).values())
        self._done = False

    def __enter__(self) -> Self:
        return self

    def begin(self, tasks: Sequence[Task]) -> None:
        """Hand out the work; it goes on while this process does something else."""
        self._futures = [self._pool.submit(_work, place, task) for place, task in enumerate(tasks)]

    @property
    def rounds(self) -> Mapping[str, int]:
        """How many rounds each arm has done."""
        return {arm.name: int(done) for arm, done in zip(OTHERS, self._rounds, strict=True)}

    def results(self, waiting: Callable[[], None]) -> list[Result]:
        """Of all arms, in their order; ``waiting`` is called every moment until they are there."""
        try:
            while wait(self._futures, timeout=MOMENT).not_done:
                waiting()
                for future in self._futures:
                    if future.done():
                        future.result()  # an error ends it at once
            found = [future.result() for future in self._futures]
        except BrokenProcessPool:
            raise HushError("a process of the demo died, for lack of memory perhaps; try --quick") from None
        self._done = True
        return found

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._pool.shutdown(wait=self._done, cancel_futures=True)
        for process in [] if self._done else self._processes:  # what they are at is of no more use
            process.terminate()
        for process in self._processes:
            process.join()


@final
class InTurn:
    """The same without other processes: each arm after the other, once their results are asked for."""

    def __init__(self) -> None:
        self._tasks: Sequence[Task] = ()
        self.rounds: dict[str, int] = {arm.name: 0 for arm in OTHERS}

    def __enter__(self) -> Self:
        return self

    def begin(self, tasks: Sequence[Task]) -> None:
        """Keep the work for later."""
        self._tasks = tasks

    def results(self, waiting: Callable[[], None]) -> list[Result]:
        """Of all arms, in their order."""

        def trained(task: Task) -> Result:
            def told(round: int) -> None:
                self.rounds[task.arm.name] = round
                waiting()

            return train_arm(task, told)

        return [trained(task) for task in self._tasks]

    def __exit__(self, *_: object) -> None:
        pass


_rounds: Any = None  # of this process, if it is a worker: shared with the one that started it


def _prepare(rounds: Any) -> None:
    """At the start of a process."""
    global _rounds
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the parent hears Ctrl-C, and ends its processes
    threading.Thread(target=_end_with_parent, daemon=True).start()
    _rounds = rounds
    still_libraries()


def _end_with_parent() -> None:
    """A parent that is killed ends nobody; its processes would go on training for nobody."""
    parent = multiprocessing.parent_process()
    if parent is not None:
        parent.join()
        os._exit(1)


def _work(place: int, task: Task) -> Result:
    def told(round: int) -> None:
        _rounds[place] = round

    return train_arm(task, told)

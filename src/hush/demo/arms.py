"""The four arms of the demo: the same model, data and rounds under four plans; hush's own arm is a ``hush run``.

Only plans can be trained, so the arm without protection has one too: all data, no clipping, and noise scaled down to
nothing, which marks it as a simulation that certifies nothing. Every arm is scored alike: loss on held-out code, how
high its canaries rank, and how many of them it completes.

The other arms train in worker processes with one thread each, since so small a model gains nothing from more. They
start before there is work, so that loading the libraries costs no time; or all arms train one after the other.
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
from hush.demo.company import CONTEXT_BYTES, Size
from hush.errors import HushError, Setting
from hush.keys import DataKey
from hush.plan import Plan
from hush.plan.make import graph_of_training, held_out_examples, make_plan_holding_out
from hush.report.numbers import kept_weight
from hush.report.report import read_evaluations
from hush.run.folder import RunPaths
from hush.scan.engines import available_cores
from hush.train.fit import Stopped, fit
from hush.train.round import LiveNumbers
from hush.train.scores import LOSS
from hush.train.settings import Recipe, Runtime
from hush.weights.frontier import FrontierRow, frontier

__all__ = [
    "ARMS",
    "HUSH",
    "OTHERS",
    "Arm",
    "CanaryScores",
    "Result",
    "SequentialArms",
    "Task",
    "Workers",
    "attack_canaries",
    "plan_of",
    "result_of",
    "silence_libraries",
    "silenced_libraries",
    "train_arm",
]


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class CanaryScores:
    """What attacks recover of the canaries. completed: how many the model completes exactly when prompted."""

    ranked: tuple[CanaryRank, ...]
    completed: int

    @property
    def exposure(self) -> float:
        """The mean exposure of the canaries, in bits."""
        return float(np.mean([canary.exposure for canary in self.ranked]))

    @property
    def ranked_first(self) -> int:
        """How many rank first among their candidates."""
        return sum(canary.rank == 1 for canary in self.ranked)


def attack_canaries(model: Path, planting: CanarySet, *, length: int, candidates: int) -> CanaryScores:
    """Rank every canary among its candidates, and prompt the model with the text before it."""
    subject, tokenizer = load_subject(str(model))
    ranked = tuple(
        rank_canary(subject, tokenizer, canary, planting.candidates, max_length=length, max_candidates=candidates)
        for canary in planting.canaries
    )
    completed = sum(
        _completes(subject, tokenizer, canary.template.before, planting.candidates.text(canary.truth))
        for canary in planting.canaries
    )
    return CanaryScores(ranked=ranked, completed=completed)


def _completes(subject: Subject, tokenizer: Any, before: str, secret: str) -> bool:
    """Whether the likeliest bytes after the prompt are the secret; a tokenizer over bytes splits text anywhere."""
    prompt, target = (torch.tensor([tokenizer(text)["input_ids"]]) for text in (before, secret))
    return int(matching_tokens(subject, prompt, target)[0]) == target.shape[1]


OnRound = Callable[[int], None]  # called with the number of each finished round
NO_CLIPPING = 1e6  # far above the norm of any example's gradient here
NO_NOISE = 1e-18  # what the planned noise is multiplied by; with the clip norm above, below float32's resolution


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class Arm:
    """A way to train. name: of its folder; title: in tables; meaning: one sentence for a newcomer."""

    name: str
    title: str
    meaning: str


NONE = Arm(name="none", title="no protection", meaning="plain training: no clipping, no noise, no promise")
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
    """An arm to train next to hush's own run, once its plan exists. folder: the demo's; base: the initial model."""

    arm: Arm
    size: Size
    folder: Path
    base: Path


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class Result:
    """The numbers of a trained arm. noise_multiplier: as added; kept: the share of their weight that examples with
    secrets kept.

    certified: the largest posterior of any secret, None where nothing is certified; ceiling_share: the largest
    posterior divided by its ceiling. curve: (round, loss on held-out examples).
    """

    arm: Arm
    noise_multiplier: float
    kept: float
    certified: float | None
    ceiling_share: float | None
    curve: tuple[tuple[int, float], ...]
    canaries: CanaryScores

    @property
    def loss(self) -> float:
        """The loss at the end of training."""
        return self.curve[-1][1]


def plan_of(arm: Arm, planned: Plan) -> Plan:
    """The plan of another arm: promises, rounds, batch size and held-out examples are those of hush's plan."""
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
        slots=planned.slots,
        skeleton_fingerprint=planned.skeleton_fingerprint,
    )
    if arm == NONE:
        return same(capacity="none", clip_norm=NO_CLIPPING, noise_scale=NO_NOISE)
    if arm == PAPER:
        return same(capacity="none", bound="kl")
    if arm == PROGRAM:
        return same(capacity="paper", strength=_strength(planned), bound="kl")
    raise HushError(f"{arm.name} is not an arm besides hush; the plan of hush is that of its run")


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


def train_arm(task: Task, on_round: OnRound) -> Result:
    """Plan, train, evaluate and attack an arm, in its own folder beside the run."""
    run, size = RunPaths(task.folder / "run"), task.size
    plan = plan_of(task.arm, Plan.load(run.plan))
    folder = task.folder / task.arm.name

    def progress(live: LiveNumbers) -> None:
        on_round(live.round)

    recipe = Recipe(
        model=str(task.base),
        learning_rate=size.learning_rate,
        warmup=size.warmup,
        max_length=CONTEXT_BYTES,
        public_first=False,
    )
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
        raise HushError(f"the training in {folder} stopped after round {ended.round} without being asked to")
    return result_of(task, plan, ended.release)


def result_of(task: Task, plan: Plan, release: Path) -> Result:
    """The numbers of a finished training. release: the folder that it released."""
    planting = read_canaries(RunPaths(task.folder / "run").canaries)
    real = plan.certificate.is_real
    return Result(
        arm=task.arm,
        noise_multiplier=plan.noise_multiplier if real else 0.0,
        kept=kept_weight(plan),
        certified=float(plan.posterior.max()) if real else None,
        ceiling_share=float((plan.posterior / plan.ceiling).max()) if real else None,
        curve=tuple((row["round"], row[LOSS]) for row in read_evaluations(release)),
        canaries=attack_canaries(release / "model", planting, length=CONTEXT_BYTES, candidates=task.size.candidates),
    )


POLL_SECONDS = 0.3  # between looks at the progress of the workers


def silence_libraries() -> None:
    """Give this process one thread, and turn off progress bars and warnings of the libraries."""
    import torch
    from transformers.utils import logging

    torch.set_num_threads(1)
    logging.disable_progress_bar()
    logging.set_verbosity_error()


@contextmanager
def silenced_libraries() -> Iterator[None]:
    """``silence_libraries`` inside the block; afterwards they are as they were."""
    import torch
    from transformers.utils import logging

    threads, verbosity, bars = torch.get_num_threads(), logging.get_verbosity(), logging.is_progress_bar_enabled()
    try:
        silence_libraries()
        yield
    finally:
        torch.set_num_threads(threads)
        logging.set_verbosity(verbosity)
        if bars:
            logging.enable_progress_bar()


@final
class Workers:
    """Processes that train the other arms; they end when the context is left."""

    def __init__(self, max_workers: int) -> None:
        context = multiprocessing.get_context("spawn")
        self._rounds: Any = context.RawArray("q", len(OTHERS))
        count = min(max_workers, available_cores())
        self._pool = ProcessPoolExecutor(count, mp_context=context, initializer=_start_worker, initargs=(self._rounds,))
        self._futures: list[Future[Result]] = []
        self._started = [self._pool.submit(os.getpid) for _ in range(count)]
        self._processes = list((self._pool._processes or {}).values())
        self._done = False

    def __enter__(self) -> Self:
        return self

    def begin(self, tasks: Sequence[Task]) -> None:
        """Start training in the background."""
        self._futures = [self._pool.submit(_train_in_worker, place, task) for place, task in enumerate(tasks)]

    @property
    def rounds(self) -> Mapping[str, int]:
        """How many rounds each arm has finished."""
        return {arm.name: int(done) for arm, done in zip(OTHERS, self._rounds, strict=True)}

    def results(self, waiting: Callable[[], None]) -> list[Result]:
        """The results of all arms, in order; ``waiting`` is called regularly until they are complete."""
        try:
            while wait(self._futures, timeout=POLL_SECONDS).not_done:
                waiting()
                for future in self._futures:
                    if future.done():
                        future.result()  # raises an error at once
            results = [future.result() for future in self._futures]
        except BrokenProcessPool:
            raise HushError(
                "a process of the demo died, perhaps for lack of memory; try the small demo: ", Setting("quick")
            ) from None
        self._done = True
        return results

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._pool.shutdown(wait=self._done, cancel_futures=True)
        for process in [] if self._done else self._processes:  # their results are of no use any more
            process.terminate()
        for process in self._processes:
            process.join()


@final
class SequentialArms:
    """The interface of ``Workers`` in this process: trains one arm after the other when results are asked for."""

    def __init__(self) -> None:
        self._tasks: Sequence[Task] = ()
        self.rounds: dict[str, int] = {arm.name: 0 for arm in OTHERS}

    def __enter__(self) -> Self:
        return self

    def begin(self, tasks: Sequence[Task]) -> None:
        """Keep the tasks until results are asked for."""
        self._tasks = tasks

    def results(self, waiting: Callable[[], None]) -> list[Result]:
        """The results of all arms, in order."""

        def trained(task: Task) -> Result:
            def on_round(round: int) -> None:
                self.rounds[task.arm.name] = round
                waiting()

            return train_arm(task, on_round)

        return [trained(task) for task in self._tasks]

    def __exit__(self, *_: object) -> None:
        pass


_rounds: Any = None  # in a worker: finished rounds of every arm, in memory shared with the parent


def _start_worker(rounds: Any) -> None:
    """Prepare a worker process."""
    global _rounds
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the parent handles Ctrl-C and ends its workers
    threading.Thread(target=_end_with_parent, daemon=True).start()
    _rounds = rounds
    silence_libraries()


def _end_with_parent() -> None:
    """End this worker when its parent is killed, which would not end it otherwise."""
    parent = multiprocessing.parent_process()
    if parent is not None:
        parent.join()
        os._exit(1)


def _train_in_worker(place: int, task: Task) -> Result:
    def on_round(round: int) -> None:
        _rounds[place] = round

    return train_arm(task, on_round)

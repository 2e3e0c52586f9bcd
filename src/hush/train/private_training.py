"""Private training in the user's own loop: rounds, clipped sums, noise, steps; the core that the front doors share.

private = PrivateTraining(model, optimizer, plan, loss=loss, micro_batch=64, folder="run")
for round in private.rounds():
    for examples in round.micro_batches():
        private.accumulate(collate(examples), examples.real)
    private.step()
certificate = private.finish()

What a round shows of its examples, gathered from all ranks: a record for the run log, numbers for the terminal.

All of it, times included, depends on the secret draw and stays with the owner.

Which optimizers and schedulers may step, and when: with noisy gradients of all that is trained, and only then.
"""

import inspect
import os
from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from hashlib import blake2b
from pathlib import Path
from time import perf_counter
from typing import Any, final
from weakref import WeakKeyDictionary

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.optim import Optimizer
from torch.optim.lr_scheduler import ReduceLROnPlateau
from torch.utils.hooks import RemovableHandle

from hush.certificate import DATA_FINGERPRINT, Certificate
from hush.errors import InvalidInput
from hush.plan import Plan
from hush.train.checkpoints import buffers_digest, refuse_moved_buffers
from hush.train.clipping import Clipped, Loss
from hush.train.distributed import Ranks, bare
from hush.train.preconditions import refuse_coupled, refuse_scaler
from hush.train.public_stream import PublicStream
from hush.train.round import LiveNumbers, Round, RoundSums
from hush.train.run_folder import Export, RoundRecord, tensors_of
from hush.train.run_keeper import Keeper
from hush.train.sampler import Draws, refuse_finer_promises

__all__ = ["PrivateTraining", "Progress", "StepGuard", "check_optimizer", "check_parameters", "check_scheduler"]


RECENT = 100  # rounds whose mean time tells how long the others will take


@final
class Progress:
    """Watches the rounds of a run, one after another."""

    def __init__(self, plan: Plan, ranks: Ranks) -> None:
        self._plan, self._ranks = plan, ranks
        self._began = 0.0
        self._seen: list[tuple[Clipped, NDArray[np.bool_]]] = []
        self.records: deque[RoundRecord] = deque(maxlen=RECENT)

    def begin(self) -> None:
        """Start a round, without what was seen of one that was left in the middle."""
        self._began, self._seen = perf_counter(), []

    def see(self, clipped: Clipped, real: NDArray[np.bool_]) -> None:
        """Note a micro-batch and its mask of real examples; nothing is read off the device yet."""
        self._seen.append((clipped, real))

    def end(self, round: int, signal_to_noise: Tensor | None) -> RoundRecord:
        """The record of the round, counted from 1, over the examples of all ranks, which call this together."""
        real = np.concatenate([mask for _, mask in self._seen] or [np.zeros(0, dtype=np.bool_)])
        losses, norms = (
            _joined([getattr(clipped, name) for clipped, _ in self._seen])[real] for name in ("losses", "norms")
        )
        self._seen = []
        shares = self._ranks.gather((losses, norms))
        losses, norms = (np.concatenate([share[part] for share in shares]) for part in (0, 1))
        record = RoundRecord.of(
            round,
            losses,
            norms,
            clip_norm=self._plan.clip_norm,
            signal_to_noise=None if signal_to_noise is None else float(signal_to_noise),
            seconds=perf_counter() - self._began,
        )
        self.records.append(record)
        return record

    def live(self, reached: int, scores: Mapping[str, float]) -> LiveNumbers | None:
        """The last round's numbers when so many rounds are done; None before the first."""
        if not self.records:
            return None
        last, left = self.records[-1], self._plan.rounds - reached
        pace = float(np.mean([record.seconds for record in self.records]))
        return LiveNumbers(
            round=last.round,
            rounds_left=left,
            loss=last.loss,
            clipped_share=last.clipped_share,
            signal_to_noise=last.signal_to_noise,
            seconds_left=left * pace,
            scores=scores,
        )


def _joined(tensors: list[Tensor]) -> NDArray[np.float64]:
    return torch.cat(tensors).double().cpu().numpy() if tensors else np.zeros(0)


_SHOWN = 5
_GUARDS: "WeakKeyDictionary[Optimizer, RemovableHandle]" = WeakKeyDictionary()


@final
class StepGuard:
    """Refuses every step of an optimizer but those inside ``allowed``: they would use gradients without noise."""

    def __init__(self, optimizer: Optimizer) -> None:
        older = _GUARDS.get(optimizer)
        if older is not None:
            older.remove()  # the optimizer belongs to whoever took it last
        self._open = False
        self._handle = _GUARDS[optimizer] = optimizer.register_step_pre_hook(self._check)

    @contextmanager
    def allowed(self) -> Iterator[None]:
        """Let the optimizer step."""
        self._open = True
        try:
            yield
        finally:
            self._open = False

    def remove(self) -> None:
        """Give the optimizer free."""
        self._handle.remove()

    def _check(self, *_: object) -> None:
        if not self._open:
            raise InvalidInput(
                "optimizer.step() was called outside of PrivateTraining.step(); leave the steps to private.step(), and "
                "leave out any loss scaler"
            )


def check_optimizer(optimizer: Optimizer, model: nn.Module, trainable: Mapping[str, nn.Parameter]) -> None:
    """Refuse an optimizer of other parameters, and one that would look at the data again."""
    if not isinstance(optimizer, Optimizer):
        raise InvalidInput(f"the optimizer is a {type(optimizer).__name__}; pass a torch.optim.Optimizer")
    refuse_scaler(getattr(optimizer, "scaler", None))  # the wrapper of accelerate has one
    closure = inspect.signature(optimizer.step).parameters.get("closure")
    if closure is not None and closure.default is inspect.Parameter.empty:
        raise InvalidInput(
            f"{type(optimizer).__name__} evaluates the loss several times in a step, each of which would cost a round; "
            "use an optimizer that takes one gradient per step, such as AdamW or SGD"
        )
    check_parameters(optimizer, model, trainable)


def check_parameters(optimizer: Optimizer, model: nn.Module, trainable: Mapping[str, nn.Parameter]) -> None:
    """Refuse an optimizer that does not have exactly the trainable parameters, those that training began with."""
    held = {id(parameter) for group in optimizer.param_groups for parameter in group["params"]}
    due = {id(parameter): name for name, parameter in trainable.items()}
    if held == due.keys():
        return
    names = {id(parameter): name for name, parameter in model.named_parameters()}
    lacks = [name for parameter, name in due.items() if parameter not in held]
    beyond = [names.get(parameter, "one of another model") for parameter in held - due.keys()]
    if lacks:
        raise InvalidInput(
            f"the optimizer lacks {len(lacks)} trainable parameters ({_listed(lacks)}), whose share of the noise would "
            "be wasted; give it all parameters that require a gradient, or freeze these before training begins"
        )
    raise InvalidInput(
        f"the optimizer has {len(beyond)} parameters that are not trained privately ({_listed(beyond)}); leave them "
        "out of it, or let them require a gradient before training begins"
    )


def check_scheduler(scheduler: object) -> None:
    """Refuse a schedule that follows a score: on private data that score is a release of its own."""
    if isinstance(scheduler, ReduceLROnPlateau):
        raise InvalidInput(
            "ReduceLROnPlateau sets the rate by a score, which on private data would be a release that no plan "
            "accounts for; use a schedule of the round alone, such as CosineAnnealingLR or LinearLR"
        )


def _listed(names: list[str]) -> str:
    return ", ".join(sorted(names)[:_SHOWN]) + (", …" if len(names) > _SHOWN else "")


FIXED_SEED = "insecure_seed was set: whoever knows it can repeat the draws and take the noise off"


@final
class PrivateTraining:
    """Trains a model under a plan, which alone decides rates, noise, expected batch, clip norm and rounds.

    loss(model, batch) gives one loss per example, from that example alone. micro_batch is how many examples the model
    sees at once: a matter of memory and speed, not of the result. folder keeps checkpoints, the run log and releases;
    training that finds one of its checkpoints there goes on from it. Every save_every rounds the state is saved, and
    the newest `keep` are kept. export(folder) writes the model for a release, safetensors unless given (for a Hugging
    Face model: model.save_pretrained). insecure_seed fixes draws and noise for tests; nothing is certified then. marks
    say, in the certificate, why else it certifies nothing. data_fingerprint is what the caller found the data to have
    under the owner's key (:mod:`hush.keys`): it must be the plan's; where nobody looked, the certificate of the run
    does not repeat the plan's.

    Guarantee: each round draws every example with its planned rate, clips and sums the gradients of all that were
    drawn, adds the plan's noise once and divides by the planned batch size; no more rounds than planned are ever done
    or released, across any number of crashes. Draws repeat after a crash, noise never does.
    """

    def __init__(
        self,
        model: nn.Module,
        optimizer: Optimizer,
        plan: Plan,
        *,
        loss: Loss,
        micro_batch: int = 32,
        scheduler: Any | None = None,
        folder: str | Path | None = None,
        insecure_seed: int | None = None,
        compile: bool = False,
        autocast: torch.dtype | None = None,
        public: PublicStream | None = None,
        export: Export | None = None,
        marks: Sequence[str] = (),
        data_fingerprint: str | None = None,
        save_every: int = 100,
        keep: int = 2,
    ) -> None:
        if micro_batch < 1 or save_every < 1:
            raise InvalidInput(f"micro_batch={micro_batch} and save_every={save_every} must be at least 1")
        if data_fingerprint is not None and data_fingerprint != plan.data_fingerprint:
            raise InvalidInput(
                f"the data have the keyed fingerprint {data_fingerprint}, but the plan was made for "
                f"{plan.data_fingerprint}; pass that very data, under that key, or plan again"
            )
        self._data_checked = data_fingerprint is not None
        self._ranks, model = Ranks.current(), bare(model)
        refuse_coupled(model)
        self._ranks.align(model)
        refuse_finer_promises(plan.ceiling, batch_size=plan.batch_size, rounds=plan.rounds)
        self.plan, self.model, self.optimizer, self.scheduler = plan, model, optimizer, scheduler
        self._micro_batch, self._save_every = micro_batch, save_every
        self._sums = RoundSums(
            model,
            loss,
            plan,
            self._ranks,
            insecure_seed=insecure_seed,
            compile=compile,
            autocast=autocast,
            public=public,
        )
        check_optimizer(optimizer, model, self._sums.trainable)
        check_scheduler(scheduler)
        self._reached = 0
        self._round: Round | None = None
        self._progress = Progress(plan, self._ranks)
        self._closed = False
        self._certificate: Certificate | None = None
        self._marks = (*marks, *(() if insecure_seed is None else (FIXED_SEED,)))
        self._buffers = buffers_digest(model)
        self._keeper: Keeper | None = None
        seed = self._ranks.from_first(os.urandom(32)) if insecure_seed is None else _derived(insecure_seed)
        if folder is not None:
            self._keeper = Keeper(
                folder,
                plan,
                self._ranks,
                model=model,
                trainable=self._sums.trainable,
                optimizer=optimizer,
                scheduler=scheduler,
                export=export or tensors_of(model),
                insecure_seed=insecure_seed,
                draw_seed=seed,
                marks=self._marks,
                keep=keep,
            )
            seed, self._reached = self._keeper.draw_seed, self._keeper.round
        self._draws = Draws(plan.rates, seed=seed)
        self._guard = StepGuard(optimizer)

    @property
    def round(self) -> int:
        """How many rounds are done."""
        return self._reached

    @property
    def live(self) -> LiveNumbers | None:
        """The last round's numbers, for the owner's terminal only; None before the first."""
        return self._progress.live(self._reached, {} if self._keeper is None else self._keeper.scores)

    def rounds(self) -> Iterator[Round]:
        """The rounds that are left; each must end with ``step``. One that was left in the middle is begun again."""
        while self._reached < self.plan.rounds:
            if self._closed:
                raise InvalidInput("this training was closed; make a new PrivateTraining to go on from its last save")
            self._sums.begin()
            self._progress.begin()
            drawn = self._draws.round(self._reached, rank=self._ranks.rank, world=self._ranks.world)
            level = partial(self._ranks.level, model=self.model) if self._ranks.world > 1 else None
            self._round = Round(self._reached, drawn, size=self._micro_batch, level=level)
            yield self._round
            if self._round is not None:
                raise InvalidInput(f"round {self._round.index} was left without step(); call it once in every round")

    def accumulate(self, batch: Mapping[str, Tensor], real: Tensor | NDArray[np.bool_]) -> None:
        """Add one micro-batch to the round's sum; real is its mask of real examples."""
        if self._round is None:
            raise InvalidInput("no round is open; accumulate inside `for round in private.rounds()`, before step()")
        if not isinstance(batch, Mapping):
            raise InvalidInput(f"the batch is a {type(batch).__name__}; pass a dict of tensors, as the loss takes it")
        mask = np.asarray(real.cpu() if isinstance(real, Tensor) else real, dtype=np.bool_).copy()  # it may be refilled
        self._round.count(mask)
        try:
            self._progress.see(self._sums.add(batch, mask), mask)
        except BaseException:
            self._round = None  # the sum may hold half of it; rounds() begins this round again, with the same draw
            raise

    def step(self) -> None:
        """End the round: noise once, division by the planned batch size, the public part, optimizer and scheduler."""
        if self._round is None:
            raise InvalidInput("no round is open; call step() once in every round of `for round in private.rounds()`")
        self._round.check_complete()
        check_parameters(self.optimizer, self.model, self._sums.trainable)
        index = self._round.index
        public = self._sums.public_part(index)
        sums, norm = self._sums.noisy(index)
        # From here on the round counts, whatever interrupts the rest of it: no second noise for its sum.
        self._reached, self._round = index + 1, None
        for name, parameter in self._sums.trainable.items():
            gradient = sums[name].div_(self.plan.batch_size)
            if name in public:
                gradient.add_(public[name])
            parameter.grad = gradient.to(parameter.dtype)
        with self._guard.allowed():
            self.optimizer.step()
        self.optimizer.zero_grad(set_to_none=True)
        if self.scheduler is not None:
            self.scheduler.step()
        record = self._progress.end(self._reached, self._sums.signal_to_noise(norm))
        if self._keeper is not None:
            self._keeper.log(record)
            if self._reached % self._save_every == 0:
                self.save()

    def save(self) -> None:
        """Keep the state after the last round, to resume from; it stays with the owner."""
        keeper = self._need_keeper()
        if self._sums.under_way:
            raise InvalidInput(f"round {self._reached} is under way; save after its step()")
        keeper.save(self._reached)

    @property
    def is_scored(self) -> bool:
        """Whether scores of the model as it is after the last round are kept already."""
        return self._need_keeper().scores.get("round") == self._reached

    def record_scores(self, scores: Mapping[str, float]) -> None:
        """Keep scores of the model after the last round **on data without secrets**, to be released with the last one.

        They appear in release/evaluations.jsonl, one line a round. Guarantee: all are of rounds on the way to the
        released model. They tell of these models and of public data, so the plan covers them; scores on data that may
        bear secrets are not covered, and do not belong here.
        """
        if self._sums.under_way:
            raise InvalidInput(f"round {self._reached} is under way; score after its step()")
        finite = {name: float(score) for name, score in scores.items() if np.isfinite(score)}
        self._need_keeper().keep_scores(self._reached, finite)

    def release(self) -> Path:
        """Release the model of the last round, on the way: it is covered by the plan like the final one."""
        self.save()
        return self._need_keeper().release(self._reached)

    def finish(self) -> Certificate:
        """After the last round, release model and certificate; after a crash it may be called again."""
        if self._reached < self.plan.rounds:
            left = self.plan.rounds - self._reached
            raise InvalidInput(f"{left} of {self.plan.rounds} rounds are left; go through private.rounds() to the end")
        if self._certificate is None:
            versions = {**self.plan.certificate.versions, "torch": torch.__version__}
            fingerprints = dict(self.plan.certificate.fingerprints)
            if not self._data_checked:
                fingerprints.pop(DATA_FINGERPRINT, None)
            certificate = replace(self.plan.certificate, versions=versions, fingerprints=fingerprints)
            if self._keeper is None:
                refuse_moved_buffers(self.model, self._buffers)
                self._certificate = replace(certificate, marks=(*certificate.marks, *self._marks))
            else:
                self._certificate = self._keeper.finish(self._reached, certificate)
            self.close()
        return self._certificate

    def close(self) -> None:
        """Give the folder and the optimizer free; what was not saved is lost."""
        self._guard.remove()
        self._round, self._closed = None, True
        if self._keeper is not None:
            self._keeper.close()

    def _need_keeper(self) -> Keeper:
        if self._keeper is None:
            raise InvalidInput("this training has no folder to write to; pass folder= to PrivateTraining")
        return self._keeper

    def __repr__(self) -> str:
        return f"PrivateTraining(round {self._reached} of {self.plan.rounds})"


def _derived(insecure_seed: int) -> bytes:
    return blake2b(str(insecure_seed).encode(), digest_size=32, person=b"hush test draws").digest()

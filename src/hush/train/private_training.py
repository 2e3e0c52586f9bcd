"""Private training in the user's own loop; ``HushTrainer`` and ``hush train`` are built on it.

    private = PrivateTraining(model, optimizer, plan, loss=loss, micro_batch=64, folder="run")
    for round in private.rounds():
        for examples in round.micro_batches():
            private.accumulate(collate(examples), examples.real)
        private.step()
    certificate = private.finish()

One round of DP-SGD with weighted Poisson sampling, as the methods below do it in this order:

    draw    every example independently, with its own rate                               rounds
    clip    the gradient of each drawn example to norm at most C                         accumulate
    sum     the clipped gradients, over micro-batches and ranks                          accumulate, noisy_sum
    noise   add N(0, (C × noise multiplier)²) to each coordinate of the sum, once         noisy_sum
    step    divide by the planned batch size and hand the result to the optimizer        step
"""

import os
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import replace
from functools import partial
from hashlib import blake2b
from pathlib import Path
from typing import Any, final

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.optim import Optimizer

from hush.certificate import DATA_FINGERPRINT, SKELETON_FINGERPRINT, Certificate
from hush.errors import InvalidInput
from hush.plan import Plan
from hush.train.average import IterateAverage
from hush.train.checkpoints import buffers_digest, refuse_moved_buffers, renew_random_states
from hush.train.clipping import Clipper, Loss
from hush.train.clipping.metric import Metric
from hush.train.distributed import Ranks, reshard, unwrap_ddp
from hush.train.noise import Noise
from hush.train.preconditions import (
    StepGuard,
    check_optimizer,
    check_parameters,
    check_scheduler,
    most_positions,
    refuse_batch,
    refuse_coupled,
    refuse_large_batch,
    refuse_longer,
    refuse_passed_ceilings,
)
from hush.train.probes import FirstBatchProbes
from hush.train.public.first import PublicOutcome
from hush.train.public.metric import PublicMetric
from hush.train.public.stream import PublicStream
from hush.train.round import LiveNumbers, RoundMonitor, TrainingRound
from hush.train.run_folder import Export, tensors_of
from hush.train.run_keeper import RunKeeper, rounded_score
from hush.train.sampler import Draws

__all__ = ["PrivateTraining", "noisy_sum"]


FIXED_SEED = "insecure_seed was set: whoever knows it can repeat the draws and take the noise off"


@final
class PrivateTraining:
    """Trains a model under a plan, which alone decides rates, noise, expected batch size, clip norm and rounds.

    loss(model, batch) gives one loss per example, from that example alone. micro_batch is how many examples the model
    sees at once: it changes memory and speed, not the result. folder keeps checkpoints, the run log and releases; if it
    holds a checkpoint of this training, training resumes from it. The state is saved every save_every rounds, and the
    newest `keep` checkpoints are kept. export(folder) writes the model for a release, by default as safetensors (for a
    Hugging Face model pass model.save_pretrained). insecure_seed fixes draws and noise for tests; nothing is certified
    then. marks are further reasons, stated in the certificate, why it certifies nothing. data_fingerprint is the keyed
    fingerprint (:mod:`hush.keys`) of the data that the caller trains on: it must be the plan's. Without it the
    certificate of the run does not repeat the plan's fingerprint. learnt_first is what ``learn_public`` returned for
    this model, if it was called before: the certificate then names both parts. rehearsed: whether settings were chosen
    by a rehearsal on public content (:mod:`hush.rehearse`), which the certificate then says. Without
    private_rounds none is trained, and the model is released as it is; the certificate says so. In a metric, measured
    from what is public, gradients are clipped and receive noise; the updates are those of the gradients themselves,
    with less noise where they are small. average is the share of the rounds, the last ones, over whose models the
    released one is the mean; without it the last model is released.

    Guarantee: each round draws every example with its planned rate, clips and sums the gradients of all drawn examples,
    adds the plan's noise once and divides by the planned batch size; no more rounds than planned are ever done or
    released, across any number of crashes. Draws repeat after a crash, noise never does. What computed draws and noise
    add to the posteriors is part of the certificate; if a ceiling would be exceeded, training is refused.
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
        metric: PublicMetric | None = None,
        export: Export | None = None,
        marks: Sequence[str] = (),
        average: float | None = None,
        data_fingerprint: str | None = None,
        learnt_first: PublicOutcome | None = None,
        private_rounds: bool = True,
        rehearsed: bool = False,
        save_every: int = 100,
        keep: int = 2,
    ) -> None:
        for name, number in (("micro_batch", micro_batch), ("save_every", save_every)):
            if number < 1:
                raise InvalidInput("pass a whole number of at least 1", setting=name, value=number)
        if data_fingerprint is not None and data_fingerprint != plan.data_fingerprint:
            raise InvalidInput(
                f"the data have the keyed fingerprint {data_fingerprint}, but the plan was made for "
                f"{plan.data_fingerprint}; pass the data that the plan was made for, under the same key, or plan again"
            )
        self._data_checked = data_fingerprint is not None
        self._ranks, model = Ranks.current(), unwrap_ddp(model)
        refuse_coupled(model)
        self._ranks.broadcast_model_(model)
        self.plan, self.model, self.optimizer, self.scheduler = plan, model, optimizer, scheduler
        self._loss, self._autocast, self._public = loss, autocast, public
        self._micro_batch, self._save_every = micro_batch, save_every
        self._trainable = {name: p for name, p in model.named_parameters() if p.requires_grad}
        self._num_trained = sum(parameter.numel() for parameter in self._trainable.values())
        refuse_large_batch(plan)
        devices = {parameter.device for parameter in self._trainable.values()}
        refuse_passed_ceilings(plan, self._num_trained, streams=self._ranks.world * len(devices))
        make_clipper = partial(Clipper, model, loss, clip_norm=plan.clip_norm, autocast=autocast)
        self._clipper = make_clipper(compile=compile)
        self._noise = Noise(insecure_seed=insecure_seed, compile=compile)
        self._noise_scale = plan.clip_norm * plan.training_noise_multiplier
        self._probes = FirstBatchProbes(model, loss, self._ranks, make_clipper=make_clipper, autocast=autocast)
        self._most_positions = most_positions(model)
        check_optimizer(optimizer, model, self._trainable)
        check_scheduler(scheduler)
        if metric is not None:
            metric.refuse_other_plan(plan)
        self._public_metric, self._metric = metric, None
        self._measured_before: int | None = None  # the round before which the metric in use was measured
        self._rounds_done, self._rounds = 0, plan.rounds if private_rounds else 0
        self._round: TrainingRound | None = None  # the one that is open
        self._holds_sums = False  # whether something was added to the sums of a round that has not ended
        self._monitor = RoundMonitor(plan, self._ranks)
        self._closed = False
        self._certificate: Certificate | None = None
        self._rehearsed = rehearsed or None
        self._public_part = None if learnt_first is None else learnt_first.public_part
        self._marks = (*marks, *(() if insecure_seed is None else (FIXED_SEED,)))
        self._buffers = buffers_digest(model)
        self._average: IterateAverage | None = None
        if average is not None:
            self._average = IterateAverage(model, self._trainable, share=average, rounds=plan.rounds)
        self._keeper: RunKeeper | None = None
        draw_seed = self._ranks.broadcast(os.urandom(32)) if insecure_seed is None else _test_draw_seed(insecure_seed)
        if folder is not None:
            self._keeper = RunKeeper(
                folder,
                plan,
                self._ranks,
                model=model,
                trainable=self._trainable,
                optimizer=optimizer,
                scheduler=scheduler,
                export=export or tensors_of(model),
                insecure_seed=insecure_seed,
                draw_seed=draw_seed,
                marks=self._marks,
                public_part=self._public_part,
                keep=keep,
                metric=None if metric is None else metric.settings,
                average=self._average,
            )
            self._use_metric(self._keeper.metric)
            draw_seed, self._rounds_done = self._keeper.draw_seed, self._keeper.round
        self._draws = Draws(plan.rates, seed=draw_seed)
        self._guard = StepGuard(optimizer)

    # ---- one private round: draw, clip, sum, noise, step ----

    def rounds(self) -> Iterator[TrainingRound]:
        """Draw the examples of each round that is left; every round must end with ``step``.

        A round that was abandoned is begun again, with the same draw.
        """
        while self._rounds_done < self._rounds:
            self._begin_round()
            drawn = self._draws.round(self._rounds_done, rank=self._ranks.rank, world=self._ranks.world)
            self._round = TrainingRound(self._rounds_done, drawn, size=self._micro_batch, pad=self._pad_batches)
            yield self._round
            if self._round is not None:
                raise InvalidInput(f"round {self._round.index} was left without step(); call it once in every round")

    def accumulate(self, batch: Mapping[str, Tensor], real: Tensor | NDArray[np.bool_]) -> None:
        """Clip each example's gradient and add it to the round's sum; ``real`` is the mask of real examples."""
        mask = self._count_micro_batch(batch, real)
        with self._abandon_round_on_error():
            self._check_batch(batch, mask)
            self._holds_sums = True
            mask_on_device = torch.as_tensor(mask).to(self._device, non_blocking=True)  # no wait for the device
            self._probes.run_if_due(batch, torch.as_tensor(mask))
            self._monitor.see(self._clipper.accumulate(batch, mask_on_device), mask)

    def step(self) -> None:
        """End the round: noise once, division by the planned batch size, the public part, optimizer and scheduler."""
        index = self._check_complete()
        public = self._public_gradients(index)
        sums, norm = noisy_sum(
            self._clipper.take(exact=True),
            self._trainable,
            ranks=self._ranks,
            noise=self._noise,
            scale=self._noise_scale,
            round=index,
            metric=self._metric,
        )
        # From here on the round counts, even if the rest of it is interrupted: its sum never gets noise twice.
        self._rounds_done, self._round, self._holds_sums = index + 1, None, False
        scale = self._private_scale(public)
        for name, gradient in sums.items():
            gradient.div_(self.plan.batch_size)
            if scale != 1:
                gradient.mul_(scale)
            if name in public:
                gradient.add_(public[name])
        if self._metric is not None:
            self._metric.precondition_(sums)
        for name, parameter in self._trainable.items():
            parameter.grad = sums[name].to(parameter.dtype)
        with self._guard.allowed():
            self.optimizer.step()
        self.optimizer.zero_grad(set_to_none=True)
        if self.scheduler is not None:
            self.scheduler.step()
        if self._average is not None:
            self._average.update(self._rounds_done)
        self._record_round(norm)

    # ---- what surrounds a round ----

    def _begin_round(self) -> None:
        if self._closed:
            raise InvalidInput("this training was closed; make a new PrivateTraining to resume from its last save")
        if self._holds_sums:  # of a round that was abandoned
            self._clipper.take()
            self._holds_sums = False
        refuse_coupled(self.model)  # model.train() may have thawed something
        reshard(self.model)  # an evaluation may have gathered the parameters
        if self._noise.is_secure:
            renew_random_states()
        self._measure_metric()
        self._monitor.begin()

    def _measure_metric(self) -> None:
        """Measure the public metric if that is due: before the draw, on the model that earlier rounds made."""
        public = self._public_metric
        if public is None or self._measured_before == self._rounds_done:
            return
        if self._metric is None or public.is_due(self._rounds_done):
            metric = public.measure(
                self.model,
                self._loss,
                round=self._rounds_done,
                clip_norm=self.plan.clip_norm,
                autocast=self._autocast,
            )
            self._use_metric(metric)
            self._measured_before = self._rounds_done

    def _use_metric(self, metric: Metric | None) -> None:
        if metric is None:
            return
        metric.check(self._trainable)
        self._metric = metric.to({name: parameter.device for name, parameter in self._trainable.items()})
        self._clipper.use_metric(self._metric)
        if self._keeper is not None:
            self._keeper.metric = metric

    @property
    def _pad_batches(self) -> Any:
        return partial(self._ranks.pad_batches, model=self.model) if self._ranks.world > 1 else None

    def _count_micro_batch(self, batch: object, real: Tensor | NDArray[np.bool_]) -> NDArray[np.bool_]:
        """Note in the round that its next micro-batch is accumulated; a copy of its mask, since callers reuse masks."""
        if self._round is None:
            raise InvalidInput("no round is open; accumulate inside `for round in private.rounds()`, before step()")
        if not isinstance(batch, Mapping):
            raise InvalidInput(f"the batch is a {type(batch).__name__}; pass a dict of tensors, as the loss takes it")
        mask = np.asarray(real.cpu() if isinstance(real, Tensor) else real, dtype=np.bool_).copy()
        self._round.count(mask)
        return mask

    def _check_batch(self, batch: Mapping[str, Tensor], mask: NDArray[np.bool_]) -> None:
        refuse_batch(batch, len(mask))
        refuse_longer(batch, self._most_positions)

    @contextmanager
    def _abandon_round_on_error(self) -> Iterator[None]:
        """The sum may hold half of a failed micro-batch, so ``rounds`` must begin this round again, same draw."""
        try:
            yield
        except BaseException:
            self._round = None
            raise

    def _check_complete(self) -> int:
        """The index of the open round, all of whose drawn examples were accumulated."""
        if self._round is None:
            raise InvalidInput("no round is open; call step() once in every round of `for round in private.rounds()`")
        self._round.check_complete()
        reshard(self.model)  # gathered parameters are other tensors
        check_parameters(self.optimizer, self.model, self._trainable)
        return self._round.index

    def _public_gradients(self, round: int) -> dict[str, Tensor]:
        """What the public stream adds to the update of this round, the same on every rank."""
        if self._public is None:
            return {}
        gradients = self._public.gradients(
            self.model, self._loss, self._trainable, round=round, autocast=self._autocast
        )
        self._ranks.broadcast_tensors_(gradients.values())  # replicas agree bit for bit, whatever their kernels do
        return gradients

    def _private_scale(self, public: Mapping[str, Tensor]) -> float:
        """The factor of the noisy mean beside the public part: a function of the latter, the plan and the model."""
        if self._public is None:
            return 1.0
        spread = self._num_trained**0.5 if self._metric is None else self._metric.inverse_norm
        noise_norm = self._noise_scale * spread / self.plan.batch_size
        return self._public.private_scale(public, noise_norm, self._ranks)

    def _record_round(self, norm: Tensor) -> None:
        """Add the round to the owner's run log, and save the state if it is due."""
        signal_to_noise = norm / (self._noise_scale * self._num_trained**0.5) if self._noise_scale else None
        record = self._monitor.end(self._rounds_done, signal_to_noise)
        if self._keeper is not None:
            self._keeper.log(record)
            if self._rounds_done % self._save_every == 0:
                self.save()

    @property
    def _device(self) -> torch.device:
        return next(iter(self._trainable.values())).device

    # ---- between rounds ----

    @property
    def round(self) -> int:
        """How many rounds are done."""
        return self._rounds_done

    @property
    def num_trained(self) -> int:
        """How many parameters are trained, and receive noise."""
        return self._num_trained

    @property
    def live(self) -> LiveNumbers | None:
        """The last round's numbers, for the owner's terminal only; None before the first."""
        return self._monitor.live(self._rounds_done, {} if self._keeper is None else self._keeper.scores)

    @contextmanager
    def released_model(self) -> Iterator[None]:
        """Inside the block the model is what would be released now: the mean, if there is one, else the last model."""
        self._refuse_open_round("show the model")
        with nullcontext() if self._average is None else self._average.shown():
            yield

    def save(self) -> None:
        """Save the state after the last round, to resume from; it stays with the owner."""
        keeper = self._need_keeper()
        self._refuse_open_round("save")
        keeper.save(self._rounds_done)

    @property
    def is_scored(self) -> bool:
        """Whether scores of the model after the last round are kept already."""
        return self._need_keeper().scores.get("round") == self._rounds_done

    def record_scores(self, scores: Mapping[str, float]) -> None:
        """Keep scores of the model after the last round **on data without secrets**, for release with the final model.

        They appear in release/evaluations.jsonl, one line per round, rounded to four digits. Guarantee: all are of
        rounds that lead to the released model. They depend on these models and on public data only, so the plan covers
        them; scores on data that may hold secrets are not covered: do not record them here.
        """
        self._refuse_open_round("score")
        finite = {name: rounded_score(score) for name, score in scores.items() if np.isfinite(score)}
        self._need_keeper().keep_scores(self._rounds_done, finite)

    def release(self) -> Path:
        """Release the model of the last round before training ends: the plan covers it like the final one."""
        self.save()
        return self._need_keeper().release(self._rounds_done)

    def finish(self) -> Certificate:
        """After the last round, release model and certificate; after a crash it may be called again.

        The model then has the parameters that were released.
        """
        if self._rounds_done < self._rounds:
            left = self._rounds - self._rounds_done
            raise InvalidInput(f"{left} of {self.plan.rounds} rounds are left; go through private.rounds() to the end")
        if self._certificate is None:
            certificate = self.plan.run_certificate(self._num_trained)
            versions = {**certificate.versions, "torch": torch.__version__}
            fingerprints = dict(certificate.fingerprints)
            if not self._data_checked:
                for name in (DATA_FINGERPRINT, SKELETON_FINGERPRINT):
                    fingerprints.pop(name, None)
            certificate = replace(
                certificate,
                versions=versions,
                fingerprints=fingerprints,
                public_part=self._public_part,
                private_rounds=None if self._rounds_done else 0,
                rehearsed=self._rehearsed,
            )
            if self._keeper is None:
                refuse_moved_buffers(self.model, self._buffers)
                self._certificate = replace(certificate, marks=(*certificate.marks, *self._marks))
            else:
                self._certificate = self._keeper.finish(self._rounds_done, certificate)
            self.close()
        return self._certificate

    def close(self) -> None:
        """Unlock the folder and the optimizer; rounds that were not saved are lost. The model is as it is released."""
        if self._average is not None:
            self._average.keep()
        self._guard.remove()
        self._round, self._closed = None, True
        if self._keeper is not None:
            self._keeper.close()

    def _refuse_open_round(self, action: str) -> None:
        if self._holds_sums:
            raise InvalidInput(f"round {self._rounds_done} is open; {action} after its step()")

    def _need_keeper(self) -> RunKeeper:
        if self._keeper is None:
            raise InvalidInput("this training has no folder to write to; pass folder= to PrivateTraining")
        return self._keeper

    def __repr__(self) -> str:
        return f"PrivateTraining(round {self._rounds_done} of {self._rounds})"


@torch.no_grad()
def noisy_sum(
    clipped_sums: Mapping[str, Tensor],
    parameters: Mapping[str, Tensor],
    *,
    ranks: Ranks,
    noise: Noise,
    scale: float,
    round: int,
    metric: Metric | None = None,
) -> tuple[dict[str, Tensor], Tensor]:
    """The ranks' clipped sums added up, plus N(0, scale²) once for each coordinate; sharded as the parameters are.

    ``clipped_sums`` are full tensors on every rank, float64 or float32, and are overwritten. The second result is the
    norm of the sum without noise, for the owner only.

    Guarantee: noise is added after the sum over ranks is complete, by exactly one rank for each coordinate; the sum is
    rounded to float32 after that; and all ranks leave with the same values.
    """
    total = ranks.sum(clipped_sums, parameters)
    norm = ranks.norm(total.noised_here.values())
    noise.add_(total.noised_here, scale=scale, round=round, rank=ranks.rank)
    sums = ranks.share(total.rounded())
    if metric is not None:
        metric.unscale_(sums)
    return sums, norm


def _test_draw_seed(insecure_seed: int) -> bytes:
    return blake2b(str(insecure_seed).encode(), digest_size=32, person=b"hush test draws").digest()

"""``HushTrainer``: the Trainer of Hugging Face, training under a plan.

How the two fit together. The train loader yields the number of a round. ``training_step`` draws that round and
accumulates all of its micro-batches; the optimizer step of the Trainer is that of :class:`PrivateTraining`, noise
included. A checkpoint-N is a release of round N: it is entered in the ledger before it appears, holds no random state,
and what training resumes from stays in the owner's folder. Everything else (callbacks, loggers, evaluation, schedules,
the hub) is the Trainer's own, and sees no number that depends on the draw.

HushTrainer overrides private methods of the Trainer, so the supported versions of transformers are bounded, and a test
checks the signatures of what is overridden or called.
"""

import logging
import math
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import Any, final

import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader

from hush.errors import InvalidInput

try:
    from transformers import ProgressCallback, Trainer, TrainingArguments
    from transformers.trainer_utils import PredictionOutput, TrainOutput, rotate_checkpoints
except ImportError as error:
    raise InvalidInput('HushTrainer needs transformers and accelerate; pip install "hush[hf]"') from error

from hush.certificate import Certificate
from hush.keys import DataKey
from hush.plan import Plan
from hush.slots import Spans
from hush.train.cautions import cautions_before
from hush.train.distributed import full_parameters, is_sharded
from hush.train.hf.arguments import checked_settings, refuse_overrides, refuse_selection
from hush.train.hf.collation import Collate, collated_alone, padded_together, padding_values, takes_mask
from hush.train.hf.config import RowSettings
from hush.train.hf.data import (
    CheckedRows,
    check_collator,
    check_data,
    check_key,
    checked_fingerprint,
    described_collator,
    public_stream_of,
    unchecked_marks,
    with_slots,
)
from hush.train.hf.loop import OwnerProgress, PrivateOptimizer, StoredSchedule
from hush.train.hf.preparation import Formatting, PreparedData, adapted, prepare, slot_texts
from hush.train.hf.processes import Unwrapped, agree, check_processes_alike, shard_model, sharded_by_hush
from hush.train.hf.releases import Releases, Scoring, owner_folder, unpack
from hush.train.language_models import CausalCollator, Collator, DifferenceLoss, Loss, MaskedCollator, default_loss
from hush.train.private_training import PrivateTraining
from hush.train.public.first import PublicOutcome
from hush.train.public.metric import PublicMetric
from hush.train.public.parts import learn_first_here
from hush.train.public.stream import PublicStream
from hush.train.round import MicroBatch, TrainingRound
from hush.train.run_keeper import rounded_score
from hush.train.settings import Part, PublicFirst
from hush.train.slots.texts import SlotTexts

logger = logging.getLogger(__name__)

__all__ = ["HushTrainer"]


@final
class HushTrainer(Trainer):
    """``transformers.Trainer`` under a plan; a step is a round, and the plan says how many there are.

    Row i of train_dataset is example i of the plan. loss(model, batch) gives one loss per example, by default what the
    model's class calls for. per_device_train_batch_size is how many examples the model sees at once: it changes memory
    and speed only. output_dir receives what may be released; folder (by default its sibling, output_dir-hush) keeps
    checkpoints and the run log in owner/, and the final model with its certificate in release/. Scores of evaluation
    data are logged, released as evaluations.jsonl, and may choose a model, only if eval_is_public says that these data
    hold no secret; they are rounded to four digits. buckets are lengths to pad to, for
    :class:`~hush.train.language_models.TokenizedTexts`, chosen by settings or public texts alone. For public,
    average and insecure_seed see PrivateTraining.

    For a plan with slots pass spans, where its slots are in the texts, with train_dataset as texts, processing_class as
    their tokenizer and one of hush's collators, whose length texts are cut to; or pass as train_dataset what
    ``tokenise_slots`` returns. ``part`` says what is learnt privately of an example with slots. The public stream over
    skeletons and examples without a secret is then on; public replaces it. metric: see PrivateTraining.

    public_first: learn what is public by ordinary training before the first round, in this process, with the batches of
    the public stream (True, or its settings). The result is ``learnt_first``, and the certificate names both parts.

    key, or the path of its file, is the owner's data key: with it the texts in the ``column`` of train_dataset are
    compared with the plan, row by row, as ``hush train`` does. Keep that column when tokenising; TokenizedTexts come
    from ``tokenise(..., key=key)``. data_fingerprint states instead what the caller computed, on the caller's word.
    Without either, the certificate is marked "data not checked".

    Rows that are texts, conversations, or prompts with completions become tokens before training, each by itself, as
    ``trl.SFTTrainer`` makes them: pass the tokenizer as processing_class, and ``HushConfig`` or TRL's ``SFTConfig`` as
    args. formatting_func makes the text of a row; ``training_texts`` gives these texts, which the plan must be made
    for. peft_config puts adapters into the model. Without a data_collator, batches are padded to a few lengths.

    A data_collator of another library gets one example at a time, and rows are padded at the end; one that ties
    examples together is refused. A subclass may replace what builds the optimizer or sees evaluation data only.

    Guarantee: that of :class:`PrivateTraining`. Loggers, trainer_state.json and checkpoints depend on the draw only
    through the noisy sums of rounds that the ledger lists. Two things are left to the user: a callback that publishes
    what it computes from the model must do so when a checkpoint is saved (``on_save``), because an unsaved round is
    repeated after a crash, with other noise; and loggers record the time of each entry, some the load of the machine,
    while the duration of a round follows the size of its draw: publish logs without either.
    """

    def __init__(
        self,
        model: nn.Module,
        args: TrainingArguments,
        *,
        plan: Plan,
        train_dataset: Any,
        loss: Loss | None = None,
        eval_dataset: Any = None,
        eval_is_public: bool = False,
        data_collator: Callable[..., Any] | None = None,
        processing_class: Any = None,
        formatting_func: Formatting | None = None,
        peft_config: Any = None,
        compute_metrics: Callable[..., dict[str, float]] | None = None,
        preprocess_logits_for_metrics: Callable[..., Tensor] | None = None,
        callbacks: Sequence[Any] = (),
        optimizers: tuple[Any, Any] = (None, None),
        optimizer_cls_and_kwargs: tuple[type[torch.optim.Optimizer], dict[str, Any]] | None = None,
        buckets: Sequence[int] = (),
        spans: Spans | None = None,
        part: Part = "slot",
        public: PublicStream | None = None,
        metric: PublicMetric | None = None,
        average: float | None = None,
        public_first: PublicFirst | bool = False,
        folder: str | Path | None = None,
        key: DataKey | str | os.PathLike[str] | None = None,
        column: str = "text",
        data_fingerprint: str | None = None,
        insecure_seed: int | None = None,
    ) -> None:
        refuse_overrides(self, HushTrainer)
        settings = checked_settings(args, plan, callbacks=callbacks, eval_is_public=eval_is_public)
        self._key, self._column, self._stated_fingerprint = check_key(plan, key), column, data_fingerprint
        model, rows = adapted(model, peft_config, seed=args.seed), RowSettings.of(args, column=column)
        if plan.slots is not None or spans is not None:
            texts, tokenizer, learnt = slot_texts(train_dataset, model, processing_class, rows, formatting_func)
            train_dataset = with_slots(
                texts, plan, spans, tokenizer, data_collator,
                part=part, key=self._key, column=rows.text_field, learnt=learnt,
            )  # fmt: skip
        else:
            data = prepare(
                PreparedData(train=train_dataset, evaluation=eval_dataset, collator=data_collator, buckets=buckets),
                model,
                processing_class,
                rows,
                formatting_func=formatting_func,
                key=self._key,
                loss=loss,
            )
            train_dataset, eval_dataset = data.train, data.evaluation
            data_collator, buckets = data.collator, data.buckets
        check_data(train_dataset, plan, data_collator, buckets)
        self.plan, self._buckets, self._settings = plan, buckets, settings
        self._data_fingerprint = self._fingerprint_of(train_dataset)
        self.folder = owner_folder(folder, Path(settings.arguments.output_dir or "").resolve())
        with sharded_by_hush():
            super().__init__(
                model=model,
                args=settings.arguments,
                data_collator=data_collator,
                train_dataset=train_dataset,
                eval_dataset=eval_dataset,
                processing_class=processing_class,
                compute_metrics=compute_metrics,
                preprocess_logits_for_metrics=preprocess_logits_for_metrics,
                callbacks=list(callbacks),
                optimizers=optimizers,
                optimizer_cls_and_kwargs=optimizer_cls_and_kwargs,
            )
        if self.is_fsdp_enabled:
            raise InvalidInput(
                "an Accelerator of this process was made with FSDP, which reduces raw gradients; make none, and pass "
                "fsdp=True in the arguments"
            )
        self.model_accepts_loss_kwargs = False  # no loss is divided by the tokens of a batch
        self.eval_is_public = eval_is_public
        self.certificate: Certificate | None = None
        self.private: PrivateTraining | None = None
        self._public, self._metric, self._average = public, metric, average
        self._insecure_seed, self._public_first = insecure_seed, public_first
        self.learnt_first: PublicOutcome | None = None
        self._loss = default_loss(model) if loss is None else loss
        if isinstance(train_dataset, SlotTexts):
            self._loss = DifferenceLoss(self._loss) if train_dataset.part == "difference" else self._loss
            size = self.args.per_device_train_batch_size
            self._public = public or public_stream_of(plan, train_dataset, data_collator, self.args.device, size)
        self._rounds: Iterator[TrainingRound] = iter(())
        self._resuming = self._open = False
        self._releases = Releases(self.folder, self.args)
        self._scoring = Scoring(self.folder, self._releases)
        self._staging: Path | None = None
        self._check_collator()
        self._checked: tuple[Any, Any] = self.train_dataset, self.data_collator
        if self.pop_callback(ProgressCallback) is not None:
            self.add_callback(OwnerProgress(lambda: self.private and self.private.live, scores=not eval_is_public))

    # ---- the loop ----

    def train(
        self,
        resume_from_checkpoint: str | bool | None = None,
        trial: Any = None,
        ignore_keys_for_eval: list[str] | None = None,
    ) -> TrainOutput:
        """All rounds that are left, then the certificate. Resuming starts from the owner's newest checkpoint."""
        refuse_overrides(self, HushTrainer)
        if not self.eval_is_public:
            refuse_selection(self.args, self.callback_handler.callbacks)  # callbacks may have been added
        if self._checked[0] is not self.train_dataset or self._checked[1] is not self.data_collator:  # replaced since
            check_data(self.train_dataset, self.plan, self.data_collator, self._buckets)
            self._check_collator()
        self._data_fingerprint = self._fingerprint_of(self.train_dataset)  # a list may be shuffled in place
        self._checked = self.train_dataset, self.data_collator
        parts = (self._public, self._metric, self._public_first, self._average)
        steps = (self.args.learning_rate, self.args.lr_scheduler_type, self._insecure_seed, self._settings.shard)
        check_processes_alike(self.plan, data=self._data_fingerprint, settings=(*parts, *steps))
        self._resuming = bool(resume_from_checkpoint)
        if self._resuming:
            resume_from_checkpoint = self._releases.resumed_from(resume_from_checkpoint)
        try:
            output = super().train(resume_from_checkpoint, trial, ignore_keys_for_eval)
            private = self._running()
            if private.round == self.plan.rounds:
                self.certificate = self._releases.finish(private)
        finally:
            self._open = False
            if self.private is not None:
                self.private.close()
            wrapped: Any = self.optimizer
            if isinstance(getattr(wrapped, "optimizer", None), PrivateOptimizer):
                wrapped.optimizer = wrapped.optimizer.inner  # so that train() can be called again
        return TrainOutput(output.global_step, math.nan, {})

    def get_train_dataloader(self) -> DataLoader:
        """The rounds, by number; only ``training_step`` knows what each draws."""
        # A separate generator: a loader takes a seed from its generator even if there is nothing to shuffle.
        return DataLoader(
            range(self.plan.rounds),  # pyright: ignore[reportArgumentType]
            collate_fn=lambda numbers: {"round": numbers[0]},
            generator=torch.Generator(),
        )

    def _init_training_state(self, *args: Any, **options: Any) -> tuple[int, int]:
        super()._init_training_state(*args, **options)
        self.state.global_step = self._releases.begun_after(resuming=self._resuming)
        self.state.best_model_checkpoint = self._releases.appeared(self.state.best_global_step)
        return divmod(self.state.global_step, self.plan.rounds)

    def _prepare_for_training(self, *args: Any, **options: Any) -> Any:
        inner: Any = self.model
        if not (is_sharded(inner) and self.private is not None):  # not again in a second call of train()
            self.learnt_first = learn_first_here(
                inner, self._loss, self.plan, self._public, self._public_first, folder=self.folder,
                device=self.args.device, micro_batch=self.args.per_device_train_batch_size,
                autocast=self._settings.autocast,
            )  # fmt: skip
        if self._settings.shard:
            shard_model(inner, self.args.device, has_optimizer=self.optimizer is not None)
        _, loader = super()._prepare_for_training(*args, **options)
        wrapped: Any = self.optimizer
        optimizer = wrapped.optimizer
        self.model_wrapped = inner
        self.private = PrivateTraining(
            inner,
            optimizer,
            self.plan,
            loss=self._loss,
            micro_batch=self.args.per_device_train_batch_size,
            scheduler=StoredSchedule(self.lr_scheduler),
            folder=self.folder,
            insecure_seed=self._insecure_seed,
            compile=self._settings.compile,
            autocast=self._settings.autocast,
            public=self._public,
            metric=self._metric,
            learnt_first=self.learnt_first,
            export=self._export,
            average=self._average,
            data_fingerprint=self._data_fingerprint,
            marks=unchecked_marks(self.plan, fingerprint=self._data_fingerprint),
            save_every=self.plan.rounds + 1,  # states are saved with the checkpoints of the Trainer instead
        )
        for caution in cautions_before(self.plan, self.private.num_trained) if self.is_world_process_zero() else ():
            logger.warning(caution)
        self._open = True
        wrapped.optimizer = PrivateOptimizer(optimizer, self.private)
        self._rounds = self.private.rounds()
        self._releases.publish(self.private.round)  # if a crash prevented that
        return inner, loader

    def _wrap_model(self, model: nn.Module, training: bool = True, dataloader: Any = None) -> nn.Module:
        return Unwrapped(model) if training else model

    def _move_model_to_device(self, model: nn.Module, device: torch.device) -> None:
        if not self._settings.shard:  # shards are moved one by one
            super()._move_model_to_device(model, device)

    def _load_from_checkpoint(self, resume_from_checkpoint: str, model: nn.Module | None = None) -> None:
        if not is_sharded(self.model):  # pyright: ignore[reportArgumentType] - shards are restored from the owner's state
            super()._load_from_checkpoint(resume_from_checkpoint, model)

    def _run_epoch(self, *args: Any, **options: Any) -> None:
        # The Trainer skips completed steps only if resumed from a checkpoint, which a crash may have prevented.
        if self._resuming and options.get("resume_from_checkpoint") is None:
            options["resume_from_checkpoint"] = str(self.folder)
        super()._run_epoch(*args, **options)

    def training_step(self, model: nn.Module, inputs: dict[str, Any], num_items_in_batch: Any = None) -> Tensor:
        """Accumulate the clipped gradients of a round. The loss stays with the owner; the Trainer gets a zero."""
        private = self._running()
        private.model.train()
        optimizer: Any = self.optimizer
        optimizer.train()  # optimizers that average weights have a training mode
        current = next(self._rounds)
        if current.index != inputs["round"]:
            raise InvalidInput(
                f"the loader is at round {inputs['round']}, training at {current.index}; start training again"
            )
        if self._checked[0] is not self.train_dataset or self._checked[1] is not self.data_collator:
            raise InvalidInput(
                "train_dataset or data_collator was replaced during training, and what replaces it was not checked; "
                "train on the plan's examples from the first round to the last"
            )
        lengths = self._checked[0].lengths if self._buckets else None
        for examples in current.micro_batches(lengths, self._buckets):
            private.accumulate(self._batch(examples, current.index), examples.real)
        return torch.zeros((), device=self.args.device)

    def _batch(self, examples: MicroBatch, round: int) -> Mapping[str, Tensor]:
        numbers: list[int] = examples.examples.tolist()
        # Each row is read by itself: a transform of a dataset sees all rows of one read.
        data, collator = self._checked
        rows = {number: data[number] for number in numbers}
        if self._checked_rows is not None:
            for number, row in rows.items():
                self._checked_rows.check(number, row)
        if self._has_own_collator:
            batch = collator([rows[n] for n in numbers], examples=numbers, round=round, length=examples.length)
        else:
            alone = {n: collated_alone(self._collate(n, round, examples.length), row) for n, row in rows.items()}
            padding = padding_values(collator, self.processing_class)
            batch = padded_together([alone[number] for number in numbers], padding, takes_mask=takes_mask(self.model))
        return dict(self._prepare_inputs(batch))

    def _collate(self, number: int = 0, round: int = 0, length: int | None = None) -> Collate:
        """The collator of the user as the Trainer calls it: without columns that the model does not take."""
        collator: Any = self.data_collator
        if isinstance(collator, Collator):  # a subclass, which may do anything
            return lambda rows: collator(rows, examples=[number] * len(rows), round=round, length=length)
        return self._get_collator_with_removed_columns(collator, "training")

    def _check_collator(self) -> None:
        if not self._has_own_collator:
            check_collator(self._collate(), self.train_dataset, name=described_collator(self.data_collator))

    @property
    def _has_own_collator(self) -> bool:
        """Whether the collator is one of hush's, whose rows are independent; a subclass may do anything."""
        return type(self.data_collator) in (CausalCollator, MaskedCollator)

    def _fingerprint_of(self, data: Any) -> str | None:
        """The fingerprint that the certificate may state: of the data as they are, or as the caller states it."""
        self._checked_rows = None
        if self._key is not None and CheckedRows.are_needed(data):
            self._checked_rows = CheckedRows(data, key=self._key, column=self._column)
        return checked_fingerprint(
            data,
            self.plan,
            key=self._key,
            column=self._column,
            stated=self._stated_fingerprint,
            rows=self._checked_rows,
        )

    def _maybe_log_save_evaluate(self, *args: Any, **options: Any) -> None:
        agree(self.control)
        super()._maybe_log_save_evaluate(*args, **options)

    def store_flos(self) -> None:
        """Nothing: the number of operations follows the secret draw, and was never counted."""

    # ---- what others may see ----

    def log(self, logs: dict[str, float], start_time: float | None = None) -> None:
        """Log what depends on the draw through the noisy sums only; the rest is in the owner's run log."""
        training = self.private if self._open else None
        shown = self._scoring.shown(logs, training, round=self.state.global_step, public=self._scores_may_be_seen)
        if shown:
            super().log(shown, start_time)

    def evaluate(self, *args: Any, **options: Any) -> dict[str, float]:
        """As in the Trainer; scores of data that may hold secrets go to the caller and the owner, not to loggers."""
        with self._evaluation():
            return super().evaluate(*args, **options)

    def predict(self, *args: Any, **options: Any) -> PredictionOutput:
        """As in the Trainer; scores of data that may hold secrets go to the caller, not to loggers."""
        with self._evaluation():
            return super().predict(*args, **options)

    def evaluation_loop(self, *args: Any, **options: Any) -> Any:
        """As in the Trainer; scores that others may see are rounded before any logger or callback gets them."""
        output = super().evaluation_loop(*args, **options)
        metrics: dict[str, Any] = output.metrics or {}
        if self._scores_may_be_seen:
            metrics.update({name: rounded_score(n) for name, n in metrics.items() if isinstance(n, float)})
        return output

    def _evaluation(self) -> AbstractContextManager[None]:
        training = self.private if self._open else None
        return self._scoring.evaluation(self.callback_handler, training, public=self._scores_may_be_seen)

    @property
    def _scores_may_be_seen(self) -> bool:
        """Those of public data, unless a crash undid the round: the repeated round would then be a second release."""
        entered = self._open or self.private is None or self._releases.entered == self.private.round
        return self.eval_is_public and entered

    def _determine_best_metric(self, *args: Any, **options: Any) -> bool:
        return self.eval_is_public and super()._determine_best_metric(*args, **options)

    def autocast_smart_context_manager(self, cache_enabled: bool | None = True) -> Any:
        """Evaluate in the precision that training has."""
        autocast = self._settings.autocast
        return torch.autocast(self.args.device.type, dtype=autocast, enabled=autocast is not None)

    def hyperparameter_search(self, *args: Any, **options: Any) -> Any:
        """Refused: every trial is a separate training."""
        raise InvalidInput(
            "every trial of a hyperparameter search is a separate training on the same secrets, and a plan accounts "
            "for one; search on data without secrets, then train once"
        )

    def _get_grad_norm(self, model: nn.Module, grad_norm: Any = None) -> None:
        """None: gradients appear in the optimizer's step, not before.

        The norm of the noisy mean must not be logged either: if a crash makes training repeat the round, with other
        noise, the log would hold both.
        """

    # ---- releases ----

    def save_model(self, output_dir: str | None = None, _internal_call: bool = False) -> None:
        """Save the model as ``from_pretrained`` reads it: a release, entered in the ledger before it appears."""
        if not _internal_call:
            self._check_released()
        model: Any = self.model
        shown = nullcontext() if self.private is None else self.private.released_model()
        with shown, full_parameters(model, here=self.args.should_save):
            super().save_model(output_dir, _internal_call)

    def push_to_hub(self, *args: Any, **options: Any) -> Any:
        """Upload the model: a release, entered in the ledger before it leaves."""
        self._check_released()
        return super().push_to_hub(*args, **options)

    def _check_released(self) -> None:
        """Enter the round of the current model in the ledger; refused once training has ended."""
        if self.private is None or self._releases.entered == self.private.round:
            return
        if not self._open:
            raise InvalidInput(
                f"training ended after round {self.private.round} without releasing it, so its model must not be saved "
                "yet; continue with train(resume_from_checkpoint=True)"
            )
        self._releases.enter(self.private)

    def _save_checkpoint(self, model: nn.Module, trial: Any) -> None:
        made = self._releases.checkpoint(self._running())
        if made is not None and self.state.best_global_step == self.state.global_step:
            self.state.best_model_checkpoint = str(made)
        if made is not None and self.args.push_to_hub:
            self._push_from_checkpoint(str(made))
        if self.args.should_save:
            rotate_checkpoints(
                output_dir=str(self.args.output_dir),
                save_total_limit=self.args.save_total_limit,
                best_model_checkpoint=self.state.best_model_checkpoint,
            )

    def _finalize_training(self, *args: Any, **options: Any) -> TrainOutput:
        if self._running().round < self.plan.rounds:  # stopped early, and from now on its model may be used
            self._save_checkpoint(self.model, None)  # pyright: ignore[reportArgumentType]
        return super()._finalize_training(*args, **options)

    def _export(self, folder: Path) -> None:
        """Write a release that the ledger lists: the final model, or what the Trainer calls a checkpoint."""
        if self._releases.writing == "nothing":
            return
        if self._releases.writing == "model":
            self.save_model(str(folder), _internal_call=True)
            return
        pushed, best = self.args.push_to_hub, self.state.best_global_step
        # It is pushed later, from where it stays. And only this process writes: with a best step it would wait for all.
        self._staging, self.args.push_to_hub, self.state.best_global_step = folder, False, None
        try:
            super()._save_checkpoint(self.model, None)  # pyright: ignore[reportArgumentType]
        finally:
            self._staging, self.args.push_to_hub, self.state.best_global_step = None, pushed, best
        inner = folder / f"checkpoint-{self.state.global_step}"
        if best:
            if best == self.state.global_step:
                self.state.best_model_checkpoint = str(self._releases.target(self.state.global_step))
            self.state.save_to_json(str(inner / "trainer_state.json"))
        unpack(inner)

    def _get_output_dir(self, trial: Any) -> str:
        return str(self.args.output_dir if self._staging is None else self._staging)

    def _running(self) -> PrivateTraining:
        if self.private is None:
            raise InvalidInput("no training has begun; call train() first")
        return self.private

"""Dropping, redacting and hush on one cast: three trainings of the same model, judged on the same documents.

dropping     ordinary training on the examples that hold no player secret; if dropping the real secrets leaves a smaller
             share than that, on so many of them
redacting    ordinary training on those, and on the players with a placeholder in every slot
hush         the private rounds, from the better start that costs nothing: redacting where the plan has slots, else
             dropping; beside the public stream, as in the real training

All randomness comes from a seed, since nothing is secret here: that is what marks the trainings as no releases.
"""

from collections.abc import Callable, Mapping
from copy import deepcopy
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, final

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from hush.plan import Plan
from hush.rehearse.cast import Cast
from hush.rehearse.content import PublicContent
from hush.rehearse.outcome import Reached
from hush.train.language_models import DifferenceLoss, Loss, TokenizedTexts, tokenise
from hush.train.pretrained import Pretrained, choose_device, load_pretrained
from hush.train.private_training import PrivateTraining
from hush.train.public.first import PublicSplit, split_public, train_public
from hush.train.public.stream import PublicStream, default_batch, own_random_state
from hush.train.recipe import make_optimizer, make_schedule
from hush.train.settings import PublicFirst, Recipe, Runtime
from hush.train.side_effect_free import example_losses
from hush.train.slots.batches import Batches, SkeletonBatches
from hush.train.slots.texts import SlotTexts, add_placeholder_tokens, tokenise_slots

__all__ = ["DROPPING", "HUSH", "REDACTING", "ArmLosses", "Stage", "Workbench"]


DROPPING, REDACTING, HUSH = "dropping", "redacting", "hush"
Ordinary = Literal["dropping", "redacting"]

OnStep = Callable[[int, int], None]  # how many steps or rounds are done, of how many
MAX_EVALUATION_BATCH = 8  # texts: all their logits exist at once
DIVERGED = 100.0  # nats per token: far above any loss that a choice could rest on
MARK = "a rehearsal on public content: it certifies nothing"


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class ArmLosses:
    """What a model reached: on ordinary examples, and on examples like the players."""

    ordinary: Reached
    like: Reached


def reached(losses: NDArray[np.float64]) -> Reached:
    """The mean of these losses; a training that diverged counts as ``DIVERGED``."""
    finite = np.minimum(np.nan_to_num(losses, nan=DIVERGED, posinf=DIVERGED), DIVERGED)
    return Reached(mean=float(finite.mean()), deviation=float(finite.std()), count=finite.size)


@final
class Workbench:
    """The model that every training of a rehearsal begins with, loaded once."""

    def __init__(self, recipe: Recipe, runtime: Runtime, rules: tuple[str, ...]) -> None:
        self.recipe, self.runtime = recipe, runtime
        self.device = choose_device(runtime.device)
        dtype = torch.bfloat16 if recipe.bf16 and recipe.lora else torch.float32
        self._base = load_pretrained(recipe.model, task=recipe.task, max_length=recipe.max_length, dtype=dtype)
        if rules and recipe.lora is None:
            add_placeholder_tokens(self._base.model, self._base.tokenizer, rules)

    @property
    def tokenizer(self) -> Any:
        return self._base.tokenizer

    @property
    def max_length(self) -> int:
        return self._base.max_length

    @property
    def loss(self) -> Loss:
        return self._base.loss

    @property
    def autocast(self) -> torch.dtype | None:
        return torch.bfloat16 if self.recipe.bf16 else None

    def batches(self, tokens: Any) -> Batches:
        """Batches of these tokens on the device."""
        return Batches(tokens, self._base.collator(self._base.max_length), self.device)

    def skeletons(self, tokens: SlotTexts) -> SkeletonBatches:
        """Batches of the skeletons of these tokens on the device."""
        return SkeletonBatches(tokens.skeletons, self._base.collator(self._base.max_length), self.device)

    def fresh(self, recipe: Recipe, *, seed: int) -> nn.Module:
        """The model to begin with; new adapters, if there are any, begin as the seed says."""
        copied: Pretrained = deepcopy(self._base)
        with own_random_state(self.device, seed):
            if recipe.lora is not None:
                copied = copied.with_lora(recipe.lora)
        return copied.model.to(self.device).train()


@final
class Stage:
    """The tokens of one cast, and the trainings on it.

    slotted: whether the slots are what is secret, as under the plan to rehearse. learns_first: whether the real private
    rounds begin after ordinary training on what is public. free_share: of the real examples, that hold no secret; where
    the text around slots is public, more documents may play than this leaves to dropping. folder: for what ordinary
    training keeps, so that it is done once and resumes after a kill.
    """

    def __init__(
        self,
        bench: Workbench,
        content: PublicContent,
        cast: Cast,
        redacting: Plan,
        *,
        slotted: bool,
        learns_first: bool,
        free_share: float,
        folder: Path,
        seed: int,
    ) -> None:
        self._bench, self._cast, self._slotted, self._folder, self._seed = bench, cast, slotted, folder, seed
        self._learns_first, self._free_share = learns_first, free_share
        texts = [content.texts[document] for document in cast.document_N.tolist()]
        judged = [content.texts[document] for document in cast.judged.tolist()]
        options: dict[str, Any] = {"max_length": bench.max_length}
        self._clear = tokenise(texts, bench.tokenizer, **options)
        self._judged = tokenise(judged, bench.tokenizer, **options)
        self._in_slots = tokenise_slots(texts, bench.tokenizer, redacting, cast.spans, **options)
        self._private: SlotTexts | TokenizedTexts = self._in_slots if slotted else self._clear
        if slotted and bench.recipe.part == "difference":
            self._private = tokenise_slots(texts, bench.tokenizer, redacting, cast.spans, part="difference", **options)

    @property
    def start(self) -> Ordinary:
        """The ordinary training from which the private rounds go on."""
        return REDACTING if self._slotted else DROPPING

    @property
    def slot_share(self) -> float:
        """The share of all tokens of ordinary examples and players that is like what the losses on siblings measure."""
        players, ordinary = self._cast.players, self._cast.ordinary
        total = int(self._clear.lengths[players].sum() + self._clear.lengths[ordinary].sum())
        if not self._slotted:
            return float(self._clear.lengths[players].sum()) / max(1, total)
        hidden = sum(int(self._in_slots[example]["in_slot"].sum()) for example in players.tolist())
        return hidden / max(1, total)

    def before(self) -> ArmLosses:
        """The losses of the model to begin with."""
        return self._losses(self._bench.fresh(self._bench.recipe, seed=self._seed))

    def ordinary(self, name: Ordinary, recipe: Recipe, on_step: OnStep | None = None) -> ArmLosses:
        """Dropping or redacting."""
        return self._losses(self._public_model(name, recipe, on_step))

    def private(self, recipe: Recipe, plan: Plan, *, seed: int, on_step: OnStep | None = None) -> ArmLosses:
        """hush: the private rounds of this plan, with the learning rate, schedule and rank of this recipe."""
        bench = self._bench
        if self._learns_first:
            model = self._public_model(self.start, recipe, None)
        else:
            model = bench.fresh(recipe, seed=self._seed)
        trainable = [parameter for parameter in model.parameters() if parameter.requires_grad]
        optimizer = make_optimizer(recipe, trainable)
        batches = bench.batches(self._private)
        with own_random_state(bench.device, seed):
            training = PrivateTraining(
                model,
                optimizer,
                plan,
                loss=DifferenceLoss(bench.loss) if self._slotted and recipe.part == "difference" else bench.loss,
                micro_batch=bench.runtime.micro_batch,
                scheduler=make_schedule(recipe, optimizer, plan.rounds),
                insecure_seed=seed,
                autocast=bench.autocast,
                public=self._stream(recipe, plan, batches),
                marks=(MARK,),
            )
            try:
                for round in training.rounds():
                    batches.round = round.index
                    for part in round.micro_batches(lengths=self._private.lengths, buckets=batches.buckets):
                        training.accumulate(batches.of(part.examples, part.length), part.real)
                    training.step()
                    if on_step is not None:
                        on_step(training.round, plan.rounds)
            finally:
                training.close()
        return self._losses(model)

    def _stream(self, recipe: Recipe, plan: Plan, batches: Batches) -> PublicStream | None:
        """The public stream of the real training: as the recipe says, or the default where only secrets are drawn."""
        if recipe.public is None and not (plan.draws_secrets_only or self._learns_first):
            return None
        examples = self._public_examples(self.start)
        part, micro_batch = recipe.public, self._bench.runtime.micro_batch
        size = default_batch(plan, examples.size) if part is None else min(part.batch, examples.size)
        return PublicStream(
            plan,
            self._bench.skeletons(self._in_slots) if self._slotted else batches.of,
            batch_size=size,
            weight=None if part is None else part.weight,
            examples=examples,
            micro_batch=micro_batch,
        )

    def _public_examples(self, name: Ordinary) -> NDArray[np.int64]:
        cast = self._cast
        if name == REDACTING:
            return np.concatenate([cast.ordinary, cast.players])
        left = round(self._free_share * (cast.num_ordinary + cast.num_players))
        if not self._slotted or left >= cast.num_ordinary:
            return cast.ordinary
        return np.sort(np.random.default_rng([self._seed, 4]).choice(cast.ordinary, left, replace=False))

    def _public_model(self, name: Ordinary, recipe: Recipe, on_step: OnStep | None) -> nn.Module:
        """The model after ordinary training, which is done once for each rank of adapters."""
        bench = self._bench
        model = bench.fresh(recipe, seed=self._seed)
        examples = self._public_examples(name)
        if examples.size < 2:
            return model  # nothing is left to learn
        asked = recipe.public_first
        settings = asked if isinstance(asked, PublicFirst) else PublicFirst()
        split: PublicSplit = split_public(examples, seed=self._seed)
        skeletons = bench.batches(self._in_slots.skeletons)

        def batches(examples: NDArray[np.int64], step: int) -> Mapping[str, Tensor]:
            return skeletons.of(examples, round=step)

        rank = "" if recipe.lora is None else f"-rank-{recipe.lora.rank}"
        train_public(
            model,
            bench.loss,
            batches,
            split,
            settings=settings,
            seed=self._seed,
            micro_batch=bench.runtime.micro_batch,
            lengths=self._in_slots.skeletons.lengths,
            folder=self._folder / f"{name}{rank}",
            autocast=bench.autocast,
            progress=None if on_step is None else lambda state: on_step(state.step, state.most_steps),
        )
        return model

    def _losses(self, model: nn.Module) -> ArmLosses:
        like = self._in_slots if self._slotted else self._clear
        return ArmLosses(
            ordinary=self._score(model, self._judged, np.arange(len(self._judged), dtype=np.int64)),
            like=self._score(model, like, self._cast.siblings),
        )

    def _score(self, model: nn.Module, tokens: SlotTexts | TokenizedTexts, examples: NDArray[np.int64]) -> Reached:
        batches = self._bench.batches(tokens)
        losses = example_losses(
            model,
            self._bench.loss,
            lambda part: batches.of(part, round=0),
            examples,
            size=min(self._bench.runtime.micro_batch, MAX_EVALUATION_BATCH),
            autocast=self._bench.autocast,
        )
        return reached(losses.numpy())

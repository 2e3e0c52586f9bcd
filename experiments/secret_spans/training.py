"""The arms of the study: BERT-Tiny learns masked words from full texts, from skeletons, and from slots under a plan.

Every arm has the optimizer, schedule and share of guessed pieces of the study of secret words. Losses are reported at
the pieces of secret words, at whole secret words, and elsewhere, always in the full texts of the same abstracts.
Shapes: B examples, T word pieces.
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, Literal

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.nn import functional

import hush
from experiments.secret_spans.data import NO_SECRET, PLACEHOLDER_ID, Part
from experiments.secret_words.training import IGNORED, MASK, MOST, SHARE, SPECIAL, _guess_losses, _optimizer
from hush.slots import Slots
from hush.train import PrivateTraining, PublicStream, masked_lm_loss
from hush.train.language_models import MaskedCollator
from hush.train.slots.batches import SkeletonBatches
from hush.train.slots.texts import SkeletonTexts, _RaggedRows

__all__ = ["PARAMETERS", "Bench", "Private", "losses_of", "train_in_slots", "train_openly"]

EVALUATED_AT_ONCE = 256
STREAM_AT_ONCE = 128  # skeletons: the stream computes the logits of all their pieces

Trained = Literal["all", "head", "bias"]
PARAMETERS: Mapping[Trained, str] = {  # what the private part trains: parameters whose name begins so
    "all": "",
    "head": "cls.predictions",  # its decoder is tied to the embeddings, and stays with them
    "bias": "cls.predictions.bias",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Private:
    """The settings of the private part; weight: of the public stream beside it, None for the rule of hush train."""

    trained: Trained
    rate: float
    weight: float | None
    clip_norm: float


@dataclass(frozen=True, eq=False, kw_only=True)
class Bench:
    """The parts, and how models learn on the device."""

    parts: Mapping[str, Part]
    vocabulary: int
    device: str
    micro_batch: int

    @property
    def autocast(self) -> torch.dtype | None:
        return torch.bfloat16 if self.device == "cuda" else None

    def rows(self, rows_NT: NDArray[Any], examples: Tensor | NDArray[np.int64]) -> Tensor:
        return torch.from_numpy(rows_NT[np.asarray(examples)].astype(np.int64)).to(self.device)

    def masked(
        self, seen: Tensor, eligible: Tensor, generator: torch.Generator, share: float = SHARE
    ) -> dict[str, Any]:
        """A share of the eligible pieces to guess, at most 16: 80 % masked, 10 % replaced, 10 % as they are."""
        count = (share * eligible.sum(1)).ceil().long().clamp(0, MOST)
        order = torch.rand(seen.shape, generator=generator, device=seen.device).masked_fill(~eligible, 2.0)
        place = order.topk(MOST, largest=False).indices
        chosen = torch.arange(MOST, device=seen.device) < count.unsqueeze(1)
        guessed = torch.zeros_like(eligible).scatter_(1, place, chosen) & eligible
        way = torch.rand(seen.shape, generator=generator, device=seen.device)
        word = torch.randint(self.vocabulary, seen.shape, generator=generator, device=seen.device)
        shown = torch.where(guessed & (way < 0.8), MASK, torch.where(guessed & (way >= 0.9), word, seen))
        labels = torch.where(guessed, seen, IGNORED)
        return {"input_ids": shown, "attention_mask": (seen != 0).long(), "labels": labels}

    def ordinary(self, seen: Tensor, generator: torch.Generator) -> dict[str, Any]:
        """A batch with some of all pieces to guess, never a placeholder."""
        special = torch.tensor((*SPECIAL, PLACEHOLDER_ID), device=seen.device)
        return self.masked(seen, ~torch.isin(seen, special), generator)

    def generator(self, seed: int) -> torch.Generator:
        return torch.Generator(self.device).manual_seed(seed)


def train_openly(
    bench: Bench, model: Any, rows_NT: NDArray[np.uint16], *, batch_size: int, rounds: int, rate: float, seed: int
) -> Any:
    """The model after so many rounds on these rows, without clipping and noise."""
    optimizer, scheduler = _optimizer(model, rate, rounds)
    generator = bench.generator(seed)
    rows = torch.from_numpy(rows_NT.astype(np.int32)).to(bench.device)

    def mean_loss(batch: Mapping[str, Tensor]) -> Tensor:
        with torch.autocast(bench.device, dtype=bench.autocast, enabled=bench.autocast is not None):
            total, count = _guess_losses(model, batch)
            return total / count

    step = torch.compile(mean_loss) if bench.device == "cuda" else mean_loss
    for _ in range(rounds):
        examples = torch.randint(len(rows), (batch_size,), generator=generator, device=rows.device)
        step(bench.ordinary(rows[examples].long(), generator)).backward()
        optimizer.step()
        scheduler.step()
        optimizer.zero_grad(set_to_none=True)
    return model


def train_in_slots(
    bench: Bench, model: Any, plan: hush.Plan, settings: Private, *, public_batch: int, seed: int
) -> Any:
    """The model after the plan's rounds: slots are guessed under noise, beside a stream of skeletons without noise.

    Seeds are fixed for the sake of repetition, so nothing is certified here; the noise is the plan's own.
    """
    part = bench.parts["train"]
    plan = replace(plan, clip_norm=settings.clip_norm)
    for name, parameter in model.named_parameters():
        parameter.requires_grad = name.startswith(PARAMETERS[settings.trained])
    optimizer, scheduler = _optimizer(model, settings.rate, plan.rounds)
    generator = bench.generator(seed)
    # The sum of clipped gradients grows with the clip norm; the public stream's weight does not depend on it.
    weight = None if settings.weight is None else settings.weight * settings.clip_norm
    stream = PublicStream(
        plan, _skeletons(bench, plan), batch_size=public_batch, weight=weight, seed=seed, micro_batch=STREAM_AT_ONCE
    )
    private = PrivateTraining(
        model, optimizer, plan, loss=masked_lm_loss, micro_batch=bench.micro_batch, scheduler=scheduler,
        insecure_seed=seed, autocast=bench.autocast, public=stream,
    )  # fmt: skip
    for round in private.rounds():
        for batch in round.micro_batches():
            seen = bench.rows(part.token_NT, batch.examples)
            in_slot = bench.rows(part.secret_NT, batch.examples) != NO_SECRET
            private.accumulate(bench.masked(seen, in_slot, generator, share=1.0), batch.real)
        private.step()
    private.finish()
    return model


def _skeletons(bench: Bench, plan: hush.Plan) -> SkeletonBatches:
    """Batches of skeletons, made from the public pieces alone; placeholders are never guessed."""
    rows_NT = bench.parts["train"].skeleton_NT
    rows = [row[: np.count_nonzero(row)].astype(np.int32) for row in rows_NT]
    learnt = [{"input_ids": row, "labels": np.where(row == PLACEHOLDER_ID, IGNORED, row)} for row in rows]
    slots = plan.slots or Slots.none(plan.incidence)
    texts = SkeletonTexts(
        _RaggedRows(learnt, ("input_ids", "labels")), slots=slots, whole_N=slots.whole_examples(plan.incidence),
        fingerprint=None,
    )  # fmt: skip
    collator = MaskedCollator(
        length=rows_NT.shape[1], padding=0, mask=MASK, vocabulary=bench.vocabulary,
        special=frozenset((*SPECIAL, PLACEHOLDER_ID)),
    )  # fmt: skip
    return SkeletonBatches(texts, collator, bench.device)


@torch.no_grad()
def losses_of(bench: Bench, model: Any, name: str, *, of_secrets: NDArray[np.bool_] | None = None) -> dict[str, float]:
    """Mean losses on the full texts of a part, with the same masks for every model.

    secret pieces and elsewhere: pieces are guessed as in training. whole words: all pieces of a slot are masked, and
    their losses add up. of_secrets: count only these secrets.
    """
    model.eval()
    part, generator = bench.parts[name], bench.generator(20_000)
    total: dict[str, float] = dict.fromkeys(("secret pieces", "elsewhere", "whole words"), 0.0)
    count: dict[str, int] = dict.fromkeys(total, 0)
    for begin in range(0, len(part.token_NT), EVALUATED_AT_ONCE):
        examples = np.arange(begin, min(begin + EVALUATED_AT_ONCE, len(part.token_NT)))
        seen, secret = bench.rows(part.token_NT, examples), bench.rows(part.secret_NT, examples)
        counted = _counted(secret, of_secrets)
        loss, labels = _piece_losses(model, bench.ordinary(seen, generator))
        for key, chosen in (("secret pieces", counted), ("elsewhere", secret == NO_SECRET)):
            chosen = chosen & (labels != IGNORED)
            total[key] += float(loss[chosen].double().sum())
            count[key] += int(chosen.sum())
        hidden = {
            "input_ids": torch.where(counted, MASK, seen),
            "attention_mask": (seen != 0).long(),
            "labels": torch.where(counted, seen, IGNORED),
        }
        loss, _ = _piece_losses(model, hidden)
        begins = counted & (secret != functional.pad(secret[:, :-1], (1, 0), value=NO_SECRET))
        total["whole words"] += float(loss[counted].double().sum())
        count["whole words"] += int(begins.sum())
    model.train()
    return {key: total[key] / max(count[key], 1) for key in total}


def _counted(secret: Tensor, of_secrets: NDArray[np.bool_] | None) -> Tensor:
    if of_secrets is None:
        return secret != NO_SECRET
    chosen = torch.from_numpy(np.append(of_secrets, False)).to(secret.device)  # the last entry is for -1
    return chosen[secret]


def _piece_losses(model: Any, batch: Mapping[str, Tensor]) -> tuple[Tensor, Tensor]:
    """(the loss of every piece to guess, 0 elsewhere, B × T; the labels)."""
    hidden = model.bert(input_ids=batch["input_ids"], attention_mask=batch["attention_mask"])[0]
    labels = batch["labels"]
    guessed = labels != IGNORED
    loss = torch.zeros(labels.shape, device=labels.device)
    loss[guessed] = functional.cross_entropy(model.cls(hidden[guessed]).float(), labels[guessed], reduction="none")
    return loss, labels

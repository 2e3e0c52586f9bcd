"""One model of the study: BERT-Tiny learns masked words, under a plan by hush's own training loop, or without one.

Every arm has the same optimizer, schedule, masking and evaluation; the plan decides rates, noise, batch and rounds.
Shapes: B examples, T word pieces, L guessed positions.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.nn import functional

import hush
from hush.train import PrivateTraining, masked_lm_loss

__all__ = ["BERT_TINY", "Task", "mean_loss_of", "new_model", "train_ordinarily", "train_under"]

BERT_TINY: dict[str, Any] = {
    "hidden_size": 128,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "intermediate_size": 512,
}
SHARE, MOST = 0.15, 16  # of the word pieces are guessed, at most so many
SPECIAL, MASK, IGNORED = (0, 101, 102), 103, -100  # padding, begin, end; the mask; a position that is not guessed
WARM_UP = 0.05  # of the rounds, in which the learning rate rises; then it falls to 0


@dataclass(frozen=True, eq=False, kw_only=True)
class Task:
    """Where and how to train: the same for every arm. On a GPU most of the computation is in bfloat16."""

    rows: Mapping[str, Tensor]  # by part, whole and on the device
    vocabulary: int
    device: str
    micro_batch: int

    @classmethod
    def of(cls, rows: Mapping[str, NDArray[np.uint16]], *, vocabulary: int, micro_batch: int) -> "Task":
        device = "cuda" if torch.cuda.is_available() else "cpu"
        on_device = {name: torch.from_numpy(own.astype(np.int32)).to(device) for name, own in rows.items()}
        return cls(rows=on_device, vocabulary=vocabulary, device=device, micro_batch=micro_batch)

    @property
    def autocast(self) -> torch.dtype | None:
        return torch.bfloat16 if self.device == "cuda" else None

    def masked(self, part: str, examples: Tensor, generator: torch.Generator) -> dict[str, Tensor]:
        """These examples with some of their pieces to guess: 80 % masked, 10 % replaced, 10 % as they are."""
        seen = self.rows[part][examples].long()
        inside = ~torch.isin(seen, torch.tensor(SPECIAL, device=seen.device))
        count = (SHARE * inside.sum(1)).round().long().clamp(1, MOST)
        order = torch.rand(seen.shape, generator=generator, device=seen.device).masked_fill(~inside, 2.0)
        place = order.topk(MOST, largest=False).indices  # B × L
        guessed = torch.zeros_like(inside).scatter_(
            1, place, torch.arange(MOST, device=seen.device) < count.unsqueeze(1)
        )
        guessed &= inside
        way = torch.rand(seen.shape, generator=generator, device=seen.device)
        word = torch.randint(self.vocabulary, seen.shape, generator=generator, device=seen.device)
        shown = torch.where(guessed & (way < 0.8), MASK, torch.where(guessed & (way >= 0.9), word, seen))
        labels = torch.where(guessed, seen, IGNORED)
        return {"input_ids": shown, "attention_mask": (seen != 0).long(), "labels": labels}


def new_model(task: Task, start: Path | None) -> Any:
    """BERT-Tiny without dropout, from a checkpoint (safetensors, or a folder of Transformers') or from scratch."""
    from transformers import BertConfig, BertForMaskedLM

    still: dict[str, Any] = {"hidden_dropout_prob": 0.0, "attention_probs_dropout_prob": 0.0}
    if start is not None and start.is_dir():
        pretrained: Any = BertForMaskedLM.from_pretrained(start, trust_remote_code=False, **still)
        return pretrained.to(task.device).train()
    torch.manual_seed(0)
    config: Any = BertConfig(vocab_size=task.vocabulary, **BERT_TINY, **still, max_position_embeddings=512)
    model: Any = BertForMaskedLM(config)
    if start is not None:
        from safetensors.torch import load_file

        model.load_state_dict({name: value.float() for name, value in load_file(start).items()}, strict=False)
        model.tie_weights()
    return model.to(task.device).train()


def train_under(
    plan: hush.Plan, task: Task, model: Any, *, learning_rate: float, seed: int, compile: bool, part: str = "train"
) -> Any:
    """The model after the plan's rounds. Seeds are fixed for the sake of repetition: nothing is certified here."""
    optimizer, scheduler = _optimizer(model, learning_rate, plan.rounds)
    generator = torch.Generator(task.device).manual_seed(seed)
    private = PrivateTraining(
        model, optimizer, plan, loss=masked_lm_loss, micro_batch=task.micro_batch, scheduler=scheduler,
        insecure_seed=seed, compile=compile, autocast=task.autocast,
    )  # fmt: skip
    for round in private.rounds():
        for batch in round.micro_batches():
            examples = torch.as_tensor(batch.examples, device=task.device)
            private.accumulate(task.masked(part, examples, generator), batch.real)
        private.step()
    private.finish()
    return model


def train_ordinarily(
    task: Task, model: Any, *, batch_size: int, rounds: int, learning_rate: float, seed: int, compile: bool, part: str,
    shown: Callable[[int, float], None] | None = None,
) -> Any:  # fmt: skip
    """The model after so many rounds without clipping, noise or weights."""
    optimizer, scheduler = _optimizer(model, learning_rate, rounds)
    generator = torch.Generator(task.device).manual_seed(seed)

    def mean_loss(batch: Mapping[str, Tensor]) -> Tensor:
        with torch.autocast(task.device, dtype=task.autocast, enabled=task.autocast is not None):
            total, count = _guess_losses(model, batch)
            return total / count

    step = torch.compile(mean_loss) if compile else mean_loss
    for round in range(rounds):
        examples = torch.randint(len(task.rows[part]), (batch_size,), generator=generator, device=task.device)
        losses = []
        for some in examples.split(task.micro_batch):
            loss = step(task.masked(part, some, generator)) * (len(some) / batch_size)
            loss.backward()
            losses.append(loss.detach())
        optimizer.step()
        scheduler.step()
        optimizer.zero_grad(set_to_none=True)
        if shown is not None and (round + 1) % 500 == 0:
            shown(round + 1, float(sum(losses)))
    return model


@torch.no_grad()
def mean_loss_of(task: Task, model: Any, part: str) -> float:
    """Mean over all guessed pieces of a part, with the same masks for every model."""
    model.eval()
    generator = torch.Generator(task.device).manual_seed(20_000)
    total, count = 0.0, 0
    at_once = 1024 if hasattr(model, "bert") else 64  # a causal model has logits at every position
    for examples in torch.arange(len(task.rows[part]), device=task.device).split(at_once):
        found, guessed = _guess_losses(model, task.masked(part, examples, generator))
        total, count = total + float(found), count + int(guessed)
    model.train()
    return total / count


def _guess_losses(model: Any, batch: Mapping[str, Tensor]) -> tuple[Tensor, Tensor]:
    """(sum of the losses of all guessed pieces, their number), with a masked model's head at those positions alone."""
    if not hasattr(model, "bert"):
        logits = model(input_ids=batch["input_ids"], attention_mask=batch["attention_mask"]).logits[:, :-1]
        labels = batch["labels"][:, 1:]
        losses = functional.cross_entropy(
            logits.flatten(0, 1).float(), labels.flatten(), ignore_index=IGNORED, reduction="sum"
        )
        return losses, (labels != IGNORED).sum()
    hidden = model.bert(input_ids=batch["input_ids"], attention_mask=batch["attention_mask"])[0]
    guessed = batch["labels"] != IGNORED
    place = guessed.byte().topk(MOST, dim=1).indices  # B × L
    labels = batch["labels"].gather(1, place)
    logits = model.cls(hidden.gather(1, place.unsqueeze(-1).expand(-1, -1, hidden.shape[-1])))
    losses = functional.cross_entropy(
        logits.flatten(0, 1).float(), labels.flatten(), ignore_index=IGNORED, reduction="sum"
    )
    return losses, (labels != IGNORED).sum()


def _optimizer(model: Any, learning_rate: float, rounds: int) -> tuple[torch.optim.Optimizer, Any]:
    trained = [parameter for parameter in model.parameters() if parameter.requires_grad]
    optimizer = torch.optim.Adam(trained, lr=learning_rate, fused=trained[0].is_cuda)
    warm = max(1, round(WARM_UP * rounds))
    factor = lambda done: min((done + 1) / warm, max(rounds - done, 1) / max(rounds - warm, 1))  # noqa: E731
    return optimizer, torch.optim.lr_scheduler.LambdaLR(optimizer, factor)

"""What a trained model is worth, and what it gives away: its loss on texts that hold no secret, and its canaries.

Both are measured in the same way for every arm. The loss is of held-out texts without secrets, so that it may be
shown; the model of every round may be seen under a plan, hence also what is computed from it on the way.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, final

import numpy as np
import torch
from torch import Tensor

from hush.audit.canary_files import Planting
from hush.audit.exposure import Ranked, rank_canary
from hush.audit.generation import Subject, load_subject, matching_tokens, still
from hush.train.checkpoint import Checkpoints
from hush.train.collate import CausalCollator, Corpus
from hush.train.language import causal_lm_loss
from hush.train.rounds import LiveNumbers

__all__ = ["Canaries", "Evaluation", "Following", "attacked"]

ROWS = 64  # texts that the model sees at once


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class Canaries:
    """What an attack gets back of the canaries. said: how many the model says word for word when prompted."""

    ranked: tuple[Ranked, ...]
    said: int

    @property
    def exposure(self) -> float:
        """The mean over the canaries, in bits."""
        return float(np.mean([one.exposure for one in self.ranked]))

    @property
    def named(self) -> int:
        """How many come first among their candidates."""
        return sum(one.rank == 1 for one in self.ranked)


@final
class Evaluation:
    """The mean loss per byte on texts that were never trained on and hold no secret."""

    def __init__(self, model: Path, texts: Sequence[str], *, length: int) -> None:
        self._subject, tokenizer = load_subject(str(model))
        rows = tokenizer(list(texts), truncation=True, max_length=length)["input_ids"]
        tokens = Corpus([np.asarray(row, dtype=np.int32) for row in rows if len(row) > 1])
        collate = CausalCollator(length=length, padding=tokenizer.pad_token_id)
        places = np.array_split(np.arange(len(tokens)), -(-len(tokens) // ROWS))
        self._batches = [collate([tokens[int(one)] for one in part], examples=part, round=0) for part in places]

    def loss(self, parameters: Mapping[str, Tensor] | None = None) -> float:
        """Of the model as it was loaded, or with these parameters."""
        model: Any = self._subject.model
        if parameters is not None:
            model.load_state_dict(dict(parameters), strict=False)  # tied ones are stored once
        with still(model):
            losses = torch.cat([causal_lm_loss(model, batch) for batch in self._batches])
        return float(losses.mean())


@final
class Following:
    """The loss on the way: told of every round, it evaluates each state that training saves."""

    def __init__(self, evaluation: Evaluation, *, every: int) -> None:
        self._evaluation, self._every = evaluation, every
        self.curve: list[tuple[int, float]] = [(0, evaluation.loss())]

    def __call__(self, live: LiveNumbers, training: Path) -> None:
        """training: the folder of the run."""
        if live.round % self._every and live.rounds_left:
            return
        state = Checkpoints(training / "owner" / "checkpoints").newest()
        if state is not None and state["round"] == live.round:
            self.curve.append((live.round, self._evaluation.loss(state["parameters"])))


def attacked(model: Path, planting: Planting, *, length: int, candidates: int) -> Canaries:
    """Rank every canary among its candidates, and prompt the model with the text before it."""
    subject, tokenizer = load_subject(str(model))
    ranked = tuple(
        rank_canary(subject, tokenizer, canary, planting.candidates, max_length=length, most=candidates)
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

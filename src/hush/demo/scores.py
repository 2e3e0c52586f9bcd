"""What a trained model gives away: how far up its canaries rank, and whether it says them. The same for every arm."""

from dataclasses import dataclass
from pathlib import Path
from typing import Any, final

import numpy as np
import torch

from hush.audit.canary_files import Planting
from hush.audit.exposure import Ranked, rank_canary
from hush.audit.generation import Subject, load_subject, matching_tokens

__all__ = ["Canaries", "attacked"]


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

"""What a model is worth and what it gives away, measured alike for every arm.

Quality: the mean loss per token on files that nobody trained on. Leakage: how often the tokens that precede a place in
a secret file make the model say what follows, beyond what the base model says anyway and beyond what the same prompt
gets out of files of the same projects that were held out; and the planted canaries.
"""

from dataclasses import dataclass
from random import Random
from typing import Any, final

import numpy as np
import torch
from numpy.typing import NDArray

from experiments.code_base.prepared import Blocks, Prepared
from experiments.code_base.training import Table
from hush.audit.canaries import Canary, Candidates
from hush.audit.exposure import rank_canary
from hush.audit.extraction import extract
from hush.audit.models import Subject, evaluation_mode, matching_tokens
from hush.audit.sequences import Sequences
from hush.audit.statistics import Success, excess_over_held_out
from hush.train.language_models import causal_lm_loss

__all__ = ["Measures", "mean_loss", "says"]

ROWS = 256  # texts that the model sees at once


@final
@dataclass(eq=False, repr=False)
class Measures:
    """Everything measured of one model. The base model's answers are kept as the reference."""

    prepared: Prepared
    subject: Subject
    tokenizer: Any
    _reference: dict[str, NDArray[np.bool_]]

    @classmethod
    def of(cls, prepared: Prepared, base: torch.nn.Module) -> "Measures":
        """The model as it is now is the reference; the very object is measured later, when it has learnt."""
        from tokenizers import Tokenizer
        from transformers import PreTrainedTokenizerFast

        wrapped = PreTrainedTokenizerFast(
            tokenizer_object=Tokenizer.from_str(prepared.tokenizer), pad_token="<pad>"
        )  # fmt: skip
        made = cls(prepared, Subject.of(base), wrapped, {})
        made._reference = {"trained": made._said(prepared.trained, prepared.spans), "held out": made._said_held_out()}
        return made

    def validation_loss(self) -> float:
        """What settings are chosen by: the mean over both kinds of files."""
        return float(np.mean([self._loss(self.prepared.valid_free), self._loss(self.prepared.valid_projects)]))

    def everything(self) -> dict[str, Any]:
        """Plain numbers, none of them text."""
        prepared = self.prepared
        trained = self._said(prepared.trained, prepared.spans) & ~self._reference["trained"]
        held_out = self._said_held_out() & ~self._reference["held out"]
        beyond = excess_over_held_out(_success(trained), _success(held_out))
        ranked = [
            rank_canary(
                self.subject, self.tokenizer, canary, prepared.candidates,
                max_length=prepared.scale.length, max_candidates=prepared.scale.candidates, rng=Random(number),
            )
            for number, canary in enumerate(prepared.canaries)
        ]  # fmt: skip
        spans = Blocks(prepared.trained.tokens[prepared.spans], prepared.trained.lengths[prepared.spans])
        return {
            "loss_free": self._loss(prepared.test_free),
            "loss_projects": self._loss(prepared.test_projects),
            "loss_trained_spans": self._loss(spans),
            "said_trained": [beyond.trained.hits, beyond.trained.runs],
            "said_held_out": [beyond.other.hits, beyond.other.runs],
            "memorised": beyond.difference,
            "memorised_limits": [beyond.lower, beyond.upper],
            "exposure": float(np.mean([one.exposure for one in ranked])),
            "named": sum(one.rank == 1 for one in ranked),
            "said": sum(says(self.subject, self.tokenizer, one, prepared.candidates) for one in prepared.canaries),
            "canaries": len(ranked),
        }

    def _said(self, blocks: Blocks, examples: NDArray[np.int64]) -> NDArray[np.bool_]:
        """For each example, whether its first half makes the model say the next quarter."""
        length = self.prepared.scale.length
        rows = [blocks.row(int(number)) for number in examples]
        prompt, target = length // 2, length // 4
        sequences = Sequences.of(rows, begin=prompt, end=prompt + target)
        return extract(self.subject, sequences, prompts=[prompt], continuations=[target]).hits(prompt, target)

    def _said_held_out(self) -> NDArray[np.bool_]:
        found = []
        for blocks in (self.prepared.valid_projects, self.prepared.test_projects):
            full = np.flatnonzero(blocks.lengths == self.prepared.scale.length)
            found += [self._said(blocks, full)] if len(full) else []
        return np.concatenate(found) if found else np.zeros(1, dtype=bool)

    def _loss(self, blocks: Blocks) -> float:
        return mean_loss(self.subject.model, blocks)


def mean_loss(model: torch.nn.Module, blocks: Blocks) -> float:
    """Per token, over all tokens of all blocks but the first of each."""
    table = Table(blocks, next(model.parameters()).device)
    learnt_N = np.maximum(blocks.lengths - 1, 0)
    with evaluation_mode(model):
        parts = np.array_split(np.arange(len(table)), -(-len(table) // ROWS))
        losses = torch.cat([causal_lm_loss(model, table.batch(part)) for part in parts])
    return float(np.average(losses.double().cpu().numpy(), weights=learnt_N))


def says(subject: Subject, tokenizer: Any, canary: Canary, candidates: Candidates) -> bool:
    """Whether the likeliest tokens after the canary's prompt are the secret, as training tokenised it."""
    secret, before = candidates.text(canary.truth), canary.template.before
    made = tokenizer(canary.template.filled(secret), return_offsets_mapping=True)
    ends = [end for _, end in made["offset_mapping"]]
    begin = next(place for place, end in enumerate(ends) if end > len(before))
    stop = next(place for place, end in enumerate(ends) if end >= len(before) + len(secret)) + 1
    tokens = torch.tensor([made["input_ids"]])
    return int(matching_tokens(subject, tokens[:, :begin], tokens[:, begin:stop])[0]) == stop - begin


def _success(hits: NDArray[np.bool_]) -> Success:
    return Success(hits=int(hits.sum()), runs=hits.size)

"""Preference pairs: a chosen and a rejected answer to a prompt as one example, and the loss of DPO for each pair.

The loss of a pair needs the log-probabilities of both answers under a reference model, by default the model before
training. They are computed once, before the first round: each is a function of its own pair and of a model that is
known, so they tie no examples together and cost no promise.

Shapes: B pairs of two sides (0 is chosen, 1 is rejected), T tokens.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, final

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.nn import functional

from hush.data.chat import COMPLETION, PROMPT, Rendering, RowProblem, tokenise_rendered
from hush.data.chat_template import ChatTemplate
from hush.errors import InvalidInput
from hush.keys import DataKey
from hush.train.language_models import (
    IGNORED,
    Collator,
    Integers,
    Rows,
    TokenizedTexts,
    logits_and_labels,
    token_losses,
)
from hush.train.round import micro_batches
from hush.train.slots.batches import doubling_lengths

__all__ = ["DPOLoss", "PairCollator", "PreferencePairs", "pair_texts", "tokenise_pairs"]


CHOSEN, REJECTED = "chosen", "rejected"
SIDES = (CHOSEN, REJECTED)


@final
@dataclass(frozen=True, slots=True)
class DPOLoss:
    """-log sigmoid(beta × what chosen has gained on rejected since the reference) of each pair [Rafailov23, Eq. 7].

    batch: what :class:`PairCollator` makes. Each side has a forward pass, so every layer is called twice; gradients of
    the pair are clipped as one.

    Guarantee: entry i depends on the model and on pair i alone, if the model's own forward pass does.
    """

    beta: float = 0.1

    def __call__(self, model: nn.Module, batch: Mapping[str, Tensor]) -> Tensor:
        if "reference" not in batch:
            raise InvalidInput("the pairs have no reference; compute it once with pairs.with_reference(model)")
        gain_B2 = log_probabilities(model, batch) - batch["reference"]
        return -functional.logsigmoid(self.beta * (gain_B2[:, 0] - gain_B2[:, 1]))


def log_probabilities(model: nn.Module, batch: Mapping[str, Tensor]) -> Tensor:
    """The log-probability of the labelled tokens of each side: [B, 2]."""

    def of_side(side: int) -> Tensor:
        inputs = {name: batch[name][:, side] for name in ("input_ids", "attention_mask", "labels")}
        logits, labels = logits_and_labels(model, inputs)
        following = functional.pad(labels[:, 1:], (0, 1), value=IGNORED)
        return -token_losses(logits, following) * (following != IGNORED).sum(dim=1)

    return torch.stack([of_side(0), of_side(1)], dim=1)


@final
@dataclass(frozen=True, kw_only=True)
class PairCollator(Collator):
    """Rows of :class:`PreferencePairs` as batches [B, 2, T], padded at the end, with the reference [B, 2] if known."""

    def __call__(
        self, rows: Rows, *, examples: Sequence[int] | Integers | None = None, round: int = 0, length: int | None = None
    ) -> dict[str, Tensor]:
        sides = [
            self._padded([row[side] for row in rows], examples=examples, round=round, length=length) for side in SIDES
        ]
        batch = {name: torch.stack([side[name] for side in sides], dim=1) for name in sides[0]}
        if rows and "reference" in rows[0]:
            batch["reference"] = torch.tensor(np.stack([row["reference"] for row in rows]))
        return batch

    def _learnt(self, token_BT: Integers, label_BT: Integers, **_: Any) -> tuple[Integers, Integers]:
        return token_BT, label_BT


@final
@dataclass(frozen=True, kw_only=True, repr=False)
class PreferencePairs:
    """The tokens of both sides of every pair: row i is example i of the plan.

    fingerprint is the keyed one of the texts. reference: the log-probabilities [N, 2] under the reference model.
    """

    chosen: TokenizedTexts
    rejected: TokenizedTexts
    fingerprint: str | None = None
    reference: NDArray[np.float32] | None = None

    @property
    def lengths(self) -> Integers:
        """Of the longer side of each pair."""
        return np.maximum(self.chosen.lengths, self.rejected.lengths)

    def __len__(self) -> int:
        return len(self.chosen)

    def __getitem__(self, example: int) -> dict[str, Any]:
        row: dict[str, Any] = {CHOSEN: self.chosen[example], REJECTED: self.rejected[example]}
        return row if self.reference is None else row | {"reference": self.reference[example]}

    def with_reference(self, model: nn.Module, *, max_length: int, micro_batch: int = 8) -> "PreferencePairs":
        """The same pairs with their log-probabilities under this model, without dropout.

        Batches have the lengths 32, 64, … and max_length, whatever the data. Guarantee: the numbers of a pair are a
        function of the pair and the model, up to rounding.
        """
        reference = np.zeros((len(self), 2), dtype=np.float32)
        collate, device = PairCollator(length=max_length, padding=0), next(model.parameters()).device
        lengths = {"lengths": self.lengths, "buckets": doubling_lengths(max_length)}
        was_training = model.training
        model.eval()
        try:
            with torch.no_grad():
                for cut in micro_batches(np.arange(len(self)), size=micro_batch, **lengths):
                    rows = [self[number] for number in cut.examples.tolist()]
                    batch = {name: value.to(device) for name, value in collate(rows, length=cut.length).items()}
                    reference[cut.examples] = log_probabilities(model, batch).float().cpu().numpy()
        finally:
            model.train(was_training)
        return replace(self, reference=reference)

    def __repr__(self) -> str:
        return f"PreferencePairs({len(self)} pairs)"


def pair_texts(source: Sequence[Mapping[str, Any]], tokenizer: Any = None) -> list[str]:
    """The text of each pair, in which secrets are to be looked for, and of which the plan's fingerprint is.

    Prompt, chosen and rejected, joined by blank lines; of conversations the two that the model reads.

    >>> pair_texts([{"prompt": "2 + 2 = ", "chosen": "4", "rejected": "5"}])
    ['2 + 2 = \\n\\n4\\n\\n5']
    """
    return [_text(row, number, tokenizer) for number, row in enumerate(source)]


def tokenise_pairs(
    source: Sequence[Mapping[str, Any]], tokenizer: Any, *, max_length: int, key: DataKey | None = None
) -> PreferencePairs:
    """The tokens of rows with prompt, chosen and rejected: texts, or messages that the chat template renders.

    Each answer ends with the end token, and its tokens alone are learnt; each side is cut at its end by itself. With
    the owner's data key the texts are fingerprinted, so that ``HushTrainer`` can tell whether they are the plan's.
    """
    sides: dict[str, list[dict[str, list[int]]]] = {side: [] for side in SIDES}
    for number, row in enumerate(source):
        rendering = _rendering(row, tokenizer)
        for side in SIDES:
            try:
                rendered = rendering.render(_completed(row, side))
                sides[side].append(tokenise_rendered(rendered, rendering, tokenizer, max_length=max_length))
            except RowProblem as problem:
                raise InvalidInput(f"row {number} cannot be prepared: {problem}") from None
    made = [
        TokenizedTexts([row["input_ids"] for row in sides[side]], [row["labels"] for row in sides[side]])
        for side in SIDES
    ]
    leaves = None if key is None else (key.fingerprint_row(text) for text in pair_texts(source, tokenizer))
    return PreferencePairs(
        chosen=made[0],
        rejected=made[1],
        fingerprint=None if key is None or leaves is None else key.fingerprint_leaves(leaves),
    )


def _rendering(row: Mapping[str, Any], tokenizer: Any) -> Rendering:
    missing = [name for name in (PROMPT, *SIDES) if name not in row]
    if missing:
        raise InvalidInput(
            f"the rows lack {' and '.join(missing)}; give each pair its prompt, chosen and rejected, as texts or lists "
            "of messages"
        )
    source = "" if isinstance(row[PROMPT], str) else None  # plain texts, or messages for the tokenizer's template
    template = ChatTemplate.of_tokenizer(tokenizer, source=source)
    return Rendering.of_columns((PROMPT, COMPLETION), template=template)


def _completed(row: Mapping[str, Any], side: str) -> dict[str, Any]:
    return {**row, COMPLETION: row[side]}


def _text(row: Mapping[str, Any], number: int, tokenizer: Any) -> str:
    try:
        if isinstance(row.get(PROMPT), str):
            return Rendering.of_columns(row, columns=(PROMPT, *SIDES)).render(row).text
        rendering = _rendering(row, tokenizer)
        return "\n\n".join(rendering.render(_completed(row, side), answers=False).text for side in SIDES)
    except RowProblem as problem:
        raise InvalidInput(f"row {number} cannot be prepared: {problem}") from None

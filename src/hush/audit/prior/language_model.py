"""The base model as a guesser: how likely each candidate is in the slots of a secret, all slots jointly.

Masked models: as many masks as the candidate has tokens stand in the slot; the score is the sum of the
log-probabilities of its tokens there (a pseudo-log-likelihood with the whole slot masked). One pass a slot and length
scores all candidates of that length. Causal models: the first tokens of all candidates are scored in one pass a slot;
for the best few candidates the score is the log-likelihood of the candidate and of the text that follows it.

The model must not have been trained on the data: it stands for what an adversary brings along.
Shapes: B secrets of a block, C candidates, V tokens of the vocabulary.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from hush.arrays import Array
from hush.audit.models import evaluation_mode
from hush.audit.prior.guessers import Guessing, Scorer
from hush.train.pretrained import Pretrained, choose_device, load_pretrained

__all__ = ["MAX_MODEL_SLOTS", "language_model"]


MAX_MODEL_SLOTS = 4  # of a secret that a model looks at
MAX_CANDIDATE_TOKENS = 8  # longer candidates are never guessed by a masked model
RESCORED_CANDIDATES = 32  # of which a causal model scores the whole text
FOLLOWING_TOKENS = 16  # after the slot that count for a causal model
BATCH_ROWS = 32
IMPOSSIBLE = -1e9  # finite, so that sums and temperatures stay numbers

Sides = Mapping[int, tuple[str, str]]
Prepare = Callable[[Guessing], Scorer]


def language_model(name: str, sides: Sides, *, device: str | None = None) -> Prepare:
    """A guesser with the model of this name or in this folder. sides: the skeleton before and after each slot."""
    loaded = load_pretrained(name)
    loaded.model.to(choose_device(device))
    return model_guesser(loaded, sides)


def model_guesser(loaded: Pretrained, sides: Sides) -> Prepare:
    """The same with a model that is loaded already."""
    score_slots = _masked_scores if loaded.task == "masked" else _causal_scores

    def prepare(guessing: Guessing) -> Scorer:
        tokens = _Tokens(loaded, guessing.spelled)

        def score(block: slice) -> Array:
            with evaluation_mode(loaded.model):
                rows = []
                for slots in guessing.slots_J[block]:
                    kept = [sides[slot] for slot in slots.tolist() if slot in sides][:MAX_MODEL_SLOTS]
                    rows.append(score_slots(loaded, tokens, kept) if kept else np.zeros(len(guessing.candidates)))
                return np.stack(rows)

        return score

    return prepare


class _Tokens:
    """The tokens of each candidate, with and without a space before it."""

    def __init__(self, loaded: Pretrained, candidates: Sequence[str]) -> None:
        self._tokenizer, self._candidates = loaded.tokenizer, candidates
        self._rows: dict[str, list[list[int]]] = {}
        self._by_length: dict[str, dict[int, tuple[NDArray[np.int64], Tensor]]] = {}

    def rows(self, before: str) -> list[list[int]]:
        """before: the end of the text before the slot, which says whether a space belongs to the candidate."""
        lead = " " if before[-1:].isspace() else ""
        if lead not in self._rows:
            given = [lead + text for text in self._candidates]
            self._rows[lead] = self._tokenizer(given, add_special_tokens=False, verbose=False)["input_ids"]
        return self._rows[lead]

    def by_length(self, before: str) -> dict[int, tuple[NDArray[np.int64], Tensor]]:
        """Candidates and their tokens, by number of tokens."""
        lead = " " if before[-1:].isspace() else ""
        if lead not in self._by_length:
            rows = self.rows(before)
            length_C = np.array([len(row) for row in rows])
            self._by_length[lead] = {
                length: (chosen, torch.tensor([rows[index] for index in chosen]))
                for length in range(1, MAX_CANDIDATE_TOKENS + 1)
                if len(chosen := np.flatnonzero(length_C == length))
            }
        return self._by_length[lead]


def _masked_scores(loaded: Pretrained, tokens: _Tokens, kept: Sequence[tuple[str, str]]) -> Array:
    tokenizer, model = loaded.tokenizer, loaded.model
    device = next(model.parameters()).device
    opening, closing = _special_ends(tokenizer)
    room = loaded.max_length - len(opening) - len(closing)
    total_C = np.zeros(len(tokens.rows("")))
    for before, after in kept:
        score_C = np.full(len(total_C), IMPOSSIBLE)
        left, right = _encoded(tokenizer, before.rstrip()), _encoded(tokenizer, after)
        for length, (chosen, token_CM) in tokens.by_length(before).items():
            if length > room:
                continue
            shown = left[max(len(left) - (room - length) // 2, 0) :]
            ids = [*opening, *[*shown, *[tokenizer.mask_token_id] * length, *right][:room], *closing]
            first = len(opening) + len(shown)
            input_ids = torch.tensor([ids], device=device)
            output: Any = model(input_ids=input_ids, attention_mask=torch.ones_like(input_ids))
            log_MV = output.logits[0, first : first + length].float().log_softmax(dim=-1)
            picked_CM = log_MV[torch.arange(length, device=device), token_CM.to(device)]
            score_C[chosen] = picked_CM.sum(dim=1).double().cpu().numpy()
        total_C += score_C
    return np.maximum(total_C, IMPOSSIBLE)


def _causal_scores(loaded: Pretrained, tokens: _Tokens, kept: Sequence[tuple[str, str]]) -> Array:
    tokenizer, model = loaded.tokenizer, loaded.model
    device = next(model.parameters()).device
    opening = next((id for id in (tokenizer.bos_token_id, tokenizer.eos_token_id) if id is not None), 0)
    longest = max((len(row) for before, _ in kept for row in tokens.rows(before)), default=1)
    room = max(loaded.max_length - min(longest, MAX_CANDIDATE_TOKENS) - FOLLOWING_TOKENS - 1, 1)
    prefixes = [[opening, *_encoded(tokenizer, before.rstrip())[-room:]] for before, _ in kept]
    first_C = np.zeros(len(tokens.rows(kept[0][0])))
    for prefix, (before, _) in zip(prefixes, kept, strict=True):
        output: Any = model(input_ids=torch.tensor([prefix], device=device))
        log_V = output.logits[0, -1].float().log_softmax(dim=-1).double().cpu().numpy()
        first_C += [log_V[row[0]] if row else IMPOSSIBLE for row in tokens.rows(before)]
    best = np.argsort(-first_C, kind="stable")[:RESCORED_CANDIDATES]
    total = np.zeros(len(best))
    for prefix, (before, after) in zip(prefixes, kept, strict=True):
        following = _encoded(tokenizer, after)[:FOLLOWING_TOKENS]
        rows = tokens.rows(before)
        given = [(rows[index] + following)[: loaded.max_length - len(prefix)] for index in best]
        for begin in range(0, len(given), BATCH_ROWS):
            part = slice(begin, begin + BATCH_ROWS)
            total[part] += _log_likelihoods(model, prefix, given[part])
    # What was not scored as a whole comes after what was.
    scores_C = np.full(len(first_C), IMPOSSIBLE)
    scores_C[best] = total
    return scores_C


def _log_likelihoods(model: torch.nn.Module, prefix: list[int], rows: list[list[int]]) -> Array:
    """The log-likelihood of each row after the prefix."""
    device = next(model.parameters()).device
    width = len(prefix) + max(map(len, rows))
    token_BT, mask_BT = torch.zeros(2, len(rows), width, dtype=torch.long, device=device)
    for place, row in enumerate(rows):
        whole = torch.tensor([*prefix, *row], device=device)
        token_BT[place, : len(whole)], mask_BT[place, : len(whole)] = whole, 1
    output: Any = model(input_ids=token_BT, attention_mask=mask_BT)
    log_BTV = output.logits[:, len(prefix) - 1 : -1].float().log_softmax(dim=-1)
    target_BT, real_BT = token_BT[:, len(prefix) :], mask_BT[:, len(prefix) :]
    picked_BT = log_BTV.gather(2, target_BT[:, :, None]).squeeze(2) * real_BT
    return picked_BT.sum(dim=1).double().cpu().numpy()


def _encoded(tokenizer: Any, text: str) -> list[int]:
    return tokenizer(text, add_special_tokens=False, verbose=False)["input_ids"] if text else []


def _special_ends(tokenizer: Any) -> tuple[list[int], list[int]]:
    """The tokens that the tokenizer puts before and after a text."""
    frame = tokenizer("a", verbose=False)["input_ids"]
    inner = tokenizer("a", add_special_tokens=False, verbose=False)["input_ids"]
    begin = next(at for at in range(len(frame)) if frame[at : at + len(inner)] == inner)
    return frame[:begin], frame[begin + len(inner) :]

"""What a trained model is asked: its loss on text that it never saw, and how far it goes on with what it may have seen.

The prompt is the first n tokens of a sequence, the continuation the m after them, decoding is greedy: k-memorisation,
as :mod:`hush.audit.extraction` tries it.

Shapes: R rows, N sequences, T tokens of a row.
"""

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from hush.audit.extraction import extract
from hush.audit.models import Subject, evaluation_mode
from hush.audit.sequences import Sequences
from hush.train.language_models import causal_lm_loss

__all__ = ["matched_tokens", "validation_loss"]

AT_ONCE = 64  # rows whose logits are in memory together


def validation_loss(model: Any, row_RT: NDArray[np.uint16]) -> float:
    """Mean loss of a token, in float32."""
    losses: list[torch.Tensor] = []
    with evaluation_mode(model):
        for begin in range(0, len(row_RT), AT_ONCE):
            ids = torch.from_numpy(row_RT[begin : begin + AT_ONCE].astype(np.int64)).to(model.device)
            losses.append(causal_lm_loss(model, {"input_ids": ids, "labels": ids}))
    return float(torch.cat(losses).mean())


def matched_tokens(
    model: Any, row_NT: NDArray[np.uint16], *, prompts: Sequence[int], longest: int
) -> dict[int, NDArray[np.int64]]:
    """For each length of prompt: of each sequence, how many of the next tokens greedy decoding says before it errs."""
    subject = Subject.of(model)
    found: dict[int, NDArray[np.int64]] = {}
    for prompt in prompts:
        sequences = Sequences.of(list(row_NT), begin=prompt, end=prompt + longest)
        found[prompt] = extract(subject, sequences, prompts=[prompt], continuations=[longest]).matched_NK[:, 0]
    return found

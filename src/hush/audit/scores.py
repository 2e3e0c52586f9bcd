"""Scores of canaries that were trained on and of others that were not, as files that other tools' attacks read.

The columns are those that membership analyses of PrivacyGuard read (``BaseAnalysisInput``: user_id, score);
``CanaryScoreAuditor`` of jax_privacy takes the scores of both files as arrays. A member is the text that was planted;
its non-members are the same text with other candidates, drawn at random as the true one was, so that nothing but
training tells the two apart.
"""

from collections.abc import Sequence
from pathlib import Path
from random import Random, SystemRandom
from typing import Any

import numpy as np

from hush.audit.canaries import Canary, CanarySet, Candidates
from hush.audit.exposure import log_likelihoods
from hush.audit.models import Subject
from hush.errors import InvalidInput
from hush.storage import write_table
from hush.train.language_models import causal_lm_loss, default_loss

__all__ = ["export_scores"]


KIND = "scores"
MEMBERS, NON_MEMBERS = "members.parquet", "non_members.parquet"


def export_scores(
    subject: Subject,
    tokenizer: Any,
    planting: CanarySet,
    folder: str | Path,
    *,
    max_length: int,
    others: int = 1,
    reference: tuple[Subject, Any] | None = None,
    batch_size: int | None = None,
    rng: Random | None = None,
) -> None:
    """Write members.parquet, a row for each canary, and non_members.parquet, ``others`` rows for each, into a folder.

    user_id numbers the rows of a file; canary is the canary's public id; loss is the negative log likelihood of the
    text behind what all candidates share; score is the higher the likelier the text was trained on: -loss, or with a
    reference model, its loss minus loss. reference_loss is that model's, if there is one. max_length: the tokens to
    which training truncated texts.

    Guarantee: owner-only. The files are readable by the owner alone and hold no text, but they are computed from data
    with secrets, without noise: whoever else gets them gets a release that no plan accounts for.
    """
    models = [(subject, tokenizer), *([] if reference is None else [reference])]
    if not 1 <= others < planting.candidates.size:
        raise InvalidInput(
            f"pass from 1 to {planting.candidates.size - 1} other candidates", setting="others", value=others
        )
    if any(default_loss(each.model) is not causal_lm_loss for each, _ in models):
        raise InvalidInput("scores are log likelihoods of texts, which causal language models have; pass one")
    target = Path(folder)
    target.mkdir(mode=0o700, parents=True, exist_ok=True)
    draw = SystemRandom() if rng is None else rng
    member_rows: list[dict[str, Any]] = []
    other_rows: list[dict[str, Any]] = []
    for canary in planting.canaries:
        drawn = planting.candidates.sample_others(canary.truth, others, draw)
        # Sorted: rounding depends on the position in a batch, which must not depend on which candidate is the true one.
        numbers = sorted([canary.truth, *drawn])
        losses_RS = [
            -_log_likelihoods(
                *model, canary, planting.candidates, numbers, max_length=max_length, batch_size=batch_size
            )
            for model in models
        ]
        for place, number in enumerate(numbers):
            loss, *base = (float(loss_S[place]) for loss_S in losses_RS)
            row = {"canary": canary.id, "score": (base[0] if base else 0.0) - loss, "loss": loss}
            row |= {"reference_loss": base[0]} if base else {}
            (member_rows if number == canary.truth else other_rows).append(row)
    _write(member_rows, target / MEMBERS)
    _write(other_rows, target / NON_MEMBERS)


def _log_likelihoods(
    subject: Subject,
    tokenizer: Any,
    canary: Canary,
    candidates: Candidates,
    numbers: Sequence[int],
    *,
    max_length: int,
    batch_size: int | None,
) -> np.ndarray:
    texts = [canary.template.filled(candidates.text(number)) for number in numbers]
    begin = len(canary.template.before)
    ends = [begin + len(candidates.text(number)) for number in numbers]
    found = log_likelihoods(subject, tokenizer, texts, ends, max_length=max_length, batch_size=batch_size)
    if np.isnan(found).any():
        raise InvalidInput(f"the model computes NaN as a probability of {canary.id}, which is no score")
    return found


def _write(rows: list[dict[str, Any]], path: Path) -> None:
    import pyarrow as pa

    table = pa.Table.from_pylist(rows)
    numbered = table.add_column(0, "user_id", pa.array(range(len(rows)), pa.int64()))
    write_table(numbered, path, kind=KIND, owner_only=True)

"""Warnings about trainings that are sound but learn nothing: before the first round if that is known, else at the end.

Who may see what. Warnings about the plan, about released scores and about the released model are functions of what is
released anyway. Losses and norms of the examples drawn are not: warnings about them are for the owner only.
"""

import math
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from hush.errors import InvalidInput
from hush.numbers import counted, rounded_up
from hush.plan import Plan
from hush.train.language_models import IGNORED, TokenizedTexts
from hush.train.run_folder import RoundRecord

__all__ = ["cautions_before", "owner_cautions", "refuse_unlabelled", "release_cautions", "signal_over_noise"]


LEAST_SIGNAL = 1.0  # of all rounds over their noise: below it the noise is longer than all gradients together
MAX_ROWS = 64  # of a dataset that is read to see whether it has labels
MAX_RISE = 1.1  # of the mean loss of the examples drawn, from the first tenth of the rounds to the last
ALL_CLIPPED, NONE_CLIPPED = 0.999, 0.001  # shares of the examples drawn
FAR_ABOVE = 10.0  # clip norms: from here on the median gradient counts as clipped hard


def signal_over_noise(plan: Plan, trained_parameters: int) -> float:
    """The most that all rounds can learn over all noise: batch size × √rounds / (noise multiplier × √parameters).

    Each of the rounds adds up gradients of norm C or less, batch_size of them on average; if all pointed the same way,
    their sum had the norm rounds × batch_size × C. That of the noise is about √rounds × C × noise × √parameters. Real
    gradients agree far less.
    """
    noise = plan.training_noise_multiplier * math.sqrt(max(trained_parameters, 1))
    return plan.batch_size * math.sqrt(plan.rounds) / noise if noise else math.inf


def cautions_before(plan: Plan, trained_parameters: int) -> list[str]:
    """Warnings that plan and model allow before the first round."""
    signal = signal_over_noise(plan, trained_parameters)
    if signal >= LEAST_SIGNAL:
        return []
    return [
        f"The signal of all rounds is at most {rounded_up(signal, 2)} of their noise: batch size × √rounds / (noise "
        f"multiplier × √parameters), for {counted(trained_parameters, 'trained parameter')}. Even if all gradients "
        "agreed, their sum would be shorter than the noise; expect the private rounds to teach the model next to "
        "nothing. Train fewer parameters (LoRA), promise less, or keep less of the examples with secrets."
    ]


def refuse_unlabelled(data: Any) -> None:
    """Refuse data in which nothing is to be learnt: tokenised texts without a label, or rows whose labels are all -100.

    Of other data than tokenised texts a few rows are read, one at a time, so that no transform sees two of them; rows
    without labels, which a collator adds, pass.
    """
    if isinstance(data, TokenizedTexts):
        nothing = len(data) > 0 and not data.has_labels
    else:
        numbers = np.unique(np.linspace(0, len(data) - 1, MAX_ROWS).astype(np.int64)).tolist() if len(data) else []
        rows = [data[number] for number in numbers]
        labels = [row["labels"] for row in rows if isinstance(row, Mapping) and "labels" in row]
        nothing = len(labels) > 0 and all(bool(np.all(np.asarray(label) == IGNORED)) for label in labels)
    if nothing:
        raise InvalidInput(
            f"no token has a label: all labels are {IGNORED}, or all texts are shorter than 2 tokens, so nothing would "
            "be learnt; check how the data are tokenised, and which part of a text gets labels"
        )


def release_cautions(scores: Sequence[Mapping[str, float]], parameters: Iterable[Tensor], *, name: str) -> list[str]:
    """Warnings about a finished training from what it releases: its scores, oldest first, and its model.

    name: the score that falls if the model learns.
    """
    if not all(bool(torch.isfinite(parameter).all()) for parameter in parameters):
        return [
            "The model diverged: some of its parameters are not finite, and it is of no use. Lower the learning rate; "
            "a new training is a new release."
        ]
    losses = [row[name] for row in scores if name in row]
    if len(losses) > 1 and losses[-1] > losses[0]:
        return [
            f"The {name} rose from {losses[0]:.4g} to {losses[-1]:.4g}: the learning rate is too high, or the noise "
            "too large for what gradients agree on. A new training is a new release: try settings on public data first."
        ]
    return []


def owner_cautions(records: Sequence[RoundRecord], *, clip_norm: float) -> list[str]:
    """Warnings for the owner only, from the log of a run's rounds."""
    shares = [record.clipped_share for record in records if record.clipped_share is not None]
    norms = [record.norm_quantiles for record in records if record.norm_quantiles is not None]
    drawn, broken = sum(record.examples for record in records), sum(record.not_finite for record in records)
    cautions: list[str] = []
    losses = [record.loss for record in records if record.loss is not None]
    tenth = -(-len(losses) // 10)
    first, last = (float(np.mean(part)) if part else 0.0 for part in (losses[:tenth], losses[-tenth:]))
    if last > MAX_RISE * first > 0:
        cautions.append(
            f"The loss of the examples drawn rose from {first:.4g} to {last:.4g}: the learning rate is too high, or "
            "the noise too large. A new training is a new release: try settings on public data first."
        )
    if broken and broken * 2 > drawn:
        cautions.append(
            f"{broken:,} of {counted(drawn, 'drawn example')} had a loss or gradient that is not finite and added "
            "nothing: the model diverged, or the data are not what it expects. Lower the learning rate."
        )
    if not norms:
        return cautions
    median = float(np.median([quantiles[3] for quantiles in norms]))
    if max(quantiles[-1] for quantiles in norms) == 0:
        cautions.append("Every gradient was 0: nothing was learnt. Check labels and loss.")
    elif min(shares) > ALL_CLIPPED and median > FAR_ABOVE * clip_norm:
        cautions.append(
            f"Every gradient was clipped, from a median norm of {median:.2g} to the clip norm {clip_norm:g}, so all "
            "examples count alike, outliers included. If the loss does not fall, try a larger clip norm on public data."
        )
    elif max(shares) < NONE_CLIPPED:
        cautions.append(
            f"No gradient was clipped (median norm {median:.2g}, clip norm {clip_norm:g}): a smaller clip norm leaves "
            "the gradients as they are and lowers the noise. Choose it on public data."
        )
    return cautions

"""Extraction from masked language models: every token of a secret is masked, and the model fills it in.

The text that the secret was trained in, on both sides of it, is the prompt. There are two orders, both greedy:

together    one pass; every masked token gets its likeliest value independently of the others. Cheap, but weak for
            secrets of several tokens.
in_turn     the first masked token gets its likeliest value, then the second, given the first as filled in, and so on:
            as many passes as the secret has tokens. The counterpart of greedy decoding, and the default.

The remarks of ``hush.audit.extraction`` on limits hold here too.

Shapes: N sequences, B rows of a batch, T tokens, W tokens of a secret.
"""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any, Literal, Self, final

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from hush.arrays import Progress
from hush.audit.models import Subject, evaluation_mode
from hush.audit.sequences import Integers, Sequences
from hush.audit.statistics import Success
from hush.errors import InvalidInput

__all__ = ["FillIn", "FillInBatch", "FillOrder", "fill_in", "fill_in_batches"]


FillOrder = Literal["together", "in_turn"]


@final
@dataclass(frozen=True, slots=True, kw_only=True, eq=False, repr=False)
class FillInBatch:
    """The result of one batch: how many tokens of each row's secret were filled in correctly."""

    rows: Integers
    right_B: Integers

    def __repr__(self) -> str:
        return f"FillInBatch({len(self.rows)} sequences)"


@final
@dataclass(frozen=True, slots=True, kw_only=True, eq=False, repr=False)
class FillIn:
    """Which secrets a masked language model fills in; sequences longer than the model's context are not tried."""

    sequences: Sequences
    way: FillOrder
    tried_N: NDArray[np.bool_]
    right_N: Integers

    @classmethod
    def gather(cls, sequences: Sequences, subject: Subject, way: FillOrder, batches: Iterable[FillInBatch]) -> Self:
        """Combine all batches; every sequence that can be tried must be in one of them."""
        right_N = np.full(len(sequences), -1, dtype=np.int64)
        for batch in batches:
            right_N[batch.rows] = batch.right_B
        tried_N = sequences.length_N <= subject.context_length
        missing = int((tried_N & (right_N < 0)).sum())
        if missing:
            raise InvalidInput(f"{missing} sequences were not tried yet; pass the batches of the whole test")
        return cls(sequences=sequences, way=way, tried_N=tried_N, right_N=right_N)

    @property
    def hits(self) -> NDArray[np.bool_]:
        """Which secrets were filled in completely; False for those too long to try."""
        return self.tried_N & (self.right_N == self.sequences.end_N - self.sequences.begin_N)

    @property
    def success(self) -> Success:
        """The fraction over all sequences that fit the model's context."""
        return Success(hits=int(self.hits.sum()), runs=int(self.tried_N.sum()))

    @property
    def too_long(self) -> int:
        """How many sequences exceed the model's context."""
        return int((~self.tried_N).sum())

    @property
    def token_share(self) -> float:
        """The share of all secrets' tokens that were filled in correctly."""
        size_N = self.sequences.end_N - self.sequences.begin_N
        return float(self.right_N[self.tried_N].sum() / size_N[self.tried_N].sum())

    def by_secret(self) -> dict[int, Success | None]:
        """The fraction over each secret's own sequences; None where all of them are too long."""
        success_of: dict[int, Success | None] = {}
        for secret in np.unique(self.sequences.secret_N[self.sequences.secret_N >= 0]).tolist():
            member_N = (self.sequences.secret_N == secret) & self.tried_N
            hits, runs = int((self.hits & member_N).sum()), int(member_N.sum())
            success_of[secret] = Success(hits=hits, runs=runs) if runs else None
        return success_of

    def __repr__(self) -> str:
        return f"FillIn({len(self.sequences)} sequences, {self.way})"


def fill_in_batches(
    subject: Subject,
    sequences: Sequences,
    *,
    mask: int,
    way: FillOrder = "in_turn",
    done: Iterable[FillInBatch] = (),
    batch_size: int | None = None,
    progress: Progress | None = None,
) -> Iterator[FillInBatch]:
    """Try every batch, and yield each result at once; batches in ``done``, from an earlier call, are skipped.

    mask: the tokenizer's mask token. Texts of similar length form a batch; padding at the end is masked out.
    """
    _check(subject, sequences, mask, way, batch_size)
    size_N = sequences.end_N - sequences.begin_N
    left_N = sequences.length_N <= subject.context_length
    if not left_N.any():
        raise InvalidInput(
            f"the model takes {subject.context_length} tokens and the shortest sequence has "
            f"{sequences.length_N.min()}; truncate the texts as for training"
        )
    total = int(left_N.sum())
    for batch in done:
        left_N[batch.rows] = False
    rows = np.flatnonzero(left_N)
    rows = rows[np.lexsort((size_N[rows], sequences.length_N[rows]))]
    while True:
        if progress is not None:
            progress(total - len(rows), total)
        if not rows.size:
            return
        longest = int(sequences.length_N[rows[-1]])
        size = batch_size or subject.batch_rows(longest, logits=longest)
        chosen, rows = rows[:size], rows[size:]
        yield FillInBatch(rows=chosen, right_B=_count_right(subject, sequences, chosen, mask, way))


def fill_in(
    subject: Subject,
    sequences: Sequences,
    *,
    mask: int,
    way: FillOrder = "in_turn",
    batch_size: int | None = None,
    progress: Progress | None = None,
) -> FillIn:
    """Mask every token of each secret in its text, and test whether a masked language model fills it in."""
    batches = fill_in_batches(subject, sequences, mask=mask, way=way, batch_size=batch_size, progress=progress)
    return FillIn.gather(sequences, subject, way, batches)


def _count_right(subject: Subject, sequences: Sequences, rows: Integers, mask: int, way: FillOrder) -> Integers:
    """How many tokens of each secret are filled in correctly."""
    begin_B, size_B = sequences.begin_N[rows], sequences.end_N[rows] - sequences.begin_N[rows]
    length_B = sequences.length_N[rows]
    token_BT = np.full((len(rows), int(length_B.max())), mask, dtype=np.int64)  # padding may be any token
    for padded, row in zip(token_BT, rows, strict=True):
        padded[: len(sequences.tokens[row])] = sequences.tokens[row]
    position_T = np.arange(token_BT.shape[1])
    secret_BT = (position_T >= begin_B[:, None]) & (position_T < (begin_B + size_B)[:, None])
    true_BT = torch.from_numpy(token_BT).to(subject.device)
    hidden_BT = torch.from_numpy(secret_BT).to(subject.device)
    inside_BT = torch.from_numpy(position_T < length_B[:, None]).to(subject.device)
    filled_BT = true_BT.masked_fill(hidden_BT, mask)
    with evaluation_mode(subject.model):
        if way == "together":
            filled_BT = torch.where(hidden_BT, _likeliest(subject.model, filled_BT, inside_BT), filled_BT)
        else:
            for turn in range(int(size_B.max())):
                # Rows whose secret is complete drop out.
                open_B = torch.from_numpy(np.flatnonzero(size_B > turn)).to(subject.device)
                position_B = torch.from_numpy(begin_B[size_B > turn] + turn).to(subject.device)
                likeliest_BT = _likeliest(subject.model, filled_BT[open_B], inside_BT[open_B])
                filled_BT[open_B, position_B] = likeliest_BT.gather(1, position_B[:, None]).squeeze(1)
    return ((filled_BT == true_BT) & hidden_BT).sum(dim=1).cpu().numpy()


def _likeliest(model: torch.nn.Module, token_BT: Tensor, inside_BT: Tensor) -> Tensor:
    output: Any = model(input_ids=token_BT, attention_mask=inside_BT.long())
    return output.logits.argmax(dim=-1)


def _check(subject: Subject, sequences: Sequences, mask: int, way: FillOrder, batch_size: int | None) -> None:
    if not len(sequences):
        raise InvalidInput("there is no sequence to try; pass at least one")
    if way not in ("together", "in_turn"):
        raise InvalidInput(f"way={way!r}; pass 'together' or 'in_turn'")
    if batch_size is not None and batch_size < 1:
        raise InvalidInput(f"batch_size={batch_size}; pass at least 1")
    unknown = next((index for index, row in enumerate(sequences.tokens) if row.max() >= subject.vocabulary_size), None)
    if unknown is not None or not 0 <= mask < subject.vocabulary_size:
        what = "the mask token" if unknown is None else f"a token of sequence {unknown}"
        raise InvalidInput(
            f"{what} is outside the model's vocabulary of {subject.vocabulary_size} tokens; use the model's own "
            "tokenizer"
        )

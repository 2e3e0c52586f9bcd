"""The fill-in test for masked language models: with every token of a secret masked, does the model put it back?

All tokens of the secret are masked in the text that it was trained in; the text on both sides is the prompt. There are
two ways to fill in, both greedy:

together    one pass; every masked token is filled by its likeliest word, none knowing the others. Cheap, and weak for
            secrets of several tokens.
in_turn     the first masked token is filled by its likeliest word, then the second, given the first as filled in, and
            so on: as many passes as the secret has tokens. The counterpart of greedy decoding, and the default.

What ``hush.audit.extraction`` says of limits holds here.

Shapes: N sequences, B rows of a batch, T tokens, W tokens of a secret.
"""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any, Literal, Self, final

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from hush.audit.models import Subject, still
from hush.audit.sequences import Progress, Sequences
from hush.audit.statistics import Success
from hush.errors import InvalidInput

__all__ = ["FillIn", "Filled", "Way", "fill_in", "fill_in_batches"]


Way = Literal["together", "in_turn"]
Integers = NDArray[np.int64]


@final
@dataclass(frozen=True, slots=True, kw_only=True, eq=False, repr=False)
class Filled:
    """What one batch showed: how many tokens of each row's secret were put back in their places."""

    rows: Integers
    right_B: Integers

    def __repr__(self) -> str:
        return f"Filled({len(self.rows)} sequences)"


@final
@dataclass(frozen=True, slots=True, kw_only=True, eq=False, repr=False)
class FillIn:
    """Which secrets a masked language model puts back; tokens that the model has no room for are counted as short."""

    sequences: Sequences
    way: Way
    tried_N: NDArray[np.bool_]
    right_N: Integers

    @classmethod
    def gather(cls, sequences: Sequences, subject: Subject, way: Way, batches: Iterable[Filled]) -> Self:
        """All batches as one table; every sequence that can be tried must be in one of them."""
        right_N = np.full(len(sequences), -1, dtype=np.int64)
        for one in batches:
            right_N[one.rows] = one.right_B
        tried_N = sequences.length_N <= subject.room
        missing = int((tried_N & (right_N < 0)).sum())
        if missing:
            raise InvalidInput(f"{missing} sequences were not tried yet; pass the batches of the whole test")
        return cls(sequences=sequences, way=way, tried_N=tried_N, right_N=right_N)

    @property
    def hits(self) -> NDArray[np.bool_]:
        """Which secrets were put back whole; False for those too long to try."""
        return self.tried_N & (self.right_N == self.sequences.end_N - self.sequences.begin_N)

    @property
    def success(self) -> Success:
        """The fraction over all sequences that the model has room for."""
        return Success(hits=int(self.hits.sum()), runs=int(self.tried_N.sum()))

    @property
    def too_long(self) -> int:
        """Sequences that the model has no room for."""
        return int((~self.tried_N).sum())

    @property
    def token_share(self) -> float:
        """Share of all secrets' tokens that were put back."""
        size_N = self.sequences.end_N - self.sequences.begin_N
        return float(self.right_N[self.tried_N].sum() / size_N[self.tried_N].sum())

    def by_secret(self) -> dict[int, Success | None]:
        """The fraction over each secret's own sequences; None where all of them are too long."""
        found: dict[int, Success | None] = {}
        for secret in np.unique(self.sequences.secret_N[self.sequences.secret_N >= 0]).tolist():
            own_N = (self.sequences.secret_N == secret) & self.tried_N
            hits, runs = int((self.hits & own_N).sum()), int(own_N.sum())
            found[secret] = Success(hits=hits, runs=runs) if runs else None
        return found

    def __repr__(self) -> str:
        return f"FillIn({len(self.sequences)} sequences, {self.way})"


def fill_in_batches(
    subject: Subject,
    sequences: Sequences,
    *,
    mask: int,
    way: Way = "in_turn",
    done: Iterable[Filled] = (),
    batch_size: int | None = None,
    progress: Progress | None = None,
) -> Iterator[Filled]:
    """Every batch as soon as it is tried; those in ``done``, from an earlier try, are not tried again.

    mask: the tokenizer's mask token. Texts of similar length stand together, padded at the end and masked there.
    """
    _check(subject, sequences, mask, way, batch_size)
    size_N = sequences.end_N - sequences.begin_N
    left_N = sequences.length_N <= subject.room
    if not left_N.any():
        raise InvalidInput(
            f"the model takes {subject.room} tokens and the shortest sequence has {sequences.length_N.min()}; cut the "
            "texts as for training"
        )
    total = int(left_N.sum())
    for one in done:
        left_N[one.rows] = False
    rows = np.flatnonzero(left_N)
    rows = rows[np.lexsort((size_N[rows], sequences.length_N[rows]))]
    while True:
        if progress is not None:
            progress(total - len(rows), total)
        if not rows.size:
            return
        longest = int(sequences.length_N[rows[-1]])
        size = batch_size or subject.batch_rows(longest, logits=longest)
        some, rows = rows[:size], rows[size:]
        yield Filled(rows=some, right_B=_right(subject, sequences, some, mask, way))


def fill_in(
    subject: Subject,
    sequences: Sequences,
    *,
    mask: int,
    way: Way = "in_turn",
    batch_size: int | None = None,
    progress: Progress | None = None,
) -> FillIn:
    """Mask every token of each secret in its text, and see whether a masked language model puts it back."""
    batches = fill_in_batches(subject, sequences, mask=mask, way=way, batch_size=batch_size, progress=progress)
    return FillIn.gather(sequences, subject, way, batches)


def _right(subject: Subject, sequences: Sequences, rows: Integers, mask: int, way: Way) -> Integers:
    """How many tokens of each secret are put back in their places."""
    begin_B, size_B = sequences.begin_N[rows], sequences.end_N[rows] - sequences.begin_N[rows]
    length_B = sequences.length_N[rows]
    token_BT = np.full((len(rows), int(length_B.max())), mask, dtype=np.int64)  # any token will do for padding
    for line, row in zip(token_BT, rows, strict=True):
        line[: len(sequences.tokens[row])] = sequences.tokens[row]
    place_T = np.arange(token_BT.shape[1])
    secret_BT = (place_T >= begin_B[:, None]) & (place_T < (begin_B + size_B)[:, None])
    true_BT = torch.from_numpy(token_BT).to(subject.device)
    hidden_BT = torch.from_numpy(secret_BT).to(subject.device)
    inside_BT = torch.from_numpy(place_T < length_B[:, None]).to(subject.device)
    filled_BT = true_BT.masked_fill(hidden_BT, mask)
    with still(subject.model):
        if way == "together":
            filled_BT = torch.where(hidden_BT, _likeliest(subject.model, filled_BT, inside_BT), filled_BT)
        else:
            for turn in range(int(size_B.max())):
                # Rows whose secret is complete are not looked at again.
                open_B = torch.from_numpy(np.flatnonzero(size_B > turn)).to(subject.device)
                place_B = torch.from_numpy(begin_B[size_B > turn] + turn).to(subject.device)
                said_BT = _likeliest(subject.model, filled_BT[open_B], inside_BT[open_B])
                filled_BT[open_B, place_B] = said_BT.gather(1, place_B[:, None]).squeeze(1)
    return ((filled_BT == true_BT) & hidden_BT).sum(dim=1).cpu().numpy()


def _likeliest(model: torch.nn.Module, token_BT: Tensor, inside_BT: Tensor) -> Tensor:
    made: Any = model(input_ids=token_BT, attention_mask=inside_BT.long())
    return made.logits.argmax(dim=-1)


def _check(subject: Subject, sequences: Sequences, mask: int, way: Way, batch_size: int | None) -> None:
    if not len(sequences):
        raise InvalidInput("there is no sequence to try; pass at least one")
    if way not in ("together", "in_turn"):
        raise InvalidInput(f"way={way!r}; pass 'together' or 'in_turn'")
    if batch_size is not None and batch_size < 1:
        raise InvalidInput(f"batch_size={batch_size}; pass at least 1")
    unknown = next((place for place, row in enumerate(sequences.tokens) if row.max() >= subject.vocabulary), None)
    if unknown is not None or not 0 <= mask < subject.vocabulary:
        what = "the mask token" if unknown is None else f"a token of sequence {unknown}"
        raise InvalidInput(
            f"the model with its {subject.vocabulary} embeddings does not know {what}; use the model's own tokenizer"
        )

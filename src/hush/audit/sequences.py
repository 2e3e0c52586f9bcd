"""What extraction is tried on: token sequences of the training data, with the place of the secret in each.

From a corpus and the characters at which its secrets stand, through the tokenizer's offsets, exactly as training cut
and tokenised the texts. What cannot be tried is counted, never dropped in silence.

Shapes: N sequences.

The table that extraction fills: each sequence, with each length of prompt, for each length of continuation.

It says which of them can be tried, cuts them into batches of prompts of one length, and names what cannot be tried.

Shapes: N sequences, K lengths of prompts, M lengths of continuations, B rows of a batch, W tokens of a target.
"""

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Self, TypeVar, final

import numpy as np
import torch
from numpy.typing import ArrayLike, NDArray
from torch import Tensor

from hush.audit.models import Subject
from hush.audit.settings import Continuation
from hush.audit.statistics import Success
from hush.errors import InvalidInput
from hush.numbers import counted

__all__ = ["Cell", "Continuation", "Grid", "Job", "LeftOut", "Progress", "Sequences", "run_jobs", "secret_sequences"]


Integers = NDArray[np.int64]
_CHUNK = 256  # texts that a tokenizer gets at once


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class LeftOut:
    """How many places of secrets cannot be tried, and why.

    unplaced: no characters are known for them. cut: they begin or end beyond the tokens that training kept. repeated:
    the same secret stands earlier in the same example, or for models that see both sides anywhere else in it, so that a
    prompt could hold it, and copying would pass for memory. copies: of the same tokens, the secret at the same place:
    what comes out of one comes out of all, so they would be counted as tries that they are not.
    """

    unplaced: int = 0
    cut: int = 0
    repeated: int = 0
    copies: int = 0

    @property
    def total(self) -> int:
        return self.unplaced + self.cut + self.repeated + self.copies


@final
@dataclass(frozen=True, slots=True, kw_only=True, eq=False, repr=False)
class Sequences:
    """Rows of tokens, each with the secret at ``begin_N`` up to ``end_N`` (exclusive); prompts end before ``begin_N``.

    example_N and secret_N name them in results; secret -1 stands for a sequence that belongs to no secret.
    """

    tokens: tuple[NDArray[np.int32], ...]
    begin_N: Integers
    end_N: Integers
    example_N: Integers
    secret_N: Integers
    left_out: LeftOut = LeftOut()

    @classmethod
    def of(
        cls,
        tokens: Sequence[Sequence[int] | NDArray[np.integer]],
        *,
        begin: ArrayLike,
        end: ArrayLike | None = None,
        example: ArrayLike | None = None,
        secret: ArrayLike = -1,
        left_out: LeftOut | None = None,
    ) -> Self:
        """Sequences from one entry each; a single number stands for all. By default a target runs to the row's end."""
        rows = tuple(np.asarray(row, dtype=np.int32).reshape(-1) for row in tokens)
        length_N = np.array([len(row) for row in rows], dtype=np.int64)
        columns = (
            begin,
            length_N if end is None else end,
            np.arange(len(rows)) if example is None else example,
            secret,
        )
        try:
            begin_N, end_N, example_N, secret_N = (
                np.broadcast_to(np.asarray(column, dtype=np.int64), length_N.shape) for column in columns
            )
        except ValueError:
            sizes = ", ".join(str(np.size(np.asarray(column))) for column in columns)
            raise InvalidInput(
                f"{len(rows)} sequences with begin, end, example and secret of {sizes} entries; give each sequence one"
            ) from None
        wrong = np.flatnonzero(~((begin_N >= 0) & (begin_N < end_N) & (end_N <= length_N)))
        if wrong.size:
            first = int(wrong[0])
            raise InvalidInput(
                f"sequence {first} has {length_N[first]} tokens and a target from {begin_N[first]} to {end_N[first]}; "
                "a target has at least one token and lies inside its sequence"
            )
        negative = next((place for place, row in enumerate(rows) if row.size and row.min() < 0), None)
        if negative is not None:
            raise InvalidInput(f"sequence {negative} holds a negative token; pass the tokenizer's input_ids")
        return cls(
            tokens=rows,
            begin_N=begin_N,
            end_N=end_N,
            example_N=example_N,
            secret_N=secret_N,
            left_out=LeftOut() if left_out is None else left_out,
        )

    @property
    def length_N(self) -> Integers:
        """Tokens of each sequence."""
        return np.array([len(row) for row in self.tokens], dtype=np.int64)

    def __len__(self) -> int:
        return len(self.tokens)

    def __repr__(self) -> str:
        return f"Sequences({len(self)} sequences, {self.left_out.total} places left out)"


def secret_sequences(
    texts: Iterable[str],
    tokenizer: Any,
    *,
    example: ArrayLike,
    secret: ArrayLike,
    begin: ArrayLike,
    end: ArrayLike,
    max_length: int | None = None,
    both_sides: bool = False,
) -> Sequences:
    """The sequence around each place where a secret stands; example, secret, begin, end have an entry for each place.

    texts are all examples in order, such as ``corpus.texts()``; begin and end count characters, end exclusive, and are
    -1 where unknown. max_length: the tokens that training kept of each text. A token that holds any character of the
    secret belongs to the secret, so no prompt shows any part of it. both_sides: what follows a secret is shown as well,
    as to a masked language model.
    """
    columns = [np.atleast_1d(np.asarray(column, dtype=np.int64)) for column in (example, secret, begin, end)]
    if len({column.shape for column in columns}) != 1 or columns[0].ndim != 1:
        sizes = ", ".join(str(column.size) for column in columns)
        raise InvalidInput(f"example, secret, begin and end have {sizes} entries; give each place one of all four")
    example_H, secret_H, begin_H, end_H = columns
    if not getattr(tokenizer, "is_fast", False):
        raise InvalidInput(
            f"{type(tokenizer).__name__} cannot say which characters a token stands for; load the fast version of it"
        )
    if example_H.size and example_H.min() < 0:
        raise InvalidInput(f"example {example_H.min()} does not exist; examples count from 0")
    # First places first, so that what follows in the same example is known as a repetition.
    order = np.lexsort((end_H, begin_H, secret_H, example_H))
    known = order[begin_H[order] >= 0]
    pair_H = np.stack([example_H[known], secret_H[known]], axis=1)
    new = np.ones(len(known), dtype=bool)
    new[1:] = (pair_H[1:] != pair_H[:-1]).any(axis=1)
    kept = known[new & ~_elsewhere(pair_H, begin_H[known], end_H[known])] if both_sides else known[new]
    found: dict[tuple[bytes, int, int, int], tuple[NDArray[np.int32], int]] = {}  # tokens and place, of the first copy
    cut = copies = 0
    for number, text, tokens, offset_T2 in _tokenised(texts, tokenizer, np.unique(example_H[kept]), max_length):
        # Special tokens stand for no character.
        real_T = offset_T2[:, 0] < offset_T2[:, 1]
        for place in kept[np.searchsorted(example_H[kept], number) : np.searchsorted(example_H[kept], number, "right")]:
            first, last = int(begin_H[place]), int(end_H[place])
            if not first < last <= len(text):
                raise InvalidInput(
                    f"secret {secret_H[place]} is said to stand at characters {first} to {last} of example {number}, "
                    f"which has {len(text)}; scan the data that the model was trained on"
                )
            inside = np.flatnonzero(real_T & (offset_T2[:, 0] < last) & (offset_T2[:, 1] > first))
            if not inside.size or offset_T2[inside[-1], 1] < last or text[first : offset_T2[inside[0], 0]].strip():
                cut += 1
                continue
            what = (tokens.tobytes(), int(secret_H[place]), int(inside[0]), int(inside[-1]) + 1)
            copies += what in found
            found.setdefault(what, (tokens, int(place)))
    places = np.array([place for _, place in found.values()], dtype=np.int64)
    return Sequences.of(
        [tokens for tokens, _ in found.values()],
        begin=np.array([begin for *_, begin, _ in found], dtype=np.int64),
        end=np.array([end for *_, end in found], dtype=np.int64),
        example=example_H[places],
        secret=secret_H[places],
        left_out=LeftOut(unplaced=len(order) - len(known), cut=cut, repeated=len(known) - len(kept), copies=copies),
    )


def _elsewhere(pair_H: Integers, begin_H: Integers, end_H: Integers) -> NDArray[np.bool_]:
    """Whether the same secret stands at other characters of the same example too; one place may be listed twice."""
    if not len(pair_H):
        return np.zeros(0, dtype=bool)
    different_H4 = np.unique(np.column_stack([pair_H, begin_H, end_H]), axis=0)
    pairs, places = np.unique(different_H4[:, :2], axis=0, return_counts=True)
    several = {tuple(pair) for pair in pairs[places > 1].tolist()}
    return np.array([tuple(pair) in several for pair in pair_H.tolist()], dtype=bool)


def _tokenised(
    texts: Iterable[str], tokenizer: Any, wanted: Integers, max_length: int | None
) -> Iterable[tuple[int, str, NDArray[np.int32], Integers]]:
    """Number, text, tokens and their characters of the wanted examples, in order; the texts are read once."""
    held: list[tuple[int, str]] = []
    left = iter(wanted.tolist())
    following = next(left, None)
    number = -1
    for number, text in enumerate(texts):
        if following is None:
            break
        if number == following:
            held.append((number, text))
            following = next(left, None)
        if len(held) == _CHUNK:
            yield from _encoded(held, tokenizer, max_length)
            held = []
    if following is not None:
        raise InvalidInput(
            f"a secret stands in example {following}, but the data hold {counted(number + 1, 'example')}"
        )
    if held:
        yield from _encoded(held, tokenizer, max_length)


def _encoded(
    held: list[tuple[int, str]], tokenizer: Any, max_length: int | None
) -> Iterable[tuple[int, str, NDArray[np.int32], Integers]]:
    options = {} if max_length is None else {"truncation": True, "max_length": max_length}
    rows = tokenizer([text for _, text in held], return_offsets_mapping=True, verbose=False, **options)
    for (number, text), tokens, offsets in zip(held, rows["input_ids"], rows["offset_mapping"], strict=True):
        yield number, text, np.asarray(tokens, dtype=np.int32), np.asarray(offsets, dtype=np.int64).reshape(-1, 2)


Progress = Callable[[int, int], None]
Made = TypeVar("Made")


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class Cell:
    """One length of prompt and of continuation: how many sequences came out, and how many were too short to try.

    similarity: mean edit similarity of those tried, where it was asked for.
    """

    prompt: int
    continuation: Continuation
    success: Success
    short: int
    similarity: float | None = None


@final
@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Job:
    """A batch: which prompt, which rows, what the model is shown, and the targets, padded with -1."""

    prompt: int
    rows: NDArray[np.int64]
    prompt_BK: Tensor
    target_BW: Tensor


@final
@dataclass(frozen=True, slots=True, kw_only=True, eq=False, repr=False)
class Grid:
    """Sequences by prompts by continuations. A sequence fits where its own tokens and the model's room suffice."""

    sequences: Sequences
    prompts: tuple[int, ...]
    continuations: tuple[Continuation, ...]
    lead: tuple[int, ...]
    width_NM: NDArray[np.int64]
    fits_NKM: NDArray[np.bool_]

    @classmethod
    def of(
        cls,
        sequences: Sequences,
        subject: Subject,
        *,
        prompts: Sequence[int],
        continuations: Sequence[Continuation],
        lead: Sequence[int] = (),
    ) -> Self:
        """lead: tokens before every prompt that does not begin where its text does, such as the one that opens texts.

        A combination that no sequence fits is an error; where only some do not, cells count them as short.
        """
        if not len(sequences):
            left = f"; left out: {counted(sequences.left_out.total, 'place')}" if sequences.left_out.total else ""
            raise InvalidInput(f"there is no sequence to try{left}; pass at least one")
        lengths = [one for one in continuations if one != "secret"]
        for name, values in (("prompts", list(prompts)), ("continuations", lengths)):
            if any(isinstance(one, str) or one < 1 for one in values) or len(set(values)) < len(values):
                raise InvalidInput(f"{name}={values}; pass different numbers of tokens, each at least 1")
        if not prompts or not continuations:
            raise InvalidInput("there is no length to try; pass at least one of prompts and one of continuations")
        largest = [int(row.max()) for row in sequences.tokens]
        unknown = [place for place, token in enumerate(largest) if token >= subject.vocabulary]
        if unknown or any(not 0 <= token < subject.vocabulary for token in lead):
            where = f"sequence {unknown[0]} holds a token" if unknown else "lead holds a token"
            raise InvalidInput(
                f"{where} that the model with its {subject.vocabulary} embeddings does not know; use the model's own "
                "tokenizer"
            )
        secret_N = sequences.end_N - sequences.begin_N
        width_NM = np.stack([secret_N if one == "secret" else np.full_like(secret_N, one) for one in continuations], 1)
        prompt_K = np.asarray(prompts, dtype=np.int64)
        inside_NM = sequences.begin_N[:, None] + width_NM <= sequences.length_N[:, None]
        lead_NK = np.where(sequences.begin_N[:, None] > prompt_K, len(lead), 0)
        total_NKM = (lead_NK + prompt_K)[:, :, None] + width_NM[:, None, :]
        fits_NKM = (
            (sequences.begin_N[:, None, None] >= prompt_K[None, :, None])
            & inside_NM[:, None, :]
            & (total_NKM <= subject.room)
        )
        for k, m in np.argwhere(~fits_NKM.any(axis=0)):
            raise InvalidInput(
                f"no sequence can be tried with a prompt of {counted(prompts[k], 'token')} and a continuation of "
                f"{_said(continuations[m])}: the longest has {sequences.length_N.max()} tokens, at most "
                f"{sequences.begin_N.max()} stand before a secret, and the model takes {subject.room}; ask for less"
            )
        return cls(
            sequences=sequences,
            prompts=tuple(int(one) for one in prompts),
            continuations=tuple(continuations),
            lead=tuple(int(one) for one in lead),
            width_NM=width_NM,
            fits_NKM=fits_NKM,
        )

    @property
    def reach_NK(self) -> NDArray[np.int64]:
        """The longest continuation that each sequence is tried with; 0 where it is not tried."""
        return np.where(self.fits_NKM, self.width_NM[:, None, :], 0).max(axis=2)

    def job(self, prompt: int, rows: NDArray[np.int64]) -> Job:
        """What the model is shown, and what it is to say, for rows of one group."""
        places = [(self.sequences.tokens[row], int(self.sequences.begin_N[row])) for row in rows]
        lead = self.lead if places[0][1] > prompt else ()
        reach_B = self.reach_NK[rows, self.prompts.index(prompt)]
        target_BW = np.full((len(rows), int(reach_B.max())), -1, dtype=np.int64)
        for target, (tokens, begin), reach in zip(target_BW, places, reach_B, strict=True):
            target[:reach] = tokens[begin : begin + reach]
        prompt_BK = np.array([[*lead, *tokens[begin - prompt : begin]] for tokens, begin in places], dtype=np.int64)
        return Job(
            prompt=prompt, rows=rows, prompt_BK=torch.from_numpy(prompt_BK), target_BW=torch.from_numpy(target_BW)
        )

    def groups(self, done_NK: NDArray[np.bool_]) -> Iterator[tuple[int, NDArray[np.int64]]]:
        """Rows that are left to try, by the length of what the model is shown; similar targets stand together."""
        for k, prompt in enumerate(self.prompts):
            left_N = self.fits_NKM[:, k].any(axis=1) & ~done_NK[:, k]
            leads_N = (self.sequences.begin_N > prompt) & bool(self.lead)
            for group_N in (left_N & leads_N, left_N & ~leads_N):
                rows = np.flatnonzero(group_N)
                if rows.size:
                    yield prompt, rows[np.argsort(self.reach_NK[rows, k], kind="stable")]

    def column(self, prompt: int, continuation: Continuation) -> tuple[int, int]:
        """Where a cell stands."""
        if prompt not in self.prompts or continuation not in self.continuations:
            raise InvalidInput(
                f"prompt={prompt}, continuation={continuation!r} was not tried; there are {self.prompts} and "
                f"{self.continuations}"
            )
        return self.prompts.index(prompt), self.continuations.index(continuation)

    def cell(self, prompt: int, continuation: Continuation, hit_N: NDArray[np.bool_]) -> Cell:
        """The overall fraction of one cell."""
        k, m = self.column(prompt, continuation)
        fits_N = self.fits_NKM[:, k, m]
        success = Success(hits=int((hit_N & fits_N).sum()), runs=int(fits_N.sum()))
        return Cell(prompt=prompt, continuation=continuation, success=success, short=int((~fits_N).sum()))

    def by_secret(self, prompt: int, continuation: Continuation, hit_N: NDArray[np.bool_]) -> dict[int, Success | None]:
        """The fraction of each secret's own sequences; None where all of them are too short to try."""
        k, m = self.column(prompt, continuation)
        fits_N = self.fits_NKM[:, k, m]
        secrets, index_N = np.unique(self.sequences.secret_N, return_inverse=True)
        hits = np.bincount(index_N[hit_N & fits_N], minlength=len(secrets))
        runs = np.bincount(index_N[fits_N], minlength=len(secrets))
        return {
            int(secret): Success(hits=int(came_out), runs=int(tried)) if tried else None
            for secret, came_out, tried in zip(secrets, hits, runs, strict=True)
            if secret >= 0
        }


def run_jobs(
    grid: Grid,
    subject: Subject,
    work: Callable[[Job], Made],
    *,
    done: Iterable[tuple[int, NDArray[np.int64]]] = (),
    batch_size: int | None = None,
    progress: Progress | None = None,
) -> Iterator[Made]:
    """What ``work`` makes of every batch, as it is made. done: prompts and rows that were tried already.

    batch_size: by default what memory allows; where a device runs out of it after all, batches are halved.
    """
    if batch_size is not None and batch_size < 1:
        raise InvalidInput(f"batch_size={batch_size}; pass at least 1")
    done_NK = np.zeros(grid.fits_NKM.shape[:2], dtype=bool)
    for prompt, rows in done:
        done_NK[rows, grid.column(prompt, grid.continuations[0])[0]] = True
    tried_NK = grid.fits_NKM.any(axis=2)
    total, finished = int(tried_NK.sum()), int((tried_NK & done_NK).sum())
    if progress is not None:
        progress(finished, total)
    for prompt, rows in grid.groups(done_NK):
        reach = int(grid.reach_NK[rows, grid.prompts.index(prompt)].max())
        size = batch_size or subject.batch_rows(len(grid.lead) + prompt + reach)
        while rows.size:
            try:
                made = work(grid.job(prompt, rows[:size]))
            except torch.OutOfMemoryError:
                if size == 1:
                    raise
                torch.cuda.empty_cache()
                size = (size + 1) // 2
                continue
            finished += len(rows[:size])
            rows = rows[size:]
            yield made
            if progress is not None:
                progress(finished, total)


def _said(continuation: Continuation) -> str:
    return "the whole secret" if continuation == "secret" else counted(continuation, "token")

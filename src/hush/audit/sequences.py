"""Token sequences to extract, and the grid of prompt and continuation lengths that extraction tries on them.

:func:`secret_sequences` turns the spans of secrets in a corpus into token sequences, through the tokenizer's offsets,
exactly as training truncated and tokenised the texts. What cannot be tried is counted, never dropped silently.

:class:`Grid` lays out every sequence by every length of prompt and of continuation: it knows which combinations can be
tried, and cuts them into batches of prompts of one length.

Shapes: H spans, N sequences, K lengths of prompts, M lengths of continuations, B rows of a batch, W tokens of a target,
T tokens of a text.
"""

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, Self, TypeVar, final

import numpy as np
import torch
from numpy.typing import ArrayLike, NDArray
from torch import Tensor

from hush.arrays import Progress
from hush.audit.models import Subject
from hush.audit.settings import Continuation
from hush.audit.statistics import Success
from hush.errors import InvalidInput, Setting
from hush.numbers import counted

__all__ = [
    "TOKENIZER_BATCH_TEXTS",
    "Cell",
    "Grid",
    "Integers",
    "LeftOut",
    "PromptBatch",
    "Sequences",
    "run_batches",
    "secret_sequences",
]


Integers = NDArray[np.int64]
BatchResult = TypeVar("BatchResult")
TOKENIZER_BATCH_TEXTS = 256  # texts that are tokenised in one call


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class LeftOut:
    """How many spans of secrets cannot be tried, and why.

    unplaced: their characters are unknown. cut: they begin or end beyond the tokens that training kept. repeated: the
    same secret stands earlier in the same example (for models that see both sides: anywhere else in it), so the prompt
    could contain it and copying would pass for memory. copies: the same tokens with the secret at the same position as
    another span; all of them give the same result, so they would be counted as tries that are not independent.
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
    """Rows of tokens, each with its target from ``begin_N`` to ``end_N`` (exclusive); prompts end before ``begin_N``.

    example_N and secret_N identify them in results; the secret is -1 for a sequence that belongs to none.
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
        """Sequences from one entry each; a single number applies to all. By default targets end where rows do."""
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
                "pass targets of at least one token inside their sequence"
            )
        negative = next((index for index, row in enumerate(rows) if row.size and row.min() < 0), None)
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
        return f"Sequences({len(self)} sequences, {self.left_out.total} spans left out)"


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
    """The token sequence around each span of a secret; example, secret, begin and end have one entry a span.

    texts are all examples in order, such as ``corpus.texts()``; begin and end count characters, end exclusive, and are
    -1 where unknown. max_length: the tokens that training kept of each text. A token with any character of the secret
    belongs to the secret, so no prompt shows any part of it. both_sides: the model also sees what follows the secret,
    as a masked language model does.
    """
    columns = [np.atleast_1d(np.asarray(column, dtype=np.int64)) for column in (example, secret, begin, end)]
    if len({column.shape for column in columns}) != 1 or columns[0].ndim != 1:
        sizes = ", ".join(str(column.size) for column in columns)
        raise InvalidInput(f"example, secret, begin and end have {sizes} entries; give each span one of all four")
    example_H, secret_H, begin_H, end_H = columns
    if not getattr(tokenizer, "is_fast", False):
        raise InvalidInput(
            f"{type(tokenizer).__name__} does not give the characters of its tokens; load the fast version of it"
        )
    if example_H.size and example_H.min() < 0:
        raise InvalidInput(f"example {example_H.min()} does not exist; examples count from 0")
    # Sorted, so that later spans of a secret in the same example are recognised as repetitions.
    order = np.lexsort((end_H, begin_H, secret_H, example_H))
    known = order[begin_H[order] >= 0]
    pair_H = np.stack([example_H[known], secret_H[known]], axis=1)
    is_first = np.ones(len(known), dtype=bool)
    is_first[1:] = (pair_H[1:] != pair_H[:-1]).any(axis=1)
    kept = known[is_first]
    if both_sides:
        kept = known[is_first & ~_is_repeated(pair_H, begin_H[known], end_H[known])]
    # By tokens, secret and token span: the tokens and the span's index, of the first of several copies.
    unique: dict[tuple[bytes, int, int, int], tuple[NDArray[np.int32], int]] = {}
    cut = copies = 0
    for number, text, tokens, offset_T2 in _tokenised_examples(
        texts, tokenizer, np.unique(example_H[kept]), max_length
    ):
        # Special tokens cover no character.
        is_text_T = offset_T2[:, 0] < offset_T2[:, 1]
        in_example = slice(*(np.searchsorted(example_H[kept], number, side) for side in ("left", "right")))
        for span in kept[in_example]:
            first, last = int(begin_H[span]), int(end_H[span])
            if not first < last <= len(text):
                raise InvalidInput(
                    f"the span of secret {secret_H[span]} covers characters {first} to {last} of example {number}, "
                    f"which has {len(text)}; scan the data that the model was trained on"
                )
            inside = np.flatnonzero(is_text_T & (offset_T2[:, 0] < last) & (offset_T2[:, 1] > first))
            if not inside.size or offset_T2[inside[-1], 1] < last or text[first : offset_T2[inside[0], 0]].strip():
                cut += 1
                continue
            key = (tokens.tobytes(), int(secret_H[span]), int(inside[0]), int(inside[-1]) + 1)
            copies += key in unique
            unique.setdefault(key, (tokens, int(span)))
    spans = np.array([span for _, span in unique.values()], dtype=np.int64)
    return Sequences.of(
        [tokens for tokens, _ in unique.values()],
        begin=np.array([begin for *_, begin, _ in unique], dtype=np.int64),
        end=np.array([end for *_, end in unique], dtype=np.int64),
        example=example_H[spans],
        secret=secret_H[spans],
        left_out=LeftOut(unplaced=len(order) - len(known), cut=cut, repeated=len(known) - len(kept), copies=copies),
    )


def _is_repeated(pair_H: Integers, begin_H: Integers, end_H: Integers) -> NDArray[np.bool_]:
    """Whether the secret of each span has another span in the same example; one span may be listed twice."""
    if not len(pair_H):
        return np.zeros(0, dtype=bool)
    distinct_H4 = np.unique(np.column_stack([pair_H, begin_H, end_H]), axis=0)
    pairs, spans = np.unique(distinct_H4[:, :2], axis=0, return_counts=True)
    repeated = {tuple(pair) for pair in pairs[spans > 1].tolist()}
    return np.array([tuple(pair) in repeated for pair in pair_H.tolist()], dtype=bool)


def _tokenised_examples(
    texts: Iterable[str], tokenizer: Any, wanted: Integers, max_length: int | None
) -> Iterable[tuple[int, str, NDArray[np.int32], Integers]]:
    """Number, text, tokens and character offsets of the wanted examples, in order; the texts are read once."""
    batch: list[tuple[int, str]] = []
    remaining = iter(wanted.tolist())
    following = next(remaining, None)
    number = -1
    for number, text in enumerate(texts):
        if following is None:
            break
        if number == following:
            batch.append((number, text))
            following = next(remaining, None)
        if len(batch) == TOKENIZER_BATCH_TEXTS:
            yield from _tokenised_batch(batch, tokenizer, max_length)
            batch = []
    if following is not None:
        raise InvalidInput(
            f"a secret stands in example {following}, but the data hold {counted(number + 1, 'example')}; pass the "
            "data that the spans belong to"
        )
    if batch:
        yield from _tokenised_batch(batch, tokenizer, max_length)


def _tokenised_batch(
    batch: list[tuple[int, str]], tokenizer: Any, max_length: int | None
) -> Iterable[tuple[int, str, NDArray[np.int32], Integers]]:
    options = {} if max_length is None else {"truncation": True, "max_length": max_length}
    rows = tokenizer([text for _, text in batch], return_offsets_mapping=True, verbose=False, **options)
    for (number, text), tokens, offsets in zip(batch, rows["input_ids"], rows["offset_mapping"], strict=True):
        yield number, text, np.asarray(tokens, dtype=np.int32), np.asarray(offsets, dtype=np.int64).reshape(-1, 2)


# The grid of prompts and continuations.


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class Cell:
    """The result for one length of prompt and of continuation. short: sequences that were too short to try.

    similarity: mean edit similarity of the sequences tried, if it was requested.
    """

    prompt: int
    continuation: Continuation
    success: Success
    short: int
    similarity: float | None = None


@final
@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class PromptBatch:
    """A batch: the length of its prompts, its rows, the tokens shown to the model, and the targets, padded with -1."""

    prompt: int
    rows: NDArray[np.int64]
    prompt_BK: Tensor = field(repr=False)
    target_BW: Tensor = field(repr=False)


@final
@dataclass(frozen=True, slots=True, kw_only=True, eq=False, repr=False)
class Grid:
    """Sequences by prompts by continuations. A sequence fits if it is long enough and fits the model's context."""

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
        """Lay out the grid; a combination that no sequence fits is an error, and sequences that do not fit are counted.

        lead: tokens put before every prompt that starts in the middle of its text, such as the token that opens texts.
        """
        if not len(sequences):
            left = f"; left out: {counted(sequences.left_out.total, 'span')}" if sequences.left_out.total else ""
            raise InvalidInput(f"there is no sequence to try{left}; pass at least one")
        lengths = [length for length in continuations if length != "secret"]
        for name, values in (("prompts", list(prompts)), ("continuations", lengths)):
            if any(isinstance(length, str) or length < 1 for length in values) or len(set(values)) < len(values):
                raise InvalidInput("pass different numbers of tokens, each at least 1", setting=name, value=values)
        for name, given in (("prompts", prompts), ("continuations", continuations)):
            if not given:
                raise InvalidInput("there is no length to try; pass at least one", setting=name, value=list(given))
        largest = [int(row.max()) for row in sequences.tokens]
        unknown = [index for index, token in enumerate(largest) if token >= subject.vocabulary_size]
        if unknown or any(not 0 <= token < subject.vocabulary_size for token in lead):
            where = f"sequence {unknown[0]} holds a token" if unknown else "lead holds a token"
            raise InvalidInput(
                f"{where} outside the model's vocabulary of {subject.vocabulary_size} tokens; use the model's own "
                "tokenizer"
            )
        target_N = sequences.end_N - sequences.begin_N
        width_NM = np.stack(
            [target_N if length == "secret" else np.full_like(target_N, length) for length in continuations], axis=1
        )
        prompt_K = np.asarray(prompts, dtype=np.int64)
        inside_NM = sequences.begin_N[:, None] + width_NM <= sequences.length_N[:, None]
        lead_NK = np.where(sequences.begin_N[:, None] > prompt_K, len(lead), 0)
        total_NKM = (lead_NK + prompt_K)[:, :, None] + width_NM[:, None, :]
        fits_NKM = (
            (sequences.begin_N[:, None, None] >= prompt_K[None, :, None])
            & inside_NM[:, None, :]
            & (total_NKM <= subject.context_length)
        )
        for k, m in np.argwhere(~fits_NKM.any(axis=0)):
            raise InvalidInput(
                f"no sequence can be tried with a prompt of {counted(prompts[k], 'token')} and a continuation of "
                f"{_described(continuations[m])}: the longest sequence has {sequences.length_N.max()} tokens, at most "
                f"{sequences.begin_N.max()} stand before a secret, and the model takes {subject.context_length}; "
                "lower ",
                Setting("prompts"),
                " or ",
                Setting("continuations"),
            )
        return cls(
            sequences=sequences,
            prompts=tuple(int(length) for length in prompts),
            continuations=tuple(continuations),
            lead=tuple(int(token) for token in lead),
            width_NM=width_NM,
            fits_NKM=fits_NKM,
        )

    @property
    def reach_NK(self) -> NDArray[np.int64]:
        """The longest continuation that each sequence is tried with; 0 where it is not tried."""
        return np.where(self.fits_NKM, self.width_NM[:, None, :], 0).max(axis=2)

    def batch(self, prompt: int, rows: NDArray[np.int64]) -> PromptBatch:
        """The tokens shown to the model, and the targets, for rows of one group."""
        targets = [(self.sequences.tokens[row], int(self.sequences.begin_N[row])) for row in rows]
        lead = self.lead if targets[0][1] > prompt else ()
        reach_B = self.reach_NK[rows, self.prompts.index(prompt)]
        target_BW = np.full((len(rows), int(reach_B.max())), -1, dtype=np.int64)
        for target, (tokens, begin), reach in zip(target_BW, targets, reach_B, strict=True):
            target[:reach] = tokens[begin : begin + reach]
        prompt_BK = np.array([[*lead, *tokens[begin - prompt : begin]] for tokens, begin in targets], dtype=np.int64)
        return PromptBatch(
            prompt=prompt, rows=rows, prompt_BK=torch.from_numpy(prompt_BK), target_BW=torch.from_numpy(target_BW)
        )

    def groups(self, done_NK: NDArray[np.bool_]) -> Iterator[tuple[int, NDArray[np.int64]]]:
        """The rows left to try, by the length of what the model is shown, sorted by the length of their targets."""
        for k, prompt in enumerate(self.prompts):
            left_N = self.fits_NKM[:, k].any(axis=1) & ~done_NK[:, k]
            leads_N = (self.sequences.begin_N > prompt) & bool(self.lead)
            for group_N in (left_N & leads_N, left_N & ~leads_N):
                rows = np.flatnonzero(group_N)
                if rows.size:
                    yield prompt, rows[np.argsort(self.reach_NK[rows, k], kind="stable")]

    def column(self, prompt: int, continuation: Continuation) -> tuple[int, int]:
        """The indices of a cell: of its prompt and of its continuation."""
        if prompt not in self.prompts or continuation not in self.continuations:
            raise InvalidInput(
                f"prompt={prompt}, continuation={continuation!r} was not tried; pass one of the prompts {self.prompts} "
                f"and continuations {self.continuations}"
            )
        return self.prompts.index(prompt), self.continuations.index(continuation)

    def cell(self, prompt: int, continuation: Continuation, hit_N: NDArray[np.bool_]) -> Cell:
        """The fraction of hits in one cell, over all sequences that fit."""
        k, m = self.column(prompt, continuation)
        fits_N = self.fits_NKM[:, k, m]
        success = Success(hits=int((hit_N & fits_N).sum()), runs=int(fits_N.sum()))
        return Cell(prompt=prompt, continuation=continuation, success=success, short=int((~fits_N).sum()))

    def by_secret(self, prompt: int, continuation: Continuation, hit_N: NDArray[np.bool_]) -> dict[int, Success | None]:
        """The fraction of hits over the sequences of each secret; None where all of them are too short."""
        k, m = self.column(prompt, continuation)
        fits_N = self.fits_NKM[:, k, m]
        secrets, index_N = np.unique(self.sequences.secret_N, return_inverse=True)
        hits = np.bincount(index_N[hit_N & fits_N], minlength=len(secrets))
        runs = np.bincount(index_N[fits_N], minlength=len(secrets))
        return {
            int(secret): Success(hits=int(hit), runs=int(tried)) if tried else None
            for secret, hit, tried in zip(secrets, hits, runs, strict=True)
            if secret >= 0
        }


def run_batches(
    grid: Grid,
    subject: Subject,
    evaluate: Callable[[PromptBatch], BatchResult],
    *,
    done: Iterable[tuple[int, NDArray[np.int64]]] = (),
    batch_size: int | None = None,
    progress: Progress | None = None,
) -> Iterator[BatchResult]:
    """Evaluate every batch, and yield each result at once. done: prompts and rows that were tried already.

    batch_size: by default as memory allows; if a device runs out of memory, batches are halved.
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
                result = evaluate(grid.batch(prompt, rows[:size]))
            except torch.OutOfMemoryError:
                if size == 1:
                    raise
                torch.cuda.empty_cache()
                size = (size + 1) // 2
                continue
            finished += len(rows[:size])
            rows = rows[size:]
            yield result
            if progress is not None:
                progress(finished, total)


def _described(continuation: Continuation) -> str:
    return "the whole secret" if continuation == "secret" else counted(continuation, "token")

"""The table that extraction fills: each sequence, with each length of prompt, for each length of continuation.

It says which of them can be tried, cuts them into batches of prompts of one length, and names what cannot be tried.

Shapes: N sequences, K lengths of prompts, M lengths of continuations, B rows of a batch, W tokens of a target.
"""

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Literal, Self, TypeVar, final

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from hush.audit.generation import Subject
from hush.audit.sequences import Sequences
from hush.audit.statistics import Success
from hush.errors import InvalidInput
from hush.rounding import counted

__all__ = ["Cell", "Continuation", "Grid", "Job", "Progress", "run_jobs"]

Continuation = int | Literal["secret"]  # so many tokens from the secret's first on, or the whole secret
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

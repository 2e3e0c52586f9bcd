"""k-memorisation of causal language models: does the text before a secret make greedy decoding say the secret?

A sequence is extracted with a prompt of k tokens and a continuation of m if the k tokens that precede it in the
training data make the model say its first m tokens, each the likeliest after those before it [Carlini23]. Whoever holds
a model need not stop where it would: tokens that end texts are tokens like any other, unless ``end_tokens`` says so.

The limits of a fraction treat sequences as drawn at random from all that might have been tried, on this one model. They
say nothing of other runs of the training: for that, attack independent runs.

Shapes: N sequences, K lengths of prompts, M lengths of continuations, B rows of a batch, W tokens of a target.
"""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Self, final

import numpy as np
from numpy.typing import NDArray

from hush.audit.generation import Subject, greedy_tokens, matching_tokens
from hush.audit.grid import Cell, Continuation, Grid, Job, Progress, run_jobs
from hush.audit.sequences import Sequences
from hush.audit.statistics import Success
from hush.errors import InvalidInput

__all__ = ["Extracted", "Extraction", "edit_distances", "extract", "extract_batches"]

Integers = NDArray[np.int64]


@final
@dataclass(frozen=True, slots=True, kw_only=True, eq=False, repr=False)
class Extracted:
    """What one batch showed: for each row, how many tokens came out before the first that differs.

    distance_BM: edits between what was said and each continuation, where similarity was asked for; -1 where the row is
    too short for it.
    """

    prompt: int
    rows: Integers
    matched_B: Integers
    distance_BM: Integers | None

    def __repr__(self) -> str:
        return f"Extracted(prompt={self.prompt}, {len(self.rows)} sequences)"


def extract_batches(
    subject: Subject,
    grid: Grid,
    *,
    similarity: bool = False,
    end_tokens: Sequence[int] = (),
    done: Iterable[Extracted] = (),
    batch_size: int | None = None,
    progress: Progress | None = None,
) -> Iterator[Extracted]:
    """Every batch as soon as it is tried; those in ``done``, from an earlier try, are not tried again.

    Exact matches alone are read off a few passes along the targets, which end early for rows that differ. similarity:
    decode in full and count edits as well. end_tokens: decoding stops after any of these.
    """
    if any(not 0 <= token < subject.vocabulary for token in end_tokens):
        raise InvalidInput(f"end_tokens must be tokens of the model, from 0 to {subject.vocabulary - 1}")

    def work(job: Job) -> Extracted:
        target_BW = job.target_BW.numpy()
        if not similarity:
            matched_B, distance_BM = matching_tokens(subject, job.prompt_BK, job.target_BW).numpy(), None
            length_B = _stop(target_BW, end_tokens)  # as far as it matches it says the target
        else:
            said_BW = greedy_tokens(subject, job.prompt_BK, target_BW.shape[1]).numpy()
            matched_B = np.cumprod(said_BW == target_BW, axis=1).sum(axis=1)
            length_B = _stop(said_BW, end_tokens)
            fits_BM = grid.fits_NKM[job.rows, grid.prompts.index(job.prompt)]
            width_BM = np.where(fits_BM, grid.width_NM[job.rows], 0)
            distance_BM = np.where(fits_BM, edit_distances(said_BW, length_B, target_BW, width_BM), -1)
        matched_B = np.minimum(matched_B, length_B)
        return Extracted(prompt=job.prompt, rows=job.rows, matched_B=matched_B, distance_BM=distance_BM)

    tried = [(one.prompt, one.rows) for one in done]
    yield from run_jobs(grid, subject, work, done=tried, batch_size=batch_size, progress=progress)


@final
@dataclass(frozen=True, slots=True, kw_only=True, eq=False, repr=False)
class Extraction:
    """Which sequences came out, for every prompt and continuation tried."""

    grid: Grid
    matched_NK: Integers
    distance_NKM: Integers | None

    @classmethod
    def gather(cls, grid: Grid, batches: Iterable[Extracted]) -> Self:
        """All batches as one table; every sequence that can be tried must be in one of them."""
        matched_NK = np.full(grid.fits_NKM.shape[:2], -1, dtype=np.int64)
        distance_NKM = np.full(grid.fits_NKM.shape, -1, dtype=np.int64)
        similar = True
        for one in batches:
            k = grid.column(one.prompt, grid.continuations[0])[0]
            matched_NK[one.rows, k] = one.matched_B
            similar = similar and one.distance_BM is not None
            if one.distance_BM is not None:
                distance_NKM[one.rows, k] = one.distance_BM
        missing = int((grid.fits_NKM.any(axis=2) & (matched_NK < 0)).sum())
        if missing:
            raise InvalidInput(f"{missing} sequences were not tried yet; pass the batches of the whole extraction")
        return cls(grid=grid, matched_NK=matched_NK, distance_NKM=distance_NKM if similar else None)

    def hits(self, prompt: int, continuation: Continuation) -> NDArray[np.bool_]:
        """Which sequences came out word for word; False for those too short to try."""
        k, m = self.grid.column(prompt, continuation)
        return self.grid.fits_NKM[:, k, m] & (self.matched_NK[:, k] >= self.grid.width_NM[:, m])

    def tried(self, prompt: int, continuation: Continuation) -> NDArray[np.bool_]:
        """Which sequences are long enough to try."""
        k, m = self.grid.column(prompt, continuation)
        return self.grid.fits_NKM[:, k, m]

    def similarities(self, prompt: int, continuation: Continuation) -> NDArray[np.float64]:
        """1 − edits / tokens of each sequence: 1 for the same, 0 for nothing in common; NaN for those too short."""
        k, m = self.grid.column(prompt, continuation)
        if self.distance_NKM is None:
            raise InvalidInput("edit similarity was not asked for; extract with similarity=True")
        share_N = 1 - self.distance_NKM[:, k, m] / self.grid.width_NM[:, m]
        return np.where(self.grid.fits_NKM[:, k, m], share_N, np.nan)

    def cell(self, prompt: int, continuation: Continuation) -> Cell:
        """The fraction over all sequences that are long enough."""
        cell = self.grid.cell(prompt, continuation, self.hits(prompt, continuation))
        if self.distance_NKM is None:
            return cell
        return replace(cell, similarity=float(np.nanmean(self.similarities(prompt, continuation))))

    def cells(self) -> list[Cell]:
        """All fractions, by prompt, then by continuation."""
        return [self.cell(prompt, one) for prompt in self.grid.prompts for one in self.grid.continuations]

    def by_secret(self, prompt: int, continuation: Continuation = "secret") -> dict[int, Success | None]:
        """The fraction over each secret's own sequences; None where all of them are too short."""
        return self.grid.by_secret(prompt, continuation, self.hits(prompt, continuation))

    def __repr__(self) -> str:
        return f"Extraction({len(self.grid.sequences)} sequences, prompts of {self.grid.prompts} tokens)"


def extract(
    subject: Subject,
    sequences: Sequences,
    *,
    prompts: Sequence[int],
    continuations: Sequence[Continuation] = ("secret",),
    similarity: bool = False,
    lead: Sequence[int] = (),
    end_tokens: Sequence[int] = (),
    batch_size: int | None = None,
    progress: Progress | None = None,
) -> Extraction:
    """Prompt a causal language model with the tokens before each secret, and compare what it says.

    prompts, continuations: lengths in tokens, all combinations of which are tried; "secret" is the secret's own
    length. lead: tokens put before prompts cut from the middle of a text. progress is told (done, total).
    """
    grid = Grid.of(sequences, subject, prompts=prompts, continuations=continuations, lead=lead)
    batches = extract_batches(
        subject, grid, similarity=similarity, end_tokens=end_tokens, batch_size=batch_size, progress=progress
    )
    return Extraction.gather(grid, batches)


def edit_distances(said_BW: Integers, length_B: Integers, target_BW: Integers, width_BM: Integers) -> Integers:
    """Levenshtein distance of tokens between the beginnings of two rows, for all widths in one table: [B, M].

    Of row b the first min(length, width) tokens said are compared with the first width tokens of the target. Within a
    row of the table, d[j] = min over l ≤ j of (e[l] + j − l), e being what comes from the row above: a running minimum.

    >>> row = np.array([[1, 2, 3, 4]])
    >>> edit_distances(np.array([[2, 3, 4, 9]]), np.array([4]), row, np.array([[1, 3, 4]])).tolist()
    [[1, 2, 2]]
    """
    said_BM = np.minimum(width_BM, length_B[:, None])
    place_W = np.arange(target_BW.shape[1] + 1)
    line_BW = np.broadcast_to(place_W, (len(target_BW), len(place_W)))
    found_BM = np.where(said_BM == 0, width_BM, -1)
    for count in range(1, int(said_BM.max(initial=0)) + 1):
        changed_BW = line_BW[:, :-1] + (target_BW != said_BW[:, count - 1 : count])
        above_BW = np.minimum(line_BW[:, 1:] + 1, changed_BW)
        above_BW = np.concatenate([np.full((len(target_BW), 1), count), above_BW], axis=1)
        line_BW = np.minimum.accumulate(above_BW - place_W, axis=1) + place_W
        found_BM = np.where(said_BM == count, np.take_along_axis(line_BW, width_BM, axis=1), found_BM)
    return found_BM


def _stop(token_BW: Integers, end_tokens: Sequence[int]) -> Integers:
    """How many tokens are said up to the first that ends the text, that one included."""
    ends_BW = np.isin(token_BW, list(end_tokens))
    return np.where(ends_BW.any(axis=1), ends_BW.argmax(axis=1) + 1, token_BW.shape[1])

"""Extraction from causal language models: by greedy decoding, and by sampling, (n, p)-discoverable extraction.

Greedy [Carlini23]: a sequence is extracted with a prompt of k tokens and a continuation of m if the k tokens that
precede it in the training data make greedy decoding produce its first m tokens. An attacker need not stop where the
model would: tokens that end texts are treated like any other, unless ``end_tokens`` lists them.

Sampling [Hayes24]: a sequence is (n, p)-discoverable if at least one of n sampled continuations contains it with
probability at least p. The probability q of one sample is the product of its tokens' probabilities, so one
teacher-forced pass gives it without sampling, and with it 1 − (1 − q)ⁿ. The sampling scheme is temperature and top-k in
that order, as in Transformers: logits divided by the temperature, then all below the k-th largest dropped (ties with it
stay), then the softmax. Everything is kept as logarithms: q of a whole secret is often far below the smallest float.

The limits of a fraction treat sequences as drawn at random from all that might have been tried, on this one model. They
say nothing about other runs of the training: for that, attack independent runs.

Shapes: N sequences, K lengths of prompts, M lengths of continuations, B rows of a batch, W tokens of a target.
"""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Self, final

import numpy as np
import torch
from numpy.typing import ArrayLike, NDArray
from torch import Tensor

from hush.arrays import Array, Progress
from hush.audit.models import Subject, greedy_tokens, matching_tokens, teacher_forced
from hush.audit.sequences import Cell, Grid, Integers, PromptBatch, Sequences, run_batches
from hush.audit.settings import Continuation
from hush.audit.statistics import Success
from hush.errors import InvalidInput

__all__ = [
    "Discovery",
    "DiscoveryBatch",
    "Extraction",
    "ExtractionBatch",
    "Sampling",
    "discover",
    "discover_batches",
    "edit_distances",
    "extract",
    "extract_batches",
    "log_chance",
    "log_samples_needed",
    "samples_needed",
]


TINY_LOG_PROBABILITY = -40.0  # below it, log(-log(1 - q)) = log q to double precision: e^-40 < 2^-53
PROBABILITY_TOLERANCE = 1e-13  # relative rounding within which a probability counts as reached: the attacker's side
MAX_LOG_Q_ROUNDING = 1e-9  # by which rounding may push the logarithm of a probability above 0


# Greedy decoding.


@final
@dataclass(frozen=True, slots=True, kw_only=True, eq=False, repr=False)
class ExtractionBatch:
    """The result of one batch: how many tokens of each row came out before the first that differs.

    distance_BM: edit distance between the decoded tokens and each continuation, if similarity was requested; -1 where
    the row is too short for it.
    """

    prompt: int
    rows: Integers
    matched_B: Integers
    distance_BM: Integers | None

    def __repr__(self) -> str:
        return f"ExtractionBatch(prompt={self.prompt}, {len(self.rows)} sequences)"


def extract_batches(
    subject: Subject,
    grid: Grid,
    *,
    similarity: bool = False,
    end_tokens: Sequence[int] = (),
    done: Iterable[ExtractionBatch] = (),
    batch_size: int | None = None,
    progress: Progress | None = None,
) -> Iterator[ExtractionBatch]:
    """Try every batch, and yield each result at once; batches in ``done``, from an earlier call, are skipped.

    Exact matches are read off a few passes along the targets, which rows that differ leave early. similarity: decode
    in full, and compute edit distances as well. end_tokens: decoding stops after any of these.
    """
    if any(not 0 <= token < subject.vocabulary_size for token in end_tokens):
        raise InvalidInput(f"end_tokens must be tokens of the model, from 0 to {subject.vocabulary_size - 1}")

    def evaluate(batch: PromptBatch) -> ExtractionBatch:
        target_BW = batch.target_BW.numpy()
        if not similarity:
            matched_B, distance_BM = matching_tokens(subject, batch.prompt_BK, batch.target_BW).numpy(), None
            length_B = _decoded_length(target_BW, end_tokens)  # up to the first difference, decoding gives the target
        else:
            decoded_BW = greedy_tokens(subject, batch.prompt_BK, target_BW.shape[1]).numpy()
            matched_B = np.cumprod(decoded_BW == target_BW, axis=1).sum(axis=1)
            length_B = _decoded_length(decoded_BW, end_tokens)
            fits_BM = grid.fits_NKM[batch.rows, grid.prompts.index(batch.prompt)]
            width_BM = np.where(fits_BM, grid.width_NM[batch.rows], 0)
            distance_BM = np.where(fits_BM, edit_distances(decoded_BW, length_B, target_BW, width_BM), -1)
        matched_B = np.minimum(matched_B, length_B)
        return ExtractionBatch(prompt=batch.prompt, rows=batch.rows, matched_B=matched_B, distance_BM=distance_BM)

    tried = [(batch.prompt, batch.rows) for batch in done]
    yield from run_batches(grid, subject, evaluate, done=tried, batch_size=batch_size, progress=progress)


@final
@dataclass(frozen=True, slots=True, kw_only=True, eq=False, repr=False)
class Extraction:
    """Which sequences came out, for every prompt and continuation tried."""

    grid: Grid
    matched_NK: Integers
    distance_NKM: Integers | None

    @classmethod
    def gather(cls, grid: Grid, batches: Iterable[ExtractionBatch]) -> Self:
        """Combine all batches; every sequence that can be tried must be in one of them."""
        matched_NK = np.full(grid.fits_NKM.shape[:2], -1, dtype=np.int64)
        distance_NKM = np.full(grid.fits_NKM.shape, -1, dtype=np.int64)
        has_distances = True
        for batch in batches:
            k = grid.column(batch.prompt, grid.continuations[0])[0]
            matched_NK[batch.rows, k] = batch.matched_B
            has_distances = has_distances and batch.distance_BM is not None
            if batch.distance_BM is not None:
                distance_NKM[batch.rows, k] = batch.distance_BM
        missing = int((grid.fits_NKM.any(axis=2) & (matched_NK < 0)).sum())
        if missing:
            raise InvalidInput(f"{missing} sequences were not tried yet; pass the batches of the whole extraction")
        return cls(grid=grid, matched_NK=matched_NK, distance_NKM=distance_NKM if has_distances else None)

    def hits(self, prompt: int, continuation: Continuation) -> NDArray[np.bool_]:
        """Which sequences came out token by token; False for those too short to try."""
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
            raise InvalidInput("edit similarity was not computed; extract with similarity=True")
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
        return [self.cell(prompt, length) for prompt in self.grid.prompts for length in self.grid.continuations]

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
    """Prompt a causal language model with the tokens before each secret, and compare its greedy continuation.

    prompts, continuations: lengths in tokens, all combinations of which are tried; "secret" is the secret's own
    length. lead: tokens put before prompts that start in the middle of a text. progress is called with (done, total).
    """
    grid = Grid.of(sequences, subject, prompts=prompts, continuations=continuations, lead=lead)
    batches = extract_batches(
        subject, grid, similarity=similarity, end_tokens=end_tokens, batch_size=batch_size, progress=progress
    )
    return Extraction.gather(grid, batches)


def edit_distances(decoded_BW: Integers, length_B: Integers, target_BW: Integers, width_BM: Integers) -> Integers:
    """Levenshtein distance of tokens between the beginnings of two rows, for all widths in one table: [B, M].

    The first min(length, width) decoded tokens of row b are compared with the first width tokens of its target. Within
    a row of the table, d[j] = min over l ≤ j of (e[l] + j − l), e being what comes from the row above: a running
    minimum.

    >>> row = np.array([[1, 2, 3, 4]])
    >>> edit_distances(np.array([[2, 3, 4, 9]]), np.array([4]), row, np.array([[1, 3, 4]])).tolist()
    [[1, 2, 2]]
    """
    count_BM = np.minimum(width_BM, length_B[:, None])
    column_W = np.arange(target_BW.shape[1] + 1)
    row_BW = np.broadcast_to(column_W, (len(target_BW), len(column_W)))
    distance_BM = np.where(count_BM == 0, width_BM, -1)
    for count in range(1, int(count_BM.max(initial=0)) + 1):
        substituted_BW = row_BW[:, :-1] + (target_BW != decoded_BW[:, count - 1 : count])
        above_BW = np.minimum(row_BW[:, 1:] + 1, substituted_BW)
        above_BW = np.concatenate([np.full((len(target_BW), 1), count), above_BW], axis=1)
        row_BW = np.minimum.accumulate(above_BW - column_W, axis=1) + column_W
        distance_BM = np.where(count_BM == count, np.take_along_axis(row_BW, width_BM, axis=1), distance_BM)
    return distance_BM


def _decoded_length(token_BW: Integers, end_tokens: Sequence[int]) -> Integers:
    """How many tokens are decoded up to the first end token, inclusive."""
    ends_BW = np.isin(token_BW, list(end_tokens))
    return np.where(ends_BW.any(axis=1), ends_BW.argmax(axis=1) + 1, token_BW.shape[1])


# Sampling.


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class Sampling:
    """How continuations are sampled; top_k=None keeps every token."""

    temperature: float = 1.0
    top_k: int | None = None

    def __post_init__(self) -> None:
        if not 0 < self.temperature < float("inf") or (self.top_k is not None and self.top_k < 1):
            raise InvalidInput(
                f"temperature={self.temperature!r}, top_k={self.top_k!r}; pass a temperature above 0 and a top_k of at "
                "least 1; for greedy decoding use extract"
            )

    def log_probabilities(self, logits_BCV: Tensor, target_BC: Tensor) -> Tensor:
        """Log probability that each target token is drawn; −∞ where top-k drops it. In float32 or better."""
        precise_BCV = logits_BCV if logits_BCV.dtype == torch.float64 else logits_BCV.float()
        scaled_BCV = precise_BCV / self.temperature
        if self.top_k is not None and self.top_k < scaled_BCV.shape[-1]:
            least_BC1 = scaled_BCV.topk(self.top_k, dim=-1).values[..., -1:]
            scaled_BCV = scaled_BCV.masked_fill(scaled_BCV < least_BC1, -torch.inf)
        chosen_BC = scaled_BCV.gather(-1, target_BC[..., None]).squeeze(-1)
        return (chosen_BC.double() - scaled_BCV.logsumexp(dim=-1)).clamp(max=0.0)  # rounding may push it above


@final
@dataclass(frozen=True, slots=True, kw_only=True, eq=False, repr=False)
class DiscoveryBatch:
    """The result of one batch: log q of each row and continuation; NaN where the row is too short for it."""

    prompt: int
    rows: Integers
    log_q_BM: Array

    def __repr__(self) -> str:
        return f"DiscoveryBatch(prompt={self.prompt}, {len(self.rows)} sequences)"


def discover_batches(
    subject: Subject,
    grid: Grid,
    *,
    sampling: Sampling,
    done: Iterable[DiscoveryBatch] = (),
    batch_size: int | None = None,
    progress: Progress | None = None,
) -> Iterator[DiscoveryBatch]:
    """Try every batch, and yield each result at once; batches in ``done``, from an earlier call, are skipped."""

    def evaluate(batch: PromptBatch) -> DiscoveryBatch:
        target_BW = batch.target_BW.to(subject.device)
        log_BW = torch.full(target_BW.shape, -torch.inf, dtype=torch.float64, device=subject.device)

        def add_log_probabilities(rows: Tensor, first: int, logits_BCV: Tensor) -> Tensor:
            chunk_BC = target_BW[rows, first : first + logits_BCV.shape[1]]
            log_BC = sampling.log_probabilities(logits_BCV, chunk_BC.clamp(min=0))
            log_BW[rows, first : first + logits_BCV.shape[1]] = log_BC
            # A row is finished by a token that cannot be drawn, or by the end of its target.
            return (chunk_BC[:, -1] >= 0) & log_BC.isfinite().all(dim=1)

        teacher_forced(subject, batch.prompt_BK, batch.target_BW, add_log_probabilities)
        total_BW = log_BW.cumsum(dim=1).cpu().numpy()
        fits_BM = grid.fits_NKM[batch.rows, grid.prompts.index(batch.prompt)]
        last_BM = np.where(fits_BM, grid.width_NM[batch.rows], 1) - 1
        log_q_BM = np.where(fits_BM, np.take_along_axis(total_BW, last_BM, axis=1), np.nan)
        return DiscoveryBatch(prompt=batch.prompt, rows=batch.rows, log_q_BM=log_q_BM)

    tried = [(batch.prompt, batch.rows) for batch in done]
    yield from run_batches(grid, subject, evaluate, done=tried, batch_size=batch_size, progress=progress)


@final
@dataclass(frozen=True, slots=True, kw_only=True, eq=False, repr=False)
class Discovery:
    """log q of every sequence, prompt and continuation under one sampling scheme; NaN where too short to try."""

    grid: Grid
    sampling: Sampling
    log_q_NKM: Array

    @classmethod
    def gather(cls, grid: Grid, sampling: Sampling, batches: Iterable[DiscoveryBatch]) -> Self:
        """Combine all batches; every sequence that can be tried must be in one of them."""
        log_q_NKM = np.full(grid.fits_NKM.shape, np.nan)
        for batch in batches:
            log_q_NKM[batch.rows, grid.column(batch.prompt, grid.continuations[0])[0]] = batch.log_q_BM
        missing = int((grid.fits_NKM & np.isnan(log_q_NKM)).sum())
        if missing:
            raise InvalidInput(
                f"{missing} probabilities are missing or NaN; pass all batches, of a model that computes no NaN"
            )
        return cls(grid=grid, sampling=sampling, log_q_NKM=log_q_NKM)

    def log_q(self, prompt: int, continuation: Continuation = "secret") -> Array:
        """Log probability that one sample continues with each sequence; NaN for those too short to try."""
        return self.log_q_NKM[:, *self.grid.column(prompt, continuation)]

    def hits(self, prompt: int, continuation: Continuation = "secret", *, n: float, p: float) -> NDArray[np.bool_]:
        """Which sequences are (n, p)-discoverable; False for those too short to try."""
        _check_probability(p)
        return _reaches(self.log_q(prompt, continuation), n, p)

    def cell(self, prompt: int, continuation: Continuation = "secret", *, n: float, p: float) -> Cell:
        """The (n, p)-discoverable fraction of all sequences that are long enough."""
        return self.grid.cell(prompt, continuation, self.hits(prompt, continuation, n=n, p=p))

    def by_secret(
        self, prompt: int, continuation: Continuation = "secret", *, n: float, p: float
    ) -> dict[int, Success | None]:
        """The fraction over each secret's own sequences; None where all of them are too short."""
        return self.grid.by_secret(prompt, continuation, self.hits(prompt, continuation, n=n, p=p))

    def __repr__(self) -> str:
        return f"Discovery({len(self.grid.sequences)} sequences, prompts of {self.grid.prompts} tokens)"


def discover(
    subject: Subject,
    sequences: Sequences,
    *,
    prompts: Sequence[int],
    continuations: Sequence[Continuation] = ("secret",),
    sampling: Sampling | None = None,
    lead: Sequence[int] = (),
    batch_size: int | None = None,
    progress: Progress | None = None,
) -> Discovery:
    """The probability that a sample continues with each secret, from one pass; by default temperature 1, no top-k."""
    grid = Grid.of(sequences, subject, prompts=prompts, continuations=continuations, lead=lead)
    scheme = Sampling() if sampling is None else sampling
    batches = discover_batches(subject, grid, sampling=scheme, batch_size=batch_size, progress=progress)
    return Discovery.gather(grid, scheme, batches)


def log_chance(log_q: ArrayLike, n: ArrayLike) -> Array:
    """log(1 − (1 − q)ⁿ): at least one of n independent samples succeeds. Accurate for any q and n; NaN stays NaN.

    >>> float(np.exp(log_chance(np.log(0.5), 3)).round(6))
    0.875
    >>> float(log_chance(-2000.0, 1000).round(3))  # q itself is below the smallest float
    -1993.092
    """
    log_q_N, samples = _checked_logs(log_q), np.asarray(n, dtype=np.float64)
    if not ((samples >= 1) & (samples < np.inf)).all():
        raise InvalidInput(f"n={n!r}; pass a finite number of samples, at least 1")
    with np.errstate(divide="ignore", over="ignore"):
        # Where n q is below e^-40, 1 − (1 − q)ⁿ = n q up to a relative error of that size.
        log_nq_N = np.log(samples) + log_q_N
        log_none_N = -np.exp(np.log(samples) + _log_rate(log_q_N))  # the logarithm of (1 − q)ⁿ
        return np.where(log_nq_N < TINY_LOG_PROBABILITY, log_nq_N, np.log(-np.expm1(log_none_N)))


def log_samples_needed(log_q: ArrayLike, p: float) -> Array:
    """Log of the smallest real n with 1 − (1 − q)ⁿ ≥ p; ∞ where q is 0. Never overflows.

    >>> float(log_samples_needed(-2000.0, 0.5).round(3))
    1999.633
    """
    _check_probability(p)
    log_q_N = _checked_logs(log_q)
    return np.log(-np.log1p(-p)) - _log_rate(log_q_N)


def samples_needed(log_q: ArrayLike, p: float) -> Array:
    """The smallest whole number of samples, at least 1, that succeed with probability at least p.

    Above 2⁵³ it is rounded to a float; ∞ where it is larger than any float, or where q is 0.

    >>> samples_needed(np.log([0.5, 0.01, 1e-300]), 0.5).tolist()[:2]
    [1.0, 69.0]
    """
    log_needed = log_samples_needed(log_q, p)
    with np.errstate(over="ignore"):
        n = np.maximum(1.0, np.ceil(np.exp(log_needed)))
    # Correct for rounding, by which n may be off by one.
    finite = np.where(np.isfinite(n), n, 1.0)
    n = np.where(_reaches(log_q, finite, p) | np.isinf(n), n, n + 1)
    return np.where((finite > 1) & _reaches(log_q, np.maximum(finite - 1, 1.0), p) & np.isfinite(n), n - 1, n)


def _reaches(log_q: ArrayLike, n: ArrayLike, p: float) -> NDArray[np.bool_]:
    """Whether n samples succeed with probability at least p, up to rounding in the attacker's favour."""
    return log_chance(log_q, n) >= np.log(p) - PROBABILITY_TOLERANCE


def _log_rate(log_q_N: Array) -> Array:
    """log(−log(1 − q)): the rate of a single sample; equal to log q where q is tiny."""
    with np.errstate(divide="ignore"):
        return np.where(log_q_N < TINY_LOG_PROBABILITY, log_q_N, np.log(-np.log1p(-np.exp(log_q_N))))


def _checked_logs(log_q: ArrayLike) -> Array:
    log_q_N = np.asarray(log_q, dtype=np.float64)
    if (log_q_N > MAX_LOG_Q_ROUNDING).any():
        raise InvalidInput(f"log_q={log_q_N.max()} is the logarithm of more than 1; pass logarithms of probabilities")
    return np.minimum(log_q_N, 0.0)


def _check_probability(p: float) -> None:
    if not 0 < p < 1:
        raise InvalidInput(f"p={p!r}; pass a probability between 0 and 1")

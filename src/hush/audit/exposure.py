"""Exposure of canaries: the rank of the true candidate among all, by the model's likelihood; and canary frames.

Rank 1 names the secret: an attack from a prior of 1 / S, S being the number of ranked candidates, with the true one.
Exposure is log2(S) - log2(rank), in bits [Carlini19]; for a model that never saw the canary it is at most 1.44 on
average. Canaries of one run share its model, so only one of them, chosen in advance, counts as a run; the others
describe. A model that never saw them ranks each independently of the others.

A frame is the tokens around a canary that are the same whichever candidate it is: all that its prompt may show. A
tokenizer may merge the letter before a slot with the first letter of some candidates and not of others. A prompt that
ends where the true candidate's tokens begin would reveal which kind it is, and a model with an answer for each kind
would be right more often than the prior says. So the prompt ends with the last token that the candidates share, and the
target begins there. A canary that is tokenised differently is not eligible as a hit. Every eligible candidate is then
asked for in the same way. The shared tokens are read off a sample of candidates that does not depend on the true one.

Shapes: S ranked candidates, N compared candidates with the true one last, T tokens.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from random import Random, SystemRandom
from typing import Any, final

import numpy as np
from numpy.typing import NDArray
from scipy.special import gammaincc

from hush.arrays import Array
from hush.audit.canaries import Canary, Candidates
from hush.audit.extraction import discover
from hush.audit.models import Subject
from hush.audit.sequences import Sequences, secret_sequences
from hush.audit.statistics import Success
from hush.errors import InvalidInput

__all__ = [
    "CHANCE_EXPOSURE",
    "CanaryFrame",
    "CanaryRank",
    "aligned_to_frames",
    "canary_frame",
    "chance_exposure",
    "exposure_of_rank",
    "log_likelihoods",
    "rank_canary",
    "ranks_p_value",
]


DEFAULT_MAX_CANDIDATES = 1000  # that are ranked
COMPARED_CANDIDATES = 256  # whose tokens are compared to find the frame of a canary
CHANCE_EXPOSURE = math.log2(math.e)  # bits; mean exposure of a model that never saw the canary, with many candidates


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class CanaryRank:
    """The rank of a canary: 1 is the likeliest of ``ranked`` candidates. Ties rank before the canary.

    Where ``rank`` is relative to a reference, ``alone`` is the rank by the model, and ``anyway`` by the reference.
    told: whether no other candidate has the same tokens; otherwise no model can name it.

    Where several releases were attacked together, ``rank`` is by the sum over their models. For comparison only:
    by_release, the ranks by each model, oldest first, and by_change, the rank by how much likelier the newest model
    makes a candidate than the oldest.
    """

    id: str
    rank: int
    ranked: int
    alone: int | None = None
    anyway: int | None = None
    told: bool = True
    by_release: tuple[int, ...] = ()
    by_change: int | None = None

    def __post_init__(self) -> None:
        object.__setattr__(self, "by_release", tuple(self.by_release))

    @property
    def exposure(self) -> float:
        """In bits: 0 for the last rank, log2 of the number of candidates for the first."""
        return exposure_of_rank(self.rank, self.ranked)

    @property
    def named(self) -> Success:
        """The attack that names the likeliest candidate, in one run."""
        return Success(hits=int(self.rank == 1), runs=1)


def exposure_of_rank(rank: int, ranked: int) -> float:
    """Exposure in bits of a rank among ``ranked`` candidates.

    >>> exposure_of_rank(1, 1024), exposure_of_rank(1024, 1024)
    (10.0, 0.0)
    """
    return math.log2(ranked) - math.log2(rank)


def chance_exposure(ranked: int) -> float:
    """Mean exposure in bits where each of ``ranked`` ranks is equally likely.

    >>> round(chance_exposure(2), 2), round(chance_exposure(50), 2), round(chance_exposure(1000), 2)
    (0.5, 1.36, 1.44)
    """
    return math.log2(ranked) - math.lgamma(ranked + 1) / (ranked * math.log(2))


def ranks_p_value(ranks: Sequence[int], ranked: int) -> float:
    """p-value of the ranks of several canaries, for the hypothesis that the model never saw them (Fisher's method).

    Guarantee: under the hypothesis it is at most ``level`` with probability at most ``level``, because canaries are
    drawn independently: −log(rank / ranked) is stochastically at most exponential, and the sum at most Gamma.

    >>> round(ranks_p_value([10], 1000), 4), round(ranks_p_value([1, 1], 1000), 8)
    (0.01, 1.482e-05)
    """
    return float(gammaincc(len(ranks), sum(math.log(ranked / rank) for rank in ranks)))


def rank_canary(
    subject: Subject,
    tokenizer: Any,
    canary: Canary,
    candidates: Candidates,
    *,
    max_length: int,
    max_candidates: int = DEFAULT_MAX_CANDIDATES,
    reference: tuple[Subject, Any] | None = None,
    earlier: Sequence[tuple[Subject, Any, int]] = (),
    batch_size: int | None = None,
    rng: Random | None = None,
) -> CanaryRank:
    """Rank the true candidate among all, or among ``max_candidates`` of them, the others drawn at random.

    Every candidate is put into the canary's template, tokenised as for training, and passed through the model once.
    reference: a model that never saw the canary, with its tokenizer; its log likelihood is subtracted. earlier: the
    models of earlier releases in which the same canary was planted, oldest first, each with its tokenizer and the
    tokens to which its training truncated texts. The candidates are then ranked by the sum of the log likelihoods under
    all models: one rule, fixed before anything is seen, so that the likeliest candidate is one try.
    """

    def scores(subject: Subject, tokenizer: Any, length: int) -> Array:
        return log_likelihoods(subject, tokenizer, texts, ends, max_length=length, batch_size=batch_size)

    def rank(score_S: Array) -> int:
        if np.isnan(score_S).any():
            raise InvalidInput(f"the model computes NaN as a probability of {canary.id}, which cannot be ranked")
        return int(np.count_nonzero(score_S >= score_S[numbers.index(canary.truth)]))

    if max_candidates < 2:
        raise InvalidInput(f"max_candidates={max_candidates}; rank at least two candidates")
    others = candidates.sample_others(canary.truth, max_candidates - 1, SystemRandom() if rng is None else rng)
    # Sorted: rounding depends on the position in a batch, which must not depend on which candidate is the true one.
    numbers = sorted([canary.truth, *others])
    texts = [canary.template.filled(candidates.text(number)) for number in numbers]
    begin = len(canary.template.before)
    ends = [begin + len(candidates.text(number)) for number in numbers]
    true_text = canary.template.filled(candidates.text(canary.truth))
    models = [*earlier, (subject, tokenizer, max_length)]
    told = any(
        _has_unique_tokens(true_text, texts, words, max_length=min(length, model.context_length))
        for model, words, length in models
    )
    scores_RS = [scores(*model) for model in models]
    reference_score_S = None if reference is None else scores(*reference, max_length)
    base_S = np.zeros(len(texts)) if reference_score_S is None else reference_score_S
    total_S = np.sum(scores_RS, axis=0)
    return CanaryRank(
        id=canary.id,
        rank=rank(total_S - len(models) * base_S),
        ranked=len(texts),
        alone=None if reference is None else rank(total_S),
        anyway=None if reference_score_S is None else rank(reference_score_S),
        told=told,
        by_release=tuple(rank(score_S - base_S) for score_S in scores_RS) if earlier else (),
        by_change=rank(scores_RS[-1] - scores_RS[0]) if earlier else None,
    )


def _has_unique_tokens(text: str, texts: Sequence[str], tokenizer: Any, *, max_length: int) -> bool:
    """Whether no other text has the same tokens, as happens where a tokenizer lower-cases letters or lacks them."""
    rows: list[list[int]] = tokenizer(list(texts), truncation=True, max_length=max_length, verbose=False)["input_ids"]
    return rows.count(rows[texts.index(text)]) == 1


def log_likelihoods(
    subject: Subject,
    tokenizer: Any,
    texts: Sequence[str],
    ends: Sequence[int],
    *,
    max_length: int,
    batch_size: int | None = None,
) -> Array:
    """Log probability of each text, given the tokens that all of them begin with (or else given its first token).

    texts differ in one span, which ends at the character ``ends``; a text that is truncated before it is an error.
    """
    length = min(max_length, subject.context_length)
    encoded = tokenizer(list(texts), truncation=True, max_length=length, return_offsets_mapping=True, verbose=False)
    rows: list[list[int]] = encoded["input_ids"]
    reached = [max((last for _, last in offsets), default=0) for offsets in encoded["offset_mapping"]]
    if any(last < end for last, end in zip(reached, ends, strict=True)):
        raise InvalidInput(
            f"training truncated the text of a canary after {length} tokens, before the end of its secret; plant "
            "shorter texts, or train with a larger max_length"
        )
    shortest = min(len(row) for row in rows)
    shared = max(1, min(_common_prefix(rows), shortest - 1))  # a prompt has at least one token, and so has a target
    discovery = discover(subject, Sequences.of(rows, begin=shared), prompts=[shared], batch_size=batch_size)
    return discovery.log_q(shared)


# Frames.


@final
@dataclass(frozen=True, slots=True, kw_only=True, eq=False, repr=False)
class CanaryFrame:
    """The tokens of a canary's text, and where its target begins and ends in them.

    more: the largest number of tokens masked beside those of a candidate; 0 where the model sees nothing behind it.
    shared: whether the true candidate has the same tokens around it as the others.
    """

    tokens: NDArray[np.int32]
    begin: int
    end: int
    more: int
    shared: bool

    def __repr__(self) -> str:
        return f"CanaryFrame(shared={self.shared})"


def canary_frame(canary: Canary, candidates: Candidates, tokenizer: Any, *, both_sides: bool) -> CanaryFrame | None:
    """The frame of a canary; None where it has no tokens. both_sides: the model also sees what follows the canary."""
    numbers = candidates.sample(COMPARED_CANDIDATES, Random(0))  # the same ones, whichever candidate is true
    texts = [candidates.text(number) for number in (*numbers, canary.truth)]
    first = len(canary.template.before)
    sequences = secret_sequences(
        map(canary.template.filled, texts),
        tokenizer,
        example=range(len(texts)),
        secret=range(len(texts)),
        begin=[first] * len(texts),
        end=[first + len(text) for text in texts],
    )
    if len(sequences) < 2 or sequences.example_N[-1] != len(numbers):
        return None
    *others, tokens = sequences.tokens
    begin_N, end_N = sequences.begin_N, sequences.end_N
    before = min(_common_prefix(others), int(begin_N[:-1].min()))
    shared = before <= begin_N[-1] and np.array_equal(tokens[:before], others[0][:before])
    if not both_sides:
        return CanaryFrame(tokens=tokens, begin=before, end=int(end_N[-1]), more=0, shared=bool(shared))
    behind_N = sequences.length_N - end_N
    after = min(_common_prefix([row[::-1] for row in others]), int(behind_N[:-1].min()))
    last_N = sequences.length_N - after
    more_N = begin_N - before + last_N - end_N
    more = int(more_N[:-1].max())
    shared = shared and after <= behind_N[-1] and np.array_equal(tokens[last_N[-1] :], others[0][last_N[0] :])
    # The prior allows for one answer for each number of masked tokens, up to the largest that was compared.
    return CanaryFrame(
        tokens=tokens, begin=before, end=int(last_N[-1]), more=more, shared=bool(shared and more_N[-1] <= more)
    )


def aligned_to_frames(
    sequences: Sequences, frames: Mapping[int, CanaryFrame | None]
) -> tuple[Sequences, NDArray[np.bool_]]:
    """The sequences with the targets of canaries set by their frames, and which of all sequences are eligible as hits.

    frames: of each secret that is a canary. A canary whose target training truncated is not eligible.
    """
    begin_N, end_N = sequences.begin_N.copy(), sequences.end_N.copy()
    eligible_N = np.ones(len(sequences), dtype=bool)
    for row in np.flatnonzero(np.isin(sequences.secret_N, list(frames))):
        frame = frames[int(sequences.secret_N[row])]
        eligible_N[row] = (
            frame is not None
            and frame.shared
            and np.array_equal(sequences.tokens[row][: frame.end], frame.tokens[: frame.end])
        )
        if frame is not None and eligible_N[row]:
            begin_N[row], end_N[row] = frame.begin, frame.end
    return replace(sequences, begin_N=begin_N, end_N=end_N), eligible_N


def _common_prefix(rows: Sequence[Sequence[int] | NDArray[np.int32]]) -> int:
    """The number of tokens that all rows begin with."""
    shortest = min(len(row) for row in rows)
    table = np.stack([np.asarray(row[:shortest]) for row in rows])
    same_T = (table == table[0]).all(axis=0)
    return shortest if same_T.all() else int(same_T.argmin())

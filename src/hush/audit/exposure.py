"""Exposure of canaries: where the true one ranks among its candidates, by how likely the model finds each.

Rank 1 names the secret: an attack from a prior of 1 / S, S being the number of candidates ranked, the true one among
them. Exposure is log2(S) - log2(rank), in bits [Carlini19]: up to 1.44 on average for a model that never saw the
canary, the more candidates the closer. Canaries of one run share its model, so that only one of them, chosen
beforehand, counts as a run; the others describe. A model that never saw them ranks each independently of the others.

Shapes: S candidates.

The tokens around a canary that are the same whatever it is: all that its prompt may show.

A tokenizer may merge the letter before a slot with the first letter of some candidates, and not of others. A prompt
that ends where the true candidate's tokens begin would tell which kind it is, and a model with an answer for each kind
would be right more often than the prior says. So the prompt ends with the last token that candidates share, and what
the model has to say begins there. A canary whose tokens fall otherwise counts as no hit. Every candidate that counts is
then asked for in the same way.

What candidates share is read off some of them, which do not depend on the true one.

Shapes: N candidates, the true one last.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from random import Random, SystemRandom
from typing import Any, final

import numpy as np
from numpy.typing import NDArray
from scipy.special import gammaincc

from hush.audit.canaries import Canary, Candidates
from hush.audit.extraction import discover
from hush.audit.models import Subject
from hush.audit.sequences import Sequences, secret_sequences
from hush.audit.statistics import Success
from hush.errors import InvalidInput

__all__ = [
    "BY_CHANCE",
    "Frame",
    "Ranked",
    "by_chance",
    "chance_of_ranks",
    "frame_of",
    "framed",
    "log_likelihoods",
    "rank_canary",
]


MOST = 1000  # candidates that are ranked, unless told otherwise
BY_CHANCE = math.log2(math.e)  # mean exposure where every rank is as likely, and there are many


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class Ranked:
    """Where a canary stands: rank 1 is the likeliest of ``ranked`` candidates. Those equally likely count before it.

    Where ``rank`` is by the model less a reference, ``alone`` is the rank by the model, ``anyway`` by the reference.
    told: whether its tokens are those of no other candidate; if not, no model can name it.
    """

    id: str
    rank: int
    ranked: int
    alone: int | None = None
    anyway: int | None = None
    told: bool = True

    @property
    def exposure(self) -> float:
        """In bits: 0 for the last, log2 of the candidates for the first."""
        return math.log2(self.ranked) - math.log2(self.rank)

    @property
    def named(self) -> Success:
        """The attack that says the likeliest candidate, in one run."""
        return Success(hits=int(self.rank == 1), runs=1)


def by_chance(ranked: int) -> float:
    """Mean exposure in bits where each of so many ranks is as likely.

    >>> round(by_chance(2), 2), round(by_chance(50), 2), round(by_chance(1000), 2)
    (0.5, 1.36, 1.44)
    """
    return math.log2(ranked) - math.lgamma(ranked + 1) / (ranked * math.log(2))


def chance_of_ranks(ranks: Sequence[int], ranked: int) -> float:
    """At most the probability that a model which never saw these canaries ranks them so far up, all taken together.

    Guarantee: at most ``level`` with probability at most ``level``, canaries being drawn independently: −log of a share
    rank / ranked is then at most exponential, and their sum at most of the Gamma law (Fisher's method).

    >>> round(chance_of_ranks([10], 1000), 4), round(chance_of_ranks([1, 1], 1000), 8)
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
    most: int = MOST,
    reference: tuple[Subject, Any] | None = None,
    batch_size: int | None = None,
    rng: Random | None = None,
) -> Ranked:
    """Rank the true candidate among all, or among ``most`` of them, the others drawn at random.

    Every candidate is put into the canary's text, which is tokenised as for training, and passed through the model
    once. reference: a model that never saw the canary, with its tokenizer; what it finds likely anyway is taken off.
    """

    def scores(subject: Subject, tokenizer: Any) -> NDArray[np.float64]:
        return log_likelihoods(subject, tokenizer, texts, ends, max_length=max_length, batch_size=batch_size)

    def rank(score_S: NDArray[np.float64]) -> int:
        if np.isnan(score_S).any():
            raise InvalidInput(f"the model gives {canary.id} a probability that is no number; it cannot be ranked")
        return int(np.count_nonzero(score_S >= score_S[numbers.index(canary.truth)]))

    if most < 2:
        raise InvalidInput(f"most={most}; rank at least two candidates")
    others = candidates.others(canary.truth, most - 1, SystemRandom() if rng is None else rng)
    # In an order that tells nothing: rounding differs from place to place in a batch, and must not know the true one.
    numbers = sorted([canary.truth, *others])
    texts = [canary.template.filled(candidates.text(number)) for number in numbers]
    begin = len(canary.template.before)
    ends = [begin + len(candidates.text(number)) for number in numbers]
    score_S = scores(subject, tokenizer)
    true = canary.template.filled(candidates.text(canary.truth))
    told = _is_told_apart(true, texts, tokenizer, max_length=min(max_length, subject.room))
    if reference is None:
        return Ranked(id=canary.id, rank=rank(score_S), ranked=len(texts), told=told)
    anyway_S = scores(*reference)
    return Ranked(
        id=canary.id,
        rank=rank(score_S - anyway_S),
        ranked=len(texts),
        alone=rank(score_S),
        anyway=rank(anyway_S),
        told=told,
    )


def _is_told_apart(text: str, texts: Sequence[str], tokenizer: Any, *, max_length: int) -> bool:
    """Whether no other of the texts has its tokens, as those with letters that a tokenizer makes small or lacks."""
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
) -> NDArray[np.float64]:
    """Log of the probability of each text after the tokens that all of them begin with; else after its own first.

    texts differ in one place, which ends at the character ``ends``; a text cut before it is an error.
    """
    length = min(max_length, subject.room)
    made = tokenizer(list(texts), truncation=True, max_length=length, return_offsets_mapping=True, verbose=False)
    rows: list[list[int]] = made["input_ids"]
    reached = [max((last for _, last in spans), default=0) for spans in made["offset_mapping"]]
    if any(last < end for last, end in zip(reached, ends, strict=True)):
        raise InvalidInput(f"training cut the text of a canary after {length} tokens, before its secret; plant shorter")
    shortest = min(len(row) for row in rows)
    table_ST = np.array([row[:shortest] for row in rows])
    same_T = (table_ST == table_ST[0]).all(axis=0)
    shared = int(np.argmin(same_T)) if not same_T.all() else shortest - 1
    shared = max(1, min(shared, shortest - 1))  # what a model says first it says after one token at least
    found = discover(subject, Sequences.of(rows, begin=shared), prompts=[shared], batch_size=batch_size)
    return found.log_q(shared)


COMPARED = 256  # candidates whose tokens are compared


@final
@dataclass(frozen=True, slots=True, kw_only=True, eq=False, repr=False)
class Frame:
    """Tokens of a canary's text, and where in them its target begins and ends.

    more: tokens that are hidden beside those of a candidate, at most; 0 where nothing is shown behind it. shared:
    whether the true candidate has around it what the others have.
    """

    tokens: NDArray[np.int32]
    begin: int
    end: int
    more: int
    shared: bool

    def __repr__(self) -> str:
        return f"Frame(shared={self.shared})"


def frame_of(canary: Canary, candidates: Candidates, tokenizer: Any, *, both_sides: bool) -> Frame | None:
    """The frame of a canary; None where no tokens stand for it. both_sides: what follows it is shown as well."""
    numbers = candidates.some(COMPARED, Random(0))  # the same ones whatever is true
    texts = [candidates.text(number) for number in (*numbers, canary.truth)]
    first = len(canary.template.before)
    made = secret_sequences(
        map(canary.template.filled, texts),
        tokenizer,
        example=range(len(texts)),
        secret=range(len(texts)),
        begin=[first] * len(texts),
        end=[first + len(text) for text in texts],
    )
    if len(made) < 2 or made.example_N[-1] != len(numbers):
        return None
    *others, tokens = made.tokens
    begin_N, end_N = made.begin_N, made.end_N
    before = min(_alike(others), int(begin_N[:-1].min()))
    shared = before <= begin_N[-1] and np.array_equal(tokens[:before], others[0][:before])
    if not both_sides:
        return Frame(tokens=tokens, begin=before, end=int(end_N[-1]), more=0, shared=bool(shared))
    behind_N = made.length_N - end_N
    after = min(_alike([row[::-1] for row in others]), int(behind_N[:-1].min()))
    last_N = made.length_N - after
    more_N = begin_N - before + last_N - end_N
    more = int(more_N[:-1].max())
    shared = shared and after <= behind_N[-1] and np.array_equal(tokens[last_N[-1] :], others[0][last_N[0] :])
    # More hidden tokens than with any other that was compared would be a number without an answer in the prior.
    return Frame(
        tokens=tokens, begin=before, end=int(last_N[-1]), more=more, shared=bool(shared and more_N[-1] <= more)
    )


def framed(sequences: Sequences, frames: Mapping[int, Frame | None]) -> tuple[Sequences, NDArray[np.bool_]]:
    """The sequences with the targets of canaries moved into their frames, and which of all sequences can be a hit.

    frames: of each secret that is a canary. Where training cut off a part of the target, it cannot.
    """
    begin_N, end_N = sequences.begin_N.copy(), sequences.end_N.copy()
    counts_N = np.ones(len(sequences), dtype=bool)
    for row in np.flatnonzero(np.isin(sequences.secret_N, list(frames))):
        frame = frames[int(sequences.secret_N[row])]
        counts_N[row] = (
            frame is not None
            and frame.shared
            and np.array_equal(sequences.tokens[row][: frame.end], frame.tokens[: frame.end])
        )
        if frame is not None and counts_N[row]:
            begin_N[row], end_N[row] = frame.begin, frame.end
    return replace(sequences, begin_N=begin_N, end_N=end_N), counts_N


def _alike(rows: list[NDArray[np.int32]]) -> int:
    """With how many tokens all of these begin."""
    shortest = min(len(row) for row in rows)
    same_T = (np.stack([row[:shortest] for row in rows]) == rows[0][:shortest]).all(axis=0)
    return shortest if same_T.all() else int(same_T.argmin())

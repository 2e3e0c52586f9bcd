"""Exposure of canaries: where the true one ranks among its candidates, by how likely the model finds each.

Rank 1 names the secret: an attack from a prior of 1 / S, S being the number of candidates ranked, the true one among
them. Exposure is log2(S) - log2(rank), in bits [Carlini19]: up to 1.44 on average for a model that never saw the
canary, the more candidates the closer. Canaries of one run share its model, so that only one of them, chosen
beforehand, counts as a run; the others describe. A model that never saw them ranks each independently of the others.

Shapes: S candidates.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from random import Random, SystemRandom
from typing import Any, final

import numpy as np
from numpy.typing import NDArray
from scipy.special import gammaincc

from hush.audit.canaries import Canary
from hush.audit.candidates import Candidates
from hush.audit.discoverable import discover
from hush.audit.generation import Subject
from hush.audit.sequences import Sequences
from hush.audit.statistics import Success
from hush.errors import InvalidInput

__all__ = ["BY_CHANCE", "Ranked", "by_chance", "chance_of_ranks", "log_likelihoods", "rank_canary"]

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

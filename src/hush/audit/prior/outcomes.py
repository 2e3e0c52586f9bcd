"""Runs all guessers on the secrets of one rule: which were named first, and with which probability.

``Outcome`` is the result of one guesser with one set of candidates. ``mean_probability`` mixes all guessers at several
temperatures into one distribution over the candidates; its weights are fitted by expectation maximisation on one half
of the secrets and judged on the other, and the other way round.
Shapes: J secrets that are guessed, C candidates, G components of a mixture.
"""

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from math import inf
from typing import Literal, final

import numpy as np
from numpy.typing import NDArray
from scipy.special import logsumexp

from hush.arrays import Array
from hush.audit.prior.guessers import GUESSERS, LANGUAGE_MODEL, Guessing
from hush.audit.prior.public_text import SLOT, PublicText
from hush.scan.finders.unicode import caseless

__all__ = ["Knowledge", "Outcome", "chosen_candidates", "mean_probability", "open_candidates", "run_guessers"]


MAX_CANDIDATES = 20_000
MAX_MODEL_SECRETS = 200  # that a language model guesses
BLOCK_SECRETS = 64  # scored at once
TEMPERATURES = (1.0, 0.5, 0.2, 0.1, 0.05, 0.0)  # factors of the scores: guessers are too sure of themselves; 0: uniform
MIXTURE_STEPS = 100

Knowledge = Literal["listed", "open"]


@final
@dataclass(frozen=True, kw_only=True, eq=False)
class Outcome:
    """The guesses of one guesser: whether each was right, and the probability of the right candidate by temperature."""

    guesser: str
    knowledge: Knowledge
    candidates: int
    hit_J: NDArray[np.bool_] = field(repr=False)
    probability_GJ: Array = field(repr=False)


def run_guessers(
    guessing: Guessing,
    true_texts: Sequence[str],
    knowledge: Knowledge,
    *,
    done: Callable[[int], None],
    model_seconds: float = inf,
) -> list[Outcome]:
    """All guessers that have something to say. true_texts: the text of each secret. done: told after every block.

    model_seconds: a language model begins no secret later. The secrets are in random order, and how long one takes
    says nothing about whether it is named, so those that were guessed are a random sample still.
    """
    number = {text: index for index, text in enumerate(guessing.candidates)}
    true_J = np.array([number.get(caseless(text), -1) for text in true_texts], dtype=np.int64)
    outcomes: list[Outcome] = []
    for guesser in GUESSERS:
        is_model = guesser is LANGUAGE_MODEL
        limit, size = (MAX_MODEL_SECRETS, 1) if is_model else (len(true_J), BLOCK_SECRETS)
        part = replace(guessing, slots_J=guessing.slots_J[:limit], degree_J=guessing.degree_J[:limit])
        scorer = guesser.prepare(part) if len(part.candidates) and len(part.slots_J) else None
        if scorer is None:
            continue
        hits, probabilities = list[NDArray[np.bool_]](), list[Array]()
        started = time.monotonic()
        for begin in range(0, len(part.slots_J), size):
            if is_model and begin and time.monotonic() - started > model_seconds:
                break
            block = slice(begin, min(begin + size, len(part.slots_J)))
            score_BC, true_B = scorer(block), true_J[block]
            hits.append(score_BC.argmax(axis=1) == true_B)
            probabilities.append(_probabilities(score_BC, true_B))
            done(block.stop - block.start)
        outcomes.append(
            Outcome(
                guesser=guesser.name,
                knowledge=knowledge,
                candidates=len(guessing.candidates),
                hit_J=np.concatenate(hits),
                probability_GJ=np.concatenate(probabilities, axis=1),
            )
        )
    return outcomes


def _probabilities(score_BC: Array, true_B: NDArray[np.int64]) -> Array:
    """What each temperature gives to the right candidate; 0 where it is not among the candidates."""
    rows = np.arange(len(true_B))
    probability = [
        np.exp(factor * score_BC[rows, true_B] - logsumexp(factor * score_BC, axis=1)) for factor in TEMPERATURES
    ]
    return np.where(true_B >= 0, np.stack(probability), 0.0)


def mean_probability(outcomes: Sequence[Outcome]) -> float | None:
    """What a mixture of all components gives to the right candidate on average; None with fewer than two secrets.

    The mixture is one over the same candidates, over the secrets that all guessers guessed.
    """
    common = min((len(outcome.hit_J) for outcome in outcomes), default=0)
    if common < 2:
        return None
    probability_GJ = np.concatenate([outcome.probability_GJ[:, :common] for outcome in outcomes])
    halves = [np.arange(common) % 2 == 0, np.arange(common) % 2 == 1]
    total = sum(
        float((_fitted_weights(probability_GJ[:, fit]) @ probability_GJ[:, judge]).sum())
        for fit, judge in (halves, halves[::-1])
    )
    return total / common


def _fitted_weights(probability_GJ: Array) -> Array:
    """The weights of the most likely mixture, by expectation maximisation."""
    weight_G = np.full(len(probability_GJ), 1 / len(probability_GJ))
    known_GJ = probability_GJ[:, probability_GJ.sum(axis=0) > 0]
    if not known_GJ.shape[1]:
        return weight_G
    for _ in range(MIXTURE_STEPS):
        joint_GJ = weight_G[:, None] * known_GJ
        weight_G = (joint_GJ / np.maximum(joint_GJ.sum(axis=0), np.finfo(np.float64).tiny)).mean(axis=1)
    return weight_G / weight_G.sum()


def chosen_candidates(texts: Sequence[str], rng: np.random.Generator) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """Distinct candidates without case, at most MAX_CANDIDATES, in random order; and as they were spelled first."""
    spelled: dict[str, str] = {}
    for text in texts:
        spelled.setdefault(caseless(text), text)
    ordered = sorted(spelled)
    order = rng.permutation(len(ordered))[:MAX_CANDIDATES]
    candidates = tuple(ordered[index] for index in order)
    return candidates, tuple(spelled[text] for text in candidates)


def open_candidates(public: PublicText, fillings: Mapping[str, int], given: Sequence[str]) -> list[str]:
    """The given candidates, then public words and texts in the slots of other rules, the most frequent first."""
    counts = dict(fillings)
    for word, count in zip(public.words[SLOT + 1 :], public.count_W[SLOT + 1 :].tolist(), strict=True):
        if len(word) > 1:
            counts[word] = counts.get(word, 0) + count
    listed = list(dict.fromkeys(given))
    room = max(MAX_CANDIDATES - len(listed), 0)
    return listed + sorted(counts, key=lambda text: (-counts[text], text))[:room]

"""Guessers of slots: each ranks candidates for a secret from public text, the graph and the places of its slots alone.

A guesser prepares itself for one ``Guessing`` (a rule and its candidates) and then scores all candidates for a block of
its secrets; the scores are log-likelihoods up to a constant per secret. All slots of a secret count jointly, because
the graph says that they hold the same text. No guesser sees the text of the secret that it guesses.

frequency       how often a candidate occurs in the public text, in text from outside and in slots of other rules
degree          how well a candidate's frequency in text from outside fits the number of the secret's examples
context         the two words on each side of every slot, given the candidate's ending (learnt from public words), and
                the candidate itself where the public or outside text has it; whether its examples hold relatives of it
language model  the likelihood of the candidate in a few of its slots under a base model (language_model.py)

Shapes: J secrets that are guessed, B of them in a block, C candidates, F features, K endings, W words, D texts.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, final

import numpy as np
from numpy.typing import NDArray
from scipy import sparse

from hush.arrays import Array
from hush.audit.prior.public_text import BOUNDARY, REACH, SLOT, PublicText

__all__ = ["GUESSERS", "LANGUAGE_MODEL", "Guesser", "Guessing", "Scorer"]


ENDING_LETTERS = 3
STEM_LETTERS = 5  # two different words of at least one letter more are relatives if they begin with the same so many
ENDING_PSEUDO_COUNT = 50.0  # by which the contexts of an ending are pulled towards those of all words
WORD_PSEUDO_COUNT = 5.0  # and those of a word towards those of its ending
LOG_FREQUENCY_VARIANCE = 0.25  # of a word's frequency between two corpora, beyond the error of counting
OFFSETS = tuple(offset for offset in range(-REACH, REACH + 1) if offset)

Scorer = Callable[[slice], Array]
"""Scores of all candidates for a block of the secrets: [B, C]."""


@final
@dataclass(frozen=True, kw_only=True, eq=False)
class Guessing:
    """What a guesser is given: for each secret its slots and the number of its examples, and the candidates.

    candidates: texts without case, in random order, so that ties are broken at random; spelled: with case. fillings:
    how many slots of other rules hold each text. model: prepares a language model, if there is one. Which candidate is
    the right one is not in here, so that no guesser can use it.
    """

    public: PublicText = field(repr=False)
    slots_J: tuple[NDArray[np.int64], ...] = field(repr=False)
    degree_J: NDArray[np.int64] = field(repr=False)
    num_examples: int
    candidates: tuple[str, ...] = field(repr=False)
    spelled: tuple[str, ...] = field(repr=False)
    fillings: Mapping[str, int] = field(repr=False)
    model: "Callable[[Guessing], Scorer] | None" = field(default=None, repr=False)

    @property
    def word_C(self) -> NDArray[np.int64]:
        """The word of each candidate among the public words, 0 if it is none."""
        numbers = self.public.number_of
        return np.array([numbers.get(text, BOUNDARY) for text in self.candidates], dtype=np.int64)


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class Guesser:
    """A guesser by name. prepare: None where it cannot say anything."""

    name: str
    prepare: Callable[[Guessing], Scorer | None]


def _frequency(guessing: Guessing) -> Scorer:
    word_C = guessing.word_C
    public_C = np.where(word_C > SLOT, guessing.public.count_W[word_C], 0)
    filled_C = np.array([guessing.fillings.get(text, 0) for text in guessing.candidates])
    score_C = np.log(public_C + filled_C + 0.5)
    return lambda block: np.tile(score_C, (len(guessing.slots_J[block]), 1))


def _degree(guessing: Guessing) -> Scorer | None:
    outside = guessing.public.num_texts - guessing.public.num_inside
    if not outside:
        return None
    word_C = guessing.word_C
    documents_C = np.where(word_C > SLOT, guessing.public.outside_documents_W[word_C], 0) + 0.5

    def score(block: slice) -> Array:
        degree_B = guessing.degree_J[block].astype(np.float64) + 0.5
        share_B, share_C = np.log(degree_B / guessing.num_examples), np.log(documents_C / outside)
        variance_BC = 1 / degree_B[:, None] + 1 / documents_C[None, :] + LOG_FREQUENCY_VARIANCE
        return -((share_B[:, None] - share_C[None, :]) ** 2) / (2 * variance_BC) - 0.5 * np.log(variance_BC)

    return score


def _context(guessing: Guessing) -> Scorer | None:
    public = guessing.public
    if not len(public.words) > SLOT + 1:
        return None
    near, related = _neighbour_scorer(guessing), _relatives_scorer(guessing)
    return lambda block: near(block) + related(block)


def _neighbour_scorer(guessing: Guessing) -> Scorer:
    """Naive Bayes: P(feature | candidate), from all words to those with its ending to the candidate itself."""
    public, num_words = guessing.public, len(guessing.public.words)
    is_word_W = np.array([number > SLOT and word[0].isalpha() for number, word in enumerate(public.words)])
    numbers: dict[str, int] = {}
    ending_W = np.array([numbers.setdefault(_ending(word), len(numbers)) for word in public.words])
    ending_C = np.array([numbers.setdefault(_ending(text), len(numbers)) for text in guessing.candidates])
    position_T = np.flatnonzero(is_word_W[public.token_T])
    token_T = public.token_T[position_T]
    count_FK = _stacked(public, position_T, ending_W[token_T], num_words, len(numbers))
    size_K = np.bincount(ending_W[token_T], minlength=len(numbers)).astype(np.float64)
    share_F = np.asarray(count_FK.sum(axis=1)).ravel() + 0.5
    share_F /= share_F.reshape(len(OFFSETS), num_words).sum(axis=1).repeat(num_words)
    lift_FK = count_FK.copy()
    lift_FK.data = np.log1p(count_FK.data / (ENDING_PSEUDO_COUNT * share_F[count_FK.indices]))
    # Candidates that the public text itself has: the contexts of the word, pulled towards those of its ending.
    word_C = guessing.word_C
    column_W = np.full(num_words, -1)
    column_W[word_C[word_C > SLOT]] = np.flatnonzero(word_C > SLOT)
    known_T = column_W[token_T] >= 0
    count_FC = _stacked(
        public, position_T[known_T], column_W[token_T[known_T]], num_words, len(guessing.candidates)
    ).tocoo()
    ending_E = ending_C[count_FC.col]
    looked_up: Any = count_FK[count_FC.row, ending_E] if len(ending_E) else np.zeros(0)
    by_ending_E = looked_up + ENDING_PSEUDO_COUNT * share_F[count_FC.row]
    by_ending_E = by_ending_E / (size_K[ending_E] + ENDING_PSEUDO_COUNT)
    lift_FC = sparse.coo_array(
        (np.log1p(count_FC.data / (WORD_PSEUDO_COUNT * by_ending_E)), (count_FC.row, count_FC.col)), count_FC.shape
    ).tocsc()
    size_C = np.bincount(column_W[token_T[known_T]], minlength=len(guessing.candidates))
    cost_C = np.log(size_K + ENDING_PSEUDO_COUNT)[ending_C] + np.log1p(size_C / WORD_PSEUDO_COUNT)
    feature_JF = _features_of_secrets(guessing, num_words)

    def score(block: slice) -> Array:
        feature_BF = feature_JF[block]
        number_B = np.asarray(feature_BF.sum(axis=1)).ravel()
        by_ending_BK = (feature_BF @ lift_FK).toarray()
        return by_ending_BK[:, ending_C] + (feature_BF @ lift_FC).toarray() - number_B[:, None] * cost_C

    return score


def _ending(text: str) -> str:
    return text[-ENDING_LETTERS:]


def _stacked(
    public: PublicText, position_T: NDArray[np.int64], column_T: NDArray[np.int64], num_words: int, columns: int
) -> Any:
    """How often each feature (a token at an offset) goes with each column: [F, columns], by column."""
    parts = [
        sparse.coo_array(
            (np.ones(len(position_T)), (public.token_T[position_T + offset], column_T)), shape=(num_words, columns)
        ).tocsr()
        for offset in OFFSETS
    ]
    return sparse.vstack(parts).tocsc()


def _features_of_secrets(guessing: Guessing, num_words: int) -> Any:
    """How often each feature stands beside a slot of each secret: [J, F]."""
    position_of, token_T = guessing.public.position_of_slot, guessing.public.token_T
    rows, columns = list[int](), list[int]()
    for row, slots in enumerate(guessing.slots_J):
        for slot in slots.tolist():
            position = position_of[slot]
            rows += [row] * len(OFFSETS)
            columns += [number * num_words + int(token_T[position + offset]) for number, offset in enumerate(OFFSETS)]
    shape = (len(guessing.slots_J), len(OFFSETS) * num_words)
    return sparse.coo_array((np.ones(len(rows)), (rows, columns)), shape=shape).tocsr()


def _relatives_scorer(guessing: Guessing) -> Scorer:
    """Whether the examples of a secret hold a relative of the candidate: a likelihood ratio for each example.

    How often a text that holds a word also holds a relative of it is learnt from the public words.
    """
    public = guessing.public
    numbers: dict[str, int] = {}
    stem_W = np.array(
        [-1 if (stem := _stem(word)) is None else numbers.setdefault(stem, len(numbers)) for word in public.words]
    )
    stem_C = np.array([numbers.get(_stem(text) or "", -1) for text in guessing.candidates])
    has_stem_C = np.array([_stem(text) is not None for text in guessing.candidates])
    in_stem_T = stem_W[public.token_T] >= 0
    pairs = np.unique(public.text_T[in_stem_T].astype(np.int64) * len(public.words) + public.token_T[in_stem_T])
    text_P, stem_P = pairs // len(public.words), stem_W[pairs % len(public.words)]
    held_DS = sparse.coo_array(
        (np.ones(len(pairs)), (text_P, stem_P)), shape=(public.num_texts, max(len(numbers), 1))
    ).tocsr()
    together = float((held_DS.data >= 2) @ held_DS.data) / max(len(pairs), 1)  # words that have a relative in the text
    held_DS.data[:] = 1.0
    documents_C = np.where(stem_C >= 0, np.asarray(held_DS.sum(axis=0)).ravel()[stem_C], 0.0)
    chance_C = np.clip((documents_C + 0.5) / (public.num_texts + 1), None, 0.5)
    given_C = np.clip(np.maximum(together, chance_C), None, 0.5)
    present_C = np.where(has_stem_C, np.log(given_C / chance_C), 0.0)
    absent_C = np.where(has_stem_C, np.log1p(-given_C) - np.log1p(-chance_C), 0.0)
    held_DC = held_DS.tocsc()[:, np.maximum(stem_C, 0)]
    held_DC = (held_DC @ sparse.diags_array((stem_C >= 0).astype(np.float64))).tocsr()

    def score(block: slice) -> Array:
        rows, texts = list[int](), list[int]()
        for row, slots in enumerate(guessing.slots_J[block]):
            places = [public.position_of_slot[slot] for slot in slots.tolist()]
            distinct = np.unique(public.text_T[places]).tolist()
            rows += [row] * len(distinct)
            texts += distinct
        shape = (len(guessing.slots_J[block]), public.num_texts)
        text_BD = sparse.coo_array((np.ones(len(rows)), (rows, texts)), shape=shape).tocsr()
        number_B = np.asarray(text_BD.sum(axis=1)).ravel()
        held_BC: Array = (text_BD @ held_DC).toarray()
        return held_BC * (present_C - absent_C) + number_B[:, None] * absent_C

    return score


def _stem(text: str) -> str | None:
    return text[:STEM_LETTERS] if len(text) > STEM_LETTERS and text[0].isalpha() else None


def _language_model(guessing: Guessing) -> Scorer | None:
    return None if guessing.model is None else guessing.model(guessing)


LANGUAGE_MODEL = Guesser(name="language model", prepare=_language_model)
GUESSERS = (
    Guesser(name="frequency", prepare=_frequency),
    Guesser(name="degree", prepare=_degree),
    Guesser(name="context", prepare=_context),
    LANGUAGE_MODEL,
)
"""All guessers. A new one is a function from ``Guessing`` to a scorer, added here."""

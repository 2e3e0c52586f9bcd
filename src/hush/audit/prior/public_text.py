"""The public text around slots as tokens: what an adversary reads who has the skeletons but not the model.

Public are the skeletons, the examples without a secret, and text from outside that anybody can read. Examples that are
secret as a whole are left out. A slot is one token, the same for all slots: neither its content nor its length is in
the tokens. ``SlotTexts`` holds what the owner alone knows: whether a slot holds exactly the text of its secret, and the
text on both sides of the slots that a language model is to fill.
Shapes: N examples, L slots, T tokens, W words, D texts.
"""

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import final

import numpy as np
from numpy.typing import NDArray

from hush.arrays import Progress
from hush.errors import InvalidInput
from hush.incidence import Incidence
from hush.numbers import counted
from hush.scan.finders.unicode import caseless
from hush.slots import Spans, placeholder

__all__ = ["BOUNDARY", "REACH", "SLOT", "PublicText", "SlotTexts", "read_public_text"]


TOKEN = re.compile(r"[^\W\d_]+(?:[-'][^\W\d_]+)*|\d+|[^\w\s]")
BOUNDARY, SLOT = 0, 1  # tokens that are no words: the end of a text, and a slot
REACH = 2  # tokens on each side of a word that count as its context; so many boundaries separate two texts
SIDE_CHARACTERS = 2000  # of the text on each side of a slot that are kept for a language model


@final
@dataclass(frozen=True, kw_only=True, eq=False, repr=False)
class PublicText:
    """All public texts as one sequence of tokens.

    words: by token, without case; the first two are no words. slot_T: the slot that a token stands for, or -1. text_T:
    the number of its text; texts from ``num_inside`` on are from outside.
    """

    words: tuple[str, ...]
    token_T: NDArray[np.int32]
    slot_T: NDArray[np.int64]
    text_T: NDArray[np.int32]
    num_inside: int
    num_texts: int

    @cached_property
    def number_of(self) -> Mapping[str, int]:
        """The token of each word."""
        return {word: number for number, word in enumerate(self.words) if number > SLOT}

    @cached_property
    def count_W(self) -> NDArray[np.int64]:
        """How often each token occurs."""
        return np.bincount(self.token_T, minlength=len(self.words)).astype(np.int64)

    @cached_property
    def outside_documents_W(self) -> NDArray[np.int64]:
        """In how many texts from outside each token occurs."""
        outside_T = self.text_T >= self.num_inside
        pairs = np.unique(self.text_T[outside_T].astype(np.int64) * len(self.words) + self.token_T[outside_T])
        return np.bincount(pairs % len(self.words), minlength=len(self.words)).astype(np.int64)

    @cached_property
    def position_of_slot(self) -> Mapping[int, int]:
        """The position of each slot among the tokens."""
        positions = np.flatnonzero(self.slot_T >= 0)
        return dict(zip(self.slot_T[positions].tolist(), positions.tolist(), strict=True))

    def __repr__(self) -> str:
        return f"PublicText({counted(self.num_texts, 'text')}, {counted(len(self.token_T), 'token')})"


@final
@dataclass(frozen=True, kw_only=True, eq=False)
class SlotTexts:
    """Known to the owner alone. exact: slots that hold exactly the text of their one secret, but for case.

    sides: the skeleton before and after a slot, for the slots that a language model is to fill.
    """

    exact: frozenset[int]
    sides: Mapping[int, tuple[str, str]] = field(repr=False)


def read_public_text(
    spans: Spans,
    incidence: Incidence,
    texts: Iterable[str],
    *,
    secret_texts: tuple[str, ...],
    slots: NDArray[np.int64],
    with_sides: frozenset[int] = frozenset(),
    outside: Iterable[str] = (),
    max_texts: int,
    rng: np.random.Generator,
    progress: Progress | None = None,
) -> tuple[PublicText, SlotTexts]:
    """Reads the data once: row i of texts is example i.

    slots: those that are looked at; their examples are always read. max_texts: how many examples more are read at most,
    and how many texts from outside. with_sides: slots whose neighbourhood is kept as text, too.
    """
    wanted_N = np.zeros(incidence.num_examples, dtype=bool)
    wanted_N[spans.slots.example_L[slots]] = True
    others = np.flatnonzero(~wanted_N & ~spans.slots.whole_examples(incidence))
    wanted_N[others if len(others) <= max_texts else rng.choice(others, max_texts, replace=False)] = True
    looked_at = frozenset(slots.tolist())
    builder, exact, sides = _Builder(), set[int](), dict[int, tuple[str, str]]()
    number = -1
    for number, text in enumerate(texts):
        if number >= incidence.num_examples:
            break
        if progress is not None:
            progress(number, incidence.num_examples)
        if not wanted_N[number]:
            continue
        numbers, places = spans.slots.of_example(number), spans.of_example(number)
        if places and places[-1][1] > len(text):
            raise InvalidInput(
                f"a slot ends after character {places[-1][1]} of example {number}, which has {len(text)}; pass the "
                "data that was scanned"
            )
        builder.add(text, places, numbers)
        for slot, (begin, end) in zip(numbers, places, strict=True):
            if slot not in looked_at:
                continue
            secret = int(spans.slots.secrets_of(slot)[0])
            if caseless(text[begin:end]) == caseless(secret_texts[secret]):
                exact.add(slot)
                if slot in with_sides:
                    sides[slot] = _sides(spans, number, text, slot)
    if number + 1 != incidence.num_examples:
        found = "more" if number >= incidence.num_examples else str(number + 1)
        raise InvalidInput(
            f"the scan has {counted(incidence.num_examples, 'example')}, the data {found}; pass the data that was "
            "scanned"
        )
    num_inside = builder.num_texts
    for index, text in enumerate(outside):
        if index >= max_texts:
            break
        builder.add(text, [], range(0))
    return builder.finished(num_inside), SlotTexts(exact=frozenset(exact), sides=sides)


def _sides(spans: Spans, example: int, text: str, slot: int) -> tuple[str, str]:
    """The skeleton before and after a slot, the other slots as placeholders."""
    numbers, places = spans.slots.of_example(example), spans.of_example(example)
    parts, done = list[str](), 0
    cut = 0
    for number, (begin, end) in zip(numbers, places, strict=True):
        parts.append(text[done:begin])
        if number == slot:
            cut = sum(map(len, parts))
        else:
            parts.append(placeholder(spans.slots.rules[int(spans.slots.rule_L[number])]))
        done = end
    whole = "".join((*parts, text[done:]))
    return whole[max(cut - SIDE_CHARACTERS, 0) : cut], whole[cut : cut + SIDE_CHARACTERS]


@final
class _Builder:
    """Collects tokens text by text."""

    def __init__(self) -> None:
        self._numbers: dict[str, int] = {"\0boundary": BOUNDARY, "\0slot": SLOT}
        self._tokens: list[int] = [BOUNDARY] * REACH
        self._slots: list[tuple[int, int]] = []  # position and slot
        self._begins: list[int] = []
        self.num_texts = 0

    def add(self, text: str, places: list[tuple[int, int]], numbers: range) -> None:
        self._begins.append(len(self._tokens))
        done = 0
        for slot, (begin, end) in zip(numbers, places, strict=True):
            self._add_words(text[done:begin])
            self._slots.append((len(self._tokens), slot))
            self._tokens.append(SLOT)
            done = end
        self._add_words(text[done:])
        self._tokens += [BOUNDARY] * REACH
        self.num_texts += 1

    def _add_words(self, text: str) -> None:
        numbers = self._numbers
        self._tokens += [numbers.setdefault(word, len(numbers)) for word in TOKEN.findall(caseless(text))]

    def finished(self, num_inside: int) -> PublicText:
        token_T = np.array(self._tokens, dtype=np.int32)
        slot_T = np.full(len(token_T), -1, dtype=np.int64)
        for position, slot in self._slots:
            slot_T[position] = slot
        starts = np.zeros(len(token_T), dtype=np.int32)
        starts[self._begins[1:]] = 1
        return PublicText(
            words=tuple(self._numbers),
            token_T=token_T,
            slot_T=slot_T,
            text_T=np.cumsum(starts, dtype=np.int32),
            num_inside=num_inside,
            num_texts=self.num_texts,
        )

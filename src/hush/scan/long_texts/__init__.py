r"""Where a long text is cut into several examples: into chunks of characters, tokens, lines, or what a model reads.

No character is lost: without overlap, the chunks of a text joined in order are the text. Between half of its size and
its size, a chunk ends where a reader would end it: after a paragraph, else a line, else a sentence; else after its last
word. Only a word that no chunk can hold is cut.

The text is cut as its skeleton: wherever a rule found a secret, one fixed text stands for it, which is never cut. So
borders and their number depend on the text outside of the found spans alone.
"""

import re
from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import accumulate
from typing import Any, Literal, Protocol, final

import numpy as np
from numpy.typing import NDArray

from hush.errors import InvalidInput
from hush.scan.code.chunks import merged_spans
from hush.slots import placeholder

__all__ = ["Characters", "Lines", "LongTexts", "ModelTokens", "Range", "Unit", "Words", "stand_in"]


_PARAGRAPH = re.compile(r"\n[^\S\n]*\n\s*")
_LINE_END = re.compile(r"\n")
_SENTENCE = re.compile(r"[.!?\u2026][\"'\u201d\u2019\u00bb)\]]*\s+|[\u3002\uff01\uff1f]+")  # the latter without spaces
_SPACE = re.compile(r"\s+")
_WORD = re.compile(r"\w+|[^\w\s]")  # the tokens of chunks of code
BORDERS = (_PARAGRAPH, _LINE_END, _SENTENCE, _SPACE)  # a chunk ends after one of these; the best comes first

Range = tuple[int, int]  # of characters: begin, end
Starts = NDArray[np.int64]  # where the units of a text begin, ascending; several may begin at one character


class Unit(Protocol):
    """What the size of a chunk counts."""

    @property
    def is_additive(self) -> bool:
        """Whether the units of a part of a text are the units of the text that begin in it."""
        ...

    @property
    def ends_anywhere(self) -> bool:
        """Whether a chunk that is not full may end at a better place."""
        ...

    def starts(self, texts: Sequence[str]) -> Iterator[Starts]:
        """Where the units of each text begin."""
        ...


@final
@dataclass(frozen=True, slots=True)
class Characters:
    """Every character is a unit."""

    is_additive: Literal[True] = True
    ends_anywhere: Literal[True] = True

    def starts(self, texts: Sequence[str]) -> Iterator[Starts]:
        yield from (np.arange(len(text)) for text in texts)


@final
@dataclass(frozen=True, slots=True)
class Words:
    """A unit is a run of letters, digits and underscores, or any other single character except white space."""

    is_additive: Literal[True] = True
    ends_anywhere: Literal[True] = True

    def starts(self, texts: Sequence[str]) -> Iterator[Starts]:
        for text in texts:
            yield np.array([match.start() for match in _WORD.finditer(text)], dtype=np.int64)


@final
@dataclass(frozen=True, slots=True)
class Lines:
    """Every line is a unit; a chunk ends at the end of its last line."""

    is_additive: Literal[True] = True
    ends_anywhere: Literal[False] = False

    def starts(self, texts: Sequence[str]) -> Iterator[Starts]:
        for text in texts:
            ends = (match.end() for match in _LINE_END.finditer(text))
            yield np.array([0, *(end for end in ends if end < len(text))], dtype=np.int64)


@final
@dataclass(frozen=True, slots=True, repr=False)
class ModelTokens:
    """The tokens of a model. max_length: how many of them it reads, with those that its tokenizer adds to a text."""

    tokenizer: Any
    max_length: int
    is_additive: Literal[False] = False  # a tokenizer may split the end of a chunk in another way than the whole text
    ends_anywhere: Literal[True] = True

    def __post_init__(self) -> None:
        if not getattr(self.tokenizer, "is_fast", False):
            raise InvalidInput(
                f"{type(self.tokenizer).__name__} does not tell which characters a token stands for, so texts cannot "
                "be cut to the length of its model; use a fast tokenizer, or state the size of chunks in characters"
            )

    @property
    def size(self) -> int:
        """How many tokens of a text the model reads."""
        return self.max_length - self.tokenizer.num_special_tokens_to_add()

    def starts(self, texts: Sequence[str]) -> Iterator[Starts]:
        if not texts:
            return
        found = self.tokenizer(list(texts), add_special_tokens=False, return_offsets_mapping=True, verbose=False)
        for offsets in found["offset_mapping"]:
            yield np.sort(np.array([begin for begin, _ in offsets], dtype=np.int64))

    def __repr__(self) -> str:
        return f"ModelTokens(max_length={self.max_length})"


def stand_in(rules: Iterable[str], *, least: int = 0) -> str:
    """What stands for a found secret where a text is cut: the longest placeholder of the scan's rules.

    It depends on the names of the rules alone, so a chunk is never longer as a skeleton than when it was cut. least:
    for texts that are learnt with their secrets, it is repeated to so many characters, so that mostly they fit, too.

    >>> stand_in(["names", "codes-2"]), stand_in(["names", "codes-2"], least=12)
    ('[codes-2]', '[codes-2][codes-2]')
    """
    longest = max(map(placeholder, rules), key=len)
    return longest * max(1, -(-least // len(longest)))


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class LongTexts:
    """How texts are cut: into chunks of at most ``size`` units, which repeat up to ``overlap`` units.

    >>> LongTexts(unit=Characters(), size=12).ranges(["One two. Three four five. Six."])
    [[(0, 9), (9, 20), (20, 30)]]
    """

    unit: Unit
    size: int
    overlap: int = 0

    def __post_init__(self) -> None:
        if self.size < 1:
            raise InvalidInput(f"chunks of {self.size} are empty; pass a size of 1 or more")
        if not 0 <= self.overlap < self.size:
            raise InvalidInput(f"overlap={self.overlap}; pass 0 or more, and below the size of a chunk, {self.size}")

    def ranges(
        self, texts: Sequence[str], hidden: Sequence[Iterable[Range]] | None = None, *, stand_in: str = ""
    ) -> list[list[Range]]:
        """The chunks of each text, in order, as ranges of its characters; a text that fits is one chunk.

        hidden: the spans of each text in which secrets were found; they overlap no border. stand_in: see above.

        Guarantee: texts that differ only inside their hidden spans have the same number of chunks, cut at the same
        places of their skeletons. Every character of a text is in a chunk.
        """
        masked = [
            _Masked.of(text, spans, stand_in) for text, spans in zip(texts, hidden or [()] * len(texts), strict=True)
        ]
        starts = self.unit.starts([each.text for each in masked])
        return [
            [(each.original(begin), each.original(end)) for begin, end in self._ranges(each, starts_of)]
            for each, starts_of in zip(masked, starts, strict=True)
        ]

    def _ranges(self, masked: "_Masked", starts: Starts) -> list[Range]:
        if len(starts) <= self.size:
            return [(0, len(masked.text))]
        cut = list(_cut(masked, starts, self.size, self.overlap, anywhere=self.unit.ends_anywhere))
        return cut if self.unit.is_additive else self._fitted(masked, cut)

    def _fitted(self, masked: "_Masked", cut: list[Range]) -> list[Range]:
        """The same chunks; those that have more units alone than they had within the text are cut once more."""
        fitted: list[Range] = []
        for (begin, end), starts in zip(cut, self.unit.starts([masked.text[a:b] for a, b in cut]), strict=True):
            part, size, again = masked.part(begin, end), self.size, [(0, end - begin)]
            excess = len(starts) - size
            while excess > 0 and size > 1:
                size = max(1, size - excess)
                again = list(_cut(part, starts, size, 0, anywhere=True))
                excess = max(map(len, self.unit.starts([part.text[a:b] for a, b in again]))) - self.size
            for first, last in ((begin + a, begin + b) for a, b in again):
                while fitted and fitted[-1][0] >= first and fitted[-1][1] < last:
                    fitted.pop()  # all of it is repeated
                if not fitted or fitted[-1][1] < last:
                    fitted.append((first, last))
        return fitted


@final
@dataclass(frozen=True, slots=True, repr=False)
class _Masked:
    """A text with a stand-in for every hidden span. slots: where these are. added: what the spans are longer."""

    text: str
    slots: tuple[Range, ...]
    ends: tuple[int, ...]
    added: tuple[int, ...]

    @classmethod
    def of(cls, text: str, hidden: Iterable[Range], instead: str) -> "_Masked":
        spans = merged_spans(hidden)
        parts, slots, done, length = list[str](), list[Range](), 0, 0
        for begin, end in spans:
            parts += (text[done:begin], instead)
            length += begin - done + len(instead)
            slots.append((length - len(instead), length))
            done = end
        longer = (end - begin - len(instead) for begin, end in spans)
        masked = "".join((*parts, text[done:]))
        return cls(masked, tuple(slots), tuple(end for _, end in slots), (0, *accumulate(longer)))

    def original(self, place: int) -> int:
        """The place of the original text; no border is inside a slot."""
        return place + self.added[bisect_right(self.ends, place)]

    def part(self, begin: int, end: int) -> "_Masked":
        """The part between two borders, with its slots."""
        slots = tuple((a - begin, b - begin) for a, b in self.slots if begin <= a and b <= end)
        return _Masked(self.text[begin:end], slots, tuple(b for _, b in slots), (0,) * (len(slots) + 1))

    def outside(self, place: int, least: int) -> int:
        """The place, moved out of a slot: before it, or behind it if that is not above ``least``."""
        number = bisect_right(self.ends, place)
        if number == len(self.slots) or not self.slots[number][0] < place:
            return place
        begin, end = self.slots[number]
        return begin if begin > least else end


def _cut(masked: _Masked, starts: Starts, size: int, overlap: int, *, anywhere: bool) -> Iterator[Range]:
    """The chunks of a text with more units than ``size``."""
    text, units = masked.text, starts.tolist()
    borders = [[match.end() for match in border.finditer(text)] for border in BORDERS] if anywhere else []
    begin = covered = 0
    while covered < len(text):
        first = bisect_left(units, begin)
        limit = units[first + size] if first + size < len(units) else len(text)
        if limit <= covered and begin < covered:
            begin = covered  # repeat nothing, so that something new fits
            continue
        least = max(covered, begin)
        end = masked.outside(limit if limit > least else least + 1, least)
        if end < len(text):
            half = max(least, units[min(first + size // 2, len(units) - 1)])
            above = (*[half] * (len(borders) - 1), least)  # rather a short chunk than a word in two
            found = (_last(places, low, end) for places, low in zip(borders, above, strict=False))
            end = next((place for place in found if place is not None), end)
        yield begin, end
        covered = end
        begin = _repeated_from(masked, units, borders, begin, end, overlap) if overlap and end < len(text) else end


def _last(places: list[int], least: int, most: int) -> int | None:
    """The last of these places above ``least`` and up to ``most``."""
    number = bisect_right(places, most) - 1
    return places[number] if number >= 0 and places[number] > least else None


def _repeated_from(
    masked: _Masked, units: list[int], borders: list[list[int]], begin: int, end: int, overlap: int
) -> int:
    """Where the next chunk begins: it repeats at most the overlap, and not the whole chunk."""
    place = max(units[max(bisect_left(units, end) - overlap, 0)], begin + 1)
    words = borders[-1] if borders else []
    number = bisect_left(words, place)
    if number < len(words) and words[number] < end:
        return words[number]
    moved = masked.outside(place, end)  # behind the slot
    return min(moved, end)

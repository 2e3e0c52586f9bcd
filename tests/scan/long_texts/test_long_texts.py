"""Where long texts are cut: no character is lost, chunks fit, and no border depends on what stands in a hidden span."""

from functools import cache
from itertools import pairwise
from typing import Any

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from hush.errors import InvalidInput
from hush.scan.long_texts import Characters, Lines, LongTexts, ModelTokens, Range, Unit, Words, stand_in
from slotted import KINDS, TEXTS, made_tokenizer

INSTEAD = stand_in(["names", "codes"])
pieces = st.text(st.sampled_from("ab é漢🦊.,!?。 \n\t[]0"), max_size=60) | st.sampled_from(
    [*TEXTS, "x" * 90, "\n\n", ""]
)
fillings = st.text(st.characters(codec="utf-8", exclude_categories=["Cs"]), min_size=1, max_size=40) | st.sampled_from(
    ["a" * 300, " ", "\n\n", "One. Two. ", "[names]"]
)
KINDS_OF_UNITS = ["characters", "words", "lines", *KINDS]


@cache
def tokens_of(kind: str, size: int) -> ModelTokens:
    return ModelTokens(made_tokenizer(kind, special=True), size + 2)


def unit_of(kind: str, size: int) -> Unit:
    plain: dict[str, Unit] = {"characters": Characters(), "words": Words(), "lines": Lines()}
    return plain[kind] if kind in plain else tokens_of(kind, size)


def filled(parts: list[str], slots: list[str]) -> tuple[str, list[Range]]:
    """A text with these slots between its parts, and where they are."""
    text, spans = parts[0], list[Range]()
    for slot, part in zip(slots, parts[1:], strict=False):
        spans.append((len(text), len(text) + len(slot)))
        text += slot + part
    return text, spans


def skeletons(text: str, spans: list[Range], cut: list[Range]) -> list[tuple[int, int, str]]:
    """Each chunk as it is without what is hidden: its borders in the skeleton, and its text."""

    def skeleton(upto: int, begin: int = 0) -> str:
        done, parts = begin, list[str]()
        for first, last in spans:
            if first >= begin and last <= upto:
                parts += [text[done:first], "\0"]
                done = last
            assert not first < begin < last, "a border inside of a hidden span"
            assert not first < upto < last, "a border inside of a hidden span"
        return "".join([*parts, text[done:upto]])

    return [(len(skeleton(begin)), len(skeleton(end)), skeleton(end, begin)) for begin, end in cut]


@settings(max_examples=150)
@given(
    parts=st.lists(pieces, min_size=1, max_size=6),
    first=st.lists(fillings, min_size=5, max_size=5),
    second=st.lists(fillings, min_size=5, max_size=5),
    kind=st.sampled_from(KINDS_OF_UNITS),
    size=st.integers(1, 40),
    overlap=st.integers(0, 39),
)
@example(["a ", "\n\nb"], ["x"] * 5, ["\n\n" * 9] * 5, "lines", 1, 0)
@example(["a ", " b. c" * 9], ["x"] * 5, ["y" * 300] * 5, "bytes", 12, 0)
def test_chunks_are_the_same_whatever_stands_in_hidden_spans(
    parts: list[str], first: list[str], second: list[str], kind: str, size: int, overlap: int
) -> None:
    # Slots that touch become one, so a part between two of them needs a character.
    parts = [parts[0], *(part or "." for part in parts[1:])]
    long_texts = LongTexts(unit=unit_of(kind, size), size=size, overlap=min(overlap, size - 1))
    (one, spans_one), (other, spans_other) = filled(parts, first), filled(parts, second)
    cut_one, cut_other = long_texts.ranges([one, other], [spans_one, spans_other], stand_in=INSTEAD)
    assert skeletons(one, spans_one, cut_one) == skeletons(other, spans_other, cut_other)


@settings(max_examples=150)
@given(
    parts=st.lists(pieces, min_size=1, max_size=6),
    slots=st.lists(fillings, min_size=5, max_size=5),
    kind=st.sampled_from(KINDS_OF_UNITS),
    size=st.integers(1, 40),
    overlap=st.integers(0, 39),
)
@example(["", "aaaa"], [" ", "x", "x", "x", "x"], "characters", 3, 2)
def test_every_character_is_in_a_chunk_and_chunks_go_forward(
    parts: list[str], slots: list[str], kind: str, size: int, overlap: int
) -> None:
    text, spans = filled(parts, slots)
    overlap = min(overlap, size - 1)
    [cut] = LongTexts(unit=unit_of(kind, size), size=size, overlap=overlap).ranges([text], [spans], stand_in=INSTEAD)
    assert (cut[0][0], cut[-1][1]) == (0, len(text))
    for (begin, end), (next_begin, next_end) in pairwise(cut):
        assert begin < next_begin <= end < next_end
        assert overlap or next_begin == end
    if not overlap:
        assert "".join(text[begin:end] for begin, end in cut) == text


@settings(max_examples=100)
@given(text=st.lists(pieces, max_size=8).map("".join), kind=st.sampled_from(KINDS_OF_UNITS), size=st.integers(8, 40))
def test_chunks_are_never_larger_than_asked(text: str, kind: str, size: int) -> None:
    unit = unit_of(kind, size)
    [cut] = LongTexts(unit=unit, size=size, overlap=3).ranges([text])
    assert all(len(starts) <= size for starts in unit.starts([text[begin:end] for begin, end in cut]))
    if isinstance(unit, ModelTokens):  # so a model that reads this many tokens reads all of it
        for begin, end in cut:
            assert len(unit.tokenizer(text[begin:end])["input_ids"]) <= unit.max_length


@given(text=st.lists(pieces, max_size=8).map("".join), size=st.integers(1, 40), overlap=st.integers(0, 39))
def test_a_chunk_repeats_at_most_the_overlap(text: str, size: int, overlap: int) -> None:
    overlap = min(overlap, size - 1)
    [cut] = LongTexts(unit=Characters(), size=size, overlap=overlap).ranges([text])
    assert all(end - begin <= overlap for (_, end), (begin, _) in pairwise(cut))


def test_chunks_end_where_a_reader_would_end_them() -> None:
    def chunks(text: str, size: int, **more: int) -> list[str]:
        [cut] = LongTexts(unit=Characters(), size=size, **more).ranges([text])
        return [text[begin:end] for begin, end in cut]

    assert chunks("One two.\n\nThree. Four five six.", 22) == ["One two.\n\nThree. ", "Four five six."]
    assert chunks("One two three.\n\nFour. Five", 22) == ["One two three.\n\n", "Four. Five"]
    assert chunks("line one\nline two\nline three\n", 20) == ["line one\nline two\n", "line three\n"]
    assert chunks("一二三四。五六七八。九", 8) == ["一二三四。", "五六七八。九"]
    assert chunks("abcdefghij klm", 6) == ["abcdef", "ghij ", "klm"]  # a word that no chunk holds is cut
    assert chunks("one two three four five", 12, overlap=6) == ["one two ", "two three ", "three four ", "four five"]
    [lines] = LongTexts(unit=Lines(), size=2).ranges(["a\nb\n\nc\n"])
    assert lines == [(0, 4), (4, 7)]
    [words] = LongTexts(unit=Words(), size=4).ranges(["one, two; three four"])
    assert words == [(0, 10), (10, 20)]


def test_sizes_and_tokenizers_that_cannot_be_used_are_refused() -> None:
    class Slow:
        is_fast = False

    with pytest.raises(InvalidInput, match="chunks of 0 are empty"):
        LongTexts(unit=Characters(), size=0)
    with pytest.raises(InvalidInput, match="overlap=4; pass 0 or more, and below the size of a chunk, 4"):
        LongTexts(unit=Characters(), size=4, overlap=4)
    slow: Any = Slow()
    with pytest.raises(InvalidInput, match="Slow does not tell which characters a token stands for"):
        ModelTokens(slow, 128)

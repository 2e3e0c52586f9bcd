"""Tokenisation is exactly as documented: the compiled loops agree with regular expressions on every text."""

from typing import Literal
from unicodedata import normalize

import pytest
from finder_cases import ascii_words, block_of, lowered, reference, texts
from hypothesis import given
from hypothesis import strategies as st

import hush
from hush.scan.finders import Tokens
from hush.scan.finders.unicode import NUM_CODE_POINTS, folded

settings = st.builds(
    Tokens,
    letters=st.sampled_from(["ascii", "unicode"]),
    lower=st.booleans(),
    joiners=st.sampled_from(["", "-'", "_", "·—", "😀"]),
    skip_formulas=st.booleans(),
)


@given(texts)
def test_ascii_words_are_those_of_the_documented_regular_expression(text: str) -> None:
    assert Tokens().words(text) == ascii_words(text)


def test_every_code_point_between_two_letters_is_cut_as_the_regular_expression_does() -> None:
    points = [chr(point) for point in range(0x110000) if not 0xD800 <= point < 0xE000]
    text = "\n".join(f"a{point}b" for point in points if point != "$")
    assert Tokens().words(text) == ascii_words(text)


@given(texts, settings)
def test_every_setting_agrees_with_classes_of_characters(text: str, tokens: Tokens) -> None:
    if tokens.letters == "ascii" and tokens.lower:
        text = text.replace("\u0130", "")  # the one letter of this setting that becomes two characters
    assert tokens.words(text) == [word for _, _, word in reference(text, tokens)]


def test_every_code_point_is_a_unicode_letter_if_python_says_so() -> None:
    tokens = Tokens(letters="unicode", joiners="", skip_formulas=False)
    points = [chr(point) for point in range(0x110000) if not 0xD800 <= point < 0xE000]
    assert tokens.words(" ".join(points)) == [lowered(point) for point in points if point.isalpha()]


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("", []),
        ("-a- b--c 'd' e-'f", ["a", "b", "c", "d", "e", "f"]),
        ("a$b$c $d", ["a", "c", "d"]),
        ("a-$x$-b", ["a", "b"]),
        ("\u212aelvin \u0130x", ["kelvin", "i", "x"]),
        ("naïve", ["na", "ve"]),
        ("😀ab😀-c", ["ab", "c"]),
    ],
)
def test_hard_cases(text: str, words: list[str]) -> None:
    assert Tokens().words(text) == words


NAMES = ["नरेंद्र", "மணிகண்டன்", "مُحَمَّد", "ใจดี", "nguyễn", "müller-lüdenscheidt"]


@pytest.mark.parametrize("form", ["NFC", "NFD"])
@pytest.mark.parametrize("name", NAMES)
def test_marks_do_not_break_a_name_whatever_its_script_and_form(name: str, form: Literal["NFC", "NFD"]) -> None:
    name = normalize(form, name)
    assert Tokens(letters="unicode").words(f"({name}) {name}, \u0301{name}") == [name] * 3


def test_a_mark_by_itself_is_no_word() -> None:
    assert Tokens(letters="unicode").words("\u2600\ufe0f \u0301 a-\u0301b 7\u0301") == ["a", "b"]


def test_no_letter_and_no_lower_case_lies_beyond_the_tables() -> None:
    beyond = [chr(point) for point in range(NUM_CODE_POINTS, 0x110000)]
    assert not any(point.isalnum() or point.lower() != point for point in beyond)


def test_folding_never_changes_the_number_of_characters_nor_doubles_the_bytes() -> None:
    for point in map(chr, [*range(0xD800), *range(0xE000, 0x110000)]):
        assert len(folded(point)) == 1
        assert len(folded(point).encode()) < 2 * len(point.encode())


@given(texts)
def test_folding_agrees_with_lower_case_character_by_character(text: str) -> None:
    assert folded(text) == lowered(text)


@pytest.mark.parametrize("settings", [{"letters": "latin"}, {"joiners": "-a"}, {"joiners": "$"}, {"joiners": "Ⓐ"}])
def test_settings_that_contradict_themselves_are_refused(settings: dict[str, str]) -> None:
    with pytest.raises(hush.InvalidInput, match=r"letters=|joiners: entry"):
        Tokens(**settings)  # pyright: ignore[reportArgumentType]


def test_a_dollar_sign_joins_where_formulas_are_not_skipped() -> None:
    assert Tokens(joiners="$", skip_formulas=False).words("a$b") == ["a$b"]


def test_the_block_of_the_tests_is_a_slice() -> None:
    assert block_of(["x"]).texts.offset == 1

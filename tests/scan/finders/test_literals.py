"""The literals rule: finds every occurrence of every literal, like a search for one literal after another."""

import re
from collections.abc import Sequence

import pytest
from finder_cases import block_of, rows_of, texts
from hypothesis import given
from hypothesis import strategies as st

import hush
from hush.scan.finders import Literals
from hush.scan.finders.unicode import NUM_CODE_POINTS, caseless, is_word
from hush.scan.hits import occurrences

corpora = st.lists(texts, max_size=5)
literal_lists = st.lists(texts.filter(bool), max_size=8)


def one_by_one(corpus: Sequence[str], values: Sequence[str], ignore_case: bool, whole_words: bool) -> set:
    """Example, begin, end and key of every occurrence."""
    found = set()
    for value in values:
        pattern = rf"(?<!\w)(?={re.escape(value)}(?!\w))" if whole_words else f"(?={re.escape(value)})"
        key = caseless(value) if ignore_case else value
        for example, text in enumerate(corpus):
            matches = re.finditer(pattern, text, re.IGNORECASE if ignore_case else 0)
            found |= {(example, match.start(), match.start() + len(value), key) for match in matches}
    return found


@given(corpora, literal_lists, st.booleans(), st.booleans())
def test_hits_are_those_of_a_search_for_one_literal_after_another(corpus, values, ignore_case, whole_words) -> None:
    finder = Literals(values=values, ignore_case=ignore_case, whole_words=whole_words)
    rows = [row[:4] for row in rows_of(finder.find(block_of(corpus)))]
    assert rows == sorted(one_by_one(corpus, values, ignore_case, whole_words))


@given(texts, texts.filter(bool), texts.filter(bool), texts, literal_lists, st.booleans())
def test_a_planted_literal_is_found_also_inside_and_beside_others(before, one, other, after, more, ignore_case) -> None:
    finder = Literals(values=[*more, one, other, one + other], ignore_case=ignore_case)
    found = {row[:4] for row in rows_of(finder.find(block_of([after, before + one + other + after])))}
    for at, value in ((0, one), (len(one), other), (0, one + other)):
        begin = len(before) + at
        assert (1, begin, begin + len(value), caseless(value) if ignore_case else value) in found


def test_case_is_ignored_as_regular_expressions_ignore_it() -> None:
    points = [chr(point) for point in range(NUM_CODE_POINTS) if chr(point).isalpha()]
    assert all(len(caseless(point)) == 1 and caseless(caseless(point)) == caseless(point) for point in points)
    assert all(is_word()[ord(caseless(point))] for point in points)  # or whole_words would see other neighbours
    cased, letters = [point for point in points if len({point, point.upper(), point.lower()}) > 1], "".join(points)
    alike: dict[str, set[str]] = {}
    for point in points:
        alike.setdefault(caseless(point), set()).add(point)
    for point in cased:
        assert alike[caseless(point)] == set(re.findall(re.escape(point), letters, re.IGNORECASE))


def test_nothing_is_found_across_examples() -> None:
    assert len(Literals(values=["ab", "éa"]).find(block_of(["a", "b", "é", "", "a"]))) == 0


def test_equal_literals_are_one_secret_with_the_first_place() -> None:
    finder = Literals(values=["Ab", "x", "aB"], ids=["one", "two", "one"], ignore_case=True)
    assert [(entry.key, entry.name) for entry in finder.declared] == [("ab", "one"), ("x", "two")]
    rows = rows_of(finder.find(block_of(["AB x"])))
    assert [row[3:] for row in rows] == [("ab", "literal 1 of the list"), ("x", "literal 2 of the list")]


def test_all_literals_are_declared_with_names_and_promises() -> None:
    promise = hush.Protection(1e-10, 1e-3)
    finder = Literals(values=["never", "there"], ids=["a", "b"], protections=[promise, None])
    assert [(entry.name, entry.protection) for entry in finder.declared] == [("a", promise), ("b", None)]
    assert len(finder.find(block_of(["something else"]))) == 0


def test_no_literals_and_no_texts_give_no_hits() -> None:
    assert len(Literals(values=[]).find(block_of(["text"]))) == 0
    assert len(Literals(values=["a"], ignore_case=True).find(block_of([]))) == 0


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"values": "hidden"}, "is a string"),
        ({"values": ["hidden", ""]}, "literal 2 of the list is empty"),
        ({"values": ["hidden", 5]}, "literal 2 of the list is a int"),
        ({"values": ["hidden\ud800"]}, "half a surrogate"),
        ({"values": ["hidden"], "ids": []}, "ids has 0 entries for 1 literals"),
        ({"values": ["hidden"], "protections": []}, "protections has 0 entries"),
        ({"values": ["hidden", "hidden"], "ids": ["a", "b"]}, "literals 1 and 2 of the list are equal"),
        ({"values": ["hidden", "other"], "ids": ["a", "a"]}, "the same name"),
    ],
)
def test_lists_that_cannot_be_meant_are_refused_without_their_text(settings, message: str) -> None:
    with pytest.raises(hush.InvalidInput, match=message) as caught:
        Literals(**settings)
    assert "hidden" not in str(caught.value)


@given(texts, texts.filter(bool))
def test_occurrences_are_all_places_where_a_part_stands(text: str, part: str) -> None:
    assert occurrences(text, part, 0, len(text)) == [at for at in range(len(text)) if text.startswith(part, at)]

"""The patterns rule: finds the matches of ``re``; each match is a secret, or each pattern is one."""

import re

import pytest
from finder_cases import block_of, rows_of, texts
from hypothesis import given
from hypothesis import strategies as st

import hush
from hush.scan.finders import Patterns


@given(st.lists(texts, max_size=5))
def test_hits_are_the_matches_of_every_pattern(corpus: list[str]) -> None:
    patterns = [r"[ab]+", r"(?i)a.", "$^|\\$"[3:]]
    hits = Patterns(patterns=patterns).find(block_of(corpus))
    expected = [
        (example, *match.span(), match.group(), f"matches pattern {index}")
        for example, text in enumerate(corpus)
        for index, pattern in enumerate(patterns, 1)
        for match in re.finditer(pattern, text)
    ]
    assert rows_of(hits) == sorted(expected)


@given(texts, st.from_regex(r"sk-[a-z0-9]{4}", fullmatch=True), texts.filter(lambda text: "sk-" not in text))
def test_a_planted_key_is_found_with_its_characters(before: str, key: str, after: str) -> None:
    hits = Patterns(patterns=[r"sk-[a-z0-9]{4}"]).find(block_of([before.replace("s", "") + key + after]))
    assert key in [row[3] for row in rows_of(hits)]


def test_the_same_text_of_two_patterns_is_one_secret_with_two_reasons() -> None:
    hits = Patterns(patterns=["ab", "a."]).find(block_of(["ab"]))
    assert hits.keys == ("ab",)
    assert [row[4] for row in rows_of(hits)] == ["matches pattern 1", "matches pattern 2"]


def test_patterns_as_secrets_are_declared_and_told_apart() -> None:
    finder = Patterns(patterns=["a+", "b", "c"], secret="pattern")
    assert len(finder.declared) == 3
    rows = rows_of(finder.find(block_of(["aa a b"])))
    assert [row[:3] for row in rows] == [(0, 0, 2), (0, 3, 4), (0, 5, 6)]
    assert [row[3] for row in rows] == [finder.declared[0].key, finder.declared[0].key, finder.declared[1].key]


@pytest.mark.parametrize("group", [2, "value"])
def test_a_group_cuts_out_the_secret_and_counts_only_where_it_took_part(group: int | str) -> None:
    finder = Patterns(patterns=[r"(key|no)=?(?P<value>\d*)?"], group=group)
    assert [row[1:4] for row in rows_of(finder.find(block_of(["key=12 no key="])))] == [(4, 6, "12")]


def test_matches_do_not_overlap_and_empty_ones_count_as_none() -> None:
    assert [row[1] for row in rows_of(Patterns(patterns=["aa"]).find(block_of(["aaaaa"])))] == [0, 2]
    assert len(Patterns(patterns=["(?=a)"]).find(block_of(["aaa"]))) == 0


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"patterns": "hidden"}, "is a string"),
        ({"patterns": ["a", "(hidden"]}, r"pattern 2 is not a regular expression at character 1;"),
        ({"patterns": ["(?P<hidden>a)(?P<hidden>b)"]}, "pattern 1 is not a regular expression at character"),
        ({"patterns": ["hidden{99999999999999999999}"]}, "pattern 1 is not a regular expression"),
        ({"patterns": ["(hidden)*"]}, "pattern 1 matches the empty string"),
        ({"patterns": [b"hidden"]}, "pattern 1 is a bytes"),
        ({"patterns": ["hidden"], "group": 1}, "pattern 1 has no group 1"),
        ({"patterns": ["hidden"], "group": "name"}, "pattern 1 has no group 'name'"),
        ({"patterns": ["hidden"], "group": 1.5}, "group is a float"),
        ({"patterns": ["hidden"], "secret": "text"}, "secret='text'"),
    ],
)
def test_bad_patterns_are_refused_by_place_without_their_text(settings, message: str) -> None:
    with pytest.raises(hush.InvalidInput, match=message) as caught:
        Patterns(**settings)
    assert "hidden" not in str(caught.value)
    assert caught.value.__cause__ is None
    assert caught.value.__context__ is None

"""The literal pass: a secret that its context reveals in one example is found in every example that contains it."""

import re
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from toys import Held, Memory, prepared

from hush.errors import InvalidInput
from hush.scan.assemble import run_scan
from hush.scan.engines import LocalEngine
from hush.scan.finders.patterns import Patterns
from hush.scan.result import Scan
from hush.scan.rules import Rules
from hush.scan.scanner import prepare

CALLED = r"pw=(\w+)"


def searched(texts: list[str], *, cuts: tuple[int, ...] = (), literal_pass: Any = "text") -> Scan:
    corpus = Memory([(text, None) for text in texts], cuts=cuts, size=2)
    rules = prepared(Patterns(patterns=[CALLED], group=1), literal_pass=literal_pass)
    return run_scan(corpus, rules, engine=LocalEngine(workers=1))


WORDS = st.sampled_from(["pw=ab", "ab", "cab", "pw=c", "c", "x"])
TEXTS = st.lists(st.lists(WORDS, max_size=4).map(" ".join), min_size=1, max_size=8)


@settings(max_examples=60, deadline=None)
@given(TEXTS, st.sets(st.integers(1, 7)))
def test_every_occurrence_of_what_any_example_calls_a_secret_is_found_once(texts: list[str], cuts: set[int]) -> None:
    found = searched(texts, cuts=tuple(sorted(cut for cut in cuts if cut < len(texts))))
    secrets = list(found.secrets.texts or ())
    assert sorted(secrets) == sorted({key for text in texts for key in re.findall(CALLED, text)})
    expected = {
        (example, number, begin, begin + len(key))
        for example, text in enumerate(texts)
        for number, key in enumerate(secrets)
        for begin in range(len(text))
        if text.startswith(key, begin)
    }
    reasons = [(reason.example, reason.secret, reason.begin, reason.end) for reason in found.why()]
    spans = [reason for reason in reasons if reason[2] >= 0]
    assert len(spans) == len(set(spans))
    assert set(spans) == expected
    pairs = {(example, secret) for example, secret, *_ in expected}
    assert set(zip(*map(list, found.incidence.to_scipy().nonzero()), strict=True)) == pairs


def test_whole_words_are_asked_for_where_names_are() -> None:
    texts = ["pw=al", "also", "al so"]
    assert searched(texts).incidence.examples_of(0).tolist() == [0, 1, 2]
    assert searched(texts, literal_pass="words").incidence.examples_of(0).tolist() == [0, 2]
    assert searched(texts, literal_pass=None).incidence.examples_of(0).tolist() == [0]


def test_words_of_ascii_end_at_other_scripts_and_at_escaped_line_breaks() -> None:
    texts = ["pw=al", "also", "al so", "密码是al请", r"x:\nal\n", r"\tal", r"\ral", r"\nxal", "nal", "al_"]
    found = searched(texts, literal_pass="ascii words").incidence.examples_of(0).tolist()
    assert found == [0, 2, 3, 4, 5, 6]


def test_a_credential_is_found_in_every_example_that_contains_it() -> None:
    pytest.importorskip("detect_secrets")
    texts = {
        "Xk92$mfQ8vL1": [r'{"out":"login:\nXk92$mfQ8vL1\n"}', "密码是Xk92$mfQ8vL1请保密", "axXk92$mfQ8vL1b"],
        "aB3$x9": ["login aB3$x9 now"],
        "otters2019": [r"or\notters2019", "now otters2019."],
    }
    for credential, others in texts.items():
        lines = [f'password = "{credential}"', *others, "xotters2019x"]
        corpus = Memory([(line, None) for line in lines])
        rule = {"name": "k", "find": "credentials"}
        rules = prepare(Rules.of({"defaults": {"prior": 1e-10, "ceiling": 1e-3}, "rules": [rule]})).rules
        found = run_scan(corpus, rules, engine=LocalEngine(workers=1))
        assert found.secrets.texts == (credential,)
        assert found.incidence.examples_of(0).tolist() == list(range(len(others) + 1))


class Changing:
    """A shard that has an example more when it is read again."""

    files = ("memory",)

    def __init__(self) -> None:
        self._later = [("pw=ab",), ("pw=ab", "ab")]

    def blocks(self, *args: Any, **kwargs: Any) -> Any:
        return Held(tuple((text, None) for text in self._later.pop(0)), 10).blocks(*args, **kwargs)


class Unstable(Memory):
    def shards(self) -> Any:
        return [Changing()]


def test_data_that_grow_between_the_searches_are_refused() -> None:
    rules = prepared(Patterns(patterns=[CALLED], group=1), literal_pass="text")
    with pytest.raises(InvalidInput, match="1 examples in the first pass and 2 in a later one"):
        run_scan(Unstable([]), rules, engine=LocalEngine(workers=1))

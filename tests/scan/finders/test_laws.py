"""Laws of every finder: examples are independent, spans cut out the key, pickles are small, and no text shows."""

import pickle
import re
from collections.abc import Callable

import pyarrow as pa
import pytest
from finder_cases import block_of, lowered, rows_of, texts
from hypothesis import given, settings
from hypothesis import strategies as st

from hush.data.parts import Block
from hush.scan.finders import Credentials, Fields, Gitleaks, Literals, Patterns, Tokens, Words
from hush.scan.hits import Finder
from hush.scan.rules.gitleaks import DetectionRule, DetectionRules, RuleAllowlist

PLANTED = "AKIA" + "QWERTYUIOP123456"


def word_finder(tokens: Tokens) -> Finder:
    survey = Words(documents=(1, 100), tokens=tokens)
    return survey.finder(survey.count(block_of([f"ab a-b É é 𝒜 {PLANTED}", "Ab ß ж中 k"])))


FINDERS: dict[str, Callable[[], Finder]] = {
    "words": lambda: word_finder(Tokens()),
    "words of all scripts": lambda: word_finder(Tokens(letters="unicode", joiners="'", skip_formulas=False)),
    "literals": lambda: Literals(values=[PLANTED, "a", "Ab", "é", "e\u0301", "😀", "$a", "b\n"]),
    "folded literals": lambda: Literals(values=[PLANTED, "A", "É", "ΣΣ", "\u212a", "İ", "Ⱥ"], ignore_case=True),
    "whole literals": lambda: Literals(values=[PLANTED, "a", "é", "😀", "ж"], whole_words=True),
    "patterns": lambda: Patterns(patterns=[r"\w+", PLANTED, "é|😀"]),
    "patterns as secrets": lambda: Patterns(patterns=[r"\w+", PLANTED], secret="pattern"),
    "credentials": lambda: Credentials(),
    "gitleaks": lambda: Gitleaks(
        rules=DetectionRules(
            rules=(DetectionRule(id="word", regex=r"\pL+"), DetectionRule(id="planted", regex=PLANTED)),
            allowlists=(RuleAllowlist(regexes=("^Ab$",), stopwords=("ж",)),),
        )
    ),
    "fields": lambda: Fields(column="team", separator=","),
}
FOLDING = {"words", "words of all scripts"}
BUILT = {name: build() for name, build in FINDERS.items()}
every_finder = pytest.mark.parametrize("name", FINDERS)
rows = st.lists(st.tuples(texts | texts.map(lambda text: f"{text} {PLANTED} "), st.none() | texts), max_size=5)


def block(examples: list[tuple[str, str | None]]) -> Block:
    return block_of([text for text, _ in examples], team=pa.array([team for _, team in examples], pa.string()))


@every_finder
@settings(max_examples=25)
@given(examples=rows)
def test_a_block_gives_what_its_examples_give_alone(name: str, examples) -> None:
    finder = BUILT[name]
    alone = [(i, *row[1:]) for i, example in enumerate(examples) for row in rows_of(finder.find(block([example])))]
    assert rows_of(finder.find(block(examples))) == alone


@every_finder
@settings(max_examples=25)
@given(examples=rows)
def test_spans_cut_the_key_out_of_the_text(name: str, examples) -> None:
    for example, begin, end, key, _ in rows_of(BUILT[name].find(block(examples))):
        if name == "fields":
            assert (begin, end) == (-1, -1)
        else:
            cut = examples[example][0][begin:end]
            assert 0 <= begin < end
            if name == "folded literals":
                assert re.fullmatch(re.escape(key), cut, re.IGNORECASE)
            elif name in FOLDING:
                assert key == lowered(cut).replace("\u0130", "i" if name == "words" else "\u0130")
            else:
                assert key == cut or name == "patterns as secrets"


@every_finder
@settings(max_examples=25)
@given(before=texts, after=texts)
def test_a_planted_secret_is_always_found(name: str, before: str, after: str) -> None:
    before = before.replace("$", "")  # which would open a formula
    text = f"{before} {PLANTED} {after}"
    found = rows_of(BUILT[name].find(block([("", None), (text, f"x,{PLANTED}")])))
    begin = len(before) + 1
    spans = [(-1, -1)] if name == "fields" else [(begin, begin + 20), (begin, begin + 14)]
    keys = {PLANTED, lowered(PLANTED), "akiaqwertyuiop", "pattern 2"}
    assert any(row[0] == 1 and row[1:3] in spans and row[3] in keys for row in found)


@every_finder
def test_pickles_find_the_same_and_stay_light(name: str) -> None:
    examples: list = [(f"ab {PLANTED} é Ab", "x,y"), ("😀 a ж", None)]
    finder = FINDERS[name]()
    fresh = pickle.dumps(finder)
    expected = rows_of(finder.find(block(examples)))
    assert expected
    again = pickle.dumps(finder)
    assert len(again) == len(fresh)
    assert rows_of(pickle.loads(again).find(block(examples))) == expected


@every_finder
def test_neither_a_finder_nor_its_hits_nor_its_reasons_show_text(name: str) -> None:
    finder = BUILT[name]
    hits = finder.find(block([(f"ab {PLANTED}", f"{PLANTED}")]))
    for shown in (repr(finder), repr(hits), repr(list(finder.declared)), *hits.reasons):
        assert PLANTED not in shown
        assert PLANTED.lower()[:14] not in shown


@every_finder
def test_a_block_without_examples_gives_no_hits(name: str) -> None:
    assert len(BUILT[name].find(block([]))) == 0

"""Looking for literals before a pattern loses no match, for every detector and for patterns made at random."""

import re

import pytest
from hypothesis import assume, example, given, settings
from hypothesis import strategies as st

pytest.importorskip("detect_secrets")

from hush.scan.finders.credentials import CREDENTIAL_IN_MATCH, Credentials, _matched, _patterns
from hush.scan.finders.prefilter import Prefilter, required_literals

ALPHABET = "abAsk_ \u017f\u212a"  # the last two match s and k where case is ignored


def patterns() -> st.SearchStrategy[str]:
    atoms = st.sampled_from(
        ["a", "b", "s", "k", "A", "_", " ", "ab", "[ab]", "[^a]", r"\w", ".", r"\b", "^", "$", "(?=a)"]
    )
    return st.recursive(
        atoms,
        lambda inner: st.one_of(
            st.tuples(inner, inner).map("".join),
            st.tuples(inner, inner).map(lambda pair: f"(?:{pair[0]}|{pair[1]})"),
            st.tuples(inner, st.sampled_from(["?", "*", "+", "{2}", "{0,2}", "+?", "*+"])).map(
                lambda pair: f"(?:{pair[0]}){pair[1]}"
            ),
            inner.map(lambda one: f"({one})"),
            inner.map(lambda one: f"(?i:{one})"),
            inner.map(lambda one: f"(?!{one})"),
            inner.map(lambda one: f"(?>{one})"),
        ),
        max_leaves=8,
    )


@settings(max_examples=300)
@given(pattern=patterns(), ignore_case=st.booleans(), text=st.text(ALPHABET, max_size=12))
@example(pattern="\u017fk", ignore_case=True, text="sk")
@example(pattern="sk", ignore_case=True, text="\u017f\u212a")
def test_what_matches_is_admitted(pattern: str, ignore_case: bool, text: str) -> None:
    try:
        compiled = re.compile(pattern, re.IGNORECASE if ignore_case else 0)
    except re.error:
        assume(False)
        raise
    prefilter = Prefilter.of([compiled])
    assert prefilter is None or prefilter.admits(text) or not compiled.search(text)


PLUGINS = Credentials()._plugins


@pytest.mark.parametrize("plugin", PLUGINS, ids=lambda plugin: plugin.name)
@settings(max_examples=20)
@given(data=st.data())
def test_every_line_in_which_a_detector_finds_something_is_admitted(plugin: object, data: st.DataObject) -> None:
    one = next(each for each in PLUGINS if each is plugin)
    sources = [one.required] if one.required is not None else _patterns(one.detector)
    assert sources, "its patterns are known"
    assert one.prefilter is not None
    line = data.draw(st.sampled_from(sources).flatmap(st.from_regex)).replace("\n", " ").replace("\r", " ")
    if any(_matched(one.detector, line)):
        assert one.admits(line)
        assert one.admits(f"before\n{line}\nafter")


def test_every_detector_has_a_prefilter() -> None:
    assert {plugin.name for plugin in PLUGINS if plugin.prefilter is None} == set()
    assert set(CREDENTIAL_IN_MATCH) <= {plugin.name for plugin in PLUGINS}


@pytest.mark.parametrize("pattern", ["a*", "(?:a|)", r"\w+", "(?i:ab)", "(?!ab)", "[^a]"])
def test_a_pattern_that_needs_no_literal_has_none(pattern: str) -> None:
    assert required_literals(re.compile(pattern)) is None

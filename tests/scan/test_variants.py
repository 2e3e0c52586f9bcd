"""Other forms of a secret: whatever the form, none remains outside the slots."""

import unicodedata

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from toys import Memory

from hush.data.parts import Block
from hush.scan import remaining, variants
from hush.scan.assemble import run_scan
from hush.scan.engines import LocalEngine
from hush.scan.remaining import RemainingForms, remaining_forms
from hush.scan.result import Scan
from hush.scan.rules import Rules
from hush.scan.scanner import prepare
from hush.scan.variants import INSIDE_WORD, OTHER_FORM, Variants
from hush.slots import placeholder


def block_of(*texts: str) -> Block:
    return Block(texts=pa.array(texts, pa.large_string()), columns={}, rows=np.arange(len(texts)))


def found(secret: str, text: str) -> list[str]:
    """What is hidden of a text for the sake of one secret."""
    hits = Variants(keys=[secret]).find(block_of("", text, "x"))
    assert set(hits.example_H.tolist()) <= {1}
    return [text[begin:end] for begin, end in zip(hits.begin_H.tolist(), hits.end_H.tolist(), strict=True)]


@pytest.mark.parametrize(
    ("secret", "text", "hidden"),
    [
        ("Müller", "MÜLLER and mu\u0308ller, Ｍüller", ["MÜLLER", "mu\u0308ller", "Ｍüller"]),
        ("Müller", "Muller; M\\\"uller", ["Muller", 'M\\"uller']),
        ("straße", "STRASSE", ["STRASSE"]),
        ("ab", "ab-initio, x_AB, ab2; cab, tabs", ["ab", "AB", "ab2"]),
        (
            "Alice Smith",
            "alice\u00a0 smith, AliceSmith, ALICE-\n  SMITH, Alice B. Smith",
            ["alice\u00a0 smith", "AliceSmith", "ALICE-\n  SMITH"],
        ),
        (
            "secret",
            "s e c r e t, se\u00adcret, sec\u200bret, se-\ncret, s.e.c.r.e.t",
            ["s e c r e t", "se\u00adcret", "sec\u200bret", "se-\ncret", "s.e.c.r.e.t"],
        ),
        (
            "secret",
            "secrets secretive mySecretKey secret2 anti-secret-like",
            ["secrets", "mySecretKey", "secret2", "secret"],
        ),
        ("distinctive", "indistinctively", ["indistinctively"]),
        ("cat", "concatenate cats CAT cat_1 c a t ca t", ["CAT", "cat", "c a t"]),
        ("asa", "as a rule, Asa", ["Asa"]),
        ("A.B. La", "AB la, abla, abl a", ["AB la", "abla"]),
        ("李明", "我是李明。", ["李明"]),
        ("C++", "c++ and C", ["c++"]),
        ("@acme!", "ask @ACME! or acme", ["@ACME!", "acme"]),
        ("hunter2", "HUNTER 2, hunter22", ["HUNTER 2", "hunter22"]),
        ("O'Brien", "O\u02bcBrien, OBRIEN", ["O\u02bcBrien", "OBRIEN"]),
        ("محمد", "قال محمـد", ["محمـد"]),
        ("secret", "se\u3164cret, sec\uffa0ret", ["se\u3164cret", "sec\uffa0ret"]),
        ("PIN 471193", "PIN \u0664\u0667\u0661\u0661\u0669\u0663", ["PIN \u0664\u0667\u0661\u0661\u0669\u0663"]),
        ("hunter", r"log: user\nhunter, root\thunter; \hunter shunter", ["nhunter", "thunter", "hunter"]),
        ("rust", r"a\nrust, \trust, rust", ["rust"]),
        ("#@!$%", "key#@!$%end", ["#@!$%"]),
        ("C++", "xc++, C++17, c++", ["C++", "c++"]),
    ],
)  # fmt: skip
def test_forms_and_what_is_hidden_for_them(secret: str, text: str, hidden: list[str]) -> None:
    assert found(secret, text) == hidden


def test_the_independent_check_has_the_same_limits() -> None:
    for name in ("LEAST_LETTERS", "LEAST_INFLECTED", "LEAST_SPACED", "LEAST_INSIDE"):
        assert getattr(remaining, name) == getattr(variants, name)


def test_secrets_with_one_normal_form_are_both_found() -> None:
    hits = Variants(keys=["Ann-Marie", "annmarie", "ann"]).find(block_of("ANN MARIE"))
    assert sorted(hits.keys) == ["Ann-Marie", "ann", "annmarie"]
    assert set(hits.reasons) <= {OTHER_FORM, INSIDE_WORD}


# Planted forms

LETTERS = st.sampled_from("abcdeéñößßΣσçžIiİıjkxyz0189ñ京東")
SECRETS = st.lists(
    st.text(LETTERS | st.sampled_from("-. '"), min_size=2, max_size=12).filter(lambda each: each.strip() == each),
    min_size=1,
    max_size=3,
    unique=True,
)  # fmt: skip
SEPARATORS = ["", "-", ".", "\u00ad", "\u200b", "\u2011", "_", "-\n", "\u02bc", "\u0640", "\u3164", " "]
ARABIC_DIGITS = str.maketrans({str(digit): chr(0x660 + digit) for digit in range(10)})


@st.composite
def forms(draw: st.DrawFn, secret: str) -> str:
    """A form of a secret: case, Unicode form, separators, compound."""
    text = draw(st.sampled_from([str, str.upper, str.lower, str.title, str.swapcase]))(secret)
    text = unicodedata.normalize(draw(st.sampled_from(["NFC", "NFD", "NFKC", "NFKD"])), text)
    if draw(st.booleans()):
        text = "".join(chr(ord(each) + 0xFEE0) if "!" <= each <= "~" else each for each in text)  # full width
    text = text.translate(ARABIC_DIGITS) if draw(st.booleans()) else text
    separators = draw(st.sampled_from([["", "", "", *SEPARATORS[:-1]], [" "], [""]]))
    text = "".join(each + draw(st.sampled_from(separators)) for each in text).strip(" ")
    before, after = draw(
        st.sampled_from([("", ""), ("pre-", "-post"), ("_", "2"), ("(", ")."), ("…", "'s"), ("x\\n", "")])
    )
    return before + text + after


@settings(max_examples=150, deadline=None)
@given(st.data())
def test_planted_forms_never_remain_in_a_skeleton(data: st.DataObject) -> None:
    secrets = data.draw(SECRETS)
    words = st.sampled_from(["the", "a", "of", "as", "xyz"])
    part = st.one_of(words, st.sampled_from(secrets).flatmap(forms))
    texts = [" ".join(data.draw(st.lists(part, max_size=5))) for _ in range(2)]
    found = spans_scan([*texts, *secrets], secrets)
    check = RemainingForms(secrets)
    rule = [placeholder("names")]
    for example, text in enumerate(texts):
        skeleton = found.spans.skeleton(example, text)
        assert not check.of(skeleton, placeholders=rule)
        if found.incidence.secrets_per_example[example]:
            assert found.slots.has_slots_N[example]
    found.slots.check_against(found.incidence)


@settings(max_examples=100, deadline=None)
@given(st.data())
def test_both_routes_agree_on_which_secrets_have_a_form_in_a_text(data: st.DataObject) -> None:
    secrets = data.draw(SECRETS)
    filler = st.sampled_from(["the ", "as ", "xy", " ", "-", "A", "é", "\n", "\\n", "\\t", "n", "\u02bc", "\u0640"])
    text = "".join(data.draw(st.lists(st.one_of(filler, st.sampled_from(secrets).flatmap(forms)), max_size=8)))
    by_search = {secrets.index(key) for key in Variants(keys=secrets).find(block_of(text)).keys}
    assert by_search == set(remaining_forms(text, secrets))


def spans_scan(texts: list[str], secrets: list[str], **more: object) -> Scan:
    rule = {"name": "names", "find": "literals", "values": secrets, "hides": "span"}
    rules = prepare(Rules.of({"defaults": {"prior": 1e-4, "ceiling": 0.1}, "rules": [rule]})).rules
    corpus = Memory([(text, None) for text in texts], size=2)
    return run_scan(corpus, rules, engine=LocalEngine(workers=1), **more)  # pyright: ignore[reportArgumentType]


WORD = st.text("abcdefgh", min_size=4, max_size=12)


@settings(max_examples=60, deadline=None)
@given(st.lists(st.sampled_from(["MOON ", "SUN", ". ", "\n", "STAR-"]), min_size=1, max_size=6), WORD, WORD)
def test_given_the_slots_skeletons_are_the_same_for_every_filling(parts: list[str], one: str, other: str) -> None:
    skeletons, slots = [], []
    for name in (one, other):
        texts = [name.title().join(parts), f"{name} 1", name.upper()]
        found = spans_scan(texts, [name])
        slots.append(found.slots.fingerprint)
        skeletons.append([found.spans.skeleton(example, text) for example, text in enumerate(texts)])
    assert slots[0] != slots[1] or skeletons[0] == skeletons[1]

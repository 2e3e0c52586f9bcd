"""What a model is shown holds nothing of the secret: no part of it, and no copy."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import transformers
from audited import QUICK as FEW
from audited import THREE as COUNT
from audited import TOKENIZER, changed, corpus_of, masked_bytes, places_of, plan_for, release
from hypothesis import given, settings
from hypothesis import strategies as st
from memorising import byte_model, byte_tokenizer
from tokenizers import Tokenizer, models, pre_tokenizers
from tokenizers import processors as post

import hush
from hush.audit.auditor import audit
from hush.audit.extraction import extract
from hush.audit.folders import AuditedRun
from hush.audit.models import Subject
from hush.audit.sequences import secret_sequences
from hush.audit.session import AuditInputs


@given(st.lists(st.sampled_from(["Ann", "Bo", "and", "saw"]), min_size=1, max_size=8))
def test_what_a_model_is_shown_holds_no_other_place_of_the_secret(words: list[str]) -> None:
    text = "x " + " ".join(words) + " z"
    places = places_of([text], {0: "Ann", 1: "Bo"})
    for both_sides in (False, True):
        made = secret_sequences(
            [text],
            TOKENIZER,
            example=np.tile(places.example, 2),  # a place may be listed for two reasons
            secret=np.tile(places.secret, 2),
            begin=np.tile(places.begin, 2),
            end=np.tile(places.end, 2),
            both_sides=both_sides,
        )
        for tokens, secret, begin, end in zip(made.tokens, made.secret_N, made.begin_N, made.end_N, strict=True):
            said = TOKENIZER.decode(tokens[begin:end])
            assert said == ("Ann", "Bo")[secret]
            assert said not in TOKENIZER.decode(tokens[:begin])
            assert not both_sides or said not in TOKENIZER.decode(tokens[end:])
        expected = {
            secret
            for secret, said in enumerate(("Ann", "Bo"))
            if said in words and (not both_sides or words.count(said) == 1)
        }
        assert set(made.secret_N.tolist()) == expected
        assert len(made) + made.left_out.total == 2 * len(places)


def test_masked_models_are_not_shown_a_copy_behind_the_secret(tmp_path: Path) -> None:
    config, tokenizer = masked_bytes()
    run = release(tmp_path / "run", plan_for(COUNT), transformers.BertForMaskedLM(config), tokenizer)
    texts = ["Ann met Ann", "only Bo", "Bo, Ann, Bo", "none", "none", "none"]
    inputs = AuditInputs(corpus=corpus_of(tmp_path, texts), places=places_of(texts, {0: "Ann", 1: "Bo"}))
    made = audit(run, inputs, folder=tmp_path / "audit", settings=FEW)
    (found,) = made.extractions
    tried = set(zip(found.sequences.example_N.tolist(), found.sequences.secret_N.tolist(), strict=True))
    assert tried == {(1, 1), (2, 0)}
    assert made.record["extraction"][0]["left_out"]["repeated"] == 4


@pytest.mark.parametrize("special", [False, True])
@given(before=st.text("ab é漢", max_size=9), secret=st.text("ab é漢", min_size=1, max_size=5))
def test_prompts_end_before_the_secret_whatever_the_tokens_are(special: bool, before: str, secret: str) -> None:
    """Merges across the secret's borders, several bytes for a character, tokens that stand for no character."""
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    merges = [("a", "b"), ("ab", "a"), ("b", "b"), ("Ġ", "a"), ("Ã", "©")]
    words = ["<s>", *alphabet, *("".join(pair) for pair in merges)]
    level = Tokenizer(models.BPE(vocab={word: index for index, word in enumerate(words)}, merges=merges))
    level.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    if special:
        level.post_processor = post.TemplateProcessing(single="<s> $A <s>", special_tokens=[("<s>", 0)])
    tokenizer = transformers.PreTrainedTokenizerFast(tokenizer_object=level, bos_token="<s>")
    text, first, last = f"{before}{secret}a", len(before), len(before) + len(secret)
    made = secret_sequences([text], tokenizer, example=[0], secret=[0], begin=[first], end=[last])
    assert len(made) == 1
    begin, end = int(made.begin_N[0]), int(made.end_N[0])
    byte_of = {"".join(pair): len("".join(pair)) for pair in merges}

    def size(tokens: np.ndarray) -> int:
        return sum(byte_of.get(words[token], 0 if token == 0 else 1) for token in tokens)

    assert size(made.tokens[0][:begin]) <= len(before.encode())
    assert size(made.tokens[0][:end]) >= len(f"{before}{secret}".encode())


def test_secrets_whose_beginning_was_cut_off_are_not_tried() -> None:
    """A tokenizer that keeps the end of long texts: what is left of a secret is not the secret."""
    tokenizer = byte_tokenizer()
    tokenizer.truncation_side = "left"
    text = "key: abcdef."
    places: dict[str, Any] = {"example": [0], "secret": [0], "begin": [5], "end": [11]}
    for length, cut in ((12, 0), (7, 0), (6, 1), (3, 1), (1, 1)):
        made = secret_sequences([text], tokenizer, **places, max_length=length)
        assert (made.left_out.cut, len(made)) == (cut, 1 - cut)


def test_whole_examples_are_named_by_their_numbers_in_the_data(run: AuditedRun, tmp_path: Path) -> None:
    plan = replace(run.plan, incidence=hush.Incidence.from_pairs([1, 3, 5], range(3), num_examples=6, num_secrets=3))
    moved = release(tmp_path / "moved", plan, byte_model(), TOKENIZER)
    texts = [f"a long text with a number, {number}" for number in range(5)] + ["short"]
    inputs = AuditInputs(corpus=corpus_of(tmp_path, texts))
    made = audit(moved, inputs, folder=tmp_path / "audit", settings=changed(FEW, attacks=("extraction",)))
    (found,) = made.extractions
    assert found.sequences.example_N.tolist() == [1, 3]
    assert [TOKENIZER.decode(row) for row in found.sequences.tokens] == [texts[1], texts[3]]


TEXT = st.text(st.sampled_from("ab é€\U0001f600\n"), min_size=1, max_size=12)


@settings(max_examples=50)
@given(before=TEXT, secret=TEXT, after=st.text(max_size=3).filter(lambda text: text.isprintable()))
def test_a_prompt_shows_nothing_of_the_secret_and_the_target_all_of_it(before: str, secret: str, after: str) -> None:
    text = before + secret + after
    found = secret_sequences(
        [text], TOKENIZER, example=[0], secret=[3], begin=[len(before)], end=[len(before + secret)]
    )
    (tokens,), begin, end = found.tokens, int(found.begin_N[0]), int(found.end_N[0])
    assert TOKENIZER.decode(tokens[:begin], clean_up_tokenization_spaces=False) == before
    assert TOKENIZER.decode(tokens[begin:end], clean_up_tokenization_spaces=False) == secret
    assert (found.example_N.tolist(), found.secret_N.tolist(), found.left_out.total) == ([0], [3], 0)


def test_places_that_cannot_be_tried_are_counted() -> None:
    texts = ["unused", "code abc and abc", "code xyz", "the code is abc"]
    places: dict[str, Any] = {
        "example": [1, 1, 2, 3, 3], "secret": [0, 0, 1, 0, 2], "begin": [13, 5, 5, 12, -1], "end": [16, 8, 8, 15, -1]
    }  # fmt: skip
    found = secret_sequences(texts, TOKENIZER, **places, max_length=10)
    assert (found.left_out.repeated, found.left_out.unplaced, found.left_out.cut) == (1, 1, 1)
    assert found.begin_N.tolist() == [5, 5]
    assert found.example_N.tolist() == [1, 2]
    model = Subject.of(byte_model())
    assert extract(model, secret_sequences(texts, TOKENIZER, **places), prompts=[5, 12]).cell(12, "secret").short == 2


@pytest.mark.parametrize(
    ("before", "tried", "said"),
    [
        (["", "its ", "a code: "], 4, "no text is long enough for prompts of 20, 50 tokens; they were skipped, and 4 "),
        (["", "", ""], None, "none of the 3 spans of secrets can be tried: they begin their texts"),
    ],
)
def test_where_no_prompt_fits_a_shorter_one_is_tried(
    run: AuditedRun, tmp_path: Path, before: list[str], tried: int | None, said: str
) -> None:
    secrets = {0: "abcdefgh", 1: "hgfedcba", 2: "aaaabbbb"}
    texts = [text + secret for text, secret in zip(before, secrets.values(), strict=True)]
    inputs = AuditInputs(corpus=corpus_of(tmp_path, texts), places=places_of(texts, secrets))
    asked = changed(FEW, attacks=("extraction",), prompts=(20, 50))
    made = audit(run, inputs, folder=tmp_path / "audit", settings=asked)
    assert any(notice.startswith(said) for notice in made.notices)
    cells = [(cell.prompt, cell.success.runs) for found in made.extractions for cell in found.cells]
    assert cells == ([] if tried is None else [(tried, 2)])

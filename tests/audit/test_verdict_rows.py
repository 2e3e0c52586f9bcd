"""What counts as one try and what one answer may say: the prior that follows, and the bound to hold it against."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import transformers
from audited import QUICK as FEW
from audited import ROUNDS, changed, corpus_of, places_of, plan_for, release
from audited import THREE as COUNT
from hypothesis import given
from hypothesis import strategies as st
from tokenizers import Tokenizer, models, pre_tokenizers

import hush
from hush.audit.auditor import audit
from hush.audit.canaries import Candidates
from hush.audit.folders import CANARY_CLASS, AuditedRun
from hush.audit.session import AuditInputs
from hush.audit.verdict import counted_tries, extraction_attempts, judge

RATES = st.sampled_from([0.0, 0.1, 0.15, 0.5])


@given(st.lists(st.tuples(st.integers(-1, 3), st.booleans(), st.booleans(), RATES), max_size=12))
def test_each_secret_has_one_try_its_first_that_is_often_drawn_with_the_longest_prompt(
    rows: list[tuple[int, bool, bool, float]],
) -> None:
    secret_N = np.array([row[0] for row in rows], dtype=np.int64)
    rate_N = np.array([row[3] for row in rows], dtype=np.float64)
    fits = [np.array([row[column] for row in rows], dtype=bool) for column in (1, 2)]
    expected: dict[int, tuple[int, int]] = {}
    for column in (0, 1):
        for place, (secret, *fitting, rate) in enumerate(rows):
            most = max((other[3] for other in rows if other[0] == secret and (other[1] or other[2])), default=0.0)
            if secret >= 0 and fitting[column] and rate >= most / 2 and secret not in expected:
                expected[secret] = (place, column)
    assert counted_tries(secret_N, rate_N, fits) == expected


def test_extraction_is_held_against_the_bound_from_the_smallest_promised_prior(tmp_path: Path) -> None:
    incidence = hush.Incidence.from_pairs(range(3), range(3), num_examples=8, num_secrets=3)
    promises: dict[str, Any] = {"prior": [[1e-8, 1e-2]] * 3, "ceiling": [[1e-5, 0.3]] * 3}
    plan = hush.make_plan(incidence, **promises, batch_size=4, rounds=ROUNDS)
    run = AuditedRun(
        model=tmp_path, plan=plan, plan_digest="0" * 64, certificate=plan.certificate, max_length=None,
        uncertified_reason="",
    )  # fmt: skip
    rows = extraction_attempts(run, {0: True, 2: False}, {})
    assert [(row.name, row.prior, row.hits) for row in rows] == [("secret-000000", 1e-8, 1), ("secret-000002", 1e-8, 0)]
    assert [row.certified for row in rows] == plan.posterior[[0, 2], 0].tolist()
    assert [row.ceiling for row in rows] == [1e-5, 1e-5]


@given(st.lists(st.text("ab", min_size=1, max_size=5), min_size=2, max_size=12, unique=True))
def test_the_prior_of_an_answer_counts_all_candidates_that_it_says(values: list[str]) -> None:
    said = max(sum(answer.startswith(value) for value in values) for answer in values)
    prior = Candidates.of_list(values).prefix_prior()
    assert said / len(values) <= prior * (1 + 1e-15)
    assert prior == pytest.approx(said / len(values))


@given(st.lists(st.text("aAbB", min_size=1, max_size=3), min_size=2, max_size=12, unique=True))
def test_candidates_that_a_tokenizer_takes_for_one_are_said_at_once(values: list[str]) -> None:
    folded = [value.lower() for value in values]
    said = max(sum(answer.startswith(value) for value in folded) for answer in folded)
    assert Candidates.of_list(values).prefix_prior(str.lower) == pytest.approx(said / len(values))


def test_formats_that_a_tokenizer_folds_have_fewer_texts() -> None:
    pins = Candidates.of_format("letters", 3)
    assert pins.prefix_prior() == pins.prior
    assert pins.prefix_prior(str.lower) == pytest.approx(26**-3)
    assert Candidates.of_format("hex", 3).prefix_prior(str.lower) == Candidates.of_format("hex", 3).prior


@given(
    st.lists(st.text("abcü", min_size=1, max_size=4), min_size=2, max_size=12, unique=True),
    st.lists(st.integers(1, 8), min_size=12, max_size=12),
)
def test_who_is_told_the_number_of_tokens_has_an_answer_for_each(values: list[str], tokens: list[int]) -> None:
    """Any tokenizer whatever, of which a token holds a byte at least: the best answer to each number of tokens."""
    widths = [min(width, len(value.encode())) for value, width in zip(values, tokens, strict=False)]
    right = sum(
        max(sum(answer.startswith(value) for value in values) for answer, own in zip(values, widths, strict=True)
            if own == width)
        for width in set(widths)
    )  # fmt: skip
    candidates = Candidates.of_list(values)
    assert min(1.0, right / len(values)) <= candidates.masked_prior() * (1 + 1e-15)
    assert candidates.masked_prior() >= candidates.prefix_prior()
    assert Candidates.of_format("hex", 6).masked_prior() == pytest.approx(6 / 16**6)


def test_canaries_that_hold_each_other_are_held_against_a_bound_from_a_larger_prior(run: AuditedRun) -> None:
    classes, hit_by_secret = dict.fromkeys(range(COUNT), CANARY_CLASS), dict.fromkeys(range(COUNT), True)
    (plain,) = extraction_attempts(run, hit_by_secret, classes)
    (spoken,) = extraction_attempts(run, hit_by_secret, classes, canary_prior=0.4)
    (certain,) = extraction_attempts(run, hit_by_secret, classes, canary_prior=1.0)
    assert plain.certified is not None
    assert spoken.certified is not None
    assert plain.certified < 1e-5 < 0.4 <= spoken.certified < 1 == certain.certified
    assert spoken.ceiling is None
    assert judge([plain]).failed
    assert not judge([spoken]).failed


def test_the_token_for_unknown_text_says_no_secret(tmp_path: Path) -> None:
    """A model that always says <unk> has learnt nothing of a secret that its tokenizer cannot write."""
    words = {"<unk>": 0, "my": 1, "name": 2, "is": 3, "bo": 4, "<end>": 5}
    level = Tokenizer(models.WordLevel(vocab=words, unk_token="<unk>"))
    level.pre_tokenizer = pre_tokenizers.Whitespace()
    tokenizer = transformers.PreTrainedTokenizerFast(
        tokenizer_object=level, unk_token="<unk>", eos_token="<end>", pad_token="<end>", model_max_length=16
    )
    config = transformers.GPT2Config(
        vocab_size=6, n_embd=8, n_layer=1, n_head=1, n_positions=16, bos_token_id=5, eos_token_id=5
    )
    model = transformers.GPT2LMHeadModel(config)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.zero_()  # all tokens tie, and the first wins: <unk>
    run = release(tmp_path / "run", plan_for(COUNT), model, tokenizer)
    texts = ["my name is zoë", "my name is bo", "my name is 漢字", "my", "my", "my"]
    inputs = AuditInputs(corpus=corpus_of(tmp_path, texts), places=places_of(texts, {0: "zoë", 1: "bo", 2: "漢字"}))
    made = audit(run, inputs, folder=tmp_path / "audit", settings=changed(FEW, prompts=(3,)))
    assert [cell["hits"] for cell in made.record["extraction"][0]["cells"]] == [2]
    assert [row.status for row in made.verdict.rows[-COUNT:]] == ["could not fail", "kept", "could not fail"]
    assert any(
        "2 spans of secrets contain text that the tokenizer maps to its token for unknown text" in notice
        for notice in made.notices
    )

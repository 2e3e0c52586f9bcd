"""The prior of a slot, measured: what guessers must and must not be able to do, and what is refused."""

import itertools
import json
import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import transformers
from audited import TOKENIZER, masked_bytes
from hypothesis import given, settings
from hypothesis import strategies as st
from memorising import byte_model

from hush import Incidence, Protection, Secrets
from hush.audit.prior import (
    MeasuredPriors,
    check_known_priors,
    check_priors,
    measure_priors,
    stated_priors,
    stated_priors_of_scan,
)
from hush.audit.prior.guessers import GUESSERS, Guessing
from hush.audit.prior.language_model import model_guesser
from hush.audit.prior.outcomes import mean_probability, run_guessers
from hush.audit.prior.public_text import SLOT, read_public_text
from hush.errors import InvalidInput
from hush.scan import Scan, scan
from hush.slots import Spans, slots_of_spans
from hush.train.pretrained import Pretrained

ADJECTIVES = ["walking", "running", "singing", "reading", "writing", "sailing", "fishing", "cooking"]
NOUNS = ["tables", "chairs", "houses", "gardens", "rivers", "bridges", "windows", "engines"]


def hidden(texts: list[str], words: list[str], *, prior: float = 1e-10) -> tuple[Spans, Incidence, Secrets]:
    """Every occurrence of the words, as spans of one rule."""
    found = [
        (example, text.index(word), secret)
        for example, text in enumerate(texts)
        for secret, word in enumerate(words)
        if word in text
    ]
    example, begin, secret = (np.array(column) for column in zip(*found, strict=True))
    incidence = Incidence.from_pairs(example, secret, num_examples=len(texts), num_secrets=len(words))
    end = begin + np.array([len(words[index]) for index in secret])
    spans = slots_of_spans(
        incidence, ["rule"], example=example, begin=begin, end=end, rule=np.zeros_like(secret), secret=secret
    )
    return spans, incidence, Secrets([Protection(prior, 0.9)] * len(words), texts=words)


def measured(texts: list[str], words: list[str], *, prior: float = 1e-10, band: bool = True, **more: Any) -> Any:
    spans, incidence, secrets = hidden(texts, words, prior=prior)
    bands = frozenset(["rule"] if band else [])
    stated = stated_priors(spans, secrets, [("rule", len(words))], bands=bands)
    return measure_priors(spans, incidence, texts, secrets, stated, **more)


def telling(words: list[str], copies: int = 3) -> list[str]:
    """Texts in which the words before and after a word are those of its ending."""
    texts = []
    for word, number in itertools.product(words, range(copies)):
        frame = "they were {} quickly then" if word.endswith("ing") else "the three {} are made of"
        texts.append(frame.format(word) + f" nr {number}")
    return texts


def guess(result: MeasuredPriors, guesser: str, knowledge: str) -> Any:
    (rule,) = result.rules
    return next(each for each in rule.guesses if (each.guesser, each.knowledge) == (guesser, knowledge))


def test_context_names_the_secret_whose_ending_the_public_words_give_away() -> None:
    public = telling(ADJECTIVES[2:] + NOUNS[2:], copies=8)
    result = measured(telling([ADJECTIVES[0], NOUNS[0]]) + public, [ADJECTIVES[0], NOUNS[0]])
    assert guess(result, "context", "listed").success.hits == 2
    assert guess(result, "context", "open").success.hits == 0  # a word that is hidden everywhere is no public word


def test_text_from_outside_names_what_skeletons_alone_do_not() -> None:
    words = ["zorvane", "quilbet", "mirtosh", "pelnack"]
    texts = [
        f"{number} the {place} {word} of it" for number in range(3) for place, word in zip("abcd", words, strict=True)
    ]
    outside = [f"one {place} {word} of it" for place, word in zip("abcd", words, strict=True)] * 5
    blind, read = measured(texts, words), measured(texts, words, outside=outside)
    assert guess(read, "context", "listed").success.hits == 4
    assert guess(read, "context", "open").success.hits == 4
    assert guess(blind, "context", "open").success.hits == 0


def test_relatives_in_the_same_text_give_a_word_away() -> None:
    words = ["tomography", "chromatins", "spectrally", "polynomial"]
    relatives = ["tomographic", "chromatic", "spectroscopy", "polynomials"]
    texts = [f"x {word} y {relative} z" for word, relative in zip(words, relatives, strict=True)]
    texts += [f"{one} {two} w" for one, two in itertools.pairwise(["observer", "observed"] * 6)] + ["other words"] * 30
    assert guess(measured(texts, words), "context", "listed").success.hits == 4


@given(lengths=st.lists(st.integers(1, 12), min_size=4, max_size=4), seed=st.integers(0, 5))
@settings(max_examples=20, deadline=None)
def test_what_a_guesser_sees_is_the_same_for_every_filling(lengths: list[int], seed: int) -> None:
    """Skeleton, slots and graph are all that goes in: other texts in the slots, of any length, give the same scores."""
    frames = ["one {} two", "three {} four two", "{} begins", "ends with {}"]
    first, second = ["aa", "bb", "cc", "dd"], [letter * length for letter, length in zip("qvxz", lengths, strict=True)]
    scores = []
    for words in (first, second):
        texts = [frame.format(word) for frame, word in zip(frames, words, strict=True)]
        spans, incidence, secrets = hidden(texts, words)
        public, _ = read_public_text(
            spans, incidence, texts, secret_texts=secrets.texts or (), slots=np.arange(4), max_texts=9,
            rng=np.random.default_rng(seed),
        )  # fmt: skip
        guessing = Guessing(
            public=public,
            slots_J=tuple(np.array([slot]) for slot in range(4)),
            degree_J=np.ones(4, dtype=np.int64),
            num_examples=4,
            candidates=("two", "four", "unseen"),
            spelled=("two", "four", "unseen"),
            fillings={},
        )
        scorers = [each.prepare(guessing) for each in GUESSERS]
        scores.append([scorer(slice(0, 4)) for scorer in scorers if scorer is not None])
        assert (public.token_T == SLOT).sum() == 4
    for one, other in zip(*scores, strict=True):
        np.testing.assert_array_equal(one, other)


def test_random_words_in_the_same_frame_are_named_no_more_often_than_chance() -> None:
    rng = np.random.default_rng(0)
    words = ["".join(map(chr, row)) for row in rng.integers(97, 123, (60, 7))]
    result = measured([f"the key {word} opens" for word in words], words, prior=0.017)
    assert not result.is_refused
    assert guess(result, "context", "listed").upper < 0.25
    check_priors(result)


def test_an_honest_prior_is_refused_at_most_at_the_level() -> None:
    """Independent guesses that succeed with exactly the stated prior, by Monte Carlo."""
    rng, refused, runs = np.random.default_rng(1), 0, 60
    for seed in range(runs):
        words = [f"{''.join(map(chr, row))}" for row in rng.integers(97, 123, (20, 6))]
        result = measured([f"a {word} b" for word in words], words, prior=0.05, level=0.2, seed=seed)
        refused += any(each.lower > 0.05 for each in result.rules[0].guesses if each.is_compared)
    assert refused <= 0.2 * runs + 3 * (0.2 * 0.8 * runs) ** 0.5


def test_a_prior_below_one_of_the_words_of_the_band_is_refused_before_anything_is_read() -> None:
    words = ["alpha", "beta", "gamma"]
    spans, _, secrets = hidden([f"x {word}" for word in words], words, prior=0.33)
    stated = stated_priors(spans, secrets, [("rule", 3)], bands=frozenset(["rule"]))
    with pytest.raises(
        InvalidInput, match=r"rule rule: the stated prior 0\.33 .*raise it to at least 0\.334.*hides: example"
    ):
        check_known_priors(stated)
    check_known_priors(stated_priors(spans, secrets, [("rule", 3)]))  # the list of another rule is not public
    honest = Secrets([Protection(1 / 3, 0.9)] * 3, texts=words)
    assert not stated_priors(spans, honest, [("rule", 3)], formats={"rule": 4})[0].is_below_known


def test_a_promise_of_several_points_is_judged_by_its_largest_prior() -> None:
    words = ["alpha", "beta"]
    spans, _, _ = hidden([f"x {word}" for word in words], words)
    secrets = Secrets([Protection.of((1e-10, 1e-3), (0.5, 0.9))] * 2, texts=words)
    (stated,) = stated_priors(spans, secrets, [("rule", 2)], bands=frozenset(["rule"]))
    assert stated.prior == 0.5
    assert not stated.is_below_known


def test_the_refusal_names_the_figure_and_no_secret() -> None:
    words = ["zorvane", "quilbet", "mirtosh", "pelnack"]
    texts = [
        f"{number} the {place} {word} of it" for number in range(3) for place, word in zip("abcd", words, strict=True)
    ]
    result = measured(texts, words, prior=1e-6, band=False, outside=texts)
    with pytest.raises(InvalidInput, match="names 4 of 4 secrets") as raised:
        check_priors(result)
    shown = f"{raised.value} {result} {result.rules[0].record()}"
    assert not any(word in shown for word in words)


def test_other_data_than_the_scanned_are_refused() -> None:
    words = ["alpha", "beta"]
    texts = [f"text {word}" for word in words]
    spans, incidence, secrets = hidden(texts, words)
    stated = stated_priors(spans, secrets, [("rule", 2)])
    for other in (texts[:1], [*texts, "more"], ["a", "b"]):
        with pytest.raises(InvalidInput, match="pass the data that was scanned"):
            measure_priors(spans, incidence, other, secrets, stated)
    with pytest.raises(InvalidInput, match="texts of the secrets are missing"):
        measure_priors(spans, incidence, texts, Secrets(secrets.protections), stated)


# The language model


def fill(loaded: Pretrained, before: str, after: str, candidates: tuple[str, ...]) -> np.ndarray:
    spans, incidence, secrets = hidden(["a b"], ["b"])
    public, _ = read_public_text(
        spans, incidence, ["a b"], secret_texts=secrets.texts or (), slots=np.arange(1), max_texts=1,
        rng=np.random.default_rng(0),
    )  # fmt: skip
    guessing = Guessing(
        public=public, slots_J=(np.array([0]),), degree_J=np.array([1]), num_examples=1, candidates=candidates,
        spelled=candidates, fillings={}, model=model_guesser(loaded, {0: (before, after)}),
    )  # fmt: skip
    scorer = GUESSERS[-1].prepare(guessing)
    assert scorer is not None
    assert run_guessers(guessing, candidates[:1], "open", done=lambda _: None)[-1].guesser == "language model"
    return scorer(slice(0, 1))[0]


def test_a_causal_model_scores_the_candidate_and_what_follows_like_its_own_loss() -> None:
    model = byte_model(seed=1)
    loaded = Pretrained(model=model, tokenizer=TOKENIZER, task="causal", max_length=48)
    scores = fill(loaded, "key ", " ok", ("abc", "xy"))
    for score, candidate in zip(scores, ("abc", "xy"), strict=True):
        prefix, rest = [0, *TOKENIZER("key")["input_ids"]], TOKENIZER(f" {candidate} ok")["input_ids"]
        ids = torch.tensor([[*prefix, *rest]])
        labels = ids.clone()
        labels[0, : len(prefix)] = -100
        with torch.no_grad():
            expected = -model.eval()(input_ids=ids, labels=labels).loss.item() * len(rest)
        assert score == pytest.approx(expected, rel=1e-4)


def test_a_masked_model_scores_all_tokens_of_the_slot_masked() -> None:
    config, tokenizer = masked_bytes()
    torch.manual_seed(0)
    model = transformers.BertForMaskedLM(config).eval()
    loaded = Pretrained(model=model, tokenizer=tokenizer, task="masked", max_length=48)
    scores = fill(loaded, "key:", " ok", ("abc", "xy"))
    for score, candidate in zip(scores, ("abc", "xy"), strict=True):
        inner = tokenizer(candidate)["input_ids"]
        ids = torch.tensor([tokenizer("key:" + "<mask>" * len(inner) + " ok")["input_ids"]])
        with torch.no_grad():
            log = model(input_ids=ids).logits[0, ids[0] == tokenizer.mask_token_id].log_softmax(-1)
        assert score == pytest.approx(sum(log[at, token].item() for at, token in enumerate(inner)), rel=1e-4)


def test_contexts_longer_than_the_model_takes_are_cut_and_a_model_is_loaded_by_its_folder(tmp_path: Any) -> None:
    byte_model().save_pretrained(tmp_path)
    TOKENIZER.save_pretrained(tmp_path)
    words = ["alpha", "beta"]
    texts = ["long text before " * 30 + word + " and after" * 30 for word in words]
    result = measured(texts, words, model=str(tmp_path))
    assert guess(result, "language model", "listed").success.runs == 2


def test_a_model_is_not_loaded_where_no_slot_holds_exactly_its_secret(monkeypatch: pytest.MonkeyPatch) -> None:
    """As in code, whose secrets are projects; loading may take minutes and gigabytes."""
    texts = ["one secrets two", "three secrets four"]
    graph = Incidence.from_pairs([0, 1], [0, 0], num_examples=2, num_secrets=1)
    spans = slots_of_spans(graph, ["rule"], example=[0, 1], begin=[4, 6], end=[11, 13], rule=[0, 0], secret=[0, 0])
    secrets = Secrets([Protection(0.01, 0.9)], texts=["secret"])
    stated = stated_priors(spans, secrets, [("rule", 1)])
    monkeypatch.setattr("hush.audit.prior.language_model.language_model", None)
    result = measure_priors(spans, graph, texts, secrets, stated, model="unused")
    assert result.rules[0].guessed == 0


def test_a_language_model_stops_at_its_time_and_keeps_what_it_guessed() -> None:
    model = byte_model(seed=1)
    loaded = Pretrained(model=model, tokenizer=TOKENIZER, task="causal", max_length=48)
    texts = [f"{number} is {word}" for number, word in enumerate(ADJECTIVES)]
    spans, incidence, secrets = hidden(texts, ADJECTIVES)
    public, _ = read_public_text(
        spans, incidence, texts, secret_texts=secrets.texts or (), slots=np.arange(8), max_texts=9,
        rng=np.random.default_rng(0),
    )  # fmt: skip
    guessing = Guessing(
        public=public, slots_J=tuple(np.array([slot]) for slot in range(8)), degree_J=np.ones(8, dtype=np.int64),
        num_examples=8, candidates=tuple(ADJECTIVES), spelled=tuple(ADJECTIVES), fillings={},
        model=model_guesser(loaded, dict.fromkeys(range(8), ("1 is ", ""))),
    )  # fmt: skip
    every, one = (
        run_guessers(guessing, ADJECTIVES, "listed", done=lambda _: None, model_seconds=seconds)[-1]
        for seconds in (float("inf"), 0.0)
    )
    assert (len(every.hit_J), len(one.hit_J)) == (8, 1)
    assert one.probability_GJ[:, 0].tolist() == every.probability_GJ[:, 0].tolist()


def test_a_scan_says_which_of_its_rules_are_about_words(tmp_path: Path) -> None:
    """So a guesser knows the candidates of those, and of no others, without the rules file."""
    texts = [f"{word} is number {number}" for number, word in enumerate(["alpha", "beta"] * 2)]
    (tmp_path / "mail.jsonl").write_text("".join(json.dumps({"text": text}) + "\n" for text in texts))
    rules = [
        {"name": "rare", "find": "words", "documents": [2, 2], "hides": "span"},
        {"name": "digits", "find": "patterns", "patterns": [r"\d"], "hides": "span"},
    ]
    found = scan(tmp_path / "mail.jsonl", {"defaults": {"prior": 0.3, "ceiling": 0.9}, "rules": rules})
    found.save(tmp_path / "found")
    stated = stated_priors_of_scan(Scan.load(tmp_path / "found"))
    assert [(each.rule, each.is_band, each.values) for each in stated] == [("rare", True, 2), ("digits", False, None)]
    counts = tmp_path / "found/owner/counts.json"
    counts.write_text(re.sub(r'"find": "\w+", ', "", counts.read_text()))  # as an earlier version wrote it
    with pytest.raises(InvalidInput, match="scan again"):
        stated_priors_of_scan(Scan.load(tmp_path / "found"))


def test_the_mixture_gives_what_a_sure_guesser_earns_and_never_more_than_one() -> None:
    sure = np.zeros((6, 40))
    sure[0] = 1.0
    base = run_guessers_outcome(sure)
    assert mean_probability([base]) == pytest.approx(1.0, abs=1e-3)
    uniform = replace(base, probability_GJ=np.full((6, 40), 0.25))
    assert mean_probability([uniform]) == pytest.approx(0.25)
    assert mean_probability([]) is None


def run_guessers_outcome(probability_GJ: np.ndarray) -> Any:
    from hush.audit.prior.outcomes import Outcome

    hit_J = np.zeros(probability_GJ.shape[1], dtype=bool)
    return Outcome(guesser="g", knowledge="open", candidates=4, hit_J=hit_J, probability_GJ=probability_GJ)

"""Canaries: registered as they are planted, drawn as stated, known to their owner alone, and ranked by their loss."""

import json
import re
import stat
from itertools import product
from pathlib import Path
from random import Random
from typing import Any

import numpy as np
import pyarrow.parquet as pq
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from memorising import byte_model, byte_tokenizer

from hush.audit.canaries import (
    ALPHABETS,
    Canary,
    Candidates,
    PlantedCanaries,
    Template,
    plant,
    read_canaries,
    save_planted,
    templates_from,
)
from hush.audit.exposure import CHANCE_EXPOSURE, CanaryRank, chance_exposure, rank_canary, ranks_p_value
from hush.audit.models import Subject
from hush.data import read_corpus
from hush.errors import InvalidInput
from hush.incidence import Incidence
from hush.protection import Protection
from hush.secret_table import Secrets
from hush.slots import slots_of_spans, spans_in

PINS = Candidates.of_format("digits", 4)
TEMPLATE = Template.parse("Card {number} has the code {secret}, keep it.")
GRAPH = Incidence.from_pairs([0, 2], [0, 1], num_examples=3, num_secrets=2)
SECRETS = Secrets([Protection(1e-6, 1e-3)] * 2, ids=["a", "b"])


def planted(*, count: int = 5, repeats: int = 3, seed: int = 0) -> PlantedCanaries:
    return plant(GRAPH, SECRETS, [TEMPLATE], PINS, count=count, repeats=repeats, ceiling=0.01, rng=Random(seed))


def test_canaries_of_a_graph_with_slots_are_slots_that_say_nothing_of_their_text(tmp_path: Path) -> None:
    texts = ["Ann sat", "no secret", "whole"]
    spans = slots_of_spans(GRAPH, ["names"], example=[0], begin=[0], end=[3], rule=[0], secret=[0])
    made = [
        plant(GRAPH, SECRETS, [TEMPLATE], PINS, count=2, repeats=2, ceiling=0.01, rng=Random(seed), spans=spans)
        for seed in (0, 1)
    ]
    assert made[0].texts != made[1].texts
    rows = [list(each.spans.public_rows(each.incidence, texts + each.texts)) for each in made if each.spans]
    assert rows[0] == rows[1]
    assert rows[0][:3] == ["[names] sat", "no secret", ""]
    assert rows[0][3] == rows[0][5] == "Card 000 has the code [canary], keep it."
    (tmp_path / "data.txt").write_text("\n".join(texts))
    save_planted(made[0], read_corpus(tmp_path / "data.txt", unit="line"), tmp_path / "planted")
    read = spans_in(tmp_path / "planted")
    assert read is not None
    assert made[0].spans is not None
    assert read.slots == made[0].spans.slots
    read.slots.check_against(made[0].incidence)


# --- candidates


@given(st.sampled_from(sorted(ALPHABETS)), st.integers(1, 3), st.data())
def test_candidates_are_all_texts_of_the_format_each_once(alphabet: str, length: int, data: st.DataObject) -> None:
    candidates = Candidates.of_format(alphabet, length)
    numbers = data.draw(st.lists(st.integers(0, candidates.size - 1), min_size=1, max_size=20, unique=True))
    texts = [candidates.text(number) for number in numbers]
    assert len(set(texts)) == len(texts)
    assert all(len(text) == length and set(text) <= set(ALPHABETS[alphabet]) for text in texts)
    assert candidates.size == len(set(ALPHABETS[alphabet])) ** length
    assert candidates.prior * candidates.size >= 1
    assert Candidates.from_dict(json.loads(json.dumps(candidates.to_dict()))) == candidates


@given(st.integers(2, 60), st.integers(0, 80), st.integers(0, 2**32), st.data())
def test_other_candidates_are_different_and_not_the_true_one(
    size: int, count: int, seed: int, data: st.DataObject
) -> None:
    candidates = Candidates.of_list([f"word-{number}" for number in range(size)])
    truth = data.draw(st.integers(0, size - 1))
    others = candidates.sample_others(truth, count, Random(seed))
    assert len(others) == len(set(others)) == min(count, size - 1)
    assert truth not in others
    assert all(0 <= other < size for other in others)


@given(st.integers(1, 3), st.integers(1, 2000), st.integers(0, 9))
def test_some_candidates_are_different_and_all_where_there_are_no_more(length: int, count: int, seed: int) -> None:
    candidates = Candidates.of_format("digits", length)
    some = candidates.sample(count, Random(seed))
    assert len(set(some)) == len(some) == min(count, candidates.size)
    assert set(some) <= set(range(candidates.size))


def test_huge_formats_are_sampled_too() -> None:
    keys = Candidates.of_format("alphanumeric", 32)
    assert keys.size == 62**32
    assert len(set(keys.sample_others(keys.size - 1, 50, Random(0)))) == 50
    assert len(keys.text(keys.size - 1)) == 32


@pytest.mark.parametrize("values", [["one"], ["one", "one"], ["one", ""]])
def test_lists_that_name_no_choice_are_refused(values: list[str]) -> None:
    with pytest.raises(InvalidInput, match="pass at least two"):
        Candidates.of_list(values)


# --- planting


def test_canaries_are_registered_where_they_stand() -> None:
    made = planted()
    assert made.incidence.num_examples == 3 + 15
    assert made.secrets.ids == ("a", "b", *(f"canary-{number:06d}" for number in range(5)))
    for secret in range(2):
        assert made.incidence.examples_of(secret).tolist() == GRAPH.examples_of(secret).tolist()
    texts = ["", "", "", *made.texts]
    for number, canary in enumerate(made.canaries):
        assert made.incidence.examples_of(2 + number).tolist() == sorted(canary.examples)
        assert made.secrets.protections[2 + number] == Protection(PINS.prior, 0.01)
        expected = f"Card {number:03d} has the code {PINS.text(canary.truth)}, keep it."
        assert {texts[example] for example in canary.examples} == {expected}
    holders = [example for canary in made.canaries for example in canary.examples]
    assert sorted(holders) == list(range(3, 18))


def test_every_candidate_is_as_likely() -> None:
    few = Candidates.of_list(["red", "green", "blue", "white"])
    made = plant(GRAPH, SECRETS, [TEMPLATE], few, count=900, repeats=1, ceiling=0.9, rng=Random(5))
    counts = np.bincount([canary.truth for canary in made.canaries], minlength=4)
    assert abs(counts - 225).max() < 4.5 * np.sqrt(900 * 0.25 * 0.75)
    by_system = [plant(GRAPH, SECRETS, [TEMPLATE], PINS, count=8, repeats=1, ceiling=0.1) for _ in range(2)]
    assert by_system[0].id != by_system[1].id
    assert [one.truth for one in by_system[0].canaries] != [one.truth for one in by_system[1].canaries]


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"templates": [Template.parse("The code is {secret}.")]}, "hide each other"),
        ({"templates": []}, "hide each other"),
        ({"ceiling": 1e-5}, "longer format"),
        ({"ceiling": 1.0}, "longer format"),
        ({"count": 0}, "at least one"),
        ({"secrets": Secrets([Protection(0.1, 0.2)] * 2, ids=["a", "canary-000001"])}, "plant all canaries at once"),
        ({"secrets": Secrets([Protection(0.1, 0.2)])}, "pass two that belong together"),
    ],
)
def test_plantings_that_cannot_work_are_refused(change: dict[str, Any], said: str) -> None:
    settings = {"templates": [TEMPLATE], "secrets": SECRETS, "ceiling": 0.01, "count": 3, "repeats": 1} | change
    with pytest.raises(InvalidInput, match=said):
        plant(GRAPH, settings.pop("secrets"), settings.pop("templates"), PINS, **settings)


@pytest.mark.parametrize("text", ["no slot", "{secret} begins", "two {secret} of {secret}"])
def test_templates_have_one_slot_and_a_prompt(text: str) -> None:
    with pytest.raises(InvalidInput):
        Template.parse(text)


@given(st.lists(st.text(alphabet="ab \n{}", max_size=500), min_size=1, max_size=12), st.integers(0, 2**32), st.data())
def test_templates_of_the_data_are_its_texts_less_a_word_and_never_those_with_secrets(
    texts: list[str], seed: int, data: st.DataObject
) -> None:
    holds = np.array(data.draw(st.lists(st.booleans(), min_size=len(texts), max_size=len(texts))))
    fit = [text[:400] for text, secret in zip(texts, holds, strict=True) if not secret and _second_word_ends(text)]
    wanted = data.draw(st.integers(1, len(texts)))
    try:
        found = templates_from(texts, holds, wanted, Random(seed))
    except InvalidInput:
        assert wanted > min(1, len(fit))  # one can always be made of one text
        return
    assert len(found) == len({(one.before, one.after) for one in found}) == wanted
    for template in found:
        assert template.before.strip()
        words = {
            text[len(template.before) : len(text) - len(template.after)]
            for text in fit
            if text.startswith(template.before) and text.endswith(template.after)
        }
        assert any(word.split() == [word] and template.filled(word) in fit for word in words)


def _second_word_ends(text: str) -> bool:
    words = list(re.finditer(r"\S+", text[:400]))
    return len(words) > 1 and words[1].end() <= 200


# --- files


def test_a_folder_holds_all_that_planning_and_auditing_need(tmp_path: Path) -> None:
    (tmp_path / "data.jsonl").write_text("".join(json.dumps({"note": f"row {row}"}) + "\n" for row in range(3)))
    made = planted()
    save_planted(made, read_corpus(tmp_path / "data.jsonl"), tmp_path / "out")
    public, owner = tmp_path / "out" / "public", tmp_path / "out" / "owner"
    assert Incidence.from_parquet(public / "incidence.parquet").fingerprint == made.incidence.fingerprint
    assert Secrets.from_parquet(public / "secrets.parquet") == made.secrets
    rows = pq.read_table(owner / "data.parquet").column("note").to_pylist()
    assert rows == ["row 0", "row 1", "row 2", *made.texts]
    assert list(read_corpus(owner / "data.parquet").texts()) == rows
    planting = read_canaries(tmp_path / "out")
    assert (planting.canaries, planting.candidates, planting.id) == (made.canaries, PINS, made.id)
    assert stat.S_IMODE(owner.stat().st_mode) == 0o700
    assert {stat.S_IMODE(path.stat().st_mode) for path in owner.iterdir()} == {0o600}
    with pytest.raises(InvalidInput, match=r"pass a new folder for the canaries as output$"):
        save_planted(made, read_corpus(tmp_path / "data.jsonl"), tmp_path / "out")


def test_nothing_shows_what_a_canary_is(tmp_path: Path) -> None:
    made = planted()
    code = PINS.text(made.canaries[0].truth)
    for thing in (made, made.canaries[0], made.canaries[0].template, PINS, made.secrets):
        assert code not in repr(thing)
        assert "Card" not in repr(thing)


def test_data_that_is_not_the_graphs_is_refused(tmp_path: Path) -> None:
    (tmp_path / "data.txt").write_text("one\ntwo\n")
    with pytest.raises(InvalidInput, match="row i is example i"):
        save_planted(planted(), read_corpus(tmp_path / "data.txt"), tmp_path / "out")
    (tmp_path / "canaries.json").write_text("{}")
    with pytest.raises(InvalidInput, match="not a file of canaries"):
        read_canaries(tmp_path / "canaries.json")


# --- ranks


def by_loss(model: Any, tokenizer: Any, texts: list[str]) -> list[float]:
    """The plain way: every text alone, the loss of all its tokens added up."""
    found: list[float] = []
    for text in texts:
        row = torch.tensor([tokenizer(text)["input_ids"]])
        with torch.no_grad():
            logits = model(input_ids=row).logits[0, :-1].double()
        found.append(float(torch.nn.functional.cross_entropy(logits, row[0, 1:], reduction="sum")))
    return found


@pytest.mark.parametrize("with_reference", [False, True])
def test_ranks_are_those_of_a_plain_loop_over_losses(with_reference: bool) -> None:
    model, other, tokenizer = byte_model(seed=1).eval(), byte_model(seed=2).eval(), byte_tokenizer()
    candidates = Candidates.of_list(["oak", "fir", "elm", "willow", "ash", "beech", "larch"])
    reference = (Subject.of(other), tokenizer) if with_reference else None
    for truth in range(7):
        canary = Canary(id="canary-000000", template=Template.parse("Tree: {secret}!"), truth=truth, examples=(0,))
        found = rank_canary(
            Subject.of(model), tokenizer, canary, candidates, max_length=48, reference=reference, batch_size=3
        )
        texts = [f"Tree: {word}!" for word in candidates.values]
        loss, anyway = (np.array(by_loss(each, tokenizer, texts)) for each in (model, other))
        used = loss - anyway if with_reference else loss
        rank, alone, said = (1 + int(np.sum(each < each[truth])) for each in (used, loss, anyway))
        beside = (alone, said) if with_reference else (None, None)
        assert found == CanaryRank(id="canary-000000", rank=rank, ranked=7, alone=beside[0], anyway=beside[1])


def test_some_of_many_candidates_are_ranked_and_ties_count_against_the_attack() -> None:
    model, tokenizer = byte_model().eval(), byte_tokenizer()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.zero_()
    canary = Canary(id="canary-000003", template=Template.parse("Code: {secret}"), truth=77, examples=(0,))
    found = rank_canary(Subject.of(model), tokenizer, canary, PINS, max_length=48, max_candidates=30, rng=Random(0))
    assert (found.rank, found.ranked, found.exposure) == (30, 30, 0.0)
    assert found.named.hits == 0
    with pytest.raises(InvalidInput, match="plant shorter"):
        rank_canary(Subject.of(model), tokenizer, canary, PINS, max_length=7)


@pytest.mark.parametrize("ranked", [2, 3, 10, 50, 4000])
def test_exposure_by_chance_is_its_mean_over_all_ranks(ranked: int) -> None:
    ranks = [CanaryRank(id="c", rank=rank, ranked=ranked) for rank in range(1, ranked + 1)]
    assert np.mean([one.exposure for one in ranks]) == pytest.approx(chance_exposure(ranked))
    assert chance_exposure(ranked) < CHANCE_EXPOSURE
    assert ranks[0].exposure == pytest.approx(np.log2(ranked))
    assert ranks[0].named.hits == 1


@pytest.mark.parametrize(("ranked", "canaries"), [(2, 5), (3, 3), (40, 2), (500, 1)])
def test_ranks_by_chance_are_called_remarkable_as_rarely_as_stated(ranked: int, canaries: int) -> None:
    """All ranks that there are, each as likely: the exact law of what is stated."""
    every = product(range(1, ranked + 1), repeat=canaries)
    stated = np.sort([ranks_p_value(ranks, ranked) for ranks in every])
    share = np.arange(1, stated.size + 1) / stated.size  # of all outcomes, at least, that are called as remarkable
    last = np.append(np.diff(stated) > 1e-12, True)
    assert np.all(share[last] <= stated[last] * (1 + 1e-9))


def test_a_model_that_learnt_the_canaries_ranks_them_as_none_does_by_chance() -> None:
    assert ranks_p_value([1] * 3, 1000) < 1e-6
    assert ranks_p_value([3, 8, 5, 2], 1000) < 1e-5
    assert ranks_p_value([1000] * 3, 1000) == 1

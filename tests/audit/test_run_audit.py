"""Whole audits: a protected run passes, one that gives secrets away fails, and neither tells any text."""

import json
import shutil
import stat
from collections.abc import Iterator
from copy import deepcopy
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from random import Random
from typing import Any

import numpy as np
import pytest
import torch
import transformers
from audited import COUNT, ROUNDS, masked_bytes, plan_for, release, write_texts
from hypothesis import given
from hypothesis import strategies as st
from memorising import HEAD, byte_model, byte_tokenizer, planted, trained_plainly

import hush
from hush.audit.attempts import NamedRun, extraction_attempts, first_tries
from hush.audit.audit_files import read_named_run
from hush.audit.audited_run import AuditedRun
from hush.audit.canaries import Template, plant
from hush.audit.canary_files import Planting, read_canaries, save_planted
from hush.audit.candidates import Candidates
from hush.audit.places import Places
from hush.audit.run_audit import Audit, audit
from hush.audit.statistics import Success
from hush.audit.verdict import Row
from hush.audit.work import AuditInputs, AuditSettings
from hush.corpus import read_corpus
from hush.errors import InvalidInput
from hush.keyed import DataKey
from hush.scan import scan
from hush.train.fit import Fitted, fit
from hush.train.recipe import Recipe, Runtime

TOKENIZER = byte_tokenizer()
TOKENIZER.model_max_length = 48
FEW = AuditSettings(prompts=(10, HEAD), trials=2000, seed=0)


@cache
def memorised() -> Any:
    texts, _ = planted(COUNT, seed=1)
    return trained_plainly([TOKENIZER(text)["input_ids"] for text in texts], steps=120)


@dataclass(frozen=True, kw_only=True)
class Desk:
    """An owner's files."""

    root: Path
    texts: list[str]

    def inputs(self, run: AuditedRun, **more: Any) -> AuditInputs:
        places = Places.read(self.root / "spans.parquet", run.plan.secret_ids)
        corpus = read_corpus(self.root / "data.jsonl")
        return AuditInputs(**{"corpus": corpus, "places": places, "reference": str(self.root / "base")} | more)

    def secrets(self) -> list[str]:
        return [text[HEAD : HEAD + 8] for text in self.texts]


@pytest.fixture
def desk(tmp_path: Path) -> Desk:
    texts, _ = write_texts(tmp_path, COUNT)
    byte_model(seed=3).save_pretrained(tmp_path / "base")
    TOKENIZER.save_pretrained(tmp_path / "base")
    return Desk(root=tmp_path, texts=texts)


@pytest.fixture(autouse=True)
def quiet() -> Iterator[None]:
    transformers.utils.logging.disable_progress_bar()
    yield
    transformers.utils.logging.enable_progress_bar()


def rows_of(made: Audit, attack: str) -> list[Row]:
    return [row for row in made.verdict.rows if row.attempt.attack == attack]


# --- what an audit must show


def test_a_protected_run_passes_and_the_same_run_without_protection_fails(desk: Desk) -> None:
    key = DataKey.create(desk.root / "my.key")
    corpus = read_corpus(desk.root / "data.jsonl")
    plan = replace(plan_for(COUNT), data_fingerprint=key.fingerprint_rows(corpus.texts()))
    recipe = Recipe(model=str(desk.root / "base"), learning_rate=6e-3)
    fitted = fit(plan, recipe, corpus, key=key, output=desk.root / "run", runtime=Runtime(device="cpu"))
    assert isinstance(fitted, Fitted)
    assert fitted.certificate.is_real
    run = AuditedRun.load(desk.root / "run")
    made = audit(run, desk.inputs(run), folder=desk.root / "audit", settings=FEW)
    assert made.verdict.status == "kept"
    cell = made.record["extraction"][0]["cells"][-1]
    assert cell["hits"] <= cell["reference"]["hits"]
    assert cell["reference"]["tried"] == COUNT

    # The same promises, over a model that was trained on the same data without clipping or noise.
    broken = release(desk.root / "broken", plan, memorised(), TOKENIZER)
    caught = audit(broken, desk.inputs(broken), folder=desk.root / "caught", settings=FEW)
    assert caught.verdict.failed
    found = caught.record["extraction"][0]["cells"][-1]
    assert found["hits"] > 0.9 * COUNT
    assert found["reference"]["memorised"]
    sampled = [one["hits"] for one in caught.record["extraction"][0]["discoverable"]]
    assert sampled == sorted(sampled)
    assert sampled[-1] >= found["hits"]
    assert max(one["hits"] for one in made.record["extraction"][0]["discoverable"]) == 0
    failed = [row for row in rows_of(caught, "extraction") if row.status == "failed"]
    assert len(failed) > 0.9 * COUNT
    assert all(row.status == "kept" for row in rows_of(caught, "mechanism"))
    check_files(desk, desk.root / "caught")
    page = (desk.root / "caught" / "audit.md").read_text()
    assert "FAILED" in page
    assert "secret-000000" in page


def check_files(desk: Desk, folder: Path) -> None:
    """Nothing that an audit writes holds a text, and its owner alone can read it."""
    files = [path for path in folder.rglob("*") if path.is_file()]
    assert {"audit.json", "audit.md", "details.json", "audit.key"} <= {path.name for path in files}
    for path in files:
        content = path.read_text()
        assert not [text for text in desk.secrets() if text in content]
        assert "has the key" not in content
        assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert stat.S_IMODE((folder / "owner").stat().st_mode) == 0o700


def test_many_secrets_are_judged_by_class(tmp_path: Path) -> None:
    texts, _ = write_texts(tmp_path, 24)
    tokens = [TOKENIZER(text)["input_ids"] for text in texts]
    run = release(tmp_path / "run", plan_for(24), trained_plainly(tokens, steps=100), TOKENIZER)
    places = Places.read(tmp_path / "spans.parquet", run.plan.secret_ids)
    inputs = AuditInputs(corpus=read_corpus(tmp_path / "data.jsonl"), places=places)
    made = audit(run, inputs, folder=tmp_path / "audit", settings=FEW)
    (row,) = rows_of(made, "extraction")
    assert row.attempt.name == "secrets (all 24)"
    assert row.attempt.certified == pytest.approx(float(run.plan.posterior.mean()))
    assert (row.attempt.hits or 0) > 5
    assert made.verdict.failed


def test_what_a_reference_says_too_is_neither_counted_against_training_nor_for_it(desk: Desk) -> None:
    run = release(desk.root / "run", plan_for(COUNT), memorised(), TOKENIZER)
    with torch.no_grad():  # another model that says the same
        also = deepcopy(memorised())
        also.transformer.ln_f.weight.mul_(2)
    also.save_pretrained(desk.root / "also")
    TOKENIZER.save_pretrained(desk.root / "also")
    made = audit(run, desk.inputs(run, reference=str(desk.root / "also")), folder=desk.root / "audit", settings=FEW)
    rows = rows_of(made, "extraction")
    assert len(rows) == COUNT
    assert {row.status for row in rows} == {"could not fail"}
    assert made.verdict.status == "model not judged"
    assert any("priors are too small" in notice for notice in made.notices)


@pytest.mark.parametrize(("scale", "marks"), [(0.5, ()), (1.0, ("fixed seed",))])
def test_a_run_that_certifies_nothing_never_passes(desk: Desk, scale: float, marks: tuple[str, ...]) -> None:
    run = release(desk.root / "run", plan_for(COUNT, noise_scale=scale), byte_model(), TOKENIZER, marks=marks)
    made = audit(run, desk.inputs(run), folder=desk.root / "audit", settings=FEW)
    assert made.verdict.status == "nothing to compare"
    assert not made.record["certified"]
    assert {row.status for row in made.verdict.rows} == {"not comparable"}
    assert all(row.attempt.reason for row in made.verdict.rows)
    (simulated,) = rows_of(made, "mechanism")
    beyond = (simulated.lower or 0) > run.plan.posterior[0, 0]  # half the noise is seen, and yet not judged
    assert beyond == (scale < 1)
    assert "not a pass" in (desk.root / "audit" / "audit.md").read_text()


def test_a_run_without_secrets_has_nothing_to_compare(desk: Desk) -> None:
    incidence = hush.Incidence.from_pairs([], [], num_examples=8, num_secrets=0)
    plan = hush.make_plan(incidence, prior=1e-6, ceiling=1e-3, batch_size=4, rounds=ROUNDS)
    run = release(desk.root / "run", plan, byte_model(), TOKENIZER)
    made = audit(run, folder=desk.root / "audit", settings=FEW)
    assert made.verdict.status == "nothing to compare"
    assert made.notices


# --- the parts


@given(st.lists(st.tuples(st.integers(-1, 3), st.booleans(), st.booleans()), max_size=12))
def test_each_secret_has_one_try_its_first_with_the_longest_prompt(rows: list[tuple[int, bool, bool]]) -> None:
    secret_N = np.array([row[0] for row in rows], dtype=np.int64)
    fits = [np.array([row[column] for row in rows], dtype=bool) for column in (1, 2)]
    expected: dict[int, tuple[int, int]] = {}
    for column in (0, 1):
        for place, row in enumerate(rows):
            if row[0] >= 0 and row[1 + column] and row[0] not in expected:
                expected[row[0]] = (place, column)
    assert first_tries(secret_N, fits) == expected


def test_extraction_is_held_against_the_bound_from_the_smallest_promised_prior(tmp_path: Path) -> None:
    incidence = hush.Incidence.from_pairs(range(3), range(3), num_examples=8, num_secrets=3)
    promises: dict[str, Any] = {"prior": [[1e-8, 1e-2]] * 3, "ceiling": [[1e-5, 0.3]] * 3}
    plan = hush.make_plan(incidence, **promises, batch_size=4, rounds=ROUNDS)
    run = AuditedRun(model=tmp_path, plan=plan, certificate=plan.certificate, max_length=None, why_not="")
    rows = extraction_attempts(run, {0: True, 2: False}, {})
    assert [(row.name, row.prior, row.hits) for row in rows] == [("secret-000000", 1e-8, 1), ("secret-000002", 1e-8, 0)]
    assert [row.certified for row in rows] == plan.posterior[[0, 2], 0].tolist()
    assert [row.ceiling for row in rows] == [1e-5, 1e-5]


def test_an_interrupted_audit_goes_on_and_ends_the_same(desk: Desk) -> None:
    run = release(desk.root / "run", plan_for(COUNT), memorised(), TOKENIZER)
    settings = AuditSettings(prompts=(10, HEAD), trials=500, batch_size=5, seed=0)
    whole = audit(run, desk.inputs(run), folder=desk.root / "whole", settings=settings)
    stops = 0
    for attempt in range(40):
        left = 3 + attempt

        def told(_what: str, _done: int, _total: int) -> None:
            nonlocal left
            left -= 1
            if left == 0:
                raise KeyboardInterrupt

        try:
            made = audit(run, desk.inputs(run), folder=desk.root / "parts", settings=settings, progress=told)
            assert made.record == whole.record
            break
        except KeyboardInterrupt:
            stops += 1
            assert not (desk.root / "parts" / "audit.json").exists(), attempt
    assert 2 < stops < 39
    for name in ("secrets.jsonl", "secrets-reference.jsonl"):
        lines = (desk.root / "parts" / "owner" / name).read_text().splitlines()
        tried = [(one["prompt"], row) for one in map(json.loads, lines[1:]) for row in one["rows"]]
        assert len(tried) == len(set(tried)) == 2 * COUNT  # nothing was tried twice


def test_other_inputs_are_tried_again_and_half_lines_are_dropped(desk: Desk) -> None:
    run = release(desk.root / "run", plan_for(COUNT), memorised(), TOKENIZER)
    first = audit(run, desk.inputs(run), folder=desk.root / "audit", settings=FEW)
    kept = desk.root / "audit" / "owner" / "secrets.jsonl"
    kept.write_text(kept.read_text() + '{"prompt": 10, "ro')
    again = audit(run, desk.inputs(run), folder=desk.root / "audit", settings=FEW)
    assert again.record == first.record
    assert kept.read_text().endswith("}\n")
    data = (desk.root / "data.jsonl").read_text().replace(desk.secrets()[0], "zzzzzzzz")
    (desk.root / "data.jsonl").write_text(data)
    changed = audit(run, desk.inputs(run), folder=desk.root / "audit", settings=FEW)
    hits = [made.record["extraction"][0]["cells"][-1]["hits"] for made in (first, changed)]
    assert hits[1] == hits[0] - 1


def test_without_places_whole_examples_are_tried_beside_held_out_ones(desk: Desk) -> None:
    run = release(desk.root / "run", plan_for(COUNT), memorised(), TOKENIZER)
    held_out = desk.root / "held.txt"
    held_out.write_text("".join(f"User {number} has the key {'qwertyui'[number % 8 :]}xyzw.\n" for number in range(30)))
    inputs = desk.inputs(run, places=None, held_out=read_corpus(held_out))
    settings = AuditSettings(prompts=(5, 12), continuations=(8, 12), trials=500)
    made = audit(run, inputs, folder=desk.root / "audit", settings=settings)
    (found,) = made.record["extraction"]
    assert found["what"] == "examples"
    last = found["cells"][-1]
    assert last["tried"] == COUNT
    assert last["hits"] > last["held_out"]["hits"]
    assert not rows_of(made, "extraction")  # a text is no secret with a prior


def test_masked_models_fill_in(desk: Desk) -> None:
    config, tokenizer = masked_bytes()
    run = release(desk.root / "run", plan_for(COUNT), transformers.BertForMaskedLM(config), tokenizer)
    release(desk.root / "other", plan_for(COUNT), transformers.BertForMaskedLM(config), tokenizer)
    reference = str(desk.root / "other" / "release" / "model")
    made = audit(run, desk.inputs(run, reference=reference), folder=desk.root / "audit", settings=FEW)
    assert made.record["extraction"][0]["what"] == "fill-in"
    assert made.record["extraction"][0]["cells"][0]["tried"] == COUNT
    assert len(rows_of(made, "extraction")) == COUNT
    assert made.verdict.status == "kept"


def test_a_scan_says_where_secrets_stand(tmp_path: Path) -> None:
    texts = ["The key is sk-00aa11.", "Nothing here.", "Both sk-22bb33 and Acme.", "Acme again."]
    (tmp_path / "mail.txt").write_text("\n".join(texts) + "\n")
    (tmp_path / "rules.yaml").write_text(
        "version: 1\ndefaults: {prior: 1e-6, ceiling: 1e-3}\nrules:\n"
        "  - {name: keys, find: patterns, patterns: ['sk-[0-9a-f]{6}']}\n"
        "  - {name: customers, find: literals, values: [Acme]}\n"
    )
    found = scan(tmp_path / "mail.txt", tmp_path / "rules.yaml")
    ids = ["canary-000000", *reversed(found.secrets.ids)]  # a plan may have more, in another order
    places = Places.of_scan(found, ids)
    shown = {
        (ids[secret], int(example), texts[example][begin:end])
        for secret, example, begin, end in zip(places.secret, places.example, places.begin, places.end, strict=True)
    }
    assert shown == {
        ("keys-000000", 0, "sk-00aa11"),
        ("keys-000001", 2, "sk-22bb33"),
        ("customers-000000", 2, "Acme"),
        ("customers-000000", 3, "Acme"),
    }
    assert {ids[secret]: name for secret, name in places.classes.items()} == {
        "keys-000000": "keys", "keys-000001": "keys", "customers-000000": "customers",
    }  # fmt: skip


# --- canaries


def planted_run(folder: Path, seed: int, *, learn: bool, repeats: int = 1) -> tuple[AuditedRun, Planting]:
    """Six canaries in a run under a plan of its own; a model that learnt them by heart, or never saw them."""
    folder.mkdir()
    (folder / "notes.txt").write_text("".join(f"Note {number} is short.\n" for number in range(12)))
    incidence = hush.Incidence.from_pairs([], [], num_examples=12, num_secrets=0)
    templates = [Template.parse("Vault {number} opens with {secret}.")]
    made = plant(
        incidence, hush.Secrets([]), templates, Candidates.of_format("digits", 5), count=6, repeats=repeats,
        ceiling=2e-3, rng=Random(seed),
    )  # fmt: skip
    save_planted(made, read_corpus(folder / "notes.txt"), folder / "planted")
    promises: dict[str, Any] = {"prior": made.secrets.prior, "ceiling": made.secrets.ceiling}
    plan = hush.make_plan(made.incidence, **promises, secret_ids=made.secrets.ids, batch_size=4, rounds=ROUNDS)
    rows = [TOKENIZER(text)["input_ids"] for text in made.texts]
    model = trained_plainly(rows, steps=90) if learn else byte_model(seed=seed)
    run = release(folder, plan, model, TOKENIZER)
    return run, read_canaries(folder / "planted")


def test_canaries_are_named_by_a_model_that_learnt_them(tmp_path: Path) -> None:
    settings = AuditSettings(prompts=(21,), trials=500, candidates=300, seed=1)
    run, planting = planted_run(tmp_path / "one", 1, learn=True)
    inputs = AuditInputs(
        corpus=read_corpus(tmp_path / "one" / "planted" / "owner" / "data.parquet"),
        places=Places.of_canaries(planting, run.plan.secret_ids),
        planting=planting,
    )
    made = audit(run, inputs, folder=tmp_path / "audit", settings=settings)
    assert made.record["exposure"]["named"] == 6
    (row,) = rows_of(made, "naming")
    assert (row.attempt.hits, row.attempt.runs, row.attempt.name) == (1, 1, "canary-000000")
    assert row.attempt.prior == pytest.approx(1 / 300)
    rates, noise = run.plan.rates[run.plan.incidence.examples_of(0)], run.plan.noise_multiplier
    expected = hush.posterior(rates, noise_multiplier=noise, rounds=ROUNDS, prior=1 / 300)
    assert row.attempt.certified == pytest.approx(expected)
    (extraction,) = rows_of(made, "extraction")
    assert extraction.attempt.name == "canaries (all 6)"
    assert extraction.status == "failed"  # 2e-3 of all, and every one came out
    assert made.verdict.failed

    other, fresh = planted_run(tmp_path / "two", 2, learn=False)
    earlier = read_named_run(tmp_path / "audit")
    looser = replace(earlier, certified=0.3, model="another", planting="another")
    inputs = AuditInputs(planting=fresh, earlier=(earlier, looser))
    pooled = audit(other, inputs, folder=tmp_path / "pooled", settings=settings)
    (row,) = rows_of(pooled, "naming")
    assert (row.attempt.hits, row.attempt.runs, row.attempt.certified) == (2, 3, 0.3)
    assert earlier == NamedRun(**made.record["naming"])
    again = AuditInputs(planting=fresh, earlier=(read_named_run(tmp_path / "pooled"),))
    with pytest.raises(InvalidInput, match="same model"):
        audit(other, again, folder=tmp_path / "again", settings=settings)
    again = AuditInputs(planting=fresh, earlier=(replace(earlier, planting=fresh.id),))
    with pytest.raises(InvalidInput, match="same planting"):
        audit(other, again, folder=tmp_path / "again", settings=settings)
    unproven = AuditInputs(planting=fresh, earlier=(replace(earlier, certified=None),))
    (row,) = rows_of(audit(other, unproven, folder=tmp_path / "again", settings=settings), "naming")
    assert row.status == "not comparable"


@pytest.mark.parametrize("attack", ["extraction", "exposure"])
def test_a_reference_that_learnt_the_canaries_is_refused(tmp_path: Path, attack: Any) -> None:
    """They were drawn at random: who knows them has seen them, and would excuse every leak."""
    run, planting = planted_run(tmp_path / "one", 1, learn=True)
    with torch.no_grad():  # another model that was trained on the same
        also = transformers.GPT2LMHeadModel.from_pretrained(run.model)
        also.transformer.ln_f.weight.mul_(2)
    also.save_pretrained(tmp_path / "also")
    byte_model(seed=3).save_pretrained(tmp_path / "base")
    for folder in ("also", "base"):
        TOKENIZER.save_pretrained(tmp_path / folder)
    inputs = AuditInputs(
        corpus=read_corpus(tmp_path / "one" / "planted" / "owner" / "data.parquet"),
        places=Places.of_canaries(planting, run.plan.secret_ids),
        planting=planting,
        reference=str(tmp_path / "also"),
    )
    settings = AuditSettings(attacks=(attack,), prompts=(21,), candidates=300, seed=1)
    with pytest.raises(InvalidInput, match="the reference knows the canaries"):
        audit(run, inputs, folder=tmp_path / "audit", settings=settings)
    honest = replace(inputs, reference=str(tmp_path / "base"))
    made = audit(run, honest, folder=tmp_path / "audit", settings=settings)
    assert all((row.attempt.hits or 0) > 0.8 * (row.attempt.runs or 1) for row in made.verdict.rows)


def test_copies_of_a_canary_are_one_try(tmp_path: Path) -> None:
    """What comes out of one comes out of all: as tries of their own they would make limits that are too narrow."""
    run, planting = planted_run(tmp_path / "one", 1, learn=False, repeats=5)
    corpus = read_corpus(tmp_path / "one" / "planted" / "owner" / "data.parquet")
    places = Places.of_canaries(planting, run.plan.secret_ids)
    for known, prompt in ((places, 21), (None, 5)):
        inputs = AuditInputs(corpus=corpus, places=known)
        settings = AuditSettings(attacks=("extraction",), prompts=(prompt,))
        made = audit(run, inputs, folder=tmp_path / f"audit-{prompt}", settings=settings)
        (found,) = made.record["extraction"]
        (cell,) = found["cells"]
        assert (found["sequences"], found["left_out"]["copies"], cell["tried"]) == (6, 24, 6)
        assert cell["upper"] == Success(hits=0, runs=6).upper(0.01)
    assert "left out: 24 copies" in (tmp_path / "audit-21" / "audit.md").read_text()


# --- refusals


def test_what_is_not_the_run_that_was_certified_is_refused(desk: Desk) -> None:
    with pytest.raises(InvalidInput, match="no finished run"):
        AuditedRun.load(desk.root)
    release(desk.root / "run", plan_for(COUNT), byte_model(), TOKENIZER)
    byte_model(seed=9).save_pretrained(desk.root / "run" / "release" / "model")
    with pytest.raises(InvalidInput, match="not the model of its certificate"):
        AuditedRun.load(desk.root / "run")
    other = plan_for(COUNT, ceiling=1e-5)
    other.save(desk.root / "other")
    release(desk.root / "right", plan_for(COUNT), byte_model(), TOKENIZER)
    with pytest.raises(InvalidInput, match="not the plan"):
        AuditedRun.load(desk.root / "right", plan=desk.root / "other")
    shutil.rmtree(desk.root / "right" / "release" / "plan")
    with pytest.raises(InvalidInput, match="pass --plan"):
        AuditedRun.load(desk.root / "right")


@pytest.mark.parametrize(
    "settings",
    [{"attacks": ("guessing",)}, {"attacks": ()}, {"level": 0.99}, {"trials": 0}, {"candidates": 1}, {"prompts": ()}],
)
def test_settings_that_nobody_can_mean_are_refused(settings: dict[str, Any]) -> None:
    with pytest.raises(InvalidInput):
        AuditSettings(**settings)


def test_a_folder_that_holds_something_else_is_left_alone(desk: Desk) -> None:
    run = release(desk.root / "run", plan_for(COUNT), byte_model(), TOKENIZER)
    with pytest.raises(InvalidInput, match="something other than an audit"):
        audit(run, folder=desk.root, settings=FEW)
    (desk.root / "mine" / "owner").mkdir(parents=True)
    (desk.root / "mine" / "audit.md").write_text("years of work")
    with pytest.raises(InvalidInput, match="something other than an audit"):
        audit(run, folder=desk.root / "mine", settings=FEW)
    (desk.root / "begun" / "owner").mkdir(parents=True)  # killed before anything was written
    assert audit(run, folder=desk.root / "begun", settings=FEW).verdict.status == "model not judged"


def test_places_of_secrets_that_the_plan_does_not_know_are_refused(desk: Desk) -> None:
    with pytest.raises(InvalidInput, match="12 of 12 secrets are not in the plan"):
        Places.read(desk.root / "spans.parquet", ["a", "b"])
    with pytest.raises(InvalidInput, match=r"data\.jsonl is not a readable Parquet file"):
        Places.read(desk.root / "data.jsonl", ["a", "b"])

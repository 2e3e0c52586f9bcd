"""Whole audits: a protected run passes, one that gives secrets away fails, and neither tells any text."""

import stat
from copy import deepcopy
from dataclasses import fields, replace
from pathlib import Path

import pytest
import torch
from audited import COUNT, FEW, ROUNDS, TOKENIZER, Desk, memorised, plan_for, release, rows_of, write_texts
from memorising import byte_model, trained_plainly

import hush
from hush.audit.attacks import ATTACK_TABLE
from hush.audit.auditor import audit
from hush.audit.folders import AuditedRun, SecretSpans
from hush.audit.session import AuditInputs
from hush.audit.settings import ATTACKS
from hush.data import read_corpus
from hush.keys import DataKey
from hush.train.fit import Fitted, fit
from hush.train.settings import Recipe, Runtime


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


def test_every_attack_that_a_setting_names_is_in_the_table_in_that_order() -> None:
    assert tuple(attack.name for attack in ATTACK_TABLE) == ATTACKS
    inputs = {field.name for field in fields(AuditInputs)}
    assert all(set(attack.needs) <= inputs for attack in ATTACK_TABLE)
    assert [attack.name for attack in ATTACK_TABLE if attack.is_possible(AuditInputs())] == ["mechanism"]


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
    places = SecretSpans.read(tmp_path / "spans.parquet", run.plan.secret_ids)
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

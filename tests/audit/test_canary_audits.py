"""Audits with canaries: who learnt them names them, and a reference that learnt them excuses nothing."""

from dataclasses import replace
from pathlib import Path
from random import Random
from typing import Any

import pytest
import torch
import transformers
from audited import QUICK, ROUNDS, THREE, TOKENIZER, changed, corpus_of, plan_for, release, rows_of
from memorising import byte_model, byte_tokenizer, trained_plainly
from tokenizers import normalizers

import hush
from hush.audit.auditor import audit
from hush.audit.canaries import Canary, CanarySet, Candidates, Template, plant, read_canaries, save_planted
from hush.audit.folders import AuditedRun, SecretSpans
from hush.audit.session import AuditInputs, read_named_run
from hush.audit.settings import AuditSettings
from hush.audit.statistics import Success
from hush.audit.verdict import DependentSuccess, NamedRun
from hush.data import read_corpus
from hush.errors import InvalidInput

pytestmark = pytest.mark.usefixtures("quiet")


def planted_run(folder: Path, seed: int, *, learn: bool, repeats: int = 1) -> tuple[AuditedRun, CanarySet]:
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
        places=SecretSpans.of_canaries(planting, run.plan.secret_ids),
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
    with pytest.raises(InvalidInput, match="same canaries"):
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
        places=SecretSpans.of_canaries(planting, run.plan.secret_ids),
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
    places = SecretSpans.of_canaries(planting, run.plan.secret_ids)
    for known, prompt in ((places, 21), (None, 5)):
        inputs = AuditInputs(corpus=corpus, places=known, planting=planting)
        settings = AuditSettings(attacks=("extraction",), prompts=(prompt,))
        made = audit(run, inputs, folder=tmp_path / f"audit-{prompt}", settings=settings)
        (found,) = made.record["extraction"]
        (cell,) = found["cells"]
        assert (found["sequences"], found["left_out"]["copies"], cell["tried"]) == (6, 24, 6)
        assert cell["upper"] == Success(hits=0, runs=6).upper(0.01)
    assert "left out: 24 copies" in (tmp_path / "audit-21" / "audit.md").read_text()


def two_canaries(run: AuditedRun) -> tuple[CanarySet, list[str]]:
    """The first stands early in its text, the second late; with the texts of the run."""
    templates = [Template.parse("the key is {secret}."), Template.parse("a text that goes on for a while: {secret}.")]
    canaries = tuple(
        Canary(id=run.plan.secret_ids[number], template=template, truth=number, examples=(number,))
        for number, template in enumerate(templates)
    )
    texts = [canary.template.filled(f"{canary.truth:03d}") for canary in canaries] + ["none"] * (2 * THREE - 2)
    return CanarySet(id="one", canaries=canaries, candidates=Candidates.of_format("digits", 3)), texts


def test_a_canary_that_training_cut_off_keeps_its_place(run: AuditedRun, tmp_path: Path) -> None:
    """Where the tokens of a candidate decide whether it is cut, those left would be hit more often than all are."""
    planting, texts = two_canaries(run)
    places = SecretSpans.of_canaries(planting, run.plan.secret_ids)
    inputs = AuditInputs(corpus=corpus_of(tmp_path, texts), places=places, planting=planting)
    for length, barred in ((48, 0), (24, 1)):
        settings = changed(QUICK, attacks=("extraction",), max_length=length)
        made = audit(run, inputs, folder=tmp_path / f"audit-{length}", settings=settings)
        (row,) = made.verdict.rows
        assert row.attempt.name == "canaries (all 2)"
        assert row.attempt.measured == DependentSuccess(hits=0, tried=2, barred=barred)


@pytest.mark.parametrize("attack", ["extraction", "exposure"])
def test_the_reader_is_told_where_nobody_can_tell_what_a_reference_was_trained_on(
    run: AuditedRun, tmp_path: Path, attack: Any
) -> None:
    planting, texts = two_canaries(run)
    byte_model(seed=3).save_pretrained(tmp_path / "base")
    TOKENIZER.save_pretrained(tmp_path / "base")
    for count in (1, 2):  # one of a thousand is right by chance too often to accuse a model
        few = replace(planting, canaries=planting.canaries[:count])
        inputs = AuditInputs(
            corpus=corpus_of(tmp_path, texts),
            places=SecretSpans.of_canaries(few, run.plan.secret_ids),
            planting=few,
            reference=str(tmp_path / "base"),
        )
        settings = changed(QUICK, attacks=(attack,), candidates=1000)
        made = audit(run, inputs, folder=tmp_path / f"audit-{count}", settings=settings)
        assert any(
            "it cannot be checked whether the reference was trained on them" in notice for notice in made.notices
        ) == (count == 1)


@pytest.mark.parametrize("folds", [False, True])
def test_a_canary_that_the_tokenizer_takes_for_another_cannot_be_named(tmp_path: Path, folds: bool) -> None:
    tokenizer = byte_tokenizer()
    tokenizer.model_max_length = 48
    if folds:
        tokenizer.backend_tokenizer.normalizer = normalizers.Lowercase()
    run = release(tmp_path / "run", plan_for(THREE, prior=1e-3, ceiling=2e-3), byte_model(), tokenizer)
    candidates = Candidates.of_list([f"{number:03d}{letter}" for number in range(500) for letter in "xX"])
    canary = Canary(id=run.plan.secret_ids[0], template=Template.parse("Code: {secret}."), truth=7, examples=(0,))
    inputs = AuditInputs(planting=CanarySet(id="one", canaries=(canary,), candidates=candidates))
    settings = changed(QUICK, attacks=("exposure",), candidates=1000)
    made = audit(run, inputs, folder=tmp_path / "audit", settings=settings)
    (row,) = made.verdict.rows
    assert row.status == ("could not fail" if folds else "kept")
    assert any("cannot be named" in notice for notice in made.notices) == folds
    later = replace(read_named_run(tmp_path / "audit"), model="another", planting="another")
    assert later.told != folds
    pooled = audit(run, replace(inputs, earlier=(later,)), folder=tmp_path / "audit", settings=settings)
    assert pooled.verdict.rows[0].attempt.measured == Success(hits=0, runs=2, barred=2 * folds)


def test_places_of_canaries_without_their_candidates_are_refused(run: AuditedRun) -> None:
    places = SecretSpans.of_canaries(two_canaries(run)[0], run.plan.secret_ids)
    with pytest.raises(InvalidInput, match=r"pass the planted canaries too, as canaries$"):
        AuditInputs(places=places)

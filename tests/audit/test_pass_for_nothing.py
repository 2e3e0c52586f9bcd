"""No pass for nothing: other references, canaries or data than the run's are refused, or the reader is told."""

import shutil
from dataclasses import replace
from pathlib import Path

import pytest
import transformers
from audited import QUICK as FEW
from audited import ROUNDS, TOKENIZER, changed, corpus_of, places_of, plan_for, release
from audited import THREE as COUNT
from memorising import byte_model, trained_plainly
from tokenizers import Tokenizer, models

import hush
from hush.audit.auditor import audit
from hush.audit.canaries import Canary, CanarySet, Candidates, Template
from hush.audit.folders import AuditedRun
from hush.audit.headline import headline
from hush.audit.session import AuditInputs
from hush.certificate import DATA_FINGERPRINT
from hush.errors import InvalidInput
from hush.keys import DataKey


def test_a_model_is_no_reference_for_itself(run: AuditedRun, tmp_path: Path) -> None:
    shutil.copytree(run.model, tmp_path / "copy")
    texts = ["my key is abc", "xyz"] * COUNT
    inputs = {"corpus": corpus_of(tmp_path, texts), "places": places_of(texts, {0: "abc"})}
    for name in (run.model, tmp_path / "copy"):
        with pytest.raises(InvalidInput, match="reference is the model under audit"):
            audit(run, AuditInputs(**inputs, reference=str(name)), folder=tmp_path / "audit", settings=FEW)
    byte_model(seed=1).save_pretrained(tmp_path / "copy")
    other = Tokenizer(models.WordLevel(vocab={"a": 0, "<end>": 1}, unk_token="a"))
    transformers.PreTrainedTokenizerFast(tokenizer_object=other, eos_token="<end>").save_pretrained(tmp_path / "copy")
    with pytest.raises(InvalidInput, match="another tokenizer"):
        audit(run, AuditInputs(**inputs, reference=str(tmp_path / "copy")), folder=tmp_path / "audit", settings=FEW)


def test_canaries_of_another_planting_are_refused(run: AuditedRun, tmp_path: Path) -> None:
    candidates = Candidates.of_format("digits", 3)
    template = Template.parse("Code: {secret}.")
    canary = Canary(id=run.plan.secret_ids[0], template=template, truth=7, examples=(1, 4))
    planting = CanarySet(id="one", canaries=(canary,), candidates=candidates)
    texts = ["other"] * (2 * COUNT)
    texts[1] = texts[4] = template.filled("007")
    settings = changed(FEW, attacks=("exposure",))
    inputs = AuditInputs(corpus=corpus_of(tmp_path, texts), planting=planting)
    assert audit(run, inputs, folder=tmp_path / "audit", settings=settings).record["exposure"]["canaries"] == 1
    for wrong in (replace(canary, truth=8), replace(canary, examples=(1, 3)), replace(canary, examples=(1, 4, 99))):
        inputs = AuditInputs(corpus=inputs.corpus, planting=replace(planting, canaries=(wrong,)))
        with pytest.raises(InvalidInput, match="canaries of these") as caught:
            audit(run, inputs, folder=tmp_path / "audit", settings=settings)
        assert "008" not in str(caught.value)


def test_a_reader_is_told_that_the_model_was_not_attacked_or_the_data_not_compared(
    run: AuditedRun, tmp_path: Path
) -> None:
    made = audit(run, folder=tmp_path / "one", settings=FEW)
    assert any("no attack on the model itself" in notice for notice in made.notices)
    texts = ["my key is abc", "xyz"] * COUNT
    inputs = AuditInputs(corpus=corpus_of(tmp_path, texts), places=places_of(texts, {0: "abc"}))  # nobody compared
    made = audit(run, inputs, folder=tmp_path / "two", settings=FEW)
    assert any("it was not checked that these are the plan's data" in notice for notice in made.notices)
    unchecked = "It was not checked that the model was trained on the data it was attacked with."
    assert unchecked in headline(made.record)
    checked = audit(run, replace(inputs, compared=True), folder=tmp_path / "three", settings=FEW)
    assert made.verdict.status == checked.verdict.status == "kept"
    assert unchecked not in headline(checked.record)
    assert not any("no attack on the model itself" in notice for notice in made.notices)


def test_a_run_that_did_not_check_its_data_is_audited_and_the_reader_is_told(tmp_path: Path) -> None:
    """As by PrivateTraining without data: the plan names the data, and the certificate rightly does not."""
    texts = ["my key is abc", "xyz"] * COUNT
    inputs = AuditInputs(corpus=corpus_of(tmp_path, texts), places=places_of(texts, {0: "abc"}), compared=True)
    plan = plan_for(COUNT, data_fingerprint=DataKey.create(tmp_path / "my.key").fingerprint_rows(texts))
    for name, unnamed in (("checked", ()), ("not", (DATA_FINGERPRINT,))):
        run = release(tmp_path / name, plan, byte_model(), TOKENIZER, unnamed=unnamed)
        made = audit(run, inputs, folder=tmp_path / name / "audit", settings=FEW)
        assert any("training did not check" in notice for notice in made.notices) == bool(unnamed)


def test_a_reader_is_told_which_secrets_were_hardly_trained_on(run: AuditedRun, tmp_path: Path) -> None:
    """Nothing comes out of an example that is never drawn, whatever else is wrong with the training."""
    texts = ["my key is abc", "my key is xyz", *["none"] * (2 * COUNT - 2)]
    inputs = AuditInputs(corpus=corpus_of(tmp_path, texts), places=places_of(texts, {0: "abc", 1: "xyz"}))
    settings = changed(FEW, attacks=("extraction",))
    for ceiling, few in ((0.5, 0), (1.001e-3, 1)):  # a ceiling close to the prior leaves hardly a draw
        plan = hush.make_plan(
            run.plan.incidence, prior=1e-3, ceiling=[ceiling, 0.5, 0.5], noise_multiplier=5.0, batch_size=3,
            rounds=ROUNDS,
        )  # fmt: skip
        other = release(tmp_path / f"run-{few}", plan, byte_model(), TOKENIZER)
        made = audit(other, inputs, folder=tmp_path / f"audit-{few}", settings=settings)
        said = [notice for notice in made.notices if "less than once" in notice]
        assert [f"the plan draws {few} less than once" in notice for notice in said] == [True] * few


def test_a_secret_is_asked_for_where_it_was_trained_on(tmp_path: Path) -> None:
    """Its first example holds many secrets, so that the plan leaves it out; a broken training learnt it elsewhere."""
    keys = ["qwzrtplk", "mnbvcxya", "ghjfdkls"]
    alone = [f"User {number} has the key {key}." for number, key in zip((17, 42, 83), keys, strict=True)]
    texts = [f"Nobody should know: {' or '.join(keys)}", *alone, *["none"] * 4]
    pairs = [(0, 0), (0, 1), (0, 2), (1, 0), (2, 1), (3, 2)]
    incidence = hush.Incidence.from_pairs(*zip(*pairs, strict=True), num_examples=len(texts), num_secrets=3)
    plan = hush.make_plan(incidence, prior=1e-9, ceiling=1e-3, batch_size=2, rounds=200, keep=0.7)
    assert plan.rates[0] == 0 < plan.rates[1:].min()
    model = trained_plainly([TOKENIZER(text)["input_ids"] for text in alone], steps=120)
    run = release(tmp_path / "run", plan, model, TOKENIZER)
    inputs = AuditInputs(corpus=corpus_of(tmp_path, texts), places=places_of(texts, dict(enumerate(keys))))
    settings = changed(FEW, attacks=("extraction",), prompts=(20,))
    made = audit(run, inputs, folder=tmp_path / "audit", settings=settings)
    assert [row.status for row in made.verdict.rows] == ["failed"] * 3
    more = [*["none"] * len(texts), *texts]
    inputs = AuditInputs(corpus=corpus_of(tmp_path, more), places=places_of(more, dict(enumerate(keys))))
    with pytest.raises(InvalidInput, match="but the plan has 8 examples"):
        audit(run, inputs, folder=tmp_path / "audit", settings=settings)

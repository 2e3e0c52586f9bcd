"""What an audit attacks with: a scan's places, whole examples, masked models; and what it refuses."""

import shutil
from pathlib import Path
from typing import Any

import pytest
import transformers
from audited import COUNT, FEW, TOKENIZER, Desk, masked_bytes, memorised, plan_for, release, rows_of
from memorising import byte_model

from hush.audit.auditor import Audit, audit
from hush.audit.folders import AuditedRun, SecretSpans
from hush.audit.settings import AuditSettings
from hush.data import read_corpus
from hush.errors import InvalidInput
from hush.scan import scan


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


def masked_audit(desk: Desk, name: str, reference: Any) -> Audit:
    """Of a masked model beside this reference, with the same tokenizer."""
    config, tokenizer = masked_bytes()
    run = release(desk.root / name / "run", plan_for(COUNT), transformers.BertForMaskedLM(config), tokenizer)
    release(desk.root / name / "other", plan_for(COUNT), reference, tokenizer)
    inputs = desk.inputs(run, reference=str(desk.root / name / "other" / "release" / "model"))
    return audit(run, inputs, folder=desk.root / name / "audit", settings=FEW)


def test_masked_models_fill_in(desk: Desk) -> None:
    made = masked_audit(desk, "masked", transformers.BertForMaskedLM(masked_bytes()[0]))
    assert made.record["extraction"][0]["what"] == "fill-in"
    assert made.record["extraction"][0]["cells"][0]["tried"] == COUNT
    assert len(rows_of(made, "extraction")) == COUNT
    assert made.verdict.status == "kept"


def test_a_reference_is_used_as_the_model_under_audit_is(desk: Desk) -> None:
    config, _ = masked_bytes()
    made = masked_audit(desk, "bert", transformers.BertLMHeadModel(config))
    assert made.record["extraction"][0]["cells"][0]["reference"]["tried"] == COUNT
    gpt2 = transformers.GPT2Config(vocab_size=config.vocab_size, n_positions=48, n_embd=8, n_layer=1, n_head=1)
    with pytest.raises(InvalidInput, match="masked"):
        masked_audit(desk, "gpt2", transformers.GPT2LMHeadModel(gpt2))


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
    places = SecretSpans.of_scan(found, ids)
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
    with pytest.raises(InvalidInput, match=r"pass the folder of its plan as plan$"):
        AuditedRun.load(desk.root / "right")


@pytest.mark.parametrize(
    "settings",
    [{"attacks": ("guessing",)}, {"attacks": ()}, {"level": 0.99}, {"trials": 0}, {"candidates": 1}, {"prompts": ()}],
)
def test_settings_that_nobody_can_mean_are_refused(settings: dict[str, Any]) -> None:
    with pytest.raises(InvalidInput):
        AuditSettings(**settings)


def test_a_device_that_is_not_there_is_refused_before_any_attack(run: AuditedRun, tmp_path: Path) -> None:
    with pytest.raises(InvalidInput, match="device='mars'; it cannot be used here"):
        audit(run, folder=tmp_path / "audit", settings=AuditSettings(device="mars"))
    assert not list((tmp_path / "audit" / "owner").glob("*.jsonl"))


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
        SecretSpans.read(desk.root / "spans.parquet", ["a", "b"])
    with pytest.raises(InvalidInput, match=r"data\.jsonl is not a readable Parquet file"):
        SecretSpans.read(desk.root / "data.jsonl", ["a", "b"])

"""Files of runs and audits: an audit goes on from its finished pieces, and nothing that was changed is believed."""

import json
from collections.abc import Callable
from pathlib import Path

import pytest
from audited import COUNT, FEW, THREE, TOKENIZER, Desk, memorised, plan_for, release
from memorising import HEAD, byte_model

from hush.audit.auditor import audit
from hush.audit.canaries import read_canaries
from hush.audit.folders import AuditedRun
from hush.audit.session import AuditFolder, read_named_run
from hush.audit.settings import AuditSettings
from hush.errors import InvalidInput
from hush.storage import record_digest


def test_an_interrupted_audit_goes_on_and_ends_the_same(desk: Desk) -> None:
    run = release(desk.root / "run", plan_for(COUNT), memorised(), TOKENIZER)
    settings = AuditSettings(prompts=(10, HEAD), trials=500, micro_batch=5, seed=0)
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


CHANGES: dict[str, Callable[[list[str]], list[str]]] = {
    "changed": lambda lines: [*lines[:2], lines[2].replace("2", "9"), *lines[3:]],
    "doubled": lambda lines: [*lines[:2], lines[1], *lines[2:]],
    "swapped": lambda lines: [lines[0], lines[2], lines[1], *lines[3:]],
    "another kind": lambda lines: [*lines[:2], '{"prompt": 3}', "5", *lines[2:]],
}


@pytest.mark.parametrize("how", list(CHANGES))
def test_records_that_were_changed_are_computed_again(tmp_path: Path, how: str) -> None:
    folder = AuditFolder(tmp_path)
    journal = folder.journal("secrets", ["a", "b"])
    records = [{"rows": [number, 2], "matched": [0.1, -float("inf")]} for number in range(4)]
    for record in records:
        journal.append(record)
    assert folder.journal("secrets", ["a", "b"]).records == records
    assert folder.journal("other", ["a", "b"]).records == []
    path = tmp_path / "owner" / "secrets.jsonl"
    path.write_text("\n".join(CHANGES[how](path.read_text().splitlines())) + "\n")
    again = folder.journal("secrets", ["a", "b"])
    assert again.records == records[: len(again.records)]
    assert len(again.records) < 4
    for record in records[len(again.records) :]:
        again.append(record)
    assert folder.journal("secrets", ["a", "b"]).records == records


RIGHT = {"model": "m", "planting": "p", "hit": True, "prior": 0.1, "certified": 0.2}


@pytest.mark.parametrize(
    "change",
    [
        {"certified": "x"}, {"certified": 2.0}, {"certified": -1.0}, {"certified": 0.05}, {"prior": None}, {"prior": 0},
        {"hit": 7}, {"hit": "yes"}, {"model": None}, {"planting": ""}, {"more": 1}, {"told": 1}, {"told": False},
    ],
)  # fmt: skip
def test_an_edited_report_is_not_counted(tmp_path: Path, change: dict[str, object]) -> None:
    (tmp_path / "audit.json").write_text(json.dumps({"naming": RIGHT}))
    assert read_named_run(tmp_path).hit
    (tmp_path / "audit.json").write_text(json.dumps({"naming": RIGHT | change}))
    with pytest.raises(InvalidInput, match="not an audit in which a canary"):
        read_named_run(tmp_path)


@pytest.mark.parametrize(
    "change",
    [
        {"canaries": 5}, {"canaries": []}, {"canaries": [{"id": "a"}]}, {"candidates": {"letters": "xyz", "length": 2}},
        {"candidates": None}, {"candidates": {"letters": "0123456789", "length": 1}},
    ],
)  # fmt: skip
def test_a_changed_file_of_canaries_is_refused_without_its_text(tmp_path: Path, change: dict[str, object]) -> None:
    one = {"id": "canary-000000", "before": "Hidden ", "after": "", "truth": 42, "examples": [3]}
    right = {"kind": "hush canaries 1", "id": "x", "canaries": [one]}
    right["candidates"] = {"letters": "0123456789", "length": 2}
    (tmp_path / "canaries.json").write_text(json.dumps(right))
    assert read_canaries(tmp_path / "canaries.json").canaries[0].truth == 42
    (tmp_path / "canaries.json").write_text(json.dumps(right | change))
    with pytest.raises(InvalidInput, match="not a file of canaries") as caught:
        read_canaries(tmp_path / "canaries.json")
    assert "Hidden" not in str(caught.value)
    assert "42" not in str(caught.value).replace(str(tmp_path), "")


@pytest.mark.parametrize("name", ["model", "incidence", "promises", "weights", "posteriors"])
def test_a_certificate_must_name_all_else(tmp_path: Path, name: str) -> None:
    with pytest.raises(InvalidInput, match=rf"not the model of|differ in fingerprint of the {name};"):
        release(tmp_path / "run", plan_for(THREE), byte_model(), TOKENIZER, unnamed=(name,))


def test_a_plan_with_other_noise_under_the_same_posteriors_is_refused(run: AuditedRun) -> None:
    path = run.model.parent / "plan" / "plan.json"
    for name, value in (("noise_multiplier", run.plan.noise_multiplier / 2), ("rounds", run.plan.rounds + 1)):
        kept = path.read_text()
        record = json.loads(kept)
        del record["digest"]
        record[name] = value
        path.write_text(json.dumps(record | {"digest": record_digest(record)}))
        with pytest.raises(InvalidInput, match="not the plan"):
            AuditedRun.load(run.model.parents[1])
        path.write_text(kept)
    AuditedRun.load(run.model.parents[1])


@pytest.mark.parametrize("fingerprints", [5, [], "x", None])
def test_a_certificate_without_fingerprints_is_refused(run: AuditedRun, fingerprints: object) -> None:
    path = run.model.parent / "certificate.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | {"fingerprints": fingerprints}))
    with pytest.raises(InvalidInput, match="not a certificate"):
        AuditedRun.load(run.model.parents[1])


@pytest.mark.parametrize("recipe", ["[]", '"x"', '{"max_length": "x"}', '{"max_length": -3}', '{"max_length": true}'])
def test_a_recipe_that_says_no_length_is_refused(run: AuditedRun, recipe: str) -> None:
    (run.model.parents[1] / "owner").mkdir()
    (run.model.parents[1] / "owner" / "recipe.json").write_text(recipe)
    with pytest.raises(InvalidInput, match=r"recipe\.json"):
        AuditedRun.load(run.model.parents[1])

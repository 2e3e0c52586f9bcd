"""A run plans with the slots of its scan: only examples with a secret are drawn, and the plan names the skeletons."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from small_runs import check_complete, ran, small_config, small_desk, small_texts

from hush.errors import InvalidInput
from hush.keys import DataKey
from hush.plan import Plan
from hush.plan.make import choose_held_out, held_out_examples
from hush.run.folder import RunPaths, RunRecord
from hush.run.job import RunJob
from hush.run.stage_plan import PlanStage
from hush.run.stages import ScanStage


def scanned(folder: Path, **sections: Any) -> RunJob:
    """A run whose scan is done."""
    config = small_config(folder, **sections)
    key = DataKey.load(folder / "my.key")
    record = RunRecord(path=folder / "s.json", key=key.id)
    job = RunJob(config=config, paths=RunPaths(folder / "run"), key=key, record=record)
    job.record.finish("scan", "", ScanStage().run(job))
    return job


def hidden_spans(folder: Path) -> dict[str, Any]:
    """The section of rules in which every rule hides spans."""
    rules = small_desk(folder)["rules"]
    return {"rules": [rule | {"hides": "span"} for rule in rules]}


def test_the_plan_of_a_run_has_the_slots_of_its_scan_and_names_the_skeletons(tmp_path: Path) -> None:
    whole = scanned(tmp_path)
    PlanStage().run(whole)
    assert Plan.load(whole.paths.plan).slots is None
    job = scanned(tmp_path, **hidden_spans(tmp_path))
    made = PlanStage().run(job)
    plan = Plan.load(job.paths.plan)
    assert plan.slots is not None
    assert len(plan.slots) == np.count_nonzero(plan.incidence.secrets_per_example) == 5
    np.testing.assert_array_equal(held_out_examples(plan), choose_held_out(plan.incidence, 0.2))
    skeletons = [text.split(" QX-")[0] + (" [codes]" if "QX-" in text else "") for text in small_texts()]
    assert plan.skeleton_fingerprint == job.key.fingerprint_rows(skeletons)
    assert made["kept_fraction"] == plan.kept_fraction


def test_a_batch_of_more_than_the_examples_with_a_secret_is_refused_before_planning(tmp_path: Path) -> None:
    job = scanned(tmp_path, **hidden_spans(tmp_path), plan={"batch_size": 6})
    with pytest.raises(InvalidInput, match="is more than the 5 examples with a secret, of 30"):
        PlanStage().run(job)


def test_a_whole_run_hides_spans_from_the_rule_to_the_release(tmp_path: Path) -> None:
    ran(tmp_path, **hidden_spans(tmp_path), plan={"batch_size": 3})
    check_complete(tmp_path / "run")
    certificate = (tmp_path / "run" / "release" / "certificate.md").read_text()
    assert "What is secret" in certificate
    report = (tmp_path / "run" / "owner" / "report.html").read_text()
    assert "What is hidden" in report
    assert "What is hidden" not in (tmp_path / "run" / "release" / "report.html").read_text()
    assert ran(tmp_path, **hidden_spans(tmp_path), plan={"batch_size": 3}) == []

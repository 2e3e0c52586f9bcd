"""A run plans with the slots of its scan: only examples with a secret are drawn, and the plan names the skeletons."""

from pathlib import Path

import numpy as np
import pytest
from small_runs import SECRETS, small_config, small_texts

from hush.errors import InvalidInput
from hush.keys import DataKey
from hush.plan import Plan
from hush.plan.make import choose_held_out, held_out_examples
from hush.run.folder import RunPaths, RunRecord
from hush.run.job import RunJob
from hush.run.stages import PlanStage, ScanStage
from hush.scan.result import Scan
from hush.slots import save_spans, slots_of_spans


@pytest.fixture
def job(tmp_path: Path) -> RunJob:
    """A run whose scan is done; it hides whole examples."""
    config = small_config(tmp_path)
    key = DataKey.load(tmp_path / "my.key")
    job = RunJob(
        config=config, paths=RunPaths(tmp_path / "run"), key=key, record=RunRecord(path=tmp_path / "s.json", key=key.id)
    )
    job.record.finish("scan", "", ScanStage().run(job))
    return job


def hide_codes(job: RunJob) -> None:
    graph = Scan.load(job.paths.scan).incidence
    secret = np.repeat(np.arange(graph.num_secrets), graph.examples_per_secret)
    begin = [len(small_texts()[example]) - len(SECRETS[0]) for example in graph.example_of_entry]
    spans = slots_of_spans(
        graph, ["codes"], example=graph.example_of_entry, begin=begin, end=np.array(begin) + len(SECRETS[0]),
        rule=np.zeros(len(begin), dtype=int), secret=secret,
    )  # fmt: skip
    save_spans(spans, job.paths.scan)


def test_the_plan_of_a_run_has_the_slots_of_its_scan_and_names_the_skeletons(job: RunJob) -> None:
    PlanStage().run(job)
    assert Plan.load(job.paths.plan).slots is None
    hide_codes(job)
    made = PlanStage().run(job)
    plan = Plan.load(job.paths.plan)
    assert plan.slots is not None
    assert len(plan.slots) == np.count_nonzero(plan.incidence.secrets_per_example) == 5
    np.testing.assert_array_equal(held_out_examples(plan), choose_held_out(plan.incidence, 0.2))
    skeletons = [text.split(" QX-")[0] + (" [codes]" if "QX-" in text else "") for text in small_texts()]
    assert plan.skeleton_fingerprint == job.key.fingerprint_rows(skeletons)
    assert made["kept_fraction"] == plan.kept_fraction


def test_a_batch_of_more_than_the_examples_with_a_secret_is_refused_before_planning(job: RunJob) -> None:
    hide_codes(job)
    config = small_config(job.config.folder, plan={"batch_size": 6})
    job = RunJob(config=config, paths=job.paths, key=job.key, record=job.record)
    with pytest.raises(InvalidInput, match="is more than the 5 examples with a secret, of 30"):
        PlanStage().run(job)

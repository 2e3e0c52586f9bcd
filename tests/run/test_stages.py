"""The table of stages: the one place that states their order, and the versions under which results are kept."""

from dataclasses import replace
from pathlib import Path

import pytest
from small_runs import CANARIES, ran, small_config

from hush.errors import InvalidInput
from hush.keys import DataKey
from hush.run import pipeline
from hush.run.folder import RunPaths, RunRecord
from hush.run.forecast import forecast
from hush.run.job import RunJob, Watch
from hush.run.pipeline import STAGES, inputs_of, stages_from, stages_of


def test_a_stage_needs_only_stages_before_it() -> None:
    names = [stage.name for stage in STAGES]
    assert len(set(names)) == len(names)
    for place, stage in enumerate(STAGES):
        assert set(stage.needs) <= set(names[:place])


def test_a_config_asks_for_stages_in_the_order_of_the_table(tmp_path: Path) -> None:
    for audit in ({}, {"audit": {"attacks": ["exposure"], "canaries": CANARIES}}, {"audit": None}):
        asked = [stage.name for stage in stages_of(small_config(tmp_path, **audit))]
        assert asked == [stage.name for stage in STAGES if stage.name in asked]
        assert ("audit" in asked) == (audit != {"audit": None})
        assert ("canaries" in asked) == bool(audit.get("audit"))


def test_a_stage_that_is_not_in_the_table_is_refused(own: Path) -> None:
    for work in (
        lambda: ran(own, since="trian"),
        lambda: forecast(small_config(own), output=own / "run", since="trian"),
    ):
        with pytest.raises(InvalidInput, match=r"since='trian'; pass one of data, scan, .*report"):
            work()
    assert stages_from("audit") == ["audit", "report"]


def test_a_forecast_repeats_what_the_run_repeats_also_from_a_stage_that_is_not_asked_for(own: Path) -> None:
    """Without canaries the stages after them are repeated all the same."""
    config, asked = small_config(own), {"since": "canaries", "new_release": True}
    expected = [one.stage for one in forecast(config, output=own / "run", **asked) if one.state == "runs"]
    assert expected == ran(own, **asked) == ["plan", "train", "audit", "report"]


def test_a_newer_hush_draws_no_other_canaries_and_trains_no_second_time(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    audit = {"attacks": ["exposure"], "candidates": 20, "canaries": CANARIES}
    ran(tmp_path, audit=audit)
    kept = (tmp_path / "run" / "owner" / "canaries" / "owner" / "canaries.json").read_bytes()
    newer = [stage if stage.name in RECORDED else replace(stage, version="99.0") for stage in STAGES]
    monkeypatch.setattr(pipeline, "STAGES", tuple(newer))
    again = ran(tmp_path, audit=audit)
    assert "canaries" not in again
    assert "train" not in again
    assert {"scan", "plan", "audit", "report"} <= set(again)
    assert (tmp_path / "run" / "owner" / "canaries" / "owner" / "canaries.json").read_bytes() == kept


def test_a_stage_reports_that_it_begins_or_is_kept(own: Path) -> None:
    told: list[tuple[str, str]] = []
    ran(own, since="report", watch=Watch(stage=lambda name, state: told.append((name, state))))
    names = [stage.name for stage in stages_of(small_config(own))]
    assert told == [(name, "begins" if name == "report" else "kept") for name in names]


# --- runs of 0.1.0 are recognised: fingerprints of settings are what that version recorded

KEY = DataKey(bytes(range(32)))
RECORDED = {"canaries": "bb2d465de51cedce", "train": "3e1d842f20e417c5"}


def test_the_inputs_of_stages_are_those_that_0_1_0_recorded(tmp_path: Path) -> None:
    """A change of a section that changes its dump would have every finished run refused as a further training."""
    audit = {"attacks": ["mechanism", "exposure"], "canaries": CANARIES}
    config = small_config(tmp_path, audit=audit)
    record = RunRecord(path=tmp_path / "stages.json", key=KEY.id)
    for stage in STAGES:
        record.finish(stage.name, "", {"fingerprint": stage.name, "places": "p"})
    job = RunJob(config=config, paths=RunPaths(tmp_path / "run"), key=KEY, record=record)
    found = {stage.name: inputs_of(stage, job) for stage in STAGES if stage.name in RECORDED}
    assert {name: value.split(":")[1][:16] for name, value in found.items()} == RECORDED

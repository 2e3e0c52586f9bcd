"""A run does what its parts do, and does nothing twice."""

import json
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from small_runs import CANARIES, check_complete, plan_fingerprint, ran, small_config, small_desk

from hush.errors import InvalidInput
from hush.keys import DataKey
from hush.plan import Plan
from hush.plan.make import choose_held_out, make_plan_holding_out
from hush.run import forecast, run_pipeline
from hush.run.config import Config
from hush.run.job import Watch, file_rows
from hush.run.pipeline import STAGES
from hush.run.sections import SmallModel
from hush.run.stage_train import Interrupted, base_model
from hush.scan.result import Scan
from hush.scan.scanner import scan as scan_corpus


def test_a_finished_run_is_complete(finished: Path) -> None:
    check_complete(finished)


def test_the_plan_is_the_one_that_the_parts_make(finished: Path, desk: Path) -> None:
    scan = scan_corpus(desk / "data.txt", {
        "defaults": {"prior": 1e-6, "ceiling": 1e-2},
        "rules": [{"name": "codes", "find": "patterns", "patterns": [r"QX-\d{4}"]}],
    }, key=desk / "my.key")  # fmt: skip
    plan = make_plan_holding_out(
        scan.incidence, choose_held_out(scan.incidence, 0.2), prior=scan.secrets.prior, ceiling=scan.secrets.ceiling,
        batch_size=4, rounds=4, secret_ids=scan.secrets.ids, data_fingerprint=scan.data_fingerprint,
    )  # fmt: skip
    plan.save(desk / "by-hand")
    assert plan_fingerprint(desk / "by-hand") == plan_fingerprint(finished / "release" / "plan")
    key = DataKey.load(desk / "my.key")
    assert plan.data_fingerprint == key.fingerprint_rows((desk / "data.txt").read_text().splitlines())
    assert Scan.load(finished / "owner" / "scan").incidence == scan.incidence


def test_holding_out_what_holds_secrets_is_refused(tmp_path: Path) -> None:
    small_desk(tmp_path)
    (tmp_path / "data.txt").write_text("".join(f"note {number} QX-1000\n" for number in range(30)))
    words = r"^plan\.hold_out=0\.2; only 0 of 30 examples contain no secret.*no score could be shown.*or 0 to hold"
    with pytest.raises(InvalidInput, match=words):
        ran(tmp_path)
    assert not (tmp_path / "run" / "release").exists()


def test_a_table_with_nothing_but_its_header_is_called_empty(tmp_path: Path) -> None:
    small_desk(tmp_path)
    (tmp_path / "table.csv").write_text("text\r\n")
    with pytest.raises(InvalidInput, match=r"^data\.source='.*table\.csv'; it holds no example; pass data"):
        ran(tmp_path, data={"source": "table.csv"})


def test_lengths_that_no_text_has_room_for_are_told_by_their_key_and_cost_no_training(tmp_path: Path) -> None:
    with pytest.raises(InvalidInput, match=r"no sequence can be tried .*; lower audit\.prompts or audit"):
        ran(tmp_path, audit={"continuations": [500]})
    assert ran(tmp_path) == ["audit", "report"]


def test_prompts_that_no_text_has_room_for_do_not_end_a_run(tmp_path: Path) -> None:
    said: list[str] = []
    ran(tmp_path, audit={"prompts": [500]}, watch=Watch(notice=said.append))
    assert any("no text is long enough for prompts of 500 tokens; they were skipped, and" in notice for notice in said)


def test_nothing_is_done_twice(finished: Path, desk: Path) -> None:
    before = {path: path.stat().st_mtime_ns for path in finished.rglob("*") if path.name not in ("lock", "owner")}
    assert not run_pipeline(small_config(desk), output=finished).ran
    assert {path: path.stat().st_mtime_ns for path in before} == before


def test_a_run_may_be_moved_with_its_data(own: Path) -> None:
    assert ran(own) == []


def test_speed_may_change_without_training_again(own: Path) -> None:
    assert ran(own, training={"micro_batch": 2, "save_every": 3, "evaluate_every": 2}) == []


def test_a_changed_section_runs_its_stage_and_those_that_depend_on_it(own: Path) -> None:
    assert ran(own, audit={"trials": 60}) == ["audit", "report"]
    assert ran(own, audit={"trials": 60}, report={"title": "Another"}) == ["report"]
    assert "Another" in (own / "run" / "release" / "report.html").read_text()


def test_what_comes_to_the_same_changes_nothing_after_it(own: Path) -> None:
    """Data that was only touched is read again; a rule that finds the same leads to no other plan."""
    os.utime(own / "data.txt", (1e9, 1e9))
    assert ran(own) == ["data"]
    same = [{"name": "codes", "find": "patterns", "patterns": [r"QX-1\d{3}"]}]
    assert ran(own, rules=same) == ["scan"]
    check_complete(own / "run")


def test_a_further_training_must_be_asked_for_by_name(own: Path) -> None:
    more: dict[str, Any] = {"training": {"learning_rate": 0.01}}
    before = (own / "run" / "release" / "model" / "model.safetensors").read_bytes()
    with pytest.raises(InvalidInput, match=r"once more \(1 finished already, in .*training\).* pass new_release"):
        ran(own, **more)
    with pytest.raises(InvalidInput, match="pass new_release"):
        ran(own, since="plan")
    assert ran(own) == []  # the change is undone: all is there
    assert (own / "run" / "release" / "model" / "model.safetensors").read_bytes() == before
    assert ran(own, new_release=True, **more) == ["train", "audit", "report"]
    assert (own / "run" / "release" / "model" / "model.safetensors").read_bytes() != before
    assert ran(own, **more) == []


def test_going_back_to_an_earlier_training_finds_it_again(own: Path) -> None:
    before = (own / "run" / "release" / "model" / "model.safetensors").read_bytes()
    ran(own, new_release=True, training={"learning_rate": 0.01})
    watched: list[object] = []
    assert ran(own, watch=Watch(live=watched.append)) == ["train", "audit", "report"]
    assert not watched  # not a single round
    assert (own / "run" / "release" / "model" / "model.safetensors").read_bytes() == before


def test_a_stage_can_be_done_again(own: Path) -> None:
    assert ran(own, since="audit") == ["audit", "report"]
    assert ran(own, since="report") == ["report"]
    before = (own / "run" / "release" / "model" / "model.safetensors").read_bytes()
    assert ran(own, since="plan", new_release=True) == ["plan", "train", "audit", "report"]
    assert (own / "run" / "release" / "model" / "model.safetensors").read_bytes() != before
    assert ran(own) == []


def test_stopped_training_goes_on_where_it_was(tmp_path: Path) -> None:
    from contextlib import nullcontext

    rounds: list[int] = []
    watch = Watch(live=lambda live: rounds.append(live.round), stoppable=lambda: nullcontext(lambda: len(rounds) == 2))
    with pytest.raises(Interrupted) as stopped:
        ran(tmp_path, watch=watch)
    assert (stopped.value.round, stopped.value.rounds) == (2, 4)
    assert not (tmp_path / "run" / "release").exists()
    states = {one.stage: one.state for one in forecast(small_config(tmp_path), output=tmp_path / "run")}
    assert states["plan"] == "done"
    assert states["train"] == "goes on"
    ran(tmp_path, watch=Watch(live=lambda live: rounds.append(live.round)))
    assert rounds == [1, 2, 3, 4]
    check_complete(tmp_path / "run")


def test_canaries_are_planted_once_and_end_up_in_plan_and_audit(tmp_path: Path) -> None:
    audit = {"attacks": ["exposure"], "candidates": 20, "canaries": CANARIES, "reference": "base-model"}
    assert ran(tmp_path, audit=audit) == [stage.name for stage in STAGES]
    assert ran(tmp_path, audit=audit) == []
    plan = Plan.load(tmp_path / "run" / "release" / "plan")
    assert [name for name in plan.secret_ids if name.startswith("canary")] == ["canary-000000", "canary-000001"]
    record = json.loads((tmp_path / "run" / "owner" / "audit" / "audit.json").read_text())
    assert record["exposure"]["canaries"] == 2
    assert ran(tmp_path, audit=audit | {"candidates": 30}) == ["audit", "report"]
    check_complete(tmp_path / "run")


def test_without_an_audit_there_is_none(tmp_path: Path) -> None:
    content = small_desk(tmp_path)
    del content["audit"]
    made = run_pipeline(Config.of(content, folder=tmp_path), output=tmp_path / "run")
    assert made.ran == ("data", "scan", "plan", "train", "report")
    assert made.verdict is None


def test_the_model_is_read_once_however_many_stages_ask_for_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    model = base_model(tmp_path / "made", SmallModel(layers=1, width=8, heads=1, length=32))
    config = small_config(tmp_path, model={"small": None, "name": str(model)}, audit={"reference": "base-model"})
    read: list[str] = []

    def rows(files: list[tuple[str, Path]], *more: Any) -> Iterator[str | bytes]:
        read.extend(name for name, _ in files)
        return file_rows(files, *more)

    monkeypatch.setattr("hush.run.stage_train.file_rows", rows)
    run_pipeline(config, output=tmp_path / "run")
    assert read.count("model.safetensors") == 1
    (model / "generation_config.json").write_text("{}")
    assert next(one.state for one in forecast(config, output=tmp_path / "run") if one.stage == "train") == "refused"

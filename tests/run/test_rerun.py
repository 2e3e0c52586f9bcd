"""What makes a stage run again and what does not: another working directory, other places, a training that is gone."""

import json
import shutil
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import pytest
from small_runs import ran, small_config, small_desk

from hush.errors import InvalidInput
from hush.run import run_pipeline
from hush.run.config import load_config
from hush.run.forecast import forecast
from hush.run.job import Watch
from hush.run.sections import SmallModel
from hush.run.stage_train import Interrupted, base_model


def test_a_run_goes_on_from_another_working_directory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    desk = tmp_path / "desk"
    base_model(desk, SmallModel(layers=1, width=8, heads=1, length=32)).rename(desk / "model")
    model = {"small": None, "name": "model"}
    content = small_desk(desk, model=model, audit={"held_out": "held-out.txt"}, output="run")
    (desk / "held-out.txt").write_text("the weather in town was wet again\nthe weather was fine and cold\n")
    (desk / "hush.yaml").write_text(json.dumps(content))
    rounds: list[int] = []
    watch = Watch(live=lambda live: rounds.append(live.round), stoppable=lambda: nullcontext(lambda: len(rounds) == 2))
    monkeypatch.chdir(desk)
    with pytest.raises(Interrupted):
        run_pipeline(load_config("hush.yaml"), watch=watch)
    monkeypatch.chdir(tmp_path)
    live = Watch(live=lambda live: rounds.append(live.round))
    assert run_pipeline(load_config("desk/hush.yaml"), watch=live).ran == ("train", "audit", "report")
    assert rounds == [1, 2, 3, 4]
    monkeypatch.chdir(desk)
    assert run_pipeline(load_config("hush.yaml")).ran == ()


def test_an_unfinished_run_may_be_moved_with_its_data(tmp_path: Path) -> None:
    rounds: list[int] = []
    watch = Watch(live=lambda live: rounds.append(live.round), stoppable=lambda: nullcontext(lambda: len(rounds) == 2))
    with pytest.raises(Interrupted):
        ran(tmp_path / "desk", watch=watch)
    (tmp_path / "desk").rename(tmp_path / "moved")
    live = Watch(live=lambda live: rounds.append(live.round))
    assert ran(tmp_path / "moved", watch=live) == ["train", "audit", "report"]
    assert rounds == [1, 2, 3, 4]


def test_the_audit_is_done_again_where_secrets_stand_elsewhere(own: Path) -> None:
    """The same secrets in the same examples, so the plan stays; but the attack would begin at other characters."""
    wider = [{"name": "codes", "find": "patterns", "patterns": [r" QX-\d{4}"]}]
    assert ran(own, rules=wider)[:2] == ["scan", "audit"]


def test_the_audit_is_done_again_with_another_model_in_the_references_folder(own: Path) -> None:
    reference = base_model(own / "reference", SmallModel(layers=1, width=8, heads=1, length=32))
    asked = {"reference": str(reference.relative_to(own))}
    assert ran(own, audit=asked) == ["audit", "report"]
    assert ran(own, audit=asked) == []
    (reference / "generation_config.json").write_text("{}")
    assert ran(own, audit=asked) == ["audit"]  # which finds the same, so that the report stays


def test_a_training_that_was_removed_is_not_done_again_unasked(own: Path) -> None:
    before = (own / "run" / "release" / "model" / "model.safetensors").read_bytes()
    shutil.rmtree(own / "run" / "owner" / "training")
    refused: list[dict[str, Any]] = [{}, {"since": "train"}, {"training": {"learning_rate": 0.01}}]
    for asked in refused:
        with pytest.raises(InvalidInput, match=r"once more \(1 finished .* was removed.*pass new_release"):
            ran(own, **asked)
    states = {one.stage: one.state for one in forecast(small_config(own), output=own / "run")}
    assert states["train"] == "refused"
    assert (own / "run" / "release" / "model" / "model.safetensors").read_bytes() == before
    rounds: list[int] = []
    watch = Watch(live=lambda live: rounds.append(live.round), stoppable=lambda: nullcontext(lambda: len(rounds) == 2))
    with pytest.raises(Interrupted):
        ran(own, new_release=True, watch=watch)
    assert ran(own) == ["train", "audit", "report"]  # asked for once, it goes on
    assert ran(own) == []

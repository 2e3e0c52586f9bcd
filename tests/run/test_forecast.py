"""What a run would do now, and what it would refuse, said without doing anything."""

from pathlib import Path
from typing import Any

import pytest
from small_runs import NO_CANARIES, small_config, small_texts

from hush.errors import InvalidInput
from hush.run import forecast, run_pipeline
from hush.run.estimates import LIBRARIES_SECONDS


def test_a_forecast_writes_nothing_and_says_what_would_run(tmp_path: Path) -> None:
    config = small_config(tmp_path)
    before = sorted(tmp_path.rglob("*"))
    fresh = forecast(config, output=tmp_path / "run")
    assert sorted(tmp_path.rglob("*")) == before
    assert [(one.stage, one.state) for one in fresh] == [(name, "runs") for name in NO_CANARIES]
    sizes = {one.stage: one.size for one in fresh}
    assert sizes["data"].startswith("1 file")
    assert sizes["train"].startswith("4 rounds of 4")
    run_pipeline(config, output=tmp_path / "run")
    assert {one.state for one in forecast(config, output=tmp_path / "run")} == {"done"}
    again = {one.stage: one.state for one in forecast(config, output=tmp_path / "run", since="train", new_release=True)}
    assert again == {"data": "done", "scan": "done", "plan": "done", "train": "runs", "audit": "runs", "report": "runs"}
    longer = small_config(tmp_path, plan={"rounds": 9})
    other = {one.stage: one for one in forecast(longer, output=tmp_path / "run", new_release=True)}
    assert [other[name].state for name in ("scan", "plan", "train")] == ["done", "runs", "depends"]
    assert "done" not in other["train"].size  # the rounds of another training


def test_a_forecast_has_the_libraries_once_and_no_time_for_what_the_scan_must_tell(own: Path) -> None:
    def seconds(output: str, **arguments: Any) -> dict[str, float | None]:
        config = arguments.pop("config", small_config(own))
        return {one.stage: one.seconds for one in forecast(config, output=own / output, **arguments)}

    fresh, done, again = (seconds("fresh"), seconds("run"), seconds("run", since="plan", new_release=True))
    assert set(done.values()) == {None}
    assert fresh["scan"] is not None
    assert fresh["scan"] > LIBRARIES_SECONDS
    assert fresh["train"] is not None
    assert fresh["train"] < LIBRARIES_SECONDS
    assert fresh["plan"] is None
    assert fresh["audit"] is None  # it extracts as many pairs as the scan finds
    assert again["plan"] is not None
    assert again["plan"] > LIBRARIES_SECONDS
    assert all(again[name] is not None for name in ("train", "audit", "report"))


@pytest.mark.parametrize(
    "more",
    [
        {"plan": {"rounds": 400}},
        {"plan": {"batch_size": 1024}},
        {"model": {"small": {"layers": 4, "width": 64, "heads": 1, "length": 32}}},
    ],
    ids=str,
)
def test_more_work_is_never_forecast_to_take_less_time(tmp_path: Path, more: dict[str, Any]) -> None:
    def training(**sections: Any) -> float:
        stages = forecast(small_config(tmp_path, **sections), output=tmp_path / "run")
        return next(one.seconds for one in stages if one.stage == "train") or 0.0

    assert training(**more) > training()


def test_what_a_model_would_not_read_is_said_before_anything_runs(tmp_path: Path) -> None:
    def caution(**sections: Any) -> str:
        config = small_config(tmp_path, **sections)
        return next(one.caution for one in forecast(config, output=tmp_path / "run") if one.stage == "train")

    texts = small_texts()
    lengths = [len(text) for text in texts]
    longer, unread = sum(length > 20 for length in lengths), sum(max(0, length - 20) for length in lengths)
    said = caution(training={"max_length": 20})
    assert said.startswith(
        f"of the first texts, {longer} of 30 texts are longer than the 20 tokens that the model reads"
    )
    assert f": {100 * unread / sum(lengths):.1f} % of the text is not trained on; cut them into chunks" in said
    assert caution(model={"small": {"layers": 1, "width": 8, "heads": 1, "length": 64}}) == ""
    assert caution(training={"max_length": 20}, chunks={"tokens": "auto"}) == ""


def test_a_further_training_that_nobody_asked_for_is_foretold_as_refused(own: Path) -> None:
    def train_state(**arguments: Any) -> str:
        return next(one.state for one in forecast(output=own / "run", **arguments) if one.stage == "train")

    with pytest.raises(InvalidInput, match="pass new_release"):
        forecast(small_config(own), output=own / "run", since="train")
    longer, faster = small_config(own, plan={"rounds": 9}), small_config(own, training={"learning_rate": 0.01})
    assert train_state(config=longer) == "depends, refused"
    assert train_state(config=faster) == "refused"
    assert train_state(config=faster, new_release=True) == "runs"
    assert train_state(config=small_config(own)) == "done"
    for config in (longer, faster):
        with pytest.raises(InvalidInput, match="pass new_release"):
            run_pipeline(config, output=own / "run")
    assert train_state(config=longer) == "depends, refused"


def test_a_data_set_of_the_hub_is_not_fetched_to_foretell_a_run(tmp_path: Path) -> None:
    stages = {
        one.stage: one for one in forecast(small_config(tmp_path, data={"source": "imdb"}), output=tmp_path / "r")
    }
    assert stages["data"].size == "a data set by name, not looked at"
    assert stages["scan"].seconds is None

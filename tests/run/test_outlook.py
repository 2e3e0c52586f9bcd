"""A run says what can be learnt before it trains: forecast from its scan, then as its plan has it."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from small_runs import small_config

from hush.accounting.signal import GradientStatistics
from hush.errors import InvalidInput
from hush.keys import DataKey
from hush.plan import Plan
from hush.plan.signal import plan_budget
from hush.run import run_pipeline
from hush.run.folder import RunPaths, RunRecord
from hush.run.forecast import dry_run
from hush.run.job import RunJob, Watch
from hush.run.outlook import read_outlook
from hush.train.public.predictor import count_trained

AUTO = {"batch_size": "auto", "rounds": "auto", "keep": "auto"}


class Enough(Exception):
    """Raised to stop a run where a stage begins."""


def stopped_before(stage: str, folder: Path, **sections: Any) -> None:
    """Run the stages before this one."""

    def begins(name: str, state: str) -> None:
        if name == stage and state == "begins":
            raise Enough

    with pytest.raises(Enough):
        run_pipeline(small_config(folder, **sections), output=folder / "run", watch=Watch(stage=begins))


def job_of(folder: Path, **sections: Any) -> RunJob:
    paths, key = RunPaths(folder / "run"), DataKey.load(folder / "my.key")
    return RunJob(
        config=small_config(folder, **sections), paths=paths, key=key, record=RunRecord.load(paths.stages, key.id)
    )


def test_a_dry_run_says_nothing_before_the_scan_a_forecast_after_it_and_then_what_was_planned(tmp_path: Path) -> None:
    config = small_config(tmp_path, plan=AUTO)
    fresh = dry_run(config, output=tmp_path / "run")
    assert fresh.outlook is None
    sizes = {each.stage: (each.size, each.seconds) for each in fresh.stages}
    assert sizes["plan"] == sizes["train"] == ("batch size and rounds auto, chosen after the scan", None)
    stopped_before("plan", tmp_path, plan=AUTO)
    before = sorted(tmp_path.rglob("*"))
    forecast = dry_run(config, output=tmp_path / "run")
    assert sorted(tmp_path.rglob("*")) == before
    proposed = forecast.outlook
    assert proposed is not None
    assert not proposed["is_planned"]
    train = next(each for each in forecast.stages if each.stage == "train")
    assert f"{proposed['rounds']:,} rounds of {proposed['batch_size']:g}" in train.size
    assert train.seconds is not None
    stopped_before("train", tmp_path, plan=AUTO)
    planned = dry_run(config, output=tmp_path / "run").outlook
    assert planned is not None
    assert planned["is_planned"]
    plan = Plan.load(tmp_path / "run" / "owner" / "plan")
    assert planned["signal"] == pytest.approx(plan_budget(plan).signal)
    assert (plan.rounds, plan.batch_size) == (planned["rounds"], planned["batch_size"])
    assert proposed["prediction"]["parameters"] == planned["prediction"]["parameters"]
    assert planned["signal"] == pytest.approx(proposed["signal"], rel=0.3)


def test_a_run_measures_its_model_on_public_examples_and_keeps_what_it_found(tmp_path: Path) -> None:
    texts = [f"note {number} about the weather of day {number * 7}" for number in range(60)]
    texts[::10] = [f"{text} QX-1000" for text in texts[::10]]
    small_config(tmp_path)  # makes key and data, which are replaced
    (tmp_path / "data.txt").write_text("\n".join(texts) + "\n")
    stopped_before("train", tmp_path)
    job = job_of(tmp_path)
    plan = Plan.load(job.paths.plan)
    outlook = read_outlook(job, plan)
    assert isinstance(outlook.statistics, GradientStatistics)
    assert outlook.statistics.examples >= 32
    assert 0 <= outlook.statistics.alignment <= 1
    model = next((tmp_path / "run" / "owner" / "base-model").iterdir())
    assert outlook.parameters == outlook.statistics.parameters == count_trained(str(model))
    kept = job.outputs("plan")["outlook"]
    assert outlook.record() == {name: value for name, value in kept.items() if name != "inputs"}
    (dropping,) = outlook.remaining
    free = [text for text in texts if "QX" not in text]
    assert dropping.text_share == pytest.approx(sum(map(len, free)) / sum(map(len, texts)))
    assert "QX" not in job.paths.stages.read_text()


def test_what_the_forecast_takes_for_the_size_of_a_small_model_is_its_size(tmp_path: Path) -> None:
    small = {"layers": 2, "width": 12, "heads": 3, "length": 20}
    sections: dict[str, Any] = {"model": {"small": small}}
    stopped_before("plan", tmp_path, **sections)
    forecast = dry_run(small_config(tmp_path, **sections), output=tmp_path / "run").outlook
    stopped_before("train", tmp_path, **sections)
    planned = dry_run(small_config(tmp_path, **sections), output=tmp_path / "run").outlook
    assert forecast is not None
    assert planned is not None
    assert forecast["prediction"]["parameters"] == planned["prediction"]["parameters"]


def test_more_warmup_than_the_chosen_rounds_is_refused_when_they_are_chosen(tmp_path: Path) -> None:
    config = small_config(tmp_path, plan=AUTO, training={"warmup": 100_000})
    with pytest.raises(
        InvalidInput, match=r"^training\.warmup=100000; it is more than the \d+ rounds of the plan; lower it"
    ):
        run_pipeline(config, output=tmp_path / "run")
    assert not (tmp_path / "run" / "owner" / "plan").exists()


def test_chosen_numbers_are_those_of_a_run_that_states_them(tmp_path: Path) -> None:
    stopped_before("train", tmp_path, plan={**AUTO, "keep": 0.9})
    chosen = Plan.load(tmp_path / "run" / "owner" / "plan")
    stated = {"batch_size": chosen.batch_size, "rounds": chosen.rounds, "keep": 0.9}
    stopped_before("train", tmp_path / "other", plan=stated)
    other = Plan.load(tmp_path / "other" / "run" / "owner" / "plan")
    assert np.array_equal(chosen.weights, other.weights)
    assert chosen.noise_multiplier == other.noise_multiplier

"""What a config asks of plan and training: what it was is recorded, what cannot be is refused in its words."""

import json
from pathlib import Path
from typing import Any

import pytest
from small_runs import small_config, small_texts

from hush.errors import InfeasiblePlan, InvalidInput
from hush.run import run_pipeline

LENGTH = 32


@pytest.mark.parametrize("length", [LENGTH, 20, 2])
def test_a_run_records_how_many_texts_were_cut(tmp_path: Path, length: int) -> None:
    config = small_config(tmp_path, training={"max_length": length}, audit=None)
    made = run_pipeline(config, output=tmp_path / "run").outputs["train"]
    assert made["max_length"] == length
    assert made["cut_texts"] == sum(len(text.encode()) > length for text in small_texts())
    stages = tmp_path / "run" / "stages.json"
    content = json.loads(stages.read_text())
    del content["stages"]["train"]  # as if killed after the last round and before the record
    stages.write_text(json.dumps(content))
    assert run_pipeline(config, output=tmp_path / "run").outputs["train"] == made


@pytest.mark.parametrize("metric", ["public", {"corpus": "books.txt", "count": 3}])
def test_a_run_measures_the_metric_that_its_config_asks_for(tmp_path: Path, metric: Any) -> None:
    (tmp_path / "books.txt").write_text("".join(f"a line of book {n}\n" for n in range(9)))
    config = small_config(tmp_path, training={"metric": metric}, audit=None)
    assert run_pipeline(config, output=tmp_path / "run").outputs["train"]["certifies"]
    recipe = json.loads(next((tmp_path / "run").rglob("recipe.json")).read_text())
    corpus = str(tmp_path / "books.txt") if isinstance(metric, dict) else None
    assert recipe["metric"]["corpus"] == corpus
    assert recipe["metric"]["exponent"] == -0.25


@pytest.mark.parametrize("sections", [{"training": {"max_length": 1}}, {"model": {"small": {"length": 1}}}])
def test_one_token_leaves_nothing_to_learn(tmp_path: Path, sections: dict[str, Any]) -> None:
    with pytest.raises(InvalidInput, match="a whole number of at least 2"):
        small_config(tmp_path, **sections)


@pytest.mark.parametrize("hold_out", [0.0, 0.2])
def test_a_batch_larger_than_the_data_is_bad_input(tmp_path: Path, hold_out: float) -> None:
    plan = {"batch_size": 5000, "hold_out": hold_out}
    examples = 30 - int(hold_out * 25)  # five of thirty hold a secret
    with pytest.raises(
        InvalidInput, match=rf"^plan\.batch_size=5000 is more than the {examples} examples.*at most {examples}"
    ):
        run_pipeline(small_config(tmp_path, plan=plan), output=tmp_path / "run")
    fits = small_config(tmp_path, plan=plan | {"batch_size": examples, "rounds": 1}, audit=None)
    assert run_pipeline(fits, output=tmp_path / "run").outputs["plan"]["batch_size"] == examples


def test_promises_that_leave_no_room_are_named_by_id(tmp_path: Path) -> None:
    config = small_config(tmp_path, promises={"prior": 0.01, "ceiling": 0.01})
    with pytest.raises(InfeasiblePlan) as caught:
        run_pipeline(config, output=tmp_path / "run")
    said = str(caught.value)
    assert said.startswith("codes-000000, codes-000001, codes-000002: the ceiling is the prior (0.01 for the first)")
    assert "rates" not in said

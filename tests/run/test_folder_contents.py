"""Commands that are given the folder of a run find the training and the plan that it stands for."""

from pathlib import Path

import pytest

from hush.errors import InvalidInput
from hush.run.folder import RunRecord, locate_plan, locate_training

PLACES = ["", "plan", "release/plan", "share/plan", "owner/plan"]  # the first of them that is there counts


@pytest.mark.parametrize("first", range(len(PLACES)))
def test_the_plan_that_is_released_counts_before_the_owners(tmp_path: Path, first: int) -> None:
    for place in PLACES[first:]:
        (tmp_path / place).mkdir(parents=True, exist_ok=True)
        (tmp_path / place / "plan.json").touch()
    assert locate_plan(tmp_path) == tmp_path / PLACES[first]


def test_the_last_finished_training_counts_whatever_else_is_there(tmp_path: Path) -> None:
    record = RunRecord(path=tmp_path / "stages.json", key="any")
    record.finish("plan", "inputs", {"fingerprint": "p"})
    with pytest.raises(InvalidInput, match="no finished training yet; let hush run go on"):
        locate_training(tmp_path)
    for name in ("first", "second"):
        (tmp_path / "owner" / "training" / f"{name}-unfinished").mkdir(parents=True)
        record.finish("train", "inputs", {"fingerprint": "m", "training": name})
        assert locate_training(tmp_path) == tmp_path / "owner" / "training" / name


def test_a_folder_that_is_no_run_is_left_as_it_is_and_has_no_plan(tmp_path: Path) -> None:
    assert locate_training(tmp_path) == tmp_path
    with pytest.raises(InvalidInput, match=r"no plan .* and no run with a plan in it; pass a folder that hush plan"):
        locate_plan(tmp_path)

"""The log that every study keeps of its runs: what ended stays, what failed is tried again, whatever stopped it."""

import json
import os
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from experiments.runs import RunLog, worker_map


def fails() -> dict[str, float]:
    raise RuntimeError("no memory")


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("logs")


@given(cut=st.integers(1, 200))
def test_a_line_that_was_cut_short_costs_its_own_run_alone(folder: Path, cut: int) -> None:
    """A machine may stop while it writes: the next run's line must not join the half that is left."""
    path = folder / "runs.jsonl"
    path.unlink(missing_ok=True)
    for number in (1, 2):
        RunLog(path).run({"number": number}, lambda: {"value": 0.5})
    path.write_bytes(path.read_bytes()[:-cut])
    for number in (2, 3):
        RunLog(path).run({"number": number}, lambda: {"value": 0.5})
    assert sorted(entry["key"]["number"] for entry in RunLog(path).entries()) == [1, 2, 3]


def test_a_failure_stays_in_the_log_and_its_run_is_done_again(tmp_path: Path) -> None:
    path = tmp_path / "runs.jsonl"
    assert RunLog(path).run({"number": 1}, fails) is None
    assert RunLog(path).run({"number": 1}, lambda: {"value": 0.5}) == {"value": 0.5}
    assert RunLog(path).run({"number": 1}, fails) == {"value": 0.5}  # not done a third time
    failed, done = (json.loads(line) for line in path.read_text().splitlines())
    assert failed["failed"] == "RuntimeError: no memory"
    assert done["key"] == failed["key"] == {"number": 1}


def test_without_time_nothing_is_begun(tmp_path: Path) -> None:
    log = RunLog(tmp_path / "runs.jsonl", minutes=-1)
    assert log.run({"number": 1}, lambda: {"value": 0.5}) is None
    assert not log.path.exists()


PID = "__import__('os').getpid()"


def test_one_worker_is_this_process_and_several_are_others(tmp_path: Path) -> None:
    """Each process begins as it is told to, before its first piece of work."""
    with worker_map(1, (tmp_path / "one").mkdir) as run:
        assert (tmp_path / "one").is_dir()
        assert list(run(eval, [PID] * 3)) == [os.getpid()] * 3
    with worker_map(2, (tmp_path / "several").mkdir, 0o777, False, True) as run:
        pids = list(run(eval, [PID] * 3))
        assert (tmp_path / "several").is_dir()
    assert os.getpid() not in pids

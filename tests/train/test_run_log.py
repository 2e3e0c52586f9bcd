"""The owner's log: it survives a kill at any byte, and tells each round once."""

import os
import stat
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from hush.errors import InvalidInput
from hush.train.run_folder import RoundRecord, RunLog
from limits import no_file_above


def record(round: int, *, loss: float = 1.0) -> RoundRecord:
    return RoundRecord.of(
        round, np.array([loss, loss]), np.array([0.5, 2.0]), clip_norm=1.0, signal_to_noise=0.1, seconds=0.2
    )


def write(path: Path, rounds: range, *, loss: float = 1.0) -> None:
    log = RunLog(path, resumed_after=rounds.start - 1)
    for round in rounds:
        log.append(record(round, loss=loss))
    log.close()


def test_a_log_gives_back_what_it_was_told(tmp_path: Path) -> None:
    write(tmp_path / "log", range(1, 4))
    assert RunLog.read(tmp_path / "log") == [record(1), record(2), record(3)]
    assert stat.S_IMODE((tmp_path / "log").stat().st_mode) == 0o600


@pytest.mark.parametrize("room", [0, 50])
def test_a_log_that_finds_no_room_is_named(tmp_path: Path, room: int) -> None:
    write(tmp_path / "log", range(1, 4))
    log = RunLog(tmp_path / "log", resumed_after=3)
    size = (tmp_path / "log").stat().st_size
    with pytest.raises((OSError, InvalidInput), match=r"tmp.*/log"), no_file_above(size + room):
        log.append(record(4))
    log.close()


def test_a_record_describes_the_examples_that_count() -> None:
    losses, norms = np.array([1.0, 3.0, np.nan]), np.array([0.5, 2.0, np.inf])
    found = RoundRecord.of(1, losses, norms, clip_norm=1.0, signal_to_noise=0.1, seconds=0.2)
    assert (found.examples, found.loss, found.clipped_share, found.not_finite) == (3, 2.0, 0.5, 1)
    assert found.norm_quantiles is not None
    assert (found.norm_quantiles[0], found.norm_quantiles[-1]) == (0.5, 2.0)
    assert "2.0" not in repr(found)


def test_an_empty_round_has_no_averages(tmp_path: Path) -> None:
    nothing = np.zeros(0)
    empty = RoundRecord.of(1, nothing, nothing, clip_norm=1.0, signal_to_noise=0.0, seconds=0.1)
    assert (empty.examples, empty.loss, empty.clipped_share, empty.norm_quantiles) == (0, None, None, None)
    log = RunLog(tmp_path / "log", resumed_after=0)
    log.append(empty)
    log.close()
    assert RunLog.read(tmp_path / "log") == [empty]


@given(cut=st.integers(0, 2000), again=st.integers(1, 5))
def test_a_log_cut_anywhere_keeps_its_whole_lines_and_goes_on(tmp_path_factory, cut: int, again: int) -> None:
    path = tmp_path_factory.mktemp("log") / "log"
    write(path, range(1, 5))
    content = path.read_bytes()[:cut]
    path.write_bytes(content)
    whole = content.count(b"\n")
    assert RunLog.read(path) == [record(round) for round in range(1, whole + 1)]
    resumed = min(again, whole + 1)  # from a checkpoint, which may be older
    write(path, range(resumed, resumed + 2), loss=7.0)
    old, new = range(1, resumed), range(resumed, resumed + 2)
    assert RunLog.read(path) == [record(round) for round in old] + [record(round, loss=7.0) for round in new]


def test_rounds_after_the_checkpoint_give_way_as_soon_as_the_run_is_resumed(tmp_path: Path) -> None:
    write(tmp_path / "log", range(1, 6))
    RunLog(tmp_path / "log", resumed_after=2).close()
    assert RunLog.read(tmp_path / "log") == [record(1), record(2)]


def test_a_disk_that_takes_half_a_line_costs_that_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path, whole = tmp_path / "rounds.jsonl", os.write
    log = RunLog(path, resumed_after=0)
    log.append(record(1))
    monkeypatch.setattr(os, "write", lambda handle, line: whole(handle, line[: len(line) // 2]))
    with pytest.raises(InvalidInput, match="only a part of a line"):
        log.append(record(2))
    monkeypatch.undo()
    log.close()
    write(path, range(2, 4))
    assert [entry.round for entry in RunLog.read(path)] == [1, 2, 3]


def test_a_line_of_something_else_is_refused(tmp_path: Path) -> None:
    write(tmp_path / "log", range(1, 3))
    (tmp_path / "log").write_bytes(b"hello\n" + (tmp_path / "log").read_bytes())
    with pytest.raises(InvalidInput, match="line 1"):
        RunLog.read(tmp_path / "log")

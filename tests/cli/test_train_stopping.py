"""hush train that is killed or asked to stop: the same command goes on and ends as if nothing had happened."""

import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
import torch
from training_desk import Desk, weights

from command_line import run
from hush.cli.results.train import TrainingBar
from hush.train.round import LiveNumbers
from hush.train.run_folder import RunLog


def test_killed_at_any_moment_the_same_command_goes_on_and_ends_as_if_nothing_had_happened(
    desk: Desk, tmp_path: Path
) -> None:
    """With a fixed seed, so that the two can be compared bit for bit."""
    options: list[object] = ["--insecure-seed", 3, "--save-every", 1]
    command = desk.train(tmp_path / "killed", *options, plan="long-plan")
    hush_program = Path(sys.executable).with_name("hush")
    environment = os.environ | {"OMP_NUM_THREADS": "1"}
    process = subprocess.Popen(
        [hush_program, *map(str, command)], stdout=subprocess.PIPE, stderr=subprocess.PIPE, env=environment
    )
    checkpoints = tmp_path / "killed" / "owner" / "checkpoints"
    try:
        while process.poll() is None and not list(checkpoints.glob("round-*[3-9].ckpt")):
            time.sleep(0.002)
        process.send_signal(signal.SIGKILL)
    finally:
        process.kill()
        _, errors = process.communicate()
    assert process.returncode == -signal.SIGKILL, errors.decode()
    assert not (tmp_path / "killed" / "release").exists()
    for folder, words in (
        ("killed", r"for 40 rounds \(\d+ of them in an earlier session\)\."),
        ("whole", r"for 40 rounds\."),
    ):
        result = run(*desk.train(tmp_path / folder, *options, plan="long-plan"))
        assert result.exit_code == 0, result.output
        assert re.search(words, result.stdout)
    killed, whole = (weights(tmp_path / name / "release" / "model") for name in ("killed", "whole"))
    assert all(torch.equal(killed[name], whole[name]) for name in whole)
    logs = [RunLog.read(tmp_path / name / "owner" / "rounds.jsonl") for name in ("killed", "whole")]
    assert logs[0] == logs[1]
    assert [record.round for record in logs[0]] == list(range(1, 41))


@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_ctrl_c_or_sigterm_stops_after_the_round_under_way_and_the_same_command_goes_on(
    desk: Desk, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, number: int, code: int
) -> None:
    """Its signal arrives once, after three rounds; a fixed seed lets the two be compared bit for bit."""
    heard = TrainingBar.__call__

    def interrupted(self: TrainingBar, live: LiveNumbers) -> None:
        heard(self, live)
        if live.round == 3:
            signal.raise_signal(number)

    command = desk.train(tmp_path / "run", "--insecure-seed", 4)
    handler = signal.getsignal(number)
    with monkeypatch.context() as patch:
        patch.setattr(TrainingBar, "__call__", interrupted)
        result = run(*command)
    assert result.exit_code == code, result.output
    assert "press Ctrl-C again to stop at once." in result.stderr
    assert "Stopped after round 3 of 6, which is saved. Run the same command again to continue there." in result.stderr
    assert result.stdout == ""
    assert signal.getsignal(number) is handler
    assert not (tmp_path / "run" / "release").exists()
    again = run(*command)
    assert "for 6 rounds (3 of them in an earlier session)." in again.stdout
    assert run(*desk.train(tmp_path / "whole", "--insecure-seed", 4)).exit_code == 0
    one, whole = (weights(tmp_path / name / "release" / "model") for name in ("run", "whole"))
    assert all(torch.equal(one[name], whole[name]) for name in whole)


@pytest.mark.parametrize("moment", ["reading", "round"])
def test_ctrl_c_stops_at_once_before_a_round_is_done_or_when_it_comes_twice(
    desk: Desk, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, moment: str
) -> None:
    def interrupted(self: TrainingBar, *numbers: object) -> None:
        if moment == "reading" or numbers[0].round == 2:  # pyright: ignore[reportAttributeAccessIssue]
            signal.raise_signal(signal.SIGINT)
            signal.raise_signal(signal.SIGINT)

    monkeypatch.setattr(TrainingBar, "reading" if moment == "reading" else "__call__", interrupted)
    command = desk.train(tmp_path / "run", "--save-every", 1)
    result = run(*command)
    assert result.exit_code == 130, result.output
    begun = "Stopped. Run the same command again to continue from the last saved state."
    before = "Stopped before training began; nothing was written. Run the same command again to start over."
    assert (before if moment == "reading" else begun) in result.stderr
    assert (tmp_path / "run").exists() == (moment == "round")
    monkeypatch.undo()
    assert run(*command).exit_code == 0

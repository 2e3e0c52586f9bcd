"""One command from data to report: what it leaves, what it says, and how it goes on after Ctrl-C."""

import json
import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
import torch
import yaml

import hush
from command_line import message, refused, run, run_json
from hush.cli.interrupt import RESUMABLE_MESSAGE
from hush.run.job import RunJob
from hush.run.stage_plan import PlanStage


@pytest.fixture
def config(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """What hush init writes, with data, made small."""
    monkeypatch.chdir(tmp_path)
    assert run("init").exit_code == 0
    texts = [f"note {number} of the day, code QX-{1000 + number % 4}" for number in range(24)]
    Path("data.jsonl").write_text("".join(json.dumps({"text": text}) + "\n" for text in texts))
    content = yaml.safe_load(Path("hush.yaml").read_text())
    content["plan"] = {"batch_size": 4, "rounds": 3}
    content["model"] = {"small": {"layers": 1, "width": 8, "heads": 1, "length": 48}}
    content["training"] = {"save_every": 1, "device": "cpu"}
    content["audit"] |= {"trials": 50, "secrets": 1, "prompts": [4]}
    content["report"] = {"frontier": False, "methods": False}
    Path("hush.yaml").write_text(yaml.safe_dump(content))
    return tmp_path / "hush.yaml"


def test_from_init_to_a_verified_plan(config: Path) -> None:
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    dry = run_json("run", config, "--dry-run")
    assert [row["state"] for row in dry["stages"]] == ["runs"] * 6
    assert dry["is_estimate"]
    assert "Times are forecasts" in " ".join(run("run", config, "--dry-run").stdout.split())
    assert not Path("hush-run").exists()
    record = run_json("run", config)
    assert record["ran"] == ["data", "scan", "plan", "train", "audit", "report"]
    assert record["certifies"]
    assert hush.verify(record["release"]).passed
    assert run_json("verify", "hush-run") == run_json("verify", "hush-run/release")
    assert "The release of this run: hush-run/release" in run("verify", "hush-run").stdout
    why = run_json("explain", "hush-run", "access-codes-000000")
    assert why == run_json("explain", "hush-run/owner/scan", "access-codes-000000")
    audited = run_json("audit", "hush-run", "--output", "audited", "--trials", 50, "--device", "cpu")
    assert audited["model"] == record["model"]
    shown = run("run", config)
    assert shown.exit_code == 0
    assert "nothing: no input changed" in shown.stdout
    assert "May be passed on" in shown.stdout
    quiet = run("run", config, "--quiet", "--from", "report")
    assert (quiet.exit_code, quiet.stderr) == (0, "")
    assert "May be passed on" in quiet.stdout
    verbose = run("run", config, "--verbose", "--from", "report").stderr
    assert "Training (unchanged)" in verbose
    assert re.search(r"Writing the report: \d+\.\d\d s", verbose)
    assert "pass --new-release" in refused(2, "run", config, "--from", "train", "--quiet")
    torch.set_num_threads(threads)


def test_init_keeps_what_is_there_unless_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    assert run("init", "--kind", "code", "--output", "mine.yaml").exit_code == 0
    before = Path("mine.yaml").read_bytes()
    assert "mine.yaml exists; pass --force" in refused(2, "init", "--output", "mine.yaml")
    assert Path("mine.yaml").read_bytes() == before
    assert run_json("init", "--output", "mine.yaml", "--force")["kind"] == "text"
    assert Path("mine.yaml").read_bytes() != before


def test_an_impossible_promise_ends_with_1_and_bad_input_with_2(config: Path) -> None:
    content = yaml.safe_load(config.read_text())
    (rule,) = content["rules"]
    impossible = rule | {"promise": {"prior": 0.01, "ceiling": 0.01}}
    config.write_text(yaml.safe_dump(content | {"rules": [impossible]}))
    assert refused(1, "run", config, "--quiet").startswith("Error: access-codes-000000")
    config.write_text(yaml.safe_dump(content | {"plan": {"batch_size": 5000, "rounds": 3}}))
    assert "plan.batch_size=5000 is more than the 24 examples with a secret, of 24; only these are drawn" in refused(
        2, "run", config, "--quiet"
    )
    config.write_text(yaml.safe_dump(content | {"plan": {"batch_size": 4, "round": 3}}))
    assert "(did you mean rounds?)" in refused(2, "run", config)
    assert "pass one of them" in refused(2, "run", config, "--quiet", "--verbose")


@pytest.mark.parametrize("rate", [-1.0, 0.0, float("nan"), float("inf"), 1e308, 1000.1])
def test_an_absurd_learning_rate_is_refused_before_any_work(config: Path, rate: float) -> None:
    content = yaml.safe_load(config.read_text())
    content["training"]["learning_rate"] = rate
    config.write_text(yaml.safe_dump(content))
    for more in ([], ["--dry-run"]):
        assert re.search(r"training\.learning_rate is .* pass a number above 0", refused(2, "run", config, *more))
    assert not Path("hush-run").exists()


@pytest.mark.parametrize(
    ("command", "loading"),
    [
        ("run hush.yaml", "hush.run.config.load_config"),
        ("run hush.yaml", "hush.run.pipeline.run_pipeline"),
        ("audit hush-run", "hush.run.folder.locate_training"),
    ],
)
def test_ctrl_c_while_a_command_loads_does_not_say_that_it_begins_anew(
    config: Path, monkeypatch: pytest.MonkeyPatch, command: str, loading: str
) -> None:
    def stopped(*_: object, **__: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(loading, stopped)
    result = run(*command.split())
    assert result.exit_code == 130
    assert message(result) == "Stopped. Finished work is kept; run the same command again to continue."


def test_what_a_run_has_not_finished_is_said_by_its_name(tmp_path: Path) -> None:
    """stages.json marks the folder of a run; without a plan or a training in it, there is nothing to look at."""
    content = {"format": "hush run 1", "key": "k", "attempts": {}, "allowed": [], "stages": {}}
    (tmp_path / "stages.json").write_text(json.dumps(content))
    assert "no run with a plan in it" in refused(2, "verify", tmp_path)
    assert "holds no finished training yet; let hush run go on" in refused(2, "audit", tmp_path)
    assert "holds no finished scan yet; continue it with hush run" in refused(2, "explain", tmp_path, "0")


@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_ctrl_c_or_sigterm_leaves_a_run_that_goes_on(config: Path, number: int, code: int) -> None:
    """Interrupted in training, the command saves its round and ends with the code that shells have for the signal."""
    content = yaml.safe_load(config.read_text())
    content["plan"]["rounds"] = 400
    config.write_text(yaml.safe_dump(content))
    command = [sys.executable, "-m", "hush", "run", str(config)]
    environment = os.environ | {"OMP_NUM_THREADS": "1"}
    child = subprocess.Popen(command, stderr=subprocess.PIPE, text=True, env=environment)
    deadline = time.monotonic() + 120
    while not list(config.parent.glob("hush-run/owner/training/*/owner/checkpoints/round-000002.ckpt")):
        assert child.poll() is None
        assert time.monotonic() < deadline
        time.sleep(0.01)
    child.send_signal(number)
    said = child.communicate(timeout=120)[1]
    assert child.returncode == code, said
    assert "Traceback" not in said
    assert re.search(r"Stopped after round \d+ of 400, which is saved", said)
    dry = {row["stage"]: row for row in run_json("run", config, "--dry-run")["stages"]}
    assert dry["train"]["state"] == "goes on"
    assert "done" in dry["train"]["size"]
    assert not (config.parent / "hush-run" / "release").exists()


@pytest.mark.parametrize("error", [None, AttributeError("half loaded")])
def test_ctrl_c_that_a_library_swallows_stops_before_the_next_stage(
    config: Path, monkeypatch: pytest.MonkeyPatch, error: Exception | None
) -> None:
    plan = PlanStage.run

    def loading(self: PlanStage, job: RunJob) -> dict[str, Any]:
        try:
            signal.raise_signal(signal.SIGINT)
        except KeyboardInterrupt:
            if error is not None:
                raise error from None
        return plan(self, job)

    monkeypatch.setattr(PlanStage, "run", loading)
    stopped = run("run", config, "--quiet")
    assert (stopped.exit_code, stopped.stdout) == (130, "")
    assert message(stopped) == RESUMABLE_MESSAGE
    assert not Path("hush-run/owner/training").exists()

"""One command from data to report, and what all commands have in common: help, exit codes, no traceback."""

import json
import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import click
import pytest
import torch
import typer
import yaml

import hush
from command_line import message, refused, run, run_json
from hush.cli import app

COMMANDS: dict[str, Any] = typer.main.get_command(app).commands  # pyright: ignore[reportAttributeAccessIssue]
NO_INPUT = {"demo", "init"}  # commands that are whole without any argument

# For every command, arguments whose files are not there, or that are incomplete.
MISSING = {
    "audit": "no-run",
    "calibrate": "no.parquet --rounds 1 --batch-size 1 --prior 0.1 --ceiling 0.2",
    "canaries": "no.jsonl --output new --ceiling 0.5 --from-data",
    "demo": "--output",
    "explain": "no-scan 3",
    "frontier": "no.parquet --batch-size 1 --rounds 1 --prior 0.1 --ceiling 0.2",
    "init": "--output /no/such/folder/hush.yaml",
    "plan": "no.parquet --batch-size 1 --rounds 1 --prior 0.1 --ceiling 0.2 --output new",
    "posterior": "--rates no.json --noise 1 --rounds 1 --prior 0.1",
    "report": "no-plan --output new.html",
    "run": "no.yaml",
    "scan": "no.jsonl --rules no.yaml --output new",
    "sign": "no-plan --key no.pem",
    "train": "no-plan --model gpt2 --data no.jsonl",
    "verify": "no-plan",
}


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
    assert "Times are estimates" in " ".join(run("run", config, "--dry-run").stdout.split())
    assert not Path("hush-run").exists()
    record = run_json("run", config)
    assert record["ran"] == ["data", "scan", "plan", "train", "audit", "report"]
    assert record["certifies"]
    assert hush.verify(Path(record["share"]) / "plan").passed
    shown = run("run", config)
    assert shown.exit_code == 0
    assert "nothing: no input changed" in shown.stdout
    assert "May leave your hands" in shown.stdout
    quiet = run("run", config, "--quiet", "--from", "report")
    assert (quiet.exit_code, quiet.output) == (0, "")
    assert "Training (as before)" in run("run", config, "--verbose").stderr
    assert "pass --new-release" in refused(2, "run", config, "--from", "train", "--quiet")
    torch.set_num_threads(threads)


def test_init_never_overwrites(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    assert run("init", "--kind", "code", "--output", "mine.yaml").exit_code == 0
    before = Path("mine.yaml").read_bytes()
    assert "mine.yaml exists; name another file with --output" in refused(2, "init", "--output", "mine.yaml")
    assert Path("mine.yaml").read_bytes() == before


def test_an_impossible_promise_ends_with_1_and_bad_input_with_2(config: Path) -> None:
    content = yaml.safe_load(config.read_text())
    config.write_text(yaml.safe_dump(content | {"promises": {"prior": 0.01, "ceiling": 0.01}}))
    assert refused(1, "run", config, "--quiet").startswith("Error: ")
    config.write_text(yaml.safe_dump(content | {"plan": {"batch_size": 4, "round": 3}}))
    assert "(did you mean rounds?)" in refused(2, "run", config)
    assert "pass one of them" in refused(2, "run", config, "--quiet", "--verbose")


def test_ctrl_c_leaves_a_run_that_goes_on(config: Path) -> None:
    """Interrupted in training, the command saves its round and ends with 130; so it does before training began."""
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
    child.send_signal(signal.SIGINT)
    said = child.communicate(timeout=120)[1]
    assert child.returncode == 130, said
    assert "Traceback" not in said
    assert re.search(r"Stopped after round \d+ of 400, which is saved", said)
    dry = {row["stage"]: row for row in run_json("run", config, "--dry-run")["stages"]}
    assert dry["train"]["state"] == "goes on"
    assert "done" in dry["train"]["size"]
    assert not (config.parent / "hush-run" / "share").exists()


# --- all commands


def test_every_command_is_looked_at() -> None:
    assert set(MISSING) == set(COMMANDS)


@pytest.mark.parametrize("name", sorted(COMMANDS))
def test_every_command_has_help_with_an_example(name: str) -> None:
    shown = run(name, "--help")
    assert shown.exit_code == 0
    assert f"Example: hush {name}" in " ".join(re.sub(r"[│╭╮╰╯─]", " ", shown.stdout).split())


@pytest.mark.parametrize("name", sorted(COMMANDS))
def test_no_command_shows_a_traceback_for_bad_input(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    assert "No such option" in refused(2, name, "--no-such-option")
    if name not in NO_INPUT:
        assert run(name).exit_code == 2
    missing = run(name, *MISSING[name].split())
    assert missing.exit_code in (1, 2)
    assert isinstance(missing.exception, SystemExit)
    assert "Error" in missing.stderr
    assert "Traceback" not in missing.output


def test_a_traceback_is_shown_where_it_is_asked_for(tmp_path: Path) -> None:
    plain, traced = run("run", tmp_path / "no.yaml"), run("--debug", "run", tmp_path / "no.yaml")
    assert plain.exit_code == traced.exit_code == 2
    assert "Traceback" not in plain.stderr
    assert "Traceback (most recent call last)" in traced.stderr
    assert message(traced).endswith(message(plain))


def test_shell_completion_knows_the_commands() -> None:
    asked = {"_HUSH_COMPLETE": "complete_bash", "COMP_WORDS": "hush r", "COMP_CWORD": "1"}
    program = Path(sys.executable).with_name("hush")
    done = subprocess.run([program], env=os.environ | asked, capture_output=True, text=True, check=False)
    assert "run" in done.stdout.split()


@pytest.mark.parametrize("name", sorted(COMMANDS))
def test_options_have_the_same_name_and_form_everywhere(name: str) -> None:
    """Long names in words with dashes; what one command calls --json, --output or --key no other calls otherwise."""
    options = [one for one in COMMANDS[name].params if isinstance(one, click.Option) or one.param_type_name == "option"]
    for option in options:
        for form in (*option.opts, *option.secondary_opts):
            assert re.fullmatch(r"--[a-z0-9]+(-[a-z0-9]+)*", form), form
    forms = {form for option in options for form in option.opts}
    assert not forms & {"--out", "--out-dir", "--folder", "--output-dir", "--data-key", "--as-json", "--silent"}

"""Ctrl-C while a command writes, the worst moment: no half of a result, what was there stays, and it says how to go on.

``hush run``, ``hush train`` and ``hush audit``, which go on where they were, are stopped in their own tests.
"""

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest

import hush
from command_line import message, run
from hush.incidence import Incidence

PROMISE = "--prior 1e-6 --ceiling 0.01 --batch-size 4 --rounds 5"
WRITING = {
    "init": "init --output new.yaml",
    "scan": "scan mail.jsonl --rules rules.yaml --output new",
    "canaries": 'canaries mail.jsonl --template "{number}:{secret}" --ceiling 0.05 --output new',
    "calibrate": f"calibrate graph.parquet {PROMISE} --output new.parquet",
    "plan": f"plan graph.parquet {PROMISE} --output new",
    "frontier": f"frontier graph.parquet {PROMISE} --capacity none --output new.json --plot new.svg",
    "report": "report plan --no-compare --output new.html",
    "sign": "sign plan --private-key private.pem",
    "keys": "sign --new-key new.pem new-public.pem",
}
NEVER_REPLACED = {"canaries", "keys"}
STOPPED = "Stopped; no result was written. Run the same command again to start over."


def files() -> dict[str, bytes]:
    """Every file below here but keys that are made on first use."""
    return {str(path): path.read_bytes() for path in Path().rglob("*") if path.is_file()}


def words(name: str) -> list[str]:
    return [word.strip('"') for word in WRITING[name].split()]


@pytest.fixture
def desk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Data, rules, a graph, a plan and a key."""
    monkeypatch.chdir(tmp_path)
    rows = [{"text": f"note {number} by {'Acme' if number < 3 else 'nobody'}"} for number in range(20)]
    Path("mail.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    Path("rules.yaml").write_text(
        "{defaults: {prior: 1e-6, ceiling: 1e-2}, rules: [{name: who, find: literals, values: [Acme]}]}"
    )
    graph = Incidence.from_pairs(np.arange(6), np.arange(6) // 3, num_examples=20, num_secrets=2)
    graph.to_parquet("graph.parquet")
    hush.make_plan(graph, prior=1e-6, ceiling=0.01, batch_size=4, rounds=5).save("plan")
    assert run("sign", "--new-key", "private.pem", "public.pem").exit_code == 0
    return tmp_path


@pytest.mark.parametrize("name", WRITING)
def test_ctrl_c_while_writing_leaves_what_was_there(desk: Path, monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    before = files()
    with monkeypatch.context() as patch:
        patch.setattr(os, "fsync", lambda _: signal.raise_signal(signal.SIGINT))
        stopped = run(*words(name))
    assert (stopped.exit_code, stopped.stdout) == (130, "")
    assert message(stopped) == STOPPED
    assert files() == before
    done = run(*words(name))  # the same command begins anew
    assert done.exit_code == 0, done.output
    first = files()
    assert first != before
    if name in NEVER_REPLACED:
        return
    with monkeypatch.context() as patch:
        patch.setattr(os, "fsync", lambda _: signal.raise_signal(signal.SIGINT))
        assert run(*words(name), "--force").exit_code == 130
    assert files() == first
    assert run(*words(name), "--force").exit_code == 0


@pytest.mark.skipif(not Path("/proc/self/task").exists(), reason="how many processes there are is read from /proc")
def test_ctrl_c_in_a_terminal_stops_a_scan_and_its_processes_with_one_message(desk: Path) -> None:
    """There it goes to every process of the foreground group."""
    Path("many").mkdir()
    text = json.dumps({"text": "ab" * 5000})  # for which the pattern below takes its time
    for part in ("one", "two"):
        Path(f"many/{part}.jsonl").write_text(f"{text}\n" * 900)
    Path("slow.yaml").write_text(
        "{defaults: {prior: 1e-6, ceiling: 1e-2}, rules: [{name: slow, find: patterns, patterns: ['(a|b)+?c']}]}"
    )
    before = files()
    command = [
        sys.executable,
        "-m",
        "hush",
        "scan",
        "many",
        "--rules",
        "slow.yaml",
        "--output",
        "new",
        "--workers",
        "2",
    ]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, process_group=0)
    deadline = time.monotonic() + 60
    while len(children(process.pid)) < 2:
        assert process.poll() is None
        assert time.monotonic() < deadline
        time.sleep(0.05)
    os.killpg(process.pid, signal.SIGINT)
    out, said = process.communicate(timeout=60)
    assert process.returncode == 130, said
    assert (out, said) == ("", f"{STOPPED}\n")
    assert files() == before


def children(pid: int) -> list[str]:
    """Processes that a process has started, from any of its threads."""
    return [one for path in Path(f"/proc/{pid}/task").glob("*/children") for one in path.read_text().split()]

"""Planting canaries and auditing runs by the command line: exit codes, files, and nothing that shows a text."""

import json
import os
import signal
import subprocess
import sys
import time
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers
from rich.console import Console

import hush
from command_line import message, refused, run, run_json
from hush.cli.results.audit import show_audit
from hush.console import rounded_down, rounded_up
from hush.keys import DataKey
from hush.plan.settings import FilterSettings

sys.path.append(str(Path(__file__).parents[1] / "audit"))
_audited: Any = import_module("audited")
_memorising: Any = import_module("memorising")

COUNT = 10
FEW: list[object] = ["--trials", 500, "--device", "cpu"]


@pytest.fixture(scope="module")
def desk(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Data, spans, a base model, a run that keeps its promise and one that does not."""
    torch.set_num_threads(1)
    transformers.utils.logging.disable_progress_bar()
    root = tmp_path_factory.mktemp("desk")
    texts, _ = _audited.write_texts(root, COUNT)
    tokenizer = _memorising.byte_tokenizer()
    tokenizer.model_max_length = 48
    _memorising.byte_model(seed=3).save_pretrained(root / "base")
    tokenizer.save_pretrained(root / "base")
    plan = _audited.plan_for(COUNT)
    _audited.release(root / "honest", plan, _memorising.byte_model(), tokenizer)
    learnt = _memorising.trained_plainly([tokenizer(text)["input_ids"] for text in texts], steps=120)
    _audited.release(root / "leaky", plan, learnt, tokenizer)
    return root


def audited(desk: Path, which: str, output: Path, *more: object) -> list[object]:
    data: list[object] = ["--data", desk / "data.jsonl", "--spans", desk / "spans.parquet"]
    prompts = [] if "--prompt" in more else ["--prompt", 10, "--prompt", 21]
    data += ["--device", "cpu"] if "--trials" in more else FEW
    return ["audit", desk / which, "--output", output, *data, *prompts, *more]


def secrets_of(desk: Path) -> list[str]:
    rows = [json.loads(line)["text"] for line in (desk / "data.jsonl").read_text().splitlines()]
    return [row[21:29] for row in rows[:COUNT]]


def test_an_honest_run_passes_and_a_leaky_one_fails_loudly(desk: Path, tmp_path: Path) -> None:
    kept = run_json(*audited(desk, "honest", tmp_path / "honest"))
    assert kept["verdict"] == "kept"
    result = run(*audited(desk, "leaky", tmp_path / "leaky", "--reference", desk / "base"))
    assert result.exit_code == 1
    assert "FAILED" in result.stdout
    assert "Do not release" in result.stdout
    assert json.loads((tmp_path / "leaky" / "audit.json").read_text())["verdict"] == "failed"
    written = [path.read_text() for path in (tmp_path / "leaky").rglob("*") if path.is_file()]
    for text in secrets_of(desk):
        assert not [content for content in (result.output, *written) if text in content]
    failed = run_json(*audited(desk, "leaky", tmp_path / "leaky", "--reference", desk / "base"), code=1)
    assert {row["status"] for row in failed["rows"] if row["attack"] == "extraction"} >= {"failed"}


def test_the_table_of_limits_is_whole_on_80_columns(
    desk: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    command = ["audit", desk / "honest" / "release", "--output", tmp_path / "audit", *FEW]
    shown = run(*command).stdout
    rows = run_json(*command)["rows"]
    assert rows
    assert "…" not in shown
    for row in rows:
        cells = (rounded_down(row["lower"], 2), rounded_up(row["upper"], 2), f"{row['reached']:.2g}", str(row["runs"]))
        assert all(cell in shown for cell in cells)


def test_the_plan_alone_can_be_audited_without_data(desk: Path, tmp_path: Path) -> None:
    result = run("audit", desk / "leaky" / "release", "--output", tmp_path / "audit", *FEW)
    assert result.exit_code == 0
    assert "worst case" in result.stdout
    assert result.stdout.startswith("Plan simulated, model not judged: ")
    assert "no attack on the model itself was judged: pass canaries" in result.stdout
    record = json.loads((tmp_path / "audit" / "audit.json").read_text())
    assert (record["verdict"], record["extraction"]) == ("model not judged", [])


@pytest.mark.parametrize(
    ("more", "said"),
    [
        (["--attack", "guessing"], "is not one of 'mechanism', 'extraction', 'exposure'"),
        (["--prompt", "ten"], "--prompt"),
        (
            ["--continuation", "0"],
            "--continuation: it holds something other than lengths; pass a list",
        ),
        (["--level", "0.99"], "probability of error"),
        (["--scan", "found"], "both locate the secrets"),
        (["--add", "other"], "pass --canaries"),
        (["--continuation", "47"], "and the model takes 48; lower "),
    ],
)
def test_bad_input_ends_with_2(desk: Path, tmp_path: Path, more: list[str], said: str) -> None:
    assert said in refused(2, *audited(desk, "honest", tmp_path / "audit", *more))


def test_an_audit_that_compares_nothing_is_no_pass(desk: Path, tmp_path: Path) -> None:
    """A run with a fixed seed certifies nothing, so that no attack could break a promise."""
    tokenizer = transformers.AutoTokenizer.from_pretrained(desk / "base")
    _audited.release(tmp_path / "run", _audited.plan_for(COUNT), _memorising.byte_model(), tokenizer, marks=("seed",))
    command = audited(desk, "honest", tmp_path / "audit")
    command[1] = tmp_path / "run"
    record = run_json(*command, code=1)
    assert (record["verdict"], record["certified"]) == ("nothing to compare", False)
    shown = run(*command)
    assert shown.exit_code == 1
    assert "This is not a pass" in " ".join(shown.stdout.split())


def test_data_that_is_not_the_runs_is_refused(desk: Path, tmp_path: Path) -> None:
    output = ["--output", tmp_path / "audit", *FEW]
    assert "pass --data" in refused(2, "audit", desk / "honest", "--reference", desk / "base", *output)
    assert "drop --key" in refused(2, "audit", desk / "honest", "--key", desk / "none.key", *output)
    (tmp_path / "short.txt").write_text("one\n")
    said = refused(2, "audit", desk / "honest", "--data", tmp_path / "short.txt", *output)
    assert "1 row, but the plan has 20 examples" in said
    DataKey.create(tmp_path / "my.key")
    assert "is not the data of the plan" in refused(
        2, *audited(desk, "honest", tmp_path / "a", "--key", tmp_path / "my.key")
    )
    assert "no finished run" in refused(2, "audit", desk, *output)


def test_an_audit_that_is_interrupted_says_so_and_goes_on(desk: Path, tmp_path: Path) -> None:
    command = audited(desk, "honest", tmp_path / "audit", "--trials", 30_000_000)
    words = [sys.executable, "-m", "hush", *map(str, command)]
    process = subprocess.Popen(words, stderr=subprocess.PIPE, text=True, env=os.environ | {"OMP_NUM_THREADS": "1"})
    while not (tmp_path / "audit" / "owner" / "mechanism.jsonl").exists():
        assert process.poll() is None
        time.sleep(0.05)
    process.send_signal(signal.SIGINT)
    said = process.communicate(timeout=60)[1]
    assert process.returncode in (130, -signal.SIGINT)  # a shell sees 130 in either case
    assert "run the same command again to continue" in " ".join(said.split())
    assert not (tmp_path / "audit" / "audit.json").exists()
    assert run(*audited(desk, "honest", tmp_path / "audit")).exit_code == 0


# --- planting


def planting(data: Path, output: Path, *more: object) -> list[object]:
    return ["canaries", data, "--output", output, "--ceiling", 0.05, *more]


def test_canaries_are_planted_beside_the_owners_secrets(desk: Path, tmp_path: Path) -> None:
    plan = desk / "honest" / "release" / "plan"
    hush.Secrets([hush.Protection(1e-6, 1e-3)] * COUNT).to_parquet(tmp_path / "secrets.parquet")
    graph: list[object] = ["--incidence", plan / "incidence.parquet", "--secrets", tmp_path / "secrets.parquet"]
    template = ["--template", "Vault {number}: {secret}."]
    record = run_json(*planting(desk / "data.jsonl", tmp_path / "out", *graph, *template, "--count", 4, "--repeats", 2))
    assert (record["examples"], record["secrets"], record["candidates"]) == (2 * COUNT + 8, COUNT + 4, "10000")
    assert hush.Secrets.from_parquet(tmp_path / "out" / "public" / "secrets.parquet").ids[-1] == "canary-000003"
    assert record["next"].startswith("hush plan ")
    shown = run(*planting(desk / "data.jsonl", tmp_path / "from", *graph, "--from-data", "--length", 6))
    assert shown.exit_code == 0, shown.output
    assert "10 canaries of 1,000,000 candidates" in shown.stdout
    key = json.loads((tmp_path / "from" / "owner" / "canaries.json").read_text())
    assert all(one["before"].startswith("User ") for one in key["canaries"])
    assert not [text for text in secrets_of(desk) if text in json.dumps(key)]


@pytest.mark.parametrize(
    ("more", "said"),
    [
        ([], "either --template"),
        (["--template", "a {secret}", "--from-data"], "either --template"),
        (["--template", "nothing"], "exactly once"),
        (["--template", "a {secret}"], "hide each other"),
        (["--template", "a {number} {secret}", "--alphabet", "runes"], "alphanumeric"),
        (["--template", "a {number} {secret}", "--incidence", "graph"], "belong together"),
        (["--template", "a {number} {secret}", "--candidates", "list", "--length", "3"], "drop --candidates"),
        (["--template", "a {number} {secret}", "--length", "1"], "raise --ceiling or --length"),
    ],
)
def test_plantings_that_cannot_work_end_with_2(desk: Path, tmp_path: Path, more: list[str], said: str) -> None:
    assert said in refused(2, *planting(desk / "data.jsonl", tmp_path / "out", *more))
    assert not (tmp_path / "out").exists()


def test_a_list_of_candidates_is_read_line_by_line(desk: Path, tmp_path: Path) -> None:
    (tmp_path / "names.txt").write_text("".join(f"name {number}\n" for number in range(40)))
    template: list[object] = ["--template", "By {number}: {secret}", "--candidates", tmp_path / "names.txt"]
    assert run_json(*planting(desk / "data.jsonl", tmp_path / "out", *template))["prior"] == 1 / 40
    again = run(*planting(desk / "data.jsonl", tmp_path / "out", *template))
    assert "pass a new folder for the canaries" in message(again)


def test_what_a_certificate_is_marked_with_is_shown_and_never_obeyed() -> None:
    record = dict.fromkeys(("rows", "extraction", "notices"), ()) | {"verdict": "kept", "exposure": None}
    console = Console(width=200)
    with console.capture() as captured:
        show_audit(record | {"why_not": "a mark [/red] with [bold]brackets\x1b[2J"}, Path("audit"), console)
    assert "Nothing is certified: a mark [/red] with [bold]brackets�[2J\n" in captured.get()


def test_ids_stay_whole_on_80_columns() -> None:
    """Other cells break between words; an id for which there is no room is broken, and never cut."""
    numbers = {"prior": 1.23e-10, "certified": 0.000123, "ceiling": 0.000456, "lower": 0.0000123, "upper": 0.000999}
    row = {
        "attack": "mechanism",
        "hits": None,
        "runs": 20_000,
        "reached": 0.00012,
        "status": "could not fail",
        **numbers,
    }
    record = dict.fromkeys(("extraction", "notices"), ()) | {"verdict": "kept", "exposure": None, "why_not": ""}
    console = Console(width=80)
    for name in ("customer-names-a-000012", "n" * 70):
        with console.capture() as captured:
            show_audit(record | {"rows": [row | {"name": name}]}, Path("audit"), console)
        shown = captured.get()
        assert (name in shown) == (len(name) < 40)
        assert shown.count("n") >= name.count("n")
        assert "…" not in shown
        assert all(number in shown for number in ("1.2e-10", "0.00013", "0.00012", "20000", "1.2e-05", "0.0010"))


def test_how_many_places_of_secrets_were_not_tried_is_said() -> None:
    left_out = {"unplaced": 0, "cut": 26, "repeated": 0, "copies": 1}
    extraction = {"what": "secrets", "sequences": 2, "left_out": left_out, "cells": [], "discoverable": []}
    record = {"verdict": "nothing to compare", "why_not": None, "rows": [], "exposure": None, "notices": []}
    console = Console(width=80)
    with console.capture() as shown:
        show_audit(record | {"extraction": [extraction]}, Path("audit"), console)
    assert "Extraction: secrets, 2 sequences; left out: 26 cut, 1 copies" in shown.get()


def test_canaries_of_an_earlier_release_are_planted_again_and_named_by_both_models(desk: Path, tmp_path: Path) -> None:
    """Plan, release, plan again after it: one audit with both models, whose bound is that of the chain."""
    data = desk / "data.jsonl"
    options: list[object] = ["--ceiling", 0.2, "--template", "Vault {number} opens with {secret}.", "--length", 2]
    first = run_json("canaries", data, *options, "--count", 3, "--output", tmp_path / "planted-1")
    before: list[object] = ["canaries", data, "--again", tmp_path / "planted-1", "--ceiling", 0.2]
    again = run_json(*before, "--output", tmp_path / "planted-2")
    names = ("canaries", "candidates", "prior", "ceiling", "new_examples")
    assert [first[name] for name in names] == [again[name] for name in names]
    records = [json.loads((tmp_path / f"planted-{n}" / "owner" / "canaries.json").read_text()) for n in (1, 2)]
    assert records[0] == records[1]
    tokenizer = _memorising.byte_tokenizer()
    tokenizer.model_max_length = 48
    folders: list[Path] = []
    for number in (1, 2):
        public = tmp_path / f"planted-{number}" / "public"
        secrets = hush.Secrets.from_parquet(public / "secrets.parquet")
        kind: dict[str, Any] = {} if folders else {"filter": FilterSettings(share=0.4)}
        plan = hush.make_plan(
            hush.Incidence.from_parquet(public / "incidence.parquet"),
            prior=secrets.prior, ceiling=secrets.ceiling, secret_ids=secrets.ids, batch_size=3, rounds=5,
            after=[folder / "release" for folder in folders], keep=0.3, **kind,
        )  # fmt: skip
        folder = tmp_path / f"run-{number}"
        _audited.release(folder, plan, _memorising.byte_model(seed=number), tokenizer, after=folders)
        folders.append(folder)
    asked: list[object] = ["--canaries", tmp_path / "planted-2", "--attack", "exposure", "--ranked-candidates", 50]
    audit: list[object] = ["audit", tmp_path / "run-2", "--output", tmp_path / "audit", *asked, "--device", "cpu"]
    record = run_json(*audit, "--earlier", tmp_path / "run-1", code=1)  # a ceiling of 0.2 cannot fail
    assert record["exposure"]["releases"] == 2
    assert record["rows"][0]["releases"] == 2
    assert record["chain"]["kind"] == "filter"
    assert "of no earlier release" in refused(2, *audit, "--earlier", tmp_path / "run-2")
    assert "drop --length" in refused(2, *before, "--length", 3, "--output", tmp_path / "x")

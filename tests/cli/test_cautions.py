"""What is kept and yet not meant is said loudly: by scan, plan and run, without --verbose, with exit code 0."""

import json
import shlex
from pathlib import Path
from typing import Any

import pytest
import yaml
from rich.console import Console

import hush
from command_line import run, run_json
from hush.cli.results.cautions import graph_cautions, plan_cautions
from hush.cli.results.run import show_outcome

RULES = "defaults: {prior: 1e-6, ceiling: 0.05}\nrules:\n  - {name: names, find: literals, values: VALUES}\n"


def graph(*sizes: int, num_examples: int = 40) -> hush.Incidence:
    example = [place for size in sizes for place in range(size)]
    secret = [number for number, size in enumerate(sizes) for _ in range(size)]
    return hush.Incidence.from_pairs(example, secret, num_examples=num_examples, num_secrets=len(sizes))


def pairwise_graph(marked: int, num_examples: int = 40) -> hush.Incidence:
    """A secret of its own for each two examples, up to this many."""
    secret = [place // 2 for place in range(marked)]
    return hush.Incidence.from_pairs(range(marked), secret, num_examples=num_examples, num_secrets=marked // 2)


def planned(incidence: hush.Incidence, **more: Any) -> hush.Plan:
    settings: dict[str, Any] = {"prior": 1e-6, "ceiling": 0.05, "batch_size": 4, "rounds": 20} | more
    return hush.make_plan(incidence, **settings)


def test_an_ordinary_plan_is_not_warned_of() -> None:
    plan = planned(graph(3, 0, 2))
    assert 0 < plan.noise_multiplier < plan.batch_size
    assert plan_cautions(plan) == graph_cautions(plan.incidence) == []


@pytest.mark.parametrize(
    ("incidence", "settings", "said"),
    [
        (graph(), {}, "There are no secrets"),
        (graph(0), {}, "The only secret is in no example"),
        (graph(0, 0, 0), {}, "None of the 3 secrets is in any example"),
        (
            graph(1, num_examples=400),
            {"batch_size": 1, "rounds": 5},
            "The noise multiplier, 0, is too small by itself for 1 secret",
        ),
        (
            graph(2, 0, 1),
            {"noise_multiplier": 0.1},
            "The noise multiplier, 0.1000, is too small by itself for 2 secrets",
        ),
        (graph(3), {"prior": 0.001, "ceiling": 0.0010001}, "is not below the batch size, 4"),
        (graph(3, 20), {}, "In at least half of the examples: 1 secret."),
        (pairwise_graph(38), {}, "Of 40 examples 38 hold some secret"),
    ],
)
def test_what_is_kept_and_not_meant_is_warned_of(
    incidence: hush.Incidence, settings: dict[str, Any], said: str
) -> None:
    found = plan_cautions(planned(incidence, **settings))
    assert [said in line for line in found] == [True]


def test_canaries_do_not_hide_that_no_secret_was_found() -> None:
    plan = planned(graph(0, 0, 3), secret_ids=["a", "b", "canary-000000"])
    (said,) = plan_cautions(plan)
    assert said.startswith("None of the 2 secrets is in any example")


def test_a_plan_for_secrets_that_are_nowhere_is_made_and_warned_of(tmp_path: Path) -> None:
    graph(0, 0).to_parquet(tmp_path / "graph.parquet")
    command = ["plan", tmp_path / "graph.parquet", "--prior", 1e-6, "--ceiling", 0.05, "--batch-size", 4, "--rounds", 9]
    shown = run(*command, "--output", tmp_path / "plan")
    assert shown.exit_code == 0
    assert "secrets in some example 0 of 2" in " ".join(shown.stdout.split())
    assert "WARNING: None of the 2 secrets is in any example, so nothing is protected." in shown.stdout
    record = run_json(*command, "--output", tmp_path / "plan", "--force")
    assert (record["num_unlisted"], len(record["cautions"]), record["kept_weight"]) == (2, 1, 1.0)


@pytest.mark.parametrize(("values", "listed"), [("[Zebra, Quagga]", 0), ("[Zebra, walrus]", 1)])
def test_a_scan_says_how_many_of_the_secrets_it_found(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, values: str, listed: int
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("data.txt").write_text("a walrus\nnothing\nmore of it\n")
    Path("rules.yaml").write_text(RULES.replace("VALUES", values))
    shown = run("scan", "data.txt", "--unit", "line", "--rules", "rules.yaml", "--output", "found")
    assert shown.exit_code == 0
    assert f"of them in some example {listed}" in " ".join(shown.stdout.split())
    assert ("WARNING: None of the 2 secrets is in any example" in shown.stdout) == (not listed)


def test_a_run_without_its_secrets_warns_quotes_its_folder_and_says_what_was_not_judged(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    texts = [f"note {number} of the day" for number in range(24)]
    Path("data.jsonl").write_text("".join(json.dumps({"text": text}) + "\n" for text in texts))
    config = yaml.safe_load(RULES.replace("VALUES", "[Zebra, Quagga]"))
    content = {
        "data": {"source": "data.jsonl"},
        "promises": config["defaults"],
        "rules": config["rules"],
        "plan": {"batch_size": 4, "rounds": 2},
        "model": {"small": {"layers": 1, "width": 8, "heads": 1, "length": 48}},
        "training": {"device": "cpu"},
        "audit": {"attacks": ["mechanism"], "trials": 50, "secrets": 1},
        "report": {"frontier": False, "methods": False},
        "output": "my run",
    }
    Path("hush.yaml").write_text(yaml.safe_dump(content))
    shown = run("run", "hush.yaml")
    assert shown.exit_code == 0, shown.output
    assert 0 < shown.stderr.index("Training …") < shown.stderr.index("WARNING: None of the 2 secrets is in any example")
    assert shown.stderr.index("WARNING: ") < shown.stderr.index("Attacking")
    assert "24 examples, 2 secrets, 0 of them in some example; noise multiplier 0, 2 rounds." in shown.stdout
    assert "WARNING: None of the 2 secrets is in any example" in shown.stdout
    assert "/my run/release'\n" in shown.stdout
    assert "Audit: Nothing was compared" in shown.stdout
    (check,) = [line for line in shown.stdout.splitlines() if "hush verify" in line]
    assert run(*shlex.split(check.split("hush ")[1])).exit_code == 0
    certificate = Path("my run/release/certificate.md").read_text()
    assert "Of the 2 secrets 2 are in no listed example." in certificate
    assert run_json("run", "hush.yaml")["cautions"]


def test_a_run_says_which_rules_found_nothing_and_how_many_rows_it_left_out(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    rows = [{"text": f"note {number} of Acme, card {number % 3:016}"} for number in range(24)] + [{"text": None}] * 2
    Path("data.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    content = {
        "data": {"source": "data.jsonl", "skip_bad": True},
        "promises": {"prior": 1e-6, "ceiling": 0.05},
        "rules": [
            {"name": "cards", "find": "patterns", "patterns": [r"\d{16}"]},
            {"name": "broken", "find": "patterns", "patterns": [r"\d{16"]},  # an expression, though not the one meant
            {"name": "names", "find": "literals", "values": ["acme"]},
        ],
        "plan": {"batch_size": 4, "rounds": 2},
        "model": {"small": {"layers": 1, "width": 8, "heads": 1, "length": 48}},
        "training": {"device": "cpu"},
        "report": {"frontier": False, "methods": False},
        "output": "run",
    }
    Path("hush.yaml").write_text(yaml.safe_dump(content))
    nothing = [f"rule {name}: no example holds a secret of it" for name in ("broken", "names")]
    first, again = run("run", "hush.yaml"), run("run", "hush.yaml")
    assert (first.exit_code, again.exit_code) == (0, 0), first.output
    for said in (first.stderr.split("Planning")[0], first.stdout, again.stdout):
        assert [line for line in said.splitlines() if line.startswith("Note: ")] == [
            *(f"Note: {each}; if you know one that does, mend the rule" for each in nothing),
            "Note: left out, since they cannot be read: 2 rows",
            "Note: WARNING: 1 of 1 literal of rule names is in no example; with ignore_case: true, 1 of them would be "
            "found. Check their spelling: what is not found is not protected.",
        ]
    assert len(run_json("run", "hush.yaml")["notices"]) == 4


def outcome(**more: Any) -> str:
    record: dict[str, Any] = {
        "ran": [], "examples": 400, "secrets": 10, "unlisted": 3, "canaries": 4, "noise_multiplier": 2.5,
        "kept_fraction": 1.0, "kept_weight": 0.0123, "rounds": 9, "max_length": 32, "losses": None, "cut_texts": 0,
        "release": "run/release", "owner": "run/owner", "report": "run/owner/report.html", "verdict": None,
        "audit": None, "notices": [], "cautions": [], "private_rounds": 9, "releases": None,
    }  # fmt: skip
    console = Console(width=80)
    with console.capture() as captured:
        show_outcome(record | more, console)
    return captured.get()


def test_the_end_of_a_run_tells_use_from_weight_and_secrets_from_canaries() -> None:
    shown = outcome()
    assert "400 examples, 10 secrets, 7 of them in some example, and 4 canaries; noise multiplier 2.5" in shown
    assert "Used: 100 % of the examples; those with secrets keep 1.23 % of their weight." in shown
    assert "Texts are truncated" not in shown
    assert "Texts are cut to 32 tokens, and longer are 399 texts." in outcome(cut_texts=399)


def test_no_line_of_the_verdict_is_broken_where_it_is_logged() -> None:
    said = "Plan simulated, model not judged: " + "words " * 40
    assert f"Audit: {said}\n" in outcome(verdict="model not judged", audit=said)
    assert "Nothing is released." in outcome(verdict="failed", audit="FAILED.", release=None)
    assert "hush verify" not in outcome(verdict="failed", audit="FAILED.", release=None)

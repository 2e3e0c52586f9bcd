"""One of anything is said in the singular, by every command that counts."""

import json
import re
import shlex
from pathlib import Path

import pytest
from rich.console import Console

from command_line import message, run
from hush.cli.results.run import show_outcome
from hush.console import counted

THINGS = "secret|example|round|row|column|canarie|candidate|reason|file|field|sequence|text|token|promise|parameter"
WRONG = re.compile(rf"(?<![\d.,:-])1 (?:(?:new|more|unknown) )?(?:{THINGS})s\b|\ball 1\b")
RULES = """
defaults: {prior: 1e-6, ceiling: 0.1}
rules: [{name: customer, find: literals, values: [Acme]}]
"""


@pytest.fixture(autouse=True)
def one_of_everything(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """One text with one secret."""
    monkeypatch.chdir(tmp_path)
    graph = {"num_examples": 1, "num_secrets": 1, "pairs": [[0, 0]], "prior": 1e-6, "ceiling": 0.1, "rounds": 1}
    Path("graph.json").write_text(json.dumps(graph))
    Path("strange.json").write_text(json.dumps(graph | {"x": 1}))
    Path("two.jsonl").write_text(json.dumps({"text": "one"}) + "\n" + json.dumps({"text": "two"}) + "\n")
    Path("mail.jsonl").write_text(json.dumps({"text": "Acme pays in May"}) + "\n")
    Path("rules.yaml").write_text(RULES)


def said(command: str) -> str:
    result = run(*shlex.split(command))
    return " ".join(result.stdout.split()) + message(result)


@pytest.mark.parametrize(
    ("command", "words"),
    [
        (
            "posterior --rate 0.1 --examples 1 --noise-multiplier 1 --rounds 1 --prior 0.1",
            ["A secret in 1 example, 0.1 drawn", "1 round."],
        ),
        ("calibrate graph.json --rate 0.5", ["keeps the promises of 1 secret over 1 round"]),
        ("calibrate graph.json --rate 0", ["No noise is needed to keep 1 promise."]),
        ("calibrate graph.json --batch-size 2", ["--batch-size=2 is more than the 1 example;"]),
        ("calibrate strange.json --rate 0.5", ["1 unknown field;"]),
        ("plan graph.json --batch-size 0.5 --output plan", ["plan for 1 secret, 1 round"]),
        (
            "plan graph.json --batch-size 0.5 --output plan --data two.jsonl --key my.key",
            ["two.jsonl has 2 rows, but the incidence has 1 example;"],
        ),
        (
            "canaries mail.jsonl --template 'PIN {secret}' --count 1 --ceiling 0.5 --output planted",
            ["1 canary of 10,000 candidates each", "in 1 new example, after"],
        ),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_one_is_one(command: str, words: list[str]) -> None:
    shown = said(command)
    assert all(each in shown for each in words), shown
    assert not WRONG.search(shown), shown


def test_what_explains_a_scan_of_one_example_speaks_of_one() -> None:
    said("scan mail.jsonl --rules rules.yaml --output found")
    assert "contains 1 secret." in said("explain found 0")
    assert "is in 1 example;" in said("explain found customer-000000")
    assert "The first 0 of 1 reason;" in said("explain found 0 --top 0")


def test_a_page_about_one_secret_speaks_of_one() -> None:
    said("scan mail.jsonl --rules rules.yaml --output found")
    said(
        "plan found/public/incidence.parquet --secrets found/public/secrets.parquet --batch-size 0.5 --rounds 1 "
        "--output plan"
    )
    said("report plan --scan found --no-compare --output page.html")
    page = Path("page.html").read_text()
    assert "1 of 1 example contains a secret, in 1 pair of example and secret." in page
    assert "Binding: 1 of 1 secret. About 1 % less noise would break its promise." in page
    assert not WRONG.search(re.sub(r"<script.*?</script>", "", page, flags=re.DOTALL))


def test_a_run_of_one_secret_speaks_of_one() -> None:
    record = {"ran": [], "secrets": 1, "canaries": 1, "examples": 1, "rounds": 1, "noise_multiplier": 1.0}
    record |= {
        "unlisted": 0,
        "private_rounds": 1,
        "releases": None,
        "losses": None,
        "cut_texts": 1,
        "max_length": 1,
        "audit": None,
        "notices": [],
        "cautions": [],
    }
    places = {"release": "s", "owner": "o", "report": "r", "kept_fraction": 1.0, "kept_weight": 1.0, "verdict": None}
    console = Console(width=200)
    with console.capture() as captured:
        show_outcome(record | places, console)
    shown = captured.get()
    assert "1 example, 1 secret, and 1 canary;" in shown
    assert "cut to 1 token, and longer are 1 text." in shown
    assert "1 round." in shown


@pytest.mark.parametrize("number", [0, 2, 1000])
def test_any_other_number_is_several(number: int) -> None:
    assert counted(number, "row") == f"{number:,} rows"
    assert counted(number, "canary", "canaries") == f"{number:,} canaries"

"""hush prior: the table, the record, the refusal, and what stays with the owner."""

import json
import stat
from pathlib import Path

import pytest
import yaml

from command_line import refused, run, run_json

WORDS = ("zorvane", "quilbet", "mirtosh", "pelnack")
RULES = """
defaults: {{prior: {prior}, ceiling: 0.9}}
rules:
  - {{name: rare, find: words, documents: [3, 3], hides: {hides}}}
  - {{name: customers, find: literals, values: [Acme, Globex], hides: {hides}, promise: {{prior: 0.01, ceiling: 0.2}}}}
  - {{name: codes, find: patterns, patterns: ['K\\d{{6}}'], hides: {hides},
     promise: {{format: {{alphabet: digits, length: 6}}, ceiling: 0.1}}}}
"""


@pytest.fixture
def office(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    texts = [f"the {place} {word} of it" for word, place in zip(WORDS, "abcd", strict=True) for _ in range(3)]
    texts += ["Acme pays K123456", "Globex pays K654321", *[f"it is the day nr {number}" for number in range(20)]]
    Path("data.jsonl").write_text("".join(json.dumps({"text": text}) + "\n" for text in texts))
    return tmp_path


def scanned(prior: float, hides: str = "span") -> None:
    Path("rules.yaml").write_text(RULES.format(prior=prior, hides=hides))
    assert run("scan", "data.jsonl", "--rules", "rules.yaml", "--output", "found", "--force").exit_code == 0


def test_a_prior_below_one_of_the_words_is_refused_with_what_to_do(office: Path) -> None:
    scanned(1e-10)
    record = run_json("prior", "found", "data.jsonl", "--rules", "rules.yaml", code=1)
    by_rule = {rule["rule"]: rule for rule in record["rules"]}
    assert [name for name, rule in by_rule.items() if rule["refused"]] == ["rare"]
    assert by_rule["rare"]["known_values"] == by_rule["rare"]["secrets"] >= 4
    assert by_rule["codes"]["known_values"] == 10**6
    (refusal,) = record["refusals"]
    assert "rule rare: the stated prior 1e-10 is too low" in refusal
    assert "hides: example" in refusal
    shown = run("prior", "found", "data.jsonl")
    assert shown.exit_code == 1
    for expected in ("context", "too low", "Refused: rule rare", "a low figure proves nothing"):
        assert expected in " ".join(shown.stdout.split())


def test_an_honest_prior_passes_and_the_figures_stay_with_the_owner(office: Path) -> None:
    scanned(0.5)
    result = run("prior", "found", "data.jsonl")
    assert result.exit_code == 0, result.output
    written = Path("found/owner/prior.json")
    assert stat.S_IMODE(written.stat().st_mode) == 0o600
    assert json.loads(written.read_text())["refused"] is False
    assert not Path("found/public/prior.json").exists()
    for secret in (*WORDS, "Acme", "Globex", "K123456"):
        assert secret not in result.stdout + written.read_text()
    scanned(0.5)  # the file does not keep a scan from being replaced


def test_text_from_outside_and_candidates_are_read(office: Path) -> None:
    scanned(0.5)
    Path("staff.txt").write_text("Acme\nGlobex\nInitech\n")
    Path("other.jsonl").write_text(Path("data.jsonl").read_text() * 3)
    record = run_json("prior", "found", "data.jsonl", "--outside", "other.jsonl", "--candidates", "staff.txt")
    customers = next(rule for rule in record["rules"] if rule["rule"] == "customers")
    named = {guess["guesser"]: guess["hits"] for guess in customers["guesses"] if guess["compared"]}
    assert named["context"] >= 1
    assert "degree" in named


def test_what_cannot_be_measured_is_refused(office: Path) -> None:
    scanned(0.5, hides="example")
    assert "no rule of found hides spans" in refused(2, "prior", "found", "data.jsonl")
    assert "is not a folder" in refused(2, "prior", "nowhere", "data.jsonl")
    scanned(0.5)
    Path("short.jsonl").write_text('{"text": "one"}\n')
    assert "pass the data that was scanned" in refused(2, "prior", "found", "short.jsonl")
    assert "is not a folder; pass the folder of a model" in refused(
        2, "prior", "found", "data.jsonl", "--model", "./no"
    )


def test_a_run_refuses_such_a_prior_before_it_plans(office: Path) -> None:
    assert run("init").exit_code == 0
    content = yaml.safe_load(Path("hush.yaml").read_text())
    content["model"] = {"small": {"layers": 1, "width": 8, "heads": 1, "length": 48}}
    content["plan"] = {"batch_size": 4, "rounds": 3}
    content["promises"] = {"prior": 1e-10, "ceiling": 0.9}
    content["rules"] = [{"name": "rare", "find": "words", "documents": [3, 3], "hides": "span"}]
    Path("hush.yaml").write_text(yaml.safe_dump(content))
    said = refused(2, "run", "hush.yaml")
    assert "rule rare: the stated prior 1e-10 is too low" in said
    assert "raise it to at least 0.125" in said
    assert Path("hush-run/owner/scan").is_dir()
    assert not Path("hush-run/release").exists()

"""hush explain: why an example contains a secret, asked by number or by id, and what is refused."""

import json
from pathlib import Path

import pytest
from some_mail import SCAN, TOKEN

from command_line import refused, run, run_json


def test_an_example_is_explained_by_number_and_by_id(mail: Path) -> None:
    run_json(*SCAN)
    by_number, by_id = run_json("explain", "found", "2"), run_json("explain", "found", "m-2")
    assert by_number == by_id
    assert by_id["example"] == {"number": 2, "id": "m-2", "file": "mail.jsonl", "row": 2}
    text = json.loads(Path("mail.jsonl").read_text().splitlines()[2])["text"]
    spans = [(row["secret_id"], text[row["begin"] : row["end"]]) for row in by_id["reasons"]]
    assert sorted(spans) == [("customers-000000", "Acme"), ("keys-000000", TOKEN), ("keys-000000", TOKEN)]
    assert "Example 3 (m-3: row 3 of mail.jsonl) contains 0 secrets." in run("explain", "found", "3").stdout


def test_a_secret_is_explained_by_id_and_by_number(mail: Path) -> None:
    run_json(*SCAN)
    record = run_json("explain", "found", "customers-000001")
    assert record == run_json("explain", "found", "2", "--secret")
    assert record["secret"] == {"number": 2, "id": "customers-000001", "points": [[0.01, 0.2]], "examples": 1}
    assert [(row["example"], row["example_id"]) for row in record["reasons"]] == [(1, "m-1")]
    assert "m-1" in run("explain", "found", "customers-000001").stdout
    shown = run("explain", "found", "keys-000000", "--top", "1").stdout
    assert "in 2 examples; promised: from" in shown
    assert "The first 1 of 3 reasons" in shown


def test_what_cannot_be_explained_is_refused_and_not_repeated(mail: Path) -> None:
    run_json(*SCAN)
    for target in (TOKEN, "40", "5 --secret", "m-99"):
        said = refused(2, "explain", "found", *target.split())
        assert "no example and no secret of this scan has that number or id" in said
        assert TOKEN not in said
    assert "; ids that contain it: customers-000000, customers-000001" in refused(2, "explain", "found", "customers")
    assert "there are 40 examples and 5 secrets, numbered from 0" in refused(2, "explain", "found", "41")
    assert "exclude each other; pass one of them" in refused(2, "explain", "found", "1", "--secret", "--example")
    assert "pass one that hush scan wrote" in refused(2, "explain", "nowhere", "1")
    assert "hush scan wrote" in refused(2, "explain", ".", "1")


def test_ids_that_mean_several_things_are_asked_about(mail: Path) -> None:
    rows = [
        {"id": "1", "text": "a"},
        {"id": "keys-000000", "text": TOKEN},
        {"id": "x", "text": ""},
        {"id": "x", "text": ""},
    ]
    Path("mail.jsonl").write_text("".join(json.dumps(row | {"team": "t"}) + "\n" for row in rows))
    run_json(*SCAN)
    assert "that is the number of an example and the id of an example" in refused(2, "explain", "found", "1")
    assert run_json("explain", "found", "1", "--example")["example"]["number"] == 1
    assert "that is the id of a secret and the id of an example" in refused(2, "explain", "found", "keys-000000")
    assert run_json("explain", "found", "keys-000000", "--example")["example"]["number"] == 1
    assert run_json("explain", "found", "keys-000000", "--secret")["secret"]["number"] == 0
    assert "2 examples have that id (2, 3)" in refused(2, "explain", "found", "x")


def test_the_public_side_alone_explains_nothing(mail: Path) -> None:
    run_json(*SCAN)
    Path("found/owner").rename(mail / "kept")
    assert "found has no owner/ folder, which holds the reasons" in refused(2, "explain", "found", "1")


def test_a_number_is_a_text_only_if_nothing_has_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    Path("notes.txt").write_text("a\nb\nthe code is 1\nthe code is 77\n")
    rule = {"name": "codes", "find": "literals", "values": ["77", "1"], "promise": {"prior": 0.01, "ceiling": 0.2}}
    Path("rules.yaml").write_text(json.dumps({"rules": [rule]}))
    run_json("scan", "notes.txt", "--rules", "rules.yaml", "--output", "found")
    assert run_json("explain", "found", "1", "--show-text")["example"]["number"] == 1
    second = run_json("explain", "found", "1", "--secret", "--show-text")["secret"]
    assert second["number"] == 1
    assert run_json("explain", "found", "77", "--show-text")["secret"]["examples"] == 1
    assert "has that number or id" in refused(2, "explain", "found", "77", "--secret", "--show-text")


def test_slots_are_explained_and_so_is_a_whole_example(mail: Path) -> None:
    rules = Path("spans.yaml")
    rules.write_text(
        "defaults: {prior: 0.01, ceiling: 0.2}\n"
        "rules:\n"
        "  - {name: customers, find: literals, values: [Acme], hides: span}\n"
        "  - {name: others, find: literals, values: [Globex]}\n"
    )
    lines = ["Acme and ACME-like", "Globex, Acme", "nothing"]
    Path("calls.jsonl").write_text("".join(json.dumps({"text": line}) + "\n" for line in lines))
    record = run_json("scan", "calls.jsonl", "--rules", rules, "--output", "calls", "--workers", "1")
    assert [row["hides"] for row in record["secret_text"]["rules"]] == ["span", "example"]
    explained = run_json("explain", "calls", "0")
    assert [(slot["begin"], slot["end"]) for slot in explained["slots"]] == [(0, 4), (9, 13)]
    assert explained["slots"][0] == {"begin": 0, "end": 4, "rule": "customers", "secret_ids": ["customers-000000"]}
    assert "Its secrets stand in 2 slots" in run("explain", "calls", "0").stdout
    assert "It is secret as a whole: rule others hides whole examples." in run("explain", "calls", "1").stdout
    assert "slots" not in run_json("explain", "calls", "2")
    shown = run("redact", "calls", "calls.jsonl", "--output", "out.jsonl").stdout
    assert "Wrote 2 texts to out.jsonl, 1 of them with 2 slots in place of secrets." in " ".join(shown.split())
    assert "Left out 1 example: secret as a whole." in shown
    assert Path("out.jsonl").read_text().splitlines()[0] == '{"text": "[customers] and [customers]-like"}'
    assert "exists; pass --force" in refused(2, "redact", "calls", "calls.jsonl", "--output", "out.jsonl")
    written = run_json("redact", "calls", "calls.jsonl", "--output", "out.jsonl", "--force")
    assert (written["rows"], written["left_out"]) == (2, 1)
    assert "nothing to redact" in refused(2, "redact", *_scan_without_slots(), "--output", "other.jsonl")


def _scan_without_slots() -> tuple[str, str]:
    run_json(*SCAN)
    return "found", "mail.jsonl"

"""hush scan from end to end: what it finds, what it refuses, and that no text of a secret shows."""

import json
import os
import shlex
import stat
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from some_mail import RULES, SCAN, TOKEN, content_below

import hush
from command_line import refused, run, run_json
from hush.data import read_corpus, shards
from hush.scan.engines import LocalEngine
from hush.scan.result import Scan


def files_below(folder: Path) -> dict[str, bytes]:
    return {path.relative_to(folder).as_posix(): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def test_a_scan_finds_the_secrets_and_says_how_they_are_spread(mail: Path) -> None:
    record = run_json(*SCAN)
    assert (record["examples"], record["secrets"], record["pairs"]) == (40, 5, 7)
    assert record["examples_with_secrets"] == 3
    assert record["rules"] == [
        {"rule": "keys", "secrets": 1, "secrets_found": 1, "pairs": 2},
        {"rule": "customers", "secrets": 3, "secrets_found": 2, "pairs": 3},
        {"rule": "team", "secrets": 1, "secrets_found": 1, "pairs": 2},
    ]
    assert record["examples_per_secret"]["histogram"] == {"least": [0, 1, 2], "most": [0, 1, 3], "count": [1, 1, 3]}
    assert record["most_secrets"][0] == {"example": 0, "secrets": 3}
    found = Scan.load("found")
    assert found.secrets.ids == (
        "keys-000000",
        "customers-000000",
        "customers-000001",
        "customers-000002",
        "team:sales",
    )
    assert found.secrets.texts is not None
    assert found.secrets.texts[0] == TOKEN


def test_the_summary_tells_what_the_record_tells(mail: Path) -> None:
    result = run(*SCAN)
    assert result.exit_code == 0, result.output
    for said in (
        "keys-000000",
        "team:sales",
        "0  █",
        "Next: hush plan found/public/incidence.parquet",
        "Reasons: hush explain found ",
    ):
        assert said in result.stdout


def test_no_text_of_a_secret_shows_unless_it_is_asked_for(mail: Path) -> None:
    said = [run(*SCAN, "--key", "data.key"), run(*SCAN, "--force", "--json")]
    said += [run("explain", "found", target) for target in ("m-0", "2", "keys-000000", "team:sales")]
    said += [run("explain", "found", "m-2", "--json")]
    assert all(result.exit_code == 0 for result in said)
    for result in said:
        assert TOKEN not in result.output
        assert "Acme" not in result.output
    content = content_below(mail / "found")
    assert {name for name, said in content.items() if TOKEN in said or "Acme" in said} == {"owner/texts.parquet"}
    # The check above can fail: the same, asked for.
    assert TOKEN in run("explain", "found", "keys-000000", "--show-text").stdout
    assert TOKEN in json.dumps(run_json(*SCAN, "--force", "--show-text"))
    assert TOKEN in (mail / "found/owner/review.html").read_text()
    assert not any(TOKEN in said for said in content_below(mail / "found/public").values())


def test_the_owners_side_is_closed_to_others(mail: Path) -> None:
    run_json(*SCAN)
    assert stat.S_IMODE((mail / "found/owner").stat().st_mode) == 0o700
    assert all(stat.S_IMODE(path.stat().st_mode) == 0o600 for path in (mail / "found/owner").iterdir())


@pytest.mark.parametrize("key", [(), ("--key", "data.key")])
def test_a_scan_goes_on_into_a_plan_by_the_command_that_it_prints(mail: Path, key: tuple[str, ...]) -> None:
    program, *arguments = shlex.split(run_json(*SCAN, "--column", "text", *key)["next"])
    assert program == "hush"
    assert ("--data" in arguments) == bool(key)
    assert run(*arguments).exit_code == 0
    plan = hush.Plan.load("my-plan")
    assert plan.secret_ids == Scan.load("found").secrets.ids
    assert plan.data_fingerprint == Scan.load("found").data_fingerprint
    assert plan.prior[1].tolist() == [0.01]
    assert hush.verify("my-plan").passed


def test_the_printed_command_plans_for_slots_however_few_examples_have_one(mail: Path) -> None:
    Path("spans.yaml").write_text(
        "{defaults: {prior: 0.01, ceiling: 0.5}, rules: [{name: a, find: literals, values: [Acme], hides: span}]}"
    )
    scanned = run_json("scan", "mail.jsonl", "--rules", "spans.yaml", "--output", "found")
    assert 0 < scanned["examples_with_secrets"] < scanned["examples"] // 10
    assert run(*shlex.split(scanned["next"])[1:]).exit_code == 0
    assert run(*shlex.split(scanned["prior"])[1:]).exit_code == 0
    assert run_json(*SCAN, "--force")["prior"] is None  # nothing is hidden as a span


def test_the_printed_commands_work_when_pasted_each_time(mail: Path) -> None:
    for attempt in ("", "-2"):
        lines = run(*SCAN, "--force").stdout.splitlines()
        for label in ("Reasons: ", "Next: "):
            (command,) = (line.removeprefix(label) for line in lines if line.startswith(label))
            result = run(*shlex.split(command)[1:])
            assert result.exit_code == 0, result.output
        assert Path(f"my-plan{attempt}").is_dir()


def test_literals_that_are_in_no_example_are_told_loudly(mail: Path) -> None:
    names = ", ".join(["Acme", "GLOBEX", "LUNCH", "nowhere", "at-all"])
    rule = f"{{name: customers, find: literals, values: [{names}]}}"
    Path("rules.yaml").write_text(f"defaults: {{prior: 1e-10, ceiling: 1e-3}}\nrules:\n  - {rule}\n")
    record = run_json(*SCAN)
    (told,) = record["unfound_literals"]
    assert told == {"rule": "customers", "listed": 5, "in_no_example": 4, "in_another_case": 2}
    sentence = "4 of 5 literals of rule customers are in no example; with ignore_case: true, 2 of them would be found"
    assert any(caution.startswith(sentence) for caution in record["cautions"])
    assert f"WARNING: {sentence}" in run(*SCAN, "--force").stdout
    assert sentence in Path("found/owner/review.html").read_text()
    assert Scan.load("found").summary()["unfound_literals"] == [told]
    assert "unfound_literals" not in json.loads(Path("found/public/summary.json").read_text())
    Path("rules.yaml").write_text(Path("rules.yaml").read_text().replace("]}", "], ignore_case: true}"))
    (told,) = run_json(*SCAN, "--force")["unfound_literals"]
    assert (told["in_no_example"], told["in_another_case"]) == (2, 0)


def test_a_few_literals_in_no_example_are_noted(mail: Path) -> None:
    record = run_json(*SCAN)
    assert "1 of 3 literals of rule customers is in no example, in upper or lower case." in record["notices"]
    assert not any("literals" in caution for caution in record["cautions"])


def test_what_is_set_aside_is_listed_with_reasons_and_without_text(mail: Path) -> None:
    pytest.importorskip("detect_secrets")
    passwords = ["hunter2-kQ9x", "changeme", "4821", "airflow"]
    rows = [{"id": f"p-{number}", "text": f'password = "{value}"'} for number, value in enumerate(passwords)]
    rows += [{"id": "other", "text": "changeme, airflow or hunter2-kQ9x"}]
    Path("mail.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    Path("rules.yaml").write_text(
        "defaults: {prior: 1e-10, ceiling: 1e-3}\nrules:\n  - {name: keys, find: credentials}\n"
    )
    record = run_json(*SCAN)
    assert record["secrets"] == 1
    found = Scan.load("found")
    assert (found.secrets.texts, found.incidence.examples_of(0).tolist()) == (("hunter2-kQ9x",), [0, 4])
    assert {entry.text: (entry.why.split(": ")[1], entry.examples) for entry in found.set_aside()} == {
        "changeme": ("a placeholder", (1,)),
        "4821": ("too short for its promise", (2,)),
        "airflow": ("a word or an identifier", (3,)),
    }
    assert [row["texts"] for row in record["set_aside"]] == [1, 1, 1]
    assert any("NOT protected" in caution for caution in record["cautions"])
    shown, page = run(*SCAN, "--force").stdout, Path("found/owner/review.html").read_text()
    assert "Found but set aside, so not protected" in shown
    assert "Found but set aside" in page
    assert not any(value in shown + page for value in passwords)
    page = run(*SCAN, "--force", "--show-text") and Path("found/owner/review.html").read_text()
    assert "4821" in page
    explained = run("explain", "found", "2").stdout
    assert "Found but set aside, so not protected: rule keys, detector Secret Keyword: too short" in explained
    assert "4821" not in explained
    assert "found this text and set it aside" in run("explain", "found", "changeme", "--show-text").stdout
    assert run_json("explain", "found", "hunter2-kQ9x", "--show-text")["secret"]["number"] == 0


def test_a_config_given_as_rules_is_called_so(mail: Path) -> None:
    Path("rules.yaml").write_text(f"data: {{source: mail.jsonl}}\nplan: {{batch_size: 8}}\n{RULES}")
    said = refused(2, *SCAN)
    assert "rules.yaml is a config of a run, not a rules file: it has the section data and plan" in said


def test_an_option_given_twice_is_refused(mail: Path) -> None:
    said = refused(2, *SCAN, "--key", "a.key", "--key", "b.key")
    assert "--key is given twice; give it once" in said
    assert "--rules is given twice" in refused(2, *SCAN, "--rules=other.yaml")


def test_a_reader_that_leaves_does_not_change_how_a_command_ends(mail: Path) -> None:
    """As with ``| head``: nothing on standard error, and the exit code of the command itself."""
    command = [sys.executable, "-m", "hush", *SCAN]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as process:
        assert process.stdout is not None
        assert process.stderr is not None
        process.stdout.close()
        said = process.stderr.read()
    assert (process.returncode, said) == (0, b"")
    assert Path("found/public/summary.json").is_file()


def test_rows_that_cannot_be_read_stop_the_scan_or_are_counted(mail: Path) -> None:
    with Path("mail.jsonl").open("a") as file:
        file.write(f'{{"text": "{TOKEN}\n{{"id": "late", "text": "Globex again"}}\n')
    said = refused(2, *SCAN)
    assert "mail.jsonl, line 41" in said
    assert "--skip-bad" in said
    assert TOKEN not in said
    assert not Path("found").exists()
    record = run_json(*SCAN, "--skip-bad", "--key", "data.key")
    assert (record["skipped"], record["examples"]) == (1, 41)
    assert "Skipped 1 row that cannot be read: mail.jsonl 1." in run(*SCAN, "--skip-bad", "--force").stdout
    # The rows that remain are the data to plan for.
    assert "--data found/owner/data.parquet" in record["next"]
    run_json(*SCAN, "--skip-bad", "--force", "--key", "data.key")
    assert run(*shlex.split(record["next"])[1:]).exit_code == 0
    assert hush.Plan.load("my-plan").data_fingerprint == Scan.load("found").data_fingerprint


def test_processes_change_nothing(mail: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    Path("notes").mkdir()
    for number in range(4):
        Path(f"notes/{number}.txt").write_text(f"{TOKEN} and machine {number % 2} at Acme")
    Path("rules.yaml").write_text(RULES[: RULES.index("  - {name: team")])
    monkeypatch.setattr(shards, "GROUPED_FILE_BYTES", 1)  # so that every file is a shard
    assert len(read_corpus("notes").shards()) == 4
    arguments = ("scan", "notes", *SCAN[2:-2])
    run_json(*arguments, "--workers", "1")
    one = content_below(mail / "found")
    run_json(*arguments, "--workers", "2", "--force")
    assert content_below(mail / "found") == one


def test_a_cluster_is_reached_by_its_address(mail: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[dict[str, Any]] = []

    def cluster(**settings: Any) -> LocalEngine:
        asked.append(settings)
        return LocalEngine(workers=1)

    monkeypatch.setattr("hush.scan.engine_ray.RayEngine", cluster)
    record = run_json(*SCAN, "--engine", "ray", "--ray-address", "10.0.0.1:6379", "--workers", "3")
    assert asked == [{"address": "10.0.0.1:6379", "workers": 3}]
    assert record["pairs"] == run_json(*SCAN, "--force")["pairs"]


def test_a_review_is_written_unless_it_is_declined(mail: Path) -> None:
    assert run_json(*SCAN)["review"] == "found/owner/review.html"
    assert run_json(*SCAN, "--force", "--no-html")["review"] is None
    assert not (mail / "found/owner/review.html").exists()


def test_a_place_that_cannot_be_written_is_refused_before_anything_is_read(
    mail: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def read(*_: object, **__: object) -> None:
        raise AssertionError("the work has begun")

    monkeypatch.setattr("hush.scan.scanner.scan", read)
    scan = SCAN[: SCAN.index("--output")]
    below = refused(2, *scan, "--output", "rules.yaml/found")
    assert "--output=rules.yaml/found: " in below
    assert "rules.yaml is a file; pass a folder elsewhere" in below
    monkeypatch.setattr(os, "access", lambda path, mode: mode != os.W_OK)
    assert "is not writable; pass a folder elsewhere" in refused(2, *scan, "--output", "new/found")
    assert not Path("new").exists()


def test_what_is_there_already_is_kept(mail: Path) -> None:
    run_json(*SCAN)
    before = files_below(mail / "found")
    assert refused(2, *SCAN) == "Error: found already holds a scan; pass --force to overwrite it, or a new folder"
    assert files_below(mail / "found") == before
    Path("other").mkdir()
    Path("other/thesis.txt").write_text("years of work")
    assert "other holds something other than a scan" in refused(2, *SCAN[:-3], "other", "--force")
    assert files_below(mail / "other") == {"thesis.txt": b"years of work"}
    Path("mine/public").mkdir(parents=True)
    Path("mine/public/summary.json").write_text('{"title": "years of work"}')
    assert "mine holds something other than a scan" in refused(2, *SCAN[:-3], "mine", "--force")
    assert files_below(mail / "mine") == {"public/summary.json": b'{"title": "years of work"}'}


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("--column", "txt"), "no column 'txt'"),
        (("--id-column", "ident"), "ident"),
        (("--id-column", "text"), "this is the column of the texts"),
        (("--unit", "line"), "is not plain text"),
        (("--ray-address", "auto"), "--ray-address needs --engine ray"),
        (("--rules", "missing.yaml"), "missing.yaml: No such file or directory"),
    ],
)
def test_options_that_do_not_fit_are_refused(mail: Path, arguments: tuple[str, ...], said: str) -> None:
    at = SCAN.index(arguments[0]) if arguments[0] in SCAN else len(SCAN)
    assert said in refused(2, *SCAN[:at], *SCAN[at + 2 :], *arguments)
    assert not Path("found").exists()


def test_wrong_rules_are_listed_before_anything_is_read(mail: Path) -> None:
    Path("rules.yaml").write_text(f"rules:\n  - {{name: a, find: word}}\n  - {{name: b, find: fields, {TOKEN}: 1}}\n")
    said = refused(2, "scan", "no-such-data.jsonl", *SCAN[2:])
    assert said.startswith("Error: rules.yaml has 3 problems: line 2: rules[0] (rule a): find is not a known kind")
    assert TOKEN not in said


@pytest.mark.parametrize("broken", ["rules.yaml", "mail.jsonl"])
def test_a_traceback_quotes_no_text_of_a_file_either(mail: Path, broken: str) -> None:
    """Parsers put the line they stumble over into their messages."""
    Path(broken).write_text(f'{{"text": "{TOKEN}", [\n')
    traced = run(*SCAN, "--debug")
    assert traced.exit_code == 2
    assert "Traceback (most recent call last)" in traced.stderr
    assert "hush/scan/" in traced.stderr
    assert TOKEN not in traced.output


def test_a_plan_for_other_data_than_was_scanned_is_refused(tmp_path: Path) -> None:
    data, rules, found, key = (tmp_path / name for name in ("mail.jsonl", "rules.yaml", "found", "data.key"))
    data.write_text('{"text": "one", "other": "two"}\n{"text": "the word", "other": "three"}\n')
    rules.write_text(
        "{defaults: {prior: 1e-3, ceiling: 0.5}, rules: [{name: all, find: patterns, patterns: ['word']}]}"
    )
    assert run("scan", data, "--rules", rules, "--output", found, "--column", "text", "--key", key).exit_code == 0
    plan = ["plan", found / "public/incidence.parquet", "--secrets", found / "public/secrets.parquet"]
    plan += ["--batch-size", "1", "--rounds", "2", "--data", data, "--output", tmp_path / "plan"]
    assert "was not scanned from --data" in refused(2, *plan, "--key", key, "--column", "other")
    assert "another key" in refused(2, *plan, "--key", tmp_path / "new.key", "--column", "text")
    assert run(*plan, "--key", key, "--column", "text").exit_code == 0
    data.write_text('{"text": "the word"}\n{"text": "one"}\n')
    assert "was not scanned from --data" in refused(2, *plan, "--key", key, "--force")


def test_every_name_that_the_system_allows_may_be_a_table_of_texts_a_list_and_a_place_to_work(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    odd = tmp_path / os.fsdecode(b"odd-\xff")  # not UTF-8
    (odd / "work").mkdir(parents=True)
    monkeypatch.setattr(tempfile, "tempdir", str(odd / "work"))
    tables = {
        "data": pa.table({"text": ["Acme pays", "nobody", "for Acme"]}),
        "list": pa.table({"text": ["Acme"], "name": ["a"]}),
    }
    for name, table in tables.items():
        with (odd / f"{name}.parquet").open("wb") as file:
            pq.write_table(table, file)
    rule = "{name: who, find: literals, file: list.parquet, whole_words: true}"
    (odd / "rules.yaml").write_text(f"{{defaults: {{prior: 1e-6, ceiling: 1e-2}}, rules: [{rule}]}}")
    record = run_json(
        "scan", odd / "data.parquet", "--rules", odd / "rules.yaml", "--output", odd / "found", "--key", odd / "my.key"
    )
    assert (record["examples"], record["pairs"]) == (3, 2)
    assert [reason.example for reason in Scan.load(odd / "found").why(secret="who:a")] == [0, 2]
    assert "contains 1 secret" in run("explain", odd / "found", "0").stdout
    shown = run("scan", odd / "data.parquet", "--rules", odd / "rules.yaml", "--output", odd / "found", "--force")
    assert (shown.exit_code, f"{tmp_path}/odd-\\udcff/found" in shown.stdout) == (0, True)


def test_long_texts_are_cut_to_the_model_or_what_it_would_not_read_is_said(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from hush.run.sections import SmallModel
    from hush.run.stage_train import base_model

    monkeypatch.chdir(tmp_path)
    model = str(base_model(tmp_path, SmallModel(layers=1, width=8, heads=1, length=40)))
    texts = ["Acme called. " + "Nothing happened. " * 4 + "Acme again.", "short"]
    Path("data.jsonl").write_text("".join(json.dumps({"text": text}) + "\n" for text in texts))
    rules = "defaults: {prior: 0.01, ceiling: 0.1}\nrules: [{name: c, find: literals, values: [Acme]}]\n"
    Path("rules.yaml").write_text(rules)
    Path("chunks.yaml").write_text(rules + "chunks: {tokens: auto}\n")
    command = ("scan", "data.jsonl", "--output", "found", "--force", "--rules")
    whole = run_json(*command, "rules.yaml", "--model", model)
    [said] = [notice for notice in whole["notices"] if "longer than" in notice]
    assert said.startswith("1 of 2 texts are longer than the 40 tokens that the model reads: ")
    assert "1 of 2 occurrences of secrets lie there" in said
    assert not any("longer than" in notice for notice in run_json(*command, "rules.yaml")["notices"])
    cut = run_json(*command, "chunks.yaml", "--model", model)
    assert (cut["examples"], cut["examples_with_secrets"], cut["data"]) == (5, 2, "found/owner/data.parquet")
    assert not any("longer than" in notice for notice in cut["notices"])
    shorter = run_json(*command, "chunks.yaml", "--model", model, "--max-length", "20")
    assert shorter["examples"] > cut["examples"]
    assert "no model is named; state their size in characters, or name it with --model" in refused(
        2, *command, "chunks.yaml"
    )
    assert "--max-length=20; it is about a model; name it" in refused(2, *command, "rules.yaml", "--max-length", "20")

"""hush scan and hush explain from end to end: what they find, what they refuse, and that no text of a secret shows."""

import json
import os
import shlex
import stat
import subprocess
import tempfile
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import hush
from command_line import message, refused, run, run_json
from hush.corpus import read_corpus, shards
from hush.scan.engines.local import LocalEngine
from hush.scan.result import Scan

TOKEN = "sk-Zq81xHunter2"  # a planted secret: nothing but the owner's texts may hold it
RULES = r"""
defaults: {prior: 1e-10, ceiling: 1e-3}
rules:
  - {name: keys, find: patterns, patterns: ['sk-\w{12}'], promise: {format: {alphabet: 62, length: 12}, ceiling: 1e-6}}
  - {name: customers, find: literals, values: [Acme, Globex, Initech], promise: {prior: 0.01, ceiling: 0.2}}
  - {name: team, find: fields, column: team, public_names: true}
"""


@pytest.fixture
def mail(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with some mail and rules, where the command runs."""
    monkeypatch.chdir(tmp_path)
    rows: list[dict[str, Any]] = [
        {"id": "m-0", "team": "sales", "text": f"Acme pays with {TOKEN} from May on."},
        {"id": "m-1", "team": "sales", "text": "Lunch with Globex?"},
        {"id": "m-2", "team": None, "text": f"{TOKEN} and again {TOKEN}, also for Acme"},
    ]
    rows += [{"id": f"m-{n}", "team": None, "text": f"machine {n} is fine"} for n in range(3, 40)]
    Path("mail.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    Path("rules.yaml").write_text(RULES)
    return tmp_path


SCAN = ("scan", "mail.jsonl", "--rules", "rules.yaml", "--output", "found", "--id-column", "id")


def files_below(folder: Path) -> dict[str, bytes]:
    return {path.relative_to(folder).as_posix(): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def content_below(folder: Path) -> dict[str, str]:
    """What the files of a folder say; tables are compressed, so their cells are read."""

    def content(path: Path) -> str:
        if path.suffix != ".parquet":
            return path.read_text()
        table = pq.read_table(path)
        return f"{table.to_pydict()} {table.schema.metadata}"

    return {path.relative_to(folder).as_posix(): content(path) for path in folder.rglob("*") if path.is_file()}


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
        "Go on: hush plan found/public/incidence.parquet",
        "hush explain found",
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
    monkeypatch.setattr(shards, "SMALL", 1)  # so that every file is a shard
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

    monkeypatch.setattr("hush.scan.engines.ray.RayEngine", cluster)
    record = run_json(*SCAN, "--engine", "ray", "--ray-address", "10.0.0.1:6379", "--workers", "3")
    assert asked == [{"address": "10.0.0.1:6379", "workers": 3}]
    assert record["pairs"] == run_json(*SCAN, "--force")["pairs"]


def test_a_review_is_written_unless_it_is_declined(mail: Path) -> None:
    assert run_json(*SCAN)["review"] == "found/owner/review.html"
    assert run_json(*SCAN, "--force", "--no-html")["review"] is None
    assert not (mail / "found/owner/review.html").exists()


def test_what_is_there_already_is_kept(mail: Path) -> None:
    run_json(*SCAN)
    before = files_below(mail / "found")
    assert refused(2, *SCAN) == "Error: found holds a scan already; pass --force to replace it, or name a new folder"
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
        (("--id-column", "text"), "'text' is the column of the texts"),
        (("--unit", "line"), "is not plain text"),
        (("--ray-address", "auto"), "--ray-address names a cluster, but the engine is local"),
        (("--rules", "missing.yaml"), "missing.yaml: No such file or directory"),
    ],
)
def test_options_that_do_not_fit_are_refused(mail: Path, arguments: tuple[str, ...], said: str) -> None:
    assert said in refused(2, *SCAN, *arguments)
    assert not Path("found").exists()


def test_wrong_rules_are_listed_before_anything_is_read(mail: Path) -> None:
    Path("rules.yaml").write_text(f"rules:\n  - {{name: a, find: word}}\n  - {{name: b, find: fields, {TOKEN}: 1}}\n")
    said = refused(2, "scan", "no-such-data.jsonl", *SCAN[2:])
    assert said.startswith("Error: rules.yaml has 3 problems: line 2: rules[0] (rule a): find is no known kind")
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
    assert [row["example"] for row in record["reasons"]] == [1]
    shown = run("explain", "found", "keys-000000", "--top", "1").stdout
    assert "in 2 examples; promised: from" in shown
    assert "The first 1 of 3 reasons" in shown


def test_what_cannot_be_explained_is_refused_and_not_repeated(mail: Path) -> None:
    run_json(*SCAN)
    for target in (TOKEN, "40", "5 --secret", "m-99"):
        said = refused(2, "explain", "found", *target.split())
        assert "no example and no secret of this scan has that number or id" in said
        assert TOKEN not in said
    assert "pass the one that is meant" in refused(2, "explain", "found", "1", "--secret", "--example")
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
    assert "that is an example's number and an example's id" in refused(2, "explain", "found", "1")
    assert run_json("explain", "found", "1", "--example")["example"]["number"] == 1
    assert "that is a secret's id and an example's id" in refused(2, "explain", "found", "keys-000000")
    assert run_json("explain", "found", "keys-000000", "--example")["example"]["number"] == 1
    assert run_json("explain", "found", "keys-000000", "--secret")["secret"]["number"] == 0
    assert "2 examples have that id (2, 3, …)" in refused(2, "explain", "found", "x")


def test_the_public_side_alone_explains_nothing(mail: Path) -> None:
    run_json(*SCAN)
    Path("found/owner").rename(mail / "kept")
    assert "found has no owner/ folder, where the reasons are" in refused(2, "explain", "found", "1")


@pytest.fixture
def repository(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A repository made on the spot, and rules for it."""
    monkeypatch.chdir(tmp_path)
    root = tmp_path / "repository"
    for name, text in {
        "billing/core.py": "RATE = 3\n" * 5,
        "shop/cart.py": f"from billing import core\n\nKEY = '{TOKEN}'\n",
        "shop/page.py": "import shop.cart\n",
        "docs/hello.py": "print('hello')\n",
    }.items():
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_text(text)
    git = ["git", "-C", str(root), "-c", "user.name=Ana", "-c", "user.email=ana@acme.com"]
    for arguments in (["init", "--quiet"], ["add", "."], ["commit", "--quiet", "--message", "first"]):
        subprocess.run([*git, *arguments], check=True)
    Path("code.yaml").write_text(
        "defaults: {prior: 1e-10, ceiling: 1e-3}\nchunks: {lines: 2}\nrules:\n"
        "  - {name: projects, find: code, secrets: [{name: billing, paths: ['billing/**']}], imports: {depth: 1}}\n"
        "  - {name: keys, find: patterns, patterns: ['sk-[A-Za-z0-9]+']}\n"
    )
    return root


CODE = ("scan", "repository", "--rules", "code.yaml", "--output", "found", "--key", "data.key")


def test_a_repository_is_scanned_in_chunks_that_inherit_from_their_files(repository: Path) -> None:
    record = run_json(*CODE)
    assert (record["examples"], record["secrets"]) == (
        7,
        2,
    )  # 3 chunks of core.py, 1 of hello.py, 2 of cart.py, 1 of page.py
    explained = run_json("explain", "found", "projects:billing")
    why = {row["example"]: row["reason"] for row in explained["reasons"]}
    assert sorted(why) == [0, 1, 2, 4, 5]
    assert why[0] == "file billing/core.py is under paths of billing"
    assert "imports" in why[4]
    assert run_json("explain", "found", "shop/cart.py#L3-L3")["reasons"][-1]["secret_id"] == "keys-000000"
    for result in (run(*CODE, "--force"), run("explain", "found", "5")):
        assert TOKEN not in result.output
    content = content_below(repository.parent / "found")
    assert {name for name, said in content.items() if TOKEN in said} == {"owner/texts.parquet", "owner/data.parquet"}


def test_what_means_nothing_or_is_no_example_is_noted(repository: Path) -> None:
    (repository / "logo.png").write_bytes(bytes(20))
    (repository / "broken.py").write_text("def (:\nimport billing.core\n")
    subprocess.run(["git", "-C", str(repository), "add", "."], check=True)
    rules = Path("code.yaml").read_text()
    Path("code.yaml").write_text(rules.replace("'billing/**'", "'billing/**', 'biling/**'"))
    notes = [
        "1 file passed over (binary): logo.png",
        "rule projects: pattern 2 of the paths of billing matches no file",
        "rule projects: imports may be missing from 1 file with errors: broken.py",
    ]
    assert run_json(*CODE)["notices"] == notes
    shown = run(*CODE, "--force").stdout
    page = (repository.parent / "found/owner/review.html").read_text()
    assert all(f"Note: {note}" in shown and note in page for note in notes)


def test_a_repository_goes_on_into_a_plan_for_its_chunks(repository: Path) -> None:
    assert "plan for found/owner/data.parquet, and train on it" in run(*CODE).stdout
    command = shlex.split(run_json(*CODE, "--force")["next"])
    assert "found/owner/data.parquet" in command
    result = run(*command[1:])
    assert result.exit_code == 0, message(result)
    assert hush.Plan.load("my-plan").data_fingerprint == Scan.load("found").data_fingerprint


def test_rules_for_code_want_a_folder_of_code(repository: Path) -> None:
    assert "code.yaml is no folder, but these rules are about code" in refused(2, "scan", "code.yaml", *CODE[2:])
    assert "column is about tables, but these rules are about code" in refused(2, *CODE, "--column", "text")


def test_a_plan_for_other_data_than_was_scanned_is_refused(tmp_path: Path) -> None:
    data, rules, found, key = (tmp_path / name for name in ("mail.jsonl", "rules.yaml", "found", "data.key"))
    data.write_text('{"text": "one", "other": "two"}\n{"text": "the word", "other": "three"}\n')
    rules.write_text(
        "{defaults: {prior: 1e-3, ceiling: 0.5}, rules: [{name: all, find: patterns, patterns: ['word']}]}"
    )
    assert run("scan", data, "--rules", rules, "--output", found, "--column", "text", "--key", key).exit_code == 0
    plan = ["plan", found / "public/incidence.parquet", "--secrets", found / "public/secrets.parquet"]
    plan += ["--batch-size", "1", "--rounds", "2", "--data", data, "--output", tmp_path / "plan"]
    assert "not what" in refused(2, *plan, "--key", key, "--column", "other")
    assert "another key" in refused(2, *plan, "--key", tmp_path / "new.key", "--column", "text")
    assert run(*plan, "--key", key, "--column", "text").exit_code == 0
    data.write_text('{"text": "the word"}\n{"text": "one"}\n')
    assert "scanned from" in refused(2, *plan, "--key", key, "--force")


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

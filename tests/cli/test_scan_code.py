"""hush scan of a repository: chunks that inherit from their files, notes, and the way on into a plan."""

import shlex
import subprocess
from pathlib import Path

import pytest
from some_mail import TOKEN, content_below

import hush
from command_line import message, refused, run, run_json
from hush.scan.result import Scan


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


def test_a_key_that_would_be_read_as_code_is_refused(repository: Path) -> None:
    said = refused(2, *CODE[:-1], "repository/data.key")
    assert "the key repository/data.key lies inside the data, repository," in said
    assert not (repository / "data.key").exists()


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


def test_the_causes_of_most_pairs_are_said(repository: Path) -> None:
    for number in range(3):
        (repository / f"shop/user{number}.py").write_text(f"import billing.core\n\n\nx = {number}\n")
    subprocess.run(["git", "-C", str(repository), "add", "."], check=True)
    causes = [
        {"secret": "projects:billing", "cause": "imports billing/core.py of billing", "pairs": 8, "of": 11},
        {"secret": "projects:billing", "cause": "is under paths of billing", "pairs": 3, "of": 11},
    ]
    assert run_json(*CODE)["causes"] == causes  # the key's pair has one cause, which says nothing
    assert run_json("explain", "found", "projects:billing")["causes"] == causes
    assert run_json("explain", "found", "keys-000000")["causes"] == []
    line = "8 of 11 pairs of projects:billing: imports billing/core.py of billing"
    assert line in run(*CODE, "--force").stdout
    assert line in run("explain", "found", "projects:billing").stdout


def test_what_means_nothing_is_refused_unless_it_is_optional_and_what_is_no_example_is_noted(repository: Path) -> None:
    (repository / "logo.png").write_bytes(bytes(20))
    (repository / "broken.py").write_text("def (:\nimport billing.core\n")
    subprocess.run(["git", "-C", str(repository), "add", "."], check=True)
    rules = Path("code.yaml").read_text()
    Path("code.yaml").write_text(rules.replace("'billing/**'", "'billing/**', 'biling/**'"))
    said = refused(2, *CODE)
    assert "rule projects: pattern 2 of the paths of billing matches no file" in said
    assert "mark the secret with optional: true" in said
    Path("code.yaml").write_text(rules.replace("'billing/**'", "'billing/**', '!billing/**'"))
    assert "rule projects: secret billing has no file of its own" in refused(2, *CODE)
    optional = "'billing/**', 'biling/**'], optional: true"
    Path("code.yaml").write_text(rules.replace("'billing/**']", optional))
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
    assert "code.yaml is not a folder, but these rules are about code" in refused(2, "scan", "code.yaml", *CODE[2:])
    assert "column is for tables, but these rules are about code" in refused(2, *CODE, "--column", "text")

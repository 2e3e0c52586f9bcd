"""``hush ledger``, and the commands that work with one: scan and train, step by step."""

import json
from pathlib import Path
from typing import Any

import pytest

from command_line import message, refused, run, run_json
from hush.keys import DataKey
from hush.ledger import Ledger
from hush.scan import Scan

RULES = """\
version: 1
defaults: {prior: 1.0e-6, ceiling: 1.0e-2}
rules:
  - {name: codes, find: patterns, patterns: ['QX-\\d{4}']}
"""


def notes(count: int) -> str:
    return "".join(f"note {row} of rain{f' QX-{1000 + row % 4}' if row % 5 == 0 else ''}\n" for row in range(count))


@pytest.fixture(scope="module")
def desk(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two months by single commands, up to their plans and one training; never changed."""
    from hush.run.sections import SmallModel
    from hush.run.stage_train import base_model

    folder = tmp_path_factory.mktemp("desk")
    base_model(folder / "models", SmallModel(layers=1, width=8, heads=1, length=32)).rename(folder / "model")
    (folder / "rules.yaml").write_text(RULES)
    for month, count in ((1, 40), (2, 46)):
        data, found, plan = (folder / f"{name}-{month}" for name in ("notes", "found", "plan"))
        data = data.with_suffix(".txt")
        data.write_text(notes(count))
        done(run("scan", data, "--rules", folder / "rules.yaml", "--ledger", folder / "ledger", "--output", found))
        kind = ["--series", 3, "--growth", 2] if month == 1 else ["--after", folder / "plan-1"]
        graph = [found / "public" / "incidence.parquet", "--secrets", found / "public" / "secrets.parquet"]
        sizes = ["--batch-size", 4, "--rounds", 3, "--keep", 0.5]
        key = folder / "ledger" / "data.key"
        done(run("plan", *graph, "--data", data, "--key", key, *sizes, *kind, "--output", plan))
        if month == 1:
            done(run("train", *training(folder, 1), "--ledger", folder / "ledger"))
    return folder


def done(result: Any) -> None:
    assert result.exit_code == 0, result.output


def training(folder: Path, month: int) -> list[object]:
    place = [f"--model={folder / 'model'}", f"--data={folder / f'notes-{month}.txt'}", "--device=cpu", "--no-first"]
    return [
        folder / f"plan-{month}",
        *place,
        f"--key={folder / 'ledger' / 'data.key'}",
        f"--output={folder}/run-{month}",
    ]


def test_step_by_step_a_training_is_entered_and_secrets_keep_their_ids(desk: Path) -> None:
    ledger = Ledger.load(desk / "ledger")
    assert [(entry.number, entry.state, entry.rounds) for entry in ledger.entries] == [(1, "finished", True)]
    first, second = (Scan.load(desk / f"found-{month}").identities for month in (1, 2))
    assert first is not None
    assert second is not None
    assert dict(first.by_identity) == dict(second.by_identity)


def test_a_plan_of_several_releases_is_not_trained_without_their_ledger(desk: Path) -> None:
    assert "pass its folder as --ledger" in refused(2, "train", *training(desk, 2))
    assert not (desk / "run-2").exists()


def test_another_key_and_a_folder_without_a_ledger_are_refused(desk: Path, tmp_path: Path) -> None:
    DataKey.create(tmp_path / "other.key")
    found = ["--rules", desk / "rules.yaml", "--output", tmp_path / "found"]
    told = refused(
        2, "scan", desk / "notes-1.txt", *found, "--ledger", desk / "ledger", "--key", tmp_path / "other.key"
    )
    assert "under the key" in told
    assert "is no ledger" in refused(2, "ledger", tmp_path)


def test_it_shows_releases_and_the_most_used_secrets(desk: Path) -> None:
    shown = run("ledger", desk / "ledger", "--top", 2)
    assert shown.exit_code == 0, shown.output
    assert "1 of 3 announced releases have begun; 2 left." in shown.stdout
    assert "finished" in shown.stdout
    assert shown.stdout.count("codes-00000") == 2
    assert "And 2 secrets that are used less." in shown.stdout
    record = run_json("ledger", desk / "ledger")
    assert (record["kind"], record["count"], record["releases_left"], record["open"]) == ("series", 3, 2, [])
    assert len(record["secrets"]) == 4
    for secret in record["secrets"]:
        assert secret["prior"] < secret["spent"] <= secret["stated"] <= secret["ceiling"]
        assert secret["left"] == pytest.approx(2 / 3)
    assert "QX-" not in json.dumps(record)


def test_it_writes_a_page_that_is_the_owners_alone(desk: Path, tmp_path: Path) -> None:
    page = tmp_path / "ledger.html"
    done(run("ledger", desk / "ledger", "--plot", page))
    assert page.stat().st_mode & 0o077 == 0
    assert "QX-" not in page.read_text()
    assert "exists; pass --force" in refused(2, "ledger", desk / "ledger", "--plot", page)
    done(run("ledger", desk / "ledger", "--plot", page, "--force"))


def test_an_empty_ledger_says_so(tmp_path: Path) -> None:
    Ledger.with_key(tmp_path / "ledger")
    shown = run("ledger", tmp_path / "ledger")
    assert shown.exit_code == 0
    assert "No training has begun" in shown.stdout


def test_merges_and_abandoned_releases_are_stated_on_the_command_line(desk: Path, tmp_path: Path) -> None:
    import shutil

    shutil.copytree(desk / "ledger", tmp_path / "ledger")
    record = run_json("ledger", tmp_path / "ledger", "--merge", "codes-000003=codes-000000,codes-000001")
    assert record["merged"] == {"codes-000003": ["codes-000000", "codes-000001"]}
    assert "is not NEW=OLD" in refused(2, "ledger", tmp_path / "ledger", "--merge", "codes-000003")
    assert "no scan with this ledger found" in refused(2, "ledger", tmp_path / "ledger", "--merge", "x=codes-000000")
    assert "only one that is not finished" in refused(2, "ledger", tmp_path / "ledger", "--abandon", 1)


def test_the_second_month_is_trained_after_the_first_and_verifies_as_a_chain(desk: Path, tmp_path: Path) -> None:
    import shutil

    shutil.copytree(desk, tmp_path / "desk")
    folder = tmp_path / "desk"
    done(run("train", *training(folder, 2), "--ledger", folder / "ledger"))
    assert [entry.state for entry in Ledger.load(folder / "ledger").entries] == ["finished", "finished"]
    assert [path.name for path in (folder / "run-2" / "release" / "earlier").iterdir()] == ["0001"]
    done(run("verify", folder / "run-2" / "release"))
    again = run("train", *training(folder, 2)[:-1], f"--output={folder}/elsewhere", "--ledger", folder / "ledger")
    assert again.exit_code == 2
    assert "a plan is trained once" in message(again)

"""The demo tells what the library computes, and leaves whole files behind."""

import json
from pathlib import Path

import numpy as np
import pytest
from typer.testing import CliRunner

import hush
from hush.cli import app
from hush.demo import BATCH_SIZE, FULL, PAPER_RATE, PRIOR, QUICK, ROUNDS, TABLE, company

FILES = {"noise.png", "noise.svg", "demo.json", "incidence.parquet", "secrets.parquet"}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("demo") / "made" / "here"
    result = CliRunner().invoke(app, ["demo", "--quick", "--output", str(folder)])
    assert result.exit_code == 0, result.output
    for name in FILES:
        assert name in result.stdout
    return folder


def test_the_files_are_whole_and_nothing_else_is_left(folder: Path) -> None:
    assert {path.name for path in folder.iterdir()} == FILES
    assert (folder / "noise.png").read_bytes().startswith(b"\x89PNG")
    assert (folder / "noise.png").stat().st_size > 20_000
    svg = (folder / "noise.svg").read_text()
    assert svg.rstrip().endswith("</svg>")
    assert len(svg) > 20_000


def test_its_numbers_are_the_librarys(folder: Path) -> None:
    record = json.loads((folder / "demo.json").read_text())
    incidence = hush.Incidence.from_parquet(folder / "incidence.parquet")
    secrets = hush.Secrets.from_parquet(folder / "secrets.parquet")
    for bound in ("kl", "renyi", "blowup"):
        found = hush.calibrate(
            incidence,
            prior=secrets.prior,
            ceiling=secrets.ceiling,
            rates=BATCH_SIZE / incidence.num_examples,
            rounds=ROUNDS,
            bound=bound,
        )
        assert record["company"]["noise_multiplier"][bound] == found.noise_multiplier
        for row in record["table"]:
            count = row["examples_per_secret"]
            alone = hush.Incidence.from_pairs(range(count), [0] * count, num_examples=count, num_secrets=1)
            promise = {"prior": PRIOR, "ceiling": row["ceiling"], "rates": PAPER_RATE, "rounds": ROUNDS}
            assert row[bound] == hush.calibrate(alone, **promise, bound=bound).noise_multiplier
    assert [(row["examples_per_secret"], row["ceiling"]) for row in record["table"]] == list(QUICK.table)
    curve = record["picture"]["curve"]
    assert np.all(np.diff(curve["posterior"]) > 0)
    assert np.all(np.array(curve["posterior"]) > curve["prior"])


def test_the_command_it_suggests_gives_the_same_noise(folder: Path) -> None:
    files = [str(folder / "incidence.parquet"), "--secrets", str(folder / "secrets.parquet")]
    settings = ["--batch-size", str(BATCH_SIZE), "--rounds", str(ROUNDS), "--bound", "all", "--json"]
    result = CliRunner().invoke(app, ["calibrate", *files, *settings])
    record = json.loads((folder / "demo.json").read_text())
    assert json.loads(result.stdout)["noise_by_bound"] == record["company"]["noise_multiplier"]


def test_the_company_is_the_same_every_time_and_as_described() -> None:
    incidence, secrets = company(FULL, np.random.default_rng(1))
    again, _ = company(FULL, np.random.default_rng(1))
    assert incidence == again
    assert (incidence.num_examples, incidence.num_secrets) == (20_000, 400)
    assert 1 <= incidence.examples_per_secret.min() <= incidence.examples_per_secret.max() <= 100
    assert np.all((secrets.ceiling >= 2e-4) & (secrets.ceiling <= 1e-3))
    assert FULL.table == TABLE


def test_a_file_in_place_of_the_folder_is_refused(tmp_path: Path) -> None:
    taken = tmp_path / "taken"
    taken.write_text("mine")
    result = CliRunner().invoke(app, ["demo", "--quick", "--output", str(taken)])
    assert result.exit_code == 2
    assert "is a file; pass a folder" in result.stderr
    assert taken.read_text() == "mine"

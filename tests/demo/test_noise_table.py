"""The table and the picture of the page on noise are what the library computes, and are left as whole files."""

import json
import re
from pathlib import Path

import numpy as np
import pytest

import hush
from command_line import refused, run
from hush.demo.noise_table import FULL_TABLE, PAPER_RATE, PRIOR, QUICK_TABLE, ROUNDS, TABLE, noise_rows

ROOT = Path(__file__).parents[2]
FILES = {"noise.png", "noise.svg", "noise.json"}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("demo") / "made" / "here"
    result = run("demo", "--noise-table", "--quick", "--output", folder)
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
    record = json.loads((folder / "noise.json").read_text())
    for row in record["table"]:
        count = row["examples_per_secret"]
        alone = hush.Incidence.from_pairs(range(count), [0] * count, num_examples=count, num_secrets=1)
        promise = {"prior": PRIOR, "ceiling": row["ceiling"], "rates": PAPER_RATE, "rounds": ROUNDS}
        for bound in ("kl", "renyi", "blowup"):
            assert row[bound] == hush.calibrate(alone, **promise, bound=bound).noise_multiplier
        assert row["kl"] >= row["renyi"] >= row["blowup"]
    assert [(row["examples_per_secret"], row["ceiling"]) for row in record["table"]] == list(QUICK_TABLE.table)
    assert FULL_TABLE.table == TABLE
    curve = record["picture"]["curve"]
    assert np.all(np.diff(curve["posterior"]) > 0)
    assert np.all(np.array(curve["posterior"]) > curve["prior"])


def test_the_page_on_noise_shows_the_table_that_is_computed() -> None:
    page = (ROOT / "docs" / "noise.md").read_text()
    shown = [line.strip("| ").split(" | ") for line in page.splitlines() if re.match(r"\| \d", line)]
    assert [(int(examples), float(ceiling)) for examples, ceiling, *_ in shown] == list(TABLE)
    for (_, _, *numbers), row in zip(shown, noise_rows(TABLE), strict=True):
        computed = [row["kl"], row["renyi"], row["blowup"], row["kl"] / row["blowup"]]
        digits = [len(number.partition(".")[2]) for number in numbers]
        assert numbers == [f"{value:.{places}f}" for value, places in zip(computed, digits, strict=True)]


def test_a_file_in_place_of_the_folder_is_refused(tmp_path: Path) -> None:
    taken = tmp_path / "taken"
    taken.write_text("mine")
    assert "is a file; pass a folder" in refused(2, "demo", "--noise-table", "--quick", "--output", taken)
    assert taken.read_text() == "mine"

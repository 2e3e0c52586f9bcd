"""The study of the blow-up function: its command end to end at small scale, and the readings it judges others by."""

import csv
import json
import os
import subprocess
import sys
from collections.abc import Callable
from importlib import import_module
from pathlib import Path
from types import ModuleType

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays
from scipy.special import ndtr, ndtri

ROOT = Path(__file__).parents[2]
RESULTS = ROOT / "experiments" / "results" / "blowup_feasible"
FIGURES = ("masses", "readings", "noise")


@pytest.fixture(scope="module")
def module() -> Callable[[str], ModuleType]:
    """Modules of the study by name; experiments are run from the root and are no part of the installed package."""
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(ROOT)
        return {name: import_module(f"experiments.blowup_feasible.{name}") for name in MODULES}.__getitem__


MODULES = ("__main__", "accountant", "cases", "measure", "peer")


@pytest.fixture(scope="module")
def small(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of one run of the command at small scale."""
    folder = tmp_path_factory.mktemp("study")
    command = [sys.executable, "-m", "experiments.blowup_feasible", "--scale", "small", "--output", str(folder)]
    done = subprocess.run(
        command, cwd=ROOT, capture_output=True, text=True, env=os.environ | {"OMP_NUM_THREADS": "1"}, check=False
    )
    assert done.returncode == 0, done.stderr
    return folder


def rows(path: Path) -> list[dict[str, str]]:
    with path.open(newline="") as file:
        return list(csv.DictReader(file))


def test_the_command_writes_runs_tables_summary_and_figures(small: Path) -> None:
    names = {"runs.jsonl", "table.csv", "noise.csv", "summary.json", *(f"{name}.svg" for name in FIGURES)}
    assert {path.name for path in small.iterdir()} == names
    runs = [json.loads(line) for line in (small / "runs.jsonl").read_text().splitlines()]
    assert [run["failed"] for run in runs if "failed" in run] == []
    assert {run["key"]["part"] for run in runs} == {"noise", "peer", "hush", "simulation", "anatomy"}
    assert all({"date", "hardware", "commit", "seconds"} <= run.keys() for run in runs)
    summary = json.loads((small / "summary.json").read_text())
    assert {"date", "hardware", "commit", "setting", "peer_mass", "scan", "readings", "hush"} <= summary.keys()
    assert summary["runs"] == len(runs)


def test_the_table_has_a_row_for_every_case_of_the_grid(small: Path, module: Callable[[str], ModuleType]) -> None:
    scale = module("cases").SMALL
    table, noise = rows(small / "table.csv"), rows(small / "noise.csv")
    # Two noises for each promise, at each interval, the finest one and with the other table; then the rest.
    assert len(table) == len(scale.promises) * 2 * (len(scale.intervals) + 2) + len(scale.deep) + 2 * len(scale.scan)
    assert {row["noise_from"] for row in table} == {"kl", "blowup", "scan"}
    assert sum(row["simulated"] != "" for row in table) > 0
    for row in table:
        assert 0 < float(row["hush_lower"]) <= float(row["hush_upper"]) <= 1
        assert float(row["hush_cpu_seconds"]) > 0
    assert len(noise) == len(scale.by_examples) + len(scale.by_prior) + len(scale.by_ceiling)
    assert {row["panel"] for row in noise} == {"examples", "prior", "ceiling"}
    assert all(float(row["kl"]) >= float(row["renyi"]) > 0 for row in noise)


def test_a_second_call_does_no_work(
    small: Path, module: Callable[[str], ModuleType], capsys: pytest.CaptureFixture[str]
) -> None:
    before = (small / "runs.jsonl").read_bytes()
    table = (small / "table.csv").read_bytes()
    module("__main__").main(["--scale", "small", "--output", str(small)])
    assert (small / "runs.jsonl").read_bytes() == before
    assert (small / "table.csv").read_bytes() == table
    assert capsys.readouterr().out == ""


def test_a_call_without_time_begins_nothing_and_leaves_a_readable_state(
    tmp_path: Path, module: Callable[[str], ModuleType]
) -> None:
    module("__main__").main(["--output", str(tmp_path), "--minutes", "-1"])
    assert not (tmp_path / "runs.jsonl").exists()
    assert rows(tmp_path / "table.csv") == []
    assert json.loads((tmp_path / "summary.json").read_text())["cases"] == 0


def test_the_committed_results_are_whole_and_the_page_shows_their_figures() -> None:
    runs = [json.loads(line) for line in (RESULTS / "runs.jsonl").read_text().splitlines()]
    done = [run["key"] for run in runs if "outcome" in run]
    assert [run["key"] for run in runs if "failed" in run and run["key"] not in done] == []
    assert len(rows(RESULTS / "table.csv")) == json.loads((RESULTS / "summary.json").read_text())["cases"]
    page = (ROOT / "docs" / "studies" / "blow-up.md").read_text()
    for name in FIGURES:
        shown = ROOT / "docs" / "images" / "studies" / f"blow-up-{name}.svg"
        assert shown.read_bytes() == (RESULTS / f"{name}.svg").read_bytes()
        assert f"../images/studies/{shown.name}" in page


@pytest.mark.parametrize("shift", [0.5, 2.0, 6.0])
@pytest.mark.parametrize("prior", [1e-10, 1e-3])
def test_readings_agree_with_the_closed_form_of_two_normal_laws(
    shift: float, prior: float, module: Callable[[str], ModuleType]
) -> None:
    peer = module("peer")
    x = np.linspace(-9 - shift, 9 + shift, 40_001)
    p, q = (np.exp(-((x - m) ** 2) / 2) * (x[1] - x[0]) / np.sqrt(2 * np.pi) for m in (shift, 0.0))
    loss = shift * x - shift * shift / 2
    truth = float(ndtr(ndtri(prior) + shift))
    assert peer.mass_of_other_law(loss, p) == pytest.approx(1, abs=1e-9)
    assert peer.curve_at(prior, q[::-1], p[::-1]) == pytest.approx(truth, rel=1e-3)
    assert peer.least_over_thresholds(prior, loss, p) == pytest.approx(truth, rel=1e-3)


@given(
    weights=arrays.arrays(np.float64, st.integers(2, 40), elements=st.floats(1e-6, 1.0)),
    step=st.floats(0.01, 8.0),
    prior=st.floats(1e-12, 0.5),
    certain=st.floats(0.0, 0.3),
)
@settings(max_examples=60)
def test_partial_sums_and_thresholds_are_the_same_function_of_an_exact_law(
    weights: np.ndarray, step: float, prior: float, certain: float, module: Callable[[str], ModuleType]
) -> None:
    """The two readings are dual: they can differ only where the law they are given is not one."""
    peer = module("peer")
    loss = (np.arange(weights.size) - weights.size // 2) * step
    q = weights * np.exp(-loss - np.logaddexp.reduce(np.log(weights) - loss))  # of total 1
    p = q * np.exp(loss)
    scale = (1 - certain) / p.sum()
    loss, p = loss + np.log(scale), p * scale
    by_sums = peer.curve_at(prior, q[::-1], p[::-1], certain=certain)
    assert peer.least_over_thresholds(prior, loss, p, certain=certain) == pytest.approx(by_sums, rel=1e-6)


@pytest.mark.parametrize(("examples", "sigma"), [(1, 0.307), (100, 1.816), (100, 31.0)])
def test_both_masses_of_the_law_that_hush_composes_are_one(
    examples: int, sigma: float, module: Callable[[str], ModuleType]
) -> None:
    found = module("accountant").masses(module("cases").Point(examples=examples, noise_multiplier=sigma))
    assert found["mass_with"] == pytest.approx(1, abs=1e-4)
    assert found["mass_without"] == pytest.approx(1, abs=1e-4)


def test_measuring_sees_the_memory_that_was_taken_and_given_back() -> None:
    # In a process of its own: here, what other tests left may be given back meanwhile.
    code = (
        "import json, numpy; from experiments.blowup_feasible.measure import measured; "
        "print(json.dumps(measured(lambda: float(numpy.ones(8_000_000).sum()))))"
    )
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=True)
    total, seconds, peak = json.loads(done.stdout)
    assert total == 8e6
    assert seconds > 0
    if peak is not None:
        assert 55 < peak < 130  # 61 MB of ones


def test_an_overflow_is_no_number_of_the_log(module: Callable[[str], ModuleType]) -> None:
    finite = module("measure").finite
    assert finite(float("inf")) is None
    assert finite(float("nan")) is None
    assert finite(-2.5) == -2.5

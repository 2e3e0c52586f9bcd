"""The benchmarks of dropping, redacting and hush, at their smallest scale, on this project's own texts and code."""

import json
import runpy
import sys
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).parents[2]
SETTINGS = "texts-whole-20", "code-spans-20"


@pytest.fixture(scope="module")
def results(warm_public_process: None, tmp_path_factory: pytest.TempPathFactory) -> dict[str, dict[str, Any]]:
    """What the program writes when it is run as ``python benchmarks/never_worse.py``, in this process."""
    work = tmp_path_factory.mktemp("never-worse")
    program = ROOT / "benchmarks" / "never_worse.py"
    command = [str(program), "--scale", "smoke", "--work", str(work), "--output", str(work / "all.json")]
    command += ["--texts", str(ROOT / "docs"), "--second-texts", "guide"]
    command += ["--code", str(ROOT / "src" / "hush"), "--second-code", "scan", "--only", *SETTINGS]
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(str(program.parent))
        patch.setattr(sys, "argv", command)
        for again in range(2):  # the second time nothing is repeated
            begun = work.stat().st_mtime_ns
            runpy.run_path(str(program), run_name="__main__")
            assert not again or (work / f"{SETTINGS[0]}.json").stat().st_mtime_ns < begun
    return {row["setting"]: row for row in json.loads((work / "all.json").read_text())["settings"]}


def test_private_rounds_are_trained_unless_they_are_hopeless(results: dict[str, dict[str, Any]]) -> None:
    whole, spans = (results[name] for name in SETTINGS)
    assert not whole["hopeless"]
    assert whole["rounds_trained"] == whole["rounds"] == 3
    assert whole["losses"]["hush"] != whole["losses"]["dropping"]
    assert spans["hopeless"]
    assert spans["rounds_trained"] == 0
    assert spans["losses"]["hush"] == spans["losses"]["redacting"]


def test_settings_hold_the_share_of_secrets_that_they_are_named_after(results: dict[str, dict[str, Any]]) -> None:
    for row in results.values():
        assert row["with_a_secret"] / row["documents"] == pytest.approx(0.2, abs=0.1)
        assert all(loss > 0 for way in row["losses"].values() for loss in way.values())
        assert max(way["ordinary"] for way in row["losses"].values()) == row["losses"]["before"]["ordinary"]


def test_a_forecast_outside_of_its_range_costs_twenty_times_how_far(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(ROOT / "benchmarks"))
    from rehearsal import _really_best, _row  # pyright: ignore[reportMissingImports]

    from hush.rehearse.outcome import ArmForecast, Interval

    class Forecasts:
        def arm(self, name: Any) -> ArmForecast:
            interval = Interval(expected=2.0, low=1.9, high=2.1)
            return ArmForecast(arm=name, ordinary=interval, like=interval)

    real: dict[str, Any] = {
        "rounds_trained": 9,
        "losses": {
            "dropping": {"ordinary": 2.0, "like": 3.0},
            "redacting": {"ordinary": 2.0, "like": 2.5},
            "hush": {"ordinary": 2.0, "like": 2.2},
        },
    }
    inside, outside = (_row(Forecasts(), real, "hush", kind) for kind in ("ordinary", "like"))  # pyright: ignore
    assert inside["covered"]
    assert inside["interval_score"] == pytest.approx(0.2)
    assert not outside["covered"]
    assert outside["interval_score"] == pytest.approx(0.2 + 20 * 0.1)
    assert _really_best(real, 0.1) == "hush"
    real["losses"]["hush"]["ordinary"] = 2.02  # more than 0.5 % worse
    assert _really_best(real, 0.1) == "redacting"
    real["rounds_trained"] = 0
    assert _row(Forecasts(), real, "hush", "like") is None  # pyright: ignore

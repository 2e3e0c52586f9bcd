"""The demonstration of monthly releases, at its smallest: three months of made-up notes, one of them killed."""

import importlib.util
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest


@pytest.fixture(scope="module")
def monthly() -> ModuleType:
    path = Path(__file__).parents[2] / "benchmarks" / "monthly.py"
    spec = importlib.util.spec_from_file_location("monthly", path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules["monthly"] = module
    spec.loader.exec_module(module)
    return module


def test_three_months_are_one_series_whatever_is_killed_and_separate_promises_need_less_noise(
    monthly: Any, tmp_path: Path
) -> None:
    record = monthly.demonstration(monthly.made_up_months(3), tmp_path, sizes=monthly.SMALL_SIZES, killed={2: 2})
    assert record["entries"] == ["released"] * 3
    for number, month in enumerate(record["months"], 1):
        assert (month["number"], month["of"], month["earlier_plans"]) == (number, 3, number - 1)
        assert month["trainings"] == 1
        assert month["verified"]
        assert month["report"]
        assert month["largest_share_of_ceiling"] <= 1
    examples = [month["examples"] for month in record["months"]]
    assert examples == sorted(set(examples))
    used = record["used_after_each"]
    assert used == sorted(used)
    assert used[-1] <= 1
    for row in record["price"]:
        noise = {name: way["noise_multiplier"] for name, way in row.items() if name != "month"}
        assert noise["separate"] < min(noise["filter"], noise["no_growth"])
        assert noise["no_growth"] < noise["series"]

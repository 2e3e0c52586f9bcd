"""What a sweep is asked for is checked before any work."""

from typing import Any

import pytest

import hush
from hush.weights.choose import checked_batch_size

PROMISE: dict[str, Any] = {"prior": 1e-6, "ceiling": 1e-2, "rounds": 10}


@pytest.fixture
def incidence(monkeypatch: pytest.MonkeyPatch) -> hush.Incidence:
    """A graph whose calibration would be noticed."""

    def begun(*_: object, **__: object) -> None:
        raise AssertionError("the accountant was asked before the arguments were checked")

    monkeypatch.setattr("hush.weights.accounts.calibrate", begun)
    return hush.Incidence.from_pairs([0, 1], [0, 1], num_examples=2, num_secrets=2)


@pytest.mark.parametrize("settings", [[], ["a"], [1.0, 10**400], [None], 3.0, [0.0], [float("nan")], [1.0, -1.0]])
@pytest.mark.parametrize("capacity", ["accounted", "paper"])
def test_settings_that_are_no_positive_numbers_are_refused(
    incidence: hush.Incidence, capacity: Any, settings: Any
) -> None:
    with pytest.raises(hush.InvalidInput, match="setting"):
        hush.frontier(incidence, **PROMISE, batch_size=1, capacity=capacity, settings=settings)


@pytest.mark.parametrize("size", ["a", None, 10**400, [1, 2], 1j, float("nan"), 0, -1, float("inf")])
def test_a_batch_size_that_is_no_positive_number_is_refused(incidence: hush.Incidence, size: Any) -> None:
    with pytest.raises(hush.InvalidInput, match="batch_size"):
        hush.frontier(incidence, **PROMISE, batch_size=size)


@pytest.mark.parametrize("tolerance", ["a", None, 10**400, 0.0, 1.0, float("nan")])
def test_a_tolerance_that_is_no_share_is_refused(incidence: hush.Incidence, tolerance: Any) -> None:
    with pytest.raises(hush.InvalidInput, match="tolerance"):
        hush.frontier(incidence, **PROMISE, batch_size=1, tolerance=tolerance)


def test_a_plan_that_keeps_everything_has_no_settings(incidence: hush.Incidence) -> None:
    with pytest.raises(hush.InvalidInput, match="no settings to sweep"):
        hush.frontier(incidence, **PROMISE, batch_size=1, capacity="none", settings=[1.0])


@pytest.mark.parametrize(
    ("size", "message"),
    [
        (0, "batch_size=0; pass a number above 0"),
        (float("nan"), "batch_size=nan; pass a number above 0"),
        ("many", "batch_size='many'; pass a number"),
        (9, "batch_size=9 is more than the 8 examples that are not held out, of 10; lower it to at most 8"),
    ],
)
def test_one_check_of_the_batch_size_names_the_setting(size: Any, message: str) -> None:
    with pytest.raises(hush.InvalidInput) as caught:
        checked_batch_size(size, 10, held_out=2)
    assert str(caught.value).startswith(message)
    assert caught.value.setting == "batch_size"
    assert checked_batch_size(8, 10, held_out=2) == 8.0


def test_a_batch_larger_than_the_data_is_infeasible_too() -> None:
    with pytest.raises(hush.InfeasiblePlan, match="batch_size=2 is more than the 1 example; lower it to at most 1"):
        checked_batch_size(2, 1)

"""Numbers that callers pass in: what is not one is refused by the name of its setting."""

from typing import Any

import numpy as np
import pytest

from hush.errors import InvalidInput
from hush.numbers import checked_number, checked_positive, checked_size


@pytest.mark.parametrize("value", ["a", None, 10**400, [1, 2], 1j])
def test_what_no_float_can_hold_is_refused_with_its_setting(value: Any) -> None:
    with pytest.raises(InvalidInput, match=r"keep=.*; pass a number that a float can hold") as caught:
        checked_number("keep", value)
    assert caught.value.setting == "keep"


def test_numbers_of_any_type_become_floats() -> None:
    assert [checked_number("keep", value) for value in (1, "2.5", np.float32(0.5), True)] == [1.0, 2.5, 0.5, 1.0]
    assert np.isnan(checked_number("keep", float("nan")))


@pytest.mark.parametrize("value", [0, -1.0, float("nan"), float("inf")])
def test_a_positive_number_is_finite_and_above_zero(value: float) -> None:
    with pytest.raises(InvalidInput, match=r"clip_norm=.*; pass a finite number above 0") as caught:
        checked_positive("clip_norm", value)
    assert caught.value.setting == "clip_norm"
    assert checked_positive("clip_norm", 5e-324) == 5e-324


@pytest.mark.parametrize("value", [-1, 1.5, "3", None, True, np.True_])
def test_a_size_is_a_whole_number_from_zero(value: object) -> None:
    with pytest.raises(InvalidInput, match="num_examples="):
        checked_size("num_examples", value)  # pyright: ignore[reportArgumentType]

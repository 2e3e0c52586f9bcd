"""Indices that callers pass in."""

import numpy as np
import pytest

from hush.arrays import checked_indices, chosen_indices
from hush.errors import InvalidInput


@pytest.mark.parametrize("dtype", [np.int8, np.uint8, np.int32, np.uint64, np.int64])
def test_every_integer_type_is_accepted_and_keeps_its_values(dtype: type) -> None:
    assert checked_indices("rows", np.array([3, 0, 3], dtype=dtype), 4).tolist() == [3, 0, 3]


def test_an_empty_list_is_no_index_at_all() -> None:
    assert checked_indices("rows", [], 0).dtype == np.int64


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ([0, -1], r"rows\[1\]=-1 is outside \[0, 3\)"),
        ([0, 1, 3], r"rows\[2\]=3 is outside \[0, 3\)"),
        (np.array([2**63], dtype=np.uint64), r"rows\[0\]=9223372036854775808 is outside"),
        ([0.0, 1.0], "holds float64 values"),
        (["a"], "holds <U1 values"),
        ([[0, 1]], r"shape \(1, 2\)"),
        ([[0], [0, 1]], "different lengths"),
    ],
)
def test_a_bad_index_is_refused_with_its_place_and_value(values: object, message: str) -> None:
    with pytest.raises(InvalidInput, match=message):
        checked_indices("rows", values, 3)  # pyright: ignore[reportArgumentType]


def test_a_mask_and_its_indices_choose_the_same_rows() -> None:
    assert chosen_indices("rows", [False, True, True], 3).tolist() == chosen_indices("rows", [1, 2], 3).tolist()


def test_a_mask_of_the_wrong_length_and_a_repeated_index_are_refused() -> None:
    with pytest.raises(InvalidInput, match="one entry for each of 3 rows"):
        chosen_indices("rows", [True, False], 3)
    with pytest.raises(InvalidInput, match="names 1 more than once"):
        chosen_indices("rows", [1, 0, 1], 3)

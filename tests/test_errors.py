"""The error family."""

import pickle

import pytest

from hush.errors import CannotCertify, HushError, InfeasiblePlan, InvalidInput, Setting


@pytest.mark.parametrize("error", [InvalidInput, InfeasiblePlan, CannotCertify])
def test_one_except_clause_catches_the_whole_family(error: type[HushError]) -> None:
    with pytest.raises(HushError, match="what"):
        raise error("what, the values, what to do")


def test_only_bad_input_is_a_value_error() -> None:
    assert issubclass(InvalidInput, ValueError)
    assert not issubclass(InfeasiblePlan, ValueError)
    assert not issubclass(CannotCertify, ValueError)


def test_each_door_shows_its_own_name_for_a_setting_also_after_pickling() -> None:
    parts = ("pass a number above 0, or drop ", Setting("keep"))
    error = pickle.loads(pickle.dumps(InvalidInput(*parts, setting="batch_size", value=0)))
    assert str(error) == "batch_size=0; pass a number above 0, or drop keep"
    error.show_settings_as(lambda name: f"plan.{name}" if name == "keep" else None)
    error.show_settings_as(lambda name: f"--{name}")
    assert str(error) == "--batch_size=0; pass a number above 0, or drop plan.keep"
    assert error.setting == "batch_size"


def test_text_that_looks_like_the_name_of_a_setting_is_left_alone() -> None:
    error = InvalidInput("keep what is there", setting="keep")
    error.show_settings_as(lambda _: "--keep")
    assert str(error) == "keep what is there"

"""The error family."""

import pytest

from hush.errors import CannotCertify, HushError, InfeasiblePlan, InvalidInput


@pytest.mark.parametrize("error", [InvalidInput, InfeasiblePlan, CannotCertify])
def test_one_except_clause_catches_the_whole_family(error: type[HushError]) -> None:
    with pytest.raises(HushError, match="what"):
        raise error("what, the values, what to do")


def test_only_bad_input_is_a_value_error() -> None:
    assert issubclass(InvalidInput, ValueError)
    assert not issubclass(InfeasiblePlan, ValueError)
    assert not issubclass(CannotCertify, ValueError)

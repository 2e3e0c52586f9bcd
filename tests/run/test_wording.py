"""Errors of a run name keys of its config, whichever kind they are; what names no option stays as it is."""

import pytest

from hush.errors import CannotCertify, HushError, InfeasiblePlan, InvalidInput
from hush.run.preflight import in_words_of_config


class OfItsOwn(InfeasiblePlan):
    """A kind whose making takes other things than a message."""

    def __init__(self, one: int, other: int) -> None:
        super().__init__(f"--max-length={one + other} is too long")


@pytest.mark.parametrize("kind", [InvalidInput, InfeasiblePlan, CannotCertify, HushError])
def test_an_option_becomes_a_key_and_the_kind_stays(kind: type[HushError]) -> None:
    with pytest.raises(kind) as caught, in_words_of_config():
        raise kind("--device=tpu cannot be used here; name the one with --column, or pass --task causal")
    assert type(caught.value) is kind
    said = "training.device: tpu cannot be used here; name the one with data.column, or pass training.task: causal"
    assert str(caught.value) == said


def test_a_kind_of_its_own_becomes_its_family() -> None:
    with pytest.raises(InfeasiblePlan, match=r"^training\.max_length: 7 is too long$"), in_words_of_config():
        raise OfItsOwn(3, 4)


def test_what_names_no_option_is_the_very_error() -> None:
    error = InvalidInput("pass --new-release")
    with pytest.raises(InvalidInput) as caught, in_words_of_config():
        raise error
    assert caught.value is error

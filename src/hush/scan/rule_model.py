"""What every part of a rules file shares: unknown keys are refused, nothing changes later, and no value ever shows.

Fields say in their description what they take, in words that complete "pass …"; a message about a wrong value is made
from that, and never from the value, which may be the text of a secret.
"""

import re
from datetime import date, datetime
from typing import Annotated, Any

from pydantic import AfterValidator, BaseModel, BeforeValidator, ConfigDict, Field
from pydantic_core import PydanticCustomError

__all__ = ["PROMISE", "YES_OR_NO", "Day", "Model", "Name", "Probability", "Real", "Texts", "Whole", "wrong"]

PROMISE = "a mapping with prior or format, and ceiling; or with points"
YES_OR_NO = "true or false"

NAME = re.compile(r"[a-z0-9][a-z0-9._-]{0,63}")


class Model(BaseModel):
    """A mapping of the rules file."""

    model_config = ConfigDict(extra="forbid", frozen=True, hide_input_in_errors=True)

    def __repr_args__(self) -> list[tuple[str | None, Any]]:
        return []  # values may be the text of secrets


def wrong(said: str) -> PydanticCustomError:
    """An error whose sentence is shown as it is, so it must hold no value that could be text."""
    return PydanticCustomError("hush", "{said}", {"said": said})  # pyright: ignore[reportArgumentType]


def _no_boolean(value: object) -> object:
    if isinstance(value, bool):  # which Python counts as a whole number
        raise PydanticCustomError("float_type", "not a number")
    return value


def _name(value: str) -> str:
    if NAME.fullmatch(value) is None:
        raise wrong(
            "it is no name of up to 64 small letters, digits, dots, dashes and underscores, the first of them a letter "
            "or a digit; pass one, such as rare-words (it becomes part of public ids)"
        )
    return value


def _day(value: object) -> object:
    if isinstance(value, datetime) or not isinstance(value, date | str):
        raise PydanticCustomError("date_type", "not a day")
    return value


def _full(value: str) -> str:
    if not value.strip():
        raise wrong("it is empty text; remove the entry, or write what is meant")
    return value


Name = Annotated[str, AfterValidator(_name)]
Real = Annotated[float, BeforeValidator(_no_boolean)]
Probability = Annotated[float, BeforeValidator(_no_boolean), Field(gt=0.0, lt=1.0)]
Whole = Annotated[int, BeforeValidator(_no_boolean)]
Day = Annotated[date, BeforeValidator(_day)]
Texts = Annotated[tuple[Annotated[str, AfterValidator(_full)], ...], Field(min_length=1)]

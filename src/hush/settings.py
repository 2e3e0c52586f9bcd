"""The base of all settings: frozen pydantic models, and the types that their fields share.

Each stage states its settings in one model (``plan/settings.py``, ``train/settings.py``, …). The section of a config
file is that model, the command line is tested against it, and a run folder keeps its dump. The description of a field
completes the sentence "pass …" in messages about a wrong value.
"""

from collections.abc import Callable
from typing import TYPE_CHECKING, Annotated, Any, Literal

from pydantic import (
    AfterValidator,
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    PlainSerializer,
    ValidationError,
    WrapValidator,
)
from pydantic_core import PydanticCustomError

from hush.errors import InvalidInput, Setting

__all__ = [
    "AUTO",
    "OR_AUTO",
    "YES_OR_NO",
    "Auto",
    "Count",
    "Model",
    "Positive",
    "Probability",
    "Real",
    "Settings",
    "Text",
    "Texts",
    "Whole",
    "wrong",
]

YES_OR_NO = "true or false"

Auto = Literal["auto"]
AUTO: Auto = "auto"  # as the value of a setting: hush chooses it


class Model(BaseModel):
    """A mapping in a file: unknown keys are refused, values cannot change, and the repr shows none of them.

    Values may hold the text of secrets.
    """

    model_config = ConfigDict(extra="forbid", frozen=True, hide_input_in_errors=True)

    def __repr_args__(self) -> list[tuple[str | None, Any]]:
        return []


if TYPE_CHECKING:  # type checkers see pydantic's constructor
    _Base = Model
else:

    class _RaisesInvalidInput(type(BaseModel)):
        """Constructing settings in Python raises InvalidInput; validating a file raises pydantic's list of errors."""

        def __call__(cls, *args: Any, **values: Any) -> Any:
            try:
                return super().__call__(*args, **values)
            except ValidationError as error:
                raise _first_problem(cls, error) from None  # pydantic's error may quote the values

    class _Base(Model, metaclass=_RaisesInvalidInput):
        pass


class Settings(_Base):
    """Settings of one stage. They hold no text of secrets, so the repr shows them."""

    def __repr_args__(self) -> list[tuple[str | None, Any]]:
        return list(BaseModel.__repr_args__(self))  # pyright: ignore[reportReturnType]


def _first_problem(model: type, error: ValidationError) -> InvalidInput:
    """The first of pydantic's problems, as an error that names its setting."""
    problem = error.errors(include_url=False)[0]
    kind, context = problem["type"], problem.get("ctx", {})
    setting = ".".join(str(step) for step in problem["loc"] if isinstance(step, str)) or None
    about = () if setting is None else (Setting(setting), ": ")
    if kind == "hush":
        return InvalidInput(*about, *context["parts"], setting=setting)
    if kind == "extra_forbidden":
        return InvalidInput(*about, f"{model.__name__} has no such setting; drop it", setting=setting)
    expected = context.get("expected") or _description(model, problem["loc"]) or "a value that the documentation allows"
    value = problem["input"]
    if isinstance(value, int | float) or "expected" in context:
        return InvalidInput(f"pass {expected}", setting=setting, value=value)
    return InvalidInput(*about, f"pass {expected}", setting=setting)


def _description(model: Any, place: tuple[str | int, ...]) -> str | None:
    """The description of the innermost field of a location that has one."""
    description = None
    for step in place:
        field = getattr(model, "model_fields", {}).get(step)
        if field is None:
            break
        description = field.description or description
        kinds = (field.annotation, *getattr(field.annotation, "__args__", ()))
        model = next((kind for kind in kinds if isinstance(kind, type) and issubclass(kind, BaseModel)), None)
    return description


def wrong(*parts: str) -> PydanticCustomError:
    """An error for a validator to raise; its parts are as in ``InvalidInput``.

    It is shown unchanged, so no part may be a value that could hold the text of a secret.
    """
    return PydanticCustomError("hush", "{said}", {"said": "".join(parts), "parts": parts})  # pyright: ignore[reportArgumentType]


def _refuse_boolean(value: object) -> object:
    if isinstance(value, bool):  # a subclass of int
        raise PydanticCustomError("float_type", "not a number")
    return value


def _not_blank(value: str) -> str:
    if not value.strip():
        raise wrong("it is empty text; remove the entry, or fill it in")
    return value


Text = Annotated[str, Field(min_length=1)]
Texts = Annotated[tuple[Annotated[str, AfterValidator(_not_blank)], ...], Field(min_length=1)]
Real = Annotated[float, BeforeValidator(_refuse_boolean)]
Positive = Annotated[Real, Field(gt=0.0, allow_inf_nan=False)]
Probability = Annotated[float, BeforeValidator(_refuse_boolean), Field(gt=0.0, lt=1.0)]
Whole = Annotated[int, BeforeValidator(_refuse_boolean)]
Count = Annotated[Whole, Field(ge=1)]


def _auto_or_number(value: object, number: Callable[[object], object]) -> object:
    return value if isinstance(value, str) and value == AUTO else number(value)


OR_AUTO = (WrapValidator(_auto_or_number), PlainSerializer(lambda value: value, return_type=Any))
"""The last notes of a number's type whose setting may also be ``auto``; its limits stand before them."""

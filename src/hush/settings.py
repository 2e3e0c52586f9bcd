"""What a setting is, below every stage: a field of a frozen model, stated once, with what it takes.

Each stage states its settings in one model (``plan/settings.py``, ``train/settings.py``, …). The section of a config
file is that model, the command line is tested against it, and what a run folder keeps is its dump. The description of
a field completes "pass …": messages about a wrong value are made from it.
"""

from typing import TYPE_CHECKING, Annotated, Any

from pydantic import AfterValidator, BaseModel, BeforeValidator, ConfigDict, Field, ValidationError
from pydantic_core import PydanticCustomError

from hush.errors import InvalidInput, Setting

__all__ = [
    "YES_OR_NO",
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


class Model(BaseModel):
    """A mapping of a file: unknown keys are refused, nothing changes later, and no value is shown.

    Values may be the text of secrets.
    """

    model_config = ConfigDict(extra="forbid", frozen=True, hide_input_in_errors=True)

    def __repr_args__(self) -> list[tuple[str | None, Any]]:
        return []


if TYPE_CHECKING:  # to a type checker, constructing settings is what pydantic says it is
    _Base = Model
else:

    class _RaisesInvalidInput(type(BaseModel)):
        """Settings constructed in Python raise hush's own error; a file that is read gets pydantic's list of errors."""

        def __call__(cls, *args: Any, **values: Any) -> Any:
            try:
                return super().__call__(*args, **values)
            except ValidationError as error:
                raise _first_problem(cls, error) from None  # the original may quote what it was given

    class _Base(Model, metaclass=_RaisesInvalidInput):
        pass


class Settings(_Base):
    """Settings of one stage. None of them holds the text of a secret."""

    def __repr_args__(self) -> list[tuple[str | None, Any]]:
        return list(BaseModel.__repr_args__(self))  # pyright: ignore[reportReturnType]


def _first_problem(model: type, error: ValidationError) -> InvalidInput:
    """The first problem of several, by the setting it is about."""
    problem = error.errors(include_url=False)[0]
    kind, context = problem["type"], problem.get("ctx", {})
    setting = ".".join(str(step) for step in problem["loc"] if isinstance(step, str)) or None
    about = () if setting is None else (Setting(setting), ": ")
    if kind == "hush":
        return InvalidInput(*about, *context["parts"], setting=setting)
    if kind == "extra_forbidden":
        return InvalidInput(*about, f"{model.__name__} has no such setting; drop it", setting=setting)
    takes = context.get("expected") or _description(model, problem["loc"]) or "what the documentation shows"
    value = problem["input"]
    if isinstance(value, int | float) or "expected" in context:
        return InvalidInput(f"pass {takes}", setting=setting, value=value)
    return InvalidInput(*about, f"pass {takes}", setting=setting)


def _description(model: Any, place: tuple[str | int, ...]) -> str | None:
    """What the innermost field of a place says that it takes."""
    said = None
    for step in place:
        field = getattr(model, "model_fields", {}).get(step)
        if field is None:
            break
        said = field.description or said
        kinds = (field.annotation, *getattr(field.annotation, "__args__", ()))
        model = next((kind for kind in kinds if isinstance(kind, type) and issubclass(kind, BaseModel)), None)
    return said


def wrong(*parts: str) -> PydanticCustomError:
    """An error that is shown as it is, so it must hold no value that could be text. Parts as in ``InvalidInput``."""
    return PydanticCustomError("hush", "{said}", {"said": "".join(parts), "parts": parts})  # pyright: ignore[reportArgumentType]


def _no_boolean(value: object) -> object:
    if isinstance(value, bool):  # which Python counts as a whole number
        raise PydanticCustomError("float_type", "not a number")
    return value


def _full(value: str) -> str:
    if not value.strip():
        raise wrong("it is empty text; remove the entry, or write what is meant")
    return value


Text = Annotated[str, Field(min_length=1)]
Texts = Annotated[tuple[Annotated[str, AfterValidator(_full)], ...], Field(min_length=1)]
Real = Annotated[float, BeforeValidator(_no_boolean)]
Positive = Annotated[Real, Field(gt=0.0, allow_inf_nan=False)]
Probability = Annotated[float, BeforeValidator(_no_boolean), Field(gt=0.0, lt=1.0)]
Whole = Annotated[int, BeforeValidator(_no_boolean)]
Count = Annotated[Whole, Field(ge=1)]

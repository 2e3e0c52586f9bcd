"""Options that several commands share, each defined once: one name means one thing everywhere.

An option is named as the key of the config and the argument of the library, with dashes. One that takes several values
is repeated, and its name is in the singular.
"""

import inspect
from collections.abc import Callable, Container, Mapping
from enum import Enum, StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, TypeVar

import typer
from typer.models import ArgumentInfo, OptionInfo

if TYPE_CHECKING:
    from hush.accounting.arguments import Bound
    from hush.settings import Settings

Stated = TypeVar("Stated", bound="Settings")

__all__ = [
    "DATA_IN",
    "PRINTED",
    "PROMISES",
    "SPEED",
    "BatchOption",
    "BoundChoice",
    "BoundOption",
    "CeilingOption",
    "ColumnOption",
    "DeviceOption",
    "ForceOption",
    "IncidenceArgument",
    "JsonOption",
    "OneBound",
    "OneBoundOption",
    "PlanArgument",
    "PlanOfRunOption",
    "PriorOption",
    "RoundsOption",
    "SecretsOption",
    "ShowTextOption",
    "TextUnit",
    "TopOption",
    "UnitOption",
    "flag",
    "flags_of",
    "option_of",
    "settings_from",
]


PROMISES = "What is promised"
DATA_IN = "The data"
SPEED = "Speed and memory: none of these changes what is proven"
PRINTED = "What is printed"


# Settings whose option has a name of its own: it is repeated, or a shorter name would mean something else here.
OPTION_OF = {
    "attacks": "attack",
    "candidates": "ranked_candidates",
    "continuations": "continuation",
    "examples": "tried_examples",
    "lora.targets": "lora_target",
    "methods": "compare",
    "prompts": "prompt",
    "secrets": "simulated_secrets",
    "settings": "setting",
    "templates": "template",
}


def option_of(setting: str, options: Container[str]) -> str | None:
    """The option of a command that states a setting, as the name of its parameter; None if it has none.

    >>> option_of("lora.rank", ["lora_rank"]), option_of("prompts", ["prompt"]), option_of("level", [])
    ('lora_rank', 'prompt', None)
    """
    names = (OPTION_OF.get(setting), setting.replace(".", "_"))
    return next((name for name in names if name is not None and name in options), None)


def settings_from(model: "type[Stated]", options: Mapping[str, Any], **more: Any) -> "Stated":
    """The settings of a stage from the options of a command; an option is named as the setting that it states."""
    values: dict[str, Any] = {}
    for field in model.model_fields:
        option = option_of(field, options)
        if option is not None and field not in more:
            values[field] = _plain_value(options[option])
    return model(**values, **more)


def _plain_value(value: Any) -> Any:
    if isinstance(value, list):
        return tuple(_plain_value(each) for each in value) or None
    return value.value if isinstance(value, Enum) else value


def flags_of(command: Callable[..., Any]) -> Callable[[str], str | None]:
    """How a command names settings: ``--batch-size``; an argument by what stands for it in the help."""
    parameters = inspect.signature(command).parameters

    def name_of(setting: str) -> str | None:
        name = option_of(setting, parameters)
        if name is None:
            return None
        notes = getattr(parameters[name].annotation, "__metadata__", ())
        note = next((note for note in notes if isinstance(note, OptionInfo | ArgumentInfo)), None)
        if isinstance(note, ArgumentInfo):
            return note.metavar if isinstance(note.metavar, str) else name.upper()
        stated = note.param_decls if note is not None and note.param_decls else ()
        return stated[0].split("/")[0] if stated else f"--{name.replace('_', '-')}"

    return name_of


def flag(name: str, help: str, *, panel: str | None = None) -> Any:
    """An option that takes no value."""
    return typer.Option(name, help=help, metavar="", rich_help_panel=panel)


class BoundChoice(StrEnum):
    """Which proof the number rests on."""

    blowup = "blowup"
    renyi = "renyi"
    kl = "kl"
    all = "all"

    @property
    def bounds(self) -> "tuple[Bound, ...]":
        """The bounds to compute, loosest first."""
        return ("kl", "renyi", "blowup") if self is BoundChoice.all else (self.value,)


class OneBound(StrEnum):
    """Which proof a plan rests on."""

    blowup = "blowup"
    renyi = "renyi"
    kl = "kl"


class TextUnit(StrEnum):
    """What is one example of plain text."""

    line = "line"
    file = "file"


IncidenceArgument = Annotated[
    Path,
    typer.Argument(
        help="Which example contains which secret: Parquet from Incidence.to_parquet, or JSON with num_examples, "
        "num_secrets and pairs, a list of (example, secret) from 0. The JSON may also state rates, prior, ceiling "
        "and rounds; an option counts before it.",
        metavar="INCIDENCE",
    ),
]
PlanArgument = Annotated[Path, typer.Argument(help="A plan's folder, from hush plan.", metavar="PLAN")]

RoundsOption = Annotated[int | None, typer.Option(help="Training rounds (optimizer steps).")]
BatchOption = Annotated[float, typer.Option(help="Expected examples per round.")]
BoundOption = Annotated[
    BoundChoice,
    typer.Option(help="Which proof: blowup is the tightest, renyi and kl are older ones; all compares the three."),
]
OneBoundOption = Annotated[
    OneBound, typer.Option(help="Which proof: blowup is the tightest, renyi and kl are older ones.")
]
PriorOption = Annotated[
    float | None,
    typer.Option(help="For all secrets: whoever starts below this, in (0, 1) …", rich_help_panel=PROMISES),
]
CeilingOption = Annotated[
    float | None, typer.Option(help="… must not end above this, from the prior to 1.", rich_help_panel=PROMISES)
]
SecretsOption = Annotated[
    Path | None,
    typer.Option(
        help="Instead: ids, priors and ceilings, Parquet from Secrets.to_parquet or hush scan.",
        rich_help_panel=PROMISES,
    ),
]

ColumnOption = Annotated[
    str | None,
    typer.Option(
        help="Column of the data that holds the text [text, or the only one that holds any].", rich_help_panel=DATA_IN
    ),
]
UnitOption = Annotated[
    TextUnit | None,
    typer.Option(
        help="Plain text: one example per line or per file [line; in a folder of text files, file].",
        rich_help_panel=DATA_IN,
    ),
]
PlanOfRunOption = Annotated[
    Path | None,
    typer.Option(help="The run's plan, where none lies beside its model (it certifies nothing)."),
]

DeviceOption = Annotated[str | None, typer.Option(help="cpu, cuda, cuda:1, … [cuda if any].", rich_help_panel=SPEED)]

ForceOption = Annotated[bool, flag("--force", "Replace what is there already.")]
JsonOption = Annotated[bool, flag("--json", "Print JSON, every digit, for a program to read.", panel=PRINTED)]
TopOption = Annotated[
    int,
    typer.Option(help="How many rows to show of what may be long; --json has all.", min=0, rich_help_panel=PRINTED),
]
ShowTextOption = Annotated[
    bool, flag("--show-text", "Also show the texts of secrets: for their owner alone.", panel=PRINTED)
]

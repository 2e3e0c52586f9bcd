"""Options that several commands share, and how options become the settings of a stage.

Each shared option is defined once, so that a name means the same in every command. An option has the name of the config
key and of the library's argument, with dashes. An option that takes several values is repeated, and its name is
singular.
"""

import inspect
from collections.abc import Callable, Container, Mapping
from enum import Enum, StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, TypeVar, final

import typer
from typer.core import TyperCommand, TyperOption
from typer.models import ArgumentInfo, OptionInfo

if TYPE_CHECKING:
    from hush.accounting.arguments import Bound
    from hush.settings import Settings

StageSettings = TypeVar("StageSettings", bound="Settings")

__all__ = [
    "CHAIN_PANEL",
    "CHAT_PANEL",
    "DATA_PANEL",
    "PRINTING_PANEL",
    "PROMISE_PANEL",
    "SPEED_PANEL",
    "AfterOption",
    "AncestorsOption",
    "BatchOption",
    "BatchesOption",
    "BoundChoice",
    "BoundOption",
    "CeilingOption",
    "ColumnOption",
    "DeviceOption",
    "FilterShareOption",
    "ForceOption",
    "GrowthOption",
    "IncidenceArgument",
    "JsonOption",
    "OnceCommand",
    "OneBound",
    "OneBoundOption",
    "ParametersOption",
    "PlanArgument",
    "PlanBatchOption",
    "PlanOfRunOption",
    "PlanRoundsOption",
    "PriorOption",
    "RoundsOption",
    "SecretsOption",
    "SeriesOption",
    "SeveralRoundsOption",
    "ShowTextOption",
    "TextUnit",
    "TopOption",
    "UnitOption",
    "flag",
    "flags_of",
    "number_or_auto",
    "option_of",
    "settings_from",
]


# --- Settings and options


# Settings whose option has another name: it is repeated, or the setting's name would mean something else there.
OPTION_OF = {
    "attacks": "attack",
    "candidates": "ranked_candidates",
    "continuations": "continuation",
    "count": "series",
    "examples": "tried_examples",
    "lora.targets": "lora_target",
    "methods": "compare",
    "prompts": "prompt",
    "secrets": "simulated_secrets",
    "settings": "setting",
    "share": "filter_share",
    "templates": "template",
}


def option_of(setting: str, options: Container[str]) -> str | None:
    """The name of the parameter by which a command states a setting; None if the command has no such option.

    >>> option_of("lora.rank", ["lora_rank"]), option_of("prompts", ["prompt"]), option_of("level", [])
    ('lora_rank', 'prompt', None)
    """
    names = (OPTION_OF.get(setting), setting.replace(".", "_"))
    return next((name for name in names if name is not None and name in options), None)


def settings_from(model: "type[StageSettings]", options: Mapping[str, Any], **more: Any) -> "StageSettings":
    """The settings of a stage from the options of a command; an option that is None leaves the setting's default.

    options: parameters of the command by name. more: settings that the command computes itself.
    """
    values = dict(more)
    for setting, field in model.model_fields.items():
        option = option_of(setting, options)
        if option is None or setting in more:
            continue
        value = _plain_value(options[option])
        if value is not None or field.is_required():
            values[setting] = value
    return model(**values)


@final
class OnceCommand(TyperCommand):
    """A command that refuses an option that is given twice, of which the first value would be lost."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        _, _, given = self.make_parser(ctx).parse_args(args=list(args))
        for parameter in given:
            if isinstance(parameter, TyperOption) and not parameter.multiple and given.count(parameter) > 1:
                ctx.fail(f"{parameter.opts[0]} is given twice; give it once")
        return super().parse_args(ctx, args)


def _plain_value(value: Any) -> Any:
    if isinstance(value, list):
        return tuple(_plain_value(each) for each in value) or None
    return value.value if isinstance(value, Enum) else value


def flags_of(command: Callable[..., Any]) -> Callable[[str], str | None]:
    """A function from settings to the names by which a command shows them: ``--batch-size``, or ``PLAN``."""
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


# --- Types of shared options


class BoundChoice(StrEnum):
    """Which proof gives the number; "all" compares them."""

    blowup = "blowup"
    renyi = "renyi"
    kl = "kl"
    all = "all"

    @property
    def bounds(self) -> "tuple[Bound, ...]":
        """The bounds to compute, loosest first."""
        return ("kl", "renyi", "blowup") if self is BoundChoice.all else (self.value,)


class OneBound(StrEnum):
    """Which proof a plan uses."""

    blowup = "blowup"
    renyi = "renyi"
    kl = "kl"


class TextUnit(StrEnum):
    """What counts as one example of plain text."""

    line = "line"
    file = "file"


# --- Shared options


PROMISE_PANEL = "Promises"  # headings of the help
DATA_PANEL = "Data"
CHAT_PANEL = "Conversations, and rows of several columns"
CHAIN_PANEL = "Several releases under one promise"
SPEED_PANEL = "Speed and memory (what is proven does not depend on these)"
PRINTING_PANEL = "Printing"

IncidenceArgument = Annotated[
    Path,
    typer.Argument(
        help="Which example contains which secret: a Parquet file from Incidence.to_parquet or hush scan, or JSON "
        "with num_examples, num_secrets and pairs, a list of [example, secret] counted from 0. The JSON may also state "
        "rates, prior, ceiling and rounds; options override it.",
        metavar="INCIDENCE",
    ),
]
PlanArgument = Annotated[Path, typer.Argument(help="Folder of a plan, from hush plan.", metavar="PLAN")]


def _or_auto(text: str, number: Callable[[str], float]) -> float | str:
    if text == "auto":
        return text
    try:
        return number(text)
    except ValueError:
        raise typer.BadParameter(f"{text!r} is neither a number nor auto") from None


def number_or_auto(text: str) -> float | str:
    """A number, or ``auto``: hush chooses it from the signal budget."""
    return _or_auto(text, float)


def count_or_auto(text: str) -> float | str:
    """A whole number, or ``auto``."""
    return _or_auto(text, int)


RoundsOption = Annotated[int | None, typer.Option(help="Training rounds (optimizer steps).")]
PlanRoundsOption = Annotated[
    Any,
    typer.Option(
        help="Training rounds (optimizer steps), or auto: as many as are worth their time.",
        parser=count_or_auto,
        metavar="<int>|auto",
    ),
]
PlanBatchOption = Annotated[
    Any,
    typer.Option(
        help="Expected number of examples per round, or auto: the least that has nearly all of the signal.",
        parser=number_or_auto,
        metavar="<float>|auto",
    ),
]
BatchesOption = Annotated[
    list[float],
    typer.Option(help="Expected number of examples per round. Can be repeated, to compare.", metavar="<float>"),
]
SeveralRoundsOption = Annotated[
    list[int] | None,
    typer.Option(help="Training rounds (optimizer steps). Can be repeated, to compare.", metavar="<int>"),
]
ParametersOption = Annotated[
    str | None,
    typer.Option(
        "--model",
        help="A model to predict for: its name or folder, or its number of trained parameters, such as 124e6.",
    ),
]
BatchOption = Annotated[float, typer.Option(help="Expected number of examples per round.")]
BoundOption = Annotated[
    BoundChoice,
    typer.Option(help="Which proof to use: blowup is the tightest, renyi and kl are older; all compares the three."),
]
OneBoundOption = Annotated[
    OneBound, typer.Option(help="Which proof to use: blowup is the tightest, renyi and kl are older.")
]
PriorOption = Annotated[
    float | None,
    typer.Option(
        help="For all secrets: an adversary who guesses with at most this probability before training, in (0, 1) …",
        rich_help_panel=PROMISE_PANEL,
    ),
]
CeilingOption = Annotated[
    float | None,
    typer.Option(
        help="… guesses with at most this probability after it, from the prior to 1.", rich_help_panel=PROMISE_PANEL
    ),
]
SecretsOption = Annotated[
    Path | None,
    typer.Option(
        help="Instead: a table of ids, priors and ceilings, Parquet from Secrets.to_parquet or hush scan.",
        rich_help_panel=PROMISE_PANEL,
    ),
]

AfterOption = Annotated[
    list[Path] | None,
    typer.Option(
        help="The earlier releases of the chain, in order: folders of plans, of releases or of runs. Can be repeated.",
        metavar="PLAN|RUN",
        rich_help_panel=CHAIN_PANEL,
    ),
]
SeriesOption = Annotated[
    int | None,
    typer.Option(
        help="This is the first of so many releases, announced now: the promises hold after all of them.",
        rich_help_panel=CHAIN_PANEL,
    ),
]
GrowthOption = Annotated[
    float,
    typer.Option(
        help="With --series: how many times as often as now a later release may draw a secret.",
        rich_help_panel=CHAIN_PANEL,
    ),
]
FilterShareOption = Annotated[
    float | None,
    typer.Option(
        help="Releases are added later, as they come: this one may spend this share of the budget of each promise.",
        rich_help_panel=CHAIN_PANEL,
    ),
]
AncestorsOption = Annotated[
    Path | None,
    typer.Option(
        help="A JSON file: for ids of merged or split secrets a list of the earlier ids whose examples are theirs.",
        rich_help_panel=CHAIN_PANEL,
    ),
]

ColumnOption = Annotated[
    str | None,
    typer.Option(
        help="Column that holds the text [default: text, or the only text column].", rich_help_panel=DATA_PANEL
    ),
]
UnitOption = Annotated[
    TextUnit | None,
    typer.Option(
        help="Plain text: one example per line or per file [default: line; for a folder of text files: file].",
        rich_help_panel=DATA_PANEL,
    ),
]
PlanOfRunOption = Annotated[
    Path | None,
    typer.Option(help="The plan of the run, if there is none next to its model (a run that certifies nothing)."),
]

DeviceOption = Annotated[
    str | None,
    typer.Option(help="cpu, cuda, cuda:1, … [default: cuda if available].", rich_help_panel=SPEED_PANEL),
]

ForceOption = Annotated[bool, flag("--force", "Overwrite existing output.")]
JsonOption = Annotated[bool, flag("--json", "Print JSON with full precision, for programs.", panel=PRINTING_PANEL)]
TopOption = Annotated[
    int,
    typer.Option(help="Maximum rows to print of a long table; --json has all.", min=0, rich_help_panel=PRINTING_PANEL),
]
ShowTextOption = Annotated[
    bool, flag("--show-text", "Also show the text of secrets; for their owner only.", panel=PRINTING_PANEL)
]

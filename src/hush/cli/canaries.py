"""The command ``hush canaries``: plant secrets for an audit to find."""

import shlex
from collections.abc import Mapping
from enum import Enum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.console import Console

from hush.cli.messages import working
from hush.cli.options import ColumnOption, JsonOption, UnitOption, flag, settings_from
from hush.console import counted
from hush.errors import InvalidInput
from hush.report.markup import at_least, at_most

if TYPE_CHECKING:
    from hush.audit.canaries import CanarySet, Candidates
    from hush.audit.settings import CanarySettings
    from hush.data import Corpus
    from hush.incidence import Incidence
    from hush.secret_table import Secrets

__all__ = ["canaries"]


FORMAT_PANEL = "Format of a canary"  # headings of the help
SECRETS_PANEL = "Your own secrets"


class AlphabetChoice(Enum):
    """Characters of a canary."""

    digits = "digits"
    hex = "hex"
    lower = "lower"
    upper = "upper"
    letters = "letters"
    alphanumeric = "alphanumeric"


def canaries(
    data: Annotated[
        str,
        typer.Argument(help="Your data: Parquet, JSON lines, CSV, text, a folder, or a name.", metavar="DATA"),
    ],
    output: Annotated[Path, typer.Option(help="New folder: public/ for hush plan, owner/ with the data.")],
    ceiling: Annotated[
        float,
        typer.Option(help="Promise of each canary: it is named with at most this probability."),
    ],
    incidence: Annotated[
        Path | None,
        typer.Option(
            help="Your graph, Parquet or JSON; needs --secrets [default: only canaries].", rich_help_panel=SECRETS_PANEL
        ),
    ] = None,
    secrets: Annotated[
        Path | None,
        typer.Option(help="Ids, priors and ceilings of your secrets, Parquet.", rich_help_panel=SECRETS_PANEL),
    ] = None,
    template: Annotated[
        list[str] | None,
        typer.Option(
            help="Text with {secret} in it, and {number} for the number of the canary. Can be repeated.",
            metavar="<str>",
        ),
    ] = None,
    from_data: Annotated[
        bool, flag("--from-data", "Instead: texts of the data without secrets, with one word replaced.")
    ] = False,
    again: Annotated[
        Path | None,
        typer.Option(
            help="Instead: the canaries of an earlier release, from the folder that hush canaries wrote for it.",
        ),
    ] = None,
    count: Annotated[int, typer.Option(help="Number of canaries.", min=1)] = 10,
    repeats: Annotated[int, typer.Option(help="Number of new examples that contain each canary.", min=1)] = 1,
    alphabet: Annotated[
        AlphabetChoice | None,
        typer.Option(help="Characters of a canary [default: digits].", rich_help_panel=FORMAT_PANEL),
    ] = None,
    length: Annotated[
        int | None, typer.Option(help="Number of characters [default: 4].", min=1, rich_help_panel=FORMAT_PANEL)
    ] = None,
    candidates: Annotated[
        Path | None,
        typer.Option(help="Instead: a text file with one candidate per line.", rich_help_panel=FORMAT_PANEL),
    ] = None,
    column: ColumnOption = None,
    unit: UnitOption = None,
    json: JsonOption = False,
) -> None:
    """Plant made-up secrets (canaries) in the data, so that a training can be audited.

    Adds examples with a secret drawn at random from known candidates, and registers each with its own promise; the
    prior follows from the format. Plan and train on the new folder, then `hush audit --canaries` tries to name the
    canaries. owner/canaries.json holds the true candidates: keep it private.

    Choose a ceiling far below the level of the audit, which all its rows share, or the canaries cannot fail it; and far
    above the prior, or they are hardly ever drawn.

    Example: `hush canaries mail.jsonl --template "PIN of user {number}: {secret}" --length 8 --ceiling 1e-4
    --output planted`
    """
    options = locals()
    from random import SystemRandom

    from hush.audit.canaries import Template, check_folder, plant, plant_again, save_planted, templates_from
    from hush.cli.checks import check_outside_data
    from hush.cli.results.accounting import print_json
    from hush.data import read_corpus
    from hush.slots import spans_in

    check_folder(output)
    check_outside_data(output, data)
    if [bool(template), from_data, again is not None].count(True) != 1:
        raise InvalidInput("pass either --template, once or several times, or --from-data, or --again")
    planting = None if again is None else _planted_before(again, options)
    settings, secret_texts = _canary_settings(options, candidates, planting)
    with working("Reading the data"):
        corpus = read_corpus(data, column=column, unit=None if unit is None else unit.value)
        graph, table = _read_owner_secrets(corpus, incidence, secrets)
    promised: dict[str, Any] = {
        "repeats": settings.repeats,
        "ceiling": settings.ceiling,
        "spans": None if incidence is None else spans_in(incidence.parent.parent),
    }
    if settings.templates is None and planting is None:
        holds_N = graph.secrets_per_example > 0
        templates = templates_from(corpus.texts(), holds_N, settings.count, SystemRandom())
    else:
        templates = [Template.parse(text) for text in settings.templates or ()]
    with working("Planting"):
        if planting is None:
            planted = plant(graph, table, templates, secret_texts, count=settings.count, **promised)
        else:
            planted = plant_again(planting, graph, table, **promised)
        save_planted(planted, corpus, output)
    count = len(planted.canaries)
    public, new_data = output / "public", output / "owner" / "data.parquet"
    files = [shlex.quote(str(path)) for path in (public / "incidence.parquet", public / "secrets.parquet", new_data)]
    next_command = (
        f"hush plan {files[0]} --secrets {files[1]} --data {files[2]} --key my.key --batch-size … --rounds … --output …"
    )
    record = {
        "folder": str(output),
        "data": str(new_data),
        "canaries": count,
        "candidates": str(secret_texts.size),
        "prior": secret_texts.prior,
        "ceiling": settings.ceiling,
        "new_examples": count * settings.repeats,
        "examples": planted.incidence.num_examples,
        "secrets": planted.incidence.num_secrets,
        "next": next_command,
    }
    if json:
        print_json(record)
        return
    console = Console()
    console.print(
        f"Planted {counted(count, 'canary', 'canaries')} of {counted(secret_texts.size, 'candidate')} each "
        f"(prior {at_least(secret_texts.prior)}, ceiling {at_most(settings.ceiling)}) in "
        f"{counted(record['new_examples'], 'new example')}, after your {counted(len(corpus), 'example')}.",
        f"{output / 'owner'} holds the planted secrets: keep it private. Next:",
        f"  {next_command}",
        sep="\n",
        soft_wrap=True,
        highlight=False,
        markup=False,
    )


def _planted_before(folder: Path, options: Mapping[str, Any]) -> "CanarySet":
    """The canaries of an earlier release; their format and number are given."""
    from hush.audit.canaries import read_canaries

    for name in ("alphabet", "length", "candidates"):
        if options[name] is not None:
            raise InvalidInput(f"--again plants the same canaries, whose format is given; drop --{name}")
    return read_canaries(folder)


def _read_owner_secrets(corpus: "Corpus", incidence: Path | None, secrets: Path | None) -> "tuple[Incidence, Secrets]":
    """The owner's graph and promises; empty ones if neither is passed."""
    from hush.cli.inputs import read_incidence
    from hush.incidence import Incidence
    from hush.secret_table import Secrets

    if (incidence is None) != (secrets is None):
        raise InvalidInput("--incidence and --secrets belong together; pass both, or neither for canaries only")
    if incidence is None or secrets is None:
        return Incidence.from_pairs([], [], num_examples=len(corpus), num_secrets=0), Secrets([])
    graph = read_incidence(incidence)
    if graph.num_examples != len(corpus):
        raise InvalidInput(
            f"{corpus.source} has {counted(len(corpus), 'row')}, but {incidence} has "
            f"{counted(graph.num_examples, 'example')}; pass the data whose row i is example i"
        )
    return graph, Secrets.from_parquet(secrets)


def _canary_settings(
    options: Mapping[str, Any], path: Path | None, planting: "CanarySet | None"
) -> "tuple[CanarySettings, Candidates]":
    """The settings, and what a canary may be: every text of a format, the lines of a file, or as before."""
    from hush.audit.canaries import MAX_CANDIDATE_LETTERS, Candidates
    from hush.audit.settings import CanarySettings

    if planting is not None:
        return settings_from(CanarySettings, options, length=MAX_CANDIDATE_LETTERS), planting.candidates
    if path is None:
        settings = settings_from(CanarySettings, options)
        return settings, Candidates.of_format(settings.alphabet, settings.length)
    if options["alphabet"] is not None or options["length"] is not None:
        raise InvalidInput("--candidates replaces --alphabet and --length; drop --candidates, or the other two")
    # A list has a prior of its own, which plant() compares with the ceiling: the longest format allows every ceiling.
    settings = settings_from(CanarySettings, options, length=MAX_CANDIDATE_LETTERS)
    try:
        return settings, Candidates.of_list(path.read_text(encoding="utf-8").splitlines())
    except UnicodeDecodeError:
        raise InvalidInput(f"{path} is not UTF-8 text; write one candidate per line, in UTF-8") from None

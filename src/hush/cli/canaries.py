"""The command that plants canaries: a corpus with its graph and promises in, the same with canaries out."""

import shlex
from enum import Enum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.console import Console

from hush.cli.messages import working
from hush.cli.options import ColumnOption, JsonOption, UnitOption, flag
from hush.console import counted
from hush.errors import InvalidInput
from hush.report.markup import at_least, at_most

if TYPE_CHECKING:
    from hush.audit.candidates import Candidates
    from hush.corpus import Corpus
    from hush.incidence import Incidence
    from hush.secret_table import Secrets

__all__ = ["canaries"]

WHAT, YOURS = "What a canary may be", "Your own secrets, beside them"


class AlphabetChoice(Enum):
    """Letters that a canary is made of."""

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
        typer.Option(help="What each canary is promised: named with at most this chance."),
    ],
    incidence: Annotated[
        Path | None,
        typer.Option(help="Your graph, Parquet or JSON; with --secrets [canaries only].", rich_help_panel=YOURS),
    ] = None,
    secrets: Annotated[
        Path | None, typer.Option(help="Your ids, priors and ceilings, Parquet.", rich_help_panel=YOURS)
    ] = None,
    template: Annotated[
        list[str] | None,
        typer.Option(
            help="Text with {secret} in it, and {number} for the canary's number. Repeat for several.",
            metavar="<str>",
        ),
    ] = None,
    from_data: Annotated[
        bool, flag("--from-data", "Instead: texts of the data without secrets, a word of each replaced.")
    ] = False,
    count: Annotated[int, typer.Option(help="How many canaries.", min=1)] = 10,
    repeats: Annotated[int, typer.Option(help="In how many new examples each stands.", min=1)] = 1,
    alphabet: Annotated[
        AlphabetChoice | None, typer.Option(help="Letters it is made of [digits].", rich_help_panel=WHAT)
    ] = None,
    length: Annotated[int | None, typer.Option(help="How many of them [4].", min=1, rich_help_panel=WHAT)] = None,
    candidates: Annotated[
        Path | None, typer.Option(help="Instead: a text file with a candidate on each line.", rich_help_panel=WHAT)
    ] = None,
    column: ColumnOption = None,
    unit: UnitOption = None,
    json: JsonOption = False,
) -> None:
    """Plant secrets that are yours to lose, so that a training can be audited.

    Adds examples whose secret is drawn at random from known candidates, and registers them with a promise of their own:
    the prior follows from the format. Plan and train on the new folder, then let `hush audit --canaries` try to name
    them. owner/canaries.json says which candidates are true: keep it to yourself.

    Promise them far less than the audit's level, which all its rows share, or they cannot fail it; and far more than
    the prior, or they are hardly ever drawn.

    Example: `hush canaries mail.jsonl --template "PIN of user {number}: {secret}" --length 8 --ceiling 1e-4
    --output planted`
    """
    from random import SystemRandom

    from hush.audit.canaries import Template, plant, templates_from
    from hush.audit.canary_files import check_folder, save_planted
    from hush.cli.inputs import check_apart
    from hush.cli.results import print_json
    from hush.corpus import read_corpus

    check_folder(output)
    check_apart(output, data)
    if bool(template) == from_data:
        raise InvalidInput("pass either --template, once or several times, or --from-data")
    with working("Reading the data"):
        corpus = read_corpus(data, column=column, unit=None if unit is None else unit.value)
        graph, table = _registered(corpus, incidence, secrets)
    if from_data:
        holds_N = graph.secrets_per_example > 0
        templates = templates_from(corpus.texts(), holds_N, count, SystemRandom())
    else:
        templates = [Template.parse(text) for text in template or ()]
    what = _candidates(None if alphabet is None else alphabet.value, length, candidates)
    with working("Planting"):
        planted = plant(graph, table, templates, what, count=count, repeats=repeats, ceiling=ceiling)
        save_planted(planted, corpus, output)
    public, own = output / "public", output / "owner" / "data.parquet"
    files = [shlex.quote(str(path)) for path in (public / "incidence.parquet", public / "secrets.parquet", own)]
    step = (
        f"hush plan {files[0]} --secrets {files[1]} --data {files[2]} --key my.key --batch-size … --rounds … --output …"
    )
    record = {
        "folder": str(output),
        "data": str(own),
        "canaries": count,
        "candidates": str(what.size),
        "prior": what.prior,
        "ceiling": ceiling,
        "new_examples": count * repeats,
        "examples": planted.incidence.num_examples,
        "secrets": planted.incidence.num_secrets,
        "next": step,
    }
    if json:
        print_json(record)
        return
    console = Console()
    console.print(
        f"{counted(count, 'canary', 'canaries')} of {counted(what.size, 'candidate')} each "
        f"(prior {at_least(what.prior)}, ceiling {at_most(ceiling)}) in {counted(count * repeats, 'new example')}, "
        f"after {len(corpus):,} of yours.",
        f"{output / 'owner'} says what they are: it is for your eyes alone. Next:",
        f"  {step}",
        sep="\n",
        soft_wrap=True,
        highlight=False,
        markup=False,
    )


def _registered(corpus: "Corpus", incidence: Path | None, secrets: Path | None) -> "tuple[Incidence, Secrets]":
    """The owner's graph and promises; none where none are given."""
    from hush.cli.inputs import read_incidence
    from hush.incidence import Incidence
    from hush.secret_table import Secrets

    if (incidence is None) != (secrets is None):
        raise InvalidInput("--incidence and --secrets belong together; pass both, or neither to plant canaries only")
    if incidence is None or secrets is None:
        return Incidence.from_pairs([], [], num_examples=len(corpus), num_secrets=0), Secrets([])
    graph = read_incidence(incidence)
    if graph.num_examples != len(corpus):
        raise InvalidInput(
            f"{corpus.source} has {counted(len(corpus), 'row')} but {incidence} "
            f"{counted(graph.num_examples, 'example')}; pass the data whose row i is example i"
        )
    return graph, Secrets.from_parquet(secrets)


def _candidates(alphabet: str | None, length: int | None, path: Path | None) -> "Candidates":
    from hush.audit.candidates import Candidates

    if path is None:
        return Candidates.of_format(alphabet or "digits", length or 4)
    if alphabet is not None or length is not None:
        raise InvalidInput("--candidates lists them already; drop it, or --alphabet and --length")
    try:
        return Candidates.of_list(path.read_text(encoding="utf-8").splitlines())
    except UnicodeDecodeError:
        raise InvalidInput(f"{path} is not text in UTF-8; write one candidate on each line") from None

"""The command that plans: how often each example is used, and with how much noise.

The command that sweeps: how much data how much noise keeps, to choose a plan from.
"""

import time
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.console import Console

from hush.cli.checks import check_scanned, read_data_fingerprint
from hush.cli.messages import working
from hush.cli.options import (
    DATA_IN,
    BatchOption,
    CeilingOption,
    ColumnOption,
    ForceOption,
    IncidenceArgument,
    JsonOption,
    OneBound,
    OneBoundOption,
    PriorOption,
    RoundsOption,
    SecretsOption,
    TopOption,
    UnitOption,
    settings_from,
)
from hush.console import counted
from hush.errors import InvalidInput

if TYPE_CHECKING:
    from hush.accounting.arguments import Bound
    from hush.weights import Frontier
    from hush.weights.choose import Capacity

__all__ = ["frontier", "plan"]


CHOICE = "How rates and noise are chosen"


class PlanCapacity(StrEnum):
    """How often a secret's examples may be used."""

    accounted = "accounted"
    paper = "paper"
    none = "none"


def plan(
    incidence: IncidenceArgument,
    batch_size: BatchOption,
    output: Annotated[Path, typer.Option(help="Folder for the plan, its tables and its certificate.")],
    rounds: RoundsOption = None,
    prior: PriorOption = None,
    ceiling: CeilingOption = None,
    secrets: SecretsOption = None,
    capacity: Annotated[
        PlanCapacity,
        typer.Option(
            help="accounted: as much data as the noise allows; paper: strength × mu_j; none: all data.",
            rich_help_panel=CHOICE,
        ),
    ] = PlanCapacity.accounted,
    noise_multiplier: Annotated[
        float | None,
        typer.Option(help="Standard deviation of the noise / clip norm [found].", rich_help_panel=CHOICE),
    ] = None,
    keep: Annotated[
        float | None,
        typer.Option(
            help="To find it: share of their weight that examples with secrets keep [0.9].", rich_help_panel=CHOICE
        ),
    ] = None,
    strength: Annotated[
        float | None, typer.Option(help="With --capacity paper: the paper's c.", rich_help_panel=CHOICE)
    ] = None,
    hold_out: Annotated[
        float,
        typer.Option(
            help="Share of the examples without secrets to evaluate on, not to train on.", rich_help_panel=CHOICE
        ),
    ] = 0.0,
    bound: OneBoundOption = OneBound.blowup,
    clip_norm: Annotated[float, typer.Option(help="Norm to which training clips each gradient.")] = 1.0,
    data: Annotated[
        str | None,
        typer.Option(
            help="Tie the plan to this data: example i is its row i, and training refuses any other data.",
            rich_help_panel=DATA_IN,
        ),
    ] = None,
    column: ColumnOption = None,
    unit: UnitOption = None,
    key: Annotated[
        Path | None,
        typer.Option(
            help="With --data: your key for its fingerprint, made on first use. Keep it beside the data.",
            rich_help_panel=DATA_IN,
        ),
    ] = None,
    force: ForceOption = False,
    top: TopOption = 10,
    json: JsonOption = False,
) -> None:
    """How often is each example used, and with how much noise?

    Chooses sampling rates and noise so that every promise is kept, and writes them as a folder with a certificate that
    anyone can check with `hush verify`. By itself it finds the least noise at which examples with secrets keep 90 % of
    their weight. Exit code 1 means that no plan exists; the message says what would help.

    Example: `hush plan found/public/incidence.parquet --secrets found/public/secrets.parquet --data mail.jsonl
    --key my.key --batch-size 16 --rounds 50 --output my-plan`
    """
    options = locals()
    from hush.cli.checks import check_apart, check_folder_free
    from hush.cli.inputs import check_batch_size, named_by_id, read_promises
    from hush.cli.results.accounting import print_json
    from hush.cli.results.plan import plan_record, show_plan
    from hush.plan.files import check_folder
    from hush.plan.make import choose_held_out, make_plan_holding_out
    from hush.plan.settings import PlanSettings

    check_folder(output)
    check_folder_free(output, "a plan", force=force)
    check_apart(output, data)
    with working("Reading the graph"):
        promises = read_promises(incidence, prior=prior, ceiling=ceiling, secrets_path=secrets, rounds=rounds)
    settings = settings_from(PlanSettings, options, rounds=promises.rounds)
    held_out = choose_held_out(promises.incidence, settings.hold_out)
    check_batch_size(batch_size, promises.incidence.num_examples, held_out=held_out.size)
    with working("Reading the data"):
        fingerprint = read_data_fingerprint(data, key, column=column, unit=unit, rows=promises.incidence.num_examples)
        check_scanned(incidence, fingerprint)
    begin = time.perf_counter()
    with working("Planning") as progress, named_by_id(promises.ids):
        found = make_plan_holding_out(
            promises.incidence,
            held_out,
            prior=promises.prior,
            ceiling=promises.ceiling,
            **settings.arguments,
            secret_ids=promises.ids,
            data_fingerprint=fingerprint,
            progress=progress,
        )
    with working("Writing the plan"):
        found.save(output)
    record = plan_record(found, output, time.perf_counter() - begin)
    print_json(record) if json else show_plan(record, Console(), top=top)


class FrontierCapacity(StrEnum):
    """Which curve to draw."""

    accounted = "accounted"
    paper = "paper"
    none = "none"
    all = "all"


def frontier(
    incidence: IncidenceArgument,
    batch_size: BatchOption,
    rounds: RoundsOption = None,
    prior: PriorOption = None,
    ceiling: CeilingOption = None,
    secrets: SecretsOption = None,
    capacity: Annotated[
        FrontierCapacity,
        typer.Option(help="Which capacities to sweep; all compares accounted, the paper's, and the paper's under KL."),
    ] = FrontierCapacity.accounted,
    setting: Annotated[
        list[float] | None,
        typer.Option(
            help="A noise multiplier (accounted) or strength (paper). Repeat for several [11 that cover the range].",
            metavar="<float>",
        ),
    ] = None,
    bound: OneBoundOption = OneBound.blowup,
    plot: Annotated[Path | None, typer.Option(help="Draw it: a .png, .svg or .html file.")] = None,
    output: Annotated[Path | None, typer.Option(help="Write the rows: a .json or .csv file.")] = None,
    force: ForceOption = False,
    json: JsonOption = False,
) -> None:
    """How much data does how much noise keep?

    Sweeps from all data down to little, each row with the noise that it needs, proven. Marked is the least noise of the
    rows that keeps 90 % of the weight of examples with secrets; `hush plan` looks between the rows, too.

    Example: `hush frontier found/public/incidence.parquet --secrets found/public/secrets.parquet --batch-size 16
    --rounds 50 --plot frontier.html --output frontier.json`
    """
    from hush.cli.checks import check_output
    from hush.cli.inputs import check_batch_size, named_by_id, read_promises
    from hush.cli.results.accounting import print_json
    from hush.cli.results.plan import frontier_record, show_frontiers, write_rows
    from hush.report.figures import FORMS, frontier_figure, save_figure
    from hush.weights import frontier as swept

    check_output(plot, incidence, secrets, option="--plot", forms=FORMS, force=force)
    check_output(output, incidence, secrets, plot, forms=("json", "csv"), force=force)
    if capacity is FrontierCapacity.all and (setting or bound is not OneBound.blowup):
        raise InvalidInput("--capacity all compares fixed bounds and default settings; drop --setting and --bound")
    with working("Reading the graph"):
        promises = read_promises(incidence, prior=prior, ceiling=ceiling, secrets_path=secrets, rounds=rounds)
    check_batch_size(batch_size, promises.incidence.num_examples)
    kinds: list[tuple[Capacity, Bound]] = [("accounted", "blowup"), ("paper", "blowup"), ("paper", "kl")]
    if capacity is not FrontierCapacity.all:
        kinds = [(capacity.value, bound.value)]
    frontiers: list[Frontier] = []
    for kind, proof in kinds:
        with working(f"Sweeping ({kind}, {proof})") as progress, named_by_id(promises.ids):
            frontiers.append(
                swept(
                    promises.incidence,
                    **promises.arguments,
                    batch_size=batch_size,
                    bound=proof,
                    capacity=kind,
                    settings=setting or None,
                    progress=progress,
                )
            )
    record = frontier_record(frontiers, promises, setting or ())
    if plot is not None:  # before the rows, which take no time: stopped while it draws, the command leaves neither
        graph = promises.incidence
        sizes = f"{counted(graph.num_examples, 'example')}, {counted(graph.num_secrets, 'secret')}"
        subtitle = f"{sizes}, batch {batch_size:g}, {counted(promises.rounds, 'round')}"
        with working("Drawing"):
            save_figure(frontier_figure(frontiers, subtitle=subtitle), plot)
    if output is not None:
        write_rows(record, output)
    print_json(record) if json else show_frontiers(record, Console())

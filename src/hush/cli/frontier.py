"""The command that sweeps: how much data how much noise keeps, to choose a plan from."""

from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.console import Console

from hush.cli.messages import working
from hush.cli.options import (
    BatchOption,
    CeilingOption,
    ForceOption,
    IncidenceArgument,
    JsonOption,
    OneBound,
    OneBoundOption,
    PriorOption,
    RoundsOption,
    SecretsOption,
)
from hush.console import counted
from hush.errors import InvalidInput

if TYPE_CHECKING:
    from hush.accounting.inputs import Bound
    from hush.weights import Frontier
    from hush.weights.choose import Capacity

__all__ = ["frontier"]


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
    from hush.cli.inputs import check_batch_size, check_output, named_by_id, read_promises
    from hush.cli.plan_results import frontier_record, show_frontiers, write_rows
    from hush.cli.results import print_json
    from hush.report.figures import FORMS, save_figure
    from hush.report.frontier import frontier_figure
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

"""The commands ``hush plan`` (rates and noise that keep every promise) and ``hush frontier`` (data against noise)."""

import time
from dataclasses import replace
from enum import StrEnum
from itertools import product
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.console import Console

from hush.cli.checks import check_scanned, read_data_fingerprint, read_slots
from hush.cli.messages import working
from hush.cli.options import (
    DATA_PANEL,
    AfterOption,
    AncestorsOption,
    BatchesOption,
    CeilingOption,
    ColumnOption,
    FilterShareOption,
    ForceOption,
    GrowthOption,
    IncidenceArgument,
    JsonOption,
    OneBound,
    OneBoundOption,
    ParametersOption,
    PlanBatchOption,
    PlanRoundsOption,
    PriorOption,
    SecretsOption,
    SeriesOption,
    SeveralRoundsOption,
    TopOption,
    UnitOption,
    number_or_auto,
    settings_from,
)
from hush.console import counted
from hush.errors import InvalidInput

if TYPE_CHECKING:
    from hush.accounting.arguments import Bound
    from hush.weights import Frontier
    from hush.weights.choose import Capacity

__all__ = ["frontier", "plan"]


CHOICE_PANEL = "Choice of rates and noise"


class PlanCapacity(StrEnum):
    """What limits how often the examples of a secret are drawn."""

    accounted = "accounted"
    paper = "paper"
    none = "none"


class DrawChoice(StrEnum):
    """From which examples the rounds draw."""

    all = "all"
    secrets = "secrets"


def plan(
    incidence: IncidenceArgument,
    batch_size: PlanBatchOption,
    output: Annotated[Path, typer.Option(help="Folder for the plan, its tables and its certificate.")],
    rounds: PlanRoundsOption = None,
    prior: PriorOption = None,
    ceiling: CeilingOption = None,
    secrets: SecretsOption = None,
    capacity: Annotated[
        PlanCapacity,
        typer.Option(
            help="accounted: as much data as the noise allows; paper: strength × mu_j; none: all the data.",
            rich_help_panel=CHOICE_PANEL,
        ),
    ] = PlanCapacity.accounted,
    noise_multiplier: Annotated[
        float | None,
        typer.Option(
            help="Standard deviation of the noise divided by the clip norm [default: computed].",
            rich_help_panel=CHOICE_PANEL,
        ),
    ] = None,
    keep: Annotated[
        Any,
        typer.Option(
            help="To compute it: share of their weight that examples with secrets keep, or auto: that with the most "
            "signal [default: 0.9].",
            parser=number_or_auto,
            metavar="<float>|auto",
            rich_help_panel=CHOICE_PANEL,
        ),
    ] = None,
    strength: Annotated[
        float | None,
        typer.Option(help="With --capacity paper: the constant c of the paper.", rich_help_panel=CHOICE_PANEL),
    ] = None,
    hold_out: Annotated[
        float,
        typer.Option(
            help="Share of the examples without secrets to evaluate on instead of training on them.",
            rich_help_panel=CHOICE_PANEL,
        ),
    ] = 0.0,
    draw: Annotated[
        DrawChoice | None,
        typer.Option(
            help="Draw from all examples, or only from those with secrets: hush train learns the others first "
            "[default: all; with slots: secrets].",
            rich_help_panel=CHOICE_PANEL,
        ),
    ] = None,
    series: SeriesOption = None,
    growth: GrowthOption = 1.0,
    filter_share: FilterShareOption = None,
    after: AfterOption = None,
    ancestors: AncestorsOption = None,
    bound: OneBoundOption = OneBound.blowup,
    clip_norm: Annotated[float, typer.Option(help="Norm to which each example's gradient is clipped.")] = 1.0,
    data: Annotated[
        str | None,
        typer.Option(
            help="Bind the plan to this data: example i is row i, and training refuses other data.",
            rich_help_panel=DATA_PANEL,
        ),
    ] = None,
    column: ColumnOption = None,
    unit: UnitOption = None,
    model: ParametersOption = None,
    key: Annotated[
        Path | None,
        typer.Option(
            help="With --data: your key for its fingerprint, created on first use. Keep it with the data.",
            rich_help_panel=DATA_PANEL,
        ),
    ] = None,
    force: ForceOption = False,
    top: TopOption = 10,
    json: JsonOption = False,
) -> None:
    """Choose sampling rates and noise that keep every promise.

    Writes a folder with the plan and a certificate that anyone can check with `hush verify`. By default it finds the
    least noise at which examples with secrets keep 90 % of their weight. With auto, batch size, rounds and the share
    kept are chosen from the signal that the promises allow. Exit code 1 means that no plan exists; the message says
    what would help.

    The table says how much the private rounds can teach, and what dropping or redacting would leave: these are
    forecasts, unlike the promises. With --model they are about this model, and with --data, too, about its gradients
    on examples without a secret.

    If the scan hides spans, its slots are part of the plan: the promises are about the text in them, only examples with
    a secret are drawn, and --batch-size counts these alone; --draw secrets does so where whole examples are secret.

    Who retrains passes --series 12 before the first of 12 releases, or --filter-share 0.1 for releases that are added
    later, and with every later release --after for each earlier one: the promises then hold after all of them together.

    Example: `hush plan found/public/incidence.parquet --secrets found/public/secrets.parquet --data mail.jsonl
    --key my.key --batch-size 16 --rounds 50 --output my-plan`
    """
    options = locals()
    from hush.cli.checks import check_folder_free, check_outside_data
    from hush.cli.inputs import read_ancestors, read_promises, secrets_named_by_id
    from hush.cli.outlook import check_model_option, read_outlook
    from hush.cli.results.accounting import print_json
    from hush.cli.results.plan import plan_record, show_plan
    from hush.plan.earlier import Earlier
    from hush.plan.files import check_folder
    from hush.plan.make import choose_held_out, draws_secrets_only, make_plan_holding_out
    from hush.plan.settings import FilterSettings, PlanSettings, SeriesSettings
    from hush.settings import AUTO
    from hush.weights.choose import checked_batch_size

    if growth != 1 and series is None:
        raise InvalidInput("--growth is how much a series may grow; pass --series, or drop it")
    announced = {
        "series": None if series is None else SeriesSettings(count=series, growth=growth),
        "filter": None if filter_share is None else FilterSettings(share=filter_share),
    }
    check_folder(output)
    check_folder_free(output, "a plan", force=force)
    check_outside_data(output, data)
    check_model_option(model)
    with working("Reading the graph"):
        promises = read_promises(incidence, prior=prior, ceiling=ceiling, secrets_path=secrets, rounds=rounds)
    settings = settings_from(PlanSettings, options, rounds=promises.rounds)
    held_out = choose_held_out(promises.incidence, settings.hold_out)
    graph = promises.incidence
    slots, _ = read_slots(incidence, graph)
    only_secrets = draws_secrets_only(settings.draw, slots)
    bearing = int((graph.secrets_per_example > 0).sum()) if only_secrets else None
    if settings.batch_size != AUTO:
        checked_batch_size(settings.batch_size, graph.num_examples, held_out=held_out.size, bearing=bearing)
    with working("Reading the data"):
        fingerprint = read_data_fingerprint(data, key, column=column, unit=unit, rows=graph.num_examples)
        check_scanned(incidence, fingerprint)
        slots, skeletons = read_slots(incidence, graph, data=data, key=key, column=column, unit=unit)
    with working("Reading earlier releases"):
        announced |= {"after": Earlier.all_of(after or ()), "ancestors": read_ancestors(ancestors)}
    begin = time.perf_counter()
    with working("Planning") as progress, secrets_named_by_id(promises.ids):
        made = make_plan_holding_out(
            graph,
            held_out,
            prior=promises.prior,
            ceiling=promises.ceiling,
            **settings.arguments,
            secret_ids=promises.ids,
            data_fingerprint=fingerprint,
            slots=slots,
            skeleton_fingerprint=skeletons,
            **announced,
            progress=progress,
        )
    with working("Writing the plan"):
        made.save(output)
    seconds = time.perf_counter() - begin
    with working("Forecasting"):
        outlook = read_outlook(made, incidence=incidence, model=model, data=data, column=column, unit=unit)
        record = plan_record(made, output, seconds, outlook=outlook, settings=settings)
    print_json(record) if json else show_plan(record, Console(), top=top)


class FrontierCapacity(StrEnum):
    """Which capacities to sweep; "all" compares them."""

    accounted = "accounted"
    paper = "paper"
    none = "none"
    all = "all"


def frontier(
    incidence: IncidenceArgument,
    batch_size: BatchesOption,
    rounds: SeveralRoundsOption = None,
    prior: PriorOption = None,
    ceiling: CeilingOption = None,
    secrets: SecretsOption = None,
    capacity: Annotated[
        FrontierCapacity,
        typer.Option(help="Which capacities to sweep; all compares accounted, paper, and paper with the KL bound."),
    ] = FrontierCapacity.accounted,
    setting: Annotated[
        list[float] | None,
        typer.Option(
            help="A noise multiplier (accounted) or strength (paper). Can be repeated [default: 11 over the range].",
            metavar="<float>",
        ),
    ] = None,
    bound: OneBoundOption = OneBound.blowup,
    plot: Annotated[Path | None, typer.Option(help="Write a plot: a .png, .svg or .html file.")] = None,
    output: Annotated[Path | None, typer.Option(help="Write the rows: a .json or .csv file.")] = None,
    force: ForceOption = False,
    json: JsonOption = False,
) -> None:
    """Show how much data each amount of noise keeps.

    Sweeps from all the data down to little of it; every row states the noise that it needs, which is proven. A star
    marks the row with the least noise that keeps 90 % of the weight of examples with secrets. `hush plan` also searches
    between the rows. If the scan hides spans, only examples with a secret are drawn, and the rows count these alone.
    Signal is what the private rounds can teach, a forecast; beyond the elbow a larger batch buys nothing. Dropping and
    redacting, which need no noise, stand in every table.

    Example: `hush frontier found/public/incidence.parquet --secrets found/public/secrets.parquet --batch-size 16
    --rounds 50 --plot frontier.html --output frontier.json`
    """
    options = locals()
    from hush.cli.checks import check_output
    from hush.cli.inputs import read_promises, secrets_named_by_id
    from hush.cli.results.accounting import print_json
    from hush.cli.results.plan import frontier_record, show_frontiers, write_rows
    from hush.plan.settings import PlanSettings
    from hush.plan.signal import remaining
    from hush.report.figures import FORMS, frontier_figure, save_figure
    from hush.weights import frontiers
    from hush.weights.choose import checked_batch_size

    check_output(plot, incidence, secrets, option="--plot", forms=FORMS, force=force)
    check_output(output, incidence, secrets, plot, forms=("json", "csv"), force=force)
    if capacity is FrontierCapacity.all and (setting or bound is not OneBound.blowup):
        raise InvalidInput("--capacity all uses fixed bounds and default settings; drop --setting and --bound")
    with working("Reading the graph"):
        first = rounds[0] if rounds else None
        promises = read_promises(incidence, prior=prior, ceiling=ceiling, secrets_path=secrets, rounds=first)
    counts, sizes = list(dict.fromkeys(rounds or [int(promises.rounds)])), list(dict.fromkeys(batch_size))
    # Each row has a noise and a strength of its own, so of a plan's settings only these three are stated here.
    for size, count in product(sizes, counts):
        settings_from(
            PlanSettings, options, batch_size=size, rounds=count, capacity="accounted"
        )  # refused in its words
    whole, slots = promises.incidence, read_slots(incidence, promises.incidence)[0]
    if slots is not None:
        bearing_N = whole.secrets_per_example > 0
        checked_batch_size(max(sizes), len(bearing_N), bearing=int(bearing_N.sum()))
        promises = replace(promises, incidence=whole.select(examples=bearing_N))
    checked_batch_size(max(sizes), promises.incidence.num_examples)
    kinds: list[tuple[Capacity, Bound]] = [("accounted", "blowup"), ("paper", "blowup"), ("paper", "kl")]
    if capacity is not FrontierCapacity.all:
        kinds = [(capacity.value, bound.value)]
    swept: list[Frontier] = []
    for kind, proof in kinds:
        with working(f"Sweeping ({kind}, {proof})") as progress, secrets_named_by_id(promises.ids):
            swept += frontiers(
                promises.incidence,
                prior=promises.prior,
                ceiling=promises.ceiling,
                batch_size=sizes,
                rounds=counts,
                bound=proof,
                capacity=kind,
                settings=setting or None,
                progress=progress,
            )
    record = frontier_record(swept, promises, setting or (), without=remaining(whole, slots))
    if plot is not None:  # before the rows, which take no time: if stopped while drawing, the command leaves no file
        graph = promises.incidence
        subtitle = f"{counted(graph.num_examples, 'example')}, {counted(graph.num_secrets, 'secret')}"
        if len(sizes) == len(counts) == 1:
            subtitle += f", batch {sizes[0]:g}, {counted(swept[0].rounds, 'round')}"
        with working("Drawing"):
            save_figure(frontier_figure(swept, subtitle=subtitle), plot)
    if output is not None:
        write_rows(record, output)
    print_json(record) if json else show_frontiers(record, Console())

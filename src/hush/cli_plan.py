"""Commands that choose: one plan, or the frontier from which to choose one."""

import time
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.console import Console

from hush.cli_data import ColumnOption, UnitOption, check_scanned, read_data_fingerprint
from hush.cli_options import (
    BatchOption,
    CeilingOption,
    IncidenceArgument,
    JsonOption,
    OneBound,
    OneBoundOption,
    PriorOption,
    RoundsOption,
    SecretsOption,
)
from hush.errors import InvalidInput

if TYPE_CHECKING:
    from hush.accounting.inputs import Bound
    from hush.weights import Frontier
    from hush.weights.choose import Capacity

__all__ = ["frontier", "plan"]


class PlanCapacity(StrEnum):
    """How often a secret's examples may be used."""

    accounted = "accounted"
    paper = "paper"
    none = "none"


class FrontierCapacity(StrEnum):
    """Which curve to draw."""

    accounted = "accounted"
    paper = "paper"
    none = "none"
    all = "all"


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
        typer.Option(help="accounted: as much data as the noise allows; paper: strength × mu_j; none: all data."),
    ] = PlanCapacity.accounted,
    noise: Annotated[float | None, typer.Option(help="Noise multiplier to plan for; found if not given.")] = None,
    keep: Annotated[
        float | None, typer.Option(help="Without --noise: share of their weight that examples with secrets keep [0.9].")
    ] = None,
    strength: Annotated[float | None, typer.Option(help="With --capacity paper: the paper's c.")] = None,
    bound: OneBoundOption = OneBound.blowup,
    clip_norm: Annotated[float, typer.Option(help="Norm to which training clips each gradient.")] = 1.0,
    data: Annotated[
        str | None,
        typer.Option(help="Tie the plan to this data: example i is its row i, and training refuses any other data."),
    ] = None,
    column: ColumnOption = None,
    unit: UnitOption = None,
    key: Annotated[
        Path | None,
        typer.Option(help="With --data: your key for its fingerprint, made on first use. Keep it with the data."),
    ] = None,
    top: Annotated[int, typer.Option(help="How many binding secrets to show.", min=0)] = 10,
    json: JsonOption = False,
) -> None:
    """How often is each example used, and with how much noise?

    Chooses sampling rates and noise so that every promise is kept, and writes them as a folder with a certificate that
    anyone can check with `hush verify`. Without --noise it finds the least noise at which examples with secrets keep
    90 % of their weight. Exit code 1 means that no plan exists; the message says what would help.

    Example: `hush plan incidence.parquet --batch-size 256 --rounds 2000 --prior 1e-10 --ceiling 1e-3 --output my-plan`
    """
    from hush.cli_inputs import read_promises
    from hush.cli_plan_results import plan_record, show_plan
    from hush.cli_results import print_json
    from hush.console import ProgressBar
    from hush.plan import make_plan
    from hush.plan.files import check_folder
    from hush.weights.frontier import KEEP

    if keep is not None and (noise is not None or capacity is not PlanCapacity.accounted):
        raise InvalidInput("--keep looks for a noise, for accounted capacities; drop it, or --noise and --capacity")
    check_folder(output)
    promises = read_promises(incidence, prior=prior, ceiling=ceiling, secrets_path=secrets, rounds=rounds)
    fingerprint = read_data_fingerprint(data, key, column=column, unit=unit, rows=promises.incidence.num_examples)
    check_scanned(incidence, fingerprint)
    begin = time.perf_counter()
    with ProgressBar(Console(stderr=True), "Planning") as progress:
        found = make_plan(
            promises.incidence,
            **promises.arguments,
            batch_size=batch_size,
            bound=bound.value,
            capacity=capacity.value,
            noise_multiplier=noise,
            keep=KEEP if keep is None else keep,
            strength=strength,
            clip_norm=clip_norm,
            secret_ids=promises.ids,
            data_fingerprint=fingerprint,
            progress=progress,
        )
    found.save(output)
    record = plan_record(found, output, time.perf_counter() - begin)
    print_json(record) if json else show_plan(record, Console(), top=top)


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
    settings: Annotated[
        str | None,
        typer.Option(help="Noise multipliers (accounted) or strengths (paper), with commas; 11 by default."),
    ] = None,
    bound: OneBoundOption = OneBound.blowup,
    plot: Annotated[Path | None, typer.Option(help="Draw it: a .png, .svg or .html file.")] = None,
    output: Annotated[Path | None, typer.Option(help="Write the rows: a .json or .csv file.")] = None,
    json: JsonOption = False,
) -> None:
    """How much data does how much noise keep?

    Sweeps from all data down to little, each row with the noise that it needs, proven. The default choice, the least
    noise that keeps 90 % of the weight of examples with secrets, is marked.

    Example: `hush frontier incidence.parquet --batch-size 256 --rounds 2000 --prior 1e-10 --ceiling 1e-3 --plot f.html`
    """
    from hush.cli_inputs import check_output, read_promises
    from hush.cli_plan_results import frontier_record, show_frontiers, write_rows
    from hush.cli_results import print_json
    from hush.console import ProgressBar
    from hush.report.figures import FORMS, save_figure
    from hush.report.frontier import frontier_figure
    from hush.weights import frontier as swept

    check_output(plot, incidence, secrets, option="--plot", forms=FORMS)
    check_output(output, incidence, secrets, plot, forms=("json", "csv"))
    if capacity is FrontierCapacity.all and (settings is not None or bound is not OneBound.blowup):
        raise InvalidInput("--capacity all compares fixed bounds and default settings; drop --settings and --bound")
    promises = read_promises(incidence, prior=prior, ceiling=ceiling, secrets_path=secrets, rounds=rounds)
    kinds: list[tuple[Capacity, Bound]] = [("accounted", "blowup"), ("paper", "blowup"), ("paper", "kl")]
    if capacity is not FrontierCapacity.all:
        kinds = [(capacity.value, bound.value)]
    frontiers: list[Frontier] = []
    for kind, proof in kinds:
        with ProgressBar(Console(stderr=True), f"Sweeping ({kind}, {proof})") as progress:
            frontiers.append(
                swept(
                    promises.incidence,
                    **promises.arguments,
                    batch_size=batch_size,
                    bound=proof,
                    capacity=kind,
                    settings=_numbers(settings),
                    progress=progress,
                )
            )
    record = frontier_record(frontiers, promises)
    if output is not None:
        write_rows(record, output)
    if plot is not None:
        sizes = f"{promises.incidence.num_examples:,} examples, {promises.incidence.num_secrets:,} secrets"
        subtitle = f"{sizes}, batch {batch_size:g}, {promises.rounds} rounds"
        save_figure(frontier_figure(frontiers, subtitle=subtitle), plot)
    print_json(record) if json else show_frontiers(record, Console())


def _numbers(text: str | None) -> list[float] | None:
    if text is None:
        return None
    try:
        return [float(part) for part in text.split(",")]
    except ValueError as error:
        raise InvalidInput(f"--settings={text!r}; pass numbers with commas, such as 3,4,5") from error

"""The command ``hush rehearse``: what a training would reach, tried on public content before anything is paid for."""

from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.console import Console

from hush.cli.interrupt import RESUMABLE_MESSAGE, message_when_stopped
from hush.cli.messages import is_verbose, log_progress, terminal
from hush.cli.options import ForceOption, JsonOption, settings_from

if TYPE_CHECKING:
    from hush.run.rehearsal import Rehearsed
    from hush.scan.engines import Engine

__all__ = ["rehearse"]


class RolesChoice(StrEnum):
    """Which public examples play a secret."""

    words = "words"
    random = "random"


BUDGET_PANEL = "Budget (by default as the config says)"
CLUSTER_PANEL = "Several processes"


def rehearse(
    config: Annotated[Path, typer.Argument(help="A config; hush init writes one.", metavar="CONFIG")],
    output: Annotated[Path | None, typer.Option(help="Folder of the run [default: output in the config].")] = None,
    minutes: Annotated[
        float | None, typer.Option(help="About how long it may take.", rich_help_panel=BUDGET_PANEL)
    ] = None,
    share: Annotated[
        float | None,
        typer.Option(
            help="Instead: the work of its private rounds, divided by that of the training.",
            rich_help_panel=BUDGET_PANEL,
        ),
    ] = None,
    tries: Annotated[
        int | None, typer.Option(help="How many settings to compare.", rich_help_panel=BUDGET_PANEL)
    ] = None,
    seeds: Annotated[
        int | None,
        typer.Option(help="How many trainings stand behind each figure.", rich_help_panel=BUDGET_PANEL),
    ] = None,
    max_examples: Annotated[
        int | None, typer.Option(help="How many public examples to use at most.", rich_help_panel=BUDGET_PANEL)
    ] = None,
    roles: Annotated[
        RolesChoice | None,
        typer.Option(help="Who plays a secret: texts that share a public word, or any texts."),
    ] = None,
    workers: Annotated[
        int | None,
        typer.Option(min=1, help="How many trainings to make at a time [default: 1].", rich_help_panel=CLUSTER_PANEL),
    ] = None,
    ray_address: Annotated[
        str | None,
        typer.Option(
            help='Make them on a Ray cluster: "auto", HOST:PORT or ray://HOST:PORT.', rich_help_panel=CLUSTER_PANEL
        ),
    ] = None,
    write: Annotated[
        Path | None, typer.Option(help="Also write the config with the settings that won, beside CONFIG.")
    ] = None,
    force: ForceOption = False,
    json: JsonOption = False,
) -> None:
    """Say before training what it will reach: the loss of dropping, of redacting and of hush, and good settings.

    Scans and plans as hush run would, then trains on public content only, some of which plays the secrets: as many, as
    large, at the plan's rates and noise. It searches learning rate, clip norm, batch against rounds, the share kept and
    the rank of adapters. It costs no promise, since no secret is looked at. However it is stopped, the same command
    continues it.

    Example: `hush rehearse hush.yaml --minutes 30`
    """
    from hush.cli.checks import check_output
    from hush.cli.results.accounting import print_json
    from hush.cli.results.rehearse import rehearsal_record, show_rehearsal

    if write is not None:
        from hush.run.rehearsal import check_beside

        check_output(write, config, force=force, option="--write")
        check_beside(config, write)
    given = {
        "minutes": minutes,
        "share": share,
        "tries": tries,
        "seeds": seeds,
        "max_examples": max_examples,
        "roles": roles,
    }
    with message_when_stopped(RESUMABLE_MESSAGE):
        at_once = workers or 1
        engine = _engine(at_once, ray_address)
        rehearsed = _rehearsed(config, output=output, given=given, engine=engine, at_once=at_once)
    if write is not None:
        from hush.run.rehearsal import write_patched

        write_patched(config, rehearsed.outcome.patch, write)
    record = rehearsal_record(rehearsed) | {"config": None if write is None else str(write)}
    print_json(record) if json else show_rehearsal(rehearsed, Console(), written=write)


def _engine(workers: int, ray_address: str | None) -> "Engine | None":
    if ray_address is not None:
        from hush.scan.engine_ray import RayEngine

        return RayEngine(address=ray_address, workers=workers, uses_gpu=True)
    if workers == 1:
        return None
    from hush.scan.engines import LocalEngine

    return LocalEngine(workers=workers)


def _rehearsed(
    config: Path, *, output: Path | None, given: dict[str, Any], engine: "Engine | None", at_once: int
) -> "Rehearsed":
    from hush.cli.checks import quiet_libraries
    from hush.cli.results.run import Screen
    from hush.rehearse.settings import RehearsalSettings
    from hush.run.config import load_config
    from hush.run.job import Watch
    from hush.run.pipeline import run_folder
    from hush.run.rehearsal import rehearse_config

    loaded, console = load_config(config), terminal()
    stated = loaded.rehearsal.model_dump(exclude_unset=True)
    overriding = settings_from(RehearsalSettings, given).model_dump(exclude_unset=True)
    settings = RehearsalSettings(**(stated | overriding))
    quiet_libraries(silent=False)
    screen = Screen(console, folder=run_folder(loaded, output), verbose=is_verbose())
    with screen:
        watch = log_progress(screen.watch(stoppable=Watch().stoppable), console)
        return rehearse_config(loaded, output=output, settings=settings, engine=engine, at_once=at_once, watch=watch)

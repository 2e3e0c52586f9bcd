"""The commands that do everything: write a config, and run it."""

from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

from hush.cli_options import JsonOption
from hush.errors import InvalidInput
from hush.interrupt import INTERRUPTED, Interrupt

__all__ = ["init", "run"]


class KindChoice(StrEnum):
    """What the data is."""

    text = "text"
    code = "code"


class StageChoice(StrEnum):
    """Where to begin again."""

    data = "data"
    scan = "scan"
    canaries = "canaries"
    plan = "plan"
    train = "train"
    audit = "audit"
    report = "report"


def init(
    kind: Annotated[KindChoice, typer.Option(help="What the data is: texts, or a code base.")] = KindChoice.text,
    output: Annotated[Path, typer.Option(help="The file to write; one that exists is kept.")] = Path("hush.yaml"),
) -> None:
    """Write a config to begin with.

    It is whole but for the path of your data, and says beside every key what it means. Fill it in, then `hush run` it.

    Example: `hush init --kind code --output hush.yaml`
    """
    from hush.config import template

    if output.parent != Path() and not output.parent.is_dir():
        raise InvalidInput(f"--output={output}: its folder does not exist; pass the path of a file in one that does")
    try:
        with output.open("x", encoding="utf-8") as file:
            file.write(template(kind.value))
    except FileExistsError:
        raise InvalidInput(f"{output} exists; name another file with --output, nothing is overwritten") from None
    out = Console(highlight=False, soft_wrap=True)
    out.print(f"Wrote {output}. Fill in data.source, then: hush run {output}", markup=False)


def run(
    config: Annotated[Path, typer.Argument(help="A config, as hush init writes one.")],
    output: Annotated[Path | None, typer.Option(help="Folder of the run [as the config says].")] = None,
    since: Annotated[StageChoice | None, typer.Option("--from", help="Do this stage and all later ones again.")] = None,
    new_release: Annotated[
        bool,
        typer.Option(
            "--new-release", help="Train on the same data once more. No certificate accounts for both models together."
        ),
    ] = False,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Say what would be done, how large it is and about how long it takes.")
    ] = False,
    quiet: Annotated[bool, typer.Option("--quiet", help="Say nothing but errors.")] = False,
    verbose: Annotated[bool, typer.Option("--verbose", help="Also say what every stage came to, and notices.")] = False,
    json: JsonOption = False,
) -> None:
    """From data to a protected model, its certificate and a report, in one command.

    Stages: data, scan, canaries, plan, train, audit, report. One whose inputs did not change is not done again. Ctrl-C
    stops; however it was stopped, the same command goes on, training from its last saved state. The folder then has two
    parts: share/ may leave your hands, owner/ may not. Exit code 1 means that no plan keeps the promises, or that an
    attack of the audit did better than was certified.

    Example: `hush run hush.yaml --output hush-run`
    """
    from hush.cli_results import print_json
    from hush.cli_run_results import Screen, forecast_record, outcome_record, show_forecast, show_outcome
    from hush.config import load_config

    if quiet and verbose:
        raise InvalidInput("--quiet and --verbose ask for opposite things; pass one of them")
    loaded = load_config(config)
    stage = None if since is None else since.value
    if dry_run:
        from hush.pipeline.forecast import forecast

        record = forecast_record(forecast(loaded, output=output, since=stage))
        print_json(record) if json else show_forecast(record, Console())
        return
    from hush.pipeline.run import run_pipeline
    from hush.pipeline.stage_train import Interrupted

    terminal = Console(stderr=True, quiet=quiet)
    try:
        with Screen(terminal, verbose=verbose) as screen:
            watch = screen.watch(stoppable=lambda: Interrupt(screen.stopping))
            made = run_pipeline(loaded, output=output, since=stage, new_release=new_release, watch=watch)
    except Interrupted as stopped:
        said = (
            f"Stopped after round {stopped.round} of {stopped.rounds}, which is saved. The same command goes on there."
        )
        terminal.print(said, soft_wrap=True)
        raise typer.Exit(INTERRUPTED) from None
    except KeyboardInterrupt:
        terminal.print("Stopped. What is finished is kept; the same command goes on.", soft_wrap=True)
        raise typer.Exit(INTERRUPTED) from None
    record = outcome_record(made)
    if json:
        print_json(record)
    elif not quiet:
        show_outcome(record, Console())
    if made.verdict == "failed":
        raise typer.Exit(1)

"""The commands that do everything: write a config, and run it.

The command that shows what hush does on a code base that is on every machine.
"""

import json as json_text
from collections.abc import Callable
from dataclasses import replace
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.console import Console

from hush.cli.interrupt import GOES_ON, Interrupt, stop_message, stopped_after
from hush.cli.messages import is_quiet, is_verbose, terminal
from hush.cli.options import ForceOption, JsonOption, flag
from hush.errors import InvalidInput

if TYPE_CHECKING:
    from hush.run.pipeline import Outcome

__all__ = ["demo", "init", "run"]


class KindChoice(StrEnum):
    """What the data is."""

    text = "text"
    code = "code"


def _stage_names() -> list[str]:
    from hush.run.pipeline import STAGES

    return [stage.name for stage in STAGES]


def _checked_stage(name: str | None) -> str | None:
    if name is not None and name not in _stage_names():
        raise typer.BadParameter(f"{name!r} is not one of {', '.join(map(repr, _stage_names()))}.")
    return name


def init(
    kind: Annotated[KindChoice, typer.Option(help="What the data is: texts, or a code base.")] = KindChoice.text,
    output: Annotated[Path, typer.Option(help="The file to write.")] = Path("hush.yaml"),
    force: ForceOption = False,
    json: JsonOption = False,
) -> None:
    """Write a config to begin with.

    It is whole but for the path of your data, and says beside every key what it means. Fill it in, then `hush run` it.

    Example: `hush init --kind code --output hush.yaml`
    """
    from hush.cli.checks import check_output
    from hush.cli.results.accounting import print_json
    from hush.run.config import template
    from hush.storage import whole_file

    check_output(output, force=force)
    with whole_file(output) as file:
        file.write(template(kind.value).encode())
    if json:
        print_json({"config": str(output), "kind": kind.value, "next": f"hush run {output}"})
        return
    out = Console(highlight=False, soft_wrap=True)
    out.print(f"Wrote {output}. Fill in data.source, then: hush run {output}", markup=False)


def run(
    config: Annotated[Path, typer.Argument(help="A config, as hush init writes one.", metavar="CONFIG")],
    output: Annotated[Path | None, typer.Option(help="Folder of the run [as the config says].")] = None,
    since: Annotated[
        str | None,
        typer.Option(
            "--from",
            help="Do this stage and all later ones again.",
            metavar="STAGE",
            callback=_checked_stage,
            autocompletion=_stage_names,
        ),
    ] = None,
    new_release: Annotated[
        bool,
        flag("--new-release", "Train on the same data once more. No certificate accounts for both models together."),
    ] = False,
    dry_run: Annotated[
        bool,
        flag("--dry-run", "Check config, data and model; say what would be done, and about how long it takes."),
    ] = False,
    json: JsonOption = False,
) -> None:
    """From data to a protected model, its certificate and a report, in one command.

    Stages: data, scan, canaries, plan, train, audit, report. One whose inputs did not change is not done again. Ctrl-C
    or SIGTERM stops; however it was stopped, the same command goes on, training from its last saved state. The folder
    then has two parts: release/ may leave your hands, owner/ may not. Exit code 1 means that no plan keeps the
    promises, or that an attack of the audit did better than was certified. An audit that had nothing to compare says
    so, and ends with 0.

    Example: `hush run hush.yaml --output hush-run`
    """
    if dry_run:
        _foretell(config, output=output, since=since, new_release=new_release, json=json)
        return
    with stop_message(GOES_ON) as again:  # also while it loads: an earlier command may have finished stages
        ended = _ended(config, output=output, since=since, new_release=new_release, again=again)
    if isinstance(ended, KeyboardInterrupt):
        raise ended
    from hush.cli.results.accounting import print_json
    from hush.cli.results.run import outcome_record, show_outcome

    record = outcome_record(ended)
    print_json(record) if json else show_outcome(record, Console())
    if ended.verdict == "failed":
        raise typer.Exit(1)


def _ended(
    config: Path, *, output: Path | None, since: str | None, new_release: bool, again: Callable[..., None]
) -> "Outcome | KeyboardInterrupt":
    """What a run comes to; where training was asked to stop and did, what is to be raised.

    again: raises Ctrl-C that got lost in a stage, before the next one begins: a plan is trained once.
    """
    from hush.cli.messages import both, logged
    from hush.cli.results.run import Screen
    from hush.run.config import load_config
    from hush.run.pipeline import run_folder, run_pipeline
    from hush.run.stage_train import Interrupted

    loaded, console = load_config(config), terminal()
    screen = Screen(console, folder=run_folder(loaded, output), verbose=is_verbose())
    stop = Interrupt(screen.stopping)
    try:
        with screen:
            watch = logged(screen.watch(stoppable=lambda: stop), console)
            watch = replace(watch, stage=both(again, watch.stage))
            return run_pipeline(loaded, output=output, since=since, new_release=new_release, watch=watch)
    except Interrupted as stopped:
        return stop.stopped(stopped_after(stopped.round, stopped.rounds))


def _foretell(config: Path, *, output: Path | None, since: str | None, new_release: bool, json: bool) -> None:
    """What a run would do now."""
    from hush.cli.results.accounting import print_json
    from hush.cli.results.run import CHECKING, forecast_record, show_forecast
    from hush.console import WorkBar
    from hush.run.config import load_config
    from hush.run.forecast import forecast

    with WorkBar(terminal(), CHECKING):
        stages = forecast(load_config(config), output=output, since=since, new_release=new_release)
    record = forecast_record(stages)
    print_json(record) if json else show_forecast(record, Console())


def demo(
    output: Annotated[Path, typer.Option(help="Folder for the report, the models and all behind them.")] = Path(
        "hush-demo"
    ),
    quick: Annotated[bool, flag("--quick", "Few files and rounds: shows how it goes, not what it is worth.")] = False,
    noise_table: Annotated[bool, flag("--noise-table", "Instead: the noise table and the picture of the README.")] = (
        False
    ),
    force: ForceOption = False,
    json: JsonOption = False,
) -> None:
    """Protect a code base that is on every machine, side by side with other ways. Takes some minutes on two cores.

    Python's standard library plays a company's code, some of its packages play secret projects. The same small model
    is trained four times: without protection, by the paper's method with all data and with its program, and by hush.
    Ends with a report.

    Example: `hush demo --output hush-demo`
    """
    from hush.cli.results.accounting import print_json
    from hush.demo.run import NOISE_TABLE_FILES

    last = output / ("noise.json" if noise_table else "report.html")
    for path in [output / name for name in sorted(NOISE_TABLE_FILES)] if noise_table else [last]:
        if path.exists() and not force:  # what a demo that was stopped left behind is no result
            raise InvalidInput(f"{path} is there already; pass --force to replace it, or name a new --output")
    if noise_table:
        from hush.demo.noise_table import FULL_TABLE, QUICK_TABLE, run_noise_table

        made = run_noise_table(output, terminal() if json else Console(), size=QUICK_TABLE if quick else FULL_TABLE)
        record = last
    else:
        from hush.demo.company import FULL, QUICK
        from hush.demo.run import run_demo

        made = [run_demo(output, terminal() if json or is_quiet() else Console(), size=QUICK if quick else FULL)]
        record = output / "demo.json"
    if json:
        print_json(json_text.loads(record.read_text(encoding="utf-8")) | {"files": [str(path) for path in made]})
    elif is_quiet() and not noise_table:
        Console(highlight=False, soft_wrap=True).print(f"Report: {last}", markup=False)

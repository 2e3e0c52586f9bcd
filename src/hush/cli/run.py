"""The commands ``hush init`` (write a config), ``hush run`` (run all stages of it) and ``hush demo``."""

import json as json_text
from collections.abc import Callable
from dataclasses import replace
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.console import Console

from hush.cli.checks import has_other_processes, missing_library_explained, quiet_libraries
from hush.cli.interrupt import RESUMABLE_MESSAGE, Interrupt, message_when_stopped, stopped_after_message
from hush.cli.messages import is_quiet, is_verbose, terminal
from hush.cli.options import ForceOption, JsonOption, flag
from hush.errors import InvalidInput

if TYPE_CHECKING:
    from hush.run.job import Together
    from hush.run.pipeline import Outcome

__all__ = ["demo", "init", "run"]


class KindChoice(StrEnum):
    """What the data are."""

    text = "text"
    chat = "chat"
    code = "code"


def _stage_names() -> list[str]:
    from hush.run.pipeline import STAGES

    return [stage.name for stage in STAGES]


def _checked_stage(name: str | None) -> str | None:
    if name is not None and name not in _stage_names():
        raise typer.BadParameter(f"{name!r} is not one of {', '.join(map(repr, _stage_names()))}.")
    return name


def init(
    kind: Annotated[
        KindChoice, typer.Option(help="What the data are: texts, conversations or a code base.")
    ] = KindChoice.text,
    chat: Annotated[bool, flag("--chat", "The same as --kind chat.")] = False,
    output: Annotated[Path, typer.Option(help="The file to write.")] = Path("hush.yaml"),
    force: ForceOption = False,
    json: JsonOption = False,
) -> None:
    """Write a config to start from.

    The config is complete except for the path of your data, and explains each key next to it. Fill in the path, then
    pass the file to `hush run`.

    Example: `hush init --kind code --output hush.yaml`
    """
    from hush.cli.checks import check_output
    from hush.cli.results.accounting import print_json
    from hush.run.config import template
    from hush.storage import whole_file

    if chat and kind is KindChoice.code:
        raise InvalidInput("--chat and --kind code exclude each other; pass one of them")
    kind = KindChoice.chat if chat else kind
    check_output(output, force=force)
    with whole_file(output) as file:
        file.write(template(kind.value).encode())
    if json:
        print_json({"config": str(output), "kind": kind.value, "next": f"hush run {output}"})
        return
    out = Console(highlight=False, soft_wrap=True)
    out.print(f"Wrote {output}. Fill in data.source, then: hush run {output}", markup=False)


def run(
    config: Annotated[Path, typer.Argument(help="A config; hush init writes one.", metavar="CONFIG")],
    output: Annotated[Path | None, typer.Option(help="Folder of the run [default: output in the config].")] = None,
    since: Annotated[
        str | None,
        typer.Option(
            "--from",
            help="Run this stage and all later ones again.",
            metavar="STAGE",
            callback=_checked_stage,
            autocompletion=_stage_names,
        ),
    ] = None,
    new_release: Annotated[
        bool,
        flag("--new-release", "Train again on the same data. No certificate covers both models together."),
    ] = False,
    dry_run: Annotated[
        bool,
        flag("--dry-run", "Check config, data and model; print what would run and about how long it would take."),
    ] = False,
    json: JsonOption = False,
) -> None:
    """Run all stages of a config: from data to a protected model, its certificate and a report.

    Stages: data, scan, canaries, plan, train, audit, report. A stage whose inputs did not change is skipped. Ctrl-C or
    SIGTERM stops the run; however it was stopped, the same command continues it, training from its last saved state.
    The folder then has two parts: release/ may be passed on, owner/ must stay private. Exit code 1 means that no plan
    keeps the promises, or that an attack of the audit did better than certified. An audit that had nothing to compare
    says so and exits with 0.

    Example: `hush run hush.yaml --output hush-run`

    On 4 GPUs: `torchrun --nproc-per-node 4 -m hush run hush.yaml`. The first process does all stages, the others join
    it for the training.
    """
    if has_other_processes():
        _run_in_group(config, output=output, since=since, new_release=new_release, dry_run=dry_run, json=json)
        return
    if dry_run:
        _show_dry_run(config, output=output, since=since, new_release=new_release, json=json)
        return
    _run_to_its_end(config, output=output, since=since, new_release=new_release, json=json)


def _run_to_its_end(
    config: Path,
    *,
    output: Path | None,
    since: str | None,
    new_release: bool,
    json: bool,
    together: "Together | None" = None,
) -> None:
    """All stages, and what came of them."""
    with message_when_stopped(RESUMABLE_MESSAGE) as raise_if_interrupted:  # from here on, also during imports
        outcome = _run_stages(
            config, output=output, since=since, new_release=new_release, raise_if_interrupted=raise_if_interrupted,
            together=together,
        )  # fmt: skip
    if isinstance(outcome, KeyboardInterrupt):
        raise outcome
    from hush.cli.results.accounting import print_json
    from hush.cli.results.run import outcome_record, show_outcome

    record = outcome_record(outcome)
    print_json(record) if json else show_outcome(record, Console())
    if outcome.verdict == "failed":
        raise typer.Exit(1)


def _run_in_group(
    config: Path, *, output: Path | None, since: str | None, new_release: bool, dry_run: bool, json: bool
) -> None:
    """The same as one of several processes: the first one does all stages, the others its training."""
    with missing_library_explained("training"):
        from hush.train.launch import WorkerGroup, leave
    from hush.run.config import load_config
    from hush.run.pipeline import train_beside

    trained_shards = False
    with WorkerGroup.met() as group:
        if group.is_first and dry_run:
            _show_dry_run(config, output=output, since=since, new_release=new_release, json=json)
        elif group.is_first:
            trained_shards = load_config(config).training.shard
            _run_to_its_end(
                config, output=output, since=since, new_release=new_release, json=json, together=group.training
            )
        else:
            quiet_libraries(silent=True)
            with Interrupt(lambda: None) as stop:
                stop()  # the first process decides when to end
                while group.wait(stop):
                    loaded = load_config(config)
                    trained_shards = loaded.training.shard
                    with group.training(loaded.training.device):
                        train_beside(loaded, output=output, stop=stop)
    if trained_shards:
        leave(0)


def _run_stages(
    config: Path,
    *,
    output: Path | None,
    since: str | None,
    new_release: bool,
    raise_if_interrupted: Callable[..., None],
    together: "Together | None",
) -> "Outcome | KeyboardInterrupt":
    """The outcome of a run, or the exception to raise if training stopped because of a signal.

    raise_if_interrupted: called before each stage, so that a Ctrl-C that a library swallowed does not start training,
    which a plan allows only once.
    """
    from hush.cli.messages import call_both, log_progress
    from hush.cli.results.run import Screen
    from hush.run.config import load_config
    from hush.run.pipeline import run_folder, run_pipeline
    from hush.run.stage_train import Interrupted

    loaded, console = load_config(config), terminal()
    screen = Screen(console, folder=run_folder(loaded, output), verbose=is_verbose())
    stop = Interrupt(screen.stopping)
    try:
        with screen:
            watch = log_progress(screen.watch(stoppable=lambda: stop), console)
            watch = replace(watch, stage=call_both(raise_if_interrupted, watch.stage))
            return run_pipeline(
                loaded, output=output, since=since, new_release=new_release, watch=watch, together=together
            )
    except Interrupted as stopped:
        return stop.exception(stopped_after_message(stopped.round, stopped.rounds))


def _show_dry_run(config: Path, *, output: Path | None, since: str | None, new_release: bool, json: bool) -> None:
    """What a run would do now."""
    from hush.cli.results.accounting import print_json
    from hush.cli.results.run import CHECKING, forecast_record, show_forecast
    from hush.console import WorkBar
    from hush.run.config import load_config
    from hush.run.forecast import dry_run

    with WorkBar(terminal(), CHECKING):
        forecast = dry_run(load_config(config), output=output, since=since, new_release=new_release)
    record = forecast_record(forecast)
    print_json(record) if json else show_forecast(record, Console())


def demo(
    output: Annotated[Path, typer.Option(help="Folder for the report, the models and all other results.")] = Path(
        "hush-demo"
    ),
    quick: Annotated[bool, flag("--quick", "Few files and rounds: shows how it works, not how well.")] = False,
    noise_table: Annotated[
        bool, flag("--noise-table", "Instead: make the noise table and the figure of the README.")
    ] = (False),
    force: ForceOption = False,
    json: JsonOption = False,
) -> None:
    """Compare hush with other methods on Python's standard library. Takes a few minutes on two cores.

    The standard library stands for a company's code base, and some of its packages for secret projects. The same small
    model is trained four times: without protection, by the paper's method with all the data and with its linear
    program, and by hush. Writes a report.

    Example: `hush demo --output hush-demo`
    """
    from hush.cli.results.accounting import print_json
    from hush.demo.run import NOISE_TABLE_FILES

    last = output / ("noise.json" if noise_table else "report.html")
    for path in [output / name for name in sorted(NOISE_TABLE_FILES)] if noise_table else [last]:
        if path.exists() and not force:  # files of a demo that was stopped are not a result
            raise InvalidInput(f"{path} exists; pass --force to overwrite it, or another --output")
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

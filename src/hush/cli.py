"""The command line, above every stage: each command parses, calls the library and prints.

Exit codes: 0 done, 1 a promise or check failed, 2 bad input.
"""

import time
from pathlib import Path
from traceback import format_exception
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.text import Text
from typer.core import TyperGroup

from hush import __version__
from hush.cli_audit import audit
from hush.cli_canaries import canaries
from hush.cli_explain import explain
from hush.cli_options import (
    BoundChoice,
    BoundOption,
    CeilingOption,
    IncidenceArgument,
    JsonOption,
    PriorOption,
    RoundsOption,
    SecretsOption,
)
from hush.cli_plan import frontier, plan
from hush.cli_report import report
from hush.cli_run import init, run
from hush.cli_scan import scan
from hush.cli_train import train
from hush.cli_verify import sign, verify
from hush.errors import HushError, InvalidInput

__all__ = ["app", "main"]


class _Commands(TyperGroup):
    """Turns what hush raises on purpose into a message and an exit code."""

    def invoke(self, ctx: Any) -> Any:
        try:
            return super().invoke(ctx)
        except (HushError, OSError) as error:
            if isinstance(error, BrokenPipeError):
                raise
            said = str(error)
            if isinstance(error, OSError):
                said = f"{error.filename or 'a file'}: {error.strerror or error}; check the path and its permissions"
            console = Console(stderr=True)
            if ctx.params.get("debug"):
                console.print(Text("".join(format_exception(error))), soft_wrap=True)
            console.print(Text(f"Error: {said}", style="red"), soft_wrap=True)
            raise typer.Exit(2 if isinstance(error, InvalidInput | OSError) else 1) from None


app = typer.Typer(
    cls=_Commands, pretty_exceptions_show_locals=False, no_args_is_help=True, rich_markup_mode="markdown", help=(
        "Train on data that holds secrets, with a proven ceiling on what anyone can get back out of the model.\n\n"
        "Example: `hush init`, fill in the path of your data, then `hush run hush.yaml`\n\n"
        "Exit codes: 0 done, 1 a promise or check failed, 2 bad input."
    ),
)  # fmt: skip


def main() -> None:
    """The console script."""
    app()


def _show_version(asked: bool) -> None:
    if asked:
        typer.echo(f"hush {__version__}")
        raise typer.Exit


@app.callback()
def _hush(
    version: Annotated[
        bool, typer.Option("--version", callback=_show_version, is_eager=True, help="Print the version and stop.")
    ] = False,
    debug: Annotated[
        bool, typer.Option("--debug", help="Before a command: where in the program an error arose, with its message.")
    ] = False,
) -> None:
    pass


def posterior(
    noise: Annotated[float, typer.Option(help="Noise multiplier: standard deviation of the noise / clip norm.")],
    rounds: Annotated[int, typer.Option(help="Training rounds (optimizer steps).")],
    prior: Annotated[
        list[float],
        typer.Option(help="Most that the adversary gives any candidate beforehand, in (0, 1). Repeat for several."),
    ],
    rate: Annotated[
        float | None, typer.Option(help="Probability with which a round draws one example, in [0, 1].")
    ] = None,
    examples: Annotated[int | None, typer.Option(help="How many examples with that rate contain the secret.")] = None,
    rates: Annotated[
        Path | None,
        typer.Option(help='Instead: a rate for each example. JSON list, {"rates": [...]}, or Parquet column rate.'),
    ] = None,
    bound: BoundOption = BoundChoice.blowup,
    lower: Annotated[bool, typer.Option("--lower", help="Also show what an explicit attack reaches.")] = False,
    json: JsonOption = False,
) -> None:
    """What can an adversary end up with, for one secret?

    From how often the secret's examples are drawn, and how much noise hides them, to the largest probability with
    which anyone who sees the whole training run names the secret. The answer is an upper bound, by proof.

    Example: `hush posterior --rate 0.0012 --examples 100 --noise 1.9 --rounds 2000 --prior 1e-10`
    """
    from hush.accounting import posterior as accounted
    from hush.cli_inputs import equal_rates, read_rates
    from hush.cli_results import posterior_record, print_json, show_posterior

    if rates is not None and (rate is not None or examples is not None):
        raise InvalidInput("--rates is given together with --rate or --examples; pass one or the other")
    rate_N = equal_rates(rate, examples) if rates is None else read_rates(rates)
    settings = {"noise_multiplier": noise, "rounds": rounds, "prior": prior}
    columns = {name: accounted(rate_N, **settings, bound=name) for name in bound.bounds}
    if lower:
        columns["lower"] = accounted(rate_N, **settings, side="lower")
    record = posterior_record(rate_N, noise, rounds, prior, columns)
    print_json(record) if json else show_posterior(record, Console())


def calibrate(
    incidence: IncidenceArgument,
    batch_size: Annotated[int | None, typer.Option(help="Expected examples per round; every rate is B / n.")] = None,
    rate: Annotated[
        float | None, typer.Option(help="Instead: probability with which a round draws an example, in [0, 1].")
    ] = None,
    rates: Annotated[
        Path | None,
        typer.Option(help='Instead: a rate for each example. JSON list, {"rates": ...}, or Parquet column rate.'),
    ] = None,
    rounds: RoundsOption = None,
    prior: PriorOption = None,
    ceiling: CeilingOption = None,
    secrets: SecretsOption = None,
    bound: BoundOption = BoundChoice.blowup,
    output: Annotated[
        Path | None,
        typer.Option(help="Write the posterior of every secret to this Parquet file (with --bound all: the tightest)."),
    ] = None,
    top: Annotated[int, typer.Option(help="How many binding secrets to show.", min=0)] = 10,
    json: JsonOption = False,
) -> None:
    """How much noise keeps every promise?

    Finds the least noise multiplier (standard deviation of the noise / clip norm) under which every secret keeps its
    promise, and names the secrets that bind: those whose promise 0.5 % less noise would break. The answer is safe by
    proof. Exit code 1 means that no noise is.

    Example: `hush calibrate incidence.parquet --batch-size 256 --rounds 2000 --prior 1e-10 --ceiling 1e-3`
    """
    from hush.accounting import calibrate as accounted
    from hush.cli_inputs import check_output, read_problem
    from hush.cli_results import calibration_record, print_json, show_calibration, write_posteriors
    from hush.console import ProgressBar

    check_output(output, incidence, rates, secrets)
    problem = read_problem(
        incidence,
        rates_path=rates,
        rate=rate,
        batch_size=batch_size,
        prior=prior,
        ceiling=ceiling,
        secrets_path=secrets,
        rounds=rounds,
    )
    begin = time.perf_counter()
    calibrations = {}
    for name in bound.bounds:
        with ProgressBar(Console(stderr=True), f"Calibrating ({name})") as progress:
            calibrations[name] = accounted(problem.incidence, **problem.arguments, bound=name, progress=progress)
    record = calibration_record(problem, calibrations, time.perf_counter() - begin)
    if output is not None:
        write_posteriors(output, problem, calibrations[record["bound"]])
    print_json(record) if json else show_calibration(record, Console(), top=top)


def demo(
    output: Annotated[Path, typer.Option(help="Folder for the report, the models and all behind them.")] = Path(
        "hush-demo"
    ),
    quick: Annotated[
        bool, typer.Option("--quick", help="Few files and rounds: shows how it goes, not what it is worth.")
    ] = False,
    noise_table: Annotated[
        bool, typer.Option("--noise-table", help="Instead: the noise table and the picture of the README.")
    ] = False,
) -> None:
    """Protect a code base that is on every machine, side by side with other ways. Takes some minutes on two cores.

    Python's standard library plays a company's code, some of its packages play secret projects. The same small model
    is trained four times: without protection, by the paper's method with all data and with its program, and by hush.
    Ends with a report. What an earlier demo left in the folder is replaced.

    Example: `hush demo --output hush-demo`
    """
    if noise_table:
        from hush.demo.noise_table import FULL_TABLE, QUICK_TABLE, run_noise_table

        run_noise_table(output, Console(), size=QUICK_TABLE if quick else FULL_TABLE)
        return
    from hush.demo.run import run_demo
    from hush.demo.sizes import FULL, QUICK
    from hush.interrupt import INTERRUPTED

    try:
        run_demo(output, Console(), size=QUICK if quick else FULL)
    except KeyboardInterrupt:
        Console(stderr=True).print("Stopped; there is no report. The same command begins anew.", soft_wrap=True)
        raise typer.Exit(INTERRUPTED) from None


for _panel, _commands in {  # as the help shows them: first what a new user needs
    "All at once": (demo, init, run),
    "Step by step": (scan, explain, canaries, plan, frontier, train, audit, report),
    "Trust": (verify, sign),
    "Single numbers": (posterior, calibrate),
}.items():
    for _command in _commands:
        app.command(rich_help_panel=_panel)(_command)

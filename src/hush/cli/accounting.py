"""The commands ``hush posterior`` (bound at a given noise) and ``hush calibrate`` (noise for given promises)."""

import time
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

from hush.cli.messages import working
from hush.cli.options import (
    BoundChoice,
    BoundOption,
    CeilingOption,
    ForceOption,
    IncidenceArgument,
    JsonOption,
    PriorOption,
    RoundsOption,
    SecretsOption,
    TopOption,
    flag,
)
from hush.errors import InvalidInput

__all__ = ["calibrate", "posterior"]


RatesOption = Annotated[
    Path | None,
    typer.Option(help='Instead: a rate for each example: JSON list, {"rates": [...]}, or Parquet column rate.'),
]


def posterior(
    noise_multiplier: Annotated[float, typer.Option(help="Standard deviation of the noise divided by the clip norm.")],
    rounds: Annotated[int, typer.Option(help="Training rounds (optimizer steps).")],
    prior: Annotated[
        list[float],
        typer.Option(
            help="Largest probability of any candidate before training, in (0, 1). Can be repeated.",
            metavar="<float>",
        ),
    ],
    rate: Annotated[
        float | None, typer.Option(help="Probability that a round draws a given example, in [0, 1].")
    ] = None,
    examples: Annotated[
        int | None, typer.Option(help="Number of examples with that rate that contain the secret.")
    ] = None,
    rates: RatesOption = None,
    bound: BoundOption = BoundChoice.blowup,
    lower: Annotated[bool, flag("--lower", "Also show what an explicit attack achieves.")] = False,
    json: JsonOption = False,
) -> None:
    """Bound the probability that an adversary names one secret.

    Computes, from how often the examples with the secret are drawn and how much noise is added, the largest probability
    with which anyone who observes the whole training names the secret. The result is a proven upper bound.

    Example: `hush posterior --rate 0.0012 --examples 100 --noise-multiplier 1.9 --rounds 2000 --prior 1e-10`
    """
    from hush.accounting import posterior as compute_posterior
    from hush.cli.inputs import equal_rates, read_rates
    from hush.cli.results.accounting import posterior_record, print_json, show_posterior

    if rates is not None and (rate is not None or examples is not None):
        raise InvalidInput("--rates replaces --rate and --examples; drop --rates, or the other two")
    rate_N = equal_rates(rate, examples) if rates is None else read_rates(rates)
    settings = {"noise_multiplier": noise_multiplier, "rounds": rounds, "prior": prior}
    columns = {name: compute_posterior(rate_N, **settings, bound=name) for name in bound.bounds}
    if lower:
        columns["lower"] = compute_posterior(rate_N, **settings, side="lower")
    record = posterior_record(rate_N, noise_multiplier, rounds, prior, columns)
    print_json(record) if json else show_posterior(record, Console())


def calibrate(
    incidence: IncidenceArgument,
    batch_size: Annotated[
        float | None, typer.Option(help="Expected number of examples per round; every rate is B / n.")
    ] = None,
    rate: Annotated[
        float | None, typer.Option(help="Instead: the probability that a round draws a given example, in [0, 1].")
    ] = None,
    rates: RatesOption = None,
    rounds: RoundsOption = None,
    prior: PriorOption = None,
    ceiling: CeilingOption = None,
    secrets: SecretsOption = None,
    bound: BoundOption = BoundChoice.blowup,
    output: Annotated[
        Path | None,
        typer.Option(help="Write the posterior of every secret to this Parquet file (with --bound all: the tightest)."),
    ] = None,
    force: ForceOption = False,
    top: TopOption = 10,
    json: JsonOption = False,
) -> None:
    """Find the least noise that keeps every promise.

    Finds the smallest noise multiplier (standard deviation of the noise divided by the clip norm) at which the promise
    of every secret holds, and lists the binding secrets: those whose promise would break with 0.5 % less noise. The
    result is proven safe. Exit code 1 means that no amount of noise keeps every promise.

    Example: `hush calibrate found/public/incidence.parquet --prior 1e-10 --ceiling 1e-3 --batch-size 16 --rounds 50`
    """
    from hush.accounting import calibrate as compute_calibration
    from hush.cli.checks import check_output
    from hush.cli.inputs import read_problem, secrets_named_by_id
    from hush.cli.results.accounting import calibration_record, print_json, show_calibration, write_posteriors

    check_output(output, incidence, rates, secrets, force=force)
    with working("Reading the graph"):
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
        with working(f"Calibrating ({name})") as progress, secrets_named_by_id(problem.ids):
            calibrations[name] = compute_calibration(
                problem.incidence, **problem.arguments, bound=name, progress=progress
            )
    record = calibration_record(problem, calibrations, time.perf_counter() - begin)
    if output is not None:
        write_posteriors(output, problem, calibrations[record["bound"]])
    print_json(record) if json else show_calibration(record, Console(), top=top)

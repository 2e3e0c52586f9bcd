"""Commands that answer with one number: a posterior for a noise, or a noise for promises."""

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
    typer.Option(help='Instead: a rate for each example. JSON list, {"rates": [...]}, or Parquet column rate.'),
]


def posterior(
    noise_multiplier: Annotated[float, typer.Option(help="Standard deviation of the noise / clip norm.")],
    rounds: Annotated[int, typer.Option(help="Training rounds (optimizer steps).")],
    prior: Annotated[
        list[float],
        typer.Option(
            help="Most that the adversary gives any candidate beforehand, in (0, 1). Repeat for several.",
            metavar="<float>",
        ),
    ],
    rate: Annotated[
        float | None, typer.Option(help="Probability with which a round draws one example, in [0, 1].")
    ] = None,
    examples: Annotated[int | None, typer.Option(help="How many examples with that rate contain the secret.")] = None,
    rates: RatesOption = None,
    bound: BoundOption = BoundChoice.blowup,
    lower: Annotated[bool, flag("--lower", "Also show what an explicit attack reaches.")] = False,
    json: JsonOption = False,
) -> None:
    """What can an adversary end up with, for one secret?

    From how often the secret's examples are drawn, and how much noise hides them, to the largest probability with
    which anyone who sees the whole training run names the secret. The answer is an upper bound, by proof.

    Example: `hush posterior --rate 0.0012 --examples 100 --noise-multiplier 1.9 --rounds 2000 --prior 1e-10`
    """
    from hush.accounting import posterior as accounted
    from hush.cli.inputs import equal_rates, read_rates
    from hush.cli.results.accounting import posterior_record, print_json, show_posterior

    if rates is not None and (rate is not None or examples is not None):
        raise InvalidInput("--rates is given together with --rate or --examples; pass one or the other")
    rate_N = equal_rates(rate, examples) if rates is None else read_rates(rates)
    settings = {"noise_multiplier": noise_multiplier, "rounds": rounds, "prior": prior}
    columns = {name: accounted(rate_N, **settings, bound=name) for name in bound.bounds}
    if lower:
        columns["lower"] = accounted(rate_N, **settings, side="lower")
    record = posterior_record(rate_N, noise_multiplier, rounds, prior, columns)
    print_json(record) if json else show_posterior(record, Console())


def calibrate(
    incidence: IncidenceArgument,
    batch_size: Annotated[float | None, typer.Option(help="Expected examples per round; every rate is B / n.")] = None,
    rate: Annotated[
        float | None, typer.Option(help="Instead: probability with which a round draws an example, in [0, 1].")
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
    """How much noise keeps every promise?

    Finds the least noise multiplier (standard deviation of the noise / clip norm) under which every secret keeps its
    promise, and names the secrets that bind: those whose promise 0.5 % less noise would break. The answer is safe by
    proof. Exit code 1 means that no noise is.

    Example: `hush calibrate found/public/incidence.parquet --prior 1e-10 --ceiling 1e-3 --batch-size 16 --rounds 50`
    """
    from hush.accounting import calibrate as accounted
    from hush.cli.checks import check_output
    from hush.cli.inputs import named_by_id, read_problem
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
        with working(f"Calibrating ({name})") as progress, named_by_id(problem.ids):
            calibrations[name] = accounted(problem.incidence, **problem.arguments, bound=name, progress=progress)
    record = calibration_record(problem, calibrations, time.perf_counter() - begin)
    if output is not None:
        write_posteriors(output, problem, calibrations[record["bound"]])
    print_json(record) if json else show_calibration(record, Console(), top=top)

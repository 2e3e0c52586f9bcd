"""Output of ``hush posterior`` and ``hush calibrate``: one record per result, printed as JSON or as tables.

Both forms show the same record, so they cannot disagree. The tables round numbers to the safe side.
"""

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import ArrayLike
from rich.console import Console

from hush.accounting import Calibration, posterior
from hush.cli.inputs import Problem
from hush.console import BOUND_NAMES, counted, plain, rounded_down, rounded_up, show_rows, times_less
from hush.protection import promise_arrays
from hush.report.markup import at_least, at_most
from hush.storage import write_table

__all__ = [
    "calibration_record",
    "posterior_record",
    "print_json",
    "show_calibration",
    "show_posterior",
    "write_posteriors",
]


CURVE_PRIORS = (1e-12, 1e-10, 1e-8, 1e-6, 1e-4, 1e-2, 0.5)
INPUT_DIGITS = 6  # significant digits of numbers that the user passed
COLUMN_NAMES = {"kl": "KL", "renyi": "Rényi", "blowup": "blow-up", "lower": "an attack achieves"}

Record = dict[str, Any]


def print_json(record: Record) -> None:
    """Print a record as JSON on standard output, with full precision."""
    Console().out(json.dumps(record, indent=2, ensure_ascii=False, allow_nan=False), highlight=False)


def posterior_record(
    rates: ArrayLike, noise: float, rounds: int, priors: Sequence[float], columns: Mapping[str, ArrayLike]
) -> Record:
    """The posterior for each prior, by bound; ``lower`` is what an explicit attack achieves."""
    rows = [
        {"prior": prior} | {name: float(np.asarray(column)[place]) for name, column in columns.items()}
        for place, prior in enumerate(priors)
    ]
    draws = {"examples": int(np.size(rates)), "expected_draws_per_round": float(np.sum(rates))}
    return {"noise_multiplier": noise, "rounds": rounds, **draws, "posterior": rows}


def show_posterior(record: Record, console: Console) -> None:
    """Print a row for each prior, and a sentence about the first one."""
    rows: list[dict[str, float]] = record["posterior"]
    names = [name for name in rows[0] if name != "prior"]
    console.print(
        f"A secret in {counted(record['examples'], 'example')}, {record['expected_draws_per_round']:.4g} drawn per "
        f"round; noise multiplier {at_most(record['noise_multiplier'], INPUT_DIGITS)}, "
        f"{counted(record['rounds'], 'round')}.",
        highlight=False,
    )
    cells = [
        [
            at_least(row["prior"], INPUT_DIGITS),
            *((rounded_down if name == "lower" else rounded_up)(row[name]) for name in names),
        ]
        for row in rows
    ]
    show_rows(console, ["prior", *(COLUMN_NAMES[name] for name in names)], cells, title="Posterior, at most")
    first = rows[0]
    best = min(first[name] for name in names if name != "lower")
    sentence = (
        f"No adversary who gives each candidate at most {at_least(first['prior'], INPUT_DIGITS)} before training names "
        f"the right one with probability above {rounded_up(best)}."
    )
    if "lower" in first:
        sentence += f" An explicit attack at this noise achieves {rounded_down(first['lower'])}."
    console.print(sentence, highlight=False)


def calibration_record(problem: Problem, calibrations: Mapping[str, Calibration], seconds: float) -> Record:
    """The calibration with the least noise, the noise by bound, and the binding secrets."""
    best = min(calibrations.values(), key=lambda calibration: calibration.noise_multiplier)
    prior_SQ, ceiling_SQ = promise_arrays(problem.prior, problem.ceiling, problem.incidence.num_secrets)
    posterior_SQ = best.posterior.reshape(prior_SQ.shape)
    ratio_SQ = posterior_SQ / ceiling_SQ
    worst_S, ratio_S = ratio_SQ.argmax(axis=1), ratio_SQ.max(axis=1)  # the promised point closest to its ceiling
    ranked = sorted(best.binding.tolist(), key=lambda secret: (-ratio_S[secret], secret))
    binding = [
        {"secret": secret}
        | ({} if problem.ids is None else {"id": problem.ids[secret]})
        | {
            "prior": float(prior_SQ[secret, worst_S[secret]]),
            "ceiling": float(ceiling_SQ[secret, worst_S[secret]]),
            "posterior": float(posterior_SQ[secret, worst_S[secret]]),
        }
        for secret in ranked
    ]
    spread = {"median": float(np.median(ratio_S)), "max": float(ratio_S.max())} if ratio_S.size else None
    return {
        "noise_multiplier": best.noise_multiplier,
        "bound": best.bound,
        "rounds": best.rounds,
        "num_examples": problem.incidence.num_examples,
        "num_secrets": problem.incidence.num_secrets,
        "fingerprint": problem.incidence.fingerprint,
        "noise_by_bound": {name: calibration.noise_multiplier for name, calibration in calibrations.items()},
        "binding": binding,
        "posterior_over_ceiling": spread,
        "curve": _curve(problem, best, ranked[0]) if ranked else None,
        "seconds": seconds,
    }


def show_calibration(record: Record, console: Console, *, top: int) -> None:
    """Print the noise, the noise by bound, the binding secrets, and the posterior from other priors."""
    noise, secrets = record["noise_multiplier"], record["num_secrets"]
    if noise == 0:
        console.print(f"No noise is needed to keep {counted(secrets, 'promise')}.", highlight=False)
    else:
        console.print(f"[bold]Noise multiplier {rounded_up(noise, 5)}[/bold]", highlight=False)
        console.print(
            f"Noise with this standard deviation, in clip norms, on the sum of each round keeps the promises of "
            f"{counted(secrets, 'secret')} over {counted(record['rounds'], 'round')}, by the "
            f"{COLUMN_NAMES[record['bound']]} bound.",
            highlight=False,
        )
    by_bound: dict[str, float] = record["noise_by_bound"]
    if len(by_bound) > 1:
        rows = [[BOUND_NAMES[name], rounded_up(each, 5), times_less(each, noise)] for name, each in by_bound.items()]
        show_rows(console, ["bound", "noise multiplier", "times the least"], rows, title="Noise by bound")
    binding: list[Record] = record["binding"]
    if binding and top > 0:
        rows = [
            [
                _name(row),
                at_least(row["prior"], INPUT_DIGITS),
                *(rounded_up(row[name]) for name in ("posterior", "ceiling")),
            ]
            for row in binding[:top]
        ]
        title = f"Binding secrets: {len(binding)}" + (f", the first {top}" if len(binding) > top else "")
        show_rows(console, ["secret", "prior", "posterior at most", "ceiling"], rows, title=title)
    if record["curve"] is not None:
        _show_curve(record, console)
    if record["posterior_over_ceiling"] is not None:
        median, largest = (rounded_up(record["posterior_over_ceiling"][name], 3) for name in ("median", "max"))
        console.print(f"Posterior / ceiling over all secrets: median {median}, largest {largest}.", highlight=False)
    console.print(f"{record['seconds']:.1f} s", highlight=False, style="dim")


def write_posteriors(path: Path, problem: Problem, calibration: Calibration) -> None:
    """Write one row per secret: id or index, prior, ceiling, posterior (lists if a secret has several promises)."""
    import pyarrow as pa

    prior_SQ, ceiling_SQ = promise_arrays(problem.prior, problem.ceiling, problem.incidence.num_secrets)
    has_lists = calibration.posterior.ndim == 2
    points = {"prior": prior_SQ, "ceiling": ceiling_SQ, "posterior": calibration.posterior.reshape(prior_SQ.shape)}
    if problem.ids is None:
        columns: dict[str, pa.Array] = {"secret": pa.array(np.arange(len(prior_SQ)))}
    else:
        columns = {"id": pa.array(problem.ids, pa.string())}
    for name, values in points.items():
        columns[name] = pa.array(values.tolist(), pa.list_(pa.float64())) if has_lists else pa.array(values[:, 0])
    labels = {
        "noise_multiplier": repr(calibration.noise_multiplier),
        "bound": calibration.bound,
        "rounds": str(calibration.rounds),
        "incidence": problem.incidence.fingerprint,
    }
    write_table(pa.table(columns), path, kind="posteriors", metadata=labels)


def _curve(problem: Problem, calibration: Calibration, secret: int) -> Record:
    """The posterior of a secret from priors other than the promised one."""
    posteriors = posterior(
        problem.rates_of(secret),
        noise_multiplier=calibration.noise_multiplier,
        rounds=calibration.rounds,
        prior=CURVE_PRIORS,
        bound=calibration.bound,
    )
    return {"secret": secret, "prior": list(CURVE_PRIORS), "posterior": np.asarray(posteriors).tolist()}


def _show_curve(record: Record, console: Console) -> None:
    first, curve = record["binding"][0], record["curve"]
    console.print("At this noise the secret ", plain(_name(first)), sep="", end="")
    console.print(" is protected against small priors, but not against large ones:")
    rows = zip((f"{p:g}" for p in curve["prior"]), map(rounded_up, curve["posterior"]), strict=True)
    show_rows(console, ["prior", "posterior at most"], rows)


def _name(row: Record) -> str:
    return str(row.get("id", row["secret"]))

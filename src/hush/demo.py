"""An embedded example, told step by step: a made-up company, the noise table and a picture of both.

Everything is computed on the spot with a fixed seed; nothing is downloaded and nothing is stored in the package.
Legend: N examples, S secrets.
"""

import json
import time
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from rich.console import Console

from hush.accounting import calibrate, posterior
from hush.accounting.inputs import Bound
from hush.console import BOUND_NAMES, rounded_up, show_rows, times_less
from hush.errors import InvalidInput
from hush.incidence import Incidence
from hush.protection import Protection
from hush.report.figures import Curve, noise_figure, save_figure
from hush.secret_table import Secrets
from hush.storage import whole_file

__all__ = ["FULL", "QUICK", "Size", "company", "noise_rows", "run_demo"]

BOUNDS: tuple[Bound, ...] = ("kl", "renyi", "blowup")
PRIOR = 1e-10
ROUNDS = 2000
BATCH_SIZE = 256
PAPER_RATE = 2048 / 1.7e6  # the paper's batch size over its number of examples
TABLE = ((100, 1e-3), (100, 2e-4), (50, 1e-3), (50, 2e-4), (25, 2e-4), (12, 2e-4), (1, 1e-3))
BEYOND = (1e-4, 0.5)  # priors marked in the picture that nothing was promised for
SHOWN_PRIORS = (1e-12, 1e-10, 1e-8, 1e-6, 1e-4, 1e-2, 0.5)


@dataclass(frozen=True, slots=True, kw_only=True)
class Size:
    """How much the demo computes."""

    examples: int
    secrets: int
    table: tuple[tuple[int, float], ...]
    counts: tuple[int, ...]  # examples per secret along the picture's left panel
    points: int  # of the curve in its right panel


FULL = Size(
    examples=20_000,
    secrets=400,
    table=TABLE,
    counts=(1, 2, 3, 4, 5, 6, 8, 10, 12, 15, 20, 25, 32, 40, 50, 63, 80, 100),
    points=61,
)
QUICK = Size(examples=2_000, secrets=20, table=TABLE[-2:], counts=(1, 10, 100), points=9)


def company(size: Size, generator: np.random.Generator) -> tuple[Incidence, Secrets]:
    """Examples of which some hold secrets, in 1 to 100 examples each, and a ceiling for each secret."""
    count_S = np.exp(generator.uniform(0.0, np.log(100.0), size.secrets)).round().astype(np.int64)
    example = np.concatenate([generator.choice(size.examples, count, replace=False) for count in count_S])
    secret = np.repeat(np.arange(size.secrets), count_S)
    ceiling_S = generator.uniform(2e-4, 1e-3, size.secrets).round(6)
    incidence = Incidence.from_pairs(example, secret, num_examples=size.examples, num_secrets=size.secrets)
    return incidence, Secrets([Protection(PRIOR, float(ceiling)) for ceiling in ceiling_S])


def one_secret_noise(count: int, ceiling: float, bound: Bound) -> float:
    """The least noise for one secret in so many examples, at the paper's sampling rate."""
    alone = Incidence.from_pairs(range(count), [0] * count, num_examples=count, num_secrets=1)
    found = calibrate(alone, prior=PRIOR, ceiling=ceiling, rates=PAPER_RATE, rounds=ROUNDS, bound=bound)
    return found.noise_multiplier


def noise_rows(points: Sequence[tuple[int, float]]) -> list[dict[str, float]]:
    """The least noise by each bound for each (examples per secret, ceiling)."""
    rows: list[dict[str, float]] = []
    for count, ceiling in points:
        noise = {bound: one_secret_noise(count, ceiling, bound) for bound in BOUNDS}
        rows.append({"examples_per_secret": count, "ceiling": ceiling, **noise})
    return rows


def run_demo(folder: Path, console: Console, *, size: Size = FULL) -> list[Path]:
    """Run every step, tell about it on the console, and leave pictures, tables and inputs in the folder."""
    begin = time.perf_counter()
    if folder.exists() and not folder.is_dir():
        raise InvalidInput(f"--output={folder} is a file; pass a folder, which is made if it is missing")
    folder.mkdir(parents=True, exist_ok=True)
    record: dict[str, Any] = {"prior": PRIOR, "rounds": ROUNDS, "company": _company_step(folder, console, size)}
    record["paper_rate"] = PAPER_RATE
    record["table"] = _table_step(console, size)
    record["picture"] = _picture_step(folder, console, size)
    with whole_file(folder / "demo.json") as file:
        file.write(json.dumps(record, indent=2, allow_nan=False).encode() + b"\n")
    paths = [folder / name for name in ("noise.png", "noise.svg", "demo.json", "incidence.parquet", "secrets.parquet")]
    console.print("\n[bold]Written[/bold]")
    for path in paths:
        console.print(f"  {path}", highlight=False, markup=False, soft_wrap=True)
    console.print("Ask the same question about the company yourself:")
    command = f"hush calibrate {paths[3]} --secrets {paths[4]} --batch-size {BATCH_SIZE} --rounds {ROUNDS} --bound all"
    console.print(f"  {command}", highlight=False, markup=False, soft_wrap=True)
    console.print(f"{time.perf_counter() - begin:.1f} s", style="dim", highlight=False)
    return paths


def _company_step(folder: Path, console: Console, size: Size) -> dict[str, Any]:
    incidence, secrets = company(size, np.random.default_rng(2048))
    incidence.to_parquet(folder / "incidence.parquet")
    secrets.to_parquet(folder / "secrets.parquet")
    rate = BATCH_SIZE / incidence.num_examples
    count_S = incidence.examples_per_secret
    console.print("[bold]1. A small company[/bold]")
    _say(
        console,
        f"It trains on {incidence.num_examples} examples, for {ROUNDS} rounds of about {BATCH_SIZE}. They hold "
        f"{len(secrets)} secrets, each in {count_S.min()} to {count_S.max()} examples. For each secret it promises: "
        f"whoever gives no candidate more than {PRIOR:g} names the right one with probability at most its ceiling, "
        "somewhere from 2e-4 to 1e-3. How much noise does that take?",
    )
    found = {
        bound: calibrate(
            incidence, prior=secrets.prior, ceiling=secrets.ceiling, rates=rate, rounds=ROUNDS, bound=bound
        )
        for bound in BOUNDS
    }
    noise = {bound: calibration.noise_multiplier for bound, calibration in found.items()}
    rows = [[BOUND_NAMES[bound], rounded_up(each), times_less(each, noise["blowup"])] for bound, each in noise.items()]
    show_rows(console, ["proof by", "noise multiplier", "times the least"], rows)
    tight = found["blowup"]
    binding = tight.binding.tolist()
    first = binding[int(np.argmax(tight.posterior[binding] / tight.ceiling[binding]))]
    _say(
        console,
        f"Binding: {len(binding)} of {len(secrets)} secrets, first {secrets.ids[first]} in {count_S[first]} examples. "
        f"Its posterior is at most {rounded_up(float(tight.posterior[first]))}, its ceiling {tight.ceiling[first]:g}. "
        "The rest is safer than promised. From other priors the same noise allows, for that secret:",
    )
    curve = _curve(np.full(count_S[first], rate), noise["blowup"], SHOWN_PRIORS)
    shown = [[f"{prior:g}", rounded_up(found)] for prior, found in zip(SHOWN_PRIORS, curve, strict=True)]
    show_rows(console, ["prior", "posterior at most"], shown)
    _say(
        console,
        "Naming a secret that is hard to guess stays hard; who had it down to a few candidates may still find out.",
    )
    return {
        "num_examples": incidence.num_examples,
        "num_secrets": len(secrets),
        "batch_size": BATCH_SIZE,
        "noise_multiplier": noise,
        "binding": [secrets.ids[secret] for secret in binding],
        "curve": {"secret": secrets.ids[first], "prior": list(SHOWN_PRIORS), "posterior": curve},
    }


def _table_step(console: Console, size: Size) -> list[dict[str, float]]:
    console.print("\n[bold]2. One secret at the paper's size[/bold]")
    _say(
        console,
        f"Batches of 2048 from 1.7 million examples, {ROUNDS} rounds, prior {PRIOR:g}: the least noise multiplier by "
        "each proof, for a secret in so many examples.",
    )
    rows = noise_rows(size.table)
    cells = [
        [
            f"{row['examples_per_secret']:g}",
            f"{row['ceiling']:g}",
            *(rounded_up(row[bound]) for bound in BOUNDS),
            times_less(row["kl"], row["blowup"]),
        ]
        for row in rows
    ]
    show_rows(console, ["examples", "ceiling", "KL (the paper)", "Rényi", "tight", "KL / tight"], cells)
    return rows


def _picture_step(folder: Path, console: Console, size: Size) -> dict[str, Any]:
    console.print("[bold]3. The picture[/bold]")
    _say(console, "Noise against the number of examples per secret, and what the promise means at that noise.")
    ceiling, most = 1e-3, size.counts[-1]
    rows = noise_rows([(count, ceiling) for count in size.counts])
    noise = {bound: [row[bound] for row in rows] for bound in BOUNDS}
    priors = np.geomspace(1e-12, 0.5, size.points).tolist()
    curve_of = partial(_curve, np.full(most, PAPER_RATE), noise["blowup"][-1])
    posteriors, beyond = curve_of(priors), curve_of(BEYOND)
    curve = Curve(
        priors=priors,
        posteriors=posteriors,
        prior=PRIOR,
        ceiling=ceiling,
        beyond=list(zip(BEYOND, beyond, strict=True)),
    )
    subtitle = (
        f"Sampling probability 2048 / 1.7 million, {ROUNDS} rounds, prior $10^{{-10}}$, ceiling $10^{{-3}}$. "
        f"Right: a secret in {most} examples, noise multiplier {rounded_up(noise['blowup'][-1])}."
    )
    figure = noise_figure(size.counts, noise, curve, subtitle=subtitle)
    for name in ("noise.png", "noise.svg"):
        save_figure(figure, folder / name)
    right = {"examples_per_secret": most, "prior": priors, "posterior": posteriors}
    return {"examples_per_secret": list(size.counts), "ceiling": ceiling, "noise_multiplier": noise, "curve": right}


def _curve(rates: NDArray[np.float64], noise: float, priors: Sequence[float]) -> list[float]:
    found = posterior(rates, noise_multiplier=noise, rounds=ROUNDS, prior=priors)
    return np.asarray(found).tolist()


def _say(console: Console, text: str) -> None:
    console.print(text, highlight=False, markup=False)

"""The noise table and figure: the least noise for one secret at the paper's size, by each proof.

Everything is computed when it runs; nothing is random.
"""

import json
import time
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, final

import numpy as np
from rich.console import Console

from hush.accounting import calibrate, posterior
from hush.accounting.arguments import Bound
from hush.console import rounded_up, show_rows, times_less
from hush.errors import InvalidInput
from hush.incidence import Incidence
from hush.report.figures import Curve, noise_figure, save_figure
from hush.storage import whole_file

__all__ = ["FULL_TABLE", "QUICK_TABLE", "TableSize", "noise_rows", "run_noise_table"]


BOUNDS: tuple[Bound, ...] = ("kl", "renyi", "blowup")
PRIOR = 1e-10
ROUNDS = 2000
PAPER_RATE = 2048 / 1.7e6  # the paper's batch size divided by its number of examples
TABLE = ((100, 1e-3), (100, 2e-4), (50, 1e-3), (50, 2e-4), (25, 2e-4), (12, 2e-4), (1, 1e-3))
UNPROMISED_PRIORS = (1e-4, 0.5)  # marked in the figure; no ceiling was promised for them


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class TableSize:
    """How much is computed. counts: examples per secret in the left panel; points: of the curve in the right panel."""

    table: tuple[tuple[int, float], ...]
    counts: tuple[int, ...]
    points: int


FULL_TABLE = TableSize(
    table=TABLE, counts=(1, 2, 3, 4, 5, 6, 8, 10, 12, 15, 20, 25, 32, 40, 50, 63, 80, 100), points=61
)
QUICK_TABLE = TableSize(table=TABLE[-2:], counts=(1, 10, 100), points=9)


def noise_rows(points: Sequence[tuple[int, float]]) -> list[dict[str, float]]:
    """The least noise by each bound for each (examples per secret, ceiling), at the paper's sampling rate."""
    rows: list[dict[str, float]] = []
    for count, ceiling in points:
        alone = Incidence.from_pairs(range(count), [0] * count, num_examples=count, num_secrets=1)
        promise = {"prior": PRIOR, "ceiling": ceiling, "rates": PAPER_RATE, "rounds": ROUNDS}
        noise = {bound: calibrate(alone, **promise, bound=bound).noise_multiplier for bound in BOUNDS}
        rows.append({"examples_per_secret": count, "ceiling": ceiling, **noise})
    return rows


def run_noise_table(folder: Path, console: Console, *, size: TableSize = FULL_TABLE) -> list[Path]:
    """Print the table; write it and the figure to the folder."""
    begin = time.perf_counter()
    if folder.exists() and not folder.is_dir():
        raise InvalidInput(
            "that is a file; pass a folder, which is created if it is missing", setting="output", value=str(folder)
        )
    folder.mkdir(parents=True, exist_ok=True)
    record = {"prior": PRIOR, "rounds": ROUNDS, "paper_rate": PAPER_RATE, "table": _table(console, size)}
    record["picture"] = _figure(folder, size)
    with whole_file(folder / "noise.json") as file:
        file.write(json.dumps(record, indent=2, allow_nan=False).encode() + b"\n")
    paths = [folder / name for name in ("noise.png", "noise.svg", "noise.json")]
    console.print("Written, as a figure and as numbers:")
    for path in paths:
        console.print(f"  {path}", highlight=False, markup=False, soft_wrap=True)
    console.print(f"{time.perf_counter() - begin:.1f} s", style="dim", highlight=False)
    return paths


def _table(console: Console, size: TableSize) -> list[dict[str, float]]:
    console.print("[bold]One secret at the paper's size[/bold]")
    console.print(
        f"Batches of 2048 from 1.7 million examples, {ROUNDS} rounds, prior {PRIOR:g}: the least noise multiplier by "
        "each proof, for a secret in so many examples.",
        highlight=False,
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


def _figure(folder: Path, size: TableSize) -> dict[str, Any]:
    """Draw noise against the number of examples per secret, and the posterior at that noise against the prior."""
    ceiling, max_count = 1e-3, size.counts[-1]
    rows = noise_rows([(count, ceiling) for count in size.counts])
    noise = {bound: [row[bound] for row in rows] for bound in BOUNDS}
    priors = np.geomspace(1e-12, 0.5, size.points).tolist()
    curve_of = partial(_curve, max_count, noise["blowup"][-1])
    posteriors, unpromised = curve_of(priors), curve_of(UNPROMISED_PRIORS)
    curve = Curve(
        priors=priors,
        posteriors=posteriors,
        prior=PRIOR,
        ceiling=ceiling,
        beyond=list(zip(UNPROMISED_PRIORS, unpromised, strict=True)),
    )
    subtitle = (
        f"Sampling probability 2048 / 1.7 million, {ROUNDS} rounds, prior $10^{{-10}}$, ceiling $10^{{-3}}$. "
        f"Right: a secret in {max_count} examples, noise multiplier {rounded_up(noise['blowup'][-1])}."
    )
    figure = noise_figure(size.counts, noise, curve, subtitle=subtitle)
    for name in ("noise.png", "noise.svg"):
        save_figure(figure, folder / name)
    right = {"examples_per_secret": max_count, "prior": priors, "posterior": posteriors}
    return {"examples_per_secret": list(size.counts), "ceiling": ceiling, "noise_multiplier": noise, "curve": right}


def _curve(count: int, noise: float, priors: Sequence[float]) -> list[float]:
    posteriors = posterior(np.full(count, PAPER_RATE), noise_multiplier=noise, rounds=ROUNDS, prior=priors)
    return np.asarray(posteriors).tolist()

"""The summary as files: CSV for further work, and the table of the documentation in Markdown."""

import csv
import math
from collections.abc import Sequence
from pathlib import Path

from experiments.noise_and_extraction.summary import Row, Summary
from experiments.runs import interval

__all__ = ["markdown", "write_csv"]


def write_csv(rows: Sequence[Row], path: Path) -> None:
    """Rows of equal keys."""
    with path.open("w", newline="") as file:
        writer = csv.DictWriter(file, fieldnames=list(rows[0]) if rows else [])
        writer.writeheader()
        writer.writerows(rows)


def markdown(summary: Summary) -> str:
    """By size and noise: validation loss, then the memorised share by repetitions; what the reference says too beside.

    Cells are means over seeds, at the shown lengths. The last column counts planted sequences of all repetitions that
    came out of the run and of its reference as well.
    """
    fractions = [row for row in summary.fractions() if (row["prompt"], row["continuation"]) == summary.shown]
    times = sorted({row["repetitions"] for row in fractions})
    heads = ["size", "noise", "validation loss", *(f"×{number}" for number in times), "reference too"]
    lines = [f"| {' | '.join(heads)} |", f"|{'---|' * len(heads)}"]
    losses: dict[tuple[str, float], list[float]] = {}
    for row in summary.losses():
        if row["planted"]:
            losses.setdefault((row["size"], row["noise_multiplier"]), []).append(row["validation_loss"])
    for (size, noise), values in losses.items():
        own = [row for row in fractions if (row["size"], row["noise_multiplier"]) == (size, noise)]
        cells = [size, f"{noise:g}", f"{interval(values)[0]:.3f}"]
        for number in times:
            shares = [row["memorised"] / row["sequences"] for row in own if row["repetitions"] == number]
            cells.append(_percent(interval(shares)[0]) if shares else "")
        cells.append(str(sum(row["also_by_reference"] for row in own if row["repetitions"])))
        lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines) + "\n"


def _percent(share: float) -> str:
    """Whole percents, halves rounded up; 0 only where there is nothing."""
    return "under 1 %" if 0 < share < 0.01 else f"{math.floor(100 * share + 0.5)} %"

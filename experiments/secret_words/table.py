"""The table of test losses under the same promise: all data, and the step of each sweep that validation prefers."""

import math
from collections.abc import Mapping, Sequence
from typing import Any

from experiments.runs import interval

__all__ = ["same_promise"]

Row = dict[str, Any]
HEAD = "| arm | noise, divided by 10 | seeds | test loss | 95 % interval |\n|---|---:|---:|---:|---:|"
ALL_DATA = {"paper": "the paper's baseline: KL, all data", "hush": "hush on all data"}
SWEEP = {"paper": "the paper's program", "hush": "hush"}


def same_promise(rows: Sequence[Row], references: Mapping[str, Sequence[float]]) -> str:
    """Markdown. Steps with fewer seeds than the most are not candidates: a study cut short compares like with like."""
    seeds = max((row["seeds"] for row in rows), default=0)
    whole = [row for row in rows if row["seeds"] == seeds and row["loss"] is not None]
    starts = references["before fine-tuning"]
    lines = [HEAD, *([f"| before fine-tuning | | | {sum(starts) / len(starts):.3f} | |"] if starts else [])]
    for method in ("paper", "hush"):
        own = [row for row in whole if row["arm"].startswith(method)]
        lines += [_line(ALL_DATA[method], row) for row in own if row["step"] == 0]
        steps = [row for row in own if row["step"] > 0]
        if steps:
            best = min(steps, key=lambda row: row["validation"])
            lines.append(_line(f"{SWEEP[method]}, step {best['step']}: {100 * best['kept']:.0f} % kept", best))
    free = references["no protection"]
    if free:
        mean, radius = interval(free)
        lines.append(f"| no protection | 0 | {len(free)} | {mean:.3f} | {_radius(radius)} |")
    return "\n".join(lines)


def _line(name: str, row: Row) -> str:
    return (
        f"| {name} | {row['trained_noise']:.3g} | {row['seeds']} | {row['loss']:.3f} | {_radius(row['loss_radius'])} |"
    )


def _radius(radius: float | None) -> str:
    """Rounded up; nothing for a single seed."""
    return "" if radius is None or math.isnan(radius) else f"± {math.ceil(1000 * radius) / 1000:.3f}"

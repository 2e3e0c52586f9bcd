"""The study's figure and tables from its log: the paper's four panels with hush's sweep beside, and tables of losses.

(a) share of examples kept, (b) test loss without noise, (c) noise multiplier, (d) test loss with noise; points are
means over seeds, bars 95 % intervals.
"""

import csv
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

import hush
from experiments.figures import COLOURS, panels, save
from experiments.runs import RunLog, interval
from experiments.secret_words.arms import Arm, alike, planned
from experiments.secret_words.schedule import FREE, NOISELESS, Bench, Job, chosen_rate
from experiments.secret_words.table import same_promise

__all__ = ["summarise"]

Row = dict[str, Any]
COLUMNS: tuple[str, ...] = (
    "arm", "label", "step", "kept", "kept_weight", "noise_multiplier", "trained_noise", "learning_rate", "loss",
    "loss_radius", "loss_clean", "loss_clean_radius", "validation", "seeds",
)  # fmt: skip

SWEEPS = (("paper", "paper, program", "the paper's: KL, c = 2^k"), ("hush", "hush", "hush: tight, accounted"))


def summarise(bench: Bench, output: Path) -> list[Row]:
    """Write summary.json, table.csv, table.md and the figure; returns the rows."""
    log = RunLog(bench.log)
    same = alike(bench.plans)
    rows = [_row(arm, same, log, bench) for arm in planned(bench.plans)]
    free = [outcome["test"] for outcome in _outcomes(log, FREE, FREE, bench=bench)]
    starts = [entry["outcome"]["test"] for entry in log.entries() if entry["key"]["arm"] == "before"]
    references = {"no protection": free, "before fine-tuning": starts}
    rates = {kind: chosen_rate(log, FREE, kind, bench) for kind in NOISELESS}
    output.mkdir(parents=True, exist_ok=True)
    (output / "summary.json").write_text(
        json.dumps({"runs": _where(log), "learning_rates": rates, "references": references, "rows": rows}, indent=2)
        + "\n"
    )
    with (output / "table.csv").open("w", newline="") as file:
        writer = csv.DictWriter(file, COLUMNS)
        writer.writeheader()
        writer.writerows(rows)
    (output / "table.md").write_text(same_promise(rows, references) + "\n")
    _draw(rows, references, output / "panels")
    return rows


def _row(arm: Arm, same: Mapping[tuple[str, bool], str], log: RunLog, bench: Bench) -> Row:
    plan = hush.Plan.load(bench.plans / arm.name)
    noisy = _outcomes(log, same[arm.name, True], arm.label, bench=bench)
    clean = _outcomes(log, same[arm.name, False], "clipped", bench=bench)
    loss, clean_loss = (
        interval([outcome["test"] for outcome in found]) if found else (None, None) for found in (noisy, clean)
    )
    return {
        "arm": arm.name,
        "label": arm.label,
        "step": arm.step,
        "kept": float(np.mean(plan.weights > 1e-6)),
        "kept_weight": float(plan.weights.mean()),
        "noise_multiplier": plan.noise_multiplier,
        "trained_noise": plan.training_noise_multiplier,
        "learning_rate": chosen_rate(log, same[arm.name, True], arm.label, bench),
        "loss": loss[0],
        "loss_radius": _finite(loss[1]),
        "loss_clean": clean_loss[0],
        "loss_clean_radius": _finite(clean_loss[1]),
        "validation": float(np.mean([outcome["validation"] for outcome in noisy])) if noisy else None,
        "seeds": len(noisy),
    }


def _outcomes(log: RunLog, arm: str, kind: str, *, bench: Bench) -> list[Row]:
    """Of the final runs: all rounds, seeds from 0, the rate that its tuning chose."""
    rate = chosen_rate(log, arm, kind, bench)
    if rate is None:
        return []
    jobs = [Job(arm, kind not in NOISELESS, rate, seed, bench.rounds) for seed in range(bench.seeds)]
    return [outcome for job in jobs if (outcome := log.outcome(job.key)) is not None]


def _where(log: RunLog) -> dict[str, list[str]]:
    """When, on what and at which commits the runs were made."""
    found = {name: sorted({entry[name] for entry in log.entries()}) for name in ("hardware", "versions", "commit")}
    return {**found, "date": sorted({entry["date"][:10] for entry in log.entries()})}


def _finite(value: float | None) -> float | None:
    return None if value is None or not np.isfinite(value) else value


def _draw(rows: list[Row], references: Mapping[str, list[float]], path: Path) -> None:
    figure, axes = panels(2, 2)
    titles = {
        (0, 0): ("kept", None, "(a) examples kept", "share of examples with weight above 1e-6"),
        (0, 1): ("loss_clean", "loss_clean_radius", "(b) without noise", "test loss"),
        (1, 0): ("noise_multiplier", None, "(c) noise for the promise", "noise multiplier"),
        (1, 1): ("loss", "loss_radius", "(d) with noise", "test loss"),
    }
    for place, (value, radius, title, name) in titles.items():
        for method, label, text in SWEEPS:
            own = [row for row in rows if row["arm"].startswith(method) and row[value] is not None]
            bars = [(row[radius] or 0.0) if radius else 0.0 for row in own]
            axes[place].errorbar(
                [-row["step"] for row in own], [row[value] for row in own], yerr=bars, fmt="o-", capsize=3,
                color=COLOURS[label], label=text,
            )  # fmt: skip
        if place[1] == 1 and references["no protection"]:
            axes[place].axhline(
                float(np.mean(references["no protection"])), color=COLOURS["no protection"], linestyle="--",
                label="no protection",
            )  # fmt: skip
        axes[place].set(title=title, ylabel=name, xlabel="steps from all data (0) towards less noise")
        axes[place].set_xlim(-max(row["step"] for row in rows) - 0.5, 0.5)
    axes[1, 0].set_yscale("log")
    axes[1, 1].legend()
    axes[1, 0].legend()
    save(figure, path)

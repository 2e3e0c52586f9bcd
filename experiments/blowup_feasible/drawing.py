"""The study's three figures: how the masses fail, what each reading gives and costs, and the noise by each bound."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from matplotlib.axes import Axes

from experiments.blowup_feasible.cases import PRIOR, PeerCase, Scale
from experiments.blowup_feasible.report import Asked, case_rows, noise_rows
from experiments.figures import COLOURS, panels, save
from experiments.runs import RunLog

__all__ = ["draw"]

HUSH, PEER, OTHER, GREY = COLOURS["hush"], COLOURS["paper, all data"], COLOURS["paper, program"], "#888888"
SIDES = (("with", PEER), ("without", OTHER))
SMALLEST = 1e-16  # errors of a mass are drawn from here: below is one rounding


def draw(log: RunLog, asked: Sequence[Asked], scale: Scale, folder: Path, *, anatomy: PeerCase) -> None:
    """Write every figure for whose panels there are runs."""
    rows, noise = case_rows(log, asked), noise_rows(log, scale)
    scan = sorted((row for row in rows if row["noise_from"] == "scan"), key=lambda row: row["noise_multiplier"])
    kept = [row for row in rows if row["noise_from"] == "blowup" and row["ceiling"] == 1e-3 and row["prior"] == PRIOR]
    dissected = log.outcome({**anatomy.key(), "part": "anatomy"})
    if scan and kept and dissected is not None:
        _draw_masses(rows, scan, kept, dissected, folder / "masses")
    if any(row["interval"] == scale.finest for row in kept):
        _draw_readings(kept, scale, folder / "readings")
    if {row["panel"] for row in noise} == {"examples", "prior", "ceiling"}:
        _draw_noise(noise, folder / "noise")


def _draw_masses(
    rows: list[dict[str, Any]],
    scan: list[dict[str, Any]],
    kept: list[dict[str, Any]],
    anatomy: dict[str, Any],
    path: Path,
) -> None:
    figure, axes = panels(2, 2)
    _draw_scan(axes[0, 0], scan)
    _draw_tail(axes[0, 1], anatomy)
    _draw_amplification(axes[1, 0], [row for row in rows if row["table"] == "connect the dots"])
    _draw_intervals(axes[1, 1], [row for row in kept if row["table"] == "connect the dots" and row["examples"] == 100])
    save(figure, path)


def _draw_scan(axes: Axes, scan: list[dict[str, Any]]) -> None:
    for examples, style in ((1, ":"), (100, "-")):
        chosen = [row for row in scan if row["examples"] == examples]
        sigma = [row["noise_multiplier"] for row in chosen]
        name = "1 example" if examples == 1 else f"{examples} examples"
        for side, colour in SIDES:
            error = [_error(row[f"peer_mass_{side}"]) for row in chosen]
            axes.plot(sigma, error, style, marker=".", color=colour, label=f"dp_accounting, {side}, {name}")
        ours = [max(_error(row["hush_mass_with"]), _error(row["hush_mass_without"])) for row in chosen]
        axes.plot(sigma, ours, style, marker=".", color=HUSH, label=f"hush, {name}")
    axes.axhline(2e4, color=GREY, linewidth=0.8)
    axes.text(max(row["noise_multiplier"] for row in scan), 6e4, "the paper's instance", ha="right", color=GREY)
    axes.set(xscale="log", yscale="log", ylim=(1e-14, 1e40), xlabel="noise multiplier", ylabel="|mass − 1|")
    axes.set_title("Where the mass stops being 1")
    axes.legend(fontsize="x-small")


def _draw_tail(axes: Axes, anatomy: dict[str, Any]) -> None:
    loss = anatomy["loss"]
    axes.plot(loss, [max(y, 1e-40) for y in anatomy["as_composed"]], color=PEER, label="as composed")
    axes.plot(loss, [max(y, 1e-40) for y in anatomy["by_tilting"]], color=HUSH, label="same table, tilted first")
    axes.plot(loss, np.exp(loss), "--", color=GREY, label="$e^{v}$: above it, more than 1 is added")
    axes.set(yscale="log", ylim=(1e-36, 1), xlabel="loss $v$", ylabel="probability per unit of loss")
    axes.set_title("Why: round-off in the left tail")
    axes.legend(fontsize="x-small", loc="lower right")


def _draw_amplification(axes: Axes, rows: list[dict[str, Any]]) -> None:
    for side, colour in SIDES:
        depth = [-row[f"peer_smallest_loss_{side}"] for row in rows]
        axes.plot(depth, [_error(row[f"peer_mass_{side}"]) for row in rows], ".", color=colour, label=side)
    line = np.array([0.0, 130.0])
    axes.plot(line, 1e-17 * np.exp(line), "--", color=GREY, label="$10^{-17} e^{-v}$")
    axes.set(yscale="log", xlim=(0, 130), ylim=(1e-14, 1e40), xlabel="−(smallest loss kept)", ylabel="|mass − 1|")
    axes.set_title("How far: one rounding, amplified (all cases)")
    axes.legend(fontsize="x-small")


def _draw_intervals(axes: Axes, rows: list[dict[str, Any]]) -> None:
    rows = sorted(rows, key=lambda row: row["interval"])
    interval = [row["interval"] for row in rows]
    for side, colour in SIDES:
        exact = [max(abs(10 ** row[f"peer_log10_exact_mass_{side}"] - 1), SMALLEST) for row in rows]
        error = [_error(row[f"peer_mass_{side}"]) for row in rows]
        axes.plot(interval, error, "o-", color=colour, label=f"{side}, as composed")
        axes.plot(interval, exact, "x:", color=colour, label=f"{side}, its table composed exactly")
    axes.set(xscale="log", yscale="log", xlabel="interval of the lattice", ylabel="|mass − 1|")
    axes.set_title("Finer is not better (100 examples)")
    axes.legend(fontsize="x-small")


def _draw_readings(kept: list[dict[str, Any]], scale: Scale, path: Path) -> None:
    figure, axes = panels(1, 2)
    reading, cost = axes[0]
    finest, buckets = scale.finest, scale.bucket_interval
    fine = [row for row in kept if row["table"] == "connect the dots" and row["interval"] == finest]
    rough = [row for row in kept if row["table"] == "privacy buckets"]
    width = max(row["hush_relative_width"] for row in fine)
    for chosen, column, marker, colour, label in (
        (
            fine,
            "peer_posterior_curve_without",
            "s",
            OTHER,
            f"partial sums, law without it, {finest:g} (1: no probability)",
        ),
        (fine, "peer_posterior_thresholds", "o", PEER, f"thresholds, law with it, {finest:g}"),
        (rough, "peer_posterior_thresholds", "v", COLOURS["uniform"], f"the same, privacy buckets, {buckets:g}"),
        (fine, "simulated", "+", GREY, "simulated runs"),
        (fine, "hush_upper", "_", HUSH, f"hush, upper (lower: within {width:.1%})"),
    ):
        known = [(row["examples"], row[column]) for row in chosen if row[column] is not None]
        found = [(examples, value if 0 < value < 1 else 1.0) for examples, value in known]
        if found:
            reading.plot(*zip(*found, strict=True), marker, color=colour, label=label)
    reading.axhline(1e-3, color=GREY, linewidth=0.8)
    reading.set(xscale="log", yscale="log", xlabel="examples that hold the secret", ylabel="posterior at prior 1e-10")
    reading.set_title("Readings at the noise that keeps 1e-3")
    reading.legend(fontsize="x-small")
    for interval, marker in zip((*scale.intervals, scale.finest), ("v", "s", "o"), strict=False):
        times = [
            (row["examples"], row["peer_cpu_seconds"])
            for row in kept
            if row["interval"] == interval and row["table"] == "connect the dots"
        ]
        if times:
            cost.plot(
                *zip(*times, strict=True), marker + "-", color=PEER, label=f"dp_accounting, interval {interval:g}"
            )
    times = [(row["examples"], row["hush_cpu_seconds"]) for row in fine]
    if times:
        cost.plot(*zip(*times, strict=True), "o-", color=HUSH, label="hush")
    cost.set(xscale="log", yscale="log", xlabel="examples that hold the secret", ylabel="processor seconds")
    cost.set_ylim(bottom=5e-4)  # room for the legend
    cost.set_title("Cost of one posterior")
    cost.legend(fontsize="x-small", loc="lower left", ncols=2)
    save(figure, path)


def _draw_noise(rows: list[dict[str, Any]], path: Path) -> None:
    figure, axes = panels(2, 3, height=3.2)
    names = {"kl": ("KL (the paper's)", PEER), "renyi": ("best Rényi order", OTHER), "blowup": ("blow-up", HUSH)}
    for column, (panel, label, title) in enumerate(
        (
            ("examples", "examples that hold the secret", "Prior 1e-10, ceiling 1e-3"),
            ("prior", "prior", "100 examples, ceiling 1e-3"),
            ("ceiling", "ceiling", "100 examples, prior 1e-10"),
        )
    ):
        chosen = sorted((row for row in rows if row["panel"] == panel), key=lambda row: row[panel])
        x = [row[panel] for row in chosen]
        top, bottom = axes[0, column], axes[1, column]
        for bound, (name, colour) in names.items():
            top.plot(x, [row[bound] for row in chosen], "o-", color=colour, label=name)
            if bound != "blowup":
                bottom.plot(x, [row[f"{bound}_over_blowup"] for row in chosen], "o-", color=colour, label=name)
        top.set(xscale="log", yscale="log", ylabel="noise multiplier")
        bottom.set(xscale="log", yscale="log", xlabel=label, ylabel="noise over blow-up's")
        top.set_title(title)
        top.legend(fontsize="x-small")
    save(figure, path)


def _error(mass: float | None) -> float:
    return 1e300 if mass is None else max(abs(mass - 1), SMALLEST)

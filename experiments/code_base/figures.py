"""The study's tables and its figure, from the log of its runs alone: noise, quality and leakage of each arm."""

import math
from pathlib import Path
from typing import Any

from experiments.code_base.arms import HARDLY_ANY
from experiments.code_base.tables import Row, base_of, rows_of, tables, total
from experiments.runs import RunLog, interval

__all__ = ["draw"]

GREY = "#999999"
SMALL = 8  # points, of notes inside a panel
LOSSES = (("loss_free", "o", -0.14, "code without secrets"), ("loss_projects", "s", 0.14, "secret projects' code"))


def draw(output: Path, images: Path) -> None:
    """Write table.md beside the log and code-base.svg into the folder of images, from whatever runs there are."""
    log = RunLog(output / "runs.jsonl")
    rows, base = rows_of(log), base_of(log)
    if not rows or base is None:
        print(f"{output} holds no finished run of an arm yet")
        return
    (output / "table.md").write_text(tables(base, rows) + "\n")
    _figure(base["outcome"], rows, images / "code-base")


def _figure(base: Row, rows: list[Row], path: Path) -> None:
    """The base model is the line at 0, whose values dotted lines carry down; arms follow from 1 on."""
    from experiments.figures import panels, save

    figure, axes = panels(1, 3, width=4.4, height=1.2 + 0.32 * len(rows))
    noise, loss, canaries = axes[0]
    _draw_noise(noise, base, rows)
    _draw_losses(loss, base, rows)
    _draw_canaries(canaries, base, rows)
    names = ["base model", *(row["arm"].title.replace("a tenth of the noise", "noise / 10") for row in rows)]
    simulated = [number for number, row in enumerate(rows, 1) if row["arm"].noise_scale != 1]
    for axis in axes[0]:
        axis.set_yticks(range(len(names)), names)
        axis.set_ylim(len(names) - 0.5, -0.5)
        axis.tick_params(axis="y", length=0, labelleft=axis is noise)
        axis.grid(visible=False, axis="y")
        if simulated:
            axis.axhspan(simulated[0] - 0.5, len(names) - 0.5, color=GREY, alpha=0.15, linewidth=0)
    if simulated:
        _note(noise, 0.98, float(sum(simulated)) / len(simulated), "simulations:\nnot certified", ha="right")
    save(figure, path)


def _draw_noise(axis: Any, base: Row, rows: list[Row]) -> None:
    _note(axis, 0.03, 0, "not trained")
    for number, row in enumerate(rows, 1):
        ratio = row["outcomes"][0]["noise_multiplier"] / base["batch_size"]
        if ratio and row["arm"].noise_scale != HARDLY_ANY:
            axis.plot(ratio, number, "o", **_look(row))
        else:
            _note(axis, 0.03, number, "no noise")
    axis.set(xscale="log", xlabel="noise multiplier / batch size")
    axis.set_title("Noise in a mean gradient")


def _draw_losses(axis: Any, base: Row, rows: list[Row]) -> None:
    for name, marker, shift, label in LOSSES:
        axis.plot(base[name], shift, marker, color=GREY, markersize=6, label=label)
        axis.axvline(base[name], color=GREY, linestyle=":", linewidth=1)
        for number, row in enumerate(rows, 1):
            mean, radius = interval([one[name] for one in row["outcomes"]])
            axis.errorbar(mean, number + shift, xerr=_finite(radius), marker=marker, **_look(row))
    axis.set(xlabel="loss per token on held-out files")
    axis.set_title("Loss: lower is better")
    axis.legend(fontsize=SMALL, loc="center left")


def _draw_canaries(axis: Any, base: Row, rows: list[Row]) -> None:
    axis.plot(base["exposure"], 0, "o", color=GREY, markersize=6)
    axis.axvline(base["exposure"], color=GREY, linestyle=":", linewidth=1)
    most = max(one["exposure"] for row in rows for one in row["outcomes"])
    for number, row in enumerate(rows, 1):
        mean, radius = interval([one["exposure"] for one in row["outcomes"]])
        axis.errorbar(mean, number, xerr=_finite(radius), marker="o", **_look(row))
        side = -1 if mean > most / 2 else 1  # of the point, where there is room
        axis.annotate(
            f"{total(row['outcomes'], 'named')} named",
            (mean + side * _finite(radius), number),
            xytext=(8 * side, 0),
            textcoords="offset points",
            ha="right" if side < 0 else "left",
            va="center",
            fontsize=SMALL,
        )
    axis.set(xlabel="exposure of the canaries, bits", xlim=(0, None))
    axis.set_title("Leakage: lower is better")


def _note(axis: Any, right: float, row: float, text: str, *, ha: str = "left") -> None:
    """right: from 0 to 1, across the panel."""
    axis.text(right, row, text, transform=axis.get_yaxis_transform(), ha=ha, va="center", fontsize=SMALL)


def _look(row: Row) -> dict[str, Any]:
    """Colour by method; hollow where the noise is too little to certify anything."""
    from experiments.figures import COLOURS

    colour = COLOURS[row["arm"].name]
    inside = colour if row["arm"].noise_scale == 1 else "white"
    return {"color": colour, "markerfacecolor": inside, "markersize": 6, "linestyle": "none"}


def _finite(radius: float) -> float:
    """No bar where there is one seed only."""
    return 0.0 if math.isnan(radius) else radius

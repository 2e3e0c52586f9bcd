"""The study's figures: loss against noise, memorised fraction against noise, and both lengths swept."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from matplotlib.figure import Figure

from experiments.figures import panels, save
from experiments.noise_and_extraction.summary import Row, Summary
from experiments.runs import interval

__all__ = ["draw"]

SIZES = ("#56b4e9", "#0072b2", "#d55e00", "#009e73")
TIMES = ("#bbbbbb", "#56b4e9", "#009e73", "#e69f00", "#d55e00", "#cc79a7")
LIMITS = (-0.05, 1.05)  # of fractions


def draw(summary: Summary, images: Path) -> None:
    """extraction_loss.svg, extraction_memorised.svg and extraction_lengths.svg."""
    settings = summary.about["settings"]
    sizes = [size["name"] for size in settings["sizes"]]
    noises = sorted(settings["noise_multipliers"])
    _loss(summary, images, sizes, noises)
    _memorised(summary, images, sizes, noises)
    _lengths(summary, images, sizes, noises)


def _loss(summary: Summary, images: Path, sizes: Sequence[str], noises: Sequence[float]) -> None:
    figure, axes = panels(1, 1, width=6)
    rows = [row for row in summary.losses() if row["planted"]]
    for size, colour in zip(sizes, SIZES, strict=False):
        own = [row for row in rows if row["size"] == size]
        points = [[row["validation_loss"] for row in own if row["noise_multiplier"] == noise] for noise in noises]
        _line(axes[0, 0], points, colour, f"{size} parameters")
    _noise_axis(axes[0, 0], noises)
    axes[0, 0].set(ylabel="validation loss (nats a token)", title="Loss against noise")
    axes[0, 0].legend()
    save(figure, images / "extraction_loss.svg")


def _memorised(summary: Summary, images: Path, sizes: Sequence[str], noises: Sequence[float]) -> None:
    prompt, continuation = summary.shown
    rows = [row for row in summary.fractions() if (row["prompt"], row["continuation"]) == (prompt, continuation)]
    widths = _widths(sorted({row["repetitions"] for row in rows}))
    figure, axes = panels(1, len(sizes), width=4.2)
    for place, size in enumerate(sizes):
        own = [row for row in rows if row["size"] == size]
        for times, colour in zip(widths, TIMES, strict=False):
            some = [row for row in own if row["repetitions"] == times]
            _line(axes[0, place], _shares(some, noises, "memorised"), colour, _often(times), width=widths[times])
        _noise_axis(axes[0, place], noises)
        axes[0, place].set(ylim=LIMITS, title=f"{size} parameters")
    axes[0, 0].set(ylabel=f"memorised fraction\n({prompt} tokens of prompt, {continuation} said)")
    _legend(figure, axes[0, 0])
    save(figure, images / "extraction_memorised.svg")


def _lengths(summary: Summary, images: Path, sizes: Sequence[str], noises: Sequence[float]) -> None:
    """The most repeated sequences: rows of panels by size, columns by prompt, lines by continuation."""
    settings, rows = summary.about["settings"], summary.fractions()
    prompts, widths = settings["prompts"], _widths(sorted(settings["continuations"]))
    shortest, most = min(widths), max(settings["repeated"])[0]
    figure, axes = panels(len(sizes), len(prompts), width=4.2, height=3)
    for down, size in enumerate(sizes):
        for across, prompt in enumerate(prompts):
            panel = axes[down, across]
            own = [row for row in rows if (row["size"], row["prompt"], row["repetitions"]) == (size, prompt, most)]
            for continuation, colour in zip(widths, SIZES, strict=False):
                some = [row for row in own if row["continuation"] == continuation]
                shares = _shares(some, noises, "memorised")
                _line(panel, shares, colour, f"{continuation} tokens said", width=widths[continuation])
            # A model that says a longer continuation says the shortest: the lines of the others are not above this one.
            shares = _shares([row for row in own if row["continuation"] == shortest], noises, "also_by_reference")
            _line(panel, shares, "black", f"{shortest} tokens, reference too", style=":", width=1)
            _noise_axis(panel, noises)
            panel.set(ylim=LIMITS, title=f"{size} parameters, prompt of {prompt}")
            panel.label_outer()
        axes[down, 0].set(ylabel=f"memorised fraction\n(planted {most} times)")
    _legend(figure, axes[0, 0])
    save(figure, images / "extraction_lengths.svg")


def _often(times: int) -> str:
    return {0: "never planted", 1: "planted once"}.get(times, f"planted {times} times")


def _widths(values: Sequence[int]) -> dict[int, float]:
    """Later lines are drawn over earlier ones, and thinner, so that those of equal height are all seen."""
    return {value: 1.2 + 0.8 * later for value, later in zip(values, reversed(range(len(values))), strict=True)}


def _legend(figure: Figure, panel: Any) -> None:
    """One for all panels, under them, where it hides no line."""
    handles, labels = panel.get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside lower center", ncols=max(1, len(labels)))


def _shares(rows: Sequence[Row], noises: Sequence[float], column: str) -> list[list[float]]:
    """By noise multiplier, the share of the sequences for each seed."""
    return [[row[column] / row["sequences"] for row in rows if row["noise_multiplier"] == noise] for noise in noises]


def _line(
    axes: Any, points: Sequence[Sequence[float]], colour: str, label: str, *, style: str = "-", width: float = 1.5
) -> None:
    """Means with 95 % intervals where there are several seeds; noise multipliers without a run are left out."""
    known = [place for place, values in enumerate(points) if values]
    means = [interval(points[place]) for place in known]
    height, radius = [mean for mean, _ in means], [radius for _, radius in means]
    bars = radius if any(len(values) > 1 for values in points) else None
    look = {"color": colour, "linestyle": style, "linewidth": width, "marker": "o", "markersize": 3 + 1.5 * width}
    axes.errorbar(known, height, yerr=bars, label=label, **look)


def _noise_axis(axes: Any, noises: Sequence[float]) -> None:
    """Evenly spaced, since 0 has no place on a logarithmic axis."""
    axes.set_xticks(range(len(noises)), [f"{noise:g}" for noise in noises])
    axes.set_xlabel("noise multiplier")

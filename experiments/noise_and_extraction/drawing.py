"""The study's figures: loss against noise, memorised fraction against noise, and both lengths swept."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from experiments.figures import panels, save
from experiments.noise_and_extraction.summary import Row, Summary
from experiments.runs import interval

__all__ = ["draw"]

SIZES = ("#56b4e9", "#0072b2", "#d55e00", "#009e73")
TIMES = ("#bbbbbb", "#56b4e9", "#009e73", "#e69f00", "#d55e00", "#cc79a7")


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
    figure, axes = panels(1, len(sizes), width=4.2)
    for place, size in enumerate(sizes):
        own = [row for row in rows if row["size"] == size]
        for times, colour in zip(sorted({row["repetitions"] for row in own}), TIMES, strict=False):
            some = [row for row in own if row["repetitions"] == times]
            label = f"repeated {times} times" if times else "never seen"
            _line(axes[0, place], _shares(some, noises, "memorised"), colour, label)
        _noise_axis(axes[0, place], noises)
        axes[0, place].set(ylim=(-0.03, 1.03), title=f"{size} parameters")
    axes[0, 0].set(ylabel=f"memorised fraction\n({prompt} tokens of prompt, {continuation} said)")
    axes[0, -1].legend()
    save(figure, images / "extraction_memorised.svg")


def _lengths(summary: Summary, images: Path, sizes: Sequence[str], noises: Sequence[float]) -> None:
    """The most repeated sequences: panels by prompt, lines by continuation, the largest model that is done."""
    settings, rows = summary.about["settings"], summary.fractions()
    done = [size for size in sizes if any(row["size"] == size for row in rows)]
    if not done:
        return
    most = max(row["repetitions"] for row in rows)
    own = [row for row in rows if (row["size"], row["repetitions"]) == (done[-1], most)]
    figure, axes = panels(1, len(settings["prompts"]), width=4.2)
    for place, prompt in enumerate(settings["prompts"]):
        for continuation, colour in zip(settings["continuations"], SIZES, strict=False):
            some = [row for row in own if (row["prompt"], row["continuation"]) == (prompt, continuation)]
            _line(axes[0, place], _shares(some, noises, "memorised"), colour, f"{continuation} tokens said")
            _line(axes[0, place], _shares(some, noises, "also_by_reference"), colour, None, style=":")
        _noise_axis(axes[0, place], noises)
        axes[0, place].set(ylim=(-0.03, 1.03), title=f"Prompt of {prompt} tokens")
    axes[0, 0].set(ylabel=f"memorised fraction\n({done[-1]} parameters, repeated {most} times)")
    axes[0, -1].legend()
    save(figure, images / "extraction_lengths.svg")


def _shares(rows: Sequence[Row], noises: Sequence[float], column: str) -> list[list[float]]:
    """By noise multiplier, the share of the sequences for each seed."""
    return [[row[column] / row["sequences"] for row in rows if row["noise_multiplier"] == noise] for noise in noises]


def _line(axes: Any, points: Sequence[Sequence[float]], colour: str, label: str | None, *, style: str = "-") -> None:
    """Means with 95 % intervals where there are several seeds; noise multipliers without a run are left out."""
    known = [place for place, values in enumerate(points) if values]
    means = [interval(points[place]) for place in known]
    bars = [radius if radius == radius else 0.0 for _, radius in means]
    axes.errorbar(known, [mean for mean, _ in means], yerr=bars, color=colour, label=label, marker="o", linestyle=style)


def _noise_axis(axes: Any, noises: Sequence[float]) -> None:
    """Evenly spaced, since 0 has no place on a logarithmic axis."""
    axes.set_xticks(range(len(noises)), [f"{noise:g}" for noise in noises])
    axes.set_xlabel("noise multiplier")

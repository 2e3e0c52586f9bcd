"""Static figures by matplotlib: noise by bound with a posterior curve, and the frontier of kept data against noise.

Drawing only: the numbers are computed elsewhere. matplotlib is imported when a figure is drawn. Colours are those of
Okabe and Ito, which colour-blind readers can distinguish; line styles repeat what the colours say.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from io import BytesIO
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from hush.console import counted, rounded_down, rounded_up
from hush.errors import InvalidInput
from hush.storage import whole_file
from hush.weights import Frontier
from hush.weights.frontier import KEEP

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

__all__ = ["FORMS", "Curve", "frontier_figure", "frontier_name", "noise_figure", "save_figure"]


FORMS = ("png", "svg", "html")
HTML_PAGE = """<!doctype html>
<html lang="en">
<head><meta charset="utf-8"><title>hush</title>
<style>body { margin: 2em auto; max-width: 60em; } svg { width: 100%; height: auto; }</style></head>
<body>
SVG
</body>
</html>
"""
INK, MUTED, GRID = "#222222", "#6b6b6b", "#e4e4e4"
BOUND_STYLES: Mapping[str, tuple[str, str, str]] = {  # label, colour, line style
    "kl": ("KL (the paper)", "#D55E00", "-"),
    "renyi": ("Rényi", "#0072B2", "--"),
    "blowup": ("tight (hush)", "#009E73", "-"),
}
STYLE: Any = {  # matplotlib types the names of its settings
    "font.family": "sans-serif",
    "font.sans-serif": ["DejaVu Sans"],  # ships with matplotlib, so figures look the same everywhere
    "font.size": 10.5,
    "axes.edgecolor": "#9a9a9a",
    "axes.labelcolor": INK,
    "axes.titlelocation": "left",
    "axes.titlesize": 12.5,
    "axes.titleweight": "bold",
    "axes.titlepad": 12,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.grid": True,
    "axes.axisbelow": True,
    "grid.color": GRID,
    "grid.linewidth": 0.8,
    "xtick.color": MUTED,
    "ytick.color": MUTED,
    "text.color": INK,
    "svg.hashsalt": "hush",  # the same bytes on every run
}
BOUNDS: Mapping[str, str] = {"blowup": "tight bound", "renyi": "Rényi bound", "kl": "KL bound"}
CAPACITIES: Mapping[str, str] = {
    "accounted": "accounted capacities",
    "paper": "the paper's capacities",
    "none": "all data",
}
FRONTIER_STYLES: Mapping[tuple[str, str], tuple[str, str, str]] = {  # colour, line style, marker
    ("accounted", "blowup"): ("#009E73", "-", "o"),
    ("paper", "blowup"): ("#0072B2", "--", "s"),
    ("paper", "kl"): ("#D55E00", "-.", "^"),
}
OTHER_FRONTIER_STYLE = ("#555555", ":", "D")
SERIES_COLOURS = ("#009E73", "#0072B2", "#D55E00", "#CC79A7", "#E69F00", "#56B4E9")
ELBOW = "elbow, beyond which a larger batch buys nothing:"
AXIS_MARGIN = 1.12  # factor left free at both ends of a logarithmic noise axis


@dataclass(frozen=True, slots=True, kw_only=True)
class Curve:
    """Posterior against prior at one noise, the promised point, and further points to annotate."""

    priors: Sequence[float]
    posteriors: Sequence[float]
    prior: float
    ceiling: float
    beyond: Sequence[tuple[float, float]]


def noise_figure(
    examples: Sequence[int], noise_by_bound: Mapping[str, Sequence[float]], curve: Curve, *, subtitle: str
) -> "Figure":
    """Left: noise against the number of examples per secret, by bound. Right: the posterior at that noise."""
    import matplotlib as mpl
    from matplotlib.figure import Figure

    with mpl.rc_context(STYLE):
        figure = Figure(figsize=(11.5, 4.9), layout="constrained")
        figure.get_layout_engine().set(w_pad=0.12, h_pad=0.08, wspace=0.06)  # pyright: ignore[reportOptionalMemberAccess, reportCallIssue]
        left, right = figure.subplots(1, 2)
        _draw_noise(left, examples, noise_by_bound)
        _draw_curve(right, curve)
        figure.supxlabel(subtitle, fontsize=9, color=MUTED)
    return figure


def save_figure(figure: "Figure", path: Path) -> None:
    """Write a PNG, an SVG or an HTML page with the SVG in it, by the path's suffix.

    The file appears complete or not at all, contains no date, and loads nothing from a server.
    """
    import matplotlib as mpl

    form = path.suffix.removeprefix(".").lower()
    if form not in FORMS:
        raise InvalidInput(f"{path} ends in {path.suffix!r}; pass a file name that ends in {', '.join(FORMS)}")
    buffer = BytesIO()
    with mpl.rc_context(STYLE):
        kind = "svg" if form == "html" else form
        figure.savefig(buffer, format=kind, dpi=200, metadata={"Date": None} if kind == "svg" else None)
    content = buffer.getvalue()
    if form == "html":
        svg = content.decode()
        content = HTML_PAGE.replace("SVG", svg[svg.index("<svg") :]).encode()
    with whole_file(path) as file:
        file.write(content)


def _draw_noise(axes: "Axes", examples: Sequence[int], noise_by_bound: Mapping[str, Sequence[float]]) -> None:
    middle = len(examples) // 2
    label_offset = {
        "kl": (-8, 8, "right", "bottom"),
        "renyi": (-4, 9, "right", "bottom"),
        "blowup": (6, -9, "left", "top"),
    }
    for bound, noise in noise_by_bound.items():
        label, colour, style = BOUND_STYLES[bound]
        axes.plot(examples, noise, color=colour, linestyle=style, linewidth=2.2, marker="o", markersize=3.5)
        right, up, horizontal, vertical = label_offset[bound]
        axes.annotate(
            label, (examples[middle], noise[middle]), (right, up), textcoords="offset points",
            color=colour, weight="bold", ha=horizontal, va=vertical,
        )  # fmt: skip
    axes.set(xscale="log", yscale="log", xlabel="examples that contain the secret", ylabel="noise multiplier")
    axes.set_title("The same promise with far less noise")
    _plain_ticks(axes.xaxis, (1, 2, 5, 10, 20, 50, 100))
    _plain_ticks(axes.yaxis, (0.2, 0.5, 1, 2, 5, 10, 20, 50))
    most, least = float(noise_by_bound["kl"][-1]), float(noise_by_bound["blowup"][-1])
    arrow = {"arrowstyle": "<->", "color": MUTED, "linewidth": 1.2, "shrinkA": 7, "shrinkB": 7}
    axes.annotate("", (examples[-1], least), (examples[-1], most), arrowprops=arrow)
    saved = f"{most / least:.0f}×\nless noise"
    axes.text(examples[-1] * 0.9, (most * least) ** 0.5, saved, ha="right", va="center", linespacing=1.3)


def _draw_curve(axes: "Axes", curve: Curve) -> None:
    colour = BOUND_STYLES["blowup"][1]
    axes.set(xscale="log", yscale="log", xlabel="prior", ylabel="posterior, at most")
    axes.set_title("What the promise means: from prior to posterior")
    axes.set_xlim(curve.priors[0], 1)
    axes.set_ylim(curve.priors[0], 4)
    axes.fill_between(curve.priors, curve.priors, curve.posteriors, color=colour, alpha=0.07, linewidth=0)
    axes.plot(curve.priors, curve.priors, color=MUTED, linestyle=":", linewidth=1.6)
    axes.plot(curve.priors, curve.posteriors, color=colour, linewidth=2.4)
    axes.plot([curve.prior, curve.prior], [curve.prior, curve.ceiling], color=MUTED, linewidth=1.1, linestyle="--")
    edge = {"markeredgecolor": "white", "markeredgewidth": 1.5}
    axes.plot(curve.prior, curve.ceiling, "o", color=colour, markersize=11, **edge)
    promise = f"promised: {_power(curve.prior)} → {_power(curve.ceiling)}"
    axes.annotate(promise, (curve.prior, curve.ceiling), (10, -5), textcoords="offset points", weight="bold", va="top")
    for prior, posterior in curve.beyond:
        axes.plot(prior, posterior, "o", color=colour, markersize=7, **edge)
        label = f"{_power(prior)} → {rounded_up(posterior, 2 if posterior < 0.9 else 4)}"
        left = prior > 0.1
        axes.annotate(
            label, (prior, posterior), (0, 8) if left else (4, -9), textcoords="offset points",
            color=MUTED, fontsize=9.5, ha="right" if left else "left", va="bottom" if left else "top",
        )  # fmt: skip
    axes.text(2e-6, 2e-7, "posterior = prior:\nnothing learned", color=MUTED, fontsize=9.5, va="top", linespacing=1.3)


def _power(value: float) -> str:
    if value > 0.1:
        return f"{value:g}"
    mantissa, exponent = f"{value:.2e}".split("e")
    head = "" if float(mantissa) == 1 else f"{float(mantissa):g}·"
    return f"{head}$10^{{{int(exponent)}}}$"


def _plain_ticks(axis: Any, ticks: Sequence[float]) -> None:
    from matplotlib.ticker import FixedLocator, FuncFormatter, NullLocator

    axis.set_major_locator(FixedLocator(ticks))
    axis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
    axis.set_minor_locator(NullLocator())


# The frontier.


def frontier_name(frontier: Frontier) -> str:
    """The name of a frontier in legends."""
    return f"{CAPACITIES[frontier.capacity]}, {BOUNDS[frontier.bound]}"


def frontier_figure(frontiers: Sequence[Frontier], *, subtitle: str = "") -> "Figure":
    """Kept weight against noise, one curve for each frontier; a star marks the best point of the first.

    With several batch sizes a second panel shows the signal with the most data against the batch size, and the elbow
    beyond which a larger batch buys nothing; otherwise the elbow stands in the corner.
    """
    import matplotlib as mpl
    from matplotlib.figure import Figure

    several = len({frontier.batch_size for frontier in frontiers}) > 1
    with mpl.rc_context(STYLE):
        figure = Figure(figsize=(13.5 if several else 8.2, 5.4), layout="constrained")
        axes, *more = np.atleast_1d(figure.subplots(1, 2 if several else 1)).tolist()
        for number, frontier in enumerate(frontiers):
            _draw_frontier(axes, frontier, colour=SERIES_COLOURS[number % len(SERIES_COLOURS)] if several else None)
        _mark_best(axes, frontiers[0])
        axes.set_title("Data kept at each noise")
        axes.set(xlabel="noise multiplier (less is better)", ylabel="weight kept by examples with secrets")
        axes.set_ylim(-0.03, 1.06)
        axes.yaxis.set_major_formatter(lambda share, _: f"{100 * share:.0f} %")
        _noise_axis(axes, [row.noise_multiplier for frontier in frontiers for row in frontier.rows])
        for panel in more:
            _draw_signal(panel, frontiers)
        elbow = frontiers[0].best.elbow
        if not more and math.isfinite(elbow):
            text = f"batch {frontiers[0].batch_size:g}; {ELBOW} {elbow:,.2g}"
            axes.text(0.98, 0.03, text, transform=axes.transAxes, ha="right", fontsize=9, color=MUTED)
        figure.legend(loc="outside lower center", ncols=2, frameon=False)
        axes.set_title(subtitle, loc="right", fontsize=9, fontweight="normal", color=MUTED)
    return figure


def _draw_signal(axes: "Axes", frontiers: Sequence[Frontier]) -> None:
    """The signal with the most data kept against the batch size, a line for each number of rounds; a bar at its elbow.

    Not the best points: they keep different shares at different batch sizes, and a smaller share has more signal.
    """
    drawn = [frontier for frontier in frontiers if math.isfinite(frontier.rows[0].signal)]
    kinds = dict.fromkeys((frontier.capacity, frontier.bound, frontier.rounds) for frontier in drawn)
    for number, kind in enumerate(kinds):
        line = [frontier for frontier in drawn if (frontier.capacity, frontier.bound, frontier.rounds) == kind]
        line.sort(key=lambda frontier: frontier.batch_size)
        colour = SERIES_COLOURS[number % len(SERIES_COLOURS)]
        name = f"signal, {counted(kind[2], 'round')}"
        axes.plot(
            [frontier.batch_size for frontier in line], [frontier.rows[0].signal for frontier in line],
            label=name, color=colour, marker="D", linestyle=":", linewidth=2.2, markersize=5,
        )  # fmt: skip
        elbow = line[-1].rows[0].elbow
        if math.isfinite(elbow):
            axes.axvline(elbow, color=colour, linewidth=1.2, linestyle="--", label=f"{ELBOW} {elbow:,.2g}")
    axes.set(xscale="log", xlabel="batch size", ylabel="signal of the most data (forecast)", ylim=(0, None))
    axes.set_title("Signal at each batch size")
    _plain_ticks(axes.xaxis, sorted({frontier.batch_size for frontier in drawn}))


def _draw_frontier(axes: "Axes", frontier: Frontier, *, colour: str | None = None) -> None:
    """One curve. colour: where frontiers differ in batch size, which is then part of their names."""
    own, style, marker = FRONTIER_STYLES.get((frontier.capacity, frontier.bound), OTHER_FRONTIER_STYLE)
    sizes = "" if colour is None else f", batch {frontier.batch_size:g}, {counted(frontier.rounds, 'round')}"
    colour, name = colour or own, frontier_name(frontier) + sizes
    rows = sorted(frontier.rows, key=lambda row: row.noise_multiplier)
    axes.plot(
        [row.noise_multiplier for row in rows], [row.kept_weight for row in rows], label=name,
        color=colour, linestyle=style, marker=marker, linewidth=2.2, markersize=5, clip_on=False,
    )  # fmt: skip


def _mark_best(axes: "Axes", frontier: Frontier) -> None:
    """Mark the best of the points drawn; a plan also searches between them, and may need less noise."""
    best = frontier.best
    enough = f"least noise of the points that keep {100 * KEEP:.0f} %:"
    what = enough if best.kept_weight >= KEEP else "most data of the points, at a noise of"
    kept = f"{rounded_up(best.noise_multiplier, 3)}, {rounded_down(round(100 * best.kept_weight, 9), 3)} % kept"
    axes.plot(
        best.noise_multiplier, best.kept_weight, "*", label=f"{what} {kept}",
        color="#E69F00", markersize=17, markeredgecolor="white", zorder=5, linestyle="none",
    )  # fmt: skip


def _noise_axis(axes: "Axes", noises: Sequence[float]) -> None:
    from matplotlib.ticker import FixedLocator, FuncFormatter, NullLocator

    least, most = min(noises), max(noises)
    if least <= 0 or most <= 0:  # a linear scale, which can show a noise of 0
        return
    axes.set_xscale("log")
    axes.set_xlim(least / AXIS_MARGIN, most * AXIS_MARGIN)
    steps = (1, 2, 5) if most > 8 * least else (1, 1.5, 2, 3, 4, 5, 6, 7, 8, 9)
    ticks = [step * 10.0**power for power in range(-4, 9) for step in steps]
    inside = [tick for tick in ticks if least / AXIS_MARGIN <= tick <= most * AXIS_MARGIN]
    axes.xaxis.set_major_locator(FixedLocator(inside))
    axes.xaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
    axes.xaxis.set_minor_locator(NullLocator())

"""The picture of a frontier: how much data is kept against how much noise it needs."""

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from hush.console import rounded_down, rounded_up
from hush.report.figures import MUTED, STYLE
from hush.weights import Frontier
from hush.weights.frontier import KEEP

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

__all__ = ["frontier_figure", "frontier_name"]

BOUNDS: Mapping[str, str] = {"blowup": "tight bound", "renyi": "Rényi bound", "kl": "KL bound"}
CAPACITIES: Mapping[str, str] = {
    "accounted": "accounted capacities",
    "paper": "the paper's capacities",
    "none": "all data",
}
LOOKS: Mapping[tuple[str, str], tuple[str, str, str]] = {  # colour, line style, marker
    ("accounted", "blowup"): ("#009E73", "-", "o"),
    ("paper", "blowup"): ("#0072B2", "--", "s"),
    ("paper", "kl"): ("#D55E00", "-.", "^"),
}
OTHER = ("#555555", ":", "D")


def frontier_name(frontier: Frontier) -> str:
    """What a reader calls this curve."""
    return f"{CAPACITIES[frontier.capacity]}, {BOUNDS[frontier.bound]}"


def frontier_figure(frontiers: Sequence[Frontier], *, subtitle: str = "") -> "Figure":
    """Kept weight against noise, one curve for each frontier; a star marks the best row of the first."""
    import matplotlib as mpl
    from matplotlib.figure import Figure

    with mpl.rc_context(STYLE):
        figure = Figure(figsize=(8.2, 5.4), layout="constrained")
        axes = figure.subplots()
        for frontier in frontiers:
            _draw(axes, frontier)
        _mark_best(axes, frontiers[0])
        axes.set_title("What noise buys: data kept")
        axes.set(xlabel="noise multiplier (less is better)", ylabel="weight kept by examples with secrets")
        axes.set_ylim(-0.03, 1.06)
        axes.yaxis.set_major_formatter(lambda share, _: f"{100 * share:.0f} %")
        _noise_axis(axes, [row.noise_multiplier for frontier in frontiers for row in frontier.rows])
        figure.legend(loc="outside lower center", ncols=2, frameon=False)
        axes.set_title(subtitle, loc="right", fontsize=9, fontweight="normal", color=MUTED)
    return figure


def _draw(axes: "Axes", frontier: Frontier) -> None:
    colour, style, marker = LOOKS.get((frontier.capacity, frontier.bound), OTHER)
    rows = sorted(frontier.rows, key=lambda row: row.noise_multiplier)
    axes.plot(
        [row.noise_multiplier for row in rows], [row.kept_weight for row in rows], label=frontier_name(frontier),
        color=colour, linestyle=style, marker=marker, linewidth=2.2, markersize=5, clip_on=False,
    )  # fmt: skip


def _mark_best(axes: "Axes", frontier: Frontier) -> None:
    """It is the best of what is drawn; a plan looks between the points, too, and may need less noise."""
    best = frontier.best
    enough = f"least noise here that keeps {100 * KEEP:.0f} %:"
    what = enough if best.kept_weight >= KEEP else "most data here, at a noise of"
    kept = f"{rounded_up(best.noise_multiplier, 3)}, {rounded_down(round(100 * best.kept_weight, 9), 3)} % kept"
    axes.plot(
        best.noise_multiplier, best.kept_weight, "*", label=f"{what} {kept}",
        color="#E69F00", markersize=17, markeredgecolor="white", zorder=5, linestyle="none",
    )  # fmt: skip


def _noise_axis(axes: "Axes", noises: Sequence[float]) -> None:
    from matplotlib.ticker import FixedLocator, FuncFormatter, NullLocator

    least, most = min(noises), max(noises)
    if least <= 0 or most <= 0:  # no noise is needed somewhere: a plain scale shows it
        return
    axes.set_xscale("log")
    axes.set_xlim(least / 1.12, most * 1.12)
    steps = (1, 2, 5) if most > 8 * least else (1, 1.5, 2, 3, 4, 5, 6, 7, 8, 9)
    places = [step * 10.0**power for power in range(-4, 9) for step in steps]
    axes.xaxis.set_major_locator(FixedLocator([place for place in places if least / 1.12 <= place <= most * 1.12]))
    axes.xaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
    axes.xaxis.set_minor_locator(NullLocator())

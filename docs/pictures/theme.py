"""One look for the pictures of the documentation: that of the report, in colours that follow the reader's theme.

A picture is drawn in the light colours; when it is saved they become CSS variables, with dark values for readers whose
page is dark. Each picture has a background of its own, so it can be read even where a page and a browser disagree.
"""

from io import BytesIO
from pathlib import Path
from typing import Any

import matplotlib as mpl
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import FancyArrowPatch, FancyBboxPatch

from hush.report.figures import STYLE

COLOURS = {  # name: (light, dark); the colours of the report, and soft ones to fill areas with
    "paper": ("#ffffff", "#1e2129"),
    "ink": ("#222222", "#e8e9ed"),
    "muted": ("#6b6b6b", "#a9adb9"),
    "edge": ("#9a9a9a", "#7c818e"),
    "grid": ("#e4e4e4", "#363b47"),
    "green": ("#009e73", "#35c99c"),
    "red": ("#d55e00", "#f18d45"),
    "blue": ("#0072b2", "#62b6ec"),
    "yellow": ("#e69f00", "#f3bb45"),
    "soft-green": ("#e2f3ed", "#1f3b35"),
    "soft-red": ("#fbe9dd", "#43301f"),
    "soft-blue": ("#e1eef7", "#1f3446"),
    "soft-grey": ("#f2f3f5", "#2a2e38"),
}
PAPER, INK, MUTED, EDGE, GRID, GREEN, RED, BLUE, YELLOW, SOFT_GREEN, SOFT_RED, SOFT_BLUE, SOFT_GREY = (
    light for light, _ in COLOURS.values()
)
UNITS = 10.0  # of a sketch, to an inch


def chart(columns: int, *, width: float = 8.6, height: float = 3.6, **more: Any) -> tuple[Figure, Any]:
    """A figure of so many panels beside each other, and its axes."""
    figure = Figure(figsize=(width, height), layout="constrained")
    figure.get_layout_engine().set(w_pad=0.1, h_pad=0.1, wspace=0.05)  # pyright: ignore[reportOptionalMemberAccess, reportCallIssue]
    return figure, figure.subplots(1, columns, squeeze=False, **more)[0]


def sketch(width: float, height: float) -> tuple[Figure, Axes]:
    """A figure to place things on by hand, from (0, 0) below on the left; UNITS make an inch."""
    figure = Figure(figsize=(width, height))
    axes = figure.add_axes((0, 0, 1, 1))
    axes.set(xlim=(0, UNITS * width), ylim=(0, UNITS * height))
    axes.axis("off")
    return figure, axes


def box(axes: Axes, corner: tuple[float, float], size: tuple[float, float], *, fill: str, edge: str) -> None:
    """A rectangle with round corners."""
    style = "round,pad=0,rounding_size=1"
    axes.add_patch(FancyBboxPatch(corner, *size, boxstyle=style, facecolor=fill, edgecolor=edge, linewidth=1.2))


def arrow(axes: Axes, start: tuple[float, float], end: tuple[float, float], *, colour: str = EDGE, **more: Any) -> None:
    """From one place to another."""
    look = {"arrowstyle": "-|>", "mutation_scale": 11, "linewidth": 1.5, "shrinkA": 0, "shrinkB": 0} | more
    axes.add_patch(FancyArrowPatch(start, end, color=colour, **look))


def save(picture: Figure | str, path: Path) -> None:
    """A figure, or an SVG that hush drew, with both themes; the same bytes for the same picture."""
    svg = picture if isinstance(picture, str) else _drawn(picture)
    for name, (light, _) in COLOURS.items():
        svg = svg.replace(light, f"var(--{name})")
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(svg.replace('<style type="text/css">', f'<style type="text/css">{_variables()}', 1))


def _drawn(figure: Figure) -> str:
    content = BytesIO()
    figure.savefig(content, format="svg", metadata={"Date": None})
    return content.getvalue().decode()


def _variables() -> str:
    light, dark = (" ".join(f"--{name}: {pair[side]};" for name, pair in COLOURS.items()) for side in (0, 1))
    return f":root {{ {light} }} @media (prefers-color-scheme: dark) {{ :root {{ {dark} }} }}"


mpl.rcParams |= STYLE

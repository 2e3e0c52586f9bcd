"""One look for all studies' figures: colours by method, one style, SVG files that do not change without cause."""

from pathlib import Path
from typing import Any

import matplotlib as mpl
from matplotlib.figure import Figure

__all__ = ["COLOURS", "panels", "save"]

mpl.rcParams |= {
    "svg.hashsalt": "hush",
    "axes.grid": True,
    "grid.alpha": 0.3,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "legend.frameon": False,
    "axes.titlelocation": "left",
    "axes.titleweight": "bold",
}

COLOURS = {
    "no protection": "#444444",
    "dropping": "#cc79a7",
    "dropping, twice": "#aa4499",
    "uniform": "#e69f00",
    "paper, all data": "#d55e00",
    "paper, program": "#0072b2",
    "hush, all data": "#56b4e9",
    "hush": "#009e73",
    "dropping, then hush": "#882255",
}


def panels(rows: int, columns: int, *, width: float = 5.5, height: float = 3.8) -> tuple[Figure, Any]:
    """A figure of so many panels, and its axes as a two-dimensional array."""
    figure = Figure(figsize=(width * columns, height * rows), layout="constrained")
    return figure, figure.subplots(rows, columns, squeeze=False)


def save(figure: Figure, path: Path) -> None:
    """Write it as SVG, without the date, so that the same figure is the same file."""
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path.with_suffix(".svg"), metadata={"Date": None})

"""The picture of every secret: how close it comes to its ceiling, against how many examples contain it.

Few secrets are drawn one by one. Many are gathered in the cells of a grid, which loses nothing that an eye could see
and keeps the page quick. Legend: S secrets.
"""

from typing import Any

import numpy as np

from hush.report.markup import at_most, percent_at_most, printable, shown, table
from hush.report.numbers import SecretNumbers
from hush.report.plots import Plot
from hush.rounding import counted

__all__ = ["scatter_plot"]

MOST_POINTS = 1_500  # secrets that are drawn one by one
CELLS = (60, 40)  # of the grid: along examples, along shares
SHARES = (1e-6, 1e-4, 1e-2, 0.1, 0.5, 0.9, 0.99, 1.0)


def scatter_plot(ids: tuple[str, ...], numbers: SecretNumbers) -> Plot:
    """Posterior by ceiling against examples, for every secret that any example contains."""
    held = np.flatnonzero(numbers.before_S > 0)
    alone = len(held) <= MOST_POINTS
    groups = [held[[place]] for place in range(len(held))] if alone else _cells(held, numbers)
    traces = [_trace(ids, numbers, [g for g in groups if numbers.binding_S[g].any() == is_binding], is_binding)
              for is_binding in (False, True)]  # fmt: skip
    absent = len(ids) - len(held)
    drawn = "" if alone else " Secrets that would lie on top of each other are drawn as one, the larger the more."
    none = f" Not drawn: {counted(absent, 'secret')} in no example." if absent else ""
    counts = [int(np.sum(numbers.share_S <= share)) for share in SHARES]
    cells = [(f"up to {percent_at_most(share)}", f"{count:,}") for share, count in zip(SHARES, counts, strict=True)]
    return Plot(
        name="scatter",
        title="Posterior against ceiling, secret by secret",
        summary=f"Each secret's posterior in percent of its ceiling, against the examples that contain it; none is "
        f"above 100 %.{drawn}{none}",
        traces=tuple(trace for trace in traces if trace["x"]),
        layout={
            "xaxis": {"title": {"text": "examples that contain the secret"}, "type": "log"},
            "yaxis": {"title": {"text": "% of the ceiling, at most"}, "type": "log"},
            "shapes": [
                {"type": "line", "xref": "paper", "x0": 0, "x1": 1, "y0": 100, "y1": 100,
                 "line": {"color": "@red", "width": 1.5, "dash": "dash"}}
            ],
            "annotations": [
                {"text": "ceiling", "xref": "paper", "x": 0.01, "xanchor": "left", "y": 2, "yanchor": "bottom",
                 "showarrow": False, "font": {"color": "@red"}}
            ],
        },
        numbers=table(["share of the ceiling", "secrets"], cells, caption="How many secrets come how close"),
        height=420,
    )  # fmt: skip


def _cells(held: np.ndarray, numbers: SecretNumbers) -> list[np.ndarray]:
    """Secrets that fall into the same cell of a logarithmic grid; binding ones in cells of their own."""
    keys = [numbers.binding_S[held].astype(np.int64)]
    for values, parts in zip((numbers.before_S, numbers.share_S), CELLS, strict=True):
        height = np.log(values[held])
        span = float(np.ptp(height)) or 1.0
        keys.append(np.minimum(((height - height.min()) / span * parts).astype(np.int64), parts - 1))
    key = (keys[0] * CELLS[0] + keys[1]) * CELLS[1] + keys[2]
    order = np.argsort(key, kind="stable")
    return np.split(held[order], np.flatnonzero(np.diff(key[order])) + 1)


def _trace(ids: tuple[str, ...], numbers: SecretNumbers, groups: list[np.ndarray], binding: bool) -> dict[str, Any]:
    closest = [int(group[np.argmax(numbers.share_S[group])]) for group in groups]
    sizes = [len(group) for group in groups]
    texts: list[str] = []
    for secret, size in zip(closest, sizes, strict=True):
        more = f"<br>and {size - 1:,} more like it" if size > 1 else ""
        texts.append(
            f"{shown(ids[secret])}<br>in {counted(numbers.before_S[secret], 'example')}<br>at most "
            f"{at_most(numbers.posterior_S[secret])} of {at_most(numbers.ceiling_S[secret])}, "
            f"{percent_at_most(numbers.share_S[secret])}{more}"
        )
    return {
        "type": "scatter",
        "mode": "markers",
        "name": "binding" if binding else "not binding",
        "x": [_short(numbers.before_S[secret]) for secret in closest],
        "y": [_short(100 * numbers.share_S[secret]) for secret in closest],
        "marker": {
            "symbol": "diamond" if binding else "circle",
            "size": [round(7 + 2.2 * np.log10(size), 1) for size in sizes],
            "color": "@orange" if binding else "@blue",
            "opacity": 0.75,
            "line": {"width": 0.5, "color": "@paper"},
        },
        "text": texts,
        "hoverinfo": "text",
        "customdata": [printable(ids[secret]) for secret in closest],  # what to look up in the table
    }


def _short(value: float) -> float:
    """As many digits as a picture shows."""
    return float(f"{float(value):.4g}")

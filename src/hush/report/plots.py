"""The interactive plots of the page: each as data for Plotly, with a description in words and its numbers.

A string that begins with @ is a colour of the page's theme, light or dark; they are those of Okabe and Ito, which
colour-blind readers can distinguish. Symbols and dashes repeat what the colours say. Texts are escaped, because Plotly
interprets some HTML.

The scatter plot draws up to ``MAX_SINGLE_POINTS`` secrets one by one. More are grouped by the cells of a grid, which
loses nothing visible and keeps the page fast.

Shapes: S secrets.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, final

import numpy as np

from hush.ledger.spending import Spending
from hush.numbers import counted, is_number
from hush.report.figures import BOUNDS, CAPACITIES
from hush.report.markup import at_least, at_most, percent_at_least, percent_at_most, printable, shown, table
from hush.report.numbers import MethodNoise, SecretCurve, SecretNumbers

__all__ = [
    "Look",
    "Plot",
    "counts_plot",
    "curves_plot",
    "frontier_plot",
    "left_plot",
    "noise_plot",
    "releases_plot",
    "scatter_plot",
    "training_plots",
]


Look = tuple[str, str, str]
"""Colour, dash and symbol of a line."""

FRONTIER_LOOKS: Mapping[tuple[str, str], Look] = {
    ("accounted", "blowup"): ("@green", "solid", "circle"),
    ("paper", "blowup"): ("@blue", "dash", "square"),
    ("paper", "kl"): ("@red", "dashdot", "triangle-up"),
}
OTHER_FRONTIER_LOOK = ("@muted", "dot", "diamond")
SERIES_LOOKS = (
    ("@green", "solid", "circle"),
    ("@blue", "dash", "square"),
    ("@red", "dashdot", "triangle-up"),
    ("@purple", "dot", "diamond"),
    ("@orange", "longdash", "cross"),
)
BOUND_COLOURS = {"kl": "@red", "renyi": "@blue", "blowup": "@green"}
BOUND_SYMBOLS = {"kl": "triangle-up", "renyi": "square", "blowup": "circle"}
LOG_AXIS: dict[str, Any] = {"type": "log"}
BAR_PATTERN = {"fillmode": "overlay", "fgcolor": "@paper", "size": 7, "solidity": 0.25}
LEFT_BARS = 10  # in which the shares left are counted
MAX_METRICS = 4  # of a training that get a plot each
MAX_SINGLE_POINTS = 1_500  # secrets that are drawn one by one
GRID_CELLS = (60, 40)  # along examples, along shares of the ceiling
CEILING_SHARES = (1e-6, 1e-4, 1e-2, 0.1, 0.5, 0.9, 0.99, 1.0)  # rows of the scatter plot's table


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class Plot:
    """A plot. summary: a description in words. numbers: the same as a table, in HTML."""

    name: str
    title: str
    summary: str
    traces: tuple[Mapping[str, Any], ...]
    layout: Mapping[str, Any]
    numbers: str
    height: int = 380


def frontier_plot(rows: Sequence[Mapping[str, Any]], *, noise: float, kept: float) -> Plot:
    """Kept weight against noise for each kind of frontier, and the point of the plan."""
    traces: list[dict[str, Any]] = []
    kinds = list(dict.fromkeys(map(_kind, rows)))
    several_sizes = len({kind[2:] for kind in kinds}) > 1
    for number, kind in enumerate(kinds):
        curve = [row for row in rows if _kind(row) == kind]
        curve.sort(key=lambda row: row["noise_multiplier"])
        name = f"{CAPACITIES.get(kind[0], kind[0])}, {BOUNDS.get(kind[1], kind[1])}"
        look = FRONTIER_LOOKS.get(kind[:2], OTHER_FRONTIER_LOOK)
        if several_sizes:
            name += f", batch {kind[2]:g}, {counted(kind[3], 'round')}"
            look = SERIES_LOOKS[number % len(SERIES_LOOKS)]
        traces.append(
            _line(name, [row["noise_multiplier"] for row in curve], [100 * row["kept_weight"] for row in curve], look,
                  [f"{shown(name)}<br>noise {_noise_text(row)}<br>{_kept_text(row)} of the weight kept"
                   f"{_signal_text(row)}" for row in curve])
        )  # fmt: skip
    point = f"noise {at_most(noise)}, {percent_at_least(kept)} of the weight kept"
    traces.append(
        {
            "type": "scatter", "mode": "markers", "name": "this plan", "x": [noise], "y": [100 * kept],
            "marker": {"symbol": "star", "size": 18, "color": "@orange", "line": {"width": 1.5, "color": "@paper"}},
            "text": [f"<b>this plan</b><br>{point}"], "hoverinfo": "text",
        }
    )  # fmt: skip
    log = noise > 0 and all(row["noise_multiplier"] > 0 for row in rows)
    cells = [(row["capacity"], row["bound"], _noise_text(row), _kept_text(row)) for row in rows]
    return Plot(
        name="frontier",
        title="Data kept at each noise",
        summary="The weight that examples with secrets keep, against the noise multiplier; up and to the left is "
        f"better. This plan: {point}.",
        traces=tuple(traces),
        layout={
            "xaxis": {"title": {"text": "noise multiplier (less is better)"}, **(LOG_AXIS if log else {})},
            "yaxis": {"title": {"text": "weight kept"}, "ticksuffix": " %", "range": [-4, 106]},
        },
        numbers=table(["capacities", "bound", "noise", "weight kept"], cells, caption="The frontier, point by point"),
        height=420,
    )


def noise_plot(methods: Sequence[MethodNoise]) -> Plot:
    """The noise of every method, loosest at the top; a star marks the plan."""
    ordered = list(reversed(methods))
    texts = [
        f"<b>{shown(method.name)}</b>{' (this plan)' if method.chosen else ''}"
        f"<br>noise {at_most(method.noise_multiplier)}"
        f"<br>{percent_at_least(method.kept_weight)} of the weight of examples with secrets kept"
        for method in ordered
    ]
    dots = {
        "type": "scatter", "mode": "markers+text", "showlegend": False,
        "x": [method.noise_multiplier for method in ordered], "y": [_label(method) for method in ordered],
        "marker": {
            "color": [BOUND_COLOURS.get(method.bound, "@muted") for method in ordered],
            "symbol": ["star" if method.chosen else BOUND_SYMBOLS.get(method.bound, "diamond") for method in ordered],
            "size": [20 if method.chosen else 14 for method in ordered],
            "opacity": 1,
        },
        "text": [f"  {at_most(method.noise_multiplier)}" for method in ordered], "textposition": "middle right",
        "cliponaxis": False, "hovertext": texts, "hoverinfo": "text",
    }  # fmt: skip
    most, least = (pick(method.noise_multiplier for method in methods) for pick in (max, min))
    cells = [
        (method.name, at_most(method.noise_multiplier), percent_at_least(method.kept_weight)) for method in methods
    ]
    return Plot(
        name="noise",
        title="Noise by method, for the same promise",
        summary=f"The noise multiplier that each method needs, from {at_most(least)} to {at_most(most)}.",
        traces=(dots,),
        layout={
            "xaxis": {"title": {"text": "noise multiplier"}, **(LOG_AXIS if least > 0 else {}), "fixedrange": True},
            "yaxis": {"automargin": True, "fixedrange": True, "type": "category"},
            "margin": {"r": 60},
        },
        numbers=table(["method", "noise", "weight kept"], cells, caption="Noise by method"),
        height=90 + 46 * len(methods),
    )


def counts_plot(names: Sequence[str], before: Sequence[int], after: Sequence[int]) -> Plot:
    """Secrets by the number of their examples, before and after weighting."""
    kinds = [("before weighting", before, "@muted", ""), ("after weighting", after, "@green", "/")]
    traces = [
        {
            "type": "bar", "name": name, "x": list(names), "y": list(counts),
            "marker": {"color": colour, "pattern": {"shape": pattern, **BAR_PATTERN}},
            "hovertext": [f"{counted(count, 'secret')} in {bin_} example{'' if bin_ == '1' else 's'}<br>{name}"
                          for bin_, count in zip(names, counts, strict=True)],
            "hoverinfo": "text",
        }
        for name, counts, colour, pattern in kinds
    ]  # fmt: skip
    cells = list(zip(names, before, after, strict=True))
    return Plot(
        name="counts",
        title="Examples per secret, before and after weighting",
        summary="The number of secrets by the number of examples that contain them, before and after weighting.",
        traces=tuple(traces),
        layout={
            "xaxis": {"title": {"text": "examples per secret"}, "type": "category", "showgrid": False},
            "yaxis": {"title": {"text": "secrets"}, "rangemode": "tozero"},
            "bargap": 0.25,
        },
        numbers=table(["examples", "secrets before", "secrets after"], cells, caption="Secrets by number of examples"),
    )


def curves_plot(curves: Sequence[SecretCurve]) -> Plot:
    """The largest posterior from each prior, for binding secrets."""
    first = curves[0].priors
    traces: list[dict[str, Any]] = [
        {"type": "scatter", "mode": "lines", "name": "nothing learned", "x": [first[0], first[-1]],
         "y": [first[0], first[-1]], "line": {"color": "@muted", "dash": "dot", "width": 1.5}, "hoverinfo": "skip"}
    ]  # fmt: skip
    for curve, look in zip(curves, SERIES_LOOKS, strict=False):
        name = shown(curve.name)
        texts = [
            f"{name}<br>prior {at_least(p)}<br>posterior at most {at_most(r)}"
            for p, r in zip(curve.priors, curve.posteriors, strict=True)
        ]
        traces.append(_line(curve.name, curve.priors, curve.posteriors, look, texts, marks=False))
        traces.append(
            {
                "type": "scatter", "mode": "markers", "showlegend": False, "x": [curve.prior], "y": [curve.ceiling],
                "name": f"promise of {name}", "hoverinfo": "text",
                "marker": {"symbol": look[2], "size": 12, "color": look[0], "line": {"width": 1.5, "color": "@paper"}},
                "text": [f"<b>promised</b> for {name}<br>{at_least(curve.prior)} → {at_most(curve.ceiling)}"],
            }
        )  # fmt: skip
    cells = [
        (at_least(prior), *(at_most(curve.shown_points[index][1]) for curve in curves))
        for index, (prior, _) in enumerate(curves[0].shown_points)
    ]
    return Plot(
        name="curves",
        title="From prior to posterior",
        summary="The largest posterior of an adversary with each prior, for the secrets that bind.",
        traces=tuple(traces),
        layout={
            "xaxis": {"title": {"text": "prior"}, **LOG_AXIS},
            "yaxis": {"title": {"text": "posterior, at most"}, **LOG_AXIS},
        },
        numbers=table(["prior", *(curve.name for curve in curves)], cells, caption="Largest posterior by prior"),
        height=440,
    )


def training_plots(rows: Sequence[Mapping[str, Any]], looks: Mapping[str, Look]) -> list[Plot]:
    """A plot for each metric, with a line for each run; looks: of runs, by name."""
    metrics = dict.fromkeys(name for row in rows for name in row if name not in ("round", "run"))
    return [
        _training_plot(rows, metric, looks, name=f"training-{index}")  # a metric's name may be no valid element id
        for index, metric in enumerate(list(metrics)[:MAX_METRICS])
    ]


def _training_plot(rows: Sequence[Mapping[str, Any]], metric: str, looks: Mapping[str, Look], *, name: str) -> Plot:
    runs = dict.fromkeys(str(row.get("run", "this run")) for row in rows if metric in row)
    traces: list[dict[str, Any]] = []
    cells: list[tuple[object, ...]] = []
    for index, run in enumerate(runs):
        of_run = [row for row in rows if metric in row and str(row.get("run", "this run")) == run]
        texts = [f"{shown(run)}<br>round {row['round']}<br>{shown(metric)} {row[metric]:.4g}" for row in of_run]
        x, y = [row["round"] for row in of_run], [row[metric] for row in of_run]
        traces.append(_line(run, x, y, looks.get(run, SERIES_LOOKS[index % len(SERIES_LOOKS)]), texts))
        cells += [(run, row["round"], f"{row[metric]:.5g}") for row in of_run]
    last = "; ".join(f"{run}: {trace['y'][-1]:.4g}" for run, trace in zip(runs, traces, strict=True))
    return Plot(
        name=name,
        title=metric,
        summary=f"{metric} by round, on data without secrets. At the end: {last}.",
        traces=tuple(traces),
        layout={
            "xaxis": {"title": {"text": "round"}, "rangemode": "tozero"},
            "yaxis": {"title": {"text": shown(metric)}},
            "showlegend": len(traces) > 1,
        },
        numbers=table(["run", "round", metric], cells, caption=f"{metric} by round"),
    )


def _line(
    name: str, x: Iterable[float], y: Iterable[float], look: Look, texts: list[str], *,
    marks: bool = True,
) -> dict[str, Any]:  # fmt: skip
    colour, dash, symbol = look
    return {
        "type": "scatter", "mode": "lines+markers" if marks else "lines", "name": shown(name),
        "x": list(x), "y": list(y), "line": {"color": colour, "dash": dash, "width": 2.4},
        "marker": {"symbol": symbol, "size": 7, "color": colour}, "text": texts, "hoverinfo": "text",
    }  # fmt: skip


def _kind(row: Mapping[str, Any]) -> tuple[Any, ...]:
    """What distinguishes one frontier from another; records of hush 0.1.0 state neither batch size nor rounds."""
    return row["capacity"], row["bound"], row.get("batch_size", 0), row.get("rounds", 0)


def _signal_text(row: Mapping[str, Any]) -> str:
    return f"<br>signal {row['signal']:,.2g}, a forecast" if is_number(row.get("signal")) else ""


def _noise_text(row: Mapping[str, Any]) -> str:
    return at_most(row["noise_multiplier"])


def _kept_text(row: Mapping[str, Any]) -> str:
    return percent_at_least(row["kept_weight"])


def _label(method: MethodNoise) -> str:
    """The name in two lines, to leave room for the plot on a narrow screen."""
    return "<br>".join(shown(part.strip()) for part in method.name.split(",", 1))


# Every secret.


def releases_plot(spending: Spending) -> Plot:
    """How much of its ceiling the most used and the median secret had reached after each release."""
    numbers = [row.entry.number for row in spending.releases]
    lines = (
        ("the most used secret", [row.used_most for row in spending.releases], SERIES_LOOKS[2]),
        ("the median secret", [row.used_median for row in spending.releases], SERIES_LOOKS[0]),
    )
    traces = [
        _line(name, numbers, [100 * share for share in shares], look,
              [f"release {number}<br>{shown(name)}: {percent_at_most(share)} of its ceiling"
               for number, share in zip(numbers, shares, strict=True)])
        for name, shares, look in lines
    ]  # fmt: skip
    last = spending.releases[-1]
    cells = [
        (row.entry.number, percent_at_most(row.used_most), percent_at_most(row.used_median))
        for row in spending.releases
    ]
    return Plot(
        name="releases",
        title="Used after each release",
        summary="The posterior after the releases so far, as a share of the ceiling that was promised: proven upper "
        f"bounds. After release {last.entry.number} the most used secret is at {percent_at_most(last.used_most)}.",
        traces=tuple(traces),
        layout={
            "xaxis": {"title": {"text": "release"}, "dtick": 1, "range": [0.5, (spending.count or numbers[-1]) + 0.5]},
            "yaxis": {"title": {"text": "posterior / ceiling"}, "ticksuffix": " %", "rangemode": "tozero"},
        },
        numbers=table(["release", "most used", "median"], cells, caption="Used after each release"),
    )


def left_plot(spending: Spending) -> Plot:
    """How many secrets have how much of their promise left, in tenths."""
    left = np.array([row.left for row in spending.secrets])
    counts = np.bincount(np.minimum((left * LEFT_BARS).astype(int), LEFT_BARS - 1), minlength=LEFT_BARS).tolist()
    step = 100 // LEFT_BARS
    names = [f"{step * bar}–{step * (bar + 1)} %" for bar in range(LEFT_BARS)]
    bars = {
        "type": "bar", "name": "secrets", "x": names, "y": counts,
        "marker": {"color": "@green", "pattern": {**BAR_PATTERN, "shape": ""}},
        "text": [f"{counted(count, 'secret')}<br>{name} left" for name, count in zip(names, counts, strict=True)],
        "hoverinfo": "text", "textposition": "none",
    }  # fmt: skip
    least = float(left.min(initial=1.0))
    return Plot(
        name="left",
        title="Left of the promises",
        summary="How many secrets have how much left: of the announced releases, or of the budget that releases spend. "
        f"The one with least has {percent_at_least(least)}.",
        traces=(bars,),
        layout={"xaxis": {"title": {"text": "left"}}, "yaxis": {"title": {"text": "secrets"}}},
        numbers=table(["left", "secrets"], zip(names, counts, strict=True), caption="Left of the promises"),
    )


def scatter_plot(ids: tuple[str, ...], numbers: SecretNumbers) -> Plot:
    """Posterior divided by ceiling against examples, for every secret that any example contains."""
    present = np.flatnonzero(numbers.before_S > 0)
    single = len(present) <= MAX_SINGLE_POINTS
    groups = [present[[index]] for index in range(len(present))] if single else _grid_groups(present, numbers)
    traces = [_points_trace(ids, numbers, [g for g in groups if numbers.binding_S[g].any() == is_binding], is_binding)
              for is_binding in (False, True)]  # fmt: skip
    absent = len(ids) - len(present)
    grouped = "" if single else " Secrets that would overlap are drawn as one point, larger for more secrets."
    not_drawn = f" Not drawn: {counted(absent, 'secret')} in no example." if absent else ""
    counts = [int(np.sum(numbers.share_S <= share)) for share in CEILING_SHARES]
    cells = [
        (f"up to {percent_at_most(share)}", f"{count:,}") for share, count in zip(CEILING_SHARES, counts, strict=True)
    ]
    return Plot(
        name="scatter",
        title="Posterior relative to the ceiling, for each secret",
        summary="Each secret's posterior in percent of its ceiling, against the number of examples that contain it; "
        f"none is above 100 %.{grouped}{not_drawn}",
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
        numbers=table(["share of the ceiling", "secrets"], cells, caption="Secrets by share of the ceiling"),
        height=420,
    )  # fmt: skip


def _grid_groups(secrets: np.ndarray, numbers: SecretNumbers) -> list[np.ndarray]:
    """Secrets by the cells of a logarithmic grid; binding and other secrets are not mixed."""
    keys = [numbers.binding_S[secrets].astype(np.int64)]
    for values, parts in zip((numbers.before_S, numbers.share_S), GRID_CELLS, strict=True):
        log_value = np.log(values[secrets])
        extent = float(np.ptp(log_value)) or 1.0
        keys.append(np.minimum(((log_value - log_value.min()) / extent * parts).astype(np.int64), parts - 1))
    key = (keys[0] * GRID_CELLS[0] + keys[1]) * GRID_CELLS[1] + keys[2]
    order = np.argsort(key, kind="stable")
    return np.split(secrets[order], np.flatnonzero(np.diff(key[order])) + 1)


def _points_trace(
    ids: tuple[str, ...], numbers: SecretNumbers, groups: list[np.ndarray], binding: bool
) -> dict[str, Any]:
    """A point for each group, at its secret closest to the ceiling."""
    closest = [int(group[np.argmax(numbers.share_S[group])]) for group in groups]
    sizes = [len(group) for group in groups]
    texts: list[str] = []
    for secret, size in zip(closest, sizes, strict=True):
        more = f"<br>and {size - 1:,} more like it" if size > 1 else ""
        texts.append(
            f"{shown(ids[secret])}<br>in {counted(numbers.before_S[secret], 'example')}<br>"
            f"posterior at most {at_most(numbers.posterior_S[secret])}, {percent_at_most(numbers.share_S[secret])} of "
            f"its ceiling {at_most(numbers.ceiling_S[secret])}{more}"
        )
    return {
        "type": "scatter",
        "mode": "markers",
        "name": "binding" if binding else "not binding",
        "x": [_rounded(numbers.before_S[secret]) for secret in closest],
        "y": [_rounded(100 * numbers.share_S[secret]) for secret in closest],
        "marker": {
            "symbol": "diamond" if binding else "circle",
            "size": [round(7 + 2.2 * np.log10(size), 1) for size in sizes],
            "color": "@orange" if binding else "@blue",
            "opacity": 0.75,
            "line": {"width": 0.5, "color": "@paper"},
        },
        "text": texts,
        "hoverinfo": "text",
        "customdata": [printable(ids[secret]) for secret in closest],  # the id to look up in the table
    }


def _rounded(value: float) -> float:
    """Four digits, which is as precise as a plot shows."""
    return float(f"{float(value):.4g}")

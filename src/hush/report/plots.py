"""What the page draws: each plot as data for Plotly, with a sentence for those who cannot see it and its numbers.

A string that begins with @ is a colour of the page's theme, light or dark; they are those of Okabe and Ito, which
colour-blind readers tell apart. Marks and dashes repeat what colour says. Texts are escaped: Plotly reads some HTML.

The picture of every secret: how close it comes to its ceiling, against how many examples contain it.

Few secrets are drawn one by one. Many are gathered in the cells of a grid, which loses nothing that an eye could see
and keeps the page quick. Legend: S secrets.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, final

import numpy as np

from hush.numbers import counted
from hush.report.figures import BOUNDS, CAPACITIES
from hush.report.markup import at_least, at_most, percent_at_least, percent_at_most, printable, shown, table
from hush.report.numbers import Curve, MethodNoise, SecretNumbers

__all__ = [
    "Look",
    "Plot",
    "counts_plot",
    "curves_plot",
    "frontier_plot",
    "noise_plot",
    "scatter_plot",
    "training_plots",
]


Look = tuple[str, str, str]
"""Colour, dash and symbol of a line."""

LOOKS: Mapping[tuple[str, str], Look] = {
    ("accounted", "blowup"): ("@green", "solid", "circle"),
    ("paper", "blowup"): ("@blue", "dash", "square"),
    ("paper", "kl"): ("@red", "dashdot", "triangle-up"),
}
OTHER = ("@muted", "dot", "diamond")
SERIES = (
    ("@green", "solid", "circle"),
    ("@blue", "dash", "square"),
    ("@red", "dashdot", "triangle-up"),
    ("@purple", "dot", "diamond"),
    ("@orange", "longdash", "cross"),
)
BY_BOUND = {"kl": "@red", "renyi": "@blue", "blowup": "@green"}
SYMBOLS = {"kl": "triangle-up", "renyi": "square", "blowup": "circle"}
LOG: dict[str, Any] = {"type": "log"}
HATCH = {"fillmode": "overlay", "fgcolor": "@paper", "size": 7, "solidity": 0.25}
MOST_METRICS = 4


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class Plot:
    """A plot. summary: what it shows, in words; numbers: the same as a table, in HTML."""

    name: str
    title: str
    summary: str
    traces: tuple[Mapping[str, Any], ...]
    layout: Mapping[str, Any]
    numbers: str
    height: int = 380


def frontier_plot(rows: Sequence[Mapping[str, Any]], *, noise: float, kept: float) -> Plot:
    """Kept weight against noise for each kind of frontier, and where the plan stands."""
    traces: list[dict[str, Any]] = []
    for kind in dict.fromkeys((row["capacity"], row["bound"]) for row in rows):
        mine = sorted((r for r in rows if (r["capacity"], r["bound"]) == kind), key=lambda r: r["noise_multiplier"])
        name = f"{CAPACITIES.get(kind[0], kind[0])}, {BOUNDS.get(kind[1], kind[1])}"
        traces.append(
            _line(name, [row["noise_multiplier"] for row in mine], [100 * row["kept_weight"] for row in mine],
                  LOOKS.get(kind, OTHER),
                  [f"{shown(name)}<br>noise {_noise_text(row)}<br>{_kept_text(row)} of the weight kept"
                   for row in mine])
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
        title="What noise buys: data kept",
        summary=f"Weight kept by examples with secrets against the noise multiplier; up and left is better. "
        f"This plan: {point}.",
        traces=tuple(traces),
        layout={
            "xaxis": {"title": {"text": "noise multiplier (less is better)"}, **(LOG if log else {})},
            "yaxis": {"title": {"text": "weight kept"}, "ticksuffix": " %", "range": [-4, 106]},
        },
        numbers=table(["capacities", "bound", "noise", "weight kept"], cells, caption="The frontier, point by point"),
        height=420,
    )


def noise_plot(methods: Sequence[MethodNoise]) -> Plot:
    """The noise of every method, loosest first from the top; a star for the one that was chosen."""
    ordered = list(reversed(methods))
    texts = [
        f"<b>{shown(method.name)}</b>{' (chosen)' if method.chosen else ''}<br>noise {at_most(method.noise_multiplier)}"
        f"<br>{percent_at_least(method.kept_weight)} of the weight of examples with secrets kept"
        for method in ordered
    ]
    dots = {
        "type": "scatter", "mode": "markers+text", "showlegend": False,
        "x": [method.noise_multiplier for method in ordered], "y": [_label(method) for method in ordered],
        "marker": {
            "color": [BY_BOUND.get(method.bound, "@muted") for method in ordered],
            "symbol": ["star" if method.chosen else SYMBOLS.get(method.bound, "diamond") for method in ordered],
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
            "xaxis": {"title": {"text": "noise multiplier"}, **(LOG if least > 0 else {}), "fixedrange": True},
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
            "marker": {"color": colour, "pattern": {"shape": pattern, **HATCH}},
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
        summary="How many secrets are in how many examples, before and after weighting.",
        traces=tuple(traces),
        layout={
            "xaxis": {"title": {"text": "examples per secret"}, "type": "category", "showgrid": False},
            "yaxis": {"title": {"text": "secrets"}, "rangemode": "tozero"},
            "bargap": 0.25,
        },
        numbers=table(["examples", "secrets before", "secrets after"], cells, caption="Secrets by their examples"),
    )


def curves_plot(curves: Sequence[Curve]) -> Plot:
    """What every prior may rise to, for secrets that bind."""
    first = curves[0].priors
    traces: list[dict[str, Any]] = [
        {"type": "scatter", "mode": "lines", "name": "nothing learned", "x": [first[0], first[-1]],
         "y": [first[0], first[-1]], "line": {"color": "@muted", "dash": "dot", "width": 1.5}, "hoverinfo": "skip"}
    ]  # fmt: skip
    for curve, look in zip(curves, SERIES, strict=False):
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
        (at_least(prior), *(at_most(curve.told[place][1]) for curve in curves))
        for place, (prior, _) in enumerate(curves[0].told)
    ]
    return Plot(
        name="curves",
        title="From prior to posterior",
        summary="The most that an adversary who begins with a prior can end with, for the secrets that bind.",
        traces=tuple(traces),
        layout={
            "xaxis": {"title": {"text": "prior"}, **LOG},
            "yaxis": {"title": {"text": "posterior, at most"}, **LOG},
        },
        numbers=table(["prior", *(curve.name for curve in curves)], cells, caption="What other priors would rise to"),
        height=440,
    )


def training_plots(rows: Sequence[Mapping[str, Any]], looks: Mapping[str, Look]) -> list[Plot]:
    """A plot for each metric, a line for each run, with the looks that are stated for it."""
    metrics = dict.fromkeys(name for row in rows for name in row if name not in ("round", "run"))
    return [
        _training_plot(rows, metric, looks, name=f"training-{place}")  # a name of a metric is no name of an element
        for place, metric in enumerate(list(metrics)[:MOST_METRICS])
    ]


def _training_plot(rows: Sequence[Mapping[str, Any]], metric: str, looks: Mapping[str, Look], *, name: str) -> Plot:
    runs = dict.fromkeys(str(row.get("run", "this run")) for row in rows if metric in row)
    traces: list[dict[str, Any]] = []
    cells: list[tuple[object, ...]] = []
    for place, run in enumerate(runs):
        mine = [row for row in rows if metric in row and str(row.get("run", "this run")) == run]
        texts = [f"{shown(run)}<br>round {row['round']}<br>{shown(metric)} {row[metric]:.4g}" for row in mine]
        x, y = [row["round"] for row in mine], [row[metric] for row in mine]
        traces.append(_line(run, x, y, looks.get(run, SERIES[place % len(SERIES)]), texts))
        cells += [(run, row["round"], f"{row[metric]:.5g}") for row in mine]
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


def _noise_text(row: Mapping[str, Any]) -> str:
    return at_most(row["noise_multiplier"])


def _kept_text(row: Mapping[str, Any]) -> str:
    return percent_at_least(row["kept_weight"])


def _label(method: MethodNoise) -> str:
    """Two lines, so that a narrow screen has room for the bars."""
    return "<br>".join(shown(part.strip()) for part in method.name.split(",", 1))


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

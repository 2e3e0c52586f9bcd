"""The demo's report: that of ``hush report`` about hush's own arm, with all four side by side before the rest."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from hush.demo.arms import HUSH, Result
from hush.demo.sizes import PROJECTS
from hush.demo.story import COLUMNS, cells_of, chance_in_words, findings
from hush.report.inputs import read_audit, read_source
from hush.report.markup import shown, table
from hush.report.methods import noise_by_method
from hush.report.page import Section, figure
from hush.report.plots import Look, Plot
from hush.report.report import Report
from hush.scan.result import Scan

__all__ = ["demo_report"]

LOOKS: Mapping[str, Look] = {  # of an arm, in every plot
    "none": ("@muted", "dot", "diamond"),
    "paper": ("@red", "dashdot", "triangle-up"),
    "paper-program": ("@orange", "dash", "square"),
    "hush": ("@green", "solid", "star"),
}


def demo_report(run: Path, results: Sequence[Result], candidates: int) -> Report:
    """The whole report. No text of a secret or of a canary is in it: names of projects, ids and numbers."""
    source = read_source(run)
    return Report(
        plan=source.plan,
        certificate=source.certificate,
        noise=noise_by_method(source.plan),
        scan=replace(Scan.load(run / "owner" / "scan"), owner=None),
        audit=read_audit(run / "owner" / "audit"),
        training=[
            {"round": round, "run": one.arm.title, "loss per byte": loss}
            for one in results
            for round, loss in one.curve
        ],
        looks={one.arm.title: LOOKS[one.arm.name] for one in results},
        sections=[_side_by_side(results, candidates)],
        title="The standard library, protected",
        folder="run/share",
    )


def _side_by_side(results: Sequence[Result], candidates: int) -> Section:
    start = results[0].curve[0][1]
    plot = _plot(results)
    names = ", ".join(PROJECTS)
    said = "".join(f"<li>{shown(line)}</li>\n" for line in findings(results))
    html = (
        "<p>The same small model over bytes, from the same random weights, on the same code, for the same rounds, "
        f"under four plans. Python's standard library plays a company's code base; {shown(names)} play its secret "
        "projects, and whatever imports them holds them too. Canaries are made-up keys, planted to measure memory. "
        "What follows below is about hush's own model.</p>\n"
        + table(COLUMNS, map(cells_of, results), caption="Four trainings")
        + f'<p class="note">Loss: per byte, on held-out code without secrets; {start:.2f} before training. Data kept: '
        "of the weight of examples with secrets. Exposure: how far up the true key ranks among "
        f"{candidates:,} candidates, the mean over the canaries in bits; {chance_in_words(results)}. Posterior: the "
        "certified bound of the secret closest to its ceiling. All share one learning rate; each alone could "
        "be tuned. The keys, the draws and the noise come from the system, so every run of the demo gives other "
        f"numbers.</p>\n<ul>\n{said}</ul>\n"
        + figure(plot)
        + "<p>Model and data are tiny, and a promise costs most there. The noise is spread over the examples of a "
        "round, and the more data there is, the smaller a part of it each secret.</p>\n"
        "<h3>Why bytes</h3>\n<p>A tokenizer is part of what is released. One that is trained on the code would hold "
        "names of the secret projects as tokens of its own, and no noise would hide them. A tokenizer over bytes has "
        "seen no data; one that was trained on examples without secrets would do as well.</p>\n"
    )
    return Section(name="arms", link="Side by side", title="Four trainings, side by side", html=html, plots=(plot,))


def _plot(results: Sequence[Result]) -> Plot:
    """Loss against exposure: a good model that tells nothing is at the lower left."""
    traces: list[dict[str, Any]] = []
    for one in results:
        colour, _, symbol = LOOKS[one.arm.name]
        text = f"<b>{shown(one.arm.title)}</b><br>loss {one.loss:.3f}<br>exposure {one.canaries.exposure:.1f} bits"
        traces.append(
            {
                "type": "scatter", "mode": "markers", "name": shown(one.arm.title),
                "x": [one.canaries.exposure], "y": [one.loss], "text": [text], "hoverinfo": "text",
                "marker": {"color": colour, "symbol": symbol, "size": 20 if one.arm == HUSH else 15,
                           "line": {"width": 1.5, "color": "@paper"}},
            }
        )  # fmt: skip
    cells = [(one.arm.title, f"{one.loss:.4g}", f"{one.canaries.exposure:.3g}") for one in results]
    ends = "; ".join(f"{title}: loss {loss}, {bits} bits" for title, loss, bits in cells)
    return Plot(
        name="arms",
        title="What was learnt, and what was remembered",
        summary=f"Loss on held-out code against exposure of the canaries; down is better, left tells less. {ends}.",
        traces=tuple(traces),
        layout={
            "xaxis": {"title": {"text": "exposure of the canaries, bits"}, "rangemode": "tozero"},
            "yaxis": {"title": {"text": "loss per byte"}},
            "showlegend": True,
        },
        numbers=table(["training", "loss", "exposure, bits"], cells, caption="Loss and exposure"),
    )

"""The HTML page around the sections: one file that loads nothing from anywhere.

Its content security policy forbids the browser every request, and allows only the two scripts that are written here,
by their digests: any other script that slipped into the page would not run.
"""

import base64
import hashlib
from collections.abc import Sequence
from dataclasses import dataclass
from importlib.resources import files
from typing import final

from hush import __version__
from hush.errors import InvalidInput
from hush.report.markup import embedded, shown
from hush.report.numbers import PackedRows
from hush.report.plots import Plot

__all__ = ["Section", "figure", "page"]


SCRIPTS = ("numbers.js", "plots.js", "table.js", "page.js")  # in assets/, each after those that it uses


@final
@dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class Section:
    """A section of the page: HTML that is already escaped, and the plots in it."""

    name: str
    link: str
    title: str
    html: str
    plots: tuple[Plot, ...] = ()


def figure(plot: Plot, *, heading: bool = True) -> str:
    """The element of a plot, with its description and numbers for readers who cannot see it."""
    title = f"<h3>{shown(plot.title)}</h3>\n" if heading else ""
    name = shown(plot.name)
    numbers = f"<details><summary>The numbers</summary>\n{plot.numbers}</details>\n" if plot.numbers else ""
    return (
        f'<figure id="figure-{name}">\n{title}'
        f'<div class="plot" id="plot-{name}" data-plot="{name}" tabindex="0" role="group" '
        f'aria-roledescription="interactive plot" aria-label="{shown(plot.title)}" '
        f'aria-describedby="about-{name}" style="height:{plot.height}px"></div>\n'
        f'<p class="readout" aria-live="polite"></p>\n'
        f'<figcaption id="about-{name}">{shown(plot.summary)}</figcaption>\n{numbers}</figure>\n'
    )


def page(title: str, head: str, sections: Sequence[Section], rows: PackedRows | None) -> str:
    """The complete page."""
    plots = {plot.name: _spec(plot) for section in sections for plot in section.plots}
    links = "".join(f'<li><a href="#{section.name}">{shown(section.link)}</a></li>' for section in sections)
    body = "".join(
        f'<section id="{section.name}" aria-labelledby="{section.name}-title">\n'
        f'<h2 id="{section.name}-title">{shown(section.title)}</h2>\n{section.html}</section>\n'
        for section in sections
    )
    layout = {} if rows is None else rows.layout
    packed = "" if rows is None else rows.content
    scripts = [_plotly(), "\n".join(_asset(name) for name in SCRIPTS)]
    return (
        '<!doctype html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n'
        f'<meta http-equiv="Content-Security-Policy" content="{_policy(scripts)}">\n'
        '<meta name="viewport" content="width=device-width, initial-scale=1">\n'
        '<meta name="color-scheme" content="light dark">\n<meta name="referrer" content="no-referrer">\n'
        f'<meta name="generator" content="hush {shown(__version__)}">\n<link rel="icon" href="data:,">\n'
        f"<title>{shown(title)}</title>\n<style>\n{_asset('report.css')}</style>\n</head>\n<body>\n"
        '<a class="skip" href="#main">Skip to the report</a>\n'
        f'<header>\n<h1>{shown(title)}</h1>\n{head}</header>\n<nav aria-label="Sections"><ul>{links}</ul></nav>\n'
        f'<main id="main">\n<noscript><p class="banner">Plots and the searchable table need JavaScript, which is off. '
        "Nothing is loaded from elsewhere; the numbers are also in the tables.</p></noscript>\n"
        f"{body}</main>\n<footer><p>Written by hush {shown(__version__)}. This page loads nothing and "
        "sends nothing.</p></footer>\n"
        f'<script type="application/json" id="plots">{embedded(plots)}</script>\n'
        f'<script type="application/json" id="rows-layout">{embedded(layout)}</script>\n'
        f'<script type="text/plain" id="rows">{packed}</script>\n'
        + "".join(f"<script>{script}</script>\n" for script in scripts)
        + "</body>\n</html>\n"
    )


def _spec(plot: Plot) -> dict[str, object]:
    return {"data": list(plot.traces), "layout": dict(plot.layout), "height": plot.height}


def _policy(scripts: Sequence[str]) -> str:
    digests = [base64.b64encode(hashlib.sha256(script.encode()).digest()).decode() for script in scripts]
    allowed = " ".join(f"'sha256-{digest}'" for digest in digests)
    return (
        f"default-src 'none'; script-src {allowed}; style-src 'unsafe-inline'; img-src data: blob:; "
        "base-uri 'none'; form-action 'none'"
    )


def _asset(name: str) -> str:
    return (files("hush.report") / "assets" / name).read_text(encoding="utf-8")


def _plotly() -> str:
    try:
        from plotly.offline import get_plotlyjs
    except ImportError:
        raise InvalidInput("a report needs plotly, which is not installed; pip install plotly") from None
    script = get_plotlyjs()
    if "</script" in script.lower() or "\r" in script:
        raise InvalidInput("the script of this version of plotly cannot be put into a page; install another version")
    return script

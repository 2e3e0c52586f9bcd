"""The review of a scan: one HTML page in owner/ that the owner looks through before planning.

It shows the secrets in most examples, what was found and set aside, and the first pairs; all pairs are in
reasons.parquet. It shows texts only if the owner asks for them. All content is escaped, the page loads nothing, and its
content security policy forbids the browser to fetch anything. It works without scripts, which only add sorting and
filtering.
"""

import os
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from html import escape
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Any, final

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from hush.numbers import counted, rounded_down, rounded_up
from hush.scan.finders.plausibility import TOO_SHORT

if TYPE_CHECKING:
    from hush.protection import Protection
    from hush.scan.result import Scan

__all__ = [
    "Histogram",
    "Table",
    "example_ids",
    "histogram_of",
    "page",
    "review_html",
    "scan_cautions",
    "scan_notes",
    "write_review",
]


MAX_SECRETS_SHOWN = 2000  # the secrets in most examples
MAX_SET_ASIDE_SHOWN = 2000  # the texts in most examples
MAX_PAIRS_SHOWN = 2000  # the first rows of reasons.parquet
MAX_EXAMPLES_SHOWN = 50  # the examples with most secrets

Cell = str | int | float | None


@final
@dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class Table:
    """A table of the page. bars: the index of a column that is also drawn as bars."""

    title: str
    note: str = ""
    columns: Sequence[str]
    rows: Sequence[Sequence[Cell]]
    bars: int | None = None


def write_review(
    scan: "Scan", path: Path, *, source: str, notices: Sequence[str] = (), show_text: bool = False
) -> None:
    """Writes the page to a new file that only its owner can read. notices: sentences to show first."""
    handle = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    with os.fdopen(handle, "w", encoding="utf-8", errors="replace") as file:
        file.write(review_html(scan, source=source, notices=notices, show_text=show_text))


def review_html(scan: "Scan", *, source: str, notices: Sequence[str] = (), show_text: bool = False) -> str:
    """The HTML of the page. Guarantee: without show_text it contains no text of a secret."""
    summary = scan.summary()
    tiles = {
        "examples": summary["examples"],
        "of them with secrets": summary["examples_with_secrets"],
        "secrets": summary["secrets"],
        "pairs": summary["pairs"],
        "pairs from copies alone": summary["pairs_from_copies"],
        "rows skipped": summary["skipped"],
    }
    shown = "This page shows the text of secrets." if show_text else "This page shows no text of secrets."
    return page(
        f"Scan of {source}",
        warning=f"{shown} It contains file names and ids, so keep it with the owner of the data.",
        tiles=tiles.items(),
        tables=[*_notes(notices), *_tables(scan, show_text=show_text)],
    )


def scan_cautions(scan: "Scan") -> list[str]:
    """Warnings about what the rules of a scan list or found and what is yet not protected."""
    cautions = [
        f"{unfound}. Check their spelling: what is not found is not protected."
        for unfound in scan.unfound
        if unfound.in_another_case or 2 * unfound.in_no_example >= unfound.listed
    ]
    refused = [] if scan.owner is None else [entry for entry in scan.set_aside() if TOO_SHORT in entry.why]
    for rule in dict.fromkeys(entry.rule for entry in refused):
        texts = [entry for entry in refused if entry.rule == rule]
        examples = len(set().union(*(entry.examples for entry in texts)))
        cautions.append(
            f"Rule {rule} found {counted(len(texts), 'text')} in {counted(examples, 'example')} that cannot hold what "
            "its promise assumes: they are so short that anyone guesses them with more than the stated prior. They are "
            "NOT protected; look at them in the review, and list those that matter as literals with a larger prior."
        )
    return cautions


def scan_notes(scan: "Scan") -> list[str]:
    """What is worth knowing about the rules of a scan, and no reason to warn."""
    return [
        f"{unfound}."
        for unfound in scan.unfound
        if not unfound.in_another_case and 2 * unfound.in_no_example < unfound.listed
    ]


def _tables(scan: "Scan", *, show_text: bool) -> Iterator[Table]:
    summary = scan.summary()
    by_secret, by_example = scan.incidence.examples_per_secret, scan.incidence.secrets_per_example
    yield Table(
        title="Rules",
        columns=("rule", "secrets", "of them in some example", "pairs"),
        rows=[tuple(rule[name] for name in ("rule", "secrets", "secrets_found", "pairs")) for rule in summary["rules"]],
    )
    yield from _secret_text(summary)
    for title, counts, name in (
        ("Examples per secret", by_secret, "secrets"),
        ("Secrets per example", by_example, "examples"),
    ):
        bins = histogram_of(counts)
        rows = list(zip(bins.labels, bins.count, strict=True))
        yield Table(title=title, columns=(title.split()[0].lower(), name), rows=rows, bars=1)
    yield _secrets(scan, show_text=show_text)
    yield from _set_aside(scan, show_text=show_text)
    fullest = [int(index) for index in np.argsort(-by_example, kind="stable")[:MAX_EXAMPLES_SHOWN] if by_example[index]]
    ids = example_ids(scan, fullest)
    yield Table(
        title="Examples with most secrets",
        columns=("example", "id", "secrets"),
        rows=[(index, ids.get(index), int(by_example[index])) for index in fullest],
    )
    yield _pairs(scan, show_text=show_text)


def _secret_text(summary: dict[str, Any]) -> Iterator[Table]:
    about = summary.get("secret_text")
    if about is None:  # a scan by an earlier version
        return
    slots = {rule["rule"]: rule.get("examples_with_slots", 0) for rule in summary["rules"]}
    yield Table(
        title="How much text is secret",
        note=f"In all, {100 * about['share']:.2f} % of {about['characters']:,} characters. A rule that hides examples "
        "was not searched for other forms of its secrets, so hiding spans would hide at least the share that is shown.",
        columns=("rule", "hides", "examples with slots", "% if it hides examples", "% if it hides spans"),
        rows=[
            (
                row["rule"],
                row["hides"],
                slots[row["rule"]],
                *(round(100 * row[name], 4) for name in ("example", "span")),
            )
            for row in about["rules"]
        ],
    )


def _secrets(scan: "Scan", *, show_text: bool) -> Table:
    counts = scan.incidence.examples_per_secret
    order = np.argsort(-counts, kind="stable")[:MAX_SECRETS_SHOWN].tolist()
    rules = np.repeat(np.array([name for name, _ in scan.rules]), [count for _, count in scan.rules])
    rows: list[tuple[Cell, ...]] = [
        (scan.secrets.ids[index], str(rules[index]), int(counts[index]), _points(scan.secrets.protections[index]))
        + ((_text(scan, index),) if show_text else ())
        for index in order
    ]
    return Table(
        title="Secrets",
        note=_part(len(rows), len(counts), "the most widespread", "public/secrets.parquet"),
        columns=("id", "rule", "examples", "prior → ceiling", *(("text",) if show_text else ())),
        rows=rows,
    )


def _set_aside(scan: "Scan", *, show_text: bool) -> Iterator[Table]:
    entries = [] if scan.owner is None else scan.set_aside()
    if not entries:
        return
    shown = entries[:MAX_SET_ASIDE_SHOWN]
    ids = example_ids(scan, [entry.examples[0] for entry in shown])
    part = _part(len(shown), len(entries), "the most widespread", "owner/set_aside.parquet")
    yield Table(
        title="Found but set aside",
        note=f"A rule found these and doubts that they are secrets, so they are not protected. {part}",
        columns=("rule", "why", "examples", "first example", *(("text",) if show_text else ())),
        rows=[
            (entry.rule, entry.why, len(entry.examples), ids.get(entry.examples[0]))
            + ((entry.text,) if show_text else ())
            for entry in shown
        ],
    )


def _pairs(scan: "Scan", *, show_text: bool) -> Table:
    reasons = list(islice(scan.why(), MAX_PAIRS_SHOWN + 1))
    ids = example_ids(scan, [reason.example for reason in reasons])
    rows: list[tuple[Cell, ...]] = []
    for reason in reasons[:MAX_PAIRS_SHOWN]:
        span = f"{reason.begin} to {reason.end}" if reason.has_span else ""
        text = (_text(scan, reason.secret),) if show_text else ()
        rows.append((reason.example, ids.get(reason.example), reason.secret_id, reason.reason, span, *text))
    more = len(reasons) > MAX_PAIRS_SHOWN
    return Table(
        title="Who contains what, and why",
        note=f"The first {MAX_PAIRS_SHOWN:,} rows; all of them are in reasons.parquet." if more else "",
        columns=("example", "id", "secret", "reason", "characters", *(("text",) if show_text else ())),
        rows=rows,
    )


def _notes(notices: Sequence[str]) -> Iterator[Table]:
    if notices:
        yield Table(title="Notes", columns=("note",), rows=[(notice,) for notice in notices])


def example_ids(scan: "Scan", examples: Sequence[int]) -> dict[int, str]:
    """The ids of these examples, in one pass over the index."""
    wanted, ids, before = np.unique(examples), dict[int, str](), 0
    for batch in () if scan.owner is None or not len(wanted) else scan.owner.examples("id"):
        here = wanted[(wanted >= before) & (wanted < before + len(batch))]
        ids |= zip(here.tolist(), batch.column("id").take(pa.array(here - before)).to_pylist(), strict=True)
        before += len(batch)
    return ids


def _text(scan: "Scan", secret: int) -> str:
    return "" if scan.secrets.texts is None else scan.secrets.texts[secret]


def _points(protection: "Protection") -> str:
    return ", ".join(f"{rounded_down(prior, 3)} → {rounded_up(ceiling, 3)}" for prior, ceiling in protection.points)


def _part(shown: int, total: int, which: str, file: str) -> str:
    return "" if shown == total else f"{shown:,} of {total:,}, {which}; all of them are in {file}."


# The page

_STYLE = """
:root { color-scheme: light dark; --line: #8884; --soft: #8882; --bar: #4878d0; }
body { font: 15px/1.45 system-ui, sans-serif; margin: 0 auto; max-width: 75rem; padding: 1rem; }
h1 { font-size: 1.5rem; } h2 { font-size: 1.15rem; margin: 2rem 0 .4rem; }
p.note { opacity: .75; margin: .2rem 0 .6rem; }
.tiles { display: flex; flex-wrap: wrap; gap: .6rem; }
.tiles div { background: var(--soft); border-radius: .5rem; padding: .5rem .9rem; }
.tiles b { display: block; font-size: 1.3rem; }
.scroll { overflow-x: auto; max-height: 34rem; overflow-y: auto; border: 1px solid var(--line); border-radius: .4rem; }
table { border-collapse: collapse; width: 100%; font-variant-numeric: tabular-nums; }
th, td { text-align: left; padding: .25rem .6rem; border-bottom: 1px solid var(--line); vertical-align: top; }
td { overflow-wrap: anywhere; min-width: 3rem; }
td.number, th.number { text-align: right; }
th { position: sticky; top: 0; background: Canvas; cursor: pointer; user-select: none; }
th[aria-sort=ascending]::after { content: " \\25B2"; } th[aria-sort=descending]::after { content: " \\25BC"; }
td .bar { display: block; height: .7rem; background: var(--bar); border-radius: .15rem; min-width: 1px; }
input { font: inherit; padding: .25rem .5rem; margin: 0 0 .5rem; width: min(22rem, 100%); box-sizing: border-box; }
"""

_SCRIPT = """
for (const section of document.querySelectorAll("section[data-table]")) {
  const body = section.querySelector("tbody"), rows = [...body.rows];
  const input = section.querySelector("input"), shown = section.querySelector("output");
  input.hidden = false;
  input.addEventListener("input", () => {
    const words = input.value.toLowerCase().split(/\\s+/).filter(Boolean);
    let count = 0;
    for (const row of rows) {
      const text = row.textContent.toLowerCase();
      row.hidden = !words.every(word => text.includes(word));
      count += !row.hidden;
    }
    shown.textContent = words.length ? ` ${count} rows` : "";
  });
  section.querySelectorAll("th").forEach((head, column) => head.addEventListener("click", () => {
    const up = head.getAttribute("aria-sort") !== "ascending";
    section.querySelectorAll("th").forEach(other => other.removeAttribute("aria-sort"));
    head.setAttribute("aria-sort", up ? "ascending" : "descending");
    const key = row => row.cells[column].dataset.value ?? row.cells[column].textContent;
    const number = head.classList.contains("number");
    rows.sort((a, b) => (number ? key(a) - key(b) : key(a).localeCompare(key(b))) * (up ? 1 : -1));
    body.append(...rows);
  }));
}
"""

_POLICY = (
    "default-src 'none'; style-src 'unsafe-inline'; script-src 'unsafe-inline'; base-uri 'none'; form-action 'none'"
)


def page(title: str, *, warning: str, tiles: Iterable[tuple[str, Cell]], tables: Iterable[Table]) -> str:
    """The HTML of the page."""
    boxes = "".join(f"<div><b>{_shown(value)}</b>{escape(name)}</div>" for name, value in tiles)
    return (
        '<!doctype html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n'
        '<meta name="viewport" content="width=device-width, initial-scale=1">\n'
        f'<meta http-equiv="Content-Security-Policy" content="{_POLICY}">\n'
        f"<title>{escape(title)}</title>\n<style>{_STYLE}</style>\n</head>\n<body>\n"
        f'<h1>{escape(title)}</h1>\n<p class="note">{escape(warning)}</p>\n<div class="tiles">{boxes}</div>\n'
        + "".join(map(_section, tables))
        + f"<script>{_SCRIPT}</script>\n</body>\n</html>\n"
    )


def _section(table: Table) -> str:
    numeric = [_is_number_column(table, place) for place in range(len(table.columns))]
    largest = max((float(row[table.bars] or 0) for row in table.rows), default=0.0) if table.bars is not None else 0.0
    heads = "".join(
        f"<th{' class=number' if is_number else ''}>{escape(name)}</th>"
        for name, is_number in zip(table.columns, numeric, strict=True)
    )
    bars = "" if table.bars is None else "<th></th>"
    lines = []
    for row in table.rows:
        cells = "".join(map(_cell, row))
        if table.bars is not None:
            share = 100 * float(row[table.bars] or 0) / largest if largest else 0.0
            cells += f'<td style="width:40%"><span class="bar" style="width:{share:.1f}%"></span></td>'
        lines.append(f"<tr>{cells}</tr>")
    note = f'<p class="note">{escape(table.note)}</p>\n' if table.note else ""
    return (
        f"<section data-table>\n<h2>{escape(table.title)}</h2>\n{note}"
        '<input hidden type="search" placeholder="filter" aria-label="filter"><output></output>\n'
        f'<div class="scroll"><table><thead><tr>{heads}{bars}</tr></thead>\n<tbody>\n'
        + "\n".join(lines)
        + "\n</tbody></table></div>\n</section>\n"
    )


def _cell(value: Cell) -> str:
    if isinstance(value, int | float):
        return f'<td class="number" data-value="{value!r}">{_shown(value)}</td>'
    return f"<td>{_shown(value)}</td>"


def _shown(value: Cell) -> str:
    if value is None:
        return ""
    if isinstance(value, str):
        return escape(value)
    return f"{value:,}" if isinstance(value, int) else f"{value:g}"


def _is_number_column(table: Table, place: int) -> bool:
    return bool(table.rows) and all(isinstance(row[place], int | float) for row in table.rows)


# Histograms for the summary and the review


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class Histogram:
    """A histogram with bins that double: 0, 1, 2 to 3, 4 to 7, …; each from ``least`` to ``most``."""

    least: tuple[int, ...]
    most: tuple[int, ...]
    count: tuple[int, ...]

    @property
    def labels(self) -> list[str]:
        """The bins as text."""
        pairs = zip(self.least, self.most, strict=True)
        return [f"{low:,}" if low == high else f"{low:,} to {high:,}" for low, high in pairs]


def histogram_of(count_K: NDArray[np.integer]) -> Histogram:
    """The histogram of these counts, from the first to the last bin that is not empty.

    >>> histogram_of(np.array([0, 1, 5, 6, 7, 1]))
    Histogram(least=(0, 1, 2, 4), most=(0, 1, 3, 7), count=(1, 2, 0, 3))
    """
    if not count_K.size:
        return Histogram(least=(), most=(), count=())
    bin_K = np.frexp(count_K.astype(np.float64))[1]  # number of binary digits: 0 for 0, 1 for 1, 2 for 2 and 3
    filled = np.bincount(bin_K)
    bins = range(int(bin_K.min()), len(filled))
    return Histogram(
        least=tuple(2 ** (each - 1) if each else 0 for each in bins),
        most=tuple(2**each - 1 for each in bins),
        count=tuple(int(filled[each]) for each in bins),
    )

"""The review table as a page for people: one HTML file that loads nothing, to sort and filter and look through.

Everything is escaped, and the page forbids its own browser to fetch anything. It works without scripts, which only add
sorting and filtering.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from html import escape
from typing import final

__all__ = ["Table", "page"]

Cell = str | int | float | None

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


@final
@dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class Table:
    """A table of the page. bars: the number of a column that is also drawn as a bar beside it."""

    title: str
    note: str = ""
    columns: Sequence[str]
    rows: Sequence[Sequence[Cell]]
    bars: int | None = None


def page(title: str, *, warning: str, tiles: Iterable[tuple[str, Cell]], tables: Iterable[Table]) -> str:
    """The whole page."""
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

"""What an audit shows at its end: the verdict with its rows."""

from collections.abc import Sequence
from pathlib import Path

from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.table import Table

from hush.audit.headline import STYLES, headline
from hush.audit.record import discoverable_line, exposure_line, row_cells
from hush.audit.record import extraction_cells as cell_cells
from hush.cli.results.accounting import Record
from hush.console import counted, plain, show_rows

__all__ = ["show_audit"]


SHORT = {"not comparable": "no bound"}
COLUMNS = ("secret", "prior", "certified", "reached", "limits", "")  # ceilings are in the report
NUMBERS = 57  # columns of the terminal that all but the first need
TITLES = {
    "mechanism": "The worst case that the plan allows, simulated",
    "extraction": "Secrets that the model says when prompted",
    "naming": "The first canary, named among its candidates",
}


def show_audit(record: Record, folder: Path, console: Console) -> None:
    """The verdict first, loud if it is bad; then every row, what was extracted, and what to know."""
    style = STYLES.get(record["verdict"], "yellow")
    console.print(headline(record), style=style, soft_wrap=True, highlight=False)
    if record["why_not"]:
        console.print(plain(f"Nothing is certified: {record['why_not']}"), style="yellow", soft_wrap=True)
    for attack, title in TITLES.items():
        rows = [row_cells(row, digits=2)[1:] for row in record["rows"] if row["attack"] == attack]
        if rows:
            _show_attacks(console, title, rows)
    for one in record["extraction"]:
        columns = ("prompt", "continuation", "came out", "lower", "upper", "anyway")
        left = ", ".join(f"{count:,} {why}" for why, count in one["left_out"].items() if count)
        title = f"Extraction: {one['what']}, {counted(one['sequences'], 'sequence')}"
        title += f"; left out: {left}" if left else ""
        show_rows(console, columns, map(cell_cells, one["cells"]), title=title)
        if one["discoverable"]:
            console.print(discoverable_line(one), highlight=False, soft_wrap=True)
    if record["exposure"] is not None:
        console.print(exposure_line(record["exposure"]), highlight=False, soft_wrap=True)
    for notice in record["notices"]:
        console.print(plain(f"Note: {notice}."), soft_wrap=True)
    console.print(
        plain(f"The report: {folder / 'audit.md'}. It is for your eyes: numbers from data with secrets are a release."),
        soft_wrap=True,
    )


def _show_attacks(console: Console, title: str, rows: Sequence[Sequence[str]]) -> None:
    """A table that breaks cells between words where it must, and an id only if there is no room for it."""
    table = Table(*COLUMNS, box=SIMPLE_HEAD, title=title, title_justify="left", title_style="bold")
    for place, column in enumerate(table.columns):
        column.justify = "right" if place else "left"
        column.overflow = "fold"
        column.no_wrap = place in (1, 2)
    table.columns[0].no_wrap = max(len(row[0]) for row in rows) <= console.width - NUMBERS
    for row in rows:
        table.add_row(*map(plain, _narrow(row)))
    console.print(table)


def _narrow(cells: Sequence[str]) -> tuple[str, ...]:
    """Both limits share a column, which may break between them where a terminal is narrow."""
    secret, prior, certified, _, reached, lower, upper, result = cells
    limits = "–" if lower == "–" else f"{lower} – {upper}"
    return secret, prior, certified, reached, limits, SHORT.get(result, result)

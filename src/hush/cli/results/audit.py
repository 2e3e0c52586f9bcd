"""Output of ``hush audit``: the verdict, and a table for each attack."""

from collections.abc import Sequence
from pathlib import Path

from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.table import Table

from hush.audit.headline import STYLES, headline
from hush.audit.record import discoverable_line, exposure_line, extraction_cells, row_cells
from hush.cli.results.accounting import Record
from hush.console import counted, plain, show_rows

__all__ = ["show_audit"]


SHORT_RESULTS = {"not comparable": "no bound"}
COLUMNS = ("secret", "prior", "certified", "reached", "limits", "")  # ceilings are in the report
NUMBERS_WIDTH = 57  # characters that all columns but the first take on a terminal
TITLES = {
    "mechanism": "The worst case that the plan allows, simulated",
    "extraction": "Secrets that the model says when prompted",
    "naming": "The first canary, named among its candidates",
}


def show_audit(record: Record, folder: Path, console: Console) -> None:
    """Print the verdict, every row, what was extracted, and notes."""
    style = STYLES.get(record["verdict"], "yellow")
    console.print(headline(record), style=style, soft_wrap=True, highlight=False)
    if record["why_not"]:
        console.print(plain(f"Nothing is certified: {record['why_not']}"), style="yellow", soft_wrap=True)
    for attack, title in TITLES.items():
        rows = [row_cells(row, digits=2)[1:] for row in record["rows"] if row["attack"] == attack]
        if rows:
            _show_attacks(console, title, rows)
    for extraction in record["extraction"]:
        columns = ("prompt", "continuation", "extracted", "lower", "upper", "reference")
        left_out = ", ".join(f"{count:,} {why}" for why, count in extraction["left_out"].items() if count)
        title = f"Extraction: {extraction['what']}, {counted(extraction['sequences'], 'sequence')}"
        title += f"; left out: {left_out}" if left_out else ""
        show_rows(console, columns, map(extraction_cells, extraction["cells"]), title=title)
        if extraction["discoverable"]:
            console.print(discoverable_line(extraction), highlight=False, soft_wrap=True)
    if record["exposure"] is not None:
        console.print(exposure_line(record["exposure"]), highlight=False, soft_wrap=True)
    for notice in record["notices"]:
        console.print(plain(f"Note: {notice}."), soft_wrap=True)
    console.print(
        plain(
            f"Report: {folder / 'audit.md'}. Keep it private: publishing numbers from data with secrets is a release."
        ),
        soft_wrap=True,
    )


def _show_attacks(console: Console, title: str, rows: Sequence[Sequence[str]]) -> None:
    """Print a table that wraps cells between words, and wraps an id only if it does not fit."""
    table = Table(*COLUMNS, box=SIMPLE_HEAD, title=title, title_justify="left", title_style="bold")
    for place, column in enumerate(table.columns):
        column.justify = "right" if place else "left"
        column.overflow = "fold"
        column.no_wrap = place in (1, 2)
    table.columns[0].no_wrap = max(len(row[0]) for row in rows) <= console.width - NUMBERS_WIDTH
    for row in rows:
        table.add_row(*map(plain, _narrow(row)))
    console.print(table)


def _narrow(cells: Sequence[str]) -> tuple[str, ...]:
    """The cells of a row with both limits in one column, which a narrow terminal may wrap between them."""
    secret, prior, certified, _, reached, lower, upper, result = cells
    limits = "–" if lower == "–" else f"{lower} – {upper}"
    return secret, prior, certified, reached, limits, SHORT_RESULTS.get(result, result)

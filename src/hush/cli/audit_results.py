"""What an audit shows: where it stands while it runs, and at the end the verdict with its rows."""

from collections.abc import Sequence
from pathlib import Path
from types import TracebackType
from typing import Self

from rich.console import Console
from rich.progress import BarColumn, Progress, TaskProgressColumn, TextColumn, TimeElapsedColumn

from hush.audit.audit_report import cell_cells, discoverable_line, exposure_line, headline, row_cells
from hush.cli.results import Record
from hush.console import counted, plain, show_rows

__all__ = ["AuditBar", "show_audit"]

SHORT = {"not comparable": "no bound"}
COLUMNS = ("secret", "prior", "certified", "ceiling", "reached", "limits", "")
TITLES = {
    "mechanism": "The worst case that the plan allows, simulated",
    "extraction": "Secrets that the model says when prompted",
    "naming": "The first canary, named among its candidates",
}


class AuditBar:
    """Told what is being done and how far it is; shown on a terminal, and nowhere else."""

    def __init__(self, console: Console) -> None:
        columns = (TextColumn("{task.description}"), BarColumn(), TaskProgressColumn(), TimeElapsedColumn())
        self._bar = Progress(*columns, console=console, transient=True, disable=not console.is_terminal)
        self._task = self._bar.add_task("Auditing", total=None)

    def __enter__(self) -> Self:
        self._bar.start()
        return self

    def __call__(self, what: str, done: int, total: int) -> None:
        self._bar.update(self._task, description=what, completed=done, total=total)

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._bar.stop()


def show_audit(record: Record, folder: Path, console: Console) -> None:
    """The verdict first, loud if it is bad; then every row, what was extracted, and what to know."""
    style = {"failed": "bold white on red", "kept": "green"}.get(record["verdict"], "yellow")
    console.print(headline(record), style=style, soft_wrap=True, highlight=False)
    if record["why_not"]:
        console.print(plain(f"Nothing is certified: {record['why_not']}"), style="yellow", soft_wrap=True)
    for attack, title in TITLES.items():
        rows = [row_cells(row, digits=2)[1:] for row in record["rows"] if row["attack"] == attack]
        if rows:
            show_rows(console, COLUMNS, map(_narrow, rows), title=title)
    for one in record["extraction"]:
        columns = ("prompt", "continuation", "came out", "lower", "upper", "anyway")
        title = f"Extraction: {one['what']}, {counted(one['sequences'], 'sequence')}"
        show_rows(console, columns, map(cell_cells, one["cells"]), title=title)
        if one["discoverable"]:
            console.print(discoverable_line(one), highlight=False)
    if record["exposure"] is not None:
        console.print(exposure_line(record["exposure"]), highlight=False)
    for notice in record["notices"]:
        console.print(plain(f"Note: {notice}."), soft_wrap=True)
    console.print(
        plain(f"The report: {folder / 'audit.md'}. It is for your eyes: numbers from data with secrets are a release."),
        soft_wrap=True,
    )


def _narrow(cells: Sequence[str]) -> tuple[str, ...]:
    """Both limits share a column, which may break between them where a terminal is narrow."""
    *others, lower, upper, result = cells
    limits = "–" if lower == "–" else f"{lower} – {upper}"
    return *others, limits, SHORT.get(result, result)

"""How results are shown in a terminal: numbers rounded to the safe side, tables, and a progress bar."""

import threading
import time
from collections.abc import Iterable, Mapping, Sequence
from types import TracebackType
from typing import Self

from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.progress import BarColumn, Progress, TaskProgressColumn, TextColumn, TimeElapsedColumn
from rich.table import Table
from rich.text import Text

from hush.rounding import counted, rounded_down, rounded_up

__all__ = ["BOUND_NAMES", "ProgressBar", "counted", "plain", "rounded_down", "rounded_up", "show_rows", "times_less"]

BOUND_NAMES: Mapping[str, str] = {"kl": "KL (the paper)", "renyi": "Rényi", "blowup": "blow-up (tight)"}
MOMENT = 0.5  # seconds before a progress bar is worth showing


def times_less(more: float, less: float) -> str:
    """How many times less noise, rounded down; a dash where the smaller one is 0.

    >>> times_less(30.99, 1.8166), times_less(0.6358, 0.3071), times_less(1.0, 0.0)
    ('17.0', '2.07', '–')
    """
    return rounded_down(more / less, 3) if less > 0 else "–"


def plain(text: str) -> Text:
    """Text as it is: no markup, and nothing that a terminal would obey."""
    return Text("".join(letter if letter.isprintable() else "\N{REPLACEMENT CHARACTER}" for letter in text))


def show_rows(console: Console, columns: Sequence[str], rows: Iterable[Sequence[str]], *, title: str = "") -> None:
    """Print a table whose first column is a name and whose others are numbers; what is too wide is broken, not cut."""
    table = Table(*columns, box=SIMPLE_HEAD, title=title or None, title_justify="left", title_style="bold")
    for place, column in enumerate(table.columns):
        column.justify = "right" if place else "left"
        column.overflow = "fold"
    for row in rows:
        table.add_row(*(plain(cell) for cell in row))
    console.print(table)


class ProgressBar:
    """Called with (done, total) from any thread; a bar appears after a moment, and only on a terminal."""

    def __init__(self, console: Console, label: str) -> None:
        self._lock = threading.Lock()
        self._begin = time.monotonic()
        self._done = 0
        columns = (TextColumn("{task.description}"), BarColumn(), TaskProgressColumn(), TimeElapsedColumn())
        self._bar = Progress(*columns, console=console, transient=True, disable=not console.is_terminal)
        self._task = self._bar.add_task(label, total=None)

    def __enter__(self) -> Self:
        return self

    def __call__(self, done: int, total: int) -> None:
        with self._lock:
            self._done = max(self._done, done)  # calls may overtake each other
            self._bar.update(self._task, completed=self._done, total=total)
            if not self._bar.live.is_started and time.monotonic() - self._begin > MOMENT:
                self._bar.start()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._bar.live.is_started:
            self._bar.stop()

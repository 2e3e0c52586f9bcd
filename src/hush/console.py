"""How results are shown in a terminal: numbers rounded to the safe side, tables, and a progress bar.

An upper bound is printed rounded up and a lower bound rounded down, so that what is read is still true.
"""

import threading
import time
from collections.abc import Iterable, Mapping, Sequence
from decimal import ROUND_CEILING, ROUND_FLOOR, Decimal
from types import TracebackType
from typing import Self

from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.progress import BarColumn, Progress, TaskProgressColumn, TextColumn, TimeElapsedColumn
from rich.table import Table
from rich.text import Text

__all__ = ["BOUND_NAMES", "ProgressBar", "plain", "rounded_down", "rounded_up", "show_rows", "times_less"]

BOUND_NAMES: Mapping[str, str] = {"kl": "KL (the paper)", "renyi": "Rényi", "blowup": "blow-up (tight)"}
MOMENT = 0.5  # seconds before a progress bar is worth showing


def rounded_up(value: float, digits: int = 4) -> str:
    """So many significant digits, never below the value.

    >>> rounded_up(0.00099621), rounded_up(30.9919), rounded_up(1e-10), rounded_up(1234.5)
    ('0.0009963', '31.00', '1.000e-10', '1235')
    """
    return _rounded(value, digits, ROUND_CEILING)


def rounded_down(value: float, digits: int = 4) -> str:
    """So many significant digits, never above the value.

    >>> rounded_down(0.00099629)
    '0.0009962'
    """
    return _rounded(value, digits, ROUND_FLOOR)


def _rounded(value: float, digits: int, direction: str) -> str:
    shortest = Decimal(repr(float(value)))  # 1e-10 stays 1e-10, though the float is a little more
    if not shortest:
        return "0"
    step = Decimal(1).scaleb(shortest.adjusted() - digits + 1)
    return f"{float(shortest.quantize(step, rounding=direction)):#.{digits}g}".removesuffix(".")


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
    """Print a table whose first column is a name and whose others are numbers."""
    table = Table(*columns, box=SIMPLE_HEAD, title=title or None, title_justify="left", title_style="bold")
    for column in table.columns[1:]:
        column.justify = "right"
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

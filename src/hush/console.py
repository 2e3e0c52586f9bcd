"""Console output that every stage may use: numbers rounded to the safe side, tables, progress bars and log lines."""

import threading
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from types import TracebackType
from typing import Any, Self, final

from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.progress import BarColumn, Progress, ProgressColumn, Task, TaskProgressColumn, TextColumn, TimeElapsedColumn
from rich.table import Column, Table
from rich.text import Text

from hush.numbers import counted, rounded_down, rounded_up

__all__ = [
    "BOUND_NAMES",
    "Heartbeat",
    "ProgressBar",
    "WorkBar",
    "counted",
    "lasting",
    "plain",
    "rounded_down",
    "rounded_up",
    "show_rows",
    "timed_bar",
    "times_less",
]


BOUND_NAMES: Mapping[str, str] = {"kl": "KL (the paper)", "renyi": "Rényi", "blowup": "blow-up (tight)"}
BAR_DELAY_SECONDS = 0.5  # shorter work shows no progress bar
ESTIMATE_DELAY_SECONDS = 3.0  # before a bar shows the time left
SPEED_WINDOW_SECONDS = 600.0  # over which speed is measured: some units of work are long
LOG_INTERVAL_SECONDS = 30.0  # between lines where there is no bar


def times_less(more: float, less: float) -> str:
    """The ratio of two amounts of noise, rounded down; a dash where the smaller one is 0.

    >>> times_less(30.99, 1.8166), times_less(0.6358, 0.3071), times_less(1.0, 0.0)
    ('17.0', '2.07', '–')
    """
    return rounded_down(more / less, 3) if less > 0 else "–"


def plain(text: str) -> Text:
    """Text without markup, its control characters replaced."""
    return Text("".join(letter if letter.isprintable() else "\N{REPLACEMENT CHARACTER}" for letter in text))


def show_rows(console: Console, columns: Sequence[str], rows: Iterable[Sequence[str]], *, title: str = "") -> None:
    """Print a table, the first column left-aligned and the others right-aligned; long cells wrap and are never cut."""
    table = Table(*columns, box=SIMPLE_HEAD, title=title or None, title_justify="left", title_style="bold")
    for place, column in enumerate(table.columns):
        column.justify = "right" if place else "left"
        column.overflow = "fold"
    for row in rows:
        table.add_row(*(plain(cell) for cell in row))
    console.print(table)


def lasting(seconds: float) -> str:
    """A duration in words.

    >>> lasting(59.9), lasting(61), lasting(3 * 3600 + 61)
    ('59 s', '1 min', '3 h 01 min')
    """
    minutes, hours = int(seconds // 60), int(seconds // 3600)
    if hours:
        return f"{hours} h {minutes % 60:02d} min"
    return f"{minutes} min" if minutes else f"{int(seconds)} s"


@final
class TimeLeft(ProgressColumn):
    """The time left, once it can be estimated."""

    def render(self, task: Task) -> Text:
        """Nothing in the first seconds."""
        left = task.time_remaining
        known = left is not None and not task.finished and (task.elapsed or 0.0) >= ESTIMATE_DELAY_SECONDS
        return Text(f"{lasting(left)} left" if known and left is not None else "", style="progress.remaining")


def timed_bar(console: Console, **more: Any) -> Progress:
    """A progress bar with a label, the share done, the time elapsed and the time left."""
    # On a narrow terminal the bar gets shorter and times are not cut.
    times = (kind(table_column=Column(no_wrap=True)) for kind in (TimeElapsedColumn, TimeLeft))
    columns = (TextColumn("{task.description}"), BarColumn(), TaskProgressColumn(), *times)
    return Progress(*columns, console=console, transient=True, speed_estimate_period=SPEED_WINDOW_SECONDS, **more)


@final
class Heartbeat:
    """Prints the progress of some work regularly where no bar can be drawn: in a log, under a scheduler.

    Not for rounds of training: their times tell how large the secret draws were.
    """

    def __init__(self, console: Console, *, clock: Callable[[], float] = time.monotonic) -> None:
        self._console, self._clock = console, clock
        self._what, self._begin, self._last = "", 0.0, 0.0

    def __call__(self, what: str, done: int, total: int) -> None:
        """Report progress; the first call for a label marks the beginning of that work."""
        if self._console.is_terminal:
            return
        now = self._clock()
        if what != self._what:
            self._what, self._begin, self._last = what, now, now
        elif now - self._last >= LOG_INTERVAL_SECONDS and 0 < done < total:
            self._last = now
            left = (now - self._begin) * (total - done) / done
            self._console.print(plain(f"{what}: {done / total:.0%}, about {lasting(left)} left"), soft_wrap=True)


class ProgressBar:
    """Called with (done, total) from any thread; shows a bar if the work lasts, or lines where there is no terminal."""

    def __init__(self, console: Console, label: str) -> None:
        self._lock = threading.Lock()
        self._begin = time.monotonic()
        self._done = 0
        self._label, self._beat = label, Heartbeat(console)
        self._bar = timed_bar(console, disable=not console.is_terminal)
        self._task = self._bar.add_task(label, total=None)

    def __enter__(self) -> Self:
        return self

    def __call__(self, done: int, total: int) -> None:
        with self._lock:
            self._done = max(self._done, done)  # calls of several threads may arrive out of order
            self._bar.update(self._task, completed=self._done, total=total)
            self._beat(self._label, self._done, total)
            if not self._bar.live.is_started and time.monotonic() - self._begin > BAR_DELAY_SECONDS:
                self._bar.start()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._bar.live.is_started:
            self._bar.stop()


@final
class WorkBar:
    """A bar for consecutive pieces of work, each timed separately; shown only on a terminal."""

    def __init__(self, console: Console, what: str) -> None:
        self._lock = threading.Lock()
        self._bar = timed_bar(console, disable=console.quiet or not console.is_terminal)
        self._what, self._task = what, self._bar.add_task(what, total=None)

    def __enter__(self) -> Self:
        self._bar.start()
        return self

    def begin(self, what: str) -> None:
        """Begin other work, of which the amount is not known yet."""
        with self._lock:
            self._begin(what)

    def __call__(self, what: str, done: int, total: int, *, shown: str | None = None) -> None:
        """Report progress of this work. shown: the text beside the bar, by default the label."""
        with self._lock:
            if what != self._what:
                self._begin(what)
            self._bar.update(self._task, description=shown or what, completed=done, total=total)

    def _begin(self, what: str) -> None:
        self._bar.remove_task(self._task)  # a reused task would keep its speed and, once finished, its time
        self._what, self._task = what, self._bar.add_task(what, total=None)

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._bar.stop()

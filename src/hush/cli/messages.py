"""What all commands share: how much they print, and how errors and Ctrl-C become a message and an exit code.

Results go to standard output; progress, notes and errors go to standard error.

Without a terminal (under a scheduler, in a container, behind nohup) long work logs a line now and then. A log is easily
kept and passed on, so of training it holds only which rounds are done, at rounds that are fixed beforehand, and neither
times nor losses: those depend on the secret draw.
"""

import inspect
import os
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, replace
from errno import EDQUOT, EFBIG, ENOSPC
from functools import wraps
from io import TextIOWrapper
from traceback import format_tb
from typing import TYPE_CHECKING, Annotated, Any, final

import typer
from rich.console import Console
from rich.text import Text

from hush.cli.interrupt import INTERRUPTED, TERMINATED, Terminated, keep_interrupt
from hush.cli.options import PRINTING_PANEL, flag, flags_of
from hush.console import Heartbeat, ProgressBar, plain
from hush.errors import HushError, InvalidInput, NameOf

if TYPE_CHECKING:
    from hush.run.job import Watch
    from hush.train.round import LiveNumbers

__all__ = [
    "DebugOption",
    "Milestones",
    "QuietOption",
    "VerboseOption",
    "call_both",
    "command",
    "is_quiet",
    "is_verbose",
    "log_progress",
    "set_verbosity",
    "terminal",
    "working",
]


STOPPED_MESSAGE = "Stopped; no result was written. Run the same command again to start over."
OUT_OF_MEMORY_MESSAGE = (
    "out of memory; process less at once (--micro-batch, --workers), lower the numbers, or use a larger machine"
)

QuietOption = Annotated[bool, flag("--quiet", "Print only results and errors.", panel=PRINTING_PANEL)]
VerboseOption = Annotated[bool, flag("--verbose", "Also print each step and how long it took.", panel=PRINTING_PANEL)]
DebugOption = Annotated[bool, flag("--debug", "Print a traceback with an error.", panel=PRINTING_PANEL)]
VERBOSITY_OPTIONS = {"quiet": QuietOption, "verbose": VerboseOption, "debug": DebugOption}


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class _Verbosity:
    """How much the user wants to read."""

    quiet: bool = False
    verbose: bool = False
    debug: bool = False


_verbosity: ContextVar[_Verbosity] = ContextVar("verbosity", default=_Verbosity())  # noqa: B039 - it is frozen


def set_verbosity(*, quiet: bool, verbose: bool, debug: bool) -> None:
    """Set how much is printed from now on."""
    _verbosity.set(_Verbosity(quiet=quiet, verbose=verbose, debug=debug))


def is_quiet() -> bool:
    """Whether --quiet was given."""
    return _verbosity.get().quiet


def is_verbose() -> bool:
    """Whether --verbose was given."""
    return _verbosity.get().verbose


def terminal(*, silent: bool = False) -> Console:
    """Standard error, for progress and notes; it shows nothing with --quiet, or if silent."""
    return Console(stderr=True, quiet=silent or _verbosity.get().quiet)


@contextmanager
def working(label: str, *, silent: bool = False) -> Iterator[ProgressBar]:
    """Show a progress bar on a terminal if the work inside takes a while; with --verbose, print how long it took."""
    console, begin = terminal(silent=silent), time.perf_counter()
    with ProgressBar(console, label) as progress:
        yield progress
    if is_verbose():
        console.print(plain(f"{label}: {time.perf_counter() - begin:.2f} s"), soft_wrap=True)


def command(function: Callable[..., None]) -> Callable[..., None]:
    """Add --quiet, --verbose and --debug to a command, and turn its errors into a message and an exit code.

    0 done, 1 a promise or check failed, or a bug of hush, 2 bad input, 130 Ctrl-C, 143 SIGTERM. The three options may
    also be given before the command.
    """

    @wraps(function)
    def wrapped(**arguments: Any) -> None:
        before = _verbosity.get()
        verbosity = {name: arguments.pop(name) or getattr(before, name) for name in VERBOSITY_OPTIONS}
        set_verbosity(**verbosity)
        _escape_undecodable_names()
        try:
            with _closed_output_ignored(), _errors_shown(flags_of(function)):
                if verbosity["quiet"] and verbosity["verbose"]:
                    raise InvalidInput("--quiet and --verbose contradict each other; pass one of them")
                function(**arguments)
        finally:
            _verbosity.set(_Verbosity())  # the next command of the same process starts from the default

    signature = inspect.signature(function)
    more = [
        inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=False, annotation=option)
        for name, option in VERBOSITY_OPTIONS.items()
    ]
    wrapped.__signature__ = signature.replace(parameters=[*signature.parameters.values(), *more])  # pyright: ignore[reportAttributeAccessIssue]
    wrapped.__annotations__ = function.__annotations__ | VERBOSITY_OPTIONS
    return wrapped


def _escape_undecodable_names() -> None:
    """Show file names that are not valid Unicode with escapes on standard output, as Python does on standard error."""
    if isinstance(sys.stdout, TextIOWrapper) and sys.stdout.errors == "strict":
        sys.stdout.reconfigure(errors="backslashreplace")  # these escapes are valid in JSON, too


@final
class _ClosableOutput:
    """Standard output that discards what nobody reads: after ``| head`` a command still ends with its own exit code."""

    def __init__(self, stream: Any) -> None:
        self._stream = stream

    def write(self, text: str) -> int:
        try:
            return self._stream.write(text)
        except BrokenPipeError:
            self._discard()
            return len(text)

    def flush(self) -> None:
        try:
            self._stream.flush()
        except BrokenPipeError:
            self._discard()

    def _discard(self) -> None:
        """Sends everything from now on, also what is still buffered, to the null device."""
        null = os.open(os.devnull, os.O_WRONLY)
        os.dup2(null, self._stream.fileno())
        os.close(null)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)


@contextmanager
def _closed_output_ignored() -> Iterator[None]:
    stream = sys.stdout
    sys.stdout = _ClosableOutput(stream)
    try:
        yield
        sys.stdout.flush()
    finally:
        sys.stdout = stream


@contextmanager
def _errors_shown(name_of: NameOf) -> Iterator[None]:
    """Print errors and Ctrl-C on one line, also with --quiet, and exit. A KeyboardInterrupt may carry its message.

    An unexpected error is shown without its message: a message of another library may quote the data.
    """
    try:
        with keep_interrupt():
            yield
    except KeyboardInterrupt as stopped:
        Console(stderr=True).print(plain(str(stopped) or STOPPED_MESSAGE), soft_wrap=True)
        raise typer.Exit(TERMINATED if isinstance(stopped, Terminated) else INTERRUPTED) from None
    except (BrokenPipeError, typer.Exit, typer.Abort):
        raise  # the reader of the output has closed it, or the command has printed its own message
    except Exception as error:
        console = Console(stderr=True)
        if isinstance(error, HushError):
            error.show_settings_as(name_of)
        if _verbosity.get().debug:
            console.print(_printable("".join(_traceback(error))), soft_wrap=True)
        console.print(_printable(f"Error: {_message(error)}"), style="red", soft_wrap=True)
        raise typer.Exit(2 if isinstance(error, InvalidInput | OSError) or _is_out_of_memory(error) else 1) from None


def _message(error: Exception) -> str:
    """What is printed about an error."""
    if isinstance(error, HushError):
        return str(error)
    if isinstance(error, OSError):
        disk_full = error.errno in (ENOSPC, EDQUOT, EFBIG)
        remedy = (
            "free some space, then run the same command again" if disk_full else "check the path and its permissions"
        )
        return f"{error.filename or 'a file'}: {error.strerror or error}; {remedy}"
    if _is_out_of_memory(error):
        return OUT_OF_MEMORY_MESSAGE
    kind = f"{type(error).__qualname__}; its message is hidden because it may quote the data"
    return f"unexpected error in hush ({kind}); please report it with the output of --debug"


def _printable(text: str) -> Text:
    """Text with its lines, but without terminal control codes: an error may quote a file that others wrote."""
    lines = text.encode(errors="backslashreplace").decode().split("\n")  # escapes for names that are not Unicode
    return Text("\n").join(map(plain, lines))


def _is_out_of_memory(error: Exception) -> bool:
    """Whether memory ran out, on this machine or on a GPU, for which PyTorch has a class of its own."""
    return isinstance(error, MemoryError) or type(error).__name__ == "OutOfMemoryError"


def _traceback(error: BaseException) -> list[str]:
    """A traceback with its causes, but without messages of other libraries, which may quote what they read."""
    cause = error.__cause__ or (None if error.__suppress_context__ else error.__context__)
    causes = [] if cause is None else [*_traceback(cause), "\nwhich led to:\n\n"]
    message = f": {error}" if isinstance(error, HushError | OSError) else " (its message may quote the data)"
    frames = format_tb(error.__traceback__)
    return [*causes, "Traceback (most recent call last):\n", *frames, f"{type(error).__qualname__}{message}\n"]


# --- Progress in logs


MILESTONES = 10  # equal parts of a training; the end of each but the last is logged
MIN_LOGGED_ROUNDS = 2 * MILESTONES  # shorter trainings log no rounds


@final
class Milestones:
    """Called after every round; logs every tenth part of the rounds, where there is no terminal."""

    def __init__(self, console: Console) -> None:
        self._console = console

    def __call__(self, live: "LiveNumbers") -> None:
        rounds = live.round + live.rounds_left
        reached, before = (MILESTONES * round // rounds for round in (live.round, live.round - 1))
        if not self._console.is_terminal and rounds >= MIN_LOGGED_ROUNDS and reached > before and live.rounds_left:
            self._console.print(f"Round {live.round:,} of {rounds:,} is done.", soft_wrap=True, highlight=False)


def call_both(first: Callable[..., object], second: Callable[..., object]) -> Callable[..., None]:
    """A function that calls the first, then the second, with the same arguments."""

    def call(*arguments: Any) -> None:
        first(*arguments)
        second(*arguments)

    return call


def log_progress(watch: "Watch", console: Console) -> "Watch":
    """The observer of a run, extended to log how far its stages are."""
    return replace(
        watch, work=call_both(watch.work, Heartbeat(console)), live=call_both(watch.live, Milestones(console))
    )

"""What all commands share: how much they say, and how errors and Ctrl-C become a message and an exit code.

Results go to standard output; progress, notes and errors go to standard error.

What long work says where there is no terminal: under a scheduler, in a container, behind nohup.

A log is easily kept and passed on. So of training it holds which rounds are done, at places that were fixed before, and
neither times nor losses: they depend on the secret draw.
"""

import inspect
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

from hush.cli.interrupt import INTERRUPTED, TERMINATED, Terminated, remembered_interrupt
from hush.cli.options import PRINTED, flag, flags_of
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
    "both",
    "command",
    "is_quiet",
    "is_verbose",
    "logged",
    "say_as_asked",
    "terminal",
    "working",
]


STOPPED = "Stopped; no result was written. The same command begins anew."
NO_MEMORY = "memory ran out; pass less at once (--micro-batch, --workers) or smaller numbers, or use a larger machine"

QuietOption = Annotated[bool, flag("--quiet", "Print only results and errors.", panel=PRINTED)]
VerboseOption = Annotated[
    bool, flag("--verbose", "Also print what is being done, and how long it took.", panel=PRINTED)
]
DebugOption = Annotated[bool, flag("--debug", "With an error, print where in the program it arose.", panel=PRINTED)]
OPTIONS = {"quiet": QuietOption, "verbose": VerboseOption, "debug": DebugOption}


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class _Asked:
    """How much the user wants to read."""

    quiet: bool = False
    verbose: bool = False
    debug: bool = False


_asked: ContextVar[_Asked] = ContextVar("asked", default=_Asked())  # noqa: B039 - it is frozen


def say_as_asked(*, quiet: bool, verbose: bool, debug: bool) -> None:
    """From now on say so much."""
    _asked.set(_Asked(quiet=quiet, verbose=verbose, debug=debug))


def is_quiet() -> bool:
    """Whether --quiet was given."""
    return _asked.get().quiet


def is_verbose() -> bool:
    """Whether --verbose was given."""
    return _asked.get().verbose


def terminal(*, silent: bool = False) -> Console:
    """Standard error, for progress and notes; with --quiet, or silent, it shows nothing."""
    return Console(stderr=True, quiet=silent or _asked.get().quiet)


@contextmanager
def working(label: str, *, silent: bool = False) -> Iterator[ProgressBar]:
    """A piece of work, with a progress bar on a terminal if it lasts; with --verbose, a line on how long it took."""
    console, begin = terminal(silent=silent), time.perf_counter()
    with ProgressBar(console, label) as progress:
        yield progress
    if is_verbose():
        console.print(plain(f"{label}: {time.perf_counter() - begin:.2f} s"), soft_wrap=True)


def command(function: Callable[..., None]) -> Callable[..., None]:
    """The function with --quiet, --verbose and --debug; what hush raises on purpose becomes a message and a code.

    0 done, 1 a promise or check failed, or hush itself, 2 bad input, 130 Ctrl-C, 143 SIGTERM. The options count before
    the command too.
    """

    @wraps(function)
    def speaking(**given: Any) -> None:
        before = _asked.get()
        asked = {name: given.pop(name) or getattr(before, name) for name in OPTIONS}
        say_as_asked(**asked)
        _show_odd_names()
        try:
            with _ending(flags_of(function)):
                if asked["quiet"] and asked["verbose"]:
                    raise InvalidInput("--quiet and --verbose ask for opposite things; pass one of them")
                function(**given)
        finally:
            _asked.set(_Asked())  # the next command of the same process is asked anew

    signature = inspect.signature(function)
    more = [
        inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=False, annotation=option)
        for name, option in OPTIONS.items()
    ]
    speaking.__signature__ = signature.replace(parameters=[*signature.parameters.values(), *more])  # pyright: ignore[reportAttributeAccessIssue]
    speaking.__annotations__ = function.__annotations__ | OPTIONS
    return speaking


def _show_odd_names() -> None:
    """Names of files that are no text are shown with escapes on standard output, as they are on standard error."""
    if isinstance(sys.stdout, TextIOWrapper) and sys.stdout.errors == "strict":
        sys.stdout.reconfigure(errors="backslashreplace")  # which is an escape of JSON, too


@contextmanager
def _ending(name_of: NameOf) -> Iterator[None]:
    """Errors and Ctrl-C are said, on one line, also with --quiet. Ctrl-C may bring a message: what is kept.

    What no one foresaw is said without its message: that of another library may quote the data.
    """
    try:
        with remembered_interrupt():
            yield
    except KeyboardInterrupt as stopped:
        Console(stderr=True).print(plain(str(stopped) or STOPPED), soft_wrap=True)
        raise typer.Exit(TERMINATED if isinstance(stopped, Terminated) else INTERRUPTED) from None
    except (BrokenPipeError, typer.Exit, typer.Abort):
        raise  # whoever read the output has gone, and there is nobody to tell; or the command has said what it had to
    except Exception as error:
        console = Console(stderr=True)
        if isinstance(error, HushError):
            error.show_settings_as(name_of)
        if _asked.get().debug:
            console.print(_shown("".join(_traceback(error))), soft_wrap=True)
        console.print(_shown(f"Error: {_said(error)}"), style="red", soft_wrap=True)
        raise typer.Exit(2 if isinstance(error, InvalidInput | OSError) or _is_memory(error) else 1) from None


def _said(error: Exception) -> str:
    """What is told of an error."""
    if isinstance(error, HushError):
        return str(error)
    if isinstance(error, OSError):
        full = error.errno in (ENOSPC, EDQUOT, EFBIG)
        remedy = "make room, and run the same command again" if full else "check the path and its permissions"
        return f"{error.filename or 'a file'}: {error.strerror or error}; {remedy}"
    if _is_memory(error):
        return NO_MEMORY
    kind = f"{type(error).__qualname__}, whose message may quote the data"
    return f"hush failed where it should not ({kind}); report it with what --debug shows"


def _shown(text: str) -> Text:
    """Line by line, without anything that a terminal would obey: an error may quote a file that others wrote."""
    lines = text.encode(errors="backslashreplace").decode().split("\n")  # of names that are no text, escapes
    return Text("\n").join(map(plain, lines))


def _is_memory(error: Exception) -> bool:
    """Whether memory ran out, here or on a GPU, for which PyTorch has a class of its own."""
    return isinstance(error, MemoryError) or type(error).__name__ == "OutOfMemoryError"


def _traceback(error: BaseException) -> list[str]:
    """Where an error arose, and what led to it; without messages of other libraries, which quote what they read."""
    cause = error.__cause__ or (None if error.__suppress_context__ else error.__context__)
    led = [] if cause is None else [*_traceback(cause), "\nwhich led to:\n\n"]
    said = f": {error}" if isinstance(error, HushError | OSError) else " (its message may quote the data)"
    frames = format_tb(error.__traceback__)
    return [*led, "Traceback (most recent call last):\n", *frames, f"{type(error).__qualname__}{said}\n"]


MILESTONES = 10  # lines of a training
FEWEST = 2 * MILESTONES  # rounds that are worth them


@final
class Milestones:
    """Told of every round; says each tenth part of all rounds that is done, where there is no terminal."""

    def __init__(self, console: Console) -> None:
        self._console = console

    def __call__(self, live: "LiveNumbers") -> None:
        rounds = live.round + live.rounds_left
        reached, before = (MILESTONES * round // rounds for round in (live.round, live.round - 1))
        if not self._console.is_terminal and rounds >= FEWEST and reached > before and live.rounds_left:
            self._console.print(f"Round {live.round:,} of {rounds:,} is done.", soft_wrap=True, highlight=False)


def both(one: Callable[..., object], other: Callable[..., object]) -> Callable[..., None]:
    """Tell one, then the other."""

    def tell(*given: Any) -> None:
        one(*given)
        other(*given)

    return tell


def logged(watch: "Watch", console: Console) -> "Watch":
    """What watches a run, and says now and then how far its stages are."""
    return replace(watch, work=both(watch.work, Heartbeat(console)), live=both(watch.live, Milestones(console)))

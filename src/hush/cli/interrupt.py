"""Ctrl-C and SIGTERM: what is said about work that goes on later, and how training is let end the round under way.

SIGTERM is how schedulers and containers end a program. Outside training it kills, which every file survives.
"""

import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType, TracebackType
from typing import Self, final

__all__ = [
    "GOES_ON",
    "INTERRUPTED",
    "TERMINATED",
    "Interrupt",
    "Terminated",
    "remembered",
    "said_when_stopped",
    "stopped_after",
]


INTERRUPTED, TERMINATED = 130, 143  # exit codes, as shells have them
GOES_ON = "Stopped. What is finished is kept; the same command goes on."


@contextmanager
def remembered() -> Iterator[Callable[..., None]]:
    """Ctrl-C inside is not lost; what is given raises it again if there was one.

    Libraries that load others may swallow it, or turn it into an error of their own, as pyarrow and pandas do. An error
    that ends the block after Ctrl-C counts as Ctrl-C.
    """
    before, heard = signal.getsignal(signal.SIGINT), False

    def hear(number: int, frame: FrameType | None) -> None:
        nonlocal heard
        heard = True
        if callable(before):
            before(number, frame)

    def again(*_: object) -> None:
        if heard:
            raise KeyboardInterrupt

    # Where it is ignored, it stays so; and it comes to the main thread, which alone may listen.
    listens = callable(before) and threading.current_thread() is threading.main_thread()
    if listens:
        signal.signal(signal.SIGINT, hear)
    try:
        yield again
    except Exception:
        again()
        raise
    finally:
        if listens:
            signal.signal(signal.SIGINT, before)


@contextmanager
def said_when_stopped(said: str | Callable[[], str]) -> Iterator[Callable[..., None]]:
    """Ctrl-C inside brings this message, for whoever ends the command; it is ``remembered``."""
    try:
        with remembered() as again:
            yield again
    except KeyboardInterrupt:
        raise KeyboardInterrupt(said if isinstance(said, str) else said()) from None


def stopped_after(round: int, rounds: int) -> str:
    """What is said of training that was let end its round."""
    return f"Stopped after round {round} of {rounds}, which is saved. The same command goes on there."


@final
class Terminated(KeyboardInterrupt):
    """As after Ctrl-C, but SIGTERM asked for it."""


@final
class Interrupt:
    """Ctrl-C or SIGTERM in training: once a round is done, the first one asks to stop after the next, and says so.

    Asked whether to stop, it knows that a round is done. Before that, and from the second one on, Ctrl-C stops at once
    and SIGTERM kills. If a library that is being loaded swallows Ctrl-C, training stops after its first round.
    """

    def __init__(self, say: Callable[[], None]) -> None:
        self._say = say
        self._begun = False
        self._asked: int | None = None
        self._joined = 0

    def __enter__(self) -> Self:
        self._before = {number: signal.signal(number, self._heard) for number in (signal.SIGINT, signal.SIGTERM)}
        return self

    def __call__(self) -> bool:
        """Whether to stop now."""
        self._begun = True
        return self._asked is not None

    @property
    def asked(self) -> int:
        """The number of the signal that this process heard; 0 if it heard none."""
        return self._asked or 0

    def join(self, number: int) -> None:
        """End as after this signal, which another process of the training heard; one that comes yet asks, not kills."""
        self._joined = number

    @property
    def code(self) -> int:
        """The exit code of a program that was stopped so."""
        return TERMINATED if signal.SIGTERM in (self._asked, self._joined) else INTERRUPTED

    def stopped(self, said: str) -> KeyboardInterrupt:
        """What is raised, with this message, for whoever ends the command."""
        return Terminated(said) if self.code == TERMINATED else KeyboardInterrupt(said)

    def _heard(self, number: int, frame: FrameType | None) -> None:
        if self._begun and self._asked is None:
            self._asked = number
            self._say()
            return
        if number == signal.SIGTERM:
            signal.signal(signal.SIGTERM, signal.SIG_DFL)
            signal.raise_signal(signal.SIGTERM)
        self._asked = number
        before = self._before[signal.SIGINT]
        if callable(before):
            before(number, frame)  # it may want to remember
        raise KeyboardInterrupt

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for number, before in self._before.items():
            signal.signal(number, before)

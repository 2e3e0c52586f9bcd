"""Ctrl-C: what is said about work that goes on later, and how training is let end the round under way."""

import signal
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import TracebackType
from typing import Self, final

__all__ = ["GOES_ON", "INTERRUPTED", "Interrupt", "said_when_stopped", "stopped_after"]

INTERRUPTED = 130  # exit code, as shells have it
GOES_ON = "Stopped. What is finished is kept; the same command goes on."


@contextmanager
def said_when_stopped(said: str | Callable[[], str]) -> Iterator[None]:
    """Ctrl-C inside brings this message, for whoever ends the command."""
    try:
        yield
    except KeyboardInterrupt:
        raise KeyboardInterrupt(said if isinstance(said, str) else said()) from None


def stopped_after(round: int, rounds: int) -> str:
    """What is said of training that was let end its round."""
    return f"Stopped after round {round} of {rounds}, which is saved. The same command goes on there."


@final
class Interrupt:
    """Ctrl-C in training: once a round is done, the first one asks training to stop after the next, and says so.

    Asked whether to stop, it knows that a round is done. Before that, and from the second one on, Ctrl-C stops at once.
    """

    def __init__(self, say: Callable[[], None]) -> None:
        self._say = say
        self._begun = self._asked = False

    def __enter__(self) -> Self:
        self._before = signal.signal(signal.SIGINT, self._interrupted)
        return self

    def __call__(self) -> bool:
        """Whether to stop now."""
        self._begun = True
        return self._asked

    def _interrupted(self, *_: object) -> None:
        if self._asked or not self._begun:
            raise KeyboardInterrupt
        self._asked = True
        self._say()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        signal.signal(signal.SIGINT, self._before)

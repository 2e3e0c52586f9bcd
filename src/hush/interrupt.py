"""Ctrl-C for commands that work in rounds: the first one lets the round under way end, the second one does not."""

import signal
from collections.abc import Callable
from types import TracebackType
from typing import Self, final

__all__ = ["INTERRUPTED", "Interrupt"]

INTERRUPTED = 130  # exit code, as shells have it


@final
class Interrupt:
    """Ctrl-C: once a round is done, the first one asks training to stop after the next, and says so.

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

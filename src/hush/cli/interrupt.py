"""Ctrl-C and SIGTERM: training finishes its round, and the user learns what is kept and how to resume.

Schedulers and containers send SIGTERM. Outside training it kills the process, which every file survives.
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
    "remembered_interrupt",
    "stop_message",
    "stopped_after",
]


INTERRUPTED, TERMINATED = 130, 143  # exit codes, as shells have them
GOES_ON = "Stopped. What is finished is kept; the same command goes on."


@contextmanager
def remembered_interrupt() -> Iterator[Callable[..., None]]:
    """Remember Ctrl-C inside the block; the function that it yields raises it again if there was one.

    Libraries that import others may swallow Ctrl-C or turn it into an error of their own, as pyarrow and pandas do. An
    error that ends the block after Ctrl-C counts as Ctrl-C.
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

    # An ignored signal stays ignored. Signals arrive in the main thread, and only it may set a handler.
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
def stop_message(message: str | Callable[[], str]) -> Iterator[Callable[..., None]]:
    """Give Ctrl-C inside the block this message, which the command prints at its end; Ctrl-C is not lost."""
    try:
        with remembered_interrupt() as again:
            yield again
    except KeyboardInterrupt:
        raise KeyboardInterrupt(message if isinstance(message, str) else message()) from None


def stopped_after(round: int, rounds: int) -> str:
    """The message about training that finished its round and stopped."""
    return f"Stopped after round {round} of {rounds}, which is saved. The same command goes on there."


@final
class Terminated(KeyboardInterrupt):
    """Like ``KeyboardInterrupt``, after SIGTERM."""


@final
class Interrupt:
    """Handles Ctrl-C and SIGTERM in training: after the first round, the first signal stops it after the round in
    progress, and the user is told so.

    Training calls it after each round to learn whether to stop. Before the first call, and from the second signal on,
    Ctrl-C stops at once and SIGTERM kills. If a library that is being imported swallows Ctrl-C, training stops after
    its first round.
    """

    def __init__(self, announce: Callable[[], None]) -> None:
        self._announce = announce
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
        """The number of the signal that this process received; 0 if none."""
        return self._asked or 0

    def join(self, number: int) -> None:
        """Stop as after this signal, which another process of the training received; a later signal does not kill."""
        self._joined = number

    @property
    def code(self) -> int:
        """The exit code of a program that this signal stopped."""
        return TERMINATED if signal.SIGTERM in (self._asked, self._joined) else INTERRUPTED

    def stopped(self, message: str) -> KeyboardInterrupt:
        """The exception that ends the command with this message."""
        return Terminated(message) if self.code == TERMINATED else KeyboardInterrupt(message)

    def _heard(self, number: int, frame: FrameType | None) -> None:
        if self._begun and self._asked is None:
            self._asked = number
            self._announce()
            return
        if number == signal.SIGTERM:
            signal.signal(signal.SIGTERM, signal.SIG_DFL)
            signal.raise_signal(signal.SIGTERM)
        self._asked = number
        before = self._before[signal.SIGINT]
        if callable(before):
            before(number, frame)  # it may be ``remembered_interrupt``
        raise KeyboardInterrupt

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for number, before in self._before.items():
            signal.signal(number, before)

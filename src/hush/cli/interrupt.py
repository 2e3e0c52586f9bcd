"""Ctrl-C and SIGTERM: which message a stopped command ends with, and how training finishes its current round first.

Schedulers and containers send SIGTERM to end a program. Outside training it kills the process, which leaves no half-
written file; during training it is handled like Ctrl-C.
"""

import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType, TracebackType
from typing import Self, final

__all__ = [
    "INTERRUPTED",
    "RESUMABLE_MESSAGE",
    "TERMINATED",
    "Interrupt",
    "Terminated",
    "keep_interrupt",
    "message_when_stopped",
    "stopped_after_message",
]


INTERRUPTED, TERMINATED = 130, 143  # exit codes of shells: 128 + the number of the signal
RESUMABLE_MESSAGE = "Stopped. Finished work is kept; run the same command again to continue."


@contextmanager
def message_when_stopped(message: str | Callable[[], str]) -> Iterator[Callable[..., None]]:
    """Ctrl-C inside ends the command with this message. Yields what ``keep_interrupt`` yields."""
    try:
        with keep_interrupt() as raise_if_interrupted:
            yield raise_if_interrupted
    except KeyboardInterrupt:
        raise KeyboardInterrupt(message if isinstance(message, str) else message()) from None


@contextmanager
def keep_interrupt() -> Iterator[Callable[..., None]]:
    """Make sure that Ctrl-C inside is not lost. Yields a function that raises it again if there was one.

    Some libraries swallow Ctrl-C while they import others, or turn it into an error of their own, as pyarrow and pandas
    do. An error that ends the block after Ctrl-C is therefore raised as Ctrl-C.
    """
    previous, interrupted = signal.getsignal(signal.SIGINT), False

    def on_interrupt(number: int, frame: FrameType | None) -> None:
        nonlocal interrupted
        interrupted = True
        if callable(previous):
            previous(number, frame)

    def raise_if_interrupted(*_: object) -> None:
        if interrupted:
            raise KeyboardInterrupt

    # An ignored Ctrl-C stays ignored, and only the main thread may install a handler.
    installed = callable(previous) and threading.current_thread() is threading.main_thread()
    if installed:
        signal.signal(signal.SIGINT, on_interrupt)
    try:
        yield raise_if_interrupted
    except Exception:
        raise_if_interrupted()
        raise
    finally:
        if installed:
            signal.signal(signal.SIGINT, previous)


def stopped_after_message(round: int, rounds: int) -> str:
    """The message of training that finished its current round, or step of the public part, before it stopped."""
    if not round:
        return (
            "Stopped before the first private round. What is learnt is saved; run the same command again to continue."
        )
    return f"Stopped after round {round} of {rounds}, which is saved. Run the same command again to continue there."


@final
class Terminated(KeyboardInterrupt):
    """Like Ctrl-C, but caused by SIGTERM."""


@final
class Interrupt:
    """Handles Ctrl-C and SIGTERM during training: the first one stops after the next round, and is announced.

    Training calls this object after each round to ask whether to stop. Before its first call, and from the second
    signal on, Ctrl-C stops at once and SIGTERM kills. If a library swallows Ctrl-C while it is imported, training stops
    after its first round.

    announce: called when the first signal arrives.
    """

    def __init__(self, announce: Callable[[], None]) -> None:
        self._announce = announce
        self._round_done = False
        self._signal: int | None = None
        self._signal_elsewhere = 0

    def __enter__(self) -> Self:
        self._previous = {number: signal.signal(number, self._on_signal) for number in (signal.SIGINT, signal.SIGTERM)}
        return self

    def __call__(self) -> bool:
        """Whether to stop now."""
        self._round_done = True
        return self._signal is not None

    @property
    def asked(self) -> int:
        """The number of the signal that this process received; 0 if none."""
        return self._signal or 0

    def join(self, number: int) -> None:
        """End as after this signal, which another process of the training received."""
        self._signal_elsewhere = number

    @property
    def exit_code(self) -> int:
        """The exit code of a program that was stopped by the signal."""
        return TERMINATED if signal.SIGTERM in (self._signal, self._signal_elsewhere) else INTERRUPTED

    def exception(self, message: str) -> KeyboardInterrupt:
        """The exception that ends the command with this message."""
        return Terminated(message) if self.exit_code == TERMINATED else KeyboardInterrupt(message)

    def _on_signal(self, number: int, frame: FrameType | None) -> None:
        if self._round_done and self._signal is None:
            self._signal = number
            self._announce()
            return
        if number == signal.SIGTERM:
            signal.signal(signal.SIGTERM, signal.SIG_DFL)
            signal.raise_signal(signal.SIGTERM)
        self._signal = number
        previous = self._previous[signal.SIGINT]
        if callable(previous):
            previous(number, frame)  # keep_interrupt has to notice it
        raise KeyboardInterrupt

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for number, previous in self._previous.items():
            signal.signal(number, previous)

"""Whether training stops after a round: as soon as one of its processes is asked to, and then all of them alike."""

from collections.abc import Callable
from typing import Protocol, runtime_checkable

from hush.train.distributed import Ranks

__all__ = ["Stop", "is_stopped"]

Stop = Callable[[], bool]


@runtime_checkable
class _BySignal(Protocol):
    """What knows the number of the signal that asked it to stop, and can take over that of another process."""

    @property
    def asked(self) -> int: ...
    def join(self, number: int) -> None: ...


def is_stopped(stop: Stop | None, ranks: Ranks) -> bool:
    """Whether any process is asked to stop; where a signal did it, all end with that signal's exit code."""
    number = 0
    if stop is not None and stop():
        number = (stop.asked if isinstance(stop, _BySignal) else 0) or 1
    number = ranks.most(number)
    if number and isinstance(stop, _BySignal):
        stop.join(number)
    return number > 0

"""What a computation costs: processor seconds, and the memory it took on top of what was held before."""

import ctypes
import re
import time
from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

__all__ = ["finite", "measured"]

Result = TypeVar("Result")

STATUS, RESET = Path("/proc/self/status"), Path("/proc/self/clear_refs")


def measured(work: Callable[[], Result]) -> tuple[Result, float, float | None]:
    """The result, processor seconds (all threads), peak memory in MB beyond the start (None where Linux cannot tell).

    Processor seconds, not wall-clock ones: they do not depend on what else the machine does.
    """
    before = _resident("VmRSS") if _forget_peak() else None
    begin = time.process_time()
    result = work()
    seconds = time.process_time() - begin
    return result, seconds, None if before is None else _resident("VmHWM") - before


def finite(value: float) -> float | None:
    """A number for JSON; None for an overflow."""
    return float(value) if abs(value) < float("inf") else None


def _forget_peak() -> bool:
    """Give freed memory back, so that using it again counts, and begin a new peak."""
    try:
        ctypes.CDLL(None).malloc_trim(0)
        RESET.write_text("5")
    except (AttributeError, OSError):
        return False
    return True


def _resident(field: str) -> float:
    found = re.search(rf"^{field}:\s+(\d+) kB", STATUS.read_text(), re.MULTILINE)
    return int(found[1]) / 1024 if found else 0.0

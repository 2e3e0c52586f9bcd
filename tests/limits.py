"""Limits of the system, set for a while: what a full disk does to a write, without one."""

import resource
from collections.abc import Iterator
from contextlib import contextmanager

__all__ = ["no_file_above"]


@contextmanager
def no_file_above(size: int) -> Iterator[None]:
    """Writing beyond so many bytes fails, as it does on a full disk, with an error of the system."""
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))

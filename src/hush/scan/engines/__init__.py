"""Where the work of a scan is done: in this process, in several on this machine, or on a cluster.

local: this machine. Whatever the engine, results come back in the order of the shards, so no result depends on it.
"""

from collections.abc import Callable, Iterator, Sequence
from typing import Any, Protocol, TypeVar

__all__ = ["Engine"]

Result = TypeVar("Result")


class Engine(Protocol):
    """Applies one task to many shards."""

    def map(self, task: Callable[[Any], Result], shards: Sequence[Any]) -> Iterator[Result]:
        """The task's result for each shard, in the order of the shards. Task and shards can be pickled.

        The first error, in that order, is raised as the task raised it. Few results wait at a time: memory stays
        bounded however many shards there are. Closing the iterator stops the work.
        """
        ...

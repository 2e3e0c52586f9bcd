"""Where the work of a scan is done: in this process, in several on this machine, or on a cluster.

local: this machine. Whatever the engine, results come back in the order of the shards, so no result depends on it.

One machine: the work of a scan in this process, or in several.
"""

import multiprocessing
import os
import signal
import threading
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Protocol, TypeVar, final

from hush.errors import HushError, InvalidInput

__all__ = ["Engine", "LocalEngine"]


Result = TypeVar("Result")


class Engine(Protocol):
    """Applies one task to many shards."""

    def map(self, task: Callable[[Any], Result], shards: Sequence[Any]) -> Iterator[Result]:
        """The task's result for each shard, in the order of the shards. Task and shards can be pickled.

        The first error, in that order, is raised as the task raised it. Few results wait at a time: memory stays
        bounded however many shards there are. Closing the iterator stops the work.
        """
        ...


AHEAD = 2  # shards given out for each process, so that none waits for work


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class LocalEngine:
    """This machine's cores. workers: how many processes, all cores by default; 1 does everything in this one."""

    workers: int | None = None

    def __post_init__(self) -> None:
        if self.workers is not None and (type(self.workers) is not int or self.workers < 1):
            raise InvalidInput(f"workers={self.workers!r} is not a number of processes; pass 1 or more")

    def map(self, task: Callable[[Any], Result], shards: Sequence[Any]) -> Iterator[Result]:
        """See ``Engine.map``. Other processes are started afresh (spawn), and end with the iterator."""
        workers = min(self.workers or available_cores(), len(shards))
        if workers <= 1:
            yield from map(task, shards)
            return
        pool = ProcessPoolExecutor(
            workers, mp_context=multiprocessing.get_context("spawn"), initializer=_receive, initargs=(task,)
        )
        waiting: deque[Future[Result]] = deque()
        done = False
        try:
            for shard in shards:
                with _deaf_to_ctrl_c():
                    waiting.append(pool.submit(_work, shard))  # which may start a process
                if len(waiting) > AHEAD * workers:
                    yield waiting.popleft().result()
            while waiting:
                yield waiting.popleft().result()
            done = True
        except BrokenProcessPool:
            raise HushError(
                f"one of the {workers} processes of the scan died, for lack of memory perhaps, or because the script "
                'that started it has no `if __name__ == "__main__":` around its main part; try workers=1'
            ) from None
        finally:
            processes = list((pool._processes or {}).values())  # which the pool forgets when it shuts down
            pool.shutdown(wait=done, cancel_futures=True)
            for process in [] if done else processes:  # what they are at is of no more use
                process.terminate()
            for process in processes:
                process.join()


@contextmanager
def _deaf_to_ctrl_c() -> Iterator[None]:
    """Ctrl-C waits for the end of this, and processes that begin inside never hear it.

    Such a process would end with a traceback if it heard the signal while it starts, or if the signal kept this one
    from telling it what to do. Blocking it is for the new process, which inherits that. It is not enough for this one:
    another thread, of Arrow perhaps, may hear the signal, and Python raises it in the main thread all the same.
    """
    with _ctrl_c_kept():
        if not hasattr(signal, "pthread_sigmask"):
            yield
            return
        before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
        try:
            yield
        finally:
            signal.pthread_sigmask(signal.SIG_SETMASK, before)


@contextmanager
def _ctrl_c_kept() -> Iterator[None]:
    """Ctrl-C inside has its effect afterwards, even if an error ends this. In other threads it never has any."""
    before = signal.getsignal(signal.SIGINT)
    if threading.current_thread() is not threading.main_thread() or before is None:  # None: not Python's to change
        yield
        return
    heard: list[int] = []
    signal.signal(signal.SIGINT, lambda number, _: heard.append(number))
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)
        if heard:
            signal.raise_signal(signal.SIGINT)


def available_cores() -> int:
    """Cores that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


_task: Callable[[Any], Any] | None = None  # of this process, if it is one that an engine started


def _receive(task: Callable[[Any], Any]) -> None:
    """At the start of a process: the task comes once, not with every shard."""
    global _task
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the parent hears Ctrl-C, and ends its processes
    threading.Thread(target=_end_with_parent, daemon=True).start()
    _task = task


def _end_with_parent() -> None:
    """A parent that is killed ends nobody: its processes would wait for ever, with what they know of secrets."""
    parent = multiprocessing.parent_process()
    if parent is not None:
        parent.join()
        os._exit(1)


def _work(shard: Any) -> Any:
    if _task is None:
        raise HushError("a process of the scan was not given its task; scan again with workers=1")
    return _task(shard)

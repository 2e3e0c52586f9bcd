"""Engines apply the tasks of a scan to its shards: in this process, in several processes, or on a cluster.

``LocalEngine`` uses this machine; engine_ray.py has the engine for a Ray cluster. Every engine returns results in the
order of the shards, so the result of a scan does not depend on the engine.
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

from hush.errors import HushError, InvalidInput, Setting

__all__ = ["Engine", "LocalEngine", "available_cores"]


SHARDS_AHEAD_PER_WORKER = 2  # submitted to the pool, so that no process waits for work
MANAGER_SECONDS = 10.0  # to wait for the thread of a pool whose processes have ended

Result = TypeVar("Result")


class Engine(Protocol):
    """Applies one task to many shards."""

    def map(self, task: Callable[[Any], Result], shards: Sequence[Any]) -> Iterator[Result]:
        """The task's result for each shard, in the order of the shards. Task and shards can be pickled.

        The first error, in that order, is raised as the task raised it. Only a few results are buffered, so memory is
        bounded for any number of shards. Closing the iterator stops the work.
        """
        ...


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class LocalEngine:
    """Processes on this machine. workers: their number, by default one per core; 1 runs in the calling process."""

    workers: int | None = None

    def __post_init__(self) -> None:
        if self.workers is not None and (type(self.workers) is not int or self.workers < 1):
            raise InvalidInput("pass a number of processes, 1 or more", setting="workers", value=self.workers)

    def map(self, task: Callable[[Any], Result], shards: Sequence[Any]) -> Iterator[Result]:
        """See ``Engine.map``. Processes are started with spawn and end with the iterator."""
        workers = min(self.workers or available_cores(), len(shards))
        if workers <= 1:
            yield from map(task, shards)
            return
        pool = ProcessPoolExecutor(
            workers, mp_context=multiprocessing.get_context("spawn"), initializer=_initialise_worker, initargs=(task,)
        )
        waiting: deque[Future[Result]] = deque()
        done = False
        try:
            for shard in shards:
                with _ctrl_c_blocked():
                    waiting.append(pool.submit(_run_task, shard))  # may start a process
                if len(waiting) > SHARDS_AHEAD_PER_WORKER * workers:
                    yield waiting.popleft().result()
            while waiting:
                yield waiting.popleft().result()
            done = True
        except BrokenProcessPool:
            raise HushError(
                f"one of the {workers} processes died, perhaps because memory ran out, or because the "
                'script that started them lacks `if __name__ == "__main__":` around its main part; set ',
                Setting("workers"),
                " to 1",
            ) from None
        finally:
            processes = list((pool._processes or {}).values())  # the pool forgets them when it shuts down
            manager: threading.Thread | None = getattr(pool, "_executor_manager_thread", None)
            pool.shutdown(wait=done, cancel_futures=True)
            for process in [] if done else processes:  # their results are not needed any more
                process.terminate()
            for process in processes:
                process.join()
            if manager is not None:  # Python wakes it up when it exits, and fails if it closes its pipe just then
                manager.join(MANAGER_SECONDS)


@contextmanager
def _ctrl_c_blocked() -> Iterator[None]:
    """Defers Ctrl-C until the block ends; processes that start inside never receive it.

    A process that received the signal while starting, or before it was given its task, would end with a traceback. The
    new process inherits the blocked signal. Blocking does not suffice for this process: another thread, such as one of
    Arrow's, may receive the signal, and Python then raises KeyboardInterrupt in the main thread anyway.
    """
    with _ctrl_c_deferred():
        if not hasattr(signal, "pthread_sigmask"):
            yield
            return
        before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
        try:
            yield
        finally:
            signal.pthread_sigmask(signal.SIG_SETMASK, before)


@contextmanager
def _ctrl_c_deferred() -> Iterator[None]:
    """Defers Ctrl-C until the block ends, also if it ends with an error. Does nothing outside the main thread."""
    before = signal.getsignal(signal.SIGINT)
    if (
        threading.current_thread() is not threading.main_thread() or before is None
    ):  # None: the handler was not set by Python
        yield
        return
    received: list[int] = []
    signal.signal(signal.SIGINT, lambda number, _: received.append(number))
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)
        if received:
            signal.raise_signal(signal.SIGINT)


def available_cores() -> int:
    """The number of cores that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


# Inside a worker process

_task: Callable[[Any], Any] | None = None  # the task of this process, if an engine started it


def _initialise_worker(task: Callable[[Any], Any]) -> None:
    """Runs at the start of a worker process: the task is sent once, not with every shard."""
    global _task
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the parent handles Ctrl-C and ends its processes
    threading.Thread(target=_end_with_parent, daemon=True).start()
    _task = task


def _end_with_parent() -> None:
    """Ends this process if the parent is killed; otherwise it would wait forever, with secrets in memory."""
    parent = multiprocessing.parent_process()
    if parent is not None:
        parent.join()
        os._exit(1)


def _run_task(shard: Any) -> Any:
    if _task is None:
        raise HushError("a process did not receive its task; start again with ", Setting("workers"), " set to 1")
    return _task(shard)

"""Arms side by side: processes of one thread each, since a model this small gains nothing from more.

They are started before there is anything to do, so that loading the libraries costs no waiting.
"""

import multiprocessing
import os
import signal
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ProcessPoolExecutor, wait
from concurrent.futures.process import BrokenProcessPool
from contextlib import contextmanager
from types import TracebackType
from typing import Any, Self, final

from hush.demo.arms import OTHERS, Result, Task, train_arm
from hush.errors import HushError
from hush.scan.engines.local import available_cores

__all__ = ["InTurn", "Workers", "quietly", "still_libraries"]

MOMENT = 0.3  # seconds between looks at how far everybody is


def still_libraries() -> None:
    """One thread for this process, and no bars or warnings of the libraries beneath."""
    import torch
    from transformers.utils import logging

    torch.set_num_threads(1)
    logging.disable_progress_bar()
    logging.set_verbosity_error()


@contextmanager
def quietly() -> Iterator[None]:
    """``still_libraries`` for a while; afterwards they are as they were."""
    import torch
    from transformers.utils import logging

    threads, verbosity, bars = torch.get_num_threads(), logging.get_verbosity(), logging.is_progress_bar_enabled()
    try:
        still_libraries()
        yield
    finally:
        torch.set_num_threads(threads)
        logging.set_verbosity(verbosity)
        if bars:
            logging.enable_progress_bar()


@final
class Workers:
    """Processes that train the arms beside hush's own; they end with this object."""

    def __init__(self, most: int) -> None:
        context = multiprocessing.get_context("spawn")
        self._rounds: Any = context.RawArray("q", len(OTHERS))
        count = min(most, available_cores())
        self._pool = ProcessPoolExecutor(count, mp_context=context, initializer=_prepare, initargs=(self._rounds,))
        self._futures: list[Future[Result]] = []
        self._started = [self._pool.submit(os.getpid) for _ in range(count)]
        self._processes = list((self._pool._processes or {}).values())
        self._done = False

    def __enter__(self) -> Self:
        return self

    def begin(self, tasks: Sequence[Task]) -> None:
        """Hand out the work; it goes on while this process does something else."""
        self._futures = [self._pool.submit(_work, place, task) for place, task in enumerate(tasks)]

    @property
    def rounds(self) -> Mapping[str, int]:
        """How many rounds each arm has done."""
        return {arm.name: int(done) for arm, done in zip(OTHERS, self._rounds, strict=True)}

    def results(self, waiting: Callable[[], None]) -> list[Result]:
        """Of all arms, in their order; ``waiting`` is called every moment until they are there."""
        try:
            while wait(self._futures, timeout=MOMENT).not_done:
                waiting()
                for future in self._futures:
                    if future.done():
                        future.result()  # an error ends it at once
            found = [future.result() for future in self._futures]
        except BrokenProcessPool:
            raise HushError("a process of the demo died, for lack of memory perhaps; try --quick") from None
        self._done = True
        return found

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._pool.shutdown(wait=self._done, cancel_futures=True)
        for process in [] if self._done else self._processes:  # what they are at is of no more use
            process.terminate()
        for process in self._processes:
            process.join()


@final
class InTurn:
    """The same without other processes: each arm after the other, once their results are asked for."""

    def __init__(self) -> None:
        self._tasks: Sequence[Task] = ()
        self.rounds: dict[str, int] = {arm.name: 0 for arm in OTHERS}

    def __enter__(self) -> Self:
        return self

    def begin(self, tasks: Sequence[Task]) -> None:
        """Keep the work for later."""
        self._tasks = tasks

    def results(self, waiting: Callable[[], None]) -> list[Result]:
        """Of all arms, in their order."""

        def trained(task: Task) -> Result:
            def told(round: int) -> None:
                self.rounds[task.arm.name] = round
                waiting()

            return train_arm(task, told)

        return [trained(task) for task in self._tasks]

    def __exit__(self, *_: object) -> None:
        pass


_rounds: Any = None  # of this process, if it is a worker: shared with the one that started it


def _prepare(rounds: Any) -> None:
    """At the start of a process."""
    global _rounds
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the parent hears Ctrl-C, and ends its processes
    threading.Thread(target=_end_with_parent, daemon=True).start()
    _rounds = rounds
    still_libraries()


def _end_with_parent() -> None:
    """A parent that is killed ends nobody; its processes would go on training for nobody."""
    parent = multiprocessing.parent_process()
    if parent is not None:
        parent.join()
        os._exit(1)


def _work(place: int, task: Task) -> Result:
    def told(round: int) -> None:
        _rounds[place] = round

    return train_arm(task, told)

"""Processes started by ``torchrun``, connected for the length of one command: they end together, with one message.

The first rank to fail reports the error. It claims that in the store through which the processes met; the others stay
silent and end with the same exit code once the error is printed. A process that waits for one that failed learns of it
when its connection closes.

Gloo's threads release a tensor a moment after its sum is there, and need the interpreter for that. If they still do so
during interpreter shutdown, Python before 3.14 aborts the process, and torchrun ends all the others. Therefore these
threads end with the connection; where torch keeps them, :func:`leave` ends the process without interpreter shutdown.
"""

import atexit
import os
import sys
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from datetime import timedelta
from typing import Any, NoReturn, Self, final

import torch
import torch.distributed as dist
import torch.distributed.nn.functional
from torch.distributed.rendezvous import rendezvous

from hush.errors import HushError, InvalidInput, Setting

__all__ = ["OF_LAUNCHER", "WorkerGroup", "connected", "leave"]


CONNECTION_TIMEOUT = timedelta(hours=2)  # for the slowest process, while it reads data or writes a model
REPORT_TIMEOUT = timedelta(seconds=10)  # for the failed process to print its error, before the others end
# Keys of the store: who reports, its exit code, that the error is printed, and which ranks know that.
_CLAIMED, _CODE, _REPORTED, _ACKNOWLEDGED = "hush/claimed", "hush/code", "hush/said", "hush/heard"
_TRAINING, _DONE = "hush/training", "hush/done"  # of a worker group: that the n-th training begins; that all is done
WAIT_SECONDS = 0.2  # between two looks into the store
AGENT_STORE = "TORCHELASTIC_USE_AGENT_STORE"
# Of the environment: what tells libraries that there are other processes.
OF_LAUNCHER = (
    "RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE", "GROUP_RANK", "GROUP_WORLD_SIZE", "ROLE_RANK",
    "ROLE_WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT", AGENT_STORE,
)  # fmt: skip


class _ConnectionLost(HushError):
    """Another process ended without reporting an error."""


@contextmanager
def connected(device: str | None) -> Iterator[bool]:
    """Connect the processes; yields whether this is the first rank, and closes the connection afterwards.

    device: "cpu", or "cuda", for which each process takes the GPU of its local rank; by default GPUs if there are any.
    """
    store, rank, world = _meet()
    with _process_group(store, rank, world, device, _Report(store, rank, world)):
        yield rank == 0


@final
class WorkerGroup:
    """Processes of which the first one runs a command, while the others wait to train with it.

    Only inside ``training`` does the environment tell of the others: what the first one does otherwise (a scan, an
    audit), it does alone.
    """

    def __init__(self, store: Any, rank: int, world: int, report: "_Report") -> None:
        self.is_first = rank == 0
        self._store, self._rank, self._world, self._report = store, rank, world, report
        self._environment = {name: os.environ.pop(name) for name in OF_LAUNCHER if name in os.environ}
        self._begun = 0  # trainings

    @classmethod
    @contextmanager
    def met(cls) -> Iterator[Self]:
        """The group of the processes that were started with this one, until the command of the first one ends."""
        store, rank, world = _meet()
        report = _Report(store, rank, world)
        group = cls(store, rank, world, report)
        try:
            with report:
                yield group
                group._end()
        finally:
            os.environ.update(group._environment)

    @contextmanager
    def training(self, device: str | None) -> Iterator[None]:
        """Connect the processes for a training; the first one calls the others, which come from ``wait``."""
        os.environ.update(self._environment)
        try:
            if self.is_first:
                self._store.set(f"{_TRAINING}/{self._begun}", "")
            name = f"hush/group/{self._begun}"
            store = dist.PrefixStore(name, self._store)  # pyright: ignore[reportPrivateImportUsage]
            self._begun += 1
            with _process_group(store, self._rank, self._world, device, self._report):
                yield
        finally:
            for name in self._environment:
                os.environ.pop(name, None)

    def wait(self, stop: Callable[[], bool]) -> bool:
        """Wait for the next training; False once the first process has ended. stop: whether a signal asks to end."""
        asked_since: float | None = None
        while not self._store.check([f"{_TRAINING}/{self._begun}"]):
            if self._store.check([_DONE]):
                return False
            if self._store.check([_CLAIMED]):
                raise SystemExit(self._report.claim(_ConnectionLost("the first process ended")))
            if stop():  # the first process got the signal, too, and knows what to do
                asked_since = asked_since or time.monotonic()
                if time.monotonic() - asked_since > REPORT_TIMEOUT.total_seconds():
                    raise SystemExit(1)
            time.sleep(WAIT_SECONDS)
        return True

    def _end(self) -> None:
        """Let the others end; what keeps the store must outlive them."""
        if self.is_first:
            self._store.set(_DONE, "")
            if self._environment.get(AGENT_STORE) != "True":
                with suppress(dist.DistError):
                    self._store.wait([f"{_DONE}/{rank}" for rank in range(1, self._world)], REPORT_TIMEOUT)
        else:
            with suppress(dist.DistError):
                self._store.set(f"{_DONE}/{self._rank}", "")


def leave(code: int) -> NoReturn:
    """End this process as ``sys.exit`` does, but without interpreter shutdown.

    For processes that sharded a model: torch caches sharding metadata, and with it the group's threads.
    """
    atexit._run_exitfuncs()
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)


def _select_gpu(device: str | None, *, on_gpu: bool) -> None:
    """Select the GPU of this process's local rank, if GPUs are used."""
    if device not in (None, "cpu", "cuda"):
        raise InvalidInput(
            "it is one device, but several processes were started; pass cpu or cuda, and each takes the GPU of its "
            "local rank",
            setting="device",
            value=device,
        )
    if not on_gpu:
        return
    local, count = int(os.environ.get("LOCAL_RANK", "0")), torch.cuda.device_count()
    if local >= count:
        raise InvalidInput(
            f"this machine has {count} GPUs but was given a process of local rank {local}; start at most {count} "
            "processes (torchrun --nproc-per-node), or pass ",
            Setting("device"),
            "=cpu",
            setting="device",
        )
    torch.cuda.set_device(local)


def _meet() -> tuple[Any, int, int]:
    """The store through which the processes exchange messages, the rank of this one, and how many there are."""
    try:
        return next(iter(rendezvous("env://", timeout=CONNECTION_TIMEOUT)))
    except (ValueError, RuntimeError) as error:
        raise _not_connected(error) from error


@contextmanager
def _process_group(store: Any, rank: int, world: int, device: str | None, report: "_Report") -> Iterator[None]:
    """The default process group, inside; an error is reported before the others notice that this process left."""
    on_gpu = device != "cpu" and torch.cuda.is_available()
    backend = "cpu:gloo,cuda:nccl" if on_gpu else "gloo"
    try:
        dist.init_process_group(backend, store=store, rank=rank, world_size=world, timeout=CONNECTION_TIMEOUT)
    except (ValueError, RuntimeError) as error:
        raise _not_connected(error) from error
    succeeded = False
    try:
        with report:
            _select_gpu(device, on_gpu=on_gpu)
            yield
            succeeded = True
    finally:
        # Over NCCL, closing waits for the others, which may wait for this one; the process ends anyway.
        if succeeded or not on_gpu:
            dist.destroy_process_group()


def _not_connected(error: Exception) -> InvalidInput:
    reason = str(error).splitlines()[0]
    return InvalidInput(
        f"WORLD_SIZE={os.environ.get('WORLD_SIZE')}, but the processes cannot be connected ({reason}); start them with "
        "torchrun, or unset WORLD_SIZE to train in one process"
    )


def _connection_lost(error: BaseException) -> _ConnectionLost | None:
    """The error to report for a failed communication; None for an error of another kind."""
    if not isinstance(error, RuntimeError) or isinstance(error, HushError):
        return None
    if not isinstance(error, dist.DistError) and "gloo" not in str(error):
        return None
    return _ConnectionLost(
        f"the connection to another process was lost ({str(error).splitlines()[0]}): one of them ended, or a machine "
        "is unreachable. The same command resumes from the last saved state"
    )


@final
class _Report:
    """Who reports the error that ends all processes. An error that leaves the block is this one's, or is silenced."""

    def __init__(self, store: Any, rank: int, world: int) -> None:
        self._store, self._rank, self._world = store, rank, world
        self._is_mine = False

    def __enter__(self) -> None:
        pass

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: object) -> None:
        if error is None or self._is_mine:
            return
        reported = _connection_lost(error) or error
        silent_code = self.claim(reported)
        if silent_code is not None:
            raise SystemExit(silent_code) from None
        if reported is not error:
            raise reported from error

    def claim(self, error: BaseException) -> int | None:
        """None if this process is to report its error; the exit code if another one reports, or has, its own."""
        refused = isinstance(error, InvalidInput | OSError | MemoryError | torch.OutOfMemoryError)
        code = 130 if isinstance(error, KeyboardInterrupt) else 2 if refused else 1
        store, code_known = self._store, False
        try:
            if store.add(_CLAIMED, 1) == 1:
                store.set(_CODE, str(code))
                others = () if isinstance(error, _ConnectionLost) else range(1, self._world)
                atexit.register(_confirm_report, store, acknowledged_by=others)
                self._is_mine = True
                return None
            code, code_known = int(store.get(_CODE)), True
            store.wait([_REPORTED], REPORT_TIMEOUT)
            store.set(f"{_ACKNOWLEDGED}/{self._rank}", "")
        except dist.DistError:
            if isinstance(error, _ConnectionLost) and not code_known:
                return None  # the first process, which kept the store, ended without a report
        return code


def _confirm_report(store: Any, *, acknowledged_by: Iterable[int]) -> None:
    """When this process ends, its error is printed: let the others end."""
    with suppress(dist.DistError):
        store.set(_REPORTED, "")
        if os.environ["RANK"] == "0" and os.environ.get(AGENT_STORE) != "True":
            # The store is kept by this process, not by torchrun, and ends with it.
            store.wait([f"{_ACKNOWLEDGED}/{rank}" for rank in acknowledged_by], REPORT_TIMEOUT)

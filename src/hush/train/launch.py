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
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from datetime import timedelta
from typing import Any, NoReturn

import torch
import torch.distributed as dist
import torch.distributed.nn.functional
from torch.distributed.rendezvous import rendezvous

from hush.errors import HushError, InvalidInput, Setting

__all__ = ["connected", "leave"]


CONNECTION_TIMEOUT = timedelta(hours=2)  # for the slowest process, while it reads data or writes a model
REPORT_TIMEOUT = timedelta(seconds=10)  # for the failed process to print its error, before the others end
# Keys of the store: who reports, its exit code, that the error is printed, and which ranks know that.
_CLAIMED, _CODE, _REPORTED, _ACKNOWLEDGED = "hush/claimed", "hush/code", "hush/said", "hush/heard"


class _ConnectionLost(HushError):
    """Another process ended without reporting an error."""


@contextmanager
def connected(device: str | None) -> Iterator[bool]:
    """Connect the processes; yields whether this is the first rank, and closes the connection afterwards.

    device: "cpu", or "cuda", for which each process takes the GPU of its local rank; by default GPUs if there are any.
    """
    on_gpu = device != "cpu" and torch.cuda.is_available()
    store = _join_group(on_gpu)
    succeeded = False
    try:
        _select_gpu(device, on_gpu=on_gpu)
        yield dist.get_rank() == 0
        succeeded = True
    except BaseException as error:
        reported = _connection_lost(error) or error
        silent_code = _claim_report(store, reported)
        if silent_code is not None:
            raise SystemExit(silent_code) from None
        if reported is not error:
            raise reported from error
        raise
    finally:
        # Over NCCL, closing waits for the others, which may wait for this one; the process ends anyway.
        if succeeded or not on_gpu:
            dist.destroy_process_group()


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


def _join_group(on_gpu: bool) -> Any:
    """Join the process group, and return the store through which its processes exchange messages."""
    backend = "cpu:gloo,cuda:nccl" if on_gpu else "gloo"
    try:
        store, rank, world = next(iter(rendezvous("env://", timeout=CONNECTION_TIMEOUT)))
        dist.init_process_group(backend, store=store, rank=rank, world_size=world, timeout=CONNECTION_TIMEOUT)
    except (ValueError, RuntimeError) as error:
        reason = str(error).splitlines()[0]
        raise InvalidInput(
            f"WORLD_SIZE={os.environ['WORLD_SIZE']}, but the processes cannot be connected ({reason}); start them with "
            "torchrun, or unset WORLD_SIZE to train in one process"
        ) from error
    return store


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


def _claim_report(store: Any, error: BaseException) -> int | None:
    """None if this process is to report its error; the exit code if another one reports, or has reported, its own."""
    refused = isinstance(error, InvalidInput | OSError | MemoryError | torch.OutOfMemoryError)
    code = 130 if isinstance(error, KeyboardInterrupt) else 2 if refused else 1
    rank, world, code_known = dist.get_rank(), dist.get_world_size(), False
    try:
        if store.add(_CLAIMED, 1) == 1:
            store.set(_CODE, str(code))
            atexit.register(
                _confirm_report, store, acknowledged_by=() if isinstance(error, _ConnectionLost) else range(1, world)
            )
            return None
        code, code_known = int(store.get(_CODE)), True
        store.wait([_REPORTED], REPORT_TIMEOUT)
        store.set(f"{_ACKNOWLEDGED}/{rank}", "")
    except dist.DistError:
        if isinstance(error, _ConnectionLost) and not code_known:
            return None  # the first process, which kept the store, ended without a report
    return code


def _confirm_report(store: Any, *, acknowledged_by: Iterable[int]) -> None:
    """When this process ends, its error is printed: let the others end."""
    with suppress(dist.DistError):
        store.set(_REPORTED, "")
        if os.environ["RANK"] == "0" and os.environ.get("TORCHELASTIC_USE_AGENT_STORE") != "True":
            # The store is kept by this process, not by torchrun, and ends with it.
            store.wait([f"{_ACKNOWLEDGED}/{rank}" for rank in acknowledged_by], REPORT_TIMEOUT)

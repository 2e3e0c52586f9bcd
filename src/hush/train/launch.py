"""Processes that ``torchrun`` started, connected for the length of one command: they end together, with one message.

Whoever fails first claims the word, in the store through which the processes met; the others keep silent, and end with
the same exit code once it is said. A process that waits for one that failed learns of it when its connection closes.

Gloo's threads let go of a tensor a moment after its sum is there, and need the interpreter for it. If they are still
about it when the interpreter is taken down, Python before 3.14 aborts the process, and torchrun ends all the others. So
those threads end with the connection; where torch keeps them, the interpreter is not taken down.
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

from hush.errors import HushError, InvalidInput

__all__ = ["connected", "leave"]


PATIENCE = timedelta(hours=2)  # for the slowest process, while it reads data or writes a model
LAST_WORD = timedelta(seconds=10)  # for the message of the process that failed, before the others end
_CLAIMED, _CODE, _SAID, _HEARD = "hush/claimed", "hush/code", "hush/said", "hush/heard"


class _Lost(HushError):
    """Another process ended, and did not say why."""


@contextmanager
def connected(device: str | None) -> Iterator[bool]:
    """Connect the processes; yields whether this one speaks for all, and takes the connection down afterwards.

    device: "cpu" or "cuda", where each process takes the GPU of its local rank; by default the GPUs, if there are any.
    """
    on_gpu = device != "cpu" and torch.cuda.is_available()
    store = _meet(on_gpu)
    whole = False
    try:
        _take_device(device, on_gpu=on_gpu)
        yield dist.get_rank() == 0
        whole = True
    except BaseException as error:
        found = _lost(error) or error
        silent_code = _give_way(store, found)
        if silent_code is not None:
            raise SystemExit(silent_code) from None
        if found is not error:
            raise found from error
        raise
    finally:
        # Over NCCL, taking it down waits for the others, who may wait for this one; the process ends anyway.
        if whole or not on_gpu:
            dist.destroy_process_group()


def leave(code: int) -> NoReturn:
    """End this process as ``sys.exit`` does, but leave the interpreter up.

    For processes that sharded a model: torch keeps what it learned about shards, and with that the group's threads.
    """
    atexit._run_exitfuncs()
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)


def _take_device(device: str | None, *, on_gpu: bool) -> None:
    """Make the GPU of this process its own, if GPUs are used."""
    if device not in (None, "cpu", "cuda"):
        raise InvalidInput(
            f"--device={device} is one device, but several processes were started; pass cpu or cuda, and each takes "
            "the GPU of its local rank"
        )
    if not on_gpu:
        return
    local, there = int(os.environ.get("LOCAL_RANK", "0")), torch.cuda.device_count()
    if local >= there:
        raise InvalidInput(
            f"this machine has {there} GPUs but was given a process number {local}, from 0; start at most {there} "
            "(torchrun --nproc-per-node), or pass --device cpu"
        )
    torch.cuda.set_device(local)


def _meet(on_gpu: bool) -> Any:
    """Join the process group, and return the store in which its processes leave word for each other."""
    backend = "cpu:gloo,cuda:nccl" if on_gpu else "gloo"
    try:
        store, rank, world = next(iter(rendezvous("env://", timeout=PATIENCE)))
        dist.init_process_group(backend, store=store, rank=rank, world_size=world, timeout=PATIENCE)
    except (ValueError, RuntimeError) as error:
        said = str(error).splitlines()[0]
        raise InvalidInput(
            f"WORLD_SIZE={os.environ['WORLD_SIZE']}, but the processes cannot be connected ({said}); start them with "
            "torchrun, or unset WORLD_SIZE to train in one process"
        ) from error
    return store


def _lost(error: BaseException) -> _Lost | None:
    """What a failed communication means to the user; None for an error of another kind."""
    if not isinstance(error, RuntimeError) or isinstance(error, HushError):
        return None
    if not isinstance(error, dist.DistError) and "gloo" not in str(error):
        return None
    return _Lost(
        f"the connection to another process was lost ({str(error).splitlines()[0]}): one of them ended, or a machine "
        "is unreachable. The same command goes on from the last saved state"
    )


def _give_way(store: Any, error: BaseException) -> int | None:
    """None if this process is the one to say its error; the exit code if another says, or has said, its own."""
    refused = isinstance(error, InvalidInput | OSError | MemoryError | torch.OutOfMemoryError)
    code = 130 if isinstance(error, KeyboardInterrupt) else 2 if refused else 1
    rank, world, told = dist.get_rank(), dist.get_world_size(), False
    try:
        if store.add(_CLAIMED, 1) == 1:
            store.set(_CODE, str(code))
            atexit.register(_leave_word, store, heard_by=() if isinstance(error, _Lost) else range(1, world))
            return None
        code, told = int(store.get(_CODE)), True
        store.wait([_SAID], LAST_WORD)
        store.set(f"{_HEARD}/{rank}", "")
    except dist.DistError:
        if isinstance(error, _Lost) and not told:
            return None  # the first process, which kept the store, is gone without a word
    return code


def _leave_word(store: Any, *, heard_by: Iterable[int]) -> None:
    """When this process ends, and its error is on the terminal: let the others end."""
    with suppress(dist.DistError):
        store.set(_SAID, "")
        if os.environ["RANK"] == "0" and os.environ.get("TORCHELASTIC_USE_AGENT_STORE") != "True":
            # The store is kept by this process, not by torchrun, and ends with it.
            store.wait([f"{_HEARD}/{rank}" for rank in heard_by], LAST_WORD)

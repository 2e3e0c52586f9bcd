"""Time and memory of one method in training.py, and the machine that they were taken on."""

import gc
import os
import platform
import statistics
import sys
import time
from collections.abc import Callable
from dataclasses import replace
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from training_methods import Method
from training_models import Case, make_batches

WARM_UP = 2


class PeakMemory:
    """Peak memory in GB since it was made: of the allocator on a GPU, resident on a CPU."""

    def __init__(self, device: str) -> None:
        self.device = device
        if device == "cuda":
            torch.cuda.reset_peak_memory_stats()
        elif sys.platform == "linux":
            Path("/proc/self/clear_refs").write_text("5")

    def gigabytes(self) -> float | None:
        if self.device == "cuda":
            return torch.cuda.max_memory_allocated() / 2**30
        if sys.platform != "linux":
            return None
        lines = Path("/proc/self/status").read_text().splitlines()
        return next(int(line.split()[1]) for line in lines if line.startswith("VmHWM")) / 2**20


def seconds_of(work: Callable[[], Any], device: str) -> float:
    if device != "cuda":
        begin = time.perf_counter()
        work()
        return time.perf_counter() - begin
    begin, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
    torch.cuda.synchronize()
    begin.record()
    work()
    end.record()
    torch.cuda.synchronize()
    return begin.elapsed_time(end) / 1e3


def measured(method: Method, batches: list[dict[str, Tensor]], device: str, repeats: int) -> dict[str, Any]:
    def block() -> None:
        for batch in batches:
            method.step(batch)
        method.finish()

    first, *_ = [seconds_of(block, device) for _ in range(WARM_UP)]
    memory = PeakMemory(device)
    seconds = [seconds_of(block, device) for _ in range(repeats)]
    examples = sum(len(batch["input_ids"]) for batch in batches)
    return {
        "examples_per_second": examples / statistics.median(seconds),
        "milliseconds_per_micro_batch": 1e3 * statistics.median(seconds) / len(batches),
        "peak_gb": memory.gigabytes(),
        "seconds_of_blocks": seconds,
        "first_block_seconds": first,
    }


def clean(device: str) -> None:
    torch._dynamo.reset()
    gc.collect()
    if device == "cuda":
        torch.cuda.empty_cache()


def tried(make: Callable[[Case], Method], case: Case, device: str, repeats: int) -> dict[str, Any]:
    """The numbers of a method, or its exception; where memory runs out, of a quarter of the micro-batch."""
    row: dict[str, Any] = {}
    for part in (1, 4, 16):
        size = case.micro_batch // part
        if size < 1:
            break
        try:
            batches = make_batches(case, device, size=size, count=case.block)
            method = make(replace(case, micro_batch=size))
            return {"micro_batch": size} | measured(method, batches, device, repeats) | method.about
        except torch.OutOfMemoryError:
            row = {"failed": f"out of memory at a micro-batch of {size}"}
        except ImportError as error:
            return {"failed": f"not installed: {error}"}
        except Exception as error:  # whatever a peer raises is its result
            return {"failed": f"{type(error).__name__}: {error}"[:600]}
        finally:
            method = None
            clean(device)
    return row


def hardware(device: str) -> str:
    if device == "cuda":
        return torch.cuda.get_device_name()
    info = Path("/proc/cpuinfo")
    names = (
        [line.split(":")[1].strip() for line in info.read_text().splitlines() if line.startswith("model name")]
        if info.exists()
        else []
    )
    return f"{names[0] if names else platform.processor()}, {os.cpu_count()} cores"


def installed(name: str) -> str | None:
    try:
        return version(name)
    except PackageNotFoundError:
        return None

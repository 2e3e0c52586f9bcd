"""What a study keeps of its runs: one line each, written as they end, so that an interrupted study goes on.

A line holds the run's settings (its key), its outcome or what it failed with, and when, on what and at which commit it
ran. Failures stay in the file; a failed run is tried again the next time.
"""

import json
import multiprocessing
import os
import platform
import subprocess
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from contextlib import contextmanager
from datetime import UTC, datetime
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
from scipy.stats import t as student

__all__ = ["RunLog", "interval", "provenance", "worker_map"]


@cache
def _machine() -> dict[str, str]:
    hardware = f"{os.cpu_count()} CPU cores, {platform.machine()}"
    versions = f"Python {platform.python_version()}, numpy {np.__version__}"
    try:
        import torch
    except ImportError:
        pass
    else:
        versions += f", torch {torch.__version__}"
        if torch.cuda.is_available():
            hardware = f"{torch.cuda.get_device_name()}, {hardware}"
    here = Path(__file__).parent
    asked = subprocess.run(["git", "rev-parse", "HEAD"], cwd=here, capture_output=True, text=True, check=False)
    commit = os.environ.get("STUDY_COMMIT") or asked.stdout.strip() or "unknown"
    return {"commit": commit, "hardware": hardware, "versions": versions}


def provenance() -> dict[str, str]:
    """When, on what and at which commit (STUDY_COMMIT names it where the working tree has no history)."""
    return {"date": datetime.now(UTC).isoformat(timespec="seconds"), **_machine()}


class RunLog:
    """The runs of a study, in one file of JSON lines. `minutes` is how long new runs may still be begun."""

    def __init__(self, path: Path, *, minutes: float | None = None) -> None:
        self.path = path
        self._until = None if minutes is None else time.monotonic() + 60 * minutes
        self._outcomes: dict[str, dict[str, Any]] = {}
        for line in path.read_text().splitlines() if path.exists() else ():
            try:
                entry = json.loads(line)
            except json.JSONDecodeError:
                continue  # the line that was being written when the machine stopped
            if "outcome" in entry:
                self._outcomes[_name(entry["key"])] = entry

    @property
    def out_of_time(self) -> bool:
        return self._until is not None and time.monotonic() > self._until

    def outcome(self, key: Mapping[str, Any]) -> dict[str, Any] | None:
        """What this run ended with; None where it has not."""
        entry = self._outcomes.get(_name(key))
        return None if entry is None else entry["outcome"]

    def entries(self) -> list[dict[str, Any]]:
        """All finished runs, each with its key, outcome, date, hardware and commit."""
        return list(self._outcomes.values())

    def run(self, key: Mapping[str, Any], work: Callable[[], dict[str, Any]]) -> dict[str, Any] | None:
        """The outcome of this run, which is done now unless it was before; None where it failed or no time is left."""
        known = self.outcome(key)
        if known is not None:
            return known
        if self.out_of_time:
            return None
        begin = time.perf_counter()
        try:
            result: dict[str, Any] = {"outcome": work()}
        except Exception as error:  # the log keeps failures, and the other runs go on
            result = {"failed": f"{type(error).__name__}: {error}"}
        entry = {"key": dict(key), **result, "seconds": round(time.perf_counter() - begin, 2), **provenance()}
        self._append(json.dumps(entry))
        print(json.dumps({**entry["key"], **result, "seconds": entry["seconds"]}), flush=True)
        if "outcome" in result:
            self._outcomes[_name(key)] = entry
        return result.get("outcome")

    def _append(self, line: str) -> None:
        self.path.parent.mkdir(parents=True, exist_ok=True)
        with self.path.open("a+b") as file:
            end = file.seek(0, os.SEEK_END)
            if end > 0:
                file.seek(end - 1)
                if file.read(1) != b"\n":  # a machine stopped in the middle of a line, which must not swallow this one
                    line = "\n" + line
            file.write(f"{line}\n".encode())


@contextmanager
def worker_map(
    workers: int, begin: Callable[..., object], *arguments: object
) -> Iterator[Callable[[Callable[[Any], Any], Iterable[Any]], Iterable[Any]]]:
    """`map` in so many processes, each of which begins with ``begin(*arguments)``; one worker is this process."""
    if workers == 1:
        begin(*arguments)
        yield map
        return
    context = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(workers, context, initializer=begin, initargs=arguments) as pool:
        yield pool.map


def interval(values: Sequence[float]) -> tuple[float, float]:
    """Mean and radius of the 95 % interval for it (Student's t); the radius is nan for fewer than two values."""
    mean = float(np.mean(values))
    if len(values) < 2:
        return mean, float("nan")
    spread = float(np.std(values, ddof=1)) / len(values) ** 0.5
    return mean, float(student.ppf(0.975, len(values) - 1)) * spread


def _name(key: Mapping[str, Any]) -> str:
    return json.dumps(dict(key), sort_keys=True)

"""Growth of a plan and of its verification with the size of the graph, from a tenth to ten times the paper's size.

    python benchmarks/growth.py [--secrets 10000 100000 1000000] [--no-verify] [--output FILE]

The graphs of ``weights.py``: secrets in 50 to 100 examples each, 16.7 examples and about 75 entries for each secret,
prior 1e-10, ceilings uniform in [2e-4, 1e-3], capacities accounted, 2000 rounds. The batch size grows with the graph:
2,048 for 100,000 secrets. Making the graph, making and saving the plan, and verifying it are processes of their own;
for each the clock, the CPU time and the largest resident memory. Rows are added to FILE, which keeps other sizes.
"""

import argparse
import json
import multiprocessing
import os
import platform
import resource
import tempfile
import time
from collections.abc import Callable
from datetime import UTC, datetime
from importlib.metadata import version
from pathlib import Path
from typing import Any

from weights import PRIOR, instance

ROUNDS = 2000
BATCH_PER_SECRET = 0.02048


def make_graph(folder: Path, secrets: int) -> dict[str, Any]:
    import numpy as np

    incidence, ceiling = instance(secrets, seed=0)
    incidence.to_parquet(folder / "incidence.parquet")
    np.save(folder / "ceiling.npy", ceiling)
    return {"examples": incidence.num_examples, "entries": incidence.num_entries}


def make_plan(folder: Path, secrets: int) -> dict[str, Any]:
    import numpy as np

    import hush

    incidence = hush.Incidence.from_parquet(folder / "incidence.parquet")
    ceiling, batch_size = np.load(folder / "ceiling.npy"), BATCH_PER_SECRET * secrets
    begin = time.perf_counter()
    plan = hush.make_plan(incidence, prior=PRIOR, ceiling=ceiling, batch_size=batch_size, rounds=ROUNDS)
    chosen = time.perf_counter() - begin
    plan.save(folder / "plan")
    return {"make_plan_seconds": chosen, "noise_multiplier": plan.noise_multiplier, "gap": plan.weights_gap}


def verify_plan(folder: Path, _: int) -> dict[str, Any]:
    import hush

    return {"passed": hush.verify(folder / "plan").passed}


def measured(task: Callable[[Path, int], dict[str, Any]], folder: Path, secrets: int) -> dict[str, Any]:
    """The task's result, clock, CPU time and peak memory, its imports included; in a process of its own."""
    context = multiprocessing.get_context("spawn")
    receiver, sender = context.Pipe(duplex=False)
    process = context.Process(target=_run, args=(sender, task, folder, secrets))
    process.start()
    sender.close()
    result = receiver.recv()
    process.join()
    return result


def _run(sender: Any, task: Callable[[Path, int], dict[str, Any]], folder: Path, secrets: int) -> None:
    begin = time.perf_counter()
    result = task(folder, secrets)
    seconds = time.perf_counter() - begin
    mine, children = (resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN))
    cpu = mine.ru_utime + mine.ru_stime + children.ru_utime + children.ru_stime
    peaks = {"peak_gb": mine.ru_maxrss / 2**20, "largest_child_gb": children.ru_maxrss / 2**20}
    sender.send({"seconds": seconds, "cpu_seconds": cpu} | peaks | result)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--secrets", type=int, nargs="+", default=[10_000, 100_000, 1_000_000])
    parser.add_argument("--no-verify", action="store_true", help="leave verification out")
    parser.add_argument("--output", type=Path, default=Path(__file__).parent / "results" / "growth.json")
    options = parser.parse_args()
    rows: dict[str, Any] = json.loads(options.output.read_text()) if options.output.exists() else {}
    tasks = {"graph": make_graph, "plan": make_plan} | ({} if options.no_verify else {"verify": verify_plan})
    for secrets in options.secrets:
        row: dict[str, Any] = {
            "date": datetime.now(UTC).isoformat(timespec="seconds"),
            "machine": {"platform": platform.platform(), "cpus": os.cpu_count()},
            "versions": {"python": platform.python_version()}
            | {name: version(name) for name in ("hush", "numpy", "scipy", "numba")},
        }
        with tempfile.TemporaryDirectory() as folder:
            for name, task in tasks.items():
                before = os.getloadavg()[0]
                row[name] = measured(task, Path(folder), secrets) | {"load": [before, os.getloadavg()[0]]}
                print(f"{secrets:,} secrets, {name}: {row[name]}", flush=True)
        rows[str(secrets)] = row
        options.output.write_text(json.dumps(rows, indent=2) + "\n")


if __name__ == "__main__":
    main()

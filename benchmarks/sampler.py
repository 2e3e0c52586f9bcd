"""Time to draw a round against the number of examples, beside a uniform for every example in the same run.

    python benchmarks/sampler.py [--largest 100000000] [--output benchmarks/results/sampler.json]

Expected batch 2048, so that only the data grows. Rates are equal, or spread log-uniformly over four decades. The plain
route is `rng.random(n) < rates` with numpy's PCG64. Medians; the sizes of both draws are checked against the rates.
"""

import argparse
import json
import os
import platform
import resource
import time
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import numpy as np

import hush
from hush.train.sampler import Draws

BATCH = 2048


def rates_of(num_examples: int, spread: float) -> np.ndarray:
    """Rates over this factor from the largest to the smallest, in random order, that add up to the batch."""
    rates = np.random.default_rng(0).uniform(-np.log(spread), 0, num_examples)
    np.exp(rates, out=rates)
    rates *= BATCH / rates.sum()
    assert rates.max() <= 1
    rates.flags.writeable = False
    return rates


def timed(draw: Callable[[int], np.ndarray], repeats: int) -> dict[str, Any]:
    draw(0)
    seconds, sizes = [], []
    for index in range(1, repeats + 1):
        begin = time.perf_counter()
        sizes.append(draw(index).size)
        seconds.append(time.perf_counter() - begin)
    # A size is close to Poisson; beyond six standard deviations of the mean one of the routes is wrong.
    assert abs(np.mean(sizes) - BATCH) < 6 * np.sqrt(BATCH / repeats), sizes
    return {"median_seconds": float(np.median(seconds)), "quartiles": np.quantile(seconds, [0.25, 0.75]).tolist()}


def measure(num_examples: int, kind: str, spread: float) -> dict[str, Any]:
    rates = rates_of(num_examples, spread)
    begin = time.perf_counter()
    draws = Draws(rates)
    setup = time.perf_counter() - begin
    ours = timed(draws.round, 200)
    one_of_eight = timed_share(draws, 8, 200)
    rng = np.random.default_rng()
    plain = timed(lambda _: np.flatnonzero(rng.random(num_examples) < rates), 5 if num_examples >= 10**7 else 20)
    row = {
        "examples": num_examples,
        "rates": kind,
        "blocks": draws.num_blocks,
        "setup_seconds": setup,
        "hush": ours,
        "hush_one_rank_of_8": one_of_eight,
        "plain": plain,
        "ratio": plain["median_seconds"] / ours["median_seconds"],
    }
    print(
        f"{num_examples:>11,} examples, {kind}: hush {ours['median_seconds'] * 1e3:.3f} ms (setup {setup:.2f} s), "
        f"plain {plain['median_seconds'] * 1e3:.1f} ms, {row['ratio']:.2g} times as long"
    )
    return row


def timed_share(draws: Draws, world: int, repeats: int) -> dict[str, Any]:
    seconds = []
    for index in range(repeats):
        begin = time.perf_counter()
        draws.round(index, rank=index % world, world=world)
        seconds.append(time.perf_counter() - begin)
    return {"median_seconds": float(np.median(seconds))}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--largest", type=int, default=10**8)
    parser.add_argument("--output", type=Path, default=Path(__file__).parent / "results" / "sampler.json")
    args = parser.parse_args()
    sizes = [size for size in (10**5, 10**6, 10**7, 10**8) if size <= args.largest]
    rows = [measure(size, kind, spread) for size in sizes for kind, spread in (("equal", 1.0), ("log-uniform", 1e4))]
    result = {
        "date": datetime.now(UTC).isoformat(timespec="seconds"),
        "hardware": f"{os.cpu_count()} cores, {platform.processor() or platform.machine()}",
        "load": list(os.getloadavg()),
        "versions": {"hush": hush.__version__, "numpy": np.__version__, "python": platform.python_version()},
        "expected_batch": BATCH,
        "rows": rows,
        "peak_memory_gb": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1e6,
    }
    print(f"peak memory {result['peak_memory_gb']:.2f} GB")
    args.output.parent.mkdir(parents=True, exist_ok=True)
    args.output.write_text(json.dumps(result, indent=2) + "\n")


if __name__ == "__main__":
    main()

"""Time and memory of ``hush verify`` for plans with many secrets, beside judging every secret alone.

    python benchmarks/verification.py [--authors arxiv_authors.parquet] [--small] [--output FILE]

Each instance is planned with accounted capacities that keep 90 % of the weight, saved, and verified by the command in a
process of its own, whose clock and CPU time and peak memory are recorded. Ceilings: one for all, or spread over three
decades, where fewer secrets are alike. Instances: the size of the paper's experiment (100,000 secrets in 50 to 100 of
1.67 M examples, as in weights.py), and authors of abstracts: with --authors those of a Parquet file with a column of
lists, without it a synthetic graph of that size (557,508 examples, 550,516 secrets, a heavy tail). "one by one" is
extrapolated from 200 random secrets of the plan, on one core. --small: a hundredth of the secrets. --plan FOLDER:
verify plans that were saved before, and plan nothing.
"""

import argparse
import json
import os
import platform
import resource
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from datetime import UTC, datetime
from importlib.metadata import version
from pathlib import Path
from typing import Any

import numpy as np

import hush
from hush.plan import posteriors
from weights import PRIOR, instance

ABSTRACTS, AUTHORS = 557_508, 550_516
MEAN_AUTHORS = 3.0  # of an abstract
SAMPLE = 200  # secrets judged alone


def authors(path: Path) -> hush.Incidence:
    """Who wrote which abstract; records without an author are left out."""
    import pyarrow.parquet as pq

    column = pq.read_table(path, columns=["authors"]).column("authors").combine_chunks()
    names = column.flatten().dictionary_encode()
    size = np.diff(column.offsets.to_numpy())
    example = np.repeat(np.cumsum(size > 0) - 1, size)
    return hush.Incidence.from_pairs(
        example, names.indices.to_numpy(), num_examples=int((size > 0).sum()), num_secrets=len(names.dictionary)
    )


def synthetic_authors(share: float, rng: np.random.Generator) -> hush.Incidence:
    """Most names occur once, a few hundreds of times."""
    n, m = round(share * ABSTRACTS), round(share * AUTHORS)
    often = np.minimum(rng.zipf(2.1, m), 730)
    secret = np.repeat(np.arange(m), often)[: round(MEAN_AUTHORS * n)]
    example = rng.integers(0, n, secret.size)
    return hush.Incidence.from_pairs(example, secret, num_examples=n, num_secrets=m)


def instances(options: argparse.Namespace) -> Iterator[tuple[str, hush.Incidence, np.ndarray | float, dict[str, Any]]]:
    """Name, graph, ceilings, and the settings of the plan."""
    rng = np.random.default_rng(options.seed)
    share = 0.01 if options.small else 1.0
    incidence, ceiling_S = instance(round(share * 100_000), options.seed)
    settings = {"batch_size": share * 2048, "rounds": 2000}
    yield "paper's size, ceilings 2e-4 to 1e-3", incidence, ceiling_S, settings
    yield "paper's size, three decades", incidence, 10 ** rng.uniform(-4, -1, incidence.num_secrets), settings
    written = options.authors is not None
    incidence = authors(options.authors) if written else synthetic_authors(share, rng)
    settings = {"batch_size": (1.0 if written else share) * 4096, "rounds": 1000}
    name = "authors" if written else "synthetic authors"
    yield f"{name}, one ceiling", incidence, 1e-3, settings
    decades = rng.choice(np.geomspace(1e-4, 1e-1, 10), incidence.num_secrets)
    yield f"{name}, three decades", incidence, decades, settings


def verified(folder: Path) -> dict[str, Any]:
    """``hush verify`` in a process of its own."""
    # The peak of children is that of the largest so far, so each is measured by a process between.
    code = (
        "import json, resource, subprocess, sys, time; begin = time.perf_counter();"
        "found = subprocess.run([sys.executable, '-m', 'hush', 'verify', sys.argv[1], '--json'], capture_output=True);"
        "used = resource.getrusage(resource.RUSAGE_CHILDREN);"
        "print(json.dumps({'seconds': time.perf_counter() - begin, 'cpu_seconds': used.ru_utime + used.ru_stime,"
        " 'peak_gb': used.ru_maxrss / 2**20, 'passed': json.loads(found.stdout)['passed']}))"
    )
    shown = subprocess.run([sys.executable, "-c", code, str(folder)], capture_output=True, check=True, text=True)
    return json.loads(shown.stdout)


def one_by_one(plan: hush.Plan, rng: np.random.Generator) -> float:
    """Seconds for all secrets, from a sample judged alone."""
    chosen = rng.choice(plan.incidence.num_secrets, min(SAMPLE, plan.incidence.num_secrets), replace=False)
    begin = time.process_time()
    for secret in chosen.tolist():
        alone = posteriors.Alone(plan, secret, plan.prior[secret])
        alone.faults(plan.ceiling[secret], plan.posterior[secret], listed=secret in plan.binding)
    return (time.process_time() - begin) / chosen.size * plan.incidence.num_secrets


def measured(name: str, plan: hush.Plan, folder: Path, seed: int) -> dict[str, Any]:
    """What is recorded of one plan."""
    return {
        "instance": name,
        "examples": plan.incidence.num_examples,
        "secrets": plan.incidence.num_secrets,
        "entries": plan.incidence.num_entries,
        "binding": plan.binding.size,
        "stated posteriors": len(np.unique(plan.posterior, axis=0)),
        "verify": verified(folder),
        "one by one, CPU seconds": one_by_one(plan, np.random.default_rng(seed)),
        "load": os.getloadavg()[0],
    }


def main() -> None:
    """Measure every instance, write the record."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--authors", type=Path, help="a Parquet file with a column of lists of names")
    parser.add_argument("--plan", type=Path, action="append", help="verify this saved plan instead; may be repeated")
    parser.add_argument("--small", action="store_true", help="a hundredth of the secrets")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--output", type=Path, default=Path(__file__).parent / "results" / "verification.json")
    options = parser.parse_args()
    result: dict[str, Any] = {
        "date": datetime.now(UTC).isoformat(timespec="seconds"),
        "command": "benchmarks/verification.py"
        + (" --authors arxiv_authors.parquet" if options.authors else "")
        + "".join(f" --plan {folder.name}" for folder in options.plan or ()),
        "machine": {"platform": platform.platform(), "cpus": os.cpu_count(), "load": os.getloadavg()},
        "versions": {"python": platform.python_version()} | {name: version(name) for name in ("numpy", "scipy")},
        "rows": [],
    }

    def keep(row: dict[str, Any]) -> None:
        result["rows"].append(row)
        print(json.dumps(row, indent=2), flush=True)
        options.output.write_text(json.dumps(result, indent=2) + "\n", encoding="utf-8")

    for folder in options.plan or ():
        keep(measured(folder.name, hush.Plan.load(folder), folder, options.seed))
    for name, incidence, ceiling, settings in () if options.plan else instances(options):
        begin, cpu = time.perf_counter(), time.process_time()
        plan = hush.make_plan(incidence, prior=PRIOR, ceiling=ceiling, **settings)
        planned = {"seconds": time.perf_counter() - begin, "cpu_seconds": time.process_time() - cpu}
        planned["peak_gb"] = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20
        with tempfile.TemporaryDirectory() as temporary:
            plan.save(Path(temporary) / "plan")
            keep(measured(name, plan, Path(temporary) / "plan", options.seed) | {"plan": planned})


if __name__ == "__main__":
    main()

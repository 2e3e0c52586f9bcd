"""Speed and memory of scanning a repository of code, beside an earlier version of hush in the same run.

    python benchmarks/scan_code.py --repository airflow --rules rules.yaml [--before OTHER/src] [--output FILE]

Each run is ``hush scan`` in a process of its own with 2 workers, its result written to a temporary folder. CPU time is
that of the process, its workers and git together: on a machine with other work it says more than the clock. If the
graphs of the two versions differ, the numbers of pairs that only one of them has are part of the result.
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
from datetime import UTC, datetime
from importlib.metadata import version
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq

WORKERS = 2


def scanned(source: Path | None, repository: Path, rules: Path, output: Path) -> dict[str, Any]:
    """One scan; source: the folder of the version's package, by default the installed one."""
    environment = os.environ | ({} if source is None else {"PYTHONPATH": str(source)})
    words = ["scan", str(repository), "--rules", str(rules), "--output", str(output), "--workers", str(WORKERS)]
    begin, before = time.perf_counter(), resource.getrusage(resource.RUSAGE_CHILDREN)
    subprocess.run(
        [sys.executable, "-c", "from hush.cli import main; main()", *words, "--no-html"],
        env=environment,
        check=True,
        stdout=subprocess.DEVNULL,
    )
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    summary = json.loads((output / "public" / "summary.json").read_text())
    return {
        "seconds": time.perf_counter() - begin,
        "cpu_user_seconds": after.ru_utime - before.ru_utime,
        "cpu_system_seconds": after.ru_stime - before.ru_stime,
        "load": os.getloadavg(),
        **{name: summary[name] for name in ("examples", "examples_with_secrets", "secrets", "pairs")},
    }


def pairs(folder: Path) -> set[tuple[Any, ...]]:
    table = pq.read_table(folder / "public" / "incidence.parquet")
    return set(zip(*(column.to_pylist() for column in table.columns), strict=True))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--repository", type=Path, required=True)
    parser.add_argument("--rules", type=Path, required=True)
    parser.add_argument("--before", type=Path, help="the folder src of an earlier version, to compare with")
    parser.add_argument("--output", type=Path, default=Path(__file__).parent / "results" / "scan_code.json")
    options = parser.parse_args()
    git = ["git", "-C", str(options.repository), "rev-list", "--count", "HEAD"]
    result: dict[str, Any] = {
        "date": datetime.now(UTC).isoformat(timespec="seconds"),
        "command": f"benchmarks/scan_code.py --repository {options.repository.name} --rules {options.rules.name}",
        "machine": {"platform": platform.platform(), "cpus": os.cpu_count()},
        "versions": {"python": platform.python_version(), "hush": version("hush")},
        "commits": int(subprocess.run(git, capture_output=True, text=True, check=True).stdout),
        "rules": options.rules.read_text(),
    }
    versions = {"before": options.before} if options.before else {}
    with tempfile.TemporaryDirectory() as folder:
        for name, source in {**versions, "now": None}.items():
            row = result[name] = scanned(source, options.repository, options.rules, Path(folder) / name)
            print(
                f"{name:<8}{row['seconds']:>8.1f} s, CPU {row['cpu_user_seconds']:.1f} s user, "
                f"{row['cpu_system_seconds']:.1f} s system; {row['pairs']:,} pairs",
                flush=True,
            )
        if options.before:
            before, now = pairs(Path(folder) / "before"), pairs(Path(folder) / "now")
            result["pairs_only_before"], result["pairs_only_now"] = len(before - now), len(now - before)
    options.output.write_text(json.dumps(result, indent=2) + "\n")


if __name__ == "__main__":
    main()

"""A real graph of half a million secrets through every stage but training: the authors of arXiv abstracts.

    python benchmarks/authors.py --abstracts abstracts.parquet --authors authors.parquet [--output FILE]

Two Parquet files with the same ids in the same order: the texts (column abstract), and the authors as a list of names
(column authors). Every name is a secret, by a rule that finds fields; records without an author are left out. The
stages are commands of hush, each a process of its own: scan, plan (batch 2,048, 2000 rounds), frontier (three noises),
verify, report. For each the clock, the CPU time and the largest resident memory of any of its processes. The page is
opened in Chromium, if selenium and a driver are installed: until it is drawn, in a new browser and again.
"""

import argparse
import json
import multiprocessing
import os
import platform
import shutil
import subprocess
import sys
import tempfile
import time
from concurrent.futures import ProcessPoolExecutor
from datetime import UTC, datetime
from importlib.metadata import version
from pathlib import Path
from typing import Any

import pyarrow.compute
import pyarrow.parquet as pq

compute: Any = pyarrow.compute  # its functions are made at import, and type checkers do not see them

RULES = """version: 1
defaults: {prior: 1.0e-6, ceiling: 1.0e-2}
rules:
  - {name: author, find: fields, column: authors}
"""
BATCH = ("--batch-size", "2048", "--rounds", "2000")


def join(abstracts: Path, authors: Path, joined: Path) -> dict[str, int]:
    """The texts with their authors as one file, of the records that have an author."""
    texts, names = pq.read_table(abstracts, columns=["id", "abstract"]), pq.read_table(authors)
    if not texts["id"].equals(names["id"]):
        sys.exit("the two files have different ids, or another order")
    table = texts.append_column("authors", names["authors"])
    table = table.filter(compute.greater(compute.list_value_length(table["authors"]), 0))
    pq.write_table(table, joined)
    listed = compute.list_flatten(table["authors"])
    return {"examples": table.num_rows, "names": len(compute.unique(listed)), "named": len(listed)}


def stages(folder: Path) -> dict[str, list[str]]:
    data = [str(folder / "data.parquet"), "--column", "abstract", "--key", str(folder / "data.key")]
    graph = [str(folder / "found/public/incidence.parquet"), "--secrets", str(folder / "found/public/secrets.parquet")]
    plan, rules, found = str(folder / "plan"), str(folder / "rules.yaml"), str(folder / "found")
    sweep, page = str(folder / "frontier.json"), str(folder / "report.html")
    settings = [word for noise in (2.5, 2.2, 2.0) for word in ("--setting", str(noise))]
    return {
        "scan": ["scan", *data, "--rules", rules, "--output", found],
        "plan": ["plan", *graph, "--data", *data, *BATCH, "--output", plan],
        "frontier": ["frontier", *graph, *BATCH, *settings, "--output", sweep],
        "verify": ["verify", plan],
        "report": ["report", plan, "--scan", found, "--frontier", sweep, "--output", page],
    }


def measured(command: list[str]) -> dict[str, Any]:
    begin, load = time.perf_counter(), os.getloadavg()[0]
    process = subprocess.Popen([sys.executable, "-m", "hush", *command], stdout=subprocess.DEVNULL)
    _, status, usage = os.wait4(process.pid, 0)
    return {
        "seconds": time.perf_counter() - begin,
        "cpu_seconds": usage.ru_utime + usage.ru_stime,
        "peak_gb": usage.ru_maxrss / 2**20,
        "exit": os.waitstatus_to_exitcode(status),
        "load": [load, os.getloadavg()[0]],
    }


def opened(page: Path) -> dict[str, Any] | None:
    """Seconds until the page says that it is drawn, in a new browser and twice more."""
    browser, driver = shutil.which("chromium"), shutil.which("chromedriver")
    try:
        from selenium import webdriver
    except ImportError:
        return None
    if browser is None or driver is None:
        return None
    options = webdriver.ChromeOptions()
    options.binary_location = browser
    for argument in ("--headless=new", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage"):
        options.add_argument(argument)
    tab = webdriver.Chrome(options=options, service=webdriver.ChromeService(driver))
    seconds: list[float] = []
    try:
        for _ in range(3):
            begin = time.perf_counter()
            tab.get(page.as_uri())
            while not tab.execute_script("return document.documentElement.dataset.ready === 'yes'"):
                time.sleep(0.02)
            seconds.append(time.perf_counter() - begin)
        elements = tab.execute_script("return document.querySelectorAll('*').length")
        secrets = tab.execute_script("return document.getElementById('found').textContent")
    finally:
        tab.quit()
    return {"seconds": seconds, "elements": elements, "found": secrets, "load": os.getloadavg()[0]}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--abstracts", type=Path, required=True)
    parser.add_argument("--authors", type=Path, required=True)
    parser.add_argument("--skip", nargs="*", default=[], help="stages to leave out")
    parser.add_argument("--output", type=Path, default=Path(__file__).parent / "results" / "authors.json")
    options = parser.parse_args()
    result: dict[str, Any] = {
        "date": datetime.now(UTC).isoformat(timespec="seconds"),
        "machine": {"platform": platform.platform(), "cpus": os.cpu_count()},
        "versions": {"python": platform.python_version()}
        | {name: version(name) for name in ("hush", "numpy", "scipy", "numba", "pyarrow")},
    }
    with tempfile.TemporaryDirectory() as made:
        folder = Path(made)
        # A process of its own: what this one holds when it starts a stage would count as memory of the stage.
        with ProcessPoolExecutor(1, multiprocessing.get_context("spawn")) as pool:
            sizes = pool.submit(join, options.abstracts, options.authors, folder / "data.parquet")
            result["size"] = sizes.result()
        (folder / "rules.yaml").write_text(RULES)
        for name, command in stages(folder).items():
            if name not in options.skip:
                result[name] = measured(command)
                print(f"{name}: {result[name]}", flush=True)
        summary = json.loads((folder / "found/public/summary.json").read_text())
        result["size"] |= {"secrets": summary["rules"][0]["secrets"], "pairs": summary["pairs"]}
        page = folder / "report.html"
        if page.exists():
            result["page"] = {"megabytes": page.stat().st_size / 1e6, "open": opened(page)}
            print(f"page: {result['page']}")
    options.output.write_text(json.dumps(result, indent=2) + "\n")


if __name__ == "__main__":
    main()

"""Speed and memory of the scan on a real corpus, beside a plain Python loop in the same run.

    python benchmarks/scan.py --data abstracts.parquet [--column abstract] [--repeat 10] [--output FILE]

Words that occur in 50 to 100 examples, each a secret: through ``hush.scan`` with 2 workers, over the data and over the
data repeated (the range of frequencies grows with it, so that the same words are secrets), and by the loop that one
would write without it, in one process. Every run is a process of its own; memory is the largest that it and its workers
held at once, as the sum of their proportional shares. The results are compared: same words, same examples.
100,000 literals of two words each, in one process on one core: words of the data put together at random, which hardly
ever match, as secrets do; and pairs that stand in the data, which match several times in every example. The rate is by
CPU time and by the clock, reading the data not included.
"""

import argparse
import json
import multiprocessing
import os
import platform
import random
import re
import subprocess
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from datetime import UTC, datetime
from importlib.metadata import version
from itertools import islice, pairwise
from pathlib import Path
from typing import Any

import numpy as np
import psutil
import pyarrow as pa
import pyarrow.parquet as pq

LEAST, MOST = 50, 100
WORD, FORMULA = re.compile(r"[a-z]+(?:[-'][a-z]+)*"), re.compile(r"\$[^$]*\$")
LITERALS = 100_000


def texts_of(path: Path, column: str) -> Iterator[str]:
    for batch in pq.ParquetFile(path).iter_batches(columns=[column]):
        yield from batch.column(0).to_pylist()


def words_by_hush(paths: list[Path], column: str, times: int, workers: int) -> dict[str, Any]:
    from hush.data import read_corpus
    from hush.scan.scanner import scan

    rule = {"name": "words", "find": "words", "documents": [LEAST * times, MOST * times]}
    rules = {"version": 1, "defaults": {"prior": 1e-10, "ceiling": 1e-3}, "rules": [rule]}
    source = paths[0] if len(paths) == 1 else paths[0].parent
    found = scan(read_corpus(source, column=column), rules, workers=workers).incidence
    examples = int((np.diff(found.to_scipy().tocsr().indptr) > 0).sum())
    return {"secrets": found.num_secrets, "examples": found.num_examples, "with_secrets": examples}


def words_by_loop(path: Path, column: str) -> dict[str, Any]:
    def words(text: str) -> set[str]:
        return set(WORD.findall(FORMULA.sub(" ", text.lower())))

    counts: Counter[str] = Counter()
    for text in texts_of(path, column):
        counts.update(words(text))
    chosen = {word for word, count in counts.items() if LEAST <= count <= MOST}
    held = [bool(words(text) & chosen) for text in texts_of(path, column)]
    return {"secrets": len(chosen), "examples": len(held), "with_secrets": sum(held), "distinct_words": len(counts)}


def some_literals(path: Path, column: str, kind: str) -> list[str]:
    """Distinct pairs of words; "made up": put together at random; "real": each stands once in a sample of the texts."""
    rng = random.Random(0)
    texts = [text.split() for text in islice(texts_of(path, column), 20_000)]
    if kind == "real":
        counts = Counter(pair for words in texts for pair in set(pairwise(words)))
        pairs = set(rng.sample(sorted(pair for pair, count in counts.items() if count == 1), LITERALS))
    else:
        known, pairs = sorted({word for words in texts for word in words}), set()
        while len(pairs) < LITERALS:
            pairs.add((rng.choice(known), rng.choice(known)))
    return sorted(map(" ".join, pairs))


def literals_by_hush(path: Path, column: str, kind: str) -> dict[str, Any]:
    from hush.data.parts import Block
    from hush.scan.finders import Literals

    finder = Literals(values=some_literals(path, column, kind))
    begin = time.perf_counter()
    # Builds the automaton, and loads what was compiled before.
    finder.find(Block(texts=pa.array([" ".join(finder.values[:9])], pa.large_string()), columns={}, rows=np.arange(1)))
    build, hits, size, seconds, cpu = time.perf_counter() - begin, 0, 0, 0.0, 0.0
    for batch in pq.ParquetFile(path).iter_batches(batch_size=4096, columns=[column]):
        texts = batch.column(0).cast(pa.large_string())
        block = Block(texts=texts, columns={}, rows=np.arange(len(texts)))
        begin, begin_cpu = time.perf_counter(), time.process_time()
        hits += len(finder.find(block))
        seconds, cpu = seconds + time.perf_counter() - begin, cpu + time.process_time() - begin_cpu
        size += texts.nbytes
    rates = {"megabytes_per_second": size / seconds / 1e6, "megabytes_per_cpu_second": size / cpu / 1e6}
    return {"literals": len(finder.values), "megabytes": size / 1e6, "hits": hits, "build_seconds": build} | rates


def _reporting(function: Callable[..., dict[str, Any]], arguments: tuple, pipe: Any) -> None:
    begin = time.perf_counter()
    found = function(*arguments)
    times = os.times()
    cpu = times.user + times.system + times.children_user + times.children_system
    pipe.send(found | {"seconds": time.perf_counter() - begin, "cpu_seconds": cpu})


def measured(function: Callable[..., dict[str, Any]], *arguments: Any) -> dict[str, Any]:
    """The function in a process of its own, with the memory of that process and of its workers, sampled."""
    context = multiprocessing.get_context("spawn")
    ours, theirs = context.Pipe()
    process = context.Process(target=_reporting, args=(function, arguments, theirs))
    process.start()
    theirs.close()
    peak, over = 0, threading.Event()

    def watch() -> None:
        nonlocal peak
        while not over.wait(0.2):
            peak = max(peak, family_bytes(process.pid))

    watcher = threading.Thread(target=watch)
    watcher.start()
    try:
        found = ours.recv()
    finally:
        over.set()
        watcher.join()
        process.join()
    return found | {"peak_gb": peak / 1e9}


def family_bytes(pid: int | None) -> int:
    """Memory of a process and of all below it; pages that several share count once."""
    total = 0
    try:
        parent = psutil.Process(pid)
        for member in [parent, *parent.children(recursive=True)]:
            total += member.memory_full_info().pss
    except psutil.NoSuchProcess:
        pass
    return total


def commit() -> str:
    done = subprocess.run(["git", "rev-parse", "--short", "HEAD"], capture_output=True, text=True, check=False)
    return done.stdout.strip() or "unknown"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, required=True, help="a Parquet file")
    parser.add_argument("--column", default="abstract", help="its column of texts")
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--repeat", type=int, default=10, help="how often the data is repeated; 1 leaves it out")
    parser.add_argument("--no-loop", action="store_true", help="leave the plain loop out")
    parser.add_argument("--no-literals", action="store_true", help="leave the literals out")
    parser.add_argument("--output", type=Path, default=Path(__file__).parent / "results" / "scan.json")
    options = parser.parse_args()

    result: dict[str, Any] = {
        "date": datetime.now(UTC).isoformat(timespec="seconds"),
        "commit": commit(),
        "machine": {"platform": platform.platform(), "cpus": os.cpu_count(), "load": os.getloadavg()},
        "versions": {"python": platform.python_version()}
        | {name: version(name) for name in ("hush", "numpy", "pyarrow", "numba", "ahocorasick_rs")},
        "data": {"bytes": options.data.stat().st_size, "rows": pq.ParquetFile(options.data).metadata.num_rows},
    }
    rows: dict[str, dict[str, Any]] = {}
    print(f"{'what':<34}{'clock':>9}{'CPU':>9}{'peak':>9}  secrets, examples that hold one")

    def add(name: str, row: dict[str, Any]) -> None:
        rows[name] = row
        found = f"{row['secrets']:,}, {row['with_secrets']:,} of {row['examples']:,}"
        print(
            f"{name:<34}{row['seconds']:>7.1f} s{row['cpu_seconds']:>7.1f} s{row['peak_gb']:>6.2f} GB  {found}",
            flush=True,
        )

    column, workers = options.column, options.workers
    add("words, hush", measured(words_by_hush, [options.data], column, 1, workers))
    if options.repeat > 1:
        with tempfile.TemporaryDirectory() as folder:
            paths = [Path(folder) / f"part-{index:03}.parquet" for index in range(options.repeat)]
            for path in paths:
                path.symlink_to(options.data.resolve())
            repeated = measured(words_by_hush, paths, column, options.repeat, workers)
        add(f"words, hush, {options.repeat} times the data", repeated)
        assert repeated["secrets"] == rows["words, hush"]["secrets"]
        assert repeated["with_secrets"] == options.repeat * rows["words, hush"]["with_secrets"]
    if not options.no_loop:
        add("words, a plain loop", measured(words_by_loop, options.data, column))
        for figure in ("secrets", "examples", "with_secrets"):
            assert rows["words, a plain loop"][figure] == rows["words, hush"][figure], figure
    result["words"] = rows
    for kind in () if options.no_literals else ("made up", "real"):
        row = measured(literals_by_hush, options.data, column, kind)
        result.setdefault("literals", {})[kind] = row
        print(
            f"{row['literals']:,} literals, {kind}, one core: {row['megabytes_per_second']:.0f} MB/s by the clock, "
            f"{row['megabytes_per_cpu_second']:.0f} MB/s of CPU time, {row['hits']:,} hits, automaton in "
            f"{row['build_seconds']:.1f} s, {row['peak_gb']:.2f} GB",
            flush=True,
        )
    options.output.parent.mkdir(parents=True, exist_ok=True)
    options.output.write_text(json.dumps(result, indent=2) + "\n")


if __name__ == "__main__":
    main()

"""How well rare words hidden as spans can be guessed from the graph and the skeletons alone, without any model.

    python benchmarks/prior.py TEXTS.parquet [--column abstract] [--examples 20000] [--documents 5 10] [--output FILE]

The first ``--examples`` texts, in a random order, are the data; every word in ``--documents`` of them is a secret, and
all its occurrences are slots. ``--outside`` more texts of the same file are what the adversary has read elsewhere: once
none, once all. Texts of one field are the worst case for the owner: real adversaries have read less like the data.
"""

import argparse
import json
import os
import platform
import tempfile
import time
from datetime import UTC, datetime
from importlib.metadata import version
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from hush.audit.prior import measure_priors, stated_priors_of_scan
from hush.scan import scan
from hush.scan.result import Scan


def hidden_words(texts: list[str], documents: tuple[int, int], prior: float) -> Scan:
    """A scan for all words in this many texts, hidden as spans."""
    rule = {"name": "rare-words", "find": "words", "documents": list(documents), "hides": "span"}
    rules = {"defaults": {"prior": prior, "ceiling": 0.5}, "rules": [rule]}
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "texts.parquet"
        pq.write_table(pa.table({"text": texts}), path)
        return scan(path, rules)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("texts", type=Path)
    parser.add_argument("--column", default="abstract")
    parser.add_argument("--examples", type=int, default=20_000)
    parser.add_argument("--outside", type=int, default=20_000)
    parser.add_argument("--documents", type=int, nargs=2, default=(5, 10))
    parser.add_argument("--prior", type=float, default=1e-10)
    parser.add_argument("--model", help="a base model that guesses, too")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--output", type=Path)
    arguments = parser.parse_args()
    column = pq.read_table(arguments.texts, columns=[arguments.column]).column(0)
    order = np.random.default_rng(arguments.seed).permutation(len(column))
    texts = column.take(order[: arguments.examples]).to_pylist()
    more = column.take(order[arguments.examples : arguments.examples + arguments.outside]).to_pylist()
    found = hidden_words(texts, tuple(arguments.documents), arguments.prior)
    stated = stated_priors_of_scan(found)
    results: list[dict[str, Any]] = []
    for outside in ([], more):
        begin = time.perf_counter()
        measured = measure_priors(
            found.spans,
            found.incidence,
            texts,
            found.secrets,
            stated,
            outside=outside,
            model=arguments.model,
            seed=arguments.seed,
        )
        seconds = time.perf_counter() - begin
        for rule in measured.rules:
            results.append({"outside_texts": len(outside), "seconds": round(seconds, 1)} | rule.record())
            print(json.dumps(results[-1], indent=2), flush=True)
    if arguments.output:
        record = {
            "what": "guessing hidden rare words from the graph and the skeletons alone",
            "date": datetime.now(UTC).date().isoformat(),
            "machine": f"{platform.processor() or platform.machine()}, {os.cpu_count()} cores",
            "versions": {name: version(name) for name in ("hush", "numpy", "scipy")},
            "data": arguments.texts.name,
            "examples": arguments.examples,
            "documents": list(arguments.documents),
            "seed": arguments.seed,
            "model": arguments.model,
            "results": results,
        }
        arguments.output.write_text(json.dumps(record, indent=2) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()

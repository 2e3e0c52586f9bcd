"""How well the words of the study can be guessed without any model: the least prior that a promise may state.

    python -m experiments.secret_spans.prior --abstracts arxiv.parquet --output prior.json

The secrets, the split and the slots are those of the study at full scale. What the adversary has, beside the graph and
the skeletons of all training abstracts: the list of the secret words ("listed") or not ("open"); and no other text,
the abstracts for validation and for the test, or 50,000 of the training abstracts, which are then not hidden; in both
the words stand as they are.
"""

import argparse
import json
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet as pq

from experiments.runs import provenance
from experiments.secret_spans.data import RULE, restricted, slots_found, split
from experiments.secret_words.data import DOCUMENTS
from hush import Protection, Secrets
from hush.audit.prior import StatedPrior, measure_priors
from hush.audit.prior.measure import MAX_TEXTS

PRIOR, CEILING = 1e-4, 0.1  # of the study


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--abstracts", type=Path, required=True, help="Parquet table with a column abstract")
    parser.add_argument("--output", type=Path, required=True)
    parser.add_argument("--limit", type=int, help="read no more abstracts")
    parser.add_argument("--documents", type=int, nargs=2, default=DOCUMENTS)
    parser.add_argument("--seed", type=int, default=0)
    args = parser.parse_args()
    table = pq.read_table(args.abstracts, columns=["abstract"]).slice(0, args.limit)
    abstracts: list[str] = table.column(0).to_pylist()
    documents = tuple(args.documents)
    numbers = split(abstracts, documents)
    with tempfile.TemporaryDirectory() as folder:
        graph, spans, words = slots_found(table, Path(folder), documents)
    secrets = Secrets([Protection(PRIOR, CEILING)] * len(words), texts=words)
    held = np.concatenate([numbers["validation"], numbers["test"]])
    more = np.random.default_rng(args.seed).permutation(numbers["train"])[: min(MAX_TEXTS, numbers["train"].size // 2)]
    results: list[dict[str, Any]] = []
    for name, hidden, outside in (
        ("none", numbers["train"], held[:0]),
        ("validation and test", numbers["train"], held),
        ("training abstracts that are not hidden", np.setdiff1d(numbers["train"], more), more),
    ):
        incidence, own = restricted(graph, spans, hidden)
        present = np.flatnonzero(incidence.examples_per_secret > 0)
        stated = StatedPrior(rule=RULE, prior=PRIOR, secret_J=present, is_band=True, values=len(words))
        begin = time.perf_counter()
        measured = measure_priors(
            own, incidence, (abstracts[example] for example in hidden), secrets, [stated],
            outside=[abstracts[example] for example in outside], seed=args.seed,
        )  # fmt: skip
        seconds = round(time.perf_counter() - begin, 1)
        entry = {"outside": name, "outside_texts": len(outside), "hidden_texts": len(hidden), "seconds": seconds}
        results.append(entry | measured.rules[0].record())
        print(json.dumps(results[-1], indent=1), flush=True)
    record = {"what": "guessing the words of the study from the graph and the skeletons alone"} | provenance()
    args.output.write_text(json.dumps(record | {"seed": args.seed, "results": results}, indent=1) + "\n")


if __name__ == "__main__":
    main()

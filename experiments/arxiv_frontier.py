"""Noise against data kept, on real text: words of arXiv abstracts as secrets.

    python experiments/arxiv_frontier.py --data arxiv_abstracts.parquet

The data is a Parquet table with a column `abstract` (587,329 arXiv records). Secrets are the lower-cased words outside
$...$ that occur in 50 to 100 abstracts; abstracts without any are left out. Prior 1e-10, ceilings uniform in
[2e-4, 1e-3], expected batch 2048, 2000 rounds. Four frontiers: the paper's capacities under KL (its method) and under
the tight bound, capacities from the accountant under the tight bound, and each bound on all data.
"""

import argparse
import json
import os
import platform
import re
import subprocess
import time
from collections import Counter
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet as pq

import hush

WORD, FORMULA = re.compile(r"[a-z]+(?:[-'][a-z]+)*"), re.compile(r"\$[^$]*\$")
BATCH, ROUNDS, PRIOR = 2048, 2000, 1e-10


def words(abstract: str) -> set[str]:
    """Lower-cased words outside formulas; hyphens and apostrophes join."""
    return set(WORD.findall(FORMULA.sub(" ", abstract.lower())))


def word_incidence(abstracts: list[str]) -> hush.Incidence:
    """Abstracts that contain a word of middling frequency, against those words."""
    frequency: Counter[str] = Counter()
    for abstract in abstracts:
        frequency.update(words(abstract))
    secret_of = {word: i for i, word in enumerate(sorted(w for w, k in frequency.items() if 50 <= k <= 100))}
    pairs = [
        (example, secret_of[word])
        for example, text in enumerate(abstracts)
        for word in words(text)
        if word in secret_of
    ]
    example, secret = np.array(pairs).T
    kept, example = np.unique(example, return_inverse=True)
    return hush.Incidence.from_pairs(example, secret, num_examples=kept.size, num_secrets=len(secret_of))


def sweep(incidence: hush.Incidence, ceiling: np.ndarray, **settings: Any) -> list[dict[str, Any]]:
    begin = time.perf_counter()
    found = hush.frontier(
        incidence, prior=PRIOR, ceiling=ceiling, batch_size=BATCH, rounds=ROUNDS, tolerance=1e-4, **settings
    )
    rows = [row | {"binding": len(row["binding"])} for row in found.records()]
    print(f"{settings}: {time.perf_counter() - begin:.0f} s")
    for row in rows:
        print({name: round(value, 4) if value is not None else None for name, value in row.items()})
    return rows


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, required=True)
    parser.add_argument("--limit", type=int, default=None, help="only the first so many abstracts")
    parser.add_argument("--output", type=Path, default=Path(__file__).parent / "results" / "arxiv_frontier.json")
    args = parser.parse_args()
    abstracts = pq.read_table(args.data, columns=["abstract"]).column(0).slice(0, args.limit).to_pylist()
    incidence = word_incidence(abstracts)
    print(incidence)
    ceiling = np.random.default_rng(0).uniform(2e-4, 1e-3, incidence.num_secrets)
    frontiers = {
        "paper, KL": sweep(incidence, ceiling, capacity="paper", bound="kl"),
        "paper, tight": sweep(incidence, ceiling, capacity="paper", bound="blowup"),
        "accounted, tight": sweep(incidence, ceiling, capacity="accounted", bound="blowup"),
    }
    commit = subprocess.run(["git", "rev-parse", "HEAD"], capture_output=True, text=True, check=False).stdout.strip()
    result = {
        "date": datetime.now(UTC).isoformat(timespec="seconds"),
        "commit": commit,
        "hardware": f"{os.cpu_count()} cores, {platform.machine()}",
        "incidence": {
            "examples": incidence.num_examples,
            "secrets": incidence.num_secrets,
            "entries": incidence.num_entries,
        },
        "frontiers": frontiers,
    }
    args.output.parent.mkdir(parents=True, exist_ok=True)
    args.output.write_text(json.dumps(result, indent=2) + "\n")
    draw(frontiers, args.output.with_suffix(".svg"))


def draw(frontiers: dict[str, list[dict[str, Any]]], path: Path) -> None:
    import matplotlib as mpl

    mpl.use("Agg")
    import matplotlib.pyplot as plt

    figure, axes = plt.subplots(figsize=(7, 4.2), layout="constrained")
    for (name, rows), colour in zip(frontiers.items(), ("#d55e00", "#0072b2", "#009e73"), strict=True):
        axes.plot(
            [r["kept_weight"] for r in rows], [r["noise_multiplier"] for r in rows], "o-", color=colour, label=name
        )
    axes.set(yscale="log", xlabel="share of the data's weight kept", ylabel="noise multiplier")
    axes.set_title("Same promise on arXiv abstracts: noise against data kept", loc="left", fontweight="bold")
    axes.grid(alpha=0.3)
    axes.legend(frameon=False)
    figure.savefig(path)


if __name__ == "__main__":
    main()

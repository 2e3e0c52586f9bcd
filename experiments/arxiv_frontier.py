"""Noise against data kept, on real text: words of arXiv abstracts as secrets.

    python -m experiments.arxiv_frontier --data arxiv_abstracts.parquet

The data is a Parquet table with a column `abstract` (587,329 arXiv records). Secrets are the lower-cased words outside
$...$ that occur in 50 to 100 abstracts; abstracts without any are left out. Prior 1e-10, ceilings uniform in
[2e-4, 1e-3], expected batch 2048, 2000 rounds. Three frontiers, each from all data on: the paper's capacities under KL
(its method) and under the tight bound, and capacities from the accountant under the tight bound.
"""

import argparse
import json
import time
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet as pq

import hush
from experiments.figures import COLOURS, panels, save
from experiments.runs import provenance
from experiments.secret_words.data import secret_words, word_incidence

BATCH, ROUNDS, PRIOR = 2048, 2000, 1e-10


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
    _, incidence = word_incidence(abstracts, secret_words(abstracts))
    print(incidence)
    ceiling = np.random.default_rng(0).uniform(2e-4, 1e-3, incidence.num_secrets)
    frontiers = {
        "paper, KL": sweep(incidence, ceiling, capacity="paper", bound="kl"),
        "paper, tight": sweep(incidence, ceiling, capacity="paper", bound="blowup"),
        "accounted, tight": sweep(incidence, ceiling, capacity="accounted", bound="blowup"),
    }
    result = {
        **provenance(),
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
    figure, axes = panels(1, 1, width=7, height=4.2)
    colours = [COLOURS[name] for name in ("paper, all data", "paper, program", "hush")]
    for (name, rows), colour in zip(frontiers.items(), colours, strict=True):
        axes[0, 0].plot(
            [r["kept_weight"] for r in rows], [r["noise_multiplier"] for r in rows], "o-", color=colour, label=name
        )
    axes[0, 0].set(yscale="log", xlabel="share of the data's weight kept", ylabel="noise multiplier")
    axes[0, 0].set_title("Same promise on arXiv abstracts: noise against data kept")
    axes[0, 0].legend()
    save(figure, path)


if __name__ == "__main__":
    main()

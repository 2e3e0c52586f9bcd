"""Half a million owners: every author of an arXiv abstract is a secret, and no abstract is without one.

    python -m experiments.owners --scale full --abstracts arxiv.parquet --authors authors.parquet \\
        --vocabulary vocab.txt --public books.jsonl.gz --stage prepare --stage plan
    python -m experiments.owners --scale full --stage train --stage figures --workers 3 --minutes 9

The abstracts are a Parquet table with the columns `id` and `abstract`, the authors one with `id` and `authors` (lists
of names), in the same order; the vocabulary is BERT's (uncased, one word piece a line), the public corpus JSON lines
with a field `text`. Stages: prepare (texts to word pieces), plan, train (every arm), figures (tables). Each goes on
where it stopped; --stage runs one alone: preparing and planning need no GPU, training needs nothing but --work and
--start.
"""

import argparse
import json
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

import hush
from experiments.owners.arms import make_plans
from experiments.owners.data import INCIDENCE, Canaries, prepare
from experiments.owners.jobs import Setup, run_jobs, tuned
from experiments.owners.table import promises, table
from experiments.runs import RunLog
from experiments.secret_words.arms import BATCH, ROUNDS

STAGES = ("prepare", "plan", "train", "figures")
HERE = Path(__file__).parent.parent


@dataclass(frozen=True, slots=True, kw_only=True)
class Scale:
    """How large the study is. small is for a CPU, in minutes; smoke only tries every step."""

    abstracts: int | None
    books: tuple[int, int]  # windows to measure metrics from, and to pretrain the causal model on
    canaries: tuple[int, int]  # how many, and copies of each
    batch_size: int
    rounds: int
    micro_batch: int
    causal: dict[str, Any]
    pretraining: tuple[int, int]
    tries: int  # learning rates of every arm
    seeds: int


SCALES = {
    "smoke": Scale(
        abstracts=400, books=(16, 8), canaries=(2, 2), batch_size=8, rounds=1, micro_batch=8,
        causal={"n_embd": 8, "n_layer": 1, "n_head": 1}, pretraining=(8, 1), tries=1, seeds=1,
    ),
    "small": Scale(
        abstracts=30_000, books=(1000, 2000), canaries=(16, 8), batch_size=128, rounds=60, micro_batch=32,
        causal={"n_embd": 64, "n_layer": 2, "n_head": 2}, pretraining=(32, 50), tries=2, seeds=1,
    ),
    "full": Scale(
        abstracts=None, books=(4000, 24_000), canaries=(64, 16), batch_size=BATCH, rounds=ROUNDS,
        micro_batch=BATCH + 128, causal={"n_embd": 512, "n_layer": 12, "n_head": 8}, pretraining=(256, 1000),
        tries=2, seeds=3,
    ),
}  # fmt: skip


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--abstracts", type=Path, help="Parquet table with columns id and abstract")
    parser.add_argument("--authors", type=Path, help="Parquet table with columns id and authors, in the same order")
    parser.add_argument("--vocabulary", type=Path, help="BERT's uncased word pieces, one a line")
    parser.add_argument("--public", type=Path, action="append", default=[], help="JSON lines, public (repeatable)")
    parser.add_argument(
        "--start", type=Path, default=HERE / "results" / "secret_words" / "start.safetensors",
        help="a BERT-Tiny to start from (safetensors)",
    )  # fmt: skip
    parser.add_argument("--scale", choices=tuple(SCALES), default="small")
    parser.add_argument("--batch-size", type=int, help="instead of that of the scale, as the elbow of the signal says")
    parser.add_argument("--rounds", type=int, help="instead of those of the scale")
    parser.add_argument("--stage", choices=STAGES, action="append", help="only this stage (repeatable)")
    parser.add_argument(
        "--arm", action="append", help="train only this one: before, none, or the name of a plan (repeatable)"
    )
    parser.add_argument("--work", type=Path, help="prepared data and plans; default: build/owners/SCALE")
    parser.add_argument("--output", type=Path, help="log and tables; default: results/owners at full scale")
    parser.add_argument("--minutes", type=float, help="begin no run after so many minutes")
    parser.add_argument("--workers", type=int, default=1, help="processes that share the device")
    parser.add_argument("--eager", action="store_true", help="compile nothing")
    args = parser.parse_args()
    scale, stages = SCALES[args.scale], args.stage or STAGES
    work = args.work or HERE.parent / "build" / "owners" / args.scale
    # What is committed is of the full scale; a smaller one does not mix with it.
    output = args.output or (HERE / "results" / "owners" if args.scale == "full" else work / "results")
    known = work / "vocabulary.txt"  # how many word pieces there are, for machines without the vocabulary
    if not (work / INCIDENCE).exists() and None in (args.abstracts, args.authors, args.vocabulary):
        parser.error(
            f"nothing is prepared in {work}: pass --abstracts, --authors and --vocabulary, or --work with what is "
            "prepared"
        )
    if args.vocabulary is not None:
        work.mkdir(parents=True, exist_ok=True)
        known.write_text(f"{len(args.vocabulary.read_text().splitlines())}\n")
    count, copies = scale.canaries
    canaries = Canaries(count=count, copies=copies, vocabulary=int(known.read_text()))
    batch_size, rounds = args.batch_size or scale.batch_size, args.rounds or scale.rounds
    setup = Setup(
        work=work, plans=work / f"plans-{batch_size}-{rounds}", log=output / "runs.jsonl", start=args.start,
        batch_size=batch_size, rounds=rounds, micro_batch=scale.micro_batch, canaries=canaries, causal=scale.causal,
        pretraining=scale.pretraining, tries=scale.tries, seeds=scale.seeds, workers=args.workers,
        until=None if args.minutes is None else time.time() + 60 * args.minutes,
        compile=torch.cuda.is_available() and not args.eager, arms=None if args.arm is None else tuple(args.arm),
    )  # fmt: skip
    if "prepare" in stages and args.vocabulary is not None:
        prepare(
            args.abstracts, args.authors, args.vocabulary, work, public=args.public, limit=scale.abstracts,
            books=scale.books, canaries=canaries,
        )  # fmt: skip
    if "plan" in stages:
        incidence = hush.Incidence.from_parquet(work / INCIDENCE)
        make_plans(incidence, setup.plans, batch_size=batch_size, rounds=rounds)
        output.mkdir(parents=True, exist_ok=True)
        record = promises(incidence, setup.plans, batch_size=batch_size, rounds=rounds)
        usual = (batch_size, rounds) == (scale.batch_size, scale.rounds)
        name = "promises.json" if usual else f"promises-{batch_size}-{rounds}.json"
        (output / name).write_text(json.dumps(record, indent=1) + "\n")
    if "train" in stages:
        run_jobs(setup)
    if "figures" in stages:
        log = RunLog(setup.log)
        text = table(log, tuned(setup, log), scale.seeds)
        (output / "table.md").write_text(text + "\n")
        print(text)


if __name__ == "__main__":
    main()

"""Secret words as spans: skeletons alone, skeletons with the private part, no protection, and words left out.

    python -m experiments.secret_spans --abstracts arxiv.parquet --vocabulary vocab.txt \\
        --start experiments/results/secret_words/start.safetensors

Every run is a line of the log, so that the study goes on where it stopped. Promises hold for every word, at full noise;
--promise PRIOR CEILING, once or several times, says which. Settings are chosen on validation data, for every arm in the
same way. --prepare only prepares data and plans, so that training may happen on another machine, with --work.
"""

import argparse
import json
import time
from pathlib import Path

import hush
from experiments.runs import RunLog, interval
from experiments.secret_spans.data import PLACEHOLDER, prepare
from experiments.secret_spans.jobs import Promise, Scale, Setup, run_jobs, table
from experiments.secret_spans.training import Private
from experiments.secret_words.data import DOCUMENTS
from hush.slots import Slots

PROMISE = (1e-4, 0.1)  # the prior is lower than what guessers without a model reach: see the page of the study
HERE = Path(__file__).parent.parent

SCALES = {
    "smoke": Scale(
        abstracts=300, documents=(5, 8), batch_size=16, rounds=2, private_batch=16, private_rounds=2, public_batch=16,
        micro_batch=16, rates=(1e-3,), longer_rates=(1e-3,), seeds=1, group_seeds=1,
        private=(Private(trained="bias", rate=1e-2, weight=10.0, clip_norm=0.3),),
    ),
    "small": Scale(
        abstracts=30_000, documents=(20, 40), batch_size=128, rounds=50, private_batch=192, private_rounds=20,
        public_batch=64, micro_batch=64, rates=(3e-3,), longer_rates=(), seeds=1, group_seeds=1,
        private=(Private(trained="bias", rate=3e-2, weight=10.0, clip_norm=0.3),),
    ),
    "full": Scale(
        abstracts=None, documents=DOCUMENTS, batch_size=2048, rounds=2000, private_batch=2048, private_rounds=400,
        public_batch=1024, micro_batch=2176, rates=(3e-3, 1e-2), longer_rates=(1e-3, 3e-3), seeds=3,
        group_seeds=1,
        private=(
            *(
                Private(trained="bias", rate=1e-2, weight=weight, clip_norm=0.3)
                for weight in (None, 30.0, 10.0, 3.0)
            ),
            Private(trained="bias", rate=3e-2, weight=None, clip_norm=0.3),
            *(Private(trained="head", rate=1e-3, weight=weight, clip_norm=1.0) for weight in (None, 10.0)),
        ),
    ),
}  # fmt: skip


def make_plan(setup: Setup, promise: Promise) -> None:
    """The plan of the private part: the same promise for every word, at full noise."""
    if setup.plan(promise).exists():
        return
    made = hush.make_plan(
        hush.Incidence.from_parquet(setup.work / "incidence.parquet"),
        slots=Slots.from_parquet(setup.work / "slots.parquet"),
        prior=promise.prior,
        ceiling=promise.ceiling,
        batch_size=setup.scale.private_batch,
        rounds=setup.scale.private_rounds,
    )
    made.save(setup.plan(promise))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--abstracts", type=Path, help="Parquet table with a column abstract")
    parser.add_argument("--vocabulary", type=Path, required=True, help="BERT's uncased word pieces, one a line")
    parser.add_argument("--start", type=Path, required=True, help="a BERT-Tiny to start from (safetensors)")
    parser.add_argument("--scale", choices=tuple(SCALES), default="small")
    parser.add_argument(
        "--promise", type=float, nargs=2, action="append", metavar=("PRIOR", "CEILING"),
        help="of the private part; may be repeated; default: 1e-4 0.1",
    )  # fmt: skip
    parser.add_argument("--work", type=Path, help="prepared data and plans; default: build/secret-spans/SCALE")
    parser.add_argument("--output", type=Path, help="log and table; default: results/secret_spans at full scale")
    parser.add_argument("--minutes", type=float, help="begin no run after so many minutes")
    parser.add_argument("--workers", type=int, default=1, help="processes that share the device")
    parser.add_argument("--prepare", action="store_true", help="prepare data and plan, and train nothing")
    args = parser.parse_args()
    promises = tuple(Promise(prior=prior, ceiling=ceiling) for prior, ceiling in args.promise or (PROMISE,))
    scale, work = SCALES[args.scale], args.work or HERE.parent / "build" / "secret-spans" / args.scale
    # What is committed is of the full scale; a smaller one does not mix with it.
    output = args.output or (HERE / "results" / "secret_spans" if args.scale == "full" else work / "results")
    words = args.vocabulary.read_text().splitlines()
    if words[2] != PLACEHOLDER:
        parser.error(f"piece 2 of the vocabulary is not {PLACEHOLDER}; pass BERT's uncased vocabulary")
    if not (work / "incidence.parquet").exists():
        if args.abstracts is None:
            parser.error(f"nothing is prepared in {work}: pass --abstracts, or --work with what is prepared")
        prepare(args.abstracts, args.vocabulary, work, limit=scale.abstracts, documents=scale.documents)
    setup = Setup(
        work=work, log=output / "runs.jsonl", start=args.start, vocabulary=len(words), scale=scale,
        promises=promises, workers=args.workers,
        until=None if args.minutes is None else time.time() + 60 * args.minutes,
    )  # fmt: skip
    for promise in promises:
        make_plan(setup, promise)
    if args.prepare:
        return
    run_jobs(setup)
    rows = table(RunLog(setup.log), scale, interval)
    (output / "summary.json").write_text(json.dumps(rows, indent=1) + "\n")
    for row in rows:
        print(row)


if __name__ == "__main__":
    main()

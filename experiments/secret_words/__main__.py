"""Study 1, secret protection on arXiv abstracts: the paper's four panels, and hush under the same promise.

    python -m experiments.secret_words --abstracts arxiv.parquet --vocabulary vocab.txt --public books.jsonl.gz

The abstracts are a Parquet table with a column `abstract`, the vocabulary BERT's (uncased, one word piece a line), the
public corpus JSON lines with a field `text`. Stages: prepare (texts to word pieces), plan, pretrain (a BERT-Tiny on the
public corpus, unless --start names a checkpoint), train (tuning, then every arm and seed), figures. Each goes on where
it stopped; --stage runs one alone, so that preparing and training may happen on different machines.
"""

import argparse
import time
from dataclasses import dataclass
from pathlib import Path

import torch

import hush
from experiments.runs import RunLog
from experiments.secret_words.arms import BATCH, ROUNDS, Promise, make_plans
from experiments.secret_words.data import DOCUMENTS, PARTS, Prepared, prepare
from experiments.secret_words.jobs import run_jobs
from experiments.secret_words.schedule import Bench
from experiments.secret_words.training import Task, mean_loss_of, new_model, train_ordinarily
from hush.storage import whole_file

STAGES = ("prepare", "plan", "pretrain", "train", "figures")
HERE = Path(__file__).parent.parent


@dataclass(frozen=True, slots=True, kw_only=True)
class Scale:
    """How large the study is. small is for a CPU, in minutes; smoke only tries every step."""

    abstracts: int | None
    documents: tuple[int, int]
    batch_size: int
    rounds: int
    micro_batch: int
    pretraining: tuple[int, int]  # batch size and rounds
    rates: tuple[float, ...]
    seeds: int
    every: int = 1  # point of the sweeps


SCALES = {
    "smoke": Scale(
        abstracts=400, documents=(5, 8), batch_size=16, rounds=2, micro_batch=16, pretraining=(8, 2), rates=(1e-3,),
        seeds=2, every=5,
    ),
    "small": Scale(
        abstracts=30_000, documents=(20, 40), batch_size=128, rounds=60, micro_batch=32, pretraining=(64, 300),
        rates=(1e-3, 3e-3), seeds=1, every=2,
    ),
    "full": Scale(
        abstracts=None, documents=DOCUMENTS, batch_size=BATCH, rounds=ROUNDS, micro_batch=BATCH + 128,
        pretraining=(1024, 5000), rates=(1e-4, 3e-4, 1e-3, 3e-3, 1e-2), seeds=3,
    ),
}  # fmt: skip


def pretrain(task: Task, scale: Scale, path: Path, *, compile: bool) -> None:
    """BERT-Tiny on the public corpus alone."""
    from safetensors.torch import save

    batch_size, rounds = scale.pretraining
    model = train_ordinarily(
        task, new_model(task, None), batch_size=batch_size, rounds=rounds, learning_rate=2e-3, seed=0, compile=compile,
        part="public", shown=lambda round, loss: print(f"pretraining, round {round}: loss {loss:.3f}", flush=True),
    )  # fmt: skip
    tied = ("cls.predictions.decoder.weight", "cls.predictions.decoder.bias")
    # Half precision is what travels; every arm starts from the same file.
    weights = {k: v.detach().half().cpu().contiguous() for k, v in model.state_dict().items() if k not in tied}
    with whole_file(path) as file:
        file.write(save(weights))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--abstracts", type=Path, help="Parquet table with a column abstract")
    parser.add_argument("--vocabulary", type=Path, help="BERT's uncased word pieces, one a line")
    parser.add_argument(
        "--public", type=Path, action="append", default=[], help="JSON lines to pretrain on (repeatable)"
    )
    parser.add_argument(
        "--start", type=Path, help="a BERT-Tiny to start from: a folder of Transformers', or safetensors"
    )
    parser.add_argument("--scale", choices=tuple(SCALES), default="small")
    parser.add_argument("--stage", choices=STAGES, action="append", help="only this stage (repeatable)")
    parser.add_argument("--work", type=Path, help="prepared data, plans, the start; default: build/secret-words/SCALE")
    parser.add_argument("--output", type=Path, help="log, tables, figure; default: results/secret_words at full scale")
    parser.add_argument("--minutes", type=float, help="begin no run after so many minutes")
    parser.add_argument("--workers", type=int, default=1, help="processes that share the device")
    args = parser.parse_args()
    scale, stages = SCALES[args.scale], args.stage or STAGES
    work = args.work or HERE.parent / "build" / "secret-words" / args.scale
    # What is committed is of the full scale; a smaller one does not mix with it.
    output = args.output or (HERE / "results" / "secret_words" if args.scale == "full" else work / "results")
    if not (work / "incidence.parquet").exists() and (args.abstracts is None or args.vocabulary is None):
        parser.error(
            f"nothing is prepared in {work}: pass --abstracts and --vocabulary, or --work with what is prepared"
        )
    cuda = torch.cuda.is_available()
    bench = Bench(
        work=work, log=output / "runs.jsonl", rounds=scale.rounds, batch_size=scale.batch_size,
        micro_batch=scale.micro_batch, vocabulary=_vocabulary(work, args.vocabulary), rates=scale.rates,
        seeds=scale.seeds, workers=args.workers, compile=cuda, start=args.start or work / "start.safetensors",
        until=None if args.minutes is None else time.time() + 60 * args.minutes,
    )  # fmt: skip
    if "prepare" in stages:
        prepare(
            args.abstracts, args.vocabulary, work, public=args.public, limit=scale.abstracts,
            documents=scale.documents,
        )  # fmt: skip
    if "plan" in stages:
        promise = Promise(batch_size=scale.batch_size, rounds=scale.rounds)
        make_plans(
            hush.Incidence.from_parquet(work / "incidence.parquet"),
            promise,
            work / "plans",
            every=scale.every,
        )
    if "pretrain" in stages and not bench.start.exists():
        task = _task(bench, ("public",))
        pretrain(task, scale, bench.start, compile=cuda)
    if "train" in stages:
        others = {entry["outcome"].get("start") for entry in RunLog(bench.log).entries()} - {None, bench.start_digest}
        if others:  # they would count as done
            parser.error(
                f"runs in {bench.log} began with other weights ({', '.join(sorted(others))}) than {bench.start} "
                f"({bench.start_digest}): pass their --start, or another --output"
            )
        task = _task(bench, PARTS[1:])
        before = {"arm": "before", "noise": False, "start": bench.start_digest}
        RunLog(bench.log).run(
            before, lambda: {part: mean_loss_of(task, new_model(task, bench.start), part) for part in PARTS[1:]}
        )
        run_jobs(bench)
    if "figures" in stages:
        from experiments.secret_words.panels import summarise  # a machine that only trains needs nothing to draw with

        for row in summarise(bench, output):
            print(row)


def _vocabulary(work: Path, given: Path | None) -> int:
    """How many word pieces there are; kept beside the prepared data for machines that have no vocabulary."""
    known = work / "vocabulary.txt"
    if given is not None:
        work.mkdir(parents=True, exist_ok=True)
        known.write_text(f"{len(given.read_text().splitlines())}\n")
    return int(known.read_text())


def _task(bench: Bench, parts: tuple[str, ...]) -> Task:
    rows = Prepared.load(bench.work, parts).rows
    return Task.of(rows, vocabulary=bench.vocabulary, micro_batch=bench.micro_batch)


if __name__ == "__main__":
    main()

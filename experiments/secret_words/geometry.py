"""The same arms in a metric measured from public gradients: what clipping and noise in it give under the same promise.

    python -m experiments.secret_words.geometry --work build/secret-words/full --abstracts … --vocabulary … --prepare
    python -m experiments.secret_words.geometry --work build/secret-words/full --table books --workers 3 --minutes 9

Goes on from the prepared data, plans and start of the study. The first command adds what metrics are measured from. Of
the tables, ``books`` has the metric from books and textbooks alone; in ``free`` it is from the abstracts without a
secret word, which are then also what every arm starts from. No figure rests on texts that are evaluated on. Every run
is a line of the log, so the same command goes on where it stopped, also on another machine; --runs names other runs.
"""

import argparse
import json
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

import hush
from experiments.runs import RunLog, worker_map
from experiments.secret_words.__main__ import SCALES
from experiments.secret_words.data import PARTS, PUBLIC_PARTS, Prepared, prepare_public_parts
from experiments.secret_words.training import Task, _optimizer, mean_loss_of, new_model, train_ordinarily
from hush.train import PrivateTraining, masked_lm_loss
from hush.train.language_models import Loss
from hush.train.public.metric import PublicMetric

HERE = Path(__file__).parent.parent
EXAMPLES, EVERY = 512, 100  # public examples of a measurement, and rounds between two
MOMENTUM = 0.9


def metric_from(task: Task, part: str, **settings: Any) -> PublicMetric:
    """The metric of a public part of the rows; masks are drawn from the state that the measurement sets."""

    def collate(ids: NDArray[np.int64]) -> Mapping[str, Tensor]:
        generator = torch.Generator(task.device).manual_seed(int(torch.randint(2**62, ())))
        return task.masked(part, torch.as_tensor(ids, device=task.device), generator)

    return PublicMetric.of_corpus(
        len(task.rows[part]), collate, count=EXAMPLES, every=EVERY, micro_batch=64, **settings
    )


def train(
    task: Task, plan: hush.Plan, model: Any, key: Mapping[str, Any], *, compile: bool, loss: Loss = masked_lm_loss
) -> Any:
    """The model after the plan's rounds. Seeds are fixed for the sake of repetition: nothing is certified here."""
    metric = None
    if key["exponent"] is not None:
        metric = metric_from(
            task, key["source"], exponent=key["exponent"], floor=key["floor"], precondition=key["precondition"]
        )
    optimizer, scheduler = _optimizer(model, key["rate"], plan.rounds)
    if key["precondition"]:  # the public second moment in the place of Adam's own
        optimizer = torch.optim.SGD(model.parameters(), lr=key["rate"], momentum=MOMENTUM)
        scheduler = torch.optim.lr_scheduler.LambdaLR(optimizer, scheduler.lr_lambdas)
    generator = torch.Generator(task.device).manual_seed(key["seed"])
    private = PrivateTraining(
        model, optimizer, plan, loss=loss, micro_batch=task.micro_batch, scheduler=scheduler,
        insecure_seed=key["seed"], compile=compile, autocast=task.autocast, metric=metric,
    )  # fmt: skip
    for round in private.rounds():
        for batch in round.micro_batches():
            examples = torch.as_tensor(batch.examples, device=task.device)
            private.accumulate(task.masked("train", examples, generator), batch.real)
        private.step()
    private.finish()
    return model


_state: dict[str, Any] = {}  # of this worker


def _begin(args: argparse.Namespace, until: float | None) -> None:
    torch.set_float32_matmul_precision("high")
    parts = (*PARTS, *(name for name in PUBLIC_PARTS if (args.work / f"{name}.tokens").exists()))
    rows = Prepared.load(args.work, parts).rows
    task = Task.of(rows, vocabulary=args.vocabulary_size, micro_batch=args.micro_batch)
    minutes = None if until is None else (until - time.time()) / 60
    _state.update(args=args, task=task, log=RunLog(args.output / "geometry.jsonl", minutes=minutes))


def _work(key: Mapping[str, Any]) -> None:
    _state["log"].run(key, lambda: _outcome(key, _state["args"], _state["task"]))


def _outcome(key: Mapping[str, Any], args: argparse.Namespace, task: Task) -> dict[str, Any]:
    start = args.work / "public-start.safetensors" if key["start"] == "free" else args.start
    model = new_model(task, start)
    if key["arm"] == "none":
        train_ordinarily(
            task, model, batch_size=args.batch_size, rounds=key["rounds"], learning_rate=key["rate"], seed=key["seed"],
            compile=_compiles(task), part=key["source"],
        )  # fmt: skip
        if key["source"] == "free":
            from safetensors.torch import save_file

            tied = ("cls.predictions.decoder.weight", "cls.predictions.decoder.bias")
            weights = {k: v.detach().cpu().contiguous() for k, v in model.state_dict().items() if k not in tied}
            save_file(weights, args.work / "public-start.safetensors")
    elif key["arm"] != "before":
        plan = hush.Plan.load(args.work / "plans" / key["arm"])
        train(task, plan, model, key, compile=_compiles(task))
    return {part: mean_loss_of(task, model, part) for part in ("validation", "test")}


def _compiles(task: Task) -> bool:
    return task.device == "cuda" and not _state["args"].eager


def key_of(
    arm: str,
    rate: float,
    *,
    exponent: float | None = None,
    floor: float = 0.1,
    precondition: float = 0.0,
    source: str = "books",
    start: str = "books",
    seed: int = 0,
    rounds: int = 2000,
) -> dict[str, Any]:
    """The key of a run in the log."""
    return {
        "arm": arm, "rate": rate, "exponent": exponent, "floor": floor, "precondition": precondition, "source": source,
        "start": start, "seed": seed, "rounds": rounds,
    }  # fmt: skip


BEST_RATES = {"paper-00": 3e-4, "paper-06": 3e-4, "hush-00": 1e-3, "hush-05": 1e-3}  # of the study, by validation loss


def table_of(name: str, arms: Sequence[str], rounds: int) -> list[list[dict[str, Any]]]:
    """The runs of a table in stages, each of which may need the one before; the most telling ones first."""
    ours, theirs = ([arm for arm in arms if arm.startswith(method)] for method in ("hush", "paper"))
    options: dict[str, Any] = {"source": name, "start": name, "rounds": rounds}
    runs: list[dict[str, Any]] = []
    for exponent, factor in ((-0.25, 1.0), (-0.375, 1.0), (-0.25, 3.0), (None, 1.0)):
        for arm in (*ours, *theirs):
            if exponent is not None or name != "books":  # the arms without a metric are in the study's own log
                runs.append(key_of(arm, factor * BEST_RATES.get(arm, 1e-3), exponent=exponent, **options))
    runs += [key_of(arm, 1e-2, exponent=-0.25, precondition=0.5, **options) for arm in ours]
    if name == "books":  # the ablation: a stronger exponent, lower floors
        for exponent, floor in ((-0.5, 0.1), (-0.25, 0.01), (-0.375, 0.01)):
            runs += [key_of(arm, BEST_RATES.get(arm, 1e-3), exponent=exponent, floor=floor, **options) for arm in ours]
    before = [key_of("before", 0.0, **options)]
    return [before, runs] if name == "books" else [[key_of("none", 3e-3, source=name, rounds=rounds)], before, runs]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--work", type=Path, required=True, help="prepared data, plans and start of the study")
    parser.add_argument("--prepare", action="store_true", help="only prepare what metrics are measured from")
    parser.add_argument("--abstracts", type=Path, help="for --prepare: as of the study")
    parser.add_argument("--vocabulary", type=Path, help="for --prepare: as of the study")
    parser.add_argument("--scale", choices=tuple(SCALES), default="full", help="of the study in --work")
    parser.add_argument("--start", type=Path, default=HERE / "results" / "secret_words" / "start.safetensors")
    parser.add_argument("--output", type=Path, default=HERE / "results" / "secret_words")
    parser.add_argument("--table", choices=PUBLIC_PARTS, help="the runs of this table")
    parser.add_argument("--arms", nargs="+", default=list(BEST_RATES), help="plans of the study to run in a table")
    parser.add_argument("--runs", type=Path, help="instead: JSON lines, each the settings of a run (key_of)")
    parser.add_argument("--eager", action="store_true", help="compile nothing")
    parser.add_argument("--workers", type=int, default=1, help="processes that share the device")
    parser.add_argument("--minutes", type=float, help="begin no run after so many minutes")
    args = parser.parse_args()
    scale = SCALES[args.scale]
    if args.prepare:
        if args.abstracts is None or args.vocabulary is None:
            parser.error("--prepare needs --abstracts and --vocabulary")
        prepare_public_parts(
            args.abstracts, args.vocabulary, args.work, limit=scale.abstracts, documents=scale.documents
        )
        return
    if (args.table is None) == (args.runs is None):
        parser.error("pass one of --table and --runs")
    args.vocabulary_size = int((args.work / "vocabulary.txt").read_text())
    args.batch_size, args.micro_batch = scale.batch_size, scale.micro_batch
    if args.runs is None:
        stages = table_of(args.table, args.arms, scale.rounds)
    else:
        stages = [[key_of(**json.loads(line)) for line in args.runs.read_text().splitlines() if line.strip()]]
    until = None if args.minutes is None else time.time() + 60 * args.minutes
    with worker_map(args.workers, _begin, args, until) as run:
        for keys in stages:
            list(run(_work, keys))


if __name__ == "__main__":
    main()

"""The same arms in a metric measured from public gradients: what clipping and noise in it give under the same promise.

    python -m experiments.secret_words.geometry --work build/secret-words/full --workers 4

Goes on from the prepared data, plans and start of the study. The metric is measured from books and textbooks alone, or,
with --source abstracts, from the abstracts without a secret word, which are then also what every arm starts from. No
figure rests on texts that are evaluated on. Every run is a line of the log; --arms names them by their number.
"""

import argparse
import json
import multiprocessing
import time
from collections.abc import Mapping
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

import hush
from experiments.runs import RunLog
from experiments.secret_words.data import PARTS, Prepared
from experiments.secret_words.training import Task, _optimizer, mean_loss_of, new_model, train_ordinarily
from hush.train import PrivateTraining, masked_lm_loss
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


def train(task: Task, plan: hush.Plan, model: Any, key: Mapping[str, Any], *, compile: bool) -> Any:
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
        model, optimizer, plan, loss=masked_lm_loss, micro_batch=task.micro_batch, scheduler=scheduler,
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
    parts = (*PARTS, *(name for name in ("books", "free") if (args.work / f"{name}.tokens").exists()))
    rows = Prepared.load(args.work, parts).rows
    task = Task.of(rows, vocabulary=args.vocabulary, micro_batch=args.micro_batch)
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
            compile=task.device == "cuda", part=key["source"],
        )  # fmt: skip
        if key["source"] == "free":
            from safetensors.torch import save_file

            tied = ("cls.predictions.decoder.weight", "cls.predictions.decoder.bias")
            weights = {k: v.detach().cpu().contiguous() for k, v in model.state_dict().items() if k not in tied}
            save_file(weights, args.work / "public-start.safetensors")
    elif key["arm"] != "before":
        plan = hush.Plan.load(args.work / "plans" / key["arm"])
        train(task, plan, model, key, compile=task.device == "cuda")
    return {part: mean_loss_of(task, model, part) for part in ("validation", "test")}


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


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--work", type=Path, required=True, help="prepared data, plans and start of the study")
    parser.add_argument("--start", type=Path, default=HERE / "results" / "secret_words" / "start.safetensors")
    parser.add_argument("--output", type=Path, default=HERE / "results" / "secret_words")
    parser.add_argument("--runs", type=Path, required=True, help="JSON lines, each the settings of a run (key_of)")
    parser.add_argument("--vocabulary", type=int, default=30_522)
    parser.add_argument("--batch-size", type=int, default=2048)
    parser.add_argument("--micro-batch", type=int, default=2176)
    parser.add_argument("--workers", type=int, default=1, help="processes that share the device")
    parser.add_argument("--minutes", type=float, help="begin no run after so many minutes")
    args = parser.parse_args()
    keys = [key_of(**json.loads(line)) for line in args.runs.read_text().splitlines() if line.strip()]
    until = None if args.minutes is None else time.time() + 60 * args.minutes
    context = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(args.workers, context, initializer=_begin, initargs=(args, until)) as pool:
        list(pool.map(_work, keys))


if __name__ == "__main__":
    main()

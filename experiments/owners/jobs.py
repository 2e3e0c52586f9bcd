"""The runs: one line of the log each, the most telling ones first, so that a study cut short has said the most.

Every arm tries the same learning rates with seed 0; the rate with the least validation loss is then run with further
seeds. A model is BERT-Tiny from the start of the study of secret words, or a causal model of 53 million parameters that
is pretrained on windows of books first.
"""

import json
import math
import multiprocessing
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from concurrent.futures import ProcessPoolExecutor
from contextlib import ExitStack
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional

import hush
from experiments.owners.arms import CAPS, PAPER_STEPS, SMALLER, Arm, Method, Planned, Promise
from experiments.owners.data import FRAME, INCIDENCE, SECRET, Canaries
from experiments.runs import RunLog
from experiments.secret_words.data import LENGTH, PARTS, Prepared
from experiments.secret_words.geometry import key_of, train
from experiments.secret_words.training import IGNORED, MASK, SPECIAL, Task, mean_loss_of, new_model, train_ordinarily
from hush.audit.exposure import chance_exposure, exposure_of_rank, ranks_p_value
from hush.train import causal_lm_loss, masked_lm_loss, train_only

__all__ = ["CausalTask", "Setup", "canary_ranks", "run_jobs", "tuned"]

Key = dict[str, Any]
EXPONENT = -0.25  # of the public metric: the robust one in the study of secret words
LORA: dict[str, Any] = {"r": 8, "lora_alpha": 16, "target_modules": ["query", "key", "value", "dense"]}
RATES = {"all": (1e-3, 3e-3), "lora": (3e-3, 1e-2), "bias": (3e-3, 1e-2)}
OPEN_RATE = 3e-3  # of no protection, in the study of secret words
CAUSAL_RATE = 5e-4
MICRO_CAUSAL = 256
STEP = PAPER_STEPS[-1]
TIGHT: tuple[Method, ...] = ("hush", "bounding")  # under the tight bound
BOUNDS: tuple[Method, ...] = ("hush", "paper")  # with all data


@dataclass(frozen=True, slots=True, kw_only=True)
class Setup:
    """Where the study reads and writes, and how large its runs are."""

    work: Path
    plans: Path
    log: Path
    start: Path
    batch_size: int
    rounds: int
    micro_batch: int
    canaries: Canaries
    causal: Mapping[str, Any]  # size of the causal model
    pretraining: tuple[int, int]  # of the causal model: batch size and rounds
    tries: int  # learning rates of every arm
    seeds: int
    workers: int
    until: float | None
    compile: bool
    arms: tuple[str, ...] | None  # only these are trained

    @property
    def minutes(self) -> float | None:
        return None if self.until is None else (self.until - time.time()) / 60


class CausalTask(Task):
    """The same rows for a causal model: every piece is guessed from those before it."""

    def masked(self, part: str, examples: Tensor, generator: torch.Generator) -> dict[str, Tensor]:
        seen = self.rows[part][examples].long()
        labels = torch.where(seen == 0, IGNORED, seen)
        return {"input_ids": seen, "attention_mask": (seen != 0).long(), "labels": labels}


# What is run.


def _key(arm: Arm | str, rate: float, setup: Setup, *, metric: bool = False, trained: str = "all",
         model: str = "bert", part: int = 1, seed: int = 0) -> Key:  # fmt: skip
    named = arm.name if isinstance(arm, Arm) else arm
    shape = {"batch_size": setup.batch_size, "part": arm.part if isinstance(arm, Arm) else part}
    return {
        **key_of(named, rate, exponent=EXPONENT if metric else None, seed=seed, rounds=setup.rounds),
        **shape, "trained": trained, "model": model,
    }  # fmt: skip


def _tried(setup: Setup) -> Iterator[list[Key]]:
    """Groups of runs that differ in the learning rate alone, in order."""

    def group(arm: Arm, **options: Any) -> list[Key]:
        rates = RATES[options.get("trained", "all")][: setup.tries]
        if options.get("model") == "causal":
            rates = (CAUSAL_RATE,)
        return [_key(arm, rate, setup, **options) for rate in rates]

    yield [_key("before", 0.0, setup)]
    yield [_key("none", OPEN_RATE, setup)]
    first: tuple[tuple[Method, int], ...] = (("hush", CAPS[0]), ("bounding", CAPS[0]), ("paper", STEP))
    smaller: tuple[tuple[Method, int], ...] = (*first, ("hush", 0))
    promised: tuple[Promise, ...] = ("one", "decades")
    for promise in promised:
        for metric in (True, False):
            yield from (group(Arm(method=m, level=k, promise=promise), metric=metric) for m, k in first)
    for promise in promised:
        for metric in (True, False):
            yield from (group(Arm(method=m, level=0, promise=promise), metric=metric) for m in BOUNDS)
    for part in SMALLER:
        yield [_key("none", OPEN_RATE, setup, part=part)]
        yield from (group(Arm(method=m, level=k, part=part), metric=True) for m, k in smaller)
    for promise in reversed(promised):
        for cap in CAPS[1:]:
            yield from (group(Arm(method=m, level=cap, promise=promise), metric=True) for m in TIGHT)
        yield from (group(Arm(method="paper", level=step, promise=promise), metric=True) for step in PAPER_STEPS[:-1])
    for trained in ("lora", "bias"):
        yield from (group(Arm(method=m, level=k), metric=True, trained=trained) for m, k in first)
    yield from ([_key(name, CAUSAL_RATE, setup, model="causal")] for name in ("before", "none"))
    yield from (group(Arm(method=m, level=k), metric=True, model="causal") for m, k in first[:2])


def tuned(setup: Setup, log: RunLog) -> list[Key]:
    """Of every group the run with the least validation loss, as far as all of it has run."""
    chosen = []
    for keys in _tried(setup):
        outcomes = [log.outcome(key) for key in keys]
        losses = [outcome["validation"] for outcome in outcomes if outcome is not None]
        if losses and len(losses) == len(keys):
            chosen.append(keys[int(np.argmin([math.inf if math.isnan(loss) else loss for loss in losses]))])
    return chosen


def run_jobs(setup: Setup) -> None:
    """Everything that is left to do and has time. Arms without a plan are left out."""
    with ExitStack() as stack:
        run: Callable[[Callable[[Key], None], Iterable[Key]], Iterable[None]] = map
        if setup.workers == 1:
            _begin(setup)
        else:
            context = multiprocessing.get_context("spawn")
            pool = ProcessPoolExecutor(setup.workers, context, initializer=_begin, initargs=(setup,))
            run = stack.enter_context(pool).map
        keys = [key for keys in _tried(setup) for key in keys if _is_asked(setup, key)]
        causal = [key for key in keys if key["model"] == "causal"]
        list(run(_work, [key for key in keys if key["model"] != "causal"]))
        list(run(_pretrain, causal[:1]))
        list(run(_work, causal if _causal_start(setup).exists() else []))
        again = [key for key in tuned(setup, RunLog(setup.log)) if key["arm"] != "before" and key["model"] == "bert"]
        again = [key for key in again if _is_asked(setup, key)]
        list(run(_work, [{**key, "seed": seed} for seed in range(1, setup.seeds) for key in again]))


def _is_asked(setup: Setup, key: Key) -> bool:
    if setup.arms is not None and key["arm"] not in setup.arms:
        return False
    return key["arm"] in ("before", "none") or (setup.plans / f"{key['arm']}.xz").exists()


def _causal_start(setup: Setup) -> Path:
    return setup.work / "causal-start.safetensors"


# One run, in a worker.

_state: dict[str, Any] = {}  # of this worker


def _begin(setup: Setup) -> None:
    torch.set_float32_matmul_precision("high")
    rows = Prepared.load(setup.work, (*PARTS, "books", "public")).rows
    vocabulary = setup.canaries.vocabulary
    tasks = {
        "bert": Task.of(rows, vocabulary=vocabulary, micro_batch=setup.micro_batch),
    }
    tasks["causal"] = CausalTask(
        rows=tasks["bert"].rows, vocabulary=vocabulary, device=tasks["bert"].device,
        micro_batch=min(setup.micro_batch, MICRO_CAUSAL),
    )  # fmt: skip
    incidence = hush.Incidence.from_parquet(setup.work / INCIDENCE)
    _state.update(setup=setup, tasks=tasks, incidence=incidence, log=RunLog(setup.log, minutes=setup.minutes))


def _work(key: Key) -> None:
    _state["log"].run(key, lambda: _outcome(key, _state["setup"], _state["tasks"][key["model"]]))


def _outcome(key: Key, setup: Setup, task: Task) -> dict[str, Any]:
    torch.compiler.reset()  # models of other shapes and parts came before
    model = _model(key, setup, task)
    said: dict[str, Any] = {}
    if key["arm"] == "none":
        count = len(task.rows["train"]) // key["part"]
        train_ordinarily(
            _restricted(task, torch.arange(count)), model, batch_size=setup.batch_size, rounds=setup.rounds,
            learning_rate=key["rate"], seed=key["seed"], compile=setup.compile, part="train",
        )  # fmt: skip
    elif key["arm"] != "before":
        arm = Arm(**json.loads((setup.plans / f"{key['arm']}.json").read_text())["arm"])
        planned = Planned.load(setup.plans / key["arm"], arm, _state["incidence"])
        loss = masked_lm_loss if key["model"] == "bert" else causal_lm_loss
        own = _restricted(task, torch.from_numpy(planned.rows))
        train(own, planned.plan, model, key, compile=setup.compile, loss=loss)
        said = {"noise_multiplier": planned.plan.noise_multiplier, "rows": len(planned.rows)}
    losses = {part: mean_loss_of(task, model, part) for part in ("validation", "test")}
    ranks, ranked = canary_ranks(model, setup.canaries, task)
    return {
        **losses, **said, "trained_parameters": sum(p.numel() for p in model.parameters() if p.requires_grad),
        "canary_ranks": ranks, "exposure": float(np.mean([exposure_of_rank(rank, ranked) for rank in ranks])),
        "chance_exposure": chance_exposure(ranked), "p_value": ranks_p_value(ranks, ranked),
    }  # fmt: skip


def _restricted(task: Task, rows: Tensor) -> Task:
    """The task with these rows of the training part as its training part."""
    return replace(task, rows={**task.rows, "train": task.rows["train"][rows.to(task.device)]})


def _model(key: Key, setup: Setup, task: Task) -> Any:
    if key["model"] == "causal":
        from safetensors.torch import load_file

        model = _causal_model(setup, task)
        model.load_state_dict(load_file(_causal_start(setup)), strict=False)  # the output layer is tied to the input
        return model
    model = new_model(task, setup.start)
    if key["trained"] == "bias":
        train_only(model, ["biases", "norms", "head-bias"])
    elif key["trained"] == "lora":
        from peft import LoraConfig, get_peft_model

        torch.manual_seed(key["seed"])
        model = get_peft_model(model, LoraConfig(**LORA)).to(task.device)
    return model


def _causal_model(setup: Setup, task: Task) -> Any:
    """A small GPT-2 with BERT's vocabulary and without dropout, from scratch."""
    from transformers import GPT2Config, GPT2LMHeadModel

    torch.manual_seed(0)
    _, first, last = SPECIAL
    config = GPT2Config(
        vocab_size=setup.canaries.vocabulary, n_positions=LENGTH, **setup.causal, resid_pdrop=0.0, embd_pdrop=0.0,
        attn_pdrop=0.0, bos_token_id=first, eos_token_id=last, use_cache=False,
    )  # fmt: skip
    model: Any = GPT2LMHeadModel(config)
    return model.to(task.device).train()


def _pretrain(_: Key) -> None:
    """Make what every arm of the causal model starts from, on windows of books; not a line of the log, but a file."""
    from safetensors.torch import save_file

    setup, task = _state["setup"], _state["tasks"]["causal"]
    if _causal_start(setup).exists() or _state["log"].out_of_time:
        return
    batch_size, rounds = setup.pretraining
    model = train_ordinarily(
        task, _causal_model(setup, task), batch_size=batch_size, rounds=rounds, learning_rate=CAUSAL_RATE, seed=0,
        compile=setup.compile, part="public",
    )  # fmt: skip
    weights = {name: value.detach().cpu().contiguous() for name, value in model.state_dict().items()}
    weights.pop("lm_head.weight")
    save_file(weights, _causal_start(setup))


# Canaries.


@torch.no_grad()
def canary_ranks(model: Any, canaries: Canaries, task: Task) -> tuple[list[int], int]:
    """(the rank of each canary's true pieces among its candidates, how many are ranked); ties rank before the truth.

    The frame is shown. A masked model guesses all pieces at once; a causal one sees those before.
    """
    model.eval()
    causal = isinstance(task, CausalTask)
    begin = 1 + FRAME
    ranks: list[int] = []
    row = torch.from_numpy(canaries.rows()[: canaries.count].astype(np.int64)).to(task.device)[:, : begin + SECRET + 1]
    candidates = torch.from_numpy(canaries.candidates).to(task.device)
    for seen, some in zip(row, candidates, strict=True):
        if causal:
            shown = seen.repeat(len(some), 1)
            shown[:, begin : begin + SECRET] = some
            logits = torch.cat([
                model(input_ids=rows).logits[:, begin - 1 : begin - 1 + SECRET] for rows in shown.split(MICRO_CAUSAL)
            ])  # fmt: skip
        else:
            shown = seen.clone()
            shown[begin : begin + SECRET] = MASK
            logits = model(input_ids=shown[None], attention_mask=torch.ones_like(shown[None])).logits
            logits = logits[:, begin : begin + SECRET]
        score = functional.log_softmax(logits.float(), dim=-1).expand(len(some), -1, -1)
        total = score.gather(2, some[:, :, None]).double().sum((1, 2))
        ranks.append(int((total >= total[0]).sum()))
    model.train()
    return ranks, candidates.shape[1]

"""What ``hush train`` trains and how: settings that a run keeps to its end, and those that only change its speed."""

import json
import os
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from math import cos, pi
from pathlib import Path
from typing import Any, Literal, final

from torch import nn
from torch.optim import SGD, AdamW, Optimizer
from torch.optim.lr_scheduler import LambdaLR

from hush.errors import InvalidInput
from hush.storage import read_json
from hush.train.checkpoints import durable_file
from hush.train.pretrained import Lora, Task
from hush.train.settings import MAX_LEARNING_RATE

__all__ = ["Recipe", "Runtime", "check_recipe", "read_lengths", "store_lengths", "store_recipe"]


FROM_HERE = "model_from_here"


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class Recipe:
    """What is trained and how; a run keeps its recipe to the end. The guarantee holds for any.

    learning_rate is, by default, 5e-4 for AdamW, 1e-3 with adapters, and 0.1 for SGD. Examples without a secret are
    added as a public stream of public_batch a round, with public_weight, if both are given.
    """

    model: str
    task: Task | None = None
    lora: Lora | None = None
    optimizer: Literal["adamw", "sgd"] = "adamw"
    learning_rate: float | None = None
    schedule: Literal["constant", "linear", "cosine"] = "linear"
    warmup: int = 0
    max_length: int | None = None
    bf16: bool = False
    public_weight: float | None = None
    public_batch: int | None = None

    def __post_init__(self) -> None:
        if self.learning_rate is not None and not 0 < self.learning_rate <= MAX_LEARNING_RATE:
            raise InvalidInput(
                f"learning_rate={self.learning_rate!r}; pass a number above 0 and up to {MAX_LEARNING_RATE:g}"
            )
        if self.warmup < 0:
            raise InvalidInput(f"warmup={self.warmup}; pass a number of rounds, 0 or more")
        if (self.public_weight is None) != (self.public_batch is None):
            raise InvalidInput("a public stream needs both, public_weight and public_batch; give both or neither")

    def make_optimizer(self, trainable: Sequence[nn.Parameter]) -> Optimizer:
        """The optimizer of what is trained."""
        if self.optimizer == "sgd":
            return SGD(trainable, lr=self.learning_rate or 0.1)
        rate = self.learning_rate or (1e-3 if self.lora else 5e-4)
        return AdamW(trainable, lr=rate, weight_decay=0.0)

    def make_schedule(self, optimizer: Optimizer, rounds: int) -> LambdaLR:
        """The learning rate over the rounds: up during the warm-up, then constant or down to 0."""
        warmup = min(self.warmup, rounds)

        def share(round: int) -> float:
            if round < warmup:
                return (round + 1) / (warmup + 1)
            done = (round - warmup) / max(1, rounds - warmup)
            return {"constant": 1.0, "linear": 1 - done, "cosine": (1 + cos(pi * done)) / 2}[self.schedule]

        return LambdaLR(optimizer, share)


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class Runtime:
    """What changes no model, only speed and memory; a run may be resumed with another, by another number of processes.

    evaluate_every: rounds between losses on the examples that the plan holds out; by default there are about 20. shard:
    several processes hold a part of the model each (FSDP2), instead of a copy.
    """

    micro_batch: int = 32
    compile: bool = False
    gradient_checkpointing: bool = False
    save_every: int = 100
    evaluate_every: int | None = None
    device: str | None = None
    shard: bool = False

    def __post_init__(self) -> None:
        if self.evaluate_every is not None and self.evaluate_every < 1:
            raise InvalidInput(f"evaluate_every={self.evaluate_every}; pass a number of rounds, 1 or more")
        if self.shard and self.compile:
            raise InvalidInput("a model that is cut over processes cannot be compiled; drop --shard or --compile")


def check_recipe(folder: Path, recipe: Recipe, *, resume: bool) -> None:
    """A run goes on as it began: changing it by what was seen so far would be a choice that no plan accounts for."""
    if not resume and (folder / "owner" / "run.json").exists():
        raise InvalidInput(f"{folder} holds a run already; train in a new folder, or let it go on with --resume")
    path = _path(folder)
    if not path.exists():
        return
    try:
        began: dict[str, Any] = read_json(path)
    except ValueError as error:
        raise InvalidInput(f"{path} is not the recipe of a run; restore it, or train in a new folder") from error
    now = _described(folder, recipe)
    if now.pop(FROM_HERE, None) == began.get(FROM_HERE, ""):
        now["model"] = began.get("model")  # the run was moved together with its model
    for name in now:
        if began.get(name) != now[name]:
            raise InvalidInput(
                f"the run in {folder} was begun with {name}={_told(began.get(name))}, now it is {_told(now[name])}; "
                "resume it as it began, or train in a new folder"
            )


def _told(value: Any) -> str:
    return "its default" if value is None else repr(value)


def store_recipe(folder: Path, recipe: Recipe) -> None:
    """Keep the recipe beside the run's other owner-only files."""
    with durable_file(_path(folder)) as file:
        file.write(json.dumps(_described(folder, recipe), indent=2).encode())


def _described(folder: Path, recipe: Recipe) -> dict[str, Any]:
    """The recipe as JSON has it, and where its model lies as seen from the run, if that is a folder."""
    beside = {FROM_HERE: os.path.relpath(recipe.model, folder)} if Path(recipe.model).is_dir() else {}
    return json.loads(json.dumps(asdict(recipe) | beside))


def store_lengths(folder: Path, *, max_length: int, cut_texts: int) -> None:
    """Keep to how many tokens texts are cut and how many are that long, for the owner, before training begins."""
    with durable_file(_lengths_path(folder)) as file:
        file.write(json.dumps({"max_length": max_length, "cut_texts": cut_texts}).encode())


def read_lengths(folder: Path) -> dict[str, int]:
    """What ``store_lengths`` kept; empty if nothing is there."""
    path = _lengths_path(folder)
    return read_json(path) if path.is_file() else {}


def _path(folder: Path) -> Path:
    return folder / "owner" / "recipe.json"


def _lengths_path(folder: Path) -> Path:
    return folder / "owner" / "lengths.json"

"""From a recipe to optimizer and schedule; the recipe as the run folder keeps it, so that a run ends as it began."""

import json
import os
from collections.abc import Sequence
from math import cos, pi
from pathlib import Path
from typing import Any

from torch import nn
from torch.optim import SGD, AdamW, Optimizer
from torch.optim.lr_scheduler import LambdaLR

from hush.errors import InvalidInput, Setting
from hush.storage import read_json
from hush.train.checkpoints import durable_file
from hush.train.settings import Learning, Recipe

__all__ = ["check_recipe", "make_optimizer", "make_schedule", "read_lengths", "store_lengths", "store_recipe"]


RELATIVE_MODEL_PATH = "model_from_here"  # the key in recipe.json


def make_optimizer(recipe: Learning, trainable: Sequence[nn.Parameter]) -> Optimizer:
    """The optimizer of what is trained."""
    if recipe.optimizer == "sgd":
        return SGD(trainable, lr=recipe.learning_rate or 0.1)
    rate = recipe.learning_rate or (1e-3 if recipe.lora else 5e-4)
    return AdamW(trainable, lr=rate, weight_decay=0.0)


def make_schedule(recipe: Learning, optimizer: Optimizer, rounds: int) -> LambdaLR:
    """The learning rate over the rounds: it rises during the warm-up, then stays constant or falls to 0."""
    warmup = min(recipe.warmup, rounds)

    def share(round: int) -> float:
        if round < warmup:
            return (round + 1) / (warmup + 1)
        done = (round - warmup) / max(1, rounds - warmup)
        return {"constant": 1.0, "linear": 1 - done, "cosine": (1 + cos(pi * done)) / 2}[recipe.schedule]

    return LambdaLR(optimizer, share)


def check_recipe(folder: Path, recipe: Recipe, *, resume: bool) -> None:
    """A run keeps its recipe: a change made after seeing the model would be a choice that no plan accounts for."""
    if not resume and (folder / "owner" / "run.json").exists():
        raise InvalidInput(
            f"{folder} holds a run already; train in a new folder, or continue it with ", Setting("resume")
        )
    path = _path(folder)
    if not path.exists():
        return
    try:
        record: dict[str, Any] = read_json(path)
        stored_path = record.pop(RELATIVE_MODEL_PATH, "")
        stored = Recipe.from_record(record)
    except (ValueError, TypeError, AttributeError) as error:
        raise InvalidInput(f"{path} is not the recipe of a run; restore it, or train in a new folder") from error
    moved = _record(folder, recipe).get(RELATIVE_MODEL_PATH) == stored_path  # the run, together with its model
    for name in Recipe.model_fields:
        before, now = getattr(stored, name), getattr(recipe, name)
        if before != now and not (name == "model" and moved):
            raise InvalidInput(
                f"the run in {folder} was begun with {name}={_shown(before)}, now it is {_shown(now)}; resume it as it "
                "began, or train in a new folder"
            )


def _shown(value: object) -> str:
    return "its default" if value is None else repr(value)


def store_recipe(folder: Path, recipe: Recipe) -> None:
    """Keep the recipe beside the run's other owner-only files."""
    with durable_file(_path(folder)) as file:
        file.write(json.dumps(_record(folder, recipe), indent=2).encode())


def _record(folder: Path, recipe: Recipe) -> dict[str, Any]:
    """The recipe's dump, and where its model lies as seen from the run, if the model is a folder."""
    beside = {RELATIVE_MODEL_PATH: os.path.relpath(recipe.model, folder)} if Path(recipe.model).is_dir() else {}
    return recipe.model_dump(mode="json") | beside


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

"""Tiny runs of ``HushTrainer``, and callbacks that watch or break them: shared by all tests of it."""

from pathlib import Path
from typing import Any

import numpy as np
import torch
from models import CLASSES, LENGTH, MASK, PADDING, VOCABULARY, tiny
from torch import nn
from transformers import TrainerCallback, TrainerState, TrainingArguments

import hush
from hush.train.hf.trainer import HushTrainer
from hush.train.language_models import CausalCollator, Collator, MaskedCollator, TokenizedTexts

EXAMPLES, ROUNDS = 40, 6


def trainer_plan() -> hush.Plan:
    """40 examples, two secrets in five of them."""
    incidence = hush.Incidence.from_pairs([0, 1, 2, 5, 9], [0, 0, 1, 1, 1], num_examples=EXAMPLES, num_secrets=2)
    return hush.make_plan(incidence, prior=1e-6, ceiling=1e-2, rounds=ROUNDS, batch_size=8, clip_norm=1.0)


def texts(seed: int = 0) -> TokenizedTexts:
    """A text of 3 to 12 tokens for each example."""
    random = np.random.default_rng(seed)
    return TokenizedTexts([random.integers(1, MASK, random.integers(3, LENGTH + 1)) for _ in range(EXAMPLES)])


def images() -> list[dict[str, Any]]:
    """An image for each example, with a column that no model takes."""
    generator = torch.Generator().manual_seed(0)
    return [
        {"pixel_values": torch.randn(3, 8, 8, generator=generator), "labels": number % CLASSES, "note": "unused"}
        for number in range(EXAMPLES)
    ]


def collator(name: str) -> Collator | None:
    """What makes batches for this family of models; None leaves it to the Trainer."""
    if name == "bert":
        return MaskedCollator(length=LENGTH, padding=PADDING, mask=MASK, vocabulary=VOCABULARY, share=0.5)
    return None if name == "vit" else CausalCollator(length=LENGTH, padding=PADDING)


def arguments(output: Path, **more: Any) -> TrainingArguments:
    """For a quiet run on the CPU that saves nothing."""
    usual: dict[str, Any] = {
        "output_dir": str(output),
        "per_device_train_batch_size": 4,
        "learning_rate": 0.1,
        "logging_steps": 1,
        "save_strategy": "no",
        "report_to": [],
        "use_cpu": True,
        "disable_tqdm": True,
    }
    return TrainingArguments(**usual | more)


def trainer_for(
    plan: hush.Plan,
    output: Path,
    *,
    name: str = "llama",
    model: nn.Module | None = None,
    settings: dict[str, Any] | None = None,
    **more: Any,
) -> HushTrainer:
    """A trainer of a tiny model with SGD, draws and noise fixed, that saves only when told to."""
    model = tiny(name) if model is None else model
    usual: dict[str, Any] = {
        "train_dataset": images() if name == "vit" else texts(),
        "data_collator": collator(name),
        "optimizers": (torch.optim.SGD([p for p in model.parameters() if p.requires_grad], lr=0.1, momentum=0.9), None),
        "insecure_seed": 7,
    }
    return HushTrainer(model, arguments(output, **settings or {}), plan=plan, **usual | more)


def weights(model: Any) -> dict[str, torch.Tensor]:
    """A copy of them, by name."""
    return {name: parameter.detach().clone() for name, parameter in model.named_parameters()}


def assert_same(one: dict[str, torch.Tensor], other: dict[str, torch.Tensor]) -> None:
    """To the last bit."""
    assert one.keys() == other.keys()
    assert all(torch.equal(one[name], other[name]) for name in one)


class Dies(TrainerCallback):
    """A crash after this round."""

    def __init__(self, round: int) -> None:
        self.round = round

    def on_step_end(self, args: Any, state: TrainerState, control: Any, **_: Any) -> None:
        if state.global_step == self.round:
            raise RuntimeError("crash")


class Stops(Dies):
    """An end before the last round, as a time limit would set."""

    def on_step_end(self, args: Any, state: TrainerState, control: Any, **_: Any) -> None:
        control.should_training_stop = state.global_step == self.round


class Watches(TrainerCallback):
    """Everything that a logger or a callback is told."""

    def __init__(self) -> None:
        self.events: list[str] = []
        self.logs: list[dict[str, float]] = []
        self.scores: list[dict[str, float]] = []

    def __getattribute__(self, name: str) -> Any:
        if name.startswith("on_"):
            self.events.append(name)
        return super().__getattribute__(name)

    def on_log(self, args: Any, state: Any, control: Any, logs: Any = None, **_: Any) -> None:
        self.logs.append(dict(logs))

    def on_evaluate(self, args: Any, state: Any, control: Any, metrics: Any = None, **_: Any) -> None:
        self.scores.append(dict(metrics))


class Logger(Watches):
    """One that counts as a logger of the Trainer's own."""

    __module__ = "transformers.integrations.integration_utils"

"""Small trainings, in a folder and without one, and what their files hold: shared by the tests of both."""

import io
import json
from pathlib import Path
from typing import Any

import torch
from reference import cross_entropy, small_data, small_model, small_plan
from torch import nn

from hush.train.private_training import PrivateTraining

PLAN = small_plan()
DATA = small_data()


def training(folder: Path, *, model: nn.Module | None = None, **more: Any) -> PrivateTraining:
    """Dropout, momentum and a schedule: everything that has a state."""
    model = small_model(dropout=0.3) if model is None else model
    optimizer = torch.optim.AdamW([p for p in model.parameters() if p.requires_grad], lr=1e-2)
    scheduler = torch.optim.lr_scheduler.OneCycleLR(optimizer, 0.1, total_steps=20)
    options: dict[str, Any] = {"plan": PLAN, "save_every": 4, "micro_batch": 8} | more
    plan = options.pop("plan")
    return PrivateTraining(model, optimizer, plan, loss=cross_entropy, scheduler=scheduler, folder=folder, **options)


def parameters(private: PrivateTraining) -> torch.Tensor:
    return nn.utils.parameters_to_vector(private.model.parameters()).detach().clone()


def ledger(folder: Path) -> dict[str, Any]:
    return json.loads((folder / "owner" / "run.json").read_text())


def sgd(model: nn.Module, **more: Any) -> torch.optim.Optimizer:
    return torch.optim.SGD([p for p in model.parameters() if p.requires_grad], lr=1.0, **more)


def private_training(model: nn.Module | None = None, **more: Any) -> PrivateTraining:
    """With a fixed seed unless the test is about secrecy, so that no test fails once in a thousand draws."""
    model = small_model() if model is None else model
    settings: dict[str, Any] = {"plan": PLAN, "loss": cross_entropy, "micro_batch": 8, "insecure_seed": 0} | more
    settings.setdefault("optimizer", sgd(model))
    return PrivateTraining(model, settings.pop("optimizer"), settings.pop("plan"), **settings)


def values(model: nn.Module) -> dict[str, torch.Tensor]:
    return {name: p.detach().clone() for name, p in model.named_parameters()}


def payload(path: Path) -> io.BytesIO:
    return io.BytesIO(path.read_bytes()[len(b"hush checkpoint 1\n") + 64 :])

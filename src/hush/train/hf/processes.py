"""``HushTrainer`` in several processes, started by ``torchrun`` or ``accelerate launch``.

The processes are connected by ``TrainingArguments``. The Trainer would have Accelerate wrap the model into
DistributedDataParallel or shard it, both of which average raw gradients. Under a plan the model is never wrapped:
:class:`~hush.train.private_training.PrivateTraining` adds up the clipped sums, and shards (FSDP2) are made here, block
by block. What a callback of one process asks for, all processes do, since all must call the same collectives.
"""

import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import final

import torch
from torch import nn
from transformers import TrainerControl

from hush.errors import InvalidInput
from hush.plan import Plan
from hush.train.checkpoints import plan_identity
from hush.train.distributed import Ranks, is_sharded
from hush.train.hf.arguments import LAUNCHED_WITH_FSDP
from hush.train.pretrained import shard_blocks

__all__ = ["Unwrapped", "agree", "check_processes_alike", "shard_model", "sharded_by_hush"]


@final
class Unwrapped(nn.Module):
    """Stands for a model that is wrapped already, so that Accelerate leaves it as it is."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model = model


@contextmanager
def sharded_by_hush() -> Iterator[None]:
    """Inside, Accelerate does not see that its launcher was asked for shards."""
    asked = os.environ.pop(LAUNCHED_WITH_FSDP, None)
    try:
        yield
    finally:
        if asked is not None:
            os.environ[LAUNCHED_WITH_FSDP] = asked


def check_processes_alike(plan: Plan, *, data: str | None, settings: Sequence[object]) -> None:
    """Refuse processes that were given other plans, data (by their fingerprint) or settings than the first one."""
    ranks = Ranks.current()
    if ranks.world > 1:
        ranks.check_alike({"plan": plan_identity(plan), "data": data, "settings": list(map(str, settings))})


def shard_model(model: nn.Module, device: torch.device, *, has_optimizer: bool) -> None:
    """Shard the parameters over all processes, once; they start from the first one's."""
    if is_sharded(model):
        return
    if has_optimizer:
        raise InvalidInput(
            "optimizers= holds an optimizer of the parameters before they are sharded; pass optimizer_cls_and_kwargs=, "
            "or settings in the arguments, and it is made afterwards",
            setting="optimizers",
        )
    Ranks.current().broadcast_model_(model)  # each process keeps a part of its copy, so the copies must agree
    shard_blocks(model, device)


def agree(control: TrainerControl) -> None:
    """Let every process do what the callbacks of any process ask for."""
    ranks = Ranks.current()
    if ranks.world == 1:
        return
    names = ("should_training_stop", "should_epoch_stop", "should_save", "should_evaluate", "should_log")
    asked = ranks.gather([getattr(control, name) for name in names])
    for name, by_rank in zip(names, zip(*asked, strict=True), strict=True):
        setattr(control, name, any(by_rank))

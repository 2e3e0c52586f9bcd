"""What a run needs to go on, taken from model, optimizer and random generators, and put back. Owner-only."""

import hashlib
import random
from collections.abc import Callable, Iterable, Mapping
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.distributed.tensor import DTensor
from torch.optim import Optimizer
from torch.utils._pytree import tree_map_only

from hush.errors import InvalidInput
from hush.train.distributed import Ranks
from hush.train.layout import laid_out, optimizer_state_laid_out, whole

__all__ = ["buffers_digest", "capture", "frozen_digest", "refuse_moved_buffers", "renew_random_states", "restore"]


def capture(
    trainable: Mapping[str, nn.Parameter], optimizer: Optimizer, scheduler: Any | None, ranks: Ranks
) -> dict[str, Any]:
    """Parameters, optimizer, scheduler and the random states of all ranks, as tensors and plain values.

    All ranks call it together; on the first one, shards are put together.
    """

    def together(shard: DTensor) -> Tensor:
        value = shard.full_tensor()
        return value.cpu() if ranks.first else value[:0]

    return {
        "parameters": {name: _each_shard(parameter.detach(), together) for name, parameter in trainable.items()},
        "optimizer": _each_shard(optimizer.state_dict(), together),
        "scheduler": None if scheduler is None else scheduler.state_dict(),
        "random": ranks.gather(_random_states()),
    }


def restore(
    state: Mapping[str, Any],
    trainable: Mapping[str, nn.Parameter],
    optimizer: Optimizer,
    scheduler: Any | None,
    ranks: Ranks,
) -> None:
    """Put back what ``capture`` took, laid out as the model is now."""
    stored: Mapping[str, Tensor] = state["parameters"]
    wrong = sorted(
        name
        for name in {*stored, *trainable}
        if name not in stored or name not in trainable or stored[name].shape != trainable[name].shape
    )
    if wrong:
        raise InvalidInput(
            f"the checkpoint is of another model: {wrong[0]} and {len(wrong) - 1} more trainable parameters are "
            "missing or shaped differently in one of the two; build the model as it was when training began"
        )
    if (state["scheduler"] is None) != (scheduler is None):
        had = "no scheduler" if scheduler is not None else "a scheduler"
        raise InvalidInput(f"training began with {had}; resume it as it began")
    with torch.no_grad():
        for name, parameter in trainable.items():
            parameter.copy_(laid_out(stored[name], parameter))
    try:
        optimizer.load_state_dict(optimizer_state_laid_out(state["optimizer"], optimizer))
    except (ValueError, KeyError, IndexError) as error:
        raise InvalidInput(f"the checkpoint is of another optimizer ({error}); resume training as it began") from error
    if scheduler is not None:
        scheduler.load_state_dict(state["scheduler"])
    if len(state["random"]) == ranks.world:  # otherwise there is no saying whose is whose
        _restore_random_states(state["random"][ranks.rank])


def renew_random_states() -> None:
    """New random states from the system's entropy, so that neither dropout nor a collator's choices can be foreseen.

    With a known seed (the Trainer of transformers sets all of these), what an example gets would tell its place in the
    stream, and so how many were drawn before it.
    """
    random.seed()
    np.random.seed()  # noqa: NPY002 - the user's code may draw from it
    torch.seed()  # of every kind of device


def frozen_digest(model: nn.Module) -> str:
    """Of the parameters that are not trained; a checkpoint leaves them out, and a resumed run must have the same."""
    return _digest((name, p) for name, p in model.named_parameters() if not p.requires_grad)


def buffers_digest(model: nn.Module) -> str:
    """Of the buffers that are saved with a model. Training must not change them: that would bypass the noise."""
    return _digest(
        (f"{path}.{name}", buffer)
        for path, module in model.named_modules()
        for name, buffer in module.named_buffers(recurse=False)
        if name not in module._non_persistent_buffers_set
    )


def refuse_moved_buffers(model: nn.Module, began: str) -> None:
    """Refuse a model whose buffers are not those of this digest."""
    if buffers_digest(model) != began:
        raise InvalidInput(
            "training changed a buffer of the model, which bypasses clipping and noise; find the module whose forward "
            "pass does so, and freeze it or replace it by one without running state"
        )


def _each_shard(tree: Any, change: Callable[[DTensor], Tensor]) -> Any:
    return tree_map_only(DTensor, change, tree)


def _digest(tensors: Iterable[tuple[str, Tensor]]) -> str:
    digest = hashlib.sha256()
    for name, tensor in tensors:
        digest.update(f"{name} {tensor.dtype} {tuple(tensor.shape)}\n".encode())
        value: Tensor = whole(tensor.detach())
        digest.update(value.cpu().contiguous().flatten().view(torch.uint8).numpy().data)
    return digest.hexdigest()


def _random_states() -> dict[str, Any]:
    kind, words, *rest = np.random.get_state()  # noqa: NPY002 - the user's code may draw from it
    return {
        "torch": torch.get_rng_state(),
        "cuda": torch.cuda.get_rng_state_all() if torch.cuda.is_initialized() else [],
        "numpy": (kind, torch.from_numpy(np.asarray(words, dtype=np.int64)), *rest),
        "python": random.getstate(),
    }


def _restore_random_states(states: Mapping[str, Any]) -> None:
    torch.set_rng_state(states["torch"])
    if len(states["cuda"]) == torch.cuda.device_count():  # on other hardware they mean nothing
        torch.cuda.set_rng_state_all(states["cuda"])
    kind, words, *rest = states["numpy"]
    np.random.set_state((kind, words.numpy(), *rest))  # noqa: NPY002
    random.setstate(states["python"])

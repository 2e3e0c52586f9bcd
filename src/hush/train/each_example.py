"""A module run once for each example, on parameters of that example's own: how sites run what has no tap of its kind.

The module's twin, a copy without storage, takes the parameters that are handed in, and ``torch.vmap`` runs it for all
examples at once.
"""

import copy
from collections import OrderedDict
from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor, nn
from torch.distributed.fsdp import FSDPModule
from torch.func import functional_call
from torch.nn import functional
from torch.utils._pytree import tree_flatten, tree_leaves, tree_map, tree_unflatten

from hush.errors import InvalidInput

__all__ = ["run_each", "twin_of"]


class _Number(int):
    """Stands for a tensor in a nested result."""


def run_each(
    twin: nn.Module,
    shared: Mapping[str, Tensor],
    copies: dict[str, Tensor],
    args: tuple[Any, ...],
    kwargs: Mapping[str, Any],
    *,
    batch: int,
) -> Any:
    """What a module returns for these arguments, if example b has row b of the copies for its parameters.

    shared are the parameters and buffers that all examples have in common. A tensor among the arguments is dealt out by
    its first dimension if that is of `batch` examples; any other is handed to all of them.
    """
    leaves, spec = tree_flatten((args, kwargs))
    places = [k for k, leaf in enumerate(leaves) if isinstance(leaf, Tensor)]
    mapped = tuple(0 if leaves[k].dim() and leaves[k].shape[0] == batch else None for k in places)
    result: list[Any] = []  # what forward returns, where it is more than a tensor, with a number in place of each

    def one(parameters: dict[str, Tensor], *values: Tensor) -> Any:
        filled = list(leaves)
        for place, value, axis in zip(places, values, mapped, strict=True):
            filled[place] = value.unsqueeze(0) if axis == 0 else value
        arguments, keywords = tree_unflatten(filled, spec)
        y = functional_call(twin, {**shared, **parameters}, arguments, keywords, tie_weights=False)
        if isinstance(y, Tensor):
            return y.squeeze(0)
        outputs = [part for part in tree_leaves(y) if isinstance(part, Tensor)]
        numbers = iter(range(len(outputs)))
        result[:] = [tree_map(lambda part: _Number(next(numbers)) if isinstance(part, Tensor) else part, y)]
        return tuple(part.squeeze(0) for part in outputs)

    tensors = [leaves[k] for k in places]
    y = torch.vmap(one, in_dims=(0, *mapped), randomness="different")(copies, *tensors)
    if isinstance(y, Tensor):
        return y
    return tree_map(lambda part: y[part] if type(part) is _Number else part, result[0])


def twin_of(module: nn.Module, name: str) -> nn.Module:
    """A copy without storage and without hooks of its own: those run when the module itself is called."""
    inside = [path for path, part in module.named_modules() if path and isinstance(part, FSDPModule)]
    if inside:
        raise InvalidInput(
            f"module {name} holds trainable parameters of its own, so it is run as a whole, but {inside[0]} inside it "
            "is sharded apart; call fully_shard on it as a whole and not on its parts"
        )
    plain = next(kind for kind in type(module).__mro__ if not issubclass(kind, FSDPModule))
    shell: nn.Module = plain.__new__(plain)  # pyright: ignore[reportCallIssue]
    held = {key: value for key, value in module.__dict__.items() if not key.startswith("__composable_api_state")}
    shell.__dict__ = {**held, "_forward_hooks": OrderedDict(), "_forward_pre_hooks": OrderedDict()}
    twin = copy.deepcopy(shell).to("meta")
    for part in twin.modules():
        if (
            isinstance(part, nn.Embedding)
            and part.padding_idx is not None
            and type(part).forward is nn.Embedding.forward
        ):
            part.__class__ = type(f"Padded{type(part).__name__}", (_PaddedEmbedding, type(part)), {})
    return twin


class _PaddedEmbedding:
    """Positions of the padding id have no gradient, as in torch, which forgets it under vmap."""

    def forward(self: Any, input: Tensor) -> Tensor:
        y = functional.embedding(input, self.weight)
        return torch.where((input == self.padding_idx).unsqueeze(-1), y.detach(), y)

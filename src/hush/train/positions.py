"""Rotary positions that follow the longest text of a micro-batch: up to which length they do not.

Frequencies of the kinds "dynamic" and "longrope" change for all texts of a micro-batch once one of them is longer than
the model was first made for. An example's gradient would then depend on its neighbours.
"""

from collections.abc import Mapping
from typing import Any

from torch import Tensor, nn

from hush.errors import InvalidInput

__all__ = ["most_positions", "positions_of", "refuse_longer"]

_FOLLOWING = ("dynamic", "longrope")


def positions_of(config: Any) -> int | None:
    """The most tokens for which the frequencies of a model with this configuration stay as they are; None: any."""
    said: Mapping[str, Any] = getattr(config, "rope_parameters", None) or {}
    parts = [said] if "rope_type" in said else [part for part in said.values() if isinstance(part, Mapping)]
    limits = [
        part.get("original_max_position_embeddings") or config.max_position_embeddings
        for part in parts
        if any(kind in str(part.get("rope_type")) for kind in _FOLLOWING)
    ]
    return min(limits, default=None)


def most_positions(model: nn.Module) -> int | None:
    """The least such limit of a model's parts."""
    found = (positions_of(getattr(module, "config", None)) for module in model.modules())
    return min((limit for limit in found if limit is not None), default=None)


def refuse_longer(batch: Mapping[str, Tensor], most: int | None) -> None:
    """Refuse a batch of more tokens than ``most_positions`` gave."""
    for name in ("input_ids", "inputs_embeds"):
        if most is not None and name in batch and batch[name].shape[1] > most:
            raise InvalidInput(
                f"batch[{name!r}] has {batch[name].shape[1]} tokens in a row, but beyond {most} this model's rotary "
                "positions (dynamic or longrope) follow the longest text of a micro-batch, which ties examples "
                f"together; cut every text to at most {most} tokens before training"
            )

"""Which parameters the private rounds train: a part of the model gets clipped gradients and noise, the rest is frozen.

The noise of a round has the norm C × noise multiplier × √d, where d counts the trained parameters, whatever the norm of
the clipped sum. Fewer of them mean less noise in all for the same promise, and less that can be learnt. What is frozen
here can have been learnt before, from public examples, without noise.
"""

from collections.abc import Sequence
from fnmatch import fnmatchcase
from typing import Any

from torch import nn

from hush.errors import InvalidInput

__all__ = ["train_only"]


PARTS = ("norms", "biases", "head-bias")
MAX_NAMES_SHOWN = 4


def train_only(model: nn.Module, names: Sequence[str]) -> None:
    """Freeze all of a model but these parameters, in place; call it before the optimizer is made.

    names: "norms" (scales and shifts of normalisation layers), "biases" (with "norms" this is BitFit), "head-bias" (one
    number per word, added to the logits), or shell-style patterns of parameter names, such as ``*.attention.*.bias``. A
    tied parameter is trained if any of its names matches. Frozen ones keep their values to the last bit.

    >>> model = nn.Sequential(nn.Linear(3, 4), nn.LayerNorm(4), nn.Linear(4, 2))
    >>> train_only(model, ["norms", "2.b*"])
    >>> [name for name, parameter in model.named_parameters() if parameter.requires_grad]
    ['1.weight', '1.bias', '2.bias']
    """
    chosen: set[int] = set()
    for name in names:
        found = {id(parameter) for parameter in _named(model, name)}
        if not found:
            raise InvalidInput(*_explained(model, name), setting="trainable", value=name)
        chosen |= found
    if not chosen:
        raise InvalidInput(f"nothing would be trained; name {', '.join(PARTS)}, or patterns", setting="trainable")
    for parameter in model.parameters():
        parameter.requires_grad_(id(parameter) in chosen)


def _named(model: nn.Module, name: str) -> list[nn.Parameter]:
    """The parameters of a part, or those with a name that matches a pattern."""
    parameters = list(model.named_parameters(remove_duplicate=False))
    match name:
        case "norms":
            norms = (module for module in model.modules() if _is_norm(module))
            return [parameter for module in norms for parameter in module.parameters(recurse=False)]
        case "biases":
            return [parameter for path, parameter in parameters if path.rpartition(".")[2].endswith("bias")]
        case "head-bias":
            bias = getattr(_head_of(model), "bias", None)
            return [bias] if isinstance(bias, nn.Parameter) else []
        case _:
            return [parameter for path, parameter in parameters if fnmatchcase(path, name)]


def _is_norm(module: nn.Module) -> bool:
    """By name, since every family of models has a class of its own."""
    return "norm" in type(module).__name__.lower() and not any(module.children())


def _head_of(model: nn.Module) -> nn.Module | None:
    inner: Any = model
    return inner.get_output_embeddings() if hasattr(inner, "get_output_embeddings") else None


def _explained(model: nn.Module, name: str) -> tuple[str, ...]:
    shown = [path for path, _ in model.named_parameters()]
    examples = ", ".join(shown[:MAX_NAMES_SHOWN]) + (", …" if len(shown) > MAX_NAMES_SHOWN else "")
    what = f"the model has no {name}" if name in PARTS else "no parameter of the model has such a name"
    return (f"{what}; name {', '.join(PARTS)}, or patterns of parameter names, which are {examples}",)

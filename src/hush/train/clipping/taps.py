"""Taps: extra inputs of an operation through which autograd returns per-example gradients, without hooks.

A tap is a tensor without storage that enters an operation beside the parameter. The forward pass ignores it; the
backward pass returns per-example gradients, or the operation's input and output gradient, as "the gradient of the tap".
Parameters themselves are detached: what has no tap gets no gradient at all, so nothing reaches the model unclipped.
Autograd adds up what a tap receives, so a parameter that is used several times is exact with all its cross terms. Since
there are no side effects, the pass can be compiled and recomputed (gradient checkpointing).

Shapes: B examples of a micro-batch, T positions, I inputs, O outputs, V rows of an embedding.
"""

from functools import cache
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional

__all__ = ["embedding_gradients", "embedding_pairs", "empty_tap", "expanded", "linear_gradients", "linear_pairs"]


def empty_tap(shape: tuple[int, ...], *, dtype: torch.dtype, device: torch.device) -> Tensor:
    """A tap of the given shape: a view of a single zero."""
    return _zero(dtype, device).expand(shape).requires_grad_()


@cache
def _zero(dtype: torch.dtype, device: torch.device) -> Tensor:
    return torch.zeros((), dtype=dtype, device=device)


def compute_dtype(x: Tensor) -> torch.dtype:
    """The type that autocast would multiply in, or the tensor's own."""
    kind = x.device.type
    return torch.get_autocast_dtype(kind) if torch.is_autocast_enabled(kind) else x.dtype


class _Expanded(torch.autograd.Function):
    """One copy of a parameter per example, as a view; the tap receives the gradient of each copy."""

    @staticmethod
    def forward(ctx: Any, weight: Tensor, tap: Tensor) -> Tensor:
        return weight.expand(tap.shape)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:  # pyright: ignore[reportIncompatibleMethodOverride]
        return None, grad


class _LinearGradients(torch.autograd.Function):
    """y = x Wᵀ; the tap receives the gradient of W for each example, B × O × I."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, tap: Tensor, transposed: bool) -> Tensor:
        return _product(ctx, x, weight, transposed)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:  # pyright: ignore[reportIncompatibleMethodOverride]
        back, x_BTI, grad_BTO = _backward_parts(ctx, grad)
        left, right = (x_BTI, grad_BTO) if ctx.transposed else (grad_BTO, x_BTI)
        return back, None, torch.bmm(left.transpose(1, 2), right), None


class _LinearPairs(torch.autograd.Function):
    """y = x Wᵀ; one tap receives x, the other the gradient of y: the factors of the weight's gradient."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, tap_x: Tensor, tap_y: Tensor, transposed: bool) -> Tensor:
        return _product(ctx, x, weight, transposed)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:  # pyright: ignore[reportIncompatibleMethodOverride]
        back, x_BTI, grad_BTO = _backward_parts(ctx, grad)
        return back, None, x_BTI, grad_BTO, None


class _EmbeddingGradients(torch.autograd.Function):
    """y = W[ids]; the tap receives the gradient of W for each example, B × V × D."""

    @staticmethod
    def forward(ctx: Any, ids: Tensor, weight: Tensor, tap: Tensor, padding: int | None) -> Tensor:
        ctx.save_for_backward(ids)
        ctx.shape, ctx.padding = tap.shape, padding
        return functional.embedding(ids, weight)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:  # pyright: ignore[reportIncompatibleMethodOverride]
        (ids,) = ctx.saved_tensors
        grad_BTD = _by_example(_without_padding(grad, ids, ctx.padding))
        index = ids.reshape(len(ids), -1, 1).expand(-1, -1, grad_BTD.shape[-1])
        return None, None, grad_BTD.new_zeros(ctx.shape).scatter_add(1, index, grad_BTD), None


class _EmbeddingPairs(torch.autograd.Function):
    """y = W[ids]; the tap receives the gradient of y. The other tap receives the ids."""

    @staticmethod
    def forward(ctx: Any, ids: Tensor, weight: Tensor, tap_ids: Tensor, tap_y: Tensor, padding: int | None) -> Tensor:
        ctx.save_for_backward(ids)
        ctx.padding = padding
        return functional.embedding(ids, weight)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:  # pyright: ignore[reportIncompatibleMethodOverride]
        (ids,) = ctx.saved_tensors
        grad = _without_padding(grad, ids, ctx.padding)
        # Gradients are floats: float32 holds every id below 2^24 exactly, and larger embeddings are refused.
        return None, None, ids.reshape(len(ids), -1).float(), _by_example(grad), None


def expanded(weight: Tensor, tap: Tensor) -> Tensor:
    """A copy of the parameter per example; see _Expanded."""
    return _Expanded.apply(weight.detach(), tap)  # pyright: ignore[reportReturnType]


def linear_gradients(x: Tensor, weight: Tensor, tap: Tensor, *, transposed: bool = False) -> Tensor:
    """x Wᵀ (x W where transposed); see _LinearGradients."""
    dtype = compute_dtype(x)
    with torch.autocast(x.device.type, enabled=False):
        return _LinearGradients.apply(x.to(dtype), weight.detach().to(dtype), tap, transposed)  # pyright: ignore[reportReturnType]


def linear_pairs(x: Tensor, weight: Tensor, taps: tuple[Tensor, Tensor], *, transposed: bool = False) -> Tensor:
    """x Wᵀ (x W where transposed); see _LinearPairs."""
    dtype = compute_dtype(x)
    with torch.autocast(x.device.type, enabled=False):
        return _LinearPairs.apply(x.to(dtype), weight.detach().to(dtype), *taps, transposed)  # pyright: ignore[reportReturnType]


def embedding_gradients(ids: Tensor, weight: Tensor, tap: Tensor, *, padding: int | None) -> Tensor:
    """W[ids]; see _EmbeddingGradients. Positions that hold the padding id have no gradient, as in torch."""
    return _EmbeddingGradients.apply(ids, weight.detach(), tap, padding)  # pyright: ignore[reportReturnType]


def embedding_pairs(ids: Tensor, weight: Tensor, taps: tuple[Tensor, Tensor], *, padding: int | None) -> Tensor:
    """W[ids]; see _EmbeddingPairs."""
    return _EmbeddingPairs.apply(ids, weight.detach(), *taps, padding)  # pyright: ignore[reportReturnType]


def _product(ctx: Any, x: Tensor, weight: Tensor, transposed: bool) -> Tensor:
    ctx.save_for_backward(x, weight)
    ctx.transposed = transposed
    return x @ weight if transposed else functional.linear(x, weight)


def _backward_parts(ctx: Any, grad: Tensor) -> tuple[Tensor | None, Tensor, Tensor]:
    """(gradient of x if autograd needs it, x, gradient of y), the last two by example."""
    x, weight = ctx.saved_tensors
    back = grad @ (weight.t() if ctx.transposed else weight) if ctx.needs_input_grad[0] else None
    return back, _by_example(x), _by_example(grad)


def _by_example(x: Tensor) -> Tensor:
    """B × T × features, with all dimensions between the first and the last flattened into T."""
    return x.unsqueeze(1) if x.dim() == 2 else x.flatten(1, -2)


def _without_padding(grad: Tensor, ids: Tensor, padding: int | None) -> Tensor:
    return grad if padding is None else grad.masked_fill((ids == padding).unsqueeze(-1), 0)

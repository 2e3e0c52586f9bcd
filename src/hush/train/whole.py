"""Per-example gradients that exist whole: the norms and the clipped sum of all of a model's parameters together.

A model has hundreds of parameters, and a GPU is done with a small one before the next call reaches it: many calls cost
more than the arithmetic. So small parameters are joined into one, and large ones of equal shape are added a few at a
time by one compiled program.

Shapes: B examples.
"""

from collections.abc import Callable, Iterator, Sequence
from typing import final

import torch
from torch import Tensor

__all__ = [
    "STAGE",
    "TINY",
    "UNIT",
    "Whole",
    "add_several_",
    "depth",
    "scaled",
    "staged_sum",
]

UNIT = 2.0**-24
TINY = 2.0**-126  # a product below this may be lost altogether
STAGE = 1024  # sums of squares go by stages of at most this many terms, so that rounding grows with stages, not terms
SMALL = 2**20  # entries, of all examples, up to which gradients are joined: a larger copy costs more than a call
TOGETHER = 4  # large parameters that one program adds: more save calls, but take long to compile
UNROLLED = 32  # examples that one compiled kernel reads side by side


@final
class Whole:
    """Whole gradients of some parameters, B × shape each, for the same examples."""

    def __init__(self, gradients: Sequence[Tensor]) -> None:
        self._gradients = gradients
        small, self._large = _by_size(gradients)
        self._joined = [(group, torch.cat([_flat(gradients[k]) for k in group], 1)) for group in small]

    def squared_norms(self) -> tuple[Tensor, Tensor]:
        """(squared norm, spread) of each example's gradient, which is made of all these parameters'."""
        tensors = [self._gradients[k] for k in self._large] + [joined for _, joined in self._joined]
        partial = torch.cat([part for tensor in tensors for part in _norms_of_stages(tensor)], 1)
        square = staged_sum(partial.square())
        # A product, at most STAGE additions, a root (which counts twice in its square), a square, and the later stages.
        rounding = STAGE + 4 + depth(partial.shape[1])
        lost = 2 * sum(gradient[0].numel() for gradient in self._gradients) * TINY
        return square, (rounding + 2) * UNIT * square + lost

    def add_clipped_sums_(
        self,
        totals: Sequence[Tensor],
        scale_B: Tensor,
        *,
        several: Callable[[Sequence[Tensor], Sequence[Tensor], Tensor], None] | None = None,
    ) -> None:
        """Each total += sum over examples of scale × its gradient. A scale of 0 leaves its example out, whatever it
        holds.

        several may be a compiled version of add_several_.
        """
        several = several or add_several_
        for group, joined in self._joined:
            sums = torch.zeros_like(joined[0], dtype=torch.float32)
            several([sums], [joined], scale_B)
            own = [totals[k] for k in group]
            pieces = sums.split([total.numel() for total in own])
            views = [piece.view_as(total) for piece, total in zip(pieces, own, strict=True)]
            torch._foreach_add_(own, views)  # pyright: ignore[reportPrivateImportUsage]
        for some in _alike(self._large, self._gradients):
            several([totals[k] for k in some], [self._gradients[k] for k in some], scale_B)


def add_several_(totals: Sequence[Tensor], gradients: Sequence[Tensor], scale_B: Tensor) -> None:
    """Each total += sum over examples of scale × its gradient."""
    for total, gradient in zip(totals, gradients, strict=True):
        if (
            torch.compiler.is_compiling() and len(scale_B) <= UNROLLED
        ):  # a kernel that reads every example once, in order
            sum_so_far = total
            for own, scale in zip(gradient.unbind(), scale_B.unbind(), strict=True):
                sum_so_far = sum_so_far + torch.where(scale > 0, own.float() * scale, 0.0)
            total.copy_(sum_so_far)
        elif torch.compiler.is_compiling() or gradient.is_cuda:
            total += scaled(gradient, scale_B).sum(0)
        else:
            keep = scale_B > 0
            kept, scales = (gradient, scale_B) if keep.all() else (gradient[keep], scale_B[keep])
            total.view(-1).addmv_(kept.float().flatten(1).t(), scales)


def scaled(x: Tensor, scale_B: Tensor) -> Tensor:
    """scale × x for each example, in float32; exactly 0 where the scale is, even for values that are not finite."""
    scale = scale_B.view(-1, *[1] * (x.dim() - 1))
    return torch.where(scale > 0, x.float() * scale, 0.0)


def staged_sum(x: Tensor) -> Tensor:
    """Sum of each example's entries, by stages of at most STAGE terms."""
    x = x.flatten(1)
    while x.shape[1] > STAGE:
        rest = x.shape[1] % STAGE
        whole = x[:, : x.shape[1] - rest].unflatten(1, (-1, STAGE)).sum(2)
        x = torch.cat([whole, x[:, x.shape[1] - rest :].sum(1, keepdim=True)], 1) if rest else whole
    return x.sum(1)


def depth(terms: int) -> int:
    """The most additions that one term of a staged sum of so many passes through."""
    count = 0
    while terms > STAGE:
        count, terms = count + STAGE, terms // STAGE + 1
    return count + terms


def _flat(gradient: Tensor) -> Tensor:
    """B × entries; a parameter that is a single number has gradients of one dimension."""
    return gradient.flatten(1) if gradient.dim() > 1 else gradient.unsqueeze(1)


def _norms_of_stages(gradient: Tensor) -> Iterator[Tensor]:
    """Norms of each example's stretches of at most STAGE entries, B × stretches, in float32."""
    x = gradient.flatten(1)
    even = x.shape[1] - x.shape[1] % STAGE
    if even:
        yield torch.linalg.vector_norm(x[:, :even].unflatten(1, (-1, STAGE)), dim=2, dtype=torch.float32)
    if even < x.shape[1]:
        yield torch.linalg.vector_norm(x[:, even:], dim=1, keepdim=True, dtype=torch.float32)


def _by_size(gradients: Sequence[Tensor]) -> tuple[list[list[int]], list[int]]:
    """Which are small, in groups of one type and place, and which are large."""
    groups: dict[tuple[torch.dtype, torch.device], list[int]] = {}
    large: list[int] = []
    for k, gradient in enumerate(gradients):
        if gradient.numel() <= SMALL:
            groups.setdefault((gradient.dtype, gradient.device), []).append(k)
        else:
            large.append(k)
    return list(groups.values()), large


def _alike(chosen: Sequence[int], gradients: Sequence[Tensor]) -> Iterator[list[int]]:
    """TOGETHER at a time of equal shape and type, and the rest one by one, so that few programs are compiled."""
    groups: dict[tuple[torch.Size, torch.dtype], list[int]] = {}
    for k in chosen:
        groups.setdefault((gradients[k].shape, gradients[k].dtype), []).append(k)
    for group in groups.values():
        even = len(group) - len(group) % TOGETHER
        yield from (group[start : start + TOGETHER] for start in range(0, even, TOGETHER))
        yield from ([k] for k in group[even:])

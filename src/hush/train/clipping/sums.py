"""The sum over examples of each gradient scaled to norm at most C, and the sum of squares of such gradients.

:class:`ClippedSums` is what a private round releases after noise. :class:`ClippedSquares` is for public examples alone:
it has no noise, and a metric is made from it (:mod:`hush.train.public.metric`).

Guarantee: what an example adds to a clipped sum has norm at most C, rounding of the norm included; in a metric, that is
the norm of the scaled gradient. An example whose loss or gradient is not finite adds exactly 0.
"""

from collections.abc import Mapping, Sequence
from typing import Protocol, final

import torch
from torch import Tensor

from hush.errors import InvalidInput
from hush.train.clipping.metric import Metric
from hush.train.clipping.norms import (
    UNIT,
    DenseGrads,
    Factors,
    Kernels,
    PerExampleGrads,
    Rows,
    add_clipped_sum_,
    kept,
    scaled,
    sliced,
    squared_norms,
)
from hush.train.clipping.routes import GradsByParameter

__all__ = ["MARGIN", "ClippedSquares", "ClippedSums", "Totals"]


# Gradients are clipped to C (1 - MARGIN): half of it covers the rounding of norms, half that of the sum (E33). An
# example whose norm may be off by more (its `spread` says so) is scaled down further.
MARGIN = 2.0**-10
FLOAT64_DEVICES = ("cpu", "cuda")  # on which a round's sum is float64; elsewhere it is float32

MAX_SQUARED_ENTRIES = 2**26  # of gradients made dense at a time to be squared: 256 MiB


class Totals(Protocol):
    """What a :class:`~hush.train.clipping.Clipper` adds the per-example gradients of its passes to."""

    def add(self, grads: GradsByParameter, losses: Tensor, real: Tensor, *, alone: bool) -> Tensor | None:
        """Add what examples give; returns the norms before clipping.

        None, and nothing is added, if one of several examples is not finite, so that each should have a pass of its
        own, unless `alone`: such an example then adds 0.
        """
        ...

    def take(self) -> dict[str, Tensor]:
        """The totals since the last take, by parameter; the next ones start from zero."""
        ...


@final
class ClippedSums:
    """Totals over micro-batches of clipped gradients, in the metric if there is one."""

    def __init__(self, parameters: Mapping[str, Tensor], *, clip_norm: float, kernels: Kernels) -> None:
        self._parameters, self._clip_norm, self._kernels = parameters, clip_norm, kernels
        self._totals: dict[str, Tensor] = {}
        self._metric: Metric | None = None
        self._joined_scales: dict[tuple[str, ...], Tensor] = {}  # of parameters whose gradients are dense

    def use(self, metric: Metric | None) -> None:
        """Clip in this metric from the next sum on."""
        if self._totals:
            raise InvalidInput("a sum was begun in another metric; take it before the metric changes")
        if metric is not None:
            metric.check(self._parameters)
            metric = metric.to({name: parameter.device for name, parameter in self._parameters.items()})
        self._metric, self._joined_scales = metric, {}

    def add(self, grads: GradsByParameter, losses: Tensor, real: Tensor, *, alone: bool) -> Tensor | None:
        """Add each example's gradient, scaled to norm at most C."""
        if not self._totals:
            self._totals = _zeros(self._parameters)
        dense, in_factors = _by_form(grads)
        scales, names = None, list(dense)
        if self._metric is not None:
            of = self._metric.scales
            in_factors = {name: [of[name].of(part) for part in parts] for name, parts in in_factors.items()}
            scales = lambda group: self._scales([names[k] for k in group])  # noqa: E731
        dense_grads = DenseGrads(list(dense.values()), scales=scales)
        squares = _squares(dense_grads if dense else None, in_factors, losses, self._kernels)
        limited = _limited(squares, losses, real, self._clip_norm, alone=alone)
        if limited is None:
            return None
        scale, norm = limited
        totals = [self._totals[name] for name in dense]
        dense_grads.add_clipped_sums_(totals, scale, several=self._kernels.add_several_)
        for name, parts in in_factors.items():
            add_clipped_sum_(self._totals[name], parts, scale, self._kernels)
        return norm

    def _scales(self, names: Sequence[str]) -> Tensor:
        """The scales of all coordinates of these parameters, one after the other."""
        key = tuple(names)
        if key not in self._joined_scales and self._metric is not None:
            of, parameters = self._metric.scales, self._parameters
            self._joined_scales[key] = torch.cat([of[name].full(parameters[name].shape).flatten() for name in names])
        return self._joined_scales[key]

    def take(self) -> dict[str, Tensor]:
        """The sums since the last take, in float64, for noise to be added before they are rounded."""
        totals, self._totals = self._totals, {}
        return totals or _zeros(self._parameters)


@final
class ClippedSquares:
    """Totals of the squares of the coordinates of clipped gradients: of public examples only."""

    def __init__(self, parameters: Mapping[str, Tensor], *, clip_norm: float, kernels: Kernels) -> None:
        self._parameters, self._clip_norm, self._kernels = parameters, clip_norm, kernels
        self._totals: dict[str, Tensor] = {}

    def add(self, grads: GradsByParameter, losses: Tensor, real: Tensor, *, alone: bool) -> Tensor | None:
        """Add the squares of each example's gradient, scaled to norm at most C in the ordinary norm."""
        if not self._totals:
            self._totals = {
                name: torch.zeros(p.shape, dtype=torch.float32, device=p.device) for name, p in self._parameters.items()
            }
        dense, in_factors = _by_form(grads)
        squares = _squares(DenseGrads(list(dense.values())) if dense else None, in_factors, losses, self._kernels)
        limited = _limited(squares, losses, real, self._clip_norm, alone=alone)
        if limited is None:
            return None
        scale, norm = limited
        for name, parts in grads.items():
            _add_squares_(self._totals[name], parts, scale)
        return norm

    def take(self) -> dict[str, Tensor]:
        """The totals since the last take, in float32."""
        totals, self._totals = self._totals, {}
        return totals


def _by_form(grads: GradsByParameter) -> tuple[dict[str, Tensor], dict[str, list[PerExampleGrads]]]:
    """(dense gradients, those in factors or by rows)."""
    dense = {name: parts[0] for name, parts in grads.items() if isinstance(parts[0], Tensor)}
    return dense, {name: parts for name, parts in grads.items() if name not in dense}


def _squares(
    dense: DenseGrads | None, in_factors: Mapping[str, list[PerExampleGrads]], losses: Tensor, kernels: Kernels
) -> tuple[Tensor, Tensor]:
    """(squared norm, spread) of each example's gradient over all parameters."""
    nothing = torch.zeros(len(losses), device=losses.device)
    squares = [(nothing, nothing) if dense is None else dense.squared_norms()]
    squares += [squared_norms(parts, kernels) for parts in in_factors.values()]
    square, spread = (torch.stack(terms).sum(0) for terms in zip(*squares, strict=True))
    return square, spread + len(squares) * UNIT * square  # of that sum itself


def _limited(
    squares: tuple[Tensor, Tensor], losses: Tensor, real: Tensor, clip_norm: float, *, alone: bool
) -> tuple[Tensor, Tensor] | None:
    """(the factor of each example, norms before clipping); see ``Totals.add`` for None.

    The norm of an example whose loss is not finite is not finite either, and its factor is 0.
    """
    square, spread = squares
    square = torch.where(losses.isfinite(), square, torch.nan)
    norm, largest = square.sqrt(), (square + spread).sqrt()
    limit = torch.minimum(clip_norm * (1 - MARGIN) / norm, clip_norm * (1 - MARGIN / 2) / largest)
    if not alone and bool((real & ~largest.isfinite()).any()):
        return None
    return torch.where(real & largest.isfinite(), limit.clamp_max(1.0), 0.0), norm  # a norm of 0 gives a factor of 1


def _zeros(parameters: Mapping[str, Tensor]) -> dict[str, Tensor]:
    return {
        name: torch.zeros(
            p.shape, dtype=torch.float64 if p.device.type in FLOAT64_DEVICES else torch.float32, device=p.device
        )
        for name, p in parameters.items()
    }


def _add_squares_(total: Tensor, parts: Sequence[PerExampleGrads], scale_B: Tensor) -> None:
    """total += sum over examples of the squares of scale × gradient, in float32, for which no bound is stated.

    Gradients are made dense for as many examples at a time as MAX_SQUARED_ENTRIES allows. A scale of 0 leaves its
    example out, whatever it holds.
    """
    first, *others = parts
    if isinstance(first, Tensor):
        total += scaled(first, scale_B).square().sum(0)
        return
    pieces = first.pieces() if not isinstance(first, Factors | Rows) else [(slice(0, len(scale_B)), first)]
    few = max(1, MAX_SQUARED_ENTRIES // max(total.numel(), 1))
    for examples, piece in pieces:
        uses = [piece, *(sliced(other, examples) for other in others)]
        scales = scale_B[examples]
        for start in range(0, len(scales), few):
            part = slice(start, start + few)
            dense = torch.zeros(len(scales[part]), *total.shape, device=total.device)
            for use in uses:
                _add_dense_(dense, sliced(use, part), scales[part])
            total += dense.square_().sum(0)


def _add_dense_(dense: Tensor, part: PerExampleGrads, scale_B: Tensor) -> None:
    """dense += scale × gradient, B × O × I."""
    if isinstance(part, Factors):
        product = scaled(part.y, scale_B).transpose(1, 2) @ kept(part.x, scale_B).float()
        dense += product[:, : dense.shape[1]]
    else:
        assert isinstance(part, Rows)  # noqa: S101
        index = part.ids.long().unsqueeze(-1).expand(-1, -1, dense.shape[-1])
        dense.scatter_add_(1, index, scaled(part.y, scale_B))

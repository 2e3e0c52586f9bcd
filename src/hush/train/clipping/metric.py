"""Metrics: positive scales of all coordinates, in which gradients are clipped and receive their noise.

A gradient g becomes u = s ⊙ g. The clipped sum of u gets isotropic noise and is divided by s afterwards. s is an outer
product of row and column scales for each matrix, so what a backward pass captures in factors stays in factors.

Guarantee: u is formed before norms are computed, and norms and sums are of the same u. So its norm is at most C by the
proof for ordinary gradients, and the division afterwards is post-processing. The metric must not depend on any secret;
:class:`~hush.train.public.metric.PublicMetric` measures one that does not.

Shapes: B examples, T positions, O × I the parameter.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, Self, final

import torch
from torch import Tensor

from hush.errors import InvalidInput
from hush.train.clipping.norms import Factors, PerExampleGrads, Rows, times
from hush.train.distributed import shard_like

__all__ = ["MAX_FACTOR", "Metric", "Scale"]


# (E36) Of row and column scales, and their inverse: logits' gradients are at most 1, and stay finite when scaled.
MAX_FACTOR = 2.0**15


@final
@dataclass(frozen=True, slots=True, eq=False, repr=False)
class Scale:
    """Scales of one parameter: rows, and columns unless the parameter is a vector or a number.

    Parameters of more than two dimensions count as matrices of shape[0] rows. Factors have the precision of bfloat16,
    so each type of gradient holds them without rounding.
    """

    rows: Tensor
    columns: Tensor | None = None

    def __post_init__(self) -> None:
        for factor in (self.rows, self.columns):
            if factor is not None and (factor.dim() != 1 or not bool((factor.isfinite() & (factor > 0)).all())):
                raise InvalidInput("a metric holds scales that are not finite or not above 0; measure it again")

    @classmethod
    def rounded(cls, rows: Tensor, columns: Tensor | None = None) -> Self:
        """The scales whose factors are nearest to these."""
        return cls(rows.bfloat16().float(), None if columns is None else columns.bfloat16().float())

    def fits(self, shape: torch.Size) -> bool:
        """Whether these are scales for a parameter of this shape."""
        columns = math.prod(shape[1:]) if len(shape) > 1 else None
        sizes = self.rows.numel(), None if self.columns is None else self.columns.numel()
        return sizes == (math.prod(shape[:1]), columns)

    def full(self, shape: torch.Size) -> Tensor:
        """The scale of each coordinate."""
        if self.columns is None:
            return self.rows.view(shape)
        return (self.rows.unsqueeze(1) * self.columns).view(shape)

    def inverse_square(self) -> float:
        """The sum of squares of 1 / scale over all coordinates."""
        rows = self.rows.double().pow(-2).sum()
        return float(rows if self.columns is None else rows * self.columns.double().pow(-2).sum())

    def to(self, device: torch.device) -> "Scale":
        """The same on another device."""
        return Scale(self.rows.to(device), None if self.columns is None else self.columns.to(device))

    def of(self, part: PerExampleGrads) -> PerExampleGrads:
        """s ⊙ g for each example, in the form and type of g. Chunks are used up; anything else stays as it is."""
        if isinstance(part, Tensor):
            return times(part, self.full(part.shape[1:]))
        if isinstance(part, Rows):
            y = part.y if self.columns is None else times(part.y, self.columns)
            return Rows(part.ids, times(y, self.rows[part.ids.long()].unsqueeze(-1)))
        assert self.columns is not None  # noqa: S101 - only matrices have factors
        if isinstance(part, Factors):
            return replace(part, y=times(part.y, self.rows), x=times(part.x, self.columns))
        return part.scaled_(self.rows, self.columns)


@final
@dataclass(frozen=True, slots=True, eq=False, repr=False)
class Metric:
    """The scales of a model's trainable parameters, by name; a tied parameter has one for all of its uses.

    preconditioner: what the update is divided by after clipping and noise, coordinate by coordinate.
    """

    scales: Mapping[str, Scale]
    preconditioner: Mapping[str, Scale] | None = None

    def __post_init__(self) -> None:
        for name, scale in self.scales.items():
            for factor in (scale.rows, scale.columns):
                if factor is None or factor.numel() == 0:
                    continue
                low, high = (float(x) for x in factor.aminmax())
                if not 1 / MAX_FACTOR <= low <= high <= MAX_FACTOR:
                    raise InvalidInput(
                        f"the metric scales {name} by numbers from {low:g} to {high:g}; each must be from "
                        f"{1 / MAX_FACTOR:g} to {MAX_FACTOR:g}: raise the floor, or take an exponent nearer to 0"
                    )

    def check(self, parameters: Mapping[str, Tensor]) -> None:
        """Refuse a metric that is not for these parameters."""
        for scales in (self.scales, self.preconditioner):
            if scales is None:
                continue
            wrong = sorted({*scales} ^ {*parameters}) or [n for n in scales if not scales[n].fits(parameters[n].shape)]
            if wrong:
                raise InvalidInput(
                    f"the metric is of another model: {wrong[0]} and {len(wrong) - 1} more trainable parameters are "
                    "missing or shaped differently in one of the two; measure it for the model that is trained"
                )

    @property
    def inverse_norm(self) -> float:
        """‖1 / s‖ over all coordinates: the norm of unit noise after the division, expected. Without a metric, √d."""
        return math.sqrt(sum(scale.inverse_square() for scale in self.scales.values()))

    @torch.no_grad()
    def unscale_(self, sums: Mapping[str, Tensor]) -> None:
        """Divide sums that were taken in this metric by the scales; sharded ones each shard by its own."""
        _divide_(sums, self.scales)

    @torch.no_grad()
    def precondition_(self, gradients: Mapping[str, Tensor]) -> None:
        """Divide an update by the preconditioner, if there is one."""
        if self.preconditioner is not None:
            _divide_(gradients, self.preconditioner)

    def to(self, devices: Mapping[str, torch.device]) -> "Metric":
        """The same, each parameter's scales on its device."""
        moved = [
            None if scales is None else {name: scale.to(devices[name]) for name, scale in scales.items()}
            for scales in (self.scales, self.preconditioner)
        ]
        return Metric(moved[0] or {}, moved[1])

    def state(self) -> dict[str, Any]:
        """Tensors, to be stored; the metric is public."""
        return {
            "scales": _state(self.scales),
            "preconditioner": None if self.preconditioner is None else _state(self.preconditioner),
        }

    @classmethod
    def from_state(cls, state: Mapping[str, Any]) -> Self:
        """What ``state`` gave."""
        before = state["preconditioner"]
        return cls(_from_state(state["scales"]), None if before is None else _from_state(before))

    def __repr__(self) -> str:
        return f"Metric({len(self.scales)} parameters)"


def _divide_(values: Mapping[str, Tensor], scales: Mapping[str, Scale]) -> None:
    for name, value in values.items():
        full = scales[name].full(value.shape)
        value.div_(shard_like(full, value).to(value.dtype))


def _state(scales: Mapping[str, Scale]) -> dict[str, tuple[Tensor, Tensor | None]]:
    return {
        name: (scale.rows.cpu(), None if scale.columns is None else scale.columns.cpu())
        for name, scale in scales.items()
    }


def _from_state(state: Mapping[str, tuple[Tensor, Tensor | None]]) -> dict[str, Scale]:
    return {name: Scale(rows, columns) for name, (rows, columns) in state.items()}

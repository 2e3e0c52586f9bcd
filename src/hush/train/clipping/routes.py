"""Clipping plans: which way the per-example gradients of each parameter are taken, decided once per batch shape.

A dry run of the forward pass tells how often each layer is called and on how many positions; from that
:func:`plan_clipping` chooses a route for every parameter, by arithmetic and memory traffic:

- dense per-example gradient: one batched product gives B × O × I gradients; norms and sum are read off them. Costs
  memory traffic in B × O × I.
- ghost norm: the gradient stays in its two factors, the layer's input and its output gradient. The norm comes from two
  T × T Gram matrices [Goodfellow 2015, Li et al. 2022], the sum from one more product. Costs arithmetic and memory
  traffic in T².
- vmap fallback: modules that are neither linear nor embedding layers run under ``torch.vmap`` with one copy of their
  parameters per example; their gradients are dense.
- lm head: the output layer and loss of a language model, in chunks (:mod:`hush.train.clipping.lm_head`).
- example by example: where rows of some layer cannot be attributed to examples (routed rows, tables that all examples
  share, parameters that are used outside of their module), each example has a forward and a backward pass of its own.
  Exact for any model, and slow.
"""

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any, Literal, final

import torch
from torch import Tensor, nn

from hush.train.clipping.attribution import Layout
from hush.train.clipping.dry_run import Calls, Findings, calls_of
from hush.train.clipping.norms import Factors, PerExampleGrads, Rows, merged
from hush.train.clipping.sites import Site, Use
from hush.train.clipping.taps import empty_tap

__all__ = [
    "BatchShape",
    "ClippingPlan",
    "GradsByParameter",
    "LayerRoute",
    "Place",
    "SiteTaps",
    "Tap",
    "TapSpec",
    "batch_shape",
    "plan_clipping",
    "plan_one_by_one",
]


# Operations per byte at which a product stops waiting for memory, by device and bytes of the type. H200: 600e12 and
# 60e12 operations, 4.3e12 bytes a second; a desktop CPU: about 20.
BALANCE = {("cuda", 2): 140.0, ("cuda", 4): 14.0}
DEFAULT_BALANCE = 20.0

GRAM_PASSES = 9  # over T × T numbers of 4 bytes: both matrices written, multiplied, summed up, and row sums of one
DENSE_PASSES = 3  # over O × I numbers: written, read for the norm, read for the sum

Batch = Mapping[str, Tensor]
BatchShape = tuple[tuple[str, tuple[int, ...]], ...]  # the name and shape of each tensor
Place = tuple[str, str]  # a site and its own name for one of its parameters
Tap = tuple[str, str, int]  # a place and 0 or 1: the input or the output gradient of a pair
GradsByParameter = dict[str, list[PerExampleGrads]]  # by the model's parameters

RouteName = Literal["ghost norm", "dense per-example gradient", "vmap fallback", "lm head", "example by example"]


# ---- plans ----


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class LayerRoute:
    """How the per-example gradients of one parameter are taken in one layer, and why."""

    layer: str
    parameter: str
    route: RouteName
    reason: str


@final
@dataclass(frozen=True, slots=True)
class TapSpec:
    """Shapes (without B) and types of the two taps of a pair, or the type of the one tap that takes dense gradients."""

    dtype: torch.dtype
    pair: tuple[tuple[tuple[int, ...], torch.dtype], tuple[tuple[int, ...], torch.dtype]] | None = None


@final
@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class ClippingPlan:
    """The routes of all trained layers for batches of one shape; ``str`` gives them as a table.

    calls: how each layer is called in a pass over such a batch. layouts: how inputs hold the examples, where shapes
    alone would mislead. one_by_one: why each example has a pass of its own; None if one pass serves all. every_batch:
    why attribution is proven again at every batch; None if it is from time to time. branches: how many truth values of
    the data Python reads in a pass; other values than those of a pass that was looked at are looked at.
    """

    batch_shape: BatchShape
    routes: tuple[LayerRoute, ...]
    taps: Mapping[Place, TapSpec]
    calls: Calls = field(default_factory=dict)
    layouts: Mapping[str, Mapping[tuple[int, ...], Layout]] = field(default_factory=dict)
    one_by_one: str | None = None
    every_batch: str | None = None
    branches: int = 0

    def __str__(self) -> str:
        rows = [("layer", "parameter", "route", "why")]
        rows += [(row.layer, row.parameter, row.route, row.reason) for row in self.routes]
        widths = [max(len(row[column]) for row in rows) for column in range(3)]
        lines = [
            "  ".join([*(text.ljust(width) for text, width in zip(row, widths, strict=False)), row[3]]) for row in rows
        ]
        if self.every_batch is not None:
            lines.append(f"attribution is proven at every batch: {self.every_batch}")
        return "\n".join(lines)


def batch_shape(batch: Batch) -> BatchShape:
    """What a plan is made for."""
    return tuple((name, tuple(value.shape)) for name, value in batch.items())


def plan_clipping(
    sites: list[Site],
    findings: Findings,
    *,
    shape: BatchShape,
    device: str,
    head: tuple[str, Collection[str], str | None] | None = None,
) -> ClippingPlan:
    """The plan for batches of this shape, from what dry runs found out about one of them.

    head: the layer whose loss is computed in chunks, its trained parameters, and its weight's name if that is trained.
    What shares this weight must come in factors, as the head's own gradient may.
    """
    uses = findings.uses
    tied_to_head = None if head is None else head[2]
    holders: dict[str, list[Site]] = {}
    for site in sites:
        for name in site.parameters.values():
            holders.setdefault(name, []).append(site)

    def why_dense(name: str) -> str | None:
        """Why a parameter's uses must or should be dense; None for factors. One dense use makes all of them dense."""
        for site in holders[name]:
            # Autograd adds up what one tap receives, which is right for gradients and wrong for factors.
            if site.kind == "vmap":
                return f"shared with {site.name}, a vmap fallback"
            if len(uses[site.name]) != 1:
                return f"{site.name} is called {len(uses[site.name])} times in a forward pass"
        if name == tied_to_head:
            return None
        for site in holders[name]:
            if not _cheaper_in_factors(site, use := uses[site.name][0], device):
                return _costs(site, use, "costs less than")
        return None

    taps: dict[Place, TapSpec] = {}
    routes: list[LayerRoute] = []
    for site in sites:
        use = next(iter(uses[site.name]), None)
        for local, name in site.parameters.items():
            route: RouteName = "dense per-example gradient"
            spec = TapSpec(site.module.get_parameter(local).dtype)
            if site.kind == "vmap":
                route = "vmap fallback"
                reason = f"{type(site.module).__name__} uses its parameters itself, and is no linear or embedding layer"
            elif use is None:
                reason = "not used by batches of this shape so far"  # it may be later, and costs nothing until then
            elif local != "weight":
                reason = "a bias: its gradient is as small as one position of the layer's output"
            elif (why := why_dense(name)) is not None:
                spec, reason = TapSpec(use.dtype), why
            else:
                route = "ghost norm"
                x: tuple[tuple[int, ...], torch.dtype] = (use.positions, use.inputs), use.dtype
                if site.kind == "embedding":
                    x = (use.positions,), torch.float32
                spec = TapSpec(use.dtype, (x, ((use.positions, use.outputs), use.dtype)))
                reason = _costs(site, use, "costs more than")
                if name == tied_to_head:
                    reason = "shares its weight with the lm head, whose gradient comes in factors"
            taps[site.name, local] = spec
            routes.append(LayerRoute(layer=site.name, parameter=name, route=route, reason=reason))
    if head is not None:
        layer, parameters, _ = head
        reason = "its loss is one of hush's: computed at labelled positions, in chunks of examples"
        routes += [LayerRoute(layer=layer, parameter=name, route="lm head", reason=reason) for name in parameters]
    return ClippingPlan(
        batch_shape=shape,
        routes=tuple(routes),
        taps=MappingProxyType(taps),
        calls=calls_of(uses),
        layouts=findings.layouts,
        every_batch=findings.moved_by,
        branches=findings.branches,
    )


def plan_one_by_one(names: Collection[str], *, shape: BatchShape, reason: str) -> ClippingPlan:
    """The plan in which each example has a pass of its own, which is exact for any model."""
    routes = tuple(
        LayerRoute(
            layer=name.rpartition(".")[0] or "(the model itself)",
            parameter=name,
            route="example by example",
            reason=reason,
        )
        for name in names
    )
    return ClippingPlan(batch_shape=shape, routes=routes, taps=MappingProxyType({}), one_by_one=reason)


def _cheaper_in_factors(site: Site, use: Use, device: str) -> bool:
    rows, width = use.inputs, use.outputs
    if site.kind == "embedding":
        return use.positions < rows  # T rows are touched; dense gradients would be mostly zeros
    bytes_each = torch.finfo(use.dtype).bits // 8
    balance = BALANCE.get((device, bytes_each), DEFAULT_BALANCE)
    gram = use.positions**2 * (2 * (rows + width) + balance * 4 * GRAM_PASSES)
    return gram < balance * DENSE_PASSES * bytes_each * rows * width


def _costs(site: Site, use: Use, comparison: str) -> str:
    if site.kind == "embedding":
        return f"a dense {use.inputs} × {use.outputs} gradient {comparison} the rows of {use.positions} positions"
    grams = f"two {use.positions} × {use.positions} Gram matrices"
    return f"a dense {use.outputs} × {use.inputs} gradient {comparison} {grams}"


# ---- taps ----


@final
class SiteTaps:
    """The sites of a model, fitted with the taps of one clipping plan after another."""

    def __init__(self, sites: list[Site], parameters: Mapping[str, nn.Parameter]) -> None:
        self.sites, self._parameters = sites, parameters
        self._made: dict[object, Tensor] = {}
        self._fitted: tuple[ClippingPlan, dict[Tap, Tensor]] | None = None

    def fit_dense(self, batch: int) -> None:
        """One tap for each parameter of every site: for dry runs, before it is known how the sites are used."""
        self._fitted = None
        for site in self.sites:
            site.batch, site.taps = batch, {}
            for local, name in site.parameters.items():
                parameter = self._parameters[name]
                shape = (batch, *parameter.shape)
                site.taps[local] = empty_tap(shape, dtype=parameter.dtype, device=parameter.device)

    def fit(self, plan: ClippingPlan, batch: int) -> dict[Tap, Tensor]:
        """The taps that this plan needs."""
        if self._fitted is not None and self._fitted[0] is plan:  # a plan is for one shape, its B included
            return self._fitted[1]
        taps: dict[Tap, Tensor] = {}
        for site in self.sites:
            site.batch, site.taps = batch, {}
            site.layouts = plan.layouts.get(site.name, MappingProxyType({}))
            for local, name in site.parameters.items():
                spec = plan.taps.get((site.name, local))
                if spec is None:
                    continue
                parameter = self._parameters[name]
                shapes = spec.pair or ((tuple(parameter.shape), spec.dtype or parameter.dtype),)
                made = tuple(
                    self._tap((site.name, local, k), (batch, *shape), dtype, parameter.device)
                    for k, (shape, dtype) in enumerate(shapes)
                )
                site.taps[local] = made if spec.pair else made[0]
                taps |= {(site.name, local, k): tap for k, tap in enumerate(made)}
        self._fitted = plan, taps
        return taps

    def block_gradients(self, answers: Mapping[Tap, Any]) -> dict[Tap, Tensor]:
        """Those of the answers that are linear in the losses: all but the inputs of pairs and the ids of rows."""
        pairs = {tap[:2] for tap in answers if tap[2] == 1}
        return {tap: value for tap, value in answers.items() if value is not None and (tap[2] or tap[:2] not in pairs)}

    def per_example_grads(self, plan: ClippingPlan, answers: Mapping[Tap, Any]) -> GradsByParameter:
        """The gradients of the taps by the model's parameters; nothing for parameters that the loss did not use."""
        grads: GradsByParameter = {}
        for site in self.sites:
            for local, name in site.parameters.items():
                if (site.name, local) not in plan.taps or answers[site.name, local, 0] is None:
                    continue  # not used in this loss: its gradient is 0
                first, second = answers[site.name, local, 0], answers.get((site.name, local, 1))
                if second is None:
                    part: PerExampleGrads = first
                elif site.kind == "embedding":
                    part = Rows(first, second)
                elif site.kind == "conv1d":  # its weight is I × O
                    part = Factors(first, second)
                else:
                    part = Factors(second, first)
                grads.setdefault(name, []).append(part)
        return {name: merged(parts) for name, parts in grads.items()}

    def _tap(self, tap: Tap, shape: tuple[int, ...], dtype: torch.dtype, device: torch.device) -> Tensor:
        """The tap of this place alone, made once and reused: nothing is ever added up in it."""
        key = tap, shape, dtype, device
        if key not in self._made:
            self._made[key] = empty_tap(shape, dtype=dtype, device=device)
        return self._made[key]

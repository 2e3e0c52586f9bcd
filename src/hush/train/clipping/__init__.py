"""Per-example clipping in one backward pass: the sum over examples of each gradient scaled to norm at most C.

:class:`Clipper` makes a :class:`~hush.train.clipping.routes.ClippingPlan` at the first batch of each shape, which says
by which route the gradients of each layer are taken, and follows it afterwards.

Guarantee: what an example adds to the sum depends on the model, that example and its own randomness alone (which the
probes check), and its norm is at most C, rounding of the norm included. Padded slots, and examples whose loss or
gradient is not finite, add exactly 0.
"""

from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from typing import Any, final

import torch
from torch import Tensor, nn

from hush.errors import InvalidInput
from hush.train.clipping.lm_head import Head, find_head
from hush.train.clipping.norms import (
    UNIT,
    DenseGrads,
    Kernels,
    PerExampleGrads,
    add_clipped_sum_,
    merged,
    squared_norms,
)
from hush.train.clipping.routes import (
    BatchShape,
    ClippingPlan,
    DryRun,
    GradsByParameter,
    LayerRoute,
    SiteTaps,
    batch_shape,
    head_agrees,
    plan_clipping,
)
from hush.train.clipping.sites import attached, find_sites
from hush.train.distributed import Ranks, is_sharded
from hush.train.language_models import Loss, logits_and_labels

__all__ = ["MARGIN", "Clipped", "Clipper", "ClippingPlan", "LayerRoute"]


# Gradients are clipped to C (1 - MARGIN): half of it covers the rounding of norms, half that of the sum (E33). An
# example whose norm may be off by more (its `spread` says so) is scaled down further.
MARGIN = 2.0**-10
FLOAT64_DEVICES = ("cpu", "cuda")  # on which a round's sum is float64; elsewhere it is float32

MAX_COMPILED_VARIANTS = 512  # of one function, in a process: a few for each length of text, in all its trainings
MIN_CLIP_NORM = 1e-9  # squares of a smaller C would underflow in float32


@final
@dataclass(frozen=True, slots=True, repr=False)
class Clipped:
    """Losses and gradient norms before clipping, one per slot. For the owner only."""

    losses: Tensor
    norms: Tensor


@final
class Clipper:
    """Accumulates clipped sums of per-example gradients of a model's trainable parameters.

    loss(model, batch) gives one loss per example, each from its own example alone. Every tensor of a batch has the
    examples along its first dimension. autocast is the type to compute in (such as torch.bfloat16); norms are float32
    and sums float64 in any case. compile may name a backend of torch.compile. ``print(clipper.plan_for(batch))`` shows
    by which route the gradients of each layer are taken, and why.
    """

    def __init__(
        self,
        model: nn.Module,
        loss: Loss,
        *,
        clip_norm: float,
        compile: bool | str = False,
        autocast: torch.dtype | None = None,
    ) -> None:
        if not MIN_CLIP_NORM <= clip_norm < float("inf"):
            raise InvalidInput(
                f"pass a finite number of at least {MIN_CLIP_NORM:g}", setting="clip_norm", value=clip_norm
            )
        if autocast is torch.float16:
            raise InvalidInput("float16 needs a loss scaler, which couples the examples; use torch.bfloat16")
        self._model, self._loss, self._clip_norm, self._autocast = model, loss, clip_norm, autocast
        self._parameters = {name: p for name, p in model.named_parameters() if p.requires_grad}
        if not self._parameters:
            raise InvalidInput("the model has no parameter that requires a gradient; nothing would be trained")
        backend = compile if isinstance(compile, str) else "inductor" if compile else None
        self._use_head(find_head(model, loss, backend=backend))
        self._sharded = is_sharded(model)
        self._totals: dict[str, Tensor] = {}
        self._run_model, self._kernels = self._forward, Kernels()
        if backend is not None:
            # Shapes are few and fixed, so each gets its own compiled variant; by default torch stops at the eighth of a
            # function. One graph or an error: a pass in several graphs would be slow without notice.
            limits = torch._dynamo.config
            limits.recompile_limit = max(limits.recompile_limit, MAX_COMPILED_VARIANTS)
            limits.accumulated_recompile_limit = max(limits.accumulated_recompile_limit, 8 * MAX_COMPILED_VARIANTS)
            options: dict[str, Any] = {"dynamic": False, "fullgraph": True, "backend": backend}
            self._run_model = torch.compile(self._run_model, **options)
            self._kernels = Kernels.compiled(options)

    @property
    def clip_norm(self) -> float:
        """C: no example adds more."""
        return self._clip_norm

    @property
    def names(self) -> tuple[str, ...]:
        """The trainable parameters, each tied one once."""
        return tuple(self._parameters)

    def accumulate(self, batch: Mapping[str, Tensor], real: Tensor) -> Clipped:
        """Add the clipped sum of one micro-batch; real says which slots hold an example."""
        wrong = {name: tuple(value.shape) for name, value in batch.items() if value.shape[:1] != real.shape}
        if wrong:
            raise InvalidInput(
                f"{wrong} in the batch do not have the {len(real)} examples that `real` has, along dimension 0"
            )
        # The caller's autocast would reach norms and sums; _forward sets its own.
        with torch.autocast(self._device.type, enabled=False):
            return self._accumulate(batch, real)

    def take(self, *, exact: bool = False) -> dict[str, Tensor]:
        """The sums since the last take, by parameter, in float32; the next sum starts from zero.

        exact: as they were accumulated, in float64, for the noise to be added before they are rounded.
        """
        totals, self._totals = self._totals, {}
        totals = totals or {name: self._zeros(name) for name in self._parameters}
        return totals if exact else {name: total.float() for name, total in totals.items()}

    def plan_for(self, batch: Mapping[str, Tensor]) -> ClippingPlan:
        """The plan for batches of this shape; made by a dry run, and kept, if this is the first one.

        It shows shapes and names of layers, and nothing of the examples. If the model is sharded, all ranks call this
        together.
        """
        batch = {name: value.to(self._device, non_blocking=True) for name, value in batch.items()}
        with torch.autocast(self._device.type, enabled=False):
            return self._plan_for(batch)

    def routes(self) -> tuple[LayerRoute, ...]:
        """The routes of the plan that was made last, one for each layer and parameter; empty before the first batch."""
        plan = next(reversed(self._plans.values()), None)
        return () if plan is None else plan.routes

    def _accumulate(self, batch: Mapping[str, Tensor], real: Tensor) -> Clipped:
        most_labelled = 0 if self._head is None else max(1, self._head.most_labelled(batch["labels"]))
        batch = {name: value.to(self._device, non_blocking=True) for name, value in batch.items()}
        real = real.to(self._device, non_blocking=True)
        plan = self._plan_for(batch)
        taps = self._taps.fit(plan, len(real))
        head_grads: dict[str, PerExampleGrads] = {}
        with self._tapped():
            losses = self._run_model(batch)
            if self._head is not None:
                losses, *by_role = self._head.losses(losses, batch["labels"], most_labelled)
                head_grads = {
                    name: grads
                    for name, grads in zip(self._head_names, by_role, strict=True)
                    if name and grads is not None
                }
            answers = torch.autograd.grad(torch.where(real, losses, 0.0).sum(), list(taps.values()), allow_unused=True)
        grads = self._taps.per_example_grads(plan, dict(zip(taps, answers, strict=True)))
        for name, from_head in head_grads.items():  # joined with those of layers that share the head's parameters
            grads[name] = merged([from_head, *grads.get(name, [])])
        if not self._totals:
            self._totals = {name: self._zeros(name) for name in self._parameters}
        with torch.no_grad(), _full_precision():
            norms = self._add_clipped(grads, losses.detach(), real)
        return Clipped(losses.detach().float(), norms)

    def _add_clipped(self, grads: GradsByParameter, losses: Tensor, real: Tensor) -> Tensor:
        """Add each example's gradient, scaled to norm at most C, to the sums; returns the norms before clipping, which
        are not finite where the loss is not."""
        dense = {name: parts[0] for name, parts in grads.items() if isinstance(parts[0], Tensor)}
        in_factors = {name: parts for name, parts in grads.items() if name not in dense}
        dense_grads = DenseGrads(list(dense.values()))
        nothing = torch.zeros(len(real), device=real.device)
        squares = [dense_grads.squared_norms() if dense else (nothing, nothing)]
        squares += [squared_norms(parts, self._kernels) for parts in in_factors.values()]
        square, spread = (torch.stack(terms).sum(0) for terms in zip(*squares, strict=True))
        spread = spread + len(squares) * UNIT * square  # of that sum itself
        square = torch.where(losses.isfinite(), square, torch.nan)
        norm, largest = square.sqrt(), (square + spread).sqrt()
        limit = torch.minimum(self._clip_norm * (1 - MARGIN) / norm, self._clip_norm * (1 - MARGIN / 2) / largest)
        scale = torch.where(real & largest.isfinite(), limit.clamp_max(1.0), 0.0)  # a norm of 0 gives a scale of 1
        totals = [self._totals[name] for name in dense]
        dense_grads.add_clipped_sums_(totals, scale, several=self._kernels.add_several_)
        for name, parts in in_factors.items():
            add_clipped_sum_(self._totals[name], parts, scale, self._kernels)
        return norm

    # ---- plans ----

    def _plan_for(self, batch: Mapping[str, Tensor]) -> ClippingPlan:
        shape = batch_shape(batch)
        is_new = shape not in self._plans
        if self._sharded:  # a dry run communicates, so all ranks make one if any rank must
            is_new = bool(Ranks.current().max(is_new))
        if is_new:
            self._plans[shape] = self._make_plan(batch, shape)
        return self._plans[shape]

    def _make_plan(self, batch: Mapping[str, Tensor], shape: BatchShape) -> ClippingPlan:
        if self._head is not None and not self._plans:
            model, loss, autocast = self._model, self._loss, self._autocast
            if not head_agrees(self._head, batch, model=model, loss=loss, forward=self._forward, autocast=autocast):
                self._use_head(None)  # this model does more to its logits than the chunked head knows of
        dry_run = DryRun(taps=self._taps, forward=self._tapped_forward, gives_losses=self._head is None)
        uses = dry_run.uses(batch)
        if not any(uses.values()) and not any(self._head_names):
            raise InvalidInput(
                f"no trainable parameter ({', '.join(self.names[:3])}) is used through its own module's forward, "
                "where per-example gradients are taken; call that module in the loss, or train other parameters"
            )
        dry_run.refuse_ambiguous(uses, batch)
        weight, *_ = self._head_names
        head = None
        if self._head is not None:
            layer = next(name for name, module in self._model.named_modules() if module is self._head.module)
            head = layer, [name for name in self._head_names if name], weight
        plan = plan_clipping(self._taps.sites, uses, shape=shape, device=self._device.type, head=head)
        sharing = [
            (site.name, local) for site in self._taps.sites for local, name in site.parameters.items() if name == weight
        ]
        # What shares the head's weight must come in factors, as the head's own gradient does.
        if any(plan.taps[place].pair is None for place in sharing):
            self._use_head(None)
            return self._make_plan(batch, shape)
        return plan

    def _use_head(self, head: Head | None) -> None:
        """Compute the loss by this head, or by the user's function if it is None; older plans do not hold any more."""
        self._head, sites = head, find_sites(self._model)
        self._head_names: list[str | None] = [None, None]  # the model's names of its weight and bias, if trained
        if head is not None:
            sites = [site for site in sites if site.module is not head.module]
            # By identity, outside of forward: inside it, a sharded module holds other tensors.
            names = {id(p): name for name, p in self._parameters.items()}
            self._head_names = [names.get(id(head.module.weight)), names.get(id(head.module.bias))]
        self._taps = SiteTaps(sites, self._parameters)
        self._plans: dict[BatchShape, ClippingPlan] = {}

    # ---- forward passes ----

    def _forward(self, batch: Mapping[str, Tensor]) -> Tensor:
        """Losses, or the input of the head if that is computed in chunks."""
        with torch.autocast(self._device.type, dtype=self._autocast, enabled=self._autocast is not None):
            if self._head is None:
                return self._loss(self._model, batch)
            hidden, _ = logits_and_labels(self._model, batch)
            return hidden.to(self._autocast or hidden.dtype)

    def _tapped_forward(self, batch: Mapping[str, Tensor]) -> Tensor:
        with self._tapped():
            return self._forward(batch)

    def _tapped(self) -> ExitStack:
        """The model with its sites tapped, and its head bypassed if that is computed in chunks."""
        stack = ExitStack()
        stack.enter_context(attached(self._taps.sites))
        if self._head is not None:
            stack.enter_context(self._head.bypassed())
        return stack

    def _zeros(self, name: str) -> Tensor:
        parameter = self._parameters[name]
        dtype = torch.float64 if parameter.device.type in FLOAT64_DEVICES else torch.float32
        return torch.zeros(parameter.shape, dtype=dtype, device=parameter.device)

    @property
    def _device(self) -> torch.device:
        return next(iter(self._parameters.values())).device


@contextmanager
def _full_precision() -> Iterator[None]:
    """Products of float32 in full float32, whatever the user allows the model: MARGIN is proven for that."""
    cpu: Any = torch.backends.mkldnn
    backends = torch.backends.cuda.matmul, cpu.matmul
    precisions = [backend.fp32_precision for backend in backends]
    try:
        allowed = torch.get_float32_matmul_precision()
    except RuntimeError:  # set for each backend, so there is no single value
        allowed = None
    torch.set_float32_matmul_precision("highest")
    try:
        yield
    finally:
        if allowed is not None:
            torch.set_float32_matmul_precision(allowed)
        else:
            for backend, precision in zip(backends, precisions, strict=True):
                backend.fp32_precision = precision

"""Per-example clipping in one backward pass: the sum over examples of each gradient scaled to norm at most C.

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
from hush.train.clipping.norms import UNIT, Capture, Programs, Whole, add_clipped_sum_, merged, squared_norms
from hush.train.clipping.routes import Captures, FirstLook, Place, Route, SiteTaps, choose_routes, head_agrees
from hush.train.clipping.sites import attached, find_sites
from hush.train.distributed import Ranks, is_sharded
from hush.train.language_models import Loss, logits_and_labels

__all__ = ["MARGIN", "Clipped", "Clipper"]


# Gradients are clipped to C (1 - MARGIN): half of it covers the rounding of norms, half that of the sum. An example
# whose norm may be off by more (its `spread` says so) is scaled down further.
MARGIN = 2.0**-10

PROGRAMS = 512  # that torch may compile of one function: some for each length of text, in all trainings of a process
LEAST = 1e-9  # a smaller C would be lost where float32 squares vanish


@final
@dataclass(frozen=True, slots=True, repr=False)
class Clipped:
    """Losses and gradient norms before clipping, one per slot. For the owner's eyes only."""

    losses: Tensor
    norms: Tensor


@final
class Clipper:
    """Accumulates clipped sums of per-example gradients of a model's trainable parameters.

    loss(model, batch) gives one loss per example, each from its own example alone. Every tensor of a batch has the
    examples along its first dimension. autocast is the type to compute in (torch.bfloat16, say); norms and sums are
    float32 in any case. compile may name a backend of torch.compile.
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
        if not LEAST <= clip_norm < float("inf"):
            raise InvalidInput(f"clip_norm must be a positive number, at least {LEAST}, got {clip_norm}")
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
        self._run_model, self._programs = self._forward, Programs()
        if backend is not None:
            # Shapes are few and fixed, so each gets its own program; torch would stop at the eighth of a function. One
            # graph or an error: a pass in pieces would be slow without saying so.
            limits = torch._dynamo.config
            limits.recompile_limit = max(limits.recompile_limit, PROGRAMS)
            limits.accumulated_recompile_limit = max(limits.accumulated_recompile_limit, 8 * PROGRAMS)
            how: dict[str, Any] = {"dynamic": False, "fullgraph": True, "backend": backend}
            self._run_model = torch.compile(self._run_model, **how)
            self._programs = Programs.compiled(how)

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
        device = next(iter(self._parameters.values())).device
        # The caller's would reach norms and sums; _forward has its own.
        with torch.autocast(device.type, enabled=False):
            return self._accumulate(batch, real, device)

    def take(self) -> dict[str, Tensor]:
        """The sums since the last take, by parameter; the next sum starts from zero."""
        totals, self._totals = self._totals, {}
        return totals or {name: self._zeros(name) for name in self._parameters}

    def _accumulate(self, batch: Mapping[str, Tensor], real: Tensor, device: torch.device) -> Clipped:
        most = 0 if self._head is None else max(1, self._head.most_labelled(batch["labels"]))
        batch = {name: value.to(device, non_blocking=True) for name, value in batch.items()}
        real = real.to(device, non_blocking=True)
        routes = self._routes_for(batch)
        taps = self._taps.fit(routes, len(real))
        apart: dict[str, Capture] = {}
        with self._tapped():
            losses = self._run_model(batch)
            if self._head is not None:
                losses, *gradients = self._head.losses(losses, batch["labels"], most)
                apart = {
                    name: own for name, own in zip(self._of_head, gradients, strict=True) if name and own is not None
                }
            answers = torch.autograd.grad(torch.where(real, losses, 0.0).sum(), list(taps.values()), allow_unused=True)
        captures = self._taps.captures(routes, dict(zip(taps, answers, strict=True)))
        for name, own in apart.items():  # the head's own, and what is tied to it
            captures[name] = merged([own, *captures.get(name, [])])
        if not self._totals:
            self._totals = {name: self._zeros(name) for name in self._parameters}
        with torch.no_grad(), _full_precision():
            norms = self._add_clipped(captures, losses.detach(), real)
        return Clipped(losses.detach().float(), norms)

    def _use_head(self, head: Head | None) -> None:
        """Compute the loss by this head, or by the user's function where it is None."""
        self._head, sites = head, find_sites(self._model)
        self._of_head: list[str | None] = [None, None]  # the names of its weight and bias
        if head is not None:
            sites = [site for site in sites if site.module is not head.module]
            # By identity only now: inside forward, a sharded module holds other tensors.
            names = {id(p): name for name, p in self._parameters.items()}
            self._of_head = [names.get(id(head.module.weight)), names.get(id(head.module.bias))]
        self._taps = SiteTaps(sites, self._parameters)
        self._routes: dict[object, dict[Place, Route]] = {}

    def _zeros(self, name: str) -> Tensor:
        parameter = self._parameters[name]
        return torch.zeros(parameter.shape, dtype=torch.float32, device=parameter.device)

    def _tapped(self) -> ExitStack:
        """The model with its sites tapped and its head, if it is ours to compute, bypassed."""
        stack = ExitStack()
        stack.enter_context(attached(self._taps.sites))
        if self._head is not None:
            stack.enter_context(self._head.bypassed())
        return stack

    def _forward(self, batch: Mapping[str, Tensor]) -> Tensor:
        """Losses, or the input of the head where that is ours to compute."""
        device = next(iter(self._parameters.values())).device.type
        with torch.autocast(device, dtype=self._autocast, enabled=self._autocast is not None):
            if self._head is None:
                return self._loss(self._model, batch)
            hidden, _ = logits_and_labels(self._model, batch)
            return hidden.to(self._autocast or hidden.dtype)

    def _tapped_forward(self, batch: Mapping[str, Tensor]) -> Tensor:
        with self._tapped():
            return self._forward(batch)

    def _add_clipped(self, captures: Captures, losses: Tensor, real: Tensor) -> Tensor:
        """Add each example's gradient, scaled to norm at most C, to the sums; returns the norms before, which are not
        finite where the loss is not."""
        whole = {name: parts[0] for name, parts in captures.items() if isinstance(parts[0], Tensor)}
        apart = {name: parts for name, parts in captures.items() if name not in whole}
        together = Whole(list(whole.values()))
        nothing = torch.zeros(len(real), device=real.device)
        squares = [together.squared_norms() if whole else (nothing, nothing)]
        squares += [squared_norms(parts, self._programs) for parts in apart.values()]
        square, spread = (torch.stack(own).sum(0) for own in zip(*squares, strict=True))
        spread = spread + len(squares) * UNIT * square  # of that sum itself
        square = torch.where(losses.isfinite(), square, torch.nan)
        norm, most = square.sqrt(), (square + spread).sqrt()
        limit = torch.minimum(self._clip_norm * (1 - MARGIN) / norm, self._clip_norm * (1 - MARGIN / 2) / most)
        scale = torch.where(real & most.isfinite(), limit.clamp_max(1.0), 0.0)  # a norm of 0 gives a scale of 1
        together.add_clipped_sums_([self._totals[name] for name in whole], scale, several=self._programs.add_several_)
        for name, parts in apart.items():
            add_clipped_sum_(self._totals[name], parts, scale, self._programs)
        return norm

    def _routes_for(self, batch: Mapping[str, Tensor]) -> dict[Place, Route]:
        """How each parameter's gradients are taken, from a first look at the shapes of this kind of batch."""
        key = tuple((name, tuple(value.shape)) for name, value in batch.items())
        unknown = key not in self._routes
        if self._sharded:  # a look communicates, so all ranks look when one must
            unknown = bool(Ranks.current().max(unknown))
        if unknown:
            if self._head is not None and not self._routes:
                model, loss, autocast = self._model, self._loss, self._autocast
                if not head_agrees(self._head, batch, model=model, loss=loss, forward=self._forward, autocast=autocast):
                    self._use_head(None)  # this model does more to its logits than we know of
            look = FirstLook(taps=self._taps, forward=self._tapped_forward, gives_losses=self._head is None)
            uses = look.uses(batch)
            if not any(uses.values()) and not any(self._of_head):
                raise InvalidInput(
                    f"no trainable parameter ({', '.join(self.names[:3])}) is used through its own module's forward, "
                    "where per-example gradients are taken; call that module in the loss, or train other parameters"
                )
            look.refuse_ambiguous(uses, batch)
            tied = {name for name in self._of_head[:1] if name}
            device = next(iter(self._parameters.values())).device.type
            routes = choose_routes(self._taps.sites, uses, device=device, tied_to_head=tied)
            shared = [(site.name, own) for site in self._taps.sites for own, name in site.own.items() if name in tied]
            # What the head shares must come in factors too, as the head's own gradient does.
            if any(place in routes and routes[place].pair is None for place in shared):
                self._use_head(None)
                return self._routes_for(batch)
            self._routes[key] = routes
        return self._routes[key]


@contextmanager
def _full_precision() -> Iterator[None]:
    """Products of float32 in float32, whatever the user allows the model: the margin is proven for that."""
    cpu: Any = torch.backends.mkldnn
    backends = torch.backends.cuda.matmul, cpu.matmul
    one_by_one = [backend.fp32_precision for backend in backends]
    try:
        allowed = torch.get_float32_matmul_precision()
    except RuntimeError:  # set for each backend, and not to be read in one word any more
        allowed = None
    torch.set_float32_matmul_precision("highest")
    try:
        yield
    finally:
        if allowed is not None:
            torch.set_float32_matmul_precision(allowed)
        else:
            for backend, precision in zip(backends, one_by_one, strict=True):
                backend.fp32_precision = precision

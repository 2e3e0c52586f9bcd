"""Per-example clipping in one backward pass: the sum over examples of each gradient scaled to norm at most C.

Guarantee: what an example adds to the sum depends on the model, that example and its own randomness alone (which the
probes check), and its norm is at most C, rounding of the norm included. Padded slots, and examples whose gradient is
not finite, add exactly 0.
"""

from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from typing import Any, final

import torch
from torch import Tensor, nn

from hush.errors import InvalidInput
from hush.train.captures import Capture, Factors, Programs, Rows, add_clipped_sum_, merged, squared_norms
from hush.train.distributed import Ranks
from hush.train.head import Head, find_head
from hush.train.language import Loss, logits_and_labels
from hush.train.layout import is_sharded
from hush.train.routes import Route, choose_routes
from hush.train.sites import Site, Use, attached, find_sites
from hush.train.taps import empty_tap
from hush.train.trial import undisturbed
from hush.train.whole import UNIT, Whole

__all__ = ["MARGIN", "Clipped", "Clipper"]

# Gradients are clipped to C (1 - MARGIN): half of it covers the rounding of norms, half that of the sum. An example
# whose norm may be off by more (its `spread` says so) is scaled down further.
MARGIN = 2.0**-10

LEAST = 1e-9  # a smaller C would be lost where float32 squares vanish

Captures = dict[str, list[Capture]]
Place = tuple[str, str]  # a site and one of its parameters


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
            torch._dynamo.config.recompile_limit = max(torch._dynamo.config.recompile_limit, 64)
            how: dict[str, Any] = {"dynamic": False, "fullgraph": True, "backend": backend}
            self._run_model = torch.compile(self._run_model, **how)
            self._programs = Programs.compiled(how)

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
        most = 0 if self._head is None else max(1, self._head.most_labelled(batch["labels"]))
        device = next(iter(self._parameters.values())).device
        batch = {name: value.to(device, non_blocking=True) for name, value in batch.items()}
        real = real.to(device, non_blocking=True)
        routes = self._routes_for(batch)
        taps = self._fit_taps(routes, len(real))
        apart: dict[str, Capture] = {}
        with self._tapped():
            losses = self._run_model(batch)
            if self._head is not None:
                losses, *gradients = self._head.losses(losses, batch["labels"], most)
                apart = {
                    name: own for name, own in zip(self._of_head, gradients, strict=True) if name and own is not None
                }
            answers = torch.autograd.grad(torch.where(real, losses, 0.0).sum(), list(taps.values()), allow_unused=True)
        captures = self._captures(routes, dict(zip(taps, answers, strict=True)))
        for name, own in apart.items():  # the head's own, and what is tied to it
            captures[name] = merged([own, *captures.get(name, [])])
        if not self._totals:
            self._totals = {name: self._zeros(name) for name in self._parameters}
        with torch.no_grad(), _full_precision():
            norms = self._add_clipped(captures, real)
        return Clipped(losses.detach().float(), norms)

    def take(self) -> dict[str, Tensor]:
        """The sums since the last take, by parameter; the next sum starts from zero."""
        totals, self._totals = self._totals, {}
        return totals or {name: self._zeros(name) for name in self._parameters}

    def _use_head(self, head: Head | None) -> None:
        """Compute the loss by this head, or by the user's function where it is None."""
        self._head, self._sites = head, find_sites(self._model)
        self._routes: dict[object, dict[Place, Route]] = {}
        self._taps: dict[object, Tensor] = {}
        self._fitted: tuple[dict[Place, Route], dict[tuple[str, str, int], Tensor]] | None = None
        self._of_head: list[str | None] = [None, None]  # the names of its weight and bias
        if head is not None:
            self._sites = [site for site in self._sites if site.module is not head.module]
            # By identity only now: inside forward, a sharded module holds other tensors.
            names = {id(p): name for name, p in self._parameters.items()}
            self._of_head = [names.get(id(head.module.weight)), names.get(id(head.module.bias))]

    def _zeros(self, name: str) -> Tensor:
        parameter = self._parameters[name]
        return torch.zeros(parameter.shape, dtype=torch.float32, device=parameter.device)

    def _tapped(self) -> ExitStack:
        """The model with its sites tapped and its head, if it is ours to compute, bypassed."""
        stack = ExitStack()
        stack.enter_context(attached(self._sites))
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

    def _add_clipped(self, captures: Captures, real: Tensor) -> Tensor:
        """Add each example's gradient, scaled to norm at most C, to the sums; returns the norms before."""
        whole = {name: parts[0] for name, parts in captures.items() if isinstance(parts[0], Tensor)}
        apart = {name: parts for name, parts in captures.items() if name not in whole}
        together = Whole(list(whole.values()))
        nothing = torch.zeros(len(real), device=real.device)
        squares = [together.squared_norms() if whole else (nothing, nothing)]
        squares += [squared_norms(parts, self._programs) for parts in apart.values()]
        square, spread = (torch.stack(own).sum(0) for own in zip(*squares, strict=True))
        spread = spread + len(squares) * UNIT * square  # of that sum itself
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
            unknown = bool(Ranks.current().most(unknown))
        if unknown:
            if self._head is not None and not self._routes and not self._head_agrees(batch):
                self._use_head(None)  # this model does more to its logits than we know of
            uses = self._look(batch)
            if not any(uses.values()) and not any(self._of_head):
                raise InvalidInput(
                    f"no trainable parameter ({', '.join(self.names[:3])}) is used through its own module's forward, "
                    "where per-example gradients are taken; call that module in the loss, or train other parameters"
                )
            self._refuse_ambiguous(uses, batch)
            tied = {name for name in self._of_head[:1] if name}
            device = next(iter(self._parameters.values())).device.type
            routes = choose_routes(self._sites, uses, device=device, tied_to_head=tied)
            shared = [(site.name, own) for site in self._sites for own, name in site.own.items() if name in tied]
            # What the head shares must come in factors too, as the head's own gradient does.
            if any(place in routes and routes[place].pair is None for place in shared):
                self._use_head(None)
                return self._routes_for(batch)
            self._routes[key] = routes
        return self._routes[key]

    def _look(self, batch: Mapping[str, Tensor]) -> dict[str, list[Use]]:
        """How each site is used in a forward pass on this batch, which leaves no trace."""
        size = len(next(iter(batch.values())))
        self._fitted = None
        for site in self._sites:
            site.batch, site.uses = size, []
            site.taps = {own: self._tap(site, own, size) for own in site.own}
        devices = {value.device for value in batch.values() if value.device.type != "cpu"}
        try:
            with torch.no_grad(), torch.random.fork_rng(devices), _no_short_cuts(), self._tapped():
                losses = self._forward(batch)
        except InvalidInput:
            raise
        except (RuntimeError, AssertionError, ValueError, IndexError) as error:
            odd = [
                (shape[:1] == (1,), f"{site.name} got {shape}")
                for site in self._sites
                for use in site.uses or ()
                for shape in use.shapes
                if shape[:1] != (size,)
            ]
            if not odd:
                raise
            seen = [text for shared, text in odd if not shared] or [text for _, text in odd]
            raise InvalidInput(
                f"the forward pass fails while gradients are taken example by example ({error}). There are {size} "
                f"examples, and {', '.join(seen[:3])}: the examples must lie along the first dimension of every "
                "trained layer's input; freeze these layers, or write the model so"
            ) from error
        finally:
            uses = {site.name: site.uses or [] for site in self._sites}
            for site in self._sites:
                site.uses = None
        if self._head is None and losses.shape != (size,):
            raise InvalidInput(f"the loss has shape {tuple(losses.shape)} for {size} examples; return one for each")
        return uses

    def _refuse_ambiguous(self, uses: dict[str, list[Use]], batch: Mapping[str, Tensor]) -> None:
        """A second look with one example more: what has a row per example must grow with it.

        Otherwise a mask of T × T, say, would be dealt out to the examples in a micro-batch of just T of them.
        """
        size = len(next(iter(batch.values())))
        if size == 1:
            return  # a first dimension of 1 is right for both
        more = self._look({name: torch.cat([value, value[:1]]) for name, value in batch.items()})
        for site in self._sites:
            for use, other in zip(uses[site.name], more[site.name], strict=False):
                for one, two in zip(use.shapes, other.shapes, strict=True):
                    if one[:1] == (size,) == two[:1]:
                        raise InvalidInput(
                            f"module {site.name} got an input of shape {one} for {size} examples and for {size + 1}: "
                            "its first dimension is not that of the examples, and has their number by chance; choose "
                            "another size of micro-batch"
                        )

    def _head_agrees(self, batch: Mapping[str, Tensor]) -> bool:
        """Whether the chunked head gives an example the loss that the model and the loss function give it."""
        assert self._head is not None  # noqa: S101
        first = {name: value[:1] for name, value in batch.items()}
        labels, attended = first["labels"], first.get("attention_mask")
        inside = torch.ones_like(labels) if attended is None or attended.shape != labels.shape else attended
        # Every token is learnt here: an example without labels would agree with anything.
        first["labels"] = torch.where(inside > 0, labels.clamp_min(0), labels)
        with undisturbed(self._model), torch.no_grad():
            self._model.eval()
            with self._head.bypassed():
                hidden = self._forward(first)
            ours, *_ = self._head.losses(hidden, first["labels"], first["labels"].shape[1])
            device = next(iter(self._parameters.values())).device.type
            with torch.autocast(device, dtype=self._autocast, enabled=self._autocast is not None):
                theirs = self._loss(self._model, first)
        return torch.allclose(ours, theirs.float(), rtol=1e-4 if hidden.dtype == torch.float32 else 0.02)

    def _tap(self, site: Site, own: str, batch: int) -> Tensor:
        parameter = self._parameters[site.own[own]]
        return empty_tap((batch, *parameter.shape), dtype=parameter.dtype, device=parameter.device)

    def _fit_taps(self, routes: dict[Place, Route], batch: int) -> dict[tuple[str, str, int], Tensor]:
        """The taps of every site, fitted to it; by site, parameter and 0 or 1 (x or y of a pair)."""
        if self._fitted is not None and self._fitted[0] is routes:  # routes are of one shape, its B included
            return self._fitted[1]
        taps: dict[tuple[str, str, int], Tensor] = {}
        for site in self._sites:
            site.batch, site.taps = batch, {}
            for own in site.own:
                route = routes.get((site.name, own))
                if route is None:
                    continue
                parameter = self._parameters[site.own[own]]
                shapes = route.pair or ((tuple(parameter.shape), route.dtype or parameter.dtype),)
                made = tuple(
                    self._kept_tap((site.name, own, k), (batch, *shape), dtype, parameter.device)
                    for k, (shape, dtype) in enumerate(shapes)
                )
                site.taps[own] = made if route.pair else made[0]
                taps |= {(site.name, own, k): tap for k, tap in enumerate(made)}
        self._fitted = routes, taps
        return taps

    def _kept_tap(self, place: object, shape: tuple[int, ...], dtype: torch.dtype, device: torch.device) -> Tensor:
        """A tap of this place alone, made once: nothing is ever added up in it."""
        key = place, shape, dtype, device
        if key not in self._taps:
            self._taps[key] = empty_tap(shape, dtype=dtype, device=device)
        return self._taps[key]

    def _captures(self, routes: dict[Place, Route], answers: dict[tuple[str, str, int], Any]) -> Captures:
        """What came back, by the model's parameters."""
        found: Captures = {}
        for site in self._sites:
            for own, name in site.own.items():
                if (site.name, own) not in routes or answers[site.name, own, 0] is None:
                    continue  # not used in this loss: its gradient is 0
                first, second = answers[site.name, own, 0], answers.get((site.name, own, 1))
                if second is None:
                    capture: Capture = first
                elif site.kind == "embedding":
                    capture = Rows(first, second)
                elif site.kind == "conv1d":  # its weight is I × O
                    capture = Factors(first, second)
                else:
                    capture = Factors(second, first)
                found.setdefault(name, []).append(capture)
        return {name: merged(parts) for name, parts in found.items()}


@contextmanager
def _full_precision() -> Iterator[None]:
    """Products of float32 in float32, whatever the user allows the model: the margin is proven for that."""
    allowed = torch.get_float32_matmul_precision()
    torch.set_float32_matmul_precision("highest")
    try:
        yield
    finally:
        torch.set_float32_matmul_precision(allowed)


@contextmanager
def _no_short_cuts() -> Iterator[None]:
    """Without gradients, torch's transformers take a path around their layers; they will not when they train."""
    enabled = torch.backends.mha.get_fastpath_enabled()
    torch.backends.mha.set_fastpath_enabled(False)
    try:
        yield
    finally:
        torch.backends.mha.set_fastpath_enabled(enabled)

"""The first look at a kind of batch, before its gradients are taken: a trial that leaves no trace in the model.

It tells how each site is used, from which the routes are chosen, and refuses models whose examples cannot be told apart
by the first dimension. For a head that is ours to compute it tells whether its losses are the model's own.

Which way each parameter's per-example gradients are taken: whole, or as the two factors they are products of.

Whole: one batched product gives B × O × I gradients; their norms are read off, their sum is a weighted mean over
examples. Costs memory traffic in B × O × I. Factors: the norm comes from two T × T matrices of inner products (the
"ghost" identity), the sum from one more product. Costs arithmetic and memory traffic in T². The cheaper one by shape
is taken.

Taps fitted to a model's sites, and what comes back through them, sorted by the model's parameters.
"""

from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, final

import torch
from torch import Tensor, nn

from hush.errors import InvalidInput
from hush.train.clipping.lm_head import Head
from hush.train.clipping.norms import Capture, Factors, Rows, merged
from hush.train.clipping.sites import Site, Use
from hush.train.clipping.taps import empty_tap
from hush.train.language_models import Loss
from hush.train.probes import without_side_effects

__all__ = ["Captures", "FirstLook", "Place", "Route", "SiteTaps", "Uses", "choose_routes", "head_agrees"]


# Operations per byte at which a product stops waiting for memory, by device and bytes of the type. H200: 600e12 and
# 60e12 operations, 4.3e12 bytes a second; a desktop CPU: about 20.
BALANCE = {("cuda", 2): 140.0, ("cuda", 4): 14.0}

PASSES = 9  # over T × T numbers of 4 bytes: both matrices written, multiplied, summed up, and row sums of one


@dataclass(frozen=True, slots=True)
class Route:
    """Shapes (without B) and types of the two taps of a pair, or the type of the one tap that takes whole gradients."""

    dtype: torch.dtype
    pair: tuple[tuple[tuple[int, ...], torch.dtype], tuple[tuple[int, ...], torch.dtype]] | None = None


def choose_routes(
    sites: list[Site], uses: dict[str, list[Use]], *, device: str, tied_to_head: Collection[str] = ()
) -> dict[tuple[str, str], Route]:
    """A route for each site and parameter. The head comes in factors, and what it shares."""
    holders: dict[str, list[Site]] = {}
    for site in sites:
        for name in site.own.values():
            holders.setdefault(name, []).append(site)

    def factored(name: str) -> bool:
        """Whether all of a parameter's uses can and should be taken in factors: one that is whole makes all whole."""
        sharers = holders[name]
        if any(site.kind == "expanded" or len(uses[site.name]) != 1 for site in sharers):
            return False  # autograd adds up what one tap receives, which is right for gradients and wrong for factors
        return name in tied_to_head or all(_cheaper_in_factors(site, uses[site.name][0], device) for site in sharers)

    routes: dict[tuple[str, str], Route] = {}
    for site in sites:
        use = next(iter(uses[site.name]), None)
        for own, name in site.own.items():
            if own != "weight" or site.kind == "expanded" or use is None:
                # What was not used may be another time, and costs nothing until then.
                routes[site.name, own] = Route(site.module.get_parameter(own).dtype)
            elif not factored(name):
                routes[site.name, own] = Route(use.dtype)
            elif site.kind == "embedding":
                routes[site.name, own] = Route(
                    use.dtype, (((use.positions,), torch.float32), ((use.positions, use.outputs), use.dtype))
                )
            else:
                x, y = (use.positions, use.inputs), (use.positions, use.outputs)
                routes[site.name, own] = Route(use.dtype, ((x, use.dtype), (y, use.dtype)))
    return routes


def _cheaper_in_factors(site: Site, use: Use, device: str) -> bool:
    rows, width = use.inputs, use.outputs
    if site.kind == "embedding":
        return use.positions < rows  # T rows are touched; whole gradients would be mostly zeros
    bytes_each = torch.finfo(use.dtype).bits // 8
    balance = BALANCE.get((device, bytes_each), 20.0)
    gram = use.positions**2 * (2 * (rows + width) + balance * 4 * PASSES)
    return gram < balance * 3 * bytes_each * rows * width  # written, read for the norm, read for the sum


Captures = dict[str, list[Capture]]  # by the model's parameters
Place = tuple[str, str]  # a site and one of its parameters
Tap = tuple[str, str, int]  # a place and 0 or 1: x or y of a pair


@final
class SiteTaps:
    """The sites of a model, fitted with the taps of one kind of batch after another."""

    def __init__(self, sites: list[Site], parameters: Mapping[str, nn.Parameter]) -> None:
        self.sites, self._parameters = sites, parameters
        self._made: dict[object, Tensor] = {}
        self._fitted: tuple[Mapping[Place, Route], dict[Tap, Tensor]] | None = None

    def fit_whole(self, batch: int) -> None:
        """One tap for each parameter of every site, as long as nobody knows how the sites are used."""
        self._fitted = None
        for site in self.sites:
            site.batch, site.taps = batch, {}
            for own, name in site.own.items():
                parameter = self._parameters[name]
                shape = (batch, *parameter.shape)
                site.taps[own] = empty_tap(shape, dtype=parameter.dtype, device=parameter.device)

    def fit(self, routes: Mapping[Place, Route], batch: int) -> dict[Tap, Tensor]:
        """The taps that these routes need."""
        if self._fitted is not None and self._fitted[0] is routes:  # routes are of one shape, its B included
            return self._fitted[1]
        taps: dict[Tap, Tensor] = {}
        for site in self.sites:
            site.batch, site.taps = batch, {}
            for own in site.own:
                route = routes.get((site.name, own))
                if route is None:
                    continue
                parameter = self._parameters[site.own[own]]
                shapes = route.pair or ((tuple(parameter.shape), route.dtype or parameter.dtype),)
                made = tuple(
                    self._kept((site.name, own, k), (batch, *shape), dtype, parameter.device)
                    for k, (shape, dtype) in enumerate(shapes)
                )
                site.taps[own] = made if route.pair else made[0]
                taps |= {(site.name, own, k): tap for k, tap in enumerate(made)}
        self._fitted = routes, taps
        return taps

    def captures(self, routes: Mapping[Place, Route], answers: Mapping[Tap, Any]) -> Captures:
        """What came back as the gradients of the taps; nothing for parameters that the loss did not use."""
        found: Captures = {}
        for site in self.sites:
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

    def _kept(self, tap: Tap, shape: tuple[int, ...], dtype: torch.dtype, device: torch.device) -> Tensor:
        """A tap of this place alone, made once: nothing is ever added up in it."""
        key = tap, shape, dtype, device
        if key not in self._made:
            self._made[key] = empty_tap(shape, dtype=dtype, device=device)
        return self._made[key]


Batch = Mapping[str, Tensor]
Forward = Callable[[Batch], Tensor]
Uses = dict[str, list[Use]]  # by site


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class FirstLook:
    """Looks at how the sites are used in a forward pass, in which they are tapped."""

    taps: SiteTaps
    forward: Forward
    gives_losses: bool  # and not the input of a head

    def uses(self, batch: Batch) -> Uses:
        """How each site is used in a forward pass on this batch."""
        size = len(next(iter(batch.values())))
        self.taps.fit_whole(size)
        for site in self.taps.sites:
            site.uses = []
        devices = {value.device for value in batch.values() if value.device.type != "cpu"}
        try:
            with torch.no_grad(), torch.random.fork_rng(devices), _no_short_cuts():
                losses = self.forward(batch)
        except InvalidInput:
            raise
        except (RuntimeError, AssertionError, ValueError, IndexError) as error:
            odd = [
                (shape[:1] == (1,), f"{site.name} got {shape}")
                for site in self.taps.sites
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
            uses = {site.name: site.uses or [] for site in self.taps.sites}
            for site in self.taps.sites:
                site.uses = None
        if self.gives_losses and losses.shape != (size,):
            raise InvalidInput(f"the loss has shape {tuple(losses.shape)} for {size} examples; return one for each")
        return uses

    def refuse_ambiguous(self, uses: Uses, batch: Batch) -> None:
        """A second look with one example more: what has a row per example must grow with it.

        Otherwise a mask of T × T, say, would be dealt out to the examples in a micro-batch of just T of them.
        """
        size = len(next(iter(batch.values())))
        if size == 1:
            return  # a first dimension of 1 is right for both
        more = self.uses({name: torch.cat([value, value[:1]]) for name, value in batch.items()})
        for name in uses:
            for use, other in zip(uses[name], more[name], strict=False):
                for one, two in zip(use.shapes, other.shapes, strict=True):
                    if one[:1] == (size,) == two[:1]:
                        raise InvalidInput(
                            f"module {name} got an input of shape {one} for {size} examples and for {size + 1}: "
                            "its first dimension is not that of the examples, and has their number by chance; choose "
                            "another size of micro-batch"
                        )


def head_agrees(
    head: Head, batch: Batch, *, model: nn.Module, loss: Loss, forward: Forward, autocast: torch.dtype | None
) -> bool:
    """Whether the chunked head gives an example the loss that the model and the loss function give it.

    forward gives the input of the head, where that is bypassed.
    """
    first = {name: value[:1] for name, value in batch.items()}
    labels, attended = first["labels"], first.get("attention_mask")
    inside = torch.ones_like(labels) if attended is None or attended.shape != labels.shape else attended
    # Every token is learnt here: an example without labels would agree with anything.
    first["labels"] = torch.where(inside > 0, labels.clamp_min(0), labels)
    with without_side_effects(model), torch.no_grad():
        model.eval()
        try:
            with head.bypassed():
                hidden = forward(first)
            ours, *_ = head.losses(hidden, first["labels"], first["labels"].shape[1])
        except torch.OutOfMemoryError:
            raise
        except RuntimeError:  # what follows the head, a bias apart from it, say, cannot do with its input
            return False
        with torch.autocast(hidden.device.type, dtype=autocast, enabled=autocast is not None):
            theirs = loss(model, first)
    return torch.allclose(ours, theirs.float(), rtol=1e-4 if hidden.dtype == torch.float32 else 0.02)


@contextmanager
def _no_short_cuts() -> Iterator[None]:
    """Without gradients, torch's transformers take a path around their layers; they will not when they train."""
    enabled = torch.backends.mha.get_fastpath_enabled()
    torch.backends.mha.set_fastpath_enabled(False)
    try:
        yield
    finally:
        torch.backends.mha.set_fastpath_enabled(enabled)

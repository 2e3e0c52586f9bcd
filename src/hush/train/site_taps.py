"""Taps fitted to a model's sites, and what comes back through them, sorted by the model's parameters."""

from collections.abc import Mapping
from typing import Any, final

import torch
from torch import Tensor, nn

from hush.train.captures import Capture, Factors, Rows, merged
from hush.train.routes import Route
from hush.train.sites import Site
from hush.train.taps import empty_tap

__all__ = ["Captures", "Place", "SiteTaps"]

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

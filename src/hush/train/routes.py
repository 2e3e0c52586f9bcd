"""Which way each parameter's per-example gradients are taken: whole, or as the two factors they are products of.

Whole: one batched product gives B × O × I gradients; their norms are read off, their sum is a weighted mean over
examples. Costs memory traffic in B × O × I. Factors: the norm comes from two T × T matrices of inner products (the
"ghost" identity), the sum from one more product. Costs arithmetic and memory traffic in T². The cheaper one by shape
is taken.
"""

from collections.abc import Collection
from dataclasses import dataclass

import torch

from hush.train.sites import Site, Use

__all__ = ["Route", "choose_routes"]

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

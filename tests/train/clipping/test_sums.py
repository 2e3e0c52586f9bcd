"""With and without one example the computed sum of a round differs by at most the clip norm, however it is rounded."""

from collections.abc import Mapping, Sequence
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn

from hush.train.clipping import MARGIN, Clipper
from hush.train.clipping.norms import (
    SUMMANDS_IN_FLOAT32,
    UNIT,
    DenseGrads,
    Factors,
    Rows,
    _add_sums_of_few_,
    add_clipped_sum_,
)

CLIP_NORM = 1.0


def given_gradient(model: nn.Module, batch: Mapping[str, Tensor]) -> Tensor:
    """A loss whose gradient in the weight is the sum over positions of outer products of ``e`` and ``a``."""
    return (model(batch["a"]) * batch["e"]).sum((1, 2))


def clipped_sum(micro_batches: Sequence[tuple[Tensor, Tensor]], *, without: tuple[int, int] | None = None) -> Tensor:
    """The sum of a round over micro-batches of (a, e), as noise is added to it; without: one slot is left out."""
    _, _, inputs = micro_batches[0][0].shape
    model = nn.Linear(inputs, micro_batches[0][1].shape[2], bias=False)
    clipper = Clipper(model, given_gradient, clip_norm=CLIP_NORM)
    for number, (a, e) in enumerate(micro_batches):
        real = torch.ones(len(a), dtype=torch.bool)
        if without is not None and without[0] == number:
            real[without[1]] = False
        clipper.accumulate({"a": a, "e": e}, real)
    return clipper.take(exact=True)["weight"].double()


def ones_like_gradient(values: Tensor) -> tuple[Tensor, Tensor]:
    """Examples whose whole gradient is one number each."""
    return values.view(-1, 1, 1), torch.ones(len(values), 1, 1)


def test_thousands_of_examples_cannot_make_one_count_for_more() -> None:
    """The example lifts the sum over 2048, where float32 is half as fine; every later small one would be rounded up."""
    before = [ones_like_gradient(torch.full((63,), 0.5))] * 65  # 2047.5
    secret = [ones_like_gradient(torch.tensor([10.0]))]
    after = [ones_like_gradient(torch.tensor([1.001 * 2.0**-13]))] * 800
    batches = before + secret + after
    with_it, without = clipped_sum(batches), clipped_sum(batches, without=(len(before), 0))
    assert float((with_it - without).norm()) <= CLIP_NORM


@pytest.mark.parametrize("positions", [1, 2, 24])
@pytest.mark.parametrize("size", [1e-3, 1.0, 1e4])
def test_cancelling_positions_of_others_cannot_make_one_count_for_more(positions: int, size: float) -> None:
    """Each gradient is a small difference of large terms, so a sum in float32 would lose digits of all of them."""
    generator = torch.Generator().manual_seed(positions)
    a = size * torch.randn(64, 2 * positions, 6, generator=generator)
    e = torch.randn(64, 2 * positions, 5, generator=generator)
    a[:, positions:] = a[:, :positions] * (1 + 1e-3 * torch.randn(64, positions, 6, generator=generator))
    e[:, positions:] = -e[:, :positions]
    with_all = clipped_sum([(a, e)])
    for example in range(0, 64, 7):
        assert float((with_all - clipped_sum([(a, e)], without=(0, example))).norm()) <= CLIP_NORM


@settings(max_examples=30)
@given(st.integers(1, 200), st.integers(1, 6), st.floats(-20, 20), st.integers(0, 10**6))
def test_every_kind_of_sum_is_within_its_proven_distance(examples: int, width: int, spread: float, seed: int) -> None:
    """(E33): of scaled gradients of norm C or less, of any sizes and signs, in float32 slices or in float64."""
    generator = torch.Generator().manual_seed(seed)
    sizes = torch.exp2(spread * torch.rand(examples, generator=generator))
    gradient = torch.randn(examples, width, 3, generator=generator) * sizes.view(-1, 1, 1)
    scale = (CLIP_NORM / gradient.double().flatten(1).norm(dim=1)).clamp_max(1.0).float()
    terms = gradient.double() * scale.double().view(-1, 1, 1)
    exact, slices = terms.sum(0), -(-examples // SUMMANDS_IN_FLOAT32)
    own_rounding = UNIT * float(terms.flatten(1).norm(dim=1).sum())
    allowed = slices * (SUMMANDS_IN_FLOAT32 - 1) * UNIT * min(examples, SUMMANDS_IN_FLOAT32) + own_rounding

    def distance(total: Tensor) -> float:
        return float((total - exact).norm())

    for add_ in (
        lambda total: DenseGrads([gradient]).add_clipped_sums_([total], scale),
        lambda total: _add_sums_of_few_(total, gradient, scale),
    ):  # what a GPU does
        total = torch.zeros(width, 3, dtype=torch.float64)
        add_(total)
        assert distance(total) <= allowed
    # One position each, so that what is added is the scaled gradient itself, up to the rounding of its entries.
    ids = torch.arange(width).repeat(examples, 1)
    by_rows = torch.zeros(width, 3, dtype=torch.float64)
    add_clipped_sum_(by_rows, [Rows(ids, gradient)], scale)
    assert distance(by_rows) <= own_rounding * 1.01 + 1e-12
    one_hot = torch.eye(width).expand(examples, width, width)
    by_factors = torch.zeros(width, 3, dtype=torch.float64)
    add_clipped_sum_(by_factors, [Factors(one_hot, gradient)], scale)
    assert distance(by_factors) <= own_rounding * 1.01 + 1e-12


def test_a_gpu_adds_many_examples_in_as_few_calls_as_few(monkeypatch: pytest.MonkeyPatch) -> None:
    """A compiled sum that grew with the examples took minutes to compile at 2,048."""

    def operations(examples: int) -> int:
        counted = 0

        def backend(graph: torch.fx.GraphModule, _: list[Tensor]) -> Any:
            nonlocal counted
            counted = len(list(graph.graph.nodes))
            return graph.forward

        total, gradient = torch.zeros(4, dtype=torch.float64), torch.randn(examples, 4)
        torch.compile(_add_sums_of_few_, backend=backend, fullgraph=True, dynamic=False)(
            total, gradient, torch.ones(examples)
        )
        torch.testing.assert_close(total, gradient.double().sum(0), rtol=0, atol=1e-3)
        return counted

    assert operations(2176) == operations(64)
    whole = operations(2177)  # and the rest
    monkeypatch.setattr("hush.train.clipping.norms.SCALED_ENTRIES", 2**12)
    assert operations(2177) > whole  # in parts that fit


def test_the_margin_covers_the_float32_sums_that_an_example_is_part_of() -> None:
    """(E33): with and without it, a slice of as many gradients of norm C is off by this much, and half is left."""
    both = 2 * (SUMMANDS_IN_FLOAT32 + 1) * UNIT * SUMMANDS_IN_FLOAT32
    assert both <= MARGIN / 2 / 2

"""Whole per-example gradients of many parameters at a time, against float64 one by one."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from hush.train.clipping import norms

SHAPES = [(3,), (2, 5), (1,), (700, 3), (1024,), (40, 40), (2049,)]


@pytest.fixture(autouse=True)
def few_are_small(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(norms, "JOINED_MAX_ENTRIES", 3 * 1024)  # so that both kinds are met without large tensors


def gradients_of(chosen: list[int], seed: int, *, loud: float = 1.0) -> list[Tensor]:
    generator = torch.Generator().manual_seed(seed)
    kinds = [torch.float32, torch.bfloat16]
    made = [torch.randn(3, *SHAPES[k % len(SHAPES)], generator=generator) * loud for k in chosen]
    return [gradient.to(kinds[k // len(SHAPES)]) for gradient, k in zip(made, chosen, strict=True)]


@settings(max_examples=60, deadline=None)
@given(st.lists(st.integers(0, 2 * len(SHAPES) - 1), min_size=1, max_size=14), st.integers(0, 99), st.floats(1e-3, 1e6))
def test_norms_of_many_parameters_are_off_by_no_more_than_the_spread(chosen: list[int], seed: int, loud: float) -> None:
    gradients = gradients_of(chosen, seed, loud=loud)
    square, spread = norms.DenseGrads(gradients).squared_norms()
    exact = torch.stack([gradient.double().flatten(1).square().sum(1) for gradient in gradients]).sum(0)
    assert ((square.double() - exact).abs() <= spread.double()).all()
    assert (spread <= 1e-3 * square).all()  # and the spread is small


@settings(max_examples=60, deadline=None)
@given(st.lists(st.integers(0, 2 * len(SHAPES) - 1), min_size=1, max_size=14), st.integers(0, 99))
def test_sums_of_many_parameters_are_those_of_each(chosen: list[int], seed: int) -> None:
    gradients = gradients_of(chosen, seed)
    gradients[0][1] = torch.inf  # an example that is left out
    scale = torch.tensor([0.5, 0.0, 1.0])
    totals = [torch.ones(gradient.shape[1:]) for gradient in gradients]
    norms.DenseGrads(gradients).add_clipped_sums_(totals, scale)
    for total, gradient in zip(totals, gradients, strict=True):
        exact = 1 + 0.5 * gradient[0].double() + gradient[2].double()
        torch.testing.assert_close(total.double(), exact, rtol=1e-6, atol=1e-6)


def test_a_compiled_sum_is_the_plain_one() -> None:
    gradients = gradients_of([3] * 6 + [5, 0, 1], 1)
    scale = torch.tensor([0.5, 0.0, 1.0])
    compiled = torch.compile(norms.add_several_, dynamic=False, fullgraph=True, backend="aot_eager")
    plain, other = ([torch.zeros(gradient.shape[1:]) for gradient in gradients] for _ in range(2))
    with torch.no_grad():
        norms.DenseGrads(gradients).add_clipped_sums_(plain, scale)
        norms.DenseGrads(gradients).add_clipped_sums_(other, scale, several=compiled)
    for one, two in zip(plain, other, strict=True):
        torch.testing.assert_close(one, two)

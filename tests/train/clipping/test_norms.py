"""Per-example gradients, whole or in factors: every way to their norms and sums gives the same, rounding covered."""

from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from models import SIZE, batch_of, tiny
from reference import check
from torch import Tensor, nn

from hush.train.clipping import Clipper, norms
from hush.train.language_models import causal_lm_loss, default_loss


@pytest.mark.parametrize("tile", [8, 40, 1000])
@pytest.mark.parametrize("name", ["bert", "gpt2"])
def test_examples_that_are_multiplied_together_change_nothing(
    name: str, tile: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    from hush.train.clipping import routes

    monkeypatch.setitem(norms.TILE, "cpu", tile)
    monkeypatch.setattr(routes, "BALANCE", {("cpu", 4): 1e9})  # all in factors
    model = tiny(name)
    check(model, default_loss(model), batch_of(name))


@given(size=st.integers(1, 12), left=st.integers(0, 20), right=st.integers(0, 20), tile=st.integers(1, 64))
def test_examples_are_multiplied_together_only_within_a_tile(size: int, left: int, right: int, tile: int) -> None:
    a, b = torch.randn(size, left, 3), torch.randn(size, right, 3)
    rows: list[int] = []

    def product(a: Tensor, b: Tensor) -> Tensor:
        rows.append(max(a.shape[1], b.shape[2]))
        return a @ b

    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(norms.TILE, "cpu", tile)
        patch.setattr(norms, "_matmul32", product)
        found = norms._positions_product(a, b)
    torch.testing.assert_close(found, a @ b.transpose(1, 2))
    assert max(rows) <= max(tile, left, right)


def test_every_route_gives_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    from hush.train.clipping import routes

    model, batch = tiny("gpt2"), batch_of("gpt2")
    for balance in (0.0, 1e9):  # all whole, all in factors
        monkeypatch.setattr(routes, "BALANCE", {("cpu", 4): balance})
        check(model, lambda *arguments: causal_lm_loss(*arguments), batch)


@given(terms=st.integers(1, 5000), positions=st.integers(1, 12), seed=st.integers(0, 2**31), loud=st.floats(0.1, 1e3))
def test_the_spread_covers_the_rounding_of_the_norm(terms: int, positions: int, seed: int, loud: float) -> None:
    generator = torch.Generator().manual_seed(seed)
    y, x = (torch.randn(2, positions, n, generator=generator) * loud for n in (terms, 3))
    y[:, positions // 2 :] = -y[:, : positions - positions // 2] * (1 + 1e-6)  # cancels, as far as it can
    exact = torch.einsum("bto,bti->boi", y.double(), x.double()).square().sum((1, 2))
    for capture in (norms.Factors(y, x), torch.einsum("bto,bti->boi", y, x)):
        square, spread = norms.squared_norms([capture])
        if isinstance(capture, Tensor):
            exact = capture.double().square().sum((1, 2))
        assert ((square.double() - exact).abs() <= spread.double()).all()


def test_norms_and_sums_never_take_the_short_cuts_of_float32_products(monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[str] = []
    product = norms._matmul32

    def watched(a: Tensor, b: Tensor) -> Tensor:
        seen.append(torch.get_float32_matmul_precision())
        return product(a, b)

    monkeypatch.setattr(norms, "_matmul32", watched)
    torch.set_float32_matmul_precision("medium")
    try:
        clipper = Clipper(tiny("gpt2"), causal_lm_loss, clip_norm=1.0)
        clipper.accumulate(batch_of("gpt2"), torch.ones(SIZE, dtype=torch.bool))
        assert torch.get_float32_matmul_precision() == "medium"
    finally:
        torch.set_float32_matmul_precision("highest")
    assert set(seen) == {"highest"}


def test_short_cuts_that_are_allowed_backend_by_backend_are_not_taken_either(monkeypatch: pytest.MonkeyPatch) -> None:
    cpu: Any = torch.backends.mkldnn
    seen: list[str] = []
    product = norms._matmul32

    def watched(a: Tensor, b: Tensor) -> Tensor:
        seen.append(cpu.matmul.fp32_precision)
        return product(a, b)

    monkeypatch.setattr(norms, "_matmul32", watched)
    try:
        cpu.matmul.fp32_precision = "bf16"
        clipper = Clipper(tiny("gpt2"), causal_lm_loss, clip_norm=1.0)
        clipper.accumulate(batch_of("gpt2"), torch.ones(SIZE, dtype=torch.bool))
        assert cpu.matmul.fp32_precision == "bf16"
    finally:
        cpu.matmul.fp32_precision = "none"
        torch.set_float32_matmul_precision("highest")
    assert set(seen) == {"ieee"}


class Adds(nn.Module):
    """Autograd hands the same tensor to both parameters as their gradient."""

    def __init__(self) -> None:
        super().__init__()
        self.one, self.other = nn.Parameter(torch.randn(4)), nn.Parameter(torch.randn(4))

    def forward(self, x: Tensor) -> Tensor:
        return x + self.one + self.other


def test_parameters_that_share_one_gradient_tensor_do_not_disturb_each_other() -> None:
    torch.manual_seed(0)
    left, right = nn.Linear(3, 4), nn.Linear(3, 4)
    right.bias = left.bias
    batch = {"x": torch.randn(5, 3)}
    both = nn.ModuleList([left, right])
    check(both, lambda model, batch: (model[0](batch["x"]) + model[1](batch["x"])).square().sum(1), batch)
    first, second = Adds(), Adds()
    second.one = first.one
    batch = {"x": torch.randn(5, 4)}
    check(nn.Sequential(first, second), lambda model, batch: model(batch["x"]).square().sum(1), batch)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("widths", [(3, 5), (5, 3)])
def test_positions_that_no_loss_uses_do_not_decide_how_an_example_is_scaled(
    dtype: torch.dtype, widths: tuple[int, int]
) -> None:
    torch.manual_seed(0)
    y, x = (torch.randn(2, 4, width).to(dtype) for width in widths)
    y[0, 2:] = 0
    other = x.clone()
    other[0, 2:] = 1000 * torch.randn(2, widths[1]).to(dtype)  # of another example, whose rows no loss uses
    square, spread = norms.squared_norms([norms.Factors(y, x)])
    again, spread_again = norms.squared_norms([norms.Factors(y, other)])
    assert torch.equal(square, again)
    assert torch.equal(spread, spread_again)
    other[0, 3, 0] = torch.inf  # 0 × inf: the gradient is not finite, and the example must be left out
    assert norms.squared_norms([norms.Factors(y, other)])[0].isfinite().tolist() == [False, True]

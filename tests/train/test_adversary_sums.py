"""Attacks on the clipped sums: no example adds more than the clip norm, nor anything that depends on others."""

import math
from typing import Any

import pytest
import torch
from attacks import Around, all_real, norm_of, squares, unlabelled
from models import tiny, tiny_batch
from reference import check, clipped_sum
from torch import Tensor, nn

from hush.errors import InvalidInput
from hush.train.clipping import MARGIN, Clipper
from hush.train.language_models import causal_lm_loss, default_loss

pytestmark = pytest.mark.filterwarnings("ignore:There is a performance drop")


def given_gradients(model: nn.Module, batch: Any) -> Tensor:
    """A loss whose gradient at the model's output is what the batch says."""
    return (model(batch["x"]) * batch["g"]).flatten(1).sum(1)


@pytest.mark.parametrize("loud", [1e-30, 1e-12, 1.0, 1e12, 1e17, 1e25])
@pytest.mark.parametrize("quiet", [1e-30, 1e-23, 1e-19, 1.0, 1e15])
def test_no_scale_of_activations_and_gradients_passes_the_clip_norm(loud: float, quiet: float) -> None:
    """Squares of 1e-23 vanish in float32, while its products with 1e17 do not."""
    for width, positions in ((64, 1), (8, 3)):
        model = nn.Linear(width, width, bias=False)
        batch = {"x": torch.full((1, positions, width), loud), "g": torch.full((1, positions, width), quiet)}
        for clip_norm in (1e-6, 1.0):
            clipper = Clipper(model, given_gradients, clip_norm=clip_norm)
            clipper.accumulate(batch, all_real(1))
            assert norm_of(clipper.take()) <= clip_norm


@pytest.mark.parametrize("precision", ["highest", "high", "medium"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_positions_that_cancel_do_not_pass_the_clip_norm(precision: str, dtype: torch.dtype) -> None:
    before = torch.get_float32_matmul_precision()
    torch.set_float32_matmul_precision(precision)
    try:
        for seed in range(10):
            generator = torch.Generator().manual_seed(seed)
            width, positions = 2 ** (seed % 7), 2 + 6 * (seed % 3)
            model = nn.Linear(width, width, bias=False).to(dtype)
            x = torch.randn(2, positions, width, generator=generator)
            g = torch.randn(2, positions, width, generator=generator) * 1e3
            half = positions // 2
            x[:, half:] = x[:, :half] * (1 + 2e-3 * torch.randn(2, half, 1, generator=generator))
            g[:, half:] = -g[:, :half]
            batch = {"x": x.to(dtype), "g": g.to(dtype)}
            for example in range(2):
                clipper = Clipper(model, given_gradients, clip_norm=1.0)
                clipper.accumulate(batch, torch.arange(2) == example)
                assert norm_of(clipper.take()) <= 1.0
        assert torch.get_float32_matmul_precision() == precision
    finally:
        torch.set_float32_matmul_precision(before)


@pytest.mark.parametrize("clip_norm", [1e-3, 1e-2, 1.0])
def test_what_leaves_the_range_of_float16_when_it_is_scaled_does_not_pass_the_clip_norm(clip_norm: float) -> None:
    """Below 6e-5 float16 rounds to multiples of 6e-8, by up to a half of what is there."""
    width = 256
    model = nn.Linear(width, width, bias=False).half()
    for loud in (1.0, 3.0, 10.0, 30.0, 100.0):
        signs = torch.randn(2, 2, 2, width, generator=torch.Generator().manual_seed(0)).sign().half()
        clipper = Clipper(model, given_gradients, clip_norm=clip_norm)
        clipper.accumulate({"x": signs[0], "g": signs[1] * loud}, torch.tensor([True, False]))
        assert 0.99 * clip_norm < norm_of(clipper.take()) <= clip_norm


@pytest.mark.parametrize("autocast", [None, torch.bfloat16])
def test_the_callers_autocast_does_not_reach_norms_and_sums(autocast: torch.dtype | None) -> None:
    generator = torch.Generator().manual_seed(0)
    model = nn.Linear(256, 256, bias=False)
    x, g = torch.randn(2, 4, 2, 256, generator=generator)
    x[:, 1] = x[:, 0]
    g[:, 1] = -g[:, 0] + 0.1 * torch.randn(4, 256, generator=generator)  # squares in bfloat16 would come out as 0
    for example in range(4):
        clipper = Clipper(model, given_gradients, clip_norm=1.0, autocast=autocast)
        with torch.autocast("cpu", torch.bfloat16):
            clipper.accumulate({"x": x, "g": g}, torch.arange(4) == example)
        assert norm_of(clipper.take()) <= 1.0


def test_a_clip_norm_that_float32_cannot_square_is_refused() -> None:
    with pytest.raises(InvalidInput, match="clip_norm"):
        Clipper(nn.Linear(2, 1), squares, clip_norm=1e-24)


def test_tied_uses_that_cancel_do_not_pass_the_clip_norm() -> None:
    """An embedding row pulled one way, the same row as an output pulled the other."""
    embedding, output = nn.Embedding(9, 4), nn.Linear(4, 9, bias=False)
    output.weight = embedding.weight
    model = nn.Sequential(embedding, output)
    for seed in range(20):
        generator = torch.Generator().manual_seed(seed)
        g = torch.randn(1, 3, 9, generator=generator) * 10 ** float(torch.randint(-3, 7, (), generator=generator))
        batch = {"x": torch.randint(9, (1, 3), generator=generator), "g": g}
        clipper = Clipper(model, given_gradients, clip_norm=0.3)
        clipper.accumulate(batch, all_real(1))
        assert norm_of(clipper.take()) <= 0.3


@pytest.mark.parametrize("name", ["bert", "gpt2", "gemma2", "llama", "vit"])
@pytest.mark.parametrize("poison", [math.nan, math.inf, 1e38])
def test_a_broken_example_changes_nobody_else(name: str, poison: float) -> None:
    model = tiny(name)
    batch = tiny_batch(name, 3, generator=torch.Generator().manual_seed(2))
    loss = default_loss(model)

    def poisoned(model: nn.Module, batch: Any) -> Tensor:
        return loss(model, {k: v for k, v in batch.items() if k != "factor"}) * batch["factor"]

    alone = Clipper(model, poisoned, clip_norm=0.1)
    alone.accumulate(batch | {"factor": torch.ones(3)}, torch.tensor([True, False, True]))
    wanted = alone.take()
    clipper = Clipper(model, poisoned, clip_norm=0.1)
    clipped = clipper.accumulate(batch | {"factor": torch.tensor([1.0, poison, 1.0])}, all_real(3))
    got = clipper.take()
    assert clipped.norms[[0, 2]].isfinite().all()
    gap = norm_of({key: got[key] - wanted[key] for key in got})
    if math.isfinite(poison) and clipped.norms[1].isfinite():
        assert gap <= 0.1
    else:
        assert gap <= 1e-6


class Masked(nn.Module):
    """Attention with a parameter of its own and a mask of T × T, as an argument."""

    def __init__(self) -> None:
        super().__init__()
        self.scale, self.project = nn.Parameter(torch.rand(6)), nn.Linear(6, 6)

    def forward(self, x: Tensor, mask: Tensor) -> Tensor:
        return (torch.softmax(self.project(x) @ x.transpose(1, 2) + mask, -1) @ x) * self.scale


class Positions(nn.Module):
    """Position numbers without a dimension of examples."""

    def __init__(self) -> None:
        super().__init__()
        self.words, self.places = nn.Embedding(9, 6), nn.Embedding(20, 6)

    def forward(self, x: Tensor) -> Tensor:
        return torch.tanh(self.words(x) + self.places(torch.arange(x.shape[1])))


@pytest.mark.filterwarnings("ignore:gradients are taken example by example")
def test_a_dimension_that_equals_the_batch_by_chance_is_exact() -> None:
    torch.manual_seed(0)

    def causal(part: nn.Module, x: Tensor) -> Tensor:
        return part(x, torch.triu(torch.full((x.shape[1], x.shape[1]), -9.0), 1))

    masked = Around(Masked(), causal)
    check(masked, squares, {"x": torch.randn(4, 7, 6)})
    assert check(masked, squares, {"x": torch.randn(7, 7, 6)}).routes()[0].route == "vmap fallback"
    assert check(Positions(), squares, {"x": torch.randint(9, (7, 7))}).routes()[0].route == "example by example"


def test_a_layer_that_the_first_pass_skips_is_still_learnt_later() -> None:
    torch.manual_seed(0)
    layers = nn.ModuleList([nn.Linear(4, 4) for _ in range(2)])
    calls = [0]

    def sometimes(part: Any, x: Tensor) -> Tensor:
        return part[1](torch.tanh(part[0](x))) if calls[0] else part[0](x)

    model, batch = Around(layers, sometimes), {"x": torch.randn(3, 5, 4)}
    clipper = Clipper(model, squares, clip_norm=0.05)
    clipper.accumulate(batch, all_real(3))
    clipper.take()
    calls[0] = 1
    sums, norms = clipped_sum(model, squares, batch, all_real(3), clip_norm=0.05 * (1 - MARGIN))
    clipped = clipper.accumulate(batch, all_real(3))
    assert torch.allclose(clipped.norms.double(), norms, rtol=1e-5)
    assert norm_of({name: value - sums[name] for name, value in clipper.take().items()}) < 1e-5


def test_a_head_is_judged_by_a_row_with_labels() -> None:
    """A model that bends its logits, and a first example in which nothing is learnt."""
    model: Any = tiny("llama")

    def bent(*arguments: Any, **keywords: Any) -> Any:
        output = type(model).forward(model, *arguments, **keywords)
        output.logits = torch.tanh(output.logits)
        return output

    model.forward = bent
    batch = unlabelled(tiny_batch("llama", 4, generator=torch.Generator().manual_seed(1)), 0)
    clipper = Clipper(model, causal_lm_loss, clip_norm=1.0)
    clipped = clipper.accumulate(batch, all_real(4))
    _, norms = clipped_sum(model, causal_lm_loss, batch, torch.tensor([False, True, True, True]), clip_norm=1.0)
    assert torch.allclose(clipped.norms[1:].double(), norms[1:], rtol=1e-5)
    assert clipped.norms[0] == 0


@pytest.mark.parametrize("name", ["bert", "gpt2"])
def test_a_micro_batch_in_which_nothing_is_learnt_adds_nothing(name: str) -> None:
    model = tiny(name)
    batch = unlabelled(tiny_batch(name, 1, generator=torch.Generator().manual_seed(1)), 0)
    clipper = Clipper(model, default_loss(model), clip_norm=1.0)
    clipped = clipper.accumulate(batch, all_real(1))
    assert clipped.losses == clipped.norms == 0
    assert norm_of(clipper.take()) == 0

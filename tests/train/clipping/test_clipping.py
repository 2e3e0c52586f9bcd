"""Clipped sums in one backward pass equal one-example-at-a-time autograd, for each family of models and way to run."""

import math
from typing import Any

import pytest
import torch
from models import NAMES, SIZE, batch_of, tiny
from reference import check, clipped_sum, difference
from torch import Tensor, nn
from torch.nn import functional

from hush.errors import InvalidInput
from hush.train.clipping import MARGIN, Clipper
from hush.train.language_models import causal_lm_loss, default_loss


@pytest.fixture
def same_mask_for_all(monkeypatch: pytest.MonkeyPatch) -> None:
    """Dropout that depends on the place inside an example alone, so that passes of any batch size agree."""

    def dropout(x: Tensor, p: float = 0.5, training: bool = True, inplace: bool = False) -> Tensor:
        if not training or p == 0:
            return x
        keep = torch.arange(x[0].numel()).mul(2654435761).remainder(997) >= 997 * p
        return x * keep.view(x.shape[1:]) / (1 - p)

    monkeypatch.setattr(functional, "dropout", dropout)


@pytest.mark.parametrize("lora", [False, True], ids=["full", "lora"])
@pytest.mark.parametrize("name", NAMES)
def test_sums_and_norms_equal_one_example_at_a_time(name: str, lora: bool) -> None:
    model = tiny(name, lora=lora)
    check(model, default_loss(model), batch_of(name))


@pytest.mark.filterwarnings("ignore::DeprecationWarning")  # of torch, about itself, while it traces
@pytest.mark.parametrize(
    ("name", "lora"),
    [
        ("gemma2", False),
        ("gpt2", True),
        *(pytest.param(name, lora, marks=pytest.mark.slow) for name in NAMES for lora in (False, True)),
    ],
)
def test_compiled_passes_are_exact(name: str, lora: bool) -> None:
    torch._dynamo.reset()
    model = tiny(name, lora=lora)
    check(model, default_loss(model), batch_of(name), compile="aot_eager")


@pytest.mark.parametrize("name", ["bert", "gpt2", "gemma2", "llama", "vit"])
def test_gradient_checkpointing_changes_nothing(name: str) -> None:
    model: Any = tiny(name)
    model.gradient_checkpointing_enable(gradient_checkpointing_kwargs={"use_reentrant": False})
    check(model, default_loss(model), batch_of(name))


@pytest.mark.usefixtures("same_mask_for_all")
@pytest.mark.parametrize("lora", [False, True], ids=["full", "lora"])
@pytest.mark.parametrize("name", ["bert", "gpt2", "vit"])
def test_dropout_is_part_of_each_examples_own_loss(name: str, lora: bool) -> None:
    model: Any = tiny(name, lora=lora, dropout=0.2)
    model.set_attn_implementation("eager")  # the fused kernels draw their own masks
    check(model, default_loss(model), batch_of(name))


@pytest.mark.parametrize("lora", [False, True], ids=["full", "lora"])
@pytest.mark.parametrize("name", NAMES)
def test_bf16_agrees_with_bf16_and_never_exceeds_the_clip_norm(name: str, lora: bool) -> None:
    model = tiny(name, lora=lora)
    loss, batch = default_loss(model), batch_of(name, size=1)

    def rounded(model: nn.Module, batch: Any) -> Tensor:
        with torch.autocast("cpu", torch.bfloat16):
            return loss(model, batch)

    clip_norm, real = 0.05, torch.ones(1, dtype=torch.bool)
    sums, norms = clipped_sum(model, rounded, batch, real, clip_norm=clip_norm)
    clipper = Clipper(model, loss, clip_norm=clip_norm, autocast=torch.bfloat16)
    clipped = clipper.accumulate(batch, real)
    assert torch.allclose(clipped.norms.double(), norms, rtol=0.03)
    totals = clipper.take()
    assert difference(totals, sums) < 0.05
    norm = math.sqrt(sum(float(value.double().square().sum()) for value in totals.values()))
    assert 0.9 * clip_norm < norm <= clip_norm


def test_padded_slots_and_broken_examples_add_exactly_nothing() -> None:
    model = tiny("gpt2")
    batch = batch_of("gpt2")
    clipper = Clipper(model, causal_lm_loss, clip_norm=0.1)
    first = {name: value[:2] for name, value in batch.items()}
    clipper.accumulate(first, torch.tensor([True, False]))
    one = clipper.take()
    clipper.accumulate({name: value[:1] for name, value in batch.items()}, torch.tensor([True]))
    assert difference(clipper.take(), {name: value.double() for name, value in one.items()}) < 1e-6

    def breaks(model: nn.Module, batch: Any) -> Tensor:
        is_second = (batch["input_ids"] == first["input_ids"][1]).all(1)
        return causal_lm_loss(model, batch) * torch.where(is_second, math.nan, 1.0)

    clipper = Clipper(model, breaks, clip_norm=0.1)
    clipper.accumulate(first, torch.tensor([True, True]))
    assert difference(clipper.take(), {name: value.double() for name, value in one.items()}) < 1e-5


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf])
def test_an_example_whose_loss_is_not_finite_adds_nothing_although_its_gradient_is(value: float) -> None:
    model, x = nn.Linear(3, 1), torch.randn(4, 3)
    plain = lambda model, batch: model(batch["x"]).squeeze(1)  # noqa: E731
    added = lambda model, batch: plain(model, batch) + batch["more"]  # noqa: E731
    clipper = Clipper(model, added, clip_norm=0.5)
    more = torch.tensor([0.0, value, 0.0, 0.0])
    clipped = clipper.accumulate({"x": x, "more": more}, torch.ones(4, dtype=torch.bool))
    got = clipper.take()
    clipper.accumulate({"x": x, "more": torch.zeros(4)}, torch.tensor([True, False, True, True]))
    assert difference(got, {key: own.double() for key, own in clipper.take().items()}) < 1e-6
    assert clipped.norms.isfinite().tolist() == [True, False, True, True]


@pytest.mark.filterwarnings("ignore:Full backward hook")  # of torch, about the peer's hooks
def test_agrees_with_opacus_where_opacus_is_right() -> None:
    from opacus.grad_sample import GradSampleModule

    torch.manual_seed(0)
    model = nn.Sequential(nn.Embedding(9, 5), nn.Linear(5, 8), nn.LayerNorm(8), nn.GELU(), nn.Linear(8, 3))
    ids = torch.randint(9, (6, 4))
    peer = GradSampleModule(model, loss_reduction="sum")
    peer(ids).square().sum().backward()
    samples = {name: vars(p)["grad_sample"] for name, p in model.named_parameters()}
    norms = torch.stack([value.flatten(1).norm(dim=1) for value in samples.values()]).norm(dim=0)
    peer.remove_hooks()
    clipper = Clipper(
        model, lambda model, batch: model(batch["ids"]).square().sum((1, 2)), clip_norm=float(norms.median())
    )
    clipped = clipper.accumulate({"ids": ids}, torch.ones(6, dtype=torch.bool))
    assert torch.allclose(clipped.norms, norms, rtol=1e-5)
    scale = (float(norms.median()) * (1 - MARGIN) / norms).clamp(max=1)
    wanted = {name: torch.einsum("b,b...->...", scale, value).double() for name, value in samples.items()}
    assert difference(clipper.take(), wanted) < 1e-5


def test_the_model_is_itself_again_afterwards() -> None:
    model = tiny("gemma2")
    classes = [type(module) for module in model.modules()]
    clipper = Clipper(model, causal_lm_loss, clip_norm=1.0)
    clipper.accumulate(batch_of("gemma2"), torch.ones(SIZE, dtype=torch.bool))
    with pytest.raises(InvalidInput):
        clipper.accumulate(batch_of("gemma2"), torch.ones(SIZE + 1, dtype=torch.bool))
    assert [type(module) for module in model.modules()] == classes
    assert all(p.grad is None for p in model.parameters())
    assert model.config.final_logit_softcapping is not None  # pyright: ignore[reportAttributeAccessIssue]


def test_frozen_parameters_get_no_tap_and_no_sum() -> None:
    model = tiny("gpt2", lora=True)
    clipper = Clipper(model, default_loss(model), clip_norm=1.0)
    assert all("lora" in name for name in clipper.names)
    assert all("lora" in name for site in clipper._taps.sites for name in site.parameters.values())
    assert set(clipper.take()) == set(clipper.names)


@pytest.mark.parametrize(
    ("model", "match"),
    [
        (nn.Sequential(nn.Embedding(5, 3, max_norm=1.0), nn.Flatten(), nn.Linear(6, 1)), "max_norm"),
        (
            nn.Sequential(nn.Embedding(5, 3, scale_grad_by_freq=True), nn.Flatten(), nn.Linear(6, 1)),
            "scale_grad_by_freq",
        ),
    ],
)
def test_embeddings_that_couple_examples_are_refused(model: nn.Module, match: str) -> None:
    with pytest.raises(InvalidInput, match=match):
        Clipper(model, lambda model, batch: model(batch["ids"]).sum(1), clip_norm=1.0)


def test_bad_arguments_are_refused_with_a_reason() -> None:
    model = nn.Linear(2, 1)

    def loss(model: nn.Module, batch: Any) -> Tensor:
        return model(batch["x"]).squeeze(1)

    for clip_norm in (0.0, -1.0, math.inf, math.nan):
        with pytest.raises(InvalidInput, match="clip_norm"):
            Clipper(model, loss, clip_norm=clip_norm)
    with pytest.raises(InvalidInput, match="loss scaler"):
        Clipper(model, loss, clip_norm=1.0, autocast=torch.float16)
    with pytest.raises(InvalidInput, match="no parameter"):
        Clipper(nn.ReLU(), loss, clip_norm=1.0)
    clipper = Clipper(model, lambda model, batch: model(batch["x"]).mean(), clip_norm=1.0)
    with pytest.raises(InvalidInput, match="one loss for each"):
        clipper.accumulate({"x": torch.randn(3, 2)}, torch.ones(3, dtype=torch.bool))
    flat = nn.Sequential(nn.Flatten(0, 1), nn.Linear(2, 1))
    clipper = Clipper(flat, lambda model, batch: model(batch["x"]).view(3, 2).sum(1), clip_norm=1.0)
    with pytest.raises(InvalidInput, match="any number of examples"):
        clipper.accumulate({"x": torch.randn(3, 2, 2)}, torch.ones(3, dtype=torch.bool))

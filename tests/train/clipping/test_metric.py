"""Clipping and noise in a metric: no example passes C there, and what is divided afterwards is a sum in it."""

import math
from typing import Any

import pytest
import torch
from attacks import all_real, norm_of
from hypothesis import given
from hypothesis import strategies as st
from models import NAMES, batch_of, tiny
from reference import clipped_sum, cross_entropy, difference, random_metric, small_data, small_model
from torch import Tensor, nn

from hush.errors import InvalidInput
from hush.train.clipping import MARGIN, Clipper, lm_head, sums
from hush.train.clipping.metric import MAX_FACTOR, Metric, Scale
from hush.train.distributed import Ranks
from hush.train.language_models import causal_lm_loss, default_loss, masked_lm_loss
from hush.train.noise import Noise
from hush.train.private_training import noisy_sum


@pytest.mark.parametrize("autocast", [None, torch.bfloat16], ids=["float32", "bfloat16"])
@pytest.mark.parametrize("lora", [False, True], ids=["full", "lora"])
@pytest.mark.parametrize("name", NAMES)
def test_no_example_passes_the_clip_norm_in_the_metric(name: str, lora: bool, autocast: torch.dtype | None) -> None:
    """The norm is that of what is added: factors are rounded to bfloat16 before the norm is taken, not after."""
    model = tiny(name, lora=lora)
    clipper = Clipper(
        model, default_loss(model), clip_norm=0.05, autocast=autocast, metric=random_metric(model, spread=2.0)
    )
    for seed in range(3):
        norm = clipper.accumulate(batch_of(name, size=1, seed=seed), all_real(1)).norms
        assert float(norm) > 0.05
        assert 0.9 * 0.05 < norm_of(clipper.take()) <= 0.05


@given(
    st.integers(0, 2**32),
    st.sampled_from([1, 8, 64]),
    st.sampled_from([1, 3, 17]),
    st.sampled_from([0.0, 1.0, 2.0]),
    st.sampled_from([torch.float32, torch.bfloat16]),
)
def test_factors_that_cancel_do_not_pass_the_clip_norm_in_any_metric(
    seed: int, width: int, positions: int, spread: float, dtype: torch.dtype
) -> None:
    generator = torch.Generator().manual_seed(seed)
    model = nn.Linear(width, width, bias=False).to(dtype)
    x, g = (torch.randn(1, 2 * positions, width, generator=generator) for _ in range(2))
    x[:, positions:], g[:, positions:] = x[:, :positions] * 1.002, -g[:, :positions] * 1e3
    g[:, :positions] *= 1e3

    def loss(model: nn.Module, batch: Any) -> Tensor:
        return (model(batch["x"]) * batch["g"]).flatten(1).sum(1)

    clipper = Clipper(model, loss, clip_norm=1.0, metric=random_metric(model, seed % 1000, spread))
    clipper.accumulate({"x": x.to(dtype), "g": g.to(dtype)}, all_real(1))
    assert norm_of(clipper.take()) <= 1.0


@pytest.mark.parametrize("keeps", [True, False])
@pytest.mark.parametrize(("name", "loss"), [("bert", masked_lm_loss), ("gpt2", causal_lm_loss)])
def test_a_head_in_chunks_is_exact_in_a_metric(
    name: str, loss: Any, keeps: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its factors are kept and scaled in place, or computed and scaled twice, and may have words appended."""
    monkeypatch.setitem(lm_head.CHUNK_ENTRIES, "cpu", 1500)
    monkeypatch.setattr(lm_head, "DENSE_FROM", 100.0)
    monkeypatch.setitem(lm_head.WORD_MULTIPLE, "cpu", 8)
    if not keeps:
        monkeypatch.setitem(lm_head.MAX_KEPT_ENTRIES, "cpu", 0)
    model, batch = tiny(name), batch_of(name, size=5)
    metric = random_metric(model)
    _, norms = clipped_sum(model, loss, batch, all_real(5), clip_norm=1.0, metric=metric)
    clip_norm = float(norms.median())
    wanted, _ = clipped_sum(model, loss, batch, all_real(5), clip_norm=clip_norm * (1 - MARGIN), metric=metric)
    clipper = Clipper(model, loss, clip_norm=clip_norm, metric=metric)
    clipper.accumulate(batch, all_real(5))
    assert "lm head" in {route.route for route in clipper.routes()}
    assert difference(clipper.take(), wanted) < 1e-5


def test_the_metric_of_ones_changes_nothing() -> None:
    for name in NAMES:
        model, batch = tiny(name), batch_of(name)
        totals = []
        for metric in (None, random_metric(model, spread=0.0)):
            clipper = Clipper(model, default_loss(model), clip_norm=0.1, metric=metric)
            clipper.accumulate(batch, all_real(4))
            totals.append(clipper.take(exact=True))
        assert all(torch.equal(value, totals[1][key]) for key, value in totals[0].items())


def test_padded_slots_and_broken_examples_add_exactly_nothing_in_a_metric() -> None:
    model, data = small_model(), {name: value[:4].clone() for name, value in small_data().items()}
    data["inputs"][1] = math.inf
    clipper = Clipper(model, cross_entropy, clip_norm=0.1, metric=random_metric(model))
    clipper.accumulate(data, torch.tensor([True, True, False, True]))
    got = clipper.take(exact=True)
    clipper.accumulate({name: value[[0, 3]] for name, value in data.items()}, all_real(2))
    assert difference(got, clipper.take(exact=True)) < 1e-6


@pytest.mark.parametrize("lora", [False, True], ids=["full", "lora"])
@pytest.mark.parametrize("entries", [1, 2**26], ids=["one by one", "together"])
@pytest.mark.parametrize("name", NAMES)
def test_squares_are_those_of_gradients_clipped_in_the_ordinary_norm(
    name: str, entries: int, lora: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sums, "MAX_SQUARED_ENTRIES", entries)
    model, batch = tiny(name, lora=lora), batch_of(name)
    loss, real = default_loss(model), torch.tensor([True, False, True, True])
    _, norms = clipped_sum(model, loss, batch, real, clip_norm=1.0)
    clip_norm = float(norms[real].median())
    wanted: dict[str, Tensor] = {}
    for row in real.nonzero().flatten().tolist():
        alone = {key: value[row : row + 1] for key, value in batch.items()}
        added, _ = clipped_sum(model, loss, alone, all_real(1), clip_norm=clip_norm * (1 - MARGIN))
        wanted = {key: value.square() + wanted.get(key, 0.0) for key, value in added.items()}
    clipper = Clipper(model, loss, clip_norm=clip_norm, squares=True)
    clipper.accumulate(batch, real)
    assert difference(clipper.take(exact=True), wanted) < 1e-5


def test_noise_has_the_scale_divided_by_the_metrics_in_each_coordinate() -> None:
    model = small_model()
    parameters = dict(model.named_parameters())
    metric, found = random_metric(model), []
    for used in (None, metric):
        zeros = {name: torch.zeros(p.shape, dtype=torch.float64) for name, p in parameters.items()}
        noise = Noise(insecure_seed=1)
        one = Ranks(rank=0, world=1)
        found.append(noisy_sum(zeros, parameters, ranks=one, noise=noise, scale=2.0, round=0, metric=used)[0])
    plain, divided = found
    for name, value in plain.items():
        torch.testing.assert_close(divided[name] * metric.scales[name].full(value.shape), value)
    full = torch.cat([metric.scales[name].full(p.shape).flatten() for name, p in parameters.items()])
    assert metric.inverse_norm == pytest.approx(float((1 / full.double()).norm()))


def test_a_sum_divided_by_the_scales_is_the_clipped_sum_of_the_gradients_themselves() -> None:
    model, data = small_model(), {name: value[:6] for name, value in small_data().items()}
    metric = random_metric(model)
    clipper = Clipper(model, cross_entropy, clip_norm=1e6, metric=metric)
    clipper.accumulate(data, all_real(6))
    got = clipper.take()
    metric.unscale_(got)
    assert difference(got, clipped_sum(model, cross_entropy, data, all_real(6), clip_norm=1e6)[0]) < 1e-6


@pytest.mark.parametrize("value", [0.0, -1.0, math.nan, math.inf])
def test_scales_that_are_not_finite_and_positive_are_refused(value: float) -> None:
    with pytest.raises(InvalidInput, match="not finite or not above 0"):
        Scale(torch.tensor([1.0, value]))
    with pytest.raises(InvalidInput, match="not finite or not above 0"):
        Scale(torch.ones(2), torch.tensor([value]))


@pytest.mark.parametrize("value", [2 * MAX_FACTOR, 0.5 / MAX_FACTOR])
def test_scales_with_which_a_type_could_overflow_are_refused(value: float) -> None:
    with pytest.raises(InvalidInput, match="raise the floor"):
        Metric({"weight": Scale(torch.tensor([1.0, value]))})


def test_a_metric_of_another_model_is_refused() -> None:
    model, other = small_model(), nn.Linear(6, 3)
    with pytest.raises(InvalidInput, match="of another model"):
        Clipper(model, cross_entropy, clip_norm=1.0, metric=random_metric(other))
    scales = {**random_metric(model).scales, "4.bias": Scale(torch.ones(4))}
    with pytest.raises(InvalidInput, match=r"of another model: 4\.bias"):
        Clipper(model, cross_entropy, clip_norm=1.0, metric=Metric(scales))


def test_a_metric_changes_between_sums_only_and_not_for_squares() -> None:
    model, data = small_model(), {name: value[:2] for name, value in small_data().items()}
    clipper = Clipper(model, cross_entropy, clip_norm=1.0)
    clipper.accumulate(data, all_real(2))
    with pytest.raises(InvalidInput, match="another metric"):
        clipper.use_metric(random_metric(model))
    clipper.take()
    clipper.use_metric(random_metric(model))
    with pytest.raises(InvalidInput, match="ordinary norm"):
        Clipper(model, cross_entropy, clip_norm=1.0, squares=True, metric=random_metric(model))


def test_a_metric_is_stored_and_read_back() -> None:
    metric = Metric(random_metric(small_model()).scales, random_metric(small_model(), seed=1).scales)
    again = Metric.from_state(metric.state())
    assert again.inverse_norm == metric.inverse_norm
    assert again.preconditioner is not None
    assert repr(again) == "Metric(6 parameters)"

"""The public stream: what it adds, and that it knows nothing of the private draw."""

from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from reference import cross_entropy, rows, small_data, small_model, small_plan, train

from hush.errors import InvalidInput
from hush.train.private_training import PrivateTraining
from hush.train.public.stream import PublicStream

PLAN = small_plan()
DATA = small_data()
TOUCHED = [0, 1, 2, 5, 9]


def collate(ids: np.ndarray) -> dict[str, torch.Tensor]:
    return rows(DATA, ids)


def stream(**more: Any) -> PublicStream:
    settings: dict[str, Any] = {"batch_size": 6, "weight": 0.25} | more
    return PublicStream(PLAN, collate, **settings)


def after_one_round(public: PublicStream | None) -> torch.nn.Module:
    model = small_model()
    optimizer = torch.optim.SGD(model.parameters(), lr=1.0)
    private = PrivateTraining(model, optimizer, PLAN, loss=cross_entropy, micro_batch=4, insecure_seed=0, public=public)
    train(private, DATA, until=1)
    return model


def test_an_update_gains_the_mean_public_gradient_times_the_weight() -> None:
    public = stream()
    plain, both, reference = after_one_round(None), after_one_round(public), small_model()
    cross_entropy(reference, collate(public.round(0))).mean().backward()
    for one, other, parameter in zip(plain.parameters(), both.parameters(), reference.parameters(), strict=True):
        assert parameter.grad is not None
        torch.testing.assert_close(one - other, 0.25 * parameter.grad, rtol=1e-4, atol=1e-6)


def test_the_stream_holds_exactly_the_examples_without_secrets() -> None:
    assert sorted({*stream().examples.tolist(), *TOUCHED}) == list(range(40))
    assert not {*stream().examples.tolist()} & {*TOUCHED}


@given(st.lists(st.integers(0, 39), unique=True, min_size=6))
def test_examples_with_a_secret_are_refused(examples: list[int]) -> None:
    if {*examples} & {*TOUCHED}:
        with pytest.raises(InvalidInput, match="contain a secret"):
            stream(examples=examples)
    else:
        assert stream(examples=examples).examples.tolist() == sorted(examples)


@given(st.integers(0, 10**6), st.integers(0, 5))
def test_a_draw_has_a_fixed_size_and_depends_on_seed_and_round_alone(round: int, seed: int) -> None:
    draw = stream(seed=seed).round(round)
    assert np.unique(draw).size == 6
    assert np.array_equal(draw, stream(seed=seed, weight=2.0).round(round))
    assert not np.array_equal(draw, stream(seed=seed + 1).round(round)) or not np.array_equal(
        stream(seed=seed).round(round + 1), stream(seed=seed + 1).round(round + 1)
    )


def test_dropout_of_the_public_part_does_not_know_the_private_draw() -> None:
    """Two private draws of different sizes consume different amounts of torch's random numbers."""
    found = []
    for consumed in (3, 1000):
        model = small_model(dropout=0.5)
        torch.manual_seed(0)
        torch.rand(consumed)
        before = torch.get_rng_state()
        found.append(stream().gradients(model, cross_entropy, dict(model.named_parameters()), round=3))
        assert torch.equal(torch.get_rng_state(), before)
    assert all(torch.equal(found[0][name], found[1][name]) for name in found[0])


def test_the_public_part_leaves_the_private_draw_and_dropout_alone() -> None:
    draws = []
    for public in (None, stream()):
        model = small_model(dropout=0.5)
        private = PrivateTraining(
            model, torch.optim.SGD(model.parameters(), lr=0.0), PLAN, loss=cross_entropy, insecure_seed=1, public=public
        )
        torch.manual_seed(0)
        draws.append((train(private, DATA, until=3), torch.get_rng_state()))
    assert all(np.array_equal(*pair) for pair in zip(draws[0][0], draws[1][0], strict=True))
    assert torch.equal(draws[0][1], draws[1][1])


def test_settings_without_meaning_are_refused() -> None:
    names = {"batch_size": r"public\.batch=", "weight": r"public\.weight=", "seed": "seed="}
    for wrong in ({"batch_size": 0}, {"batch_size": 36}, {"weight": 0.0}, {"weight": np.nan}, {"seed": -1}):
        with pytest.raises(InvalidInput, match=names[next(iter(wrong))]):
            stream(**wrong)

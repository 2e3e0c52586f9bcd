"""What a plan holds out bears no secret, is not trained on, and changes nothing that is proven of the rest."""

from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import hush
from hush.errors import InvalidInput
from hush.incidence import Incidence
from hush.plan import make_plan
from hush.plan.make import choose_held_out, graph_of_training, held_out_examples, make_plan_holding_out

PROMISE = {"prior": 1e-8, "ceiling": 1e-3, "batch_size": 12, "rounds": 20, "keep": 0.6}


def graph(seed: int, *, examples: int = 150, bearing: int = 60, secrets: int = 4) -> Incidence:
    """Secrets in some of the first examples; the others are free."""
    rng = np.random.default_rng(seed)
    sizes = rng.integers(1, 15, secrets)
    rows = np.concatenate([rng.choice(bearing, size, replace=False) for size in sizes])
    return Incidence.from_pairs(
        rng.permutation(examples)[rows],
        np.repeat(np.arange(secrets), sizes),
        num_examples=examples,
        num_secrets=secrets,
    )


@settings(max_examples=15, deadline=None)
@given(seed=st.integers(0, 1000), share=st.floats(0.02, 0.5))
def test_the_plan_is_that_of_the_other_examples(seed: int, share: float) -> None:
    incidence = graph(seed)
    held = choose_held_out(incidence, share)
    plan = make_plan_holding_out(incidence, held, **PROMISE)
    used_N = np.ones(incidence.num_examples, dtype=bool)
    used_N[held] = False
    rest = make_plan(incidence.select(examples=used_N), **PROMISE)
    assert plan.incidence == incidence
    assert graph_of_training(plan) == rest.incidence
    np.testing.assert_array_equal(held_out_examples(plan), held)
    assert (plan.rates[held] == 0).all()
    bearing_N = incidence.secrets_per_example > 0
    assert (plan.rates[bearing_N] <= rest.rates[bearing_N[used_N]]).all()  # so what is proven of one holds of the other
    np.testing.assert_allclose(plan.rates[used_N], rest.rates, rtol=1e-9)
    np.testing.assert_array_equal(plan.posterior, rest.posterior)
    assert plan.noise_multiplier == rest.noise_multiplier
    assert rest.weights_gap <= plan.weights_gap <= rest.weights_gap + 1e-9


@settings(max_examples=10, deadline=None)
@given(seed=st.integers(0, 1000))
def test_the_stated_gap_is_that_of_the_other_examples(seed: int) -> None:
    """What is held out, and what it would let the others weigh, is no part of the gap."""
    incidence, paper = graph(seed), {**PROMISE, "capacity": "paper", "strength": 0.3, "bound": "kl"}
    plan = make_plan_holding_out(incidence, choose_held_out(incidence, 0.2), **paper)
    best = make_plan(graph_of_training(plan), tolerance=1e-9, **paper).total_weight
    assert best <= plan.total_weight / (1 - plan.weights_gap) * (1 + 1e-9)
    assert plan.weights_gap <= 1e-4 + 1e-9


def test_it_verifies_like_any_other(tmp_path: Path) -> None:
    incidence = graph(0)
    make_plan_holding_out(incidence, choose_held_out(incidence, 0.3), **PROMISE).save(tmp_path / "plan")
    assert hush.verify(tmp_path / "plan", incidence=incidence).passed
    again = hush.Plan.load(tmp_path / "plan")
    np.testing.assert_array_equal(held_out_examples(again), choose_held_out(incidence, 0.3))


@given(seed=st.integers(0, 1000), share=st.none() | st.floats(0.05, 0.5), examples=st.integers(100, 3000))
def test_only_examples_without_a_secret_are_chosen_and_the_same_every_time(
    seed: int, share: float | None, examples: int
) -> None:
    incidence = graph(seed, examples=examples)
    held, free = choose_held_out(incidence, share), int((incidence.secrets_per_example == 0).sum())
    assert (incidence.secrets_per_example[held] == 0).all()
    assert len(np.unique(held)) == len(held) <= 1000
    np.testing.assert_array_equal(held, choose_held_out(incidence, share))
    expected = int(free * (0.05 if share is None else share))
    assert len(held) == (min(expected, 1000) if share is not None or expected >= 20 else 0)


def test_without_any_held_out_it_is_make_plan(tmp_path: Path) -> None:
    incidence = graph(3)
    found, plain = make_plan_holding_out(incidence, [], **PROMISE), make_plan(incidence, **PROMISE)
    np.testing.assert_array_equal(found.weights, plain.weights)
    assert not held_out_examples(plain).size


def test_examples_with_a_secret_are_refused() -> None:
    incidence = graph(1)
    bearing = np.flatnonzero(incidence.secrets_per_example)[:2]
    with pytest.raises(InvalidInput, match=rf"2 of the examples to hold out .*, first example {bearing[0]};"):
        make_plan_holding_out(incidence, bearing, **PROMISE)


def test_where_every_example_holds_a_secret_nothing_can_be_held_out() -> None:
    full = Incidence.from_pairs(np.arange(30), np.zeros(30, dtype=int), num_examples=30, num_secrets=1)
    assert not choose_held_out(full).size
    with pytest.raises(InvalidInput, match=r"only 0 of 30 examples contain no secret.*no score could be shown"):
        choose_held_out(full, 0.1)


@pytest.mark.parametrize("share", [-0.1, 0.6, float("nan")])
def test_shares_out_of_range_are_refused(share: float) -> None:
    with pytest.raises(InvalidInput, match=r"hold_out=.*up to 0\.5"):
        choose_held_out(graph(0), share)

"""Numbers that hush chooses: from graph and promises alone, proven like any others, and good for the signal."""

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from plan_instances import Instance, graph, instances, some_slots

import hush
from hush.accounting.signal import gaussian_shift
from hush.errors import InvalidInput
from hush.plan.auto import FREE_DRAWS, MAX_PASSES, MAX_ROUNDS, MIN_ROUNDS, SHARES, propose
from hush.plan.make import make_plan_holding_out
from hush.plan.plan import kept_weight
from hush.plan.signal import plan_budget

AUTO: Any = {"batch_size": "auto", "rounds": "auto", "keep": "auto"}
PROMISE: Any = {"prior": 1e-8, "ceiling": 1e-3}


def skewed(seed: int = 0) -> hush.Incidence:
    """A few secrets in many examples and many in a few."""
    return graph(np.random.default_rng(seed), 300, [60, 40, 30, 12, 8, 5, 3, 2, 1, 1])


@settings(max_examples=8, deadline=None)
@given(instances())
def test_auto_never_weakens_a_promise(instance: Instance) -> None:
    """The plan is the one that the chosen numbers give when they are stated: the same proof, the same posteriors."""
    promises = {name: value for name, value in instance.promises.items() if name != "rounds"}
    plan = hush.make_plan(instance.incidence, **promises, batch_size="auto", rounds="auto", keep=0.8)
    stated = hush.make_plan(instance.incidence, **promises, batch_size=plan.batch_size, rounds=plan.rounds, keep=0.8)
    assert plan.noise_multiplier == stated.noise_multiplier
    assert np.array_equal(plan.weights, stated.weights)
    assert np.array_equal(plan.posterior, stated.posterior)
    assert (plan.posterior <= plan.ceiling).all()


def test_a_plan_of_chosen_numbers_verifies(tmp_path: Any) -> None:
    plan = hush.make_plan(skewed(), **PROMISE, **AUTO)
    plan.save(tmp_path / "plan")
    assert hush.verify(tmp_path / "plan").passed
    again = hush.make_plan(skewed(), **PROMISE, **AUTO)
    assert (again.batch_size, again.rounds, again.noise_multiplier) == (
        plan.batch_size,
        plan.rounds,
        plan.noise_multiplier,
    )


def test_the_share_kept_is_the_largest_with_nearly_the_most_signal() -> None:
    plan = hush.make_plan(skewed(), **PROMISE, **AUTO)
    signals = {
        share: plan_budget(hush.make_plan(skewed(), **PROMISE, batch_size="auto", rounds="auto", keep=share)).signal
        for share in SHARES
    }
    enough = [share for share in SHARES if signals[share] >= 0.9 * max(signals.values())]
    assert kept_weight(plan) == pytest.approx(enough[0], abs=0.02)
    assert max(enough) < 1  # this graph gains from keeping less
    assert plan_budget(plan).signal >= 0.9 * max(signals.values()) * 0.98


def test_where_all_secrets_are_alike_nothing_is_given_up() -> None:
    alike = hush.Incidence.from_pairs(range(200), np.repeat(np.arange(20), 10), num_examples=400, num_secrets=20)
    plan = hush.make_plan(alike, **PROMISE, **AUTO)
    assert kept_weight(plan) == 1.0


@settings(max_examples=25, deadline=None)
@given(st.integers(20, 3000), st.integers(1, 20), st.integers(1, 60))
def test_the_batch_is_that_of_the_elbow_or_what_the_work_allows(examples: int, size: int, secrets: int) -> None:
    rng = np.random.default_rng(examples)
    incidence = graph(rng, examples, [min(size, examples)] * secrets)
    shift_S = gaussian_shift(np.full((secrets, 1), 1e-8), np.full((secrets, 1), 1e-3))
    (proposal,) = propose(incidence, shift_S, batch_size="auto", rounds="auto", keep=None)
    assert MIN_ROUNDS <= proposal.rounds <= MAX_ROUNDS
    work = max(MAX_PASSES * examples, FREE_DRAWS)
    reached = proposal.budget.signal / proposal.budget.limit
    assert 1 <= proposal.batch_size <= examples
    assert proposal.batch_size <= 1.2 * max(proposal.budget.elbow, 1.0) + 1
    if reached < 0.93:  # not at the elbow: then the work, or the data, were the limit
        assert proposal.batch_size * proposal.rounds >= 0.8 * work or proposal.batch_size >= 0.9 * examples


def test_stated_numbers_stay() -> None:
    stated = hush.make_plan(skewed(), **PROMISE, batch_size=12, rounds="auto", keep=0.9)
    assert stated.batch_size == 12
    assert hush.make_plan(skewed(), **PROMISE, batch_size="auto", rounds=77, keep=0.9).rounds == 77
    both = hush.make_plan(skewed(), **PROMISE, batch_size=12, rounds=77, keep="auto")
    assert (both.batch_size, both.rounds) == (12, 77)
    assert 0.49 <= kept_weight(both) <= 1
    noisy = hush.make_plan(skewed(), **PROMISE, batch_size="auto", rounds=50, keep="auto", noise_multiplier=30.0)
    assert noisy.noise_multiplier == 30.0
    assert kept_weight(hush.make_plan(skewed(), **PROMISE, **AUTO, capacity="none")) == 1.0


def test_held_out_examples_and_slots_are_respected() -> None:
    incidence = skewed()
    free = np.flatnonzero(incidence.secrets_per_example == 0)[:15]
    plan = make_plan_holding_out(incidence, free, **PROMISE, **AUTO)
    assert not plan.weights[free].any()
    slots = some_slots(np.random.default_rng(1), incidence)
    scoped = make_plan_holding_out(incidence, free, prior=1e-4, ceiling=0.1, slots=slots, **AUTO)
    bearing = incidence.secrets_per_example > 0
    assert scoped.batch_size <= bearing.sum()
    assert not scoped.weights[~bearing].any()


@pytest.mark.parametrize("secrets", [0, 2])
def test_a_graph_without_pairs_gets_numbers_too(secrets: int) -> None:
    empty = hush.Incidence.from_pairs([], [], num_examples=50, num_secrets=secrets)
    plan = hush.make_plan(empty, **PROMISE, **AUTO)
    assert plan.noise_multiplier == 0
    assert MIN_ROUNDS <= plan.rounds <= MAX_ROUNDS


@pytest.mark.parametrize(
    ("changed", "setting"),
    [({"batch_size": "many"}, "batch_size"), ({"keep": "most"}, "keep"), ({"batch_size": 301.0}, "batch_size")],
)
def test_other_words_and_impossible_numbers_are_refused(changed: dict[str, Any], setting: str) -> None:
    with pytest.raises(InvalidInput) as refused:
        hush.make_plan(skewed(), **PROMISE, **{**AUTO, **changed})
    assert setting in str(refused.value)

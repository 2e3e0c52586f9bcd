"""Laws of planning: whatever is asked for, what comes out keeps every promise at its very rates and noise."""

import inspect
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from plan_instances import Instance, graph, instances, office

import hush
from hush.accounting.sampling_error import planning_ceiling
from hush.keys import DataKey
from hush.plan import noise_without_forcing
from hush.weights import accounts, choose, solve
from hush.weights.choose import make_chooser
from hush.weights.linear_program import Candidate, Task

FEW = settings(max_examples=8)


def batch_of(instance: Instance, share: float) -> float:
    return max(0.5, share * instance.incidence.num_examples)


def assert_sound(plan: hush.Plan, instance: Instance) -> None:
    """Recomputed one secret at a time, as an outsider would."""
    assert (plan.posterior <= plan.ceiling).all()
    assert plan.rates.sum() == pytest.approx(plan.batch_size, rel=1e-9)
    assert plan.rates.min() >= 0
    assert plan.rates.max() <= 1
    assert plan.weights.max() <= 1
    assert np.allclose(plan.rates, plan.batch_size * plan.weights / plan.weights.sum(), rtol=1e-12)
    for secret in range(instance.incidence.num_secrets):
        own = plan.rates[instance.incidence.examples_of(secret)]
        settings_of: Any = {"noise_multiplier": plan.noise_multiplier, "rounds": plan.rounds, "bound": plan.bound}
        found = np.asarray(hush.posterior(own, prior=plan.prior[secret], accuracy=1e-4, **settings_of))
        assert (found <= plan.ceiling[secret]).all()
        assert (found <= plan.posterior[secret] * 1.005).all()


@FEW
@given(instances(), st.sampled_from(["blowup", "renyi", "kl"]), st.floats(0.02, 1.0))
def test_keeping_everything_keeps_every_promise(instance: Instance, bound: Any, share: float) -> None:
    plan = hush.make_plan(
        instance.incidence, **instance.promises, batch_size=batch_of(instance, share), bound=bound, capacity="none"
    )
    assert (plan.weights == 1).all()
    assert_sound(plan, instance)


@FEW
@given(instances(), st.floats(0.02, 0.3), st.floats(0.2, 1.0))
def test_the_share_to_keep_is_kept_and_every_promise_too(instance: Instance, share: float, keep: float) -> None:
    batch = batch_of(instance, share)
    plan = hush.make_plan(instance.incidence, **instance.promises, batch_size=batch, keep=keep)
    everything = hush.make_plan(instance.incidence, **instance.promises, batch_size=batch, capacity="none")
    assert_sound(plan, instance)
    assert plan.noise_multiplier <= everything.noise_multiplier
    has_secret = instance.has_secret
    assert (plan.weights[~has_secret] == 1).all()
    if has_secret.any():
        assert plan.weights[has_secret].mean() >= keep - 1e-9


@FEW
@given(instances(), st.floats(0.02, 0.5), st.floats(0.3, 1.5))
def test_the_noise_asked_for_is_the_noise_proven(instance: Instance, share: float, factor: float) -> None:
    batch = batch_of(instance, share)
    everything = hush.make_plan(instance.incidence, **instance.promises, batch_size=batch, capacity="none")
    asked = everything.noise_multiplier * factor
    try:
        plan = hush.make_plan(instance.incidence, **instance.promises, batch_size=batch, noise_multiplier=asked)
    except hush.InfeasiblePlan:
        assert factor < 1
        return
    assert plan.noise_multiplier == asked
    assert_sound(plan, instance)


@FEW
@given(instances(), st.floats(0.02, 0.2))
def test_capacities_beyond_all_need_keep_everything(instance: Instance, share: float) -> None:
    arguments = {**instance.promises, "batch_size": batch_of(instance, share)}
    paper = hush.make_plan(instance.incidence, **arguments, capacity="paper", strength=1e9)
    none = hush.make_plan(instance.incidence, **arguments, capacity="none")
    assert np.array_equal(paper.weights, none.weights)
    assert paper.noise_multiplier == none.noise_multiplier


def test_counts_are_reduced_until_the_noise_asked_for_is_proven(monkeypatch: pytest.MonkeyPatch) -> None:
    honest, instance = accounts.capacity, office()
    arguments = {**instance.promises, "batch_size": 12, "noise_multiplier": 2.0}
    exact = hush.make_plan(instance.incidence, **arguments)
    monkeypatch.setattr(accounts, "capacity", lambda *given, **more: 1.05 * honest(*given, **more))
    plan = hush.make_plan(instance.incidence, **arguments)
    assert plan.noise_multiplier == 2.0
    assert_sound(plan, instance)
    assert plan.total_weight >= 0.97 * exact.total_weight


def test_more_noise_than_needed_leads_to_smaller_posteriors() -> None:
    instance = office()
    arguments: Any = {**instance.promises, "batch_size": 12, "capacity": "none"}
    needed = hush.make_plan(instance.incidence, **arguments)
    more = hush.make_plan(instance.incidence, **arguments, noise_multiplier=1.5 * needed.noise_multiplier)
    assert_sound(more, instance)
    drawn = instance.incidence.examples_per_secret > 5
    assert (more.posterior[drawn, 0] < 0.8 * needed.posterior[drawn, 0]).all()
    assert needed.binding.size
    assert more.binding.size == 0
    assert more.certificate.curve  # shown for the secrets that come closest


def test_only_a_keyed_fingerprint_ties_a_plan_to_its_data() -> None:
    instance = office()
    arguments: Any = {**instance.promises, "batch_size": 12, "capacity": "none"}
    fingerprint = DataKey(bytes(32)).fingerprint_rows(map(str, range(100)))
    assert hush.make_plan(instance.incidence, **arguments, data_fingerprint=fingerprint).data_fingerprint == fingerprint
    with pytest.raises(hush.InvalidInput, match="a plain hash of private data would let anyone test guesses"):
        hush.make_plan(instance.incidence, **arguments, data_fingerprint="0" * 64)


@pytest.mark.parametrize("capacity", ["accounted", "none"])
def test_without_secrets_nothing_is_given_up(capacity: Any) -> None:
    empty = hush.Incidence.from_pairs([], [], num_examples=5, num_secrets=0)
    plan = hush.make_plan(empty, prior=1e-6, ceiling=1e-3, batch_size=2, rounds=10, capacity=capacity)
    assert (plan.noise_multiplier, plan.kept_fraction, plan.binding.size) == (0.0, 1.0, 0)
    assert "nothing is promised" in plan.certificate.to_markdown()


def test_a_batch_of_every_example_leaves_no_choice() -> None:
    instance = office()
    plan = hush.make_plan(instance.incidence, **instance.promises, batch_size=100, keep=0.2)
    assert (plan.rates == 1).all()


def test_many_distinct_priors_are_planned_for_in_reasonable_time(monkeypatch: pytest.MonkeyPatch) -> None:
    instance = office()
    monkeypatch.setattr(accounts, "MAX_DISTINCT_PRIORS", 3)
    prior = np.geomspace(1e-9, 1e-7, 8)
    plan = hush.make_plan(instance.incidence, prior=prior, ceiling=1e-2, batch_size=12, rounds=50)
    assert np.array_equal(plan.prior[:, 0], prior)
    assert_sound(plan, instance)


def test_a_plan_names_the_secret_that_alone_forces_its_noise() -> None:
    incidence = hush.Incidence.from_pairs([0, 1, 2, 3, 4], [0, 0, 0, 0, 1], num_examples=20, num_secrets=2)
    arguments: Any = {"prior": 1e-6, "ceiling": 1e-3, "batch_size": 2, "rounds": 50, "capacity": "none"}
    plan = hush.make_plan(incidence, **arguments, secret_ids=["big", "small"])
    forcing = noise_without_forcing(plan)
    assert forcing is not None
    target = float(planning_ceiling(np.array(1e-6), np.array(1e-3)))
    alone = hush.calibrate(incidence.select(secrets=[1]), prior=1e-6, ceiling=target, rates=0.1, rounds=50)
    assert forcing == ("big", alone.noise_multiplier)
    together = hush.make_plan(incidence.select(secrets=[0]), **arguments)
    assert plan.noise_multiplier == pytest.approx(together.noise_multiplier, rel=2e-3)


def test_the_accountant_is_not_asked_about_more_draws_than_a_secret_has_examples() -> None:
    incidence = hush.Incidence.from_pairs([0, 0, 1, 2], [0, 1, 1, 1], num_examples=4, num_secrets=2)
    chooser = make_chooser(incidence, 1e-6, [1e-3, 0.5], 2, 10, "blowup", 1e-4)
    assert 3 < chooser.counts(1e3).max() <= 3 + 1 + 1e-9  # hundreds would take long to account for, and bind nobody


def test_the_search_for_the_noise_ends_early_where_giving_up_data_saves_none() -> None:
    # Every example has a secret of its own, so rates are all alike whatever is kept: the secant only creeps there.
    incidence = hush.Incidence.from_pairs(range(4), range(4), num_examples=4, num_secrets=4)
    chooser = make_chooser(incidence, 1e-9, 1e-3, 0.01, 10, "blowup", 1e-4)
    tried: list[int] = []
    found = chooser.least_noise_keeping(1e-3, progress=lambda done, _: tried.append(done))
    assert found.noise_multiplier == chooser.all_examples.noise_multiplier
    assert len(tried) < choose.MAX_NOISE_TRIALS


@pytest.mark.parametrize(
    ("settings", "route"),
    [
        ({}, ["make_plan", "least_noise_keeping", "solve_program"]),
        ({"noise_multiplier": 2.5}, ["make_plan", "proven_at", "flattest_weights", "solve_program"]),
        ({"capacity": "paper", "strength": 150.0}, ["make_plan", "paper", "solve_program"]),
    ],
)
def test_the_solver_is_at_most_four_calls_away(
    monkeypatch: pytest.MonkeyPatch, settings: dict[str, Any], route: list[str]
) -> None:
    routes: list[list[str]] = []

    def watched(solver: Any) -> Any:
        def solve(task: Task) -> Candidate:
            names = [frame.function for frame in inspect.stack()[1:]]
            routes.append(names[: names.index("make_plan") + 1][::-1])
            return solver(task)

        return solve

    for name, solver in solve.SOLVERS.items():
        monkeypatch.setitem(solve.SOLVERS, name, watched(solver))
    overlapping = graph(np.random.default_rng(0), 60, [20] * 6)  # presolve alone does not solve it
    hush.make_plan(overlapping, prior=1e-6, ceiling=1e-2, batch_size=5, rounds=50, **settings)
    assert routes
    assert all(taken == route for taken in routes)

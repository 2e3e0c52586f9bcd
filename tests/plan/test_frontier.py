"""Laws of the frontier: noise buys data, and capacities shaped by the accountant buy most."""

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from plan_instances import Instance, graph, office

import hush
from hush.weights.choose import Capacity

BATCH: Any = {"batch_size": 8}


@pytest.fixture(scope="module")
def rows() -> dict[str, hush.Frontier]:
    instance = office()
    kinds: tuple[Capacity, ...] = ("accounted", "paper", "none")
    return {kind: hush.frontier(instance.incidence, **instance.promises, **BATCH, capacity=kind) for kind in kinds}


def test_more_noise_never_keeps_less(rows: dict[str, hush.Frontier]) -> None:
    frontier = rows["accounted"]
    noise = np.array([row.noise_multiplier for row in frontier.rows])
    assert len(noise) > 4
    assert (np.diff(noise) < 0).all()
    assert (np.diff([row.kept_weight for row in frontier.rows]) <= 2e-4).all()
    assert (np.diff([row.total_weight for row in frontier.rows]) <= 2e-4 * 100).all()


def test_a_sweep_begins_with_all_data(rows: dict[str, hush.Frontier]) -> None:
    for frontier in rows.values():
        first = frontier.rows[0]
        assert (first.kept_fraction, first.kept_weight, first.total_weight) == (1.0, 1.0, 100.0)
        assert first.effective_size == 100.0
        assert first.noise_per_gradient == first.noise_multiplier / 8
        assert frontier.records()[0]["setting"] is None
    assert len(rows["none"].rows) == 1


def test_the_default_is_the_least_noise_that_keeps_nine_tenths(rows: dict[str, hush.Frontier]) -> None:
    frontier = rows["accounted"]
    enough = [row.noise_multiplier for row in frontier.rows if row.kept_weight >= 0.9]
    assert frontier.best.noise_multiplier == min(enough)


def test_rows_can_be_planned_for(rows: dict[str, hush.Frontier]) -> None:
    instance, row = office(), rows["accounted"].rows[3]
    plan = hush.make_plan(instance.incidence, **instance.promises, **BATCH, noise_multiplier=row.setting)
    assert plan.total_weight == pytest.approx(row.total_weight, rel=2e-3)
    assert plan.effective_size == pytest.approx(row.effective_size, rel=1e-2)


def test_settings_may_be_given_in_any_order_and_large_ones_keep_everything() -> None:
    instance = office()
    frontier = hush.frontier(instance.incidence, **instance.promises, **BATCH, settings=[2.0, 50.0, 2.5])
    assert [row.setting for row in frontier.rows] == [50.0, 2.5, 2.0]
    assert frontier.rows[0].kept_weight == 1.0
    assert all(row.noise_multiplier <= row.setting * 1.01 for row in frontier.rows)


@pytest.mark.parametrize("bad", [[], [0.0], [-1.0], [float("nan")], [float("inf")]])
def test_settings_must_be_finite_and_above_zero(bad: list[float]) -> None:
    instance = office()
    with pytest.raises(hush.InvalidInput, match="finite number above 0"):
        hush.frontier(instance.incidence, **instance.promises, **BATCH, settings=bad)
    with pytest.raises(hush.InvalidInput, match="no settings to sweep"):
        hush.frontier(instance.incidence, **instance.promises, **BATCH, capacity="none", settings=[1.0])


@settings(max_examples=5)
@given(st.integers(0, 2**32 - 1), st.floats(10.0, 100.0))
def test_accounted_capacities_need_no_more_noise_than_the_papers_for_the_same_data(seed: int, strength: float) -> None:
    rng = np.random.default_rng(seed)
    incidence = graph(rng, 200, rng.integers(5, 60, 6).tolist())
    ceiling = rng.choice([1e-4, 1e-3, 1e-1], 6)
    instance = Instance(incidence=incidence, prior=1e-8, ceiling=ceiling, rounds=50)
    arguments: Any = {**instance.promises, "batch_size": 4}
    paper = hush.make_plan(incidence, **arguments, capacity="paper", strength=strength)
    kept = float(paper.weights[instance.has_secret].mean())
    accounted = hush.make_plan(incidence, **arguments, keep=kept)
    assert accounted.noise_multiplier <= paper.noise_multiplier * 1.015


def test_without_need_for_noise_there_is_one_row() -> None:
    empty = graph(np.random.default_rng(0), 10, [0])
    frontier = hush.frontier(empty, prior=1e-6, ceiling=1e-3, batch_size=2, rounds=10)
    assert [row.noise_multiplier for row in frontier.rows] == [0.0]
    assert frontier.best.kept_weight == 1.0

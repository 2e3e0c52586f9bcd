"""The sweep without an accountant: feasible weights, less and less of them, and near what the accountant chooses."""

from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import hush
from hush.accounting.signal import gaussian_shift
from hush.weights.shift_capacity import swept_weights, weights_keeping


def graph(seed: int, *, examples: int = 120, secrets: int = 12) -> hush.Incidence:
    rng = np.random.default_rng(seed)
    sizes = rng.integers(0, 30, secrets)
    chosen = np.concatenate([rng.choice(examples, size, replace=False) for size in sizes])
    return hush.Incidence.from_pairs(
        chosen, np.repeat(np.arange(secrets), sizes), num_examples=examples, num_secrets=secrets
    )


def largest_load(incidence: hush.Incidence, weight_N: np.ndarray, shift_S: np.ndarray) -> float:
    """The largest weight of a secret's examples by its shift."""
    loads = [weight_N[incidence.examples_of(secret)].sum() for secret in range(incidence.num_secrets)]
    return float((np.array(loads) / shift_S).max())


@settings(max_examples=20, deadline=None)
@given(st.integers(0, 10_000), st.floats(0.1, 0.99))
def test_a_smaller_share_has_smaller_loads_and_its_mixture_keeps_exactly_that_share(seed: int, share: float) -> None:
    incidence = graph(seed)
    shift_S = np.random.default_rng(seed).uniform(1.0, 5.0, incidence.num_secrets)
    swept = swept_weights(incidence, shift_S, least_share=share)
    loads = [largest_load(incidence, kept.weight_N, shift_S) for kept in swept]
    assert all(later <= earlier * (1 + 1e-9) for earlier, later in pairwise(loads))
    bearing = incidence.secrets_per_example > 0
    kept = weights_keeping(swept, share)
    assert kept.weight_N.min() >= 0
    assert kept.weight_N.max() <= 1
    assert (kept.weight_N[~bearing] > 0.999).all()
    assert kept.share == pytest.approx(kept.weight_N[bearing].mean() if bearing.any() else 1.0)
    if swept[-1].share < share:
        assert kept.share == pytest.approx(share)
        assert min(loads) <= largest_load(incidence, kept.weight_N, shift_S) <= max(loads)


def test_the_forecast_of_a_share_is_near_the_certified_plan_that_keeps_it() -> None:
    incidence = graph(3)
    shift_S = gaussian_shift(np.full((12, 1), 1e-8), np.full((12, 1), 1e-3))
    forecast = weights_keeping(swept_weights(incidence, shift_S, least_share=0.6), 0.6)
    budget = forecast.budget(incidence, shift_S=shift_S, batch_size=30, rounds=200)
    plan = hush.make_plan(incidence, prior=1e-8, ceiling=1e-3, batch_size=30, rounds=200, keep=0.6)
    assert budget.noise_multiplier == pytest.approx(plan.noise_multiplier, rel=0.05)


@pytest.mark.parametrize("shift", [np.inf, 0.0])
def test_secrets_without_a_limit_leave_all_weights(shift: float) -> None:
    incidence = graph(1)
    swept = swept_weights(incidence, np.full(incidence.num_secrets, shift), least_share=0.5)
    assert [kept.share for kept in swept] == [1.0]

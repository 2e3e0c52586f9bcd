"""How often a secret may be drawn, for one promise and for many at once."""

import math
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import hush

few = settings(max_examples=15, deadline=None)


@pytest.mark.parametrize("bound", ["blowup", "renyi", "kl"])
@few
@given(
    sigma=st.floats(-0.5, 2.0).map(lambda e: 10.0**e),
    rounds=st.integers(1, 3000),
    exponent=st.floats(-12.0, -1.0),
    way=st.floats(0.1, 0.9),
    seed=st.integers(0, 100),
)
def test_rates_within_the_capacity_keep_the_promise_and_one_percent_more_does_not(
    bound: Any, sigma: float, rounds: int, exponent: float, way: float, seed: int
) -> None:
    prior = 10.0**exponent
    ceiling = prior ** (1 - way) * 0.9**way
    found = hush.capacity(prior, ceiling, noise_multiplier=sigma, rounds=rounds, bound=bound)
    assert found.shape == (1,)
    s = float(found[0])
    assert 0 < s <= 1e6
    # A dominated set of rates: exponents -log(1 - rate) that add up to s.
    share = np.random.default_rng(seed).dirichlet(np.ones(30)) * s * (1 - 1e-12)
    ask: dict[str, Any] = {"noise_multiplier": sigma, "rounds": rounds, "prior": prior, "bound": bound}
    assert hush.posterior(-np.expm1(-share), **ask) <= ceiling * (1 + 3e-3)
    if s < 1e6:  # many small rates make up almost the same Poisson law
        more = np.full(2000, -np.expm1(-1.01 * s / 2000 * (1 + 1e-3)))
        if more[0] < 0.01:
            assert hush.posterior(more, **ask) > ceiling * (1 - 3e-3)


def test_capacity_has_one_entry_per_secret_and_the_smallest_point_counts() -> None:
    ask: dict[str, Any] = {"noise_multiplier": 2.0, "rounds": 500}
    several = hush.capacity([[1e-10, 1e-3], [1e-10, 1e-3]], [[1e-3, 0.01], [1e-3, 0.5]], **ask)
    single = [
        float(hush.capacity(p, r, **ask)[0]) for p, r in ((1e-10, 1e-3), (1e-3, 0.01), (1e-10, 1e-3), (1e-3, 0.5))
    ]
    assert several.shape == (2,)
    np.testing.assert_allclose(several, [min(single[:2]), min(single[2:])], rtol=5e-3)


def test_many_ceilings_at_once_are_safe_and_nearly_what_each_gives_alone() -> None:
    ceilings = np.geomspace(1e-9, 0.5, 40)
    ask: dict[str, Any] = {"noise_multiplier": 3.0, "rounds": 300}
    together = hush.capacity(1e-10, ceilings, **ask)
    alone = np.array([float(hush.capacity(1e-10, float(r), **ask)[0]) for r in ceilings])
    assert np.all(together <= alone * (1 + 2e-3))
    # A shared table is coarser: about one percent where capacities are within a factor of ten of one another.
    assert np.all(together >= alone * 0.9)
    assert np.all(np.diff(together) >= 0)


@pytest.mark.parametrize(("bound", "sigma"), [("blowup", 1.0), ("blowup", 5.0), ("renyi", 1.0), ("kl", 5.0)])
def test_many_promises_at_once_are_safe_and_nearly_what_each_gives_alone(bound: Any, sigma: float) -> None:
    rng = np.random.default_rng(round(sigma))
    prior = 10.0 ** rng.uniform(-10, -3, 40)
    ceiling = prior ** (1 - (way := rng.uniform(0.1, 0.9, 40))) * 0.9**way
    ceiling[:5], ceiling[5] = prior[:5], prior[5] * (1 + 1e-4)  # nothing is left to these, and little to that
    ask: dict[str, Any] = {"noise_multiplier": sigma, "rounds": 300, "bound": bound}
    together = hush.capacity(prior, ceiling, **ask)
    assert np.all((together > 0) == (prior < ceiling))
    for i in (11, 17, 23, 39):
        alone = float(hush.capacity(prior[i], ceiling[i], **ask)[0])
        assert 0.95 * alone <= together[i] <= alone * (1 + 2e-3)
        rate = -np.expm1(-together[i] / 500 * (1 - 1e-12))
        assert hush.posterior([rate] * 500, prior=float(prior[i]), **ask) <= ceiling[i] * (1 + 3e-3)


def test_no_capacity_is_left_where_the_prior_is_the_ceiling() -> None:
    assert hush.capacity(1e-3, 1e-3, noise_multiplier=2.0, rounds=100).tolist() == [0.0]


def test_a_capacity_above_what_is_asked_for_is_not_looked_for() -> None:
    ask: dict[str, Any] = {"noise_multiplier": 50.0, "rounds": 100}
    ceilings = np.geomspace(1.1e-6, 0.9, 20)
    free, limited = hush.capacity(1e-6, ceilings, **ask), hush.capacity(1e-6, ceilings, **ask, most=7.0)
    np.testing.assert_allclose(limited, np.minimum(free, 7.0), rtol=0.05)
    assert limited.max() == pytest.approx(7.0)


def test_without_noise_the_capacity_is_how_often_the_secret_may_be_seen() -> None:
    # 1 - (1 - p) exp(-T s) = r
    found = float(hush.capacity(1e-6, 0.1, noise_multiplier=0.0, rounds=50)[0])
    exact = (math.log1p(-1e-6) - math.log1p(-0.1)) / 50
    assert exact * (1 - 3e-3) <= found <= exact

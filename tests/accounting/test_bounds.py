"""From a divergence to a posterior and back, against 400-digit arithmetic."""

import math
from types import ModuleType

import mpmath
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hush.accounting.divergences import kl_posterior, kl_target, renyi_posterior

few = settings(max_examples=60, deadline=None)
priors = st.one_of(
    st.floats(-300.0, math.log10(0.5)).map(lambda e: 10.0**e),
    st.floats(0.5, 0.999),
)
# How far the ceiling is along the way from the prior to 1 - 1e-12: in the logarithm, or by a tiny rise, or at the end.
ways = st.one_of(st.floats(0.0, 1.0), st.floats(-12, -1).map(lambda e: 10.0**e), st.just(1.0))
orders = st.one_of(st.floats(1.01, 20.0), st.floats(1.3, 3.7).map(lambda e: 10.0**e), st.just(2.0))


def _ceiling(prior: float, way: float) -> float:
    low, high = math.log(prior) - math.log1p(-prior), math.log(1e12)
    odds = low + way * (high - low)
    ceiling = 1 / (1 + math.exp(-odds)) if odds > -700 else math.exp(odds)
    return min(max(ceiling, prior), 1 - 1e-12)


@few
@given(prior=priors, way=ways)
def test_the_kl_target_is_the_true_one_rounded_down(reference: ModuleType, prior: float, way: float) -> None:
    ceiling = _ceiling(prior, way)
    exact = reference.binary_kl(prior, ceiling)
    found = float(kl_target(prior, ceiling))
    assert found <= exact or exact < 1e-290  # below, doubles run out of digits
    assert found >= exact * (1 - mpmath.mpf(10) ** -10) - mpmath.mpf(10) ** -290


@few
@given(prior=priors, way=ways)
def test_the_kl_posterior_is_the_true_one_rounded_up(reference: ModuleType, prior: float, way: float) -> None:
    ceiling = _ceiling(prior, way)
    divergence = float(reference.binary_kl(prior, ceiling))  # to the nearest double
    found = float(kl_posterior(divergence, prior))
    assert found >= prior
    # Never below: the posterior found allows at least the divergence given.
    assert found == 1.0 or reference.binary_kl(prior, found) >= divergence
    rise = max(ceiling - prior, 1e-14 * prior)
    assert found - ceiling <= 1e-6 * rise + 1e-13 * ceiling


@few
@given(prior=priors, way=ways)
def test_target_and_posterior_are_inverse_for_kl(prior: float, way: float) -> None:
    ceiling = _ceiling(prior, way)
    back = float(kl_posterior(kl_target(prior, ceiling), prior))
    assert abs(back - ceiling) <= 1e-6 * (ceiling - prior) + 1e-12 * ceiling


@few
@given(prior=priors, way=ways, order=orders)
def test_the_renyi_posterior_is_the_true_one_rounded_up(
    reference: ModuleType, prior: float, way: float, order: float
) -> None:
    ceiling = _ceiling(prior, way)
    level = float(reference.binary_log_moment(prior, ceiling, order))
    found = float(renyi_posterior(level, prior, order))
    assert found >= prior
    assert found == 1.0 or reference.binary_log_moment(prior, found, order) >= level
    rise = max(ceiling - prior, 1e-14 * prior)
    assert found - ceiling <= 1e-6 * rise + 1e-9 * ceiling


def test_no_divergence_means_no_rise() -> None:
    grid = np.array([1e-300, 1e-100, 1e-10, 0.1, 0.5, 0.999])
    np.testing.assert_allclose(kl_posterior(0.0, grid), grid, rtol=1e-13)
    np.testing.assert_allclose(renyi_posterior(0.0, grid, 2.0), grid, rtol=1e-13)
    assert np.all(kl_posterior(0.0, grid) >= grid)
    assert np.all(renyi_posterior(0.0, grid, 2.0) >= grid)
    assert np.all(kl_target(grid, grid) == 0.0)


def test_an_unbounded_divergence_allows_everything() -> None:
    grid = np.array([1e-300, 1e-10, 0.5])
    assert np.all(kl_posterior(np.inf, grid) == 1.0)
    assert np.all(renyi_posterior(np.inf, grid, 2.0) == 1.0)
    assert np.all(renyi_posterior(np.inf, grid, 5000.0) == 1.0)


@few
@given(prior=priors, level=st.floats(-20, 3).map(lambda e: 10.0**e), factor=st.floats(1.0, 10.0), order=orders)
def test_more_divergence_never_lowers_the_posterior(prior: float, level: float, factor: float, order: float) -> None:
    assert kl_posterior(level, prior) <= kl_posterior(level * factor, prior) * (1 + 1e-11)
    assert renyi_posterior(level, prior, order) <= renyi_posterior(level * factor, prior, order) * (1 + 1e-9)


def test_orders_near_one_are_kl() -> None:
    for prior, ceiling in ((1e-10, 1e-3), (0.1, 0.4), (1e-200, 1e-3)):
        near = float(renyi_posterior(0.001 * kl_target(prior, ceiling), prior, 1.001))
        assert near == pytest.approx(ceiling, rel=0.3)

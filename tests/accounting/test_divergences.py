"""KL and Renyi of a run: against quadrature, closed forms and another library."""

import math
from types import ModuleType

import numpy as np
import pytest
from dp_accounting.pld import privacy_loss_distribution

import hush
from hush.accounting.divergences import kl_posterior, kl_target, renyi_posterior

CASES = [
    ([0.3, 0.3], 1.0),
    ([0.01] * 5, 1.0),
    ([0.2, 0.5, 0.1, 0.7], 3.0),
    ([0.001], 0.7),
    ([0.5], 50.0),
    ([0.01] * 8, 400.0),
    ([1.0, 0.25], 2.0),
]


def _kl_of(rates: list[float], sigma: float, *, rounds: int = 1, prior: float = 1e-6) -> float:
    """The KL divergence behind a posterior by the bound "kl"."""
    found = hush.posterior(rates, noise_multiplier=sigma, rounds=rounds, prior=prior, bound="kl")
    return float(kl_target(prior, found)) / rounds


@pytest.mark.parametrize(("rates", "sigma"), CASES)
def test_kl_agrees_with_adaptive_quadrature_from_above(reference: ModuleType, rates: list[float], sigma: float) -> None:
    expected = reference.kl_by_quadrature(np.array(rates), sigma)
    found = _kl_of(rates, sigma)
    assert expected * (1 - 1e-8) <= found <= expected * (1 + 1e-3)


def test_kl_adds_up_over_rounds(reference: ModuleType) -> None:
    one = reference.kl_by_quadrature(np.full(3, 0.01), 2.0)
    found = hush.posterior([0.01] * 3, noise_multiplier=2.0, rounds=5000, prior=1e-9, bound="kl")
    expected = float(kl_posterior(5000 * one, 1e-9))
    assert expected * (1 - 1e-9) <= found <= expected * (1 + 2e-3)


@pytest.mark.parametrize(
    ("rates", "sigma", "step"),
    [([0.3, 0.3], 1.0, 1e-3), ([0.01] * 5, 1.0, 1e-3), ([2048 / 1.7e6] * 100, 31.0, 1e-5)],
)
def test_kl_agrees_with_connect_the_dots_of_dp_accounting(
    reference: ModuleType, rates: list[float], sigma: float, step: float
) -> None:
    mass = reference.count_masses(np.array(rates))
    mass = mass[: int(np.flatnonzero(mass > 1e-30)[-1]) + 1]
    distribution = privacy_loss_distribution.from_mixture_gaussian_mechanism(
        sigma,
        list(range(mass.size)),
        (mass / mass.sum()).tolist(),
        value_discretization_interval=step,
        use_connect_dots=True,
    )
    dense = distribution._pmf_remove.to_dense_pmf()
    expected = float(dense._probs @ ((dense._lower_loss + np.arange(dense._probs.size)) * step))
    assert _kl_of(rates, sigma) == pytest.approx(expected, rel=1e-3)


@pytest.mark.parametrize(
    ("rates", "sigma", "rounds", "prior"),
    [
        ([0.3, 0.2], 2.0, 10, 1e-4),
        ([0.05], 1.5, 100, 1e-3),
        ([0.01] * 3, 3.0, 1000, 1e-8),
        ([0.5], 100.0, 1000, 1e-2),
    ],
)
def test_renyi_is_never_above_a_whole_order_in_closed_form(
    reference: ModuleType, rates: list[float], sigma: float, rounds: int, prior: float
) -> None:
    found = hush.posterior(rates, noise_multiplier=sigma, rounds=rounds, prior=prior, bound="renyi")
    for order in range(2, 7):
        moment = rounds * math.log(reference.moment_in_closed_form(np.array(rates), sigma, order))
        assert found <= float(renyi_posterior(moment, prior, float(order))) * (1 + 2e-3)


@pytest.mark.parametrize("sigma", [40.0, 1e4, 1e6, 1e8])
def test_renyi_at_a_weak_signal_is_the_best_gaussian_order(sigma: float) -> None:
    # One example in every batch: log-moment T a (a - 1) / (2 sigma^2), exactly; the best order by a fine search.
    rounds, prior = 100, 1e-6
    orders = 1 + np.geomspace(1e-2, 1e9, 8001)
    best = float(renyi_posterior(rounds * orders * (orders - 1) / (2 * sigma**2), prior, orders).min())
    found = hush.posterior([1.0], noise_multiplier=sigma, rounds=rounds, prior=prior, bound="renyi")
    assert best * (1 - 1e-6) <= found <= best * (1 + 2e-3)

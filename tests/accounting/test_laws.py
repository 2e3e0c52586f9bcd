"""Laws of the posterior of one secret, as properties. Where a law compares two answers, each may be above the truth by
the accuracy asked for, so it holds up to a few times that."""

import math
from types import ModuleType
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import hush

SLACK = 3e-3  # three times the default accuracy
ROUNDING = 1e-10
few = settings(max_examples=25, deadline=None)

rate_lists = st.lists(st.floats(1e-5, 0.9), min_size=1, max_size=8)
sigmas = st.floats(math.log(0.15), math.log(200.0)).map(math.exp)
round_counts = st.floats(0.0, math.log(20_000.0)).map(lambda t: max(1, round(math.exp(t))))
priors = st.floats(-40.0, math.log10(0.5)).map(lambda e: 10.0**e)
# Where an answer is tight to the accuracy asked for: a secret that is hardly ever drawn, at a prior far below its rate,
# is bounded safely but less tightly.
usual_rates = st.lists(st.floats(1e-3, 0.9), min_size=1, max_size=8)
usual_priors = st.floats(-12.0, math.log10(0.5)).map(lambda e: 10.0**e)


def _upper(rates: Any, sigma: float, rounds: int, prior: float, **options: Any) -> float:
    return hush.posterior(rates, noise_multiplier=sigma, rounds=rounds, prior=prior, **options)


@few
@given(rates=rate_lists, sigma=sigmas, factor=st.floats(1.0, 3.0), rounds=round_counts, prior=priors)
def test_more_noise_never_raises_the_posterior(
    rates: list[float], sigma: float, factor: float, rounds: int, prior: float
) -> None:
    assert _upper(rates, sigma * factor, rounds, prior) <= _upper(rates, sigma, rounds, prior) * (1 + SLACK)


@few
@given(rates=rate_lists, sigma=sigmas, rounds=round_counts, more=st.integers(1, 2000), prior=priors)
def test_more_rounds_never_lower_the_posterior(
    rates: list[float], sigma: float, rounds: int, more: int, prior: float
) -> None:
    assert _upper(rates, sigma, rounds, prior) <= _upper(rates, sigma, rounds + more, prior) * (1 + SLACK)


@few
@given(rates=rate_lists, added=rate_lists, sigma=sigmas, rounds=round_counts, prior=priors)
def test_more_examples_never_lower_the_posterior(
    rates: list[float], added: list[float], sigma: float, rounds: int, prior: float
) -> None:
    assert _upper(rates, sigma, rounds, prior) <= _upper(rates + added, sigma, rounds, prior) * (1 + SLACK)


@few
@given(rates=rate_lists, raised=st.floats(0.0, 1.0), sigma=sigmas, rounds=round_counts, prior=priors)
def test_higher_rates_never_lower_the_posterior(
    rates: list[float], raised: float, sigma: float, rounds: int, prior: float
) -> None:
    higher = [rate + raised * (1 - rate) for rate in rates]
    assert _upper(rates, sigma, rounds, prior) <= _upper(higher, sigma, rounds, prior) * (1 + SLACK)


@few
@given(rates=rate_lists, sigma=sigmas, rounds=round_counts, prior=priors)
def test_the_posterior_lies_between_the_prior_and_the_noiseless_limit(
    reference: ModuleType, rates: list[float], sigma: float, rounds: int, prior: float
) -> None:
    limit = reference.noiseless_posterior(rates, rounds, prior)
    for bound in ("blowup", "renyi", "kl"):
        assert prior <= _upper(rates, sigma, rounds, prior, bound=bound) <= limit * (1 + ROUNDING)


@few
@given(rates=rate_lists, sigma=sigmas, rounds=round_counts, prior=priors)
def test_lower_is_never_above_upper_and_the_blowup_never_above_the_divergences(
    rates: list[float], sigma: float, rounds: int, prior: float
) -> None:
    lower = _upper(rates, sigma, rounds, prior, side="lower")
    upper = _upper(rates, sigma, rounds, prior)
    assert prior <= lower <= upper
    for bound in ("renyi", "kl"):
        found = _upper(rates, sigma, rounds, prior, bound=bound)
        assert lower <= found
        assert upper <= found * (1 + SLACK)


@few
@given(rates=usual_rates, sigma=sigmas, rounds=round_counts, prior=usual_priors)
def test_upper_and_lower_stay_within_one_percent(rates: list[float], sigma: float, rounds: int, prior: float) -> None:
    assert _upper(rates, sigma, rounds, prior) <= 1.01 * _upper(rates, sigma, rounds, prior, side="lower")


@few
@given(rates=rate_lists, rounds=round_counts, prior=priors)
def test_without_noise_the_secret_is_known_exactly_when_it_was_ever_drawn(
    reference: ModuleType, rates: list[float], rounds: int, prior: float
) -> None:
    limit = reference.noiseless_posterior(rates, rounds, prior)
    for bound in ("blowup", "renyi", "kl"):
        assert limit * (1 - 1e-14) <= _upper(rates, 0.0, rounds, prior, bound=bound) <= limit * (1 + ROUNDING)
    assert limit * (1 - ROUNDING) <= _upper(rates, 0.0, rounds, prior, side="lower") <= limit * (1 + 1e-14)


@few
@given(rates=rate_lists, rounds=round_counts, prior=st.floats(-6.0, math.log10(0.5)).map(lambda e: 10.0**e))
def test_as_the_noise_vanishes_the_posterior_tends_to_the_noiseless_one(
    reference: ModuleType, rates: list[float], rounds: int, prior: float
) -> None:
    limit = reference.noiseless_posterior(rates, rounds, prior)
    for sigma in (0.05, 0.01):
        assert limit * (1 - 2e-3) <= _upper(rates, sigma, rounds, prior) <= limit * (1 + ROUNDING)


@few
@given(rates=rate_lists, sigma=sigmas, rounds=round_counts)
def test_the_curve_from_prior_to_posterior_rises_and_is_concave(rates: list[float], sigma: float, rounds: int) -> None:
    grid = np.concatenate([np.geomspace(1e-12, 1e-3, 10), np.linspace(0.01, 0.5, 12)])
    curve = np.asarray(hush.posterior(rates, noise_multiplier=sigma, rounds=rounds, prior=grid))
    assert np.all(curve[:-1] <= curve[1:] * (1 + SLACK))
    # B(0) >= 0, so a concave curve lies above its chords, and B(p) / p falls.
    share = (grid[1:-1] - grid[:-2]) / (grid[2:] - grid[:-2])
    chord = (1 - share) * curve[:-2] + share * curve[2:]
    assert np.all(curve[1:-1] * (1 + SLACK) >= chord)
    assert np.all(curve[1:] / grid[1:] <= curve[:-1] / grid[:-1] * (1 + SLACK))


@few
@given(rates=rate_lists, sigma=sigmas, rounds=round_counts, prior_list=st.lists(priors, min_size=1, max_size=4))
def test_many_priors_at_once_give_what_each_gives_alone(
    rates: list[float], sigma: float, rounds: int, prior_list: list[float]
) -> None:
    together, alone = {}, {}
    for side in ("upper", "lower"):
        together[side] = np.asarray(
            hush.posterior(rates, noise_multiplier=sigma, rounds=rounds, prior=np.array(prior_list), side=side)
        )
        alone[side] = np.array([_upper(rates, sigma, rounds, prior, side=side) for prior in prior_list])
        assert together[side].shape == alone[side].shape
        np.testing.assert_allclose(together[side], alone[side], rtol=1e-2)
    assert np.all(together["upper"] >= alone["lower"])


def test_priors_keep_their_shape() -> None:
    grid = np.array([[1e-6, 1e-3], [0.1, 0.5]])
    found = hush.posterior([0.1], noise_multiplier=1.0, rounds=10, prior=grid)
    assert isinstance(found, np.ndarray)
    assert found.shape == (2, 2)
    assert isinstance(hush.posterior([0.1], noise_multiplier=1.0, rounds=10, prior=0.1), float)
    empty = hush.posterior([0.1], noise_multiplier=1.0, rounds=10, prior=np.empty(0))
    assert isinstance(empty, np.ndarray)
    assert empty.shape == (0,)


@few
@given(
    rates=st.lists(st.floats(1e-5, 0.9), min_size=2, max_size=40),
    sigma=sigmas,
    rounds=round_counts,
    prior=priors,
    order=st.randoms(use_true_random=False),
)
def test_the_order_of_the_rates_does_not_matter(
    rates: list[float], sigma: float, rounds: int, prior: float, order: Any
) -> None:
    shuffled = rates[:]
    order.shuffle(shuffled)
    assert _upper(shuffled, sigma, rounds, prior) == pytest.approx(_upper(rates, sigma, rounds, prior), rel=1e-3)


@few
@given(rates=rate_lists, zeros=st.integers(1, 300), sigma=sigmas, rounds=round_counts, prior=priors)
def test_examples_that_are_never_drawn_do_not_matter(
    rates: list[float], zeros: int, sigma: float, rounds: int, prior: float
) -> None:
    assert _upper(rates + [0.0] * zeros, sigma, rounds, prior) == _upper(rates, sigma, rounds, prior)


@pytest.mark.parametrize("rates", [[], [0.0], [0.0] * 1000])
@pytest.mark.parametrize("sigma", [0.0, 0.3, 50.0])
@pytest.mark.parametrize("bound", ["blowup", "renyi", "kl"])
def test_a_secret_that_is_never_drawn_keeps_its_prior(rates: list[float], sigma: float, bound: Any) -> None:
    for prior in (1e-300, 1e-10, 0.5):
        assert _upper(rates, sigma, 1000, prior, bound=bound) == prior
    assert _upper(rates, sigma, 1000, 1e-10, side="lower") == 1e-10


@few
@given(rates=usual_rates, sigma=sigmas, rounds=round_counts, prior=usual_priors)
def test_a_finer_accuracy_tightens_and_never_crosses(
    rates: list[float], sigma: float, rounds: int, prior: float
) -> None:
    coarse, fine = (_upper(rates, sigma, rounds, prior, accuracy=accuracy) for accuracy in (3e-2, 1e-4))
    assert fine <= coarse * (1 + 3e-4)
    assert coarse <= fine * (1 + 0.1)
    assert _upper(rates, sigma, rounds, prior, accuracy=1e-4, side="lower") <= coarse
    assert _upper(rates, sigma, rounds, prior, accuracy=3e-2, side="lower") <= fine


@few
@given(rates=rate_lists, sigma=sigmas, rounds=round_counts, prior=priors)
def test_no_closed_form_attack_beats_the_upper_bound(
    reference: ModuleType, rates: list[float], sigma: float, rounds: int, prior: float
) -> None:
    attack = reference.best_attack(np.array(rates), sigma, rounds, prior)
    for bound in ("blowup", "renyi", "kl"):
        assert attack * (1 - 1e-9) <= _upper(rates, sigma, rounds, prior, bound=bound)

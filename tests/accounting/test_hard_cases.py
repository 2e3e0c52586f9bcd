"""The extremes of the stated range, each against a closed form or a direct route."""

import time
from types import ModuleType
from typing import Any

import numpy as np
import pytest

import hush


def _both(rates: Any, sigma: float, rounds: int, prior: float, **options: Any) -> tuple[float, float]:
    ask: dict[str, Any] = {"noise_multiplier": sigma, "rounds": rounds, "prior": prior, **options}
    return float(hush.posterior(rates, **ask, side="lower")), float(hush.posterior(rates, **ask))


@pytest.mark.parametrize("prior", [0.5, 1e-3, 1e-10, 1e-150, 1e-300])
@pytest.mark.parametrize(
    ("sigma", "rounds"),
    [(sigma, rounds) for sigma in (0.1, 1.0, 17.0, 300.0, 1e4) for rounds in (1, 30, 2000)]
    + [(0.1, 10**6), (300.0, 10**6), (1e4, 10**6)],
)
def test_an_example_in_every_batch_is_the_plain_gaussian(
    reference: ModuleType, sigma: float, rounds: int, prior: float
) -> None:
    exact = reference.gaussian_posterior(prior, shift=1 / sigma, rounds=rounds)
    lower, upper = _both([1.0], sigma, rounds, prior)
    assert exact * (1 - 1e-9) <= upper
    assert lower <= exact * (1 + 1e-9)
    assert upper <= exact * 1.01


@pytest.mark.parametrize(("copies", "sigma"), [(2, 0.1), (4, 0.1), (114, 61.0), (1000, 1e4), (1000, 20.0), (300, 0.5)])
@pytest.mark.parametrize("prior", [0.1, 1e-10, 1e-294])
def test_several_examples_in_every_batch_are_one_that_counts_as_many(
    reference: ModuleType, copies: int, sigma: float, prior: float
) -> None:
    for rounds in (1, 65):
        exact = reference.gaussian_posterior(prior, shift=copies / sigma, rounds=rounds)
        lower, upper = _both([1.0] * copies, sigma, rounds, prior)
        assert exact * (1 - 1e-9) <= upper <= exact * 1.01
        assert lower <= exact * (1 + 1e-9)


@pytest.mark.parametrize("rates", [[0.3], [1e-3], [0.5, 0.2, 0.9], [0.02] * 30, [1.0, 1.0, 0.018]])
@pytest.mark.parametrize("sigma", [0.1, 1.0, 30.0, 1e4])
@pytest.mark.parametrize("prior", [0.3, 1e-6, 1e-40, 1e-300])
def test_a_single_round_is_a_threshold_on_its_output(
    reference: ModuleType, rates: list[float], sigma: float, prior: float
) -> None:
    exact = reference.one_round_posterior(np.array(rates), sigma, prior)
    lower, upper = _both(rates, sigma, 1, prior)
    assert exact * (1 - 1e-9) <= upper
    assert lower <= exact * (1 + 1e-9)
    if prior >= 1e-100:
        assert upper <= exact * 1.01


@pytest.mark.parametrize("sigma", [0.7, 1.0, 1.3])
@pytest.mark.parametrize("prior", [1e-6, 1e-10])
def test_one_big_jump_is_counted(reference: ModuleType, sigma: float, prior: float) -> None:
    # One example, drawn at most once in a while: the best test waits for a single outlying round.
    for rate, rounds in ((1e-3, 2000), (1e-2, 50), (1e-4, 10_000)):
        lower, upper = _both([rate], sigma, rounds, prior)
        attack = reference.exceedance_attack(np.array([1 - rate, rate]), sigma, rounds, prior)
        assert attack * (1 - 1e-9) <= upper
        assert lower <= upper <= 1.01 * lower
        assert upper <= 3 * attack


@pytest.mark.parametrize(
    ("rates", "sigma", "prior"),
    [
        ([0.005], 14.856228277748139, 1e-200),  # two modes of the tilted law, the far one below the smallest double
        ([0.005], 14.856228277748139, 5e-211),
        ([0.3, 0.2], 5.0, 1e-100),
        ([0.001], 1.0, 1e-10),
        ([0.05], 100.0, 1e-290),
    ],
)
def test_two_rounds_are_one_integral(reference: ModuleType, rates: list[float], sigma: float, prior: float) -> None:
    exact = reference.two_round_posterior(np.array(rates), sigma, prior)
    for accuracy in (1e-2, 1e-3, 3e-4):
        lower, upper = _both(rates, sigma, 2, prior, accuracy=accuracy)
        assert exact * (1 - 1e-6) <= upper
        assert lower <= exact * (1 + 1e-6)


@pytest.mark.parametrize("rounds", [2, 3, 10, 100])
def test_deep_priors_at_a_weak_signal_stay_safe(reference: ModuleType, rounds: int) -> None:
    rng = np.random.default_rng(rounds)
    for _ in range(60):
        rate, sigma, prior = 10.0 ** rng.uniform(-4, -1), 10.0 ** rng.uniform(0.5, 2), 10.0 ** rng.uniform(-295, -120)
        lower, upper = _both([rate], sigma, rounds, prior)
        assert lower <= upper
        assert reference.best_attack(np.array([rate]), sigma, rounds, prior) * (1 - 1e-9) <= upper


@pytest.mark.parametrize("count", [10_000, 100_000])
def test_secrets_in_very_many_examples_of_equal_rates(reference: ModuleType, count: int) -> None:
    rate, rounds, prior = 2048 / 1.7e6, 2000, 1e-10
    sigma = 25 * count / 10_000 + 60.0
    rates = np.full(count, rate)
    begin = time.perf_counter()
    lower, upper = _both(rates, sigma, rounds, prior)
    assert time.perf_counter() - begin < 20
    assert lower <= upper <= 1.01 * lower
    assert reference.sum_attack(rates, sigma, rounds, prior) * (1 - 1e-9) <= upper
    # The sum over rounds is nearly normal: variance of the count adds to that of the noise.
    assert reference.sum_attack(rates, sigma, rounds, prior) >= 0.5 * upper


@pytest.mark.parametrize("count", [10_000, 100_000])
def test_secrets_in_very_many_examples_of_unequal_rates(reference: ModuleType, count: int) -> None:
    rng = np.random.default_rng(count)
    rates = 2048 / 1.7e6 * rng.uniform(0.2, 1.8, count)
    sigma, rounds, prior = 40.0 * count / 10_000, 2000, 1e-10
    lower, upper = _both(rates, sigma, rounds, prior)
    assert lower <= upper <= 1.01 * lower
    # Raising every rate to its cell's top, or lowering it to the bottom, brackets the answer.
    cells = 2048 / 1.7e6 * np.linspace(0.2, 1.8, 401)
    where = np.searchsorted(cells, rates)
    _, above = _both(cells[where], sigma, rounds, prior)
    below, _ = _both(cells[where - 1], sigma, rounds, prior)
    assert below <= upper
    assert lower <= above


@pytest.mark.parametrize("sigma", [300.0, 3000.0, 1e4])
@pytest.mark.parametrize(("examples", "rate", "rounds"), [(50, 0.01, 10**6), (5, 0.3, 10**5), (2000, 1e-3, 10**6)])
@pytest.mark.parametrize("prior", [0.1, 1e-10, 1e-200])
def test_large_noise_is_the_gaussian_of_the_mean_count(
    reference: ModuleType, sigma: float, examples: int, rate: float, rounds: int, prior: float
) -> None:
    rates = np.full(examples, rate)
    lower, upper = _both(rates, sigma, rounds, prior)
    attack = reference.sum_attack(rates, sigma, rounds, prior)
    assert attack * (1 - 1e-9) <= upper
    assert lower <= upper <= 1.01 * max(lower, attack)
    if prior > 1e-100:  # higher counts weigh in only where the prior is extreme
        mean = reference.gaussian_posterior(prior, shift=examples * rate / sigma, rounds=rounds)
        assert upper == pytest.approx(mean, rel=0.05)


@pytest.mark.parametrize("bound", ["blowup", "renyi", "kl"])
@pytest.mark.parametrize("sigma", [1e-3, 0.1, 1e4, 1e8])
@pytest.mark.parametrize("rounds", [1, 1_000_000])
@pytest.mark.parametrize("prior", [1e-300, 0.999])
def test_every_corner_has_an_answer_in_range(bound: Any, sigma: float, rounds: int, prior: float) -> None:
    for rates in ([1e-12], [1e-6] * 100, [0.5] * 100, [1.0], [1.0, 1e-9]):
        found = hush.posterior(rates, noise_multiplier=sigma, rounds=rounds, prior=prior, bound=bound)
        assert prior <= found <= 1.0


@pytest.mark.parametrize("bound", ["blowup", "renyi", "kl"])
@pytest.mark.parametrize(
    ("rate", "sigma", "rounds", "prior"), [(5e-324, 47.4, 146, 2.3e-31), (5e-324, 1e7, 10**6, 1e-157)]
)
def test_a_ratio_that_no_float_tells_from_one_gives_the_prior(
    bound: Any, rate: float, sigma: float, rounds: int, prior: float
) -> None:
    found = hush.posterior([rate] * 5, noise_multiplier=sigma, rounds=rounds, prior=prior, bound=bound)
    assert prior <= found <= prior * (1 + 1e-9)


@pytest.mark.parametrize("bound", ["blowup", "renyi", "kl"])
@pytest.mark.parametrize(
    ("rates", "sigma", "prior"),
    [
        ([4.5297725072062576e-12] * 3, 188204.96946706658, 3.7200351908443014e-259),
        ([2.0704435108693495e-11], 41429.95594328071, 3.938642397934769e-246),
        ([1e-12], 585.3137562848867, 2.5780079821747604e-219),
        ([2.8730174930139022e-11] * 20, 139461.4930749568, 3.818556230462335e-157),
        ([1e-13], 3.0, 1e-300),
    ],
)
def test_a_rise_in_the_last_digits_of_the_prior_is_not_lost_to_rounding(
    reference: ModuleType, rates: list[float], sigma: float, prior: float, bound: Any
) -> None:
    upper = float(hush.posterior(rates, noise_multiplier=sigma, rounds=1, prior=prior, bound=bound))
    excess = reference.one_round_excess_in_high_precision(np.array(rates), sigma, prior, upper)
    assert excess >= 0
    assert bound != "blowup" or excess <= 1e-2

"""The least noise for many secrets at once."""

import math
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import hush

few = settings(max_examples=15, deadline=None)


def _one_secret(k: int) -> hush.Incidence:
    return hush.Incidence.from_pairs(np.arange(k), np.zeros(k, dtype=int), num_examples=k, num_secrets=1)


def _random_incidence(rng: np.random.Generator, examples: int, secrets: int, largest: int) -> hush.Incidence:
    members = [rng.choice(examples, size=rng.integers(0, largest + 1), replace=False) for _ in range(secrets)]
    secret = np.repeat(np.arange(secrets), [len(member) for member in members])
    return hush.Incidence.from_pairs(np.concatenate(members), secret, num_examples=examples, num_secrets=secrets)


@pytest.mark.parametrize("bound", ["blowup", "renyi", "kl"])
@few
@given(
    rates=st.lists(st.floats(1e-3, 0.9), min_size=1, max_size=6),
    rounds=st.integers(1, 3000),
    exponent=st.floats(-12.0, -1.0),
    way=st.floats(0.2, 0.8),
)
def test_the_noise_found_is_safe_and_half_a_percent_less_is_not(
    bound: Any, rates: list[float], rounds: int, exponent: float, way: float
) -> None:
    prior = 10.0**exponent
    ceiling = prior ** (1 - way) * 0.9**way
    found = hush.calibrate(
        _one_secret(len(rates)), prior=prior, ceiling=ceiling, rates=rates, rounds=rounds, bound=bound
    )
    ask: dict[str, Any] = {"rounds": rounds, "prior": prior, "bound": bound}
    sigma = found.noise_multiplier
    if sigma == 0.0:
        assert hush.posterior(rates, noise_multiplier=0.0, **ask) <= ceiling
        return
    assert hush.posterior(rates, noise_multiplier=sigma, **ask) <= ceiling * (1 + 1e-9)
    assert found.posterior[0] <= ceiling
    assert hush.posterior(rates, noise_multiplier=0.995 * sigma, **ask) > ceiling or sigma <= 1e-3 * 1.01
    assert found.binding.tolist() == [0]


@few
@given(rates=st.lists(st.floats(1e-6, 1e-3), min_size=1, max_size=5), rounds=st.integers(1, 100))
def test_where_no_noise_is_needed_the_answer_is_zero(rates: list[float], rounds: int) -> None:
    ever = -math.expm1(rounds * math.fsum(math.log1p(-rate) for rate in rates))
    ceiling = min(0.999, (1e-6 + ever) * 1.01)
    for bound in ("blowup", "renyi", "kl"):
        found = hush.calibrate(
            _one_secret(len(rates)), prior=1e-6, ceiling=ceiling, rates=rates, rounds=rounds, bound=bound
        )
        assert found.noise_multiplier == 0.0
        assert found.posterior[0] <= ceiling
        assert found.binding.size == 0


@pytest.mark.parametrize("bound", ["blowup", "renyi", "kl"])
def test_a_prior_at_its_ceiling_needs_infinite_noise(bound: Any) -> None:
    with pytest.raises(hush.InfeasiblePlan, match="no finite noise"):
        hush.calibrate(_one_secret(3), prior=1e-3, ceiling=1e-3, rates=0.1, rounds=10, bound=bound)


def test_a_prior_at_its_ceiling_is_kept_where_the_secret_is_never_drawn() -> None:
    incidence = hush.Incidence.from_pairs([0, 1], [0, 1], num_examples=2, num_secrets=3)
    found = hush.calibrate(incidence, prior=1e-3, ceiling=[1e-3, 0.1, 1e-3], rates=[0.0, 0.2], rounds=50)
    assert found.noise_multiplier > 0
    assert found.posterior[0] == 1e-3
    assert found.posterior[2] == 1e-3
    assert found.binding.tolist() == [1]


@pytest.mark.parametrize("bound", ["blowup", "renyi", "kl"])
@pytest.mark.parametrize("seed", range(3))
def test_grouping_is_never_unsafe_and_costs_next_to_nothing(bound: Any, seed: int) -> None:
    rng = np.random.default_rng(seed)
    examples, secrets, rounds = 400, 60, int(rng.integers(20, 2000))
    incidence = _random_incidence(rng, examples, secrets, 25)
    rates = np.minimum(1.0, 0.02 * np.exp(rng.standard_normal(examples)))
    priors = 10.0 ** rng.uniform(-12, -4, secrets)
    ceilings = np.minimum(0.9, priors * 10.0 ** rng.uniform(2, 6, secrets))
    found = hush.calibrate(incidence, prior=priors, ceiling=ceilings, rates=rates, rounds=rounds, bound=bound)
    assert np.all(found.posterior <= ceilings)
    for secret in range(secrets):
        own = rates[incidence.examples_of(secret)]
        ask: dict[str, Any] = {
            "noise_multiplier": found.noise_multiplier, "rounds": rounds, "prior": float(priors[secret])
        }  # fmt: skip
        assert found.posterior[secret] >= hush.posterior(own, **ask, side="lower")
        assert found.posterior[secret] >= hush.posterior(own, **ask, bound=bound) * (1 - 2e-3)
        if own.size == 0:
            assert found.posterior[secret] == priors[secret]
    # The least noise for each binding secret alone is nearly the noise found for all.
    alone = []
    for secret in found.binding:
        own = rates[incidence.examples_of(int(secret))]
        one = hush.calibrate(
            _one_secret(own.size),
            prior=float(priors[secret]),
            ceiling=float(ceilings[secret]),
            rates=own,
            rounds=rounds,
            bound=bound,
        )
        alone.append(one.noise_multiplier)
    assert found.noise_multiplier <= max(alone) * 1.005
    assert found.noise_multiplier >= max(alone) * 0.995


@pytest.mark.parametrize("bound", ["blowup", "renyi", "kl"])
def test_the_noise_for_all_is_the_largest_any_secret_needs(bound: Any) -> None:
    rng = np.random.default_rng(11)
    incidence = _random_incidence(rng, 60, 12, 10)
    rates = rng.uniform(0.001, 0.1, 60)
    priors, rounds = np.full(12, 1e-8), 300
    ceilings = 10.0 ** rng.uniform(-5, -1, 12)
    whole = hush.calibrate(incidence, prior=priors, ceiling=ceilings, rates=rates, rounds=rounds, bound=bound)
    needed = []
    for secret in range(12):
        own = rates[incidence.examples_of(secret)]
        if own.size:
            ask: dict[str, Any] = {"prior": 1e-8, "ceiling": float(ceilings[secret]), "rounds": rounds, "bound": bound}
            needed.append(hush.calibrate(_one_secret(own.size), rates=own, **ask).noise_multiplier)
    assert whole.noise_multiplier == pytest.approx(max(needed), rel=3e-3)


def test_all_points_of_a_secret_hold() -> None:
    rates, rounds = np.full(20, 0.01), 500
    points = ((1e-10, 1e-4), (1e-4, 0.05), (1e-2, 0.2))
    prior, ceiling = np.array([[p for p, _ in points]]), np.array([[r for _, r in points]])
    found = hush.calibrate(_one_secret(20), prior=prior, ceiling=ceiling, rates=rates, rounds=rounds)
    assert found.posterior.shape == (1, 3)
    assert np.all(found.posterior <= ceiling)
    each = [
        hush.calibrate(_one_secret(20), prior=p, ceiling=r, rates=rates, rounds=rounds).noise_multiplier
        for p, r in points
    ]
    assert found.noise_multiplier == pytest.approx(max(each), rel=3e-3)
    for (p, r), posterior in zip(points, found.posterior[0], strict=True):
        alone = hush.posterior(rates, noise_multiplier=found.noise_multiplier, rounds=rounds, prior=p)
        assert alone * (1 - 2e-3) <= posterior <= r


def test_many_distinct_priors_are_all_kept() -> None:
    rng = np.random.default_rng(5)
    secrets = 300
    incidence = hush.Incidence.from_pairs(
        np.arange(secrets * 4), np.repeat(np.arange(secrets), 4), num_examples=secrets * 4, num_secrets=secrets
    )
    priors = 10.0 ** rng.uniform(-12, -3, secrets)
    found = hush.calibrate(incidence, prior=priors, ceiling=np.minimum(0.5, 1e3 * priors), rates=0.02, rounds=200)
    sigma = found.noise_multiplier
    single = np.asarray(hush.posterior([0.02] * 4, noise_multiplier=sigma, rounds=200, prior=priors))
    lower = np.asarray(hush.posterior([0.02] * 4, noise_multiplier=sigma, rounds=200, prior=priors, side="lower"))
    assert np.all(found.posterior >= lower)
    assert np.all(found.posterior >= single * (1 - 2e-3))
    assert np.all(found.posterior <= np.minimum(0.5, 1e3 * priors))


def test_an_incidence_without_secrets_needs_no_noise() -> None:
    for examples in (0, 5):
        empty = hush.Incidence.from_pairs([], [], num_examples=examples, num_secrets=0)
        found = hush.calibrate(empty, prior=1e-10, ceiling=1e-3, rates=0.1, rounds=10)
        assert found.noise_multiplier == 0.0
        assert found.posterior.shape == (0,)
        assert found.binding.size == 0


def test_secrets_without_examples_need_no_noise() -> None:
    empty = hush.Incidence.from_pairs([], [], num_examples=0, num_secrets=4)
    found = hush.calibrate(empty, prior=[1e-10, 1e-3, 0.2, 0.5], ceiling=0.5, rates=0.1, rounds=10)
    assert found.noise_multiplier == 0.0
    assert found.posterior.tolist() == [1e-10, 1e-3, 0.2, 0.5]


@few
@given(rate=st.floats(1e-3, 0.5), rounds=st.integers(1, 50))
def test_the_noise_that_a_calibration_shows_is_enough(rate: float, rounds: int) -> None:
    found = hush.calibrate(_one_secret(1), prior=1e-6, ceiling=1e-2, rates=rate, rounds=rounds)
    shown = float(repr(found).split("noise_multiplier=")[1].split(",")[0])
    assert found.noise_multiplier <= shown <= found.noise_multiplier * (1 + 1e-5)


def test_a_calibration_that_breaks_a_promise_cannot_exist() -> None:
    found = hush.calibrate(_one_secret(2), prior=1e-6, ceiling=1e-2, rates=0.1, rounds=100)
    with pytest.raises(hush.CannotCertify):
        hush.Calibration(
            noise_multiplier=found.noise_multiplier,
            posterior=found.ceiling * 1.01,
            ceiling=found.ceiling,
            binding=found.binding,
            bound=found.bound,
            rounds=found.rounds,
        )
    with pytest.raises(hush.CannotCertify):
        hush.Calibration(
            noise_multiplier=found.noise_multiplier,
            posterior=np.array([np.nan]),
            ceiling=found.ceiling,
            binding=found.binding,
            bound=found.bound,
            rounds=found.rounds,
        )


def _one_example_each(secrets: int) -> hush.Incidence:
    return hush.Incidence.from_pairs(np.arange(secrets), np.arange(secrets), num_examples=secrets, num_secrets=secrets)


@pytest.mark.parametrize("slack", [0.05, 0.6])
def test_binding_secrets_are_those_that_break_alone_with_about_half_a_percent_less_noise(
    monkeypatch: pytest.MonkeyPatch, slack: float
) -> None:
    monkeypatch.setattr("hush.accounting.calibration.COARSE_GROUPS", 10)  # so that few secrets are many
    rng = np.random.default_rng(2)
    rates, secrets = rng.uniform(2e-3, 4e-3, 120), np.arange(120)
    incidence, ask = _one_example_each(120), {"prior": 1e-6, "rounds": 200}
    ceiling = hush.posteriors(incidence, noise_multiplier=1.0, rates=rates, **ask) * np.exp(rng.uniform(0, slack, 120))
    found = hush.calibrate(incidence, ceiling=ceiling, rates=rates, **ask)
    free = np.setdiff1d(secrets, found.binding)
    assert found.binding.size > 1
    assert free.size > 1

    def breaks(secret: int, share: float) -> bool:
        after = hush.posterior([rates[secret]], noise_multiplier=share * found.noise_multiplier, accuracy=1e-4, **ask)
        return after > ceiling[secret] * (1 + 1e-3)  # up to the accuracy of the answers compared

    assert [secret for secret in free if breaks(secret, 0.995)] == []
    assert [secret for secret in found.binding if not breaks(secret, 0.992)] == []


def test_many_secrets_near_their_ceilings_are_not_looked_at_one_by_one() -> None:
    rng = np.random.default_rng(3)
    rates = np.exp(rng.uniform(np.log(2e-3), np.log(2e-2), 2000))  # hardly two drawn alike
    incidence, ask = _one_example_each(rates.size), {"prior": 1e-6, "rounds": 200}
    near = hush.posteriors(incidence, noise_multiplier=1.0, rates=rates, **ask)
    asked: list[int] = []
    found = hush.calibrate(
        incidence, ceiling=near * 1.5, rates=rates, progress=lambda _, total: asked.append(total), **ask
    )
    assert np.all(found.posterior > 0.5 * found.ceiling)
    assert asked[-1] < rates.size / 2

"""The simulated worst case: against closed forms, against a direct simulation, and the accountant against it."""

from typing import NamedTuple

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats
from scipy.special import logsumexp, ndtr, ndtri

import hush
from hush.accounting.arguments import Side
from hush.audit.mechanism import (
    MechanismAttack,
    attack_joint_mechanism,
    attack_mechanism,
    log_likelihood_ratios,
)
from hush.audit.statistics import Success
from hush.errors import InvalidInput

SIDES: tuple[Side, Side] = ("upper", "lower")
LEVEL = 1e-6  # of each comparison here, so that no fresh seed would fail


class Setting(NamedTuple):
    """One secret, as the accountant is asked about it."""

    rates: np.ndarray
    rounds: int
    prior: float
    noise_multiplier: float

    def attack(self, trials: int, rng: np.random.Generator) -> MechanismAttack:
        return attack_mechanism(
            self.rates,
            noise_multiplier=self.noise_multiplier,
            rounds=self.rounds,
            prior=self.prior,
            trials=trials,
            rng=rng,
        )

    def posterior(self, side: Side) -> float:
        return hush.posterior(
            self.rates,
            noise_multiplier=self.noise_multiplier,
            rounds=self.rounds,
            prior=self.prior,
            side=side,
        )


def random_setting(rng: np.random.Generator) -> Setting:
    """1 to 60 examples, 1 to 2000 rounds, priors from 0.5 to 1e-4; noise at which success is neither sure nor rare.

    The noise is a rough guess by the central limit theorem, so what is really possible varies.
    """
    size, rounds = int(np.exp(rng.uniform(0, np.log(61)))), int(np.exp(rng.uniform(0, np.log(2001))))
    rates = np.exp(rng.uniform(np.log(1e-3), np.log(0.5), size)) * rng.choice([1.0, 1.0, 0.1])
    prior = float(np.exp(rng.uniform(np.log(1e-4), np.log(0.5))))
    target = rng.uniform(min(max(2 * prior, 0.03), 0.9), 0.97)
    distance = (ndtri(target) - ndtri(prior)) / (rates.sum() * rounds**0.5)
    return Setting(rates, rounds, prior, float(np.log1p(distance**2) ** -0.5))


# --- the simulation


@pytest.mark.parametrize("sigma", [0.05, 0.4, 3.0])
@pytest.mark.parametrize("rates", [[1.0], [0.2, 0.9, 1.0], [0.01] * 40])
def test_log_ratios_are_those_of_the_drawn_outputs(rates: list[float], sigma: float) -> None:
    """The same random numbers, one by one, and the ratio by its definition; small noise leaves the fast path."""
    found = log_likelihood_ratios(rates, noise_multiplier=sigma, rounds=7, trials=30, rng=np.random.default_rng(5))
    mass = np.ones(1)
    for rate in rates:
        mass = np.convolve(mass, [1 - rate, rate])
    k, rng = np.arange(mass.size), np.random.default_rng(5)
    for loss in found:
        expected = 0.0
        for _ in range(7):
            count = min(int(np.searchsorted(np.cumsum(mass), rng.random(), side="right")), mass.size - 1)
            x = count + sigma * rng.standard_normal()
            with_secret = logsumexp(stats.norm.logpdf(x, k[mass > 0], sigma), b=mass[mass > 0])
            expected += with_secret - stats.norm.logpdf(x, 0, sigma)
        assert loss == pytest.approx(expected, rel=1e-9, abs=1e-9)


@pytest.mark.parametrize("prior", [0.5, 0.05, 1e-3, 1e-4])
def test_the_limits_hold_the_closed_form_of_one_round(prior: float) -> None:
    """One round: the best test is a threshold on the output."""
    rates, sigma = [0.3] * 4, 0.8
    k = np.arange(5)
    truth = float(stats.binom.pmf(k, 4, 0.3) @ ndtr(k / sigma + ndtri(prior)))
    attack = Setting(np.array(rates), 1, prior, sigma).attack(40_000, np.random.default_rng(2))
    assert attack.lower(LEVEL) <= truth <= attack.upper(LEVEL)
    assert 0.85 * truth < attack.success < 1.1 * truth


@pytest.mark.parametrize("prior", [0.5, 1e-2, 1e-4])
def test_the_limits_hold_the_closed_form_of_certain_draws(prior: float) -> None:
    """Rates of 1: a normal shift of sqrt(T) / sigma in all."""
    truth = float(ndtr(ndtri(prior) + 30**0.5 / 2.5))
    attack = Setting(np.array([1.0]), 30, prior, 2.5).attack(20_000, np.random.default_rng(3))
    assert attack.lower(LEVEL) <= truth <= attack.upper(LEVEL)
    assert 0.85 * truth < attack.success < 1.05 * truth


def test_weighted_alarms_agree_with_runs_without_the_secret() -> None:
    """The direct way: simulate the other law and count what passes the threshold."""
    setting = Setting(np.array([0.05, 0.1, 0.02]), 60, 0.02, 0.9)
    attack = setting.attack(30_000, np.random.default_rng(4))
    without = log_likelihood_ratios(
        setting.rates, noise_multiplier=0.9, rounds=60, trials=60_000, rng=np.random.default_rng(5), secret=False
    )
    direct = Success(hits=int((without > attack.log_threshold).sum()), runs=without.size)
    weight = np.exp(-attack.log_threshold)
    assert direct.lower(LEVEL) <= weight * attack.alarms.upper(LEVEL)
    assert weight * attack.alarms.lower(LEVEL) <= direct.upper(LEVEL)
    assert 0.01 < direct.rate < 0.022  # the pilot put the threshold where it belongs


def test_limits_are_wrong_with_at_most_the_stated_probability() -> None:
    """Many repetitions with few runs each, whatever threshold the small pilot chose."""
    setting, truth = Setting(np.array([1.0]), 4, 0.05, 1.6), float(ndtr(ndtri(0.05) + 2 / 1.6))
    rng = np.random.default_rng(6)
    attacks = [setting.attack(150, rng) for _ in range(1500)]
    allowed = 0.1 * 1500 + 4 * (0.1 * 1500) ** 0.5
    assert sum(attack.lower(0.1) > truth for attack in attacks) <= allowed
    assert sum(attack.upper(0.1) < truth for attack in attacks) <= allowed


@given(st.integers(1, 500), st.integers(0, 500), st.floats(-2, 4), st.floats(1e-4, 0.6), st.floats(1e-6, 0.4))
def test_limits_are_read_off_the_lines_from_certain_silence_over_the_test_to_certain_alarm(
    hits: int, alarms: int, log_threshold: float, prior: float, level: float
) -> None:
    """Tossing a coin between the test and silence, or the test and alarm, reaches every point of these lines."""
    detected, alarm = Success(hits=hits, runs=500), Success(hits=min(alarms, hits), runs=500)
    attack = MechanismAttack(prior=prior, log_threshold=log_threshold, detected=detected, alarms=alarm)

    def on_the_lines(h: float, tq: float) -> float:
        q = min(tq * np.exp(-log_threshold), 1 - 1e-12)
        return max(prior, float(np.interp(prior, [0.0, q, 1.0], [0.0 if q > 0 else h, h, 1.0])))

    assert attack.success == pytest.approx(on_the_lines(detected.rate, alarm.rate), rel=1e-6)
    expected = on_the_lines(detected.lower(level / 2), alarm.upper(level / 2))
    assert attack.lower(level) == pytest.approx(expected, rel=1e-6)
    assert prior <= attack.lower(level) <= attack.success


def test_without_any_draw_an_attacker_only_guesses() -> None:
    attack = Setting(np.array([0.0, 0.0]), 50, 0.2, 1.0).attack(1000, np.random.default_rng(7))
    assert attack.lower() <= attack.success == pytest.approx(0.2)
    assert attack.upper() < 0.21


def test_a_simulation_without_noise_is_refused() -> None:
    with pytest.raises(InvalidInput, match="noise_multiplier=0"):
        Setting(np.array([0.1]), 5, 0.2, 0.0).attack(1000, np.random.default_rng(8))


# --- several releases


def test_one_release_is_the_case_of_one() -> None:
    setting = Setting(np.array([0.05, 0.1, 0.02]), 60, 0.02, 0.9)
    joint = attack_joint_mechanism(
        [setting.rates], noise_multipliers=[0.9], rounds=[60], prior=0.02, trials=3000, rng=np.random.default_rng(1)
    )
    assert joint == setting.attack(3000, np.random.default_rng(1))


@pytest.mark.parametrize("prior", [0.5, 1e-2, 1e-4])
def test_the_limits_hold_the_closed_form_of_unlike_releases(prior: float) -> None:
    """Rates of 1: the squared shifts of the releases add up; a release without the secret adds nothing."""
    noise, rounds = [2.5, 4.0, 9.0], [10, 40, 5]
    shift = float(np.sqrt(sum(count / sigma**2 for sigma, count in zip(noise[:2], rounds[:2], strict=True))))
    truth = float(ndtr(ndtri(prior) + shift))
    attack = attack_joint_mechanism(
        [[1.0], [1.0], []], noise_multipliers=noise, rounds=rounds, prior=prior, trials=20_000,
        rng=np.random.default_rng(3),
    )  # fmt: skip
    assert attack.lower(LEVEL) <= truth <= attack.upper(LEVEL)
    assert 0.85 * truth < attack.success < 1.05 * truth


def test_a_release_cut_in_two_is_attacked_as_well_as_before() -> None:
    """The rounds of one release as two releases: limits of one and the same number."""
    settings = {"prior": 1e-3, "trials": 20_000}
    whole = attack_mechanism(
        [0.1] * 5, noise_multiplier=1.2, rounds=50, rng=np.random.default_rng(4), **settings
    )  # fmt: skip
    cut = attack_joint_mechanism(
        [[0.1] * 5] * 2, noise_multipliers=[1.2] * 2, rounds=[20, 30], rng=np.random.default_rng(5), **settings
    )  # fmt: skip
    assert whole.lower(LEVEL) <= cut.upper(LEVEL)
    assert cut.lower(LEVEL) <= whole.upper(LEVEL)


@pytest.mark.parametrize(("noise", "rounds"), [([1.0], [5, 5]), ([1.0, 1.0], [5]), ([], [])])
def test_releases_need_one_of_each_setting(noise: list[float], rounds: list[int]) -> None:
    with pytest.raises(InvalidInput, match="one of each for every release"):
        attack_joint_mechanism(
            [[0.1]] * max(len(noise), 1) if noise else [], noise_multipliers=noise, rounds=rounds, prior=0.1, trials=10,
            rng=np.random.default_rng(0),
        )  # fmt: skip


# --- the accountant, held against it


def sweep(settings: int, *, work: float, most: int, seed: int) -> None:
    """No bound of the accountant is beaten or out of reach, at 1 % for all settings and both sides together."""
    rng = np.random.default_rng(seed)
    each = 0.01 / (2 * settings)
    ratios, certified = [], []
    for _ in range(settings):
        setting = random_setting(rng)
        attack = setting.attack(int(np.clip(work / setting.rounds, 1000, most)), rng)
        upper, lower = setting.posterior("upper"), setting.posterior("lower")
        assert attack.lower(each) <= upper, f"the accountant is unsound at {setting}: {attack} beats {upper}"
        assert attack.upper(each) >= lower, f"the accountant overstates an attack at {setting}: {lower}, not {attack}"
        ratios.append(attack.success / upper)
        certified.append(upper)
    assert 0.9 < np.median(ratios) < 1.05
    assert np.quantile(ratios, 0.05) > 0.7
    # The settings are worth trying: neither sure nor hopeless.
    assert np.mean((np.array(certified) > 0.02) & (np.array(certified) < 0.98)) > 0.8


def test_no_bound_is_beaten_and_all_are_nearly_reached_over_200_random_settings() -> None:
    sweep(200, work=4e5, most=20_000, seed=9)


def random_releases(rng: np.random.Generator) -> list[Setting]:
    """Two to four releases of one secret that share a shift at which success is neither sure nor rare."""
    prior = random_setting(rng).prior
    target = rng.uniform(min(max(2 * prior, 0.03), 0.9), 0.97)
    releases: list[Setting] = []
    for part in rng.dirichlet(np.ones(int(rng.integers(2, 5)))):
        one = random_setting(rng)
        distance = (ndtri(target) - ndtri(prior)) * part**0.5 / (one.rates.sum() * one.rounds**0.5)
        releases.append(one._replace(noise_multiplier=float(np.log1p(distance**2) ** -0.5), prior=prior))
    return releases


def test_no_bound_of_several_releases_is_beaten_and_all_are_nearly_reached() -> None:
    """Unlike rates, noise and rounds: the accountant's product bound against simulations without its code."""
    rng, settings = np.random.default_rng(12), 60
    each = 0.01 / (2 * settings)
    ratios: list[float] = []
    for _ in range(settings):
        releases = random_releases(rng)
        rates = [one.rates for one in releases]
        noise, rounds = [one.noise_multiplier for one in releases], [one.rounds for one in releases]
        prior, trials = releases[0].prior, int(np.clip(4e5 / sum(rounds), 1000, 20_000))
        attack = attack_joint_mechanism(
            rates, noise_multipliers=noise, rounds=rounds, prior=prior, trials=trials, rng=rng
        )
        upper, lower = (
            hush.joint_posterior(rates, noise_multipliers=noise, rounds=rounds, prior=prior, side=side)
            for side in SIDES
        )
        assert attack.lower(each) <= upper, f"the accountant is unsound at {releases}: {attack} beats {upper}"
        assert attack.upper(each) >= lower, f"the accountant overstates an attack at {releases}: {lower}, not {attack}"
        ratios.append(attack.success / upper)
    assert 0.9 < np.median(ratios) < 1.05


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(2))
def test_no_bound_is_beaten_over_many_more_settings_and_runs(seed: int) -> None:
    sweep(250, work=8e6, most=100_000, seed=100 + seed)


@pytest.mark.parametrize(("change", "name"), [(0.5, "rates"), (2.0, "noise_multiplier")])
def test_a_bound_for_half_the_rates_or_twice_the_noise_is_beaten(change: float, name: str) -> None:
    """The comparison would have found an accountant that is off by a factor of two."""
    rng, beaten = np.random.default_rng(10), 0
    for _ in range(20):
        setting = random_setting(rng)
        wrong = setting._replace(**{name: change * getattr(setting, name)}).posterior("upper")
        beaten += setting.attack(1500, rng).lower(0.01 / 400) > wrong
    assert beaten >= 10


def test_a_loose_bound_is_seen_to_be_loose() -> None:
    """The paper's bound by KL lies above the upper limit of what any attack can do."""
    setting = Setting(np.full(40, 0.01), 100, 1e-4, 2.5)
    loose = hush.posterior(setting.rates, noise_multiplier=2.5, rounds=100, prior=1e-4, bound="kl")
    assert setting.attack(20_000, np.random.default_rng(11)).upper(LEVEL) < 0.5 * loose

"""The accountant's inner parts, each against the statement its proof relies on."""

import math

import mpmath as mp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.special import ndtr

import hush
from hush.accounting import accountant
from hush.accounting.accountant import Crowd
from hush.accounting.blowup import blowup_lower, blowup_upper, split
from hush.accounting.calibration import least_safe
from hush.accounting.composition import Composed, Term, compose
from hush.accounting.counts import count_law
from hush.accounting.divergences import excess_entropy
from hush.accounting.one_round import Part, _spread, discretise, gives_away, right_end, spread, spread_from_one


@given(
    value=st.lists(st.floats(-50, 50), min_size=1, max_size=20),
    step=st.floats(1e-4, 2.0),
)
def test_split_keeps_both_masses(value: list[float], step: float) -> None:
    values = np.array(value)
    q_mass = np.full(values.size, 1.0 / values.size)
    index, mass = split(q_mass, values, step)
    assert mass.min() >= 0
    assert mass.sum() == pytest.approx(1.0, rel=1e-12)
    assert mass @ np.exp(index * step) == pytest.approx(q_mass @ np.exp(values), rel=1e-9)
    assert np.abs(index * step - np.tile(values, 2)).max() <= step * (1 + 1e-9)


@given(tilt=st.floats(0.0, 4.0), rounds=st.integers(1, 40))
@settings(max_examples=40)
def test_tilt_never_changes_the_composed_law(tilt: float, rounds: int) -> None:
    index = np.array([-2, 0, 1, 5])
    mass = np.array([0.2, 0.5, 0.2, 0.1])
    direct = np.ones(1)
    for _ in range(rounds):
        direct = np.convolve(direct, [0.2, 0, 0.5, 0.2, 0, 0, 0, 0.1])
    composed = compose([Term(index=index, mass=mass, rounds=rounds)], step=0.1, tilt=tilt, largest_size=1 << 12)
    assert isinstance(composed, Composed)
    untilted = np.exp(composed.log_norm - tilt * composed.values)
    where = composed.first + np.arange(composed.tilted.size) + 2 * rounds
    inside = (where >= 0) & (where < direct.size)
    truth = np.zeros(where.size)
    truth[inside] = direct[where[inside]]
    allowed = (composed.entry_error + composed.wrapped) * untilted + composed.growth * truth + 1e-12 * truth
    assert np.all(np.abs(composed.tilted * untilted - truth) <= allowed)


@given(
    tilt=st.floats(0.0, 4.0),
    rounds=st.lists(st.integers(1, 30), min_size=2, max_size=4),
    seed=st.integers(0, 2**31),
)
@settings(max_examples=60)
def test_unlike_terms_compose_to_the_direct_convolution(tilt: float, rounds: list[int], seed: int) -> None:
    rng = np.random.default_rng(seed)
    direct, lowest = np.ones(1), 0
    terms: list[Term] = []
    for times in rounds:
        first, mass = int(rng.integers(-9, 3)), rng.dirichlet(np.full(8, 0.4))
        mass[rng.integers(8)] += rng.choice([0.0, 100.0])  # sometimes nearly all in one place
        mass /= mass.sum()
        terms.append(Term(index=first + np.arange(8), mass=mass, rounds=times))
        for _ in range(times):
            direct, lowest = np.convolve(direct, mass), lowest + first
    composed = compose(terms, step=0.1, tilt=tilt, largest_size=1 << 14)
    assert isinstance(composed, Composed)
    untilted = np.exp(composed.log_norm - tilt * composed.values)
    where = composed.first + np.arange(composed.tilted.size) - lowest
    inside = (where >= 0) & (where < direct.size)
    truth = np.zeros(where.size)
    truth[inside] = direct[where[inside]]
    allowed = (composed.entry_error + composed.wrapped) * untilted + composed.growth * truth + 1e-12 * truth
    assert np.all(np.abs(composed.tilted * untilted - truth) <= allowed)
    assert composed.entry_error < 1e-9  # the allowance is one, not an excuse
    # Outside the window there is no more than the Chernoff bound allows.
    tilted = direct * np.exp(tilt * 0.1 * (lowest + np.arange(direct.size)) - composed.log_norm)
    outside = np.ones(direct.size, dtype=bool)
    outside[where[inside]] = False
    assert tilted[outside].sum() <= 2e-15 * (1 + 1e-6)


@given(
    rates=st.lists(st.floats(1e-6, 1.0), min_size=1, max_size=12),
    log_sigma=st.floats(-1.5, 6.0),
    prior=st.sampled_from([1e-10, 1e-3, 0.3]),
)
@settings(max_examples=60)
def test_spread_atoms_keep_the_masses_of_the_round(rates: list[float], log_sigma: float, prior: float) -> None:
    sigma, end = float(np.exp(log_sigma)), right_end(prior, 100)
    law = count_law(np.array(rates), tail=1e-30)
    if gives_away(law, sigma, end=end):
        return
    cells = discretise(law, sigma, end=end, cells=600)
    mass, value = spread(cells)
    assert mass.sum() == pytest.approx(1 - cells.beyond, abs=1e-12)
    # Never less P-mass than the table holds, and more only by what errors and the lifted left end may add.
    p_mass = float(mass @ np.exp(value))
    assert 1 - cells.conceded - 1e-12 <= p_mass <= 1 - cells.conceded + 1e-9
    # For a divergence no way of moving the means gives more, and little is added where ratios lie on both sides of 1.
    away, at = spread_from_one(cells)
    assert 1 - cells.beyond - 1e-12 <= away.sum() <= 1 - cells.beyond + 1e-6
    for shift in (-cells.ratio_error, cells.ratio_error):
        moved, ends = _spread(cells, shift)
        assert away @ excess_entropy(at) >= moved @ excess_entropy(ends) * (1 - 1e-12)


@pytest.mark.parametrize("z", [0.0, 0.5, 3.0, 9.0, 20.0, 30.0, 37.5])
def test_special_functions_are_as_accurate_as_assumed(z: float) -> None:
    with mp.workdps(50):
        truth = mp.erfc(mp.mpf(z) / mp.sqrt(2)) / 2
        error = abs(float((mp.mpf(float(ndtr(-z))) - truth) / truth))
    assert error <= (2 * z * z + 10) * np.finfo(float).eps / 2
    for found, exact in ((np.exp(z), mp.exp), (np.expm1(z), mp.expm1)):
        with mp.workdps(50):
            truth = exact(mp.mpf(z))
            error = abs(float(mp.mpf(float(found)) - truth))
        assert error <= 4 * np.finfo(float).eps * abs(float(found))


@given(
    rate=st.floats(1e-5, 0.5),
    examples=st.integers(1, 40),
    sigma=st.floats(0.3, 30.0),
    rounds=st.integers(1, 3000),
    log_prior=st.floats(-12, -0.4),
)
@settings(max_examples=30)
def test_coarser_accuracy_never_falls_below_a_finer_lower_bound(
    rate: float, examples: int, sigma: float, rounds: int, log_prior: float
) -> None:
    parts = [Part(law=count_law(np.full(examples, rate), tail=1e-30), sigma=sigma, rounds=rounds)]
    priors = np.array([10.0**log_prior])
    lower = blowup_lower(parts, priors, accuracy=1e-4)
    for accuracy in (1e-1, 1e-2, 1e-3):
        upper, _ = blowup_upper(parts, priors, accuracy=accuracy)
        assert upper[0] >= lower[0] * (1 - 1e-12)


def test_conceding_never_hides_a_count_that_gives_the_secret_away() -> None:
    law = count_law(np.ones(3), tail=1e-30)
    assert gives_away(law, 0.05, end=right_end(0.1, 1))
    assert blowup_upper([Part(law=law, sigma=0.05, rounds=1)], np.array([0.1]), accuracy=1e-3)[0][0] == 1.0


def test_a_search_never_takes_an_undefined_excess_for_a_safe_one() -> None:
    def excess(x: float) -> float:
        return float("nan") if x < 3.0 else 1.0 - x / 4.0

    found = least_safe(excess, start=0.25, least=1e-3, most=1e3)
    assert found is not None
    assert 4.0 <= found <= 4.0 * (1 + 2e-3)
    assert least_safe(lambda _: float("nan"), start=0.25, least=1e-3, most=1e3) is None


def test_where_no_bound_is_found_the_noiseless_limit_stands(monkeypatch: pytest.MonkeyPatch) -> None:
    def lost(*_: object, **__: object) -> np.ndarray:
        return np.array([np.nan])

    monkeypatch.setattr(accountant, "kl_upper", lost)
    settings = {"rounds": 10, "prior": 1e-6}
    limit = accountant.posterior([0.1], noise_multiplier=0.0, **settings)
    assert accountant.posterior([0.1], noise_multiplier=1.0, **settings, bound="kl") == limit


@given(seed=st.integers(0, 2**31), small=st.integers(1, 20_000), rounds=st.sampled_from([1, 3]))
@settings(max_examples=20)
def test_rounding_where_many_masses_meet_is_covered(seed: int, small: int, rounds: int) -> None:
    # One large mass, then many that are lost one by one when they are added to it.
    tiny = np.random.default_rng(seed).uniform(0.2, 0.5, small) * np.finfo(np.float64).eps
    index, mass = np.append(np.zeros(1 + small, dtype=np.int64), 1), np.concatenate([[1.0], tiny, [1.0]])
    composed = compose([Term(index=index, mass=mass, rounds=rounds)], step=0.1, tilt=0.0, largest_size=1 << 12)
    assert isinstance(composed, Composed)
    share = mp.fsum(mass[:-1]) / mp.fsum(mass)
    exact = [mp.binomial(rounds, k) * share ** (rounds - k) * (1 - share) ** k for k in range(rounds + 1)]
    for k, truth in enumerate(exact):
        allowed = composed.growth * truth + composed.entry_error + composed.wrapped
        assert abs(mp.mpf(composed.tilted[k - composed.first]) - truth) <= allowed


@given(v=st.one_of(st.floats(-700, 700), st.floats(-1.5, 1.5), st.floats(-1e-3, 1e-3)))
def test_terms_of_the_kl_divergence_keep_their_digits(v: float) -> None:
    with mp.workdps(700):
        r = mp.exp(mp.mpf(v))
        exact = r * mp.mpf(v) - r + 1
        found = mp.mpf(float(excess_entropy(np.array([v]))[0]))
        assert abs(found - exact) <= 64 * mp.mpf(2) ** -52 * (1 + abs(v) / 64) * exact + mp.mpf(10) ** -300


def test_the_chance_of_an_idle_round_is_never_rounded_up() -> None:
    many = 2_000_000
    rates = np.random.default_rng(0).uniform(0, 1e-7, many)
    incidence = hush.Incidence.from_pairs(np.arange(many), np.zeros(many, dtype=int), num_examples=many, num_secrets=1)
    crowd = Crowd(incidence, rates, tail=1e-30)
    exact = math.fsum(np.log1p(-rates))
    assert exact * (1 + 1e-9) <= crowd.log_idle_S[0] <= exact


@pytest.mark.parametrize("sigma", [0.7411652166613376, 0.5137302])
def test_places_on_the_lattice_never_overflow(sigma: float) -> None:
    # Here one round's threshold nearly coincides with a ratio of 1, and asks for a step of 1e-21.
    lower = hush.posterior([0.001], noise_multiplier=sigma, rounds=2, prior=0.5, side="lower")
    upper = hush.posterior([0.001], noise_multiplier=sigma, rounds=2, prior=0.5)
    assert lower <= upper <= lower * (1 + 1e-3)

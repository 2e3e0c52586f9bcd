"""How many of a secret's examples a round draws: exactness, tails, and that every shortcut moves mass up."""

import math
from types import ModuleType

import mpmath
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray
from scipy import stats

from hush.accounting.counts import CountLaw, count_law, joined_law, poisson_law

Array = NDArray[np.float64]
few = settings(max_examples=40, deadline=None)
rate_lists = st.lists(st.floats(0.0, 1.0), min_size=1, max_size=12)


def _survival(law: CountLaw, upto: int) -> Array:
    """P(K >= k) for k = 0..upto; what is certain counts as above everything."""
    survival = np.full(upto + 1, law.certain)
    for k, mass in zip(law.counts.astype(int), law.mass, strict=True):
        survival[: k + 1] += mass
    return survival


@few
@given(rates=rate_lists)
def test_small_laws_are_those_of_an_enumeration(reference: ModuleType, rates: list[float]) -> None:
    law = count_law(np.array(rates), tail=1e-300)
    expected = reference.count_masses_by_enumeration(rates)
    found = np.zeros(len(rates) + 1)
    found[law.lowest : law.lowest + law.mass.size] = law.mass
    kept = expected > 1e-280
    np.testing.assert_allclose(found[kept], expected[kept], rtol=1e-12)
    assert law.mass.sum() + law.certain == pytest.approx(1.0, abs=1e-13)


@pytest.mark.parametrize("size", [1, 3, 40, 255, 256, 257, 400])
@pytest.mark.parametrize("scale", [1e-3, 0.05, 1.0])
def test_tails_keep_ten_digits(reference: ModuleType, size: int, scale: float) -> None:
    rates = scale * np.random.default_rng(size).uniform(0, 1, size)
    law = count_law(rates, tail=1e-200)
    exact = np.array([float(s) for s in reference.count_survival_in_high_precision(rates)])
    found = _survival(law, size)
    # What is conceded counts as above everything: at most as much as was allowed, and never less than the truth.
    assert np.all(found >= exact * (1 - 1e-10))
    assert np.all(found <= exact * (1 + 1e-10) + law.certain)
    assert law.certain <= 1e-200 * (1 + 1e-6)


@pytest.mark.parametrize("count", [10_000, 100_000])
def test_very_large_laws_of_equal_rates_are_binomial(count: int) -> None:
    rate = 0.0012
    law = count_law(np.full(count, rate), tail=1e-40)
    k = law.counts
    exact = stats.binom.sf(k - 1, count, rate)
    found = _survival(law, int(k[-1]))[k.astype(int)]
    # scipy's binomial is itself good to about 1e-11 here.
    assert np.all(found >= exact * (1 - 1e-9))
    assert np.all(found <= exact * (1 + 1e-9) + law.certain)
    assert law.certain <= 1e-40 * (1 + 1e-6)
    assert law.relative_error < 1e-9


@few
@given(rates=st.lists(st.floats(0.0, 1.0), min_size=1, max_size=400), exponent=st.floats(-30, -1))
def test_truncation_only_moves_mass_up(rates: list[float], exponent: float) -> None:
    array, tail = np.array(rates), 10.0**exponent
    whole, cut = count_law(array, tail=1e-300), count_law(array, tail=tail)
    upto = array.size
    assert np.all(_survival(cut, upto) >= _survival(whole, upto) * (1 - 1e-12))
    assert cut.certain <= tail * (1 + 1e-9)
    assert cut.log_idle == pytest.approx(whole.log_idle, rel=1e-12)


@few
@given(groups=st.lists(st.lists(st.floats(0.0, 0.5), min_size=1, max_size=30), min_size=1, max_size=6))
def test_a_joined_law_is_the_least_that_dominates_every_member(groups: list[list[float]]) -> None:
    arrays = [np.array(rates) for rates in groups]
    joined = joined_law(arrays, tail=1e-250)
    upto = max(array.size for array in arrays)
    members = np.array([_survival(count_law(array, tail=1e-250), upto) for array in arrays])
    found = _survival(joined, upto)
    assert np.all(found >= members * (1 - 1e-12))
    largest = members.max(axis=0)
    kept = largest > 1e-240
    assert np.all(found[kept] <= largest[kept] * (1 + 1e-10))
    assert joined.log_idle <= min(count_law(array, tail=1e-250).log_idle for array in arrays) + 1e-12


@few
@given(groups=st.lists(st.lists(st.floats(1e-6, 1.0), min_size=1, max_size=30), min_size=2, max_size=4))
def test_a_joined_law_dominates_to_the_last_digit(reference: ModuleType, groups: list[list[float]]) -> None:
    law = joined_law([np.array(rates) for rates in groups], tail=1e-250)
    with mpmath.workdps(60):  # sums of the very masses that are used from here on, without rounding
        above = [mpmath.mpf(law.certain) + mpmath.fsum(map(mpmath.mpf, law.mass[k:])) for k in range(law.mass.size)]
        for rates in groups:
            exact = reference.count_survival_in_high_precision(np.array(rates))
            for k, found in enumerate(above, law.lowest):
                assert k >= len(exact) or k == law.lowest or found >= exact[k]
    assert law.relative_error < 1e-15


def test_small_and_large_secrets_can_be_joined() -> None:
    rng = np.random.default_rng(0)
    arrays = [rng.uniform(0, 0.02, size) for size in (5, 200, 300, 2000)] + [np.full(1, 0.9)]
    joined = joined_law(arrays, tail=1e-30)
    for array in arrays:
        member = _survival(count_law(array, tail=1e-30), 200)
        # What a member concedes it may concede at a different count; beyond that the joined law is above it.
        assert np.all(_survival(joined, 200) >= member * (1 - 1e-11) - 1e-29)


@pytest.mark.parametrize("mean", [0.0, 1e-12, 1e-3, 0.7, 13.0, 500.0, 2e5])
def test_the_poisson_law_is_poisson_from_above(mean: float) -> None:
    law = poisson_law(mean, tail=1e-60)
    k = law.counts
    found = _survival(law, int(k[-1]))[k.astype(int)]
    exact = stats.poisson.sf(k - 1, mean) if mean > 0 else (k == 0).astype(float)
    # Rounding is allowed for by the law's own relative error.
    assert np.all(found >= exact * (1 - law.relative_error - 1e-9) - law.lifted)
    assert np.all(found <= exact * (1 + law.relative_error + 1e-9) + law.certain)
    assert law.certain <= 3e-60
    assert law.relative_error < 1e-7
    assert law.log_idle == -mean


@few
@given(rates=st.lists(st.floats(0.0, 0.99), min_size=1, max_size=40))
def test_the_poisson_law_of_the_idle_exponent_dominates_the_count(rates: list[float]) -> None:
    array = np.array(rates)
    mean = math.fsum(-np.log1p(-array))
    poisson = _survival(poisson_law(mean, tail=1e-100), array.size)
    assert np.all(poisson >= _survival(count_law(array, tail=1e-100), array.size) * (1 - 1e-9) - 1e-99)


@few
@given(rates=st.lists(st.floats(0.0, 0.999), min_size=1, max_size=300))
def test_the_chance_of_no_draw_keeps_its_digits(rates: list[float]) -> None:
    law = count_law(np.array(rates), tail=1e-30)
    assert law.log_idle == pytest.approx(math.fsum(math.log1p(-rate) for rate in rates), rel=1e-12, abs=1e-300)

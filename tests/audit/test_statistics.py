"""Limits and comparisons against exact sums of the binomial law, and against repetition."""

from fractions import Fraction
from math import comb
from typing import Any

import mpmath
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from hush.audit.statistics import Success, exceeded, holm_adjusted
from hush.errors import InvalidInput

LEVELS = st.floats(1e-9, 0.49)


def at_least(hits: int, runs: int, chance: Fraction) -> Fraction:
    """P(Bin(runs, chance) >= hits), exactly."""
    terms = (comb(runs, k) * chance**k * (1 - chance) ** (runs - k) for k in range(hits, runs + 1))
    return sum(terms, Fraction(0))


@st.composite
def successes(draw: st.DrawFn, most: int = 40) -> Success:
    runs = draw(st.integers(1, most))
    return Success(hits=draw(st.integers(0, runs)), runs=runs)


# --- limits


@given(successes(), LEVELS)
def test_the_lower_limit_is_where_the_exact_upper_tail_has_the_level(attack: Success, level: float) -> None:
    limit = attack.lower(level)
    if attack.hits == 0:
        assert limit == 0
        return
    assert at_least(attack.hits, attack.runs, Fraction(limit)) <= Fraction(level)
    higher = Fraction(min(1.0, limit * (1 + 1e-8)))
    assert at_least(attack.hits, attack.runs, higher) >= Fraction(level)


@given(successes(), LEVELS)
def test_the_upper_limit_is_where_the_exact_lower_tail_has_the_level(attack: Success, level: float) -> None:
    limit = attack.upper(level)
    if attack.hits == attack.runs:
        assert limit == 1
        return
    assert 1 - at_least(attack.hits + 1, attack.runs, Fraction(limit)) <= Fraction(level)
    lower = Fraction(limit) * Fraction(1 - 1e-8)
    assert 1 - at_least(attack.hits + 1, attack.runs, lower) >= Fraction(level)


@pytest.mark.parametrize(("hits", "runs"), [(3, 10**6), (499_000, 10**6), (40, 3 * 10**7), (19_000, 20_000)])
@pytest.mark.parametrize("level", [1e-9, 1e-2])
def test_limits_of_large_counts_keep_their_digits(hits: int, runs: int, level: float) -> None:
    """Tails summed term by term, outwards from the count, in high precision."""
    attack = Success(hits=hits, runs=runs)
    with mpmath.workdps(40):
        lower, upper = mpmath.mpf(attack.lower(level)), mpmath.mpf(attack.upper(level))
        assert level * (1 - 1e-4) < tail(hits, runs, lower) <= level
        assert level * (1 - 1e-4) < tail(runs - hits, runs, 1 - upper) <= level


def tail(hits: int, runs: int, chance: Any) -> Any:
    """P(Bin(runs, chance) >= hits) in mpmath, for hits above the mean."""
    log_choose = mpmath.loggamma(runs + 1) - mpmath.loggamma(hits + 1) - mpmath.loggamma(runs - hits + 1)
    term = total = mpmath.exp(log_choose + hits * mpmath.log(chance) + (runs - hits) * mpmath.log(1 - chance))
    for k in range(hits, runs):
        term *= chance / (1 - chance) * (runs - k) / (k + 1)
        total += term
        if term < total * mpmath.mpf("1e-20"):
            break
    return total


@given(st.integers(1, 30), st.floats(0, 1), st.sampled_from([0.01, 0.05, 0.2]))
def test_limits_are_wrong_with_at_most_the_stated_probability(runs: int, chance: float, level: float) -> None:
    """Coverage exactly: the probability of all counts whose limits miss the truth."""
    counts = [Success(hits=hits, runs=runs) for hits in range(runs + 1)]
    truth = Fraction(chance)
    mass = [comb(runs, k) * truth**k * (1 - truth) ** (runs - k) for k in range(runs + 1)]
    assert sum(m for m, c in zip(mass, counts, strict=True) if c.lower(level) > chance) <= level
    assert sum(m for m, c in zip(mass, counts, strict=True) if c.upper(level) < chance) <= level
    missed = [
        m for m, c in zip(mass, counts, strict=True) if not c.interval(level)[0] <= chance <= c.interval(level)[1]
    ]
    assert sum(missed) <= level


def test_coverage_holds_in_repetition() -> None:
    hits = np.random.default_rng(0).binomial(300, 0.07, size=4000)
    above = sum(Success(hits=int(h), runs=300).lower(0.05) > 0.07 for h in hits)
    assert above / 4000 < 0.05 + 4 * (0.05 / 4000) ** 0.5
    assert above > 0.02 * 4000  # nor are the limits needlessly wide


@given(successes(), LEVELS, st.floats(0.02, 1))
def test_the_p_value_is_the_exact_tail_and_agrees_with_the_limit(attack: Success, level: float, bound: float) -> None:
    p_value = attack.p_value(bound)
    assert p_value == pytest.approx(float(at_least(attack.hits, attack.runs, Fraction(bound))), rel=1e-9, abs=1e-300)
    if abs(p_value - level) > 1e-6 * level:
        assert (attack.lower(level) > bound) == (p_value < level)


@given(successes(), LEVELS, LEVELS)
def test_less_room_for_error_means_wider_limits(attack: Success, one: float, other: float) -> None:
    strict, lax = sorted((one, other))
    assert attack.lower(strict) <= attack.lower(lax) <= attack.rate <= attack.upper(lax) <= attack.upper(strict)


# --- families


@given(st.lists(st.floats(0, 1), max_size=12), st.floats(0.001, 0.4))
def test_holms_correction_is_his_procedure(p_values: list[float], level: float) -> None:
    """Step down: the smallest against level/m, the next against level/(m-1), until one fails."""
    rejected = [False] * len(p_values)
    for step, index in enumerate(sorted(range(len(p_values)), key=p_values.__getitem__)):
        if p_values[index] * (len(p_values) - step) > level:
            break
        rejected[index] = True
    assert (holm_adjusted(p_values) <= level).tolist() == rejected


def test_a_family_of_true_bounds_is_rarely_flagged_and_a_false_one_is_found() -> None:
    rng = np.random.default_rng(1)
    chance = rng.uniform(0.05, 0.9, size=30)
    flagged, found = 0, 0
    for _ in range(400):
        counts = [Success(hits=int(h), runs=200) for h in rng.binomial(200, chance)]
        flagged += bool(exceeded(counts, chance, level=0.05).any())
        understated = chance.copy()
        understated[7] /= 2
        found += bool(exceeded(counts, understated, level=0.05)[7])
    assert flagged <= 0.05 * 400 + 4 * (0.05 * 400) ** 0.5
    assert found > 0.9 * 400


# --- what is refused


@pytest.mark.parametrize(("hits", "runs"), [(-1, 3), (4, 3), (0, 0), (1.5, 3)])
def test_impossible_counts_are_refused(hits: int, runs: int) -> None:
    with pytest.raises(InvalidInput, match="hits"):
        Success(hits=hits, runs=runs)


@pytest.mark.parametrize("level", [0.0, 0.99, float("nan")])
def test_a_confidence_in_place_of_a_level_is_refused(level: float) -> None:
    with pytest.raises(InvalidInput, match="probability of error"):
        Success(hits=1, runs=2).lower(level)


def test_bounds_that_are_no_probabilities_are_refused() -> None:
    with pytest.raises(InvalidInput, match="not a probability"):
        exceeded([Success(hits=1, runs=2)], [float("nan")])
    with pytest.raises(InvalidInput, match="one bound for each"):
        exceeded([Success(hits=1, runs=2)], [0.1, 0.2])

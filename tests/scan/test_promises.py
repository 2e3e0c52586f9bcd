"""Promises of a rules file: priors from public formats are rounded up, and partial promises are completed."""

from fractions import Fraction
from math import inf, nextafter
from uuid import uuid4

import mpmath
import pytest
from hypothesis import given
from hypothesis import strategies as st

import hush
from hush.accounting.arguments import LEAST_PRIOR as ACCOUNTED
from hush.errors import InvalidInput
from hush.protection import Protection
from hush.scan.rules.promises import ALPHABETS, GENERATORS, LEAST_PRIOR, Format, Promise, prior_among, protection_of

probabilities = st.floats(1e-300, 1.0, exclude_max=True)


@given(values=st.integers(2, 10**350) | st.integers(0, 1100).map(lambda power: 2**power + 1))
def test_a_prior_is_the_least_double_that_is_not_too_small(values: int) -> None:
    prior = prior_among(values)
    exact = Fraction(1, values)
    assert Fraction(prior) >= exact
    assert prior >= LEAST_PRIOR
    below = nextafter(prior, -inf)
    assert prior == LEAST_PRIOR or Fraction(below) < exact


def test_the_smallest_prior_is_the_one_that_the_accountant_takes() -> None:
    assert LEAST_PRIOR == ACCOUNTED
    prior = Format(alphabet="printable", length=4096).prior
    assert prior <= hush.posterior([1e-3], noise_multiplier=1.0, rounds=2, prior=prior) < 1


@given(alphabet=st.integers(2, 300), length=st.integers(1, 200))
def test_an_alphabet_and_a_length_agree_with_high_precision(alphabet: int, length: int) -> None:
    with mpmath.workdps(60):
        exact = mpmath.mpf(alphabet) ** -length
        relative = mpmath.mpf(Format(alphabet=alphabet, length=length).prior) / exact
        assert 1 <= relative <= 1 + mpmath.mpf(2) ** -51 or exact < LEAST_PRIOR


@pytest.mark.parametrize("name", ALPHABETS)
def test_longer_secrets_are_never_likelier(name: str) -> None:
    priors = [Format(alphabet=name, length=length).prior for length in range(2, 60)]
    assert priors == sorted(priors, reverse=True)


def test_encodings_of_bytes_have_as_many_values_as_the_bytes() -> None:
    from base64 import b32encode, b64encode

    for size in range(1, 40):
        for name, encode in (("base64", b64encode), ("base32", b32encode)):
            letters = len(encode(bytes(size)).rstrip(b"="))
            assert Format(alphabet=name, length=letters).values == 256**size


def test_generators_count_what_they_can_make() -> None:
    fixed = {place for place in range(32) if len({uuid4().hex[place] for _ in range(200)}) < 16}
    assert fixed == {12, 16}  # the version, and the variant of four values
    assert GENERATORS["uuid4"] == 16**30 * 4
    # The last digit of four follows from the three before it.
    assert sum(luhn(f"{number:04d}") for number in range(10**4)) == 10**3
    assert GENERATORS["luhn16"] == 10**15


def luhn(digits: str) -> bool:
    doubled = [int(digit) * (2 if place % 2 else 1) for place, digit in enumerate(reversed(digits))]
    return sum(value - 9 if value > 9 else value for value in doubled) % 10 == 0


@given(own=st.none() | probabilities, rules=st.none() | probabilities, default=probabilities)
def test_the_promise_nearest_to_the_secret_counts(own: float | None, rules: float | None, default: float) -> None:
    chain = [None if prior is None else Promise(prior=prior) for prior in (own, rules, default)]
    found = protection_of(*chain, Promise(ceiling=nextafter(1.0, 0.0)))
    assert found.priors == (next(prior for prior in (own, rules, default) if prior is not None),)


def test_points_stand_for_themselves() -> None:
    points = Promise(points=((1e-4, 0.1), (1e-10, 1e-3)))
    assert protection_of(points, Promise(prior=0.5, ceiling=0.6)) == Protection.of((1e-10, 1e-3), (1e-4, 0.1))
    with pytest.raises(InvalidInput, match="no ceiling is promised"):
        protection_of(Promise(prior=1e-5), points)


def test_half_a_promise_is_none() -> None:
    with pytest.raises(InvalidInput, match="no prior and no ceiling is promised"):
        protection_of(None, None)
    with pytest.raises(InvalidInput, match="no prior is promised"):
        protection_of(Promise(ceiling=0.1))


@given(prior=probabilities, ceiling=probabilities)
def test_a_prior_above_its_ceiling_is_refused_and_no_other(prior: float, ceiling: float) -> None:
    promise = Promise(prior=prior, ceiling=ceiling)
    if prior <= ceiling:
        assert protection_of(promise) == Protection(prior, ceiling)
    else:
        with pytest.raises(InvalidInput, match="is above the ceiling"):
            protection_of(promise)

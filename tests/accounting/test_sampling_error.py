"""What computed draws and noise add to a posterior: never understated, and room for it is left below every ceiling."""

from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import hush
from hush.accounting.sampling_error import (
    MAX_NOISE_STREAMS,
    planning_ceiling,
    sampling_error,
    with_sampling_error,
)
from hush.errors import InvalidInput


@given(st.integers(0, 10**13), st.floats(1e-3, 1e8), st.integers(1, 10**6))
def test_the_sampling_error_is_the_exact_sum_rounded_up(parameters: int, batch: float, rounds: int) -> None:
    draws = Fraction(rounds, 2**58) * (Fraction(batch) / 4 + 60)
    noise = Fraction(rounds, 2**64) * (parameters + 4 * MAX_NOISE_STREAMS)
    found = Fraction(sampling_error(parameters, batch_size=batch, rounds=rounds))
    exact = min(draws + noise, Fraction(1))
    assert exact <= found <= exact * (1 + Fraction(1, 10**14))


def test_more_parameters_rounds_or_examples_never_lower_it() -> None:
    few = sampling_error(10, batch_size=4, rounds=7)
    assert few < sampling_error(10**9, batch_size=4, rounds=7)
    assert few < sampling_error(10, batch_size=4e6, rounds=7)
    assert few < sampling_error(10, batch_size=4, rounds=8)
    assert sampling_error(10**18, batch_size=4, rounds=1000) == 1.0


@given(st.floats(1e-12, 1), st.floats(0, 1))
def test_adding_it_never_rounds_down_and_a_probability_stays_one(posterior: float, error: float) -> None:
    total = Fraction(float(with_sampling_error(np.array([posterior]), error)[0]))
    assert min(Fraction(posterior) + Fraction(error), Fraction(1)) <= total <= 1


@given(st.floats(1e-12, 0.99), st.floats(0, 1))
def test_the_target_of_a_plan_lies_between_prior_and_ceiling(prior: float, share: float) -> None:
    ceiling = prior + share * (1 - prior)
    target = float(planning_ceiling(np.array(prior), np.array(ceiling)))
    assert prior <= target <= ceiling
    if ceiling > prior * 1.01:
        assert ceiling - target >= 0.999e-3 * (ceiling - prior)


def test_a_promise_that_can_be_kept_without_noise_can_still_be_planned() -> None:
    incidence = hush.Incidence.from_pairs([0], [0], num_examples=10, num_secrets=1)
    plan = hush.make_plan(incidence, prior=0.5, ceiling=0.5001, batch_size=1, rounds=10)
    assert 0.5 <= float(plan.posterior[0, 0]) < 0.5001


@pytest.mark.parametrize("parameters", [-1, 2.5, "many"])
def test_what_is_no_number_of_parameters_is_refused(parameters: object) -> None:
    with pytest.raises(InvalidInput, match="trained_parameters"):
        sampling_error(parameters, batch_size=4, rounds=7)  # type: ignore[arg-type]

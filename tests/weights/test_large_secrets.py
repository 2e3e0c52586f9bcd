"""Weights for graphs as code bases have them: secrets that are nested, duplicated, or in nearly all examples."""

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from weights_instances import CODE_BASE_EXAMPLES, CODE_BASE_LARGEST, assert_exactly_certified, code_base_like

import hush
from hush.weights import Program, solve_program, solve_weights
from hush.weights.sparse_kernels import scale_rows

SETTINGS = [  # share kept, batch size, rounds
    (0.9, 256, 1000), (0.5, 256, 1000), (0.9, 1024, 300), (0.5, 1024, 300), (0.2, 512, 500),
    (0.8, 2048, 100), (0.95, 64, 3000), (0.3, 64, 3000), (0.7, 4096, 50), (0.99, 128, 2000),
]  # fmt: skip


def test_one_secret_in_nearly_all_examples_is_proven_at_any_capacity() -> None:
    """Sums of 66,660 equal terms are off by up to 1e-12, which filled up the row beyond its capacity."""
    example, size = np.random.default_rng(0).permutation(CODE_BASE_EXAMPLES)[:CODE_BASE_LARGEST], CODE_BASE_LARGEST
    incidence = hush.Incidence.from_pairs(example, np.zeros(size, int), num_examples=CODE_BASE_EXAMPLES, num_secrets=1)
    program = Program.of(incidence, np.inf)
    for capacity in np.random.default_rng(1).uniform(1.0, size, 8):
        weights = solve_program(program.with_capacity(capacity))
        assert math.fsum([*weights.values[example].tolist(), -capacity]) <= 0
        assert weights.gap < 1e-11


@settings(max_examples=3)
@given(st.integers(0, 2**32), st.integers(0, 20))
def test_nested_duplicated_and_very_large_secrets_are_proven(seed: int, num_small: int) -> None:
    incidence, capacity = code_base_like(seed, num_small)
    assert_exactly_certified(solve_weights(incidence, capacity), incidence, capacity)


@pytest.mark.slow
@settings(max_examples=60)
@given(st.integers(0, 2**32), st.integers(100, 2000), st.sampled_from([1e-2, 1e-4, 1e-7]))
def test_many_secrets_of_a_code_base_are_proven(seed: int, num_small: int, tolerance: float) -> None:
    incidence, capacity = code_base_like(seed, num_small)
    assert_exactly_certified(solve_weights(incidence, capacity, tolerance=tolerance), incidence, capacity)


@pytest.mark.slow
@pytest.mark.parametrize(("keep", "batch_size", "rounds"), SETTINGS)
def test_a_code_base_is_planned_in_every_setting(keep: float, batch_size: int, rounds: int) -> None:
    incidence, _ = code_base_like(3, 300)
    some = np.arange(incidence.num_secrets) % 3 == 0
    prior, ceiling = np.where(some, 1e-10, 1e-6), np.where(some, 1e-3, 1e-2)
    plan = hush.make_plan(
        incidence, prior=prior, ceiling=ceiling, batch_size=batch_size, rounds=rounds, keep=keep, bound="kl"
    )
    assert plan.weights_gap <= 1e-4


@given(st.lists(st.floats(0.0, 1.0), min_size=1, max_size=40), st.integers(-60, 2))
def test_a_row_is_scaled_where_its_exact_sum_may_exceed_its_capacity(values: list[float], ulps: int) -> None:
    """Capacities a few roundings around the sum, where a plain sum does not decide."""
    capacity = max(math.fsum(values) * (1 + ulps * 2.0**-52), 1e-290)
    excess = math.fsum([*values, -capacity])
    value, column, offset = np.array(values), np.arange(len(values)), np.array([0, len(values)])
    scale_rows(offset, column, np.array([capacity]), np.array([sum(values)]), 2.0**-52, value)
    assert math.fsum([*value.tolist(), -capacity]) <= 0
    if (value != values).any():
        assert excess > -1e-26 * capacity
    assert math.fsum(value.tolist()) >= min(capacity, math.fsum(values)) * (1 - 1e-14)

"""Laws of a sweep: points may help each other, and every answer is as good as one found alone."""

import os
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from weights_instances import assert_certified, optimum, paper_like, problems

import hush
from hush.weights import Program, Weights, solve, solve_several, solve_weights

STRENGTHS = [10.0, 20.0, 40.0, 250.0, 500.0, 1000.0, 2000.0, 4000.0, 1e5]


@given(problems(), st.lists(st.sampled_from([0.0, 1e-3, 0.1, 0.5, 1.0, 2.0, 30.0]), max_size=6))
def test_every_point_of_a_sweep_is_within_its_gap_of_the_optimum(problem, factors: list[float]) -> None:
    incidence, capacity, upper = problem
    capacities = [np.multiply(factor, capacity, where=capacity < np.inf, out=capacity.copy()) for factor in factors]
    program = Program.of(incidence, np.inf, upper=upper)
    answers = list(solve_several(program, capacities, tolerance=1e-3))
    assert len(answers) == len(factors)
    for point, weights in zip(capacities, answers, strict=True):
        assert_certified(weights, incidence, point, upper)
        best = optimum(incidence, point, upper)
        assert weights.gap <= 1e-3
        # scipy's optimum is itself off by its tolerances, 1e-7 for each row
        assert weights.objective >= best * (1 - 1e-3) - 1e-5
        assert weights.bound >= best - 1e-5


@pytest.mark.parametrize("step", [1, -1])
def test_a_sweep_and_single_solves_agree_to_their_gaps(step: int) -> None:
    incidence, shape = paper_like(300, seed=4)
    strengths = STRENGTHS[::step]
    together = solve_several(Program.of(incidence, np.inf), [c * shape for c in strengths])
    for c, weights in zip(strengths, together, strict=True):
        alone = solve_weights(incidence, c * shape)
        assert_certified(weights, incidence, c * shape, 1.0)
        assert weights.gap <= 1e-4
        assert weights.objective <= alone.bound
        assert alone.objective <= weights.bound


def test_a_sweep_does_not_depend_on_the_cores(monkeypatch: pytest.MonkeyPatch) -> None:
    incidence, shape = paper_like(300, seed=4)

    def sweep(cores: int) -> list[Weights]:
        monkeypatch.setattr(os, "cpu_count", lambda: cores)
        return list(solve_several(Program.of(incidence, np.inf), [c * shape for c in STRENGTHS]))

    for one, other in zip(sweep(1), sweep(3), strict=True):
        assert (one.values == other.values).all()
        assert one.bound == other.bound


def test_points_at_which_no_upper_bound_counts_are_solved_once(monkeypatch: pytest.MonkeyPatch) -> None:
    incidence, shape = paper_like(300, seed=4)
    strengths = [3.0, 20.0, 7.0, 1000.0]  # capacities up to 0.3 for the first three
    alone: list[float] = []
    solve_program = solve.solve_program

    def counted(program: Program, **options: Any) -> Weights:
        alone.append(float(program.capacity_S[0] / shape[0]))
        return solve_program(program, **options)

    monkeypatch.setattr(solve, "solve_program", counted)
    first, second, third, _ = solve_several(Program.of(incidence, np.inf), [c * shape for c in strengths])
    assert sorted(alone) == pytest.approx([20.0, 1000.0])
    touched = incidence.secrets_per_example > 0
    for c, weights in ((3.0, first), (7.0, third)):
        assert weights.values[touched].sum() == pytest.approx(c / 20 * second.values[touched].sum(), rel=1e-9)


def test_a_share_of_an_answer_that_proves_too_little_is_solved_afresh(monkeypatch: pytest.MonkeyPatch) -> None:
    incidence, shape = paper_like(50, seed=4)

    def prove_nothing(program: Program, *_: Any, **__: Any) -> Weights:
        values, dual = np.zeros(program.num_columns), np.zeros(program.num_rows)
        bound = float(program.num_columns)
        return Weights(values=values, dual=dual, start=dual, objective=0.0, bound=bound, gap=1.0, upper=1.0)

    monkeypatch.setattr(solve, "certify", prove_nothing)
    small, large = solve_several(Program.of(incidence, np.inf), [10 * shape, 20 * shape])
    assert small.gap <= 1e-4
    assert_certified(small, incidence, 10 * shape, 1.0)
    assert large.gap <= 1e-4


def test_a_sweep_over_no_examples_has_nothing_to_share() -> None:
    empty = hush.Incidence.from_pairs([], [], num_examples=0, num_secrets=2)
    found = list(solve_several(Program.of(empty, np.inf), [np.inf, np.inf, 1.0, 0.0]))
    assert [(weights.objective, weights.bound) for weights in found] == [(0.0, 0.0)] * 4


def test_a_sweep_may_be_left_early() -> None:
    incidence, shape = paper_like(50, seed=4)
    sweep: Any = solve_several(Program.of(incidence, np.inf), [c * shape for c in (100.0, 200.0, 400.0)])
    assert next(sweep).gap <= 1e-4
    sweep.close()

"""Certification believes nothing: whatever a solver returns, the numbers that come out hold."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from weights_instances import assert_exactly_certified, optimum, problems

import hush
from hush.weights import Program, solve_weights
from hush.weights.linear_program import Candidate, Task, certify, relative_gap
from hush.weights.solve import SOLVERS
from hush.weights.sparse_kernels import uncovered_sum

anything = st.floats(allow_nan=True, allow_infinity=True)


@given(problems(), st.data())
def test_any_two_candidates_give_a_feasible_point_and_a_valid_bound(problem, data: st.DataObject) -> None:
    incidence, capacity, upper = problem
    primal = data.draw(st.lists(anything, min_size=incidence.num_examples, max_size=incidence.num_examples))
    dual = data.draw(st.lists(anything, min_size=incidence.num_secrets, max_size=incidence.num_secrets))
    proof = certify(Program.of(incidence, capacity, upper=upper), primal, dual)
    assert ((proof.values >= 0) & (proof.values <= upper)).all()
    assert (incidence.to_scipy().T.astype(float) @ proof.values <= capacity * (1 + 1e-12)).all()
    assert proof.objective == pytest.approx(proof.values.sum(), rel=1e-12)
    best = optimum(incidence, capacity, upper)
    assert proof.objective <= best + 1e-5
    assert proof.bound >= best - 1e-5
    assert proof.bound >= proof.objective


@given(problems(), st.data())
def test_capacities_bound_and_gap_hold_in_exact_arithmetic(problem, data: st.DataObject) -> None:
    incidence, capacity, upper = problem
    near_one = st.one_of(st.floats(0.0, 1.0), st.sampled_from([1 / 3, 0.1, 1 - 2**-53, 1e-300]))
    primal = data.draw(st.lists(near_one, min_size=incidence.num_examples, max_size=incidence.num_examples))
    dual = data.draw(st.lists(near_one, min_size=incidence.num_secrets, max_size=incidence.num_secrets))
    proof = certify(Program.of(incidence, capacity, upper=upper), np.multiply(upper, primal), dual)
    assert_exactly_certified(proof, incidence, capacity)


@given(problems())
def test_a_feasible_candidate_loses_nothing(problem) -> None:
    incidence, capacity, upper = problem
    program = Program.of(incidence, capacity, upper=upper)
    some = certify(program, np.full(incidence.num_examples, upper), np.zeros(incidence.num_secrets))
    again = certify(program, some.values * 0.5, some.dual)
    assert again.objective >= 0.5 * some.objective * (1 - 1e-12)
    assert again.bound <= some.bound * (1 + 1e-12)


@given(problems(), st.lists(st.floats(0.0, 2.0), min_size=6, max_size=6))
def test_polishing_never_raises_the_bound(problem, duals: list[float]) -> None:
    incidence, capacity, upper = problem
    program = Program.of(incidence, capacity, upper=upper)
    dual = np.array(duals[: incidence.num_secrets])
    primal = np.zeros(incidence.num_examples)
    plain = certify(program, primal, dual, tolerance=1.0)
    assert certify(program, primal, dual, tolerance=0.0).bound <= plain.bound


def test_an_optimal_pair_has_a_gap_of_rounding_size() -> None:
    incidence = hush.Incidence.from_pairs([0, 1, 1, 2], [0, 0, 1, 1], num_examples=3, num_secrets=2)
    proof = certify(Program.of(incidence, [1.0, 1.0]), [1.0, 0.0, 1.0], [1.0, 1.0])
    assert proof.objective == pytest.approx(2.0)
    assert proof.gap < 1e-14


def test_the_gap_is_zero_where_nothing_can_be_had() -> None:
    assert relative_gap(0.0, 0.0) == 0.0
    incidence = hush.Incidence.from_pairs([0], [0], num_examples=1, num_secrets=1)
    assert solve_weights(incidence, 0.0).gap == 0.0


def test_examples_with_many_secrets_are_proven_to_weigh_nothing_where_they_cannot() -> None:
    """The rounding of a price grows with its terms, and 0 leaves no room for it."""
    examples = np.repeat(np.arange(3), 100)
    incidence = hush.Incidence.from_pairs(examples, np.tile(np.arange(100), 3), num_examples=3, num_secrets=100)
    found = solve_weights(incidence, np.where(np.arange(100) < 99, 1.0, 0.0))
    assert (found.objective, found.bound, found.gap) == (0.0, 0.0, 0.0)


def liar(kind: str):
    """A solver that returns what it should not."""

    def solver(task: Task) -> Candidate:
        n, m = task.program.num_columns, task.program.num_rows
        rng = np.random.default_rng(0)
        primal, dual = {
            "zero": (np.zeros(n), np.zeros(m)),
            "nan": (np.full(n, np.nan), np.full(m, np.nan)),
            "infinite": (np.full(n, np.inf), np.full(m, np.inf)),
            "infeasible": (np.full(n, 1e9), np.full(m, -1.0)),
            "garbage": (rng.normal(size=n), rng.normal(size=m)),
            "short": (np.ones(max(n - 1, 0)), np.ones(m + 1)),
        }[kind]
        return Candidate(primal, dual)

    return solver


@pytest.mark.parametrize("kind", ["zero", "nan", "infinite", "infeasible", "garbage", "short"])
@given(problem=problems())
def test_a_solver_that_lies_yields_a_certified_answer_or_none(kind: str, problem) -> None:
    incidence, capacity, upper = problem
    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(SOLVERS, "simplex", liar(kind))
        patch.setitem(SOLVERS, "newton", liar(kind))
        try:
            weights = solve_weights(incidence, capacity, upper=upper, tolerance=0.01)
        except hush.CannotCertify:
            return
    best = optimum(incidence, capacity, upper)
    assert weights.gap <= 0.01
    assert weights.objective >= best * 0.99 - 1e-5
    assert (incidence.to_scipy().T.astype(float) @ weights.values <= capacity * (1 + 1e-12)).all()


@pytest.mark.parametrize(("objective", "bound"), [(1.0, np.nan), (np.nan, 1.0), (1.0, np.inf), (np.inf, np.inf)])
def test_a_gap_that_is_no_number_is_never_small(objective: float, bound: float) -> None:
    assert relative_gap(objective, bound) == np.inf


def test_a_price_that_is_no_number_leaves_no_bound() -> None:
    total = uncovered_sum(np.array([0, 1, 2]), np.array([np.nan, 0.0]), np.ones(2), 2.0**-52)
    assert not np.isfinite(total)

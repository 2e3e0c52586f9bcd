"""Laws of the weights: feasible, as good as certified, and indifferent to the route by which they were found."""

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from weights_instances import assert_certified, optimum, paper_like, problems

import hush
from hush.weights import Program, Weights, solve_program, solve_weights
from hush.weights.linear_program import Task
from hush.weights.solve import SOLVERS


@given(problems(), st.sampled_from([None, *SOLVERS]))
def test_weights_are_feasible_and_within_the_gap_of_the_optimum(problem, solver) -> None:
    incidence, capacity, upper = problem
    weights = solve_weights(incidence, capacity, upper=upper, tolerance=1e-3, solver=solver)
    assert_certified(weights, incidence, capacity, upper)
    best = optimum(incidence, capacity, upper)
    assert weights.gap <= 1e-3
    # scipy's optimum is itself off by its tolerances, 1e-7 for each row
    assert weights.objective >= best * (1 - 1e-3) - 1e-5
    assert weights.bound >= best - 1e-5


@pytest.mark.parametrize("strength", [20, 200, 1000, 4000, 20_000])
@pytest.mark.parametrize("solver", [None, *SOLVERS])
def test_all_solvers_agree_to_the_certified_gap(strength: float, solver: str | None) -> None:
    incidence, shape = paper_like(120, seed=1)
    weights = solve_weights(incidence, strength * shape, solver=solver)
    assert_certified(weights, incidence, strength * shape, 1.0)
    best = optimum(incidence, strength * shape, 1.0)
    assert weights.gap <= 1e-4
    assert weights.objective <= best * (1 + 1e-7)
    assert weights.bound >= best * (1 - 1e-7)


def test_a_large_capacity_keeps_every_example() -> None:
    incidence, _ = paper_like(50, seed=2)
    for capacity in (np.inf, 1000.0):
        assert (solve_weights(incidence, capacity).values == 1.0).all()


def test_at_a_small_capacity_a_vertex_weighs_at_most_as_many_examples_as_there_are_secrets() -> None:
    incidence, shape = paper_like(60, seed=3)
    touched = incidence.secrets_per_example > 0
    capacity = 10 * shape
    weights = SOLVERS["simplex"](Task(program=Program.of(incidence, capacity))).primal_N
    assert np.count_nonzero(weights[touched] > 1e-9) <= incidence.num_secrets
    assert weights.sum() == pytest.approx(optimum(incidence, capacity, 1.0), rel=1e-6)


@pytest.mark.parametrize("solver", SOLVERS)
def test_where_reductions_fall_short_the_whole_program_may_have_infinite_capacities(solver: str) -> None:
    incidence, shape = paper_like(60, seed=3)
    capacity = np.where(np.arange(60) % 3, 10 * shape, np.inf)
    found = SOLVERS[solver](Task(program=Program.of(incidence, capacity), tolerance=1e-6))
    assert found.primal_N.sum() == pytest.approx(optimum(incidence, capacity, 1.0), rel=1e-3)


def test_the_whole_program_may_have_secrets_that_no_example_contains() -> None:
    incidence = hush.Incidence.from_pairs([0, 1, 1, 2], [0, 0, 2, 2], num_examples=3, num_secrets=4)
    for solver in SOLVERS.values():
        found = solver(Task(program=Program.of(incidence, 0.75), tolerance=1e-6))
        assert found.primal_N.sum() == pytest.approx(1.5, rel=1e-3)


@given(problems(), st.sampled_from([None, *SOLVERS]), st.data())
def test_capacities_too_small_to_compute_with_count_as_none_and_all_are_kept(problem, solver, data) -> None:
    incidence, capacity, upper = problem
    tiny = st.sampled_from([5e-324, 1e-320, 2.2250738585072014e-308, 1e-300, 9e-291])
    few = np.array(data.draw(st.lists(st.none() | tiny, min_size=len(capacity), max_size=len(capacity))), dtype=float)
    small = np.where(np.isnan(few), capacity, few)
    weights = solve_weights(incidence, small, upper=upper, tolerance=1e-3, solver=solver)
    assert_certified(weights, incidence, small, upper)
    without = solve_weights(
        incidence, np.where(np.isnan(few), capacity, 0.0), upper=upper, tolerance=1e-3, solver=solver
    )
    assert np.array_equal(weights.values, without.values)


@pytest.mark.parametrize("solver", [None, *SOLVERS])
@pytest.mark.parametrize("capacity", [1e-308, 1e-200])
def test_a_dense_corner_with_tiny_capacities_ends_in_a_certificate_or_a_refusal(solver, capacity) -> None:
    pairs = [(0, 1), (0, 2), (1, 0), (1, 2), (2, 0), (2, 1), (3, 2), (3, 3), (4, 1), (4, 3)]
    incidence = hush.Incidence.from_pairs(*zip(*pairs, strict=True), num_examples=5, num_secrets=5)
    try:
        weights = solve_weights(incidence, capacity, upper=0.3, solver=solver)
    except hush.CannotCertify:
        assert solver == "newton"  # by itself it may fall short; with the others at hand nothing is refused
        return
    assert_certified(weights, incidence, np.full(5, capacity), 0.3)


@given(problems(), st.floats(1.0, 4.0))
def test_more_capacity_never_lowers_the_optimum(problem, factor: float) -> None:
    incidence, capacity, upper = problem
    less = solve_weights(incidence, capacity, upper=upper, tolerance=1e-3)
    more = solve_weights(incidence, capacity * factor, upper=upper, tolerance=1e-3)
    assert more.bound >= less.objective * (1 - 1e-12)


@given(problems(), st.floats(0.1, 10.0))
def test_weights_scale_with_their_bound_and_capacities(problem, factor: float) -> None:
    incidence, capacity, upper = problem
    one = solve_weights(incidence, capacity, upper=upper, tolerance=1e-3)
    scaled = solve_weights(incidence, capacity * factor, upper=upper * factor, tolerance=1e-3)
    assert scaled.objective <= one.bound * factor * (1 + 1e-9)
    assert scaled.bound >= one.objective * factor * (1 - 1e-9)


@pytest.mark.parametrize("factor", [0.5, 1.0, 1.01, 3.0])
def test_a_warm_start_changes_the_route_and_not_the_promise(factor: float) -> None:
    incidence, shape = paper_like(300, seed=4)
    program = Program.of(incidence, 1000 * shape)
    first = solve_program(program, solver="newton")
    warm = solve_program(program.with_capacity(1000 * factor * shape), warm_start=first, solver="newton")
    cold = solve_program(program.with_capacity(1000 * factor * shape), solver="newton")
    assert_certified(warm, incidence, 1000 * factor * shape, 1.0)
    assert warm.gap <= 1e-4
    assert warm.objective <= cold.bound
    assert cold.objective <= warm.bound


def test_a_close_start_saves_steps() -> None:
    incidence, shape = paper_like(2000, seed=4)
    program = Program.of(incidence, 1000 * shape)
    cold: list[int] = []
    first = solve_program(program, solver="newton", progress=lambda done, total: cold.append(done))
    warm: list[int] = []
    near = program.with_capacity(1010 * shape)
    solve_program(near, solver="newton", warm_start=first, progress=lambda done, total: warm.append(done))
    assert len(warm) < len(cold)


def test_high_accuracy_is_reached_where_it_is_asked() -> None:
    incidence, shape = paper_like(100, seed=5)
    assert solve_weights(incidence, 1000 * shape, tolerance=1e-9).gap <= 1e-9


def test_equal_examples_get_equal_weights() -> None:
    incidence = hush.Incidence.from_pairs([0, 1, 2, 3, 3], [0, 0, 0, 0, 1], num_examples=4, num_secrets=2)
    weights = solve_weights(incidence, [1.5, 0.25])
    assert weights.values[:3].tolist() == [0.5] * 3


def test_the_same_question_has_the_same_answer_bit_for_bit() -> None:
    incidence, shape = paper_like(2000, seed=6)  # enough entries for several threads
    one, two = (solve_weights(incidence, 2000 * shape, tolerance=1e-2) for _ in range(2))
    assert (one.values == two.values).all()
    assert one.bound == two.bound


def test_progress_rises_to_its_total() -> None:
    incidence, shape = paper_like(300, seed=7)
    calls: list[tuple[int, int]] = []
    solve_weights(incidence, 2000 * shape, solver="newton", progress=lambda done, total: calls.append((done, total)))
    assert calls
    assert all(0 <= done <= total for done, total in calls)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"capacity": [1.0, np.nan]}, r"capacity\[1\]=nan"),
        ({"capacity": -1.0}, r"capacity\[0\]=-1.0"),
        ({"capacity": [1.0]}, "shape"),
        ({"capacity": [[1.0, 1.0]]}, "shape"),
        ({"capacity": "much"}, "number"),
        ({"upper": 0.0}, "upper=0.0"),
        ({"upper": 1e-300}, "upper=1e-300"),
        ({"upper": np.inf}, "upper=inf"),
        ({"upper": "one"}, "upper='one'"),
        ({"upper": 10**400}, "upper=10"),
        ({"capacity": [1.0, 10**400]}, "number"),
        ({"tolerance": 10**400}, "tolerance=10"),
        ({"tolerance": 0.0}, "tolerance=0.0"),
        ({"tolerance": np.nan}, "tolerance=nan"),
        ({"tolerance": "fine"}, "tolerance='fine'"),
        ({"solver": "oracle"}, "solver='oracle'"),
    ],
)
def test_bad_input_is_named_before_any_work(changes: dict[str, object], message: str) -> None:
    incidence = hush.Incidence.from_pairs([0, 1], [0, 1], num_examples=2, num_secrets=2)
    arguments = {"capacity": 1.0} | changes
    with pytest.raises(hush.InvalidInput, match=message):
        solve_weights(incidence, **arguments)  # pyright: ignore[reportArgumentType]


def test_a_warm_start_from_another_graph_is_refused() -> None:
    small = hush.Incidence.from_pairs([0], [0], num_examples=1, num_secrets=1)
    large = hush.Incidence.from_pairs([0, 1], [0, 0], num_examples=2, num_secrets=1)
    with pytest.raises(hush.InvalidInput, match="warm_start has 1 examples"):
        solve_weights(large, 1.0, warm_start=solve_weights(small, 1.0))


def test_weights_that_break_their_promise_refuse_to_exist() -> None:
    good: dict[str, Any] = {
        "values": np.ones(2),
        "dual": np.zeros(1),
        "start": np.zeros(1),
        "upper": 1.0,
        "solver": "",
        "seconds": 0.0,
    }
    with pytest.raises(hush.CannotCertify, match="contradict"):
        Weights(objective=2.0, bound=1.0, gap=0.0, **good)
    good["values"] = np.array([0.5, 1.5])
    with pytest.raises(hush.CannotCertify, match="leave"):
        Weights(objective=2.0, bound=2.0, gap=0.0, **good)


def test_the_repr_shows_sizes_and_gap_only() -> None:
    incidence = hush.Incidence.from_pairs([0], [0], num_examples=1, num_secrets=1)
    assert repr(solve_weights(incidence, 2.0)).startswith("Weights(1 examples, objective=1, gap=")

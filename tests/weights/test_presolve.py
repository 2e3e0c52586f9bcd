"""Reductions are exact: they never change the optimum, and the way back keeps feasibility and proof."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from weights_instances import optimum, paper_like, problems

import hush
from hush.weights import presolve
from hush.weights.linear_program import Program, Task, certify
from hush.weights.presolve import Reduction, reduced, unreduced
from hush.weights.solve import simplex


def reduced_with(few: float, program: Program) -> Reduction:
    """As ``reduced``, with another share of rows up to which decisions note what they touch: 0 never, 1 always."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(presolve, "MAX_TRACKED_SHARE", few)
        return reduced(program)


@given(problems(), st.sampled_from([0.0, 1.0]))
def test_reduction_never_changes_the_optimum(problem, few: float) -> None:
    incidence, capacity, upper = problem
    reduction = reduced_with(few, Program.of(incidence, capacity, upper=upper))
    small = reduction.program
    value = simplex(Task(program=small)).primal_N if small.num_columns else np.empty(0)
    best = optimum(incidence, capacity, upper)
    assert value.sum() + reduction.fixed_N.sum() == pytest.approx(best, rel=1e-6, abs=1e-6)


@given(problems(), st.sampled_from([0.0, 1.0]))
def test_no_row_is_left_that_could_be_decided(problem, few: float) -> None:
    incidence, capacity, upper = problem
    reduction = reduced_with(few, Program.of(incidence, capacity, upper=upper))
    small, private = reduction.program, np.diff(reduction.program.offset_N) == 1
    assert (small.loads(reduction.total) > small.capacity_S).all()
    assert (small.loads(np.where(private, reduction.total, 0.0)) < small.capacity_S).all()


@given(problems())
def test_the_way_back_keeps_feasibility_and_sum(problem) -> None:
    incidence, capacity, upper = problem
    program = Program.of(incidence, capacity, upper=upper)
    reduction = reduced(program)
    small = reduction.program
    inside = certify(small, small.upper_N, np.zeros(small.num_rows)).values
    values = reduction.primal(inside)
    assert ((values >= 0) & (values <= upper * (1 + 1e-12))).all()
    assert (program.loads(values) <= capacity * (1 + 1e-9)).all()
    assert values.sum() == pytest.approx(inside.sum() + reduction.fixed_N.sum(), rel=1e-9, abs=1e-12)


@pytest.mark.parametrize("strength", [10, 50, 200, 1000, 4000, 10_000])
def test_the_way_back_keeps_the_proof(strength: float) -> None:
    incidence, shape = paper_like(100, seed=8)
    program = Program.of(incidence, strength * shape)
    reduction = reduced(program)
    found = simplex(Task(program=reduction.program))
    proof = certify(program, reduction.primal(found.primal_N), reduction.dual(found.dual_S), tolerance=1.0)
    assert proof.gap < 1e-9  # without any polishing


def test_reductions_pay_at_both_ends() -> None:
    incidence, shape = paper_like(200, seed=9)
    columns = {c: reduced(Program.of(incidence, c * shape)).program.num_columns for c in (10, 2000, 40_000)}
    assert columns[10] < 0.2 * incidence.num_examples
    assert columns[2000] < incidence.num_examples
    assert columns[40_000] == 0


def test_equal_columns_merge_and_split_evenly() -> None:
    example, secret = [0, 0, 1, 1, 2, 2, 3, 4], [0, 1, 0, 1, 0, 1, 0, 1]
    incidence = hush.Incidence.from_pairs(example, secret, num_examples=5, num_secrets=2)
    reduction = reduced(Program.of(incidence, [2.5, 2.5]))
    assert len(set(reduction.column_N[:3].tolist())) == 1
    values = reduction.primal(reduction.total)
    assert values[:3] == pytest.approx([1.0] * 3)
    assert reduction.primal(reduction.total / 2)[:3] == pytest.approx([0.5] * 3)


def test_an_implied_row_is_dropped_and_its_promise_kept() -> None:
    example, secret = [0, 1, 2, 3, 0, 1, 2, 4, 4, 3], [0, 0, 0, 0, 1, 1, 1, 2, 3, 3]
    incidence = hush.Incidence.from_pairs(example, secret, num_examples=5, num_secrets=4)
    weights = hush.solve_weights(incidence, [1.5, 1.6, 0.5, 0.7])
    assert (incidence.to_scipy().T.astype(float) @ weights.values <= np.array([1.5, 1.6, 0.5, 0.7]) + 1e-12).all()


@given(problems())
def test_values_go_inward_the_way_they_come_back(problem) -> None:
    incidence, capacity, upper = problem
    reduction = reduced(Program.of(incidence, capacity, upper=upper))
    inside = 0.5 * reduction.program.upper_N
    assert reduction.reduced_primal(reduction.primal(inside)) == pytest.approx(inside, rel=1e-12)


@given(problems())
def test_the_unreduced_program_is_its_own_way_back(problem) -> None:
    incidence, capacity, upper = problem
    whole = unreduced(Program.of(incidence, capacity, upper=upper))
    values = np.linspace(0, upper, incidence.num_examples)
    assert (whole.primal(values) == values).all()
    dual = np.linspace(0, 1, incidence.num_secrets)
    assert (whole.dual(dual) == dual).all()
    assert (whole.start(dual) == dual).all()


@pytest.mark.parametrize("first", [10, 2000, 40_000])
def test_what_programs_share_does_not_depend_on_who_asked_first(first: float) -> None:
    incidence, shape = paper_like(200, seed=10)
    asked = Program.of(incidence, first * shape)
    reduced(asked)
    for c in (10, 200, 2000, 10_000, 40_000):
        shared, alone = reduced(asked.with_capacity(c * shape)), reduced(Program.of(incidence, c * shape))
        for name in ("row_S", "column_N", "fixed_N", "dual_S", "upper_N", "total", "bounding_N"):
            assert (getattr(shared, name) == getattr(alone, name)).all(), name
        assert (shared.program.row_of_entry == alone.program.row_of_entry).all()
        assert (shared.program.offset_S == alone.program.offset_S).all()


def test_noting_what_decisions_touch_changes_no_decision(monkeypatch: pytest.MonkeyPatch) -> None:
    incidence, shape = paper_like(200, seed=11)
    for c in (20, 200, 700, 2000, 8000, 20_000):
        found = []
        for few in (-1.0, 1.0):
            monkeypatch.setattr("hush.weights.presolve.MAX_TRACKED_SHARE", few)
            found.append(reduced(Program.of(incidence, c * shape)))
        for name in ("row_S", "column_N", "dual_S", "upper_N", "bounding_N"):
            assert (getattr(found[0], name) == getattr(found[1], name)).all(), name
        assert found[0].fixed_N == pytest.approx(found[1].fixed_N, rel=1e-12)

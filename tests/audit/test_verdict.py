"""The verdict: false alarms are as rare as stated however attempts depend, and nothing uncompared ever passes."""

from dataclasses import replace
from itertools import product
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from hush.audit.headline import headline
from hush.audit.mechanism import MechanismAttack, attack_mechanism
from hush.audit.statistics import Success
from hush.audit.verdict import Attempt, DependentSuccess, judge
from hush.errors import InvalidInput


def attempt(measured: Any, certified: float | None, **other: Any) -> Attempt:
    settings: dict[str, Any] = {"attack": "a", "name": "n", "prior": 1e-4, "ceiling": 0.5} | other
    return Attempt(measured=measured, certified=certified, **settings)


COUNTS = st.integers(1, 50).flatmap(lambda runs: st.tuples(st.integers(0, runs), st.just(runs)))
SUCCESSES = COUNTS.map(lambda count: Success(hits=count[0], runs=count[1]))
CLASSES = COUNTS.map(lambda count: DependentSuccess(hits=count[0], tried=count[1]))
MECHANISMS = st.tuples(st.integers(0, 300), st.integers(0, 300), st.floats(0, 8)).map(
    lambda made: MechanismAttack(
        prior=1e-3,
        log_threshold=made[2],
        detected=Success(hits=max(made[:2]), runs=300),
        alarms=Success(hits=min(made[:2]), runs=300),
    )
)
BOUNDS = st.one_of(st.none(), st.floats(1e-9, 1.0))
ATTEMPTS = st.lists(st.builds(attempt, SUCCESSES | CLASSES | MECHANISMS, BOUNDS), max_size=6)


@given(ATTEMPTS, st.floats(1e-4, 0.2))
def test_a_row_fails_exactly_where_its_lower_limit_is_above_its_bound(rows: list[Attempt], level: float) -> None:
    verdict = judge(rows, level=level)
    assert [row.attempt for row in verdict.rows] == rows
    for row in verdict.rows:
        assert row.lower is not None
        bound = row.attempt.certified
        if bound is None:
            assert row.status == "not comparable"
        elif abs(row.lower - bound) > 1e-6 * bound:  # limits are rounded outwards
            assert (row.status == "failed") == (row.lower > bound)
    assert verdict.failed == any(row.status == "failed" for row in verdict.rows)


@given(st.lists(st.floats(0.001, 1), min_size=8, max_size=8), st.floats(0.01, 0.45))
def test_false_alarms_are_as_rare_as_stated_under_any_dependence(weights: list[float], level: float) -> None:
    """Three attempts of one run with any joint law whatever, their bounds being exactly their chances."""
    law = np.array(weights) / sum(weights)
    outcomes = list(product([0, 1], repeat=3))
    chances = [sum(p for p, hit in zip(law, outcomes, strict=True) if hit[place]) for place in range(3)]
    wrong = 0.0
    for p, hits in zip(law, outcomes, strict=True):
        rows = [attempt(Success(hits=hit, runs=1), bound) for hit, bound in zip(hits, chances, strict=True)]
        wrong += p * judge(rows, level=level).failed
    assert wrong <= level + 1e-12


@given(st.lists(st.floats(0.001, 1), min_size=2, max_size=12), st.floats(0.001, 0.45))
def test_secrets_of_one_run_may_fall_together(weights: list[float], level: float) -> None:
    """Any law of the number of hits: the limits of their mean chance are wrong as rarely as stated."""
    law, tried = np.array(weights) / sum(weights), len(weights) - 1
    mean = float(law @ np.arange(tried + 1)) / tried
    found = [DependentSuccess(hits=hits, tried=tried) for hits in range(tried + 1)]
    assert sum(p for p, one in zip(law, found, strict=True) if one.lower(level) > mean) <= level
    assert sum(p for p, one in zip(law, found, strict=True) if one.upper(level) < mean) <= level
    for one in found:
        p_value = one.p_value(mean)
        if abs(p_value - level) > 1e-9:
            assert (p_value < level) == (one.lower(level) > mean)


@pytest.mark.parametrize("hits", [0, 1])
def test_one_secret_is_judged_as_one_run(hits: int) -> None:
    one, other = DependentSuccess(hits=hits, tried=1), Success(hits=hits, runs=1)
    for level in (1e-4, 0.01, 0.3):
        assert one.lower(level) == pytest.approx(other.lower(level), rel=1e-8)
        assert one.upper(level) == pytest.approx(other.upper(level), rel=1e-8)
    assert one.p_value(0.03) == pytest.approx(other.p_value(0.03))


def test_what_cannot_be_compared_is_never_passed() -> None:
    hit = attempt(Success(hits=5, runs=5), None, reason="a simulation")
    verdict = judge([hit, attempt(None, None)])
    assert verdict.status == "nothing to compare"
    assert not verdict.failed
    assert [row.status for row in verdict.rows] == ["not comparable", "not comparable"]
    assert judge([]).status == "nothing to compare"
    assert judge([hit, attempt(Success(hits=0, runs=5), 0.1)]).status == "kept"


def test_limits_are_shown_at_the_level_at_which_a_row_was_decided() -> None:
    """Neither of two hits at 0.006 is remarkable among two at 0.01, and neither limit says otherwise."""
    verdict = judge([attempt(Success(hits=1, runs=1), 0.006)] * 2)
    assert [(row.status, row.level) for row in verdict.rows] == [("could not fail", 0.005)] * 2
    rejected = judge([attempt(Success(hits=1, runs=1), bound) for bound in (0.008, 0.001)])
    assert [(row.status, row.level) for row in rejected.rows] == [("failed", 0.01), ("failed", 0.005)]


def test_rows_that_could_not_have_failed_are_counted() -> None:
    rows = [
        attempt(Success(hits=0, runs=1), 0.05),  # one run can show no more than the level
        attempt(Success(hits=0, runs=1), 1e-4),
        attempt(DependentSuccess(hits=0, tried=9), 0.05),
        attempt(Success(hits=0, runs=10), 0.05),
    ]
    assert [row.status for row in judge(rows).rows] == ["could not fail", "kept", "could not fail", "kept"]
    assert (judge(rows).powerless, judge(rows[1:2]).powerless) == (2, 0)
    assert judge([rows[0], rows[2]]).status == "nothing to compare"


def test_what_would_not_have_counted_could_not_fail() -> None:
    tried = attempt(DependentSuccess(hits=0, tried=4, barred=1), 1e-4)
    assert judge([tried]).status == "kept"
    for barred, certified in ((4, 1e-4), (3, 0.009)):
        alone = judge([attempt(DependentSuccess(hits=0, tried=4, barred=barred), certified)])
        assert alone.rows[0].status == "could not fail"
    # Which tries are barred may depend on the secrets, so they keep their place among the rows.
    both = judge(
        [attempt(DependentSuccess(hits=1, tried=1), 0.006), attempt(DependentSuccess(hits=0, tried=1, barred=1), 1e-4)]
    )
    assert [row.level for row in both.rows] == [0.005, 0.005]


@pytest.mark.parametrize(
    ("trials", "bound", "status"), [(1, 0.3, "could not fail"), (1, 1e-3, "kept"), (9, 0.3, "kept")]
)
def test_a_simulation_too_short_to_show_anything_is_none(trials: int, bound: float, status: str) -> None:
    found = attack_mechanism(
        [0.5], noise_multiplier=9.0, rounds=2, prior=1e-4, trials=trials, rng=np.random.default_rng(0)
    )
    (row,) = judge([attempt(found, bound)]).rows
    assert row.status == status


@given(st.lists(st.builds(attempt, SUCCESSES | CLASSES, st.floats(1e-9, 1.0)), min_size=1, max_size=6))
def test_a_row_could_have_failed_exactly_if_it_fails_when_every_try_succeeds(rows: list[Attempt]) -> None:
    """The second route: each row is judged again as if all of its tries had succeeded, at the level it was shown at."""
    for row in judge(rows).rows:
        best: Any = row.attempt.measured
        best = replace(best, hits=best.tried if isinstance(best, DependentSuccess) else best.runs)
        again = judge([replace(row.attempt, measured=best)], level=row.level)
        if row.status != "failed" and abs(again.rows[0].lower - row.attempt.certified) > 1e-6 * row.attempt.certified:  # pyright: ignore[reportOptionalOperand, reportOperatorIssue]
            assert again.failed == (row.status == "kept")


def test_a_simulation_alone_never_reads_as_an_attack_on_the_model() -> None:
    simulated = attempt(Success(hits=0, runs=1000), 0.1, attack="mechanism")
    powerless = attempt(Success(hits=0, runs=1), 0.5)
    tried = attempt(Success(hits=0, runs=1), 1e-4)
    assert judge([simulated]).status == judge([simulated, powerless]).status == "model not judged"
    assert judge([simulated, powerless, tried]).status == "kept"
    broken = attempt(Success(hits=900, runs=1000), 0.1, attack="mechanism")
    assert judge([broken, powerless]).status == "failed"


def test_the_simulated_worst_case_is_judged_by_its_own_limits() -> None:
    options: Any = {"noise_multiplier": 1.0, "rounds": 4, "prior": 0.1, "trials": 20_000}
    found = attack_mechanism([0.5], **options, rng=np.random.default_rng(0))  # about 0.4
    for bound, status in ((0.45, "kept"), (0.3, "failed")):
        assert judge([attempt(found, bound)]).status == status
    value = attempt(found, 0.37).p_value
    assert value is not None
    assert found.lower(value * 1.001) > 0.37 > found.lower(value * 0.999)


def test_counts_that_cannot_be_are_refused() -> None:
    for hits, tried, barred in ((2, 1, 0), (-1, 1, 0), (0, 0, 0), (1, 1, 1), (0, 1, 2), (0, 1, -1)):
        with pytest.raises(InvalidInput):
            DependentSuccess(hits=hits, tried=tried, barred=barred)


# --- what it is said to rest on


def said(*attempts: Attempt) -> str:
    verdict = judge(attempts)
    return headline({"verdict": verdict.status, "rows": [row.to_dict() for row in verdict.rows]})


def test_a_verdict_on_canaries_alone_says_so() -> None:
    canary = attempt(Success(hits=0, runs=1), 1e-4, attack="naming", canaries=True)
    simulated = attempt(Success(hits=0, runs=1000), 0.1, attack="mechanism")
    powerless = attempt(Success(hits=0, runs=1), 0.5, attack="extraction")
    secret = attempt(Success(hits=0, runs=1), 1e-4, attack="extraction")
    alone = "concern planted canaries only"
    assert all(alone in said(*rows) for rows in ([canary], [canary, simulated], [canary, simulated, powerless]))
    assert not any(alone in said(*rows) for rows in ([secret, canary], [simulated], [simulated, powerless], []))


def test_more_than_was_certified_is_said_even_where_it_does_not_fail() -> None:
    some = attempt(DependentSuccess(hits=300, tried=1000), 2e-3, hits=300, runs=1000)
    other = attempt(Success(hits=0, runs=1), 1e-3, hits=0, runs=1)
    assert judge([some, other]).status == "kept"
    assert "In 1 row the attack succeeded more often than certified" in said(some, other)
    assert "more often than certified" not in said(other)
    failed = attempt(DependentSuccess(hits=900, tried=1000), 2e-3, hits=900, runs=1000)
    assert "more often than certified" not in said(failed)


@pytest.mark.parametrize("name", ["hits", "runs", "certified"])
def test_a_number_that_no_float_holds_is_passed_over(name: str) -> None:
    row = {"status": "kept", "attack": "naming", "hits": 1, "runs": 2, "certified": 0.5, name: 10**400}
    assert "more often than certified" not in headline({"verdict": "kept", "rows": [row]})


@pytest.mark.parametrize("bound", [float("nan"), float("inf"), -0.1, 1.5])
@pytest.mark.parametrize(
    "measured",
    [
        Success(hits=1, runs=1),
        DependentSuccess(hits=3, tried=5),
        MechanismAttack(prior=0.1, log_threshold=0.0, detected=Success(hits=5, runs=9), alarms=Success(hits=1, runs=9)),
    ],
)
def test_a_bound_that_is_no_probability_is_refused_and_never_kept(measured: Any, bound: float) -> None:
    with pytest.raises(InvalidInput, match="not a probability"):
        Attempt(attack="extraction", name="a", prior=None, certified=bound, ceiling=None, measured=measured)
    if isinstance(measured, Success | DependentSuccess):
        with pytest.raises(InvalidInput, match="not a probability"):
            measured.p_value(bound)


@pytest.mark.parametrize("bound", [0.0, 1.0])
def test_bounds_at_the_ends_decide_as_they_say(bound: float) -> None:
    made = judge([
        Attempt(attack="extraction", name="a", prior=None, certified=bound, ceiling=None, measured=measured)
        for measured in (Success(hits=1, runs=1), DependentSuccess(hits=3, tried=5))
    ])  # fmt: skip
    assert [row.status for row in made.rows] == ["failed" if bound == 0 else "could not fail"] * 2


def test_limits_of_a_ratio_beyond_all_floats_are_numbers() -> None:
    """The suite takes a warning of overflow for an error."""
    attack = MechanismAttack(
        prior=1e-300, log_threshold=5e7, detected=Success(hits=9, runs=9), alarms=Success(hits=0, runs=9)
    )
    assert attack.upper() == 1.0
    assert 0.5 < attack.lower(0.4) <= 1

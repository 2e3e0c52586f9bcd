"""The audit on the page says no more than was tried, whichever hush wrote the record."""

from dataclasses import replace
from typing import Any

import pytest

from hush.audit.statistics import Success
from hush.audit.verdict import Attempt, Verdict, judge
from hush.report.attacks import AuditResult


def attempt(attack: str, hits: int, runs: int, certified: float | None) -> Attempt:
    measured = Success(hits=hits, runs=runs)
    return Attempt(attack=attack, name="s", prior=1e-6, certified=certified, ceiling=None, measured=measured)


def record(verdict: Verdict) -> dict[str, Any]:
    return {"verdict": verdict.status, "level": verdict.level, "rows": [row.to_dict() for row in verdict.rows]}


SIMULATED = attempt("mechanism", 0, 2000, 0.1)
POWERLESS = attempt("extraction", 0, 1, 0.5)
TRIED = attempt("naming", 0, 1, 1e-4)
NO_BOUND = attempt("extraction", 1, 1, None)
BROKEN = attempt("naming", 1, 1, 1e-4)


@pytest.mark.parametrize(
    ("attempts", "status", "counted"),
    [
        ([SIMULATED], "model not judged", "1 of 1"),
        ([SIMULATED, POWERLESS, NO_BOUND], "model not judged", "1 of 3"),
        ([POWERLESS, NO_BOUND], "nothing to compare", "0 of 2"),
        ([SIMULATED, POWERLESS, TRIED], "kept", "2 of 3"),
        ([SIMULATED, BROKEN], "failed", "2 of 2"),
    ],
)
def test_rows_that_could_not_have_failed_are_not_counted(attempts: list[Attempt], status: str, counted: str) -> None:
    made = record(judge(attempts))
    for given in (made, made | {"verdict": None}):  # stated, or read off the rows
        result = AuditResult.of(given)
        assert result.status == status
        assert f"Comparisons that count: {counted}." in result.sentence
        assert "The probability of a false alarm in any row is at most 0.01." in result.sentence
    assert ("No attack did better" in AuditResult.of(made).sentence) == (status == "kept")


def test_a_row_that_failed_counts_whatever_else_a_record_states() -> None:
    assert AuditResult.of(record(judge([SIMULATED, BROKEN])) | {"verdict": "model not judged"}).status == "failed"


def test_a_verdict_on_canaries_alone_says_so() -> None:
    canary = replace(TRIED, canaries=True)
    alone = "concern planted canaries only"
    assert alone in AuditResult.of(record(judge([SIMULATED, canary]))).sentence
    assert alone not in AuditResult.of(record(judge([SIMULATED, canary, TRIED]))).sentence


def test_a_simulation_that_an_older_audit_called_kept_is_none_of_the_model() -> None:
    result = AuditResult.of(record(judge([SIMULATED])) | {"verdict": "kept"})
    assert result.status == "model not judged"
    assert "says nothing about what training did" in result.sentence


@pytest.mark.parametrize(
    "changes",
    [{"level": 10**400}, {"extraction": [1]}, {"extraction": [{"cells": None}]}, {"extraction": [{"cells": [1]}]},
     {"rows": [{"attack": "naming", "status": "kept", "lower": 10**400}]}],
    ids=lambda changes: str(changes)[:40],
)  # fmt: skip
def test_what_a_record_cannot_mean_is_shown_as_unknown(changes: dict[str, Any]) -> None:
    result = AuditResult.of(record(judge([SIMULATED, TRIED])) | changes)
    assert result.status == "kept"
    assert result.extraction == ()
    assert result.level in (None, 0.01)
    assert all(row.lower is None or row.lower <= 1 for row in result.rows)

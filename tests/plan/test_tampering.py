"""A sample of benchmarks/tampering_sweep.py: nothing that matters passes, and its judge would say so."""

import sys
from dataclasses import replace
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest

import hush
from hush.plan import posteriors

sys.path.insert(0, str(Path(__file__).parents[2] / "benchmarks"))

tampering, tampering_sweep = import_module("tampering"), import_module("tampering_sweep")


@pytest.mark.parametrize("seed", range(4))
def test_nothing_that_matters_passes(seed: int) -> None:
    results = tampering_sweep.results_for(7_000_000 + seed)
    assert len(results) == tampering_sweep.TAMPERINGS_PER_PLAN
    assert [result for result in results if result["problems"]] == []


def test_the_judge_objects_where_verification_is_blind(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without the proof of posteriors, plans with less noise pass; the attack of the judge finds them."""

    def nothing_found(plan: hush.Plan, progress: Any = None) -> posteriors.Judgement:
        return posteriors.Judgement(secrets={"broken": [], "larger than stated": [], "binding": []}, complete=True)

    monkeypatch.setattr(sys.modules["hush.plan.verify"], "judge", nothing_found)
    monkeypatch.setattr(tampering_sweep, "TAMPERINGS", {"less noise": (1.0, _less_noise)})
    found = [result for seed in range(2) for result in tampering_sweep.results_for(seed)]
    assert any("an attack reaches more" in problem for result in found for problem in result["problems"])


def _less_noise(_: Any, case: Any) -> None:
    forged = replace(case.plan, noise_multiplier=0.5 * case.plan.noise_multiplier)
    forged.save(case.plan_folder)
    if case.released:
        tampering.certify(case.root, forged.certificate)

"""The certificate of a run whose settings a rehearsal chose says so; nothing else about it changes."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

import hush
from hush.certificate import Certificate
from releases import make_release


@pytest.fixture(scope="module")
def plan() -> hush.Plan:
    graph = hush.Incidence.from_pairs(np.arange(30), np.arange(30) // 10, num_examples=60, num_secrets=3)
    return hush.make_plan(graph, prior=1e-4, ceiling=0.1, batch_size=8, rounds=50)


def test_a_rehearsed_run_says_so_and_verifies(plan: hush.Plan, tmp_path: Path) -> None:
    release = make_release(tmp_path, plan, rehearsed=True)
    page = " ".join((release / "certificate.md").read_text().split())
    assert "settings: chosen by a rehearsal on public content" in page
    assert "no promise was spent on the choice" in page
    verification = hush.verify(release)
    assert verification.passed
    assert any("rehearsed" in line for line in verification.unproven)


def test_a_run_without_a_rehearsal_says_nothing_of_it(plan: hush.Plan, tmp_path: Path) -> None:
    release = make_release(tmp_path, plan)
    assert "rehears" not in (release / "certificate.md").read_text()
    assert "rehears" not in (release / "certificate.json").read_text()
    assert not any("rehearsed" in line for line in hush.verify(release).unproven)


def test_the_mark_survives_its_file_and_is_true_or_absent(plan: hush.Plan) -> None:
    marked = replace(plan.run_certificate(100), rehearsed=True)
    assert Certificate.from_dict(marked.to_dict()) == marked
    for wrong in (False, 1, "yes"):
        with pytest.raises(hush.InvalidInput, match="rehearsed"):
            Certificate.from_dict(marked.to_dict() | {"rehearsed": wrong})

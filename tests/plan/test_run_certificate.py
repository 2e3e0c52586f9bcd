"""The certificate of a run includes what its computed draws and noise add, and no ceiling is passed by it."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

import hush
from hush.accounting.sampling_error import sampling_error
from hush.certificate import Certificate
from releases import certify, make_release

MANY = 10**15  # parameters: more than any ceiling of these plans leaves room for


def failed(folder: Path) -> dict[str, str]:
    return {check.name: check.detail for check in hush.verify(folder).checks if not check.passed}


def test_a_run_states_every_posterior_with_the_sampling_error(plan: hush.Plan) -> None:
    error = sampling_error(10**9, batch_size=plan.batch_size, rounds=plan.rounds)
    of_run, of_plan = plan.run_certificate(10**9), plan.certificate
    assert (of_run.trained_parameters, of_run.sampling_error) == (10**9, error)
    assert (of_plan.trained_parameters, of_plan.sampling_error) == (None, None)
    for name, points in of_plan.curve.items():
        for (prior, before), (same, after) in zip(points, of_run.curve[name], strict=True):
            assert prior == same
            assert after >= min(1.0, before + error)
    share = of_run.strictest["largest_share_of_ceiling"]
    assert share >= float(((plan.posterior + error) / plan.ceiling).max()) * (1 - 1e-15)
    assert "trained parameters" in of_run.to_markdown()
    assert Certificate.from_dict(of_run.to_dict()) == of_run


def test_a_secret_that_is_never_drawn_keeps_its_posterior() -> None:
    incidence = hush.Incidence.from_pairs([0], [0], num_examples=10, num_secrets=3)
    plan = hush.make_plan(incidence, prior=1e-3, ceiling=[0.1, 0.1, 1e-3], batch_size=1, rounds=10)
    of_run = plan.posterior_of_run(10**9)
    assert np.array_equal(of_run[1:], plan.posterior[1:])
    assert of_run[0, 0] > plan.posterior[0, 0]


@pytest.mark.parametrize("change", [{"sampling_error": 0.0}, {"trained_parameters": 1}, {"trained_parameters": None}])
def test_a_smaller_sampling_error_cannot_be_stated(plan: hush.Plan, tmp_path: Path, change: dict[str, object]) -> None:
    release = make_release(tmp_path / "release", plan)
    assert hush.verify(release).passed
    certify(release, plan, **change)
    assert "run's certificate" in failed(release)


def test_a_release_whose_sampling_passes_a_ceiling_fails(plan: hush.Plan, tmp_path: Path) -> None:
    release = make_release(tmp_path / "release", plan)
    of_run = plan.run_certificate(MANY)
    names = ("trained_parameters", "sampling_error", "strictest", "curve")
    certify(release, plan, **{name: getattr(of_run, name) for name in names})
    assert list(failed(release)) == ["sampling error"]
    assert "above the ceiling" in failed(release)["sampling error"]


def test_a_plan_cannot_state_what_only_a_run_knows(plan: hush.Plan) -> None:
    from hush.plan.verify import plan_differences

    forged = replace(plan.certificate, trained_parameters=5, sampling_error=1e-18)
    assert plan_differences(plan, forged)

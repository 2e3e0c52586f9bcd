"""Plans without slots that draw only examples with a secret, and what a run says of the part before its rounds."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from plan_instances import Instance, instances, office

import hush
from hush.certificate import Certificate
from hush.plan.make import held_out_examples, make_plan_holding_out, public_examples
from hush.plan.plan import drawable_examples
from hush.slots import Slots
from hush.storage import file_digest, record_digest
from releases import make_release


@pytest.fixture(scope="module")
def drawn() -> hush.Plan:
    """Only examples with a secret are drawn, two of the others are held out."""
    instance = office()
    held_out = np.flatnonzero(~instance.has_secret)[[2, 0]]
    return make_plan_holding_out(instance.incidence, held_out, **instance.promises, batch_size=12, draw="secrets")


def failed(folder: Path) -> dict[str, str]:
    return {check.name: check.detail for check in hush.verify(folder).checks if not check.passed}


@settings(max_examples=8, deadline=None)
@given(instances(most_secrets=4, least_examples=4), st.sampled_from(["accounted", "none"]))
def test_the_plan_is_that_of_the_examples_with_a_secret(instance: Instance, capacity: Any) -> None:
    assume(instance.has_secret.any())
    asked: dict[str, Any] = {**instance.promises, "batch_size": 0.3 * instance.has_secret.sum(), "capacity": capacity}
    plan = hush.make_plan(instance.incidence, draw="secrets", **asked)
    alone = hush.make_plan(instance.incidence.select(examples=instance.has_secret), **asked)
    np.testing.assert_array_equal(plan.rates[instance.has_secret], alone.rates)
    assert not plan.rates[~instance.has_secret].any()
    for name in ("posterior", "binding", "noise_multiplier", "weights_gap", "batch_size", "kept_fraction"):
        np.testing.assert_array_equal(getattr(plan, name), getattr(alone, name))
    np.testing.assert_array_equal(drawable_examples(plan), instance.has_secret)


def test_it_promises_what_a_plan_with_slots_nowhere_promises(drawn: hush.Plan) -> None:
    instance = office()
    other = hush.make_plan(instance.incidence, **instance.promises, batch_size=12, slots=Slots.none(instance.incidence))
    np.testing.assert_array_equal(drawn.rates, other.rates)
    np.testing.assert_array_equal(drawn.posterior, other.posterior)


def test_what_is_neither_drawn_nor_held_out_is_public(drawn: hush.Plan) -> None:
    bearing_N = drawn.incidence.secrets_per_example > 0
    held_out, public = held_out_examples(drawn), public_examples(drawn)
    np.testing.assert_array_equal(held_out, np.flatnonzero(~bearing_N)[[0, 2]])
    np.testing.assert_array_equal(np.union1d(held_out, public), np.flatnonzero(~bearing_N))
    assert not np.intersect1d(held_out, public).size


def test_it_is_saved_loaded_and_verified(drawn: hush.Plan, tmp_path: Path) -> None:
    drawn.save(tmp_path / "plan")
    assert hush.Plan.load(tmp_path / "plan") == drawn
    verification = hush.verify(tmp_path / "plan")
    assert verification.passed
    assert any("held_out 2 examples" in line for line in verification.unproven)


def test_by_default_every_example_is_drawn() -> None:
    instance = office()
    plan = hush.make_plan(instance.incidence, **instance.promises, batch_size=12)
    assert not plan.draws_secrets_only
    assert plan == hush.make_plan(instance.incidence, **instance.promises, batch_size=12, draw="all") or plan.created
    assert (plan.rates > 0)[~instance.has_secret].all()
    assert "drawn" not in plan.certificate.to_dict()


def test_with_slots_not_every_example_can_be_drawn() -> None:
    instance = office()
    with pytest.raises(hush.InvalidInput, match="only examples with a secret are drawn") as refused:
        hush.make_plan(
            instance.incidence,
            **instance.promises,
            batch_size=12,
            slots=Slots.none(instance.incidence),
            draw="all",
        )
    assert refused.value.setting == "draw"


@pytest.mark.parametrize("change", [{"held_out": None}, {"held_out": [1, 0]}, {"held_out": [1]}])
def test_a_plan_whose_draw_was_changed_does_not_verify(drawn: hush.Plan, tmp_path: Path, change: Any) -> None:
    folder = tmp_path / "plan"
    drawn.save(folder)
    record = json.loads((folder / "plan.json").read_text()) | change
    record = {name: value for name, value in record.items() if value is not None or name not in change}
    record["digests"] = {name: file_digest(folder / name) for name in record["digests"]}
    record["digest"] = record_digest({name: value for name, value in record.items() if name != "digest"})
    (folder / "plan.json").write_text(json.dumps(record, indent=2) + "\n")
    assert failed(folder)


def test_an_example_without_a_secret_that_has_a_weight_is_refused(drawn: hush.Plan) -> None:
    from dataclasses import replace

    weights = drawn.weights.copy()
    weights[held_out_examples(drawn)[0]] = 0.5
    with pytest.raises(hush.InvalidInput, match="never drawn"):
        replace(drawn, weights=weights)


def test_the_certificate_says_who_is_drawn_and_what_is_not_covered(drawn: hush.Plan) -> None:
    page = " ".join(drawn.certificate.to_markdown().split())
    bearing = int((drawn.incidence.secrets_per_example > 0).sum())
    assert f"of the {bearing} examples with a secret kept" in page
    assert "Only examples with a secret are drawn." in page
    assert "A secret in one of them that the finders missed is trained on like any other text." in page
    assert Certificate.from_dict(json.loads(json.dumps(drawn.certificate.to_dict()))) == drawn.certificate


# What a run says of its first part.


def test_the_certificate_of_a_run_names_both_parts(drawn: hush.Plan, tmp_path: Path) -> None:
    public = public_examples(drawn).size
    release = make_release(tmp_path, drawn, public_part={"examples": public, "skeletons": 0})
    page = " ".join((release / "certificate.md").read_text().split())
    assert f"Public: {public} examples without a secret were learnt first, by ordinary training" in page
    assert "Private: 50 rounds" in page
    verification = hush.verify(release)
    assert verification.passed
    assert any("public_part" in line for line in verification.unproven)


@pytest.mark.parametrize("part", [{"examples": 99, "skeletons": 0}, {"examples": 1, "skeletons": 1}])
def test_a_first_part_that_the_plan_does_not_leave_public_fails(
    drawn: hush.Plan, tmp_path: Path, part: dict[str, int]
) -> None:
    assert "public_part" in failed(make_release(tmp_path, drawn, public_part=part))["run's certificate"]


@pytest.mark.parametrize("part", [{}, {"examples": 0, "skeletons": 0}, {"examples": -1, "skeletons": 2}, [1], "all"])
def test_a_malformed_first_part_is_no_certificate(drawn: hush.Plan, part: object) -> None:
    with pytest.raises(hush.InvalidInput, match="public_part"):
        Certificate.from_dict(drawn.certificate.to_dict() | {"public_part": part})

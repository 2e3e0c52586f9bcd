"""A certificate says what is promised and what is not, the same to a reader and to a program."""

import dataclasses
import json

import numpy as np
import pytest

import hush
from hush.certificate import ASSUMPTIONS, NOT_COVERED, Certificate


def test_a_certificate_survives_json(plan: hush.Plan) -> None:
    certificate = plan.certificate
    assert Certificate.from_dict(json.loads(json.dumps(certificate.to_dict()))) == certificate
    assert Certificate.from_dict(certificate.to_dict() | {"new in 1.1": 1}) == certificate


@pytest.mark.parametrize("data", [{}, [], "certificate", {"noise_multiplier": 1}])
def test_anything_else_is_no_certificate(data: object) -> None:
    with pytest.raises(hush.InvalidInput, match="pass one that hush wrote"):
        Certificate.from_dict(data)


def test_the_page_states_the_promise_the_assumptions_and_what_is_not_covered(plan: hush.Plan) -> None:
    page = plan.certificate.to_markdown()
    assert all(line in page for line in (*ASSUMPTIONS, *NOT_COVERED))
    assert (
        f"For each of {plan.certificate.num_found} secrets found in the data, and trivially for the other 1 listed"
        in page
    )
    assert repr(plan.noise_multiplier) in page
    assert plan.incidence.fingerprint in page
    assert "NOT A CERTIFICATE" not in page
    assert plan.certificate.is_real
    for secret in plan.binding.tolist():
        assert plan.secret_ids[secret] in page


def test_the_page_speaks_of_one_as_of_one() -> None:
    one = hush.Incidence.from_pairs([0], [0], num_examples=1, num_secrets=1)
    page = hush.make_plan(one, prior=1e-6, ceiling=0.1, batch_size=0.5, rounds=1).certificate.to_markdown()
    assert "For the one secret: nobody" in page
    assert ", 1 round," in page
    assert "% of 1 example kept" in page


def test_what_is_not_covered_names_every_limit_of_the_promise() -> None:
    text = " ".join(NOT_COVERED).lower()
    for limit in ("exists", "graph is public", "other priors", "copies", "joint guesses", "sweeps", "tokenizer"):
        assert limit in text


def test_the_curve_goes_through_the_promises_of_binding_secrets(plan: hush.Plan) -> None:
    curve = plan.certificate.curve
    assert list(curve) == [plan.secret_ids[secret] for secret in plan.binding[:3]]
    for secret in plan.binding[:3].tolist():
        points = dict(curve[plan.secret_ids[secret]])
        assert points[1e-8] <= plan.ceiling[secret, 0]
        assert points[1e-3] <= plan.ceiling[secret, 1]
        assert list(points.values()) == sorted(points.values())


def test_a_simulation_is_marked_in_both_forms(plan: hush.Plan) -> None:
    simulated = dataclasses.replace(plan, noise_scale=0.1)
    assert simulated.certificate.marks == ("simulation, noise scaled by 0.1",)
    assert not simulated.certificate.is_real
    assert "**NOT A CERTIFICATE: simulation, noise scaled by 0.1**" in simulated.certificate.to_markdown()
    assert simulated.training_noise_multiplier == pytest.approx(0.1 * plan.noise_multiplier)
    assert plan.training_noise_multiplier == plan.noise_multiplier


def test_printed_bounds_are_rounded_to_the_safe_side(plan: hush.Plan) -> None:
    prior = plan.prior * 1.0049
    odd = dataclasses.replace(plan, prior=prior, posterior=np.maximum(plan.posterior, prior))
    assert "Priors are at most 0.00101," in odd.certificate.to_markdown()


def test_an_id_cannot_pass_for_something_else_on_the_page(plan: hush.Plan) -> None:
    names = tuple(f"{name}\n# Certified by everybody | <b>" for name in plan.secret_ids)
    page = dataclasses.replace(plan, secret_ids=names).certificate.to_markdown()
    assert "\n# Certified" not in page
    assert "<b>" not in page
    table = [line for line in page.splitlines() if line.startswith("|")]
    assert len({line.replace("\\|", "").count("|") for line in table}) == 1


def test_a_mark_cannot_hide_itself_from_who_reads_the_page(plan: hush.Plan) -> None:
    hidden = "a fixed seed\x1b[2J\u202e\n\n# Certificate of secret protection"  # clears a terminal, turns the writing
    page = dataclasses.replace(plan.certificate, marks=(hidden,)).to_markdown()
    assert all(line.isprintable() for line in page.split("\n"))
    assert page.count("\n# ") == plan.certificate.to_markdown().count("\n# ")


def test_fingerprints_tell_promises_apart(plan: hush.Plan) -> None:
    def renamed(*first: str) -> str:
        return dataclasses.replace(plan, secret_ids=(*first, *plan.secret_ids[2:])).promises_fingerprint

    assert renamed("a\nb", "c") != renamed("a", "b\nc")
    assert dataclasses.replace(plan, ceiling=plan.ceiling * 1.001).promises_fingerprint != plan.promises_fingerprint


def test_the_gap_of_the_weights_is_shown_rounded_up(plan: hush.Plan) -> None:
    for gap, shown in ((1.01e-5, "1.1e-05"), (9.91e-5, "1.0e-04"), (0.0, "0.0e+00")):
        page = dataclasses.replace(plan.certificate, weights_gap=gap).to_markdown()
        assert f"within {shown} of the largest sum" in page

"""What a certificate says about slots: how much each promise covers, on what it depends, what may be extracted."""

import dataclasses
import json
from typing import Any

import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from plan_instances import Instance, instances, office, some_slots

import hush
from hush.certificate import ASSUMPTIONS, NOT_COVERED, SLOT_ASSUMPTIONS, SLOTS_NOT_COVERED, Certificate
from hush.keys import DataKey
from hush.plan.plan import scope_counts
from hush.plan.verify import run_differences
from hush.slots import slots_of_spans

KEYED = DataKey(bytes(32)).fingerprint_rows(["skeleton"])


@pytest.fixture(scope="module")
def scoped() -> hush.Plan:
    instance = office()
    slots = some_slots(np.random.default_rng(1), instance.incidence)
    return hush.make_plan(
        instance.incidence, **instance.promises, batch_size=12, slots=slots, skeleton_fingerprint=KEYED
    )


@settings(max_examples=30)
@given(instances(), st.integers(0, 1000))
def test_the_counts_are_those_of_the_lists_of_examples(instance: Instance, seed: int) -> None:
    graph = instance.incidence
    assume(graph.num_secrets)
    slots = some_slots(np.random.default_rng(seed), graph)
    counts, in_slots, in_whole = scope_counts(graph, slots), set[int](), set[int]()
    for secret in range(graph.num_secrets):
        for example in graph.examples_of(secret).tolist():
            (in_slots if slots.has_slots_N[example] else in_whole).add(secret)
    assert counts["secrets_in_slots"] == len(in_slots - in_whole)
    assert counts["secrets_in_whole_examples"] == len(in_whole - in_slots)
    assert counts["secrets_in_both"] == len(in_slots & in_whole)
    assert counts["examples_with_slots"] + counts["whole_examples"] == instance.has_secret.sum()
    assert counts["slots"] == len(slots)


def test_the_page_says_what_is_secret() -> None:
    graph = hush.Incidence.from_pairs([0, 1, 2, 2, 3, 4], [0, 0, 0, 1, 1, 1], num_examples=12, num_secrets=3)
    slots = slots_of_spans(
        graph, ["names"], example=[0, 1, 2, 2], begin=[0, 0, 0, 9], end=[3, 3, 3, 12], rule=[0] * 4, secret=[0, 0, 0, 1]
    ).slots
    plan = hush.make_plan(graph, prior=1e-6, ceiling=1e-2, batch_size=2, rounds=20, slots=slots)
    page = plan.certificate.to_markdown()
    for line in (
        "Secret is the text inside 4 slots in 3 examples, and the whole text of 2 other examples.",
        "Public are the text around the slots and 7 examples without a secret.",
        "- the text in slots only: 1 secret\n",
        "- whole examples only: 0 secrets\n",
        "- both, in different examples: 1 secret\n",
        "100.0 % of the 5 examples with a secret kept",
    ):
        assert line in page


def test_what_the_promise_needs_and_lacks_is_said_with_slots(scoped: hush.Plan) -> None:
    certificate = scoped.certificate
    assert certificate.assumptions == (*ASSUMPTIONS, *SLOT_ASSUMPTIONS)
    assert certificate.not_covered[: len(NOT_COVERED) + len(SLOTS_NOT_COVERED)] == (*NOT_COVERED, *SLOTS_NOT_COVERED)
    page = certificate.to_markdown()
    for words in (
        "about the text inside its slots, given that everything outside them stays the same",
        "conditional on the slots",
        "given the graph, the slots, the rules and all skeletons together",
        "every occurrence of its secrets lies in a slot; the finders are trusted for that",
        "without clipping or noise and may be extracted from the model",
        "blanking a word in such a text reveals the word",
        "randomness that is independent of the private draw",
    ):
        assert words in page
    assert scoped.slots is not None
    assert certificate.fingerprints["slots"] == scoped.slots.fingerprint
    assert certificate.fingerprints["skeletons (keyed)"] == KEYED


def test_without_slots_nothing_is_said_of_them(plan: hush.Plan) -> None:
    certificate = plan.certificate
    assert certificate.assumptions == ASSUMPTIONS
    assert "scope" not in certificate.to_dict()
    assert not {"slots", "skeletons (keyed)", "held-out examples"} & certificate.fingerprints.keys()
    for word in ("slot", "skeleton", "What is secret"):
        assert word not in certificate.to_markdown()


def test_a_certificate_with_slots_survives_json(scoped: hush.Plan) -> None:
    for certificate in (scoped.certificate, scoped.run_certificate(1000)):
        assert Certificate.from_dict(json.loads(json.dumps(certificate.to_dict()))) == certificate
        assert certificate.scope == scoped.certificate.scope


@pytest.mark.parametrize("scope", [None, {}, [], {"slots": 1}, "all"])
def test_what_is_no_scope_is_refused(scoped: hush.Plan, scope: Any) -> None:
    with pytest.raises(hush.InvalidInput, match=r"wrong type for \['scope'\]"):
        Certificate.from_dict(scoped.certificate.to_dict() | {"scope": scope})


@pytest.mark.parametrize("count", [-1, 1.0, True, "1"])
def test_a_scope_holds_counts(scoped: hush.Plan, count: Any) -> None:
    stated = scoped.certificate.to_dict()
    with pytest.raises(hush.InvalidInput, match=r"wrong type for \['scope'\]"):
        Certificate.from_dict(stated | {"scope": stated["scope"] | {"slots": count}})


def test_a_run_that_did_not_check_the_skeletons_does_not_name_them(scoped: hush.Plan) -> None:
    planned = scoped.certificate
    run = scoped.run_certificate(1000)
    prints = {**run.fingerprints, "model": "0" * 64}
    versions = {**run.versions, "torch": "2.13.0"}
    named = dataclasses.replace(run, fingerprints=prints, versions=versions)
    assert run_differences(scoped, planned, named) == []
    unnamed = {name: value for name, value in prints.items() if name != "skeletons (keyed)"}
    assert run_differences(scoped, planned, dataclasses.replace(named, fingerprints=unnamed)) == []
    for changed in ({"slots": "0" * 64}, {"skeletons (keyed)": KEYED[:-1] + "x"}):
        other = dataclasses.replace(named, fingerprints=prints | changed)
        assert run_differences(scoped, planned, other) == [f"fingerprint of the {next(iter(changed))}"]
    assert run_differences(scoped, planned, dataclasses.replace(named, scope=None)) == ["scope"]

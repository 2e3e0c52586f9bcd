"""What a certificate says of one plan alone: counted again by hand, on the page, and not to be taken away unnoticed."""

import dataclasses
import json
from pathlib import Path

import pytest
from hypothesis import given
from plan_instances import Instance, instances

import hush
from hush.audit.canaries import Candidates, Template, plant
from hush.certificate import NOT_COVERED
from hush.plan.files import FILES
from hush.plan.plan import are_canaries, kept_weight, unlisted_secrets
from hush.storage import file_digest, record_digest


def remarks_of(plan: hush.Plan) -> tuple[str, ...]:
    assert plan.certificate.not_covered[: len(NOT_COVERED)] == NOT_COVERED
    return plan.certificate.not_covered[len(NOT_COVERED) :]


@given(instances())
def test_counts_and_weights_are_those_of_the_lists_of_examples(instance: Instance) -> None:
    graph = instance.incidence
    assert unlisted_secrets(graph) == sum(not graph.examples_of(secret).size for secret in range(graph.num_secrets))
    plan = hush.make_plan(graph, **instance.promises, batch_size=0.5, capacity="none")
    assert kept_weight(plan) == 1
    halved = dataclasses.replace(plan, weights=plan.weights / 2)
    bearing = {example for secret in range(graph.num_secrets) for example in graph.examples_of(secret).tolist()}
    assert kept_weight(halved) == (0.5 if bearing else 1)


def test_a_certificate_says_how_many_secrets_are_in_no_example_and_what_the_others_cost(plan: hush.Plan) -> None:
    unlisted, weights = remarks_of(plan)
    assert unlisted.startswith("Of the 8 secrets 1 is in no listed example.")
    assert weights == "How much is learnt: examples with secrets keep 90.2 % of their weight."
    assert all(f"\n- {line}\n" in plan.certificate.to_markdown() for line in (unlisted, weights))


def test_examples_that_are_used_and_hardly_drawn_do_not_pass_for_kept() -> None:
    """Weights just above 0 count as used: the certificate says how little they are."""
    graph = hush.Incidence.from_pairs(range(30), [0] * 30, num_examples=60, num_secrets=1)
    plan = hush.make_plan(graph, prior=1e-6, ceiling=1e-3, batch_size=6, rounds=20, noise_multiplier=0.2)
    assert plan.kept_fraction == 1
    assert "100.0 % of 60 examples kept" in plan.certificate.to_markdown()
    (said,) = remarks_of(plan)
    share = float(said.removesuffix(" % of their weight.").rsplit(" ", 1)[1]) / 100
    assert 0.99 * kept_weight(plan) < share <= kept_weight(plan) < 0.05


@pytest.mark.parametrize("secrets", [1, 3])
def test_a_plan_for_secrets_that_are_nowhere_says_so(secrets: int) -> None:
    nowhere = hush.Incidence.from_pairs([], [], num_examples=9, num_secrets=secrets)
    plan = hush.make_plan(nowhere, prior=1e-6, ceiling=1e-3, batch_size=3, rounds=5)
    some = "The one secret is" if secrets == 1 else "Of the 3 secrets 3 are"
    assert [line.startswith(f"{some} in no listed example") for line in remarks_of(plan)] == [True]
    assert "For each of 0 secrets found in the data" in plan.certificate.to_markdown()


def test_the_headline_counts_the_secrets_that_were_found() -> None:
    graph = hush.Incidence.from_pairs([0, 1], [2, 2], num_examples=20, num_secrets=80)
    certificate = hush.make_plan(graph, prior=1e-6, ceiling=1e-3, batch_size=3, rounds=5).certificate
    assert (certificate.num_found, certificate.num_secrets) == (1, 80)
    page = certificate.to_markdown()
    assert "For the one secret found in the data, and trivially for the other 79 listed: nobody" in page


def test_canaries_are_told_from_secrets_by_their_ids() -> None:
    graph = hush.Incidence.from_pairs([0, 1], [0, 1], num_examples=20, num_secrets=2)
    secrets = hush.Secrets([hush.Protection(1e-6, 0.01)] * 2, ids=["canary-bird", "door"])
    template = [Template.parse("number {number}: {secret}")]
    made = plant(graph, secrets, template, Candidates.of_format("digits", 3), count=3, repeats=1, ceiling=0.2)
    plan = hush.make_plan(
        made.incidence,
        prior=made.secrets.prior,
        ceiling=made.secrets.ceiling,
        secret_ids=made.secrets.ids,
        batch_size=2,
        rounds=5,
    )
    assert are_canaries(plan).tolist() == [False, False, True, True, True]
    assert remarks_of(plan)[-1] == (
        "Planted canaries protect nothing real: 3 of the 5 secrets, by their ids. For the others priors are at most "
        "1.00e-06, ceilings from 0.0100 to 0.0100."
    )
    without = dataclasses.replace(plan, secret_ids=tuple("abcde"))
    assert not any("canaries" in line for line in remarks_of(without))


def test_what_is_said_of_one_plan_cannot_be_left_out_whatever_format_is_stated(plan: hush.Plan, tmp_path: Path) -> None:
    folder = tmp_path / "plan"
    plan.save(folder)
    stated = json.loads((folder / "certificate.json").read_text())
    silent = dataclasses.replace(plan.certificate, not_covered=NOT_COVERED)
    (folder / "certificate.json").write_text(json.dumps(stated | {"not_covered": list(NOT_COVERED)}))
    (folder / "certificate.md").write_text(silent.to_markdown())
    for written in ("1.5", "1.2"):  # the second did not say it
        record = json.loads((folder / "plan.json").read_text()) | {"format": written}
        record["digests"] = {name: file_digest(folder / name) for name in FILES}
        record["digest"] = record_digest(record)
        (folder / "plan.json").write_text(json.dumps(record))
        assert hush.Plan.load(folder) == plan
        assert not hush.verify(folder).passed

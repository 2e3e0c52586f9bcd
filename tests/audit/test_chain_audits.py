"""Audits of runs that are one of several releases: the attacks use all of them, and so does what is certified."""

import json
from dataclasses import replace
from pathlib import Path
from random import Random
from typing import Any

import numpy as np
import pytest
from audited import QUICK, ROUNDS, TOKENIZER, changed, release, rows_of
from memorising import byte_model, trained_plainly

import hush
from hush.accounting.releases import joint_posterior
from hush.audit.attacks import closest_secrets
from hush.audit.auditor import Audit, audit
from hush.audit.canaries import CanarySet, Candidates, PlantedCanaries, Template, plant, plant_again
from hush.audit.exposure import rank_canary, ranks_p_value
from hush.audit.folders import AuditedRun
from hush.audit.models import Subject
from hush.audit.session import AuditInputs
from hush.errors import InvalidInput
from hush.plan.earlier import Earlier
from hush.plan.settings import FilterSettings, SeriesSettings
from hush.storage import whole_file

pytestmark = pytest.mark.usefixtures("quiet")

SIMULATED = changed(QUICK, attacks=("mechanism",), trials=4000)


def plan_of(graph: hush.Incidence, ids: list[str], number: int, folders: list[Path], **kind: Any) -> hush.Plan:
    """The plan of release ``number``, after those in the folders."""
    promises: dict[str, Any] = {"prior": [1e-2] * len(ids), "ceiling": [0.2] * len(ids), "secret_ids": ids}
    keep = 0.5 if number == 1 else 0.25
    after = [folder / "release" for folder in folders]
    return hush.make_plan(graph, **promises, batch_size=3, rounds=ROUNDS, keep=keep, after=after, **kind)


def chain(folder: Path, releases: int, **kind: Any) -> list[AuditedRun]:
    """Runs with three secrets, the last of which has a second example from the second release on."""
    folders: list[Path] = []
    runs: list[AuditedRun] = []
    ids = ["a", "b", "c"]
    for number in range(1, releases + 1):
        more = ([3], [2]) if number > 1 else ([], [])
        graph = hush.Incidence.from_pairs([0, 1, 2, *more[0]], [0, 1, 2, *more[1]], num_examples=8, num_secrets=3)
        plan = plan_of(graph, ids, number, folders, **(kind if number == 1 else {}))
        runs.append(release(folder / str(number), plan, byte_model(seed=number), TOKENIZER, after=folders))
        folders.append(folder / str(number))
    return runs


SERIES: dict[str, Any] = {"series": SeriesSettings(count=3)}
FILTER: dict[str, Any] = {"filter": FilterSettings(share=0.3)}


# --- the mechanism


@pytest.mark.parametrize("kind", [SERIES, FILTER])
def test_the_mechanism_of_all_releases_is_attacked_together(tmp_path: Path, kind: dict[str, Any]) -> None:
    run = chain(tmp_path, 3, **kind)[-1]
    made = audit(run, folder=tmp_path / "audit", settings=SIMULATED)
    for row in rows_of(made, "mechanism"):
        secret = run.secret_index(row.attempt.name)
        used = run.used_on(secret)
        assert [len(of_release.rates) for of_release in used] == ([1, 2, 2] if row.attempt.name == "c" else [1, 1, 1])
        joint = joint_posterior(
            [of_release.rates for of_release in used],
            noise_multipliers=[of_release.noise_multiplier for of_release in used],
            rounds=[of_release.rounds for of_release in used],
            prior=1e-2,
        )
        single = hush.posterior(used[-1].rates, noise_multiplier=run.plan.noise_multiplier, rounds=ROUNDS, prior=1e-2)
        assert row.lower is not None
        assert row.upper is not None
        assert row.lower <= joint <= row.upper  # the simulation is of all three
        assert single < row.lower  # and not of the last alone
        assert row.attempt.certified == run.plan.posterior[secret, 0]
        assert joint <= run.plan.posterior[secret, 0]
        assert (row.status, row.attempt.releases) == ("kept", 3)
    assert made.record["chain"]["number"] == 3
    assert made.record["chain"]["predecessors"] == [one.digest for one in run.earlier]
    page = (tmp_path / "audit" / "audit.md").read_text()
    assert "(3 releases)" in page
    assert "release 3 of" in page


def test_a_certificate_that_forgot_the_earlier_releases_fails(tmp_path: Path) -> None:
    """The last release alone stays within its bound: the audit would have caught a chain that did not add up."""
    graph = hush.Incidence.from_pairs([0, 1, 2], [0, 1, 2], num_examples=8, num_secrets=3)
    plan = plan_of(graph, ["a", "b", "c"], 1, [])
    alone = release(tmp_path / "alone", plan, byte_model(), TOKENIZER)
    assert audit(alone, folder=tmp_path / "audit", settings=SIMULATED).verdict.status == "model not judged"
    before = Earlier(plan=plan, digest="0" * 64)
    forgetful = replace(alone, earlier=(before, before))
    made = audit(forgetful, folder=tmp_path / "forgetful", settings=SIMULATED)
    assert made.verdict.status == "failed"
    assert all(row.status == "failed" for row in rows_of(made, "mechanism"))


def test_ancestors_count_as_the_secret_itself(tmp_path: Path) -> None:
    """Two secrets that turn out to be one: its earlier examples are those of both, each once."""
    graph = hush.Incidence.from_pairs([0, 1, 1], [0, 0, 1], num_examples=8, num_secrets=2)
    first = plan_of(graph, ["a", "b"], 1, [], filter=FilterSettings(share=0.3))
    release(tmp_path / "1", first, byte_model(), TOKENIZER)
    later = hush.Incidence.from_pairs([0], [0], num_examples=8, num_secrets=1)
    folders = [tmp_path / "1"]
    merged = plan_of(later, ["ab"], 2, folders, ancestors={"ab": ["a", "b"]})
    run = release(tmp_path / "2", merged, byte_model(seed=1), TOKENIZER, after=folders)
    used = run.used_on(0)
    assert [of_release.rates.size for of_release in used] == [2, 1]
    assert used[0].rates.tolist() == first.rates[:2].tolist()


def test_secrets_that_differ_in_an_earlier_release_are_simulated_apart(tmp_path: Path) -> None:
    run = chain(tmp_path, 2, **SERIES)[-1]
    run = replace(run, plan=replace(run.plan, binding=np.empty(0, np.int64)))
    chosen = [run.plan.secret_ids[secret] for secret, _ in closest_secrets(run, 10)]
    assert len(chosen) == 2  # a and b were drawn alike in both releases, c was not
    assert "c" in chosen


def test_earlier_plans_may_lie_elsewhere_and_must_be_all_there(tmp_path: Path) -> None:
    runs = chain(tmp_path, 3, **SERIES)
    earlier = tmp_path / "3" / "release" / "earlier"
    earlier.rename(tmp_path / "elsewhere")
    with pytest.raises(InvalidInput, match="release 1 is not given"):
        AuditedRun.load(tmp_path / "3")
    with pytest.raises(InvalidInput, match="release 2 is not given"):
        AuditedRun.load(tmp_path / "3", after=[tmp_path / "1"])
    found = AuditedRun.load(tmp_path / "3", after=[tmp_path / "2", tmp_path / "1"])  # in any order
    assert [one.digest for one in found.earlier] == [run.plan_digest for run in runs[:2]]


# --- canaries


def planted_chain(folder: Path, models: list[Any]) -> tuple[list[AuditedRun], list[PlantedCanaries]]:
    """The same six canaries in the data of releases that grow, each with its model."""
    made: list[PlantedCanaries] = []
    runs: list[AuditedRun] = []
    folders: list[Path] = []
    for number, model in enumerate(models, start=1):
        incidence = hush.Incidence.from_pairs([], [], num_examples=6 + number, num_secrets=0)
        if made:
            planting = CanarySet(id=made[0].id, canaries=made[0].canaries, candidates=made[0].candidates)
            made.append(plant_again(planting, incidence, hush.Secrets([]), repeats=1, ceiling=0.2))
        else:
            templates = [Template.parse("Vault {number} opens with {secret}.")]
            candidates = Candidates.of_format("digits", 2)
            made.append(
                plant(
                    incidence, hush.Secrets([]), templates, candidates, count=6, repeats=1, ceiling=0.2, rng=Random(1)
                )
            )
        kind = {} if folders else SERIES
        plan = plan_of(made[-1].incidence, list(made[-1].secrets.ids), number, folders, **kind)
        runs.append(release(folder / str(number), plan, model, TOKENIZER, after=folders))
        folders.append(folder / str(number))
    return runs, made


def named(run: AuditedRun, planted: PlantedCanaries, releases: tuple[AuditedRun, ...], folder: Path) -> Audit:
    planting = CanarySet(id=planted.id, canaries=planted.canaries, candidates=planted.candidates)
    settings = changed(QUICK, attacks=("exposure",), candidates=100)
    return audit(run, AuditInputs(planting=planting, releases=releases), folder=folder, settings=settings)


def test_the_same_canaries_are_planted_in_the_data_of_every_release(tmp_path: Path) -> None:
    _, made = planted_chain(tmp_path, [byte_model(), byte_model(seed=1)])
    first, second = made
    assert first.id == second.id
    assert [canary.truth for canary in first.canaries] == [canary.truth for canary in second.canaries]
    assert first.secrets.ids == second.secrets.ids
    assert first.texts == second.texts
    assert min(second.canaries[0].examples) == second.incidence.num_examples - 6
    planting = CanarySet(id=first.id, canaries=first.canaries, candidates=first.candidates)
    with pytest.raises(InvalidInput, match="already a secret canary-000000"):
        plant_again(planting, first.incidence, first.secrets, repeats=1, ceiling=0.2)
    with pytest.raises(InvalidInput, match="at least one example"):
        plant_again(planting, first.incidence, first.secrets, repeats=0, ceiling=0.2)


def test_models_of_several_releases_name_canaries_better_than_each_alone(tmp_path: Path) -> None:
    """Models that learnt a little of each, from other starts: the sum over them ranks the truth higher."""
    templates = [Template.parse("Vault {number} opens with {secret}.")]
    empty = hush.Incidence.from_pairs([], [], num_examples=7, num_secrets=0)
    candidates = Candidates.of_format("digits", 2)
    texts = plant(
        empty, hush.Secrets([]), templates, candidates, count=6, repeats=1, ceiling=0.2, rng=Random(1)
    ).texts  # fmt: skip
    rows = [TOKENIZER(text)["input_ids"] for text in texts]
    models = [trained_plainly(rows, steps=38, seed=seed) for seed in range(3)]
    runs, made = planted_chain(tmp_path, models)
    assert made[0].texts == texts
    together = named(runs[2], made[2], (runs[1], runs[0]), tmp_path / "together")  # in any order
    alone = named(runs[2], made[2], (), tmp_path / "alone")
    exposure = together.record["exposure"]
    assert exposure["releases"] == 3
    assert exposure["mean_by_release"][2] == pytest.approx(alone.record["exposure"]["mean"])
    assert exposure["mean"] > max(exposure["mean_by_release"])
    (row,) = rows_of(together, "naming")
    assert row.attempt.releases == 3
    assert row.attempt.certified == pytest.approx(runs[2].plan.posterior[0, 0])  # of all releases, at this prior
    assert row.attempt.hits == int(together.ranks[0].rank == 1)
    assert "by the sum over the models of 3 releases" in (tmp_path / "together" / "audit.md").read_text()
    assert any("2 models" not in notice and "3 models" in notice for notice in together.notices)
    partly = named(runs[2], made[2], (runs[0],), tmp_path / "partly")
    assert any("holds 3 models, and canaries were ranked by 2" in notice for notice in partly.notices)


def test_ranks_by_models_that_never_saw_the_canaries_are_chance() -> None:
    """The sum over models and the change between them are symmetric in the candidates."""
    templates = [Template.parse("Vault {number} opens with {secret}.")]
    empty = hush.Incidence.from_pairs([], [], num_examples=7, num_secrets=0)
    candidates = Candidates.of_format("digits", 2)
    made = plant(
        empty, hush.Secrets([]), templates, candidates, count=60, repeats=1, ceiling=0.2, rng=Random(5)
    )  # fmt: skip
    subjects = [Subject.of(byte_model(seed=seed)) for seed in range(2)]
    ranks = [
        rank_canary(
            subjects[1], TOKENIZER, canary, candidates, max_length=48, max_candidates=20,
            earlier=[(subjects[0], TOKENIZER, 48)], rng=Random(number),
        )
        for number, canary in enumerate(made.canaries)
    ]  # fmt: skip
    assert ranks_p_value([rank.rank for rank in ranks], 20) > 1e-4
    assert ranks_p_value([rank.by_change or 0 for rank in ranks], 20) > 1e-4
    assert np.mean([rank.rank for rank in ranks]) == pytest.approx(10.5, abs=4 * 5.8 / 60**0.5)


def test_models_of_no_earlier_release_are_refused(tmp_path: Path) -> None:
    runs, made = planted_chain(tmp_path, [byte_model(seed=seed) for seed in range(2)])
    with pytest.raises(InvalidInput, match="are of no earlier release of this chain"):
        named(runs[1], made[1], (runs[1],), tmp_path / "itself")
    with pytest.raises(InvalidInput, match="given twice"):
        named(runs[1], made[1], (runs[0], runs[0]), tmp_path / "twice")
    single = plan_of(made[0].incidence, list(made[0].secrets.ids), 1, [])
    alone = release(tmp_path / "alone", single, byte_model(), TOKENIZER)
    with pytest.raises(InvalidInput, match="about one release alone"):
        named(alone, made[0], (runs[0],), tmp_path / "no-chain")


def test_earlier_models_without_the_canaries_are_refused(tmp_path: Path) -> None:
    empty = hush.Incidence.from_pairs([0], [0], num_examples=8, num_secrets=1)
    first = plan_of(empty, ["other"], 1, [], **SERIES)
    before = release(tmp_path / "1", first, byte_model(), TOKENIZER)
    templates = [Template.parse("Vault {number} opens with {secret}.")]
    table = hush.Secrets([hush.Protection(1e-2, 0.2)], ids=["other"])
    made = plant(empty, table, templates, Candidates.of_format("digits", 2), count=2, repeats=1, ceiling=0.2)
    plan = plan_of(made.incidence, list(made.secrets.ids), 2, [tmp_path / "1"])
    run = release(tmp_path / "2", plan, byte_model(seed=1), TOKENIZER, after=[tmp_path / "1"])
    with pytest.raises(InvalidInput, match="did not list these canaries"):
        named(run, made, (before,), tmp_path / "audit")


def test_an_earlier_release_that_certifies_nothing_leaves_no_bound(tmp_path: Path) -> None:
    runs, made = planted_chain(tmp_path, [byte_model(seed=seed) for seed in range(2)])
    certificate = tmp_path / "1" / "release" / "certificate.json"
    record = json.loads(certificate.read_text())
    record["marks"] = ["a fixed seed"]
    with whole_file(certificate) as file:
        file.write(json.dumps(record).encode())
    marked = AuditedRun.load(tmp_path / "1")
    assert marked.uncertified_reason
    (row,) = rows_of(named(runs[1], made[1], (marked,), tmp_path / "audit"), "naming")
    assert row.status == "not comparable"

"""With slots a plan is that of the examples with a secret; its folder says what is secret; no other scope passes."""

import dataclasses
import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from plan_instances import Instance, graph, instances, office, some_slots

import hush
from hush.keys import DataKey
from hush.plan.files import SLOT_FIELDS, SLOTS_FILE, files_of
from hush.plan.make import (
    choose_held_out,
    graph_of_training,
    held_out_examples,
    make_plan_holding_out,
    public_examples,
)
from hush.plan.plan import drawable_examples, kept_weight
from hush.slots import Slots
from hush.storage import file_digest, record_digest

KEYED = DataKey(bytes(32)).fingerprint_rows(["skeleton"])


@pytest.fixture(scope="module")
def scoped() -> hush.Plan:
    """Slots in some examples, whole examples, public and held-out ones."""
    instance = office()
    slots = some_slots(np.random.default_rng(1), instance.incidence)
    held_out = np.flatnonzero(~instance.has_secret)[[2, 0]]
    return make_plan_holding_out(
        instance.incidence, held_out, **instance.promises, batch_size=12, slots=slots, skeleton_fingerprint=KEYED
    )


@pytest.fixture
def folder(scoped: hush.Plan, tmp_path: Path) -> Path:
    scoped.save(tmp_path / "plan")
    return tmp_path / "plan"


def failed(folder: Path, **own: Any) -> dict[str, str]:
    return {check.name: check.detail for check in hush.verify(folder, **own).checks if not check.passed}


def sealed(folder: Path, **changes: Any) -> None:
    """plan.json with these fields (None: without them), and digests made to fit."""
    record = json.loads((folder / "plan.json").read_text()) | changes
    record = {name: value for name, value in record.items() if value is not None or name not in changes}
    record["digests"] = {name: file_digest(folder / name) for name in files_of(record)}
    record["digest"] = record_digest(record)
    (folder / "plan.json").write_text(json.dumps(record, indent=2) + "\n")


# The plan.


@settings(max_examples=8, deadline=None)
@given(instances(most_secrets=4, least_examples=4), st.integers(0, 1000), st.sampled_from(["accounted", "none"]))
def test_the_plan_is_that_of_the_examples_with_a_secret(instance: Instance, seed: int, capacity: Any) -> None:
    assume(instance.has_secret.any())
    slots = some_slots(np.random.default_rng(seed), instance.incidence)
    asked: dict[str, Any] = {**instance.promises, "batch_size": 0.3 * instance.has_secret.sum(), "capacity": capacity}
    plan = hush.make_plan(instance.incidence, slots=slots, **asked)
    alone = hush.make_plan(instance.incidence.select(examples=instance.has_secret), **asked)
    np.testing.assert_array_equal(plan.rates[instance.has_secret], alone.rates)
    assert not plan.rates[~instance.has_secret].any()
    for name in ("posterior", "binding", "noise_multiplier", "weights_gap", "batch_size", "kept_fraction"):
        np.testing.assert_array_equal(getattr(plan, name), getattr(alone, name))
    assert kept_weight(plan) == kept_weight(alone)
    np.testing.assert_allclose(plan.effective_size, alone.effective_size)
    assert graph_of_training(plan) == alone.incidence
    np.testing.assert_array_equal(drawable_examples(plan), instance.has_secret)


def test_more_examples_without_a_secret_change_no_rate_and_no_noise() -> None:
    few = graph(np.random.default_rng(3), 30, [4, 9, 2])
    secret = np.repeat(np.arange(3), few.examples_per_secret)
    many = hush.Incidence.from_pairs(few.example_of_entry, secret, num_examples=5000, num_secrets=3)
    promise: dict[str, Any] = {"prior": 1e-6, "ceiling": 1e-2, "batch_size": 4, "rounds": 30}
    less, more = (hush.make_plan(each, slots=Slots.none(each), **promise) for each in (few, many))
    np.testing.assert_array_equal(more.rates[:30], less.rates)
    assert more.noise_multiplier == less.noise_multiplier
    assert more.kept_fraction == less.kept_fraction
    without = hush.make_plan(many, **promise)
    assert without.slots is None
    assert without.rates[-1] > 0


def test_held_out_and_public_examples_are_told_apart(scoped: hush.Plan) -> None:
    bearing_N = scoped.incidence.secrets_per_example > 0
    held_out, public = held_out_examples(scoped), public_examples(scoped)
    np.testing.assert_array_equal(held_out, np.flatnonzero(~bearing_N)[[0, 2]])
    assert scoped.slots is not None
    whole = np.flatnonzero(scoped.slots.whole_examples(scoped.incidence))
    parts = [held_out, public, whole]
    np.testing.assert_array_equal(np.sort(np.concatenate(parts)), np.arange(scoped.incidence.num_examples))
    assert scoped.slots.has_slots_N[public[bearing_N[public]]].all()


def test_without_slots_public_are_the_examples_without_a_secret_that_are_drawn() -> None:
    instance = office()
    held_out = choose_held_out(instance.incidence, 0.3)
    plan = make_plan_holding_out(instance.incidence, held_out, **instance.promises, batch_size=12)
    expected = np.flatnonzero(~instance.has_secret & (plan.weights > 0))
    np.testing.assert_array_equal(public_examples(plan), expected)
    assert plan.held_out is None


def test_a_batch_holds_examples_with_a_secret_alone() -> None:
    instance = office()
    bearing = int(instance.has_secret.sum())
    slots = Slots.none(instance.incidence)
    message = f"batch_size=90 is more than the {bearing} examples with a secret, of 100; .* at most {bearing}"
    with pytest.raises(hush.InvalidInput, match=message):
        hush.make_plan(instance.incidence, **instance.promises, batch_size=90, slots=slots)


def test_where_no_example_contains_a_secret_there_is_nothing_to_plan() -> None:
    empty = hush.Incidence.from_pairs([], [], num_examples=5, num_secrets=1)
    with pytest.raises(hush.InvalidInput, match="nothing needs a promise"):
        hush.make_plan(empty, prior=1e-6, ceiling=0.1, batch_size=1, rounds=2, slots=Slots.none(empty))


def _weighing_a_free_example(plan: hush.Plan) -> np.ndarray:
    weights = np.array(plan.weights)
    weights[held_out_examples(plan)[0]] = 0.5
    return weights


WRONG: dict[str, tuple[Callable[[hush.Plan], dict[str, Any]], str]] = {
    "slots of another graph": (
        lambda plan: {"slots": Slots.none(graph(np.random.default_rng(0), 7, [2]))}, "pass those of the same scan",
    ),
    "a slot too few": (lambda plan: {"slots": _without_a_slot(plan)}, "example .* has slots, but not for exactly"),
    "a secret held out": (
        lambda plan: {"held_out": np.flatnonzero(drawable_examples(plan))[:1]}, "is held out but contains a secret",
    ),
    "held-out examples unsorted": (lambda plan: {"held_out": held_out_examples(plan)[::-1]}, "ascending, each once"),
    "held-out examples outside": (lambda plan: {"held_out": np.array([100])}, r"outside \[0, 100\)"),
    "no list of held-out examples": (lambda plan: {"held_out": None}, "must list its held-out examples"),
    "weight without a secret": (
        lambda plan: {"weights": _weighing_a_free_example(plan)}, "contains no secret, but has a weight",
    ),
    "a plain hash": (lambda plan: {"skeleton_fingerprint": "0" * 64}, "skeleton_fingerprint is not a result of"),
    "skeletons without slots": (lambda plan: {"slots": None, "held_out": None}, "parts of plans with slots"),
    "too large a batch": (lambda plan: {"batch_size": 90.0}, "examples with a secret, of 100"),
}  # fmt: skip


def _without_a_slot(plan: hush.Plan) -> Slots:
    """The slots without the only one of some secret in some example."""
    assert plan.slots is not None
    slots = plan.slots
    kept = np.ones(len(slots), dtype=bool)
    kept[next(n for n in range(len(slots)) if len(slots.of_example(int(slots.example_L[n]))) > 1)] = False
    pairs = np.diff(slots.offset_L)
    return Slots(
        num_examples=slots.num_examples, num_secrets=slots.num_secrets, rules=slots.rules,
        example_L=slots.example_L[kept], place_L=slots.place_L[kept], rule_L=slots.rule_L[kept],
        offset_L=np.append(0, np.cumsum(pairs[kept])), secret_P=slots.secret_P[np.repeat(kept, pairs)],
    )  # fmt: skip


@pytest.mark.parametrize("name", WRONG)
def test_a_plan_whose_parts_do_not_belong_together_does_not_exist(scoped: hush.Plan, name: str) -> None:
    changes, message = WRONG[name]
    with pytest.raises(hush.HushError, match=message):
        dataclasses.replace(scoped, **changes(scoped))


# The folder.


@settings(max_examples=10, deadline=None)
@given(instances(most_secrets=4, least_examples=4), st.integers(0, 1000), st.booleans())
def test_any_plan_with_slots_survives_the_disk_and_is_proven_again(
    tmp_path_factory: pytest.TempPathFactory, instance: Instance, seed: int, keyed: bool
) -> None:
    assume(instance.has_secret.any())
    slots = some_slots(np.random.default_rng(seed), instance.incidence)
    held_out = np.flatnonzero(~instance.has_secret)[: seed % 3]
    plan = make_plan_holding_out(
        instance.incidence, held_out, **instance.promises, batch_size=0.5, capacity="none", slots=slots,
        skeleton_fingerprint=KEYED if keyed else None,
    )  # fmt: skip
    folder = tmp_path_factory.mktemp("any") / "plan"
    plan.save(folder)
    assert hush.Plan.load(folder) == plan
    found = hush.verify(folder, incidence=instance.incidence, slots=slots)
    assert found.passed
    assert found.unchecked == ()
    for secret in range(instance.incidence.num_secrets):
        reached = hush.posterior(
            plan.rates[plan.incidence.examples_of(secret)], noise_multiplier=plan.noise_multiplier,
            rounds=plan.rounds, prior=plan.prior[secret], side="lower",
        )  # fmt: skip
        assert (np.asarray(reached) <= plan.posterior[secret] * (1 + 1e-9)).all()


def test_a_plan_without_slots_has_neither_their_file_nor_their_fields(plan: hush.Plan, tmp_path: Path) -> None:
    plan.save(tmp_path / "plan")
    assert not (tmp_path / "plan" / SLOTS_FILE).exists()
    assert not json.loads((tmp_path / "plan" / "plan.json").read_text()).keys() & set(SLOT_FIELDS)


@pytest.mark.parametrize("written", ["1.4", "1.2", "1.0"])
def test_a_plan_of_an_older_format_covers_whole_examples(plan: hush.Plan, tmp_path: Path, written: str) -> None:
    plan.save(tmp_path / "plan")
    sealed(tmp_path / "plan", format=written)
    again = hush.Plan.load(tmp_path / "plan")
    assert again == plan
    assert again.slots is None
    assert again.held_out is None


def test_saving_again_without_slots_leaves_none_behind(scoped: hush.Plan, plan: hush.Plan, folder: Path) -> None:
    plan.save(folder)
    assert not (folder / SLOTS_FILE).exists()
    scoped.save(folder)
    assert hush.Plan.load(folder) == scoped


def test_what_the_owner_did_not_give_is_listed(scoped: hush.Plan, folder: Path) -> None:
    alone = hush.verify(folder)
    assert alone.passed
    assert [line for line in alone.unproven if line.startswith("slots.parquet: ")] == [
        f"slots.parquet: {name}, not compared with the owner's slots"
        for name in ("example", "place", "rule", "secrets")
    ]
    assert "plan.json: held_out 2 examples, whether training leaves them out" in alone.unproven
    assert any(line.startswith(f"plan.json: skeleton_fingerprint {KEYED!r}, only the owner") for line in alone.unproven)
    given_slots = hush.verify(folder, slots=scoped.slots)
    assert not [line for line in given_slots.unproven if line.startswith("slots.parquet")]


def test_a_plan_that_dropped_its_slots_consistently_is_compared_or_listed(scoped: hush.Plan, tmp_path: Path) -> None:
    """It promises whole examples, which is more than a training on slots keeps, and no file can tell."""
    dataclasses.replace(scoped, slots=None, skeleton_fingerprint=None, held_out=None).save(tmp_path / "dropped")
    alone = hush.verify(tmp_path / "dropped", incidence=scoped.incidence)
    assert alone.passed
    assert "plan.json: no slots, so every promise is about whole examples, not compared with the owner's slots" in (
        alone.unproven
    )
    assert not hush.verify(tmp_path / "dropped", slots=scoped.slots).passed
    whole = hush.verify(tmp_path / "dropped", slots=Slots.none(scoped.incidence))
    assert whole.passed
    assert not [line for line in whole.unproven if "no slots" in line]


# Tampering.


def test_changed_slots_do_not_fit_their_digest(folder: Path) -> None:
    content = bytearray((folder / SLOTS_FILE).read_bytes())
    content[len(content) // 2] ^= 1
    (folder / SLOTS_FILE).write_bytes(content)
    assert "slots.parquet" in failed(folder)["files"]
    with pytest.raises(hush.InvalidInput, match=r"slots\.parquet changed after the plan was written"):
        hush.Plan.load(folder)


def _moved(slots: Slots) -> Slots:
    return dataclasses.replace(slots, place_L=slots.place_L + 1)


def test_other_slots_are_not_those_that_the_plan_names(scoped: hush.Plan, folder: Path) -> None:
    assert scoped.slots is not None
    _moved(scoped.slots).to_parquet(folder / SLOTS_FILE)
    sealed(folder)
    assert "holds other slots than plan.json names" in failed(folder)["content"]
    sealed(folder, slots=_moved(scoped.slots).fingerprint)
    assert "fingerprints" in failed(folder)["certificate"]


@pytest.mark.parametrize("digest_too", [False, True])
def test_removed_slots_are_missed(folder: Path, digest_too: bool) -> None:
    (folder / SLOTS_FILE).unlink()
    if digest_too:
        record = json.loads((folder / "plan.json").read_text())
        del record["digests"][SLOTS_FILE]
        record["digest"] = record_digest(record)
        (folder / "plan.json").write_text(json.dumps(record))
    assert re.search(r"lacks \['slots\.parquet'\]", failed(folder)["plan.json"])


def test_slots_cannot_be_dropped_while_the_certificate_speaks_of_them(folder: Path) -> None:
    (folder / SLOTS_FILE).unlink()
    sealed(folder, **dict.fromkeys(SLOT_FIELDS))
    assert "scope" in failed(folder)["certificate"]


def test_slots_without_their_field_are_refused(folder: Path) -> None:
    record = json.loads((folder / "plan.json").read_text())
    del record["slots"]
    record["digest"] = record_digest(record)
    (folder / "plan.json").write_text(json.dumps(record))
    assert "names slots.parquet but no slots" in failed(folder)["plan.json"]


@pytest.mark.parametrize(
    ("changes", "check", "reason"),
    [
        ({"held_out": [1]}, "content", "is held out but contains a secret"),
        ({"held_out": [-1]}, "content", "held_out names examples outside"),
        ({"held_out": "none"}, "plan.json", "does not list examples by their numbers"),
        ({"held_out": [2**70]}, "plan.json", "does not list examples by their numbers"),
        ({"held_out": []}, "certificate", "fingerprints"),
        ({"held_out": None}, "content", "must list its held-out examples"),
        ({"slots": "0" * 64}, "content", "holds other slots than plan.json names"),
        ({"skeleton_fingerprint": "0" * 64}, "content", "skeleton_fingerprint is not a result"),
        ({"skeleton_fingerprint": None}, "certificate", "fingerprints"),
    ],
)
def test_a_changed_field_contradicts_another_file(
    folder: Path, changes: dict[str, Any], check: str, reason: str
) -> None:
    first = int(np.flatnonzero(office().has_secret)[0])
    sealed(folder, **({"held_out": [first]} if changes == {"held_out": [1]} else changes))
    assert reason in failed(folder)[check]


def test_slots_of_another_graph_make_no_plan(folder: Path) -> None:
    other = some_slots(np.random.default_rng(2), graph(np.random.default_rng(2), 100, [3] * 8))
    other.to_parquet(folder / SLOTS_FILE)
    sealed(folder, slots=other.fingerprint)
    assert "slots and graph of the same scan" in failed(folder)["content"]


def test_a_column_or_label_that_hush_does_not_write_is_found(scoped: hush.Plan, folder: Path) -> None:
    import pyarrow as pa
    import pyarrow.parquet as pq

    table = pq.read_table(folder / SLOTS_FILE)
    pq.write_table(table.replace_schema_metadata({**table.schema.metadata, b"note": b"x"}), folder / SLOTS_FILE)
    sealed(folder)
    assert [name for name in hush.verify(folder).unchecked if name.startswith(SLOTS_FILE)]
    pq.write_table(table.append_column("text", pa.array(["x"] * len(table))), folder / SLOTS_FILE)
    sealed(folder)
    assert "slots.parquet holds fields that are not part of a plan" in failed(folder)["content"]


def test_another_scope_written_consistently_is_not_the_owners(scoped: hush.Plan, tmp_path: Path) -> None:
    assert scoped.slots is not None
    moved = dataclasses.replace(scoped, slots=_moved(scoped.slots))
    dropped = dataclasses.replace(scoped, slots=None, held_out=None, skeleton_fingerprint=None)
    for name, forged in (("moved", moved), ("dropped", dropped)):
        forged.save(tmp_path / name)
        assert not failed(tmp_path / name)
        assert list(failed(tmp_path / name, slots=scoped.slots)) == ["slots"]
    none = Slots.none(scoped.incidence)
    assert not failed(tmp_path / "dropped", slots=none)
    assert list(failed(tmp_path / "moved", slots=none)) == ["slots"]
    empty = dataclasses.replace(scoped, slots=none)
    empty.save(tmp_path / "empty")
    assert not failed(tmp_path / "empty", slots=none)


def test_a_stray_file_of_slots_is_not_part_of_a_plan_without_them(
    scoped: hush.Plan, plan: hush.Plan, tmp_path: Path
) -> None:
    assert scoped.slots is not None
    plan.save(tmp_path / "plan")
    scoped.slots.to_parquet(tmp_path / "plan" / SLOTS_FILE)
    assert hush.verify(tmp_path / "plan").unchecked == (SLOTS_FILE,)


def test_plans_that_hold_out_other_examples_differ(scoped: hush.Plan, plan: hush.Plan) -> None:
    assert plan != scoped
    assert scoped != plan
    assert scoped != dataclasses.replace(scoped, held_out=np.empty(0, dtype=np.int64))


def test_a_plan_with_slots_that_names_its_data_names_its_skeletons(scoped: hush.Plan) -> None:
    """Other spans of the same slots may leave a part of a secret outside: only the skeletons tell."""
    dataclasses.replace(scoped, data_fingerprint=KEYED)
    with pytest.raises(hush.InvalidInput, match="must name its skeletons"):
        dataclasses.replace(scoped, data_fingerprint=KEYED, skeleton_fingerprint=None)

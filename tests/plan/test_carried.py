"""Whatever a plan carries is proven by a check or listed: what passes after a change was listed before it."""

import dataclasses
import json
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet as pq
import pytest

import hush
from hush.keys import DataKey
from hush.plan import carried
from hush.plan.files import CHAIN_FIELD, FILES, OPTIONAL_SETTINGS, SETTINGS, SLOT_FIELDS, TABLES, tables_of
from hush.storage import file_digest, record_digest


@pytest.fixture
def folder(plan: hush.Plan, tmp_path: Path) -> Path:
    plan.save(tmp_path / "plan")
    return tmp_path / "plan"


def sealed(folder: Path) -> Path:
    record = json.loads((folder / "plan.json").read_text())
    record["digests"] = {name: file_digest(folder / name) for name in FILES}
    record["digest"] = record_digest(record)
    (folder / "plan.json").write_text(json.dumps(record, indent=2) + "\n")
    return folder


def test_a_plan_as_hush_writes_it_holds_nothing_that_is_not_read(folder: Path) -> None:
    found = hush.verify(folder)
    assert found.passed
    assert found.unchecked == ()


def test_every_field_and_column_is_claimed_or_has_a_reason() -> None:
    """Not left to chance: one that is neither is listed as unknown, but hush itself writes none."""
    fields = {"format", *SETTINGS, *OPTIONAL_SETTINGS, *SLOT_FIELDS, CHAIN_FIELD, "binding", "digests", "digest"}
    tables = tables_of({"slots": "0", "chain": {"kind": "filter"}})
    tables["chain.parquet"] += tables_of({"chain": {"kind": "series"}})["chain.parquet"]
    for file, names in ({"plan.json": fields} | tables).items():
        reasons = set(carried.REASONS.get(file, {}))
        assert carried.PROVEN[file] | reasons == set(names), file
        assert not carried.PROVEN[file] & reasons, file


CONSISTENT: dict[str, Any] = {
    "created": "2001-01-01T00:00:00+00:00",
    "clip_norm": 7.5,
    "weights_gap": 0.25,
    "capacity": "paper",
    "data_fingerprint": DataKey(bytes(32)).fingerprint_rows(["b"]),
}


@pytest.mark.parametrize("name", CONSISTENT)
def test_what_can_be_written_consistently_is_listed_with_its_value(plan: hush.Plan, tmp_path: Path, name: str) -> None:
    dataclasses.replace(plan, **{name: CONSISTENT[name]}).save(tmp_path / "other")
    found = hush.verify(tmp_path / "other")
    assert found.passed
    assert [line for line in found.unproven if line.startswith(f"plan.json: {name} {CONSISTENT[name]!r}, ")]
    assert set(CONSISTENT) == set(carried.REASONS["plan.json"]) - set(SLOT_FIELDS)  # those: test_scope.py


def test_the_owners_graph_and_promises_are_listed_unless_they_were_given(plan: hush.Plan, folder: Path) -> None:
    secrets = hush.Secrets(
        [hush.Protection.of(*zip(*row, strict=True)) for row in zip(plan.prior, plan.ceiling, strict=True)],
        ids=plan.secret_ids,
    )

    def files(**own: Any) -> set[str]:
        return {line.split(":")[0] for line in hush.verify(folder, **own).unproven}

    neither = {"plan.json", "certificate"}
    assert files() == neither | {"secrets.parquet", "incidence.parquet"}
    assert files(incidence=plan.incidence) == neither | {"secrets.parquet"}
    assert files(incidence=plan.incidence, secrets=secrets) == neither


def test_an_unknown_field_is_listed_though_nobody_foresaw_it(folder: Path) -> None:
    record = json.loads((folder / "plan.json").read_text())
    (folder / "plan.json").write_text(json.dumps(record | {"approved_by": "the board"}, indent=2) + "\n")
    found = hush.verify(sealed(folder))
    assert not found.passed
    assert "plan.json: approved_by 'the board', no check knows it" in found.unproven


@pytest.mark.parametrize("name", list(TABLES))
@pytest.mark.parametrize("how", ["label", "label of a column", "pages"])
def test_what_a_table_holds_besides_its_columns_is_named(folder: Path, name: str, how: str) -> None:
    path = folder / name
    table = pq.read_table(path)
    labels = {**table.schema.metadata}
    if how == "label":
        labels[b"approved by"] = b"the board"
    if how == "label of a column":
        first = table.schema.field(0).with_metadata({"approved by": "the board"})
        table = table.cast(table.schema.set(0, first))
    pq.write_table(table.replace_schema_metadata(labels), path, data_page_size=64 if how == "pages" else None)
    found = hush.verify(sealed(folder))
    assert found.passed
    assert [line for line in found.unchecked if line.startswith(f"{name} (holds more")]


def test_another_layout_of_the_json_is_named(folder: Path) -> None:
    record = json.loads((folder / "plan.json").read_text())
    (folder / "plan.json").write_text(json.dumps(record))
    found = hush.verify(folder)
    assert found.passed
    assert [line for line in found.unchecked if line.startswith("plan.json (holds more")]


def test_posteriors_above_the_proven_ones_pass_as_long_as_they_keep_their_ceilings(
    plan: hush.Plan, tmp_path: Path
) -> None:
    """They promise less than is true; nothing smaller passes."""
    for factor, passes in ((1.001, True), (0.999, False)):
        stated = np.clip(factor * plan.posterior, plan.prior, plan.ceiling)
        dataclasses.replace(plan, posterior=stated).save(tmp_path / str(factor))
        assert hush.verify(tmp_path / str(factor)).passed == passes

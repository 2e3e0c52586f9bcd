"""A chain that was cut, reordered or changed does not verify, although whoever did it made all digests fit."""

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from chain_instances import failed, month, planned, saved

import hush
from hush.plan.earlier import Earlier, copy_earlier, earlier_beside
from hush.plan.settings import FilterSettings, SeriesSettings
from hush.storage import file_digest, record_digest
from releases import certify, make_release

MONTHS = ({"a": 6, "b": 12, "c": 9}, {"a": 7, "c": 9, "d": 5}, {"a": 7, "b": 13, "cd": 11})
ANCESTORS = {"cd": ["c", "d"]}
KINDS: dict[str, dict[str, Any]] = {
    "series": {"series": SeriesSettings(count=4, growth=3.0)},
    "filter": {"filter": FilterSettings(share=0.15)},
}


@pytest.fixture(scope="module", params=KINDS)
def chain(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    """Three releases; in the third two secrets are merged, whose ceiling is high enough for what both spent.

    The second one states that the first did not protect d in some of its examples.
    """
    root, folders = tmp_path_factory.mktemp(request.param), list[Path]()
    for number, sizes in enumerate(MONTHS):
        arguments = {"keep": "auto"} if number and request.param == "series" else {}
        arguments |= {"uncovered": ["d"]} if number == 1 else {}
        merged = {"ancestors": ANCESTORS, "ceiling": [1e-2, 1e-2, 0.5]} if number == 2 else {}
        plan = planned(month(sizes, seed=number), **KINDS[request.param], after=folders, **arguments, **merged)
        folders.append(saved(plan, root / str(number)))
    assert failed(folders[2], folders[:2]) == {}
    return folders


@pytest.fixture
def copies(chain: list[Path], tmp_path: Path) -> list[Path]:
    return [Path(shutil.copytree(folder, tmp_path / folder.name)) for folder in chain]


def seal(folder: Path, change: Callable[[dict[str, Any]], Any] = lambda _: None) -> None:
    """Change plan.json, and make every digest fit, as whoever writes the files again can."""
    record = json.loads((folder / "plan.json").read_text())
    change(record)
    record["digests"] = {name: file_digest(folder / name) for name in record["digests"]}
    record["digest"] = record_digest(record)
    (folder / "plan.json").write_text(json.dumps(record, indent=2) + "\n")


def scale(folder: Path, column: str, factor: float, *, rows: slice = slice(None)) -> None:
    """Change a column of chain.parquet, and make every digest fit."""
    table = pq.read_table(folder / "chain.parquet")
    values = np.array(table.column(column).to_pylist())
    values[rows] *= factor
    place = table.schema.get_field_index(column)
    changed = pa.FixedSizeListArray.from_arrays(pa.array(values.ravel()), values.shape[1])
    pq.write_table(
        table.set_column(place, column, changed).replace_schema_metadata(table.schema.metadata),
        folder / "chain.parquet",
    )
    seal(folder)


def rewritten(folder: Path, change: Callable[[dict[str, Any]], Any]) -> None:
    """The plan of a folder with other fields, with a certificate that fits: as if hush had written it."""
    from hush.plan.files import read_fields, read_record

    fields = read_fields(folder, read_record(folder))
    change(fields)
    plan = hush.Plan(**fields)
    shutil.rmtree(folder)
    plan.save(folder)


def test_the_chain_is_found_beside_a_plan_and_in_a_release(copies: list[Path], tmp_path: Path) -> None:
    copy_earlier(copies[:2], tmp_path)
    assert [path.name for path in earlier_beside(copies[2])] == ["0001", "0002"]
    assert hush.verify(copies[2]).passed
    assert [Earlier.load(path).digest for path in earlier_beside(copies[2])] == [
        Earlier.load(path).digest for path in copies[:2]
    ]
    shutil.rmtree(tmp_path / "earlier" / "0001")
    assert not hush.verify(copies[2]).passed


def test_a_link_that_is_cut_swapped_or_moved_is_named(copies: list[Path]) -> None:
    first, second, third = copies
    assert "1 of the 2 earlier releases are missing: release 2" in failed(third, [first])["predecessors"]
    assert "another order" in failed(third, [second, first])["predecessors"]
    other = saved(planned(month(MONTHS[0], seed=9)), first.parent / "other")
    assert "release 1" in failed(third, [other, second])["predecessors"]
    (first / "examples.parquet").write_bytes((other / "examples.parquet").read_bytes())
    assert "changed after the plan was written" in failed(third, [first, second])["predecessors"]


def test_a_plan_that_forgets_its_predecessors_fails(copies: list[Path]) -> None:
    for change in (
        lambda record: record["chain"].update(predecessors=[]),
        lambda record: record["chain"].update(predecessors=record["chain"]["predecessors"][1:]),
        lambda record: record["chain"].update(predecessors=record["chain"]["predecessors"][::-1]),
        lambda record: record["chain"].pop("predecessors"),
        lambda record: record.pop("chain"),
    ):
        kept = (copies[2] / "plan.json").read_bytes()
        seal(copies[2], change)
        for given in ([], copies[:1], copies[1:2], copies[:2]):
            assert not hush.verify(copies[2], after=given).passed
        (copies[2] / "plan.json").write_bytes(kept)
    assert hush.verify(copies[2], after=copies[:2]).passed


@pytest.mark.parametrize("factor", [0.5, 0.999, 1.001, 2.0])
def test_other_limits_orders_or_spendings_fail(copies: list[Path], factor: float) -> None:
    for column in pq.read_schema(copies[2] / "chain.parquet").names:
        for row in range(3):
            folder = Path(shutil.copytree(copies[2], copies[2].with_name(f"{column}-{row}")))
            scale(folder, column, factor, rows=slice(row, row + 1))
            assert not hush.verify(folder, after=copies[:2]).passed, (column, row)


def test_other_facts_of_the_chain_fail_also_with_a_certificate_that_fits(copies: list[Path]) -> None:
    from dataclasses import replace

    def changed(**more: Any) -> Callable[[dict[str, Any]], Any]:
        return lambda fields: fields.update(chain=replace(fields["chain"], **more))

    stated = Earlier.load(copies[2]).plan.chain
    assert stated is not None
    cases = [
        changed(ancestors={"cd": ("b", "c", "d")}),
        changed(ancestors=dict(stated.ancestors) | {"a": ("c",)}),
        changed(raised=("a",)),
        changed(uncovered=()),
        changed(sampling_total=2 * stated.sampling_total),
        changed(sampling_before=0.5 * stated.sampling_before),
    ]
    for number, change in enumerate(cases):
        folder = Path(shutil.copytree(copies[2], copies[2].with_name(f"case-{number}")))
        rewritten(folder, change)
        found = failed(folder, copies[:2])
        assert "chain" in found, number


def test_spending_that_was_understated_is_found_by_recomputing(copies: list[Path]) -> None:
    """A plan written anew with a certificate that fits, in which the release spent more than it says."""
    from dataclasses import replace

    def less(fields: dict[str, Any]) -> None:
        kind = fields["chain"].kind
        if hasattr(kind, "limit_SR"):
            fields["rounds"] = kind.shape.rounds
            fields["chain"] = replace(fields["chain"], kind=replace(kind, limit_SR=kind.limit_SR * 1.01))
        else:
            short = kind.before_SQ + 0.9 * (kind.after_SQ - kind.before_SQ)
            fields["chain"] = replace(fields["chain"], kind=replace(kind, after_SQ=short))

    rewritten(copies[1], less)
    assert failed(copies[1], copies[:1])


def test_a_release_holds_the_plans_before_it_and_nothing_else(copies: list[Path], tmp_path: Path) -> None:
    copy_earlier(copies[:2], tmp_path / "release")
    names = {path.name for path in (tmp_path / "release" / "earlier" / "0001").iterdir()}
    assert names == {path.name for path in copies[0].iterdir()}


@pytest.fixture
def release(copies: list[Path], tmp_path: Path) -> Path:
    """What a run under the third plan releases, with the plans before it."""
    made = make_release(tmp_path / "release", Earlier.load(copies[2]).plan)
    shutil.rmtree(made / "plan")
    shutil.copytree(copies[2], made / "plan")
    copy_earlier(copies[:2], made)
    return made


def test_a_release_of_a_chain_verifies_with_what_lies_in_it(release: Path, copies: list[Path]) -> None:
    found = hush.verify(release)
    assert found.passed, found.checks
    assert not any("earlier" in name for name in found.unchecked)
    others = hush.verify(release, after=copies[:2])
    assert others.passed
    assert "earlier/" in others.unchecked
    assert found.certificate is not None
    text = found.certificate.to_markdown()
    assert "## Several releases" in text
    assert "and at what is left to the other releases" in text.replace("here and", "and")
    (release / "earlier" / "0001" / "note.txt").write_text("approved")
    assert failed_names(release) == {"folder"}
    (release / "earlier" / "0001" / "note.txt").unlink()
    (release / "earlier" / "0001").rename(release / "earlier" / "0003")
    assert failed_names(release) == {"predecessors"}


def test_a_release_whose_sampling_takes_what_is_left_to_others_fails(release: Path) -> None:
    plan = Earlier.load(release / "plan").plan
    assert plan.chain is not None
    trained = int(1.5 * plan.chain.sampling_limit * 2.0**64 / plan.rounds)
    run = plan.run_certificate(trained)
    names = ("trained_parameters", "sampling_error", "curve", "strictest")
    certify(release, plan, **{name: getattr(run, name) for name in names})
    assert "sampling error" in failed_names(release)


def failed_names(folder: Path) -> set[str]:
    return {check.name for check in hush.verify(folder).checks if not check.passed}

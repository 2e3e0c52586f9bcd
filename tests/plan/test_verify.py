"""What a reviewer can rely on: no number of a plan can be changed without being found out, digests or no digests."""

import copy
import dataclasses
import json
import re
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from plan_instances import Instance, instances, office

import hush
from hush.certificate import Certificate
from hush.keys import DataKey
from hush.plan.files import FILES
from hush.plan.make import make_plan_holding_out
from hush.storage import file_digest, record_digest

Path_ = tuple[Any, ...]


@pytest.fixture(scope="module")
def original(plan: hush.Plan, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("original") / "plan"
    plan.save(folder)
    assert hush.verify(folder).passed
    return folder


@pytest.fixture
def folder(original: Path, tmp_path: Path) -> Path:
    shutil.copytree(original, tmp_path / "plan")
    return tmp_path / "plan"


def sealed(folder: Path) -> Path:
    """Digests made to fit, as whoever changes a file can."""
    record = json.loads((folder / "plan.json").read_text())
    record["digests"] = {name: file_digest(folder / name) for name in FILES}
    record["digest"] = record_digest(record)
    (folder / "plan.json").write_text(json.dumps(record))
    return folder


def failed(folder: Path, **settings_of: Any) -> list[str]:
    return [check.name for check in hush.verify(folder, **settings_of).checks if not check.passed]


def numbers(content: Any, place: Path_ = ()) -> Iterator[Path_]:
    """Where the numbers of a JSON value stand."""
    if isinstance(content, dict):
        for name, value in content.items():
            yield from numbers(value, (*place, name))
    elif isinstance(content, list):
        for index, value in enumerate(content):
            yield from numbers(value, (*place, index))
    elif isinstance(content, int | float):
        yield place


def nudged(value: float) -> float:
    return value + 1 if isinstance(value, int) else value * 1.01 if value else 1e-3


def change_json(folder: Path, name: str, place: Path_) -> None:
    content = json.loads((folder / name).read_text())
    *way, last = place
    inner = content
    for step in way:
        inner = inner[step]
    inner[last] = nudged(inner[last])
    (folder / name).write_text(json.dumps(content, indent=2) + "\n")


def change_cell(folder: Path, name: str, column: str, row: int, change: Callable[[Any], Any]) -> None:
    table = pq.read_table(folder / name)
    values = table.column(column).to_pylist()
    values[row] = change(values[row])
    index = table.column_names.index(column)
    changed = table.set_column(index, column, pa.array(values, table.schema.field(column).type))
    pq.write_table(changed.replace_schema_metadata(table.schema.metadata), folder / name)


@pytest.mark.parametrize("name", ["plan.json", "certificate.json"])
def test_no_number_in_json_can_be_changed(original: Path, tmp_path: Path, name: str) -> None:
    places = list(numbers(json.loads((original / name).read_text())))
    assert len(places) > 8
    curve = [place for place in places if place[0] == "curve"]  # long; every fifth will do
    for place in [place for place in places if place not in curve] + curve[::5]:
        folder = tmp_path / "-".join(map(str, place))
        shutil.copytree(original, folder)
        change_json(folder, name, place)
        if name == "certificate.json":
            with pytest.raises(hush.InvalidInput, match="changed after"):
                hush.Plan.load(folder)
        else:
            assert failed(folder) == ["plan.json"], place
        assert failed(sealed(folder)), place


CELLS = [
    *(("examples.parquet", column, row) for column in ("weight", "rate") for row in (0, 17, 99)),
    *(("secrets.parquet", column, row) for column in ("prior", "ceiling", "posterior") for row in (0, 3, 7)),
]


@pytest.mark.parametrize(("name", "column", "row"), CELLS)
@pytest.mark.parametrize("factor", [1 - 1e-6, 1 + 1e-6, 0.5])
def test_no_cell_of_a_table_can_be_changed(folder: Path, name: str, column: str, row: int, factor: float) -> None:
    def change(value: Any) -> Any:
        if isinstance(value, list):
            return [value[0] * factor, *value[1:]]
        return value * factor if value else 1e-3

    change_cell(folder, name, column, row, change)
    assert "files" in failed(folder)
    assert set(failed(sealed(folder))) & {"rates", "certificate", "posteriors", "content"}


def test_no_id_can_be_changed(folder: Path) -> None:
    change_cell(folder, "secrets.parquet", "id", 2, lambda _: "somebody else")
    assert failed(sealed(folder)) == ["certificate"]


@pytest.mark.parametrize("other", [None, DataKey(bytes(32)).fingerprint_rows(["b"])])
def test_the_fingerprint_of_the_data_cannot_be_changed_or_dropped(
    plan: hush.Plan, tmp_path: Path, other: str | None
) -> None:
    tied = dataclasses.replace(plan, data_fingerprint=DataKey(bytes(32)).fingerprint_rows(["a"]))
    tied.save(tmp_path / "plan")
    record = json.loads((tmp_path / "plan" / "plan.json").read_text())
    for stated, found in ((record["format"], "certificate"), ("1.0", "plan.json")):
        changed = record | {"data_fingerprint": other, "format": stated}
        (tmp_path / "plan" / "plan.json").write_text(json.dumps(changed))
        assert failed(tmp_path / "plan") == ["plan.json"]
        assert failed(sealed(tmp_path / "plan")) == [found]


def test_no_pair_of_the_graph_can_be_changed_even_with_its_fingerprint(plan: hush.Plan, folder: Path) -> None:
    scipy = plan.incidence.to_scipy().tolil()
    example = int(plan.incidence.examples_of(3)[0])
    scipy[example, 3] = 0
    hush.Incidence.from_scipy(scipy.tocsr()).to_parquet(folder / "incidence.parquet")
    assert "certificate" in failed(sealed(folder))
    change_cell(folder, "incidence.parquet", "example", 0, lambda value: (value + 1) % 100)
    assert failed(sealed(folder)) == ["content"]


def test_no_word_or_digit_of_the_printed_certificate_can_be_changed(original: Path, tmp_path: Path) -> None:
    page = (original / "certificate.md").read_text()
    changes = [match.span() for match in re.finditer(r"\d(?=\D)", page)][::25]
    changes += [match.span() for match in re.finditer(r"Joint guesses|nobody", page)]
    for begin, end in changes:
        folder = tmp_path / str(begin)
        shutil.copytree(original, folder)
        other = "7" if page[begin] != "7" else "8"
        (folder / "certificate.md").write_text(page[:begin] + other + page[end:])
        assert failed(sealed(folder)) == ["certificate"]


@pytest.mark.parametrize(
    "change",
    [{"curve": {}}, {"marks": ["simulation"]}, {"assumptions": []}, {"not_covered": []}, {"binding": []},
     {"versions": {"hush": "1\n- certified by everybody"}}, {"versions": []}, {"curve": {"key-2": [["x", 1.0]]}},
     {"curve": [1]}, {"rounds": "50"}, {"rounds": 50.0}, {"fingerprints": {}}],
    ids=str,
)  # fmt: skip
def test_nothing_can_be_left_out_of_the_certificate_or_put_in(folder: Path, change: dict[str, Any]) -> None:
    content = json.loads((folder / "certificate.json").read_text()) | change
    (folder / "certificate.json").write_text(json.dumps(content))
    assert failed(sealed(folder))


@pytest.mark.parametrize("secret", [0, 1, 2])
def test_no_number_of_the_curve_can_be_made_smaller_in_both_forms(original: Path, tmp_path: Path, secret: int) -> None:
    true = json.loads((original / "certificate.json").read_text())
    for point, factor in [(0, 1 - 4e-3), (4, 1 - 2e-3), (8, 1 - 4e-3), (8, 1.0), (4, 1 + 2e-3)]:
        folder = tmp_path / f"{point}-{factor}"
        shutil.copytree(original, folder)
        content = copy.deepcopy(true)
        list(content["curve"].values())[secret][point][1] *= factor
        (folder / "certificate.json").write_text(json.dumps(content, indent=2) + "\n")
        (folder / "certificate.md").write_text(Certificate.from_dict(content).to_markdown())
        assert failed(sealed(folder)) == (["certificate"] if factor < 1 else []), (point, factor)


@pytest.mark.parametrize("holds_out", [False, True])
def test_a_plan_that_states_no_capacities_uses_every_example_alike(tmp_path: Path, holds_out: bool) -> None:
    instance = office()
    promises: dict[str, Any] = {**instance.promises, "batch_size": 12, "capacity": "none"}
    idle = np.flatnonzero(~instance.has_secret)[:2] if holds_out else []
    plan = make_plan_holding_out(instance.incidence, idle, **promises)
    plan.save(tmp_path / "even")
    assert failed(tmp_path / "even") == []
    weights = np.where(instance.has_secret, 0.99 * plan.weights, plan.weights)
    dataclasses.replace(plan, weights=weights, posterior=plan.ceiling).save(tmp_path / "uneven")
    assert "rates" in failed(tmp_path / "uneven")


FORGERIES: dict[str, Callable[[hush.Plan], dict[str, Any]]] = {
    "less noise": lambda plan: {"noise_multiplier": 0.99 * plan.noise_multiplier},
    "less noise, ceilings as posteriors": lambda plan: {
        "noise_multiplier": 0.99 * plan.noise_multiplier, "posterior": plan.ceiling,
    },
    "more rounds": lambda plan: {"rounds": plan.rounds + 2},
    "a larger batch": lambda plan: {"batch_size": 1.02 * plan.batch_size},
    "smaller ceilings": lambda plan: {
        "ceiling": 0.98 * plan.ceiling, "posterior": np.minimum(plan.posterior, 0.98 * plan.ceiling),
    },
    "larger priors": lambda plan: {
        "prior": 1.05 * plan.prior, "posterior": np.maximum(plan.posterior, 1.05 * plan.prior),
    },
    "smaller posteriors": lambda plan: {"posterior": np.maximum(0.98 * plan.posterior, plan.prior)},
    "slightly smaller posteriors": lambda plan: {"posterior": np.maximum(0.998 * plan.posterior, plan.prior)},
    "equal weights": lambda plan: {"weights": np.ones_like(plan.weights)},
    "another secret binds": lambda plan: {"binding": [0, *plan.binding[1:]]},
    "nobody binds": lambda plan: {"binding": []},
    "one binds less": lambda plan: {"binding": plan.binding[1:]},
    "everybody binds": lambda plan: {"binding": np.arange(8)},
    "a tighter bound": lambda plan: {"bound": "kl"},
}  # fmt: skip


@pytest.mark.parametrize("forgery", FORGERIES)
def test_a_forger_who_rewrites_every_file_cannot_promise_more_than_is_true(
    plan: hush.Plan, tmp_path: Path, forgery: str
) -> None:
    dataclasses.replace(plan, **FORGERIES[forgery](plan)).save(tmp_path / "forged")
    assert set(failed(tmp_path / "forged")) & {"posteriors", "binding"}


@settings(max_examples=15)
@given(instances(), st.sampled_from(["blowup", "renyi", "kl"]), st.floats(0.02, 0.9))
def test_one_percent_less_noise_never_passes(
    tmp_path_factory: pytest.TempPathFactory, instance: Instance, bound: Any, share: float
) -> None:
    batch = max(0.5, share * instance.incidence.num_examples)
    made = hush.make_plan(instance.incidence, **instance.promises, batch_size=batch, bound=bound, capacity="none")
    folder = tmp_path_factory.mktemp("any")
    made.save(folder / "honest")
    assert hush.verify(folder / "honest").passed
    if made.noise_multiplier > 2e-3:  # below, noise hides nothing that the draw does not
        less = dataclasses.replace(made, noise_multiplier=0.99 * made.noise_multiplier, posterior=made.ceiling)
        less.save(folder / "forged")
        assert not hush.verify(folder / "forged").passed


def test_what_fits_together_may_still_be_about_another_graph_or_other_promises(plan: hush.Plan, tmp_path: Path) -> None:
    secrets = hush.Secrets(
        [hush.Protection.of(*zip(*row, strict=True)) for row in zip(plan.prior, plan.ceiling, strict=True)],
        ids=plan.secret_ids,
    )
    own: Any = {"incidence": plan.incidence, "secrets": secrets}
    plan.save(tmp_path / "plan")
    assert hush.verify(tmp_path / "plan", **own).passed
    instance = office()
    fewer = instance.incidence.select(secrets=list(range(7)))
    other = hush.make_plan(fewer, prior=plan.prior[:7], ceiling=plan.ceiling[:7], batch_size=12, rounds=50)
    other.save(tmp_path / "other")
    assert hush.verify(tmp_path / "other").passed
    assert failed(tmp_path / "other", **own) == ["graph", "promises"]
    weaker = hush.make_plan(instance.incidence, prior=1e-8, ceiling=0.5, batch_size=12, rounds=50)
    weaker.save(tmp_path / "weaker")
    assert failed(tmp_path / "weaker", **own) == ["promises"]


def test_progress_counts_every_secret(folder: Path) -> None:
    calls: list[tuple[int, int]] = []
    hush.verify(folder, progress=lambda done, total: calls.append((done, total)))
    assert calls[-1] == (8, 8)
    assert calls == sorted(set(calls))


def test_verify_is_a_function_whatever_was_imported_before() -> None:
    import hush.plan.verify

    assert callable(hush.verify)
    assert hush.verify is hush.plan.verify.verify


@pytest.mark.parametrize(
    "column",
    [
        pa.array(["0.1"]), pa.array([[0.1]]), pa.array([{"a": 0.1}]), pa.array([b"0.1"]),
        pa.array([None], pa.float64()),
        pa.array([1], pa.int64()), pa.array([1], pa.timestamp("s")),
    ],
    ids=lambda column: str(column.type),
)  # fmt: skip
@pytest.mark.parametrize("name", ["rate", "weight"])
def test_a_column_of_another_type_is_a_failed_check(folder: Path, name: str, column: pa.Array) -> None:
    path = folder / "examples.parquet"
    table = pq.read_table(path)
    place = table.schema.get_field_index(name)
    many = pa.concat_arrays([column] * len(table))
    pq.write_table(table.set_column(place, name, many).replace_schema_metadata(table.schema.metadata), path)
    assert failed(sealed(folder)) == ["content"]


@pytest.mark.parametrize("value", ["0.001", 10**400, 1, None, [0.001], True])
@pytest.mark.parametrize("place", [0, 1])
def test_a_curve_of_anything_but_numbers_is_a_failed_check(folder: Path, place: int, value: object) -> None:
    path = folder / "certificate.json"
    content = json.loads(path.read_text())
    next(iter(content["curve"].values()))[0][place] = value
    path.write_text(json.dumps(content, indent=2) + "\n")
    assert failed(sealed(folder)) == ["content"]


def test_json_that_says_more_or_is_written_otherwise_is_found(folder: Path) -> None:
    path = folder / "certificate.json"
    content = json.loads(path.read_text())
    path.write_text(json.dumps(content | {"guarantee": "all priors are covered"}, indent=2) + "\n")
    assert failed(sealed(folder)) == ["certificate"]
    path.write_text(json.dumps(content, indent=2) + "\n")
    assert failed(sealed(folder)) == []
    path.write_text(json.dumps(content))
    assert failed(sealed(folder)) == ["certificate"]


def test_a_plan_holds_nothing_that_no_check_reads(folder: Path, tmp_path: Path) -> None:
    record = json.loads((folder / "plan.json").read_text())
    (folder / "plan.json").write_text(json.dumps(record | {"approved_by": "the board"}))
    assert failed(sealed(folder)) == ["content"]
    (folder / "plan.json").write_text(json.dumps(record))
    assert failed(sealed(folder)) == []
    (folder / "notes.txt").write_text("sound")
    digests = {**record["digests"], "notes.txt": file_digest(folder / "notes.txt")}
    changed = record | {"digests": digests}
    (folder / "plan.json").write_text(json.dumps(changed | {"digest": record_digest(changed)}))
    assert failed(folder) == ["content"]
    for name in ("examples.parquet", "secrets.parquet", "incidence.parquet"):
        shutil.copytree(folder, tmp_path / name)
        table = pq.read_table(folder / name)
        more = table.append_column("true ceiling", pa.array([1e-9] * len(table)))
        pq.write_table(more.replace_schema_metadata(table.schema.metadata), tmp_path / name / name)
        assert failed(sealed(tmp_path / name)) == ["content"]


def test_numbers_beyond_the_largest_are_refused(folder: Path) -> None:
    path = folder / "plan.json"
    path.write_text(re.sub(r'("noise_multiplier": )[^,]*', r"\g<1>1e999", path.read_text()))
    assert failed(folder) == ["plan.json"]


@pytest.mark.parametrize("name", ["noise_multiplier", "batch_size", "clip_norm", "noise_scale", "weights_gap"])
def test_whole_numbers_that_no_float_holds_are_refused(folder: Path, name: str) -> None:
    record = json.loads((folder / "plan.json").read_text())
    (folder / "plan.json").write_text(json.dumps(record | {name: 10**400}))
    assert failed(sealed(folder)) == ["content"]
    with pytest.raises(hush.InvalidInput, match=name):
        hush.Plan.load(folder)

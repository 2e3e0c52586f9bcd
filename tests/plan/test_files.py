"""A plan's folder: whole or not at all, the same after reading as before writing, and never somebody else's files."""

import dataclasses
import json
import re
import subprocess
import sys
import traceback
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from plan_instances import Instance, instances

import hush
from hush import storage
from hush.keys import DataKey
from hush.plan import files
from hush.plan.files import record_digest
from hush.storage import read_json


def rewritten(folder: Path, **changes: Any) -> Path:
    """plan.json with these fields changed and its own digest made to fit."""
    record = json.loads((folder / "plan.json").read_text()) | changes
    record["digest"] = record_digest(record)
    (folder / "plan.json").write_text(json.dumps(record))
    return folder


@pytest.fixture
def folder(plan: hush.Plan, tmp_path: Path) -> Path:
    plan.save(tmp_path / "plan")
    return tmp_path / "plan"


def test_a_plan_is_the_same_after_reading_as_before_writing(plan: hush.Plan, folder: Path) -> None:
    again = hush.Plan.load(folder)
    assert again == plan
    assert hash(again) == hash(plan)
    assert again.certificate == plan.certificate
    assert again != dataclasses.replace(plan, rounds=plan.rounds + 1)
    assert again != "plan"


@settings(max_examples=15)
@given(instances(), st.lists(st.text("aé\n|`☃ ", min_size=1), unique=True, min_size=5, max_size=5))
def test_any_plan_survives_the_disk(
    tmp_path_factory: pytest.TempPathFactory, instance: Instance, ids: list[str]
) -> None:
    named = ids[: instance.incidence.num_secrets]
    plan = hush.make_plan(instance.incidence, **instance.promises, batch_size=0.5, capacity="none", secret_ids=named)
    folder = tmp_path_factory.mktemp("any") / "plan"
    plan.save(folder)
    assert hush.Plan.load(folder) == plan
    assert hush.verify(folder).passed


def test_arrays_of_a_plan_are_frozen_and_its_own(plan: hush.Plan) -> None:
    for name in ("weights", "rates", "prior", "ceiling", "posterior", "binding"):
        with pytest.raises(ValueError, match="read-only"):
            getattr(plan, name)[...] = 0
    weights = np.array(plan.weights)
    copy = dataclasses.replace(plan, weights=weights)
    weights[:] = 0
    assert np.array_equal(copy.weights, plan.weights)
    assert weights.flags.writeable


def test_saving_again_replaces_the_plan_and_its_signature(plan: hush.Plan, folder: Path) -> None:
    (folder / "plan.sig").write_bytes(b"of the old plan")
    other = dataclasses.replace(plan, clip_norm=2.0)
    other.save(folder)
    assert hush.Plan.load(folder) == other
    assert not (folder / "plan.sig").exists()
    assert [entry.name for entry in folder.parent.iterdir()] == ["plan"]


def test_an_empty_folder_may_be_filled_and_missing_parents_are_made(plan: hush.Plan, tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir()
    for folder in (tmp_path / "empty", tmp_path / "a" / "b"):
        plan.save(folder)
        assert hush.Plan.load(folder) == plan


@pytest.mark.parametrize("names", [["notes.txt"], ["plan.json"], ["plan.json", "notes.txt"]])
def test_a_folder_that_holds_anything_else_is_left_alone(plan: hush.Plan, tmp_path: Path, names: list[str]) -> None:
    folder = tmp_path / "mine"
    folder.mkdir()
    for name in names:
        (folder / name).write_text('{"plan": "to take over the world"}')
    with pytest.raises(hush.InvalidInput, match=r"name a new folder|is not a plan's JSON"):
        plan.save(folder)
    assert sorted(entry.name for entry in folder.iterdir()) == sorted(names)
    assert [entry.name for entry in tmp_path.iterdir()] == ["mine"]


def test_a_note_beside_the_plan_keeps_the_folder_from_being_replaced(plan: hush.Plan, folder: Path) -> None:
    (folder / "notes.txt").write_text("mine")
    with pytest.raises(hush.InvalidInput, match=r"notes\.txt"):
        plan.save(folder)
    assert (folder / "notes.txt").read_text() == "mine"


def test_a_file_is_no_folder(plan: hush.Plan, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(hush.InvalidInput, match="is a file"):
        plan.save(tmp_path / "file")


@pytest.mark.parametrize("exchange", [True, False])
def test_a_failure_while_writing_leaves_the_old_plan(
    plan: hush.Plan, folder: Path, monkeypatch: pytest.MonkeyPatch, exchange: bool
) -> None:
    if not exchange:
        monkeypatch.setattr(storage, "_exchanged", lambda *_: False)
    other = dataclasses.replace(plan, clip_norm=2.0)
    with monkeypatch.context() as patch:
        patch.setattr(files, "_write_json", lambda *_: 1 / 0)
        with pytest.raises(ZeroDivisionError):
            other.save(folder)
    assert hush.Plan.load(folder) == plan
    other.save(folder)
    assert hush.Plan.load(folder) == other
    assert [entry.name for entry in folder.parent.iterdir()] == ["plan"]


KILLED = """
import os, sys, dataclasses
import hush
from hush import storage

moment, folder = sys.argv[1:]
swap, flush = storage._exchanged, storage.flush

def exchanged(one, other):
    if moment == "before": os._exit(9)
    done = swap(one, other)
    os._exit(9)

def flushed(path):
    if moment == "writing" and path.name == "plan.json": os._exit(9)
    flush(path)

storage._exchanged, storage.flush = exchanged, flushed
dataclasses.replace(hush.Plan.load(folder), clip_norm=2.0).save(folder)
"""


@pytest.mark.skipif(sys.platform != "linux", reason="the swap in one step is Linux's")
@pytest.mark.parametrize(("moment", "clip_norm"), [("writing", 1.0), ("before", 1.0), ("after", 2.0)])
def test_a_kill_at_any_moment_leaves_the_old_plan_or_the_new_one(
    plan: hush.Plan, folder: Path, moment: str, clip_norm: float
) -> None:
    done = subprocess.run([sys.executable, "-c", KILLED, moment, str(folder)], capture_output=True, text=True)
    assert done.returncode == 9, done.stderr
    assert hush.Plan.load(folder) == dataclasses.replace(plan, clip_norm=clip_norm)


def test_the_old_folder_returns_where_the_new_one_cannot_take_its_place(
    plan: hush.Plan, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(storage, "_exchanged", lambda *_: False)
    rename = Path.replace

    def refusing(self: Path, target: Path) -> Path:
        if self.suffix == ".tmp" and target == folder:
            raise OSError("no")
        return rename(self, target)

    monkeypatch.setattr(Path, "replace", refusing)
    with pytest.raises(OSError, match="no"):
        dataclasses.replace(plan, clip_norm=2.0).save(folder)
    assert hush.Plan.load(folder) == plan


@pytest.mark.parametrize("stated", ["1.0", "1.7"])
def test_another_minor_version_is_read_without_what_is_new_but_not_verified(
    plan: hush.Plan, folder: Path, stated: str
) -> None:
    certificate = json.loads((folder / "certificate.json").read_text()) | {"new": 1}
    (folder / "certificate.json").write_text(json.dumps(certificate))
    digests = {name: files.file_digest(folder / name) for name in files.FILES}
    rewritten(folder, format=stated, colour="blue", digests=digests)
    assert hush.Plan.load(folder) == plan
    (found,) = hush.verify(folder).checks
    assert not found.passed
    known = f"{files.MAJOR}.{files.MINOR}"
    assert re.search(rf"format {stated}, .* format {known} only; use the hush that wrote it", found.detail)


@pytest.mark.parametrize("stated", ["1.-3", "1.3.0", "-1.3", " 1.3", "1.", "1.٣", 1.3, None])
def test_what_is_no_version_is_refused(folder: Path, stated: object) -> None:
    rewritten(folder, format=stated)
    with pytest.raises(hush.InvalidInput, match="not a plan's JSON"):
        hush.Plan.load(folder)
    assert not hush.verify(folder).passed


def test_whoever_states_another_format_cannot_put_words_into_a_certificate(folder: Path) -> None:
    page = folder / "certificate.md"
    page.write_text(page.read_text().replace("nobody who gives", "nobody, whoever he is and whatever he gives"))
    digests = {name: files.file_digest(folder / name) for name in files.FILES}
    for stated in (f"{files.MAJOR}.{files.MINOR}", "1.2", "1.0"):
        rewritten(folder, format=stated, digests=digests)
        assert not hush.verify(folder).passed


def test_a_plan_from_before_data_had_fingerprints_is_read(plan: hush.Plan, folder: Path) -> None:
    record = json.loads((folder / "plan.json").read_text())
    del record["data_fingerprint"]
    (folder / "plan.json").write_text(json.dumps(record))
    rewritten(folder, format="1.0")
    assert hush.Plan.load(folder) == plan
    assert hush.Plan.load(folder).data_fingerprint is None


def test_the_fingerprint_of_the_data_survives_the_disk_and_stands_in_the_certificate(
    plan: hush.Plan, tmp_path: Path
) -> None:
    fingerprint = DataKey(bytes(32)).fingerprint_rows(["a"] * 100)
    tied = dataclasses.replace(plan, data_fingerprint=fingerprint)
    tied.save(tmp_path / "plan")
    assert hush.Plan.load(tmp_path / "plan") == tied != plan
    assert fingerprint in (tmp_path / "plan" / "certificate.md").read_text()
    assert tied.certificate.fingerprints["data (keyed)"] == fingerprint
    assert hush.verify(tmp_path / "plan").passed


def test_another_major_version_says_what_to_do(folder: Path) -> None:
    rewritten(folder, format="2.0")
    with pytest.raises(hush.InvalidInput, match=r"format 2\.0, this hush reads 1\.x; load it with the hush that wrote"):
        hush.Plan.load(folder)


@pytest.mark.parametrize(
    "content",
    ["", "[]", "{}", '{"format": 1}', '{"format": "1.0"}', '{"format": "x.y"}', "[" * 100_000, '{"format": NaN}',
     '{"format": "1.0", "format": "1.0"}'],
)  # fmt: skip
def test_a_plan_json_of_another_kind_is_refused(folder: Path, content: str) -> None:
    (folder / "plan.json").write_text(content)
    with pytest.raises(hush.InvalidInput, match=r"plan\.json"):
        hush.Plan.load(folder)
    assert not hush.verify(folder).passed


@pytest.mark.parametrize(
    "content",
    [b"", b"{", b"[" * 100_000, b"\xff", b'{"hunter2": NaN}', b"1e999", b'{"hunter2": 1, "hunter2": 1}', b"9" * 5000],
)
def test_json_that_cannot_be_read_is_refused_by_name_and_not_quoted(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "some.json").write_bytes(content)
    with pytest.raises(hush.InvalidInput, match=r"some\.json is not JSON that hush wrote") as refused:
        read_json(tmp_path / "some.json")
    assert "hunter2" not in "".join(traceback.format_exception(refused.value))


def test_no_message_repeats_a_name_that_a_terminal_would_obey(folder: Path) -> None:
    name = "\x1b[2JEvery promise holds."  # clears the screen
    (folder / name).write_text("")
    rewritten(folder, digests={**json.loads((folder / "plan.json").read_text())["digests"], name: ""})
    with pytest.raises(hush.InvalidInput) as refused:
        hush.Plan.load(folder)
    assert str(refused.value).isprintable()


@pytest.mark.parametrize(
    "changes",
    [{"binding": 3}, {"binding": [1.5]}, {"binding": [True]}, {"binding": [2, 2]}, {"binding": [99]}, {"digests": []},
     {"binding": [2**63]}, {"binding": [-(10**30)]},
     {"digests": {}}, {"digests": {"../plan.json": ""}}, {"noise_multiplier": "4"}, {"noise_multiplier": -1},
     {"rounds": 2.5}, {"rounds": True}, {"batch_size": 0}, {"batch_size": 1e9}, {"clip_norm": -1}, {"bound": "best"},
     {"capacity": "all"}, {"weights_gap": 2}, {"noise_scale": 0}, {"noise_scale": 1e308},
     {"created": "yesterday"},
     {"created": "2026-01-31\n12:00:00+00:00"},
     {"data_fingerprint": "5f4dcc3b5aa765d61d8327deb882cf99"}, {"data_fingerprint": 3}],
    ids=str,
)  # fmt: skip
def test_fields_that_no_plan_has_are_refused(folder: Path, changes: dict[str, Any]) -> None:
    rewritten(folder, **changes)
    with pytest.raises(hush.HushError):
        hush.Plan.load(folder)
    assert not hush.verify(folder).passed


@pytest.mark.parametrize("name", files.FILES)
def test_a_missing_or_changed_file_is_named(folder: Path, name: str) -> None:
    content = (folder / name).read_bytes()
    (folder / name).write_bytes(content + b" ")
    with pytest.raises(hush.InvalidInput, match=f"{name} changed after"):
        hush.Plan.load(folder)
    (folder / name).unlink()
    with pytest.raises(hush.InvalidInput, match=name):
        hush.Plan.load(folder)
    assert not hush.verify(folder).passed


def test_a_folder_without_a_plan_says_so(tmp_path: Path) -> None:
    with pytest.raises(hush.InvalidInput, match=r"holds no plan\.json"):
        hush.Plan.load(tmp_path)


def test_the_text_of_a_secret_is_nowhere(tmp_path: Path) -> None:
    incidence = hush.Incidence.from_pairs([0, 1], [0, 0], num_examples=4, num_secrets=1)
    secrets = hush.Secrets([hush.Protection(1e-6, 1e-3)], texts=["hunter2"])
    promised: Any = {"prior": secrets.prior, "ceiling": secrets.ceiling, "secret_ids": secrets.ids}
    plan = hush.make_plan(incidence, **promised, batch_size=1, rounds=20)
    plan.save(tmp_path / "plan")
    assert "hunter2" not in repr(plan)
    assert all(b"hunter2" not in file.read_bytes() for file in (tmp_path / "plan").iterdir())

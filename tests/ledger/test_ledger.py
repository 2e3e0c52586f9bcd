"""The ledger: entries before rounds, one training of a plan, nothing removed, another key refused, kills survived."""

import json
import os
import shutil
import signal
import stat
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from small_chains import FILTER, KEY, OTHER_KEY, PAIRS, identities, month, opened, planned

import hush
from hush.errors import InvalidInput
from hush.keys import DataKey
from hush.ledger import Ledger
from hush.ledger.ledger import plan_digest
from hush.scan.identities import Identities

CALLS = ("replace", "rename", "fsync", "mkdir", "unlink", "chmod")


@pytest.fixture(scope="module")
def first(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a ledger that has one finished release, and its plan; never changed."""
    root = tmp_path_factory.mktemp("first")
    ledger = opened(root / "ledger")
    plan = planned(ledger, root / "plan")
    ledger = ledger.begin(plan, root / "training", month())
    ledger.advance(plan_digest(plan), state="finished")
    return root


@pytest.fixture
def root(first: Path, tmp_path: Path) -> Path:
    shutil.copytree(first, tmp_path / "root")
    return tmp_path / "root"


def load(root: Path) -> Ledger:
    return Ledger.load(root / "ledger", key=KEY.id)


def test_the_plan_after_a_release_names_it_and_is_entered_as_the_next(root: Path) -> None:
    ledger = load(root)
    plan = planned(ledger, root / "next")
    ledger = ledger.begin(plan, root / "second", month(1))
    assert [(entry.number, entry.state) for entry in ledger.entries] == [(1, "finished"), (2, "started")]
    chain = hush.Plan.load(root / "next").chain
    assert chain is not None
    assert chain.predecessors == (ledger.entries[0].plan,)
    assert plan_digest(ledger.plan_folder(ledger.entries[1])) == plan_digest(plan)
    assert ledger.plan(ledger.entries[1]).incidence == hush.Plan.load(plan).incidence
    assert ledger.predecessors(before=ledger.entries[1]) == (ledger.plan_folder(ledger.entries[0]),)
    assert (ledger.rows(ledger.entries[1]) == month(1)).all()


def test_the_same_training_keeps_its_entry_and_another_of_the_same_plan_is_refused(root: Path) -> None:
    ledger = load(root).begin(planned(load(root), root / "next"), root / "second", month())
    assert ledger.begin(root / "next", root / "second", month()).entries == ledger.entries
    with pytest.raises(InvalidInput, match="trained once"):
        ledger.begin(root / "next", root / "third", month())


def test_a_training_that_was_moved_is_recognised_and_one_that_was_copied_is_not(root: Path) -> None:
    ledger = load(root).begin(planned(load(root), root / "next"), root / "second", month())
    (root / "second").mkdir()
    with pytest.raises(InvalidInput, match="trained once"):
        ledger.begin(root / "next", root / "copies" / "second", month())
    (root / "second").rmdir()
    moved = ledger.begin(root / "next", root / "moved" / "second", month())
    assert moved.entries[-1].training == str((root / "moved" / "second").resolve())
    assert len(moved.entries) == 2


def test_a_training_that_made_rounds_and_lost_its_record_is_not_begun_again(root: Path) -> None:
    ledger = load(root).begin(planned(load(root), root / "next"), root / "second", month())
    assert ledger.begin(root / "next", root / "second", month()).entries == ledger.entries  # killed before a round
    ledger = ledger.advance(ledger.entries[-1].plan, rounds=True)
    with pytest.raises(InvalidInput, match="whose record is gone"):
        ledger.begin(root / "next", root / "second", month())
    (root / "second" / "owner").mkdir(parents=True)
    (root / "second" / "owner" / "run.json").write_text("{}")
    assert ledger.begin(root / "next", root / "second", month()).entries == ledger.entries


def test_nothing_begins_beside_an_unfinished_training_unless_it_is_abandoned_and_counts(root: Path) -> None:
    ledger = load(root).begin(planned(load(root), root / "next"), root / "second", month())
    third = planned(ledger, root / "after")
    with pytest.raises(InvalidInput, match=r"release 2 .* not finished.* counts .* either way"):
        ledger.begin(third, root / "third", month())
    ledger = ledger.abandon(2).begin(third, root / "third", month())
    assert [entry.is_open for entry in ledger.entries] == [False, False, True]
    assert hush.Plan.load(third).chain.predecessors == tuple(entry.plan for entry in ledger.entries[:2])  # pyright: ignore
    with pytest.raises(InvalidInput, match="only one that is not finished"):
        ledger.abandon(1)
    with pytest.raises(InvalidInput, match="pass the number of one"):
        ledger.abandon(9)


def test_a_plan_that_misses_a_release_or_a_chain_is_refused(root: Path) -> None:
    stale = planned(load(root), root / "stale")
    ledger = load(root).begin(planned(load(root), root / "next", {0: ["s-000000"]}), root / "second", month())
    ledger = ledger.advance(ledger.entries[-1].plan, state="finished")
    with pytest.raises(InvalidInput, match="plan again"):
        ledger.begin(stale, root / "third", month())
    incidence, ids = hush.Plan.load(stale).incidence, hush.Plan.load(stale).secret_ids
    alone = hush.make_plan(incidence, prior=1e-6, ceiling=1e-2, batch_size=8, rounds=10, secret_ids=ids)
    alone.save(root / "alone")
    with pytest.raises(InvalidInput, match="one release alone"):
        ledger.begin(root / "alone", root / "third", month())


def test_a_plan_with_secrets_that_no_scan_entered_is_refused(root: Path) -> None:
    plan = planned(load(root), root / "next", PAIRS | {5: ["s-000009"]})
    with pytest.raises(InvalidInput, match="1 secrets of the plan were not found by a scan with this ledger"):
        load(root).begin(plan, root / "second", month())
    ledger = load(root).register(load(root).identities.joined(identities(["s-000009"])))
    assert len(ledger.begin(plan, root / "second", month()).entries) == 2


def test_canaries_need_no_identity_and_rows_need_not_hold_them(root: Path) -> None:
    plan = planned(load(root), root / "next", PAIRS | {39: ["canary-000000"]})
    ledger = load(root).begin(plan, root / "second", month()[:39])
    assert len(ledger.rows(ledger.entries[-1])) == 39
    with pytest.raises(InvalidInput, match="the fingerprint of each"):
        load(root).abandon(2).begin(planned(ledger, root / "after"), root / "third", month(rows=41))


def test_merged_secrets_stand_for_each_other_and_reach_the_plan(root: Path) -> None:
    ledger = load(root).register(load(root).identities.joined(identities(["s-000007"])))
    stale = planned(ledger, root / "stale", {2: ["s-000007"]})
    ledger = ledger.merge("s-000007", ["s-000002"])
    assert ledger.ancestors_of(["s-000007", "s-000001"]) == {"s-000007": ("s-000002",)}
    with pytest.raises(InvalidInput, match="merged in the ledger since the plan was made"):
        ledger.begin(stale, root / "second", month())
    plan = planned(ledger, root / "next", {2: ["s-000007"]})
    assert len(ledger.begin(plan, root / "second", month()).entries) == 2
    ledger = ledger.merge("s-000002", ["s-000000"])
    assert ledger.ancestors_of(["s-000007"]) == {"s-000007": ("s-000002", "s-000000")}
    for name, earlier in (("s-000007", ["s-000007"]), ("unknown", ["s-000000"]), ("s-000000", [])):
        with pytest.raises(InvalidInput, match="pass"):
            ledger.merge(name, earlier)


def test_progress_never_falls_back(root: Path) -> None:
    ledger = load(root)
    digest = ledger.entries[0].plan
    ledger = ledger.advance(digest, state="released").advance(digest, state="started", rounds=True)
    assert (ledger.entries[0].state, ledger.entries[0].rounds) == ("released", True)
    with pytest.raises(InvalidInput, match="no entry"):
        ledger.advance("0" * 64, state="finished")


def test_another_key_is_refused_everywhere(root: Path) -> None:
    with pytest.raises(InvalidInput, match="under the key"):
        Ledger.load_or_create(root / "ledger", OTHER_KEY.id)
    with pytest.raises(InvalidInput, match="under the key"):
        load(root).register(Identities.none(OTHER_KEY.id))


def test_everything_is_the_owners_and_no_text_of_a_secret_or_row_is_in_it(root: Path) -> None:
    ledger = root / "ledger"
    assert stat.S_IMODE(ledger.stat().st_mode) == 0o700
    assert stat.S_IMODE((ledger / "releases" / "0001").stat().st_mode) == 0o700
    for path in (path for path in ledger.rglob("*") if path.is_file() and path.parent.name != "plan"):
        assert not stat.S_IMODE(path.stat().st_mode) & 0o077, path
    for path in (path for path in ledger.rglob("*") if path.is_file()):
        content = path.read_bytes()
        assert b"S-00000" not in content, path
        assert b"row 1" not in content, path


def test_a_damaged_ledger_is_refused_and_never_taken_for_an_empty_one(root: Path) -> None:
    ledger = root / "ledger"
    record = (ledger / "ledger.json").read_text()
    (ledger / "ledger.json").unlink()
    with pytest.raises(InvalidInput, match="restore the whole ledger"):
        Ledger.load_or_create(ledger, KEY.id)
    for wrong in ("{}", "[]", record.replace("hush ledger 1", "hush ledger 2")):
        (ledger / "ledger.json").write_text(wrong)
        with pytest.raises(InvalidInput, match="restore it"):
            load(root)
    (ledger / "ledger.json").write_text(record)
    load(root).begin(planned(load(root), root / "next"), root / "second", month())
    (ledger / "releases" / "0001").rename(root / "aside")
    with pytest.raises(InvalidInput, match="lacks a release"):
        load(root)
    (root / "aside").rename(ledger / "releases" / "0001")
    entry = ledger / "releases" / "0002" / "entry.json"
    entry.write_text(json.dumps(json.loads(entry.read_text()) | {"state": "forgotten"}))
    with pytest.raises(InvalidInput, match="not an entry"):
        load(root)


def test_another_plan_in_the_place_of_an_entered_one_is_noticed(root: Path) -> None:
    place = root / "ledger" / "releases" / "0001" / "plan"
    shutil.rmtree(place)
    planned(opened(root / "other"), place, {0: ["s-000000"]})
    with pytest.raises(InvalidInput, match="not the plan that release 1 was entered with"):
        load(root).plan(load(root).entries[0])


def test_a_folder_of_something_else_is_refused(tmp_path: Path) -> None:
    (tmp_path / "notes.txt").write_text("mine")
    with pytest.raises(InvalidInput, match="something other than a ledger"):
        Ledger.load_or_create(tmp_path, KEY.id)
    with pytest.raises(InvalidInput, match="is no ledger"):
        Ledger.load(tmp_path / "nothing")
    with pytest.raises(InvalidInput, match="is a file"):
        Ledger.load_or_create(tmp_path / "notes.txt", KEY.id)


def test_two_who_begin_at_once_get_one_release_each_or_are_refused(root: Path) -> None:
    plans = [planned(load(root), root / f"plan-{number}", {number: ["s-000000"]}) for number in range(3)]
    told: list[str] = []

    def begin(number: int) -> None:
        try:
            load(root).begin(plans[number], root / f"training-{number}", month())
            told.append("began")
        except InvalidInput as error:
            told.append("refused" if "plan again" in str(error) else str(error))

    threads = [threading.Thread(target=begin, args=(number,)) for number in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(told) == ["began", "refused", "refused"]
    assert len(load(root).entries) == 2


def test_killed_before_any_call_that_changes_files_it_has_the_entry_or_not_and_goes_on(root: Path) -> None:
    """Each child dies before another of the calls of ``begin``; the next life finds a whole ledger and finishes."""
    plan = planned(load(root), root / "next")
    whole = clone(root, "whole")
    calls = counted(lambda: Ledger.load(whole / "ledger").begin(plan, root / "second", month()))
    assert calls > 8
    for place in range(calls):
        copy = clone(root, f"copy-{place}")
        killed(lambda copy=copy: Ledger.load(copy / "ledger").begin(plan, root / "second", month()), place)
        entries = Ledger.load(copy / "ledger", key=KEY.id).entries
        assert len(entries) in (1, 2)
        ledger = Ledger.load(copy / "ledger", key=KEY.id).begin(plan, root / "second", month())
        assert [entry.number for entry in ledger.entries] == [1, 2]
        assert ledger.plan(ledger.entries[1]).incidence == hush.Plan.load(plan).incidence
        assert (ledger.rows(ledger.entries[1]) == month()).all()
        left = list((copy / "ledger").rglob(".*"))
        assert left == []


def clone(root: Path, name: str) -> Path:
    shutil.copytree(root / "ledger", root.parent / name / "ledger")
    return root.parent / name


def counted(work: Callable[[], object]) -> int:
    number = 0

    def count() -> None:
        nonlocal number
        number += 1

    with_calls(count, work)
    return number


def killed(work: Callable[[], object], place: int) -> None:
    child = os.fork()
    if not child:
        left = [place]

        def count() -> None:
            if not left[0]:
                os.kill(os.getpid(), signal.SIGKILL)
            left[0] -= 1

        try:
            with_calls(count, work)
        finally:
            os._exit(0)
    assert os.WIFSIGNALED(os.waitpid(child, 0)[1])


def with_calls(before: Callable[[], None], work: Callable[[], object]) -> None:
    real = {name: getattr(os, name) for name in CALLS}

    def preceded(call: Callable[..., Any]) -> Callable[..., Any]:
        def made(*args: Any, **more: Any) -> Any:
            before()
            return call(*args, **more)

        return made

    try:
        for name, call in real.items():
            setattr(os, name, preceded(call))
        work()
    finally:
        for name, call in real.items():
            setattr(os, name, call)


def test_a_filter_takes_a_release_as_it_comes(tmp_path: Path) -> None:
    ledger = opened(tmp_path / "ledger")
    for number in range(2):
        plan = planned(ledger, tmp_path / f"plan-{number}", kind=FILTER)
        ledger = ledger.begin(plan, tmp_path / f"training-{number}", month(number))
        ledger = ledger.advance(plan_digest(plan), state="finished")
    assert [entry.state for entry in ledger.entries] == ["finished", "finished"]


def test_a_key_may_lie_in_the_ledger(tmp_path: Path) -> None:
    path = Ledger.key_path(tmp_path / "ledger")
    path.parent.mkdir()
    key = DataKey.load_or_create(path)
    assert Ledger.load_or_create(tmp_path / "ledger", key.id).key == key.id

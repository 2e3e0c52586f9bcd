"""A run does what its parts do, does nothing twice, and keeps what may leave apart from what may not."""

import json
import os
import re
import shutil
import stat
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from small_runs import CANARIES, SECRETS, check_complete, plan_fingerprint, small_config, small_desk

from hush.config import Config, load_config
from hush.errors import InvalidInput
from hush.keyed import DataKey
from hush.pipeline import forecast, run_pipeline
from hush.pipeline.folder import key_at, opened
from hush.pipeline.job import Job, Watch
from hush.pipeline.record import STAGES
from hush.pipeline.stage_audit import AuditStage
from hush.pipeline.stage_train import Interrupted
from hush.plan import Plan
from hush.plan.held_out import choose_held_out, held_out_examples, make_plan_holding_out
from hush.scan.result import Scan
from hush.scan.run import scan as scan_corpus
from hush.signature import create_keys, sign
from hush.verification import verify

NO_CANARIES = [name for name in STAGES if name != "canaries"]


@pytest.fixture(autouse=True)
def one_thread() -> Iterator[None]:
    threads = torch.get_num_threads()
    torch.set_num_threads(1)  # tiny models gain nothing from more
    yield
    torch.set_num_threads(threads)


@pytest.fixture(scope="module")
def desk(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("desk")


@pytest.fixture(scope="module")
def finished(desk: Path) -> Path:
    """A run that is never changed."""
    assert list(run_pipeline(small_config(desk), output=desk / "finished").ran) == NO_CANARIES
    return desk / "finished"


@pytest.fixture
def own(finished: Path, desk: Path, tmp_path: Path) -> Path:
    """A finished run for a test to change, moved to a desk of its own with its data and key."""
    shutil.copytree(finished, tmp_path / "run")
    for name in ("data.txt", "my.key"):
        shutil.copy2(desk / name, tmp_path / name)
    return tmp_path


def ran(folder: Path, **arguments: Any) -> list[str]:
    sections = {name: arguments.pop(name) for name in list(arguments) if name not in ("since", "new_release", "watch")}
    return list(run_pipeline(small_config(folder, **sections), output=folder / "run", **arguments).ran)


def test_a_finished_run_is_complete(finished: Path) -> None:
    check_complete(finished)


def test_the_plan_is_the_one_that_the_parts_make(finished: Path, desk: Path) -> None:
    scan = scan_corpus(desk / "data.txt", {
        "defaults": {"prior": 1e-6, "ceiling": 1e-2},
        "rules": [{"name": "codes", "find": "patterns", "patterns": [r"QX-\d{4}"]}],
    }, key=desk / "my.key")  # fmt: skip
    plan = make_plan_holding_out(
        scan.incidence, choose_held_out(scan.incidence, 0.2), prior=scan.secrets.prior, ceiling=scan.secrets.ceiling,
        batch_size=4, rounds=4, secret_ids=scan.secrets.ids, data_fingerprint=scan.data_fingerprint,
    )  # fmt: skip
    plan.save(desk / "by-hand")
    assert plan_fingerprint(desk / "by-hand") == plan_fingerprint(finished / "share" / "plan")
    key = DataKey.load(desk / "my.key")
    assert plan.data_fingerprint == key.fingerprint_rows((desk / "data.txt").read_text().splitlines())
    assert Scan.load(finished / "owner" / "scan").incidence == scan.incidence


def test_what_may_leave_holds_no_secret_and_nothing_of_the_owner(finished: Path) -> None:
    share = finished / "share"
    assert {path.name for path in share.iterdir()} == {
        "plan", "model", "certificate.json", "certificate.md", "evaluations.jsonl", "report.html", "README.md"
    }  # fmt: skip
    times = {path.stat().st_mtime for path in (share, *share.rglob("*"))}
    assert len(times) == 1  # when files were written would tell how long training took
    for path in (path for path in finished.rglob("*") if path.is_file()):
        held = [secret for secret in SECRETS if secret.encode() in path.read_bytes()]
        assert not held or "owner" in path.relative_to(finished).parts, path
    assert stat.S_IMODE((finished / "owner").stat().st_mode) == 0o700
    assert stat.S_IMODE((finished / "stages.json").stat().st_mode) == 0o600


def test_the_shared_report_lacks_the_audit(finished: Path) -> None:
    shared, owners = (finished / "share" / "report.html").read_text(), (finished / "owner" / "report.html").read_text()
    assert "No attack did better than was certified" in owners
    assert "No attack did better than was certified" not in shared
    assert "An audit, if there was one, is for the owner" in shared
    assert "No attack was run" not in shared


def test_both_reports_tell_how_to_verify_all_that_is_shared(finished: Path) -> None:
    for side in ("share", "owner"):
        (named,) = re.findall(r"<code>hush verify (.*)\n", (finished / side / "report.html").read_text())
        found = verify(finished / named)
        assert found.passed
        assert {"model", "run's certificate"} <= {check.name for check in found.checks}


def test_both_reports_show_how_good_the_model_was_on_examples_without_secrets(finished: Path) -> None:
    plan = Plan.load(finished / "share" / "plan")
    held = held_out_examples(plan)
    assert held.size == 5
    assert (plan.incidence.secrets_per_example[held] == 0).all()
    lines = (finished / "share" / "evaluations.jsonl").read_text().splitlines()
    losses = [json.loads(line)["held-out loss"] for line in lines]
    for side in ("share", "owner"):
        page = (finished / side / "report.html").read_text()
        assert '<section id="training"' in page
        assert "5 without a secret are held out, to evaluate on." in page
        for round, loss in enumerate(losses):
            assert f"<td>{round}</td><td>{loss:.5g}</td>" in page


def test_holding_out_what_holds_secrets_is_refused(tmp_path: Path) -> None:
    small_desk(tmp_path)
    (tmp_path / "data.txt").write_text("".join(f"note {number} QX-1000\n" for number in range(30)))
    with pytest.raises(InvalidInput, match=r"0 of 30 examples hold no secret.*whose scores may be shown.*0 for none"):
        ran(tmp_path)
    assert not (tmp_path / "run" / "share").exists()


def test_canaries_do_not_keep_the_scan_out_of_the_report(tmp_path: Path) -> None:
    audit = {"attacks": ["exposure"], "candidates": 20, "canaries": CANARIES}
    ran(tmp_path, audit=audit, report={"show_text": True})
    for side in ("share", "owner"):
        page = (tmp_path / "run" / side / "report.html").read_text()
        assert '<section id="scan"' in page
        assert "2 canaries were planted after the scan" in page
    assert "Holds the texts of secrets" in page


def test_the_record_holds_fingerprints_under_the_key_and_no_plain_hash(finished: Path, desk: Path) -> None:
    key = DataKey.load(desk / "my.key")
    record = json.loads((finished / "stages.json").read_text())
    assert record["key"] == key.id
    for name, done in record["stages"].items():
        assert done["inputs"].startswith(f"{key.id}:")
        assert done["outputs"]["fingerprint"].startswith(f"{key.id}:") or name == "train"  # a released model is public


def test_nothing_is_done_twice(finished: Path, desk: Path) -> None:
    before = {path: path.stat().st_mtime_ns for path in finished.rglob("*") if path.name not in ("lock", "owner")}
    assert not run_pipeline(small_config(desk), output=finished).ran
    assert {path: path.stat().st_mtime_ns for path in before} == before


def test_a_run_may_be_moved_with_its_data(own: Path) -> None:
    assert ran(own) == []


def test_speed_may_change_without_training_again(own: Path) -> None:
    assert ran(own, training={"micro_batch": 2, "save_every": 3, "evaluate_every": 2}) == []


def test_a_changed_section_runs_its_stage_and_those_that_depend_on_it(own: Path) -> None:
    assert ran(own, audit={"trials": 60}) == ["audit", "report"]
    assert ran(own, audit={"trials": 60}, report={"title": "Another"}) == ["report"]
    assert "Another" in (own / "run" / "share" / "report.html").read_text()


def test_what_comes_to_the_same_changes_nothing_after_it(own: Path) -> None:
    """Data that was only touched is read again; a rule that finds the same leads to no other plan."""
    os.utime(own / "data.txt", (1e9, 1e9))
    assert ran(own) == ["data"]
    same = [{"name": "codes", "find": "patterns", "patterns": [r"QX-1\d{3}"]}]
    assert ran(own, rules=same) == ["scan"]
    check_complete(own / "run")


def test_a_further_training_must_be_asked_for_by_name(own: Path) -> None:
    more: dict[str, Any] = {"training": {"learning_rate": 0.01}}
    before = (own / "run" / "share" / "model" / "model.safetensors").read_bytes()
    with pytest.raises(InvalidInput, match=r"once more .* accounts for one training.* pass --new-release"):
        ran(own, **more)
    with pytest.raises(InvalidInput, match="pass --new-release"):
        ran(own, since="plan")
    assert ran(own) == []  # the change is undone: all is there
    assert (own / "run" / "share" / "model" / "model.safetensors").read_bytes() == before
    assert ran(own, new_release=True, **more) == ["train", "audit", "report"]
    assert (own / "run" / "share" / "model" / "model.safetensors").read_bytes() != before
    assert ran(own, **more) == []


def test_going_back_to_an_earlier_training_finds_it_again(own: Path) -> None:
    before = (own / "run" / "share" / "model" / "model.safetensors").read_bytes()
    ran(own, new_release=True, training={"learning_rate": 0.01})
    watched: list[object] = []
    assert ran(own, watch=Watch(live=watched.append)) == ["train", "audit", "report"]
    assert not watched  # not a single round
    assert (own / "run" / "share" / "model" / "model.safetensors").read_bytes() == before


def test_a_stage_can_be_done_again(own: Path) -> None:
    assert ran(own, since="audit") == ["audit", "report"]
    assert ran(own, since="report") == ["report"]
    before = (own / "run" / "share" / "model" / "model.safetensors").read_bytes()
    assert ran(own, since="plan", new_release=True) == ["plan", "train", "audit", "report"]
    assert (own / "run" / "share" / "model" / "model.safetensors").read_bytes() != before
    assert ran(own) == []


def test_a_signature_stays_while_what_it_covers_is_the_same(own: Path) -> None:
    share = own / "run" / "share"
    create_keys(own / "private.pem", own / "public.pem")
    signatures = [sign(share / "plan", own / "private.pem"), sign(share, own / "private.pem")]
    before = [path.read_bytes() for path in signatures]
    assert ran(own, since="report") == ["report"]
    assert ran(own, report={"title": "Another"}) == ["report"]
    assert [path.read_bytes() for path in signatures] == before
    assert verify(share, public_key=own / "public.pem").passed
    ran(own, training={"learning_rate": 0.01}, new_release=True)  # another model under the same plan
    assert [path.exists() for path in signatures] == [True, False]
    assert verify(share).passed
    ran(own, plan={"rounds": 5}, new_release=True)
    assert not any(path.exists() for path in signatures)


def test_everything_that_is_shared_is_readable_and_the_owners_side_is_not(own: Path) -> None:
    """Whatever modes libraries gave their files: whoever may read the folder may read all of it."""
    (training,) = (own / "run" / "owner" / "training").iterdir()
    for path in (training / "release" / "model").iterdir():
        path.chmod(0o600)
    assert ran(own, report={"title": "Another"}) == ["report"]
    share = own / "run" / "share"
    (own / "new").mkdir()
    usual = stat.S_IMODE((own / "new").stat().st_mode)
    for path in (share, *share.rglob("*")):
        assert stat.S_IMODE(path.stat().st_mode) == (usual if path.is_dir() else usual & 0o666), path
    assert stat.S_IMODE((own / "run" / "owner").stat().st_mode) == 0o700


def test_stopped_training_goes_on_where_it_was(tmp_path: Path) -> None:
    from contextlib import nullcontext

    rounds: list[int] = []
    watch = Watch(live=lambda live: rounds.append(live.round), stoppable=lambda: nullcontext(lambda: len(rounds) == 2))
    with pytest.raises(Interrupted) as stopped:
        ran(tmp_path, watch=watch)
    assert (stopped.value.round, stopped.value.rounds) == (2, 4)
    assert not (tmp_path / "run" / "share").exists()
    states = {one.stage: one.state for one in forecast(small_config(tmp_path), output=tmp_path / "run")}
    assert states["plan"] == "done"
    assert states["train"] == "goes on"
    ran(tmp_path, watch=Watch(live=lambda live: rounds.append(live.round)))
    assert rounds == [1, 2, 3, 4]
    check_complete(tmp_path / "run")


def test_canaries_are_planted_once_and_end_up_in_plan_and_audit(tmp_path: Path) -> None:
    audit = {"attacks": ["exposure"], "candidates": 20, "canaries": CANARIES, "reference": "base-model"}
    assert ran(tmp_path, audit=audit) == list(STAGES)
    assert ran(tmp_path, audit=audit) == []
    plan = Plan.load(tmp_path / "run" / "share" / "plan")
    assert [name for name in plan.secret_ids if name.startswith("canary")] == ["canary-000000", "canary-000001"]
    record = json.loads((tmp_path / "run" / "owner" / "audit" / "audit.json").read_text())
    assert record["exposure"]["canaries"] == 2
    assert ran(tmp_path, audit=audit | {"candidates": 30}) == ["audit", "report"]
    check_complete(tmp_path / "run")


def test_without_an_audit_there_is_none(tmp_path: Path) -> None:
    content = small_desk(tmp_path)
    del content["audit"]
    made = run_pipeline(Config.of(content, folder=tmp_path), output=tmp_path / "run")
    assert made.ran == ("data", "scan", "plan", "train", "report")
    assert made.verdict is None


def test_a_model_that_failed_its_audit_is_not_shared(own: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def failed(_: AuditStage, job: Job) -> dict[str, Any]:
        return {"fingerprint": job.fingerprint("failed"), "verdict": "failed"}

    monkeypatch.setattr(AuditStage, "run", failed)
    made = run_pipeline(small_config(own), output=own / "run", since="audit")
    assert made.verdict == "failed"
    assert not (own / "run" / "share").exists()
    monkeypatch.undo()
    assert ran(own, since="audit") == ["audit", "report"]
    check_complete(own / "run")


def test_one_process_at_a_time(tmp_path: Path) -> None:
    with opened(tmp_path / "run"), pytest.raises(InvalidInput, match="open"):
        ran(tmp_path)


@pytest.mark.parametrize("name", ["share/precious.txt", "owner/diary.txt", ".draft.tmp"])
def test_a_name_that_a_run_uses_does_not_make_a_folder_a_run(tmp_path: Path, name: str) -> None:
    precious = tmp_path / "run" / name
    precious.parent.mkdir(parents=True)
    precious.write_text("years of work")
    with pytest.raises(InvalidInput, match="holds something other than a run"):
        ran(tmp_path)
    assert precious.read_text() == "years of work"


def test_a_run_that_was_killed_before_its_lock_goes_on(tmp_path: Path) -> None:
    (tmp_path / "run" / "owner").mkdir(parents=True)
    with opened(tmp_path / "run") as paths:
        assert paths.owner.is_dir()


def test_folders_of_others_are_left_alone(tmp_path: Path) -> None:
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / "thesis.txt").write_text("years of work")
    with pytest.raises(InvalidInput, match="holds something other than a run"):
        ran(tmp_path)
    folder = {"source": "sub"}
    (tmp_path / "sub").mkdir()
    (tmp_path / "sub" / "a.txt").write_text("a")
    with pytest.raises(InvalidInput, match="lies inside the data"):
        run_pipeline(small_config(tmp_path, data=folder), output=tmp_path / "sub" / "run")
    with pytest.raises(InvalidInput, match="nothing says where the run goes"):
        run_pipeline(small_config(tmp_path))


def test_another_key_is_refused(own: Path) -> None:
    DataKey.create(own / "other.key")
    with pytest.raises(InvalidInput, match=r"was written under the key .* pass that key as data\.key"):
        ran(own, data={"key": "other.key"})


def test_a_key_is_made_once(tmp_path: Path) -> None:
    made = key_at(tmp_path / "a.key")
    assert key_at(tmp_path / "a.key") == made
    assert [path.name for path in tmp_path.iterdir()] == ["a.key"]
    assert stat.S_IMODE((tmp_path / "a.key").stat().st_mode) == 0o600


def test_a_forecast_writes_nothing_and_says_what_would_run(tmp_path: Path) -> None:
    config = small_config(tmp_path)
    before = sorted(tmp_path.rglob("*"))
    fresh = forecast(config, output=tmp_path / "run")
    assert sorted(tmp_path.rglob("*")) == before
    assert [(one.stage, one.state) for one in fresh] == [(name, "runs") for name in NO_CANARIES]
    sizes = {one.stage: one.size for one in fresh}
    assert sizes["data"].startswith("1 file")
    assert sizes["train"].startswith("4 rounds of 4")
    run_pipeline(config, output=tmp_path / "run")
    assert {one.state for one in forecast(config, output=tmp_path / "run")} == {"done"}
    again = {one.stage: one.state for one in forecast(config, output=tmp_path / "run", since="train")}
    assert again == {"data": "done", "scan": "done", "plan": "done", "train": "runs", "audit": "runs", "report": "runs"}
    other = {
        one.stage: one.state for one in forecast(small_config(tmp_path, plan={"rounds": 9}), output=tmp_path / "run")
    }
    assert other["scan"] == "done"
    assert other["plan"] == "runs"
    assert other["train"] == "depends"


def test_inputs_are_kept_for_a_repetition(tmp_path: Path) -> None:
    import yaml

    (tmp_path / "names.txt").write_text("Acme\n")
    rules = [{"name": "names", "find": "literals", "file": "names.txt"}]
    content = small_desk(tmp_path, rules=rules, report={"frontier": True, "methods": True})
    (tmp_path / "hush.yaml").write_text(yaml.safe_dump(content))
    config = load_config(tmp_path / "hush.yaml")
    run_pipeline(config, output=tmp_path / "run")
    kept = tmp_path / "run" / "owner" / "inputs"
    assert (kept / "config.yaml").read_bytes() == (tmp_path / "hush.yaml").read_bytes()
    assert (kept / "literals-0.txt").read_text() == "Acme\n"

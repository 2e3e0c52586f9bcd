"""Runs of hush 0.1.0, which named release/ share/: every command reads them, and the next run renames the folder."""

import json
import os
import signal
from pathlib import Path
from typing import Any

import pytest
from small_runs import check_complete, ran, small_config

from command_line import run, run_json
from hush.errors import InvalidInput
from hush.plan.files import create_keys, sign
from hush.plan.verify import verify
from hush.run.folder import RunPaths, rename_old_release
from hush.run.forecast import forecast
from hush.run.job import RunJob, Watch
from hush.run.stages import AuditStage


@pytest.fixture
def old(own: Path) -> Path:
    """The desk of a finished run as 0.1.0 left it."""
    (own / "run" / "release").rename(own / "run" / "share")
    return own


def test_hush_verify_and_sign_read_it(old: Path) -> None:
    record = run_json("verify", old / "run")
    assert record["passed"]
    assert record["certifies"]
    assert record["release"] == str(old / "run" / "share")
    assert record == run_json("verify", old / "run" / "share")
    create_keys(old / "private.pem", old / "public.pem")
    signed = run_json("sign", old / "run", "--private-key", old / "private.pem")
    assert signed["signature"] == str(old / "run" / "share" / "certificate.sig")


def test_hush_report_reads_it(old: Path) -> None:
    page = old / "page.html"
    assert run("report", old / "run", "--output", page, "--no-compare").exit_code == 0
    assert "<code>hush verify run/share\n" in page.read_text()


def test_hush_audit_reads_it(old: Path) -> None:
    inputs = ("--data", old / "data.txt", "--key", old / "my.key", "--scan", old / "run" / "owner" / "scan")
    found = run_json("audit", old / "run", *inputs, "--attack", "extraction", "--prompt", 4, "--output", old / "audit")
    assert found["verdict"] == "kept"
    released = json.loads((old / "run" / "share" / "certificate.json").read_text())
    assert found["model"] == released["fingerprints"]["model"]


def test_hush_explain_reads_it(old: Path) -> None:
    scan = old / "run" / "owner" / "scan"
    assert run_json("explain", old / "run", "codes-000000") == run_json("explain", scan, "0", "--secret")


def test_a_finished_run_is_renamed_and_nothing_is_done_again(old: Path) -> None:
    create_keys(old / "private.pem", old / "public.pem")
    sign(old / "run" / "share", old / "private.pem")
    before = contents(old / "run" / "share")
    notices: list[str] = []
    assert ran(old, watch=Watch(notice=notices.append)) == []
    assert notices == ["share/, which hush 0.1.0 wrote, is now called release/; nothing in it changed"]
    assert not (old / "run" / "share").exists()
    assert contents(old / "run" / "release") == before
    check_complete(old / "run")
    assert verify(old / "run" / "release", public_key=old / "public.pem").passed
    assert ran(old, watch=Watch(notice=notices.append)) == []
    assert len(notices) == 1


def test_a_dry_run_renames_nothing(old: Path) -> None:
    assert {stage.state for stage in forecast(small_config(old), output=old / "run")} == {"done"}
    assert (old / "run" / "share").is_dir()
    assert not (old / "run" / "release").exists()


def test_a_later_training_must_be_asked_for_there_too(old: Path) -> None:
    with pytest.raises(InvalidInput, match="once more"):
        ran(old, training={"learning_rate": 0.01})
    check_complete(old / "run")


def test_a_failed_audit_withdraws_what_was_released_under_the_old_name(
    old: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def failed(_: AuditStage, job: RunJob) -> dict[str, Any]:
        return {"fingerprint": job.fingerprint("failed"), "verdict": "failed"}

    monkeypatch.setattr(AuditStage, "run", failed)
    ran(old, since="audit")
    assert not (old / "run" / "share").exists()
    assert not (old / "run" / "release").exists()


@pytest.mark.parametrize("call", ["rename", "fsync"])
def test_a_kill_while_it_is_renamed_leaves_a_run_that_is_read(old: Path, call: str) -> None:
    """Before the rename and right after it, there is one folder, and it is whole."""
    before, child = contents(old / "run" / "share"), os.fork()
    if not child:
        setattr(os, call, lambda *_, **__: os.kill(os.getpid(), signal.SIGKILL))
        rename_old_release(RunPaths(old / "run"))
        os._exit(0)
    assert os.WIFSIGNALED(os.waitpid(child, 0)[1])
    (left,) = [path for path in (old / "run" / "share", old / "run" / "release") if path.exists()]
    assert contents(left) == before
    assert run_json("verify", old / "run")["release"] == str(left)
    assert ran(old) == []
    check_complete(old / "run")


def test_a_folder_with_both_names_is_refused(old: Path) -> None:
    (old / "run" / "release").mkdir()
    with pytest.raises(InvalidInput, match=r"holds both release/ and share/.*; move one of them elsewhere"):
        ran(old)
    assert contents(old / "run" / "share")


@pytest.mark.parametrize("mark", ["run.json", "checkpoints/round-000002.ckpt"])
def test_the_folder_of_hush_train_is_no_run_although_it_has_the_same_parts(old: Path, mark: str) -> None:
    """It has owner/lock and release/ too, and a run would replace its model."""
    (training,) = (old / "run" / "owner" / "training").iterdir()
    training.rename(old / "trained")
    if mark != "run.json":
        (old / "trained" / "owner" / "run.json").unlink()
    assert (old / "trained" / "owner" / mark).exists() or list((old / "trained" / "owner" / "checkpoints").iterdir())
    before = contents(old / "trained")
    (old / "run").rename(old / "earlier")
    (old / "trained").rename(old / "run")
    with pytest.raises(InvalidInput, match="holds a training of hush train; name a new folder for the run"):
        ran(old)
    assert contents(old / "run") == before


def contents(folder: Path) -> dict[str, bytes]:
    return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}

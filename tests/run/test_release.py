"""What may leave the owner's hands is apart from what may not: whole, readable, and without the audit."""

import json
import re
import stat
from pathlib import Path
from typing import Any

import pytest
from small_runs import CANARIES, SECRETS, check_complete, ran, small_config

from hush.plan import Plan
from hush.plan.attest import attest
from hush.plan.files import create_keys, sign
from hush.plan.make import held_out_examples
from hush.plan.verify import verify
from hush.run import run_pipeline
from hush.run.job import RunJob
from hush.run.stages import AuditStage


def test_what_may_leave_holds_no_secret_and_nothing_of_the_owner(finished: Path) -> None:
    release = finished / "release"
    assert {path.name for path in release.iterdir()} == {
        "plan", "model", "certificate.json", "certificate.md", "evaluations.jsonl", "report.html", "README.md"
    }  # fmt: skip
    times = {path.stat().st_mtime for path in (release, *release.rglob("*"))}
    assert len(times) == 1  # when files were written would tell how long training took
    for path in (path for path in finished.rglob("*") if path.is_file()):
        held = [secret for secret in SECRETS if secret.encode() in path.read_bytes()]
        assert not held or "owner" in path.relative_to(finished).parts, path
    assert stat.S_IMODE((finished / "owner").stat().st_mode) == 0o700
    assert stat.S_IMODE((finished / "stages.json").stat().st_mode) == 0o600


def test_the_released_report_lacks_the_audit(finished: Path) -> None:
    released, owners = ((finished / side / "report.html").read_text() for side in ("release", "owner"))
    assert "No attack did better than was certified" in owners
    assert "No attack did better than was certified" not in released
    assert "An audit, if there was one, is for the owner" in released
    assert "No attack was run" not in released


def test_both_reports_tell_how_to_verify_all_that_is_released(finished: Path) -> None:
    for side in ("release", "owner"):
        (named,) = re.findall(r"<code>hush verify (.*)\n", (finished / side / "report.html").read_text())
        found = verify(finished / named)
        assert found.passed
        assert {"model", "run's certificate"} <= {check.name for check in found.checks}


def test_both_reports_show_how_good_the_model_was_on_examples_without_secrets(finished: Path) -> None:
    plan = Plan.load(finished / "release" / "plan")
    held = held_out_examples(plan)
    assert held.size == 5
    assert (plan.incidence.secrets_per_example[held] == 0).all()
    lines = (finished / "release" / "evaluations.jsonl").read_text().splitlines()
    losses = [json.loads(line)["held-out loss"] for line in lines]
    for side in ("release", "owner"):
        page = (finished / side / "report.html").read_text()
        assert '<section id="training"' in page
        assert "5 examples without a secret are held out for evaluation." in page
        for round, loss in enumerate(losses):
            assert f"<td>{round}</td><td>{loss:.5g}</td>" in page


def test_canaries_do_not_keep_the_scan_out_of_the_report(tmp_path: Path) -> None:
    audit = {"attacks": ["exposure"], "candidates": 20, "canaries": CANARIES}
    ran(tmp_path, audit=audit, report={"show_text": True})
    for side in ("release", "owner"):
        page = (tmp_path / "run" / side / "report.html").read_text()
        assert '<section id="scan"' in page
        assert "2 canaries were planted after the scan" in page
    assert "Contains the texts of secrets" in page


def test_a_signature_stays_while_what_it_covers_is_the_same(own: Path) -> None:
    release = own / "run" / "release"
    create_keys(own / "private.pem", own / "public.pem")
    signatures = [sign(release / "plan", own / "private.pem"), sign(release, own / "private.pem")]
    create_keys(own / "attesting.pem", own / "attested.pem", kind="p256")
    attested = attest(release, private_key=own / "attesting.pem")
    signatures += [attested.model_signature, attested.attestations]
    before = [path.read_bytes() for path in signatures]
    assert ran(own, since="report") == ["report"]
    assert ran(own, report={"title": "Another"}) == ["report"]
    assert [path.read_bytes() for path in signatures] == before
    assert verify(release, public_key=own / "public.pem").passed
    assert verify(release, public_key=own / "attested.pem").passed
    ran(own, training={"learning_rate": 0.01}, new_release=True)  # another model under the same plan
    assert [path.exists() for path in signatures] == [True, False, False, False]
    assert verify(release).passed
    ran(own, plan={"rounds": 5}, new_release=True)
    assert not any(path.exists() for path in signatures)


def test_everything_that_is_released_is_readable_and_the_owners_side_is_not(own: Path) -> None:
    """Whatever modes libraries gave their files: whoever may read the folder may read all of it."""
    (training,) = (own / "run" / "owner" / "training").iterdir()
    for path in (training / "release" / "model").iterdir():
        path.chmod(0o600)
    assert ran(own, report={"title": "Another"}) == ["report"]
    release = own / "run" / "release"
    (own / "new").mkdir()
    usual = stat.S_IMODE((own / "new").stat().st_mode)
    for path in (release, *release.rglob("*")):
        assert stat.S_IMODE(path.stat().st_mode) == (usual if path.is_dir() else usual & 0o666), path
    assert stat.S_IMODE((own / "run" / "owner").stat().st_mode) == 0o700


def test_a_model_that_failed_its_audit_is_not_released(own: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def failed(_: AuditStage, job: RunJob) -> dict[str, Any]:
        return {"fingerprint": job.fingerprint("failed"), "verdict": "failed"}

    monkeypatch.setattr(AuditStage, "run", failed)
    made = run_pipeline(small_config(own), output=own / "run", since="audit")
    assert made.verdict == "failed"
    assert not (own / "run" / "release").exists()
    monkeypatch.undo()
    assert ran(own, since="audit") == ["audit", "report"]
    check_complete(own / "run")

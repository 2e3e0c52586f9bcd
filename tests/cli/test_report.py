"""``hush report``: from a plan, from a run, with everything, and what it refuses."""

import json
import stat
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from command_line import refused, run, run_json
from hush.incidence import Incidence
from hush.plan import Plan, make_plan
from hush.protection import Protection
from hush.scan.result import Scan
from hush.secret_table import Secrets

AUDIT = {
    "verdict": "kept",
    "level": 0.01,
    "rows": [{"attack": "naming", "name": "s", "certified": 0.1, "lower": 0.0, "upper": 0.9, "status": "kept"}],
}


def small_plan(secrets: int = 12) -> Plan:
    held = np.arange(3 * secrets)
    incidence = Incidence.from_pairs(held, held // 3, num_examples=100, num_secrets=secrets)
    return make_plan(incidence, prior=1e-10, ceiling=1e-3, batch_size=10, rounds=20)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A plan, a run of it, a scan without an owner's side, a frontier and an audit."""
    root = tmp_path_factory.mktemp("report")
    plan = small_plan()
    plan.save(root / "plan")
    release, owner = root / "run" / "release", root / "run" / "owner"
    plan.save(release / "plan")
    owner.mkdir()
    certificate = plan.run_certificate(1000)
    certificate = replace(certificate, fingerprints={**certificate.fingerprints, "model": "ab" * 32})
    (release / "certificate.json").write_text(json.dumps(certificate.to_dict()))
    (release / "evaluations.jsonl").write_text('{"round": 10, "eval_loss": 2.5}\n{"round": 20, "eval_loss": 2.25}\n')
    (owner / "rounds.jsonl").write_text('{"round": 1, "loss": 4.12541254, "examples": 41774177}\n')
    secrets = Secrets([Protection(1e-10, 1e-3)] * 12, ids=plan.secret_ids)
    Scan(incidence=plan.incidence, secrets=secrets, rules=(("words", 12),)).save(root / "scan")
    row = {"capacity": "accounted", "bound": "blowup", "noise_multiplier": 3.0, "kept_weight": 0.9}
    (root / "frontier.json").write_text(json.dumps({"rows": [row]}))
    (root / "audit").mkdir()
    (root / "audit" / "audit.json").write_text(json.dumps(AUDIT))
    return root


def test_a_plan_makes_a_page_that_everybody_may_read(folder: Path) -> None:
    output = folder / "plan.html"
    record = run_json("report", folder / "plan", "--output", output)
    assert record["secrets"] == 12
    assert record["bytes"] == output.stat().st_size
    page = output.read_text()
    assert "hush verify plan\n" in page
    assert '<section id="noise"' in page
    assert output.stat().st_mode & stat.S_IRGRP


def test_a_run_shows_its_scores_and_its_model_but_nothing_of_the_owners_log(folder: Path) -> None:
    output = folder / "run.html"
    result = run("report", folder / "run", "--output", output, "--no-compare")
    assert result.exit_code == 0, result.output
    assert "needs no network" in " ".join(result.stdout.split())
    page = output.read_text()
    assert "hush verify run/release\n" in page
    assert '<section id="training"' in page
    assert "ab" * 32 in page
    ours = page[page.rindex("</nav>") : page.index("plotly.js")]
    assert "4177417" not in ours
    assert "4.125412" not in ours
    assert '<section id="noise"' not in page


def test_everything_at_once_leaves_nothing_out_and_is_for_the_owner(folder: Path) -> None:
    output = folder / "all.html"
    arguments = ("--frontier", folder / "frontier.json", "--scan", folder / "scan", "--audit", folder / "audit")
    assert run("report", folder / "run", "--output", output, *arguments, "--title", "A & <B>").exit_code == 0
    page = output.read_text()
    assert "<title>A &amp; &lt;B&gt;</title>" in page
    assert '<section id="missing"' not in page
    assert not output.stat().st_mode & stat.S_IRGRP  # an audit's numbers are a release that no plan accounts for


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("nothing", "--output", "r.html"), "is not a folder; pass a folder that hush plan or hush train wrote"),
        (("plan", "--output", "r.pdf"), "pass a name that ends in .html"),
        (("plan", "--output", "r.html", "--show-text"), "pass --scan FOLDER"),
        (("plan", "--output", "r.html", "--show-text", "--scan", "scan"), "owner's side of a scan"),
        (("plan", "--output", "r.html", "--frontier", "audit/audit.json"), "row 0 of the frontier lacks"),
        (("plan", "--output", "r.html", "--audit", "frontier.json"), "has no list of attacks"),
        (("plan", "--output", "r.html", "--audit", "scan"), "audit.json"),
        (("scan", "--output", "r.html"), "neither a plan nor a finished run"),
    ],
)
def test_what_cannot_be_shown_is_refused_before_anything_is_written(
    folder: Path, monkeypatch: pytest.MonkeyPatch, arguments: tuple[str, ...], said: str
) -> None:
    monkeypatch.chdir(folder)
    assert said in refused(2, "report", *arguments, "--no-compare")
    assert not (folder / arguments[2]).exists()


def test_a_marked_run_needs_its_plan_and_a_run_of_another_plan_is_refused(folder: Path) -> None:
    marked = folder / "marked"
    release = marked / "release"
    release.mkdir(parents=True)
    planned = Plan.load(folder / "plan").certificate
    fingerprints = {**planned.fingerprints, "model": "ab" * 32}
    certificate = replace(planned, fingerprints=fingerprints, marks=("insecure_seed was set",))
    (release / "certificate.json").write_text(json.dumps(certificate.to_dict()))
    assert "pass the folder of its plan as --plan" in refused(2, "report", marked, "--output", folder / "m.html")
    options = ("--output", folder / "m.html", "--no-compare", "--force", "--plan")
    assert run("report", marked, *options, folder / "plan").exit_code == 0
    assert "insecure_seed was set" in (folder / "m.html").read_text()
    small_plan(secrets=13).save(folder / "other")
    assert "is not the plan" in refused(2, "report", marked, *options, folder / "other")

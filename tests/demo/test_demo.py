"""The quick demo, whole: four arms, ordered as the mathematics demands, a report, and no key in what is released."""

import json
import os
import signal
import stat
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from rich.console import Console

import hush
from command_line import refused
from hush.accounting.sampling_error import planning_ceiling
from hush.audit.canaries import read_canaries
from hush.demo import run as demo_run
from hush.demo.arms import ARMS, HUSH, NONE, OTHERS, plan_of
from hush.demo.company import FULL, PROJECTS, QUICK, config_of
from hush.demo.run import COLUMNS, ENTRIES, MARKER, run_demo
from hush.errors import HushError
from hush.plan import Plan
from hush.plan.make import held_out_examples

pytest.importorskip("transformers")


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, str]:
    """The folder of a quick demo, and what it said."""
    folder = tmp_path_factory.mktemp("demo") / "here"
    console = Console(width=100, record=True, force_terminal=False)
    with console.capture() as captured:
        assert run_demo(folder, console, size=QUICK) == folder / "report.html"
    return folder, captured.get()


@pytest.fixture(scope="module")
def arms(made: tuple[Path, str]) -> dict[str, Any]:
    return json.loads((made[0] / "demo.json").read_text())["arms"]


def test_every_arm_is_there_and_said(made: tuple[Path, str], arms: dict[str, Any]) -> None:
    folder, said = made
    page = (folder / "report.html").read_text()
    assert list(arms) == [arm.name for arm in ARMS]
    for arm in ARMS:
        assert arm.title in said
        assert arm.title in page
    assert all(column in page for column in COLUMNS)
    assert all(name in page for name in PROJECTS)
    assert f"hush verify {folder}/run/release\n" in said
    assert "<code>hush verify run/release\n" in page
    assert said.rstrip().endswith(" s")
    assert {path.name for path in folder.iterdir()} == ENTRIES | {MARKER}


def test_the_numbers_are_ordered_as_the_mathematics_demands(arms: dict[str, Any]) -> None:
    noise = {name: one["noise_multiplier"] for name, one in arms.items()}
    assert noise["none"] == 0 < noise["hush"] < noise["paper-program"] <= noise["paper"]
    assert arms["none"]["kept"] == arms["paper"]["kept"] == 1
    assert arms["paper-program"]["kept"] >= arms["hush"]["kept"] > 0.49
    assert arms["none"]["certified"] is None
    for name in ("paper", "paper-program", "hush"):
        assert 0 < arms[name]["certified"] <= 1e-3
        assert arms[name]["largest_share_of_ceiling"] <= 1
    for one in arms.values():
        rounds = [round for round, _ in one["curve"]]
        assert rounds == [0, QUICK.rounds // 2, QUICK.rounds]
        assert one["loss"] == one["curve"][-1][1] > 0
    assert len({one["curve"][0][1] for one in arms.values()}) == 1  # all begin with the same weights
    assert arms["none"]["loss"] < arms["none"]["curve"][0][1]


def test_the_plans_are_the_librarys_own(made: tuple[Path, str], arms: dict[str, Any]) -> None:
    plan = Plan.load(made[0] / "run" / "release" / "plan")
    assert hush.verify(made[0] / "run" / "release").passed
    held = held_out_examples(plan)
    assert held.size > 10
    np.testing.assert_array_equal(held_out_examples(plan_of(NONE, plan)), held)  # all arms are evaluated on the same
    rate = plan.batch_size / (plan.incidence.num_examples - held.size)
    target = planning_ceiling(plan.prior, plan.ceiling)
    promise = {"prior": plan.prior, "ceiling": target, "rates": rate, "rounds": plan.rounds}
    for bound in ("kl", "blowup"):
        noise = hush.calibrate(plan.incidence, **promise, bound=bound).noise_multiplier
        assert noise == arms["paper"]["noise_multiplier"] if bound == "kl" else noise > plan.noise_multiplier
    assert not plan_of(NONE, plan).certificate.is_real
    with pytest.raises(HushError, match="not an arm besides hush"):
        plan_of(HUSH, plan)


def test_an_arm_has_the_same_colour_in_every_plot(made: tuple[Path, str]) -> None:
    page = (made[0] / "report.html").read_text()
    begin = page.index('id="plots">') + len('id="plots">')
    plots = json.loads(page[begin : page.index("</script>", begin)])
    beside = {trace["name"]: trace["marker"]["color"] for trace in plots["arms"]["data"]}
    curves = {trace["name"]: trace["line"]["color"] for trace in plots["training-0"]["data"]}
    assert beside == curves
    assert len(set(curves.values())) == len(ARMS)


def test_no_key_is_in_the_report_or_in_what_is_released(made: tuple[Path, str]) -> None:
    folder, said = made
    planting = read_canaries(folder / "run" / "owner" / "canaries")
    keys = [planting.candidates.text(canary.truth) for canary in planting.canaries]
    released = [path for path in (folder / "run" / "release").rglob("*") if path.is_file()]
    assert len(released) > 5
    for path in [*released, folder / "report.html", folder / "demo.json", folder / "hush.yaml"]:
        content = path.read_bytes()
        assert not any(key.encode() in content for key in keys), path
    assert not any(key in said for key in keys)
    owned = (folder / "run" / "owner" / "canaries" / "owner" / "canaries.json").stat()
    assert stat.S_IMODE(owned.st_mode) == 0o600


def test_the_released_model_never_saw_a_tokenizer_of_the_code(made: tuple[Path, str]) -> None:
    tokenizer = json.loads((made[0] / "run" / "release" / "model" / "tokenizer.json").read_text())
    assert tokenizer["model"]["merges"] == []
    assert len(tokenizer["model"]["vocab"]) == 258  # the bytes, padding and an end


def test_an_earlier_demo_is_replaced_and_other_things_are_not(tmp_path: Path) -> None:
    for name in (".hush-demo", "report.html", "run/owner/data.key", ".report.html.0123.tmp", "noise.svg"):
        (tmp_path / "old" / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / "old" / name).write_text("old")
    demo_run._prepare_folder(tmp_path / "old")
    assert {path.name for path in (tmp_path / "old").iterdir()} == {".hush-demo", "noise.svg"}
    (tmp_path / "mine.txt").write_text("mine")
    assert "holds something other than a demo (mine.txt)" in refused(2, "demo", "--quick", "--output", tmp_path)
    assert "is a file; pass a folder" in refused(2, "demo", "--quick", "--output", tmp_path / "mine.txt")
    assert (tmp_path / "mine.txt").read_text() == "mine"


@pytest.mark.parametrize("name", ["paper/thesis.tex", "report.html", ".draft.tmp"])
def test_a_name_that_a_demo_uses_does_not_make_a_folder_a_demo(tmp_path: Path, name: str) -> None:
    precious = tmp_path / "mine" / name
    precious.parent.mkdir(parents=True)
    precious.write_text("years of work")
    assert "other than a demo" in refused(2, "demo", "--quick", "--force", "--output", tmp_path / "mine")
    assert precious.read_text() == "years of work"


def test_missing_libraries_are_named_with_the_remedy(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(demo_run, "REQUIRED_LIBRARIES", ("json", "no_such_library"))
    said = refused(2, "demo", "--output", tmp_path / "demo")
    assert 'no_such_library is missing; pip install "hush[hf,scan]", or run make demo' in said
    assert not (tmp_path / "demo").exists()


def test_the_full_demo_asks_the_same_of_more() -> None:
    quick, full = config_of(QUICK), config_of(FULL)
    assert quick["rules"] == full["rules"]
    assert quick["promises"] == full["promises"]
    assert FULL.rounds % FULL.save_every == 0
    assert FULL.workers == len(OTHERS)


@pytest.mark.slow
def test_arms_in_processes_of_their_own_come_to_the_same_plans(tmp_path: Path, arms: dict[str, Any]) -> None:
    with Console(record=True, width=100).capture():
        run_demo(tmp_path, Console(width=100), size=replace(QUICK, workers=2))
    found = json.loads((tmp_path / "demo.json").read_text())["arms"]
    for name, one in arms.items():
        assert found[name]["noise_multiplier"] == one["noise_multiplier"]
        assert found[name]["curve"][0] == one["curve"][0]


@pytest.mark.slow
def test_ctrl_c_leaves_no_report_and_no_process(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "hush", "demo", "--output", str(tmp_path / "demo")]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, process_group=0) as process:
        while not (tmp_path / "demo" / "none" / "owner" / "rounds.jsonl").exists():
            assert process.poll() is None
            time.sleep(0.2)
        os.kill(process.pid, signal.SIGINT)
        _, said = process.communicate(timeout=120)
    assert process.returncode == 130
    assert said.decode().strip() == "Stopped; no result was written. Run the same command again to start over."
    assert not (tmp_path / "demo" / "report.html").exists()
    end = time.monotonic() + 20  # Python's own tracker of shared memory follows a moment later
    while _is_alive(process.pid):
        assert time.monotonic() < end
        time.sleep(0.2)


def _is_alive(group: int) -> bool:
    try:
        os.killpg(group, 0)
    except ProcessLookupError:
        return False
    return True

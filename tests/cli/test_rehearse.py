"""hush rehearse: a table, a sentence and a patch, before anything is trained; no secret is looked at."""

import json
from pathlib import Path
from typing import Any

import pytest
import torch
import yaml

from command_line import refused, run, run_json
from hush.rehearse.outcome import last_outcome
from hush.run.config import load_config
from hush.run.rehearsal import patched

pytestmark = pytest.mark.usefixtures("warm_public_process")

CODES = [f"QX-{1000 + number}" for number in range(4)]


@pytest.fixture(autouse=True)
def one_thread() -> Any:
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


@pytest.fixture(scope="module")
def rehearsed(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, dict[str, Any]]:
    """A config in its folder, and what the command printed as JSON."""
    folder = tmp_path_factory.mktemp("rehearsed")
    texts = [f"note {number % 30} of day {number}" for number in range(140)]
    texts += [f"note, code {CODES[number % 4]}" for number in range(20)]
    (folder / "data.txt").write_text("\n".join(texts) + "\n")
    content = {
        "data": {"source": "data.txt"},
        "promises": {"prior": 1e-6, "ceiling": 1e-2},
        "rules": [{"name": "codes", "find": "patterns", "patterns": [r"QX-\d{4}"]}],
        "plan": {"batch_size": 8, "rounds": 20},
        "model": {"small": {"layers": 1, "width": 8, "heads": 1, "length": 24}},
        "training": {
            "device": "cpu",
            "public_first": {"learning_rate": 1e-2, "epochs": 1},
            "learning_rate": 1e-2,
        },
        "rehearsal": {"tries": 2, "seeds": 3},
        "output": "hush-run",
    }
    (folder / "hush.yaml").write_text(yaml.safe_dump(content))
    record = run_json("rehearse", folder / "hush.yaml", "--seeds", 2, "--write", folder / "better.yaml")
    return folder, record


def test_the_record_says_what_to_expect_and_what_to_take(rehearsed: tuple[Path, dict[str, Any]]) -> None:
    folder, record = rehearsed
    assert [arm["arm"] for arm in record["arms"]] == ["dropping", "redacting", "hush"]
    for arm in record["arms"]:
        for kind in ("ordinary", "like"):
            assert arm[kind]["low"] <= arm[kind]["expected"] <= arm[kind]["high"]
    assert record["choice"] in record["sentence"]
    assert record["skips_private_rounds"] is not record["gains"]
    assert record["repeats"] == 2  # the option comes before the config
    assert len(record["tried"]) == 2  # of the config
    outcome = last_outcome(folder / "hush-run" / "owner" / "rehearsal")
    assert outcome is not None
    assert outcome.sentence == record["sentence"]
    assert Path(record["figure"]).read_text().startswith("<?xml")


def test_the_patch_leads_to_a_config_that_loads(rehearsed: tuple[Path, dict[str, Any]]) -> None:
    folder, record = rehearsed
    stated = yaml.safe_load((folder / "hush.yaml").read_text())
    patch = yaml.safe_load(Path(record["patch_file"]).read_text())
    assert patch == record["patch"]
    better = load_config(folder / "better.yaml")
    assert yaml.safe_load((folder / "better.yaml").read_text()) == patched(stated, patch)
    for section, values in patch.items():
        for name, value in values.items():
            assert getattr(getattr(better, section), name) == value


def test_nothing_was_trained_on_the_data_and_no_secret_was_looked_at(rehearsed: tuple[Path, dict[str, Any]]) -> None:
    folder, record = rehearsed
    assert not (folder / "hush-run" / "owner" / "training").exists()
    assert not (folder / "hush-run" / "release").exists()
    kept = [path for path in (folder / "hush-run" / "owner" / "rehearsal").rglob("*") if path.is_file()]
    assert len(kept) > 5
    assert not any(code.encode() in path.read_bytes() for path in kept for code in CODES)
    assert not any(code in json.dumps(record) for code in CODES)


def test_a_finished_rehearsal_is_shown_again(rehearsed: tuple[Path, dict[str, Any]]) -> None:
    folder, record = rehearsed
    result = run("rehearse", folder / "hush.yaml", "--seeds", 2)
    assert result.exit_code == 0, result.output
    said = " ".join(result.stdout.split())
    for expected in ("Loss to expect (2 repeats", "before training", record["sentence"], "Note: Public examples play"):
        assert expected in said


def test_what_cannot_be_is_refused_before_anything_runs(rehearsed: tuple[Path, dict[str, Any]], tmp_path: Path) -> None:
    folder, _ = rehearsed
    config = folder / "hush.yaml"
    assert "--seeds=1; pass the number of trainings" in refused(2, "rehearse", config, "--seeds", 1)
    assert "--minutes=0.0; pass a number of minutes" in refused(2, "rehearse", config, "--minutes", 0)
    assert "--write" in refused(2, "rehearse", config, "--write", folder / "better.yaml")
    assert "name a file in" in refused(2, "rehearse", config, "--seeds", 2, "--write", tmp_path / "elsewhere.yaml")


def test_a_run_with_the_settings_that_won_is_marked(rehearsed: tuple[Path, dict[str, Any]]) -> None:
    folder, record = rehearsed
    assert record["patch"], "the config was already the best; make the fixture worse, so that there is a patch"
    released = Path(run_json("run", folder / "better.yaml")["release"])
    assert json.loads((released / "certificate.json").read_text())["rehearsed"] is True
    other = run_json("run", folder / "hush.yaml", "--output", folder / "other-run")["release"]
    assert "rehearsed" not in json.loads((Path(other) / "certificate.json").read_text())

"""A run whose private rounds could teach nothing trains none of them, says so, and certifies what holds."""

import random
from pathlib import Path
from typing import Any

import pytest
import yaml
from small_runs import WORDS

import hush
from hush.certificate import Certificate
from hush.cli.results.run import outcome_record
from hush.errors import InvalidInput
from hush.report.report import read_evaluations
from hush.run import Watch, run_pipeline
from hush.run.config import Config, template
from hush.run.forecast import forecast
from hush.storage import folder_digest, read_json
from hush.train.run_folder import RunLog

pytestmark = pytest.mark.usefixtures("warm_public_process")

SMALL = {"small": {"layers": 1, "width": 32, "heads": 2, "length": 48}}
FREE, BEARING = 420, 60


def config_of(folder: Path, *, secrets: int, **training: Any) -> Config:
    """The template with notes of which 60 hold one of few secrets, and little to train."""
    rng = random.Random(0)
    lines = [" ".join(rng.choices(WORDS, k=6)) for _ in range(FREE + BEARING)]
    for number in range(BEARING):
        lines[number] += f" QX-{1000 + number % secrets}"
    (folder / "data.txt").write_text("\n".join(lines) + "\n")
    content = yaml.safe_load(template("text"))
    assert content["training"]["private_part"] == "auto"
    content["data"]["source"] = "data.txt"
    content["rules"] = [{"name": "codes", "find": "patterns", "patterns": [r"QX-\d{4}"]}]
    content["plan"] |= {"rounds": 3, "batch_size": 8, "keep": 1.0}
    content["model"] = SMALL
    content["training"] |= {"device": "cpu", "public_first": {"epochs": 1, "learning_rate": 3e-3}} | training
    content.pop("audit", None)
    content.pop("chunks")
    content["report"] = {"frontier": False, "methods": False}
    return Config.of(content, folder=folder)


def ran(config: Config, folder: Path) -> tuple[dict[str, Any], list[str]]:
    said: list[str] = []
    outcome = run_pipeline(config, output=folder, watch=Watch(notice=said.append))
    return outcome_record(outcome), said


@pytest.fixture(scope="module")
def idle(warm_public_process: None, tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, dict[str, Any], list[str]]:
    """A run of a single secret in 60 notes: hopeless."""
    folder = tmp_path_factory.mktemp("idle")
    record, said = ran(config_of(folder, secrets=1), folder / "run")
    return folder, record, said


def test_hopeless_rounds_are_not_trained_and_the_run_says_so(idle: tuple[Path, dict[str, Any], list[str]]) -> None:
    folder, record, said = idle
    assert record["outlook"]["hopeless"]
    assert record["private_rounds"] == 0
    assert any(line.startswith("No private rounds are trained: the signal is hopeless") for line in said)
    (training,) = (folder / "run" / "owner" / "training").iterdir()
    assert RunLog.read(training / "owner" / "rounds.jsonl") == []  # nothing was drawn
    assert record["losses"]["private"] is None
    assert record["losses"]["public"] < record["losses"]["before"]
    assert [row["round"] for row in read_evaluations(folder / "run" / "release")] == [0]


def test_its_certificate_says_what_holds_and_is_verified(idle: tuple[Path, dict[str, Any], list[str]]) -> None:
    folder, _, _ = idle
    release = folder / "run" / "release"
    certificate = Certificate.from_dict(read_json(release / "certificate.json"))
    assert certificate.private_rounds == 0
    assert certificate.is_real
    text = (release / "certificate.md").read_text()
    assert "## No private round" in text
    assert "none of the rounds was trained" in text
    assert "which start from the model of the first part" not in text
    verification = hush.verify(release)
    assert verification.passed
    assert "certificate: private_rounds 0, whether the run trained none" in verification.unproven
    assert certificate.fingerprints["model"] == folder_digest(release / "model")
    page = (release / "report.html").read_text()
    assert "No private round was trained" in page
    assert "after the private rounds" not in page


def test_a_number_of_rounds_other_than_none_is_not_part_of_a_certificate(
    idle: tuple[Path, dict[str, Any], list[str]],
) -> None:
    stated = read_json(idle[0] / "run" / "release" / "certificate.json")
    for value in (1, -1, 0.0, True, "0"):
        with pytest.raises(InvalidInput, match="private_rounds"):
            Certificate.from_dict(stated | {"private_rounds": value})


def test_a_second_run_keeps_the_results_and_a_dry_run_says_why(idle: tuple[Path, dict[str, Any], list[str]]) -> None:
    folder, _, _ = idle
    config = config_of(folder, secrets=1)
    assert "train" not in run_pipeline(config, output=folder / "run").ran
    train = next(row for row in forecast(config, output=folder / "run") if row.stage == "train")
    assert train.state == "done"
    assert train.size.startswith("no private rounds")
    assert not train.caution  # only before


@pytest.mark.parametrize(("secrets", "asked", "rounds"), [(1, True, 3), (60, "auto", 3), (60, False, 0)])
def test_the_owner_decides_and_rounds_with_a_signal_are_trained(
    tmp_path: Path, secrets: int, asked: bool | str, rounds: int
) -> None:
    record, said = ran(config_of(tmp_path, secrets=secrets, private_part=asked), tmp_path / "run")
    assert record["private_rounds"] == rounds
    assert record["outlook"]["hopeless"] == (secrets == 1)
    assert any("as the config says" in line for line in said) == (asked is False)
    stated = Certificate.from_dict(read_json(tmp_path / "run" / "release" / "certificate.json"))
    assert stated.private_rounds == (None if rounds else 0)
    assert (record["losses"]["private"] is None) == (rounds == 0)

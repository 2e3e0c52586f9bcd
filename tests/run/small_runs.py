"""A run that takes a second once everything is imported: thirty lines of text, a model of a thousand parameters."""

import json
import random
import re
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq

import hush
from hush.audit.folders import AuditedRun
from hush.keys import DataKey
from hush.plan import Plan
from hush.run import run_pipeline
from hush.run.config import Config
from hush.run.pipeline import STAGES
from hush.train.run_folder import RunLog

ROUNDS = 4
SECRETS = [f"QX-{1000 + number}" for number in range(3)]
WORDS = ["the", "weather", "in", "town", "was", "fine", "wet", "cold", "again"]
NO_CANARIES = [stage.name for stage in STAGES if stage.name != "canaries"]
CANARIES = {"ceiling": 0.05, "count": 2, "templates": ["PIN {number}: {secret}"]}


def small_desk(folder: Path, **sections: Any) -> dict[str, Any]:
    """Data and key in a folder, and a config for them with these sections changed."""
    folder.mkdir(parents=True, exist_ok=True)
    if not (folder / "my.key").exists():
        (folder / "data.txt").write_text("\n".join(small_texts()) + "\n")
        DataKey.create(folder / "my.key")
    content: dict[str, Any] = {
        "data": {"source": "data.txt", "key": "my.key"},
        "promises": {"prior": 1e-6, "ceiling": 1e-2},
        "rules": [{"name": "codes", "find": "patterns", "patterns": [r"QX-\d{4}"]}],
        "plan": {"batch_size": 4, "rounds": ROUNDS, "hold_out": 0.2},
        "model": {"small": {"layers": 1, "width": 8, "heads": 1, "length": 32}},
        "training": {"save_every": 2, "evaluate_every": 1, "device": "cpu"},
        "audit": {"attacks": ["mechanism", "extraction"], "trials": 50, "secrets": 1, "prompts": [4]},
        "report": {"frontier": False, "methods": False},
    }
    for name, section in sections.items():
        content[name] = content.get(name, {}) | section if isinstance(section, dict) else section
    return content


def small_texts() -> list[str]:
    """Notes about the weather, a secret at the end of some."""
    rng = random.Random(0)
    texts = [" ".join(rng.choices(WORDS, k=4)) for _ in range(30)]
    for number, example in enumerate(range(0, 30, 6)):
        texts[example] += f" {SECRETS[number % 3]}"
    return texts


def small_config(folder: Path, **sections: Any) -> Config:
    return Config.of(small_desk(folder, **sections), folder=folder)


def ran(folder: Path, **arguments: Any) -> list[str]:
    """The stages that a run in this folder does; arguments of ``run_pipeline``, and sections that are changed."""
    sections = {name: arguments.pop(name) for name in list(arguments) if name not in ("since", "new_release", "watch")}
    return list(run_pipeline(small_config(folder, **sections), output=folder / "run", **arguments).ran)


def plan_fingerprint(folder: Path) -> list[Any]:
    """What makes a plan that plan, without the moment it was made."""
    plan = Plan.load(folder)
    return [plan.noise_multiplier, plan.rounds, plan.batch_size, sorted(plan.certificate.fingerprints.items())]


def check_whole(run: Path) -> None:
    """Every file in a run is whole and can be read, and nothing half written is left."""
    for path in (path for path in run.rglob("*") if path.is_file()):
        assert not re.fullmatch(r"\..*\.(tmp|old)", path.name), path
        match path.suffix:
            case ".json":
                json.loads(path.read_text())
            case ".jsonl":
                assert [json.loads(line) for line in path.read_text().splitlines()]
            case ".parquet":
                pq.read_table(path)
            case ".html":
                assert path.read_text().rstrip().endswith("</html>"), path


def check_complete(run: Path, *, rounds: int = ROUNDS) -> None:
    """A finished run: one training of the plan's rounds, a certificate that holds, a plan that verifies."""
    check_whole(run)
    released = AuditedRun.load(run / "release")  # model, certificate and plan fit together
    assert released.certificate.is_real
    assert hush.verify(run / "release").passed
    (training,) = (run / "owner" / "training").iterdir()
    ledger = json.loads((training / "owner" / "run.json").read_text())
    assert ledger["finished"]
    assert ledger["released"] == [rounds]
    assert [record.round for record in RunLog.read(training / "owner" / "rounds.jsonl")] == list(range(1, rounds + 1))
    scores = [json.loads(line) for line in (run / "release" / "evaluations.jsonl").read_text().splitlines()]
    assert [row["round"] for row in scores] == list(range(rounds + 1))  # once each, however often it was killed
    assert (run / "owner").stat().st_mode & 0o777 == 0o700
    assert (run / "release" / "report.html").is_file()
    assert plan_fingerprint(run / "owner" / "plan") == plan_fingerprint(run / "release" / "plan")

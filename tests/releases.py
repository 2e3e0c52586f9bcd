"""What a run releases, put together without training: a plan, files that stand for a model, and its certificate."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import hush
from hush.certificate import Certificate
from hush.storage import folder_digest

WEIGHTS = bytes(range(256)) * 4
TRAINED_PARAMETERS = 1000


def make_release(folder: Path, plan: hush.Plan, **changes: Any) -> Path:
    """A release with everything that one may hold. changes: fields of its certificate."""
    plan.save(folder / "plan")
    (folder / "model").mkdir()
    (folder / "model" / "model.safetensors").write_bytes(WEIGHTS)
    (folder / "model" / "config.json").write_text('{"layers": 1}')
    (folder / "report.html").write_text("<html></html>")
    (folder / "README.md").write_text("# What is what")
    (folder / "evaluations.jsonl").write_text('{"round": 1, "held-out loss": 2.5}\n')
    return certify(folder, plan, **changes)


def certify(folder: Path, plan: hush.Plan, **changes: Any) -> Path:
    """A certificate for whatever model lies there, both forms of it, as training writes them."""
    planned = plan.run_certificate(TRAINED_PARAMETERS)
    names = {**planned.fingerprints, "model": folder_digest(folder / "model")}
    versions = {**planned.versions, "torch": "2.7.1+cpu"}
    return write_certificate(folder, replace(planned, **{"fingerprints": names, "versions": versions} | changes))


def write_certificate(folder: Path, certificate: Certificate) -> Path:
    (folder / "certificate.json").write_text(json.dumps(certificate.to_dict(), indent=2) + "\n")
    (folder / "certificate.md").write_text(certificate.to_markdown())
    return folder

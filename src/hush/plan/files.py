"""A plan as a folder: JSON for a reader, Parquet for the long columns, digests over all of it.

plan.json            settings, format version, SHA-256 of every other file
examples.parquet     weight and rate of each example
secrets.parquet      id, priors, ceilings and posteriors of each secret
incidence.parquet    the public graph
certificate.json / certificate.md
"""

import hashlib
import json
import shutil
from pathlib import Path
from secrets import token_hex
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa

from hush.errors import InvalidInput
from hush.incidence import Incidence
from hush.storage import read_table, write_table

if TYPE_CHECKING:
    from hush.plan.model import Plan

MAJOR, MINOR = 1, 0  # a newer minor version adds fields; a newer major one changes their meaning
SETTINGS = (
    "noise_multiplier",
    "rounds",
    "batch_size",
    "clip_norm",
    "bound",
    "capacity",
    "weights_gap",
    "noise_scale",
    "created",
)
FILES = ("examples.parquet", "secrets.parquet", "incidence.parquet", "certificate.json", "certificate.md")


def save_plan(plan: "Plan", folder: Path) -> None:
    """Write everything beside the target first, then move it there in one step."""
    if folder.exists() and not (folder / "plan.json").exists() and any(folder.iterdir()):
        raise InvalidInput(f"{folder} is not empty and holds no plan; name a new folder")
    folder.parent.mkdir(parents=True, exist_ok=True)
    work = folder.with_name(f".{folder.name}.{token_hex(8)}.tmp")
    work.mkdir()
    try:
        _write(plan, work)
        old = folder.with_name(f".{folder.name}.{token_hex(8)}.old")
        if folder.exists():
            folder.replace(old)
        work.replace(folder)
        shutil.rmtree(old, ignore_errors=True)
    finally:
        shutil.rmtree(work, ignore_errors=True)


def _write(plan: "Plan", folder: Path) -> None:
    write_table(
        pa.table({"weight": plan.weights, "rate": plan.rates}), folder / "examples.parquet", kind="plan examples"
    )
    points = {"prior": plan.prior, "ceiling": plan.ceiling, "posterior": plan.posterior}
    columns = {
        name: pa.FixedSizeListArray.from_arrays(pa.array(array.ravel()), array.shape[1])
        for name, array in points.items()
    }
    write_table(pa.table({"id": list(plan.secret_ids), **columns}), folder / "secrets.parquet", kind="plan secrets")
    plan.incidence.to_parquet(folder / "incidence.parquet")
    (folder / "certificate.json").write_text(json.dumps(plan.certificate.to_dict(), indent=2) + "\n")
    (folder / "certificate.md").write_text(plan.certificate.to_markdown())
    record = {
        "format": f"{MAJOR}.{MINOR}",
        **{name: getattr(plan, name) for name in SETTINGS},
        "binding": plan.binding.tolist(),
        "digests": {name: file_digest(folder / name) for name in FILES},
    }
    record["digest"] = record_digest(record)
    (folder / "plan.json").write_text(json.dumps(record, indent=2) + "\n")


def load_plan(folder: Path) -> dict[str, Any]:
    """The fields of a Plan. Guarantee: every file has the digest that was written with the plan."""
    record = read_record(folder)
    for name, digest in record["digests"].items():
        if file_digest(folder / name) != digest:
            raise InvalidInput(f"{folder / name} was changed after the plan was written; make the plan again")
    return read_fields(folder, record)


def read_record(folder: Path) -> dict[str, Any]:
    """plan.json, with its version and its own digest checked."""
    path = folder / "plan.json"
    try:
        record = json.loads(path.read_text())
        major, minor = (int(part) for part in record["format"].split("."))
    except FileNotFoundError as error:
        raise InvalidInput(f"{folder} holds no plan.json; pass a folder that Plan.save wrote") from error
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise InvalidInput(f"{path} is not a plan's JSON; pass a folder that Plan.save wrote") from error
    if major != MAJOR:
        raise InvalidInput(
            f"{path} has format {major}.{minor}, this hush reads {MAJOR}.x; load it with the hush that wrote it, "
            "or make the plan again"
        )
    missing = [name for name in (*SETTINGS, "binding", "digests", "digest") if name not in record]
    if missing:
        raise InvalidInput(f"{path} lacks {missing}; make the plan again")
    if record["digest"] != record_digest(record):
        raise InvalidInput(f"{path} was changed after it was written; make the plan again")
    absent = [name for name in FILES if name not in record["digests"] or not (folder / name).is_file()]
    if absent:
        raise InvalidInput(f"{folder} lacks {absent}; make the plan again")
    return record


def read_fields(folder: Path, record: dict[str, Any]) -> dict[str, Any]:
    """The fields of a Plan from a record and the tables beside it."""
    examples, _ = read_table(folder / "examples.parquet", kind="plan examples", columns=("weight", "rate"))
    secrets, _ = read_table(
        folder / "secrets.parquet", kind="plan secrets", columns=("id", "prior", "ceiling", "posterior")
    )
    count = secrets.num_rows
    points = {
        name: _flat(secrets.column(name)).reshape(count, -1) if count else np.empty((0, 1))
        for name in ("prior", "ceiling", "posterior")
    }
    return {
        "incidence": Incidence.from_parquet(folder / "incidence.parquet"),
        "secret_ids": tuple(secrets.column("id").to_pylist()),
        **points,
        "binding": np.array(record["binding"], dtype=np.int64),
        "weights": examples.column("weight").to_numpy().copy(),
        **{name: record[name] for name in SETTINGS},
    }


def stored_rates(folder: Path) -> np.ndarray:
    """The rates as they stand in the plan's table."""
    table, _ = read_table(folder / "examples.parquet", kind="plan examples", columns=("rate",))
    return table.column("rate").to_numpy()


def _flat(column: pa.ChunkedArray) -> np.ndarray:
    return np.concatenate([chunk.flatten().to_numpy(zero_copy_only=False) for chunk in column.chunks])


def file_digest(path: Path) -> str:
    """SHA-256 of a file, in hex."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def record_digest(record: dict[str, Any]) -> str:
    """SHA-256 of plan.json's content without its own digest, keys sorted."""
    content = {name: value for name, value in record.items() if name != "digest"}
    return hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()

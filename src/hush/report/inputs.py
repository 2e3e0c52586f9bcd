"""What a report is made from, read from files: a plan or a run, a frontier, an audit, scores of a training.

Only what was released, or what its owner names, is read: never a run's log, whose losses and batch sizes are secret.
"""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, final

from hush.certificate import Certificate
from hush.errors import InvalidInput
from hush.plan import Plan
from hush.plan.files import minor_version, read_json, read_record
from hush.rounding import is_number
from hush.signature import is_release
from hush.verification.certificates import plan_differences, refuse_unknown_words, run_differences
from hush.verification.release import model_problem
from hush.weights import Frontier

__all__ = [
    "Source",
    "checked_training",
    "frontier_rows",
    "read_audit",
    "read_evaluations",
    "read_frontier",
    "read_source",
]

Rows = tuple[Mapping[str, Any], ...]
EVALUATIONS = "evaluations.jsonl"  # of a release: a line for each scored round, on data without secrets
PUBLIC = ("release", "share")  # what hush train, and hush run, call the side that may leave the owner's hands
LONGEST = 200_000  # rows of a training


@final
@dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class Source:
    """A plan and what lies beside it. folder: what to verify, as a reader names it who has the same folder."""

    plan: Plan
    certificate: Certificate
    folder: str
    training: Rows = ()


def read_source(path: str | Path, *, plan: str | Path | None = None) -> Source:
    """The folder of a plan, or of a run of ``hush train`` or ``hush run`` (or the side that it released).

    plan: for runs that certify nothing, beside whose model no plan is put.
    """
    root = Path(path)
    if not root.is_dir():
        raise InvalidInput(f"{root} is not a folder; pass one that hush plan or hush train wrote")
    if not is_release(root) and (root / "plan.json").is_file():
        found = Plan.load(root)
        return Source(plan=found, certificate=_planned(found, root), folder=root.resolve().name)
    release = next((root / name for name in PUBLIC if (root / name).is_dir()), root)
    if not (release / "certificate.json").is_file():
        raise InvalidInput(
            f"{root} holds neither a plan nor a finished run; pass a folder that hush plan wrote, or hush train once "
            "it has ended"
        )
    where = release / "plan" if plan is None else Path(plan)
    if not (where / "plan.json").is_file():
        raise InvalidInput(f"{where} is not there: a run that certifies nothing releases no plan; pass --plan PLAN")
    found, certificate = Plan.load(where), _certificate(release / "certificate.json")
    _check_fits(release, found, certificate, where)
    shown = release if where == release / "plan" else where
    inside = shown.resolve().is_relative_to(root.resolve())
    below = shown.resolve().relative_to(root.resolve()) if inside else Path()
    folder = (Path(root.resolve().name) / below).as_posix() if inside else shown.resolve().name
    return Source(plan=found, certificate=certificate, folder=folder, training=read_evaluations(release))


def _planned(plan: Plan, folder: Path) -> Certificate:
    """The certificate of a plan as it lies in its folder; refused if it contradicts the plan."""
    certificate = _certificate(folder / "certificate.json")
    refuse_unknown_words(minor_version(read_record(folder)))
    different = plan_differences(plan, certificate)
    if different:
        raise InvalidInput(
            f"{folder}: the certificate contradicts the plan in {', '.join(different)}; make the plan again"
        )
    return certificate


def _check_fits(release: Path, plan: Plan, certificate: Certificate, where: Path) -> None:
    """Refuse to show a certificate that contradicts its plan, or a model that is not the one it names."""
    inside = where == release / "plan"
    different = run_differences(_planned(plan, where), certificate, same_place=inside)
    if different:
        raise InvalidInput(
            f"{where} is not the plan that the run's certificate is about: they differ in {', '.join(different)}; pass "
            "that plan, or restore what was released"
        )
    if (release / "model").exists():
        problem = model_problem(release / "model", certificate.fingerprints.get("model"))
        if problem is not None:
            raise InvalidInput(f"{release / 'model'} is not the model of its certificate: {problem}")


def read_frontier(path: str | Path) -> Rows:
    """What ``hush frontier --output FILE.json`` wrote."""
    return frontier_rows(_json(Path(path), "what hush frontier --output FILE.json wrote"))


def frontier_rows(given: Frontier | Sequence[Frontier] | Mapping[str, Any]) -> Rows:
    """The rows of frontiers, or of the record that the command writes, as plain numbers."""
    if isinstance(given, Mapping):
        rows = given.get("rows")
    else:
        frontiers = [given] if isinstance(given, Frontier) else given
        rows = [
            {"capacity": one.capacity, "bound": one.bound, **row} for one in frontiers for row in one.records()
        ]  # fmt: skip
    if not isinstance(rows, list) or not rows:
        raise InvalidInput("the frontier has no rows; pass what hush frontier --output FILE.json wrote")
    for place, row in enumerate(rows):
        if not (
            isinstance(row, Mapping)
            and all(isinstance(row.get(name), str) for name in ("capacity", "bound"))
            and all(is_number(row.get(name)) for name in ("noise_multiplier", "kept_weight"))
            and 0 <= row["kept_weight"] <= 1
        ):
            raise InvalidInput(
                f"row {place} of the frontier lacks capacity, bound, noise_multiplier or kept_weight; pass what "
                "hush frontier --output FILE.json wrote"
            )
    return tuple(rows)


def read_audit(folder: str | Path) -> Mapping[str, Any]:
    """The record of an audit: a folder with audit.json, or that file."""
    path = Path(folder)
    path = path / "audit.json" if path.is_dir() else path
    record = _json(path, "the folder that hush audit wrote")
    if not isinstance(record, Mapping):
        raise InvalidInput(f"{path} is not the record of an audit; pass the folder that hush audit wrote")
    return record


def read_evaluations(release: Path) -> Rows:
    """Scores that were released with a model; none if there are none."""
    path = release / EVALUATIONS
    if not path.is_file():
        return ()
    try:
        rows = [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines() if line.strip()]
    except (ValueError, RecursionError):
        raise InvalidInput(f"{path} is not lines of JSON; restore it") from None
    return checked_training(rows)


def checked_training(rows: Sequence[Mapping[str, Any]]) -> Rows:
    """Rows with a whole number as round, and of their other fields the numbers; run, if given, names the line."""
    checked: list[Mapping[str, Any]] = []
    for place, row in enumerate(rows):
        if not isinstance(row, Mapping) or type(row.get("round")) is not int:
            raise InvalidInput(f"row {place} of the training has no whole number as round; pass round and its scores")
        name = {"run": str(row["run"])} if "run" in row else {}
        scores = {key: value for key, value in row.items() if key != "round" and is_number(value)}
        checked.append({"round": row["round"], **name, **scores})
    if len(checked) > LONGEST:
        raise InvalidInput(f"the training has {len(checked)} rows; thin them to at most {LONGEST}")
    return tuple(checked)


def _certificate(path: Path) -> Certificate:
    return Certificate.from_dict(_json(path, "a folder as hush wrote it"))


def _json(path: Path, expected: str) -> Any:
    try:
        return read_json(path)
    except InvalidInput:
        raise InvalidInput(f"{path} is not JSON that hush wrote; pass {expected}") from None

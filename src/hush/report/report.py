"""The report: one HTML file about a plan, its training and its audit, to open anywhere without a network.

What a report is made from, read from files: a plan or a run, a frontier, an audit, scores of a training.

Only what was released, or what its owner names, is read: never a run's log, whose losses and batch sizes are secret.
"""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, final

import numpy as np

from hush.certificate import Certificate
from hush.errors import InvalidInput
from hush.numbers import is_number
from hush.plan import Plan
from hush.plan.files import RELEASES, is_release, minor_version, read_record
from hush.plan.verify import model_problem, plan_differences, refuse_unknown_words, run_differences
from hush.report import sections as parts
from hush.report.attacks import AuditResult
from hush.report.numbers import MethodNoise, SecretNumbers, packed_rows, shown_curves
from hush.report.page import Section, page
from hush.report.plots import Look
from hush.report.sections import headline
from hush.storage import read_json, whole_file
from hush.weights import Frontier

if TYPE_CHECKING:
    from hush.scan import Scan

__all__ = [
    "TITLE",
    "Report",
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
    release = next((root / name for name in RELEASES if (root / name).is_dir()), root)
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


TITLE = "Protection of secrets in training"


@final
@dataclass(frozen=True, slots=True, kw_only=True, eq=False, repr=False)
class Report:
    """A self-contained HTML page; what is not given is left out, and the page says how to get it.

    certificate: that of a run, if there is one; the plan's otherwise. frontier: one or several, or the record that
    ``hush frontier --output`` writes. noise: from ``noise_by_method``, or others to compare. scan: what the plan was
    made from, but for canaries that were planted after it. audit: an audit's record (audit.json). training: rows with
    round, optionally run (the name of a line), and scores **on data without secrets**; looks: colour, dash and symbol
    of runs, by name. sections: parts of your own, shown first. folder: how a reader names what is verified in
    commands, a plan or a release. show_text: also show the texts of secrets, which the scan must hold.

    Guarantee: without show_text no text of a secret is in the file, only ids, which are public. The same input gives
    the same bytes. With texts or an audit the page is its owner's: readable by nobody else, and only there it says how
    the scan came to its pairs (copies, rows passed over).
    """

    plan: Plan
    certificate: Certificate | None = None
    frontier: Frontier | Sequence[Frontier] | Mapping[str, Any] | None = None
    noise: Sequence[MethodNoise] = ()
    scan: "Scan | None" = None
    audit: Mapping[str, Any] | None = None
    training: Sequence[Mapping[str, Any]] = ()
    looks: Mapping[str, Look] = field(default_factory=dict)
    sections: Sequence[Section] = ()
    title: str = TITLE
    folder: str = "PLAN"
    show_text: bool = False

    @property
    def is_owners(self) -> bool:
        """Whether the page must not leave its owner's hands."""
        return self.show_text or self.audit is not None

    def write(self, path: str | Path) -> None:
        """Write the page; it appears whole or not at all."""
        content = self.page()
        with whole_file(path, owner_only=self.is_owners) as file:
            file.write(content.encode())

    def page(self) -> str:
        """The page."""
        plan, scan = self.plan, self.scan
        stated = plan.certificate if self.certificate is None else self.certificate
        if scan is not None and not _is_of(scan, plan):
            raise InvalidInput(
                "the scan is about another graph than the plan; pass the scan that the plan was made from"
            )
        texts = _texts(scan, plan) if self.show_text else None
        numbers = SecretNumbers.of(plan)
        rows = packed_rows(plan.secret_ids, numbers, texts) if plan.secret_ids else None
        found = None if self.audit is None else AuditResult.of(_of_the_same(self.audit, plan, stated))
        scores = checked_training(self.training)
        made: list[Section | None] = [
            *self.sections,
            None if self.frontier is None else parts.frontier_section(frontier_rows(self.frontier), plan),
            parts.noise_section(self.noise) if self.noise else None,
            parts.curves_section(shown_curves(plan, numbers)) if rows else None,
            parts.counts_section(numbers) if rows else None,
            parts.secrets_section(plan, numbers, rows, has_texts=texts is not None) if rows else None,
            parts.training_section(scores, self.looks) if scores else None,
            None if found is None else parts.audit_section(found),
            None if scan is None else parts.scan_section(self._summary(scan), planted=_planted(scan, plan)),
            parts.basis_section(stated),
            parts.provenance_section(plan, stated, self.folder),
        ]
        missing = self._missing(has_scores=bool(scores))
        made.append(parts.missing_section(missing) if missing else None)
        top = headline(plan, stated, numbers, self.noise, found, has_texts=texts is not None)
        return page(self.title, top, [section for section in made if section is not None], rows)

    def _summary(self, scan: "Scan") -> dict[str, Any]:
        return (scan if self.is_owners else replace(scan, owner=None)).summary()

    def _missing(self, *, has_scores: bool) -> list[tuple[str, str]]:
        no_noise = not self.noise and bool(self.plan.secret_ids)
        swept = "hush frontier … --output frontier.json, then hush report … --frontier"
        lines = [
            (self.frontier is None, "the frontier", swept),
            (no_noise, "noise by method", "hush report … --compare"),
            (
                not has_scores,
                "training curves",
                "hush plan … --hold-out 0.05, then hush train, which writes evaluations.jsonl",
            ),
            (self.audit is None, "the audit", "hush audit RUN --output AUDIT, then hush report … --audit AUDIT"),
            (self.scan is None, "what was found where", "hush report … --scan SCAN"),
        ]
        return [(what, how) for left_out, what, how in lines if left_out]


def _is_of(scan: "Scan", plan: Plan) -> bool:
    """Whether the plan was made from this scan: the same graph, or with canaries after its examples and secrets."""
    seen, planned = scan.incidence, plan.incidence
    examples, secrets = seen.num_examples, seen.num_secrets
    if planned.num_examples < examples or planned.num_secrets < secrets:
        return False
    first_S = planned.select(secrets=np.arange(secrets))  # all that holds one of them is the scan's
    added_S = planned.select(secrets=np.arange(secrets, planned.num_secrets))
    return (
        first_S.num_entries == seen.num_entries
        and first_S.select(examples=np.arange(examples)) == seen
        and bool(np.all(added_S.example_of_entry >= examples))
    )


def _of_the_same(audit: Mapping[str, Any], plan: Plan, certificate: Certificate) -> Mapping[str, Any]:
    """The audit, if what it says of its model and plan is true of these: of another model it would say nothing here."""
    known = {
        "model": certificate.fingerprints.get("model"),
        "noise_multiplier": plan.training_noise_multiplier,
        "rounds": plan.rounds,
    }
    for name, value in known.items():
        if None not in (value, audit.get(name)) and audit[name] != value:
            raise InvalidInput(
                f"the audit is about another run: its {name} is not that of this one, {value!r}; pass the audit of "
                "this one"
            )
    return audit


def _planted(scan: "Scan", plan: Plan) -> int:
    return len(plan.secret_ids) - scan.incidence.num_secrets


def _texts(scan: "Scan | None", plan: Plan) -> list[str]:
    """The texts of the plan's secrets, in its order; none of canaries, which the scan does not know."""
    if scan is None or scan.secrets.texts is None:
        raise InvalidInput("texts of secrets are on the owner's side of a scan; pass the whole folder of the scan")
    if plan.secret_ids[: len(scan.secrets)] != tuple(scan.secrets.ids):
        raise InvalidInput("the scan lacks some secrets of the plan; pass the scan that the plan was made from")
    return [*scan.secrets.texts, *[""] * _planted(scan, plan)]

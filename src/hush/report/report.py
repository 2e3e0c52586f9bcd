"""The report: one HTML file about a plan, its training and its audit, to open anywhere without a network.

:class:`Report` makes the page from objects in memory; the readers below take the same from files: a plan or a run, a
frontier, an audit, the scores of a training. They read only what was released or what the owner names, never a run's
log, whose losses and batch sizes are secret.
"""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, final

import numpy as np

from hush.certificate import Certificate
from hush.errors import InvalidInput, Setting
from hush.numbers import is_number
from hush.plan import Plan
from hush.plan.files import RELEASES, is_release, minor_version, read_record
from hush.plan.signal import Outlook
from hush.plan.verify import model_problem, plan_differences, refuse_unknown_words, run_differences
from hush.report import sections as parts
from hush.report.attacks import AuditResult
from hush.report.hidden import HiddenExample, hidden_section
from hush.report.learnt import learnt_section
from hush.report.numbers import MethodNoise, SecretNumbers, closest_curves, packed_rows
from hush.report.page import Section, page
from hush.report.plots import Look
from hush.report.sections import headline
from hush.report.settings import ReportSettings
from hush.storage import read_json, whole_file
from hush.train.scores import LOSS_BEFORE, StageLosses
from hush.weights import Frontier

if TYPE_CHECKING:
    from hush.scan import Scan

__all__ = [
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
EVALUATIONS = "evaluations.jsonl"  # of a release: a line for each evaluated round, on data without secrets
MAX_TRAINING_ROWS = 200_000


@final
@dataclass(frozen=True, slots=True, kw_only=True, eq=False, repr=False)
class Report:
    """A self-contained HTML page. What is not given is left out, and the page says how to get it.

    certificate: that of a run, if there is one; the plan's otherwise. frontier: one or several, or the record that
    ``hush frontier`` writes. noise: from ``noise_by_method``, or other methods to compare. scan: the one that the plan
    was made from, apart from canaries planted after it. audit: an audit's record (audit.json). training: rows with
    round, optionally run (the name of a line), and scores **on data without secrets**; looks: colour, dash and symbol
    of runs, by name. sections: your own sections, shown first. folder: the plan or release that the page tells readers
    to verify. show_text: also show the texts of secrets, which the scan must contain. hidden: a few examples with boxes
    over their secrets (``hidden_examples``). outlook: what can be learnt, with a prediction for a model; that of the
    plan and the certificate's number of parameters if it is not given.

    Guarantee: without show_text the file contains no text of a secret, only ids, which are public. The same input gives
    the same bytes. With texts, boxes or an audit the file is readable by its owner only, and only then does it say how
    the scan found its pairs (copies, skipped rows), and how much of the text is left without its secrets, which tells
    their length.
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
    title: str = ReportSettings().title
    folder: str = "PLAN"
    show_text: bool = False
    hidden: Sequence[HiddenExample] = ()
    outlook: Outlook | None = None

    @property
    def is_owners(self) -> bool:
        """Whether the page is for the owner only."""
        return self.show_text or self.audit is not None or bool(self.hidden)

    def write(self, path: str | Path) -> None:
        """Write the page; the file appears complete or not at all."""
        content = self.page()
        with whole_file(path, owner_only=self.is_owners) as file:
            file.write(content.encode())

    def page(self) -> str:
        """The page as HTML."""
        plan, scan = self.plan, self.scan
        certificate = plan.certificate if self.certificate is None else self.certificate
        if scan is not None and not _is_plan_of_scan(scan, plan):
            raise InvalidInput(
                "the scan has another graph than the plan; pass the scan that the plan was made from as ",
                Setting("scan"),
            )
        texts = _texts(scan, plan) if self.show_text else None
        numbers = SecretNumbers.of(plan, certificate)
        rows = packed_rows(plan.secret_ids, numbers, texts) if plan.secret_ids else None
        audit = None if self.audit is None else AuditResult.of(_checked_audit(self.audit, plan, certificate))
        scores = _without(LOSS_BEFORE, checked_training(self.training))  # one point is no line
        outlook = self.outlook or Outlook.of_plan(plan, parameters=certificate.trained_parameters)
        outlook = outlook if self.is_owners else _without_text_shares(outlook)
        sections: list[Section | None] = [
            *self.sections,
            learnt_section(outlook),
            None if self.frontier is None else parts.frontier_section(frontier_rows(self.frontier), plan),
            parts.noise_section(self.noise) if self.noise else None,
            parts.curves_section(closest_curves(plan, numbers)) if rows else None,
            parts.counts_section(numbers) if rows else None,
            parts.secrets_section(plan, numbers, rows, has_texts=texts is not None) if rows else None,
            parts.training_section(scores, self.looks) if scores else None,
            None if audit is None else parts.audit_section(audit),
            None if scan is None else parts.scan_section(self._summary(scan), planted=_num_planted(scan, plan)),
            hidden_section(self.hidden, show_text=self.show_text) if self.hidden else None,
            parts.basis_section(certificate),
            parts.provenance_section(plan, certificate, self.folder),
        ]
        missing = self._missing(has_scores=bool(scores))
        sections.append(parts.missing_section(missing) if missing else None)
        losses = StageLosses.of(self.training)
        top = headline(plan, certificate, numbers, self.noise, audit, has_texts=texts is not None, losses=losses)
        return page(self.title, top, [section for section in sections if section is not None], rows)

    def _summary(self, scan: "Scan") -> dict[str, Any]:
        return (scan if self.is_owners else replace(scan, owner=None)).summary()

    def _missing(self, *, has_scores: bool) -> list[tuple[str, str]]:
        """The titles of sections that the page lacks, and how to get them; commands are named without options."""
        has_noise = bool(self.noise) or not self.plan.secret_ids
        parts_of_page = [
            (
                self.frontier is not None,
                "The frontier",
                "run hush frontier, and pass the JSON file that it writes to hush report as the frontier",
            ),
            (has_noise, "Noise by method", "let hush report compare the methods"),
            (
                has_scores,
                "Training",
                "let hush plan hold out examples without secrets; hush train then writes their scores to "
                f"{EVALUATIONS}",
            ),
            (
                self.audit is not None,
                "Audit",
                "run hush audit, and pass the folder that it writes to hush report as the audit",
            ),
            (
                self.scan is not None,
                "What was found",
                "pass the folder that hush scan wrote to hush report as the scan",
            ),
        ]
        return [(what, how) for present, what, how in parts_of_page if not present]


def _is_plan_of_scan(scan: "Scan", plan: Plan) -> bool:
    """Whether the plan was made from this scan: the same graph, or with canaries after its examples and secrets."""
    scanned, planned = scan.incidence, plan.incidence
    examples, secrets = scanned.num_examples, scanned.num_secrets
    if planned.num_examples < examples or planned.num_secrets < secrets:
        return False
    of_scan = planned.select(secrets=np.arange(secrets))
    added = planned.select(secrets=np.arange(secrets, planned.num_secrets))
    return (
        of_scan.num_entries == scanned.num_entries  # no canary's example contains a secret of the scan
        and of_scan.select(examples=np.arange(examples)) == scanned
        and bool(np.all(added.example_of_entry >= examples))
    )


def _checked_audit(audit: Mapping[str, Any], plan: Plan, certificate: Certificate) -> Mapping[str, Any]:
    """The audit, refused if it is about another model or plan: its verdict would not apply to this one."""
    expected = {
        "model": certificate.fingerprints.get("model"),
        "noise_multiplier": plan.training_noise_multiplier,
        "rounds": plan.rounds,
    }
    for name, value in expected.items():
        if None not in (value, audit.get(name)) and audit[name] != value:
            raise InvalidInput(
                f"the audit is about another run: its {name} differs from {value!r}, that of this run; pass the audit "
                "of this run as ",
                Setting("audit"),
            )
    return audit


def _without(score: str, rows: Rows) -> Rows:
    return tuple({name: value for name, value in row.items() if name != score} for row in rows)


def _num_planted(scan: "Scan", plan: Plan) -> int:
    return len(plan.secret_ids) - scan.incidence.num_secrets


def _without_text_shares(outlook: Outlook) -> Outlook:
    """What others may read: shares of the characters tell how long the secrets are."""
    return replace(outlook, remaining=tuple(replace(row, text_share=None) for row in outlook.remaining))


def _texts(scan: "Scan | None", plan: Plan) -> list[str]:
    """The texts of the plan's secrets, in its order; empty for canaries, which the scan does not know."""
    if scan is None or scan.secrets.texts is None:
        raise InvalidInput(
            "texts of secrets are on the owner's side of a scan; pass the scan with its whole folder as ",
            Setting("scan"),
        )
    if plan.secret_ids[: len(scan.secrets)] != tuple(scan.secrets.ids):
        raise InvalidInput(
            "the scan lacks some secrets of the plan; pass the scan that the plan was made from as ", Setting("scan")
        )
    return [*scan.secrets.texts, *[""] * _num_planted(scan, plan)]


# What a report is made from, read from files.


@final
@dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class Source:
    """A plan and what lies beside it. folder: what a reader with the same files passes to ``hush verify``."""

    plan: Plan
    certificate: Certificate
    folder: str
    training: Rows = ()


def read_source(path: str | Path, *, plan: str | Path | None = None) -> Source:
    """Read the folder of a plan, of a run of ``hush train`` or ``hush run``, or of the side that a run released.

    plan: the plan's folder, needed only for runs that certify nothing and therefore release no plan.
    """
    root = Path(path)
    if not root.is_dir():
        raise InvalidInput(f"{root} is not a folder; pass a folder that hush plan or hush train wrote")
    if not is_release(root) and (root / "plan.json").is_file():
        loaded = Plan.load(root)
        return Source(plan=loaded, certificate=_plan_certificate(loaded, root), folder=root.resolve().name)
    release = next((root / name for name in RELEASES if (root / name).is_dir()), root)
    if not (release / "certificate.json").is_file():
        raise InvalidInput(
            f"{root} holds neither a plan nor a finished run; pass a folder that hush plan wrote, or that of a "
            "finished hush train"
        )
    plan_folder = release / "plan" if plan is None else Path(plan)
    if not (plan_folder / "plan.json").is_file():
        raise InvalidInput(
            f"{plan_folder} is not a plan, and a run that certifies nothing releases none; pass the folder of its plan "
            "as ",
            Setting("plan"),
        )
    loaded, certificate = Plan.load(plan_folder), _certificate(release / "certificate.json")
    _check_release(release, loaded, certificate, plan_folder)
    to_verify = release if plan_folder == release / "plan" else plan_folder
    inside = to_verify.resolve().is_relative_to(root.resolve())
    below = to_verify.resolve().relative_to(root.resolve()) if inside else Path()
    folder = (Path(root.resolve().name) / below).as_posix() if inside else to_verify.resolve().name
    return Source(plan=loaded, certificate=certificate, folder=folder, training=read_evaluations(release))


def _plan_certificate(plan: Plan, folder: Path) -> Certificate:
    """The certificate in the folder of a plan; refused if it contradicts the plan."""
    certificate = _certificate(folder / "certificate.json")
    refuse_unknown_words(minor_version(read_record(folder)))
    different = plan_differences(plan, certificate)
    if different:
        raise InvalidInput(
            f"{folder}: the certificate contradicts the plan in {', '.join(different)}; make the plan again"
        )
    return certificate


def _check_release(release: Path, plan: Plan, certificate: Certificate, plan_folder: Path) -> None:
    """Refuse a certificate that contradicts its plan, and a model that the certificate does not name."""
    inside = plan_folder == release / "plan"
    different = run_differences(plan, _plan_certificate(plan, plan_folder), certificate, same_place=inside)
    if different:
        raise InvalidInput(
            f"{plan_folder} is not the plan that the run's certificate is about: they differ in "
            f"{', '.join(different)}; pass that plan, or restore what was released"
        )
    if (release / "model").exists():
        problem = model_problem(release / "model", certificate.fingerprints.get("model"))
        if problem is not None:
            raise InvalidInput(f"{release / 'model'} is not the model of its certificate: {problem}")


def read_frontier(path: str | Path) -> Rows:
    """Read the JSON file that ``hush frontier`` wrote."""
    return frontier_rows(_json(Path(path), "the JSON file that hush frontier wrote"))


def frontier_rows(given: Frontier | Sequence[Frontier] | Mapping[str, Any]) -> Rows:
    """The rows of frontiers, or of the record that ``hush frontier`` writes, as plain data."""
    if isinstance(given, Mapping):
        rows = given.get("rows")
    else:
        frontiers = [given] if isinstance(given, Frontier) else given
        rows = [
            {"capacity": frontier.capacity, "bound": frontier.bound, **row}
            for frontier in frontiers
            for row in frontier.records()
        ]
    if not isinstance(rows, list) or not rows:
        raise InvalidInput("the frontier has no rows; pass the JSON file that hush frontier wrote")
    for number, row in enumerate(rows):
        if not (
            isinstance(row, Mapping)
            and all(isinstance(row.get(name), str) for name in ("capacity", "bound"))
            and all(is_number(row.get(name)) for name in ("noise_multiplier", "kept_weight"))
            and 0 <= row["kept_weight"] <= 1
        ):
            raise InvalidInput(
                f"row {number} of the frontier lacks capacity, bound, noise_multiplier or kept_weight; pass the JSON "
                "file that hush frontier wrote"
            )
    return tuple(rows)


def read_audit(folder: str | Path) -> Mapping[str, Any]:
    """Read the record of an audit from its folder, or from its file audit.json."""
    path = Path(folder)
    path = path / "audit.json" if path.is_dir() else path
    record = _json(path, "the folder that hush audit wrote")
    if not isinstance(record, Mapping):
        raise InvalidInput(f"{path} is not the record of an audit; pass the folder that hush audit wrote")
    return record


def read_evaluations(release: Path) -> Rows:
    """Read the scores that were released with a model; empty if there are none."""
    path = release / EVALUATIONS
    if not path.is_file():
        return ()
    try:
        rows = [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines() if line.strip()]
    except (ValueError, RecursionError):
        raise InvalidInput(f"{path} does not consist of JSON lines; restore it") from None
    return checked_training(rows)


def checked_training(rows: Sequence[Mapping[str, Any]]) -> Rows:
    """The round, the run (the name of the line, if given) and the numeric fields of each row; the rest is dropped."""
    checked: list[Mapping[str, Any]] = []
    for number, row in enumerate(rows):
        if not isinstance(row, Mapping) or type(row.get("round")) is not int:
            raise InvalidInput(
                f"row {number} of the training has no whole number as round; pass a round and its scores"
            )
        name = {"run": str(row["run"])} if "run" in row else {}
        scores = {key: value for key, value in row.items() if key != "round" and is_number(value)}
        checked.append({"round": row["round"], **name, **scores})
    if len(checked) > MAX_TRAINING_ROWS:
        raise InvalidInput(f"the training has {len(checked)} rows; pass at most {MAX_TRAINING_ROWS} of them")
    return tuple(checked)


def _certificate(path: Path) -> Certificate:
    return Certificate.from_dict(_json(path, "a folder that hush wrote, unchanged"))


def _json(path: Path, expected: str) -> Any:
    try:
        return read_json(path)
    except InvalidInput:
        raise InvalidInput(f"{path} is not JSON that hush wrote; pass {expected}") from None

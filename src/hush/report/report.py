"""Write the report: one HTML file about a plan, its training and its audit, to open anywhere without a network."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from hush.certificate import Certificate
from hush.errors import InvalidInput
from hush.plan import Plan
from hush.report import sections as parts
from hush.report.attacks import AuditResult
from hush.report.headline import headline
from hush.report.inputs import checked_training, frontier_rows
from hush.report.methods import MethodNoise
from hush.report.numbers import SecretNumbers, shown_curves
from hush.report.packing import packed_rows
from hush.report.page import Section, page
from hush.storage import whole_file
from hush.weights import Frontier

if TYPE_CHECKING:
    from hush.scan import Scan

__all__ = ["TITLE", "report_page", "write_report"]

TITLE = "Protection of secrets in training"


def write_report(
    path: str | Path,
    *,
    plan: Plan,
    certificate: Certificate | None = None,
    frontier: Frontier | Sequence[Frontier] | Mapping[str, Any] | None = None,
    noise: Sequence[MethodNoise] = (),
    scan: "Scan | None" = None,
    audit: Mapping[str, Any] | None = None,
    training: Sequence[Mapping[str, Any]] = (),
    title: str = TITLE,
    folder: str = "PLAN",
    show_text: bool = False,
) -> None:
    """Write a self-contained HTML page; what is not given is left out, and the page says how to get it.

    certificate: that of a run, if there is one; the plan's otherwise. frontier: one or several, or the record that
    ``hush frontier --output`` writes. noise: from ``noise_by_method``, or others to compare. audit: an audit's record
    (audit.json). training: rows with round, optionally run (the name of a line), and scores **on data without
    secrets**. folder: how a reader names the plan's folder in commands. show_text: also show the texts of secrets,
    which the scan must hold.

    Guarantee: without show_text no text of a secret is in the file, only ids, which are public. The same input gives
    the same bytes. With texts or an audit the file is readable by its owner alone.
    """
    content = report_page(
        plan=plan, certificate=certificate, frontier=frontier, noise=noise, scan=scan, audit=audit, training=training,
        title=title, folder=folder, show_text=show_text,
    )  # fmt: skip
    with whole_file(path, owner_only=show_text or audit is not None) as file:
        file.write(content.encode())


def report_page(
    *,
    plan: Plan,
    certificate: Certificate | None = None,
    frontier: Frontier | Sequence[Frontier] | Mapping[str, Any] | None = None,
    noise: Sequence[MethodNoise] = (),
    scan: "Scan | None" = None,
    audit: Mapping[str, Any] | None = None,
    training: Sequence[Mapping[str, Any]] = (),
    title: str = TITLE,
    folder: str = "PLAN",
    show_text: bool = False,
) -> str:
    """The page that ``write_report`` writes."""
    stated = plan.certificate if certificate is None else certificate
    texts = _texts(scan, plan) if show_text else None
    if scan is not None and scan.incidence.fingerprint != plan.incidence.fingerprint:
        raise InvalidInput("the scan is about another graph than the plan; pass the scan that the plan was made from")
    numbers = SecretNumbers.of(plan)
    rows = packed_rows(plan.secret_ids, numbers, texts) if plan.secret_ids else None
    found = None if audit is None else AuditResult.of(audit)
    scores = checked_training(training)
    made: list[Section | None] = [
        None if frontier is None else parts.frontier_section(frontier_rows(frontier), plan),
        parts.noise_section(noise) if noise else None,
        parts.curves_section(shown_curves(plan, numbers)) if rows else None,
        parts.counts_section(numbers) if rows else None,
        parts.secrets_section(plan, numbers, rows, has_texts=texts is not None) if rows else None,
        parts.training_section(scores) if scores else None,
        None if found is None else parts.audit_section(found),
        None if scan is None else parts.scan_section(scan.summary()),
        parts.basis_section(stated),
        parts.provenance_section(plan, stated, folder),
    ]
    missing = _missing(frontier is None, not noise and bool(rows), not scores, found is None, scan is None)
    made.append(parts.missing_section(missing) if missing else None)
    top = headline(plan, stated, numbers, noise, found, has_texts=texts is not None)
    return page(title, top, [section for section in made if section is not None], rows)


def _texts(scan: "Scan | None", plan: Plan) -> list[str]:
    """The texts of the plan's secrets, in its order."""
    if scan is None or scan.secrets.texts is None:
        raise InvalidInput("texts of secrets are on the owner's side of a scan; pass the whole folder of the scan")
    text_of = dict(zip(scan.secrets.ids, scan.secrets.texts, strict=True))
    if any(name not in text_of for name in plan.secret_ids):
        raise InvalidInput("the scan lacks some secrets of the plan; pass the scan that the plan was made from")
    return [text_of[name] for name in plan.secret_ids]


def _missing(frontier: bool, noise: bool, training: bool, audit: bool, scan: bool) -> list[tuple[str, str]]:
    lines = [
        (frontier, "the frontier", "hush frontier … --output frontier.json, then hush report … --frontier"),
        (noise, "noise by method", "hush report … --compare"),
        (training, "training curves", "scores on data without secrets, in release/evaluations.jsonl"),
        (audit, "the audit", "hush audit RUN --output AUDIT, then hush report … --audit AUDIT"),
        (scan, "what was found where", "hush report … --scan SCAN"),
    ]
    return [(what, how) for left_out, what, how in lines if left_out]

"""Check a plan without trusting whoever made it: everything is recomputed from the files, one secret at a time.

Calibration's searching, pruning and grouping play no part here: every secret's posterior is computed afresh from the
graph, the weights and the noise that the folder states. Integrity is not authenticity: that the files fit together
does not say who wrote them; a detached signature does. Nor does it say that graph and promises are the owner's: give
them, and they are compared.
"""

import math
import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from hush.certificate import Certificate
from hush.errors import HushError
from hush.incidence import Incidence
from hush.plan import Plan
from hush.plan.files import (
    MAJOR,
    MINOR,
    changed_files,
    minor_version,
    read_fields,
    read_json,
    read_record,
    stored_rates,
)
from hush.plan.invariants import promises_fingerprint
from hush.protection import promise_arrays
from hush.secret_table import Secrets
from hush.verification.checks import Check, Verification, check
from hush.verification.posteriors import SLACK, Progress, check_posteriors

EXACT = 1e-12
VERSION = re.compile(r"[\w.+!-]{1,40}")


def verify(
    folder: str | Path,
    *,
    public_key: str | Path | None = None,
    incidence: Incidence | None = None,
    secrets: Secrets | None = None,
    progress: Progress | None = None,
) -> Verification:
    """Recompute everything a plan's folder states. Guarantee: `passed` only if every promise was proven again.

    public_key: a PEM file; the detached signature beside the plan must then be valid for it. incidence and secrets:
    the owner's own; graph, ids, priors and ceilings of the plan must then be theirs.
    """
    path = Path(folder)
    try:
        record = read_record(path)
    except HushError as error:
        return Verification(checks=(Check(name="plan.json", passed=False, detail=str(error)),), certificate=None)
    checks = [Check(name="plan.json", passed=True, detail=f"format {record['format']}, digest fits")]
    changed = changed_files(path, record)
    checks.append(check("files", not changed, f"changed after the plan was written: {changed}", "every digest fits"))
    if public_key is not None:
        from hush.signature import signature_problem

        problem = signature_problem(path, Path(public_key))
        checks.append(check("signature", problem is None, problem or "", "valid for this key"))
    try:
        plan = Plan(**read_fields(path, record))
        certificate = Certificate.from_dict(read_json(path / "certificate.json"))
    except (HushError, OSError, ValueError, KeyError, TypeError, OverflowError, RecursionError) as error:
        checks.append(Check(name="content", passed=False, detail=f"does not make a plan: {error}"))
        return Verification(checks=tuple(checks), certificate=None)
    if incidence is not None:
        same = incidence.fingerprint == plan.incidence.fingerprint
        checks.append(check("graph", same, "the plan is about another graph than the one given", "the one given"))
    if secrets is not None:
        checks.append(_promises(plan, secrets))
    checks.append(_rates(plan, path))
    checks.append(_certificate(plan, certificate, path, minor_version(record)))
    checks.extend(check_posteriors(plan, progress))
    return Verification(checks=tuple(checks), certificate=certificate)


def _promises(plan: Plan, secrets: Secrets) -> Check:
    prior_SQ, ceiling_SQ = promise_arrays(secrets.prior, secrets.ceiling, len(secrets))
    same = promises_fingerprint(secrets.ids, prior_SQ, ceiling_SQ) == plan.promises_fingerprint
    return check("promises", same, "ids, priors or ceilings are not those given", "those given")


def _rates(plan: Plan, folder: Path) -> Check:
    """Weights in [0, 1] mean exactly the stored rates, and the rates sum to the batch size."""
    weight, rate = plan.weights, stored_rates(folder)
    problems: list[str] = []
    expected = plan.batch_size * weight / math.fsum(weight)
    if rate.shape != expected.shape or not np.all(np.abs(rate - expected) <= EXACT * expected):  # NaN fails
        problems.append("rates are not batch_size * weight / sum(weights)")
    if not (rate.size and rate.min() >= 0 and rate.max() <= 1):
        problems.append("rates leave [0, 1]")
    if not abs(math.fsum(rate) - plan.batch_size) <= 1e-9 * plan.batch_size:
        problems.append(f"rates sum to {math.fsum(rate):.6g}, not to the batch size {plan.batch_size:g}")
    return check("rates", not problems, "; ".join(problems), f"sum to {plan.batch_size:g}, none above 1")


def _certificate(plan: Plan, certificate: Certificate, folder: Path, minor: int) -> Check:
    """Both forms of the certificate say what the plan says, word for word, but for the versions that wrote it."""
    stated, due = certificate.to_dict(), plan.certificate.to_dict()
    words = ("assumptions", "not_covered") if minor != MINOR else ()  # another version may have other words
    different = [
        name for name in due if name not in ("versions", "curve", *words) and not _identical(stated[name], due[name])
    ]
    if not _curves_agree(stated["curve"], due["curve"]):
        different.append("curve")
    if not _are_versions(certificate.versions):
        different.append("versions")
    if not different and minor == MINOR:
        page = replace(plan.certificate, versions=certificate.versions, curve=certificate.curve).to_markdown()
        if (folder / "certificate.md").read_bytes() != page.encode():
            different.append("certificate.md")
    detail = "matches the plan" if certificate.is_real else f"matches the plan, which is marked: {certificate.marks}"
    if minor != MINOR:
        detail += f"; its wording is that of format {MAJOR}.{minor} and was not compared"
    return check("certificate", not different, f"does not match the plan in {different}", detail)


def _identical(stated: Any, due: Any) -> bool:
    return type(stated) is type(due) and stated == due


def _are_versions(stated: object) -> bool:
    """Names and versions, whichever they are, and nothing else that would stand on the page."""
    return isinstance(stated, dict) and all(
        isinstance(text, str) and VERSION.fullmatch(text) for pair in stated.items() for text in pair
    )


def _curves_agree(stated: dict[str, Any], due: dict[str, Any]) -> bool:
    if stated.keys() != due.keys():
        return False
    try:
        pairs = [(np.array(stated[name], dtype=np.float64), np.array(due[name])) for name in due]
    except (TypeError, ValueError):
        return False
    return all(one.shape == other.shape and np.allclose(one, other, rtol=SLACK, atol=0.0) for one, other in pairs)

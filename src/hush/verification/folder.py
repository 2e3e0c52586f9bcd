"""Check a plan, or what a run released under one, without trusting whoever made it: everything is recomputed.

Calibration's searching, pruning and grouping play no part here: every secret's posterior is computed afresh from the
graph, the weights and the noise that the folder states. Integrity is not authenticity: that the files fit together
does not say who wrote them; a detached signature does. Nor does it say that graph and promises are the owner's: give
them, and they are compared.
"""

import math
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from hush.certificate import Certificate
from hush.errors import HushError
from hush.incidence import Incidence
from hush.plan import Plan
from hush.plan.files import (
    additions,
    changed_files,
    minor_version,
    read_fields,
    read_json,
    read_record,
    stored_rates,
)
from hush.plan.held_out import held_out_examples
from hush.plan.invariants import promises_fingerprint
from hush.protection import promise_arrays
from hush.secret_table import Secrets
from hush.signature import covered, is_release, signature_problem
from hush.verification.certificates import check_certificate, refuse_unknown_words
from hush.verification.checks import Check, Verification, check
from hush.verification.posteriors import Progress, check_posteriors
from hush.verification.release import check_release, unchecked

EXACT = 1e-12
UNEVEN = 1e-5  # more than holding examples out takes from the weight of those with secrets


def verify(
    folder: str | Path,
    *,
    public_key: str | Path | None = None,
    incidence: Incidence | None = None,
    secrets: Secrets | None = None,
    progress: Progress | None = None,
) -> Verification:
    """Recompute everything that a plan's folder states. Guarantee: `passed` only if every promise was proven again.

    Of a release (release/ of ``hush train``, share/ of ``hush run``) the plan in it is verified; the certificate of
    the run must say what that plan says, and the files of the model must have the fingerprint that it names.

    public_key: a PEM file; the detached signature of the plan, or of the release, must then be valid for it. incidence
    and secrets: the owner's own; graph, ids, priors and ceilings of the plan must then be theirs.
    """
    root = Path(folder)
    released = is_release(root)
    path = root / "plan" if released else root
    try:
        record = read_record(path)
        refuse_unknown_words(minor_version(record))
    except HushError as error:
        return Verification(checks=(Check(name="plan.json", passed=False, detail=str(error)),), certificate=None)
    checks = [Check(name="plan.json", passed=True, detail=f"format {record['format']}, digest fits")]
    changed = changed_files(path, record)
    checks.append(check("files", not changed, f"changed after the plan was written: {changed}", "every digest fits"))
    if public_key is not None:
        problem = signature_problem(root, Path(public_key))
        checks.append(check("signature", problem is None, problem or "", f"valid for this key; {covered(root)}"))
    try:
        plan, rates = Plan(**read_fields(path, record)), stored_rates(path)
        certificate = Certificate.from_dict(read_json(path / "certificate.json"))
        more = additions(path, record)
    except (HushError, OSError, ValueError, KeyError, TypeError, OverflowError, RecursionError) as error:
        checks.append(Check(name="content", passed=False, detail=f"does not make a plan: {error}"))
        return Verification(checks=tuple(checks), certificate=None)
    if more:
        detail = f"{', '.join(more)} holds more than a plan has, which nothing checks; make the plan again"
        checks.append(Check(name="content", passed=False, detail=detail))
    if incidence is not None:
        same = incidence.fingerprint == plan.incidence.fingerprint
        checks.append(check("graph", same, "the plan is about another graph than the one given", "the one given"))
    if secrets is not None:
        checks.append(_promises(plan, secrets))
    checks.append(_rates(plan, rates))
    checks.append(check_certificate(plan, certificate, path))
    checks.extend(check_posteriors(plan, progress))
    if released:
        of_run, certificate = check_release(root, certificate)
        checks.extend(of_run)
    rest = unchecked(root, released=released)
    return Verification(checks=tuple(checks), certificate=certificate, unchecked=rest)


def _promises(plan: Plan, secrets: Secrets) -> Check:
    prior_SQ, ceiling_SQ = promise_arrays(secrets.prior, secrets.ceiling, len(secrets))
    same = promises_fingerprint(secrets.ids, prior_SQ, ceiling_SQ) == plan.promises_fingerprint
    return check("promises", same, "ids, priors or ceilings are not those given", "those given")


def _rates(plan: Plan, rate: NDArray[np.float64]) -> Check:
    """Weights mean exactly the stored rates, and these sum to the batch size; without capacities they are all alike."""
    problems: list[str] = []
    expected = plan.batch_size * plan.weights / math.fsum(plan.weights)
    if rate.shape != expected.shape or not np.all(np.abs(rate - expected) <= EXACT * expected):  # NaN fails
        problems.append("rates are not batch_size * weight / sum(weights)")
    elif not (rate.size and rate.min() >= 0 and rate.max() <= 1):
        problems.append("rates leave [0, 1]")
    elif not abs(math.fsum(rate) - plan.batch_size) <= 1e-9 * plan.batch_size:
        problems.append(f"rates sum to {math.fsum(rate):.6g}, not to the batch size {plan.batch_size:g}")
    elif plan.capacity == "none" and np.delete(plan.weights, held_out_examples(plan)).min(initial=1.0) < 1 - UNEVEN:
        problems.append("some examples are used less than others, though the capacity is 'none'")
    return check("rates", not problems, "; ".join(problems), f"sum to {plan.batch_size:g}, none above 1")

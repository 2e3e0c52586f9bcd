"""Check a plan without trusting whoever made it: everything is recomputed from the files, one secret at a time.

Calibration's searching, pruning and grouping play no part here: every secret's posterior is computed afresh from the
graph, the weights and the noise that the folder states. Integrity is not authenticity: that the files fit together
does not say who wrote them; a detached signature does.
"""

import json
import math
import os
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from hush.accounting import posterior
from hush.certificate import Certificate
from hush.errors import HushError
from hush.plan import Plan
from hush.plan.files import FILES, file_digest, read_fields, read_record, stored_rates

__all__ = ["Check", "Verification", "verify"]

SLACK = 5e-3  # two upper bounds of the same number may differ by this much: each is within 1e-3 of the truth
EXACT = 1e-12
FINER = 1e-4  # accuracy at which a posterior is computed again before it counts as broken

Progress = Callable[[int, int], None]


@dataclass(frozen=True, slots=True, kw_only=True)
class Check:
    """One thing that was checked."""

    name: str
    passed: bool
    detail: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Verification:
    """All checks of one folder, and the certificate if it could be read."""

    checks: tuple[Check, ...]
    certificate: Certificate | None

    @property
    def passed(self) -> bool:
        """Whether every check passed."""
        return all(check.passed for check in self.checks)


def verify(
    folder: str | Path, *, public_key: str | Path | None = None, progress: Progress | None = None
) -> Verification:
    """Recompute everything a plan's folder states. Guarantee: `passed` only if every promise was proven again.

    public_key: a PEM file; the detached signature beside the plan must then be valid for it.
    """
    path = Path(folder)
    checks: list[Check] = []
    try:
        record = read_record(path)
    except HushError as error:
        return Verification(checks=(Check(name="plan.json", passed=False, detail=str(error)),), certificate=None)
    checks.append(Check(name="plan.json", passed=True, detail=f"format {record['format']}, digest fits"))
    changed = [name for name in FILES if file_digest(path / name) != record["digests"][name]]
    checks.append(_check("files", not changed, f"changed after the plan was written: {changed}", "every digest fits"))
    if public_key is not None:
        from hush.signature import signature_problem

        problem = signature_problem(path, Path(public_key))
        checks.append(_check("signature", problem is None, problem or "", "valid for this key"))
    try:
        plan = Plan(**read_fields(path, record))
        certificate = Certificate.from_dict(_read_json(path / "certificate.json"))
    except (HushError, OSError, ValueError, KeyError, TypeError) as error:
        checks.append(Check(name="content", passed=False, detail=f"cannot be read: {error}"))
        return Verification(checks=tuple(checks), certificate=None)
    checks.append(_rates(plan, path))
    checks.append(_certificate(plan, certificate))
    checks.append(_posteriors(plan, progress))
    return Verification(checks=tuple(checks), certificate=certificate)


def _check(name: str, passed: bool, otherwise: str, detail: str) -> Check:
    return Check(name=name, passed=passed, detail=detail if passed else otherwise)


def _read_json(path: Path) -> Any:
    return json.loads(path.read_text())


def _rates(plan: Plan, folder: Path) -> Check:
    """Weights in [0, 1] mean exactly the stored rates, and the rates sum to the batch size."""
    weight, rate = plan.weights, stored_rates(folder)
    problems: list[str] = []
    if not (weight.size == 0 or (weight.min() >= 0 and weight.max() <= 1)):  # NaN fails
        problems.append("weights leave [0, 1]")
    expected = plan.batch_size * weight / math.fsum(weight)
    if rate.shape != expected.shape or not np.all(np.abs(rate - expected) <= EXACT * expected):
        problems.append("rates are not batch_size * weight / sum(weights)")
    if not (rate.size and rate.min() >= 0 and rate.max() <= 1):
        problems.append("rates leave [0, 1]")
    if not abs(math.fsum(rate) - plan.batch_size) <= 1e-9 * plan.batch_size:
        problems.append(f"rates sum to {math.fsum(rate):.6g}, not to the batch size {plan.batch_size:g}")
    return _check("rates", not problems, "; ".join(problems), f"sum to {plan.batch_size:g}, none above 1")


def _certificate(plan: Plan, certificate: Certificate) -> Check:
    """The certificate says what the plan says, word for word, but for the versions that wrote it."""
    stated, due = certificate.to_dict(), plan.certificate.to_dict()
    different = [name for name in due if name not in ("versions", "curve") and stated[name] != due[name]]
    if [list(points) for points in stated["curve"].values()] and not _curves_agree(stated["curve"], due["curve"]):
        different.append("curve")
    detail = "matches the plan" if certificate.is_real else f"matches the plan, which is marked: {certificate.marks}"
    return _check("certificate", not different, f"does not match the plan in {different}", detail)


def _curves_agree(stated: dict[str, Any], due: dict[str, Any]) -> bool:
    if stated.keys() != due.keys():
        return False
    return all(np.allclose(stated[name], due[name], rtol=SLACK, atol=0.0) for name in due)


def _posteriors(plan: Plan, progress: Progress | None) -> Check:
    """Every secret's posterior, recomputed alone, is at most its ceiling and at most what the plan states."""
    total = plan.incidence.num_secrets
    sigma, rounds, bound = plan.noise_multiplier, plan.rounds, plan.bound
    broken: list[str] = []
    understated: list[str] = []

    def recompute(secret: int) -> np.ndarray:
        own = plan.rates[plan.incidence.examples_of(secret)]
        settings: Any = {"noise_multiplier": sigma, "rounds": rounds, "prior": plan.prior[secret], "bound": bound}
        found = np.asarray(posterior(own, **settings))
        if np.all(found <= plan.ceiling[secret]):
            return found
        return np.asarray(posterior(own, **settings, accuracy=FINER))  # a hair's breadth may be mere discretisation

    with ThreadPoolExecutor(max_workers=os.cpu_count()) as pool:
        for secret, found in enumerate(pool.map(recompute, range(total))):
            if not np.all(found <= plan.ceiling[secret]):
                broken.append(plan.secret_ids[secret])
            if not np.all(found <= plan.posterior[secret] * (1 + SLACK)):
                understated.append(plan.secret_ids[secret])
            if progress is not None:
                progress(secret + 1, total)
    if broken:
        detail = f"{len(broken)} promises do not hold at noise {sigma:.6g}: {', '.join(broken[:5])}"
    elif understated:
        detail = f"{len(understated)} posteriors are larger than stated: {', '.join(understated[:5])}"
    else:
        detail = f"all {total} recomputed, every one within its ceiling"
    return Check(name="posteriors", passed=not (broken or understated), detail=detail)

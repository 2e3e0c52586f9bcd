"""Whether certificates say what they have to: a plan's what the plan comes to, a run's what its plan's says.

A run adds the version of PyTorch, the fingerprint of its model and marks. Where training did not check the data, it
leaves their fingerprint out.
"""

import json
import math
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from hush.certificate import DATA_FINGERPRINT, Certificate
from hush.errors import HushError, InvalidInput
from hush.plan import Plan
from hush.plan.files import MAJOR, MINOR, read_json
from hush.verification.checks import Check, check
from hush.verification.posteriors import SLACK, is_proven

VERSION = re.compile(r"\d[\w.+!-]{0,39}", re.ASCII)  # it stands on the page, and no word may
MODEL, TORCH = "model", "torch"  # the fingerprint and the version that a run adds
WORDS = ("assumptions", "not_covered")  # which another version may put in other words


def refuse_unknown_words(minor: int) -> None:
    """Refuse a plan of another minor version: what it may say in other words cannot be told from what is forged."""
    if minor != MINOR:
        raise InvalidInput(
            f"the plan has format {MAJOR}.{minor}, and this hush knows what a certificate has to say in format "
            f"{MAJOR}.{MINOR} only; use the hush that wrote it"
        )


def check_certificate(plan: Plan, stated: Certificate, folder: Path) -> Check:
    """Both forms of a plan's certificate say what the plan says, but for the versions that wrote it."""
    different = plan_differences(plan, stated) or _forms_differ(stated, folder)
    return _check("certificate", different, _matches(stated))


def check_run_certificate(planned: Certificate, folder: Path) -> tuple[Check, Certificate | None]:
    """Both forms of a run's certificate say what its plan's says, and what a run may add; and the certificate."""
    path = folder / "certificate.json"
    try:
        stated = Certificate.from_dict(read_json(path))
        different = run_differences(planned, stated) or _forms_differ(stated, folder)
    except (HushError, OSError, ValueError, TypeError, RecursionError) as error:
        problem = error if isinstance(error, HushError | OSError) else f"{path} is not JSON that hush wrote"
        return Check(name="run's certificate", passed=False, detail=f"cannot be read: {problem}"), None
    detail = _matches(stated)
    if DATA_FINGERPRINT in planned.fingerprints and DATA_FINGERPRINT not in stated.fingerprints:
        detail += "; it does not name the data, which training did not check"
    return _check("run's certificate", different, detail), stated


def plan_differences(plan: Plan, stated: Certificate) -> list[str]:
    """What a plan's certificate states otherwise than the plan does."""
    said, due = stated.to_dict(), plan.certificate.to_dict()
    different = _differences(said, due, besides=("versions", "curve"))
    if not (_curves_agree(said["curve"], due["curve"]) and _is_proven(plan, stated, plan.certificate)):
        different.append("curve")
    if stated.versions.keys() != plan.certificate.versions.keys() or not _are_versions(stated):
        different.append("versions")
    return different


def run_differences(planned: Certificate, stated: Certificate, *, same_place: bool = True) -> list[str]:
    """What a run's certificate states otherwise than its plan's does, beyond what a run may add.

    same_place: both were written by the training, and agree to the last digit and word. Otherwise the plan may have
    been made by another version on another machine, and only what it promises is compared.
    """
    said, due = stated.to_dict(), planned.to_dict()
    elsewhere = () if same_place else ("curve", *WORDS)
    different = _differences(said, due, besides=("versions", "fingerprints", "marks", *elsewhere))
    if not same_place and not _curves_agree(said["curve"], due["curve"]):
        different.append("curve")
    own, others = _but_torch(stated), _but_torch(planned)
    if not _are_versions(stated) or (own != others if same_place else own.keys() != others.keys()):
        different.append("versions")
    if stated.marks[: len(planned.marks)] != planned.marks:
        different.append("marks")
    return different + _other_fingerprints(dict(planned.fingerprints), stated.fingerprints)


def _other_fingerprints(due: dict[str, str], named: Mapping[str, str]) -> list[str]:
    if DATA_FINGERPRINT not in named:
        due.pop(DATA_FINGERPRINT, None)
    names = sorted(name for name in {*named, *due} if name != MODEL and named.get(name) != due.get(name))
    different = [f"fingerprint of the {name}" if name in due else "a fingerprint of something else" for name in names]
    return different if MODEL in named else [*different, "fingerprint of the model (there is none)"]


def _check(name: str, different: list[str], detail: str) -> Check:
    return check(name, not different, f"does not match the plan in {', '.join(different)}", detail)


def _differences(said: dict[str, Any], due: dict[str, Any], *, besides: tuple[str, ...]) -> list[str]:
    compared = [name for name in due if name not in besides]
    return [_told(name, said[name], due[name]) for name in compared if not _identical(said[name], due[name])]


def _forms_differ(stated: Certificate, folder: Path) -> list[str]:
    """Which of the two files says anything else than this, or says it in another way."""
    different: list[str] = []
    if (folder / "certificate.json").read_bytes() != f"{json.dumps(stated.to_dict(), indent=2)}\n".encode():
        different.append("certificate.json (it holds more than that, or is written in another way)")
    page = folder / "certificate.md"
    if not page.is_file() or page.read_bytes() != stated.to_markdown().encode():
        different.append("certificate.md")
    return different


def _matches(certificate: Certificate) -> str:
    return "matches the plan" if certificate.is_real else f"matches the plan, but is marked: {certificate.marks}"


def _told(name: str, said: Any, due: Any) -> str:
    """A field, with its values if they are plain numbers."""
    plain = all(isinstance(value, int | float) and not isinstance(value, bool) for value in (said, due))
    return f"{name} ({said!r}, the plan's is {due!r})" if plain else name


def _identical(stated: Any, due: Any) -> bool:
    return type(stated) is type(due) and stated == due


def _are_versions(stated: Certificate) -> bool:
    """Whether its versions look like versions, whichever they are."""
    return all(VERSION.fullmatch(version) for version in stated.versions.values())


def _but_torch(certificate: Certificate) -> dict[str, str]:
    return {name: version for name, version in certificate.versions.items() if name != TORCH}


def _curves_agree(stated: dict[str, Any], due: dict[str, Any]) -> bool:
    """The same secrets and priors, and posteriors that another machine may have computed."""
    if stated.keys() != due.keys() or any(len(stated[name]) != len(due[name]) for name in due):
        return False
    pairs = [pair for name in due for pair in zip(stated[name], due[name], strict=True)]
    return all(said[0] == own[0] and math.isclose(said[1], own[1], rel_tol=SLACK) for said, own in pairs)


def _is_proven(plan: Plan, stated: Certificate, due: Certificate) -> bool:
    """Whether the posteriors of a curve with the right secrets and priors are upper bounds."""
    for name, points in due.curve.items():
        prior, found = np.array(points).T
        said = np.array(stated.curve[name])[:, 1]
        if not is_proven(plan, plan.secret_ids.index(name), prior, said, found):
            return False
    return True

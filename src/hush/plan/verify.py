"""Stage 4, after the plan: check one, or what was released under it, without trusting whoever made it.

folder: everything that the files state, against each other; posteriors: every promise proven again; certificates: the
plan's own, and that of a run, word for word; release: the model that was trained under it.

Check a plan, or what a run released under one, without trusting whoever made it: everything is recomputed.

Calibration's searching, pruning and grouping play no part here: every secret's posterior is computed afresh from the
graph, the weights and the noise that the folder states. Integrity is not authenticity: that the files fit together
does not say who wrote them; a detached signature does. Nor does it say that graph and promises are the owner's: give
them, and they are compared.

What was checked, and with what result.

Every posterior of a plan again, one secret at a time, by a route that shares nothing with calibration's search.

Whether certificates say what they have to: a plan's what the plan comes to, a run's what its plan's says.

A run adds the version of PyTorch, the fingerprint of its model and marks. Where training did not check the data, it
leaves their fingerprint out.

What a run released, against its plan: its certificate, and the files of its model. The rest is named as not checked.

A release is the folder release/ of ``hush train`` or ``hush run``. Its signature, if it was signed, is over
its certificate, and so over everything that is checked here.
"""

import json
import math
import os
import re
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from hush.accounting import posterior
from hush.certificate import DATA_FINGERPRINT, Certificate
from hush.errors import HushError, InvalidInput
from hush.incidence import Incidence
from hush.numbers import counted
from hush.plan import Plan
from hush.plan.files import (
    FILES,
    MAJOR,
    MINOR,
    RELEASE_SIGNATURE,
    SIGNATURE,
    additions,
    changed_files,
    covered,
    is_release,
    minor_version,
    read_fields,
    read_record,
    signature_problem,
    stored_rates,
)
from hush.plan.make import held_out_examples
from hush.plan.plan import promises_fingerprint
from hush.protection import promise_arrays
from hush.secret_table import Secrets
from hush.storage import folder_digest, read_json

__all__ = ["Check", "Verification", "verify"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Check:
    """One thing that was checked."""

    name: str
    passed: bool
    detail: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Verification:
    """All checks of one folder; its certificate, of a release that of the run, if it could be read.

    unchecked: names of files in the folder that no check looks at.
    """

    checks: tuple[Check, ...]
    certificate: Certificate | None
    unchecked: tuple[str, ...] = ()

    @property
    def passed(self) -> bool:
        """Whether every check passed."""
        return all(check.passed for check in self.checks)


def check(name: str, passed: bool, otherwise: str, detail: str) -> Check:
    """A check with what to say in either case."""
    return Check(name=name, passed=passed, detail=detail if passed else otherwise)


EQUAL = 1e-9  # another machine may round a posterior to something larger than what is stated, by this share at most
SLACK = 5e-3  # two upper bounds of the same number may differ by this much: each is within 1e-3 of the truth
FINER = 1e-4  # accuracy at which a posterior is computed again before it counts as broken
NEAR = 0.5  # share of its ceiling above which a secret may bind
LESS = 0.995  # whoever breaks at this share of the noise binds
MUCH_LESS = 0.98  # whoever holds at this share does not
ROOM = 0.02  # a secret listed as binding may miss its ceiling by this much: those who are drawn alike share a bound

Progress = Callable[[int, int], None]


def check_posteriors(plan: Plan, progress: Progress | None) -> tuple[Check, Check]:
    """Every posterior, recomputed alone, is within its ceiling and what is stated; exactly who is said to bind does."""
    total = plan.incidence.num_secrets
    listed = np.zeros(total, dtype=bool)
    listed[plan.binding] = True
    faults: dict[str, list[str]] = {"broken": [], "larger than stated": [], "binding": []}
    with ThreadPoolExecutor(max_workers=os.cpu_count()) as pool:
        for secret, found in enumerate(pool.map(partial(_faults, plan, listed), range(total))):
            for fault in found:
                faults[fault].append(plan.secret_ids[secret])
            if progress is not None:
                progress(secret + 1, total)

    def told(fault: str) -> str:
        ids = faults[fault]
        return ", ".join(ids[:5]) + (f" and {len(ids) - 5} more" if len(ids) > 5 else "")

    if faults["broken"]:
        broken = counted(len(faults["broken"]), "promise")
        problem = f"{broken} not kept at noise {plan.noise_multiplier:.6g}: {told('broken')}"
    else:
        problem = f"{len(faults['larger than stated'])} larger than stated: {told('larger than stated')}"
    sound = not (faults["broken"] or faults["larger than stated"])
    recomputed = "the one there is" if total == 1 else f"all {total}"
    bind = f"{counted(plan.binding.size, 'secret')} {'binds' if plan.binding.size == 1 else 'bind'}"
    return (
        check("posteriors", sound, problem, f"{recomputed} recomputed, every one within its ceiling"),
        check("binding", not faults["binding"], f"wrongly listed or left out: {told('binding')}", f"{bind}, as stated"),
    )


def is_proven(plan: Plan, secret: int, prior: np.ndarray, stated: np.ndarray, found: np.ndarray) -> bool:
    """Whether posteriors from these priors are at most what is stated. found: upper bounds by the plan's bound.

    Those may be too large by mere discretisation, or since the search for the best order ended elsewhere; so before
    they count as larger, a finer one of the same kind and then the tight one are tried.
    """
    for bound in dict.fromkeys((plan.bound, "blowup")):
        if np.all(found <= stated * (1 + EQUAL)):
            return True
        found = np.minimum(found, _found(plan, secret, prior, bound=bound, accuracy=FINER))
    return bool(np.all(found <= stated * (1 + EQUAL)))


def _faults(plan: Plan, listed: np.ndarray, secret: int) -> list[str]:
    """What is wrong with one secret."""
    prior_Q, ceiling_Q, stated_Q = plan.prior[secret], plan.ceiling[secret], plan.posterior[secret]
    now_Q = _found(plan, secret, prior_Q)
    if not np.all(now_Q <= ceiling_Q):
        now_Q = np.minimum(now_Q, _found(plan, secret, prior_Q, accuracy=FINER))
    faults: list[str] = []
    if not np.all(now_Q <= ceiling_Q):
        faults.append("broken")
    elif not is_proven(plan, secret, prior_Q, stated_Q, now_Q):
        faults.append("larger than stated")
    near = bool(np.any(now_Q > NEAR * ceiling_Q))
    if listed[secret]:
        if not (near and np.any(_found(plan, secret, prior_Q, noise_share=MUCH_LESS) > (1 - ROOM) * ceiling_Q)):
            faults.append("binding")
    elif near and np.any(_found(plan, secret, prior_Q, noise_share=LESS, accuracy=FINER) > (1 + SLACK) * ceiling_Q):
        faults.append("binding")
    return faults


def _found(plan: Plan, secret: int, prior: np.ndarray, *, noise_share: float = 1.0, **settings: Any) -> np.ndarray:
    """Upper bounds from these priors, with a share of the plan's noise and, unless told otherwise, by its bound."""
    return np.asarray(
        posterior(
            plan.rates[plan.incidence.examples_of(secret)],
            noise_multiplier=plan.noise_multiplier * noise_share,
            rounds=plan.rounds,
            prior=prior,
            **{"bound": plan.bound, **settings},
        )
    )


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


CHECKED = {"plan", "model", "certificate.json", "certificate.md", RELEASE_SIGNATURE}
UNCHECKED = re.compile(r"README\.md|report\.html|evaluations\.jsonl|round-\d{6,}")  # that a release may hold besides
OF_A_PLAN = {"plan.json", SIGNATURE, *FILES}


def check_release(folder: Path, planned: Certificate) -> tuple[tuple[Check, ...], Certificate | None]:
    """The checks of a release beside those of its plan, and its certificate. planned: that of its plan, as it is there.

    The plan's words are known, as after ``refuse_unknown_words``.
    """
    fits, certificate = check_run_certificate(planned, folder)
    return (fits, _check_model(folder, certificate), _check_names(folder)), certificate


def unchecked(folder: Path, *, released: bool) -> tuple[str, ...]:
    """Names in the folder of a release, or of a plan, that no check looks at."""
    known = CHECKED if released else OF_A_PLAN
    return tuple(_shown(path, folder) for path in sorted(folder.iterdir()) if path.name not in known)


def model_problem(model: Path, named: str | None) -> str | None:
    """Why a folder is not the model that a certificate names by this fingerprint; None if it is."""
    if not model.is_dir():
        return "there is no folder model/; restore what was released"
    # A fingerprint is blind to these: it enters no links, and a line break in a name could pass for two files.
    odd = [path for path in sorted(model.rglob("*")) if not path.name.isprintable() or not _is_seen(path)]
    if odd:
        return f"{_shown(odd[0], model.parent)} is a link or has an odd name; copy the model as plain files"
    found = folder_digest(model)
    if found != named:
        return f"its files have the fingerprint {found}, which is not what the certificate names; it is another model"
    return None


def _check_model(folder: Path, certificate: Certificate | None) -> Check:
    if certificate is None:
        return Check(name="model", passed=False, detail="no certificate says which model it has to be")
    problem = model_problem(folder / "model", certificate.fingerprints.get(MODEL))
    return check("model", problem is None, problem or "", "its files have the fingerprint that the certificate names")


def _check_names(folder: Path) -> Check:
    """Nothing lies in a release, or in its plan, that no release holds: it would pass for something checked."""
    strange = [path for path in folder.iterdir() if path.name not in CHECKED and not UNCHECKED.fullmatch(path.name)]
    if (folder / "plan").is_dir():
        strange += [path for path in (folder / "plan").iterdir() if path.name not in OF_A_PLAN]
    listed = ", ".join(_shown(path, folder) for path in sorted(strange)[:5])
    problem = f"holds what is no part of a release: {listed}; take it out, or ask whoever put it there"
    return check("folder", not strange, problem, "holds nothing that is no part of a release")


def _is_seen(path: Path) -> bool:
    return path.is_file() or (path.is_dir() and not path.is_symlink())


def _shown(path: Path, folder: Path) -> str:
    """A name below a folder; one that could pass for something else is quoted."""
    name = path.relative_to(folder).as_posix() + ("/" if path.is_dir() else "")
    return name if name.isprintable() else repr(name)


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

    Of a release (release/ of ``hush train`` or ``hush run``) the plan in it is verified; the certificate of
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

"""Verification of a plan, or of a release made under one, without trusting its author: everything is recomputed.

A plan: what its files state is compared with each other, and every posterior is proven again from the graph, the
weights and the noise that the folder states (``hush.plan.posteriors``). Searching, pruning and grouping of calibration
play no part here. A release (release/ of ``hush train``, share/ of ``hush run``): in addition, its certificate must say
what the certificate of its plan says, and the files of its model must have the fingerprint that it names. A run adds to
the certificate the version of PyTorch, the fingerprint of its model, marks, the number of trained parameters, and what
computed draws and noise add to every posterior, which is recomputed, and how much it learnt first, by ordinary training
on what is public, which must be no more than the plan leaves public; if training did not check the data, it leaves out
their fingerprint. Whatever else the folder carries is listed as not checked or not proven (``carried``).

Integrity is not authenticity: consistent files do not say who wrote them; a detached signature or attestations do
(``hush.plan.attestations``). Nor do they say that graph, slots and promises are the owner's: pass those, and they are
compared.
"""

import json
import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from hush.accounting.sampling_error import sampling_error
from hush.arrays import Array, Progress
from hush.certificate import DATA_FINGERPRINT, SKELETON_FINGERPRINT, Certificate
from hush.errors import HushError, InvalidInput, Setting
from hush.incidence import Incidence
from hush.numbers import counted, rounded_down, rounded_up
from hush.plan import Plan
from hush.plan.attestations import (
    ATTESTATIONS,
    MODEL_SIGNATURE,
    Result,
    Trust,
    attestations_problem,
    model_signature_problem,
)
from hush.plan.carried import (
    OPTIONAL_FILES,
    RELEASE_FILES,
    RELEASE_FOLDERS,
    UNCOMPARED,
    shown,
    unchecked,
    unproven,
)
from hush.plan.chain_files import CHAIN_FILE
from hush.plan.earlier import EARLIER, earlier_beside
from hush.plan.files import (
    FILES,
    MAJOR,
    MINOR,
    RELEASE_SIGNATURE,
    SIGNATURE,
    SLOTS_FILE,
    additions,
    changed_files,
    covered,
    is_release,
    minor_version,
    read_fields,
    read_record,
    rewritten_files,
    signature_problem,
    stored_rates,
)
from hush.plan.plan import drawable_examples, promises_fingerprint
from hush.plan.posteriors import (
    FINE_ACCURACY,
    MAX_BOUND_DIFFERENCE,
    MAX_MACHINE_DIFFERENCE,
    Fault,
    are_proven,
    judge,
)
from hush.plan.verify_chain import chain_problem, judge_chain, missing_link
from hush.protection import promise_arrays
from hush.secret_table import Secrets
from hush.slots import Slots
from hush.storage import folder_digest, read_json

__all__ = ["Check", "Verification", "attested_result", "verify"]

MAX_RATE_DIFFERENCE = 1e-12  # relative, between stored rates and those of the weights
MAX_SUM_DIFFERENCE = 1e-9  # relative, between the sum of the rates and the batch size
MAX_UNEVENNESS = 1e-5  # of weights without capacities: more than holding out examples takes from those with secrets
MAX_NAMED = 5  # secrets or files that a check names
VERSION = re.compile(r"\d[\w.+!-]{0,39}", re.ASCII)  # it stands on the page, where no free text may
MODEL, TORCH = "model", "torch"  # the fingerprint and the version that a run adds
WORDS = ("assumptions", "not_covered")  # fields whose wording may differ between versions


@dataclass(frozen=True, slots=True, kw_only=True)
class Check:
    """The result of one check."""

    name: str
    passed: bool
    detail: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Verification:
    """All checks of a folder, and its certificate if it could be read: that of the plan, or of the run for a release.

    unchecked: names of files in the folder that no check reads, or of which no check reads everything. unproven: what
    the files state and no check can prove, one line each. Whatever the folder carries is checked or in one of the two.
    """

    checks: tuple[Check, ...]
    certificate: Certificate | None
    unchecked: tuple[str, ...] = ()
    unproven: tuple[str, ...] = ()

    @property
    def passed(self) -> bool:
        """Whether every check passed."""
        return all(check.passed for check in self.checks)


def _check(name: str, passed: bool, problem: str, detail: str) -> Check:
    """A check with its detail, or with the problem if it failed."""
    return Check(name=name, passed=passed, detail=detail if passed else problem)


def verify(
    folder: str | Path,
    *,
    public_key: str | Path | None = None,
    incidence: Incidence | None = None,
    secrets: Secrets | None = None,
    slots: Slots | None = None,
    after: Sequence[str | Path] | None = None,
    attestation: str | Path | None = None,
    certificate_chain: Sequence[str | Path] = (),
    progress: Progress | None = None,
) -> Verification:
    """Recompute everything that a plan's folder states. Guarantee: `passed` only if every promise was proven again.

    For a release (release/ of ``hush train``, share/ of ``hush run``) the plan in it is verified; the certificate of
    the run must say what that plan says, and the files of the model must have the fingerprint that it names.

    public_key: a PEM file. With an Ed25519 key the detached signature of the plan, or of the release, must be valid for
    it; with one on an elliptic curve the attestations of the release must be, and say what the release says.
    certificate_chain: instead, PEM files of the certificates that must vouch for the signer of the attestations.
    attestation: the file of the attestations, with model.sig beside it; by default in the release. incidence, secrets
    and slots: those of the owner; graph, ids, priors, ceilings and slots of the plan must then equal them.
    Slots.none(incidence) says that the owner's secrets cover whole examples. after: the earlier releases of its chain,
    in order, as folders of plans or releases; by default those in ``earlier/`` of the release, or beside the plan.
    """
    root = Path(folder)
    released = is_release(root)
    key = None if public_key is None else Path(public_key)
    trust = Trust.of(key, [Path(path) for path in certificate_chain])
    bundle = root / ATTESTATIONS if attestation is None else Path(attestation)
    if trust is None and attestation is not None:
        by = ("pass the key of their signer as ", Setting("public_key"), ", or as ", Setting("certificate_chain"))
        raise InvalidInput("attestations are checked for a signer; ", *by, " certificates that vouch for it")
    if trust is not None and not released:
        raise InvalidInput(f"{root} is not a release, and attestations are about a model; pass a release")
    signed = key is not None and (trust is None or trust.public_key is None)  # by a detached signature
    path = root / "plan" if released else root
    try:
        record = read_record(path)
        refuse_unknown_words(minor_version(record))
    except HushError as error:
        return Verification(checks=(Check(name="plan.json", passed=False, detail=str(error)),), certificate=None)
    checks = [Check(name="plan.json", passed=True, detail=f"format {record['format']}, digest fits")]
    changed = changed_files(path, record)
    checks.append(_check("files", not changed, f"changed after the plan was written: {changed}", "every digest fits"))
    if key is not None and signed:
        problem = signature_problem(root, key)
        checks.append(_check("signature", problem is None, problem or "", f"valid for this key; {covered(root)}"))
    try:
        plan, rates = Plan(**read_fields(path, record)), stored_rates(path)
        certificate = Certificate.from_dict(read_json(path / "certificate.json"))
        unknown = additions(path, record)
    except (HushError, OSError, ValueError, KeyError, TypeError, OverflowError, RecursionError) as error:
        checks.append(Check(name="content", passed=False, detail=f"does not make a plan: {error}"))
        return Verification(checks=tuple(checks), certificate=None)
    if unknown:
        detail = f"{', '.join(unknown)} holds fields that are not part of a plan and not checked; make the plan again"
        checks.append(Check(name="content", passed=False, detail=detail))
    if incidence is not None:
        same = incidence.fingerprint == plan.incidence.fingerprint
        checks.append(_check("graph", same, "the plan has another graph than the one given", "the one given"))
    if secrets is not None:
        checks.append(_check_promises(plan, secrets))
    if slots is not None:
        checks.append(_check_slots(plan, slots))
    checks.append(_check_rates(plan, rates))
    checks.append(_check_plan_certificate(plan, certificate, path))
    checks.extend(_check_chain(plan, earlier_beside(root) if after is None else after))
    checks.extend(check_posteriors(plan, progress))
    if released:
        release_checks, certificate = check_release(root, plan, certificate)
        checks.extend(release_checks)
    if trust is not None:
        checks.extend(_check_attestations(root, bundle, trust, checks, certificate))
    rewritten = rewritten_files(plan, path, record)
    return Verification(
        checks=tuple(checks),
        certificate=certificate,
        unchecked=unchecked(
            root,
            record,
            released=released,
            key_given=signed,
            attested=() if trust is None else (bundle, bundle.with_name(MODEL_SIGNATURE)),
            earlier_read=after is None,
            rewritten=rewritten,
        ),
        unproven=unproven(
            record,
            certificate,
            released=released,
            graph_given=incidence is not None,
            secrets_given=secrets is not None,
            slots_given=slots is not None,
        ),
    )


def _check_promises(plan: Plan, secrets: Secrets) -> Check:
    prior_SQ, ceiling_SQ = promise_arrays(secrets.prior, secrets.ceiling, len(secrets))
    same = promises_fingerprint(secrets.ids, prior_SQ, ceiling_SQ) == plan.promises_fingerprint
    return _check("promises", same, "ids, priors or ceilings are not those given", "those given")


def _check_slots(plan: Plan, slots: Slots) -> Check:
    """The promises cover what the owner's slots say; without slots, whole examples."""
    if plan.slots is None or not len(plan.slots):
        problem = "the plan has no slots, so its promises cover whole examples; those given are for another plan"
        return _check("slots", not len(slots), problem, "none, as given: every promise covers whole examples")
    problem = "the plan has other slots than those given, so its promises cover other text"
    return _check("slots", plan.slots == slots, problem, "those given")


def _check_rates(plan: Plan, rate: Array) -> Check:
    """The weights give exactly the stored rates, which sum to the batch size; without capacities all are equal."""
    problems: list[str] = []
    expected = plan.batch_size * plan.weights / math.fsum(plan.weights)
    used = plan.weights[drawable_examples(plan)]
    if rate.shape != expected.shape or not np.all(np.abs(rate - expected) <= MAX_RATE_DIFFERENCE * expected):  # or NaN
        problems.append("rates are not batch_size * weight / sum(weights)")
    elif not (rate.size and rate.min() >= 0 and rate.max() <= 1):
        problems.append("rates leave [0, 1]")
    elif not abs(math.fsum(rate) - plan.batch_size) <= MAX_SUM_DIFFERENCE * plan.batch_size:
        problems.append(f"rates sum to {math.fsum(rate):.6g}, not to the batch size {plan.batch_size:g}")
    elif plan.capacity == "none" and used.min(initial=1.0) < 1 - MAX_UNEVENNESS:
        problems.append("some examples are used less than others, though the capacity is 'none'")
    return _check("rates", not problems, "; ".join(problems), f"sum to {plan.batch_size:g}, none above 1")


def _check_chain(plan: Plan, after: Sequence[str | Path]) -> tuple[Check, ...]:
    """Every earlier release of the plan is there, and what it states about its chain follows from them."""
    if plan.chain is None:
        problem = "the plan names no earlier releases, so those given are not of its chain"
        return (_check("predecessors", False, problem, ""),) if after else ()
    earlier, missing = missing_link(plan.chain, after)
    first = "none: this is the first release of its chain"
    there = first if not earlier else f"all {len(earlier)} are the ones that the plan names"
    found = _check("predecessors", missing is None, missing or "", there)
    if missing is not None:
        return (found,)
    problem = chain_problem(plan, earlier)
    what = "limits and shapes are those announced" if plan.chain.is_series else "spent and allowed, all recomputed"
    which = f"release {plan.chain.number}" + ("" if plan.chain.count is None else f" of {plan.chain.count}")
    return (found, _check("chain", problem is None, problem or "", f"{which}; {what}"))


# Every posterior again (``hush.plan.posteriors``).


def check_posteriors(plan: Plan, progress: Progress | None) -> tuple[Check, Check]:
    """Every recomputed posterior is at most its ceiling and the stated one, and exactly the listed secrets bind."""
    judgement = judge(plan, progress) if plan.chain is None else judge_chain(plan, plan.chain)
    total, faults = plan.incidence.num_secrets, judgement.secrets
    at_least = "" if judgement.complete else "at least "

    def named(fault: Fault) -> str:
        ids = [plan.secret_ids[secret] for secret in faults[fault][: MAX_NAMED + 1]]
        more = len(faults[fault]) - MAX_NAMED
        return ", ".join(ids[:MAX_NAMED]) + (f" and {at_least}{more} more" if more > 0 else "")

    if faults["broken"]:
        broken = counted(len(faults["broken"]), "promise")
        problem = f"{at_least}{broken} not kept at noise {plan.noise_multiplier:.6g}: {named('broken')}"
    else:
        problem = f"{at_least}{len(faults['larger than stated'])} larger than stated: {named('larger than stated')}"
    sound = judgement.complete and not (faults["broken"] or faults["larger than stated"])
    listed = judgement.complete and not faults["binding"]
    wrong = f"wrongly listed or left out: {named('binding')}" if faults["binding"] else "not checked any further"
    recomputed = "the one there is" if total == 1 else f"all {total}"
    bind = f"{counted(plan.binding.size, 'secret')} {'binds' if plan.binding.size == 1 else 'bind'}"
    return (
        _check("posteriors", sound, problem, f"{recomputed} recomputed, every one within its ceiling"),
        _check("binding", listed, wrong, f"{bind}, as stated"),
    )


# Certificates: that of a plan against the plan, that of a run against its plan.


def refuse_unknown_words(minor: int) -> None:
    """Refuse a plan of another minor version: a changed wording cannot be distinguished from a forged one."""
    if minor != MINOR:
        raise InvalidInput(
            f"the plan has format {MAJOR}.{minor}, and this hush knows the wording of certificates in format "
            f"{MAJOR}.{MINOR} only; use the hush that wrote it"
        )


def _check_plan_certificate(plan: Plan, stated: Certificate, folder: Path) -> Check:
    """Both forms of a plan's certificate say what the plan says, except for the versions that wrote it."""
    different = plan_differences(plan, stated) or _forms_differ(stated, folder)
    return _check_matches("certificate", different, _matches(stated))


def _check_run_certificate(plan: Plan, planned: Certificate, folder: Path) -> tuple[Check, Certificate | None]:
    """Both forms of a run's certificate say what that of its plan says, and what a run may add; and the certificate."""
    path = folder / "certificate.json"
    try:
        stated = Certificate.from_dict(read_json(path))
        different = run_differences(plan, planned, stated) or _forms_differ(stated, folder)
    except (HushError, OSError, ValueError, TypeError, RecursionError) as error:
        problem = error if isinstance(error, HushError | OSError) else f"{path} is not JSON that hush wrote"
        return Check(name="run's certificate", passed=False, detail=f"cannot be read: {problem}"), None
    detail = _matches(stated)
    if DATA_FINGERPRINT in planned.fingerprints and DATA_FINGERPRINT not in stated.fingerprints:
        detail += "; it does not name the data, which training did not check"
    return _check_matches("run's certificate", different, detail), stated


def plan_differences(plan: Plan, stated: Certificate) -> list[str]:
    """The fields in which a plan's certificate differs from the plan."""
    actual, expected = stated.to_dict(), plan.certificate.to_dict()
    different = _differences(actual, expected, except_for=(*UNCOMPARED, "curve"))
    if not (_curves_agree(actual["curve"], expected["curve"]) and _curve_is_proven(plan, stated, plan.certificate)):
        different.append("curve")
    if stated.versions.keys() != plan.certificate.versions.keys() or not _are_versions(stated):
        different.append("versions")
    return different


def run_differences(plan: Plan, planned: Certificate, stated: Certificate, *, same_place: bool = True) -> list[str]:
    """The fields in which a run's certificate differs from that of its plan, beyond what a run may add.

    planned: the certificate of the plan. same_place: both were written by the training, and agree to the last digit and
    word. Otherwise the plan may have been made by another version on another machine, and only its promises are
    compared. A run of 0.1.0 stated no sampling error; then the numbers of the plan are expected.
    """
    trained = stated.trained_parameters
    if trained is not None:
        planned = plan.run_certificate(trained, planned=planned)
    if stated.public_part is not None and _fits_plan(plan, stated.public_part):  # nothing more can be proven of it
        planned = replace(planned, public_part=stated.public_part)
    # How settings were chosen, and that no round was trained, is not proven; the plan's posteriors hold all the same.
    planned = replace(planned, rehearsed=stated.rehearsed, private_rounds=stated.private_rounds)
    actual, expected = stated.to_dict(), planned.to_dict()
    may_differ = () if same_place else ("curve", *WORDS)
    different = _differences(actual, expected, except_for=("versions", "fingerprints", "marks", *may_differ))
    if trained is None and same_place:
        different.append("trained_parameters (there are none, so what sampling adds is unknown)")
    if not same_place and not _curves_agree(actual["curve"], expected["curve"]):
        different.append("curve")
    run_versions, plan_versions = _without_torch(stated), _without_torch(planned)
    same = run_versions == plan_versions if same_place else run_versions.keys() == plan_versions.keys()
    if not _are_versions(stated) or not same:
        different.append("versions")
    if stated.marks[: len(planned.marks)] != planned.marks:
        different.append("marks")
    return different + _other_fingerprints(dict(planned.fingerprints), stated.fingerprints)


def _fits_plan(plan: Plan, public_part: Mapping[str, int]) -> bool:
    """Whether a run under this plan can have learnt so many examples and skeletons first."""
    free_N = plan.incidence.secrets_per_example == 0
    held_out = np.count_nonzero(free_N & (plan.weights == 0)) if plan.held_out is None else plan.held_out.size
    free = np.count_nonzero(free_N) - held_out
    skeletons = 0 if plan.slots is None else int(plan.slots.has_slots_N.sum())
    return bool(public_part["examples"] <= free) and public_part["skeletons"] <= skeletons


def _other_fingerprints(expected: dict[str, str], actual: Mapping[str, str]) -> list[str]:
    for name in (DATA_FINGERPRINT, SKELETON_FINGERPRINT):  # left out where training did not check them
        if name not in actual:
            expected.pop(name, None)
    names = sorted(name for name in {*actual, *expected} if name != MODEL and actual.get(name) != expected.get(name))
    different = [
        f"fingerprint of the {name}" if name in expected else "a fingerprint of something else" for name in names
    ]
    return different if MODEL in actual else [*different, "fingerprint of the model (there is none)"]


def _check_matches(name: str, different: list[str], detail: str) -> Check:
    return _check(name, not different, f"does not match the plan in {', '.join(different)}", detail)


def _differences(actual: dict[str, Any], expected: dict[str, Any], *, except_for: tuple[str, ...]) -> list[str]:
    compared = [name for name in expected | actual if name not in except_for]
    return [
        _described(name, actual.get(name), expected.get(name))
        for name in compared
        if not _identical(actual.get(name), expected.get(name))
    ]


def _forms_differ(stated: Certificate, folder: Path) -> list[str]:
    """Which of the two files differs from this certificate in content or form."""
    different: list[str] = []
    if (folder / "certificate.json").read_bytes() != f"{json.dumps(stated.to_dict(), indent=2)}\n".encode():
        different.append("certificate.json (it holds more than that, or is written in another way)")
    page = folder / "certificate.md"
    if not page.is_file() or page.read_bytes() != stated.to_markdown().encode():
        different.append("certificate.md")
    return different


def _matches(certificate: Certificate) -> str:
    return "matches the plan" if certificate.is_real else f"matches the plan, but is marked: {certificate.marks}"


def _described(name: str, actual: Any, expected: Any) -> str:
    """A field, with its values if they are plain numbers."""
    plain = all(isinstance(value, int | float) and not isinstance(value, bool) for value in (actual, expected))
    return f"{name} ({actual!r}, the plan's is {expected!r})" if plain else name


def _identical(actual: Any, expected: Any) -> bool:
    return type(actual) is type(expected) and actual == expected


def _are_versions(stated: Certificate) -> bool:
    """Whether its versions have the form of versions."""
    return all(VERSION.fullmatch(version) for version in stated.versions.values())


def _without_torch(certificate: Certificate) -> dict[str, str]:
    return {name: version for name, version in certificate.versions.items() if name != TORCH}


def _curves_agree(actual: dict[str, Any], expected: dict[str, Any]) -> bool:
    """The same secrets and priors, and posteriors that another machine may have computed."""
    if actual.keys() != expected.keys() or any(len(actual[name]) != len(expected[name]) for name in expected):
        return False
    pairs = [pair for name in expected for pair in zip(actual[name], expected[name], strict=True)]
    return all(
        left[0] == right[0] and math.isclose(left[1], right[1], rel_tol=MAX_BOUND_DIFFERENCE) for left, right in pairs
    )


def _curve_is_proven(plan: Plan, stated: Certificate, expected: Certificate) -> bool:
    """Whether the posteriors of a curve with the right secrets and priors are upper bounds."""
    for name, points in expected.curve.items():
        prior, recomputed = np.array(points).T
        posterior_stated = np.array(stated.curve[name])[:, 1]
        if plan.chain is not None:
            row = np.array([plan.secret_ids.index(name)])
            finer = plan.chain.posterior(row, prior[None, :], bound=plan.bound, accuracy=FINE_ACCURACY)[0]
            if not np.all(np.minimum(recomputed, finer) <= posterior_stated * (1 + MAX_MACHINE_DIFFERENCE)):
                return False
            continue
        if not are_proven(plan, plan.secret_ids.index(name), prior, posterior_stated, recomputed):
            return False
    return True


# Releases.


def check_release(folder: Path, plan: Plan, planned: Certificate) -> tuple[tuple[Check, ...], Certificate | None]:
    """The checks of a release in addition to those of its plan, and its certificate.

    planned: the certificate of its plan as stored; ``refuse_unknown_words`` must have accepted its version.
    """
    matches, certificate = _check_run_certificate(plan, planned, folder)
    trained = None if certificate is None else certificate.trained_parameters
    sampling = () if trained is None else (_check_sampling_error(plan, trained),)
    return (matches, *sampling, _check_model(folder, certificate), _check_names(folder, plan)), certificate


def _check_sampling_error(plan: Plan, trained: int) -> Check:
    """Every posterior is at most its ceiling, also with what computed draws and noise of so many parameters may add."""
    error = plan.sampling_error_of_run(trained)
    own = sampling_error(trained, batch_size=plan.batch_size, rounds=plan.rounds)
    if plan.chain is not None and own > plan.chain.sampling_limit:
        left = f"the chain leaves {rounded_down(plan.chain.sampling_limit, 3)} to this release"
        detail = f"computed draws and noise may add {rounded_up(own, 3)}, and {left}"
        return Check(name="sampling error", passed=False, detail=detail)
    passed_S = (plan.posterior_of_run(trained) > plan.ceiling).any(axis=1)
    added = f"computed draws and noise add at most {rounded_up(error, 3)} to a posterior"
    problem = f"{added}, which lifts {counted(int(passed_S.sum()), 'posterior')} above the ceiling"
    return _check("sampling error", not passed_S.any(), problem, f"{added}, and every one stays within its ceiling")


def model_problem(model: Path, named: str | None) -> str | None:
    """Why a folder is not the model that a certificate names by this fingerprint; None if it is."""
    if not model.is_dir():
        return "there is no folder model/; restore what was released"
    # The fingerprint does not cover these: it follows no links, and a line break in a name could stand for two files.
    odd = [path for path in sorted(model.rglob("*")) if not path.name.isprintable() or not _is_covered(path)]
    if odd:
        return f"{shown(odd[0], model.parent)} is a link or has an odd name; copy the model as plain files"
    empty = [path for path in (model, *sorted(model.rglob("*"))) if path.is_dir() and not any(path.iterdir())]
    if empty:
        return f"{shown(empty[0], model.parent)} is an empty folder, which no fingerprint covers; remove it"
    actual = folder_digest(model)
    if actual != named:
        return f"its files have the fingerprint {actual}, which is not the one in the certificate; it is another model"
    return None


def _check_model(folder: Path, certificate: Certificate | None) -> Check:
    if certificate is None:
        return Check(name="model", passed=False, detail="no certificate says which model it must be")
    problem = model_problem(folder / "model", certificate.fingerprints.get(MODEL))
    return _check("model", problem is None, problem or "", "its files have the fingerprint that the certificate names")


def _plan_files(plan: Plan) -> set[str]:
    """The files of the folder of this plan."""
    parts = (*((SLOTS_FILE,) if plan.slots is not None else ()), *((CHAIN_FILE,) if plan.chain is not None else ()))
    return {"plan.json", *FILES, *parts, SIGNATURE}


def _check_names(folder: Path, plan: Plan) -> Check:
    """A release and its plan hold no foreign files, which a reader could take for checked ones."""
    known = {*RELEASE_FILES, *RELEASE_FOLDERS, RELEASE_SIGNATURE}
    foreign = [path for path in folder.iterdir() if path.name not in known and not OPTIONAL_FILES.fullmatch(path.name)]
    if (folder / "plan").is_dir():
        own = _plan_files(plan)
        foreign += [path for path in (folder / "plan").iterdir() if path.name not in own]
    if (folder / EARLIER).is_dir():
        known_files = {"plan.json", *FILES, SLOTS_FILE, CHAIN_FILE, SIGNATURE}
        places = list((folder / EARLIER).iterdir())
        foreign += [path for path in places if not (path.is_dir() and not path.is_symlink())]
        inside = [path for place in places if place.is_dir() for path in place.iterdir()]
        foreign += [path for path in inside if path.name not in known_files or not _is_covered(path)]
    listed = ", ".join(shown(path, folder) for path in sorted(foreign)[:MAX_NAMED])
    problem = f"holds files that are not part of a release: {listed}; remove them, or ask who put them there"
    return _check("folder", not foreign, problem, "holds only files that are part of a release")


# Attestations.

NOT_ATTESTED = ("signature", "graph", "promises", "slots")  # checks of what only the one who verifies was given


def attested_result(release: Path, checks: Sequence[Check], certificate: Certificate | None) -> Result:
    """What an attestation says of a verification: what anybody finds who has the release and nothing else."""
    made = [check for check in checks if check.name not in NOT_ATTESTED]
    nothing_given = dict.fromkeys(("graph_given", "secrets_given", "slots_given"), False)
    return Result(
        passed=tuple(check.name for check in made if check.passed),
        failed=tuple(check.name for check in made if not check.passed),
        unproven=unproven(read_record(release / "plan"), certificate, released=True, **nothing_given),
    )


def _check_attestations(
    release: Path, bundle: Path, trust: Trust, checks: Sequence[Check], certificate: Certificate | None
) -> tuple[Check, ...]:
    """Somebody trusted signed these files of the model, and attests this certificate and this result for them."""
    signature = bundle.with_name(MODEL_SIGNATURE)
    problem = model_signature_problem(release / "model", signature, trust)
    signed = _check(signature.name, problem is None, problem or "", "OpenSSF Model Signing finds every file signed")
    if problem is not None or certificate is None:
        unread = "not read: there is no sound signature or certificate of the model that they must be about"
        return (signed, Check(name="attestations", passed=False, detail=unread))
    result = attested_result(release, checks, certificate)
    problem = attestations_problem(bundle, signature, trust, release, certificate.to_dict(), result)
    detail = "of this model, this certificate and this result of its verification, by the same signer"
    return (signed, _check("attestations", problem is None, problem or "", detail))


def _is_covered(path: Path) -> bool:
    return path.is_file() or (path.is_dir() and not path.is_symlink())

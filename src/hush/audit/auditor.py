"""A complete audit of one run: every attack that its inputs allow, the verdict, and the report.

What it reads of the data stays in the audit's own folder. An audit on data with secrets is itself computed from them:
publishing its numbers is a release that no plan accounts for.
"""

from collections.abc import Iterable
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any, final

from hush.audit.attacks import ATTACK_TABLE
from hush.audit.exposure import CanaryRank
from hush.audit.extraction_audit import ExtractionResult
from hush.audit.folders import AuditedRun
from hush.audit.record import audit_record, audit_text
from hush.audit.session import AuditFolder, AuditInputs, AuditSession, StepProgress
from hush.audit.settings import AuditSettings
from hush.audit.verdict import Verdict, judge
from hush.certificate import DATA_FINGERPRINT
from hush.errors import InvalidInput, Setting
from hush.numbers import counted
from hush.train.pretrained import choose_device

__all__ = ["Audit", "audit"]


@final
@dataclass(frozen=True, slots=True, kw_only=True, eq=False, repr=False)
class Audit:
    """A finished audit. record is the report: names, counts and numbers. The rest is for the owner."""

    verdict: Verdict
    extractions: tuple[ExtractionResult, ...]
    ranks: tuple[CanaryRank, ...]
    notices: tuple[str, ...]
    record: dict[str, Any]

    def __repr__(self) -> str:
        return f"Audit({self.verdict.status}, {len(self.verdict.rows)} rows)"


def audit(
    run: AuditedRun,
    inputs: AuditInputs | None = None,
    *,
    folder: str | Path,
    settings: AuditSettings | None = None,
    progress: StepProgress | None = None,
) -> Audit:
    """Run every attack that the inputs allow, and write the report into a folder; an unfinished audit is resumed.

    Guarantee: if training kept its promises and every stated prior is right, the verdict is "failed" with probability
    at most ``settings.level``.
    """
    inputs = AuditInputs() if inputs is None else inputs
    session = AuditSession(
        run=run,
        inputs=replace(inputs, releases=run.with_models(inputs.releases)),
        settings=settings or AuditSettings(),
        folder=AuditFolder(folder),
        progress=progress or (lambda _step, _done, _total: None),
    )
    choose_device(session.settings.device)  # refuses a missing device before any work
    planting, corpus = session.inputs.planting, session.inputs.corpus
    if corpus is not None and planting is not None:
        planting.check_data(corpus.texts())
    unchecked = _unchecked_data(session) if corpus is not None or planting is not None else []
    session.notices.extend([*unchecked, *_about_chain(session)])
    results = [
        attack.run(session)
        for attack in ATTACK_TABLE
        if attack.name in session.settings.attacks and attack.is_possible(session.inputs)
    ]
    extractions = [extraction for result in results for extraction in result.extractions]
    ranks = [rank for result in results for rank in result.ranks]
    naming = next((result.naming for result in results if result.naming is not None), None)
    attacked = {secret for extraction in extractions for secret in extraction.hit_by_secret}
    attacked |= {run.secret_index(rank.id) for rank in ranks}
    session.notices.extend(_rarely_drawn(run, attacked))
    verdict = judge([attempt for result in results for attempt in result.attempts], level=session.settings.level)
    session.notices.extend(_unjudged(verdict))
    record = audit_record(run, verdict, extractions, ranks, session.notices)
    record["naming"] = None if naming is None else asdict(naming)
    record["data_checked"] = not unchecked
    hit_by_id = {
        run.plan.secret_ids[secret]: hit
        for extraction in extractions
        for secret, hit in extraction.hit_by_secret.items()
    }
    details = {"came_out": hit_by_id, "canaries": [asdict(rank) for rank in ranks]}
    session.folder.write(record, audit_text(record), details)
    return Audit(
        verdict=verdict,
        extractions=tuple(extractions),
        ranks=tuple(ranks),
        notices=tuple(session.notices),
        record=record,
    )


def _about_chain(session: AuditSession) -> list[str]:
    """What the reader must know about a run that is one of several releases."""
    chain, releases = session.run.plan.chain, session.inputs.releases
    if chain is None:
        return []
    of_all = "" if chain.count is None else f" of {chain.count}"
    after = "all releases so far" if chain.count is None else "all announced releases"
    notices = [
        f"this is release {chain.number}{of_all} of a chain: its bounds are about an adversary who holds the models of "
        f"{after}; the simulation attacks {counted(chain.number, 'release')}, at the settings that were used"
    ]
    planting = session.inputs.planting
    if planting is None:
        if releases:
            notices.append("the models of earlier releases were not attacked: only canaries are attacked with several")
        return notices
    ids = {canary.id for canary in planting.canaries}
    without = [number for number, release in enumerate(releases, start=1) if not ids <= set(release.plan.secret_ids)]
    if without:
        raise InvalidInput(
            f"{counted(len(without), 'earlier release')} of {len(releases)} did not list these canaries; plant the "
            "same ones in each release (plant_again), or leave those releases out of ",
            Setting("earlier"),
        )
    if releases:
        notices.append(
            f"canaries were ranked by the sum over {counted(len(releases) + 1, 'model')}; that the earlier ones were "
            "trained on the same canaries follows from their ids alone, it was not compared with their data"
        )
    if len(releases) + 1 < chain.number:
        notices.append(
            f"the adversary of the bounds holds {chain.number} models, and canaries were ranked by {len(releases) + 1}"
        )
    return notices


def _unchecked_data(session: AuditSession) -> list[str]:
    """A notice where it is unknown whether the model was trained on the data or canaries it is attacked with."""
    consequence = "a model attacked with the data or canaries of another training gives nothing away"
    if not session.inputs.compared:
        return [
            f"it was not checked that these are the plan's data, and {consequence}; audit with the data key of the plan"
        ]
    if session.run.plan.data_fingerprint is not None and DATA_FINGERPRINT not in session.run.certificate.fingerprints:
        return [
            "training did not check that it used the plan's data, and its certificate has no fingerprint of the data: "
            f"{consequence}"
        ]
    return []


def _rarely_drawn(run: AuditedRun, secrets: Iterable[int]) -> list[str]:
    """A notice where the plan hardly draws some secrets: no training would give them away."""
    plan = run.plan
    draws = [plan.rounds * float(plan.rates[plan.incidence.examples_of(secret)].sum()) for secret in secrets]
    rare = sum(expected < 1 for expected in draws)
    if not rare:
        return []
    return [
        f"of {counted(len(draws), 'secret')} attacked on the model, the plan draws {rare:,} less than once in the "
        "whole training, on average: that these do not come out says little about training"
    ]


def _unjudged(verdict: Verdict) -> list[str]:
    """A notice where attacks could not have shown a broken promise."""
    if verdict.powerless:
        return [
            f"{counted(verdict.powerless, 'row')} could not have failed, whatever came out: with so few tries no limit "
            "reaches the bound, or no hit would have been eligible; promise canaries a ceiling below the level, rank "
            "more of their candidates, add independent runs, or simulate more trials"
        ]
    if verdict.status == "model not judged":
        return [
            "no attack on the model itself was judged: pass canaries, or data with the spans of its secrets, and make "
            "sure that training does not truncate them"
        ]
    return []

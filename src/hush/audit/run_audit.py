"""A whole audit of one run: every attack that its inputs allow, the verdict, and a report.

What it reads of the data stays in the audit's own folder. An audit on data with secrets is itself computed from them:
publishing its numbers is a release that no plan accounts for.
"""

from collections.abc import Iterable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, final

from hush.audit.attempts import extraction_attempts, mechanism_attempt, named_run, naming_attempt
from hush.audit.audit_files import AuditFolder
from hush.audit.audit_report import audit_record, audit_text
from hush.audit.audited_run import AuditedRun
from hush.audit.canary_files import Planting
from hush.audit.exposure import Ranked, chance_of_ranks
from hush.audit.steps import closest_secrets, exposed, simulated
from hush.audit.verdict import Attempt, Verdict, judge
from hush.audit.work import AuditInputs, AuditSettings, Told, Work
from hush.audit.work_extraction import Found, examples_found, secrets_found
from hush.certificate import DATA_FINGERPRINT
from hush.rounding import counted

__all__ = ["Audit", "audit"]


@final
@dataclass(frozen=True, slots=True, kw_only=True, eq=False, repr=False)
class Audit:
    """A finished audit. record is the report: names, counts and numbers. The rest is for the owner."""

    verdict: Verdict
    found: tuple[Found, ...]
    ranks: tuple[Ranked, ...]
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
    progress: Told | None = None,
) -> Audit:
    """Attack a run with all that the inputs allow, and write the report into a folder; an unfinished one goes on.

    Guarantee: if training kept its promises and every stated prior is right, the verdict is "failed" with probability
    at most ``settings.level``.
    """
    work = Work(
        run=run,
        inputs=inputs or AuditInputs(),
        settings=settings or AuditSettings(),
        folder=AuditFolder(folder),
        told=progress or (lambda _what, _done, _total: None),
    )
    if work.inputs.corpus is not None and work.inputs.planting is not None:
        work.inputs.planting.check_data(work.inputs.corpus.texts())
    unchecked = _data_notices(work) if work.inputs.corpus is not None or work.inputs.planting is not None else []
    work.notices.extend(unchecked)
    wanted = work.settings.attacks
    attempts = _mechanism(work) if "mechanism" in wanted else []
    found = _extraction(work) if "extraction" in wanted and work.inputs.corpus is not None else []
    planting, naming = work.inputs.planting, None
    for one in found:
        classes = work.inputs.places.classes if work.inputs.places else {}
        attempts += extraction_attempts(run, one.hit_of, classes, canary_prior=work.canary_prior)
    ranks = _exposure(work, planting) if "exposure" in wanted and planting is not None else []
    if ranks and planting is not None:
        naming = named_run(run, planting.canaries[0], planting.id, ranks[0])
        attempts.append(naming_attempt(run, planting.canaries[0], [naming, *work.inputs.earlier]))
    attacked = {secret for one in found for secret in one.hit_of} | {run.secret(one.id) for one in ranks}
    work.notices.extend(_hardly_trained(run, attacked))
    verdict = judge(attempts, level=work.settings.level)
    if verdict.status == "model not judged" and not verdict.powerless:
        work.notices.append(
            "no attack on the model itself was judged: pass canaries, or data with the places of its secrets, and see "
            "that training does not cut them off"
        )
    if verdict.powerless:
        work.notices.append(
            f"{counted(verdict.powerless, 'row')} could not have failed, whatever came out: from so few tries no limit "
            "reaches the bound, or nothing that came out would have counted; promise canaries less than the level, "
            "rank more of their candidates, add independent runs, or simulate more"
        )
    record = audit_record(run, verdict, found, ranks, work.notices)
    record["naming"] = None if naming is None else asdict(naming)
    record["data_checked"] = not unchecked
    hit_of = {run.plan.secret_ids[secret]: hit for one in found for secret, hit in one.hit_of.items()}
    work.folder.write(record, audit_text(record), {"came_out": hit_of, "canaries": [asdict(one) for one in ranks]})
    return Audit(verdict=verdict, found=tuple(found), ranks=tuple(ranks), notices=tuple(work.notices), record=record)


def _data_notices(work: Work) -> list[str]:
    """Where nobody knows whether the model was trained on the data or canaries that it is attacked with."""
    other = "a model attacked with data or canaries of another training gives nothing away"
    if not work.inputs.compared:
        return [f"nobody checked that these are the data of the plan: {other}; pass --key, or compared=True in Python"]
    if work.run.plan.data_fingerprint is not None and DATA_FINGERPRINT not in work.run.certificate.fingerprints:
        return [f"training did not check that it saw the data of the plan, and its certificate names none: {other}"]
    return []


def _hardly_trained(run: AuditedRun, secrets: Iterable[int]) -> list[str]:
    """Where the plan leaves secrets out, or nearly so, of which no training would give anything away."""
    plan = run.plan
    draws = [plan.rounds * float(plan.rates[plan.incidence.examples_of(secret)].sum()) for secret in secrets]
    few = sum(drawn < 1 for drawn in draws)
    if not few:
        return []
    return [
        f"of {counted(len(draws), 'secret')} that were attacked on the model, the plan draws {few:,} less than once in "
        "the whole training, on average: that these do not come out says little about training"
    ]


def _mechanism(work: Work) -> list[Attempt]:
    chosen = closest_secrets(work.run, work.settings.secrets)
    if not chosen:
        work.notices.append("the plan has no secrets, so that there is no mechanism to attack")
        return []
    found = simulated(
        work.run,
        chosen,
        work.pieces("mechanism", [work.settings.secrets, work.settings.trials]),
        trials=work.settings.trials,
        seed=work.settings.seed,
        progress=work.bar("Simulating the worst case"),
    )
    return [mechanism_attempt(work.run, *which, attack) for which, attack in zip(chosen, found, strict=True)]


def _extraction(work: Work) -> list[Found]:
    places = work.inputs.places
    found = [] if places is None or not len(places) else [secrets_found(work, places)]
    if not work.models.masked:
        if places is None or work.inputs.held_out is not None:
            found.append(examples_found(work))
    elif places is None:
        work.notices.append("a masked language model is tried where secrets stand: pass a scan, canaries or spans")
    return [one for one in found if one is not None]


def _exposure(work: Work, planting: Planting) -> list[Ranked]:
    """Ranks by the model, less what the reference finds likely anyway if there is one."""
    canaries, candidates, models = planting.canaries, planting.candidates, work.models
    if models.masked:
        work.notices.append("canaries are ranked on causal language models only, so these were not")
        return []
    for canary in canaries:
        listed = set(work.run.plan.incidence.examples_of(work.run.secret(canary.id)).tolist())
        if not listed.issuperset(canary.examples):
            work.notices.append(f"the plan does not list every example of {canary.id}: its bound is for fewer")
    content = [f"{one.id} {one.truth} {one.template.before}\0{one.template.after}" for one in canaries]
    asked = [work.settings.candidates, models.max_length, work.reference_id]
    ranks = exposed(
        models.subject,
        models.tokenizer,
        canaries,
        candidates,
        work.pieces("exposure", asked, [repr(candidates.to_dict()), *content]),
        max_length=models.max_length,
        most=work.settings.candidates,
        reference=models.reference,
        batch_size=work.settings.batch_size,
        seed=work.settings.seed,
        progress=work.bar("Ranking candidates"),
    )
    if not ranks[0].told:
        work.notices.append(
            f"{ranks[0].id} cannot be named: to the tokenizer it is the same as other candidates; plant some that it "
            "tells apart"
        )
    anyway = [one.anyway for one in ranks if one.anyway is not None]
    if anyway:
        ranked = ranks[0].ranked
        work.refuse_reference(chance_of_ranks(anyway, ranked), least=chance_of_ranks([1] * len(anyway), ranked))
    return ranks

"""Who contains which secret, by the rules; then, if the audit asks for canaries, those planted after the examples.

From promises to a plan, tied to the very data that the scan saw.

Attacks on what was trained, with the places of secrets that the scan found and the canaries that were planted.

Two reports: the owner's, with everything, and one to share, made from what may leave and nothing else.
"""

from dataclasses import replace
from pathlib import Path
from random import SystemRandom
from typing import TYPE_CHECKING, Any, final

import numpy as np

from hush.audit.settings import AuditSettings
from hush.certificate import Certificate
from hush.console import counted
from hush.data import read_corpus
from hush.errors import InfeasiblePlan, InvalidInput
from hush.incidence import Incidence
from hush.keys import DataKey
from hush.plan import Plan
from hush.plan.make import graph_of_training
from hush.plan.plan import promises_fingerprint
from hush.protection import promise_arrays
from hush.run.config import BASE_MODEL
from hush.run.folder import SHARED_REPORT, StageName, discard
from hush.run.job import Job, file_rows, files_of, unread_files
from hush.run.stage_train import model_fingerprint, model_path, named_fingerprint, training_folder
from hush.scan.rules.schema import LiteralsRule
from hush.secret_table import Secrets
from hush.storage import read_json, whole_folder

if TYPE_CHECKING:
    from hush.audit.folders import AuditedRun
    from hush.audit.session import AuditInputs
    from hush.scan.result import Scan
    from hush.weights import Frontier

__all__ = ["AuditStage", "CanariesStage", "PlanStage", "ReportStage", "ScanStage", "plan_identity"]


PLACE = ("example", "secret", "begin", "end")


@final
class ScanStage:
    """``hush scan``, with its review page."""

    name: StageName = "scan"
    needs: tuple[StageName, ...] = ("data",)

    def settings(self, job: Job) -> Any:
        config = job.config
        files = [rule.file for rule in config.rules.rules if isinstance(rule, LiteralsRule) and rule.file is not None]
        literals = job.key.fingerprint_rows(file_rows([(name, config.rules.path(name)) for name in files]))
        data = config.data
        return [config.stated_rules, literals, data.column, data.unit, data.id_column, data.skip_bad]

    def run(self, job: Job) -> dict[str, Any]:
        from hush.scan.review import write_review
        from hush.scan.scanner import scan

        config, notices = job.config, []
        found = scan(
            config.source,
            config.rules,
            column=config.data.column,
            unit=config.data.unit,
            id_column=config.data.id_column,
            key=job.key,
            skip_bad=config.data.skip_bad,
            workers=config.data.workers,
            progress=lambda done, total: job.watch.work("Scanning", done, total),
            notice=notices.append,
        )
        notices += _odd(found)
        notices += [] if config.rules.about_code else unread_files(config.source)
        for notice in notices:
            job.watch.notice(notice)

        def review(owner: Path) -> None:
            write_review(found, owner / "review.html", source=config.source, notices=notices)

        if job.paths.scan.exists():
            discard(job.paths.scan)  # whatever it is, the record knows nothing good of it
        found.save(job.paths.scan, also=review)
        return {
            "fingerprint": job.fingerprint(*_identity(found.incidence, found.secrets), found.data_fingerprint),
            "data_fingerprint": found.data_fingerprint,
            "places": _places(found, job.key),
            "examples": found.incidence.num_examples,
            "secrets": found.incidence.num_secrets,
            "pairs": found.incidence.num_entries,
            "skipped": found.skipped,
            "notices": notices,  # for the end of every later run, too: it may not scan again
        }

    def is_there(self, job: Job) -> bool:
        return (job.paths.scan / "public" / "summary.json").is_file()


@final
class CanariesStage:
    """``hush canaries``: the true ones are drawn once, by the system, and never again for the same scan."""

    name: StageName = "canaries"
    needs: tuple[StageName, ...] = ("scan",)

    def settings(self, job: Job) -> Any:
        return job.canaries.model_dump()

    def run(self, job: Job) -> dict[str, Any]:
        from hush.audit.canaries import Candidates, Template, plant, save_planted, templates_from

        wanted, corpus, public = job.canaries, job.scanned(), job.paths.scan / "public"
        incidence = Incidence.from_parquet(public / "incidence.parquet")
        secrets = Secrets.from_parquet(public / "secrets.parquet")
        if wanted.templates is None:
            holds_N = np.asarray(incidence.secrets_per_example > 0)
            templates = templates_from(corpus.texts(), holds_N, wanted.count, SystemRandom())
        else:
            templates = [Template.parse(text) for text in wanted.templates]
        planted = plant(
            incidence,
            secrets,
            templates,
            Candidates.of_format(wanted.alphabet, wanted.length),
            count=wanted.count,
            repeats=wanted.repeats,
            ceiling=wanted.ceiling,
        )
        discard(job.paths.canaries)
        save_planted(planted, corpus, job.paths.canaries)
        fingerprint = job.key.fingerprint_rows(job.corpus().texts())
        return {
            "fingerprint": job.fingerprint(*_identity(planted.incidence, planted.secrets), fingerprint),
            "data_fingerprint": fingerprint,
            "canaries": wanted.count,
            "examples": planted.incidence.num_examples,
            "secrets": planted.incidence.num_secrets,
        }

    def is_there(self, job: Job) -> bool:
        return (job.paths.canaries / "owner" / "canaries.json").is_file()


def _odd(found: "Scan") -> list[str]:
    """What a scan says in its tables, and a run would pass over: rules that found nothing, rows that were left out."""
    said = [
        f"rule {rule['rule']}: no example holds a secret of it; if you know one that does, mend the rule"
        for rule in found.summary()["rules"]
        if not rule["secrets_found"]
    ]
    if found.skipped:
        said.append(f"left out, since they cannot be read: {counted(found.skipped, 'row')}")
    return said


def _places(found: "Scan", key: DataKey) -> str:
    """The fingerprint of where secrets stand: no plan depends on it, but the audit attacks there."""
    batches = () if found.owner is None else found.owner.reasons()
    return key.fingerprint_rows(batch.column(name).to_numpy().tobytes() for batch in batches for name in PLACE)


def _identity(incidence: Incidence, secrets: Secrets) -> tuple[str, str]:
    prior_SQ, ceiling_SQ = promise_arrays(secrets.prior, secrets.ceiling, len(secrets))
    return incidence.fingerprint, promises_fingerprint(secrets.ids, prior_SQ, ceiling_SQ)


TOLD = 3  # secrets that a message names


@final
class PlanStage:
    """``hush plan``."""

    name: StageName = "plan"
    needs: tuple[StageName, ...] = ("scan", "canaries")

    def settings(self, job: Job) -> Any:
        return job.config.plan.model_dump()

    def run(self, job: Job) -> dict[str, Any]:
        from hush.plan.make import choose_held_out, make_plan_holding_out

        asked = job.config.plan
        secrets = Secrets.from_parquet(job.public("secrets.parquet"))
        incidence = Incidence.from_parquet(job.public("incidence.parquet"))
        if not incidence.num_examples:
            raise InvalidInput(f"data.source: {job.config.source} holds no example; pass data with at least one")
        held_out = choose_held_out(incidence, asked.hold_out)
        _check_batch_size(asked.batch_size, incidence.num_examples - held_out.size)
        _check_room(secrets, incidence)
        plan = make_plan_holding_out(
            incidence,
            held_out,
            prior=secrets.prior,
            ceiling=secrets.ceiling,
            secret_ids=secrets.ids,
            **asked.arguments,
            data_fingerprint=job.outputs("canaries" if job.has_canaries else "scan")["data_fingerprint"],
            progress=lambda done, total: job.watch.work("Planning", done, total),
        )
        plan.save(job.paths.plan)
        return {
            "fingerprint": job.fingerprint(plan_identity(plan)),
            "noise_multiplier": plan.noise_multiplier,
            "kept_fraction": plan.kept_fraction,
            "rounds": plan.rounds,
            "batch_size": plan.batch_size,
            "created": plan.created,
        }

    def is_there(self, job: Job) -> bool:
        return (job.paths.plan / "plan.json").is_file()


def _check_batch_size(batch_size: float, examples: int) -> None:
    """Refuse more examples in a round than there are."""
    if batch_size > examples:
        raise InvalidInput(
            f"plan.batch_size: {batch_size:g} is more than the {counted(examples, 'example')} to train on; lower it"
        )


def _check_room(secrets: Secrets, incidence: Incidence) -> None:
    """Refuse promises that only a training without the secret's examples would keep, all of them at once."""
    prior_SQ, ceiling_SQ = promise_arrays(secrets.prior, secrets.ceiling, len(secrets))
    without = np.flatnonzero((ceiling_SQ <= prior_SQ).any(axis=1) & (incidence.examples_per_secret > 0)).tolist()
    if without:
        named = ", ".join(secrets.ids[secret] for secret in without[:TOLD])
        more = f" and {len(without) - TOLD} more" if len(without) > TOLD else ""
        first = without[0]
        point = int((ceiling_SQ[first] <= prior_SQ[first]).argmax())
        raise InfeasiblePlan(
            f"{named}{more}: the ceiling is the prior ({ceiling_SQ[first, point]:g} for the first), so nothing may be "
            "learned from the examples, whatever the noise; raise the ceiling under promises or in the rule, or take "
            "these examples out of the data"
        )


def plan_identity(plan: Plan) -> list[Any]:
    """What makes two plans the same training, which the moment they were made does not."""
    numbers = [plan.noise_multiplier, plan.noise_scale, plan.rounds, plan.batch_size, plan.clip_norm, plan.bound]
    return [numbers, sorted(plan.certificate.fingerprints.items())]


@final
class AuditStage:
    """``hush audit``, if the config asks for one."""

    name: StageName = "audit"
    needs: tuple[StageName, ...] = ("scan", "canaries", "plan", "train")

    def settings(self, job: Job) -> Any:
        audit = job.audit
        files = [] if audit.held_out is None else files_of(job.config.located(audit.held_out), code=False)
        reference = audit.reference
        if reference is not None:
            reference = model_fingerprint(job) if reference == BASE_MODEL else named_fingerprint(job, reference)
        places = job.outputs("scan").get("places")
        speed = {"micro_batch", "device", *(["max_length"] if audit.max_length is None else [])}  # change no result
        return [audit.model_dump(exclude=speed), reference, places, job.key.fingerprint_rows(file_rows(files))]

    def run(self, job: Job) -> dict[str, Any]:
        from hush.audit.auditor import audit
        from hush.audit.folders import AuditedRun

        run = AuditedRun.load(training_folder(job))
        _begin(job.paths.audit)
        made = audit(
            run,
            _inputs(job, run),
            folder=job.paths.audit,
            settings=_effort(job),
            progress=job.watch.work,
        )
        for notice in made.notices:
            job.watch.notice(notice)
        record = made.record
        return {"fingerprint": job.fingerprint(record), "verdict": record["verdict"]}

    def is_there(self, job: Job) -> bool:
        return (job.paths.audit / "audit.json").is_file()


def _begin(folder: Path) -> None:
    """A folder that an audit takes for one of its own, whole or not at all."""
    if not (folder / "owner" / "audit.key").is_file():
        with whole_folder(folder) as work:
            work.chmod(0o700)
            (work / "owner").mkdir(mode=0o700)
            DataKey.create(work / "owner" / "audit.key")


def _inputs(job: Job, run: "AuditedRun") -> "AuditInputs":
    from hush.audit.canaries import read_canaries
    from hush.audit.folders import SecretSpans as Places
    from hush.audit.session import AuditInputs
    from hush.scan.result import Scan

    ids = run.plan.secret_ids
    places = Places.of_scan(Scan.load(job.paths.scan), ids)
    planting = read_canaries(job.paths.canaries) if job.has_canaries else None
    if planting is not None:
        places = places.with_(Places.of_canaries(planting, ids))
    asked = job.audit
    reference = asked.reference
    if reference is not None:
        reference = model_path(job) if reference == BASE_MODEL else job.config.located(reference)
    return AuditInputs(
        corpus=job.corpus(),
        places=places,
        planting=planting,
        reference=reference,
        held_out=None if asked.held_out is None else read_corpus(job.config.located(asked.held_out)),
        compared=True,  # the training before it has checked the same data under the key
    )


def _effort(job: Job) -> AuditSettings:
    """As the config says, on the device of the training unless it names another."""
    effort = job.audit.effort
    return effort if effort.device is not None else effort.model_copy(update={"device": job.config.training.device})


@final
class ReportStage:
    """``hush report``, twice."""

    name: StageName = "report"
    needs: tuple[StageName, ...] = ("scan", "canaries", "plan", "train", "audit")

    def settings(self, job: Job) -> Any:
        return job.config.report.model_dump()

    def run(self, job: Job) -> dict[str, Any]:
        from hush.report.numbers import noise_by_method
        from hush.report.report import Report, read_evaluations
        from hush.scan.result import Scan

        asked, release = job.config.report, training_folder(job) / "release"
        plan, scan = Plan.load(release / "plan"), Scan.load(job.paths.scan)
        shared = Report(
            plan=plan,
            certificate=Certificate.from_dict(read_json(release / "certificate.json")),
            frontier=_frontier(job, plan) if asked.frontier else None,
            noise=noise_by_method(plan, progress=job.watch.work) if asked.methods else (),
            scan=replace(scan, owner=None),  # names of files that could not be read are on the owner's side
            training=read_evaluations(release),
            title=asked.title,
            folder="share",
        )
        shared.write(job.paths.owner / SHARED_REPORT)
        audit = None if job.config.audit is None else read_json(job.paths.audit / "audit.json")
        replace(shared, scan=scan, audit=audit, show_text=asked.show_text).write(job.paths.report)
        job.paths.report.chmod(0o600)
        return {"fingerprint": job.fingerprint(asked.model_dump()), "report": job.paths.report.name}

    def is_there(self, job: Job) -> bool:
        return job.paths.report.is_file() and (job.paths.owner / SHARED_REPORT).is_file()


def _frontier(job: Job, plan: Plan) -> "Frontier | None":
    from hush.errors import HushError
    from hush.weights import frontier

    try:
        return frontier(
            graph_of_training(plan),
            prior=plan.prior,
            ceiling=plan.ceiling,
            batch_size=plan.batch_size,
            rounds=plan.rounds,
            bound=plan.bound,
            progress=lambda done, total: job.watch.work("Sweeping the frontier", done, total),
        )
    except HushError as error:  # the plan stands without it
        job.watch.notice(f"the report has no frontier: {error}")
        return None

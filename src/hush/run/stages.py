"""What the stages of a run do, except planning and training: data, scan, canaries, audit, report.

Each stage calls the function behind the command of its name, with the settings of the config and the results of
earlier stages, and leaves its own results in the folder of the run. Their order and what each needs is in the table of
``hush.run.pipeline``.
"""

import os
from dataclasses import replace
from pathlib import Path
from random import SystemRandom
from typing import TYPE_CHECKING, Any, final

import numpy as np

from hush.audit.settings import AuditSettings
from hush.certificate import Certificate
from hush.console import counted
from hush.data import read_corpus
from hush.incidence import Incidence
from hush.keys import DataKey
from hush.plan import Plan
from hush.plan.make import graph_of_training
from hush.plan.plan import promises_fingerprint
from hush.protection import promise_arrays
from hush.run.config import BASE_MODEL
from hush.run.estimates import audit_seconds, pairs_found, read_seconds, report_seconds, scan_seconds
from hush.run.folder import RELEASED_REPORT
from hush.run.job import (
    Estimate,
    Known,
    RunJob,
    chat_template_of,
    file_rows,
    files_of,
    read_source,
    unread_files,
)
from hush.run.outlook import read_outlook
from hush.run.releases import (
    canaries_are_known,
    keep_canaries,
    known_canaries,
    ledger_of,
    register_scan,
    scan_is_registered,
    sections_of_chain,
    trainings_before,
)
from hush.run.stage_train import (
    model_fingerprint,
    model_path,
    model_size,
    model_tokens,
    named_fingerprint,
    on_gpu,
    training_folder,
)
from hush.secret_table import Secrets
from hush.settings import AUTO
from hush.slots import spans_in
from hush.storage import discard, read_json, whole_folder

if TYPE_CHECKING:
    from hush.audit.canaries import CanarySet
    from hush.audit.folders import AuditedRun
    from hush.audit.session import AuditInputs
    from hush.scan.result import Scan
    from hush.weights import Frontier

__all__ = ["AuditStage", "CanariesStage", "DataStage", "ReportStage", "ScanStage"]


@final
class DataStage:
    """Fingerprints of everything that the scan may read."""

    def settings(self, job: RunJob) -> Any:
        data, files = job.config.data, files_of(job.config.source, code=job.config.about_code)
        stats = [(name, path.stat()) for name, path in files]
        state = [[name, stat.st_size, stat.st_mtime_ns] for name, stat in stats]
        if not files:  # the name of a data set does not tell whether its rows changed: they are always read
            return [job.config.source, data.column, data.unit, os.urandom(16).hex()]
        return [data.column, data.unit, state]

    def run(self, job: RunJob) -> dict[str, Any]:
        config = job.config
        files = files_of(config.source, code=config.about_code)
        if files:
            size = sum(path.stat().st_size for _, path in files)
            rows = file_rows(files, lambda done: job.watch.work("Reading", done, size))
            return {"fingerprint": job.key.fingerprint_rows(rows), "files": len(files), "bytes": size}
        return {"fingerprint": job.key.fingerprint_rows(read_source(config).texts()), "files": 0, "bytes": 0}

    def has_results(self, job: RunJob) -> bool:
        return True

    def estimate(self, known: Known) -> Estimate:
        if not known.files and not known.config.about_code:
            return Estimate("a data set by name, not looked at", None)
        size = f"{counted(known.files, 'file')}, {known.bytes / 1e6:,.1f} MB"
        return Estimate(size, read_seconds(known.bytes))


# --- scan and canaries

NAMED_REASONS = 3  # at most, of texts that are set aside
POSITIONS = ("example", "secret", "begin", "end")  # columns of a scan's reasons


@final
class ScanStage:
    """``hush scan``, with its review page."""

    def settings(self, job: RunJob) -> Any:
        config = job.config
        files = [file for rule in config.rules.rules for file in config.rules.files(rule)]
        named = job.key.fingerprint_rows(file_rows(files))
        data, chunks = config.data, config.rules.file.chunks
        settings = [config.stated_rules, named, data.column, data.unit, data.id_column, data.skip_bad]
        rendering = None if config.about_code else read_source(config).rendering
        if rendering is not None:
            settings.append(rendering.digest)
        if job.config.releases is not None:
            settings.append("ids of a ledger")  # whether they are still its ids is looked at in the results
        if chunks is not None and chunks.tokens == "auto":  # as long as the model reads
            settings.append([model_fingerprint(job), config.training.task, config.training.max_length])
        return settings

    def run(self, job: RunJob) -> dict[str, Any]:
        from hush.scan.long_texts.unread import unread_of_scan
        from hush.scan.review import write_review
        from hush.scan.scanner import scan

        config, notices = job.config, []
        reads, ledger = model_tokens(job), ledger_of(job)
        result = scan(
            config.source,
            config.rules,
            column=config.data.column,
            unit=config.data.unit,
            columns=config.data.columns or (),
            chat_template=None if config.about_code else chat_template_of(config),
            id_column=config.data.id_column,
            key=job.key,
            skip_bad=config.data.skip_bad,
            model_tokens=reads,
            workers=config.data.workers,
            known=None if ledger is None else ledger.identities,
            progress=lambda done, total: job.watch.work("Scanning", done, total),
            notice=notices.append,
        )
        notices += _scan_notices(result)
        notices += [] if config.about_code else unread_files(config.source)
        for notice in notices:
            job.watch.notice(notice)

        def review(owner: Path) -> None:
            write_review(result, owner / "review.html", source=config.source, notices=notices)

        if job.paths.scan.exists():
            discard(job.paths.scan)  # whatever it is, it is not recorded as finished under these inputs
        result.save(job.paths.scan, also=review)
        register_scan(job, result.identities)
        if reads is not None and (unread := unread_of_scan(result, job.scanned().texts(), reads)).cut:
            notices.append(f"WARNING: {unread.sentence(reads.max_length)}")
            job.watch.notice(notices[-1])
        return {
            "fingerprint": job.fingerprint(
                *_identity(result.incidence, result.secrets), result.data_fingerprint, *_scope_identity(job.paths.scan)
            ),
            "data_fingerprint": result.data_fingerprint,
            "places": _positions_fingerprint(result, job.key),
            "examples": result.incidence.num_examples,
            "public_examples": _num_public(result),
            "secrets": result.incidence.num_secrets,
            "pairs": result.incidence.num_entries,
            "skipped": result.skipped,
            "notices": notices,  # shown at the end of later runs too, which may not scan again
        }

    def has_results(self, job: RunJob) -> bool:
        return (job.paths.scan / "public" / "summary.json").is_file() and scan_is_registered(job)

    def estimate(self, known: Known) -> Estimate:
        rules, chunks = known.config.rules.rules, known.config.rules.file.chunks
        seconds = scan_seconds(
            known.bytes,
            [rule.find for rule in rules],
            cuts_tokens=chunks is not None and chunks.tokens == "auto",
            workers=known.config.data.workers,
        )
        return Estimate(counted(len(rules), "rule"), seconds if known.files else None)


@final
class CanariesStage:
    """``hush canaries``: the true ones are drawn from the system's entropy, once for a scan or a chain."""

    def settings(self, job: RunJob) -> Any:
        return job.canaries.model_dump()

    def run(self, job: RunJob) -> dict[str, Any]:
        from hush.audit.canaries import (
            Candidates,
            Template,
            check_same,
            plant,
            plant_again,
            save_planted,
            templates_from,
        )

        asked, corpus, public = job.canaries, job.scanned(), job.paths.scan / "public"
        incidence = Incidence.from_parquet(public / "incidence.parquet")
        secrets = Secrets.from_parquet(public / "secrets.parquet")
        candidates = Candidates.of_format(asked.alphabet, asked.length)
        known, spans = known_canaries(job), spans_in(job.paths.scan)
        planting: dict[str, Any] = {"repeats": asked.repeats, "ceiling": asked.ceiling, "spans": spans}
        if known is not None:
            check_same(known, candidates, asked.count)
            planted = plant_again(known, incidence, secrets, **planting)
        else:
            if asked.templates is None:
                holds_N = np.asarray(incidence.secrets_per_example > 0)
                templates = templates_from(corpus.texts(), holds_N, asked.count, SystemRandom())
            else:
                templates = [Template.parse(text) for text in asked.templates]
            planted = plant(incidence, secrets, templates, candidates, count=asked.count, **planting)
        discard(job.paths.canaries)
        save_planted(planted, corpus, job.paths.canaries)
        keep_canaries(job)
        fingerprint = job.key.fingerprint_rows(job.corpus().texts())
        return {
            "fingerprint": job.fingerprint(
                *_identity(planted.incidence, planted.secrets), fingerprint, *_scope_identity(job.paths.canaries)
            ),
            "data_fingerprint": fingerprint,
            "canaries": asked.count,
            "examples": planted.incidence.num_examples,
            "secrets": planted.incidence.num_secrets,
        }

    def has_results(self, job: RunJob) -> bool:
        return (job.paths.canaries / "owner" / "canaries.json").is_file() and canaries_are_known(job)

    def estimate(self, known: Known) -> Estimate:
        asked = None if known.config.audit is None else known.config.audit.canaries
        if asked is None:
            return Estimate("", None)
        return Estimate(f"{asked.count} × {counted(asked.repeats, 'example')}", 1)


def _num_public(result: "Scan") -> int:
    """Examples of which something may be learnt without noise: those without a secret, and those with slots."""
    public_N = np.asarray(result.incidence.secrets_per_example == 0)
    return int((public_N if result.slots is None else public_N | result.slots.has_slots_N).sum())


def _scan_notices(result: "Scan") -> list[str]:
    """What ``hush scan`` shows in its tables, which a run does not print: rules without a hit, rows left out, texts set
    aside.
    """
    from hush.scan.review import scan_cautions, scan_notes

    summary = result.summary()
    notices = [
        f"rule {rule['rule']}: no example holds a secret of it; if you know one that does, mend the rule"
        for rule in summary["rules"]
        if not rule["secrets_found"]
    ]
    if result.skipped:
        notices.append(f"left out, since they cannot be read: {counted(result.skipped, 'row')}")
    aside = [f"{row['texts']:,} of rule {row['rule']} ({row['why']})" for row in summary.get("set_aside", ())]
    if aside:
        more = f" and {len(aside) - NAMED_REASONS} more" if len(aside) > NAMED_REASONS else ""
        notices.append(
            f"texts found but set aside, so not protected: {', '.join(aside[:NAMED_REASONS])}{more}; the review of the "
            "scan lists them"
        )
    return [*notices, *(f"WARNING: {caution}" for caution in scan_cautions(result)), *scan_notes(result)]


def _positions_fingerprint(result: "Scan", key: DataKey) -> str:
    """The fingerprint of the positions of secrets: no plan depends on them, but the audit attacks there."""
    batches = () if result.owner is None else result.owner.reasons()
    return key.fingerprint_rows(batch.column(name).to_numpy().tobytes() for batch in batches for name in POSITIONS)


def _identity(incidence: Incidence, secrets: Secrets) -> tuple[str, str]:
    prior_SQ, ceiling_SQ = promise_arrays(secrets.prior, secrets.ceiling, len(secrets))
    return incidence.fingerprint, promises_fingerprint(secrets.ids, prior_SQ, ceiling_SQ)


def _scope_identity(folder: Path) -> list[str]:
    """The fingerprint of the slots in the folder of a scan or of canaries; nothing if there are none."""
    spans = spans_in(folder)
    return [] if spans is None else [spans.slots.fingerprint]


# --- audit and report


@final
class AuditStage:
    """``hush audit``, if the config asks for one."""

    def settings(self, job: RunJob) -> Any:
        audit = job.audit
        files = [] if audit.held_out is None else files_of(job.config.located(audit.held_out), code=False)
        reference = audit.reference
        if reference is not None:
            reference = model_fingerprint(job) if reference == BASE_MODEL else named_fingerprint(job, reference)
        places = job.outputs("scan").get("places")
        speed = {"micro_batch", "device", *(["max_length"] if audit.max_length is None else [])}  # change no result
        return [audit.model_dump(exclude=speed), reference, places, job.key.fingerprint_rows(file_rows(files))]

    def run(self, job: RunJob) -> dict[str, Any]:
        from hush.audit.auditor import audit
        from hush.audit.folders import AuditedRun

        run = AuditedRun.load(training_folder(job))
        _prepare_audit(job.paths.audit)
        audited = audit(
            run,
            _audit_inputs(job, run),
            folder=job.paths.audit,
            settings=_audit_settings(job),
            progress=job.watch.work,
        )
        for notice in audited.notices:
            job.watch.notice(notice)
        record = audited.record
        return {"fingerprint": job.fingerprint(record), "verdict": record["verdict"]}

    def has_results(self, job: RunJob) -> bool:
        return (job.paths.audit / "audit.json").is_file()

    def estimate(self, known: Known) -> Estimate:
        audit, rounds, pairs = known.config.audit, known.config.plan.rounds, pairs_found(known.outputs)
        if audit is None:
            return Estimate("", None)
        simulates, extracts = "mechanism" in audit.attacks, "extraction" in audit.attacks
        if (simulates and rounds == AUTO) or (extracts and pairs is None):
            return Estimate(", ".join(audit.attacks), None)
        parameters, _ = model_size(known.config)
        seconds = audit_seconds(
            simulated=audit.secrets * audit.trials * int(rounds) if simulates else 0,
            pairs=pairs or 0,
            prompts=audit.prompts if extracts else (),
            parameters=parameters or 0,
            on_gpu=on_gpu(known.config),
        )
        return Estimate(", ".join(audit.attacks), seconds if parameters or not extracts else None)


def _prepare_audit(folder: Path) -> None:
    """Make the folder one that an audit recognises as its own; it appears whole or not at all."""
    if not (folder / "owner" / "audit.key").is_file():
        with whole_folder(folder) as work:
            work.chmod(0o700)
            (work / "owner").mkdir(mode=0o700)
            DataKey.create(work / "owner" / "audit.key")


def _audit_inputs(job: RunJob, run: "AuditedRun") -> "AuditInputs":
    from hush.audit.canaries import read_canaries
    from hush.audit.folders import SecretSpans
    from hush.audit.session import AuditInputs
    from hush.scan.result import Scan

    ids = run.plan.secret_ids
    places = SecretSpans.of_scan(Scan.load(job.paths.scan), ids)
    planting = read_canaries(job.paths.canaries) if job.has_canaries else None
    if planting is not None:
        places = places.with_(SecretSpans.of_canaries(planting, ids))
    asked = job.audit
    reference = asked.reference
    if reference is not None:
        reference = model_path(job) if reference == BASE_MODEL else job.config.located(reference)
    return AuditInputs(
        corpus=job.corpus(),
        places=places,
        planting=planting,
        releases=() if planting is None else _releases_with(planting, job),
        reference=reference,
        held_out=None if asked.held_out is None else read_corpus(job.config.located(asked.held_out)),
        compared=True,  # the training stage has checked the same data under the key
    )


def _releases_with(planting: "CanarySet", job: RunJob) -> "tuple[AuditedRun, ...]":
    """The earlier releases of the chain in which the same canaries were planted, as far as their models are there."""
    from hush.audit.folders import AuditedRun

    ids = {canary.id for canary in planting.canaries}
    releases = [AuditedRun.load(folder) for folder in trainings_before(job)]
    return tuple(release for release in releases if ids <= set(release.plan.secret_ids))


def _audit_settings(job: RunJob) -> AuditSettings:
    """As the config says, on the device of the training unless it names another."""
    effort = job.audit.effort
    return effort if effort.device is not None else effort.model_copy(update={"device": job.config.training.device})


@final
class ReportStage:
    """``hush report``, twice: the owner's with everything, and one made only from what may leave."""

    def settings(self, job: RunJob) -> Any:
        return [job.config.report.model_dump(), "release"]  # the page tells how to verify that folder

    def run(self, job: RunJob) -> dict[str, Any]:
        from hush.report.hidden import hidden_examples
        from hush.report.numbers import noise_by_method
        from hush.report.report import Report, read_evaluations
        from hush.scan.result import Scan

        asked, training = job.config.report, training_folder(job) / "release"
        plan, scan = Plan.load(training / "plan"), Scan.load(job.paths.scan)
        released = Report(
            plan=plan,
            certificate=Certificate.from_dict(read_json(training / "certificate.json")),
            frontier=_frontier(job, plan) if asked.frontier else None,
            noise=noise_by_method(plan, progress=job.watch.work) if asked.methods else (),
            scan=replace(scan, owner=None),  # which names files that could not be read
            training=read_evaluations(training),
            outlook=read_outlook(job, plan),
            title=asked.title,
            folder="release",
        )
        released.write(job.paths.owner / RELEASED_REPORT)
        audit = None if job.config.audit is None else read_json(job.paths.audit / "audit.json")
        spans = spans_in(job.paths.scan)
        hidden = () if spans is None else hidden_examples(spans, job.scanned().texts())
        replace(
            released,
            scan=scan,
            audit=audit,
            show_text=asked.show_text,
            hidden=hidden,
            sections=sections_of_chain(job),
        ).write(job.paths.report)
        job.paths.report.chmod(0o600)
        return {"fingerprint": job.fingerprint(asked.model_dump()), "report": job.paths.report.name}

    def has_results(self, job: RunJob) -> bool:
        return job.paths.report.is_file() and (job.paths.owner / RELEASED_REPORT).is_file()

    def estimate(self, known: Known) -> Estimate:
        asked, pairs = known.config.report, pairs_found(known.outputs)
        plans_again = asked.frontier or asked.methods
        seconds = None if plans_again and pairs is None else report_seconds(pairs or 0, plans_again=plans_again)
        return Estimate("one page for you, one to release", seconds)


def _frontier(job: RunJob, plan: Plan) -> "Frontier | None":
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
    except HushError as error:  # the plan is valid without it
        job.watch.notice(f"the report has no frontier: {error}")
        return None

"""Attacks on what was trained, with the places of secrets that the scan found and the canaries that were planted."""

from pathlib import Path
from typing import TYPE_CHECKING, Any, final

from hush.config.config import BASE_MODEL
from hush.corpus import read_corpus
from hush.keyed import DataKey
from hush.pipeline.job import Job
from hush.pipeline.record import StageName
from hush.pipeline.stage_data import file_rows, files_of
from hush.pipeline.stage_train import model_fingerprint, model_path, named_fingerprint, training_folder
from hush.storage import whole_folder

if TYPE_CHECKING:
    from hush.audit.audited_run import AuditedRun
    from hush.audit.work import AuditInputs, AuditSettings

__all__ = ["AuditStage"]


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
        return [audit.model_dump(), reference, places, job.key.fingerprint_rows(file_rows(files))]

    def run(self, job: Job) -> dict[str, Any]:
        from hush.audit.audited_run import AuditedRun
        from hush.audit.run_audit import audit

        run = AuditedRun.load(training_folder(job))
        _begin(job.paths.audit)
        made = audit(
            run,
            _inputs(job, run),
            folder=job.paths.audit,
            settings=_settings(job),
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
    from hush.audit.canary_files import read_canaries
    from hush.audit.places import Places
    from hush.audit.work import AuditInputs
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


def _settings(job: Job) -> "AuditSettings":
    import torch

    from hush.audit.work import AuditSettings

    asked = job.audit
    return AuditSettings(
        attacks=asked.attacks,
        prompts=asked.prompts,
        continuations=asked.continuations,  # pyright: ignore[reportArgumentType]
        secrets=asked.secrets,
        trials=asked.trials,
        candidates=asked.candidates,
        examples=asked.examples,
        level=asked.level,
        device=job.config.training.device or ("cuda" if torch.cuda.is_available() else "cpu"),
    )

"""Two reports: the owner's, with everything, and one to share, made from what may leave and nothing else."""

from dataclasses import replace
from typing import TYPE_CHECKING, Any, final

from hush.certificate import Certificate
from hush.pipeline.job import Job
from hush.pipeline.record import StageName
from hush.pipeline.share import SHARED_REPORT
from hush.pipeline.stage_train import training_folder
from hush.plan import Plan
from hush.plan.files import read_json
from hush.plan.held_out import graph_of_training

if TYPE_CHECKING:
    from hush.weights import Frontier

__all__ = ["ReportStage"]


@final
class ReportStage:
    """``hush report``, twice."""

    name: StageName = "report"
    needs: tuple[StageName, ...] = ("scan", "canaries", "plan", "train", "audit")

    def settings(self, job: Job) -> Any:
        return job.config.report.model_dump()

    def run(self, job: Job) -> dict[str, Any]:
        from hush.report.inputs import read_evaluations
        from hush.report.methods import noise_by_method
        from hush.report.report import Report
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

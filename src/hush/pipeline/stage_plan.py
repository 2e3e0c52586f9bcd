"""From promises to a plan, tied to the very data that the scan saw."""

from typing import Any, final

from hush.incidence import Incidence
from hush.pipeline.job import Job
from hush.pipeline.record import StageName
from hush.plan import Plan
from hush.secret_table import Secrets

__all__ = ["PlanStage", "plan_identity"]


@final
class PlanStage:
    """``hush plan``."""

    name: StageName = "plan"
    needs: tuple[StageName, ...] = ("scan", "canaries")

    def settings(self, job: Job) -> Any:
        return job.config.plan.model_dump()

    def run(self, job: Job) -> dict[str, Any]:
        from hush.plan.held_out import choose_held_out, make_plan_holding_out
        from hush.weights.frontier import KEEP

        asked = job.config.plan
        secrets = Secrets.from_parquet(job.public("secrets.parquet"))
        incidence = Incidence.from_parquet(job.public("incidence.parquet"))
        plan = make_plan_holding_out(
            incidence,
            choose_held_out(incidence, asked.hold_out),
            prior=secrets.prior,
            ceiling=secrets.ceiling,
            secret_ids=secrets.ids,
            batch_size=asked.batch_size,
            rounds=asked.rounds,
            bound=asked.bound,
            capacity=asked.capacity,
            noise_multiplier=asked.noise_multiplier,
            keep=KEEP if asked.keep is None else asked.keep,
            strength=asked.strength,
            clip_norm=asked.clip_norm,
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


def plan_identity(plan: Plan) -> list[Any]:
    """What makes two plans the same training, which the moment they were made does not."""
    numbers = [plan.noise_multiplier, plan.noise_scale, plan.rounds, plan.batch_size, plan.clip_norm, plan.bound]
    return [numbers, sorted(plan.certificate.fingerprints.items())]

"""From promises to a plan, tied to the very data that the scan saw."""

from typing import Any, final

import numpy as np

from hush.console import counted
from hush.errors import InfeasiblePlan, InvalidInput
from hush.incidence import Incidence
from hush.pipeline.job import Job
from hush.pipeline.record import StageName
from hush.plan import Plan
from hush.protection import promise_arrays
from hush.secret_table import Secrets

__all__ = ["PlanStage", "plan_identity"]

TOLD = 3  # secrets that a message names


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

"""The planning stage: a plan from the scan, and what it can teach. Ceilings and priors that cannot hold are refused."""

from typing import Any, final

import numpy as np

from hush.console import counted
from hush.errors import InfeasiblePlan, InvalidInput
from hush.incidence import Incidence
from hush.plan.settings import Draw
from hush.protection import promise_arrays
from hush.run.config import shown_sizes
from hush.run.estimates import plan_seconds
from hush.run.job import Estimate, Known, RunJob
from hush.run.outlook import stored_outlook
from hush.run.releases import (
    chain_arguments,
    check_history,
    entered_plan,
    is_planned_for,
    ledger_of,
    own_entry,
    plan_identity,
    plans_before,
)
from hush.run.stage_train import training_folder
from hush.run.stated_priors import check_stated_priors
from hush.secret_table import Secrets
from hush.settings import AUTO
from hush.slots import Spans, spans_in

__all__ = ["PlanStage"]


NAMED_SECRETS = 3  # at most, in a message


@final
class PlanStage:
    """``hush plan``."""

    def settings(self, job: RunJob) -> Any:
        # A setting that 0.1.0 did not know counts only if it is stated: a finished run of 0.1.0 stays finished.
        plan, learnt_first, releases = job.config.plan, job.config.training.public_first, job.config.releases
        stated = plan.model_dump(exclude=set() if plan.draw is not None else {"draw"})
        more: list[Any] = [] if learnt_first is not False else ["nothing is learnt first"]
        if releases is not None:  # which releases were before it is looked at in the results: they change
            more.append(releases.model_dump(exclude={"ledger"}, exclude_none=True))
        return [stated, *more] if more else stated

    def run(self, job: RunJob) -> dict[str, Any]:
        from hush.plan.make import choose_held_out, make_plan_holding_out
        from hush.weights.choose import checked_batch_size

        asked = job.config.plan
        secrets = Secrets.from_parquet(job.public("secrets.parquet"))
        incidence = Incidence.from_parquet(job.public("incidence.parquet"))
        if not incidence.num_examples:
            raise InvalidInput(
                "it holds no example; pass data with at least one", setting="source", value=job.config.source
            )
        held_out = choose_held_out(incidence, asked.hold_out)
        spans = spans_in(job.paths.canaries if job.has_canaries else job.paths.scan)
        draw, bearing = _draw(job, incidence, held_out.size, has_slots=spans is not None)
        if asked.batch_size != AUTO:
            checked_batch_size(asked.batch_size, incidence.num_examples, held_out=held_out.size, bearing=bearing)
        _check_ceilings(secrets, incidence)
        check_stated_priors(job)
        ledger, chain, history = ledger_of(job), dict[str, Any](), None
        if ledger is not None:
            before = plans_before(ledger, job)
            found = check_history(job, ledger, len(before))
            history = found.sentences
            for sentence in history:
                job.watch.notice(f"WARNING: {sentence}")
            chain = chain_arguments(job.config, ledger, before, secrets.ids, found)
        plan = make_plan_holding_out(
            incidence,
            held_out,
            prior=secrets.prior,
            ceiling=secrets.ceiling,
            secret_ids=secrets.ids,
            **{**asked.arguments, "draw": draw},
            data_fingerprint=job.outputs("canaries" if job.has_canaries else "scan")["data_fingerprint"],
            slots=None if spans is None else spans.slots,
            skeleton_fingerprint=None if spans is None else _skeleton_fingerprint(job, spans, incidence),
            **chain,
            progress=lambda done, total: job.watch.work("Planning", done, total),
        )
        if job.config.training.warmup > plan.rounds:
            raise InvalidInput(
                f"it is more than the {counted(plan.rounds, 'round')} of the plan; lower it",
                setting="warmup",
                value=job.config.training.warmup,
            )
        if ledger is not None:
            plan = entered_plan(ledger, job, plan)
        if ledger is None or own_entry(ledger, job) is None or job.new_release:
            plan.save(job.paths.plan)
        return {
            "outlook": stored_outlook(job, plan, spans),
            "fingerprint": job.fingerprint(plan_identity(plan)),
            "noise_multiplier": plan.noise_multiplier,
            "kept_fraction": plan.kept_fraction,
            "rounds": plan.rounds,
            "batch_size": plan.batch_size,
            "created": plan.created,
            **({} if history is None else {"history": history}),
        }

    def has_results(self, job: RunJob) -> bool:
        if not (job.paths.plan / "plan.json").is_file():
            return False
        ledger = ledger_of(job, create=False)
        return ledger is None or is_planned_for(ledger, job, training_folder(job))

    def estimate(self, known: Known) -> Estimate:
        plan, scan = known.config.plan, known.outputs.get("scan")
        if scan is None:
            return Estimate(shown_sizes(plan.batch_size, plan.rounds), None)
        size = f"{counted(scan['examples'], 'example')}, {counted(scan['secrets'], 'secret')}"
        return Estimate(size, plan_seconds(scan["pairs"]))


def _draw(job: RunJob, incidence: Incidence, held_out: int, *, has_slots: bool) -> tuple[Draw | None, int | None]:
    """From which examples the rounds draw; if only from those with a secret, also how many these are.

    The config says so, or it is those with a secret where the others are learnt first and there are enough for a batch.
    """
    bearing, asked = int(np.count_nonzero(incidence.secrets_per_example)), job.config.plan.draw
    public = incidence.num_examples - bearing - held_out
    draw = asked if has_slots else job.config.draw(bearing=bearing, public=public)
    if draw != asked and draw == "all":
        job.watch.notice(
            f"the rounds draw from all examples, since plan.batch_size={job.config.plan.batch_size:g} is more than the "
            f"{counted(bearing, 'example')} with a secret; a batch of at most that draws only from these, and leaves "
            "the others to ordinary training"
        )
    return draw, bearing if has_slots or draw == "secrets" else None


def _skeleton_fingerprint(job: RunJob, spans: Spans, incidence: Incidence) -> str:
    return job.key.fingerprint_rows(spans.public_rows(incidence, job.corpus().texts()))


def _check_ceilings(secrets: Secrets, incidence: Incidence) -> None:
    """Refuse promises that only a training without the secret's examples would keep; names several at once."""
    prior_SQ, ceiling_SQ = promise_arrays(secrets.prior, secrets.ceiling, len(secrets))
    without = np.flatnonzero((ceiling_SQ <= prior_SQ).any(axis=1) & (incidence.examples_per_secret > 0)).tolist()
    if without:
        named = ", ".join(secrets.ids[secret] for secret in without[:NAMED_SECRETS])
        more = f" and {len(without) - NAMED_SECRETS} more" if len(without) > NAMED_SECRETS else ""
        first = without[0]
        point = int((ceiling_SQ[first] <= prior_SQ[first]).argmax())
        raise InfeasiblePlan(
            f"{named}{more}: the ceiling is the prior ({ceiling_SQ[first, point]:g} for the first), so nothing may be "
            "learned from the examples, whatever the noise; raise the ceiling under promises or in the rule, or take "
            "these examples out of the data"
        )

"""What a run can teach its model, said before training: measured once when the plan is made, and kept with its results.

Before the plan exists, a dry run forecasts the same from the graph of the scan by the closed form, if there was a scan.
"""

from itertools import islice
from typing import Any

import numpy as np

from hush.accounting.sampling_error import planning_ceiling
from hush.accounting.signal import GradientStatistics, gaussian_shift
from hush.incidence import Incidence
from hush.plan import Plan
from hush.plan.auto import best_proposal, propose
from hush.plan.make import choose_held_out, held_out_examples
from hush.plan.signal import Outlook, TextShares, remaining, text_shares
from hush.protection import promise_arrays
from hush.run.job import RunJob
from hush.run.stage_train import model_path
from hush.secret_table import Secrets
from hush.slots import Spans, spans_in
from hush.weights.frontier import KEEP

__all__ = ["proposed_outlook", "read_outlook", "stored_outlook"]


MAX_TEXTS = 1000  # public ones, of which some are measured
SMALL_VOCABULARY = 258  # of the small model of hush.run.stage_train


def stored_outlook(job: RunJob, plan: Plan, spans: Spans | None) -> dict[str, Any]:
    """What can be learnt under this plan, as the run keeps it: the record of its outlook, and what it was made from."""
    characters_N = np.fromiter((len(text) for text in job.corpus().texts()), dtype=np.int64)
    texts = text_shares(plan.incidence, characters_N, spans)
    parameters, statistics = _measured(job, plan)
    outlook = Outlook.of_plan(plan, parameters=parameters, statistics=statistics, texts=texts)
    return {
        **outlook.record(),
        "inputs": {
            "parameters": parameters,
            "statistics": None if statistics is None else _fields(statistics),
            "texts": _fields(texts),
        },
    }


def read_outlook(job: RunJob, plan: Plan) -> Outlook:
    """The outlook of the run's plan, as it was when the plan was made; of the plan alone for runs of older versions."""
    kept = job.outputs("plan").get("outlook")
    if kept is None:
        return Outlook.of_plan(plan)
    inputs = kept["inputs"]
    statistics = None if inputs["statistics"] is None else GradientStatistics(**inputs["statistics"])
    return Outlook.of_plan(
        plan, parameters=inputs["parameters"], statistics=statistics, texts=TextShares(**inputs["texts"])
    )


def _measured(job: RunJob, plan: Plan) -> tuple[int, GradientStatistics | None]:
    """How many parameters are trained, and what public gradients of the model say, if there are enough of them."""
    from hush.train.public.predictor import MIN_EXAMPLES, count_trained, statistics_of_texts

    training, name = job.config.training, model_path(job)
    free_N = plan.incidence.secrets_per_example == 0
    free_N[held_out_examples(plan)] = False
    statistics = None
    if int(np.count_nonzero(free_N)) >= MIN_EXAMPLES:
        public = (text for text, is_free in zip(job.corpus().texts(), free_N, strict=True) if is_free)
        job.watch.work("Measuring public gradients", 0, 1)
        statistics = statistics_of_texts(
            name,
            list(islice(public, MAX_TEXTS)),
            clip_norm=plan.clip_norm,
            task=training.task,
            lora=training.lora,
            max_length=training.max_length,
            device=training.device,
        )
    if statistics is not None:
        return statistics.parameters, statistics
    return count_trained(name, task=training.task, lora=training.lora), None


def _fields(record: GradientStatistics | TextShares) -> dict[str, Any]:
    return {name: getattr(record, name) for name in record.__dataclass_fields__}


# Before the plan exists.


def proposed_outlook(job: RunJob) -> Outlook | None:
    """What a plan for the graph of the scan could teach, by the closed form; None before the scan. Writes nothing."""
    folder = job.paths.scan / "public"
    if "scan" not in job.record.stages or not (folder / "incidence.parquet").is_file():
        return None
    incidence = Incidence.from_parquet(folder / "incidence.parquet")
    secrets = Secrets.from_parquet(folder / "secrets.parquet")
    prior_SQ, ceiling_SQ = promise_arrays(secrets.prior, secrets.ceiling, len(secrets))
    spans, asked = spans_in(job.paths.scan), job.config.plan
    drawn_N, held_out = incidence.secrets_per_example > 0, choose_held_out(incidence, asked.hold_out)
    bearing = int(np.count_nonzero(drawn_N))
    public = incidence.num_examples - bearing - held_out.size
    if spans is None and job.config.draw(bearing=bearing, public=public) != "secrets":
        drawn_N = np.ones(incidence.num_examples, dtype=bool)
        drawn_N[held_out] = False
    if not drawn_N.any():
        return None
    graph = incidence.select(examples=drawn_N)
    asks_share = asked.capacity == "accounted" and asked.noise_multiplier is None
    proposal = best_proposal(
        propose(
            graph,
            gaussian_shift(prior_SQ, planning_ceiling(prior_SQ, ceiling_SQ)),
            batch_size=asked.batch_size,
            rounds=asked.rounds,
            keep=(KEEP if asked.keep is None else asked.keep) if asks_share else None,
        )
    )
    return Outlook(
        budget=proposal.budget,
        graph=graph,
        weight_N=proposal.kept.weight_N,
        prior_SQ=prior_SQ,
        ceiling_SQ=ceiling_SQ,
        share=proposal.kept.share,
        remaining=remaining(incidence, None if spans is None else spans.slots),
        parameters=_parameters(job),
        is_planned=False,
    )


def _parameters(job: RunJob) -> int:
    """How many parameters are trained, without making a small model or reading weights."""
    small, training = job.config.model.small, job.config.training
    if small is not None:  # a GPT-2 over bytes and two special tokens, with tied embeddings
        blocks = small.layers * (12 * small.width**2 + 13 * small.width)
        return blocks + (SMALL_VOCABULARY + small.length + 2) * small.width
    from hush.train.public.predictor import count_trained

    return count_trained(job.config.located(job.config.model.name or ""), task=training.task, lora=training.lora)

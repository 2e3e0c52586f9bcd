"""The two public parts of a training: what is learnt first, and the stream beside the private rounds.

By default both are on where they are of use. Without a stream the private rounds would forget what was learnt first.
"""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import torch
from torch import nn

from hush.errors import InvalidInput
from hush.plan import Plan
from hush.plan.make import public_examples
from hush.train.clipping import Loss
from hush.train.distributed import Ranks
from hush.train.public.first import PublicOutcome, PublicProgress, learn_public
from hush.train.public.process import PublicJob, PublicRows, learn_in_process, load_public_weights, was_learnt_first
from hush.train.public.split import split_of_plan
from hush.train.public.stream import Collate, PublicStream, default_batch
from hush.train.run_folder import PUBLIC_FIRST
from hush.train.settings import PublicFirst, Recipe, learns_first

__all__ = ["learn_first", "learn_first_here", "stream_beside"]


def learn_first(
    run: Path,
    job: PublicJob,
    plan: Plan,
    model: nn.Module,
    *,
    collate: Collate,
    rows: PublicRows,
    ranks: Ranks,
    progress: Callable[[PublicProgress], None] | None,
    stop: Callable[[], bool] | None,
) -> tuple[PublicOutcome | None, bool]:
    """Do the public part that the recipe asks for, for the run in this folder, and give the model its weights.

    The outcome is None if there is no such part. The second result is whether stop asked to end it early. All ranks
    call this together; the first one's model has the weights then.
    """
    asked = job.recipe.public_first
    begun = ranks.run_on_first(lambda: (run / "owner" / "run.json").exists() and not was_learnt_first(run))
    if begun or not learns_first(asked, public_examples(plan).size):  # a run ends as it began
        return None, False
    if job.runtime.shard:
        if asked is None:  # the model may be too large for one device
            return None, False
        job = replace(job, runtime=job.runtime.model_copy(update={"shard": False}))  # the child is one process
    split = split_of_plan(plan, collate, seed=job.seed)
    device = next(model.parameters()).device
    model.to("cpu")  # the other process needs the memory

    def work(still_working: Callable[[], None]) -> PublicOutcome | None:
        outcome = learn_in_process(run, job, rows, split, progress=progress, stop=stop, wait=still_working)
        if outcome is not None:
            load_public_weights(run, model)
        return outcome

    outcome = ranks.work_on_first(work)
    model.to(device)
    return outcome, outcome is None


def learn_first_here(
    model: nn.Module,
    loss: Loss,
    plan: Plan,
    stream: PublicStream | None,
    asked: PublicFirst | bool,
    *,
    folder: Path,
    device: torch.device,
    micro_batch: int,
    autocast: torch.dtype | None,
) -> PublicOutcome | None:
    """Do it in the first rank's process, on this device, with the batches of the public stream.

    All ranks call this together; the first one's model has the weights then.
    """
    if asked is False:
        return None
    if stream is None:
        raise InvalidInput(
            "public_first needs batches of public examples; pass public=PublicStream(plan, collate, batch_size=...)"
        )
    owner, collate, examples = folder / "owner", stream.collate, stream.examples

    def work(still_working: Callable[[], None]) -> PublicOutcome | None:
        owner.mkdir(mode=0o700, parents=True, exist_ok=True)
        before = next(model.parameters()).device
        if before != device:  # a model that will be sharded is not there yet
            model.to(device)
        outcome = learn_public(
            model,
            loss,
            collate,
            plan,
            settings=asked if isinstance(asked, PublicFirst) else None,
            examples=examples,
            micro_batch=micro_batch,
            folder=owner / PUBLIC_FIRST / "training",
            autocast=autocast,
            progress=lambda _: still_working(),
        )
        if before != device:
            model.to(before)
        return outcome

    return Ranks.current().work_on_first(work)


def stream_beside(
    recipe: Recipe, plan: Plan, collate: Collate, *, learnt_first: bool, micro_batch: int
) -> PublicStream | None:
    """The stream that the recipe asks for; by default one over what is public and not drawn, or was learnt first."""
    if recipe.public is not None:
        part = recipe.public
        return PublicStream(plan, collate, batch_size=part.batch, weight=part.weight, micro_batch=micro_batch)
    public = public_examples(plan).size if plan.draws_secrets_only or learnt_first else 0
    if not public:
        return None
    batch = default_batch(plan, public)
    return PublicStream(plan, collate, batch_size=batch, weight=None, micro_batch=micro_batch)

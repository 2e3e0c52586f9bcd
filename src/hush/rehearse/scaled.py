"""The plans behind a rehearsal: the real graph planned with other settings, and the same noise on a smaller stage.

**Scaling.** A private round of the rehearsal costs a fraction of a real one, and must be as hard to learn from. With a
batch of s·B, the noise multiplier is s·σ: noise over batch stays what it is, coordinate by coordinate, and so do the
number of rounds, the learning rate that fits them, and the signal budget B·√T/σ, for the same model S/√d. Where the
batch would fall below ``MIN_BATCH``, rounds are cut instead: u·T of them with √u times the noise keep B·√T/σ; the
learning rate grows by 1/√u for AdamW, whose steps do not shrink with the gradient's noise, and by 1/u for SGD.

What the smaller batch adds is the spread between the examples that are drawn, which the real batch averages better: so
a rehearsal errs against hush where noise is small, and is exact where noise dominates.
"""

from dataclasses import dataclass, replace
from typing import final

import numpy as np

from hush.errors import InfeasiblePlan
from hush.numbers import rounded_down
from hush.plan import Plan
from hush.plan.make import held_out_examples, make_plan_holding_out
from hush.rehearse.cast import Cast

__all__ = ["MIN_BATCH", "MIN_ROUNDS", "Scale", "StagePlan", "described", "replanned", "scale_for", "stage_plan"]


MIN_BATCH = 8.0  # examples drawn a round, below which rounds are cut instead
MIN_ROUNDS = 20
OTHER_NOISE = 1.0 + 2.0**-40  # a noise_scale that is never 1, so that no plan of a rehearsal looks like a real one


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class Scale:
    """How much smaller a private round is (batch) and how many fewer there are (rounds), both at most 1."""

    batch: float
    rounds: float

    def learning_rate_factor(self, optimizer: str) -> float:
        """What the learning rate of the real training is multiplied by."""
        return self.rounds ** (-0.5 if optimizer == "adamw" else -1.0)


def scale_for(plan: Plan, work: float) -> Scale:
    """The scale at which one rehearsed training costs this share of the private rounds' work, at most all of it.

    >>> from hush import Incidence, make_plan
    >>> graph = Incidence.from_pairs(range(100), [0] * 100, num_examples=100, num_secrets=1)
    >>> plan = make_plan(graph, prior=1e-6, ceiling=1e-2, batch_size=32, rounds=1000)
    >>> scale_for(plan, 0.5), scale_for(plan, 0.025)
    (Scale(batch=0.5, rounds=1.0), Scale(batch=0.25, rounds=0.1))
    """
    work = min(1.0, work)
    batch = min(1.0, max(work, MIN_BATCH / plan.batch_size))
    rounds = min(1.0, max(work / batch, MIN_ROUNDS / plan.rounds))
    return Scale(batch=batch, rounds=rounds)


def replanned(plan: Plan, *, batch_size: float, rounds: int, keep: float | None) -> Plan:
    """The plan of the same graph and promises with other settings; InfeasiblePlan where there is none.

    A function of the graph and the promises: planning costs no promise.
    """
    if (batch_size, rounds, keep) == (plan.batch_size, plan.rounds, None):
        return plan
    return make_plan_holding_out(
        plan.incidence,
        held_out_examples(plan),
        prior=plan.prior,
        ceiling=plan.ceiling,
        batch_size=batch_size,
        rounds=rounds,
        bound=plan.bound,
        capacity="none" if plan.capacity == "none" else "accounted",
        clip_norm=plan.clip_norm,
        secret_ids=plan.secret_ids,
        slots=plan.slots,
        draw="secrets" if plan.draws_secrets_only else "all",
        **({} if keep is None or plan.capacity == "none" else {"keep": keep}),
    )


@final
@dataclass(frozen=True, slots=True, kw_only=True, repr=False, eq=False)
class StagePlan:
    """What is trained under in a rehearsal. plan: of the private rounds. redacting: the same graph with every slot,
    whose skeletons are the redacted texts."""

    plan: Plan
    redacting: Plan


def stage_plan(real: Plan, cast: Cast, scale: Scale, *, clip_norm: float | None = None) -> StagePlan:
    """The plan of a cast at the noise and rates of a real plan, scaled. It certifies nothing, since nothing is secret.

    Rates are in the proportions of the dealt weights. Where they would exceed 1, the batch is what they allow, with the
    noise in proportion.
    """
    total, peak = float(cast.weight_N.sum()), float(cast.weight_N.max(initial=0.0))
    if total <= 0:
        raise InfeasiblePlan("no secret keeps any weight under this plan, so its private rounds would learn nothing")
    batch = min(scale.batch * real.batch_size, total / peak)
    rounds = max(1, round(scale.rounds * real.rounds))
    noise_scale = batch / real.batch_size * (rounds / real.rounds) ** 0.5
    secrets = cast.of_secret_S
    slots = cast.spans.slots
    redacting = Plan(
        incidence=cast.incidence,
        secret_ids=tuple(f"player-{number:06d}" for number in range(len(secrets))),
        prior=real.prior[secrets],
        ceiling=real.ceiling[secrets],
        posterior=real.posterior[secrets],
        binding=np.empty(0, dtype=np.int64),
        weights=np.where(cast.incidence.secrets_per_example > 0, cast.weight_N, 0.0),
        noise_multiplier=real.noise_multiplier,
        rounds=rounds,
        batch_size=float(min(batch, np.count_nonzero(cast.incidence.secrets_per_example))),
        clip_norm=real.clip_norm if clip_norm is None else clip_norm,
        bound=real.bound,
        capacity=real.capacity,
        weights_gap=real.weights_gap,
        noise_scale=noise_scale if noise_scale != 1 else OTHER_NOISE,
        created=real.created,
        slots=slots,
        held_out=np.empty(0, dtype=np.int64),
    )
    if real.slots is not None:
        return StagePlan(plan=redacting, redacting=redacting)
    if real.draws_secrets_only:
        return StagePlan(plan=replace(redacting, slots=None), redacting=redacting)
    everything = replace(redacting, slots=None, held_out=None, weights=cast.weight_N, batch_size=batch)
    return StagePlan(plan=everything, redacting=redacting)


def described(scale: Scale) -> str:
    """The scale in words."""
    if scale.batch == scale.rounds == 1:
        return "the plan's own batch and rounds"
    rounds = "" if scale.rounds == 1 else f" and {rounded_down(100 * scale.rounds, 2)} % of the rounds"
    return f"{rounded_down(100 * scale.batch, 2)} % of the batch{rounds}, at the same signal over noise"

"""The noise that the same promise would take by other proofs and with all the data: what the plan saved."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import final

import numpy as np

from hush.accounting import calibrate
from hush.accounting.inputs import Bound
from hush.errors import CannotCertify, InfeasiblePlan
from hush.plan import Plan
from hush.plan.held_out import held_out_examples
from hush.report.numbers import kept_weight

__all__ = ["MOST_SECRETS", "MethodNoise", "noise_by_method"]

MOST_SECRETS = 2_000  # beyond it the comparison takes minutes, and waits to be asked for
BOUNDS: tuple[Bound, ...] = ("kl", "renyi", "blowup")
NAMES: Mapping[str, str] = {"kl": "KL (the paper)", "renyi": "Rényi", "blowup": "blow-up (hush)"}

Progress = Callable[[str, int, int], None]
"""What is being computed, how much of it is done, and how much there is."""


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class MethodNoise:
    """One way to keep the promise. kept_weight: the share of their weight that examples with secrets keep.

    bound: by which proof; chosen: whether it is the plan that the report is about.
    """

    name: str
    noise_multiplier: float
    kept_weight: float
    bound: str
    chosen: bool = False


def noise_by_method(plan: Plan, *, progress: Progress | None = None) -> tuple[MethodNoise, ...]:
    """KL, Rényi and blow-up, each with all data and with the plan's rates; loosest first.

    Guarantee: each noise is proven to keep every promise of the plan. Ways in which no noise does are left out.
    """
    all_data = np.full(plan.incidence.num_examples, 1.0)
    all_data[held_out_examples(plan)] = 0.0
    all_data *= plan.batch_size / all_data.sum()
    kept = kept_weight(plan)
    ways = [("all data", all_data, 1.0)]
    if kept < 1:
        ways.append(("this plan's rates", plan.rates, kept))
    found: list[MethodNoise] = []
    for label, rate_N, share in ways:
        for bound in BOUNDS:
            name, chosen = f"{NAMES[bound]}, {label}", bound == plan.bound and share == kept
            noise = plan.noise_multiplier if chosen else _noise(plan, rate_N, bound, name, progress)
            if noise is not None:
                way = MethodNoise(name=name, noise_multiplier=noise, kept_weight=share, bound=bound, chosen=chosen)
                found.append(way)
    return tuple(found)


def _noise(plan: Plan, rate_N: np.ndarray, bound: Bound, name: str, progress: Progress | None) -> float | None:
    def told(done: int, total: int) -> None:
        if progress is not None:
            progress(name, done, total)

    try:
        return calibrate(
            plan.incidence, prior=plan.prior, ceiling=plan.ceiling, rates=rate_N, rounds=plan.rounds, bound=bound,
            progress=told,
        ).noise_multiplier  # fmt: skip
    except (InfeasiblePlan, CannotCertify):
        return None

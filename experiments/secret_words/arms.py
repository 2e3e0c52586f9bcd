"""The arms: which method, at which point of its sweep, under the same promise; and the plan of each.

The paper's sweep: c = 2^k for k = -6 … 4, where the largest keeps every example ("paper, all data" is its baseline).
hush's sweep: noise from what the tight bound needs on all data ("hush, all data") downwards in five steps of 2^(1/4),
with capacities from the accountant. At full scale a sixth is not feasible.
"""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

import hush
from hush.weights.choose import make_chooser

__all__ = ["BATCH", "CLIP_NORM", "PRIOR", "ROUNDS", "Arm", "Promise", "alike", "all_arms", "make_plans", "planned"]

BATCH, ROUNDS, PRIOR, CLIP_NORM = 2048, 2000, 1e-10, 1.0
CEILINGS = 2e-4, 1e-3
STEPS = range(4, -7, -1)  # k of the paper's c = 2^k
NOISE_STEP = 2.0**-0.25
NOISE_STEPS = 5
NEAR_RATES, NEAR_NOISE = 0.02, 0.01  # arms that close are trained once


@dataclass(frozen=True, slots=True, kw_only=True)
class Promise:
    """What every arm keeps, and the run's size. noise_scale stands for a larger data set, as in the paper."""

    batch_size: int = BATCH
    rounds: int = ROUNDS
    noise_scale: float = 0.1

    def ceilings(self, secrets: int) -> np.ndarray:
        return np.random.default_rng(0).uniform(*CEILINGS, secrets)


@dataclass(frozen=True, slots=True)
class Arm:
    """A method and how far it gives data up for less noise: 0 keeps all."""

    method: str  # "paper" or "hush"
    step: int

    @property
    def name(self) -> str:
        return f"{self.method}-{self.step:02d}"

    @property
    def label(self) -> str:
        """The name of its colour in the figures."""
        return (
            f"{self.method}, all data" if self.step == 0 else {"paper": "paper, program", "hush": "hush"}[self.method]
        )


def all_arms(every: int = 1) -> list[Arm]:
    """The whole sweep of both, or of each only every so many points."""
    paper = [Arm("paper", 4 - k) for k in STEPS]
    return [*paper[::every], *(Arm("hush", step) for step in range(0, NOISE_STEPS + 1, every))]


def make_plans(incidence: hush.Incidence, promise: Promise, folder: Path, *, every: int = 1) -> None:
    """Plan every arm that is not planned yet; a point that nothing feasible is left for has no plan."""
    for arm in all_arms(every):
        if (folder / arm.name).exists() or (folder / f"{arm.name}.infeasible").exists():
            continue
        try:
            plan = _plan(arm, incidence, promise, folder)
        except hush.InfeasiblePlan as error:
            folder.mkdir(parents=True, exist_ok=True)
            (folder / f"{arm.name}.infeasible").write_text(f"{error}\n")
            continue
        plan.save(folder / arm.name)
        print(f"{arm.name}: noise {plan.noise_multiplier:.4g}, kept {np.mean(plan.weights > 1e-6):.1%}", flush=True)


def planned(folder: Path) -> list[Arm]:
    """The arms that have a plan there."""
    return [arm for arm in all_arms() if (folder / arm.name).exists()]


def alike(folder: Path) -> dict[tuple[str, bool], str]:
    """For each planned arm, with and without noise, the first one that trains nearly the same, and stands for it.

    Nearly: its examples' rates differ by at most 2 % of their sum and, with noise, its noise by at most 1 %, under the
    same tuning. The ends of a sweep change hardly anything; seeds differ by more.
    """
    plans = {arm: hush.Plan.load(folder / arm.name) for arm in planned(folder)}

    def near(arm: Arm, other: Arm, noise: bool) -> bool:
        own, its = plans[arm], plans[other]
        if noise and (arm.label != other.label or abs(its.noise_multiplier / own.noise_multiplier - 1) > NEAR_NOISE):
            return False
        return bool(np.abs(own.rates - its.rates).sum() <= NEAR_RATES * own.rates.sum())

    found: dict[tuple[str, bool], str] = {}
    for noise in (False, True):
        firsts: list[Arm] = []
        for arm in plans:
            first = next((other for other in firsts if near(arm, other, noise)), arm)
            firsts += [first] if first is arm else []
            found[arm.name, noise] = first.name
    return found


def _plan(arm: Arm, incidence: hush.Incidence, promise: Promise, folder: Path) -> hush.Plan:
    settings: dict[str, Any] = {
        "prior": PRIOR,
        "ceiling": promise.ceilings(incidence.num_secrets),
        "batch_size": promise.batch_size,
        "rounds": promise.rounds,
        "bound": "kl" if arm.method == "paper" else "blowup",
    }
    kinds: dict[str, Any] = {"capacity": "none"}
    if arm.step > 0 and arm.method == "paper":
        largest = make_chooser(incidence, **settings, tolerance=1e-4).strength_that_keeps_all
        kinds = {"capacity": "paper", "strength": largest * 2.0**-arm.step}
    elif arm.step > 0:
        most = hush.Plan.load(folder / Arm("hush", 0).name).noise_multiplier
        kinds = {"capacity": "accounted", "noise_multiplier": most * NOISE_STEP**arm.step}
    return hush.make_plan(incidence, **settings, **kinds, clip_norm=CLIP_NORM, noise_scale=promise.noise_scale)

"""Every posterior of a plan again, one secret at a time, by a route that shares nothing with calibration's search."""

import os
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import Any

import numpy as np

from hush.accounting import posterior
from hush.plan import Plan
from hush.rounding import counted
from hush.verification.checks import Check, check

EQUAL = 1e-9  # another machine may round a posterior to something larger than what is stated, by this share at most
SLACK = 5e-3  # two upper bounds of the same number may differ by this much: each is within 1e-3 of the truth
FINER = 1e-4  # accuracy at which a posterior is computed again before it counts as broken
NEAR = 0.5  # share of its ceiling above which a secret may bind
LESS = 0.995  # whoever breaks at this share of the noise binds
MUCH_LESS = 0.98  # whoever holds at this share does not
ROOM = 0.02  # a secret listed as binding may miss its ceiling by this much: those who are drawn alike share a bound

Progress = Callable[[int, int], None]


def check_posteriors(plan: Plan, progress: Progress | None) -> tuple[Check, Check]:
    """Every posterior, recomputed alone, is within its ceiling and what is stated; exactly who is said to bind does."""
    total = plan.incidence.num_secrets
    listed = np.zeros(total, dtype=bool)
    listed[plan.binding] = True
    faults: dict[str, list[str]] = {"broken": [], "larger than stated": [], "binding": []}
    with ThreadPoolExecutor(max_workers=os.cpu_count()) as pool:
        for secret, found in enumerate(pool.map(partial(_faults, plan, listed), range(total))):
            for fault in found:
                faults[fault].append(plan.secret_ids[secret])
            if progress is not None:
                progress(secret + 1, total)

    def told(fault: str) -> str:
        ids = faults[fault]
        return ", ".join(ids[:5]) + (f" and {len(ids) - 5} more" if len(ids) > 5 else "")

    if faults["broken"]:
        broken = counted(len(faults["broken"]), "promise")
        problem = f"{broken} not kept at noise {plan.noise_multiplier:.6g}: {told('broken')}"
    else:
        problem = f"{len(faults['larger than stated'])} larger than stated: {told('larger than stated')}"
    sound = not (faults["broken"] or faults["larger than stated"])
    recomputed = "the one there is" if total == 1 else f"all {total}"
    bind = f"{counted(plan.binding.size, 'secret')} {'binds' if plan.binding.size == 1 else 'bind'}"
    return (
        check("posteriors", sound, problem, f"{recomputed} recomputed, every one within its ceiling"),
        check("binding", not faults["binding"], f"wrongly listed or left out: {told('binding')}", f"{bind}, as stated"),
    )


def is_proven(plan: Plan, secret: int, prior: np.ndarray, stated: np.ndarray, found: np.ndarray) -> bool:
    """Whether posteriors from these priors are at most what is stated. found: upper bounds by the plan's bound.

    Those may be too large by mere discretisation, or since the search for the best order ended elsewhere; so before
    they count as larger, a finer one of the same kind and then the tight one are tried.
    """
    for bound in dict.fromkeys((plan.bound, "blowup")):
        if np.all(found <= stated * (1 + EQUAL)):
            return True
        found = np.minimum(found, _found(plan, secret, prior, bound=bound, accuracy=FINER))
    return bool(np.all(found <= stated * (1 + EQUAL)))


def _faults(plan: Plan, listed: np.ndarray, secret: int) -> list[str]:
    """What is wrong with one secret."""
    prior_Q, ceiling_Q, stated_Q = plan.prior[secret], plan.ceiling[secret], plan.posterior[secret]
    now_Q = _found(plan, secret, prior_Q)
    if not np.all(now_Q <= ceiling_Q):
        now_Q = np.minimum(now_Q, _found(plan, secret, prior_Q, accuracy=FINER))
    faults: list[str] = []
    if not np.all(now_Q <= ceiling_Q):
        faults.append("broken")
    elif not is_proven(plan, secret, prior_Q, stated_Q, now_Q):
        faults.append("larger than stated")
    near = bool(np.any(now_Q > NEAR * ceiling_Q))
    if listed[secret]:
        if not (near and np.any(_found(plan, secret, prior_Q, noise_share=MUCH_LESS) > (1 - ROOM) * ceiling_Q)):
            faults.append("binding")
    elif near and np.any(_found(plan, secret, prior_Q, noise_share=LESS, accuracy=FINER) > (1 + SLACK) * ceiling_Q):
        faults.append("binding")
    return faults


def _found(plan: Plan, secret: int, prior: np.ndarray, *, noise_share: float = 1.0, **settings: Any) -> np.ndarray:
    """Upper bounds from these priors, with a share of the plan's noise and, unless told otherwise, by its bound."""
    return np.asarray(
        posterior(
            plan.rates[plan.incidence.examples_of(secret)],
            noise_multiplier=plan.noise_multiplier * noise_share,
            rounds=plan.rounds,
            prior=prior,
            **{"bound": plan.bound, **settings},
        )
    )

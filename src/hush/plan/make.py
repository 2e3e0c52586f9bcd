"""From promises to a plan: choose the weights, prove the noise, freeze both."""

from collections.abc import Sequence
from datetime import UTC, datetime
from typing import SupportsIndex

import numpy as np
from numpy.typing import ArrayLike, NDArray

from hush.accounting.inputs import Bound, checked_choice, checked_noise
from hush.errors import InfeasiblePlan, InvalidInput
from hush.incidence import Incidence
from hush.plan.model import Plan
from hush.weights.choose import Capacity, Choice, Chooser, Progress
from hush.weights.frontier import KEEP, make_chooser


def make_plan(
    incidence: Incidence,
    *,
    prior: ArrayLike,
    ceiling: ArrayLike,
    batch_size: float,
    rounds: SupportsIndex,
    bound: Bound = "blowup",
    capacity: Capacity = "accounted",
    noise_multiplier: float | None = None,
    keep: float = KEEP,
    strength: float | None = None,
    clip_norm: float = 1.0,
    secret_ids: Sequence[str] | None = None,
    noise_scale: float = 1.0,
    tolerance: float = 1e-4,
    progress: Progress | None = None,
) -> Plan:
    """Decide how often each example is used and how much noise is added, so that every promise is kept.

    capacity="accounted" keeps as much data as noise_multiplier allows; without one it takes the least noise at which
    the examples with secrets keep the share `keep` of their weight. "paper" uses strength * mu_j as capacities
    (strength is required). "none" keeps everything. With "paper" and "none", noise_multiplier may ask for more noise
    than needed, never for less.

    Guarantee: the posteriors of the plan are upper bounds, proven for its very rates and noise, and none exceeds its
    ceiling; otherwise an InfeasiblePlan or CannotCertify says why.
    """
    checked_choice("capacity", capacity, Capacity)
    if (strength is not None) != (capacity == "paper"):
        raise InvalidInput(f"capacity={capacity!r} with strength={strength!r}; give a strength exactly for 'paper'")
    if not 0 < keep <= 1:
        raise InvalidInput(f"keep={keep!r}; pass the share of data to keep, above 0 and at most 1")
    if not (0 < clip_norm < np.inf and 0 < noise_scale < np.inf):
        raise InvalidInput(f"clip_norm={clip_norm!r} and noise_scale={noise_scale!r} must be finite and above 0")
    wanted = None if noise_multiplier is None else checked_noise(noise_multiplier)
    chooser = make_chooser(incidence, prior, ceiling, batch_size, rounds, bound, tolerance)
    if capacity == "none":
        choice = chooser.everything
    elif capacity == "paper":
        choice = chooser.paper(float(strength or 0.0))
    elif wanted is None:
        choice = chooser.keeping(keep, progress=progress)
    elif wanted >= chooser.everything.noise_multiplier:
        choice = chooser.everything
    else:
        choice = chooser.accounted(wanted)
    return _plan_of(choice, chooser, wanted, capacity, clip_norm, noise_scale, secret_ids)


def _plan_of(
    choice: Choice,
    chooser: Chooser,
    wanted: float | None,
    capacity: Capacity,
    clip_norm: float,
    noise_scale: float,
    secret_ids: Sequence[str] | None,
) -> Plan:
    """Freeze a choice at the noise that was asked for, or at the least that it needs."""
    found = choice.calibration
    incidence, posterior_SQ, sigma = chooser.incidence, np.atleast_2d(found.posterior), found.noise_multiplier
    if wanted is not None and wanted < sigma:
        raise InfeasiblePlan(
            f"noise_multiplier={wanted:.6g} does not keep every promise at these rates, {sigma:.6g} is the least that "
            f"does ({_who(found.binding, secret_ids)} would break); raise it, or let capacity='accounted' drop data"
        )
    m = incidence.num_secrets
    ids = tuple(f"secret-{secret:06d}" for secret in range(m)) if secret_ids is None else tuple(secret_ids)
    return Plan(
        incidence=incidence,
        secret_ids=ids,
        prior=chooser.prior_SQ.copy(),
        ceiling=chooser.ceiling_SQ.copy(),
        posterior=posterior_SQ.reshape(chooser.prior_SQ.shape).copy(),
        binding=found.binding.copy(),
        weights=choice.weight_N.copy(),
        noise_multiplier=sigma if wanted is None else wanted,  # more noise never raises a posterior
        rounds=chooser.rounds,
        batch_size=chooser.batch_size,
        clip_norm=float(clip_norm),
        bound=chooser.bound,
        capacity=capacity,
        weights_gap=choice.gap,
        noise_scale=float(noise_scale),
        created=datetime.now(UTC).isoformat(timespec="seconds"),
    )


def _who(binding: NDArray[np.int64], secret_ids: Sequence[str] | None) -> str:
    first: list[int] = binding[:3].tolist()
    names = [f"secret {i}" if secret_ids is None else str(secret_ids[i]) for i in first]
    return ", ".join(names) + (f" and {binding.size - 3} more" if binding.size > 3 else "")

"""From promises to a plan: choose the weights, prove the noise, freeze both."""

from collections.abc import Sequence
from datetime import UTC, datetime
from typing import SupportsIndex

import numpy as np
from numpy.typing import ArrayLike, NDArray

from hush.accounting import posteriors
from hush.accounting.inputs import Bound, checked_choice, checked_noise, checked_number
from hush.errors import InfeasiblePlan, InvalidInput
from hush.incidence import Incidence
from hush.plan.invariants import check_data_fingerprint, check_ids
from hush.plan.model import Plan
from hush.rounding import rounded_up
from hush.weights.accounted import TooLittleNoise
from hush.weights.choose import Capacity, Choice, Chooser, Progress
from hush.weights.frontier import KEEP, make_chooser
from hush.weights.limits import explained, noise_without

BINDING_FROM = 0.99  # with a larger share of the noise needed than this, the secrets that bind there bind here


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
    data_fingerprint: str | None = None,
    tolerance: float = 1e-4,
    progress: Progress | None = None,
) -> Plan:
    """Decide how often each example is used and how much noise is added, so that every promise is kept.

    capacity="accounted" keeps as much data as noise_multiplier allows; without one it takes the least noise at which
    the examples with secrets keep the share `keep` of their weight. "paper" uses strength * mu_j as capacities
    (strength is required). "none" keeps everything. With "paper" and "none", noise_multiplier may ask for more noise
    than needed, never for less. data_fingerprint (from ``DataKey.fingerprint_rows``) ties the plan to its data:
    training then refuses any other.

    Guarantee: the posteriors of the plan are upper bounds, proven for its very rates and noise, and none exceeds its
    ceiling; otherwise an InfeasiblePlan or CannotCertify says why.
    """
    checked_choice("capacity", capacity, Capacity)
    if (strength is not None) != (capacity == "paper"):
        raise InvalidInput(f"capacity={capacity!r} with strength={strength!r}; give a strength exactly for 'paper'")
    keep, clip_norm = checked_number("keep", keep), checked_number("clip_norm", clip_norm)
    noise_scale = checked_number("noise_scale", noise_scale)
    strength = None if strength is None else checked_number("strength", strength)
    if not 0 < keep <= 1:
        raise InvalidInput(f"keep={keep!r}; pass the share of data to keep, above 0 and at most 1")
    if not (0 < clip_norm < np.inf and 0 < noise_scale < np.inf):
        raise InvalidInput(f"clip_norm={clip_norm!r} and noise_scale={noise_scale!r} must be finite and above 0")
    if strength is not None and not 0 < strength < np.inf:
        raise InvalidInput(f"strength={strength!r}; pass a finite number above 0")
    check_data_fingerprint(data_fingerprint)
    wanted = None if noise_multiplier is None else checked_noise(noise_multiplier)
    chooser = make_chooser(incidence, prior, ceiling, batch_size, rounds, bound, tolerance)
    ids = _checked_ids(secret_ids, incidence.num_secrets)
    choice = _chosen(chooser, capacity, wanted, keep, strength, ids, progress)
    sigma = choice.noise_multiplier if wanted is None else wanted
    if sigma < choice.noise_multiplier:
        raise _too_little(sigma, chooser, choice, ids)
    posterior_SQ, binding = _at(sigma, chooser, choice)
    return Plan(
        incidence=incidence,
        secret_ids=ids,
        prior=chooser.prior_SQ,
        ceiling=chooser.ceiling_SQ,
        posterior=posterior_SQ,
        binding=binding,
        weights=choice.weight_N,
        noise_multiplier=sigma,
        rounds=chooser.rounds,
        batch_size=chooser.batch_size,
        clip_norm=clip_norm,
        bound=bound,
        capacity=capacity,
        weights_gap=choice.gap,
        noise_scale=noise_scale,
        created=datetime.now(UTC).isoformat(timespec="seconds"),
        data_fingerprint=data_fingerprint,
    )


def noise_without_forcing(plan: Plan) -> tuple[str, float] | None:
    """If one secret alone forces a plan's noise: its id, and the noise that the same rates would need without it.

    None if several do, or if it would buy less than 1 %.
    """
    if plan.binding.size != 1:
        return None
    only = int(plan.binding[0])
    found = noise_without(
        only, plan.incidence, plan.prior, plan.ceiling, rates=plan.rates, rounds=plan.rounds, bound=plan.bound
    )
    return (plan.secret_ids[only], found) if found < BINDING_FROM * plan.noise_multiplier else None


def _chosen(
    chooser: Chooser,
    capacity: Capacity,
    wanted: float | None,
    keep: float,
    strength: float | None,
    ids: tuple[str, ...],
    progress: Progress | None,
) -> Choice:
    if capacity == "none":
        return chooser.everything
    if capacity == "paper":
        return chooser.paper(strength or 0.0)
    if wanted is None:
        return chooser.keeping(keep, progress=progress)
    if wanted >= chooser.everything.noise_multiplier:
        return chooser.everything
    try:
        return chooser.proven_at(wanted)
    except TooLittleNoise as error:
        raise explained(chooser, wanted, error, ids.__getitem__) from error


def _at(sigma: float, chooser: Chooser, choice: Choice) -> tuple[NDArray[np.float64], NDArray[np.int64]]:
    """Posteriors at this noise, which is what the choice needs or more, and the secrets that bind there."""
    found = choice.calibration
    posterior_SQ = found.posterior.reshape(chooser.prior_SQ.shape)
    if sigma == found.noise_multiplier:
        return posterior_SQ, found.binding
    again_SQ = posteriors(
        chooser.incidence,
        prior=chooser.prior_SQ,
        noise_multiplier=sigma,
        rates=choice.rate_N,
        rounds=chooser.rounds,
        bound=chooser.bound,
    )
    near = found.noise_multiplier > BINDING_FROM * sigma
    return np.minimum(posterior_SQ, again_SQ), found.binding if near else found.binding[:0]  # both are upper bounds


def _too_little(sigma: float, chooser: Chooser, choice: Choice, ids: tuple[str, ...]) -> InfeasiblePlan:
    binding: list[int] = choice.calibration.binding.tolist()
    names = ", ".join(ids[secret] for secret in binding[:3])
    more = f" and {len(binding) - 3} more" if len(binding) > 3 else ""
    text = (
        f"noise_multiplier={sigma:.6g} does not keep every promise at these rates, "
        f"{rounded_up(choice.noise_multiplier, 6)} does ({names}{more} would break); raise it, or let "
        "capacity='accounted' use the examples of those secrets less"
    )
    if len(binding) == 1:
        relaxed = noise_without(
            binding[0], chooser.incidence, chooser.prior_SQ, chooser.ceiling_SQ,
            rates=choice.rate_N, rounds=chooser.rounds, bound=chooser.bound,
        )  # fmt: skip
        text += f". {names} alone forces it: without its promise a noise of {rounded_up(relaxed)} would do"
    return InfeasiblePlan(text)


def _checked_ids(secret_ids: Sequence[str] | None, count: int) -> tuple[str, ...]:
    if secret_ids is None:
        return tuple(f"secret-{secret:06d}" for secret in range(count))
    if isinstance(secret_ids, str) or len(secret_ids) != count:
        raise InvalidInput(f"there are {count} secrets but {len(secret_ids)} secret_ids; pass one id per secret")
    check_ids(tuple(secret_ids))
    return tuple(secret_ids)

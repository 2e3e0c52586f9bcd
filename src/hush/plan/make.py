"""From promises to a plan: choose the weights, prove the noise, freeze both.

Examples that a plan leaves out of training, to evaluate on: they hold no secret, and their weight is 0.

Why scores on them may be shown. Which they are follows from the graph, which is public. They hold no secret, so they
are the same whatever the secrets say. A score is then a function of the model after some round and of public things;
the certificate covers the models of all rounds, so it covers their scores, too.

Left out by weight, examples keep their numbers: graph, data and fingerprints are those of the scan, and whoever has the
plan can see what was held out.
"""

from collections.abc import Sequence
from dataclasses import replace
from datetime import UTC, datetime
from typing import Any, SupportsIndex

import numpy as np
from numpy.typing import ArrayLike, NDArray

from hush.accounting import posteriors
from hush.accounting.arguments import Bound, checked_choice, checked_noise, checked_number
from hush.arrays import chosen_indices
from hush.errors import CannotCertify, InfeasiblePlan, InvalidInput
from hush.incidence import Incidence
from hush.numbers import rounded_up
from hush.plan.plan import Plan, check_data_fingerprint, check_ids
from hush.weights.choose import Capacity, Choice, Chooser, Progress, TooLittleNoise
from hush.weights.frontier import KEEP, explained, make_chooser, noise_without

__all__ = ["choose_held_out", "graph_of_training", "held_out_examples", "make_plan_holding_out"]


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


SHARE = 0.05  # of the examples without a secret
FEWEST, MOST = 20, 1000  # examples: with fewer a score says little, and more only cost time
LESS = 1e-12  # by which weights are lowered until no rate is above the proven one


def choose_held_out(incidence: Incidence, share: float | None = None) -> NDArray[np.int64]:
    """This share of the examples without a secret, at most 1,000, at random; the same ones for the same graph.

    By default a twentieth, or none where that is less than 20 examples.

    >>> graph = Incidence.from_pairs([0, 1], [0, 0], num_examples=10, num_secrets=1)
    >>> choose_held_out(graph, 0.25).tolist(), choose_held_out(graph).tolist()
    ([7, 9], [])
    """
    if share is not None and not 0 <= share <= 0.5:  # NaN fails
        raise InvalidInput(f"the share to hold out is {share!r}; pass 0 for none, or a number up to 0.5 such as 0.05")
    free = np.flatnonzero(incidence.secrets_per_example == 0)
    count = min(int((SHARE if share is None else share) * free.size), MOST)
    if share is None and count < FEWEST:
        count = 0
    if share and not count:
        raise InvalidInput(
            f"{free.size} of {incidence.num_examples} examples hold no secret, of which {share!r} is less than one: "
            "nothing is left to evaluate on whose scores may be shown. Hold out a larger share, or 0 for none"
        )
    return np.sort(np.random.default_rng(0).choice(free, count, replace=False)).astype(np.int64)


def make_plan_holding_out(incidence: Incidence, examples: ArrayLike, **arguments: Any) -> Plan:
    """``make_plan`` with these examples left out: their weight is 0. They must hold no secret.

    Guarantee: that of ``make_plan``. Rates are those of a plan for the other examples, or less by rounding.
    """
    held = chosen_indices("examples to hold out", examples, incidence.num_examples)
    bearing = held[incidence.secrets_per_example[held] > 0]
    if bearing.size:
        raise InvalidInput(
            f"{bearing.size} of the examples to hold out contain a secret, example {bearing[0]} first; a score on them "
            "would be a release that no plan accounts for: hold out examples without a secret"
        )
    if not held.size:
        return make_plan(incidence, **arguments)
    used_N = np.ones(incidence.num_examples, dtype=bool)
    used_N[held] = False
    found = make_plan(incidence.select(examples=used_N), **arguments)
    weight_N = np.zeros(incidence.num_examples)
    weight_N[used_N] = found.weights
    best = found.total_weight / (1 - found.weights_gap)  # no weights for the other examples have a larger sum
    bearing_N = incidence.secrets_per_example > 0
    less = 0.0
    while less < 1e-6:
        now_N = np.where(bearing_N, weight_N * (1 - less), weight_N)
        gap = max(0.0, 1 - float(now_N.sum()) / best)
        plan = replace(found, incidence=incidence, weights=now_N, weights_gap=gap)
        # The same weights among zeros may sum to a hair less, and what was proven holds for lower rates only.
        if np.all(plan.rates[used_N & bearing_N] <= found.rates[bearing_N[used_N]]):
            return plan
        less = max(LESS, 10 * less)
    raise CannotCertify("the rates of a plan with examples held out come out above the proven ones; hold out fewer")


def graph_of_training(plan: Plan) -> Incidence:
    """The graph of the examples that are not held out."""
    used_N = np.ones(plan.incidence.num_examples, dtype=bool)
    used_N[held_out_examples(plan)] = False
    return plan.incidence.select(examples=used_N)


def held_out_examples(plan: Plan) -> NDArray[np.int64]:
    """The examples that a plan leaves out to evaluate on: no secret, and weight 0, which nothing else gives them."""
    return np.flatnonzero((plan.incidence.secrets_per_example == 0) & (plan.weights == 0)).astype(np.int64)

"""From promises to a plan: choose the weights, prove the noise, freeze both; and plans that hold out examples.

With slots the text around the secrets is public, and so are the examples without a secret: both are learnt without
clipping or noise, before the private rounds and beside them. So only examples with a secret are drawn. The plan is that
of their graph alone, with weight 0 for all others. A plan without slots may do the same (draw="secrets").

Held-out examples are left out of training, to evaluate on: they contain no secret, and their weight is 0. Scores on
them may be shown. Which examples they are follows from the graph, which is public. They contain no secret, so they are
the same whatever the secrets are. A score is therefore a function of the model after some round and of public data; the
certificate covers the models of all rounds, so it covers these scores too. Because no example is taken out,
examples keep their numbers: graph, data and fingerprints are those of the scan, and a reader of the plan can see what
was held out.
"""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, SupportsIndex

import numpy as np
from numpy.typing import ArrayLike, NDArray

from hush.accounting import posteriors
from hush.accounting.arguments import Bound, checked_choice, checked_noise, checked_rounds
from hush.accounting.releases import Shape
from hush.accounting.sampling_error import planning_ceiling
from hush.arrays import Array, Progress, chosen_indices
from hush.errors import CannotCertify, InfeasiblePlan, InvalidInput, Setting
from hush.incidence import Incidence
from hush.numbers import checked_number, checked_positive, rounded_up
from hush.plan.after import OfSeries, Promised, UnderFilter, release_of
from hush.plan.auto import chosen
from hush.plan.chain import used_shares
from hush.plan.earlier import Earlier, History
from hush.plan.plan import Plan, check_data_fingerprint, check_ids, drawable_examples
from hush.plan.settings import Draw, FilterSettings, SeriesSettings
from hush.protection import promise_arrays
from hush.settings import AUTO, Auto
from hush.slots import Slots
from hush.weights.accounts import FULLY_USED
from hush.weights.choose import Capacity, Choice, Chooser, TooLittleLeft, TooLittleNoise, checked_batch_size
from hush.weights.frontier import KEEP, explained, noise_without

__all__ = [
    "choose_held_out",
    "draws_secrets_only",
    "graph_of_training",
    "held_out_examples",
    "make_plan",
    "make_plan_holding_out",
    "noise_without_forcing",
    "public_examples",
]

BINDING_SHARE = 0.99  # of the noise: if the choice needs more than this share, its binding secrets bind here too
MAX_NAMED = 3  # secrets that an error message names

HELD_OUT_SHARE = 0.05  # of the examples without a secret, by default
MIN_HELD_OUT = 20  # examples: a score on fewer says little
MAX_HELD_OUT = 1000  # examples: more only cost time
MAX_HELD_OUT_SHARE = 0.5
RATE_MARGINS = (0.0, *(10.0**k for k in range(-12, -5)))  # relative; tried until no rate exceeds a proven one


def make_plan(
    incidence: Incidence,
    *,
    prior: ArrayLike,
    ceiling: ArrayLike,
    batch_size: float | Auto,
    rounds: SupportsIndex | Auto,
    bound: Bound = "blowup",
    capacity: Capacity = "accounted",
    noise_multiplier: float | None = None,
    keep: float | Auto = KEEP,
    strength: float | None = None,
    clip_norm: float = 1.0,
    secret_ids: Sequence[str] | None = None,
    noise_scale: float = 1.0,
    data_fingerprint: str | None = None,
    slots: Slots | None = None,
    skeleton_fingerprint: str | None = None,
    draw: Draw | None = None,
    series: SeriesSettings | None = None,
    shapes: Sequence[Shape] | None = None,
    filter: FilterSettings | None = None,
    after: Sequence[Earlier | str | Path] = (),
    ancestors: Mapping[str, Sequence[str]] | None = None,
    uncovered: Sequence[str] = (),
    tolerance: float = 1e-4,
    progress: Progress | None = None,
) -> Plan:
    """Choose how often each example is used and how much noise is added, so that every promise is kept.

    capacity="accounted" keeps as much data as noise_multiplier allows; without one it takes the least noise at which
    the examples with secrets keep the share `keep` of their weight. "paper" uses strength * mu_j as capacities
    (strength is required). "none" keeps everything. With "paper" and "none", noise_multiplier may ask for more noise
    than needed, never for less. batch_size, rounds and keep may be "auto": they are then chosen from the signal budget
    of the graph (``hush.plan.auto``), which changes no promise. data_fingerprint (from ``DataKey.fingerprint_rows``)
    ties the plan to its data: training then refuses any other.

    slots: those of the scan that found the secrets. The promises are then about the text inside the slots, and about
    whole examples where there are none. Examples without a secret are not drawn: they count neither in batch_size nor
    in the share that is kept. skeleton_fingerprint is that of all skeletons, under the owner's key.

    draw="secrets" does the same without slots: only examples with a secret are drawn, as whole examples; the others are
    for ordinary training, before the rounds and beside them. By default ("all") every example is drawn without slots.

    series, or shapes for releases that are unlike, announces several releases under one promise before the first;
    filter adds releases later, each of which may spend a share of the budget. after: the plans of all earlier releases
    of the chain, in order, as folders or loaded (``hush.plan.earlier``); secrets are the same if their ids are.
    ancestors: for an id the earlier ids whose examples count as this secret's, of secrets that were merged or split
    (``hush.plan.after``). uncovered: ids of secrets that an earlier release did not protect in some of its examples;
    certificates from then on count them.

    Guarantee: the posteriors of the plan are upper bounds, proven for exactly its rates and noise, or for all releases
    of its chain. None exceeds its ceiling, and a thousandth of the way from prior to ceiling is left to what training's
    computed draws and noise add.
    Otherwise InfeasiblePlan or CannotCertify is raised and says why.
    """
    checked_choice("capacity", capacity, Capacity)
    if (strength is not None) != (capacity == "paper"):
        raise InvalidInput(
            Setting("capacity"), f"={capacity!r} with ", Setting("strength"),
            f"={strength!r}; give a strength exactly for 'paper'", setting="strength",
        )  # fmt: skip
    if keep != AUTO:
        keep = checked_number("keep", keep)
        if not 0 < keep <= 1:
            raise InvalidInput("pass the share of data to keep, above 0 and at most 1", setting="keep", value=keep)
    clip_norm, noise_scale = checked_positive("clip_norm", clip_norm), checked_positive("noise_scale", noise_scale)
    strength = None if strength is None else checked_positive("strength", strength)
    check_data_fingerprint(data_fingerprint)
    drawn_N = _drawn_with(slots, incidence, batch_size) if draws_secrets_only(draw, slots) else None
    noise = None if noise_multiplier is None else checked_noise(noise_multiplier)
    drawn_from = incidence if drawn_N is None else incidence.select(examples=drawn_N)
    ids = _checked_ids(secret_ids, incidence.num_secrets)
    release = None
    checked_choice("bound", bound, Bound)
    rounds = AUTO if rounds == AUTO else checked_rounds(rounds)
    if after or ancestors or not all(one is None for one in (series, shapes, filter)):
        if secret_ids is None:
            raise InvalidInput(
                "in a chain a secret is known by its id in every release; pass a table of secrets, or ids"
            )
        prior_SQ, ceiling_SQ = promise_arrays(prior, ceiling, incidence.num_secrets)
        release = release_of(
            Promised(
                history=History.of(Earlier.all_of(after), ids, ancestors, uncovered),
                incidence=drawn_from,
                prior_SQ=prior_SQ,
                ceiling_SQ=ceiling_SQ,
                bound=bound,
                batch_size=batch_size,
                rounds=rounds,
            ),
            series=series,
            shapes=shapes,
            filter=filter,
        )
    if release is not None:
        if capacity == "paper":
            raise InvalidInput("in a chain capacities come from the accountant, or there are none", setting="capacity")
        noise, rounds, bound = release.noise(noise), release.rounds(rounds), release.bound
    chooser, choice, share = chosen(
        drawn_from,
        prior=prior,
        ceiling=ceiling,
        batch_size=batch_size,
        rounds=rounds,
        keep=keep,
        bound=bound,
        asks_share=capacity == "accounted" and noise is None,
        tolerance=tolerance,
        account=None if release is None else release.account,
        target=None if release is None else release.target_SQ,
        progress=progress,
    )
    if choice is not None:
        pass
    elif capacity == "none":
        choice = chooser.all_examples
    elif strength is not None:
        choice = chooser.paper(strength)
    else:
        try:
            if noise is None:
                choice = chooser.least_noise_keeping(share, progress=progress)
            elif noise >= chooser.all_examples.noise_multiplier:
                choice = chooser.all_examples
            else:
                choice = chooser.proven_at(noise)
        except TooLittleNoise as error:
            if isinstance(release, OfSeries):
                raise release.refused_batch(error, chooser) from error
            raise explained(chooser, noise or 0.0, error, ids.__getitem__) from error
        except TooLittleLeft as error:
            raise error if not isinstance(release, UnderFilter) else release.refused(share) from error
    if isinstance(release, OfSeries):
        release.check_inside(choice)
        release.check_kept(choice, None if keep == AUTO else share)
    noise = choice.noise_multiplier if noise is None else noise
    if noise < choice.noise_multiplier:
        raise _too_little_noise(noise, chooser, choice, ids)
    chain = None
    if release is None:
        posterior_SQ, binding = _posteriors_at(noise, chooser, choice)
    else:
        chain, posterior_SQ = release.finish(chooser, choice.rate_N, noise)
        binding = np.flatnonzero(used_shares(chain, drawn_from, choice.rate_N) > FULLY_USED)
    weight_N = choice.weight_N
    if drawn_N is not None:
        weight_N = np.zeros(incidence.num_examples)
        weight_N[drawn_N] = choice.weight_N
    return Plan(
        incidence=incidence,
        secret_ids=ids,
        prior=chooser.prior_SQ,
        ceiling=chooser.ceiling_SQ,
        posterior=posterior_SQ,
        binding=binding,
        weights=weight_N,
        noise_multiplier=noise,
        rounds=chooser.rounds,
        batch_size=chooser.batch_size,
        clip_norm=clip_norm,
        bound=bound,
        capacity=capacity,
        weights_gap=choice.gap,
        noise_scale=noise_scale,
        created=datetime.now(UTC).isoformat(timespec="seconds"),
        data_fingerprint=data_fingerprint,
        slots=slots,
        skeleton_fingerprint=skeleton_fingerprint,
        held_out=None if drawn_N is None else np.empty(0, dtype=np.int64),
        chain=chain,
    )


def draws_secrets_only(draw: Draw | None, slots: Slots | None) -> bool:
    """Whether a plan draws only examples with a secret: always with slots, otherwise if it is asked for."""
    if draw is not None:
        checked_choice("draw", draw, Draw)
    if slots is not None and draw == "all":
        raise InvalidInput("with slots only examples with a secret are drawn; drop ", Setting("draw"), setting="draw")
    return slots is not None or draw == "secrets"


def _drawn_with(slots: Slots | None, incidence: Incidence, batch_size: float | Auto) -> NDArray[np.bool_]:
    """Which examples are drawn if only those with a secret are. There must be enough of them."""
    if slots is not None:
        slots.check_against(incidence)
    bearing_N = incidence.secrets_per_example > 0
    if not bearing_N.any():
        raise InvalidInput(
            f"none of the {incidence.num_examples} examples contains a secret, so none would ever be drawn: nothing "
            "needs a promise; check the rules, or train without hush"
        )
    if batch_size != AUTO:
        checked_batch_size(batch_size, incidence.num_examples, bearing=int(bearing_N.sum()))
    return bearing_N


def noise_without_forcing(plan: Plan) -> tuple[str, float] | None:
    """If a single secret forces a plan's noise: its id, and the noise that the same rates would need without it.

    None if several secrets bind, if the difference would be less than 1 %, or if the plan is one of a chain.
    """
    if plan.binding.size != 1 or plan.chain is not None:
        return None
    secret = int(plan.binding[0])
    relaxed = noise_without(
        secret,
        plan.incidence,
        plan.prior,
        planning_ceiling(plan.prior, plan.ceiling),
        rates=plan.rates,
        rounds=plan.rounds,
        bound=plan.bound,
    )
    return (plan.secret_ids[secret], relaxed) if relaxed < BINDING_SHARE * plan.noise_multiplier else None


def _posteriors_at(noise: float, chooser: Chooser, choice: Choice) -> tuple[Array, NDArray[np.int64]]:
    """Posteriors and binding secrets at this noise, which is at least what the choice needs."""
    calibration = choice.calibration
    posterior_SQ = calibration.posterior.reshape(chooser.prior_SQ.shape)
    if noise == calibration.noise_multiplier:
        return posterior_SQ, calibration.binding
    smaller_SQ = posteriors(
        chooser.incidence,
        prior=chooser.prior_SQ,
        noise_multiplier=noise,
        rates=choice.rate_N,
        rounds=chooser.rounds,
        bound=chooser.bound,
    )
    is_close = calibration.noise_multiplier > BINDING_SHARE * noise
    binding = calibration.binding if is_close else calibration.binding[:0]
    return np.minimum(posterior_SQ, smaller_SQ), binding  # both are upper bounds


def _too_little_noise(noise: float, chooser: Chooser, choice: Choice, ids: tuple[str, ...]) -> InfeasiblePlan:
    binding: list[int] = choice.calibration.binding.tolist()
    names = ", ".join(ids[secret] for secret in binding[:MAX_NAMED])
    more = f" and {len(binding) - MAX_NAMED} more" if len(binding) > MAX_NAMED else ""
    parts = [
        Setting("noise_multiplier"),
        f"={noise:.6g} does not keep every promise at these rates, {rounded_up(choice.noise_multiplier, 6)} does "
        f"({names}{more} would break); raise it, or let ",
        Setting("capacity"),
        "='accounted' use the examples of those secrets less",
    ]
    if len(binding) == 1:
        relaxed = noise_without(
            binding[0], chooser.incidence, chooser.prior_SQ, chooser.target_SQ,
            rates=choice.rate_N, rounds=chooser.rounds, bound=chooser.bound,
        )  # fmt: skip
        parts.append(f". {names} alone forces it: without its promise a noise of {rounded_up(relaxed)} would be enough")
    return InfeasiblePlan(*parts, setting="noise_multiplier")


def _checked_ids(secret_ids: Sequence[str] | None, count: int) -> tuple[str, ...]:
    if secret_ids is None:
        return tuple(f"secret-{secret:06d}" for secret in range(count))
    if isinstance(secret_ids, str) or len(secret_ids) != count:
        raise InvalidInput(f"there are {count} secrets but {len(secret_ids)} secret_ids; pass one id per secret")
    check_ids(tuple(secret_ids))
    return tuple(secret_ids)


# Plans that hold out examples.


def choose_held_out(incidence: Incidence, share: float | None = None) -> NDArray[np.int64]:
    """A random share of the examples without a secret, at most 1,000; the same ones for the same graph.

    By default a twentieth, or none if that is less than 20 examples.

    >>> graph = Incidence.from_pairs([0, 1], [0, 0], num_examples=10, num_secrets=1)
    >>> choose_held_out(graph, 0.25).tolist(), choose_held_out(graph).tolist()
    ([7, 9], [])
    """
    if share is not None and not 0 <= share <= MAX_HELD_OUT_SHARE:  # NaN fails
        raise InvalidInput(
            "pass the share of examples to hold out: 0 for none, or a number up to 0.5 such as 0.05",
            setting="hold_out",
            value=share,
        )
    free = np.flatnonzero(incidence.secrets_per_example == 0)
    count = min(int((HELD_OUT_SHARE if share is None else share) * free.size), MAX_HELD_OUT)
    if share is None and count < MIN_HELD_OUT:
        count = 0
    if share and not count:
        raise InvalidInput(
            f"only {free.size} of {incidence.num_examples} examples contain no secret, and this share of them is less "
            "than one example: no score could be shown; pass a larger share, or 0 to hold out none",
            setting="hold_out",
            value=share,
        )
    return np.sort(np.random.default_rng(0).choice(free, count, replace=False)).astype(np.int64)


def make_plan_holding_out(
    incidence: Incidence,
    examples: ArrayLike,
    *,
    batch_size: float | Auto,
    slots: Slots | None = None,
    draw: Draw | None = None,
    **arguments: Any,
) -> Plan:
    """``make_plan`` with these examples left out: their weight is 0. They must contain no secret.

    If only examples with a secret are drawn, the plan lists which of the others are held out from what is learnt in
    public.

    Guarantee: that of ``make_plan``. Rates are those of a plan for the other examples, or lower by rounding.
    """
    held_out = chosen_indices("examples to hold out", examples, incidence.num_examples)
    bearing = held_out[incidence.secrets_per_example[held_out] > 0]
    if bearing.size:
        raise InvalidInput(
            f"{bearing.size} of the examples to hold out contain a secret, first example {bearing[0]}; a score on them "
            "would be a release that no plan accounts for: hold out examples without a secret"
        )
    if draws_secrets_only(draw, slots):
        plan = make_plan(incidence, batch_size=batch_size, slots=slots, draw=draw, **arguments)
        return replace(plan, held_out=np.sort(held_out))
    if not held_out.size:
        return make_plan(incidence, batch_size=batch_size, **arguments)
    if batch_size != AUTO:
        checked_batch_size(batch_size, incidence.num_examples, held_out=held_out.size)
    used_N = np.ones(incidence.num_examples, dtype=bool)
    used_N[held_out] = False
    proven = make_plan(incidence.select(examples=used_N), batch_size=batch_size, **arguments)
    weight_N = np.zeros(incidence.num_examples)
    weight_N[used_N] = proven.weights
    bearing_N = incidence.secrets_per_example > 0
    for margin in RATE_MARGINS:
        lowered_N = np.where(bearing_N, weight_N * (1 - margin), weight_N)
        gap = proven.weights_gap + 1.01 * margin  # 1 - (1 - margin)(1 - gap) is less, and rounding below 1e-3 margin
        plan = replace(proven, incidence=incidence, weights=lowered_N, weights_gap=gap)
        # The same weights among zeros may have a slightly smaller sum, and the proof holds for lower rates only.
        if np.all(plan.rates[used_N & bearing_N] <= proven.rates[bearing_N[used_N]]):
            return plan
    raise CannotCertify("the rates of a plan with held-out examples exceed the proven ones; hold out fewer")


def graph_of_training(plan: Plan) -> Incidence:
    """The graph of the examples that can be drawn: all that are not held out, or those with a secret."""
    return plan.incidence.select(examples=drawable_examples(plan))


def held_out_examples(plan: Plan) -> NDArray[np.int64]:
    """The examples that a plan holds out, ascending; none contains a secret.

    A plan that draws only examples with a secret lists them. Otherwise they are the examples without a secret that have
    weight 0.
    """
    if plan.held_out is not None:
        return plan.held_out
    return np.flatnonzero((plan.incidence.secrets_per_example == 0) & (plan.weights == 0)).astype(np.int64)


def public_examples(plan: Plan) -> NDArray[np.int64]:
    """The examples of which something may be learnt without clipping or noise, ascending.

    Those without a secret that are not held out: their text. With slots also those that have slots: their skeletons,
    never their text.
    """
    public_N = plan.incidence.secrets_per_example == 0
    public_N[held_out_examples(plan)] = False
    if plan.slots is not None:
        public_N |= plan.slots.has_slots_N
    return np.flatnonzero(public_N).astype(np.int64)

"""The plan: how often each example is drawn and how much noise is added, frozen. Training starts only from a plan.

The second group holds what every plan must satisfy, including one read from files, and the fingerprints of its parts;
the third the sentences that the certificate adds for one particular plan: facts that its promise alone would hide.

Legend: N examples, S secrets, Q promised points of a secret.
"""

import hashlib
import math
import platform
import re
import sys
from collections.abc import Sequence
from dataclasses import dataclass, fields, replace
from datetime import datetime
from functools import cached_property
from pathlib import Path
from typing import Any, Self, final

import numpy as np
from numpy.typing import NDArray

from hush import __version__
from hush.accounting import posterior
from hush.accounting.arguments import Bound, checked_choice, checked_noise, checked_priors, checked_rounds
from hush.accounting.sampling_error import sampling_error, with_sampling_error
from hush.arrays import Array
from hush.certificate import (
    ASSUMPTIONS,
    CHAIN_ASSUMPTIONS,
    CHAIN_NOT_COVERED,
    DATA_FINGERPRINT,
    NOT_COVERED,
    OTHER_RELEASES,
    PUBLIC_ASSUMPTIONS,
    PUBLIC_NOT_COVERED,
    SKELETON_FINGERPRINT,
    SLOT_ASSUMPTIONS,
    SLOTS_NOT_COVERED,
    Certificate,
)
from hush.errors import CannotCertify, InvalidInput, Setting
from hush.incidence import Incidence
from hush.keys import is_fingerprint
from hush.numbers import checked_positive, rounded_down, rounded_up
from hush.plan.chain import Chain, chain_facts, check_chain
from hush.protection import promise_arrays
from hush.slots import Slots
from hush.weights.choose import KEPT_WEIGHT, Capacity, checked_batch_size, rates_of

__all__ = [
    "CANARY",
    "Plan",
    "are_canaries",
    "check_data_fingerprint",
    "check_ids",
    "drawable_examples",
    "fingerprint",
    "kept_weight",
    "promises_fingerprint",
    "remarks",
    "unlisted_secrets",
]

CURVE_PRIORS = np.array([1e-12, 1e-10, 1e-8, 1e-6, 1e-4, 1e-3, 1e-2, 0.1, 0.5])
MAX_CURVES = 3  # secrets whose curve the certificate shows
MAX_NAMED = 10  # binding secrets that the certificate names
CANARY = "canary-"  # prefix of the ids of planted canaries; a number follows
_CANARY = re.compile(rf"{CANARY}\d{{6,}}")


@final
@dataclass(frozen=True, eq=False, repr=False, kw_only=True)
class Plan:
    """Rates, weights, noise and the posteriors that they lead to.

    prior, ceiling and posterior have a row per secret and a column per promised point; binding lists the secrets whose
    promise about 1 % less noise would break. weights_gap bounds the relative distance of the sum of the weights from
    the largest sum, among weights that hold out the same examples.

    Invariants: weights lie in [0, 1]; rates are batch_size * weights / sum(weights), all in [0, 1]; every posterior is
    at most its ceiling; every array is read-only. With a noise_scale other than 1 the plan is a simulation: training
    uses noise_multiplier * noise_scale, and nothing is certified. data_fingerprint, if given, is the keyed fingerprint
    of the data, row by row, under the owner's key (``DataKey.fingerprint_rows``).

    slots: where the secrets stand. Without them every secret covers its whole examples. With them the secrets of an
    example with slots cover the text inside the slots, and the text around them (the skeleton) is public.
    skeleton_fingerprint, only with slots, is the keyed fingerprint of all skeletons, row by row; the row of an example
    without slots is its text, or empty if it contains a secret.

    held_out: in a plan that draws only examples with a secret, as every plan with slots does, all others have weight 0,
    and held_out lists those of them that are held out, ascending. In a plan that draws all examples it is None, and the
    held-out examples are those without a secret that have weight 0 (``hush.plan.make.held_out_examples``).

    chain: of a plan that is one of several releases about the same secrets (``hush.plan.chain``). Its posteriors are
    then those after all announced releases, or after all so far, and binding lists the secrets of which this release
    uses nearly all that it may.
    """

    incidence: Incidence
    secret_ids: tuple[str, ...]
    prior: Array
    ceiling: Array
    posterior: Array
    binding: NDArray[np.int64]
    weights: Array
    noise_multiplier: float
    rounds: int
    batch_size: float
    clip_norm: float
    bound: Bound
    capacity: Capacity
    weights_gap: float
    noise_scale: float
    created: str
    data_fingerprint: str | None = None
    slots: Slots | None = None
    skeleton_fingerprint: str | None = None
    held_out: NDArray[np.int64] | None = None
    chain: Chain | None = None

    def __post_init__(self) -> None:
        whole_numbers = ("binding",) if self.held_out is None else ("binding", "held_out")
        for name in ("prior", "ceiling", "posterior", "weights", *whole_numbers):
            array = np.array(getattr(self, name), dtype=np.int64 if name in whole_numbers else np.float64)
            array.flags.writeable = False  # a copy, so that the caller cannot change it
            object.__setattr__(self, name, array)
        check_sizes(self)
        check_scope(self)
        check_numbers(self)
        self.rates.flags.writeable = False
        check_chain(self)

    @cached_property
    def rates(self) -> Array:
        """Sampling probability of each example in each round.

        If only examples with a secret are drawn, they are computed over these alone, so that the others do not change
        them, not even by rounding: what was proven for these rates holds for them.
        """
        if not self.draws_secrets_only:
            return rates_of(self.weights, self.batch_size)
        drawable_N = drawable_examples(self)
        rate_N = np.zeros(len(self.weights))
        rate_N[drawable_N] = rates_of(self.weights[drawable_N], self.batch_size)
        return rate_N

    @property
    def draws_secrets_only(self) -> bool:
        """Whether examples without a secret are never drawn: they can be learnt without clipping or noise."""
        return self.held_out is not None

    @property
    def training_noise_multiplier(self) -> float:
        """The noise that training adds: the certified one, unless this is a simulation."""
        return self.noise_multiplier * self.noise_scale

    @property
    def kept_fraction(self) -> float:
        """Share of the examples that are ever drawn, of those that can be."""
        weights = self.weights[drawable_examples(self)] if self.draws_secrets_only else self.weights
        return float(np.mean(weights > KEPT_WEIGHT))

    @property
    def total_weight(self) -> float:
        """Sum of the weights."""
        return float(self.weights.sum())

    @property
    def effective_size(self) -> float:
        """(sum w)^2 / sum w^2: the number of equally used examples that would be as diverse."""
        return self.total_weight**2 / float(self.weights @ self.weights)

    @property
    def drawn_secrets(self) -> NDArray[np.bool_]:
        """Which secrets have an example that is ever drawn."""
        drawn_before = np.concatenate([[0], np.cumsum(self.rates[self.incidence.example_of_entry] > 0)])
        return np.asarray(np.diff(drawn_before[self.incidence.offset_S]) > 0)

    @property
    def promises_fingerprint(self) -> str:
        """SHA-256 of ids, priors and ceilings; all of them are public."""
        return promises_fingerprint(self.secret_ids, self.prior, self.ceiling)

    @cached_property
    def certificate(self) -> Certificate:
        """What this plan promises and does not promise, with the curves prior -> posterior of binding secrets."""
        share_S = (self.posterior / self.ceiling).max(axis=1)
        closest = self.binding if self.binding.size else np.argsort(-share_S, kind="stable")
        named: list[int] = self.binding[:MAX_NAMED].tolist()
        shown: list[int] = closest[:MAX_CURVES].tolist()
        return Certificate(
            noise_multiplier=self.noise_multiplier,
            rounds=self.rounds,
            batch_size=self.batch_size,
            clip_norm=self.clip_norm,
            bound=self.bound,
            capacity=self.capacity,
            weights_gap=self.weights_gap,
            num_examples=self.incidence.num_examples,
            num_secrets=self.incidence.num_secrets,
            num_found=self.incidence.num_secrets - unlisted_secrets(self.incidence),
            kept_fraction=self.kept_fraction,
            strictest={
                "largest_prior": float(self.prior.max(initial=0.0)),
                "smallest_ceiling": float(self.ceiling.min(initial=1.0)),
                "largest_ceiling": float(self.ceiling.max(initial=0.0)),
                "largest_share_of_ceiling": float(share_S.max(initial=0.0)),
            },
            num_binding=self.binding.size,
            binding=tuple(self.secret_ids[secret] for secret in named),
            curve={self.secret_ids[secret]: self._curve(secret) for secret in shown},
            fingerprints={
                "incidence": self.incidence.fingerprint,
                "promises": self.promises_fingerprint,
                "weights": fingerprint(b"hush weights 1\n", self.weights),
                "posteriors": fingerprint(b"hush posteriors 1\n", self.posterior, self.binding),
                **({} if self.data_fingerprint is None else {DATA_FINGERPRINT: self.data_fingerprint}),
                **self._scope_fingerprints(),
                **({} if self.chain is None else {"chain": self.chain.fingerprint}),
            },
            versions=_versions(),
            created=self.created,
            marks=(f"simulation, noise scaled by {self.noise_scale!r}",) if self.noise_scale != 1 else (),
            scope=None if self.slots is None else scope_counts(self.incidence, self.slots),
            drawn=self._drawn if self.slots is None and self.draws_secrets_only else None,
            releases=None if self.chain is None else chain_facts(self.chain),
            assumptions=(
                *ASSUMPTIONS,
                *(() if self.chain is None else CHAIN_ASSUMPTIONS),
                *self._scope_sentences(SLOT_ASSUMPTIONS, PUBLIC_ASSUMPTIONS),
            ),
            not_covered=(
                *self._not_covered,
                *self._scope_sentences(SLOTS_NOT_COVERED, PUBLIC_NOT_COVERED),
                *remarks(self),
            ),
        )

    @property
    def _not_covered(self) -> tuple[str, ...]:
        """What no plan covers; a chain covers the releases that it names."""
        if self.chain is None:
            return NOT_COVERED
        return tuple(CHAIN_NOT_COVERED if sentence == OTHER_RELEASES else sentence for sentence in NOT_COVERED)

    @property
    def _drawn(self) -> int:
        return int(drawable_examples(self).sum())

    def _scope_sentences(self, slotted: tuple[str, ...], unslotted: tuple[str, ...]) -> tuple[str, ...]:
        """What a plan with slots adds, or one without that draws only examples with a secret."""
        if not self.draws_secrets_only:
            return ()
        return unslotted if self.slots is None else slotted

    def _scope_fingerprints(self) -> dict[str, str]:
        if self.held_out is None:
            return {}
        slots = {} if self.slots is None else {"slots": self.slots.fingerprint}
        skeletons = {} if self.skeleton_fingerprint is None else {SKELETON_FINGERPRINT: self.skeleton_fingerprint}
        return {**slots, "held-out examples": fingerprint(b"hush held out 1\n", self.held_out), **skeletons}

    def _curve(self, secret: int) -> tuple[tuple[float, float], ...]:
        if self.chain is not None:
            rows = self.chain.posterior(np.array([secret]), CURVE_PRIORS[None, :], bound=self.bound)
            return tuple(zip(CURVE_PRIORS.tolist(), rows[0].tolist(), strict=True))
        after = posterior(
            self.rates[self.incidence.examples_of(secret)],
            noise_multiplier=self.noise_multiplier,
            rounds=self.rounds,
            prior=CURVE_PRIORS,
            bound=self.bound,
        )
        return tuple(zip(CURVE_PRIORS.tolist(), np.asarray(after).tolist(), strict=True))

    def sampling_error_of_run(self, trained_parameters: int) -> float:
        """What computed draws and noise may add to a posterior: those of this run, and of the others of a chain."""
        error = sampling_error(trained_parameters, batch_size=self.batch_size, rounds=self.rounds)
        return error if self.chain is None else math.nextafter(error + self.chain.sampling_of_others, math.inf)

    def posterior_of_run(self, trained_parameters: int) -> Array:
        """Posteriors after a run that trains this many parameters: the sampling error is added.

        A secret whose examples are never drawn keeps its posterior: the run does not depend on it at all. In a chain
        what the other releases may add is added too.
        """
        error = self.sampling_error_of_run(trained_parameters)
        touched_S = self.drawn_secrets if self.chain is None else self.chain.kind.involved_S
        return np.where(touched_S[:, None], with_sampling_error(self.posterior, error), self.posterior)

    def run_certificate(self, trained_parameters: int, *, planned: Certificate | None = None) -> Certificate:
        """The certificate of a run that trains this many parameters: every number includes the sampling error.

        planned: the certificate of this plan as it was stored, if not the one of this machine.
        """
        planned = self.certificate if planned is None else planned
        error = self.sampling_error_of_run(trained_parameters)
        share = float((self.posterior_of_run(trained_parameters) / self.ceiling).max(initial=0.0))
        curve = {
            name: tuple((prior, float(with_sampling_error(after, error))) for prior, after in points)
            for name, points in planned.curve.items()
        }
        return replace(
            planned,
            strictest={**planned.strictest, "largest_share_of_ceiling": share},
            curve=curve,
            trained_parameters=trained_parameters,
            sampling_error=error,
        )

    def save(self, folder: str | Path) -> None:
        """Write the plan, its graph and its certificate as a folder, which appears complete or not at all."""
        from hush.plan.files import save_plan

        save_plan(self, Path(folder))

    @classmethod
    def load(cls, folder: str | Path) -> Self:
        """Read a folder that ``save`` wrote. Every digest is checked; only ``verify`` recomputes the posteriors."""
        from hush.plan.files import load_plan

        return cls(**load_plan(Path(folder)))

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Plan):
            return NotImplemented
        return all(_same(getattr(self, field.name), getattr(other, field.name)) for field in fields(self))

    def __hash__(self) -> int:
        return hash((self.incidence, self.promises_fingerprint, self.noise_multiplier))

    def __repr__(self) -> str:
        return (
            f"Plan(noise_multiplier={rounded_up(self.noise_multiplier, 6)}, kept={self.kept_fraction:.1%}, "
            f"rounds={self.rounds}, batch_size={self.batch_size:g}, secrets={len(self.secret_ids)}, "
            f"bound={self.bound!r})"
        )


def _same(left: Any, right: Any) -> bool:
    arrays = isinstance(left, np.ndarray) or isinstance(right, np.ndarray)
    return np.array_equal(left, right) if arrays else left == right


def _versions() -> dict[str, str]:
    import scipy

    return {
        "hush": __version__,
        "numpy": np.__version__,
        "scipy": scipy.__version__,
        "python": platform.python_version(),
    }


# What every plan must satisfy, and fingerprints of its parts.


def check_sizes(plan: "Plan") -> None:
    """Everything has one entry per example or secret of the graph; ids and binding secrets are distinct."""
    n, m = plan.incidence.num_examples, plan.incidence.num_secrets
    if plan.weights.shape != (n,) or len(plan.secret_ids) != m or plan.prior.shape[:1] != (m,):
        raise InvalidInput(
            f"the incidence has {n} examples and {m} secrets, the plan {plan.weights.shape} weights, "
            f"{len(plan.secret_ids)} ids and promises of shape {plan.prior.shape}; they must match"
        )
    if len({plan.prior.shape, plan.ceiling.shape, plan.posterior.shape}) > 1 or plan.prior.ndim != 2:
        raise InvalidInput("priors, ceilings and posteriors must all have a row per secret and a column per point")
    check_ids(plan.secret_ids)
    binding = plan.binding
    if binding.ndim != 1 or not np.array_equal(binding, np.unique(binding)):
        raise InvalidInput("binding must list secrets in ascending order, each once")
    if binding.size and not (binding[0] >= 0 and binding[-1] < m):
        raise InvalidInput(f"binding names secrets outside [0, {m})")


def check_scope(plan: "Plan") -> None:
    """Slots belong to the graph; if only examples with a secret are drawn, no other has weight, none is held out."""
    held_out = plan.held_out
    if plan.slots is None:
        if plan.skeleton_fingerprint is not None:
            raise InvalidInput("skeleton_fingerprint is one of the parts of plans with slots; pass slots too")
        if held_out is None:
            return
    else:
        plan.slots.check_against(plan.incidence)
        check_data_fingerprint(plan.skeleton_fingerprint, name="skeleton_fingerprint")
        if plan.data_fingerprint is not None and plan.skeleton_fingerprint is None:
            # Otherwise training could not tell spans that leave a part of a secret outside its slot.
            raise InvalidInput(
                "a plan with slots that names its data must name its skeletons; pass skeleton_fingerprint"
            )
        if held_out is None:
            raise InvalidInput("a plan with slots must list its held-out examples in held_out, ascending, each once")
    bearing_N = drawable_examples(plan)
    if held_out.ndim != 1 or not np.array_equal(held_out, np.unique(held_out)):
        raise InvalidInput("held_out must list examples ascending, each once")
    if held_out.size and not (held_out[0] >= 0 and held_out[-1] < len(bearing_N)):
        raise InvalidInput(f"held_out names examples outside [0, {len(bearing_N)})")
    if bearing_N[held_out].any():
        raise InvalidInput(f"example {held_out[bearing_N[held_out]][0]} is held out but contains a secret")
    drawn = np.flatnonzero(~bearing_N & (plan.weights != 0))  # NaN counts
    if drawn.size:
        raise InvalidInput(f"example {drawn[0]} contains no secret, but has a weight; here it is never drawn")
    checked_batch_size(plan.batch_size, len(bearing_N), bearing=int(bearing_N.sum()))


def check_ids(ids: tuple[str, ...]) -> None:
    """Ids are distinct, non-empty strings that a file can hold."""
    for secret, name in enumerate(ids):
        if not isinstance(name, str) or not name or not _storable(name):
            raise InvalidInput(f"secret_ids[{secret}] is not a non-empty string that a file can hold; rename it")
    if len(set(ids)) != len(ids):
        raise InvalidInput("some secret ids are the same; make every id unique")


def check_numbers(plan: "Plan") -> None:
    """Every setting is a number of the right kind, every promise well formed, every posterior within its ceiling."""
    for name in ("noise_multiplier", "batch_size", "clip_norm", "noise_scale", "weights_gap"):
        if type(getattr(plan, name)) not in (int, float):
            kind = type(getattr(plan, name)).__name__
            raise InvalidInput(Setting(name), f" of a plan must be a plain number, not a {kind}", setting=name)
    checked_noise(plan.noise_multiplier)
    checked_rounds(plan.rounds)
    checked_choice("bound", plan.bound, Bound)
    checked_choice("capacity", plan.capacity, Capacity)
    checked_batch_size(plan.batch_size, plan.incidence.num_examples)
    for name in ("clip_norm", "noise_scale"):
        checked_positive(name, getattr(plan, name))
    if not plan.training_noise_multiplier <= sys.float_info.max:
        raise InvalidInput(
            "this makes the noise infinite; pass a smaller number", setting="noise_scale", value=plan.noise_scale
        )
    if not 0 <= plan.weights_gap < 1:
        raise InvalidInput(f"weights_gap={plan.weights_gap!r}; a relative gap lies in [0, 1)")
    if not _is_time(plan.created):
        raise InvalidInput("created must be a date and time such as 2026-01-31T12:00:00+00:00")
    check_data_fingerprint(plan.data_fingerprint)
    promise_arrays(plan.prior, plan.ceiling, len(plan.secret_ids))
    checked_priors(plan.prior)
    weight = plan.weights
    if not (weight.size and weight.min() >= 0 and weight.max() <= 1):  # NaN fails
        raise InvalidInput("weights must lie in [0, 1], one for each example")
    broken = ~((plan.posterior >= plan.prior) & (plan.posterior <= plan.ceiling))
    if broken.any():
        raise CannotCertify(f"{int(broken.sum())} posteriors are not between prior and ceiling; the plan is void")


def check_data_fingerprint(fingerprint: str | None, *, name: str = "data_fingerprint") -> None:
    """None, or one made under a key."""
    if fingerprint is not None and not is_fingerprint(fingerprint):
        raise InvalidInput(
            f"{name} is not a result of DataKey.fingerprint_rows; pass one, since a plain hash of private "
            "data would let anyone test guesses"
        )


def promises_fingerprint(ids: Sequence[str], prior_SQ: NDArray[np.float64], ceiling_SQ: NDArray[np.float64]) -> str:
    """SHA-256, in hex, of ids, priors and ceilings: equal exactly if these are equal and in the same order."""
    names = b"".join(len(name.encode()).to_bytes(8, "little") + name.encode() for name in ids)
    return fingerprint(b"hush promises 1\n" + names, prior_SQ, ceiling_SQ)


def fingerprint(head: bytes, *arrays: NDArray[Any]) -> str:
    """SHA-256, in hex, of arrays with their shapes: the same on every machine."""
    digest = hashlib.sha256(head)
    for array in arrays:
        digest.update(np.array(array.shape, dtype="<i8").tobytes())
        digest.update(np.ascontiguousarray(array, dtype="<i8" if array.dtype.kind == "i" else "<f8").tobytes())
    return digest.hexdigest()


def _is_time(text: object) -> bool:
    try:  # Python reads more forms than it writes, also with a line break for the T
        return isinstance(text, str) and datetime.fromisoformat(text).isoformat() == text
    except ValueError:
        return False


def _storable(name: str) -> bool:
    try:
        name.encode()
    except UnicodeEncodeError:  # lone surrogates
        return False
    return True


# What the certificate says about one particular plan.


def remarks(plan: "Plan") -> tuple[str, ...]:
    """Sentences about secrets in no example, about weights and about canaries, if there are any."""
    return (*_about_unlisted(plan), *_about_weights(plan), *_about_canaries(plan))


def unlisted_secrets(incidence: Incidence) -> int:
    """The number of secrets in no example: training on the listed examples reveals nothing about them."""
    return int(np.count_nonzero(incidence.examples_per_secret == 0))


def drawable_examples(plan: "Plan") -> NDArray[np.bool_]:
    """Which examples the private draw is made from: those with a secret, or all that are not held out."""
    bearing_N = plan.incidence.secrets_per_example > 0
    return bearing_N if plan.draws_secrets_only else bearing_N | (plan.weights > 0)


def scope_counts(incidence: Incidence, slots: Slots) -> dict[str, int]:
    """How many secrets cover the text in slots only, whole examples only, or both; and of what the counts are made."""
    whole_S = slots.whole_examples_of_secrets(incidence)
    size_S = incidence.examples_per_secret
    return {
        "slots": len(slots),
        "examples_with_slots": int(np.count_nonzero(slots.has_slots_N)),
        "whole_examples": int(np.count_nonzero(slots.whole_examples(incidence))),
        "secrets_in_slots": int(np.count_nonzero((whole_S == 0) & (size_S > 0))),
        "secrets_in_whole_examples": int(np.count_nonzero((whole_S == size_S) & (size_S > 0))),
        "secrets_in_both": int(np.count_nonzero((whole_S > 0) & (whole_S < size_S))),
    }


def kept_weight(plan: "Plan") -> float:
    """The share of their weight that the examples with secrets keep; 1 if there are none.

    The sum is exact before it is rounded, so the result is the same on every machine.
    """
    bearing = plan.weights[plan.incidence.secrets_per_example > 0]
    return math.fsum(bearing) / bearing.size if bearing.size else 1.0


def are_canaries(plan: "Plan") -> NDArray[np.bool_]:
    """Which secrets have the id of a planted canary; a plan knows them only by their ids."""
    return np.array([_CANARY.fullmatch(name) is not None for name in plan.secret_ids], dtype=bool)


def _about_unlisted(plan: "Plan") -> list[str]:
    unlisted, secrets = unlisted_secrets(plan.incidence), plan.incidence.num_secrets
    if not unlisted:
        return []
    are = "is" if unlisted == 1 else "are"
    some = "The one secret is" if secrets == 1 else f"Of the {secrets:,} secrets {unlisted:,} {are}"
    return [f"{some} in no listed example. What is in the data after all, in another spelling say, is not hidden."]


def _about_weights(plan: "Plan") -> list[str]:
    if not plan.incidence.num_entries:
        return []
    kept = rounded_down(round(100 * kept_weight(plan), 9), 3)  # 90 stays 90, though the float is a little less
    return [f"How much is learnt: examples with secrets keep {kept} % of their weight."]


def _about_canaries(plan: "Plan") -> list[str]:
    canary_S = are_canaries(plan)
    if not canary_S.any():
        return []
    remark = (
        f"Planted canaries protect nothing real: {canary_S.sum():,} of the {canary_S.size:,} secrets, by their ids."
    )
    prior, ceiling = plan.prior[~canary_S], plan.ceiling[~canary_S]
    if prior.size:
        remark += (
            f" For the others priors are at most {rounded_up(prior.max(), 3)}, ceilings from "
            f"{rounded_down(ceiling.min(), 3)} to {rounded_up(ceiling.max(), 3)}."
        )
    return [remark]

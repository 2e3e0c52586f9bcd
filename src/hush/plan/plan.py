"""Stage 4, the plan: how often each example is drawn and how much noise is added, frozen. The only way to train.

Legend: N examples, S secrets, Q promised points of a secret.

What every plan must satisfy, whoever wrote it, and the fingerprints of its parts.

Legend: N examples, S secrets, Q promised points of a secret.

What a certificate says of this very plan, beside what it says of every one: facts that its promise would hide.

They stand among its words, under what is not covered.
"""

import hashlib
import math
import platform
import re
import sys
from collections.abc import Sequence
from dataclasses import dataclass, fields
from datetime import datetime
from functools import cached_property
from pathlib import Path
from typing import Any, Self, final

import numpy as np
from numpy.typing import NDArray

from hush import __version__
from hush.accounting import posterior
from hush.accounting.arguments import Bound, checked_choice, checked_noise, checked_priors, checked_rounds
from hush.certificate import DATA_FINGERPRINT, NOT_COVERED, Certificate
from hush.errors import CannotCertify, InvalidInput
from hush.incidence import Incidence
from hush.keys import is_fingerprint
from hush.numbers import rounded_down, rounded_up
from hush.protection import promise_arrays
from hush.weights.choose import KEPT_WEIGHT, Capacity, rates_of

__all__ = ["CANARY", "are_canaries", "kept_weight", "remarks", "unlisted_secrets"]


_POSITIVE = ("batch_size", "clip_norm", "noise_scale")


def check_sizes(plan: "Plan") -> None:
    """Everything has one entry for each example or secret of the graph; ids and binding secrets are distinct."""
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


def check_ids(ids: tuple[str, ...]) -> None:
    """Public names that a file can hold, no two the same."""
    for secret, name in enumerate(ids):
        if not isinstance(name, str) or not name or not _storable(name):
            raise InvalidInput(f"secret_ids[{secret}] is not a non-empty string that a file can hold; rename it")
    if len(set(ids)) != len(ids):
        raise InvalidInput("some secret ids are the same; make every id unique")


def check_numbers(plan: "Plan") -> None:
    """Every setting is a number of the right kind, every promise well formed, every posterior within its ceiling."""
    for name in ("noise_multiplier", *_POSITIVE, "weights_gap"):
        if type(getattr(plan, name)) not in (int, float):
            raise InvalidInput(f"{name} of a plan must be a plain number, not a {type(getattr(plan, name)).__name__}")
    checked_noise(plan.noise_multiplier)
    checked_rounds(plan.rounds)
    checked_choice("bound", plan.bound, Bound)
    checked_choice("capacity", plan.capacity, Capacity)
    for name in _POSITIVE:
        if not 0 < getattr(plan, name) <= sys.float_info.max:  # a whole number may be finite and yet no float
            raise InvalidInput(f"{name}={getattr(plan, name)!r}; pass a finite number above 0")
    if not plan.training_noise_multiplier <= sys.float_info.max:
        raise InvalidInput(f"noise_scale={plan.noise_scale!r} makes the noise infinite; pass a smaller one")
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
        raise CannotCertify(f"{int(broken.sum())} posteriors are not between prior and ceiling; this plan is void")


def check_data_fingerprint(fingerprint: str | None) -> None:
    """None, or one made under a key."""
    if fingerprint is not None and not is_fingerprint(fingerprint):
        raise InvalidInput(
            "data_fingerprint is not what DataKey.fingerprint_rows returns; pass that, since a plain hash of private "
            "data would let anyone test guesses"
        )


def promises_fingerprint(ids: Sequence[str], prior_SQ: NDArray[np.float64], ceiling_SQ: NDArray[np.float64]) -> str:
    """SHA-256, in hex, of who is promised what: equal exactly for equal ids, priors and ceilings in the same order."""
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


CANARY = "canary-"  # how the ids of planted canaries begin; a number follows
_CANARY = re.compile(rf"{CANARY}\d{{6,}}")


def remarks(plan: "Plan") -> tuple[str, ...]:
    """Sentences about secrets in no example, about weights and about canaries; none where there is nothing to say."""
    return (*_about_unlisted(plan), *_about_weights(plan), *_about_canaries(plan))


def unlisted_secrets(incidence: Incidence) -> int:
    """How many secrets are in no example, so that no training can give them away, nor any noise hide them."""
    return int(np.count_nonzero(incidence.examples_per_secret == 0))


def kept_weight(plan: "Plan") -> float:
    """The share of their weight that the examples with secrets keep; 1 where there are none.

    The same on every machine: the sum is exact before it is rounded.
    """
    bearing = plan.weights[plan.incidence.secrets_per_example > 0]
    return math.fsum(bearing) / bearing.size if bearing.size else 1.0


def are_canaries(plan: "Plan") -> NDArray[np.bool_]:
    """Which secrets have the id of a planted canary: ids are all that a plan knows of them."""
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
    said = f"Planted canaries protect nothing real: {canary_S.sum():,} of the {canary_S.size:,} secrets, by their ids."
    prior, ceiling = plan.prior[~canary_S], plan.ceiling[~canary_S]
    if prior.size:
        said += (
            f" For the others priors are at most {rounded_up(prior.max(), 3)}, ceilings from "
            f"{rounded_down(ceiling.min(), 3)} to {rounded_up(ceiling.max(), 3)}."
        )
    return [said]


Array = NDArray[np.float64]

CURVE = np.array([1e-12, 1e-10, 1e-8, 1e-6, 1e-4, 1e-3, 1e-2, 0.1, 0.5])
CURVES = 3  # secrets whose curve the certificate shows
NAMED = 10  # binding secrets that the certificate names


@final
@dataclass(frozen=True, eq=False, repr=False, kw_only=True)
class Plan:
    """Rates, weights, noise and the posteriors they lead to.

    prior, ceiling and posterior have a row per secret and a column per promised point; binding lists the secrets whose
    promise about 1 % less noise would break. weights_gap is how far the sum of the weights may be from the best, of
    weights that hold out the same examples.

    Invariants: weights lie in [0, 1]; rates are batch_size * weights / sum(weights), all in [0, 1]; every posterior is
    at most its ceiling; every array is read-only. noise_scale other than 1 makes it a simulation: training uses
    noise_multiplier * noise_scale, and nothing is certified. data_fingerprint, if given, names the very data that the
    examples are, row by row, under the owner's key (``DataKey.fingerprint_rows``).
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

    def __post_init__(self) -> None:
        for name in ("prior", "ceiling", "posterior", "binding", "weights"):
            array = np.array(getattr(self, name), dtype=np.int64 if name == "binding" else np.float64)
            array.flags.writeable = False  # a copy: the caller keeps theirs, and cannot change this one
            object.__setattr__(self, name, array)
        check_sizes(self)
        check_numbers(self)
        self.rates.flags.writeable = False

    @cached_property
    def rates(self) -> Array:
        """Sampling probability of each example in each round."""
        return rates_of(self.weights, self.batch_size)

    @property
    def training_noise_multiplier(self) -> float:
        """What training adds: the certified noise, unless this is a simulation."""
        return self.noise_multiplier * self.noise_scale

    @property
    def kept_fraction(self) -> float:
        """Share of the examples that are ever used."""
        return float(np.mean(self.weights > KEPT_WEIGHT))

    @property
    def total_weight(self) -> float:
        """Sum of the weights."""
        return float(self.weights.sum())

    @property
    def effective_size(self) -> float:
        """(sum w)^2 / sum w^2: how many equally used examples would be as diverse."""
        return self.total_weight**2 / float(self.weights @ self.weights)

    @property
    def promises_fingerprint(self) -> str:
        """SHA-256 of ids, priors and ceilings; all of them are public."""
        return promises_fingerprint(self.secret_ids, self.prior, self.ceiling)

    @cached_property
    def certificate(self) -> Certificate:
        """What this plan promises and what it does not, with the curve prior -> posterior of binding secrets."""
        share_S = (self.posterior / self.ceiling).max(axis=1)
        closest = self.binding if self.binding.size else np.argsort(-share_S, kind="stable")
        named: list[int] = self.binding[:NAMED].tolist()
        shown: list[int] = closest[:CURVES].tolist()
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
            },
            versions=_versions(),
            created=self.created,
            marks=(f"simulation, noise scaled by {self.noise_scale!r}",) if self.noise_scale != 1 else (),
            not_covered=(*NOT_COVERED, *remarks(self)),
        )

    def _curve(self, secret: int) -> tuple[tuple[float, float], ...]:
        after = posterior(
            self.rates[self.incidence.examples_of(secret)],
            noise_multiplier=self.noise_multiplier,
            rounds=self.rounds,
            prior=CURVE,
            bound=self.bound,
        )
        return tuple(zip(CURVE.tolist(), np.asarray(after).tolist(), strict=True))

    def save(self, folder: str | Path) -> None:
        """Write the plan, its graph and its certificate as a folder, whole or not at all."""
        from hush.plan.files import save_plan

        save_plan(self, Path(folder))

    @classmethod
    def load(cls, folder: str | Path) -> Self:
        """Read a folder that ``save`` wrote; every digest is checked, nothing is computed again (``verify`` does)."""
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


def _same(one: Any, other: Any) -> bool:
    return np.array_equal(one, other) if isinstance(one, np.ndarray) else one == other


def _versions() -> dict[str, str]:
    import scipy

    return {
        "hush": __version__,
        "numpy": np.__version__,
        "scipy": scipy.__version__,
        "python": platform.python_version(),
    }

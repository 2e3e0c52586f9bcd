"""What every plan must satisfy, whoever wrote it, and the fingerprints of its parts.

Legend: N examples, S secrets, Q promised points of a secret.
"""

import hashlib
import sys
from collections.abc import Sequence
from datetime import datetime
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from hush.accounting.inputs import Bound, checked_choice, checked_noise, checked_priors, checked_rounds
from hush.errors import CannotCertify, InvalidInput
from hush.keyed import is_fingerprint
from hush.protection import promise_arrays
from hush.weights.choose import Capacity

if TYPE_CHECKING:
    from hush.plan.model import Plan

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

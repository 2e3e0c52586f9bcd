"""What a certificate says of this very plan, beside what it says of every one: facts that its promise would hide.

They stand among its words, under what is not covered.
"""

import math
import re
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from hush.incidence import Incidence
from hush.rounding import rounded_down, rounded_up

if TYPE_CHECKING:
    from hush.plan.model import Plan

__all__ = ["CANARY", "are_canaries", "kept_weight", "remarks", "unlisted_secrets"]

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

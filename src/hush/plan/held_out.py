"""Examples that a plan leaves out of training, to evaluate on: they hold no secret, and their weight is 0.

Why scores on them may be shown. Which they are follows from the graph, which is public. They hold no secret, so they
are the same whatever the secrets say. A score is then a function of the model after some round and of public things;
the certificate covers the models of all rounds, so it covers their scores, too.

Left out by weight, examples keep their numbers: graph, data and fingerprints are those of the scan, and whoever has the
plan can see what was held out.
"""

from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from hush.errors import CannotCertify, InvalidInput
from hush.incidence import Incidence
from hush.indexing import chosen_indices
from hush.plan.make import make_plan
from hush.plan.model import Plan

__all__ = ["choose_held_out", "graph_of_training", "held_out_examples", "make_plan_holding_out"]

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

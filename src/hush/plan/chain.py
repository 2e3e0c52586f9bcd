"""A chain: releases about the same secrets, kept under one promise. What a plan of a chain states, and its invariants.

Two kinds. A **series** is announced before its first release: shapes (noise at least, rounds at most) of all releases,
and for each secret a limit on how often a round of each release may draw it. Whatever is done inside the limits, also
if it was chosen by looking at earlier models, is dominated by the product of the pairs at the limits, so every plan of
the series states the posterior after all announced releases. A **filter** takes releases that are added later: for each
secret a Renyi order is fixed at the first release, and the log-moments of all releases at this order stay within the
budget of the promise, however each release was chosen (docs/proofs.md, "Several releases").

A limit bounds the intensity of a secret: the sum of -log(1 - rate) over its examples. A count with independent draws is
then dominated by a Poisson count with this mean.

Legend: N examples, S secrets, Q promised points of a secret, R releases.
"""

import hashlib
import json
import math
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, final

import numpy as np
from numpy.typing import NDArray

from hush.accounting.accountant import ACCURACY
from hush.accounting.arguments import Bound
from hush.accounting.divergences import renyi_posterior
from hush.accounting.moments import conceded_allowance, moment_budget
from hush.accounting.releases import MAX_RELEASES, Shape, limit_posterior
from hush.accounting.sampling_error import chain_ceiling
from hush.arrays import Array
from hush.errors import CannotCertify, InvalidInput
from hush.incidence import Incidence
from hush.weights.accounts import intensities

if TYPE_CHECKING:
    from hush.plan.plan import Plan

__all__ = ["Chain", "Filter", "Series", "above_prior", "budgets", "chain_facts", "check_chain", "used_shares"]

EPS = 2.0**-52
BUDGET_ROUNDING = 1e-12  # relative room below a ceiling, for a posterior that is computed from the budget again
_DIGEST = re.compile(r"[0-9a-f]{64}", re.ASCII)


@final
@dataclass(frozen=True, eq=False, repr=False, kw_only=True)
class Series:
    """A series announced beforehand, and which of its releases this is.

    limit_SR: the largest intensity of each secret in a round of each release; 0 in a release before the secret was
    there. Where secrets were merged, the columns of earlier releases hold the sum of the limits of those merged.
    """

    shapes: tuple[Shape, ...]
    number: int
    limit_SR: Array

    def __post_init__(self) -> None:
        object.__setattr__(self, "shapes", tuple(self.shapes))
        object.__setattr__(self, "limit_SR", _frozen(self.limit_SR))
        if not 1 <= len(self.shapes) <= MAX_RELEASES:
            raise InvalidInput(f"a series has 1 to {MAX_RELEASES:,} releases, not {len(self.shapes):,}")
        if not (type(self.number) is int and 1 <= self.number <= len(self.shapes)):
            raise InvalidInput(f"release {self.number!r} is not one of the {len(self.shapes)} that were announced")
        if self.limit_SR.ndim != 2 or self.limit_SR.shape[1] != len(self.shapes):
            raise InvalidInput("a series needs a row of limits for each secret, with one limit for each release")
        if not (np.all(self.limit_SR >= 0) and np.all(np.isfinite(self.limit_SR))):
            raise InvalidInput("the limits of a series must be finite numbers of at least 0")

    @property
    def shape(self) -> Shape:
        """Noise at least, and rounds at most, of this release."""
        return self.shapes[self.number - 1]

    @property
    def limit_S(self) -> Array:
        """The largest intensity of each secret in a round of this release."""
        return self.limit_SR[:, self.number - 1]

    @property
    def involved_S(self) -> NDArray[np.bool_]:
        """The secrets that some release may draw."""
        return np.asarray(self.limit_SR.max(axis=1, initial=0.0) > 0)

    def posterior(self, secrets: NDArray[np.int64], prior: Array, *, bound: Bound, accuracy: float = ACCURACY) -> Array:
        """Posteriors of these secrets after all announced releases, whatever is done inside the limits.

        prior: a row for each of them. Guarantee: upper bounds.
        """
        return limit_posterior(self.limit_SR[secrets], self.shapes, prior=prior, bound=bound, accuracy=accuracy)


@final
@dataclass(frozen=True, eq=False, repr=False, kw_only=True)
class Filter:
    """What each secret has spent of the budget of its promise: log-moments of all releases so far at fixed orders.

    share: of the whole budget, that this release may spend. before, after: the log-moments of the releases before this
    one, and with it; each release may concede the probability conceded beside them. granted: what this release may
    spend. allowed: what the releases so far could have spent at most, as was known before the first of them:
    a share of the budget for each. The posterior that a plan states is that of allowed, since what was spent may itself
    depend on what earlier models showed. Invariant: before <= after <=
    before + granted <= allowed.
    """

    share: float
    order_SQ: Array
    conceded_SQ: Array
    before_SQ: Array
    after_SQ: Array
    granted_SQ: Array
    allowed_SQ: Array

    def __post_init__(self) -> None:
        names = ("order_SQ", "conceded_SQ", "before_SQ", "after_SQ", "granted_SQ", "allowed_SQ")
        for name in names:
            object.__setattr__(self, name, _frozen(getattr(self, name)))
        if type(self.share) is not float or not 0 < self.share <= 1:
            raise InvalidInput("the share of the budget that a release may spend is a number above 0 and at most 1")
        if len({getattr(self, name).shape for name in names}) > 1 or self.order_SQ.ndim != 2:
            raise InvalidInput("a filter needs an order and five numbers for each promised point of each secret")
        if not (np.all(self.order_SQ > 1) and np.all(np.isfinite(self.order_SQ))):
            raise InvalidInput("the orders of a filter must be finite numbers above 1")
        if not (np.all(self.conceded_SQ >= 0) and np.all(self.conceded_SQ < 1)):
            raise InvalidInput("what a release may concede must be probabilities")
        most_SQ = self.before_SQ + self.granted_SQ
        inside = (self.before_SQ >= 0) & (self.before_SQ <= self.after_SQ) & (self.after_SQ <= most_SQ)
        inside &= most_SQ <= self.allowed_SQ
        if not (np.all(inside) and np.all(np.isfinite(self.allowed_SQ))):
            raise CannotCertify("a filter has spent less than nothing, or more than it may; its plan is void")

    @property
    def involved_S(self) -> NDArray[np.bool_]:
        """The secrets that the releases so far may have drawn."""
        return np.asarray(self.allowed_SQ.max(axis=1, initial=0.0) > 0)

    def posterior(self, secrets: NDArray[np.int64], prior: Array) -> Array:
        """Posteriors of these secrets after the releases so far, however each of them was chosen.

        prior: a row for each of them, of any length: the least bound of all orders is taken. Guarantee: upper bounds.
        """
        bounds: list[Array] = []
        for point in range(self.order_SQ.shape[1]):
            spent_S, order_S = (array[secrets, point, None] for array in (self.allowed_SQ, self.order_SQ))
            reserved_S = MAX_RELEASES * self.conceded_SQ[secrets, point, None] * (1 + 4 * EPS)
            bound = (renyi_posterior(spent_S, prior, order_S) + reserved_S) * (1 + 8 * EPS)  # (E38)
            bounds.append(np.where(spent_S == 0.0, prior, bound))
        return np.clip(np.minimum.reduce(bounds), prior, 1.0)


@final
@dataclass(frozen=True, eq=False, repr=False, kw_only=True)
class Chain:
    """The chain of a plan: its kind, the plans before it by the digest of their plan.json, and merged secrets.

    ancestors: for an id the earlier ids, beside itself, whose examples in earlier releases count as this secret's; all
    of them, also those of ancestors. raised: ids of secrets whose ceiling is higher than in an earlier plan.
    uncovered: ids of secrets that an earlier release did not protect in some of its examples; the promise about them
    does not cover what that release shows of them.

    The releases of a chain share what plans leave to the sampling error: sampling_total is what computed draws and
    noise of all of them may add to a posterior, sampling_before what those before this one may have added, and
    sampling_limit what this one may add. Invariant: sampling_before + sampling_limit <= sampling_total.
    """

    kind: Series | Filter
    predecessors: tuple[str, ...]
    ancestors: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    raised: tuple[str, ...] = ()
    uncovered: tuple[str, ...] = ()
    sampling_total: float
    sampling_before: float
    sampling_limit: float

    def __post_init__(self) -> None:
        object.__setattr__(self, "predecessors", tuple(self.predecessors))
        object.__setattr__(self, "raised", tuple(self.raised))
        object.__setattr__(self, "uncovered", tuple(self.uncovered))
        object.__setattr__(self, "ancestors", {name: tuple(ids) for name, ids in sorted(self.ancestors.items())})
        digests = self.predecessors
        if len(set(digests)) < len(digests) or not all(type(one) is str and _DIGEST.fullmatch(one) for one in digests):
            raise InvalidInput("predecessors must be the digests of different plans, in the order of their releases")
        if len(digests) >= MAX_RELEASES:
            raise InvalidInput(f"a chain has at most {MAX_RELEASES:,} releases; start a new one")
        if isinstance(self.kind, Series) and self.kind.number != self.number:
            raise InvalidInput(
                f"this is release {self.kind.number} of a series, but {len(digests)} plans come before it"
            )
        for name, ids in self.ancestors.items():
            if not ids or name in ids or list(ids) != sorted(set(ids)) or not all(type(one) is str for one in ids):
                raise InvalidInput("ancestors must be lists of other ids, sorted, each once")
        parts = (self.sampling_before, self.sampling_limit, self.sampling_total)
        if not all(type(part) is float and 0 <= part < 1 for part in parts):
            raise InvalidInput("what a chain leaves to the sampling error must be numbers from 0 to 1")
        if not math.fsum(parts[:2]) <= self.sampling_total:
            raise CannotCertify("the releases so far may add more than the chain leaves to the sampling error")

    @property
    def number(self) -> int:
        """Which release of the chain this is, from 1."""
        return len(self.predecessors) + 1

    @property
    def count(self) -> int | None:
        """How many releases were announced; None for a filter."""
        return len(self.kind.shapes) if isinstance(self.kind, Series) else None

    @property
    def is_series(self) -> bool:
        """Whether all releases were announced before the first."""
        return isinstance(self.kind, Series)

    @property
    def sampling_of_others(self) -> float:
        """What the other releases that the stated posteriors are about may add: all announced, or those before."""
        if isinstance(self.kind, Series):
            return math.nextafter(self.sampling_total - self.sampling_limit, math.inf)
        return self.sampling_before

    @property
    def fingerprint(self) -> str:
        """SHA-256, in hex, of everything that a chain states."""
        kind = self.kind
        if isinstance(kind, Series):
            facts = ["series", kind.number, [[shape.noise_multiplier, shape.rounds] for shape in kind.shapes]]
            arrays = [kind.limit_SR]
        else:
            facts = ["filter", kind.share]
            arrays = [kind.order_SQ, kind.conceded_SQ, kind.before_SQ, kind.after_SQ, kind.granted_SQ, kind.allowed_SQ]
        sampling = [self.sampling_total, self.sampling_before, self.sampling_limit]
        head = [facts, self.predecessors, self.ancestors, self.raised, self.uncovered, sampling]
        digest = hashlib.sha256(b"hush chain 1\n" + json.dumps(head, sort_keys=True).encode())
        for array in arrays:
            digest.update(np.array(array.shape, dtype="<i8").tobytes())
            digest.update(np.ascontiguousarray(array, dtype="<f8").tobytes())
        return digest.hexdigest()

    def posterior(self, secrets: NDArray[np.int64], prior: Array, *, bound: Bound, accuracy: float = ACCURACY) -> Array:
        """Posteriors of these secrets that the chain proves, for a row of priors each."""
        if isinstance(self.kind, Series):
            return self.kind.posterior(secrets, prior, bound=bound, accuracy=accuracy)
        return self.kind.posterior(secrets, prior)


def chain_facts(chain: Chain) -> dict[str, Any]:
    """What a certificate says about a chain."""
    facts = {
        "number": chain.number,
        "merged": len(chain.ancestors),
        "raised": len(chain.raised),
        "uncovered": len(chain.uncovered),
    }
    if isinstance(chain.kind, Series):
        return {"kind": "series", "number": chain.number, "announced": len(chain.kind.shapes), **facts}
    return {"kind": "filter", "number": chain.number, "share": chain.kind.share, **facts}


def budgets(prior_SQ: Array, target_SQ: Array, order_SQ: Array) -> tuple[Array, Array]:
    """The log-moments that keep the posteriors below these targets at these orders, and what a release may concede.

    Both are 0 where a target is not above its prior.
    """
    ceiling_SQ = target_SQ * (1 - BUDGET_ROUNDING)
    able_SQ = prior_SQ < ceiling_SQ
    above_SQ = np.where(able_SQ, ceiling_SQ, above_prior(prior_SQ, target_SQ))
    budget_SQ = np.where(able_SQ, moment_budget(prior_SQ, above_SQ, order_SQ), 0.0)
    return budget_SQ, np.where(able_SQ, conceded_allowance(prior_SQ, above_SQ), 0.0)


def above_prior(prior_SQ: Array, target_SQ: Array) -> Array:
    """The targets; where one is not above its prior, so that nothing may be done, any number that is."""
    return np.where(prior_SQ < target_SQ, target_SQ, np.minimum(2 * prior_SQ, (1 + prior_SQ) / 2))


def _frozen(values: Array) -> Array:
    array = np.array(values, dtype=np.float64)
    array.flags.writeable = False
    return array


def used_shares(chain: Chain, incidence: Incidence, rate_N: Array) -> Array:
    """The share of what a release may do to each secret that it does: of its limit, or of what it may spend.

    Under a filter a release may spend its share of what was allowed so far, and what earlier ones left of theirs.
    """
    if isinstance(chain.kind, Series):
        return _quotient(intensities(incidence, rate_N), chain.kind.limit_S)
    spent_SQ = chain.kind.after_SQ - chain.kind.before_SQ
    return _quotient(spent_SQ, chain.kind.granted_SQ).max(axis=1, initial=0.0)


def spent_shares(plan: "Plan") -> Array:
    """The share of its promise that each secret has spent: of its budget; of a series, the releases that are made.

    All of a series is promised from the start: its posteriors are those after the last release.
    """
    chain = plan.chain
    if chain is None:
        raise InvalidInput("this plan is not one of a chain, so nothing says what other releases may spend")
    if isinstance(chain.kind, Series):
        return np.full(len(plan.secret_ids), chain.number / len(chain.kind.shapes))
    target_SQ = chain_ceiling(plan.prior, plan.ceiling, chain.sampling_total)
    budget_SQ, _ = budgets(plan.prior, target_SQ, chain.kind.order_SQ)
    return _quotient(chain.kind.after_SQ, budget_SQ).max(axis=1, initial=0.0)


def _quotient(part: Array, whole: Array) -> Array:
    return np.divide(part, whole, out=np.zeros_like(part), where=whole > 0)


# What a plan with a chain must satisfy.


def check_chain(plan: "Plan") -> None:
    """The chain fits the plan: its sizes, and what this release draws and adds is inside its limits."""
    chain = plan.chain
    if chain is None:
        return
    kind, secrets = chain.kind, len(plan.secret_ids)
    named = {*chain.ancestors, *chain.raised, *chain.uncovered}
    unknown = named - set(plan.secret_ids)
    if unknown:
        raise InvalidInput(f"the chain names {len(unknown)} ids that are not secrets of this plan")
    if isinstance(kind, Series):
        if len(kind.limit_SR) != secrets:
            raise InvalidInput(f"the chain has limits of {len(kind.limit_SR)} secrets, the plan {secrets} secrets")
        if plan.noise_multiplier < kind.shape.noise_multiplier or plan.rounds > kind.shape.rounds:
            raise CannotCertify(
                f"release {kind.number} was announced with a noise of at least {kind.shape.noise_multiplier!r} and at "
                f"most {kind.shape.rounds} rounds; the plan has {plan.noise_multiplier!r} and {plan.rounds}"
            )
        passed = int(np.count_nonzero(~(intensities(plan.incidence, plan.rates) <= kind.limit_S)))
        if passed:
            raise CannotCertify(f"{passed} secrets are drawn more often than their limits allow; the plan is void")
        return
    if kind.order_SQ.shape != plan.prior.shape:
        raise InvalidInput(f"the chain has orders of shape {kind.order_SQ.shape}, the plan priors {plan.prior.shape}")
    if plan.bound != "renyi":
        raise InvalidInput("a filter is proven by Renyi divergences; its plans have the bound 'renyi'")

"""A release under a filter: what it may spend on each secret, and what it spent.

Legend: S secrets, Q promised points of a secret.
"""

import math
from dataclasses import dataclass
from functools import cached_property
from typing import final

import numpy as np
from numpy.typing import NDArray

from hush.accounting.arguments import Bound
from hush.accounting.moments import choose_orders, log_moments
from hush.accounting.sampling_error import chain_ceiling, planning_ceiling, reserve
from hush.arrays import Array
from hush.errors import CannotCertify, InvalidInput, Setting
from hush.numbers import counted, rounded_down, rounded_up
from hush.plan.chain import Chain, Filter, above_prior, budgets
from hush.plan.earlier import room_of_release
from hush.plan.plan import Plan
from hush.plan.promised import (
    EPS,
    LEAST_INTENSITY,
    MOST_INTENSITY,
    REMEDY_MARGIN,
    Indices,
    Promised,
    ReleaseRefused,
    examples_with,
)
from hush.settings import AUTO, Auto
from hush.weights.accounts import Account, Budgets, intensities
from hush.weights.choose import Chooser

__all__ = ["UnderFilter"]

ROUNDING = 1e-12  # relative room between what may be spent and what is allowed, for sums that round up
LEAST_GRANT = 0.1  # of its share: a release for which less is left of a promise may spend nothing on it
USUAL_ROUNDS = 100  # for which orders are chosen where the rounds are not known yet; tightness only


@final
@dataclass(frozen=True, kw_only=True)
class UnderFilter:
    """A release that was added, which may spend a share of the budget of each promise."""

    promised: Promised
    share: float

    @property
    def bound(self) -> Bound:
        if self.promised.bound == "kl":
            raise InvalidInput("a filter is proven by Renyi divergences; drop this bound", setting="bound", value="kl")
        return "renyi"

    @cached_property
    def sampling(self) -> tuple[float, float]:
        """What all releases may add to a posterior, and what those before may have added."""
        history = self.promised.history
        chain = history.chain
        if chain is not None:
            return chain.sampling_total, math.nextafter(chain.sampling_before + chain.sampling_limit, math.inf)
        before = room_of_release(history.earlier[0].plan) if history.earlier else 0.0
        own = reserve(self.promised.prior_SQ, self.promised.ceiling_SQ)
        return math.nextafter(before + own, math.inf) if before else own, before

    @cached_property
    def target_SQ(self) -> Array:
        return chain_ceiling(self.promised.prior_SQ, self.promised.ceiling_SQ, self.sampling[0])

    def rounds(self, stated: int | Auto) -> int | Auto:
        return stated

    def noise(self, stated: float | None) -> float | None:
        return stated

    @cached_property
    def _carried_S(self) -> NDArray[np.bool_]:
        return self.promised.history.carried(Filter)

    @cached_property
    def order_SQ(self) -> Array:
        """The orders: as at the first release of a secret; those of the first ancestor where there is none."""
        promised, history = self.promised, self.promised.history
        rounds = math.ceil((USUAL_ROUNDS if promised.rounds == AUTO else promised.rounds) / self.share)
        order_SQ = _chosen_orders(promised.prior_SQ, self.target_SQ, promised.usual_S, rounds)
        listed_S = history.last_S >= 0
        for number, one in enumerate(history.earlier):
            here = np.flatnonzero(listed_S & (history.last_S == number))
            if here.size:
                order_SQ[here] = _orders_in(one.plan)[history.row_S[here]]
        for secret in np.flatnonzero(~listed_S & history.joins_S).tolist():
            order_SQ[secret] = self._order_of_first_ancestor(secret)
        return order_SQ

    def _order_of_first_ancestor(self, secret: int) -> Array:
        history = self.promised.history
        for name in history.ancestors[history.ids[secret]]:
            for one in reversed(history.earlier):
                if name in one.plan.secret_ids:
                    if one.plan.prior.shape[1] != self.promised.prior_SQ.shape[1]:
                        break
                    return _orders_in(one.plan)[one.plan.secret_ids.index(name)]
        raise InvalidInput(
            f"{history.ids[secret]} is merged from secrets that promise another number of points; promise as many"
        )

    @cached_property
    def _budgets(self) -> tuple[Array, Array]:
        return budgets(self.promised.prior_SQ, self.target_SQ, self.order_SQ)

    @property
    def budget_SQ(self) -> Array:
        """The log-moments that the promises allow; 0 where nothing may be spent."""
        return self._budgets[0]

    @property
    def conceded_SQ(self) -> Array:
        """What a release may concede."""
        return self._budgets[1]

    @cached_property
    def before_SQ(self) -> Array:
        """What the earlier releases spent."""
        history = self.promised.history
        before_SQ = history.gather(self._carried_S, "after_SQ", np.zeros(self.promised.prior_SQ.shape))
        again = np.flatnonzero(((history.last_S >= 0) | history.joins_S) & ~self._carried_S)
        if again.size:
            before_SQ[again] = history.past_moments(again, self.order_SQ[again], self.conceded_SQ[again])
        return before_SQ

    @cached_property
    def allowed_SQ(self) -> Array:
        """What the releases up to this one may have spent at most, as was known beforehand.

        A share of the budget for each; the whole budget where the share was changed on the way, and for a secret that
        was merged, whose log-moments are not those of its parts.
        """
        history = self.promised.history
        allowed_SQ = history.gather(self._carried_S, "allowed_SQ", np.zeros(self.promised.prior_SQ.shape))
        alone_S = (history.last_S == 0) & ~self._carried_S & ~history.joins_S  # their first release stood alone
        allowed_SQ[alone_S] = self.before_SQ[alone_S]
        self._refuse_spent(allowed_SQ)
        grown_SQ = np.minimum(allowed_SQ + self.share * self.budget_SQ, self.budget_SQ)
        whole_S = history.joins_S | history.has_other_share(self.share)
        return np.where(whole_S[:, None], self.budget_SQ, grown_SQ)

    @cached_property
    def granted_SQ(self) -> Array:
        """What this release may spend: its share or what is left; nothing where little is, which takes large noise."""
        share_SQ = self.share * self.budget_SQ
        most_SQ = np.minimum(share_SQ, self.allowed_SQ - self.before_SQ) * (1 - ROUNDING) - ROUNDING * self.before_SQ
        return np.where(most_SQ >= LEAST_GRANT * share_SQ, np.maximum(most_SQ, 0.0), 0.0)

    @cached_property
    def posterior_SQ(self) -> Array:
        kind = Filter(
            share=self.share,
            order_SQ=self.order_SQ,
            conceded_SQ=self.conceded_SQ,
            before_SQ=self.before_SQ,
            after_SQ=self.before_SQ,
            granted_SQ=self.granted_SQ,
            allowed_SQ=self.allowed_SQ,
        )
        posterior_SQ = kind.posterior(np.arange(len(self.order_SQ)), self.promised.prior_SQ)
        if not (posterior_SQ <= self.promised.ceiling_SQ - self.sampling[0]).all(where=self.allowed_SQ > 0):
            raise CannotCertify("the budget of a promise was not proven to keep it; raise the ceilings a little")
        return posterior_SQ

    @property
    def account(self) -> Account:
        return Budgets(
            order_SQ=self.order_SQ,
            conceded_SQ=self.conceded_SQ,
            granted_SQ=self.granted_SQ,
            posterior_SQ=self.posterior_SQ,
        )

    def _refuse_spent(self, allowed_SQ: Array) -> None:
        """Refuse secrets of which the releases before may have spent more than the ceilings now allow."""
        self._refuse_lowered()
        over = np.flatnonzero(~(np.maximum(allowed_SQ, self.before_SQ) <= self.budget_SQ).all(axis=1))
        if not over.size:
            return
        history = self.promised.history
        ceilings = self._ceilings_for(np.maximum(allowed_SQ, self.before_SQ)[over], over)
        raise ReleaseRefused(
            f"the releases before may have spent more on {history.named(over)} than the ceilings allow at their "
            f"orders; leave them and their {counted(examples_with(self.promised.incidence, over), 'example')} out of "
            f"this release{ceilings}",
            secrets=[history.ids[secret] for secret in over.tolist()],
            setting="ceiling",
        )

    def _refuse_lowered(self) -> None:
        """Refuse lower ceilings than before: what a release may concede was fixed with the ceilings then."""
        history = self.promised.history
        lowered_S = np.zeros(len(history.ids), dtype=bool)
        for number, one in enumerate(history.earlier):
            here = np.flatnonzero(history.last_S == number)
            stated_SQ = one.plan.ceiling[history.row_S[here]]
            lowered_S[here] = (self.promised.ceiling_SQ[here] < stated_SQ).any(axis=1)
        lowered = np.flatnonzero(lowered_S)
        if lowered.size:
            raise ReleaseRefused(
                f"the ceilings of {history.named(lowered)} are lower than in earlier releases, which spent what the "
                "higher ones allowed; state them as before, or higher",
                secrets=[history.ids[secret] for secret in lowered.tolist()],
                setting="ceiling",
            )

    def _ceilings_for(self, spent_SQ: Array, secrets: Indices) -> str:
        """The remedy of ceilings under which so much is spent, and as much is left as one release may spend."""
        room_SQ = spent_SQ / max(1 - self.share, 0.1)
        kind = Filter(
            share=self.share,
            order_SQ=self.order_SQ[secrets],
            conceded_SQ=self.conceded_SQ[secrets],
            before_SQ=np.zeros_like(room_SQ),
            after_SQ=np.zeros_like(room_SQ),
            granted_SQ=np.zeros_like(room_SQ),
            allowed_SQ=room_SQ,
        )
        needed = kind.posterior(np.arange(secrets.size), self.promised.prior_SQ[secrets]).max() + self.sampling[0]
        enough = float(needed) * (1 + REMEDY_MARGIN)
        return f", or raise their ceilings: {rounded_up(enough, 3)} is enough for each" if enough < 1 else ""

    def refused(self, keep: float) -> ReleaseRefused:
        """Why no noise keeps this share of the data: the secrets of which nothing is left, and what would do."""
        promised, history = self.promised, self.promised.history
        listed_S = np.asarray(promised.incidence.examples_per_secret > 0)
        spent = np.flatnonzero(~(self.granted_SQ > 0).all(axis=1) & listed_S)
        graph = promised.incidence
        touched = examples_with(graph, spent)
        bearing = int(np.count_nonzero(graph.secrets_per_example))
        possible = 1 - touched / max(bearing, 1)
        parts = [
            f"too little is left of the promises of {history.named(spent)}, so with any noise examples with secrets "
            f"keep at most {rounded_down(100 * max(possible, 0.0), 3)} % of their weight, not {100 * keep:g} %; leave "
            f"them and their {counted(touched, 'example')} out of this release"
            f"{self._ceilings_for(self.before_SQ[spent], spent)}",
        ]
        parts += [", or lower ", Setting("keep"), f" to {rounded_down(possible, 3)}"] if possible > 0 else []
        return ReleaseRefused(*parts, secrets=[history.ids[secret] for secret in spent.tolist()], setting="keep")

    def finish(self, chooser: Chooser, rate_N: Array, noise: float) -> tuple[Chain, Array]:
        moment_SQ = log_moments(
            self.promised.incidence,
            rates=rate_N,
            noise_multiplier=noise,
            rounds=chooser.rounds,
            order=self.order_SQ,
            conceded=self.conceded_SQ,
            below=self.granted_SQ,  # which the noise was proven for, secret by secret where they nearly bind
        )
        after_SQ = np.where(moment_SQ > 0, np.nextafter(self.before_SQ + moment_SQ, np.inf), self.before_SQ)
        total, before = self.sampling
        kind = Filter(
            share=self.share,
            order_SQ=self.order_SQ,
            conceded_SQ=self.conceded_SQ,
            before_SQ=self.before_SQ,
            after_SQ=after_SQ,
            granted_SQ=self.granted_SQ,
            allowed_SQ=self.allowed_SQ,
        )
        chain = Chain(
            kind=kind,
            predecessors=self.promised.history.digests,
            ancestors=self.promised.history.ancestors,
            raised=self.promised.raised,
            uncovered=self.promised.history.uncovered,
            sampling_total=total,
            sampling_before=before,
            sampling_limit=self.share * (total - before) * (1 - 4 * EPS),
        )
        return chain, self.posterior_SQ


def _orders_in(plan: Plan) -> Array:
    """The orders of a plan: of a release that stood alone, those that the rule chooses from its public settings."""
    if plan.chain is not None and isinstance(plan.chain.kind, Filter):
        return plan.chain.kind.order_SQ
    intensity_S = np.clip(intensities(plan.incidence, plan.rates), LEAST_INTENSITY, MOST_INTENSITY)
    return _chosen_orders(plan.prior, planning_ceiling(plan.prior, plan.ceiling), intensity_S, plan.rounds)


def _chosen_orders(prior_SQ: Array, target_SQ: Array, intensity_S: Array, rounds: int) -> Array:
    return choose_orders(prior_SQ, above_prior(prior_SQ, target_SQ), intensity=intensity_S, rounds=rounds)

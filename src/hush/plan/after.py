"""A release of a chain: what it may do, given the releases before it and those that are announced.

Each kind of release says which rounds and noise it may have, answers what the choice of weights asks (``account``), and
then states the chain of the plan that was chosen (``finish``). The rules: a secret that was there before keeps its
limits, or its orders and what it spent. A new secret, or one that was merged from several, gets the largest limit that
the announced releases leave it, given the limits under which its examples were drawn before; under a filter, the order
that the same rule chooses for everyone, and all log-moments of its examples at this order.

Legend: S secrets, Q promised points of a secret, R releases.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import final

import numpy as np
from numpy.typing import NDArray

from hush.accounting.arguments import Bound
from hush.accounting.calibration import MAX_COUNT
from hush.accounting.moments import choose_orders, log_moments
from hush.accounting.releases import Shape, limit_capacity
from hush.accounting.sampling_error import chain_ceiling, planning_ceiling, reserve
from hush.arrays import Array
from hush.errors import CannotCertify, InfeasiblePlan, InvalidInput, Setting
from hush.incidence import Incidence
from hush.numbers import counted, rounded_down, rounded_up
from hush.plan.chain import Chain, Filter, Series, above_prior, budgets
from hush.plan.earlier import History, room_of_release
from hush.plan.plan import Plan
from hush.plan.settings import FilterSettings, SeriesSettings
from hush.settings import AUTO, Auto
from hush.weights.accounts import FULLY_USED, Account, Announced, Budgets, EqualSeries, intensities, limit_posteriors
from hush.weights.choose import Choice, Chooser, TooLittleNoise

__all__ = ["Promised", "Release", "ReleaseRefused", "UnderFilter", "release_of"]

EPS = 2.0**-52
ROUNDING = 1e-12  # relative room between what may be spent and what is allowed, for sums that round up
LIMIT_SLACK = 4.0  # times the largest intensity: larger limits cost time and would hardly ever bind; tightness only
BATCH_STEP = 0.8  # from each smaller batch size that is tried to the next, for a message
REMEDY_MARGIN = 0.01  # relative, of a ceiling that a message suggests, for what a ceiling leaves to sampling
LEAST_GRANT = 0.1  # of its share: a release for which less is left of a promise may spend nothing on it
KEEP_TOLERANCE = 1e-3  # relative, of the share kept: the program is solved to a tolerance
USUAL_ROUNDS = 100  # for which orders are chosen where the rounds are not known yet; tightness only
LEAST_INTENSITY, MOST_INTENSITY = 1e-9, 1e3  # for which orders are chosen; tightness only

Indices = NDArray[np.int64]


class ReleaseRefused(InfeasiblePlan):
    """Too little is left of the promises of some secrets. ``secrets`` holds the ids of all of them."""

    def __init__(self, *parts: str, secrets: Sequence[str], setting: str | None = None) -> None:
        self.secrets = tuple(secrets)
        super().__init__(*parts, setting=setting)


@final
@dataclass(frozen=True, kw_only=True)
class Promised:
    """What is promised in this release: its secrets by row, and the graph of the examples that can be drawn."""

    history: History
    incidence: Incidence
    prior_SQ: Array
    ceiling_SQ: Array
    bound: Bound
    batch_size: float | Auto
    rounds: int | Auto

    @cached_property
    def usual_S(self) -> Array:
        """How often each secret is drawn if all weights are 1, roughly: its intensity."""
        size = self.incidence.num_examples
        rate = 0.5 if self.batch_size == AUTO else min(float(self.batch_size) / max(size, 1), 0.5)
        return np.clip(intensities(self.incidence, np.full(size, rate)), LEAST_INTENSITY, MOST_INTENSITY)

    @cached_property
    def raised(self) -> tuple[str, ...]:
        """Ids whose ceiling is higher than in an earlier plan. Computing it checks that priors are as before."""
        return self.history.raised(self.prior_SQ, self.ceiling_SQ)


def release_of(
    promised: Promised,
    *,
    series: SeriesSettings | None,
    shapes: Sequence[Shape] | None,
    filter: FilterSettings | None,
) -> "Release | None":
    """The kind of release that is asked for; None for one that stands alone."""
    if sum(one is not None for one in (series, shapes, filter)) > 1:
        raise InvalidInput("a chain is a series or a filter: pass one of series, shapes and filter")
    history = promised.history
    _ = promised.raised  # refuses other priors than before
    if not history.earlier:
        if filter is not None:
            return UnderFilter(promised=promised, share=filter.share)
        if shapes is not None:
            return OfSeries(promised=promised, shapes=tuple(shapes))
        return None if series is None else FirstOfSeries(promised=promised, settings=series)
    chain = history.chain
    if chain is not None and isinstance(chain.kind, Series):
        _check_announced(chain.kind, series, shapes, filter)
        return OfSeries(promised=promised, shapes=chain.kind.shapes)
    if series is not None or shapes is not None:
        raise InvalidInput(
            "a series is announced before its first release, and the earlier releases here are none; add this release "
            "under a filter instead"
        )
    if filter is None:
        if chain is None or not isinstance(chain.kind, Filter):
            raise InvalidInput(
                "the earlier release was not announced as one of a series, so later ones are added under a filter; "
                "pass the share of the budget that each may spend"
            )
        filter = FilterSettings(share=chain.kind.share)
    return UnderFilter(promised=promised, share=filter.share)


def _check_announced(
    kind: Series, series: SeriesSettings | None, shapes: Sequence[Shape] | None, filter: FilterSettings | None
) -> None:
    count = len(kind.shapes)
    if filter is not None:
        raise InvalidInput("the earlier releases are of a series; a filter cannot be added to it: drop it")
    if (series is not None and series.count != count) or (shapes is not None and tuple(shapes) != kind.shapes):
        raise InvalidInput(f"the earlier releases announced a series of {count}; it cannot be changed: pass the same")
    if kind.number == count:
        raise InvalidInput(
            f"all {count} announced releases of this series are made; start a new chain for new secrets, or plan the "
            "next releases without the secrets of this one"
        )


# A series.


@final
@dataclass(frozen=True, kw_only=True)
class FirstOfSeries:
    """The first of as many releases alike, at the least noise at which all of them keep every promise."""

    promised: Promised
    settings: SeriesSettings

    @property
    def account(self) -> Account:
        return EqualSeries(count=self.settings.count, growth=self.settings.growth)

    @cached_property
    def total(self) -> float:
        return reserve(self.promised.prior_SQ, self.promised.ceiling_SQ)

    @cached_property
    def target_SQ(self) -> Array:
        return chain_ceiling(self.promised.prior_SQ, self.promised.ceiling_SQ, self.total)

    @property
    def bound(self) -> Bound:
        return self.promised.bound

    def rounds(self, stated: int | Auto) -> int | Auto:
        return stated

    def noise(self, stated: float | None) -> float | None:
        return stated

    def finish(self, chooser: Chooser, rate_N: Array, noise: float) -> tuple[Chain, Array]:
        """Limits are the largest that the noise allows, and never below what these rates need."""
        account = EqualSeries(count=self.settings.count, growth=self.settings.growth)
        need_S = account.needed(chooser.question, rate_N)
        shapes = account.shapes(chooser.question, noise)
        limit_S = np.maximum(need_S, _largest_limits(self, shapes, need_S, past_SR=None))
        posterior_SQ = _posteriors(self, limit_S, np.arange(len(limit_S)), shapes)
        over_S = ~(posterior_SQ <= self.target_SQ).all(axis=1)  # the accuracy of the bound differs with what shares it
        if over_S.any():
            limit_S[over_S] = need_S[over_S]
            posterior_SQ = _posteriors(self, limit_S, np.arange(len(limit_S)), shapes)
        kind = Series(shapes=shapes, number=1, limit_SR=limit_S[:, None] * np.ones(len(shapes)))
        return _series_chain(self.promised, kind, self.total), posterior_SQ


@final
@dataclass(frozen=True, kw_only=True)
class OfSeries:
    """A release of a series whose shapes are announced: a later one, or the first of unlike ones."""

    promised: Promised
    shapes: tuple[Shape, ...]

    @property
    def number(self) -> int:
        return len(self.promised.history.earlier) + 1

    @property
    def shape(self) -> Shape:
        return self.shapes[self.number - 1]

    @cached_property
    def total(self) -> float:
        chain = self.promised.history.chain
        return reserve(self.promised.prior_SQ, self.promised.ceiling_SQ) if chain is None else chain.sampling_total

    @cached_property
    def target_SQ(self) -> Array:
        return chain_ceiling(self.promised.prior_SQ, self.promised.ceiling_SQ, self.total)

    @property
    def bound(self) -> Bound:
        """That of the first release: what was announced is proven the same way in every plan."""
        history = self.promised.history
        return history.earlier[0].plan.bound if history.earlier else self.promised.bound

    def rounds(self, stated: int | Auto) -> int | Auto:
        if stated == AUTO:
            return self.shape.rounds
        if stated > self.shape.rounds:
            raise InvalidInput(
                f"release {self.number} was announced with at most {self.shape.rounds} rounds; pass at most these",
                setting="rounds", value=stated,
            )  # fmt: skip
        return stated

    def noise(self, stated: float | None) -> float | None:
        least = self.shape.noise_multiplier
        if stated is not None and stated < least:
            raise InvalidInput(
                f"release {self.number} was announced with a noise of at least {least!r}; pass no less, or drop it",
                setting="noise_multiplier", value=stated,
            )  # fmt: skip
        return least if stated is None else stated

    @cached_property
    def limit_SR(self) -> Array:
        """The limits of every secret: as announced where it was there before, otherwise the largest that are left."""
        history, count = self.promised.history, len(self.shapes)
        limit_SR = np.zeros((len(history.ids), count))
        carried_S = history.carried(Series)
        history.gather(carried_S, "limit_SR", limit_SR)
        fresh = np.flatnonzero(~carried_S)
        if not fresh.size:
            return limit_SR
        past_SR = history.past_limits(fresh)
        if history.earlier:
            alone = limit_SR[fresh]
            alone[:, : self.number - 1] = past_SR
            self._refuse_spent(fresh, alone)
        # No larger than the limits that others have, or, in a first release, than a few times the usual.
        need_S = self.promised.usual_S
        if history.chain is not None and isinstance(history.chain.kind, Series):
            need_S = history.chain.kind.limit_SR.max(axis=1, initial=0.0) / LIMIT_SLACK
        limit_S = _largest_limits(
            self, self.shapes, need_S, past_SR=past_SR if history.earlier else None, secrets=fresh
        )
        limit_SR[fresh] = limit_S[:, None]
        limit_SR[fresh, : self.number - 1] = past_SR
        return limit_SR

    @cached_property
    def posterior_SQ(self) -> Array:
        posterior_SQ = self._stated_before()
        fresh = np.flatnonzero(np.isnan(posterior_SQ).any(axis=1))
        if fresh.size:
            posterior_SQ[fresh] = _posteriors(self, self.limit_SR[fresh], fresh, self.shapes)
        over = np.flatnonzero(~(posterior_SQ <= self.target_SQ).all(axis=1))
        if over.size:
            self._refuse(over, posterior_SQ[over], "the limits announced for them")
        return posterior_SQ

    def _stated_before(self) -> Array:
        """The posteriors that earlier plans stated for secrets whose limits go on: they stay. NaN for the others."""
        history = self.promised.history
        posterior_SQ = np.full(self.promised.prior_SQ.shape, np.nan)
        carried_S = history.carried(Series)
        for number, one in enumerate(history.earlier):
            here = np.flatnonzero(carried_S & (history.last_S == number))
            posterior_SQ[here] = one.plan.posterior[history.row_S[here]]
        return posterior_SQ

    def _refuse_spent(self, fresh: Indices, limit_SR: Array) -> None:
        joined = np.asarray(limit_SR.max(axis=1) > 0)
        if not joined.any():
            return
        secrets = fresh[joined]
        after_SQ = _posteriors(self, limit_SR[joined], secrets, self.shapes)
        over = np.asarray(~(after_SQ <= self.target_SQ[secrets]).all(axis=1))
        if over.any():
            self._refuse(secrets[over], after_SQ[over], "what releases before allowed to the secrets merged in them")

    def _refuse(self, secrets: Indices, after_SQ: Array, why: str) -> None:
        history = self.promised.history
        enough = (float(after_SQ.max()) + self.total) * (1 + REMEDY_MARGIN)
        ceilings = f", or raise their ceilings: {rounded_up(enough, 3)} is enough for each" if enough < 1 else ""
        raise ReleaseRefused(
            f"{why} can lift {history.named(secrets)} above the ceiling; leave them and their "
            f"{counted(_examples_with(self.promised.incidence, secrets), 'example')} out of this release{ceilings}",
            secrets=[history.ids[secret] for secret in secrets.tolist()],
            setting="ceiling",
        )

    @property
    def account(self) -> Account:
        return Announced(shape=self.shape, limit_S=self.limit_SR[:, self.number - 1], posterior_SQ=self.posterior_SQ)

    def refused_batch(self, problem: TooLittleNoise, chooser: Chooser) -> InfeasiblePlan:
        """Why no rates inside the limits reach the batch size, and a batch size that does."""
        remedy, size = "no smaller one was found that works", float(problem.largest_batch)
        while size >= 1:
            try:
                replace(chooser, batch_size=float(size)).proven_at(self.shape.noise_multiplier)
            except (InfeasiblePlan, CannotCertify):
                size = math.floor(BATCH_STEP * size)
                continue
            remedy = f"lower it to at most {size:.0f}"
            break
        return InfeasiblePlan(
            Setting("batch_size"),
            f"={problem.batch_size:g} is more than the limits of the series allow, with every secret drawn as often as "
            f"was announced; {remedy}, or leave out secrets with little room and their examples",
            setting="batch_size",
        )

    def check_inside(self, choice: Choice) -> None:
        """Refuse rates outside the limits, where they were not chosen for them."""
        incidence, history = self.promised.incidence, self.promised.history
        limit_S = self.limit_SR[:, self.number - 1]
        over = np.flatnonzero(~(intensities(incidence, choice.rate_N) <= limit_S))
        if over.size:
            raise ReleaseRefused(
                f"these rates draw {history.named(over)} more often than was announced; let ",
                Setting("capacity"),
                "='accounted' use their examples less, lower ",
                Setting("batch_size"),
                f", or leave them and their {counted(_examples_with(incidence, over), 'example')} out of this release",
                secrets=[history.ids[secret] for secret in over.tolist()],
                setting="capacity",
            )

    def check_kept(self, choice: Choice, keep: float | None) -> None:
        """Refuse a choice inside the limits that keeps less of the data than was asked for."""
        incidence, history = self.promised.incidence, self.promised.history
        bearing_N = incidence.secrets_per_example > 0
        if keep is None or not bearing_N.any():
            return
        kept = float(choice.weight_N[bearing_N].mean())
        if kept >= keep * (1 - KEEP_TOLERANCE):
            return
        mean_S = intensities(incidence, choice.rate_N)
        full = np.flatnonzero((mean_S >= FULLY_USED * self.limit_SR[:, self.number - 1]) & (mean_S > 0))
        raise ReleaseRefused(
            f"inside the limits of the series examples with secrets keep {rounded_down(100 * kept, 3)} % of their "
            f"weight, not {100 * keep:g} %: {history.named(full)} are drawn as often as was announced; lower ",
            Setting("keep"),
            f" to {rounded_down(kept, 3)}, lower ",
            Setting("batch_size"),
            ", or leave those secrets and their "
            f"{counted(_examples_with(incidence, full), 'example')} out of this release",
            secrets=[history.ids[secret] for secret in full.tolist()],
            setting="keep",
        )

    def finish(self, chooser: Chooser, rate_N: Array, noise: float) -> tuple[Chain, Array]:
        kind = Series(shapes=self.shapes, number=self.number, limit_SR=self.limit_SR)
        return _series_chain(self.promised, kind, self.total), self.posterior_SQ


def _largest_limits(
    release: FirstOfSeries | OfSeries,
    shapes: tuple[Shape, ...],
    need_S: Array,
    *,
    past_SR: Array | None,
    secrets: Indices | None = None,
) -> Array:
    """The largest limits that the announced releases leave, up to a few times what is needed."""
    promised = release.promised
    rows = slice(None) if secrets is None else secrets
    able_S = np.asarray((promised.prior_SQ[rows] < release.target_SQ[rows]).all(axis=1))
    limit_S = np.zeros(len(able_S))
    if able_S.any():
        limit_S[able_S] = limit_capacity(
            promised.prior_SQ[rows][able_S],
            release.target_SQ[rows][able_S],
            shapes=shapes,
            past=None if past_SR is None else past_SR[able_S],
            bound=release.bound,
            most=min(max(LIMIT_SLACK * float(need_S.max(initial=0.0)), 1.0), MAX_COUNT),
        )
    return limit_S


def _posteriors(release: FirstOfSeries | OfSeries, limit: Array, secrets: Indices, shapes: tuple[Shape, ...]) -> Array:
    return limit_posteriors(
        limit,
        shapes,
        prior_SQ=release.promised.prior_SQ[secrets],
        below_SQ=release.target_SQ[secrets],
        bound=release.bound,
    )


def _series_chain(promised: Promised, kind: Series, total: float) -> Chain:
    part = total / len(kind.shapes) * (1 - 4 * EPS)
    return Chain(
        kind=kind,
        predecessors=promised.history.digests,
        ancestors=promised.history.ancestors,
        raised=promised.raised,
        sampling_total=total,
        sampling_before=part * (kind.number - 1) * (1 - 2 * EPS),
        sampling_limit=part,
    )


# A filter.


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
        chain = history.chain
        changed = chain is not None and isinstance(chain.kind, Filter) and chain.kind.share != self.share
        whole_S = history.joins_S | np.full(len(history.ids), changed)
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
            f"orders; leave them and their {counted(_examples_with(self.promised.incidence, over), 'example')} out of "
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
        touched = _examples_with(graph, spent)
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


Release = FirstOfSeries | OfSeries | UnderFilter


def _examples_with(graph: Incidence, secrets: Indices) -> int:
    """How many examples contain any of these secrets."""
    return int(np.unique(np.concatenate([[], *(graph.examples_of(one) for one in secrets.tolist())])).size)

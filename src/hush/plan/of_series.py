"""A release of a series: the first, which announces all, and those that follow inside what was announced.

Legend: S secrets, Q promised points of a secret, R releases.
"""

import math
from dataclasses import dataclass, replace
from functools import cached_property
from typing import final

import numpy as np

from hush.accounting.arguments import Bound
from hush.accounting.calibration import MAX_COUNT
from hush.accounting.releases import Shape, limit_capacity
from hush.accounting.sampling_error import chain_ceiling, reserve
from hush.arrays import Array
from hush.errors import CannotCertify, InfeasiblePlan, InvalidInput, Setting
from hush.numbers import counted, rounded_down, rounded_up
from hush.plan.chain import Chain, Series
from hush.plan.promised import (
    EPS,
    REMEDY_MARGIN,
    Indices,
    Promised,
    ReleaseRefused,
    examples_with,
)
from hush.plan.settings import SeriesSettings
from hush.settings import AUTO, Auto
from hush.weights.accounts import FULLY_USED, Account, Announced, EqualSeries, intensities, limit_posteriors
from hush.weights.choose import Choice, Chooser, TooLittleNoise

__all__ = ["FirstOfSeries", "OfSeries"]

LIMIT_SLACK = 4.0  # times the largest intensity: larger limits cost time and would hardly ever bind; tightness only
BATCH_STEP = 0.8  # from each smaller batch size that is tried to the next, for a message
KEEP_TOLERANCE = 0.02  # relative, of the share kept: limits are of Poisson counts, which cost that much at large rates


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
            f"{counted(examples_with(self.promised.incidence, secrets), 'example')} out of this release{ceilings}",
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
                f", or leave them and their {counted(examples_with(incidence, over), 'example')} out of this release",
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
            f"{counted(examples_with(incidence, full), 'example')} out of this release",
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
        uncovered=promised.history.uncovered,
        sampling_total=total,
        sampling_before=part * (kind.number - 1) * (1 - 2 * EPS),
        sampling_limit=part,
    )

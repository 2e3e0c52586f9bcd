"""What each secret of a chain was promised, what the releases so far have spent of it, and what is left.

Everything is read from the copies of the plans in the ledger; no data is needed. What is spent counts from the first
round of a training, whatever became of it. The bounds are those of the chain (``hush.plan.chain``): in a series what
the releases so far may have done at most inside their limits, in a filter what they were allowed.

Legend: S secrets of all releases together, Q promised points of a secret.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, final

import numpy as np
from numpy.typing import NDArray

from hush.accounting.releases import limit_posterior
from hush.arrays import Array
from hush.errors import InvalidInput
from hush.ledger.ledger import Entry, Ledger
from hush.plan import Plan
from hush.plan.chain import Chain, Filter, Series, budgets, used_shares
from hush.plan.plan import kept_weight

__all__ = ["ReleaseSpending", "SecretSpending", "Spending", "shares_left", "spending_of"]

FULL = 0.99  # of what a release could do to a secret: as good as all


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class ReleaseSpending:
    """One release: what its plan says, and how much of the promises the releases so far have used.

    used: over all secrets, the largest and the median share of its ceiling that a posterior had reached. full: secrets
    that used more than 99 % of what this release could do to them.
    """

    entry: Entry
    examples: int
    secrets: int
    new_secrets: int
    noise_multiplier: float
    rounds: int
    batch_size: float
    kept_weight: float
    used_most: float
    used_median: float
    full: int

    def record(self) -> dict[str, Any]:
        """Plain data."""
        entry = {name: getattr(self.entry, name) for name in ("number", "plan", "training", "began", "state")}
        names = [name for name in self.__slots__ if name != "entry"]
        return {**entry, "abandoned": self.entry.abandoned, **{name: getattr(self, name) for name in names}}


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class SecretSpending:
    """One secret at its most used point. spent: the bound on its posterior after the releases so far; left: a share.

    stated: what the last plan that lists it states, in a series after all announced releases.
    """

    secret: str
    releases: tuple[int, ...]
    prior: float
    ceiling: float
    spent: float
    stated: float
    left: float

    def record(self) -> dict[str, Any]:
        """Plain data."""
        return {name: getattr(self, name) for name in self.__slots__}


@final
@dataclass(frozen=True, kw_only=True, eq=False, repr=False)
class Spending:
    """The releases of a ledger and its secrets, the most used first.

    count: of announced releases; None for a filter, whose releases may each spend ``share`` of the budget.
    """

    releases: tuple[ReleaseSpending, ...]
    secrets: tuple[SecretSpending, ...]
    count: int | None
    share: float | None

    @property
    def releases_left(self) -> int | None:
        """How many announced releases have not begun; None for a filter."""
        return None if self.count is None else self.count - len(self.releases)

    def record(self) -> dict[str, Any]:
        """Plain data."""
        return {
            "kind": None if not self.releases else "filter" if self.count is None else "series",
            "count": self.count,
            "share": self.share,
            "releases_left": self.releases_left,
            "releases": [release.record() for release in self.releases],
            "secrets": [secret.record() for secret in self.secrets],
        }


def spending_of(
    ledger: Ledger, *, until: Entry | None = None, progress: Callable[[int, int], object] | None = None
) -> Spending:
    """What the releases in a ledger have spent, or those up to one; progress: with the releases read, of how many."""
    rows: dict[str, SecretSpending] = {}
    releases: list[ReleaseSpending] = []
    last: Chain | None = None
    entries = ledger.entries if until is None else ledger.entries[: until.number]
    for entry in entries:
        plan = ledger.plan(entry)
        last = plan.chain
        if last is None:
            raise InvalidInput(f"the plan of release {entry.number} is of no chain; restore the ledger")
        spent_SQ = _spent(plan, last)
        share_SQ = spent_SQ / plan.ceiling
        point_S = share_SQ.argmax(axis=1)
        every = np.arange(len(plan.secret_ids))
        left_S = shares_left(plan)
        new = 0
        columns = [array[every, point_S].tolist() for array in (plan.prior, plan.ceiling, spent_SQ, plan.posterior)]
        for name, prior, ceiling, spent, stated, left in zip(plan.secret_ids, *columns, left_S.tolist(), strict=True):
            known = rows.get(name)
            new += known is None
            rows[name] = SecretSpending(
                secret=name,
                releases=(*(() if known is None else known.releases), entry.number),
                prior=prior,
                ceiling=ceiling,
                spent=spent,
                stated=stated,
                left=left,
            )
        share_S = share_SQ[every, point_S]
        releases.append(
            ReleaseSpending(
                entry=entry,
                examples=plan.incidence.num_examples,
                secrets=len(plan.secret_ids),
                new_secrets=new,
                noise_multiplier=plan.noise_multiplier,
                rounds=plan.rounds,
                batch_size=plan.batch_size,
                kept_weight=kept_weight(plan),
                used_most=float(share_S.max(initial=0.0)),
                used_median=float(np.median(share_S)) if share_S.size else 0.0,
                full=int(np.count_nonzero(used_shares(last, plan.incidence, plan.rates) > FULL)),
            )
        )
        if progress is not None:
            progress(entry.number, len(entries))
    kind = None if last is None else last.kind
    ordered = sorted(rows.values(), key=lambda row: (-row.spent / row.ceiling, row.left, row.secret))
    return Spending(
        releases=tuple(releases),
        secrets=tuple(ordered),
        count=None if last is None else last.count,
        share=kind.share if isinstance(kind, Filter) else None,
    )


def shares_left(plan: Plan) -> Array:
    """The share of its promise that each secret has left after this release and those before it.

    In a series the share of the announced releases, under a filter that of the budget, at the most used point.
    """
    chain = plan.chain
    if chain is None:
        return np.ones(len(plan.secret_ids))
    kind = chain.kind
    if isinstance(kind, Series):
        return np.full(len(plan.secret_ids), 1 - kind.number / len(kind.shapes))
    budget_SQ, _ = budgets(plan.prior, plan.ceiling, kind.order_SQ)
    spent_SQ = np.divide(kind.after_SQ, budget_SQ, out=(kind.after_SQ > 0).astype(np.float64), where=budget_SQ > 0)
    return np.clip(1 - spent_SQ.max(axis=1, initial=0.0), 0.0, 1.0)


def _spent(plan: Plan, chain: Chain) -> Array:
    """Upper bounds on the posteriors after the releases so far, a row for each secret and a column for each point."""
    kind = chain.kind
    if not isinstance(kind, Series):
        return plan.posterior
    limit_SR = np.array(kind.limit_SR[:, : kind.number])
    distinct: NDArray[np.float64]
    rows_SC = np.concatenate([limit_SR, plan.prior], axis=1)
    distinct, inverse_S = np.unique(rows_SC, axis=0, return_inverse=True)
    limits, priors = distinct[:, : kind.number], distinct[:, kind.number :]
    bound = limit_posterior(limits, kind.shapes[: kind.number], prior=priors, bound=plan.bound)
    return np.asarray(bound)[inverse_S.ravel()]

"""Verification of a chain: what a plan states about its releases, recomputed from the plans of all of them.

A series: shapes and limits are those that were announced, every earlier release stayed inside them (a plan that does
not is refused when it is read), and the posteriors are those of the product of all announced releases at the limits. A
filter: the log-moments of all earlier releases at the stated orders are computed again, and what is spent and allowed
follows from them. Neither needs the data. Earlier plans are recognised by the digest of their plan.json, which names
the digest of every file beside it.

Legend: S secrets, Q promised points of a secret.
"""

from collections.abc import Sequence
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from hush.accounting.moments import log_moments
from hush.accounting.sampling_error import chain_ceiling
from hush.errors import HushError
from hush.plan.chain import Chain, Filter, Series, budgets, used_shares
from hush.plan.earlier import Earlier, History, room_of_release
from hush.plan.plan import Plan
from hush.plan.posteriors import FINE_ACCURACY, MAX_MACHINE_DIFFERENCE, Fault, Judgement
from hush.weights.accounts import FULLY_USED, limit_posteriors

__all__ = ["chain_problem", "judge_chain", "missing_link"]

BINDING_MARGIN = 0.005  # of the share that is used: another machine may compute it a little differently
SHOWN_DIGITS = 16  # of a digest in a message


def missing_link(chain: Chain, folders: Sequence[str | Path]) -> tuple[tuple[Earlier, ...], str | None]:
    """The earlier releases of a plan, and what is wrong with those that are given: which is missing, say."""
    earlier: list[Earlier] = []
    for folder in folders:
        try:
            earlier.append(Earlier.load(folder))
        except (HushError, OSError, ValueError, KeyError, TypeError, OverflowError, RecursionError) as error:
            return (), f"{folder} is no plan of an earlier release: {error}"
    given, stated = [one.digest for one in earlier], list(chain.predecessors)
    missing = [
        f"release {number} ({digest[:SHOWN_DIGITS]}…)"
        for number, digest in enumerate(stated, start=1)
        if digest not in given
    ]
    if missing:
        return (), (
            f"{len(missing)} of the {len(stated)} earlier releases are missing: {', '.join(missing[:3])}; without them "
            "nothing says what they drew. Pass the plans of all earlier releases, in order, or put them into earlier/"
        )
    strangers = [number for number, digest in enumerate(given, start=1) if digest not in stated]
    if strangers:
        return (), f"number {strangers[0]} of the earlier releases given is not one that the plan names"
    if given != stated:
        return (), "the earlier releases given are in another order than the plan names them"
    return tuple(earlier), None


def chain_problem(plan: Plan, earlier: tuple[Earlier, ...]) -> str | None:
    """What a plan states about its chain that does not follow from the earlier plans; None if all of it does.

    Guarantee: without a problem, and if every posterior is proven (``judge_chain``), each release stayed inside what
    the chain allowed it, and no secret has spent less than its examples in all releases.
    """
    chain = plan.chain
    if chain is None:
        return "the plan names no chain"
    try:
        history = History.of(earlier, plan.secret_ids, chain.ancestors, chain.uncovered)
        if dict(history.ancestors) != dict(chain.ancestors):
            return "ancestors of an earlier plan are left out"
        if history.uncovered != chain.uncovered:
            return "secrets that an earlier plan states as uncovered are left out"
        if history.raised(plan.prior, plan.ceiling) != chain.raised:
            return "the secrets whose ceiling was raised are not those stated"
    except HushError as error:
        return str(error)
    problem = _sampling_problem(chain, history)
    if problem is None and isinstance(chain.kind, Series):
        problem = _series_problem(plan, chain.kind, history)
    elif problem is None and isinstance(chain.kind, Filter):
        problem = _filter_problem(plan, chain, chain.kind, history)
    return problem


def _sampling_problem(chain: Chain, history: History) -> str | None:
    """What computed draws and noise of all releases may add was fixed at the first, and is not passed."""
    before = history.chain
    if before is None:
        used = room_of_release(history.earlier[0].plan) if history.earlier else 0.0
        return None if chain.sampling_before >= used else "leaves out what the first release may have added in sampling"
    if chain.sampling_total != before.sampling_total:
        return "leaves another total to the sampling error than the releases before"
    if chain.is_series and chain.sampling_limit != before.sampling_limit:
        return "leaves another part to the sampling error than the releases before"
    spent = before.sampling_before + before.sampling_limit
    if chain.sampling_before < spent * (1 - MAX_MACHINE_DIFFERENCE):
        return "leaves out what the releases before may have added in sampling"
    return None


def _series_problem(plan: Plan, kind: Series, history: History) -> str | None:
    carried_S = history.carried(Series)
    limit_SR = history.gather(carried_S, "limit_SR", kind.limit_SR.copy())
    changed = np.flatnonzero((limit_SR != kind.limit_SR).any(axis=1))
    if changed.size:
        return f"the limits of {history.named(changed)} are not those announced"
    before = history.chain
    if before is not None and isinstance(before.kind, Series):
        if kind.shapes != before.kind.shapes:
            return "the shapes of the releases are not those announced"
        if plan.bound != history.earlier[-1].plan.bound:
            return f"the series was proven by the bound {history.earlier[-1].plan.bound!r}"
    fresh = np.flatnonzero(~carried_S)
    past_SR = history.past_limits(fresh)
    stated_SR = kind.limit_SR[fresh, : len(history.earlier)]
    short = fresh[(stated_SR < past_SR * (1 - MAX_MACHINE_DIFFERENCE)).any(axis=1)]
    if short.size:
        return f"the limits under which {history.named(short)} were drawn before are left out"
    return None


def _filter_problem(plan: Plan, chain: Chain, kind: Filter, history: History) -> str | None:
    carried_S = history.carried(Filter)
    for name, what in (("order_SQ", "orders"), ("before_SQ", "log-moments spent before")):
        stated = getattr(kind, name)
        source = name if name == "order_SQ" else "after_SQ"
        kept = history.gather(carried_S, source, stated.copy())
        changed = np.flatnonzero((kept != stated).any(axis=1))
        if changed.size:
            return f"the {what} of {history.named(changed)} are not those of their last release"
    room = 1 + MAX_MACHINE_DIFFERENCE
    everyone = np.arange(len(plan.secret_ids))
    past_SQ = history.past_moments(everyone, kind.order_SQ, kind.conceded_SQ, below_SQ=kind.before_SQ * room)
    own_SQ = log_moments(
        plan.incidence,
        rates=plan.rates,
        noise_multiplier=plan.noise_multiplier,
        rounds=plan.rounds,
        order=kind.order_SQ,
        conceded=kind.conceded_SQ,
        below=(kind.after_SQ - kind.before_SQ) * room,
    )
    for moment_SQ, stated_SQ, which in (
        (past_SQ, kind.before_SQ, "the earlier releases"),
        (kind.before_SQ + own_SQ, kind.after_SQ, "the releases so far"),
    ):
        short = np.flatnonzero(~(moment_SQ <= stated_SQ * room).all(axis=1))
        if short.size:
            return f"{which} spent more on {history.named(short)} than is stated"
    return _allowance_problem(plan, chain, kind, history, carried_S)


def _allowance_problem(
    plan: Plan, chain: Chain, kind: Filter, history: History, carried_S: NDArray[np.bool_]
) -> str | None:
    """What may be spent was known beforehand: a share of the budget for each release, or all of it."""
    target_SQ = chain_ceiling(plan.prior, plan.ceiling, chain.sampling_total)
    budget_SQ, conceded_SQ = budgets(plan.prior, target_SQ, kind.order_SQ)
    room = 1 + MAX_MACHINE_DIFFERENCE
    less = np.flatnonzero((kind.conceded_SQ * room < conceded_SQ).any(axis=1))
    if less.size:
        return f"releases may concede more on {history.named(less)} than is stated"
    passed = np.flatnonzero((kind.granted_SQ > kind.share * budget_SQ * room).any(axis=1))
    if passed.size:
        return f"this release may spend more than its share of the budget on {history.named(passed)}"
    allowed_SQ = history.gather(carried_S, "allowed_SQ", np.zeros(plan.prior.shape))
    alone_S = ~carried_S & (history.last_S == 0) & ~history.joins_S
    allowed_SQ[alone_S] = kind.before_SQ[alone_S]
    whole_S = history.joins_S | history.has_other_share(kind.share)
    least_SQ = np.minimum(allowed_SQ + kind.share * budget_SQ, budget_SQ)
    least_SQ = np.where(whole_S[:, None], budget_SQ, least_SQ)
    short = np.flatnonzero((kind.allowed_SQ * room < least_SQ).any(axis=1))
    if short.size:
        return f"the releases so far may have spent more on {history.named(short)} than is stated"
    return None


def judge_chain(plan: Plan, chain: Chain) -> Judgement:
    """Prove every stated posterior by the chain, with room for the sampling error, and that the listed secrets bind.

    Guarantee: without a fault every stated posterior is an upper bound for all releases of the chain, up to
    MAX_MACHINE_DIFFERENCE, and at most its ceiling, also with what sampling in all releases may add.
    """
    everyone = np.arange(len(plan.secret_ids))
    bound_SQ = chain.posterior(everyone, plan.prior, bound=plan.bound)
    limit_SQ = plan.posterior * (1 + MAX_MACHINE_DIFFERENCE)
    over = np.flatnonzero(~(bound_SQ <= np.minimum(limit_SQ, plan.ceiling)).all(axis=1))
    if over.size and isinstance(chain.kind, Series):  # finer, and no limits sharing a bound
        again_SQ = limit_posteriors(
            chain.kind.limit_SR[over],
            chain.kind.shapes,
            prior_SQ=plan.prior[over],
            below_SQ=limit_SQ[over],
            bound=plan.bound,
            accuracy=FINE_ACCURACY,
        )
        bound_SQ[over] = np.minimum(bound_SQ[over], again_SQ)
    total_SQ = np.where(chain.kind.involved_S[:, None], plan.posterior + chain.sampling_total, plan.posterior)
    broken_S = ~((bound_SQ <= plan.ceiling) & (total_SQ <= plan.ceiling)).all(axis=1)
    larger_S = ~broken_S & ~(bound_SQ <= limit_SQ).all(axis=1)
    used_S = used_shares(chain, plan.incidence, plan.rates)
    listed_S = np.isin(everyone, plan.binding)
    wrong_S = np.where(listed_S, used_S < FULLY_USED - BINDING_MARGIN, used_S > FULLY_USED + BINDING_MARGIN)
    faults: dict[Fault, list[int]] = {
        "broken": np.flatnonzero(broken_S).tolist(),
        "larger than stated": np.flatnonzero(larger_S).tolist(),
        "binding": np.flatnonzero(wrong_S).tolist(),
    }
    return Judgement(secrets=faults, complete=True)

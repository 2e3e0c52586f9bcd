"""Batch size, rounds and share kept, where they are ``auto``: chosen from the signal budget of the graph.

The choice is a function of graph, promises and the numbers below, all of them public, and it is made before the plan:
what the plan promises is proven for the chosen numbers as for any others, so ``auto`` never weakens a promise.

Batch and rounds. At the elbow the signal is at 94 % of its limit, and a larger batch only costs time; the work at the
elbow is 2 S sqrt(T) examples, so fewer rounds are cheaper, as long as the optimizer has enough steps. So rounds are as
many as the work and batches of SMALL_BATCH allow, between MIN_ROUNDS and MAX_ROUNDS, and the batch is that of the
elbow, or what the work allows.

Share kept. Less weight on the examples of demanding secrets means less noise, and more signal. Of a few shares, each
with its own batch and rounds and each proven by the accountant, the largest share is taken that has nearly the largest
signal.

Legend: N examples, S secrets.
"""

import math
from dataclasses import dataclass
from typing import SupportsIndex, final

import numpy as np
from numpy.typing import ArrayLike

from hush.accounting.arguments import Bound, checked_rounds
from hush.accounting.signal import ELBOW_SHIFT, SignalBudget, batch_at_elbow, budget_of, gaussian_shift
from hush.arrays import Array, Progress
from hush.errors import InfeasiblePlan
from hush.incidence import Incidence
from hush.protection import promise_arrays
from hush.settings import AUTO, Auto
from hush.weights.accounts import Account
from hush.weights.choose import MAX_NOISE_TRIALS, Choice, Chooser, checked_batch_size, make_chooser
from hush.weights.shift_capacity import KeptWeights, swept_weights, weights_keeping

__all__ = ["Proposal", "best_proposal", "chosen", "propose"]


# The work that is worth it, in examples drawn over all rounds: ordinary fine-tuning reads its data 1 to 10 times, the
# secret-words study 7.4 times; a small data set may be read more often, since 10,000 examples take minutes anywhere.
MAX_PASSES, FREE_DRAWS = 8, 10_000
# Rounds beyond those that the optimizer needs only add work. Adam moves a weight by about its rate in a round: 100
# rounds at 5e-4 move it by the size of a weight; 300 rounds were enough for what docs/planning reports.
MIN_ROUNDS, MAX_ROUNDS = 100, 300
SMALL_BATCH = 16  # examples; rounds are not added at the price of a smaller batch, which would be mostly sampling noise
MAX_BATCH = 2**17  # sums of a round are proven for twice as many
# Shares of weight kept: the studies were best at 50 and 54 %, their smallest shares, so nothing is known below.
SHARES = (1.0, 0.9, 0.75, 0.5)
ENOUGH_SIGNAL = 0.9  # of the largest signal: a larger share that has it is preferred


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class Proposal:
    """Numbers for a plan, and the weights and the signal that they are forecast to have."""

    batch_size: float
    rounds: int
    keep: float | None
    kept: KeptWeights
    budget: SignalBudget


def propose(
    incidence: Incidence,
    shift_S: Array,
    *,
    batch_size: float | Auto,
    rounds: int | Auto,
    keep: float | Auto | None,
) -> tuple[Proposal, ...]:
    """Numbers for each share that is worth a look, largest share first, by the closed form alone.

    incidence: of the examples that can be drawn. keep: None where all examples count alike, or where the share is not
    what is asked for.

    >>> graph = Incidence.from_pairs(range(100), [0] * 100, num_examples=1000, num_secrets=1)
    >>> (proposal,) = propose(graph, np.array([3.27]), batch_size="auto", rounds="auto", keep=None)
    >>> proposal.rounds, proposal.batch_size
    (100, 7.0)
    """
    shares = [keep] if keep is None or keep != AUTO else list(SHARES)
    least = min((share for share in shares if share is not None), default=1.0)
    swept = [KeptWeights(share=1.0, weight_N=np.ones(incidence.num_examples))]
    if least < 1:
        swept = swept_weights(incidence, shift_S, least_share=least)
    proposals: list[Proposal] = []
    for share in shares:
        kept = swept[0] if share is None else weights_keeping(swept, share)
        size, count = _sizes(kept, incidence, shift_S, batch_size, rounds)
        budget = kept.budget(incidence, shift_S=shift_S, batch_size=size, rounds=count)
        proposals.append(Proposal(batch_size=size, rounds=count, keep=share, kept=kept, budget=budget))
    return tuple(proposals)


def best_proposal(proposals: tuple[Proposal, ...]) -> Proposal:
    """The one with the largest share among those with nearly the largest forecast signal."""
    most = max(proposal.budget.signal for proposal in proposals)
    return next(proposal for proposal in proposals if proposal.budget.signal >= ENOUGH_SIGNAL * most)


def chosen(
    incidence: Incidence,
    *,
    prior: ArrayLike,
    ceiling: ArrayLike,
    batch_size: float | Auto,
    rounds: SupportsIndex | Auto,
    keep: float | Auto,
    bound: Bound,
    asks_share: bool,
    tolerance: float,
    account: Account | None = None,
    target: Array | None = None,
    progress: Progress | None = None,
) -> tuple[Chooser, Choice | None, float]:
    """A chooser with numbers in place of every ``auto``, the share to keep, and the choice where that was ``auto``.

    incidence: of the examples that can be drawn. asks_share: whether the noise follows from the share kept. account
    and target: those of a release of a chain (``hush.plan.after``).

    Guarantee: what is chosen is only where a plan begins. Every choice is proven by the accountant like any other.
    """
    if batch_size != AUTO and rounds != AUTO and keep != AUTO:
        chooser = make_chooser(
            incidence, prior, ceiling, batch_size, rounds, bound, tolerance, account=account, target=target
        )
        return chooser, None, float(keep)
    prior_SQ, ceiling_SQ = promise_arrays(prior, ceiling, incidence.num_secrets)
    shift_S = gaussian_shift(prior_SQ, ceiling_SQ)

    def chooser_for(proposal: Proposal) -> Chooser:
        sizes = (proposal.batch_size, proposal.rounds)
        return make_chooser(incidence, prior_SQ, ceiling_SQ, *sizes, bound, tolerance, account=account, target=target)

    proposals = propose(
        incidence,
        shift_S,
        batch_size=batch_size if batch_size == AUTO else checked_batch_size(batch_size, incidence.num_examples),
        rounds=AUTO if rounds == AUTO else checked_rounds(rounds),
        keep=keep if asks_share else None,
    )
    if keep != AUTO or not asks_share:
        return chooser_for(proposals[0]), None, 1.0 if keep == AUTO else keep
    tried: list[tuple[float, float, Chooser, Choice]] = []
    for number, proposal in enumerate(proposals):

        def report(done: int, _: int, number: int = number) -> None:
            if progress is not None:
                progress(number * MAX_NOISE_TRIALS + done, len(proposals) * MAX_NOISE_TRIALS)

        share = 1.0 if proposal.keep is None else proposal.keep
        chooser = chooser_for(proposal)
        try:
            choice = chooser.all_examples if share == 1 else chooser.least_noise_keeping(share, progress=report)
        except InfeasiblePlan:
            if number + 1 == len(proposals) and not tried:
                raise
            continue  # a smaller share may be feasible
        budget = budget_of(
            incidence,
            choice.weight_N,
            shift_S=shift_S,
            batch_size=chooser.batch_size,
            rounds=chooser.rounds,
            noise_multiplier=choice.noise_multiplier,
        )
        tried.append((budget.signal, share, chooser, choice))
    most = max(signal for signal, *_ in tried)
    _, share, chooser, choice = next(row for row in tried if row[0] >= ENOUGH_SIGNAL * most)
    return chooser, choice, share


def _sizes(
    kept: KeptWeights,
    incidence: Incidence,
    shift_S: Array,
    batch_size: float | Auto,
    rounds: int | Auto,
) -> tuple[float, int]:
    """Batch size and rounds for these weights, where they are not stated."""
    total = float(kept.weight_N.sum())
    work = max(MAX_PASSES * incidence.num_examples, FREE_DRAWS)
    one_round = budget_of(incidence, kept.weight_N, shift_S=shift_S, batch_size=1.0, rounds=1, noise_multiplier=1.0)
    limit = one_round.elbow * ELBOW_SHIFT  # of the whole batch: that of the examples without a secret as well
    if rounds == AUTO:
        if batch_size != AUTO:
            fitting = work / batch_size
        elif 0 < limit < math.inf:  # the batch of the elbow: its work at most ``work``, its size at least SMALL_BATCH
            fitting = min(work * ELBOW_SHIFT / limit, limit / (ELBOW_SHIFT * SMALL_BATCH)) ** 2
        else:
            fitting = 0.0
        rounds = _two_digits(min(max(fitting, MIN_ROUNDS), MAX_ROUNDS))
    if batch_size == AUTO:
        largest = min(batch_at_elbow(limit, rounds=rounds), work / rounds, total, MAX_BATCH)
        batch_size = float(min(-_two_digits(-max(largest, 1.0)), incidence.num_examples))
    return float(batch_size), int(rounds)


def _two_digits(value: float) -> int:
    """A whole number of at most two significant digits, not above the value.

    >>> _two_digits(2519.3), _two_digits(7.9), _two_digits(-7.9)
    (2500, 7, -8)
    """
    step = 10 ** max(math.floor(math.log10(abs(value))) - 1, 0)
    return int(value // step * step)

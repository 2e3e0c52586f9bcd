"""What an owner must not overlook though nothing failed: said loudly by `hush scan`, `hush plan` and `hush run`.

A promise about a secret that is in no example is kept without any noise, so a wrong list, case or column makes a sound
plan for a model that is not protected. And a promise that is very hard is kept by a model that learns nothing.
"""

from collections.abc import Sequence

import numpy as np
from rich.console import Console
from scipy.special import ndtri

from hush.console import counted, plain, rounded_up
from hush.incidence import Incidence
from hush.plan import Plan
from hush.plan.plan import are_canaries, unlisted_secrets

__all__ = ["graph_cautions", "plan_cautions", "show_cautions"]


WIDE = 0.5  # a secret in this share of the examples is rarely one
BARE = 0.99  # a chance from which on a secret is as good as known


def graph_cautions(incidence: Incidence, *, canaries: int = 0) -> list[str]:
    """What is odd about who contains what; canaries are secrets of the graph that do not count."""
    secrets, unlisted = incidence.num_secrets - canaries, unlisted_secrets(incidence)
    if not secrets:
        return [
            "There are no secrets, so nothing is hidden. Check the rules against an example that you know to hold one."
        ]
    if unlisted == secrets:
        none = (
            "The one secret is in no example" if secrets == 1 else f"None of the {secrets:,} secrets is in any example"
        )
        return [f"{none}, so nothing is hidden. Check spelling, case and column against one that you know to hold it."]
    wide = int(np.count_nonzero(incidence.examples_per_secret >= WIDE * incidence.num_examples))
    if not wide:
        return []
    return [
        f"In half of the examples or more: {counted(wide, 'secret')}. To hide what is everywhere takes much noise; see "
        "whether a rule finds too much."
    ]


def plan_cautions(plan: Plan) -> list[str]:
    """The same of a plan, and what its noise means.

    Too large is noise from the batch size on: a gradient is clipped to norm 1 (in units of the clip norm), so a batch
    of B sums to B at most, in any one direction and even if all agree; the noise there has the deviation sigma.
    """
    said = graph_cautions(plan.incidence, canaries=int(are_canaries(plan).sum()))
    noise, batch, bare = plan.training_noise_multiplier, plan.batch_size, _bare_secrets(plan)
    if bare:
        said.append(
            f"The noise is {rounded_up(plan.noise_multiplier)}, too little by itself for {counted(bare, 'secret')}: "
            "promises hold only because examples with secrets are hardly ever drawn. One that is drawn is not hidden."
        )
    if noise >= batch:
        said.append(
            f"The noise multiplier, {rounded_up(noise)}, is not below the batch size, {batch:g}: in every round and in "
            "every direction noise is as large as all gradients together can be, even if they agree. Expect the model "
            "to learn next to nothing. Promise less, keep less of the examples with secrets, or take fewer rounds."
        )
    return said


def _bare_secrets(plan: Plan) -> int:
    """How many secrets are given away if one of their examples is drawn, once.

    A gradient at the clip norm shifts the noise by 1 / sigma deviations, which takes a prior p to Phi(Phi^-1(p) + 1 /
    sigma) for whoever knows that it was drawn.
    """
    noise, listed_S = plan.noise_multiplier, plan.incidence.examples_per_secret > 0
    if noise == 0:
        return int(listed_S.sum())
    prior_S = plan.prior.reshape(listed_S.size, -1).min(axis=1)  # of several points, the one that has furthest to go
    return int(np.count_nonzero(listed_S & (ndtri(prior_S) + 1 / noise >= ndtri(BARE))))


def show_cautions(cautions: Sequence[str], console: Console) -> None:
    """A loud line for each."""
    for said in cautions:
        console.print(plain(f"WARNING: {said}"), style="bold red", soft_wrap=True)

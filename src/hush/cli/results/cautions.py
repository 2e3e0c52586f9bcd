"""Warnings about results that are valid but probably not intended, printed by `hush scan`, `hush plan` and `hush run`.

A promise about a secret that is in no example holds without any noise, so a wrong list, case or column gives a sound
plan for a model that is not protected. A promise that is too strict gives a model that learns nothing.
"""

from collections.abc import Sequence

import numpy as np
from rich.console import Console
from scipy.special import ndtri

from hush.console import counted, plain, rounded_up
from hush.incidence import Incidence
from hush.plan import Plan
from hush.plan.plan import are_canaries, unlisted_secrets
from hush.slots import Slots

__all__ = ["graph_cautions", "plan_cautions", "show_cautions"]


MIN_EXAMPLES = 20  # below which a share of the examples says little
WIDESPREAD_SHARE = 0.5  # of the examples; what is in more of them is rarely a secret
MARKED_SHARE = 0.9  # of the examples: where more of them hold some secret, hardly anything is learnt without noise
REVEALED_PROBABILITY = 0.99  # from which on a secret counts as known


def graph_cautions(incidence: Incidence, *, canaries: int = 0, slots: Slots | None = None) -> list[str]:
    """Warnings about a graph. canaries: how many of its secrets are canaries, which do not count.

    slots: if there are any, examples with slots leave their skeletons to learn from.
    """
    secrets, unlisted = incidence.num_secrets - canaries, unlisted_secrets(incidence)
    if not secrets:
        return ["There are no secrets, so nothing is protected. Check the rules against an example that has a secret."]
    if unlisted == secrets:
        none = (
            "The only secret is in no example" if secrets == 1 else f"None of the {secrets:,} secrets is in any example"
        )
        return [
            f"{none}, so nothing is protected. Check spelling, case and column against an example that has a secret."
        ]
    cautions: list[str] = []
    widespread = int(np.count_nonzero(incidence.examples_per_secret >= WIDESPREAD_SHARE * incidence.num_examples))
    if widespread:
        cautions.append(
            f"In at least half of the examples: {counted(widespread, 'secret')}. Protecting what is everywhere takes "
            "much noise; check whether a rule matches too much."
        )
    marked_N = incidence.secrets_per_example > 0 if slots is None else slots.whole_examples(incidence)
    marked, examples = int(np.count_nonzero(marked_N)), incidence.num_examples
    if marked >= MARKED_SHARE * examples and examples >= MIN_EXAMPLES:
        cautions.append(
            f"Of {examples:,} examples {marked:,} hold some secret, so next to nothing can be learnt without noise, or "
            "held out to evaluate on. Check whether a rule matches too much; if none does, plan large batches."
        )
    return cautions


def plan_cautions(plan: Plan) -> list[str]:
    """Warnings about the graph of a plan, and about its noise.

    Noise is too large from the batch size on: each gradient is clipped to norm 1 (in units of the clip norm), so the
    sum of a batch of B has norm B at most, in any one direction and even if all gradients agree; the noise in that
    direction has standard deviation sigma.
    """
    cautions = graph_cautions(plan.incidence, canaries=int(are_canaries(plan).sum()), slots=plan.slots)
    noise, batch, revealed = plan.training_noise_multiplier, plan.batch_size, _revealed_if_drawn(plan)
    if revealed:
        cautions.append(
            f"The noise multiplier, {rounded_up(plan.noise_multiplier)}, is too small by itself for "
            f"{counted(revealed, 'secret')}: the promises hold only because examples with secrets are hardly ever "
            "drawn. Once an example is drawn, its secret is not protected."
        )
    if noise >= batch:
        cautions.append(
            f"The noise multiplier, {rounded_up(noise)}, is not below the batch size, {batch:g}: in every round and "
            "direction the noise is as large as the sum of all gradients can be, even if they agree. Expect the model "
            "to learn next to nothing. Promise less, keep less of the examples with secrets, or use fewer rounds."
        )
    return cautions


def _revealed_if_drawn(plan: Plan) -> int:
    """How many secrets are revealed if one of their examples is drawn once.

    A gradient at the clip norm shifts the noise by 1 / sigma standard deviations. For an adversary who knows that it
    was drawn, this raises a prior p to Phi(Phi^-1(p) + 1 / sigma).
    """
    noise, listed_S = plan.noise_multiplier, plan.incidence.examples_per_secret > 0
    if noise == 0:
        return int(listed_S.sum())
    prior_S = plan.prior.reshape(listed_S.size, -1).min(axis=1)  # of several promises, the one with the smallest prior
    return int(np.count_nonzero(listed_S & (ndtri(prior_S) + 1 / noise >= ndtri(REVEALED_PROBABILITY))))


def show_cautions(cautions: Sequence[str], console: Console) -> None:
    """Print each warning in red."""
    for caution in cautions:
        console.print(plain(f"WARNING: {caution}"), style="bold red", soft_wrap=True)

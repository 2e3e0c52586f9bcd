"""Which public examples are learnt first, which decide when to stop, and which are only reported on."""

from dataclasses import dataclass
from typing import final

import numpy as np
from numpy.typing import ArrayLike, NDArray

from hush.errors import InvalidInput
from hush.plan import Plan
from hush.plan.make import held_out_examples
from hush.train.public.stream import Collate, check_public

__all__ = ["PublicSplit", "split_of_plan", "split_public"]


VALIDATION_SHARE, MIN_VALIDATION, MAX_VALIDATION = 0.05, 20, 500  # of the public examples; examples


@final
@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class PublicSplit:
    """Numbers of public examples: to learn, to decide when to stop, and to report on. No two parts share one.

    skeletons is how many of the first two kinds are skeletons, of examples with a secret.
    """

    train: NDArray[np.int64]
    validation: NDArray[np.int64]
    held_out: NDArray[np.int64]
    skeletons: int = 0

    def __post_init__(self) -> None:
        if not (self.train.size and self.validation.size):
            raise InvalidInput(
                f"{self.train.size + self.validation.size} public examples cannot be split into some to learn and some "
                "to decide when to stop; leave the public part out"
            )
        together = np.concatenate([self.train, self.validation, self.held_out])
        if np.unique(together).size != together.size:
            raise InvalidInput("an example is in two parts of the split; give each to one of them")


def split_public(
    examples: NDArray[np.int64], held_out: NDArray[np.int64] | None = None, *, seed: int = 0, skeletons: int = 0
) -> PublicSplit:
    """A random validation part of a twentieth of the examples, from 20 to 500 where there are enough.

    >>> split_public(np.arange(1000)).validation.size
    50
    """
    count = min(max(MIN_VALIDATION, min(MAX_VALIDATION, round(VALIDATION_SHARE * examples.size))), examples.size // 2)
    chosen_N = np.zeros(examples.size, dtype=bool)
    chosen_N[np.random.default_rng([seed, examples.size]).choice(examples.size, count, replace=False)] = True
    return PublicSplit(
        train=examples[~chosen_N],
        validation=examples[chosen_N],
        held_out=np.zeros(0, dtype=np.int64) if held_out is None else held_out,
        skeletons=skeletons,
    )


def split_of_plan(plan: Plan, collate: Collate, examples: ArrayLike | None = None, *, seed: int = 0) -> PublicSplit:
    """The split of what may be learnt first under a plan with this collate; see ``learn_public``."""
    held_out = held_out_examples(plan)
    ids = np.setdiff1d(check_public(plan, collate, examples), held_out)
    skeletons = int((plan.incidence.secrets_per_example[ids] > 0).sum())
    return split_public(ids, held_out, seed=seed, skeletons=skeletons)

"""Copies inherit each other's secrets: the pairs that equal texts add to those that the finders saw.

Finders of text see a secret in every copy by themselves. What a column or a path names is in the text all the same, so
an equal text somewhere else contains it too. Shapes: N examples, P pairs, H inherited pairs.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import final

import numpy as np
from numpy.typing import NDArray

__all__ = ["Inheritance", "first_equal", "inherited"]


@final
@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Inheritance:
    """example_H contains secret_H because origin_H, of the same group, does; sorted by example, then secret."""

    example_H: NDArray[np.int64]
    secret_H: NDArray[np.int64]
    origin_H: NDArray[np.int64]

    def parts(self, size: int) -> Iterator["Inheritance"]:
        """The same in stretches."""
        for begin in range(0, len(self), size):
            part = slice(begin, begin + size)
            yield Inheritance(
                example_H=self.example_H[part], secret_H=self.secret_H[part], origin_H=self.origin_H[part]
            )

    def __len__(self) -> int:
        return len(self.example_H)


def first_equal(value_N: NDArray[np.uint64]) -> NDArray[np.int64]:
    """For each entry, the place of the first entry that is equal to it.

    >>> first_equal(np.array([7, 3, 7, 3, 1], dtype=np.uint64)).tolist()
    [0, 1, 0, 1, 4]
    """
    order_N = np.argsort(value_N, kind="stable")
    sorted_N = value_N[order_N]
    begins_N = np.ones(len(value_N), dtype=bool)
    begins_N[1:] = sorted_N[1:] != sorted_N[:-1]
    first_N = np.empty(len(value_N), dtype=np.int64)
    first_N[order_N] = order_N[begins_N][np.cumsum(begins_N) - 1]
    return first_N


def inherited(
    first_N: NDArray[np.int64], example_P: NDArray[np.int64], secret_P: NDArray[np.int64], *, num_secrets: int
) -> Inheritance:
    """The pairs that are not there yet, if every member of a group has what any member has.

    first_N names each example's group by its first member. The pairs are distinct. The origin is the first member that
    has the secret.
    """
    size_N = np.bincount(first_N, minlength=len(first_N))
    shared_P = size_N[first_N[example_P]] > 1
    example_P, secret_P = example_P[shared_P], secret_P[shared_P]
    # A group and a secret make one number. Most often all members have the secret already, and nothing is to be done.
    held_P = first_N[example_P] * num_secrets + secret_P
    held_R, holders_R = np.unique(held_P, return_counts=True)
    held_R = held_R[holders_R < size_N[held_R // max(num_secrets, 1)]]
    lacking_P = np.isin(held_P, held_R)
    example_P, secret_P, held_P = example_P[lacking_P], secret_P[lacking_P], held_P[lacking_P]
    order_P = np.lexsort((example_P, held_P))
    origin_R = example_P[order_P][np.searchsorted(held_P[order_P], held_R)]
    group_R, secret_R = np.divmod(held_R, max(num_secrets, 1))
    # All members of each group, side by side, once for every secret that the group has.
    member_N = np.argsort(first_N, kind="stable")
    start_N = np.cumsum(size_N) - size_N
    run_H = np.repeat(np.arange(len(group_R)), size_N[group_R])
    within_H = np.arange(len(run_H)) - np.repeat(np.cumsum(size_N[group_R]) - size_N[group_R], size_N[group_R])
    pair_H = member_N[start_N[group_R[run_H]] + within_H] * num_secrets + secret_R[run_H]
    new_H = ~np.isin(pair_H, example_P * num_secrets + secret_P)
    pair_H, origin_H = pair_H[new_H], origin_R[run_H[new_H]]
    order_H = np.argsort(pair_H)
    example_H, secret_H = np.divmod(pair_H[order_H], max(num_secrets, 1))
    return Inheritance(example_H=example_H, secret_H=secret_H, origin_H=origin_H[order_H])

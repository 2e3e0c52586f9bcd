"""Copies inherit secrets: of examples with equal or similar texts, every one contains the secrets of all.

Finders of text see a secret in every copy by themselves, but a secret that a column or a path names is in the text too,
so every example with the same text contains it.
Shapes: N examples, P pairs, R pairs of a group and a secret, H inherited pairs.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import final

import numpy as np
from numpy.typing import NDArray

from hush.scan.collect import Collector
from hush.scan.near_copies import Copies

__all__ = [
    "NO_PLACE",
    "CopyReasons",
    "InheritedPairs",
    "copy_groups",
    "first_equal",
    "inherited_by_copies",
    "inherited_pairs",
]


NO_PLACE = "; no place in this text is known, so the whole example is secret"  # after the reason for inheriting
CopyReasons = Callable[[NDArray[np.int64], NDArray[np.int64]], Sequence[str]]  # of examples and of their origins


def inherited_by_copies(
    collector: Collector, example_P: NDArray[np.int64], secret_P: NDArray[np.int64], copies: Copies | None
) -> list[tuple["InheritedPairs", CopyReasons]]:
    """The pairs that copies add to these: first those of equal texts, then those of near copies; with the reasons."""
    inherited: list[tuple[InheritedPairs, CopyReasons]] = []
    for first_N, reasons in copy_groups(collector, copies) if len(example_P) else ():
        added = inherited_pairs(first_N, example_P, secret_P, num_secrets=int(collector.offsets()[-1]))
        inherited.append((added, reasons))
        example_P = np.concatenate([example_P, added.example_H])
        secret_P = np.concatenate([secret_P, added.secret_H])
    return inherited


def copy_groups(collector: Collector, copies: Copies | None) -> Iterator[tuple[NDArray[np.int64], CopyReasons]]:
    """The first member of each example's group, and the reasons for inheriting: equal texts, then near copies."""
    yield first_equal(collector.column("text_hash")), _exact_copy_reasons
    if copies is not None:
        groups = copies.groups(collector.column("signatures"))
        yield groups.first_N, groups.reasons


def _exact_copy_reasons(example_H: NDArray[np.int64], origin_H: NDArray[np.int64]) -> list[str]:
    return [f"exact copy of example {origin}" for origin in origin_H.tolist()]


@final
@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class InheritedPairs:
    """example_H contains secret_H because origin_H, of the same group of copies, does; sorted by example and secret."""

    example_H: NDArray[np.int64]
    secret_H: NDArray[np.int64]
    origin_H: NDArray[np.int64]

    def parts(self, size: int) -> Iterator["InheritedPairs"]:
        """The same pairs in parts of at most this size."""
        for begin in range(0, len(self), size):
            part = slice(begin, begin + size)
            yield InheritedPairs(
                example_H=self.example_H[part], secret_H=self.secret_H[part], origin_H=self.origin_H[part]
            )

    def __len__(self) -> int:
        return len(self.example_H)


def first_equal(value_N: NDArray[np.uint64]) -> NDArray[np.int64]:
    """For each entry, the index of the first entry equal to it.

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


def inherited_pairs(
    first_N: NDArray[np.int64], example_P: NDArray[np.int64], secret_P: NDArray[np.int64], *, num_secrets: int
) -> InheritedPairs:
    """The pairs to add so that every member of a group contains the secrets of all members.

    first_N: the first member of each example's group. The given pairs are distinct. The origin of an added pair is the
    first member that contains the secret.
    """
    size_N = np.bincount(first_N, minlength=len(first_N))
    shared_P = size_N[first_N[example_P]] > 1
    example_P, secret_P = example_P[shared_P], secret_P[shared_P]
    # One number for each (group, secret). Usually all members contain the secret already, so nothing is added.
    group_secret_P = first_N[example_P] * num_secrets + secret_P
    group_secret_R, num_members_R = np.unique(group_secret_P, return_counts=True)
    group_secret_R = group_secret_R[num_members_R < size_N[group_secret_R // max(num_secrets, 1)]]
    incomplete_P = np.isin(group_secret_P, group_secret_R)
    example_P, secret_P, group_secret_P = example_P[incomplete_P], secret_P[incomplete_P], group_secret_P[incomplete_P]
    order_P = np.lexsort((example_P, group_secret_P))
    origin_R = example_P[order_P][np.searchsorted(group_secret_P[order_P], group_secret_R)]
    group_R, secret_R = np.divmod(group_secret_R, max(num_secrets, 1))
    # The members of each group, one after another, repeated for every secret of the group.
    member_N = np.argsort(first_N, kind="stable")
    start_N = np.cumsum(size_N) - size_N
    index_H = np.repeat(np.arange(len(group_R)), size_N[group_R])
    within_H = np.arange(len(index_H)) - np.repeat(np.cumsum(size_N[group_R]) - size_N[group_R], size_N[group_R])
    pair_H = member_N[start_N[group_R[index_H]] + within_H] * num_secrets + secret_R[index_H]
    new_H = ~np.isin(pair_H, example_P * num_secrets + secret_P)
    pair_H, origin_H = pair_H[new_H], origin_R[index_H[new_H]]
    order_H = np.argsort(pair_H)
    example_H, secret_H = np.divmod(pair_H[order_H], max(num_secrets, 1))
    return InheritedPairs(example_H=example_H, secret_H=secret_H, origin_H=origin_H[order_H])

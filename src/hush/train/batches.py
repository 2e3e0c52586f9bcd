"""A draw as micro-batches of fixed shape: what the model sees, one after the other, to compute one sum.

Fixed shapes mean that nothing recompiles; a mask tells the real examples from the padding.
"""

import operator
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import SupportsIndex, final

import numpy as np
from numpy.typing import ArrayLike, NDArray

from hush.errors import InvalidInput

__all__ = ["MicroBatch", "check_lengths", "micro_batches"]

Ids = NDArray[np.int64]


@final
@dataclass(frozen=True, slots=True, eq=False, kw_only=True, repr=False)
class MicroBatch:
    """``examples[i]`` is drawn where ``real[i]``; the other slots repeat a drawn example and must count for nothing.

    ``length`` is the length to pad to, None without length buckets. Which examples are drawn is secret, so the repr
    shows neither them nor their number.
    """

    examples: Ids
    real: NDArray[np.bool_]
    length: int | None

    def __repr__(self) -> str:
        return f"MicroBatch({self.examples.size} slots, length {self.length})"


def micro_batches(
    examples: ArrayLike,
    *,
    size: SupportsIndex,
    lengths: ArrayLike | None = None,
    buckets: Sequence[int] = (),
) -> Iterator[MicroBatch]:
    """Cut a draw into micro-batches of ``size`` slots, the longest first; an empty draw gives none.

    With ``lengths`` (of every example of the data, by its number) and ``buckets``, each micro-batch has one of these
    lengths, and no example goes into one shorter than itself. What is left over in a bucket shares the last micro-batch
    of a longer one where it fits, so that fewer slots are empty.

    Guarantee: every example of the draw is in exactly one micro-batch, once; none is cut off, neither it nor its text.

    >>> for batch in micro_batches([3, 5, 9], size=2):
    ...     print(batch.examples, batch.real)
    [3 5] [ True  True]
    [9 9] [ True False]
    """
    ids, size = _checked_draw(examples), _checked_size(size)
    if (lengths is None) != (len(buckets) == 0):
        raise InvalidInput("lengths and buckets go together; pass both or neither")
    if lengths is None:
        return _cut([(None, ids)], size)
    edges = _checked_buckets(buckets)
    length_of = np.asarray(lengths)
    if length_of.ndim != 1 or ids.max(initial=-1) >= length_of.size:
        raise InvalidInput(f"lengths has shape {length_of.shape}; pass one length for each example of the data")
    bucket_of = _bucket_of(length_of[ids], edges)
    return _cut([(edge, ids[bucket_of == index]) for index, edge in reversed(list(enumerate(edges)))], size)


def check_lengths(lengths: ArrayLike, buckets: Sequence[int]) -> None:
    """Refuse data with an example that no bucket holds: once before training, not in the round that draws it."""
    _bucket_of(np.asarray(lengths), _checked_buckets(buckets))


def _cut(groups: list[tuple[int | None, Ids]], size: int) -> Iterator[MicroBatch]:
    """Groups from the longest to the shortest; a part-filled micro-batch takes a whole rest that fits, or none."""
    shared: list[tuple[int | None, Ids]] = []
    for length, ids in groups:
        whole = ids.size - ids.size % size
        for begin in range(0, whole, size):
            yield _padded(ids[begin : begin + size], size, length)
        rest = ids[whole:]
        if rest.size == 0:
            continue
        for index, (host_length, host) in enumerate(shared):
            if host.size + rest.size <= size:
                shared[index] = host_length, np.concatenate([host, rest])
                break
        else:
            shared.append((length, rest))
    for length, ids in shared:
        yield _padded(ids, size, length)


def _padded(ids: Ids, size: int, length: int | None) -> MicroBatch:
    examples = np.full(size, ids[0], dtype=np.int64)  # padding repeats an example, so that it can be collated too
    examples[: ids.size] = ids
    return MicroBatch(examples=examples, real=np.arange(size) < ids.size, length=length)


def _bucket_of(lengths: NDArray[np.generic], buckets: list[int]) -> NDArray[np.int64]:
    """The index of the smallest bucket that holds each length."""
    if lengths.size == 0:
        return np.zeros(0, dtype=np.int64)
    if not np.issubdtype(lengths.dtype, np.integer):
        raise InvalidInput(f"lengths is an array of {lengths.dtype}; pass whole numbers")
    shortest, longest = int(lengths.min()), int(lengths.max())
    if shortest < 0:
        raise InvalidInput(f"lengths holds {shortest}; a length is at least 0")
    if longest > buckets[-1]:
        raise InvalidInput(
            f"an example of length {longest} is longer than the largest bucket, {buckets[-1]}, and nothing is ever cut "
            f"off; add a bucket of {longest} or more, or shorten the data before the plan is made"
        )
    return np.searchsorted(np.asarray(buckets), lengths, side="left")


def _checked_draw(examples: ArrayLike) -> Ids:
    ids = np.asarray(examples)
    if ids.size == 0:
        return np.zeros(0, dtype=np.int64)
    if ids.ndim != 1 or not np.issubdtype(ids.dtype, np.integer) or ids.min() < 0:
        raise InvalidInput("examples must be a flat sequence of example numbers, each at least 0")
    if np.unique(ids).size != ids.size:
        raise InvalidInput("examples holds some example twice, and it would count twice; pass a draw as it was drawn")
    return ids.astype(np.int64)


def _checked_size(size: SupportsIndex) -> int:
    try:
        slots = operator.index(size)
    except TypeError as error:
        raise InvalidInput(f"size={size!r} is not a whole number") from error
    if slots < 1:
        raise InvalidInput(f"size={slots}; a micro-batch has at least 1 slot")
    return slots


def _checked_buckets(buckets: Sequence[int]) -> list[int]:
    try:
        edges = [operator.index(edge) for edge in buckets]
    except TypeError as error:
        raise InvalidInput(f"buckets={list(buckets)!r}; pass whole numbers") from error
    if not edges or edges[0] < 1 or any(low >= high for low, high in pairwise(edges)):
        raise InvalidInput(f"buckets={edges}; pass lengths of at least 1 that rise strictly")
    return edges

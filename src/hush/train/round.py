"""One round of training as the loop sees it: its draw in micro-batches, and the numbers that it shows to the owner.

Micro-batches have a fixed number of slots and one of a few lengths, so that nothing is compiled again; a mask tells the
real examples from the padding. :class:`TrainingRound` checks that every drawn example was accumulated exactly once,
since a truncated draw breaks the plan's accounting. Which examples are drawn is secret, and so are all numbers that
depend on the draw, times included: no repr shows them, and they stay with the owner.
"""

import operator
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from time import perf_counter
from typing import SupportsIndex, final

import numpy as np
import torch
from numpy.typing import ArrayLike, NDArray
from torch import Tensor

from hush.errors import InvalidInput
from hush.plan import Plan
from hush.train.clipping import Clipped
from hush.train.distributed import Ranks
from hush.train.run_folder import RoundRecord

__all__ = ["LiveNumbers", "MicroBatch", "RoundMonitor", "TrainingRound", "check_lengths", "micro_batches"]


PACE_WINDOW = 100  # last rounds whose mean duration predicts the time that is left

Ids = NDArray[np.int64]

PadBatches = Callable[[Sequence["MicroBatch"], "MicroBatch"], list["MicroBatch"]]
"""Appends micro-batches of padding alone, so that all ranks have the same number of micro-batches."""


@final
@dataclass(frozen=True, slots=True, eq=False, kw_only=True, repr=False)
class MicroBatch:
    """``examples[i]`` is drawn where ``real[i]``; the other slots repeat a drawn example and must add nothing.

    ``length`` is the length to pad to, None without length buckets. Which examples are drawn is secret, so the repr
    shows neither them nor their number.
    """

    examples: Ids
    real: NDArray[np.bool_]
    length: int | None

    def __repr__(self) -> str:
        return f"MicroBatch({self.examples.size} slots, length {self.length})"


@final
class TrainingRound:
    """The draw of one round. Which examples it holds, and how many, is secret; the repr shows neither.

    Guarantee: ``check_complete`` passes only if every example of the draw was counted, exactly once.
    """

    def __init__(self, index: int, drawn: Ids, *, size: int, pad: PadBatches | None = None) -> None:
        self.index = index
        self._drawn, self._size, self._pad = drawn, size, pad
        self._handed_out: deque[NDArray[np.bool_]] = deque()  # masks of micro-batches still to be accumulated
        self._begun = False
        self._counted = 0

    def micro_batches(self, lengths: ArrayLike | None = None, buckets: Sequence[int] = ()) -> Iterator[MicroBatch]:
        """The draw in micro-batches of a fixed number of slots, to accumulate in this order; none for an empty draw.

        lengths and buckets: see :func:`hush.train.round.micro_batches`.
        """
        if self._begun:
            raise InvalidInput(
                f"the micro-batches of round {self.index} were handed out before; iterate over them once"
            )
        batches = micro_batches(self._drawn, size=self._size, lengths=lengths, buckets=buckets)
        if self._pad is not None:
            no_examples = np.zeros(self._size, dtype=np.int64)
            length = min(buckets) if buckets else None  # the cheapest: nothing of it is used
            batches = self._pad(list(batches), MicroBatch(examples=no_examples, real=no_examples > 0, length=length))
        self._begun = True
        return self._hand_out(batches)

    def count(self, real: NDArray[np.bool_]) -> None:
        """Count the next micro-batch as accumulated; one of padding alone adds nothing and may come at any time."""
        if not self._handed_out:
            if not real.any():
                return
            raise InvalidInput(
                f"round {self.index} has no micro-batch left to accumulate; accumulate each one that micro_batches() "
                "gives exactly once"
            )
        if not np.array_equal(real, self._handed_out[0]):
            raise InvalidInput(
                "real is not the mask of the next micro-batch; pass the `real` of each micro-batch, in the order in "
                "which micro_batches() gives them"
            )
        self._counted += int(self._handed_out.popleft().sum())

    def check_complete(self) -> None:
        """Refuse to end a round before every drawn example was accumulated."""
        if self._counted != self._drawn.size:
            raise InvalidInput(
                f"round {self.index} is not complete: some examples of its draw were not accumulated, and a truncated "
                "draw breaks the plan's accounting; accumulate every micro-batch of micro_batches(), then step()"
            )

    def _hand_out(self, batches: Iterable[MicroBatch]) -> Iterator[MicroBatch]:
        for batch in batches:
            self._handed_out.append(batch.real)
            yield batch

    def __repr__(self) -> str:
        return f"TrainingRound(index={self.index})"


def micro_batches(
    examples: ArrayLike,
    *,
    size: SupportsIndex,
    lengths: ArrayLike | None = None,
    buckets: Sequence[int] = (),
) -> Iterator[MicroBatch]:
    """Cut a draw into micro-batches of ``size`` slots, the longest examples first; an empty draw gives none.

    With ``lengths`` (of every example of the data, by its number) and ``buckets``, each micro-batch has one of these
    lengths, and no example goes into a shorter one than itself. Take the buckets from settings or public texts, never
    from the lengths of private texts. The rest of a bucket joins the last micro-batch of a
    longer bucket if it fits there, so that fewer slots are empty.

    Guarantee: every example of the draw is in exactly one micro-batch, once; no example and no text is truncated.

    >>> for batch in micro_batches([3, 5, 9], size=2):
    ...     print(batch.examples, batch.real)
    [3 5] [ True  True]
    [9 9] [ True False]
    """
    ids, size = _checked_draw(examples), _checked_size(size)
    if (lengths is None) != (len(buckets) == 0):
        raise InvalidInput("pass both lengths and buckets, or neither")
    if lengths is None:
        return _cut([(None, ids)], size)
    edges = _checked_buckets(buckets)
    length_of = np.asarray(lengths)
    if length_of.ndim != 1 or ids.max(initial=-1) >= length_of.size:
        raise InvalidInput(f"lengths has shape {length_of.shape}; pass one length for each example of the data")
    bucket_of = _bucket_of(length_of[ids], edges)
    return _cut([(edge, ids[bucket_of == index]) for index, edge in reversed(list(enumerate(edges)))], size)


def check_lengths(lengths: ArrayLike, buckets: Sequence[int]) -> None:
    """Refuse data with an example longer than every bucket: before training, not in the round that draws it."""
    _bucket_of(np.asarray(lengths), _checked_buckets(buckets))


def _cut(groups: list[tuple[int | None, Ids]], size: int) -> Iterator[MicroBatch]:
    """Groups from the longest to the shortest; a part-filled micro-batch takes the entire rest of a group or none."""
    shared: list[tuple[int | None, Ids]] = []
    for length, ids in groups:
        in_full_batches = ids.size - ids.size % size
        for begin in range(0, in_full_batches, size):
            yield _padded(ids[begin : begin + size], size, length)
        rest = ids[in_full_batches:]
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
    examples = np.full(size, ids[0], dtype=np.int64)  # padding repeats an example, so that collators can handle it
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
            f"an example of length {longest} is longer than the largest bucket, {buckets[-1]}, and training truncates "
            f"nothing; add a bucket of {longest} or more, or shorten the data before the plan is made"
        )
    return np.searchsorted(np.asarray(buckets), lengths, side="left")


def _checked_draw(examples: ArrayLike) -> Ids:
    ids = np.asarray(examples)
    if ids.size == 0:
        return np.zeros(0, dtype=np.int64)
    if ids.ndim != 1 or not np.issubdtype(ids.dtype, np.integer) or ids.min() < 0:
        raise InvalidInput("examples must be a flat sequence of example numbers, each at least 0")
    if np.unique(ids).size != ids.size:
        raise InvalidInput("examples holds some example twice, which would count twice; pass a draw as it was drawn")
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


# ---- what a round shows to its owner ----


@final
@dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class LiveNumbers:
    """Where training stands, for the owner's terminal only: loss and clipped share depend on the secret draw.

    They must not reach a released file or a logger that others can read. The repr shows none of them. scores: the last
    scores on data without secrets, and their round.
    """

    round: int
    rounds_left: int
    loss: float | None
    clipped_share: float | None
    signal_to_noise: float | None
    seconds_left: float
    scores: Mapping[str, float] = field(default_factory=dict)

    def __repr__(self) -> str:
        return f"LiveNumbers(round={self.round}, rounds_left={self.rounds_left}, the rest for the owner only)"


@final
class RoundMonitor:
    """Collects losses and gradient norms of a run's rounds, from all ranks: a record for the run log, live numbers."""

    def __init__(self, plan: Plan, ranks: Ranks) -> None:
        self._plan, self._ranks = plan, ranks
        self._started = 0.0
        self._seen: list[tuple[Clipped, NDArray[np.bool_]]] = []
        self.records: deque[RoundRecord] = deque(maxlen=PACE_WINDOW)

    def begin(self) -> None:
        """Start a round; what was seen of an abandoned one is dropped."""
        self._started, self._seen = perf_counter(), []

    def see(self, clipped: Clipped, real: NDArray[np.bool_]) -> None:
        """Note a micro-batch and its mask of real examples; nothing is read from the device yet."""
        self._seen.append((clipped, real))

    def end(self, round: int, signal_to_noise: Tensor | None) -> RoundRecord:
        """The record of the round, counted from 1, over the examples of all ranks, which call this together."""
        real = np.concatenate([mask for _, mask in self._seen] or [np.zeros(0, dtype=np.bool_)])
        losses, norms = (
            _concatenated([getattr(clipped, name) for clipped, _ in self._seen])[real] for name in ("losses", "norms")
        )
        self._seen = []
        by_rank = self._ranks.gather((losses, norms))
        losses, norms = (np.concatenate([arrays[part] for arrays in by_rank]) for part in (0, 1))
        record = RoundRecord.of(
            round,
            losses,
            norms,
            clip_norm=self._plan.clip_norm,
            signal_to_noise=None if signal_to_noise is None else float(signal_to_noise),
            seconds=perf_counter() - self._started,
        )
        self.records.append(record)
        return record

    def live(self, rounds_done: int, scores: Mapping[str, float]) -> LiveNumbers | None:
        """The last round's numbers after this many rounds; None before the first."""
        if not self.records:
            return None
        last, left = self.records[-1], self._plan.rounds - rounds_done
        pace = float(np.mean([record.seconds for record in self.records]))
        return LiveNumbers(
            round=last.round,
            rounds_left=left,
            loss=last.loss,
            clipped_share=last.clipped_share,
            signal_to_noise=last.signal_to_noise,
            seconds_left=left * pace,
            scores=scores,
        )


def _concatenated(tensors: list[Tensor]) -> NDArray[np.float64]:
    return torch.cat(tensors).double().cpu().numpy() if tensors else np.zeros(0)

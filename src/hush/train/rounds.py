"""One round as the user's loop sees it, and the proof that all of it was used: a truncated draw breaks the account."""

from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import final

import numpy as np
from numpy.typing import ArrayLike, NDArray

from hush.errors import InvalidInput
from hush.train.batches import MicroBatch, micro_batches

__all__ = ["LiveNumbers", "Round"]

Level = Callable[[Sequence[MicroBatch], MicroBatch], list[MicroBatch]]
"""Adds spare micro-batches without examples, where several ranks need equally many."""


@final
class Round:
    """The draw of one round. Which examples it has, and how many, is secret; its repr shows neither.

    Guarantee: ``check_complete`` passes only if every example of the draw was counted, exactly once.
    """

    def __init__(self, index: int, drawn: NDArray[np.int64], *, size: int, level: Level | None = None) -> None:
        self.index = index
        self._drawn, self._size, self._level = drawn, size, level
        self._handed: deque[NDArray[np.bool_]] = deque()
        self._begun = False
        self._counted = 0

    def micro_batches(self, lengths: ArrayLike | None = None, buckets: Sequence[int] = ()) -> Iterator[MicroBatch]:
        """The draw in micro-batches of a fixed number of slots, to be accumulated in this order; none if it is empty.

        lengths and buckets: see :func:`hush.train.batches.micro_batches`.
        """
        if self._begun:
            raise InvalidInput(f"the micro-batches of round {self.index} were handed out before; go through them once")
        batches = micro_batches(self._drawn, size=self._size, lengths=lengths, buckets=buckets)
        if self._level is not None:
            spare = np.zeros(self._size, dtype=np.int64)
            length = max(buckets) if buckets else None
            batches = self._level(list(batches), MicroBatch(examples=spare, real=spare > 0, length=length))
        self._begun = True
        return self._hand_out(batches)

    def count(self, real: NDArray[np.bool_]) -> None:
        """Note that the next micro-batch was accumulated; one of padding alone adds nothing and may come any time."""
        if not self._handed:
            if not real.any():
                return
            raise InvalidInput(
                f"round {self.index} has no micro-batch left to accumulate: accumulate each one that micro_batches() "
                "gives exactly once"
            )
        if not np.array_equal(real, self._handed[0]):
            raise InvalidInput(
                "real is not the mask of the next micro-batch; pass the `real` of each micro-batch, in the order in "
                "which micro_batches() gives them"
            )
        self._counted += int(self._handed.popleft().sum())

    def check_complete(self) -> None:
        """Refuse to end a round of which some example is missing."""
        if self._counted != self._drawn.size:
            raise InvalidInput(
                f"round {self.index} is not complete: some examples of its draw were not accumulated, and a truncated "
                "draw breaks the plan's account; accumulate every micro-batch that micro_batches() gives, then step()"
            )

    def _hand_out(self, batches: Iterable[MicroBatch]) -> Iterator[MicroBatch]:
        for batch in batches:
            self._handed.append(batch.real)
            yield batch

    def __repr__(self) -> str:
        return f"Round(index={self.index})"


@final
@dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class LiveNumbers:
    """Where training stands, for the owner's terminal only: loss and clipped share depend on the secret draw.

    They belong in no released file and in no logger that others can read. The repr shows none of them. scores: the last
    ones on data without secrets, and their round.
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

"""The sums behind one update: clipped gradients of each micro-batch as it comes, noise once when the round ends.

:class:`~hush.train.private_training.PrivateTraining` says when a round begins and ends; here are model, loss and
clipper. The first micro-batches are tried out before they are summed (:mod:`hush.train.probes`), and the first
one with padding.

One round as the user's loop sees it, and the proof that all of it was used: a truncated draw breaks the account.

A draw as micro-batches of fixed shape: what the model sees, one after the other, to compute one sum.

Fixed shapes mean that nothing recompiles; a mask tells the real examples from the padding.
"""

import operator
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from typing import SupportsIndex, final

import numpy as np
import torch
import torch.distributed as dist
from numpy.typing import ArrayLike, NDArray
from torch import Tensor, nn
from torch.distributed.tensor import DTensor

from hush.errors import InvalidInput
from hush.plan import Plan
from hush.train.checkpoints import renew_random_states
from hush.train.clipping import Clipped, Clipper, Loss
from hush.train.distributed import Ranks, cut_again, is_sharded, through_flat
from hush.train.noise import Noise
from hush.train.preconditions import most_positions, refuse_batch, refuse_coupled, refuse_longer
from hush.train.probes import is_padded, probe
from hush.train.public_stream import PublicStream

__all__ = ["LiveNumbers", "MicroBatch", "Round", "RoundSums", "check_lengths", "micro_batches"]


@final
class RoundSums:
    """The sums of one round after another, for each of the model's trainable parameters.

    under_way says that something was added to a round that has not ended.

    Guarantee: a round's sum is handed out once, after the plan's noise was added to it.
    """

    def __init__(
        self,
        model: nn.Module,
        loss: Loss,
        plan: Plan,
        ranks: Ranks,
        *,
        insecure_seed: int | None,
        compile: bool,
        autocast: torch.dtype | None,
        public: PublicStream | None,
    ) -> None:
        self._model, self._loss, self._ranks, self._autocast, self._public = model, loss, ranks, autocast, public
        self.trainable = {name: p for name, p in model.named_parameters() if p.requires_grad}
        self._clipper = Clipper(model, loss, clip_norm=plan.clip_norm, compile=compile, autocast=autocast)
        self._noise = Noise(insecure_seed=insecure_seed, compile=compile)
        self._scale = plan.clip_norm * plan.training_noise_multiplier
        self._most_positions = most_positions(model)
        self._probed = self._tried_padding = self.under_way = False

    def begin(self) -> None:
        """Make ready for a round; what was added to one that was left in the middle is dropped."""
        if self.under_way:
            self._clipper.take()
            self.under_way = False
        refuse_coupled(self._model)  # model.train() may have thawed something
        cut_again(self._model)  # evaluation may have put shards together
        if self._noise.is_secure:
            renew_random_states()

    def add(self, batch: Mapping[str, Tensor], real: NDArray[np.bool_]) -> Clipped:
        """Add the clipped gradients of a micro-batch; real is its mask of real examples."""
        refuse_batch(batch, len(real))
        refuse_longer(batch, self._most_positions)
        self.under_way = True
        device = next(iter(self.trainable.values())).device
        mask = torch.as_tensor(real).to(device, non_blocking=True)  # no waiting for the last micro-batch
        if not (self._probed and self._tried_padding):
            self._probe_if_due(batch, torch.as_tensor(real), device)
        return self._clipper.accumulate(batch, mask)

    def public_part(self, round: int) -> dict[str, Tensor]:
        """What the public stream adds to the update of this round, the same on every rank."""
        if self._public is None:
            return {}
        found = self._public.gradients(self._model, self._loss, self.trainable, round=round, autocast=self._autocast)
        if self._ranks.world > 1:  # replicas agree to the last bit, whatever their kernels do
            for gradient in found.values():
                if not isinstance(gradient, DTensor):
                    through_flat([gradient], lambda flat: dist.broadcast(flat, src=0))
        return found

    def noisy(self, round: int) -> tuple[dict[str, Tensor], Tensor]:
        """End the round: the sums over all ranks with their noise, and their norm without it, for the owner only."""
        found = self._ranks.noisy_sum(
            self._clipper.take(), self.trainable, noise=self._noise, scale=self._scale, round=round
        )
        self.under_way = False
        return found

    def signal_to_noise(self, norm: Tensor) -> Tensor | None:
        """The norm of a sum over what is expected of its noise; None where there is no noise."""
        dimensions = sum(parameter.numel() for parameter in self.trainable.values())
        return norm / (self._scale * dimensions**0.5) if self._scale else None

    def _probe_if_due(self, batch: Mapping[str, Tensor], real: Tensor, device: torch.device) -> None:
        """Try out examples until they are conclusive, and later the first that have padding, if none had any so far."""
        padded = not self._tried_padding and is_padded(batch, real)
        sharded = is_sharded(self._model)
        if self._probed and not (self._ranks.most(padded) if sharded else padded):
            return
        if sharded:  # its forward pass communicates, so that all ranks must try the same examples
            here = {key: value.cpu() for key, value in batch.items()}, real
            _, (there, real) = max(self._ranks.gather((padded, here)), key=lambda offer: offer[0])
            batch = {key: value.to(device) for key, value in there.items()}
        plain = Clipper(self._model, self._loss, clip_norm=self._clipper.clip_norm, autocast=self._autocast)
        with torch.autocast(device.type, enabled=False):  # the caller's, which is not what the model computes in
            found = probe(self._model, self._loss, batch, real.to(device), clipper=plain, autocast=self._autocast)
        self._probed |= found.conclusive
        self._tried_padding |= found.padded


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

        lengths and buckets: see :func:`hush.train.round.micro_batches`.
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

"""Many processes as one: each rank draws and clips its own share, and a round ends with one sum over the ranks.

Replicas (with or without DistributedDataParallel around them): the clipped sums are reduced to the first rank, which
adds the noise and hands the result to all. Shards (``torch.distributed.fsdp.fully_shard``): the sums are reduced and
scattered, so each rank holds the sum of its own shard, to which it adds noise from its own entropy; the shards are
disjoint. Either way each coordinate gets its noise once, after the sum is complete, and every rank ends with the same
model. A single process is the case of one rank, without communication.

Sharding saves the memory of parameters and optimizer. The clipped sums of a round are whole on each rank until they are
scattered.
"""

import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar, final

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.tensor import DTensor
from torch.nn.parallel import DistributedDataParallel

from hush.errors import InvalidInput
from hush.train.layout import buckets, check_layout, is_sharded, scattered, through_flat
from hush.train.noise import Noise

__all__ = ["Ranks", "bare"]

T = TypeVar("T")


def bare(model: nn.Module) -> nn.Module:
    """The model without DistributedDataParallel, which from here on averages no gradients of its own.

    >>> bare(nn.Linear(2, 3))
    Linear(in_features=2, out_features=3, bias=True)
    """
    if not isinstance(model, DistributedDataParallel):
        return model
    model.require_backward_grad_sync = False  # what DDP.no_sync() sets: raw gradients never leave this process
    return model.module


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class Ranks:
    """The processes that train one model together, seen from one of them.

    Every method that communicates must be called by all ranks, in the same order.

    >>> Ranks.current()
    Ranks(rank=0, world=1)
    """

    rank: int
    world: int

    @classmethod
    def current(cls) -> "Ranks":
        """This process among those of torch's default group; one of one where there is no group."""
        if dist.is_available() and dist.is_initialized():
            return cls(rank=dist.get_rank(), world=dist.get_world_size())
        started = os.environ.get("WORLD_SIZE", "1")
        if started != "1":
            # Each process would train alone on the whole data, and the same secrets would be released many times.
            raise InvalidInput(
                f"WORLD_SIZE={started}, but the processes are not connected; call "
                "torch.distributed.init_process_group() before anything else"
            )
        return cls(rank=0, world=1)

    @property
    def first(self) -> bool:
        """Whether this rank is the one that writes files and speaks for all."""
        return self.rank == 0

    def most(self, number: int) -> int:
        """The largest of the ranks' numbers."""
        if self.world == 1:
            return number
        largest = torch.tensor([number], device=_device())
        dist.all_reduce(largest, op=dist.ReduceOp.MAX)
        return int(largest.item())

    def from_first(self, value: T) -> T:
        """The first rank's value (a seed, a name), on all ranks."""
        if self.world == 1:
            return value
        values = [value]
        dist.broadcast_object_list(values, src=0, device=_device())
        return values[0]

    def by_first(self, action: Callable[[], T]) -> T:
        """What an action of the first rank gives, on all ranks; its error too, so that none waits in vain."""
        if self.world == 1:
            return action()
        outcome: Any = None
        if self.first:
            try:
                outcome = action(), None
            except Exception as error:
                outcome = None, error
        value, error = self.from_first(outcome)
        if error is not None:
            raise error
        return value

    def gather(self, value: T) -> list[T]:
        """All ranks' values, by rank."""
        values: list[Any] = [value] * self.world
        if self.world > 1:
            dist.all_gather_object(values, value)
        return values

    def wait(self) -> None:
        """Go on when all ranks are here."""
        self.most(0)

    def level(self, batches: Sequence[T], spare: T, *, model: nn.Module) -> list[T]:
        """This rank's micro-batches, with spares appended where the model is sharded, so that all ranks have as many.

        The forward pass of a sharded model communicates, hence the ranks must run equally many. ``spare`` holds no
        real example, so it adds exactly 0.
        """
        batches = list(batches)
        if self.world == 1 or not is_sharded(model):
            return batches
        return batches + [spare] * (self.most(len(batches)) - len(batches))

    @torch.no_grad()
    def align(self, model: nn.Module) -> None:
        """Give every replica the first rank's parameters and buffers; shards are one model from the start."""
        check_layout(dict(model.named_parameters()), world=self.world)
        if self.world == 1:
            return
        for tensor in (*model.parameters(), *model.buffers()):
            if not isinstance(tensor, DTensor):
                through_flat([tensor.detach()], lambda flat: dist.broadcast(flat, src=0))

    @torch.no_grad()
    def noisy_sum(
        self,
        sums: Mapping[str, Tensor],
        parameters: Mapping[str, Tensor],
        *,
        noise: Noise,
        scale: float,
        round: int,
    ) -> tuple[dict[str, Tensor], Tensor]:
        """The ranks' sums added up, plus N(0, scale²) once for each coordinate; laid out as the parameters are.

        ``sums`` are float32 and whole on every rank, those of sharded parameters too; they are used up. The second
        result is the norm of the sum without noise, for the owner only; it stays on the device: to read it is to wait.

        Guarantee: noise is added after the sum over ranks is complete, by exactly one rank for each coordinate, and
        all ranks leave with the same values.
        """
        check_layout(parameters, world=self.world)
        found = dict(sums)
        cut = {name: value for name, value in parameters.items() if name in sums and isinstance(value, DTensor)}
        for names in buckets({name: sums[name] for name in cut}):
            found |= scattered({name: sums[name] for name in names}, {name: cut[name] for name in names})
        replicated = {name: value for name, value in sums.items() if name not in cut}
        self._each_bucket(replicated, lambda flat: dist.reduce(flat, dst=0))
        mine = found if self.first else {name: found[name] for name in cut}
        norm = self._norm(mine.values())
        noise.add_(mine, scale=scale, round=round, rank=self.rank)
        self._each_bucket(replicated, lambda flat: dist.broadcast(flat, src=0))
        return found, norm

    def _norm(self, parts: Iterable[Tensor]) -> Tensor:
        """Of the tensors that the ranks hold the parts of."""
        locals_ = [part.to_local() if isinstance(part, DTensor) else part for part in parts]
        square = torch.zeros(()).double()
        if locals_:
            # One call for all; float32 is enough to look at.
            norms = torch._foreach_norm(locals_)  # pyright: ignore[reportPrivateImportUsage]
            square = torch.stack([norm.to(norms[0].device) for norm in norms]).double().square().sum()
        if self.world > 1:
            square = square.to(_device())
            dist.all_reduce(square)
        return square.sqrt()

    def _each_bucket(self, tensors: Mapping[str, Tensor], communicate: Callable[[Tensor], object]) -> None:
        if self.world > 1:
            for names in buckets(tensors):
                through_flat([tensors[name] for name in names], communicate)


def _device() -> torch.device:
    """Where the default group takes its messages from."""
    on_gpu = "nccl" in dist.get_backend()
    return torch.device("cuda", torch.cuda.current_device()) if on_gpu else torch.device("cpu")

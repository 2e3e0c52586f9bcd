"""Many processes as one: each rank draws and clips its own share, and a round ends with one sum over the ranks.

Replicas (with or without DistributedDataParallel around them): the clipped sums are reduced to the first rank, which
adds the noise and hands the result to all. Shards (``torch.distributed.fsdp.fully_shard``): the sums are reduced and
scattered, so each rank holds the sum of its own shard, to which it adds noise from its own entropy; the shards are
disjoint. Either way each coordinate gets its noise once, after the sum is complete, and every rank ends with the same
model. A single process is the case of one rank, without communication.

Sharding saves the memory of parameters and optimizer. The clipped sums of a round are whole on each rank until they are
scattered.

How tensors lie on the ranks: whole on each (replicas), or cut along one dimension (``fully_shard``); below Ranks.

A sharded parameter is a DTensor on a mesh of one dimension that holds all ranks. Its module sees it whole inside
``forward``, so what is computed there (per-example gradients, clipped sums) is whole too and is cut afterwards.
"""

import os
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, TypeVar, final

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.fsdp import FSDPModule
from torch.distributed.tensor import DTensor, Shard
from torch.nn.parallel import DistributedDataParallel
from torch.optim import Optimizer
from torch.utils._pytree import tree_map_only

from hush.errors import InvalidInput
from hush.train.noise import Noise

__all__ = [
    "Ranks",
    "bare",
    "buckets",
    "check_layout",
    "cut_again",
    "gradients_of",
    "is_sharded",
    "laid_out",
    "optimizer_state_laid_out",
    "scattered",
    "standing_whole",
    "through_flat",
    "whole",
]


BUCKET = 2**26  # coordinates that travel in one message, 256 MiB: large enough for full speed, small beside a model


def is_sharded(model: nn.Module) -> bool:
    """Whether parameters are cut over the ranks, so that a forward pass communicates."""
    # After a forward pass without a backward pass, the outermost module's parameters stand whole for a while.
    return any(isinstance(module, FSDPModule) for module in model.modules())


def cut_again(model: nn.Module) -> None:
    """Cut what a forward pass put together; a backward pass does so by itself, evaluation does not."""
    for module in model.modules():
        if isinstance(module, FSDPModule):
            module.reshard()


def check_layout(parameters: Mapping[str, Tensor], *, world: int) -> None:
    """Refuse what would need noise to agree between ranks, or sums over some of the ranks only."""
    for name, parameter in parameters.items():
        if not isinstance(parameter, DTensor):
            continue
        mesh, placements = parameter.device_mesh, parameter.placements
        if mesh.ndim != 1 or mesh.mesh.tolist() != list(range(world)) or type(placements[0]) is not Shard:
            raise InvalidInput(
                f"parameter {name} is placed as {placements} on a mesh of shape {tuple(mesh.shape)}, with {world} "
                "processes; call fully_shard with a mesh of one dimension over all of them (hybrid sharding and tensor "
                "parallelism are not supported)"
            )


def whole(tree: Any) -> Any:
    """The tree with every sharded tensor put together, on all ranks: to write it to a file. All ranks must call it."""
    return tree_map_only(DTensor, lambda tensor: tensor.full_tensor(), tree)


@contextmanager
def standing_whole(model: nn.Module, *, here: bool) -> Iterator[None]:
    """The model with whole parameters, on the CPU, where ``here``: to write it to files. All ranks must call it."""
    places = [
        (module, name, parameter)
        for module in model.modules()
        for name, parameter in module._parameters.items()
        if isinstance(parameter, DTensor)
    ]
    put_together: dict[int, nn.Parameter] = {}  # tied ones once
    for _, _, parameter in places:
        if id(parameter) not in put_together:
            value = whole(parameter.detach())
            # A copy in any case: what comes back may be a part of larger storage, which would be written too.
            value = value.to("cpu", copy=True) if here else value[:0]
            put_together[id(parameter)] = nn.Parameter(value, parameter.requires_grad)
    try:
        for module, name, parameter in places if here else ():
            module._parameters[name] = put_together[id(parameter)]
        yield
    finally:
        for module, name, parameter in places:
            module._parameters[name] = parameter


def laid_out(value: Tensor, like: Tensor) -> Tensor:
    """A whole tensor laid out as another is: this rank's part of it where that one is sharded. No communication."""
    if not isinstance(like, DTensor):
        return value
    local = _pieces(value, like)[like.device_mesh.get_local_rank()].to(like.device)
    return _wrapped(local.clone(memory_format=torch.contiguous_format), like)


def optimizer_state_laid_out(state: Mapping[str, Any], optimizer: Optimizer) -> dict[str, Any]:
    """An optimizer's state that :func:`whole` put together, as its parameters are laid out now: to load it."""
    parameters = [parameter for group in optimizer.param_groups for parameter in group["params"]]

    def placed(value: Any, parameter: Tensor) -> Any:
        return laid_out(value, parameter) if isinstance(value, Tensor) and value.shape == parameter.shape else value

    by_parameter = {
        index: {key: placed(value, parameters[index]) for key, value in entries.items()}
        for index, entries in state["state"].items()
    }
    return {**state, "state": by_parameter}


def gradients_of(loss: Tensor, parameters: Mapping[str, nn.Parameter]) -> dict[str, Tensor]:
    """The gradients of a scalar by plain autograd, laid out as the parameters are; 0 for those it does not use.

    Where parameters are sharded, all ranks call it together, and the losses' mean over the ranks is differentiated.
    """
    if not any(isinstance(parameter, DTensor) for parameter in parameters.values()):
        found = torch.autograd.grad(loss, list(parameters.values()), allow_unused=True)
        return {
            name: torch.zeros_like(parameter) if gradient is None else gradient
            for (name, parameter), gradient in zip(parameters.items(), found, strict=True)
        }
    # Sharded parameters are not part of the graph: what is, is put together in forward, and hands on to .grad.
    before = {name: parameter.grad for name, parameter in parameters.items()}
    for parameter in parameters.values():
        parameter.grad = None
    loss.backward()
    after = {
        name: torch.zeros_like(parameter) if parameter.grad is None else parameter.grad
        for name, parameter in parameters.items()
    }
    for name, parameter in parameters.items():
        parameter.grad = before[name]
    return {name: gradient.detach() for name, gradient in after.items()}


def scattered(sums: Mapping[str, Tensor], parameters: Mapping[str, DTensor]) -> dict[str, Tensor]:
    """Whole tensors, different on each rank, added up in one message; each rank keeps the parameters' shards."""
    first = next(iter(parameters.values()))
    mesh = first.device_mesh
    pieces = {name: _pieces(value, parameters[name]) for name, value in sums.items()}
    rows = [torch.cat([parts[rank].reshape(-1) for parts in pieces.values()]) for rank in range(mesh.size())]
    width = max(row.numel() for row in rows)
    rows = [nn.functional.pad(row, (0, width - row.numel())) for row in rows]
    mine = torch.empty_like(rows[0])
    dist.reduce_scatter(mine, rows, group=mesh.get_group())
    found, begin = {}, 0
    for name, parts in pieces.items():
        shape = parts[mesh.get_local_rank()].shape
        found[name] = _wrapped(mine[begin : begin + shape.numel()].view(shape), parameters[name])
        begin += shape.numel()
    return found


def buckets(tensors: Mapping[str, Tensor]) -> Iterator[list[str]]:
    """Names whose tensors travel in one message: same device, at most BUCKET coordinates, or a single tensor."""
    names: list[str] = []
    size = 0
    for name, tensor in tensors.items():
        if names and (size + tensor.numel() > BUCKET or tensor.device != tensors[names[0]].device):
            yield names
            names, size = [], 0
        names.append(name)
        size += tensor.numel()
    if names:
        yield names


def through_flat(tensors: list[Tensor], communicate: Callable[[Tensor], object]) -> None:
    """Let tensors take part in one communication as one flat tensor, in place."""
    flat = torch.cat([tensor.reshape(-1) for tensor in tensors])
    communicate(flat)
    for tensor, part in zip(tensors, flat.split([tensor.numel() for tensor in tensors]), strict=True):
        tensor.copy_(part.view_as(tensor))


def _pieces(value: Tensor, like: DTensor) -> list[Tensor]:
    """The parts of a whole tensor that the ranks hold, some of them empty where there are more ranks than rows."""
    if value.shape != like.shape:
        raise InvalidInput(f"a tensor of shape {tuple(value.shape)} cannot be laid out as one of {tuple(like.shape)}")
    placement, world = like.placements[0], like.device_mesh.size()
    dim = placement.dim  # pyright: ignore[reportAttributeAccessIssue]
    parts = list(value.chunk(world, dim))
    return parts + [value.narrow(dim, 0, 0)] * (world - len(parts))


def _wrapped(local: Tensor, like: DTensor) -> Tensor:
    if local.shape != like.to_local().shape:
        raise InvalidInput(
            f"this rank should hold a part of shape {tuple(local.shape)} of a parameter, but holds "
            f"{tuple(like.to_local().shape)}; shard the model with torch.distributed.fsdp.fully_shard"
        )
    return DTensor.from_local(
        local, like.device_mesh, like.placements, run_check=False, shape=like.shape, stride=like.stride()
    )


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

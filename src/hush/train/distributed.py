"""Training by several processes: the collectives of a round (``Ranks``) and the sharding of parameters (FSDP2).

Each rank draws and clips its own share of a round, and the round ends with one sum over the ranks. Replicas (with or
without DistributedDataParallel): the clipped sums are reduced to the first rank, which adds the noise and broadcasts
the result. Shards (``torch.distributed.fsdp.fully_shard``): the sums are reduced and scattered, so each rank holds the
sum of its own shard, to which it adds noise from its own entropy; the shards are disjoint. Either way each coordinate
gets its noise once, after the sum is complete, and every rank ends with the same model. A single process is the case of
one rank, without communication.

A sharded parameter is a DTensor on a one-dimensional mesh of all ranks. Its module sees the full tensor inside
``forward``, so per-example gradients and clipped sums are full tensors too, and are sharded afterwards. Sharding
therefore saves the memory of parameters and optimizer states, but not that of a round's clipped sums.
"""

import os
import time
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

__all__ = [
    "Ranks",
    "SummedOverRanks",
    "check_sharding",
    "communicate_flat",
    "full_parameters",
    "full_tensors",
    "gradients_of",
    "is_sharded",
    "message_buckets",
    "reduce_scatter",
    "reshard",
    "shard_like",
    "shard_optimizer_state",
    "unwrap_ddp",
]


MAX_MESSAGE_COORDINATES = 2**26  # 256 MiB of float32 in one message: large enough for full speed, small beside a model

T = TypeVar("T")


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class SummedOverRanks:
    """A round's sums over all ranks, as one rank sees them before the noise.

    sums: a tensor for each parameter, sharded as the parameter is; those of replicated parameters are complete on the
    first rank only. noised_here: the sums to which this rank adds the noise; each coordinate is noised by exactly one
    rank. replicated: the sums that the first rank must broadcast afterwards.
    """

    sums: dict[str, Tensor]
    noised_here: dict[str, Tensor]
    replicated: dict[str, Tensor]

    def rounded(self) -> "SummedOverRanks":
        """The same in float32."""
        sums = {name: value.float() for name, value in self.sums.items()}
        noised_here, replicated = ({name: sums[name] for name in part} for part in (self.noised_here, self.replicated))
        return SummedOverRanks(sums=sums, noised_here=noised_here, replicated=replicated)


BEAT_SECONDS = 30.0  # between two messages that the first rank is still working, to ranks that wait for it


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class Ranks:
    """The processes that train one model together, as one of them sees them.

    Every method that communicates must be called by all ranks, in the same order.

    >>> Ranks.current()
    Ranks(rank=0, world=1)
    """

    rank: int
    world: int

    @classmethod
    def current(cls) -> "Ranks":
        """This process within torch's default process group; rank 0 of 1 where there is no group."""
        if dist.is_available() and dist.is_initialized():
            return cls(rank=dist.get_rank(), world=dist.get_world_size())
        world_size = os.environ.get("WORLD_SIZE", "1")
        if world_size != "1":
            # Each process would train alone on all the data, and the same secrets would be released many times.
            raise InvalidInput(
                f"WORLD_SIZE={world_size}, but the processes are not connected; call "
                "torch.distributed.init_process_group() before anything else"
            )
        return cls(rank=0, world=1)

    @property
    def is_first(self) -> bool:
        """Whether this is rank 0, which writes the files and prints the messages."""
        return self.rank == 0

    # ---- values ----

    def max(self, number: int) -> int:
        """The largest of the ranks' numbers."""
        if self.world == 1:
            return number
        largest = torch.tensor([number], device=_message_device())
        dist.all_reduce(largest, op=dist.ReduceOp.MAX)
        return int(largest.item())

    def broadcast(self, value: T) -> T:
        """The first rank's value (a seed, a name), on all ranks."""
        if self.world == 1:
            return value
        values = [value]
        dist.broadcast_object_list(values, src=0, device=_message_device())
        return values[0]

    def run_on_first(self, action: Callable[[], T]) -> T:
        """Run an action on the first rank and return its result on all ranks; an error is raised on all of them too."""
        if self.world == 1:
            return action()
        result: Any = None
        if self.is_first:
            try:
                result = action(), None
            except Exception as error:
                result = None, error
        value, error = self.broadcast(result)
        if error is not None:
            raise error
        return value

    def work_on_first(self, action: Callable[[Callable[[], None]], T]) -> T:
        """Like ``run_on_first``, for long work: it calls its argument now and then, so that no other rank gives up."""
        if self.world == 1:
            return action(lambda: None)
        result: Any = None
        if self.is_first:
            last = time.monotonic()

            def still_working() -> None:
                nonlocal last
                if time.monotonic() - last > BEAT_SECONDS:
                    last = time.monotonic()
                    self.broadcast(None)

            try:
                result = action(still_working), None
            except Exception as error:
                result = None, error
        while (received := self.broadcast(result)) is None:
            pass  # the first rank is still working
        value, error = received
        if error is not None:
            raise error
        return value

    def gather(self, value: T) -> list[T]:
        """All ranks' values, by rank."""
        values: list[Any] = [value] * self.world
        if self.world > 1:
            dist.all_gather_object(values, value)
        return values

    def check_alike(self, mine: Mapping[str, object]) -> None:
        """Refuse processes that were given different things, each by itself and maybe on another machine."""
        by_rank = self.gather(dict(mine))
        for rank, theirs in enumerate(by_rank):
            differ = [name for name in mine if theirs[name] != by_rank[0][name]]
            if differ:
                raise InvalidInput(
                    f"process {rank} has other {differ[0]} than the first one; give all of them the same plan, "
                    "settings, data and model"
                )

    # ---- tensors ----

    @torch.no_grad()
    def broadcast_tensors_(self, tensors: Iterable[Tensor]) -> None:
        """Overwrite replicated tensors with the first rank's; sharded ones are left alone."""
        if self.world == 1:
            return
        for tensor in tensors:
            for part in () if isinstance(tensor, DTensor) else plain_tensors(tensor):
                communicate_flat([part.detach()], _broadcast_from_any_device)

    def broadcast_model_(self, model: nn.Module) -> None:
        """Give every replica the first rank's parameters and buffers; shards are one model from the start."""
        check_sharding(dict(model.named_parameters()), world=self.world)
        self.broadcast_tensors_((*model.parameters(), *model.buffers()))

    def pad_batches(self, batches: Sequence[T], padding: T, *, model: nn.Module) -> list[T]:
        """This rank's micro-batches, padded to the same number on all ranks if the model is sharded.

        The forward pass of a sharded model communicates, so all ranks must run the same number of them. ``padding``
        holds no real example, so it adds exactly 0.
        """
        batches = list(batches)
        if self.world == 1 or not is_sharded(model):
            return batches
        return batches + [padding] * (self.max(len(batches)) - len(batches))

    @torch.no_grad()
    def sum(self, sums: Mapping[str, Tensor], parameters: Mapping[str, Tensor]) -> SummedOverRanks:
        """Add up the ranks' sums, which are full tensors on every rank and are overwritten."""
        check_sharding(parameters, world=self.world)
        total = dict(sums)
        sharded = {name: value for name, value in parameters.items() if name in sums and isinstance(value, DTensor)}
        for names in message_buckets({name: sums[name] for name in sharded}):
            total |= reduce_scatter({name: sums[name] for name in names}, {name: sharded[name] for name in names})
        replicated = {name: value for name, value in sums.items() if name not in sharded}
        self._for_each_bucket(replicated, lambda flat: dist.reduce(flat, dst=0))
        noised_here = total if self.is_first else {name: total[name] for name in sharded}
        return SummedOverRanks(sums=total, noised_here=noised_here, replicated=replicated)

    @torch.no_grad()
    def share(self, total: SummedOverRanks) -> dict[str, Tensor]:
        """The sums on all ranks, the replicated ones as the first rank has them now: with its noise."""
        self._for_each_bucket(total.replicated, lambda flat: dist.broadcast(flat, src=0))
        return total.sums

    @torch.no_grad()
    def norm(self, parts: Iterable[Tensor]) -> Tensor:
        """The norm of all tensors together, of which each rank passes the parts that it holds.

        The result stays on the device: reading it waits for the device.
        """
        locals_ = [part.to_local() if isinstance(part, DTensor) else part for part in parts]
        square = torch.zeros(()).double()
        if locals_:
            # One call for all tensors; float32 is precise enough for a number that is only displayed.
            norms = torch._foreach_norm(locals_)  # pyright: ignore[reportPrivateImportUsage]
            square = torch.stack([norm.to(norms[0].device) for norm in norms]).double().square().sum()
        if self.world > 1:
            square = square.to(_message_device())
            dist.all_reduce(square)
        return square.sqrt()

    def _for_each_bucket(self, tensors: Mapping[str, Tensor], communicate: Callable[[Tensor], object]) -> None:
        if self.world > 1:
            for names in message_buckets(tensors):
                communicate_flat([tensors[name] for name in names], communicate)


def _message_device() -> torch.device:
    """The device whose tensors the default process group communicates."""
    on_gpu = "nccl" in dist.get_backend()
    return torch.device("cuda", torch.cuda.current_device()) if on_gpu else torch.device("cpu")


def plain_tensors(tensor: Tensor) -> list[Tensor]:
    """The plain tensors that hold a tensor's values: the tensor itself, or the parts of a quantised one.

    >>> [len(part) for part in plain_tensors(torch.ones(3))]
    [3]
    """
    flatten: Any = getattr(tensor, "__tensor_flatten__", None)
    if flatten is not None and not isinstance(tensor, DTensor):  # torchao
        names, _ = flatten()
        return [part for name in names for part in plain_tensors(getattr(tensor, name))]
    parts, state = [tensor], getattr(tensor, "quant_state", None)  # bitsandbytes: the tensor holds codes of four bits
    while state is not None:  # their scales, which may be quantised themselves
        parts += [value for value in vars(state).values() if isinstance(value, Tensor)]
        state = getattr(state, "state2", None)
    return parts if len(parts) == 1 else [part.data.as_subclass(Tensor) for part in parts]


def _broadcast_from_any_device(flat: Tensor) -> None:
    """Overwrite a tensor with the first rank's; one on a CPU goes through the GPU if the group has no other way."""
    if flat.device.type == "cpu" and _message_device().type != "cpu" and "gloo" not in dist.get_backend():
        moved = flat.to(_message_device())
        dist.broadcast(moved, src=0)
        flat.copy_(moved)
    else:
        dist.broadcast(flat, src=0)


def unwrap_ddp(model: nn.Module) -> nn.Module:
    """The model inside DistributedDataParallel, which from here on averages no gradients of its own.

    >>> unwrap_ddp(nn.Linear(2, 3))
    Linear(in_features=2, out_features=3, bias=True)
    """
    if not isinstance(model, DistributedDataParallel):
        return model
    model.require_backward_grad_sync = False  # what DDP.no_sync() sets: raw gradients never leave this process
    return model.module


# ---- sharding: parameters that are DTensors ----


def is_sharded(model: nn.Module) -> bool:
    """Whether the parameters are sharded over the ranks, so that a forward pass communicates."""
    # By module, not by parameter: after a forward pass without a backward pass, the outermost parameters are unsharded.
    return any(isinstance(module, FSDPModule) for module in model.modules())


def reshard(model: nn.Module) -> None:
    """Shard again what a forward pass gathered; a backward pass does so by itself, an evaluation does not."""
    for module in model.modules():
        if isinstance(module, FSDPModule):
            module.reshard()


def check_sharding(parameters: Mapping[str, Tensor], *, world: int) -> None:
    """Refuse placements under which ranks would need the same noise, or sums over some of the ranks only."""
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


def full_tensors(tree: Any) -> Any:
    """The tree with every sharded tensor gathered into a full one, on all ranks, which must all call this."""
    return tree_map_only(DTensor, lambda tensor: tensor.full_tensor(), tree)


@contextmanager
def full_parameters(model: nn.Module, *, here: bool) -> Iterator[None]:
    """The model with full parameters, on the CPU of the ranks that say ``here``: to write it to files.

    All ranks must call it.
    """
    reshard(model)  # what the last forward pass gathered is no shard, and its memory may be freed
    sharded = [
        (module, name, parameter)
        for module in model.modules()
        for name, parameter in module._parameters.items()
        if isinstance(parameter, DTensor)
    ]
    gathered: dict[int, nn.Parameter] = {}  # tied ones once
    for _, _, parameter in sharded:
        if id(parameter) not in gathered:
            value = full_tensors(parameter.detach())
            # Always a copy: the gathered tensor may be a view of larger storage, which would be written too.
            value = value.to("cpu", copy=True) if here else value[:0]
            gathered[id(parameter)] = nn.Parameter(value, parameter.requires_grad)
    try:
        for module, name, parameter in sharded if here else ():
            module._parameters[name] = gathered[id(parameter)]
        yield
    finally:
        for module, name, parameter in sharded:
            module._parameters[name] = parameter


def shard_like(value: Tensor, like: Tensor) -> Tensor:
    """A full tensor sharded as another one is: this rank's part of it if that one is a shard. No communication."""
    if not isinstance(like, DTensor):
        return value
    local = _shards(value, like)[like.device_mesh.get_local_rank()].to(like.device)
    return _as_dtensor(local.clone(memory_format=torch.contiguous_format), like)


def shard_optimizer_state(state: Mapping[str, Any], optimizer: Optimizer) -> dict[str, Any]:
    """A full state of an optimizer, sharded as its parameters are now: ready to load."""
    parameters = [parameter for group in optimizer.param_groups for parameter in group["params"]]

    def sharded(value: Any, parameter: Tensor) -> Any:
        return shard_like(value, parameter) if isinstance(value, Tensor) and value.shape == parameter.shape else value

    by_parameter = {
        index: {key: sharded(value, parameters[index]) for key, value in entries.items()}
        for index, entries in state["state"].items()
    }
    return {**state, "state": by_parameter}


def gradients_of(loss: Tensor, parameters: Mapping[str, nn.Parameter]) -> dict[str, Tensor]:
    """The gradients of a scalar by plain autograd, sharded as the parameters are; 0 for those it does not use.

    If parameters are sharded, all ranks call this together, and the mean of their losses is differentiated.
    """
    if not any(isinstance(parameter, DTensor) for parameter in parameters.values()):
        gradients = torch.autograd.grad(loss, list(parameters.values()), allow_unused=True)
        return {
            name: torch.zeros_like(parameter) if gradient is None else gradient
            for (name, parameter), gradient in zip(parameters.items(), gradients, strict=True)
        }
    # Sharded parameters are not part of the graph; the full tensors that forward gathers are, and pass on to .grad.
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


def reduce_scatter(sums: Mapping[str, Tensor], parameters: Mapping[str, DTensor]) -> dict[str, Tensor]:
    """Full tensors, different on each rank, added up in one message; each rank keeps the shards that it holds."""
    first = next(iter(parameters.values()))
    mesh = first.device_mesh
    shards = {name: _shards(value, parameters[name]) for name, value in sums.items()}
    rows = [torch.cat([parts[rank].reshape(-1) for parts in shards.values()]) for rank in range(mesh.size())]
    width = max(row.numel() for row in rows)
    rows = [nn.functional.pad(row, (0, width - row.numel())) for row in rows]
    mine = torch.empty_like(rows[0])
    dist.reduce_scatter(mine, rows, group=mesh.get_group())
    total, begin = {}, 0
    for name, parts in shards.items():
        shape = parts[mesh.get_local_rank()].shape
        total[name] = _as_dtensor(mine[begin : begin + shape.numel()].view(shape), parameters[name])
        begin += shape.numel()
    return total


def message_buckets(tensors: Mapping[str, Tensor]) -> Iterator[list[str]]:
    """Names of the tensors of one message: on one device, and at most MAX_MESSAGE_COORDINATES or a single tensor."""
    names: list[str] = []
    size = 0
    for name, tensor in tensors.items():
        if names and (size + tensor.numel() > MAX_MESSAGE_COORDINATES or tensor.device != tensors[names[0]].device):
            yield names
            names, size = [], 0
        names.append(name)
        size += tensor.numel()
    if names:
        yield names


def communicate_flat(tensors: list[Tensor], communicate: Callable[[Tensor], object]) -> None:
    """Communicate several tensors as one flat tensor, and write the result back into them."""
    flat = torch.cat([tensor.reshape(-1) for tensor in tensors])
    communicate(flat)
    for tensor, part in zip(tensors, flat.split([tensor.numel() for tensor in tensors]), strict=True):
        tensor.copy_(part.view_as(tensor))


def _shards(value: Tensor, like: DTensor) -> list[Tensor]:
    """The parts of a full tensor that the ranks hold; some are empty if there are more ranks than rows."""
    if value.shape != like.shape:
        raise InvalidInput(f"a tensor of shape {tuple(value.shape)} cannot be sharded like one of {tuple(like.shape)}")
    placement, world = like.placements[0], like.device_mesh.size()
    dim = placement.dim  # pyright: ignore[reportAttributeAccessIssue]
    parts = list(value.chunk(world, dim))
    return parts + [value.narrow(dim, 0, 0)] * (world - len(parts))


def _as_dtensor(local: Tensor, like: DTensor) -> Tensor:
    if local.shape != like.to_local().shape:
        raise InvalidInput(
            f"this rank should hold a part of shape {tuple(local.shape)} of a parameter, but holds "
            f"{tuple(like.to_local().shape)}; shard the model with torch.distributed.fsdp.fully_shard"
        )
    return DTensor.from_local(
        local, like.device_mesh, like.placements, run_check=False, shape=like.shape, stride=like.stride()
    )

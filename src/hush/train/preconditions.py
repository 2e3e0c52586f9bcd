"""Preconditions of the guarantee that can be read off model, batch and optimizer, refused before any training.

The proof compares a run with one in which an example's gradient is replaced by zero. That is sound only if nothing else
changes: every example's loss must be a function of the model, that example and its own randomness, and no state of the
model may depend on how many forward passes a round took, because that number follows the secret draw. What cannot be
read off is checked on a few examples, see :mod:`hush.train.probes`.

Frozen batch normalisation is allowed: in ``eval()`` mode with stored statistics it is a fixed affine map. Since
``model.train()`` thaws it, :func:`refuse_coupled` is called again at the start of every round; it only reads flags.

Rotary positions of the kinds "dynamic" and "longrope" change for all texts of a micro-batch once one of them is longer
than the model was first made for, so texts beyond that length are refused. An optimizer may step only inside
``PrivateTraining.step``, with noisy gradients of exactly the trained parameters.
"""

import inspect
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any, final
from weakref import WeakKeyDictionary

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _NormBase
from torch.nn.modules.instancenorm import _InstanceNorm
from torch.nn.parallel import DataParallel, DistributedDataParallel
from torch.nn.parameter import UninitializedParameter
from torch.optim import Optimizer
from torch.optim.lr_scheduler import ReduceLROnPlateau
from torch.utils.hooks import RemovableHandle

from hush.accounting.sampling_error import MAX_NOISE_STREAMS, sampling_error
from hush.errors import CannotCertify, InvalidInput
from hush.numbers import counted, rounded_down, rounded_up
from hush.plan import Plan

__all__ = [
    "StepGuard",
    "check_optimizer",
    "check_parameters",
    "check_scheduler",
    "most_positions",
    "positions_of",
    "refuse_batch",
    "refuse_coupled",
    "refuse_large_batch",
    "refuse_longer",
    "refuse_passed_ceilings",
    "refuse_scaler",
    "where",
]


MAX_BATCH = 2**18  # (E35), expected number of examples in a round

_FLOATS = (torch.float64, torch.float32, torch.bfloat16, torch.float16)
_CAPACITIES = ("expert_capacity", "capacity_factor", "moe_capacity_factor", "train_capacity_factor")
_ROUTER_LOSSES = ("router_aux_loss_coef", "aux_loss_coef", "router_z_loss_coef", "moe_loss_weight")
_LAYER_DROPS = ("layerdrop", "layer_drop", "encoder_layerdrop", "decoder_layerdrop")
_PACKING_KEYS = ("cu_seq_lens_q", "cu_seq_lens_k", "cu_seqlens", "max_length_q", "max_length_k", "seq_idx")


def refuse_coupled(model: nn.Module) -> None:
    """Refuse a model with a part that couples examples, or whose gradient cannot be taken example by example.

    Guarantee: returns only if no known coupling is present; the probes look for unknown ones.

    >>> refuse_coupled(torch.nn.LayerNorm(4))
    >>> refuse_coupled(torch.nn.Sequential(torch.nn.Linear(4, 4), torch.nn.BatchNorm1d(4)))
    Traceback (most recent call last):
        ...
    hush.errors.InvalidInput: module '1' (BatchNorm1d) normalises by statistics of the whole batch, which ties examples\
 together; use GroupNorm, LayerNorm or RMSNorm, or freeze it: .eval() after every model.train()
    """
    for name, module in model.named_modules():
        for problem in _module_problems(module):
            raise InvalidInput(f"{where(name, module)} {problem}")
    trainable = [(name, parameter) for name, parameter in model.named_parameters() if parameter.requires_grad]
    if not trainable:
        raise InvalidInput("the model has no trainable parameter: requires_grad is False for every one of them")
    for name, parameter in trainable:
        for problem in _parameter_problems(parameter):
            raise InvalidInput(f"parameter {name!r} ({type(parameter).__name__}, {parameter.dtype}) {problem}")


def refuse_scaler(scaler: object | None) -> None:
    """Refuse a gradient scaler that is switched on: it skips the steps in which private gradients overflow.

    >>> refuse_scaler(torch.amp.GradScaler("cpu", enabled=False))
    """
    enabled = getattr(scaler, "is_enabled", None)
    if scaler is not None and (enabled is None or enabled()):
        raise InvalidInput(
            f"{type(scaler).__name__} skips a step when a gradient overflows and changes its scale with the data, so "
            "the update would depend on the private batch by more than its noisy sum; train in bfloat16 or float32, "
            "which need no scaler"
        )


def refuse_batch(batch: Mapping[str, Tensor], slots: int) -> None:
    """Refuse a batch that does not hold one row per example, or that holds a count over all examples.

    >>> refuse_batch({"input_ids": torch.zeros(4, 7, dtype=torch.long)}, 4)
    """
    for key in batch:
        if key == "num_items_in_batch":
            raise InvalidInput(
                f"the batch holds {key!r}, a count over all examples: dividing a loss by it ties examples together; "
                "leave it out and divide each example's loss by a count of its own or by a constant"
            )
        if key in _PACKING_KEYS:
            raise InvalidInput(
                f"the batch holds {key!r}: several examples are packed into one sequence, and their gradients cannot "
                "be told apart; use a collator that pads, with one row per example"
            )
    for key, value in batch.items():
        if not isinstance(value, Tensor):
            raise InvalidInput(f"batch[{key!r}] is a {type(value).__name__}, not a tensor; leave it out of the batch")
        if value.ndim == 0 or len(value) != slots:
            raise InvalidInput(
                f"batch[{key!r}] has shape {tuple(value.shape)}, but there are {slots} examples and each needs a row "
                "of its own; pad instead of packing, and keep constants in the loss function"
            )
    positions = batch.get("position_ids")
    if positions is not None and positions.ndim == 2 and _restarts(positions, batch.get("attention_mask")):
        raise InvalidInput(
            "batch['position_ids'] starts again from 0 within a row: several examples are packed into one sequence; "
            "use a collator that pads, with one row per example"
        )


def where(name: str, module: nn.Module) -> str:
    """How a message names a module: its path and its class."""
    return f"{f'module {name!r}' if name else 'the model itself'} ({type(module).__name__})"


def _module_problems(module: nn.Module) -> Iterator[str]:
    """What is wrong with this module, its children aside."""
    match module:
        case torch.jit.ScriptModule():
            yield "is compiled by TorchScript, whose parts cannot be inspected; pass the module that it was made from"
        case DataParallel():
            yield "splits a batch over threads and sums gradients on its own; pass its .module and start with torchrun"
        case DistributedDataParallel():
            yield "averages raw gradients on its own; pass its .module, hush reduces the clipped sums itself"
        case _NormBase() if module.training or not module.track_running_stats:
            if not isinstance(module, _InstanceNorm):
                yield _BATCH_NORM
            elif module.track_running_stats:
                yield (
                    "keeps running statistics of all examples, which training would change without clipping or "
                    "noise; use track_running_stats=False"
                )
        case _:
            yield from _problems_by_name(module)
    for attribute in _CAPACITIES:
        if getattr(module, attribute, None) is not None:
            yield (
                f"limits its experts to {attribute}={getattr(module, attribute)}: which tokens an expert drops may "
                "depend on the other examples; use a model whose experts have no capacity, or a dense one"
            )
    config = getattr(module, "config", None)
    if module.training:
        for attribute in _LAYER_DROPS:
            share = getattr(module, attribute, None) or getattr(config, attribute, None)
            if isinstance(share, float | int) and share > 0:
                yield (
                    f"drops whole layers at random ({attribute}={share}), the same for all examples of a micro-batch: "
                    "their gradients would depend on who else was drawn; set it to 0 (dropout within layers is fine)"
                )
    if getattr(config, "output_router_logits", False):
        for attribute in _ROUTER_LOSSES:
            if getattr(config, attribute, 0):
                yield (
                    f"adds a load-balancing loss over the whole batch ({attribute}={getattr(config, attribute)}); "
                    "set its config.output_router_logits = False"
                )


_BATCH_NORM = (
    "normalises by statistics of the whole batch, which ties examples together; use GroupNorm, LayerNorm or RMSNorm, "
    "or freeze it: .eval() after every model.train()"
)


def _problems_by_name(module: nn.Module) -> Iterator[str]:
    """Problems of classes that torch keeps private, or that other libraries define without a common base."""
    names = {kind.__name__ for kind in type(module).__mro__}
    hooks = {type(hook).__name__ for hook in module._forward_pre_hooks.values()}
    if "FullyShardedDataParallel" in names:
        yield "reduces raw gradients on its own; shard with torch.distributed.fsdp.fully_shard instead"
    yield from _quantised_activations(module, names)
    if not module.training:
        return  # what follows is fixed in eval mode
    own_batch_norm = any("BatchNorm" in name for name in names) and "Frozen" not in type(module).__name__
    if own_batch_norm and "running_mean" in dict(module.named_buffers(recurse=False)):
        yield _BATCH_NORM
    if "StochasticDepth" in names and getattr(module, "mode", "") == "batch" and getattr(module, "p", 0):
        yield (
            "drops its branch for all examples of a micro-batch at once: their gradients would depend on who else was "
            "drawn; use mode='row'"
        )
    if "_SpectralNorm" in names or "SpectralNorm" in hooks:
        # Its iterate depends on the number of forward passes, which follows the size of the secret draw.
        yield (
            "advances its power iteration with every forward pass, so its state would depend on the realised batch "
            "size; remove the spectral norm, or use weight_norm"
        )
    if names & {"ObserverBase", "FakeQuantizeBase"}:
        yield (
            "keeps running ranges of all examples' activations, which training would change without clipping or "
            "noise; quantise after training, or freeze the observer: .eval() after every model.train()"
        )


def _quantised_activations(module: nn.Module, names: set[str]) -> Iterator[str]:
    """Frozen layers that round an example's activations as its neighbours decide; rounded weights are harmless."""
    threshold = getattr(getattr(module, "state", None), "threshold", 0.0)
    if "Linear8bitLt" in names and threshold > 0:
        yield (
            f"rounds a column of activations unless any example of the micro-batch has a large value in it "
            f"(threshold={threshold:g}), which ties examples together; load the model with llm_int8_threshold=0.0, or "
            "in 4 bits"
        )
    for parameter in module._parameters.values():
        kind = type(parameter).__name__
        rounding: Any = getattr(parameter, "act_quant_kwargs", None)
        scale = type(getattr(rounding, "granularity", None)).__name__
        if kind == "LinearActivationQuantizedTensor" or (rounding is not None and scale not in _SCALES_OF_ROWS):
            yield (
                f"rounds activations at a scale that other examples may decide ({kind}, {scale}); quantise the weights "
                "alone, or each row of activations by itself (PerRow)"
            )


_SCALES_OF_ROWS = ("PerRow", "PerToken")


def _parameter_problems(parameter: nn.Parameter) -> Iterator[str]:
    if isinstance(parameter, UninitializedParameter):
        yield "has no shape yet; run one forward pass on made-up data first"
        return
    if parameter.is_meta:
        yield "is on the meta device and has no values; load or initialise the model first"
    if parameter.dtype not in _FLOATS:
        yield "is trainable but not a real floating-point tensor; freeze it and train adapters (LoRA) instead"
    elif type(parameter) is not nn.Parameter and not _is_sharded(parameter):
        yield "is trainable but a tensor of a special kind (quantised?); freeze it and train adapters (LoRA) instead"
    if parameter._backward_hooks or parameter._post_accumulate_grad_hooks:
        yield (
            "has a gradient hook, which would act on gradients before they are clipped, or never run; remove it and "
            "change the loss or the optimizer instead"
        )


def _is_sharded(parameter: nn.Parameter) -> bool:
    from torch.distributed.tensor import DTensor  # slow to import, and mostly nobody asks

    return isinstance(parameter, DTensor)


def _restarts(positions: Tensor, attended: Tensor | None) -> bool:
    """Whether a row counts 0, 1 again after its start; positions of padding are ignored."""
    if positions.shape[1] < 3:
        return False
    again = (positions[:, 1:-1] == 0) & (positions[:, 2:] == 1)
    if attended is not None and attended.shape == positions.shape:
        seen = attended.bool()
        again &= seen[:, :-2] & seen[:, 1:-1] & seen[:, 2:]
    return bool(again.any())


# ---- promises ----


def refuse_passed_ceilings(plan: Plan, trained_parameters: int, *, streams: int = 1) -> None:
    """Refuse a training whose computed draws and noise might lift a posterior above its ceiling.

    streams: processes times devices that add noise.

    Guarantee: returns only if every posterior plus the sampling error is at most its ceiling.
    """
    if streams > MAX_NOISE_STREAMS:
        raise CannotCertify(f"noise would come from {streams} devices, and is proven for up to {MAX_NOISE_STREAMS}")
    error = sampling_error(trained_parameters, batch_size=plan.batch_size, rounds=plan.rounds)
    if plan.chain is not None and error > plan.chain.sampling_limit:
        raise CannotCertify(
            f"the computed draws and noise of {counted(plan.rounds, 'round')} and "
            f"{counted(trained_parameters, 'trained parameter')} differ from ideal ones by up to "
            f"{rounded_up(error, 2)}, and the releases of the chain leave {rounded_down(plan.chain.sampling_limit, 2)} "
            "to this one; train fewer parameters (adapters), plan fewer rounds, or announce fewer releases"
        )
    excess_SQ = plan.posterior_of_run(trained_parameters) - plan.ceiling
    if not (excess_SQ > 0).any():
        return
    passed = counted(int((excess_SQ > 0).any(axis=1).sum()), "secret")
    raise CannotCertify(
        f"the computed draws and noise of {counted(plan.rounds, 'round')} and "
        f"{counted(trained_parameters, 'trained parameter')} differ from ideal ones by up to {rounded_up(error, 2)}, "
        f"which could lift the posterior of {passed} above the ceiling, by up to "
        f"{rounded_up(float(excess_SQ.max()), 2)}; make the plan again (a plan leaves a thousandth of each ceiling to "
        "this), train fewer parameters (adapters), plan fewer rounds, or raise the ceiling"
    )


def refuse_large_batch(plan: Plan) -> None:
    """Refuse a plan with batches so large that the rounding of their sums is not proven to be small."""
    if plan.batch_size > MAX_BATCH:
        raise CannotCertify(
            f"sums are proven for batches of up to {MAX_BATCH:,} examples, and the plan has {plan.batch_size:,.0f}; "
            "plan a smaller batch and more rounds"
        )


# ---- rotary positions ----

_LENGTH_DEPENDENT_ROPE = ("dynamic", "longrope")


def positions_of(config: Any) -> int | None:
    """The most tokens for which the rotary frequencies of this configuration do not change; None: any number."""
    rope: Mapping[str, Any] = getattr(config, "rope_parameters", None) or {}
    parts = [rope] if "rope_type" in rope else [part for part in rope.values() if isinstance(part, Mapping)]
    limits = [
        part.get("original_max_position_embeddings") or config.max_position_embeddings
        for part in parts
        if any(kind in str(part.get("rope_type")) for kind in _LENGTH_DEPENDENT_ROPE)
    ]
    return min(limits, default=None)


def most_positions(model: nn.Module) -> int | None:
    """The smallest such limit of a model's parts; None if there is none."""
    limits = (positions_of(getattr(module, "config", None)) for module in model.modules())
    return min((limit for limit in limits if limit is not None), default=None)


def refuse_longer(batch: Mapping[str, Tensor], most: int | None) -> None:
    """Refuse a batch of more tokens than ``most_positions`` gave."""
    for name, dimension in (("input_ids", -1), ("inputs_embeds", 1)):  # pairs of texts are [B, 2, T]
        if most is not None and name in batch and batch[name].shape[dimension] > most:
            raise InvalidInput(
                f"batch[{name!r}] has {batch[name].shape[dimension]} tokens in a row, but beyond {most} this model's "
                "rotary positions (dynamic or longrope) follow the longest text of a micro-batch, which ties examples "
                f"together; truncate every text to at most {most} tokens before training"
            )


# ---- optimizers and schedulers ----

_GUARDS: "WeakKeyDictionary[Optimizer, RemovableHandle]" = WeakKeyDictionary()


@final
class StepGuard:
    """Refuses every step of an optimizer outside of ``allowed``: it would use gradients without noise."""

    def __init__(self, optimizer: Optimizer) -> None:
        older = _GUARDS.get(optimizer)
        if older is not None:
            older.remove()  # the optimizer belongs to the training that took it last
        self._open = False
        self._handle = _GUARDS[optimizer] = optimizer.register_step_pre_hook(self._check)

    @contextmanager
    def allowed(self) -> Iterator[None]:
        """Let the optimizer step."""
        self._open = True
        try:
            yield
        finally:
            self._open = False

    def remove(self) -> None:
        """Let anybody step the optimizer again."""
        self._handle.remove()

    def _check(self, *_: object) -> None:
        if not self._open:
            raise InvalidInput(
                "optimizer.step() was called outside of PrivateTraining.step(); leave the steps to private.step(), and "
                "leave out any loss scaler"
            )


def check_optimizer(optimizer: Optimizer, model: nn.Module, trainable: Mapping[str, nn.Parameter]) -> None:
    """Refuse an optimizer of other parameters, and one that evaluates the loss again."""
    if not isinstance(optimizer, Optimizer):
        raise InvalidInput(f"the optimizer is a {type(optimizer).__name__}; pass a torch.optim.Optimizer")
    refuse_scaler(getattr(optimizer, "scaler", None))  # the wrapper of accelerate has one
    closure = inspect.signature(optimizer.step).parameters.get("closure")
    if closure is not None and closure.default is inspect.Parameter.empty:
        raise InvalidInput(
            f"{type(optimizer).__name__} evaluates the loss several times per step, and each time would cost a round; "
            "use an optimizer that takes one gradient per step, such as AdamW or SGD"
        )
    check_parameters(optimizer, model, trainable)


def check_parameters(optimizer: Optimizer, model: nn.Module, trainable: Mapping[str, nn.Parameter]) -> None:
    """Refuse an optimizer or a model whose parameters are not exactly those that were trainable when training began."""
    current = dict(model.named_parameters())
    replaced = [name for name, parameter in trainable.items() if current.get(name) is not parameter]
    if replaced:
        raise InvalidInput(
            f"{len(replaced)} trainable parameters of the model ({_listed(replaced)}) are other tensors than when "
            "training began, so the optimizer would update tensors that the model no longer uses. Moving, converting, "
            "wrapping or lazily loading a model can replace them; do that before the optimizer and the training are "
            "made"
        )
    given = {id(parameter) for group in optimizer.param_groups for parameter in group["params"]}
    expected = {id(parameter): name for name, parameter in trainable.items()}
    if given == expected.keys():
        return
    names = {id(parameter): name for name, parameter in model.named_parameters()}
    missing = [name for parameter, name in expected.items() if parameter not in given]
    unexpected = [names.get(parameter, "one of another model") for parameter in given - expected.keys()]
    if missing:
        raise InvalidInput(
            f"the optimizer lacks {len(missing)} trainable parameters ({_listed(missing)}), whose share of the noise "
            "would be wasted; give it all parameters that require a gradient, or freeze these before training begins"
        )
    raise InvalidInput(
        f"the optimizer has {len(unexpected)} parameters that are not trained privately ({_listed(unexpected)}); leave "
        "them out of it, or let them require a gradient before training begins"
    )


def check_scheduler(scheduler: object) -> None:
    """Refuse a schedule that follows a score: a score on private data is a release of its own."""
    if isinstance(scheduler, ReduceLROnPlateau):
        raise InvalidInput(
            "ReduceLROnPlateau sets the rate by a score, which on private data would be a release that no plan "
            "accounts for; use a schedule of the round alone, such as CosineAnnealingLR or LinearLR"
        )


def _listed(names: list[str]) -> str:
    return ", ".join(sorted(names)[:5]) + (", …" if len(names) > 5 else "")

"""The arguments of ``HushTrainer`` under a plan: settings and overrides that would break the guarantee are refused.

Settings that the plan decides (steps, clipping) are set here; those that hush takes over (bf16, compiling, shards) are
removed from the arguments, so that they are not applied twice.
"""

import copy
import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, final

import torch

from hush.errors import InvalidInput
from hush.plan import Plan

if TYPE_CHECKING:
    from transformers import TrainingArguments

__all__ = [
    "LAUNCHED_WITH_FSDP",
    "CheckedArguments",
    "checked_settings",
    "refuse_overrides",
    "refuse_selection",
]


LAUNCHED_WITH_FSDP = "ACCELERATE_USE_FSDP"  # in the environment, from accelerate launch --use_fsdp

_DEFAULT_EPOCHS = 3.0
_NOT_BY_FSDP2 = {
    "cpu_offload": "leave it out",
    "offload_params": "leave it out",
    "activation_checkpointing": "pass gradient_checkpointing=True instead",
    "xla": "leave it out",
}
_BY_METRIC = ("reduce_lr_on_plateau", "greedy")  # schedules that wait for an evaluation
_IN_BACKWARD = ("lomo", "adalomo")  # optimizers that step while gradients are computed, before clipping and noise


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class CheckedArguments:
    """Arguments for ``transformers.Trainer``, and the settings that were removed from them.

    shard: whether the parameters are sharded over all processes (FSDP2).
    """

    arguments: "TrainingArguments"
    autocast: torch.dtype | None
    compile: bool
    shard: bool


def checked_settings(
    args: "TrainingArguments", plan: Plan, *, callbacks: Sequence[object], eval_is_public: bool
) -> CheckedArguments:
    """The arguments as training under this plan needs them, in a copy; refuses those that contradict it."""
    for problem in (*_contradictions(args, plan), *_couplings(args), *_leaks(args), *_missing(args)):
        raise InvalidInput(problem)
    if not eval_is_public:
        refuse_selection(args, callbacks)
    copied = copy.copy(args)
    copied.max_steps = plan.rounds
    copied.max_grad_norm = 0.0  # each example's gradient is clipped; clipping the noisy mean again would only bias it
    copied.average_tokens_across_devices = False
    copied.save_only_model = True  # states to resume from, random ones above all, stay with the owner
    copied.bf16 = copied.torch_compile = False
    copied.torch_compile_backend, copied.torch_compile_mode = "no", None
    changed: Any = copied
    changed.mixed_precision = "no"
    shard = _asks_for_shards(args)
    if shard:
        changed.fsdp, changed.fsdp_plugin_args = False, None
    return CheckedArguments(
        arguments=copied, autocast=torch.bfloat16 if args.bf16 else None, compile=args.torch_compile, shard=shard
    )


def refuse_selection(args: "TrainingArguments", callbacks: Sequence[object]) -> None:
    """Refuse arguments by which a score of data that may hold secrets would choose something."""
    for what in _selections(args, callbacks):
        raise InvalidInput(
            f"{what} by a score. If the evaluation data hold secrets, that choice is a release of its own, which the "
            "plan does not account for; declare eval_is_public=True if they hold none, or leave it out"
        )


def _contradictions(args: "TrainingArguments", plan: Plan) -> Iterator[str]:
    if args.max_steps not in (-1, 0, plan.rounds):
        yield (
            f"max_steps={args.max_steps}, but the plan has {plan.rounds} rounds, and a step is a round; leave it out, "
            "or make a plan with that many rounds"
        )
    if args.num_train_epochs != _DEFAULT_EPOCHS:
        yield (
            f"num_train_epochs={args.num_train_epochs}, but there are no epochs: every round draws from all examples; "
            f"leave it out, the plan says {plan.rounds} rounds"
        )
    if args.gradient_accumulation_steps != 1:
        yield (
            f"gradient_accumulation_steps={args.gradient_accumulation_steps}, but the draw decides how many "
            "micro-batches a round has; leave it out, and set per_device_train_batch_size to what fits into memory"
        )
    if args.train_sampling_strategy != "random":
        yield (
            f"train_sampling_strategy={args.train_sampling_strategy!r}, but the plan says how examples are drawn; "
            "leave it out (to batch by length, pass buckets=)"
        )


def _couplings(args: "TrainingArguments") -> Iterator[str]:
    if args.fp16:
        yield "fp16=True needs a loss scaler, which skips steps when a private gradient overflows; use bf16=True"
    if args.label_smoothing_factor:
        yield (
            f"label_smoothing_factor={args.label_smoothing_factor} averages over the tokens of the whole batch, which "
            "ties examples together; leave it out, or smooth within each example in a loss= of your own"
        )
    if args.neftune_noise_alpha is not None:
        yield (
            "neftune_noise_alpha scales its noise by the padded length, which other examples may decide; leave it out"
        )
    if args.use_liger_kernel:
        yield "use_liger_kernel=True replaces losses by fused ones that normalise over the batch; leave it out"
    if _name(args.optim) in _IN_BACKWARD or _name(args.optim).endswith("_layerwise"):
        yield (
            f"optim={_name(args.optim)!r} steps during the backward pass, before clipping and noise; choose one "
            "that steps afterwards, such as adamw_torch"
        )


def _leaks(args: "TrainingArguments") -> Iterator[str]:
    if args.include_num_input_tokens_seen != "no":
        yield (
            f"include_num_input_tokens_seen={args.include_num_input_tokens_seen!r} would log the realised batch sizes, "
            "which reveal the secret draw; leave it out"
        )
    if args.auto_find_batch_size:
        yield (
            "auto_find_batch_size=True starts the training again when memory runs out; leave it out, and lower "
            "per_device_train_batch_size, which changes only the speed"
        )


def _missing(args: "TrainingArguments") -> Iterator[str]:
    """Features that bypass the clipped sums or the ledger."""
    if args.deepspeed or args.parallelism_config is not None:
        yield (
            "deepspeed and parallelism_config reduce raw gradients; leave them out, and start replicas or shards "
            "(fsdp=True) with torchrun or accelerate launch"
        )
    if _asks_for_shards(args):
        yield from _sharding_problems(args)
    if args.enable_jit_checkpoint:
        yield (
            "enable_jit_checkpoint=True writes a checkpoint in the middle of a round; leave it out: a training that is "
            "killed resumes with train(resume_from_checkpoint=True)"
        )
    if args.n_gpu > 1:
        yield (
            f"one process would split its batches over {args.n_gpu} GPUs and sum raw gradients; start a process for "
            "each GPU with torchrun or accelerate launch, or set CUDA_VISIBLE_DEVICES to one"
        )
    if args.save_on_each_node and args.world_size > 1:
        yield "save_on_each_node=True writes releases that no ledger lists; leave it out: the first process writes"


def _asks_for_shards(args: "TrainingArguments") -> bool:
    """Whether arguments or launcher ask for fully sharded parameters."""
    return bool(args.fsdp) or os.environ.get(LAUNCHED_WITH_FSDP, "false").lower() == "true"


def _sharding_problems(args: "TrainingArguments") -> Iterator[str]:
    """What hush's sharding, with FSDP2 and block by block, does not do."""
    config: Mapping[str, Any] = args.fsdp_config if args.fsdp and isinstance(args.fsdp_config, Mapping) else {}
    launched = {} if args.fsdp else {name: os.environ.get(f"FSDP_{name}".upper()) for name in _NOT_BY_FSDP2}
    version = config.get("version", 2) if args.fsdp else os.environ.get("FSDP_VERSION", "1")
    if str(version) != "2":
        yield (
            f"version {version} of FSDP reduces raw gradients; pass fsdp_config={{'version': 2}}, or "
            "accelerate launch --fsdp_version 2"
        )
    if args.world_size == 1:
        yield "fsdp shards over several processes, and there is one; start them with torchrun, or leave fsdp out"
    for name, remedy in _NOT_BY_FSDP2.items():
        if str(config.get(name) or launched.get(name) or False).lower() != "false":
            yield f"{name} of fsdp_config is not supported under a plan; {remedy}"
    if args.load_best_model_at_end:
        yield "load_best_model_at_end=True cannot load a model into shards; leave it out, and load the checkpoint"


def _selections(args: "TrainingArguments", callbacks: Sequence[object]) -> Iterator[str]:
    """Arguments that let a score decide which model is kept, or how it is trained."""
    from transformers import EarlyStoppingCallback

    if args.load_best_model_at_end:
        yield "load_best_model_at_end=True chooses the model"
    if _name(args.save_strategy) == "best":
        yield "save_strategy='best' chooses what is saved"
    if _name(args.lr_scheduler_type) in _BY_METRIC:
        yield f"lr_scheduler_type={_name(args.lr_scheduler_type)!r} sets the learning rate"
    early = (EarlyStoppingCallback,)
    if any(isinstance(callback, early) or callback in early for callback in callbacks):
        yield "EarlyStoppingCallback ends the training"


def _name(choice: object) -> str:
    """Transformers keeps choices as members of an enumeration, or as the strings that they stand for."""
    return str(getattr(choice, "value", choice))


# ---- data and collators ----


# ---- subclasses ----

_USE_LOSS = "pass loss=, a function of (model, batch) that returns one loss per example, each from that example alone"
_USE_DATA = "the plan draws the examples of a round; pass train_dataset= and data_collator="
_INSTEAD: Mapping[str, str] = {
    **dict.fromkeys(("compute_loss", "compute_loss_func", "training_step"), _USE_LOSS),
    **dict.fromkeys(
        (
            "get_train_dataloader",
            "get_batch_samples",
            "_get_train_sampler",
            "_get_dataloader",
            "_get_num_items_in_batch",
        ),
        _USE_DATA,
    ),
    "log": "pass callbacks=: what may be logged is decided here",
}
_OTHERWISE = "pass callbacks=, or train in a loop of your own with hush.train.PrivateTraining"

MAY_OVERRIDE = frozenset(
    (
        "create_model_card",
        "create_optimizer",
        "create_optimizer_and_scheduler",
        "create_scheduler",
        "evaluation_loop",
        "get_decay_parameter_names",
        "get_eval_dataloader",
        "get_test_dataloader",
        "num_examples",
        "prediction_step",
    )
)
"""Methods of the Trainer that a subclass may replace: they build the optimizer, or see evaluation data only."""


def refuse_overrides(trainer: object, base: type) -> None:
    """Refuse a subclass or an instance that replaces what training under a plan relies on, or never calls."""
    mro = type(trainer).__mro__
    owners: list[tuple[str, Mapping[str, Any]]] = [(kind.__name__, vars(kind)) for kind in mro[: mro.index(base)]]
    owners.append(("this trainer", {name: value for name, value in vars(trainer).items() if callable(value)}))
    for owner, attributes in owners:
        for name in attributes:
            replaced = callable(getattr(base, name, None)) and not name.startswith("__")
            if (replaced or name == "compute_loss_func") and name not in MAY_OVERRIDE:
                raise InvalidInput(
                    f"{owner} overrides {name}, which HushTrainer does not call or replaces by its own; "
                    f"{_INSTEAD.get(name, _OTHERWISE)}"
                )

"""``HushConfig``: the arguments that say how rows become tokens, under the names that TRL uses for the same.

``HushTrainer`` reads them from any arguments that have them, so ``trl.SFTConfig`` works too. What TRL offers besides
and training under a plan cannot, is refused here; what only changes TRL's speed is ignored.
"""

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any, Self, final

from transformers import TrainingArguments

from hush.data.chat import Learn
from hush.errors import InvalidInput

__all__ = ["HushConfig", "RowSettings"]


DEFAULT_TOKENS = 1024  # TRL's


@dataclass
class HushConfig(TrainingArguments):
    """``TrainingArguments`` with what ``trl.SFTConfig`` adds for data, by its names and defaults.

    dataset_text_field is the column of plain texts. max_length cuts every example by itself; a model that reads less
    decides. completion_only_loss: by default the completion alone is learnt of rows with a prompt, and everything of
    others. assistant_only_loss: of conversations, learn the answers alone. eos_token replaces the tokenizer's, and ends
    plain texts and completions. chat_template_path is a file that replaces the tokenizer's chat template. packing is
    here to be refused with a reason.
    """

    dataset_text_field: str = field(default="text", metadata={"help": "The column of plain texts."})
    max_length: int | None = field(default=DEFAULT_TOKENS, metadata={"help": "The most tokens of an example."})
    completion_only_loss: bool | None = field(default=None, metadata={"help": "Whether to learn completions alone."})
    assistant_only_loss: bool = field(default=False, metadata={"help": "Whether to learn answers alone."})
    eos_token: str | None = field(default=None, metadata={"help": "The token that ends a text."})
    chat_template_path: str | None = field(default=None, metadata={"help": "A file that ends in .jinja or .j2."})
    packing: bool = field(default=False, metadata={"help": "Refused: examples cannot share a sequence."})


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class RowSettings:
    """How rows become tokens. are_stated: whether the arguments have such settings at all. skip: data are prepared."""

    text_field: str = "text"
    max_length: int = DEFAULT_TOKENS
    learn: Learn | None = None
    eos_token: str | None = None
    chat_template_path: str | None = None
    are_stated: bool = False
    skip: bool = False

    @classmethod
    def of(cls, args: Any, *, column: str = "text") -> Self:
        """Those of any arguments; refuses what cannot be had under a plan. column: of plain texts, unless they say."""
        if not hasattr(args, "dataset_text_field"):
            return cls(text_field=column)
        for name, value, reason in _refused(args):
            raise InvalidInput(reason, setting=name, value=value)
        learn: Learn | None = None
        if args.assistant_only_loss:
            learn = "assistant"
        elif args.completion_only_loss is not None:
            learn = "completion" if args.completion_only_loss else "all"
        return cls(
            text_field=column if args.dataset_text_field == "text" else args.dataset_text_field,
            max_length=args.max_length,
            learn=learn,
            eos_token=args.eos_token,
            chat_template_path=args.chat_template_path,
            are_stated=True,
            skip=bool((getattr(args, "dataset_kwargs", None) or {}).get("skip_prepare_dataset")),
        )


_PACKING = (
    "several examples in one sequence cannot be clipped one by one; leave it out: examples are batched by length, "
    "which saves most of the padding (buckets= of HushTrainer)"
)


def _refused(args: Any) -> Iterator[tuple[str, object, str]]:
    """(setting, value, why and what to do) of what TRL offers and cannot be had."""

    def is_set(name: str) -> bool:
        return bool(getattr(args, name, None))

    for name in ("packing", "eval_packing", "padding_free"):
        if is_set(name):
            yield name, getattr(args, name), _PACKING
    if is_set("shuffle_dataset"):
        yield (
            "shuffle_dataset",
            True,
            "row i must be example i of the plan; leave it out: every round draws at random",
        )
    if args.max_length is None or args.max_length < 1:
        yield (
            "max_length",
            args.max_length,
            "pass a number of tokens: batches padded to the longest text would tell how long it is",
        )
    if getattr(args, "truncation_mode", "keep_start") != "keep_start":
        yield "truncation_mode", args.truncation_mode, "texts are cut at their end; leave it out"
    if getattr(args, "loss_type", "nll") != "nll":
        yield (
            "loss_type",
            args.loss_type,
            "the loss is each example's mean log-loss; pass another to HushTrainer as loss=, one number per example",
        )
    if is_set("router_aux_loss_coef"):
        yield (
            "router_aux_loss_coef",
            args.router_aux_loss_coef,
            "a load-balancing loss is one of the whole batch and ties examples together; leave it out",
        )
    if is_set("activation_offloading"):
        yield "activation_offloading", True, "leave it out, and lower per_device_train_batch_size to save memory"
    if is_set("model_init_kwargs"):
        yield (
            "model_init_kwargs",
            sorted(args.model_init_kwargs),
            "HushTrainer takes a model, not its name; load it with these arguments before",
        )
    if is_set("trust_remote_code"):
        yield "trust_remote_code", True, "hush runs no code of a model's repository; leave it out"
    if is_set("pad_token"):
        yield "pad_token", args.pad_token, "set processing_class.pad_token instead"
    path = getattr(args, "chat_template_path", None)
    if path is not None and not path.endswith((".jinja", ".jinja2", ".j2")):
        yield (
            "chat_template_path",
            path,
            "pass a file that ends in .jinja or .j2; to take another model's template and its tokens, call "
            "trl.clone_chat_template(model, tokenizer, ...) before",
        )

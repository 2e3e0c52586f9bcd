"""The settings of a training: options of ``hush train``, ``training:`` in a config. Imports no torch.

Settings that a run keeps to its end (:class:`Recipe`) are separate from those that only change its speed
(:class:`Runtime`). The guarantee holds for all of them.
"""

from typing import Annotated, Any, Literal, Self, final

from pydantic import BeforeValidator, Field, model_validator

from hush.data.chat import Learn
from hush.errors import InvalidInput, Setting
from hush.settings import YES_OR_NO, Count, Positive, Real, Settings, Text, Texts, Whole, wrong

__all__ = [
    "Learning",
    "Lora",
    "MetricSettings",
    "Part",
    "PublicFirst",
    "PublicPart",
    "Recipe",
    "Runtime",
    "Task",
    "learns_first",
]

Task = Literal["causal", "masked"]
Part = Literal["slot", "difference"]
DEFAULT_MAX_TOKENS = 512  # of an example, unless max_length is given
EVALUATIONS_PER_RUN = 20  # about as many as a run has, unless evaluate_every is given
MAX_LEARNING_RATE = 1e3  # above it, every optimizer overflows


@final
class Lora(Settings):
    """Low-rank adapters in place of full fine-tuning.

    targets: names of modules; by default chosen by PEFT. down: the down-projections start at random and are trained;
    or they are frozen, at random or along the leading directions of public gradients.
    """

    rank: Count = Field(default=8, description="a whole number of at least 1, such as 8")
    alpha: Positive = Field(default=16.0, description="a number above 0, such as 16")
    dropout: Real = Field(default=0.0, ge=0.0, lt=1.0, description="a number from 0 to less than 1")
    targets: Texts | None = Field(default=None, description="a list of names of modules, such as [q_proj, v_proj]")
    down: Literal["trained", "random", "public"] = "trained"


@final
class PublicPart(Settings):
    """Examples without secrets, added to each step without noise."""

    weight: Positive = Field(
        description="the factor of the mean gradient of examples without secrets, a number above 0"
    )
    batch: Count = Field(description="the number of examples without secrets per round, a whole number of at least 1")


@final
class MetricSettings(Settings):
    """A metric measured from public gradients, in which gradients are clipped and receive noise.

    With v the mean square of a coordinate over public examples, scales are v^exponent. floor: v counts at least this
    share of its parameter's mean. precondition: the update is divided by v to this power. count: public examples in a
    measurement, which is repeated before every so many rounds. corpus: by default what is public of the data.
    """

    exponent: Real = Field(default=-0.25, ge=-0.5, le=0.0, description="a number from -0.5 to 0, such as -0.25")
    floor: Real = Field(default=0.1, gt=0.0, le=1.0, description="a share above 0 and up to 1, such as 0.1")
    precondition: Real = Field(default=0.0, ge=0.0, le=1.0, description="a number from 0 to 1, such as 0.5")
    count: Count = Field(default=256, description="the number of public examples, a whole number of at least 1")
    every: Count = Field(default=100, description="a number of rounds, a whole number of at least 1")
    corpus: Text | None = Field(
        default=None, description="the path of texts that are public, or the name of a data set"
    )


def _metric_in_words(value: object) -> object:
    """A config may say `public` for the metric with its default settings, and `none`."""
    return {"public": {}, "none": None}.get(value, value) if isinstance(value, str) else value


@final
class PublicFirst(Settings):
    """Ordinary training on public examples before the private rounds: no clipping, no noise.

    learning_rate: by default the best of a few, by short trials on public examples. It ends when the loss on public
    examples that it keeps apart has not fallen for ``patience`` evaluations, or after ``epochs`` passes.
    """

    learning_rate: Positive | None = Field(
        default=None,
        le=MAX_LEARNING_RATE,
        description=f"a number above 0 and up to {MAX_LEARNING_RATE:g}, such as 5e-4",
    )
    batch: Count = Field(
        default=32, description="the number of public examples in a step, a whole number of at least 1"
    )
    epochs: Positive = Field(
        default=20.0, le=1e6, description="the most passes over the public examples, a number above 0 such as 20"
    )
    patience: Count = Field(
        default=5,
        description="the number of evaluations without a lower loss after which it ends, a whole number of at least 1",
    )


MIN_PUBLIC_EXAMPLES = 100  # with fewer nothing is learnt first, unless asked: too few to tell when to stop


def learns_first(public_first: "PublicFirst | bool | None", public: int) -> bool:
    """Whether this setting asks for a public part, where so many public examples are not held out.

    >>> learns_first(None, 100), learns_first(None, 99), learns_first(True, 99), learns_first(False, 1000)
    (True, False, True, False)
    """
    if public_first is None:
        return public >= MIN_PUBLIC_EXAMPLES
    if public_first is not False and public < 2:
        raise InvalidInput(
            f"it needs public examples to learn, and {public} are left; drop it, or hold out fewer",
            setting="public_first",
        )
    return public_first is not False


class Learning(Settings):
    """How the model learns.

    public_first: what is learnt before the private rounds, by ordinary training: true or its settings, or false. By
    default it is on where there are at least 100 public examples (``learns_first``).

    learning_rate: by default 5e-4 for AdamW, 1e-3 with adapters, and 0.1 for SGD. public: by default none, but with
    slots all examples that have a public part. part: what is learnt privately from an example with slots, the loss at
    the tokens of its slots or the difference of its loss and that of its skeleton. metric: by default none, the
    ordinary norm. trainable: what the private rounds train, by default everything; the rest stays as it is
    (:mod:`hush.train.trainable`). average: of the last rounds, the share over whose models the released one is the
    mean; by default the last model is released. learn: of conversations and of prompts with completions, what is
    learnt: all of it, the completions, or what the assistant says; by default completions where there are any,
    otherwise all.
    """

    task: Task | None = None
    lora: Lora | None = Field(default=None, description="a mapping with rank, alpha, dropout, targets or down")
    optimizer: Literal["adamw", "sgd"] = "adamw"
    learning_rate: Positive | None = Field(
        default=None,
        le=MAX_LEARNING_RATE,
        description=f"a number above 0 and up to {MAX_LEARNING_RATE:g}, such as 5e-4",
    )
    schedule: Literal["constant", "linear", "cosine"] = "linear"
    warmup: Whole = Field(default=0, ge=0, description="a number of rounds, a whole number of at least 0")
    max_length: Whole | None = Field(
        default=None,
        ge=2,
        description="the number of tokens to which texts are truncated, a whole number of at least 2",
    )
    bf16: bool = Field(default=False, description=YES_OR_NO)
    public: PublicPart | None = Field(default=None, description="a mapping with weight and batch")
    metric: Annotated[MetricSettings | None, BeforeValidator(_metric_in_words)] = Field(
        default=None,
        description="public, none, or a mapping with exponent, floor, precondition, count, every or corpus",
    )
    public_first: PublicFirst | bool | None = Field(
        default=None, description="true, false, or a mapping with learning_rate, batch, epochs or patience"
    )
    part: Part = "slot"
    trainable: Texts | None = Field(
        default=None,
        description="a list of norms, biases, head-bias or patterns of parameter names, such as [norms, biases]",
    )
    average: Positive | None = Field(
        default=None, le=1.0, description="a share of the rounds, above 0 and up to 1, such as 0.3"
    )
    learn: Learn | None = None

    @model_validator(mode="after")
    def _not_adapters_and_parts(self) -> Self:
        if self.lora is not None and self.trainable is not None:
            raise wrong("adapters are what is trained; drop ", Setting("trainable"), " or ", Setting("lora"))
        return self


@final
class Recipe(Learning):
    """What is trained and how; a run keeps its recipe to the end."""

    model: Text = Field(description="the name of a model on the hub, or the path of its folder")

    @classmethod
    def from_record(cls, record: dict[str, Any]) -> Self:
        """A recipe from its dump; version 0.1.0 wrote the settings of the public part as two fields."""
        stored = dict(record)
        weight, batch = stored.pop("public_weight", None), stored.pop("public_batch", None)
        if weight is not None and batch is not None:
            stored["public"] = {"weight": weight, "batch": batch}
        if stored.get("lora") and not stored["lora"].get("targets"):
            stored["lora"] = {**stored["lora"], "targets": None}
        return cls(**stored)


class Runtime(Settings):
    """Settings of speed and memory; a run may be resumed with others, and by another number of processes.

    evaluate_every: rounds between losses on the examples that the plan holds out; by default about 20 losses in all.
    shard: each of several processes holds a part of the model (FSDP2), instead of a copy.
    """

    micro_batch: Count = Field(
        default=32, description="the number of examples that the model processes at once, a whole number of at least 1"
    )
    compile: bool = Field(default=False, description=YES_OR_NO)
    gradient_checkpointing: bool = Field(default=False, description=YES_OR_NO)
    save_every: Count = Field(
        default=100, description="the number of rounds between checkpoints, a whole number of at least 1"
    )
    evaluate_every: Count | None = Field(
        default=None, description="the number of rounds between held-out losses, a whole number of at least 1"
    )
    device: Text | None = Field(default=None, description="cpu, cuda, cuda:1, …")
    shard: bool = Field(default=False, description=YES_OR_NO)

    @model_validator(mode="after")
    def _not_sharded_and_compiled(self) -> Self:
        if self.shard and self.compile:
            raise wrong("a sharded model cannot be compiled; drop ", Setting("shard"), " or ", Setting("compile"))
        return self

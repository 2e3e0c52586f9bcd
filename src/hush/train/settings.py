"""The settings of a training, stated once: the options of ``hush train`` and ``training:`` in a config. Needs no torch.

What a run keeps to its end (:class:`Recipe`) is apart from what only changes its speed (:class:`Runtime`). The
guarantee holds for any of them.
"""

from typing import Any, Literal, Self, final

from pydantic import Field, model_validator

from hush.errors import Setting
from hush.settings import YES_OR_NO, Count, Positive, Real, Settings, Text, Texts, Whole, wrong

__all__ = ["Learning", "Lora", "PublicPart", "Recipe", "Runtime", "Task"]

Task = Literal["causal", "masked"]
MAX_LEARNING_RATE = 1e3  # beyond it, every optimizer overflows


@final
class Lora(Settings):
    """Low-rank adapters in place of full fine-tuning. targets: names of modules; by default PEFT chooses them."""

    rank: Count = Field(default=8, description="a whole number from 1 on, such as 8")
    alpha: Positive = Field(default=16.0, description="a number above 0, such as 16")
    dropout: Real = Field(default=0.0, ge=0.0, lt=1.0, description="a number from 0 to less than 1")
    targets: Texts | None = Field(default=None, description="a list of names of modules, such as [q_proj, v_proj]")


@final
class PublicPart(Settings):
    """Examples without secrets, added to each step without noise."""

    weight: Positive = Field(description="what their mean gradient is multiplied by, a number above 0")
    batch: Count = Field(description="how many of them in each round, a whole number from 1 on")


class Learning(Settings):
    """How the model learns.

    learning_rate is, by default, 5e-4 for AdamW, 1e-3 with adapters, and 0.1 for SGD.
    """

    task: Task | None = None
    lora: Lora | None = Field(default=None, description="a mapping with rank, alpha, dropout or targets")
    optimizer: Literal["adamw", "sgd"] = "adamw"
    learning_rate: Positive | None = Field(
        default=None,
        le=MAX_LEARNING_RATE,
        description=f"a number above 0 and up to {MAX_LEARNING_RATE:g}, such as 5e-4",
    )
    schedule: Literal["constant", "linear", "cosine"] = "linear"
    warmup: Whole = Field(default=0, ge=0, description="a number of rounds, a whole number from 0 on")
    max_length: Whole | None = Field(
        default=None, ge=2, description="the tokens to which texts are cut, a whole number from 2 on"
    )
    bf16: bool = Field(default=False, description=YES_OR_NO)
    public: PublicPart | None = Field(default=None, description="a mapping with weight and batch")


@final
class Recipe(Learning):
    """What is trained and how; a run keeps its recipe to the end."""

    model: Text = Field(description="the name of a model on the hub, or the path of its folder")

    @classmethod
    def from_record(cls, record: dict[str, Any]) -> Self:
        """A recipe from its dump; version 0.1.0 wrote the two settings of the public part beside each other."""
        stored = dict(record)
        weight, batch = stored.pop("public_weight", None), stored.pop("public_batch", None)
        if weight is not None and batch is not None:
            stored["public"] = {"weight": weight, "batch": batch}
        if stored.get("lora") and not stored["lora"].get("targets"):
            stored["lora"] = {**stored["lora"], "targets": None}
        return cls(**stored)


class Runtime(Settings):
    """What changes no model, only speed and memory; a run may be resumed with another, by another number of processes.

    evaluate_every: rounds between losses on the examples that the plan holds out; by default about 20 losses in all.
    shard: several processes hold a part of the model each (FSDP2), instead of a copy.
    """

    micro_batch: Count = Field(
        default=32, description="how many examples the model sees at once, a whole number from 1 on"
    )
    compile: bool = Field(default=False, description=YES_OR_NO)
    gradient_checkpointing: bool = Field(default=False, description=YES_OR_NO)
    save_every: Count = Field(default=100, description="rounds between states to resume from, a whole number from 1 on")
    evaluate_every: Count | None = Field(
        default=None, description="rounds between losses on what is held out, a whole number from 1 on"
    )
    device: Text | None = Field(default=None, description="cpu, cuda, cuda:1, …")
    shard: bool = Field(default=False, description=YES_OR_NO)

    @model_validator(mode="after")
    def _one_kind_of_model(self) -> Self:
        if self.shard and self.compile:
            raise wrong("a sharded model cannot be compiled; drop ", Setting("shard"), " or ", Setting("compile"))
        return self

"""What a config asks of training, as arguments of ``fit``."""

from typing import TYPE_CHECKING

from hush.config import Config
from hush.errors import InvalidInput

if TYPE_CHECKING:
    from hush.train.recipe import Recipe, Runtime

__all__ = ["check_libraries", "recipe_of", "runtime_of"]


def recipe_of(config: Config, model: str) -> "Recipe":
    """What is trained and how. model: a name, or a folder."""
    from hush.train.pretrained import Lora
    from hush.train.recipe import Recipe

    asked = config.training
    lora = None
    if (wanted := asked.lora) is not None:
        lora = Lora(rank=wanted.rank, alpha=wanted.alpha, dropout=wanted.dropout, targets=wanted.targets or ())
    return Recipe(
        model=model,
        task=asked.task,
        lora=lora,
        optimizer=asked.optimizer,
        learning_rate=asked.learning_rate,
        schedule=asked.schedule,
        warmup=asked.warmup,
        max_length=asked.max_length,
        bf16=asked.bf16,
        public_weight=None if asked.public is None else asked.public.weight,
        public_batch=None if asked.public is None else asked.public.batch,
    )


def runtime_of(config: Config) -> "Runtime":
    """What changes no model."""
    from hush.train.recipe import Runtime

    asked = config.training
    return Runtime(
        micro_batch=asked.micro_batch,
        compile=asked.compile,
        gradient_checkpointing=asked.gradient_checkpointing,
        save_every=asked.save_every,
        evaluate_every=asked.evaluate_every,
        device=asked.device,
    )


def check_libraries() -> None:
    """Say what to install where torch or transformers are missing."""
    try:
        import torch  # noqa: F401
        import transformers  # noqa: F401
    except ImportError as error:
        raise InvalidInput(f'training needs the library {error.name}; pip install "hush[hf]"') from error

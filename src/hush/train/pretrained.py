"""Pretrained language models by name or folder: metadata, loading with the tokenizer, LoRA, sharding, export, device.

:func:`model_metadata` reads what a model's small files say (its kind, its tokenizer, how many tokens it takes), so that
a setting that does not fit is refused before any weights are loaded. Everything goes through the Auto classes of
transformers, which are imported when they are needed.
"""

from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, final

import torch
import torch.distributed as dist
from torch import nn

from hush.errors import InvalidInput, Setting
from hush.train.language_models import CausalCollator, Collator, Loss, MaskedCollator, causal_lm_loss, masked_lm_loss
from hush.train.preconditions import positions_of
from hush.train.settings import DEFAULT_MAX_TOKENS, Lora, Recipe, Runtime, Task
from hush.train.slots.texts import add_placeholder_tokens
from hush.train.trainable import train_only

__all__ = [
    "ModelMetadata",
    "Pretrained",
    "blocks_of",
    "check_fits",
    "choose_device",
    "load_for_training",
    "load_pretrained",
    "longest_text",
    "model_metadata",
    "needed",
    "shard_blocks",
    "unloaded",
]


WEIGHT_FILES = ("*.safetensors", "*.bin")  # of a model in a folder
_TASK_BY_CLASS_SUFFIX: dict[str, Task] = {"ForCausalLM": "causal", "LMHeadModel": "causal", "ForMaskedLM": "masked"}


@final
@dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class ModelMetadata:
    """A language model without its weights: configuration and tokenizer. source: the name that transformers loads."""

    name: str
    source: str
    config: Any
    tokenizer: Any
    task: Task
    max_length: int

    def load(self, dtype: torch.dtype) -> Any:
        """The model with its weights."""
        with _loading(self.name, f"{self.task} language model"):
            return self._kind().from_pretrained(self.source, config=self.config, dtype=dtype, trust_remote_code=False)

    def skeleton(self) -> Any:
        """Its modules without memory for their weights; a folder without weights is refused."""
        self.check_weights()
        with _loading(self.name, f"{self.task} language model"), torch.device("meta"):
            return self._kind().from_config(self.config, trust_remote_code=False)

    def check_weights(self) -> None:
        """Refuse a folder without weights."""
        folder = Path(self.source)
        if folder.is_dir() and not any(path for pattern in WEIGHT_FILES for path in folder.glob(pattern)):
            raise InvalidInput(f"{self.name} holds no weights ({', '.join(WEIGHT_FILES)}); check the folder")

    @property
    def is_known(self) -> bool:
        """Whether the configuration alone tells that the library has modules for it and an embedding for each token."""
        from transformers.models.auto import modeling_auto as auto

        names = (
            auto.MODEL_FOR_CAUSAL_LM_MAPPING_NAMES if self.task == "causal" else auto.MODEL_FOR_MASKED_LM_MAPPING_NAMES
        )
        words = getattr(self.config.get_text_config(), "vocab_size", None) or 0
        return self.config.model_type in names and len(self.tokenizer) <= words

    def _kind(self) -> Any:
        from transformers import AutoModelForCausalLM, AutoModelForMaskedLM

        return AutoModelForCausalLM if self.task == "causal" else AutoModelForMaskedLM


def model_metadata(name: str, *, task: Task | None, max_length: int | None) -> ModelMetadata:
    """The metadata of the model of this name or in this folder; refuses a task or max_length that does not fit it."""
    with needed("language models", "transformers"):
        from transformers import AutoConfig, AutoTokenizer
    # An absolute path, so that a release can tell it from a name of the hub, whatever the working directory.
    source = str(Path(name).resolve()) if Path(name).is_dir() else name
    with _loading(name, "configuration"):
        config: Any = AutoConfig.from_pretrained(source, trust_remote_code=False)
    chosen = task or _task_of(config, name)
    with _loading(name, "tokenizer"):
        tokenizer: Any = AutoTokenizer.from_pretrained(source, trust_remote_code=False)
    # If there is none, transformers makes one of special tokens alone: every text would be empty or unknown.
    if set(tokenizer.get_vocab().values()) <= set(tokenizer.all_special_ids):
        raise InvalidInput(f"{name} holds no tokenizer; save it there too, with tokenizer.save_pretrained")
    if chosen == "masked" and tokenizer.mask_token_id is None:
        raise InvalidInput(
            f"the tokenizer of {name} has no mask token; add one, or train it as a causal model: ",
            Setting("task"),
            "=causal",
            setting="task",
        )
    # Nothing precedes the first token from which to predict it, and tokens that the tokenizer adds are not learnt.
    shortest, longest = max(2, tokenizer.num_special_tokens_to_add() + 1), longest_text(config, tokenizer)
    length = min(DEFAULT_MAX_TOKENS, longest) if max_length is None else max_length
    if not shortest <= length <= longest:
        raise InvalidInput(f"{name} takes from {shortest} to {longest} tokens", setting="max_length", value=length)
    return ModelMetadata(name=name, source=source, config=config, tokenizer=tokenizer, task=chosen, max_length=length)


def _task_of(config: Any, name: str) -> Task:
    """The task of a model, by the class that its configuration names."""
    for architecture in config.architectures or ():
        for ending, task in _TASK_BY_CLASS_SUFFIX.items():
            if architecture.endswith(ending) and not architecture.endswith("WithLMHeadModel"):
                return task
    raise InvalidInput(
        f"{name} does not say whether it is a causal or a masked language model "
        f"(its architectures are {config.architectures}); pass ",
        Setting("task"),
        "=causal or ",
        Setting("task"),
        "=masked",
        setting="task",
    )


def longest_text(config: Any, tokenizer: Any) -> int:
    """The most tokens that model and tokenizer take; some tokenizers state a huge number."""
    text: Any = config.get_text_config()
    positions = positions_of(text) or getattr(text, "max_position_embeddings", None) or DEFAULT_MAX_TOKENS
    return min(int(positions), int(min(tokenizer.model_max_length, 10**9)))


@contextmanager
def needed(what: str, library: str) -> Iterator[None]:
    """Import inside; if that fails, the message says what to install."""
    try:
        yield
    except ImportError as error:
        raise InvalidInput(f'{what} need the library {library}; install it with pip install "hush[hf]"') from error


@contextmanager
def _loading(name: str, what: str) -> Iterator[None]:
    try:
        yield
    except (OSError, ValueError, KeyError, ImportError, RuntimeError) as error:
        where = "the folder" if Path(name).is_dir() else "the name, the network and access to the hub, or pass a folder"
        first_line = (str(error).strip().splitlines() or [type(error).__name__])[0].strip()
        why = "" if first_line.endswith(":") else f" ({first_line})"  # the list after it is about the library's code
        raise InvalidInput(f"{name}: its {what} cannot be loaded{why}; check {where}") from error


@final
@dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class Pretrained:
    """A model with its tokenizer and its task. Texts are truncated to ``max_length`` tokens."""

    model: nn.Module
    tokenizer: Any
    task: Task
    max_length: int

    @property
    def loss(self) -> Loss:
        """One loss per example, from that example alone."""
        return causal_lm_loss if self.task == "causal" else masked_lm_loss

    def collator(self, length: int) -> Collator:
        """Makes batches of this length from rows of tokens."""
        tokenizer = self.tokenizer
        # Without a padding token any token will do: padding is masked and has no label.
        padding = next(id for id in (tokenizer.pad_token_id, tokenizer.eos_token_id, 0) if id is not None)
        if self.task == "causal":
            return CausalCollator(length=length, padding=padding)
        return MaskedCollator(
            length=length,
            padding=padding,
            mask=tokenizer.mask_token_id,
            vocabulary=len(tokenizer),
            special=frozenset(tokenizer.all_special_ids),
        )

    def export(self, folder: Path) -> None:
        """Write model (or adapters) and tokenizer in the form that from_pretrained reads."""
        model: Any = self.model
        model.save_pretrained(folder)
        self.tokenizer.save_pretrained(folder)

    def with_lora(self, lora: Lora) -> "Pretrained":
        """The same model, frozen, with adapters to train."""
        with needed("LoRA", "peft"):
            from peft import LoraConfig, get_peft_model
        config = LoraConfig(
            r=lora.rank,
            lora_alpha=lora.alpha,  # pyright: ignore[reportArgumentType]
            lora_dropout=lora.dropout,
            target_modules=None if lora.targets is None else list(lora.targets),
            # GPT-2 keeps its linear layers as Conv1D, whose weight is [in, out].
            fan_in_fan_out=any(type(module).__name__ == "Conv1D" for module in self.model.modules()),
            task_type="CAUSAL_LM" if self.task == "causal" else None,
        )
        try:
            model: Any = get_peft_model(self.model, config)  # pyright: ignore[reportArgumentType]
        except ValueError as error:
            raise InvalidInput(
                f"LoRA does not fit this model ({error}); name the modules to adapt: ",
                Setting("lora.targets"),
                setting="lora.targets",
            ) from error
        return replace(self, model=model)


def shard_blocks(model: nn.Module, device: torch.device) -> None:
    """Shard the parameters over all processes, block by block; a block is gathered only while it computes."""
    from torch.distributed.device_mesh import init_device_mesh  # slow to import, and one process needs neither
    from torch.distributed.fsdp import fully_shard

    mesh = init_device_mesh(device.type, (dist.get_world_size(),))
    for block in blocks_of(model):
        fully_shard(block, mesh=mesh)
    fully_shard(model, mesh=mesh)


def blocks_of(model: nn.Module) -> list[nn.Module]:
    """The blocks of a transformer: the members of its outermost lists of modules.

    A block whose weights are also used outside of it is left out: sharded by itself, it would no longer share them.
    """
    lists: list[nn.ModuleList] = []
    for module in model.modules():  # from the outside in
        if isinstance(module, nn.ModuleList) and not any(module in outer.modules() for outer in lists):
            lists.append(module)
    blocks = list({id(block): block for members in lists for block in members}.values())
    uses = _uses(model)
    return [block for block in blocks if (inside := _uses(block)) and all(uses[key] == inside[key] for key in inside)]


def _uses(module: nn.Module) -> Counter[int]:
    """How often each parameter occurs in a module; tied ones occur several times."""
    return Counter(id(parameter) for _, parameter in module.named_parameters(remove_duplicate=False))


def load_pretrained(
    name: str, *, task: Task | None = None, max_length: int | None = None, dtype: torch.dtype = torch.float32
) -> Pretrained:
    """The language model of this name or in this folder, in training mode, with its tokenizer.

    task: "causal" or "masked"; by default what the model's own configuration says it was made for. max_length: by
    default what the model can take, at most DEFAULT_MAX_TOKENS.
    """
    metadata = model_metadata(name, task=task, max_length=max_length)
    return _with_model(metadata, metadata.load(dtype).train())


def load_for_training(recipe: Recipe, runtime: Runtime, device: torch.device, rules: Sequence[str]) -> Pretrained:
    """The model of a recipe on its device, with its adapters, or with a token for the placeholder of each rule."""
    # Frozen weights may be in half precision; trained ones stay float32, as noise and small steps require.
    dtype = torch.bfloat16 if recipe.bf16 and recipe.lora else torch.float32
    pretrained = load_pretrained(recipe.model, task=recipe.task, max_length=recipe.max_length, dtype=dtype)
    if runtime.gradient_checkpointing:
        model: Any = pretrained.model
        model.gradient_checkpointing_enable(gradient_checkpointing_kwargs={"use_reentrant": False})
    if recipe.lora is not None:  # adapters are released alone: the model that they fit keeps its vocabulary
        pretrained = pretrained.with_lora(recipe.lora)
    elif rules:
        add_placeholder_tokens(pretrained.model, pretrained.tokenizer, rules)
    if not runtime.shard:  # shards are moved to the device one by one
        pretrained.model.to(device)
    return pretrained


def unloaded(name: str, *, task: Task | None = None, max_length: int | None = None) -> Pretrained:
    """The same without its weights, which are neither read nor allocated: to check settings before a long start."""
    metadata = model_metadata(name, task=task, max_length=max_length)
    return _with_model(metadata, metadata.skeleton())


def _with_model(metadata: ModelMetadata, model: Any) -> Pretrained:
    words = model.get_input_embeddings().num_embeddings
    if len(metadata.tokenizer) > words:
        raise InvalidInput(
            f"the tokenizer of {metadata.name} knows {len(metadata.tokenizer)} tokens but the model has embeddings "
            f"for {words}; resize them first with model.resize_token_embeddings"
        )
    return Pretrained(model=model, tokenizer=metadata.tokenizer, task=metadata.task, max_length=metadata.max_length)


def check_fits(recipe: Recipe, *, quickly: bool = False) -> None:
    """Refuse a recipe that does not fit its model, as far as the model's small files tell.

    quickly: without making the modules, whose code takes seconds to import, unless the recipe names some of them or the
    configuration does not tell enough.
    """
    metadata = model_metadata(recipe.model, task=recipe.task, max_length=recipe.max_length)
    if quickly and recipe.lora is None and recipe.trainable is None and metadata.is_known:
        metadata.check_weights()
        return
    pretrained = _with_model(metadata, metadata.skeleton())
    if recipe.lora is not None:
        pretrained.with_lora(recipe.lora)
    if recipe.trainable is not None:
        train_only(pretrained.model, recipe.trainable)


def choose_device(name: str | None) -> torch.device:
    """The device of this name; by default a GPU, if there is one. Refuses a device that cannot be used here."""
    chosen = name or ("cuda" if torch.cuda.is_available() else "cpu")
    try:
        device = torch.device(chosen)
        torch.empty(0, device=device)
    except (RuntimeError, AssertionError) as error:
        reason = str(error).splitlines()[0]
        raise InvalidInput(f"it cannot be used here ({reason})", setting="device", value=chosen) from error
    return device

"""Language models by name or folder: loaded with their tokenizer, fitted with LoRA, cut over processes, exported.

What a model says of itself before its weights are loaded: its kind, its tokenizer, how many tokens it takes.

Everything here goes through transformers' Auto classes, which are imported when they are needed.
"""

from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, final

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard

from hush.errors import InvalidInput
from hush.train.language_models import CausalCollator, Collator, Loss, MaskedCollator, causal_lm_loss, masked_lm_loss
from hush.train.preconditions import positions_of
from hush.train.settings import Lora, Task

__all__ = ["Described", "Pretrained", "blocks_of", "describe", "load_pretrained", "needed", "unloaded"]


MOST_TOKENS = 512  # of an example, unless told otherwise
WEIGHTS = ("*.safetensors", "*.bin")  # of a model in a folder
_ENDINGS: dict[str, Task] = {"ForCausalLM": "causal", "LMHeadModel": "causal", "ForMaskedLM": "masked"}


@final
@dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class Described:
    """A language model by its configuration and its tokenizer. source: what transformers is asked for."""

    name: str
    source: str
    config: Any
    tokenizer: Any
    task: Task
    max_length: int

    def load(self, dtype: torch.dtype) -> Any:
        """The model with its weights."""
        with _loading(self.name, f"{self.task} language model"):
            return self._kind().from_pretrained(self.source, config=self.config, dtype=dtype)

    def skeleton(self) -> Any:
        """Its modules without memory for their weights; a folder without any weights is refused."""
        folder = Path(self.source)
        if folder.is_dir() and not any(path for pattern in WEIGHTS for path in folder.glob(pattern)):
            raise InvalidInput(f"{self.name} holds no weights ({', '.join(WEIGHTS)}); check the folder")
        with _loading(self.name, f"{self.task} language model"), torch.device("meta"):
            return self._kind().from_config(self.config)

    def _kind(self) -> Any:
        from transformers import AutoModelForCausalLM, AutoModelForMaskedLM

        return AutoModelForCausalLM if self.task == "causal" else AutoModelForMaskedLM


def describe(name: str, *, task: Task | None, max_length: int | None) -> Described:
    """The model of this name or in this folder, for this task, with texts of so many tokens: whether that fits."""
    with needed("language models", "transformers"):
        from transformers import AutoConfig, AutoTokenizer
    # A folder in full: a release must tell it from a name of the hub, wherever it is written from.
    source = str(Path(name).resolve()) if Path(name).is_dir() else name
    with _loading(name, "configuration"):
        config: Any = AutoConfig.from_pretrained(source)
    chosen = task or _task_of(config, name)
    with _loading(name, "tokenizer"):
        tokenizer: Any = AutoTokenizer.from_pretrained(source)
    # Where there is none, transformers makes one up of special tokens: every text would be empty or unknown.
    if set(tokenizer.get_vocab().values()) <= set(tokenizer.all_special_ids):
        raise InvalidInput(f"{name} holds no tokenizer; save it there too, with tokenizer.save_pretrained")
    if chosen == "masked" and tokenizer.mask_token_id is None:
        raise InvalidInput(f"the tokenizer of {name} has no mask token; train it with --task causal, or add one")
    # A first token has nothing before it to be predicted from, and those that the tokenizer adds are not learnt.
    least, room = max(2, tokenizer.num_special_tokens_to_add() + 1), _room(config, tokenizer)
    length = min(MOST_TOKENS, room) if max_length is None else max_length
    if not least <= length <= room:
        raise InvalidInput(f"--max-length={length}; {name} takes from {least} to {room} tokens")
    return Described(name=name, source=source, config=config, tokenizer=tokenizer, task=chosen, max_length=length)


def _task_of(config: Any, name: str) -> Task:
    """What a model was made for, by the class that its configuration names."""
    for architecture in config.architectures or ():
        for ending, task in _ENDINGS.items():
            if architecture.endswith(ending) and not architecture.endswith("WithLMHeadModel"):
                return task
    raise InvalidInput(
        f"{name} does not say whether it is a causal or a masked language model "
        f"(its architectures are {config.architectures}); pass --task causal or --task masked"
    )


def _room(config: Any, tokenizer: Any) -> int:
    """The most tokens that model and tokenizer take, each text on its own; some tokenizers state a huge number."""
    text: Any = config.get_text_config()
    positions = positions_of(text) or getattr(text, "max_position_embeddings", None) or MOST_TOKENS
    return min(int(positions), int(min(tokenizer.model_max_length, 10**9)))


@contextmanager
def needed(what: str, library: str) -> Iterator[None]:
    """Imports inside may fail; the message then says what to install."""
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
        said = (str(error).strip().splitlines() or [type(error).__name__])[0].strip()
        why = "" if said.endswith(":") else f" ({said})"  # a list that follows is for those who know the library
        raise InvalidInput(f"{name}: its {what} cannot be loaded{why}; check {where}") from error


@final
@dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class Pretrained:
    """A model with its tokenizer and its task. Texts are cut to ``max_length`` tokens."""

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
        # Without a padding token any will do: padding is masked, and no label lies there.
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

    def shard(self, device: torch.device) -> None:
        """Cut the parameters over all processes, block by block; each block stands whole only while it computes."""
        mesh = init_device_mesh(device.type, (dist.get_world_size(),))
        for block in blocks_of(self.model):
            fully_shard(block, mesh=mesh)
        fully_shard(self.model, mesh=mesh)

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
                f"LoRA does not fit this model ({error}); name its modules with --lora-target"
            ) from error
        return replace(self, model=model)


def blocks_of(model: nn.Module) -> list[nn.Module]:
    """The blocks of a transformer: the members of its outermost lists of modules.

    One whose weights are used outside of it too is left out: cut by itself, it would no longer share them.
    """
    lists: list[nn.ModuleList] = []
    for module in model.modules():  # from the outside in
        if isinstance(module, nn.ModuleList) and not any(module in outer.modules() for outer in lists):
            lists.append(module)
    blocks = list({id(block): block for members in lists for block in members}.values())
    uses = _uses(model)
    return [block for block in blocks if (own := _uses(block)) and all(uses[one] == own[one] for one in own)]


def _uses(module: nn.Module) -> Counter[int]:
    """How often each parameter stands in a module; tied ones stand there several times."""
    return Counter(id(parameter) for _, parameter in module.named_parameters(remove_duplicate=False))


def load_pretrained(
    name: str, *, task: Task | None = None, max_length: int | None = None, dtype: torch.dtype = torch.float32
) -> Pretrained:
    """The language model of this name or in this folder, in training mode, with its tokenizer.

    task: "causal" or "masked"; by default what the model's own configuration says it was made for. max_length: by
    default what the model can take, at most 512.
    """
    described = describe(name, task=task, max_length=max_length)
    return _with_model(described, described.load(dtype).train())


def unloaded(name: str, *, task: Task | None = None, max_length: int | None = None) -> Pretrained:
    """The same without its weights, which are neither read nor made: to learn in time that it does not fit."""
    described = describe(name, task=task, max_length=max_length)
    return _with_model(described, described.skeleton())


def _with_model(described: Described, model: Any) -> Pretrained:
    words = model.get_input_embeddings().num_embeddings
    if len(described.tokenizer) > words:
        raise InvalidInput(
            f"the tokenizer of {described.name} knows {len(described.tokenizer)} tokens but the model has embeddings "
            f"for {words}; resize them first with model.resize_token_embeddings"
        )
    return Pretrained(model=model, tokenizer=described.tokenizer, task=described.task, max_length=described.max_length)

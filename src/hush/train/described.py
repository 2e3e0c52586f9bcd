"""What a model says of itself before its weights are loaded: its kind, its tokenizer, how many tokens it takes.

Everything here goes through transformers' Auto classes, which are imported when they are needed.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, final

import torch

from hush.errors import InvalidInput
from hush.train.positions import positions_of

__all__ = ["Described", "Task", "describe", "needed"]

Task = Literal["causal", "masked"]

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

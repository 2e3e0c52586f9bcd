"""Language models as the audit runs them: loaded from any folder, still, cached, and in batches that need no padding.

A batch holds prompts of one length, so positions and attention are those of each sequence alone, and no mask is needed.
``greedy_tokens`` decodes. ``along_targets`` walks along known targets instead, many tokens a pass: greedy decoding
produces a target exactly if each of its tokens is the likeliest after the tokens before it, so what a model would say
need not be decoded to be compared.

Shapes: B rows, K tokens of a prompt, M tokens of a target, C of a piece of it, V words of the vocabulary.
"""

import inspect
import json
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Self, final

import torch
from torch import Tensor, nn

from hush.errors import InvalidInput
from hush.train.pretrained import Task, load_pretrained
from hush.train.run_folder import LOCAL_BASE, local_base_of

__all__ = ["Subject", "along_targets", "greedy_tokens", "load_subject", "matching_tokens", "still"]


FIRST_PIECE, LARGEST_PIECE = 8, 64  # tokens of targets that are looked at in one pass: most rows end with the first
_MEGABYTES = 256  # that the logits of a batch may take on a CPU; beyond it larger batches are no faster
_MOST_ROWS = {"cpu": 32, "cuda": 1024}  # a CPU gains nothing from more, and its caches lose


@final
@dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class Subject:
    """A model under audit: the most tokens it takes (``room``), and how many words it has embeddings for."""

    model: nn.Module
    room: int
    vocabulary: int

    @classmethod
    def of(cls, model: nn.Module, *, room: int | None = None) -> Self:
        """Any Hugging Face language model, adapters included; room is by default what its configuration says."""
        inner: Any = model
        if not hasattr(inner, "get_input_embeddings") or not hasattr(inner, "config"):
            raise InvalidInput(f"{type(model).__name__} is no Hugging Face language model; pass one, or a folder of it")
        stated = getattr(inner.config.get_text_config(), "max_position_embeddings", None)
        positions = int(stated) if stated else 2**31
        if room is not None and not 1 <= room <= positions:
            raise InvalidInput(f"room={room}; {type(model).__name__} takes from 1 to {positions} tokens")
        return cls(
            model=model,
            room=positions if room is None else room,
            vocabulary=int(inner.get_input_embeddings().num_embeddings),
        )

    @property
    def device(self) -> torch.device:
        return next(self.model.parameters()).device

    def batch_rows(self, tokens: int, *, logits: int = LARGEST_PIECE) -> int:
        """How many rows of this many tokens, with logits of so many at once, the memory for logits and cache allows."""
        config: Any = self.model.config.get_text_config()  # pyright: ignore[reportAttributeAccessIssue,reportCallIssue]
        cache = 2 * tokens * getattr(config, "num_hidden_layers", 12) * getattr(config, "hidden_size", 768)
        row = 4 * (3 * min(tokens, logits) * self.vocabulary + cache)  # logits, their copy, what is made of them
        if self.device.type == "cuda":
            free = torch.cuda.mem_get_info(self.device)[0] // 3
        else:
            free = _MEGABYTES * 2**20
        return max(1, min(free // row, _MOST_ROWS.get(self.device.type, 256)))

    def __repr__(self) -> str:
        return f"Subject({type(self.model).__name__}, room={self.room}, vocabulary={self.vocabulary})"


def load_subject(
    name: str, *, task: Task | None = None, device: str | torch.device = "cpu", dtype: torch.dtype = torch.float32
) -> tuple[Subject, Any]:
    """The model of this name or in this folder, whole or adapters, on a device, with its tokenizer.

    dtype=torch.bfloat16 is for speed on devices: near-ties between tokens may then fall the other way.
    """
    base = _base_of_adapters(Path(name))
    loaded = load_pretrained(name if base is None else base, task=task, dtype=dtype)
    model: Any = loaded.model
    if base is not None:
        try:
            from peft import PeftModel
        except ImportError as error:
            raise InvalidInput('adapters need the library peft; install it with pip install "hush[hf]"') from error
        model = PeftModel.from_pretrained(model, name)
    subject = Subject.of(model.to(device).eval())
    # Some models count positions from beyond 0, and only the tokenizer knows; those without a limit state a huge one.
    return replace(subject, room=min(subject.room, int(loaded.tokenizer.model_max_length))), loaded.tokenizer


def _base_of_adapters(folder: Path) -> str | None:
    """The model that adapters in a folder belong to; None if the folder holds no adapters, or a whole model."""
    adapters = folder / "adapter_config.json"
    if not adapters.is_file() or (folder / "config.json").is_file():
        return None
    base = json.loads(adapters.read_text()).get("base_model_name_or_path")
    if not base:
        raise InvalidInput(f"{adapters} does not name the model that the adapters belong to; load and pass the model")
    if base == LOCAL_BASE:
        base = local_base_of(folder)
    if base is None:
        raise InvalidInput(f"{adapters} is of a local base model, whose path stays with the run; pass the run's folder")
    return str(base)


@contextmanager
def still(model: nn.Module) -> Iterator[None]:
    """No dropout and no gradients inside; every module's mode is put back afterwards."""
    modes = {module: module.training for module in model.modules()}
    model.eval()
    try:
        with torch.no_grad():
            yield
    finally:
        for module, training in modes.items():
            module.training = training


Judge = Callable[[Tensor, int, Tensor], Tensor]


def along_targets(subject: Subject, prompt_BK: Tensor, target_BM: Tensor, judge: Judge) -> None:
    """Show the judge the logits for each token of the targets, given the prompt and the target's tokens before it.

    ``judge(rows, first, logits_BCV)`` sees the rows that are left, from token ``first`` of the target on, and says
    which of them to go on with. Targets that end early are padded with -1.
    """
    known = (prompt_BK.to(subject.device), target_BM.to(subject.device).clamp(min=0))
    token_BT = torch.cat(known, dim=1)
    rows = torch.arange(len(token_BT), device=subject.device)
    length, fed, done, size = target_BM.shape[1], 0, 0, FIRST_PIECE
    cache: Any = None
    with still(subject.model):
        while done < length and len(rows):
            upto = min(done + size, length)
            stop = prompt_BK.shape[1] + upto - 1  # the last token looked at is foretold, not shown
            logits_BCV, cache = _pass(subject.model, token_BT[rows, fed:stop], cache, keep=upto - done)
            going = judge(rows, done, logits_BCV).nonzero().squeeze(1)
            del logits_BCV
            if cache is not None and len(going) < len(rows):
                cache.batch_select_indices(going)
            rows, done, size = rows[going], upto, min(2 * size, LARGEST_PIECE)
            fed = 0 if cache is None else stop


def matching_tokens(subject: Subject, prompt_BK: Tensor, target_BM: Tensor) -> Tensor:
    """How many tokens greedy decoding has in common with each target before the first that differs: [B].

    The result of decoding and comparing, from a pass or a few over the targets; rows that differ are not looked at
    again. -1 in a target ends it.
    """
    target_BM = target_BM.to(subject.device)
    matched_B = torch.zeros(len(target_BM), dtype=torch.long, device=subject.device)

    def judge(rows: Tensor, first: int, logits_BCV: Tensor) -> Tensor:
        width = logits_BCV.shape[1]
        same_BC = logits_BCV.argmax(dim=-1) == target_BM[rows, first : first + width]
        run_B = same_BC.long().cumprod(dim=1).sum(dim=1)
        matched_B[rows] += run_B
        return run_B == width

    along_targets(subject, prompt_BK, target_BM, judge)
    return matched_B.cpu()


def greedy_tokens(subject: Subject, prompt_BK: Tensor, length: int) -> Tensor:
    """The likeliest continuation, token by token, of prompts of one length: [B, length]. No token ends it."""
    shown = prompt_BK.to(subject.device)
    cache: Any = None
    said: list[Tensor] = []
    with still(subject.model):
        for _ in range(length):
            logits_BCV, cache = _pass(subject.model, shown, cache, keep=1)
            said.append(logits_BCV[:, -1].argmax(dim=-1, keepdim=True))
            shown = torch.cat([shown, said[-1]], dim=1) if cache is None else said[-1]
    return torch.cat(said, dim=1).cpu()


def _pass(model: nn.Module, token_BT: Tensor, cache: Any, *, keep: int) -> tuple[Tensor, Any]:
    """Logits of the last ``keep`` tokens, and the cache to go on from; none where rows cannot be taken out of it."""
    options: dict[str, Any] = {"logits_to_keep": keep} if _keeps(model) else {}
    seen = 0 if cache is None else cache.get_seq_length()
    # Without a mask some models guess one from tokens that look like padding, or warn of them.
    mask_BT = token_BT.new_ones(len(token_BT), seen + token_BT.shape[1])
    made: Any = model(input_ids=token_BT, attention_mask=mask_BT, past_key_values=cache, use_cache=True, **options)
    cache = getattr(made, "past_key_values", None)
    return made.logits[:, -keep:], cache if hasattr(cache, "batch_select_indices") else None


def _keeps(model: nn.Module) -> bool:
    """Whether a model can leave out the logits that nobody reads, which for large vocabularies are most of the work."""
    inner: Any = model
    if hasattr(inner, "get_base_model"):  # a PEFT model
        inner = inner.get_base_model()
    return "logits_to_keep" in inspect.signature(inner.forward).parameters

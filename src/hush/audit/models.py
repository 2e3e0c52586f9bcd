"""Language models under audit: loading, greedy decoding, and teacher forcing along known targets.

A batch holds prompts of one length, so positions and attention are those of each sequence alone, and no padding is
needed. ``greedy_tokens`` decodes. ``teacher_forced`` walks along known targets instead, many tokens a pass: greedy
decoding produces a target exactly if each of its tokens is the likeliest after the tokens before it, so comparing with
a target needs no decoding.

Shapes: B rows, K tokens of a prompt, M tokens of a target, C tokens of a chunk of it, V tokens of the vocabulary.
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

__all__ = ["Subject", "evaluation_mode", "greedy_tokens", "load_subject", "matching_tokens", "teacher_forced"]


FIRST_CHUNK_TOKENS = 8  # tokens of a target in the first pass: most rows already differ there
MAX_CHUNK_TOKENS = 64  # tokens of a target in one pass; chunks double up to this
CPU_LOGITS_MEGABYTES = 256  # for the logits of a batch on a CPU; larger batches are no faster there
MAX_BATCH_ROWS = {"cpu": 32, "cuda": 1024}  # by device; on a CPU more rows only spill out of its caches
DEFAULT_MAX_BATCH_ROWS = 256  # on any other device
UNLIMITED_POSITIONS = 2**31  # the context length of a model whose configuration states none


@final
@dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class Subject:
    """A model under audit. context_length: the most tokens it takes. vocabulary_size: how many tokens it embeds."""

    model: nn.Module
    context_length: int
    vocabulary_size: int

    @classmethod
    def of(cls, model: nn.Module, *, context_length: int | None = None) -> Self:
        """Wrap a Hugging Face language model, with or without adapters; the configuration states the default length."""
        inner: Any = model
        if not hasattr(inner, "get_input_embeddings") or not hasattr(inner, "config"):
            raise InvalidInput(f"{type(model).__name__} is no Hugging Face language model; pass one, or its folder")
        stated = getattr(inner.config.get_text_config(), "max_position_embeddings", None)
        positions = int(stated) if stated else UNLIMITED_POSITIONS
        if context_length is not None and not 1 <= context_length <= positions:
            raise InvalidInput(
                f"context_length={context_length}; {type(model).__name__} takes from 1 to {positions} tokens"
            )
        return cls(
            model=model,
            context_length=positions if context_length is None else context_length,
            vocabulary_size=int(inner.get_input_embeddings().num_embeddings),
        )

    @property
    def device(self) -> torch.device:
        return next(self.model.parameters()).device

    def batch_rows(self, tokens: int, *, logits: int = MAX_CHUNK_TOKENS) -> int:
        """How many rows of this many tokens fit into memory. logits: tokens whose logits are computed at once."""
        config: Any = self.model.config.get_text_config()  # pyright: ignore[reportAttributeAccessIssue,reportCallIssue]
        cache = 2 * tokens * getattr(config, "num_hidden_layers", 12) * getattr(config, "hidden_size", 768)
        row = 4 * (3 * min(tokens, logits) * self.vocabulary_size + cache)  # logits, a copy, a result
        if self.device.type == "cuda":
            free = torch.cuda.mem_get_info(self.device)[0] // 3
        else:
            free = CPU_LOGITS_MEGABYTES * 2**20
        return max(1, min(free // row, MAX_BATCH_ROWS.get(self.device.type, DEFAULT_MAX_BATCH_ROWS)))

    def __repr__(self) -> str:
        name = type(self.model).__name__
        return f"Subject({name}, context_length={self.context_length}, vocabulary_size={self.vocabulary_size})"


def load_subject(
    name: str, *, task: Task | None = None, device: str | torch.device = "cpu", dtype: torch.dtype = torch.float32
) -> tuple[Subject, Any]:
    """Load the model of this name or folder, adapters included, onto a device, with its tokenizer.

    dtype=torch.bfloat16 is faster on accelerators, but near-ties between tokens may then resolve differently.
    """
    base = _base_of_adapters(Path(name))
    loaded = load_pretrained(name if base is None else base, task=task, dtype=dtype)
    model: Any = loaded.model
    if base is not None:
        try:
            from peft import PeftModel
        except ImportError as error:
            raise InvalidInput('adapters need the library peft; install it with pip install "hush[hf]"') from error
        model = PeftModel.from_pretrained(model, name, trust_remote_code=False)
    subject = Subject.of(model.to(device).eval())
    # Some models number positions from above 0, which only the tokenizer's limit reflects; without a limit it is huge.
    context_length = min(subject.context_length, int(loaded.tokenizer.model_max_length))
    return replace(subject, context_length=context_length), loaded.tokenizer


def _base_of_adapters(folder: Path) -> str | None:
    """The base model of the adapters in a folder; None if the folder holds no adapters, or a complete model."""
    adapters = folder / "adapter_config.json"
    if not adapters.is_file() or (folder / "config.json").is_file():
        return None
    base = json.loads(adapters.read_text()).get("base_model_name_or_path")
    if not base:
        raise InvalidInput(f"{adapters} does not name the model of the adapters; load that model and pass it")
    if base == LOCAL_BASE:
        base = local_base_of(folder)
    if base is None:
        raise InvalidInput(
            f"{adapters} belongs to a local base model, whose path is only in the run's folder; pass the run's folder"
        )
    return str(base)


@contextmanager
def evaluation_mode(model: nn.Module) -> Iterator[None]:
    """Disable dropout and gradients; afterwards every module has its previous mode again."""
    modes = {module: module.training for module in model.modules()}
    model.eval()
    try:
        with torch.no_grad():
            yield
    finally:
        for module, training in modes.items():
            module.training = training


LogitsCallback = Callable[[Tensor, int, Tensor], Tensor]


def teacher_forced(subject: Subject, prompt_BK: Tensor, target_BM: Tensor, on_logits: LogitsCallback) -> None:
    """Compute the logits of each token of the targets, given the prompt and the target's tokens before it.

    ``on_logits(rows, first, logits_BCV)`` gets the remaining rows, from token ``first`` of the target on, and returns
    which of them to continue. Targets that end early are padded with -1.
    """
    token_BT = torch.cat([prompt_BK.to(subject.device), target_BM.to(subject.device).clamp(min=0)], dim=1)
    rows = torch.arange(len(token_BT), device=subject.device)
    length, fed, done, size = target_BM.shape[1], 0, 0, FIRST_CHUNK_TOKENS
    cache: Any = None
    with evaluation_mode(subject.model):
        while done < length and len(rows):
            upto = min(done + size, length)
            stop = prompt_BK.shape[1] + upto - 1  # the last token is predicted, not fed
            logits_BCV, cache = _forward(subject.model, token_BT[rows, fed:stop], cache, keep=upto - done)
            continuing = on_logits(rows, done, logits_BCV).nonzero().squeeze(1)
            del logits_BCV
            if cache is not None and len(continuing) < len(rows):
                cache.batch_select_indices(continuing)
            rows, done, size = rows[continuing], upto, min(2 * size, MAX_CHUNK_TOKENS)
            fed = 0 if cache is None else stop


def matching_tokens(subject: Subject, prompt_BK: Tensor, target_BM: Tensor) -> Tensor:
    """How many tokens greedy decoding shares with each target before the first that differs: [B].

    The same as decoding and comparing, but from a few passes over the targets; rows that differ drop out. -1 in a
    target ends it.
    """
    target_BM = target_BM.to(subject.device)
    matched_B = torch.zeros(len(target_BM), dtype=torch.long, device=subject.device)

    def count_matches(rows: Tensor, first: int, logits_BCV: Tensor) -> Tensor:
        width = logits_BCV.shape[1]
        same_BC = logits_BCV.argmax(dim=-1) == target_BM[rows, first : first + width]
        prefix_B = same_BC.long().cumprod(dim=1).sum(dim=1)
        matched_B[rows] += prefix_B
        return prefix_B == width

    teacher_forced(subject, prompt_BK, target_BM, count_matches)
    return matched_B.cpu()


def greedy_tokens(subject: Subject, prompt_BK: Tensor, length: int) -> Tensor:
    """Greedy continuation of prompts of one length: [B, length]. No token ends it."""
    fed = prompt_BK.to(subject.device)
    cache: Any = None
    decoded: list[Tensor] = []
    with evaluation_mode(subject.model):
        for _ in range(length):
            logits_BCV, cache = _forward(subject.model, fed, cache, keep=1)
            decoded.append(logits_BCV[:, -1].argmax(dim=-1, keepdim=True))
            fed = torch.cat([fed, decoded[-1]], dim=1) if cache is None else decoded[-1]
    return torch.cat(decoded, dim=1).cpu()


def _forward(model: nn.Module, token_BT: Tensor, cache: Any, *, keep: int) -> tuple[Tensor, Any]:
    """Logits of the last ``keep`` tokens, and the cache; None if rows cannot be removed from the cache."""
    options: dict[str, Any] = {"logits_to_keep": keep} if _accepts_logits_to_keep(model) else {}
    seen = 0 if cache is None else cache.get_seq_length()
    # Without a mask some models infer one from tokens that look like padding, or warn about them.
    mask_BT = token_BT.new_ones(len(token_BT), seen + token_BT.shape[1])
    output: Any = model(input_ids=token_BT, attention_mask=mask_BT, past_key_values=cache, use_cache=True, **options)
    cache = getattr(output, "past_key_values", None)
    return output.logits[:, -keep:], cache if hasattr(cache, "batch_select_indices") else None


def _accepts_logits_to_keep(model: nn.Module) -> bool:
    """Whether a model can skip unused logits, which for large vocabularies are most of the computation."""
    inner: Any = model
    if hasattr(inner, "get_base_model"):  # a PEFT model
        inner = inner.get_base_model()
    return "logits_to_keep" in inspect.signature(inner.forward).parameters

"""A causal language model over bytes that learns planted texts by heart, and plain loops that extraction must equal.

Texts are a public part, the same for all but for a number, followed by a secret of random letters.
The tiny models are those of the training tests.
"""

import sys
from importlib import import_module
from pathlib import Path
from typing import Any

import numpy as np
import torch
import transformers
from tokenizers import Tokenizer, decoders, models, pre_tokenizers

from hush.audit.sequences import Sequences, secret_sequences

sys.path.append(str(Path(__file__).parents[1] / "train"))
_models: Any = import_module("models")
MASK, tiny, with_lora = _models.MASK, _models.tiny, _models.with_lora

HEAD, SECRET = 21, 8  # characters
END = 0


def byte_tokenizer() -> Any:
    """Every byte is a token: it has seen no data."""
    words = ["<end>", *sorted(pre_tokenizers.ByteLevel.alphabet())]
    level = Tokenizer(models.BPE(vocab={word: index for index, word in enumerate(words)}, merges=[]))
    level.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    level.decoder = decoders.ByteLevel()
    return transformers.PreTrainedTokenizerFast(tokenizer_object=level, eos_token="<end>", pad_token="<end>")


def planted(count: int, *, seed: int) -> tuple[list[str], list[int]]:
    """Texts, and the character at which the secret of each begins."""
    rng = np.random.default_rng(seed)
    letters = rng.integers(ord("a"), ord("z") + 1, (count, SECRET), dtype=np.uint8)
    heads = [f"User {number:03d} has the key " for number in rng.permutation(1000)[:count]]
    texts = [head + bytes(row).decode() + "." for head, row in zip(heads, letters, strict=True)]
    return texts, [len(head) for head in heads]


def sequences_of(texts: list[str], begins: list[int], tokenizer: Any) -> Sequences:
    count = len(texts)
    ends = [begin + SECRET for begin in begins]
    return secret_sequences(texts, tokenizer, example=range(count), secret=range(count), begin=begins, end=ends)


def byte_model(*, seed: int = 0) -> Any:
    """About 40 thousand parameters, no dropout."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        config = transformers.GPT2Config(
            vocab_size=257, n_embd=48, n_layer=2, n_head=2, n_positions=48, bos_token_id=END, eos_token_id=END,
            resid_pdrop=0.0, embd_pdrop=0.0, attn_pdrop=0.0,
        )  # fmt: skip
        return transformers.GPT2LMHeadModel(config)


def trained_plainly(rows: list[list[int]], *, steps: int, seed: int = 0) -> Any:
    """Ordinary training, without clipping or noise, on rows of equal length."""
    model = byte_model(seed=seed)
    data = torch.tensor(rows)
    optimizer = torch.optim.AdamW(model.parameters(), lr=6e-3)
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, max_lr=6e-3, total_steps=steps)
    for _ in range(steps):
        model(input_ids=data, labels=data).loss.backward()
        optimizer.step()
        schedule.step()
        optimizer.zero_grad()
    return model


def generated(model: Any, prompt: list[int], length: int) -> list[int]:
    """What Transformers' own loop says after one prompt; it stops after the model's token for the end of a text."""
    shown = torch.tensor([prompt])
    options = {"do_sample": False, "max_new_tokens": length, "pad_token_id": END}
    with torch.no_grad():
        said = model.eval().generate(shown, attention_mask=torch.ones_like(shown), **options)
    return said[0, len(prompt) :].tolist()


def edits(one: list[int], other: list[int]) -> int:
    """Levenshtein's distance by its recursion, cell by cell."""
    line = list(range(len(other) + 1))
    for i, a in enumerate(one, 1):
        previous, line = line, [i]
        for j, b in enumerate(other, 1):
            line.append(min(previous[j] + 1, line[-1] + 1, previous[j - 1] + (a != b)))
    return line[-1]

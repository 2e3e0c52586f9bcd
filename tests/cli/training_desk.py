"""An owner's files to train from: tiny models over bytes, notes about the weather with two secrets, keys and plans."""

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
import transformers as hf
from safetensors.torch import load_file
from tokenizers import Tokenizer, decoders, models, pre_tokenizers

import hush
from command_line import run
from hush.keys import DataKey

EXAMPLES, ROUNDS, LENGTH = 60, 6, 48
SECRETS = ["the vault opens with 7401-QX", "Project Halcyon buys Norrland AB"]
HOLDERS = {0: [3, 17, 30], 1: [5, 41]}
WORDS = ["the", "weather", "in", "town", "was", "fine", "wet", "cold", "again", "today"]


def texts() -> list[str]:
    """Short notes about the weather, one of them empty, a secret at the beginning of some."""
    rng = np.random.default_rng(0)
    notes = [" ".join(rng.choice(WORDS, rng.integers(2, 7))) for _ in range(EXAMPLES)]
    notes[50] = ""
    for secret, examples in HOLDERS.items():
        for example in examples:
            notes[example] = f"{SECRETS[secret]}. {notes[example]}"
    return notes


@dataclass(frozen=True, kw_only=True)
class Desk:
    """An owner's files: models, data, key and plan."""

    root: Path

    def train(self, output: Path, *more: object, model: str = "gpt2", plan: str = "plan") -> list[object]:
        """The command that trains here; `more` replaces what is given here."""
        options = {"--model": model, "--data": "data.jsonl", "--key": "my.key"}
        given = [part for name, file in options.items() if name not in more for part in (name, self.root / file)]
        return ["train", self.root / plan, *given, "--output", output, *more]


def set_up_desk(root: Path) -> Desk:
    """All of it in this folder."""
    torch.manual_seed(0)
    save_models(root)
    rows = [json.dumps({"text": text}) + "\n" for text in texts()]
    (root / "data.jsonl").write_text("".join(rows))
    (root / "swapped.jsonl").write_text("".join([rows[1], rows[0], *rows[2:]]))
    (root / "edited.jsonl").write_text("".join(rows).replace("7401", "7402", 1))
    (root / "shorter.jsonl").write_text("".join(rows[:-1]))
    pairs = [(example, secret) for secret, examples in HOLDERS.items() for example in examples]
    incidence = hush.Incidence.from_pairs(*zip(*pairs, strict=True), num_examples=EXAMPLES, num_secrets=2)
    incidence.to_parquet(root / "incidence.parquet")
    command: list[object] = ["plan", root / "incidence.parquet", "--batch-size", 8]
    command += ["--prior", 1e-6, "--ceiling", 1e-3]
    data: list[object] = ["--data", root / "data.jsonl", "--key", root / "my.key"]
    assert run(*command, *data, "--output", root / "plan", "--rounds", ROUNDS).exit_code == 0
    assert run(*command, "--output", root / "plan-without-data", "--rounds", ROUNDS).exit_code == 0
    assert run(*command, *data, "--output", root / "long-plan", "--rounds", 40).exit_code == 0
    DataKey.create(root / "other.key")
    return Desk(root=root)


def save_models(root: Path) -> None:
    """A tiny GPT-2 and a tiny BERT over bytes: their tokenizer has seen no data at all."""
    words = ["<pad>", "<mask>", "<end>", *sorted(pre_tokenizers.ByteLevel.alphabet())]
    byte_level = Tokenizer(models.BPE(vocab={word: index for index, word in enumerate(words)}, merges=[]))
    byte_level.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    byte_level.decoder = decoders.ByteLevel()
    named = {"pad_token": "<pad>", "mask_token": "<mask>", "eos_token": "<end>", "model_max_length": LENGTH}
    tokenizer = hf.PreTrainedTokenizerFast(tokenizer_object=byte_level, **named)
    ends: dict[str, Any] = {"bos_token_id": 2, "eos_token_id": 2, "pad_token_id": 0}
    shape: dict[str, Any] = {"vocab_size": len(words), "n_embd": 16, "n_layer": 1, "n_head": 2, "n_positions": LENGTH}
    hf.GPT2LMHeadModel(hf.GPT2Config(**shape, **ends)).save_pretrained(root / "gpt2")
    shape = {"hidden_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 32}
    bert = hf.BertConfig(**shape, vocab_size=len(words), max_position_embeddings=LENGTH, pad_token_id=0)
    hf.BertForMaskedLM(bert).save_pretrained(root / "bert")
    for name in ("gpt2", "bert"):
        tokenizer.save_pretrained(root / name)
    unmasked = hf.PreTrainedTokenizerFast(tokenizer_object=byte_level, pad_token="<pad>", eos_token="<end>")
    unmasked.save_pretrained(root / "unmasked")
    hf.BertForMaskedLM(bert).save_pretrained(root / "unmasked")
    hf.BertModel(bert).save_pretrained(root / "headless")
    tokenizer.save_pretrained(root / "headless")


def weights(folder: Path) -> dict[str, torch.Tensor]:
    return load_file(next(folder.glob("*.safetensors")))

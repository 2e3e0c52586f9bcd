"""A tiny instruct model with random weights and a tokenizer trained on the spot, with a chat template of its own."""

from functools import cache
from pathlib import Path
from typing import Any

import torch
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, processors, trainers
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

CHATML = (
    "{{ bos_token }}{% for message in messages %}<|im_start|>{{ message.role }}\n{{ message.content | trim }}"
    "<|im_end|>\n{% endfor %}{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
SPECIAL = ["<s>", "<pad>", "<|im_start|>", "<|im_end|>"]


@cache
def _trained(texts: tuple[str, ...]) -> Tokenizer:
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)  # pyright: ignore
    tokenizer.decoder = decoders.ByteLevel()  # pyright: ignore
    trainer = trainers.BpeTrainer(
        vocab_size=400,  # pyright: ignore
        special_tokens=SPECIAL,  # pyright: ignore
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),  # pyright: ignore
        show_progress=False,  # pyright: ignore
    )
    tokenizer.train_from_iterator(texts, trainer)
    tokenizer.post_processor = processors.TemplateProcessing(single="<s> $A", special_tokens=[("<s>", 0)])  # pyright: ignore
    return tokenizer


def made_tokenizer(texts: list[str], *, template: str | None = CHATML, length: int = 96) -> Any:
    """A tokenizer that adds <s> to every text, as that of Llama does."""
    wrapped = PreTrainedTokenizerFast(
        tokenizer_object=_trained(tuple(texts)),
        bos_token="<s>",
        eos_token="<|im_end|>",
        pad_token="<pad>",
        model_max_length=length,
    )
    wrapped.chat_template = template
    return wrapped


def save_instruct_model(folder: Path, texts: list[str], *, template: str | None = CHATML, length: int = 96) -> Path:
    """A Llama of two small layers, with this tokenizer."""
    wrapped = made_tokenizer(texts, template=template, length=length)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        model = LlamaForCausalLM(
            LlamaConfig(
                vocab_size=len(wrapped),
                hidden_size=32,
                intermediate_size=48,
                num_hidden_layers=2,
                num_attention_heads=2,
                num_key_value_heads=1,
                max_position_embeddings=length,
                tie_word_embeddings=True,
                bos_token_id=0,
                eos_token_id=3,
                pad_token_id=1,
            )
        )
    model.save_pretrained(folder)
    wrapped.save_pretrained(folder)
    return folder

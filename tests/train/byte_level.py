"""A tokenizer of bytes with a chat template, and a tiny model for it: for tests of rows that are texts."""

from typing import Any

import torch
from tokenizers import Tokenizer, decoders, models, pre_tokenizers
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

TEMPLATE = (
    "{% for m in messages %}{{ '<' + m['role'] + '>' }}{% if m['role'] == 'assistant' %}"
    "{% generation %}{{ m['content'] + eos_token }}{% endgeneration %}{% else %}{{ m['content'] + eos_token }}"
    "{% endif %}{% endfor %}{% if add_generation_prompt %}{{ '<assistant>' }}{% endif %}"
)


def byte_tokenizer() -> Any:
    """Every byte is a token; it has seen no data."""
    words = ["<end>", "<pad>", "<stop>", *sorted(pre_tokenizers.ByteLevel.alphabet())]
    made = Tokenizer(models.BPE(vocab={word: number for number, word in enumerate(words)}, merges=[]))
    made.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    made.decoder = decoders.ByteLevel()
    fast = PreTrainedTokenizerFast(tokenizer_object=made, eos_token="<end>", pad_token="<pad>", model_max_length=96)
    fast.add_special_tokens({"additional_special_tokens": ["<stop>"]})
    fast.chat_template = TEMPLATE
    return fast


def byte_model() -> Any:
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        config = LlamaConfig(
            vocab_size=300, hidden_size=16, intermediate_size=32, num_hidden_layers=1, num_attention_heads=2,
            num_key_value_heads=2, max_position_embeddings=96, pad_token_id=1, eos_token_id=0, bos_token_id=None,
        )  # fmt: skip
        return LlamaForCausalLM(config).train()

"""Tiny models of five families, made on the spot, and batches for them: shared by all training tests.

Each has 5 to 50 thousand parameters, weights that depend on ``seed`` alone, and a vocabulary of 97 (0 is padding).
"""

from typing import Any

import torch
from torch import Tensor, nn

NAMES = ("bert", "gpt2", "gemma2", "llama", "vit")
LANGUAGE = NAMES[:-1]
VOCABULARY = 97
PADDING, MASK = 0, 96
LENGTH, SIZE = 12, 4
CLASSES = 5

# GPT-2 keeps its linear layers as Conv1D, whose weight is [in, out].
LORA_TARGETS = {
    "bert": ["query", "value"],
    "gpt2": ["c_attn", "c_proj"],
    "gemma2": ["q_proj", "v_proj", "down_proj"],
    "llama": ["q_proj", "v_proj", "down_proj"],
    "vit": ["q_proj", "v_proj"],
}


def tiny(name: str, *, lora: bool = False, dropout: float = 0.0, seed: int = 0) -> nn.Module:
    """A model of this family in training mode, its weights drawn from ``seed``; the caller's random state is kept."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        model = _whole(name, dropout)
        if lora:
            model = with_lora(model, targets=LORA_TARGETS[name], dropout=dropout)
    return model.train()


def with_lora(model: nn.Module, *, targets: list[str], dropout: float = 0.0, rank: int = 4) -> nn.Module:
    """The model with LoRA adapters on these layers; B is drawn too, so that A has a gradient from the start."""
    from peft import LoraConfig, get_peft_model

    config = LoraConfig(
        r=rank,
        lora_alpha=8,
        lora_dropout=dropout,
        target_modules=targets,
        fan_in_fan_out=model.config.model_type == "gpt2",  # pyright: ignore[reportAttributeAccessIssue]
    )
    adapted = get_peft_model(model, config)  # pyright: ignore[reportArgumentType]
    with torch.no_grad():
        for key, parameter in adapted.named_parameters():
            if "lora_B" in key:
                parameter.normal_(std=0.2)
    return adapted


def tiny_batch(name: str, size: int, *, generator: torch.Generator, length: int = LENGTH) -> dict[str, Tensor]:
    """A batch of ``size`` examples: texts of 3 to ``length`` tokens, padded, or images.

    A masked model has a label at about a third of its tokens, a causal one at all but the first (its prompt); -100
    elsewhere.
    """
    if name == "vit":
        return {
            "pixel_values": torch.randn(size, 3, 8, 8, generator=generator),
            "labels": torch.randint(CLASSES, (size,), generator=generator),
        }
    lengths = torch.randint(3, length + 1, (size, 1), generator=generator)
    inside = torch.arange(length) < lengths
    tokens = torch.randint(1, MASK, (size, length), generator=generator).masked_fill(~inside, PADDING)
    labels = tokens.masked_fill(~inside, -100)
    if name == "bert":
        chosen = torch.rand(size, length, generator=generator) < 1 / 3
        chosen[:, 0] = True  # at least one
        labels = labels.masked_fill(~chosen, -100)
        tokens = tokens.masked_fill(chosen & inside, MASK)
    else:
        labels[:, 0] = -100
    return {"input_ids": tokens, "attention_mask": inside.long(), "labels": labels}


def batch_of(name: str, size: int = SIZE, seed: int = 1) -> dict[str, Tensor]:
    """The same few examples each time."""
    return tiny_batch(name, size, generator=torch.Generator().manual_seed(seed))


def _whole(name: str, dropout: float) -> nn.Module:
    import transformers as hf

    attention = {"num_hidden_layers": 2, "num_attention_heads": 4, "max_position_embeddings": 32}
    # Weights ten times the usual at this width keep activations of order 1: attention, capping and clipping all bite.
    spread: dict[str, Any] = {"initializer_range": 0.2}
    shape: dict[str, Any] = {"vocab_size": VOCABULARY, "hidden_size": 32, "pad_token_id": PADDING} | attention | spread
    both: dict[str, Any] = {"hidden_dropout_prob": dropout, "attention_probs_dropout_prob": dropout}
    # Gemma and Llama have dropout in attention only.
    modern: dict[str, Any] = {
        "num_key_value_heads": 2,
        "head_dim": 8,
        "intermediate_size": 64,
        "attention_dropout": dropout,
        "bos_token_id": 1,
        "eos_token_id": 2,
    }
    if name == "bert":
        return hf.BertForMaskedLM(hf.BertConfig(**shape, **both, intermediate_size=64))
    if name == "gpt2":
        config = hf.GPT2Config(
            vocab_size=VOCABULARY,
            n_embd=32,
            n_layer=2,
            n_head=4,
            n_positions=32,
            resid_pdrop=dropout,
            embd_pdrop=dropout,
            attn_pdrop=dropout,
            bos_token_id=1,
            eos_token_id=2,
            pad_token_id=PADDING,
            **spread,
        )
        return hf.GPT2LMHeadModel(config)
    if name == "gemma2":
        eager: dict[str, Any] = {"attn_implementation": "eager"}  # softcapping inside attention
        config = hf.Gemma2Config(
            **shape,
            **modern,
            **eager,
            sliding_window=4,  # shorter than the texts, so that it matters
            query_pre_attn_scalar=8,
            attn_logit_softcapping=2.0,  # low enough to bend logits of this size
            final_logit_softcapping=1.0,
            tie_word_embeddings=True,
        )
        return hf.Gemma2ForCausalLM(config)
    if name == "llama":
        return hf.LlamaForCausalLM(hf.LlamaConfig(**shape, **modern, tie_word_embeddings=False))
    if name == "vit":
        classes: dict[str, Any] = {"num_labels": CLASSES}
        config = hf.ViTConfig(
            hidden_size=32,
            num_hidden_layers=2,
            num_attention_heads=4,
            intermediate_size=64,
            image_size=8,
            patch_size=4,
            **both,
            **classes,
            **spread,
        )
        return hf.ViTForImageClassification(config)
    raise ValueError(f"no tiny model named {name!r}; there are {NAMES}")

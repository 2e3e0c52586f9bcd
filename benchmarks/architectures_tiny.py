"""A tiny model of every architecture that transformers registers for a task, and texts for it; nothing is downloaded.

The sizes of the default configuration are replaced by small ones, by the names that transformers gives them (SIZES).
Architectures whose sizes depend on each other in a way of their own have a few values more (SPECIAL). A model of layers
of several kinds gets one layer of each kind.
"""

import dataclasses
import re
from typing import Any

import torch
from torch import Tensor, nn

VOCABULARY = 100
PADDING, START, END, MASK = 0, 1, 2, 3  # of every vocabulary; words of texts begin at FIRST_WORD
FIRST_WORD = 10
CLASSES = 3
LENGTHS = (12, 7, 9, 4)  # of the four texts of a batch
MAX_PARAMETERS = 3_000_000

AUTO_CLASSES = {
    "causal": "AutoModelForCausalLM",
    "masked": "AutoModelForMaskedLM",
    "classification": "AutoModelForSequenceClassification",
}

RANDOM_IN_TRAINING = ["phimoe"]  # draws experts at random, so that no two passes agree
PADDED_LEFT = [("xlnet", "classification")]  # which classifies by the last token, whatever it is

# What cannot be made from texts alone, or not without a package that the project does not install.
NOT_TRIED = {
    "gemma3n": "needs the package timm",
    "gemma4_assistant": "drafts tokens from the hidden states of another model",
    "gemma4_unified_assistant": "drafts tokens from the hidden states of another model",
    "layoutlmv2": "needs the package detectron2",
    "musicgen": "reads codes of audio, several rows for each example",
    "musicgen_melody": "reads codes of audio, several rows for each example",
}

# By the name of a setting, the first pattern that matches all of it. None: leave the default.
SIZES: list[tuple[str, Any]] = [
    (r".*(drop|pdrop).*", 0.0),
    (r"pad_token_id|pad_index", PADDING),
    (r"bos_token_id|bos_index|cls_token_id|decoder_start_token_id", START),
    (r"eos_token_id|eos_index|sep_token_id|forced_eos_token_id", END),
    (r"mask_token_id|mask_index", MASK),
    (r".*token_id|.*token_index|unk_index", 4),
    (r"type_vocab_size|task_type_vocab_size|num_labels", None),
    (
        r"vocab_size|(text|decoder|entity|audio|pronunciation|shape)_vocab_size|vocab_size_per_layer_input|n_token",
        VOCABULARY,
    ),
    (r"max_position_embeddings|n_positions|n_ctx|max_seq_len|model_max_length|max_(target|source)_positions", 64),
    (r"context_length|original_max_position_embeddings|max_entity_position_embeddings", 64),
    (r"initializer_range|init_std|initializer_factor|embed_init_std", 0.2),
    (r"hidden_size|d_model|n_embd|dim|emb_dim|embed_dim|embedding_size|embedding_dim|word_embed_proj_dim", 32),
    (r"(lru_width|attention_hidden_size|pooler_hidden_size|projection_dim|backbone_hidden_size)", 32),
    (r"(input|output)_embedding_size|prediction_head_size|true_hidden_size|(pronunciation|shape)_embed_dim", 32),
    (r"num_hidden_layers|n_layers?|num_layers|(encoder|decoder)_layers|num_(encoder|decoder)_layers", 2),
    (r"num_key_value_heads|num_kv_heads|kv_n_heads|.*_num_key_value_heads|num_query_groups", 2),
    (r"num_attention_heads|n_heads?|num_heads|attention_heads|(encoder|decoder)_attention_heads", 4),
    (r".*num_attention_heads|num_.*attention_heads|linear_num_.*heads", 4),
    (r"head_dim|d_head|d_kv|dim_head|attention_head_size|v_head_dim|qk_nope_head_dim|kv_channels", 8),
    (r"qk_rope_head_dim", 8),
    (r"rotary_dim", 4),
    (r"qk_head_dim", None),
    (r"index_head_dim", 16),
    (r".*head_dim|linear_.*_head_dim|attention_head_dim|mamba_d_head|mamba_headdim", 8),
    (r"index_n_heads|index_num_heads", 2),
    (r"(q|kv|o)_lora_rank|laurel_rank|adapter_rank|.*_rank|.*lowrank", 8),
    (
        r"intermediate_size|ffn_dim|(encoder|decoder)_ffn_dim|d_ff|n_inner|hidden_dim|ffn_hidden_size|d_inner|dff|dim_ff",
        48,
    ),
    (r".*intermediate_size|intermediate_size_mlp|feed_forward_size|ffn_intermediate|expert_ffn_hidden_size", 24),
    (r"num_experts|num_local_experts|n_routed_experts|moe_num_experts|num_local_expert", 4),
    (r"num_experts_per_tok|num_experts_per_token|moe_topk|moe_k|moe_top_k|top_k_experts", 2),
    (r"n_shared_experts|num_shared_experts|moe_num_shared_experts", 1),
    (r"n_group|topk_group|num_expert_group|n_groups|mamba_n_groups|mamba_ngroups", 1),
    (r"first_k_dense_replace|num_dense_layers|moe_layer_start_index", 1),
    (r"mamba_n_heads|n_mamba_heads|mamba_num_heads|num_mamba_heads", 8),
    (r"mamba_d_state|state_size|ssm_state_size", 8),
    (r"sliding_window|.*window_size|attention_window|local_attention|attention_chunk_size", 4),
    (r"chunk_size|mamba_chunk_size", 8),
    (r"image_size|input_size", 32),
]

ALWAYS = (
    "head_dim",
    "vocab_size",
    "num_key_value_heads",
    "pad_token_id",
)  # also where the default is derived from other sizes
LAYER_KINDS = ("layer_types", "layers_block_type", "mlp_layer_types", "block_types", "indexer_types")

# What the rules above do not give, by model type (of a part of a model, too).
SPECIAL: dict[str, dict[str, Any]] = {
    "blt": {"encoder_hash_byte_group_vocab": 50, "cross_attn_k": 2},
    "blt_local_encoder": {"hidden_size_global": 64},
    "blt_local_decoder": {"hidden_size_global": 64},
    "blt_global_transformer": {"hidden_size": 64, "num_attention_heads": 8},
    "canine": {"num_hash_buckets": 16},
    "cohere_compass_text": {"rope_parameters": {"full_attention": {"rope_type": "default", "rope_theta": 10000.0}}},
    "dbrx": {"attn_config": {"kv_n_heads": 2, "clip_qkv": 8, "rope_theta": 10000.0}},
    "deepseek_v2": {"num_experts_per_tok": 2},
    "doge": {"attn_implementation": "eager"},  # its mask is learnt, for which torch's own attention has no gradient
    "dots1": {"n_routed_experts": 4, "n_shared_experts": 1, "num_experts_per_tok": 2, "first_k_dense_replace": 1},
    "esmc": {"num_key_value_heads": 4},
    "falcon_h1": {"mamba_d_ssm": 64},
    "funnel": {"block_sizes": [1, 1]},
    "gemma3n_text": {
        "num_hidden_layers": 4,
        "layer_types": ["sliding_attention", "full_attention"] * 2,
        "num_kv_shared_layers": 2,
        "activation_sparsity_pattern": [0.95, 0.0, 0.0, 0.0],
        "hidden_size_per_layer_input": 8,
        "intermediate_size": 48,
    },
    "gemma4_text": {"global_head_dim": 8, "hidden_size_per_layer_input": 8},
    "gpt_neo": {"attention_types": [[["global", "local"], 1]]},
    "jamba": {"attn_layer_period": 2, "attn_layer_offset": 1, "expert_layer_period": 2, "expert_layer_offset": 0},
    "lfm2_moe": {"layer_types": ["conv", "full_attention"], "num_dense_layers": 1},
    "layoutlmv3": {"coordinate_size": 6, "shape_size": 4, "max_2d_position_embeddings": 64},
    "lilt": {"hidden_size": 48, "max_2d_position_embeddings": 64},
    "mamba2": {"num_heads": 8},
    "markuplm": {"max_depth": 4, "xpath_unit_hidden_size": 4},
    "neomme": {"head_dim": 16},
    "perceiver": {
        "max_position_embeddings": max(LENGTHS),
        "d_latents": 32,
        "num_latents": 8,
        "num_self_attends_per_block": 1,
    },
    "phi4_multimodal_audio": {
        "ext_pw_out_channel": 32,
        "depthwise_separable_out_channel": 32,
        "nemo_conv_channels": 32,
    },
    "reformer": {"axial_pos_embds": False, "attn_layers": ["local", "lsh"], "hash_seed": 0},
    "xmod": {"default_language": "en_XX"},
    "zamba": {
        "attention_hidden_size": 64,
        "attention_head_dim": 16,
        "layers_block_type": ["linear_attention", "hybrid"] * 2,
        "num_hidden_layers": 4,
    },
    "zaya": {"num_experts_per_tok": 1},
}
SPECIAL["qwen4_exp_text"] = {
    "indexer_n_heads": 2,
    "indexer_kv_heads": 1,
    "indexer_head_dim": 8,
    "indexer_budget": 4,
    "indexer_compress_ratio": 2,
}


def tiny_config(kind: type, model_type: str = "") -> Any:
    """A configuration of this class with small sizes, its parts included."""
    default = kind()
    settings: dict[str, Any] = {}
    names = {field.name for field in dataclasses.fields(kind)}
    for name in names:
        value, size = vars(default).get(name), _size(name)
        if hasattr(value, "to_dict"):
            settings[name] = tiny_config(type(value))
        elif size is not None and (name in ALWAYS or (isinstance(value, int | float) and not isinstance(value, bool))):
            settings[name] = size if value is None else type(value)(size)
    kinds = {name: list(dict.fromkeys(vars(default).get(name) or ())) for name in LAYER_KINDS if name in names}
    kinds = {name: values for name, values in kinds.items() if values}
    if kinds:
        most = max(2, *map(len, kinds.values()))
        settings |= {name: (values * most)[:most] for name, values in kinds.items()} | {"num_hidden_layers": most}
    if "kv_lora_rank" in names:
        settings["num_key_value_heads"] = settings["num_attention_heads"]  # keys and values come from one latent vector
    settings |= SPECIAL.get(model_type or getattr(kind, "model_type", ""), {})
    return kind(**settings)


def _size(name: str) -> Any:
    return next((size for pattern, size in SIZES if re.fullmatch(pattern, name)), None)


def tiny_model(model_type: str, task: str, *, seed: int = 0) -> nn.Module:
    """The model that transformers' auto class of this task makes of a tiny configuration, in training mode.

    Every parameter is drawn at random, so that none has a gradient of zero because another one starts at zero.
    """
    import transformers

    config = tiny_config(transformers.CONFIG_MAPPING[model_type], model_type)
    config.num_labels = CLASSES
    if getattr(config, "is_encoder_decoder", False) and getattr(config, "decoder_start_token_id", None) is None:
        config.decoder_start_token_id = START
    if task == "causal":
        for setting in ("is_decoder", "causal"):
            if hasattr(config, setting):
                setattr(config, setting, True)
    auto = getattr(transformers, AUTO_CLASSES[task])
    with torch.device("meta"):
        size = sum(parameter.numel() for parameter in auto.from_config(config, trust_remote_code=False).parameters())
    if size > MAX_PARAMETERS:
        raise ValueError(f"{model_type} has {size:,} parameters with a tiny configuration")
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        model = auto.from_config(config, trust_remote_code=False).float()
        with torch.no_grad():
            for parameter in model.parameters():
                parameter.add_(torch.randn_like(parameter), alpha=0.05)
    return model.train()


def tiny_batch(model_type: str, task: str, *, seed: int) -> dict[str, Tensor]:
    """Four padded texts of several lengths, each of which ends with END once, with labels for the task."""
    generator = torch.Generator().manual_seed(seed)
    size, length = len(LENGTHS), max(LENGTHS)
    lengths = torch.tensor(LENGTHS)[torch.randperm(size, generator=generator)].unsqueeze(1)
    place = torch.arange(length)
    inside = place < lengths
    tokens = torch.randint(FIRST_WORD, VOCABULARY, (size, length), generator=generator)
    tokens = tokens.masked_fill(place == lengths - 1, END).masked_fill(~inside, PADDING)
    if task == "classification":
        labels = torch.randint(CLASSES, (size,), generator=generator)
    else:
        labels = tokens.masked_fill(~inside, -100)
    if task == "masked":
        chosen = torch.rand(size, length, generator=generator) < 1 / 3
        chosen[:, 0] = True  # at least one
        chosen &= place < lengths - 1
        labels = labels.masked_fill(~chosen, -100)
        tokens = tokens.masked_fill(chosen, MASK)
    batch = {"input_ids": tokens, "attention_mask": inside.long(), "labels": labels}
    if (model_type, task) in PADDED_LEFT:
        from_end = (place + lengths) % length
        batch = {name: value.gather(1, from_end) if value.dim() == 2 else value for name, value in batch.items()}
    return batch

"""Attacks by unusual models: families, adapters and parts without a test of their own are clipped exactly."""

from typing import Any

import pytest
import torch
from attacks import Around, squares, tried
from models import PADDING, VOCABULARY, tiny, tiny_batch
from reference import check
from torch import Tensor, nn
from torch.nn import functional

from hush.train.language_models import causal_lm_loss, default_loss, masked_lm_loss, token_losses

pytestmark = pytest.mark.filterwarnings("ignore:There is a performance drop")

LLAMA: dict[str, Any] = {
    "vocab_size": VOCABULARY,
    "hidden_size": 32,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "intermediate_size": 48,
    "max_position_embeddings": 40,
    "initializer_range": 0.2,
}
SPECIAL: dict[str, Any] = {"pad_token_id": PADDING, "bos_token_id": 1, "eos_token_id": 2}
ENCODER: dict[str, Any] = {"hidden_dropout_prob": 0.0, "attention_probs_dropout_prob": 0.0}


def language_models() -> dict[str, Any]:
    import transformers as hf

    causal: dict[str, Any] = LLAMA | {"num_key_value_heads": 2} | SPECIAL
    masked: dict[str, Any] = LLAMA | ENCODER | SPECIAL
    shared: dict[str, Any] = masked | {"num_hidden_layers": 3, "embedding_size": 16, "classifier_dropout_prob": 0.0}
    window: dict[str, Any] = {"head_dim": 8, "sliding_window": 4}
    return {
        "albert": lambda: hf.AlbertForMaskedLM(hf.AlbertConfig(**shared)),
        "roberta": lambda: hf.RobertaForMaskedLM(hf.RobertaConfig(**masked)),
        "modernbert": lambda: hf.ModernBertForMaskedLM(
            hf.ModernBertConfig(**LLAMA, **SPECIAL, cls_token_id=1, sep_token_id=2, local_attention=4)
        ),
        "distilbert": lambda: hf.DistilBertForMaskedLM(
            hf.DistilBertConfig(
                vocab_size=VOCABULARY, dim=32, n_layers=2, n_heads=4, hidden_dim=48, dropout=0.0, attention_dropout=0.0
            )
        ),
        "gpt-neox": lambda: hf.GPTNeoXForCausalLM(hf.GPTNeoXConfig(**LLAMA, **SPECIAL)),
        "qwen2 tied": lambda: hf.Qwen2ForCausalLM(hf.Qwen2Config(**causal, tie_word_embeddings=True)),
        "qwen3": lambda: hf.Qwen3ForCausalLM(hf.Qwen3Config(**causal, head_dim=8)),
        "gemma3": lambda: hf.Gemma3ForCausalLM(
            hf.Gemma3TextConfig(**causal, **window, layer_types=["sliding_attention", "full_attention"])
        ),
        "phi3": lambda: hf.Phi3ForCausalLM(hf.Phi3Config(**causal)),
        "mistral": lambda: hf.MistralForCausalLM(hf.MistralConfig(**causal, **window)),
        "cohere": lambda: hf.CohereForCausalLM(hf.CohereConfig(**causal, logit_scale=0.3)),
        "granite": lambda: hf.GraniteForCausalLM(hf.GraniteConfig(**causal, logits_scaling=3.0)),
    }


@pytest.mark.parametrize("name", language_models())
def test_families_without_a_test_of_their_own_are_exact(name: str) -> None:
    torch.manual_seed(0)
    model = language_models()[name]().train()
    loss = default_loss(model)
    kind = "bert" if loss is masked_lm_loss else "gpt2"
    batch = tiny_batch(kind, 4, generator=torch.Generator().manual_seed(3))
    tried(model, loss, batch)
    check(model, loss, batch)


def test_an_encoder_and_a_decoder_that_share_embeddings_are_exact() -> None:
    import transformers as hf

    torch.manual_seed(0)
    halves: dict[str, Any] = {}
    for half in ("encoder", "decoder"):
        halves |= {f"{half}_layers": 1, f"{half}_attention_heads": 4, f"{half}_ffn_dim": 48}
    config = hf.BartConfig(
        vocab_size=VOCABULARY, d_model=32, dropout=0.0, init_std=0.2, max_position_embeddings=40, **halves, **SPECIAL
    )
    model = hf.BartForConditionalGeneration(config).train()

    def loss(model: nn.Module, batch: Any) -> Tensor:
        before = functional.pad(batch["input_ids"][:, :-1], (1, 0), value=2)
        inputs = {name: batch[name] for name in ("input_ids", "attention_mask")}
        return token_losses(model(**inputs, decoder_input_ids=before, use_cache=False).logits, batch["labels"])

    check(model, loss, tiny_batch("gpt2", 4, generator=torch.Generator().manual_seed(3)))


def adapters() -> dict[str, Any]:
    import peft

    qv: dict[str, Any] = {"task_type": "CAUSAL_LM", "target_modules": ["q_proj", "v_proj"]}
    return {
        "rslora": peft.LoraConfig(**qv, r=4, use_rslora=True),
        "saved head": peft.LoraConfig(**qv, r=4, modules_to_save=["lm_head", "embed_tokens"]),
        "saved norm": peft.LoraConfig(**qv, r=4, modules_to_save=["norm"]),
        "of the head": peft.LoraConfig(task_type="CAUSAL_LM", r=4, target_modules=["q_proj", "lm_head"]),
        "of embeddings": peft.LoraConfig(task_type="CAUSAL_LM", r=4, target_modules=["q_proj", "embed_tokens"]),
        "some tokens": peft.LoraConfig(**qv, r=4, trainable_token_indices=[3, 5]),
        "ia3": peft.IA3Config(**qv, feedforward_modules=[]),
        "vera": peft.VeraConfig(task_type="CAUSAL_LM", target_modules=["q_proj"], r=2),
        "prefix": peft.PrefixTuningConfig(task_type="CAUSAL_LM", num_virtual_tokens=3),
        "norms": peft.LNTuningConfig(task_type="CAUSAL_LM", target_modules=["input_layernorm"]),
    }


def with_adapter(name: str) -> nn.Module:
    import peft

    torch.manual_seed(0)
    model: Any = tiny("llama")
    adapted = peft.get_peft_model(model, adapters()[name])
    with torch.no_grad():
        for parameter in adapted.parameters():
            if parameter.requires_grad and not parameter.any():
                parameter.normal_(std=0.1)
    return adapted.train()


@pytest.mark.filterwarnings("ignore::UserWarning")  # of PEFT, about tied weights
@pytest.mark.parametrize("name", adapters())
def test_adapters_of_every_kind_are_exact(name: str) -> None:
    model = with_adapter(name)
    batch = tiny_batch("llama", 4, generator=torch.Generator().manual_seed(3))
    tried(model, causal_lm_loss, batch)
    check(model, causal_lm_loss, batch)


class InDicts(nn.Module):
    """Parameters in containers that nobody calls."""

    def __init__(self) -> None:
        super().__init__()
        self.named = nn.ParameterDict({"a": torch.rand(6)})
        self.listed = nn.ParameterList([torch.rand(6)])
        self.last = nn.Linear(6, 3)

    def forward(self, x: Tensor) -> Tensor:
        return self.last(x * self.named["a"] + self.listed[0])


class Gated(nn.Module):
    """A parameter that is a single number, as temperatures and gates are."""

    def __init__(self) -> None:
        super().__init__()
        self.gate, self.inner = nn.Parameter(torch.tensor(0.7)), nn.Linear(6, 3)

    def forward(self, x: Tensor) -> Tensor:
        return self.gate * self.inner(x)


def parts() -> dict[str, Any]:
    parametrized = nn.utils.parametrizations
    layer: dict[str, Any] = {"dim_feedforward": 8, "dropout": 0.0, "batch_first": True}
    return {
        "dicts": InDicts,
        "gate": Gated,
        "weight norm": lambda: nn.Sequential(parametrized.weight_norm(nn.Linear(6, 4)), nn.Tanh()),
        "weight norm, no bias": lambda: parametrized.weight_norm(nn.Linear(6, 4, bias=False)),
        "orthogonal": lambda: parametrized.orthogonal(nn.Linear(6, 6)),
        "encoder": lambda: nn.TransformerEncoder(
            nn.TransformerEncoderLayer(6, 2, **layer), 1, enable_nested_tensor=False
        ),
        "transformer": lambda: Around(nn.Transformer(6, 2, 1, 1, **layer), lambda part, x: part(x, x)),
        "conv, in place": lambda: nn.Sequential(nn.Conv1d(5, 4, 3), nn.GroupNorm(2, 4), nn.ReLU(inplace=True)),
        "prelu": lambda: nn.Sequential(nn.Linear(6, 4), nn.PReLU()),
    }


@pytest.mark.parametrize("name", parts())
def test_parts_of_torch_are_exact(name: str) -> None:
    torch.manual_seed(0)
    model, batch = parts()[name]().train(), {"x": torch.randn(4, 5, 6)}
    tried(model, squares, batch)
    check(model, squares, batch)


def test_a_short_cut_that_is_taken_without_gradients_only_is_not_believed() -> None:
    """In eval mode and without gradients, torch runs an encoder's layers as one, past all modules inside."""
    torch.manual_seed(0)
    layer = nn.TransformerEncoderLayer(6, 2, 8, dropout=0.1, batch_first=True)
    model, batch = nn.TransformerEncoder(layer, 1, enable_nested_tensor=False), {"x": torch.randn(4, 5, 6)}
    tried(model.train(), squares, batch)
    check(model.eval(), squares, batch)


def test_bags_of_words_are_exact() -> None:
    torch.manual_seed(0)
    check(nn.EmbeddingBag(9, 4), squares, {"x": torch.randint(9, (4, 5))})

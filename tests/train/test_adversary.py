"""Attacks on the training stage: inputs, models and losses made to break it must be harmless, exact or refused."""

import math
import random
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from models import PADDING, VOCABULARY, tiny, tiny_batch
from reference import EXAMPLES, cross_entropy, rows, small_data, small_model, small_plan, train
from test_clipping import check, one_by_one
from torch import Tensor, nn
from torch.nn import functional

from hush.errors import InvalidInput
from hush.train.clipping import Clipper
from hush.train.language import causal_lm_loss, default_loss, masked_lm_loss, token_losses
from hush.train.private import PrivateTraining
from hush.train.probes import probe
from hush.train.public import PublicStream
from hush.train.refusals import refuse_coupled

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


def all_real(size: int) -> Tensor:
    return torch.ones(size, dtype=torch.bool)


def norm_of(sums: dict[str, Tensor]) -> float:
    return math.sqrt(sum(float(value.double().square().sum()) for value in sums.values()))


def given_gradients(model: nn.Module, batch: Any) -> Tensor:
    """A loss whose gradient at the model's output is what the batch says."""
    return (model(batch["x"]) * batch["g"]).flatten(1).sum(1)


def squares(model: nn.Module, batch: Any) -> Tensor:
    y = model(batch["x"])
    return (y[0] if isinstance(y, tuple) else y).flatten(1).square().mean(1) * 3


def tried(model: nn.Module, loss: Any, batch: dict[str, Tensor]) -> None:
    """What PrivateTraining does before its first round."""
    refuse_coupled(model)
    size = len(next(iter(batch.values())))
    probe(model, loss, batch, all_real(size), clipper=Clipper(model, loss, clip_norm=1.0))


class Around(nn.Module):
    """A model that uses its part in its own way."""

    def __init__(self, part: nn.Module, use: Any) -> None:
        super().__init__()
        self.part, self.use = part, use

    def forward(self, x: Tensor) -> Tensor:
        return self.use(self.part, x)


# --- no example adds more than the clip norm


@pytest.mark.parametrize("loud", [1e-30, 1e-12, 1.0, 1e12, 1e17, 1e25])
@pytest.mark.parametrize("quiet", [1e-30, 1e-23, 1e-19, 1.0, 1e15])
def test_no_scale_of_activations_and_gradients_passes_the_clip_norm(loud: float, quiet: float) -> None:
    """Squares of 1e-23 vanish in float32, while its products with 1e17 do not."""
    for width, positions in ((64, 1), (8, 3)):
        model = nn.Linear(width, width, bias=False)
        batch = {"x": torch.full((1, positions, width), loud), "g": torch.full((1, positions, width), quiet)}
        for clip_norm in (1e-6, 1.0):
            clipper = Clipper(model, given_gradients, clip_norm=clip_norm)
            clipper.accumulate(batch, all_real(1))
            assert norm_of(clipper.take()) <= clip_norm


@pytest.mark.parametrize("precision", ["highest", "high", "medium"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_positions_that_cancel_do_not_pass_the_clip_norm(precision: str, dtype: torch.dtype) -> None:
    before = torch.get_float32_matmul_precision()
    torch.set_float32_matmul_precision(precision)
    try:
        for seed in range(10):
            generator = torch.Generator().manual_seed(seed)
            width, positions = 2 ** (seed % 7), 2 + 6 * (seed % 3)
            model = nn.Linear(width, width, bias=False).to(dtype)
            x = torch.randn(2, positions, width, generator=generator)
            g = torch.randn(2, positions, width, generator=generator) * 1e3
            half = positions // 2
            x[:, half:] = x[:, :half] * (1 + 2e-3 * torch.randn(2, half, 1, generator=generator))
            g[:, half:] = -g[:, :half]
            batch = {"x": x.to(dtype), "g": g.to(dtype)}
            for example in range(2):
                clipper = Clipper(model, given_gradients, clip_norm=1.0)
                clipper.accumulate(batch, torch.arange(2) == example)
                assert norm_of(clipper.take()) <= 1.0
        assert torch.get_float32_matmul_precision() == precision
    finally:
        torch.set_float32_matmul_precision(before)


def test_a_clip_norm_that_float32_cannot_square_is_refused() -> None:
    with pytest.raises(InvalidInput, match="clip_norm"):
        Clipper(nn.Linear(2, 1), squares, clip_norm=1e-24)


def test_tied_uses_that_cancel_do_not_pass_the_clip_norm() -> None:
    """An embedding row pulled one way, the same row as an output pulled the other."""
    embedding, output = nn.Embedding(9, 4), nn.Linear(4, 9, bias=False)
    output.weight = embedding.weight
    model = nn.Sequential(embedding, output)
    for seed in range(20):
        generator = torch.Generator().manual_seed(seed)
        g = torch.randn(1, 3, 9, generator=generator) * 10 ** float(torch.randint(-3, 7, (), generator=generator))
        batch = {"x": torch.randint(9, (1, 3), generator=generator), "g": g}
        clipper = Clipper(model, given_gradients, clip_norm=0.3)
        clipper.accumulate(batch, all_real(1))
        assert norm_of(clipper.take()) <= 0.3


@pytest.mark.parametrize("name", ["bert", "gpt2", "gemma2", "llama", "vit"])
@pytest.mark.parametrize("poison", [math.nan, math.inf, 1e38])
def test_a_broken_example_changes_nobody_else(name: str, poison: float) -> None:
    model = tiny(name)
    batch = tiny_batch(name, 3, generator=torch.Generator().manual_seed(2))
    loss = default_loss(model)

    def poisoned(model: nn.Module, batch: Any) -> Tensor:
        return loss(model, {k: v for k, v in batch.items() if k != "factor"}) * batch["factor"]

    alone = Clipper(model, poisoned, clip_norm=0.1)
    alone.accumulate(batch | {"factor": torch.ones(3)}, torch.tensor([True, False, True]))
    wanted = alone.take()
    clipper = Clipper(model, poisoned, clip_norm=0.1)
    clipped = clipper.accumulate(batch | {"factor": torch.tensor([1.0, poison, 1.0])}, all_real(3))
    got = clipper.take()
    assert clipped.norms[[0, 2]].isfinite().all()
    gap = norm_of({key: got[key] - wanted[key] for key in got})
    if math.isfinite(poison) and clipped.norms[1].isfinite():
        assert gap <= 0.1
    else:
        assert gap <= 1e-6


# --- what an example adds depends on nobody else


class Masked(nn.Module):
    """Attention with a parameter of its own and a mask of T × T, as an argument."""

    def __init__(self) -> None:
        super().__init__()
        self.scale, self.project = nn.Parameter(torch.rand(6)), nn.Linear(6, 6)

    def forward(self, x: Tensor, mask: Tensor) -> Tensor:
        return (torch.softmax(self.project(x) @ x.transpose(1, 2) + mask, -1) @ x) * self.scale


class Positions(nn.Module):
    """Position numbers without a dimension of examples."""

    def __init__(self) -> None:
        super().__init__()
        self.words, self.places = nn.Embedding(9, 6), nn.Embedding(20, 6)

    def forward(self, x: Tensor) -> Tensor:
        return torch.tanh(self.words(x) + self.places(torch.arange(x.shape[1])))


def test_a_dimension_that_equals_the_batch_by_chance_is_exact_or_refused() -> None:
    torch.manual_seed(0)

    def causal(part: nn.Module, x: Tensor) -> Tensor:
        return part(x, torch.triu(torch.full((x.shape[1], x.shape[1]), -9.0), 1))

    masked = Around(Masked(), causal)
    check(masked, squares, {"x": torch.randn(4, 7, 6)})
    for model, x in ((masked, torch.randn(7, 7, 6)), (Positions(), torch.randint(9, (7, 7)))):
        clipper = Clipper(model, squares, clip_norm=1.0)
        with pytest.raises(InvalidInput, match=r"module (part|places) got an input of shape \(7"):
            clipper.accumulate({"x": x}, all_real(7))


@pytest.mark.parametrize("where", ["layerdrop", "decoder_layerdrop"])
def test_randomness_that_examples_share_is_refused(where: str) -> None:
    model = small_model()
    setattr(model, where, 0.1)
    with pytest.raises(InvalidInput, match=f"drops whole layers at random .{where}=0.1"):
        refuse_coupled(model)
    refuse_coupled(model.eval())

    class StochasticDepth(nn.Module):
        p, mode = 0.2, "batch"

    with pytest.raises(InvalidInput, match="mode='row'"):
        refuse_coupled(nn.Sequential(nn.Linear(2, 2), StochasticDepth()))


def test_a_layer_that_the_first_pass_skips_is_still_learnt_later() -> None:
    torch.manual_seed(0)
    layers = nn.ModuleList([nn.Linear(4, 4) for _ in range(2)])
    calls = [0]

    def sometimes(part: Any, x: Tensor) -> Tensor:
        return part[1](torch.tanh(part[0](x))) if calls[0] else part[0](x)

    model, batch = Around(layers, sometimes), {"x": torch.randn(3, 5, 4)}
    clipper = Clipper(model, squares, clip_norm=0.05)
    clipper.accumulate(batch, all_real(3))
    clipper.take()
    calls[0] = 1
    norms, sums = one_by_one(model, squares, batch, 0.05)
    clipped = clipper.accumulate(batch, all_real(3))
    assert torch.allclose(clipped.norms.double(), norms, rtol=1e-5)
    assert norm_of({name: value - sums[name] for name, value in clipper.take().items()}) < 1e-5


# --- unusual models: exact, or refused by name


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


def test_virtual_tokens_that_are_made_once_and_repeated_are_refused() -> None:
    import peft

    base: Any = tiny("llama")
    model = peft.get_peft_model(base, peft.PromptTuningConfig(task_type="CAUSAL_LM", num_virtual_tokens=3)).train()

    def loss(model: nn.Module, batch: Any) -> Tensor:
        inputs = {name: batch[name] for name in ("input_ids", "attention_mask")}
        logits = model(**inputs, use_cache=False).logits[:, 3:]
        return token_losses(logits, functional.pad(batch["labels"][:, 1:], (0, 1), value=-100))

    with pytest.raises(InvalidInput, match=r"prompt_encoder\.default\.embedding got \(1, 3\)"):
        tried(model, loss, tiny_batch("llama", 4, generator=torch.Generator().manual_seed(3)))


class InDicts(nn.Module):
    """Parameters in containers that nobody calls."""

    def __init__(self) -> None:
        super().__init__()
        self.named = nn.ParameterDict({"a": torch.rand(6)})
        self.listed = nn.ParameterList([torch.rand(6)])
        self.last = nn.Linear(6, 3)

    def forward(self, x: Tensor) -> Tensor:
        return self.last(x * self.named["a"] + self.listed[0])


def parts() -> dict[str, Any]:
    parametrized = nn.utils.parametrizations
    layer: dict[str, Any] = {"dim_feedforward": 8, "dropout": 0.0, "batch_first": True}
    return {
        "dicts": InDicts,
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


class Branching(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.own, self.last = nn.Parameter(torch.rand(6)), nn.Linear(6, 3)

    def forward(self, x: Tensor) -> Tensor:
        return self.last(x * self.own) if float(x.detach().sum()) < 1e9 else self.last(x)


class WeightElsewhere(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first, self.other = nn.Linear(6, 6), nn.Linear(6, 6)

    def forward(self, x: Tensor) -> Tensor:
        return functional.linear(torch.tanh(self.first(x) + self.other(x)), self.first.weight)


def refused_parts() -> dict[str, tuple[Any, str]]:
    folded = lambda part, x: part(x.reshape(-1, 6)).view_as(x)  # noqa: E731
    turned = lambda part, x: part(x.transpose(0, 1)).transpose(0, 1)  # noqa: E731
    return {
        "lstm": (lambda: nn.LSTM(6, 4, batch_first=True), r"\(LSTM\).*weight_ih_l0"),
        "gru": (lambda: Around(nn.GRU(6, 4, batch_first=True), lambda part, x: part(x)[0]), r"module part \(GRU\)"),
        "folded norm": (lambda: Around(nn.LayerNorm(6), folded), r"part got \(15, 6\)"),
        "folded linear": (lambda: Around(nn.Linear(6, 6), folded), r"module part got an input of shape \(15, 6\)"),
        "turned linear": (lambda: Around(nn.Linear(6, 6), turned), r"module part got an input of shape \(5, 3, 6\)"),
        "branch": (Branching, r"\(Branching\).*\(own\)"),
        "weight elsewhere": (WeightElsewhere, r"first\.weight"),
        "script": (lambda: torch.jit.script(nn.Sequential(nn.Linear(6, 3))), "TorchScript"),
        "spectral": (lambda: nn.utils.parametrizations.spectral_norm(nn.Linear(6, 4)), "power iteration"),
    }


@pytest.mark.filterwarnings("ignore::DeprecationWarning")  # of torch.jit
@pytest.mark.parametrize("name", refused_parts())
def test_what_cannot_be_exact_is_refused_by_name(name: str) -> None:
    torch.manual_seed(0)
    make, match = refused_parts()[name]
    with pytest.raises(InvalidInput, match=match):
        tried(make().train(), squares, {"x": torch.randn(4, 5, 6)})


def test_a_loss_that_goes_around_the_modules_is_refused() -> None:
    model = nn.Linear(6, 3)
    batch = {"x": torch.randn(4, 5, 6)}
    with pytest.raises(InvalidInput, match="weight"):
        tried(model, lambda model, batch: squares(model, batch) + model.weight.square().sum(), batch)
    root: Any = Branching()
    with pytest.raises(InvalidInput, match="own module's forward"):
        tried(root, lambda model, batch: squares(model.last, batch), batch)


def test_relative_positions_without_a_dimension_of_examples_are_refused() -> None:
    import transformers as hf

    config = hf.T5Config(
        vocab_size=VOCABULARY, d_model=16, d_kv=8, d_ff=16, num_layers=1, num_heads=2, dropout_rate=0.0
    )
    model: Any = hf.T5EncoderModel(config).train()

    def loss(model: nn.Module, batch: Any) -> Tensor:
        return model(**batch).last_hidden_state.square().mean((1, 2))

    for length in (5, 8):
        with pytest.raises(InvalidInput, match="relative_attention_bias"):
            Clipper(model, loss, clip_norm=1.0).accumulate(
                {"input_ids": torch.randint(VOCABULARY, (8, length))}, all_real(8)
            )


# --- probes that see something


def unlabelled(batch: dict[str, Tensor], row: int) -> dict[str, Tensor]:
    labels = batch["labels"].clone()
    labels[row] = -100
    return batch | {"labels": labels}


def test_a_head_is_judged_by_a_row_with_labels() -> None:
    """A model that bends its logits, and a first example in which nothing is learnt."""
    model: Any = tiny("llama")

    def bent(*arguments: Any, **keywords: Any) -> Any:
        output = type(model).forward(model, *arguments, **keywords)
        output.logits = torch.tanh(output.logits)
        return output

    model.forward = bent
    batch = unlabelled(tiny_batch("llama", 4, generator=torch.Generator().manual_seed(1)), 0)
    clipper = Clipper(model, causal_lm_loss, clip_norm=1.0)
    clipped = clipper.accumulate(batch, all_real(4))
    norms, _ = one_by_one(model, causal_lm_loss, {name: value[1:] for name, value in batch.items()}, 1.0)
    assert torch.allclose(clipped.norms[1:].double(), norms, rtol=1e-5)
    assert clipped.norms[0] == 0


def test_examples_without_a_gradient_do_not_end_the_probing() -> None:
    model = tiny("bert")
    batch = tiny_batch("bert", 3, generator=torch.Generator().manual_seed(1))
    for row in range(3):
        batch = unlabelled(batch, row)
    found = probe(model, masked_lm_loss, batch, all_real(3), clipper=Clipper(model, masked_lm_loss, clip_norm=1.0))
    assert not found.conclusive


@pytest.mark.parametrize("name", ["bert", "gpt2"])
def test_a_micro_batch_in_which_nothing_is_learnt_adds_nothing(name: str) -> None:
    model = tiny(name)
    batch = unlabelled(tiny_batch(name, 1, generator=torch.Generator().manual_seed(1)), 0)
    clipper = Clipper(model, default_loss(model), clip_norm=1.0)
    clipped = clipper.accumulate(batch, all_real(1))
    assert clipped.losses == clipped.norms == 0
    assert norm_of(clipper.take()) == 0


def test_a_coupling_that_the_first_examples_do_not_show_is_found_later() -> None:
    """The first micro-batches hold nothing to learn, later ones a batch statistic."""
    data = small_data()
    data["weights"] = torch.zeros(EXAMPLES)
    data["weights"][20:] = 1.0

    def coupled(model: nn.Module, batch: Any) -> Tensor:
        losses = cross_entropy(model, batch) * batch["weights"]
        return losses * (1 + losses.detach().mean())

    model = small_model()
    private = PrivateTraining(
        model,
        torch.optim.SGD(model.parameters(), lr=0.1),
        small_plan(batch_size=20.0),
        loss=coupled,
        micro_batch=4,
        insecure_seed=1,
    )
    with pytest.raises(InvalidInput, match=r"neighbours|alone"):
        train(private, data)


# --- the public stream


def test_the_public_stream_draws_from_no_generator_that_the_private_one_moves() -> None:
    plan, data = small_plan(), small_data()
    seen: list[tuple[float, ...]] = []

    def collate(examples: np.ndarray) -> dict[str, Tensor]:
        seen.append((random.random(), float(np.random.rand()), float(torch.rand(()))))  # noqa: NPY002
        return rows(data, examples)

    model = small_model()
    stream = PublicStream(plan, collate, batch_size=4)
    trainable = dict(model.named_parameters())
    for moves in (0, 3):
        for _ in range(moves):
            _ = random.random(), np.random.rand(), torch.rand(())  # noqa: NPY002
        before = random.getstate()
        stream.gradients(model, cross_entropy, trainable, round=2)
        assert random.getstate() == before
    assert seen[0] == seen[1]


# --- the loop


def test_parameters_without_a_gradient_get_their_noise() -> None:
    class Unused(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.used, self.idle = nn.Linear(6, 3), nn.Linear(50, 40)

        def forward(self, x: Tensor) -> Tensor:
            return self.used(x)

    model, plan = Unused(), small_plan(rounds=1)
    before = model.idle.weight.detach().clone()
    private = PrivateTraining(model, torch.optim.SGD(model.parameters(), lr=1.0), plan, loss=cross_entropy)
    train(private, small_data())
    moved = (model.idle.weight.detach() - before).double() * plan.batch_size
    assert float(moved.std()) == pytest.approx(plan.clip_norm * plan.noise_multiplier, rel=0.1)


def test_a_closed_training_does_not_go_on(tmp_path: Path) -> None:
    """Its lock is gone, and the number of its log file may belong to another file, which others read."""
    model = small_model()
    optimizer = torch.optim.SGD(model.parameters(), lr=1.0)
    private = PrivateTraining(model, optimizer, small_plan(), loss=cross_entropy, folder=tmp_path / "run")
    train(private, small_data(), until=2)
    log = private._keeper._log  # pyright: ignore[reportOptionalMemberAccess]
    private.close()
    with (tmp_path / "public.txt").open("wb"), (tmp_path / "another.txt").open("wb"):
        with pytest.raises(InvalidInput, match="closed"):
            train(private, small_data())
        with pytest.raises(InvalidInput, match="closed"):
            log.append(private._progress.records[-1])  # pyright: ignore[reportOptionalMemberAccess]
    assert not (tmp_path / "public.txt").read_bytes() + (tmp_path / "another.txt").read_bytes()
    assert private.round == 2


class Remembers(nn.Module):
    """Keeps a trace of what it sees, but not at first."""

    def __init__(self) -> None:
        super().__init__()
        self.part, self.calls = nn.Linear(6, 3), 0
        self.register_buffer("seen", torch.zeros(6))

    def forward(self, x: Tensor) -> Tensor:
        self.calls += 1
        if self.calls > 20:
            self.seen += x.detach().sum(0)
        return self.part(x)


@pytest.mark.parametrize("folder", [False, True])
def test_no_certificate_covers_a_buffer_that_training_moved(folder: bool, tmp_path: Path) -> None:
    model = Remembers()
    place = tmp_path / "run" if folder else None
    optimizer = torch.optim.SGD(model.parameters(), lr=1.0)
    private = PrivateTraining(model, optimizer, small_plan(), loss=cross_entropy, micro_batch=2, folder=place)
    train(private, small_data())
    with pytest.raises(InvalidInput, match="changed a buffer"):
        private.finish()
    private.close()


def test_a_batch_that_is_no_mapping_is_refused() -> None:
    model = small_model()
    optimizer = torch.optim.SGD(model.parameters(), lr=1.0)
    private = PrivateTraining(model, optimizer, small_plan(), loss=cross_entropy, insecure_seed=1)
    examples = next(next(private.rounds()).micro_batches())
    batch: Any = list(rows(small_data(), examples).values())
    with pytest.raises(InvalidInput, match="is a list"):
        private.accumulate(batch, examples.real)


def test_tied_parameters_get_their_noise_once() -> None:
    class Tied(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.one, self.two = nn.Linear(6, 50), nn.Linear(6, 50)
            self.two.weight = self.one.weight

        def forward(self, x: Tensor) -> Tensor:
            return 0 * (self.one(x) + self.two(x))[:, :3]

    model, plan = Tied(), small_plan(rounds=1)
    before = model.one.weight.detach().clone()
    private = PrivateTraining(model, torch.optim.SGD(model.parameters(), lr=1.0), plan, loss=cross_entropy)
    train(private, small_data())
    moved = (model.one.weight.detach() - before).double() * plan.batch_size
    assert float(moved.std()) == pytest.approx(plan.clip_norm * plan.noise_multiplier, rel=0.2)

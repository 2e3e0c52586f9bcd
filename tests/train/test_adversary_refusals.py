"""Attacks by models and losses for which no clipped sum is exact: each is refused by name."""

from typing import Any

import pytest
import torch
from attacks import Around, all_real, squares, tried
from models import VOCABULARY, tiny, tiny_batch
from reference import small_model
from torch import Tensor, nn
from torch.nn import functional

from hush.errors import InvalidInput
from hush.train.clipping import Clipper
from hush.train.language_models import token_losses
from hush.train.preconditions import refuse_coupled

pytestmark = pytest.mark.filterwarnings("ignore:There is a performance drop")


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

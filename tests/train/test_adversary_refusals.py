"""Attacks by models and losses that one pass over all examples cannot clip: taken one by one, or refused by name."""

import re
from typing import Any

import pytest
import torch
from attacks import Around, squares, tried
from models import VOCABULARY, tiny, tiny_batch
from reference import check, small_model
from torch import Tensor, nn
from torch.nn import functional

from hush.errors import InvalidInput
from hush.train.language_models import token_losses
from hush.train.preconditions import refuse_coupled

pytestmark = pytest.mark.filterwarnings(
    "ignore:There is a performance drop", "ignore:gradients are taken example by example"
)


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


def test_virtual_tokens_that_are_made_once_and_repeated_are_exact() -> None:
    import peft

    base: Any = tiny("llama")
    model = peft.get_peft_model(base, peft.PromptTuningConfig(task_type="CAUSAL_LM", num_virtual_tokens=3)).train()

    def loss(model: nn.Module, batch: Any) -> Tensor:
        inputs = {name: batch[name] for name in ("input_ids", "attention_mask")}
        logits = model(**inputs, use_cache=False).logits[:, 3:]
        return token_losses(logits, functional.pad(batch["labels"][:, 1:], (0, 1), value=-100))

    batch = tiny_batch("llama", 4, generator=torch.Generator().manual_seed(3))
    tried(model, loss, batch)
    (row,) = check(model, loss, batch).routes()
    assert row.route == "example by example"
    assert "prompt_encoder.default.embedding gets (1, 3)" in row.reason


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


def taken_one_by_one() -> dict[str, tuple[Any, str]]:
    turned = lambda part, x: part(x.transpose(0, 1)).transpose(0, 1)  # noqa: E731
    return {
        "lstm": (lambda: nn.LSTM(6, 4, batch_first=True), r"\(LSTM\).*weight_ih_l0"),
        "gru": (lambda: Around(nn.GRU(6, 4, batch_first=True), lambda part, x: part(x)[0]), r"module part \(GRU\)"),
        "turned linear": (lambda: Around(nn.Linear(6, 6), turned), r"part gets an input of shape \(5, 4, 6\)"),
        "branch": (Branching, r"\(Branching\).*\(own\)"),
        "weight elsewhere": (WeightElsewhere, r"first\.weight is used outside"),
    }


@pytest.mark.parametrize("name", taken_one_by_one())
def test_what_cannot_be_taken_in_one_pass_is_exact_example_by_example(name: str) -> None:
    torch.manual_seed(0)
    make, reason = taken_one_by_one()[name]
    model, batch = make().train(), {"x": torch.randn(4, 5, 6)}
    tried(model, squares, batch)
    rows = check(model, squares, batch).routes()
    assert {row.route for row in rows} == {"example by example"}
    assert re.search(reason, rows[0].reason)


@pytest.mark.parametrize("make", [lambda: nn.LayerNorm(6), lambda: nn.Linear(6, 6)], ids=["norm", "linear"])
def test_rows_that_are_folded_into_one_dimension_are_exact_in_one_pass(make: Any) -> None:
    torch.manual_seed(0)
    model, batch = Around(make(), lambda part, x: part(x.reshape(-1, 6)).view_as(x)), {"x": torch.randn(4, 5, 6)}
    tried(model, squares, batch)
    assert all(row.route != "example by example" for row in check(model, squares, batch).routes())


@pytest.mark.filterwarnings("ignore::DeprecationWarning")  # of torch.jit
def test_what_cannot_be_exact_is_refused_by_name() -> None:
    batch = {"x": torch.randn(4, 5, 6)}
    with pytest.raises(InvalidInput, match="TorchScript"):
        tried(torch.jit.script(nn.Sequential(nn.Linear(6, 3))), squares, batch)
    with pytest.raises(InvalidInput, match="power iteration"):
        tried(nn.utils.parametrizations.spectral_norm(nn.Linear(6, 4)), squares, batch)
    with pytest.raises(InvalidInput, match="has a part in the losses"):
        tried(nn.Linear(6, 3), lambda model, batch: batch["x"].sum((1, 2)), batch)


def test_a_loss_that_goes_around_the_modules_is_exact() -> None:
    torch.manual_seed(0)
    model = nn.Linear(6, 3)
    batch = {"x": torch.randn(4, 5, 6)}
    penalised = lambda model, batch: squares(model, batch) + model.weight.square().sum()  # noqa: E731
    tried(model, penalised, batch)
    check(model, penalised, batch)
    root: Any = Branching()
    around = lambda model, batch: squares(model.last, batch)  # noqa: E731
    tried(root, around, batch)
    check(root, around, batch)


def test_relative_positions_without_a_dimension_of_examples_are_exact() -> None:
    import transformers as hf

    config = hf.T5Config(
        vocab_size=VOCABULARY, d_model=16, d_kv=8, d_ff=16, num_layers=1, num_heads=2, dropout_rate=0.0
    )
    model: Any = hf.T5EncoderModel(config).train()

    def loss(model: nn.Module, batch: Any) -> Tensor:
        return model(**batch).last_hidden_state.square().mean((1, 2))

    for length in (5, 8):
        rows = check(model, loss, {"input_ids": torch.randint(VOCABULARY, (8, length))}).routes()
        assert "relative_attention_bias" in rows[0].reason

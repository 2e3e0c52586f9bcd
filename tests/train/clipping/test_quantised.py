"""LoRA on a quantised base: gradients per example are exact, and layers whose rounding ties examples are refused.

The base here is a linear layer that keeps whole numbers of eight bits, as libraries do; where bitsandbytes or torchao
are installed, theirs are tried too.
"""

from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from models import LORA_TARGETS, batch_of, tiny, with_lora
from reference import small_plan
from torch import Tensor, nn
from torch.nn import functional
from torch.testing._internal.two_tensor import TwoTensor

from hush.errors import InvalidInput
from hush.train.checkpoints import frozen_digest
from hush.train.clipping import MARGIN, Clipper
from hush.train.distributed import plain_tensors
from hush.train.language_models import causal_lm_loss
from hush.train.preconditions import refuse_coupled
from hush.train.private_training import PrivateTraining

SIZE, CLIP_NORM = 6, 0.5


class Int8Linear(nn.Linear):
    """A frozen linear layer whose weight is whole numbers times a scale for each output."""

    def __init__(self, linear: nn.Linear) -> None:
        super().__init__(linear.in_features, linear.out_features, bias=False)
        weight = linear.weight.detach()
        scale = weight.abs().amax(1, keepdim=True) / 127
        self.weight = nn.Parameter((weight / scale).round().to(torch.int8), requires_grad=False)
        self.scale = nn.Buffer(scale)

    def forward(self, input: Tensor) -> Tensor:
        return functional.linear(input, self.weight.to(input.dtype) * self.scale.to(input.dtype))


def four_bits(linear: nn.Linear) -> nn.Module:
    """That of bitsandbytes: NF4 with quantised scales."""
    bitsandbytes: Any = pytest.importorskip("bitsandbytes")
    made = bitsandbytes.nn.Linear4bit(
        linear.in_features, linear.out_features, bias=False, compute_dtype=torch.float32, quant_type="nf4"
    )
    made.weight = bitsandbytes.nn.Params4bit(linear.weight.detach(), requires_grad=False, quant_type="nf4")
    return made.to("cpu")


def weight_only(linear: nn.Linear) -> nn.Module:
    """That of torchao: eight bits, weights alone."""
    quantization: Any = pytest.importorskip("torchao.quantization")
    holder = nn.Sequential(linear)
    quantization.quantize_(holder, quantization.Int8WeightOnlyConfig())
    return holder[0]


def quantised(make: Callable[[nn.Linear], nn.Module], seed: int = 0) -> nn.Module:
    """A tiny Llama with these layers, frozen, and LoRA on it."""
    model = tiny("llama", seed=seed)
    for parent in list(model.modules()):
        for name, child in list(parent.named_children()):
            if type(child) is nn.Linear and name != "lm_head":
                setattr(parent, name, make(child))
    for parameter in model.parameters():
        parameter.requires_grad_(False)
    return with_lora(model, targets=LORA_TARGETS["llama"]).train()


@pytest.mark.filterwarnings("ignore")  # of libraries that miss compiled parts
@pytest.mark.parametrize("make", [Int8Linear, four_bits, weight_only], ids=["int8", "nf4", "torchao"])
def test_norms_and_clipped_sums_are_those_of_one_example_at_a_time(make: Callable[[nn.Linear], nn.Module]) -> None:
    model, batch = quantised(make), batch_of("llama", SIZE)
    clipper = Clipper(model, causal_lm_loss, clip_norm=CLIP_NORM)
    clipped = clipper.accumulate(batch, torch.ones(SIZE, dtype=torch.bool))
    sums = clipper.take(exact=True)
    trainable = {name: parameter for name, parameter in model.named_parameters() if parameter.requires_grad}
    assert sums.keys() == trainable.keys()
    assert not any(row.route == "example by example" for row in clipper.plan_for(batch).routes)
    expected = {name: torch.zeros_like(parameter, dtype=torch.float64) for name, parameter in trainable.items()}
    for example in range(SIZE):
        loss = causal_lm_loss(model, {name: value[example : example + 1] for name, value in batch.items()})
        gradients = torch.autograd.grad(loss.sum(), list(trainable.values()))
        norm = torch.stack([gradient.double().square().sum() for gradient in gradients]).sum().sqrt()
        assert float(clipped.norms[example]) == pytest.approx(float(norm), rel=1e-5)
        for name, gradient in zip(trainable, gradients, strict=True):
            expected[name] += gradient.double() * min(1.0, CLIP_NORM * (1 - MARGIN) / float(norm))
    for name, value in sums.items():
        torch.testing.assert_close(value.double(), expected[name], rtol=1e-4, atol=1e-6)


def test_a_quantised_base_is_trained_resumed_and_told_from_another_one(tmp_path: Path) -> None:
    plan, batch = small_plan(rounds=2), batch_of("llama", 40)

    def training(seed: int = 0) -> PrivateTraining:
        model = quantised(Int8Linear, seed)
        optimizer = torch.optim.AdamW([p for p in model.parameters() if p.requires_grad], lr=0.01)
        return PrivateTraining(
            model, optimizer, plan, loss=causal_lm_loss, folder=tmp_path / "run", export=lambda _: None, save_every=1
        )

    private = training()
    for current in private.rounds():
        for part in current.micro_batches():
            private.accumulate({name: value[part.examples] for name, value in batch.items()}, part.real)
        private.step()
        break
    private.close()
    with pytest.raises(InvalidInput, match="frozen tensors of the model"):
        training(seed=1)
    assert training().round == 1


def test_all_parts_of_a_quantised_tensor_count(tmp_path: Path) -> None:
    """Its codes and its scales, wherever the library keeps them: for the digest, and for other processes."""

    def digest(scale: float) -> str:
        module = nn.Module()
        module.weight = nn.Parameter(TwoTensor(torch.ones(2, 3), torch.full((2, 3), scale)), requires_grad=False)  # pyright: ignore[reportArgumentType]
        return frozen_digest(module)

    assert digest(1.0) == digest(1.0)
    assert digest(1.0) != digest(2.0)
    codes: Any = torch.zeros(4, dtype=torch.uint8)
    inner = SimpleNamespace(absmax=torch.ones(1))
    codes.quant_state = SimpleNamespace(absmax=torch.ones(2), state2=inner, dtype=torch.float32)
    assert [part.numel() for part in plain_tensors(codes)] == [4, 2, 1]


def test_layers_whose_rounding_ties_examples_are_refused() -> None:
    class Linear8bitLt(nn.Linear):
        state = SimpleNamespace(threshold=6.0)

    with pytest.raises(InvalidInput, match=r"threshold=6.*llm_int8_threshold=0\.0"):
        refuse_coupled(nn.Sequential(Linear8bitLt(2, 2), nn.Linear(2, 2)))
    Linear8bitLt.state = SimpleNamespace(threshold=0.0)
    refuse_coupled(nn.Sequential(Linear8bitLt(2, 2), nn.Linear(2, 2)))

    class Granularity:
        pass

    class PerRow:
        pass

    layer = nn.Linear(2, 2)
    rounding: Any = SimpleNamespace(granularity=Granularity())
    layer.weight.act_quant_kwargs = rounding  # pyright: ignore[reportAttributeAccessIssue]
    with pytest.raises(InvalidInput, match="at a scale that other examples may decide"):
        refuse_coupled(layer)
    rounding.granularity = PerRow()
    refuse_coupled(layer)

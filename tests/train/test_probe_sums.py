"""A clipper that is not what autograd gives on one example is found out, whatever precision blurs."""

from collections.abc import Mapping

import pytest
import torch
from models import tiny, tiny_batch
from probed import OneByOne, Result, batch_of, cross_entropy, network, try_out
from torch import Tensor, nn

from hush.errors import InvalidInput
from hush.train.clipping import Clipper
from hush.train.language_models import default_loss
from hush.train.probes import probe


@pytest.mark.parametrize("blind", [("0.weight",), ("2.bias",), ("0.weight", "2.weight")])
def test_parameters_that_the_clipper_does_not_see_are_named(blind: tuple[str, ...]) -> None:
    with pytest.raises(InvalidInput, match=rf"for {len(blind)} of 4 parameters: {', '.join(blind)}\."):
        try_out(network(), blind=blind)


@pytest.mark.parametrize("clip_norm", [1e-3, 0.7, 1e3])
def test_an_exact_clipper_passes_whatever_it_clips(clip_norm: float) -> None:
    assert try_out(network(), clip_norm=clip_norm).conclusive


def test_a_padded_slot_that_counts_is_refused() -> None:
    with pytest.raises(InvalidInput, match="clipped gradient sum differs"):
        try_out(network(), counts_padding=True)


def test_wrong_norms_are_refused_though_the_sums_agree() -> None:
    class Doubled(OneByOne):
        def accumulate(self, batch: Mapping[str, Tensor], real: Tensor) -> Result:
            return Result(2 * super().accumulate(batch, real).norms)

    model = network()
    clipper = Doubled(model, cross_entropy, clip_norm=1e3)  # so large that nothing is clipped
    with pytest.raises(InvalidInput, match="times autograd's"):
        probe(model, cross_entropy, batch_of(3), torch.ones(3, dtype=torch.bool), clipper=clipper)


def test_a_gradient_that_is_not_finite_counts_as_zero() -> None:
    def loss(model: nn.Module, batch: Mapping[str, Tensor]) -> Tensor:
        return cross_entropy(model, batch) + batch["broken"] * model(batch["x"]).sum(1)

    class Careful(OneByOne):
        def accumulate(self, batch: Mapping[str, Tensor], real: Tensor) -> Result:
            fine = torch.isfinite(batch["broken"])
            part = super().accumulate({key: value[fine] for key, value in batch.items()}, real[fine])
            norms = torch.full((len(real),), torch.nan)
            norms[fine] = part.norms
            return Result(norms)

    model = network()
    batch = batch_of(3) | {"broken": torch.tensor([0.0, torch.inf, 0.0])}
    real = torch.ones(3, dtype=torch.bool)
    assert probe(model, loss, batch, real, clipper=Careful(model, loss)).conclusive


def test_reduced_precision_is_judged_by_its_own_rounding() -> None:
    model = network(nn.LayerNorm(6))

    class Reduced(OneByOne):
        def accumulate(self, batch: Mapping[str, Tensor], real: Tensor) -> Result:
            with torch.autocast("cpu", dtype=torch.bfloat16):
                return super().accumulate(batch, real)

    def loss(model: nn.Module, batch: Mapping[str, Tensor]) -> Tensor:
        return nn.functional.cross_entropy(model(batch["x"]).float(), batch["y"], reduction="none")

    real = torch.ones(4, dtype=torch.bool)
    clipper = Reduced(model, loss)
    assert probe(model, loss, batch_of(4), real, clipper=clipper, autocast=torch.bfloat16).conclusive


class Borrowing(nn.Module):
    """Uses its layer's weight once more, behind the back of the layer's own forward."""

    def __init__(self) -> None:
        super().__init__()
        self.layer, self.head = nn.Linear(5, 5), nn.Linear(5, 3)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(torch.tanh(nn.functional.linear(self.layer(x), self.layer.weight)))


def test_a_weight_used_behind_its_layers_back_is_clipped_example_by_example() -> None:
    model = Borrowing()
    clipper = Clipper(model, cross_entropy, clip_norm=1.0)
    with pytest.warns(UserWarning, match=r"example by example.*layer\.weight is used outside of its own module"):
        assert probe(model, cross_entropy, batch_of(3), torch.ones(3, dtype=torch.bool), clipper=clipper).conclusive


def test_a_weight_used_behind_its_layers_back_is_named_if_the_clipper_misses_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(Clipper, "_refuse_uses_outside", lambda *_: None)
    model = Borrowing()
    clipper = Clipper(model, cross_entropy, clip_norm=1.0)
    with pytest.raises(InvalidInput, match=r"for 1 of 4 parameters: layer\.weight\."):
        probe(model, cross_entropy, batch_of(3), torch.ones(3, dtype=torch.bool), clipper=clipper)


@pytest.mark.parametrize("clip_norm", [1e-2, 1e2])
@pytest.mark.parametrize("autocast", [None, torch.bfloat16])
def test_a_language_model_with_tied_weights_and_dropout_passes(clip_norm: float, autocast: torch.dtype | None) -> None:
    transformers = pytest.importorskip("transformers")
    torch.manual_seed(5)
    config = transformers.GPT2Config(n_embd=16, n_layer=2, n_head=2, vocab_size=23, n_positions=12)
    model = transformers.GPT2LMHeadModel(config).train()

    def loss(model: nn.Module, batch: Mapping[str, Tensor]) -> Tensor:
        logits = model(**batch).logits[:, :-1].float()
        wanted = batch["input_ids"][:, 1:].masked_fill(batch["attention_mask"][:, 1:] == 0, -100)
        losses = nn.functional.cross_entropy(logits.transpose(1, 2), wanted, reduction="none")
        return losses.sum(1) / (wanted != -100).sum(1)

    ids = torch.randint(0, 23, (4, 9))
    mask = (torch.arange(9) < torch.tensor([[9], [4], [6], [9]])).long()
    clipper = Clipper(model, loss, clip_norm=clip_norm, autocast=autocast)
    batch = {"input_ids": ids, "attention_mask": mask}
    assert probe(model, loss, batch, torch.ones(4, dtype=torch.bool), clipper=clipper, autocast=autocast).conclusive

    def by_all_tokens(model: nn.Module, batch: Mapping[str, Tensor]) -> Tensor:
        return loss(model, batch) / batch["attention_mask"].sum()

    with pytest.raises(InvalidInput, match="neighbours"):
        probe(model, by_all_tokens, batch, torch.ones(4, dtype=torch.bool), clipper=clipper, autocast=autocast)


def test_a_gradient_that_cancels_in_reduced_precision_is_no_reason_to_refuse() -> None:
    for seed in range(14, 20):
        torch.manual_seed(seed)
        model = tiny("gemma2")
        with torch.no_grad():
            for parameter in model.parameters():
                parameter.mul_(3.0 if parameter.dim() > 1 else 1.0)
        batch = tiny_batch("gemma2", 4, generator=torch.Generator().manual_seed(seed))
        loss, real = default_loss(model), torch.ones(4, dtype=torch.bool)
        clipper = Clipper(model, loss, clip_norm=1.0, autocast=torch.bfloat16)
        assert probe(model, loss, batch, real, clipper=clipper, autocast=torch.bfloat16).conclusive


def test_what_the_clipper_does_not_see_is_refused_in_reduced_precision_too(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Clipper, "_refuse_uses_outside", lambda *_: None)
    torch.manual_seed(0)
    model = Borrowing()
    clipper = Clipper(model, cross_entropy, clip_norm=1.0, autocast=torch.bfloat16)
    with pytest.raises(InvalidInput, match=r"for 1 of 4 parameters: layer\.weight\."):
        probe(
            model, cross_entropy, batch_of(3), torch.ones(3, dtype=torch.bool), clipper=clipper, autocast=torch.bfloat16
        )


class Cancelling(nn.Module):
    """A difference of nearly equal numbers: bfloat16 loses most of it."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.last = nn.Linear(64, 64, bias=False), nn.Linear(64, 1, bias=False)
        nn.init.constant_(self.last.weight, 0.125)

    def forward(self, x: Tensor) -> Tensor:
        inside = self.first(x)
        return self.last(torch.tanh(inside + 3) - torch.tanh(inside + 3.01)).squeeze(-1)


@pytest.mark.parametrize("factor", [1.0, 1.05, 1.3, 1.5])
@pytest.mark.parametrize("clip_norm", [1e-4, 1.0])
def test_a_clipper_that_adds_more_than_its_norm_is_refused_whatever_cancels(factor: float, clip_norm: float) -> None:
    torch.manual_seed(0)
    model, batch, real = Cancelling(), {"x": torch.randn(4, 64)}, torch.ones(4, dtype=torch.bool)

    def loss(model: nn.Module, batch: Mapping[str, Tensor]) -> Tensor:
        return model(batch["x"]).float() * 30

    clipper = Clipper(model, loss, clip_norm=clip_norm, autocast=torch.bfloat16)
    honest = clipper.take

    def take() -> dict[str, Tensor]:
        return {name: total * (factor if name == "first.weight" else 1.0) for name, total in honest().items()}

    clipper.take = take  # pyright: ignore[reportAttributeAccessIssue]
    if factor == 1:
        assert probe(model, loss, batch, real, clipper=clipper, autocast=torch.bfloat16).conclusive
    else:
        with pytest.raises(InvalidInput, match=r"differs from autograd's|cannot be relied on"):
            probe(model, loss, batch, real, clipper=clipper, autocast=torch.bfloat16)

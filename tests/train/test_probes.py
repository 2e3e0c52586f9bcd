"""Couplings that cannot be read off are found on a few examples, and probing leaves nothing behind."""

import random
from collections.abc import Mapping
from dataclasses import dataclass, field

import numpy as np
import pytest
import torch
from models import tiny, tiny_batch
from torch import Tensor, nn

from hush.errors import InvalidInput
from hush.train.clipping import Clipper
from hush.train.language import default_loss
from hush.train.probes import Probed, probe


@dataclass
class Result:
    norms: Tensor


@dataclass
class OneByOne:
    """What a clipper does, by plain autograd; blind, where told, to some parameters' gradients."""

    model: nn.Module
    loss: object
    clip_norm: float = 0.7
    blind: tuple[str, ...] = ()
    counts_padding: bool = False
    sums: dict[str, Tensor] = field(default_factory=dict)

    @property
    def names(self) -> tuple[str, ...]:
        return tuple(name for name, p in self.model.named_parameters() if p.requires_grad)

    def accumulate(self, batch: Mapping[str, Tensor], real: Tensor) -> Result:
        parameters = {name: dict(self.model.named_parameters())[name] for name in self.names}
        norms = []
        for i in range(len(real)):
            row = {key: value[i : i + 1] for key, value in batch.items()}
            loss = self.loss(self.model, row)[0]  # pyright: ignore[reportCallIssue]
            gradients = torch.autograd.grad(loss, list(parameters.values()), allow_unused=True)
            found = {
                name: torch.zeros_like(p) if g is None or name in self.blind else g
                for (name, p), g in zip(parameters.items(), gradients, strict=True)
            }
            norms.append(torch.stack([g.norm() for g in found.values()]).norm())
            weight = min(1.0, self.clip_norm / float(norms[-1])) * bool(real[i] or self.counts_padding)
            for name, gradient in found.items():
                self.sums[name] = self.sums.get(name, torch.zeros_like(gradient)) + weight * gradient
        return Result(torch.stack(norms))

    def take(self) -> dict[str, Tensor]:
        sums, self.sums = self.sums, {}
        return sums


def batch_of(examples: int, *, seed: int = 0) -> dict[str, Tensor]:
    generator = torch.Generator().manual_seed(seed)
    x = torch.randn(examples, 5, generator=generator)
    return {"x": x, "y": torch.randint(0, 3, (examples,), generator=generator)}


def network(*middle: nn.Module) -> nn.Module:
    torch.manual_seed(1)
    return nn.Sequential(nn.Linear(5, 6), nn.Tanh(), *middle, nn.Linear(6, 3)).train()


def cross_entropy(model: nn.Module, batch: Mapping[str, Tensor]) -> Tensor:
    return nn.functional.cross_entropy(model(batch["x"]), batch["y"], reduction="none")


def try_out(model: nn.Module, loss: object = cross_entropy, *, examples: int = 4, **options: object) -> Probed:
    batch = batch_of(examples)
    real = torch.ones(examples, dtype=torch.bool)
    clipper = OneByOne(model, loss, **options)  # pyright: ignore[reportArgumentType]
    return probe(model, loss, batch, real, clipper=clipper)  # pyright: ignore[reportArgumentType]


@pytest.mark.parametrize(
    "middle",
    [nn.LayerNorm(6), nn.GroupNorm(2, 6), nn.RMSNorm(6), nn.Dropout(0.5), nn.BatchNorm1d(6).eval(), nn.Identity()],
    ids=lambda module: type(module).__name__,
)
def test_models_that_treat_examples_apart_pass(middle: nn.Module) -> None:
    model = network(nn.Identity())
    model[2] = middle  # pyright: ignore[reportIndexIssue]
    assert try_out(model) == Probed(examples=3, slots=4)


def test_tied_weights_pass() -> None:
    class Tied(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.one, self.two, self.head = nn.Linear(5, 5), nn.Linear(5, 5), nn.Linear(5, 3)
            self.two.weight = self.one.weight

        def forward(self, x: Tensor) -> Tensor:
            return self.head(self.two(torch.tanh(self.one(x))))

    assert try_out(Tied()).conclusive


def mean_loss(model: nn.Module, batch: Mapping[str, Tensor]) -> Tensor:
    return cross_entropy(model, batch).mean()


def by_the_batch_count(model: nn.Module, batch: Mapping[str, Tensor]) -> Tensor:
    return cross_entropy(model, batch) / len(batch["y"])


def with_negatives(model: nn.Module, batch: Mapping[str, Tensor]) -> Tensor:
    vectors = nn.functional.normalize(model(batch["x"]), dim=1)
    return nn.functional.cross_entropy(vectors @ vectors.T, torch.arange(len(vectors)), reduction="none")


def with_balance(model: nn.Module, batch: Mapping[str, Tensor]) -> Tensor:
    shares = model(batch["x"]).softmax(1).mean(0)
    return cross_entropy(model, batch) + 1e-3 * shares.square().sum()


def centred(model: nn.Module, batch: Mapping[str, Tensor]) -> Tensor:
    return cross_entropy(model, {**batch, "x": batch["x"] - batch["x"].mean(0)})


def first_come(model: nn.Module, batch: Mapping[str, Tensor]) -> Tensor:
    """An expert's capacity of one: of the examples it is to take, it takes the first."""
    chosen = model(batch["x"])[:, :2].argmax(1)
    place = nn.functional.one_hot(chosen, 2).cumsum(0).gather(1, chosen[:, None])[:, 0]
    return cross_entropy(model, batch) * (place <= 1)


@pytest.mark.parametrize(
    ("loss", "message"),
    [
        (mean_loss, r"shape \(3,\), one loss per example"),
        (by_the_batch_count, "size of the batch"),
        (with_negatives, "neighbours"),
        (with_balance, "neighbours"),
        (centred, "neighbours"),
        (first_come, "neighbours"),
    ],
    ids=lambda value: getattr(value, "__name__", ""),
)
def test_a_loss_that_ties_examples_is_refused(loss: object, message: str) -> None:
    with pytest.raises(InvalidInput, match=message):
        try_out(network(), loss)


def test_integer_losses_are_refused() -> None:
    with pytest.raises(InvalidInput, match="float tensor"):
        try_out(network(), lambda model, batch: batch["y"])


class Centre(nn.Module):
    """A batch statistic that only training mode uses."""

    def forward(self, x: Tensor) -> Tensor:
        return x - x.mean(0) if self.training else x


def test_a_batch_statistic_of_training_mode_is_refused_also_behind_dropout() -> None:
    with pytest.raises(InvalidInput, match="in the mode the model is in"):
        try_out(network(nn.Dropout(0.3), Centre()))


class Running(nn.Module):
    """Keeps a running mean that it does not use."""

    def __init__(self, *, once: bool = False) -> None:
        super().__init__()
        self.once = once
        self.seen: Tensor
        self.register_buffer("seen", torch.zeros(6))

    def forward(self, x: Tensor) -> Tensor:
        if self.training and not (self.once and self.seen.any()):
            self.seen += x.detach().mean(0)
        return x


@pytest.mark.parametrize("once", [False, True])
def test_a_buffer_that_a_forward_pass_changes_is_refused_and_put_back(once: bool) -> None:
    model = network(Running(once=once))
    with pytest.raises(InvalidInput, match=r"changed 2\.seen"):
        try_out(model)
    assert not model[2].seen.any()  # pyright: ignore[reportIndexIssue]
    assert try_out(model.eval()).conclusive


class Renormed(nn.Linear):
    """Changes its own weight in a forward pass, as embeddings with max_norm do."""

    def forward(self, input: Tensor) -> Tensor:
        self.weight.data.clamp_(max=0.1)
        return super().forward(input)


def test_a_parameter_that_a_forward_pass_changes_is_refused() -> None:
    with pytest.raises(InvalidInput, match=r"changed 2\.weight"):
        try_out(network(Renormed(6, 6)))


class Restless(nn.Module):
    """Randomness that torch's seed does not govern."""

    def __init__(self) -> None:
        super().__init__()
        self.source = torch.Generator().manual_seed(3)

    def forward(self, x: Tensor) -> Tensor:
        return x + torch.randn(x.shape, generator=self.source)


def test_a_loss_that_cannot_be_repeated_is_refused() -> None:
    with pytest.raises(InvalidInput, match="same random seed"):
        try_out(network(Restless()))


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


def test_padded_and_equal_rows_are_no_evidence() -> None:
    model = network()
    clipper = OneByOne(model, cross_entropy)
    batch = {key: value[[0, 0, 0, 1]] for key, value in batch_of(2).items()}
    for real, examples in (([1, 1, 1, 1], 2), ([1, 1, 0, 0], 1), ([0, 0, 0, 0], 0)):
        found = probe(model, cross_entropy, batch, torch.tensor(real).bool(), clipper=clipper)
        assert found == Probed(examples=examples, slots=4)
        assert found.conclusive == (examples > 1)


def test_a_batch_of_one_slot_has_no_neighbours() -> None:
    assert try_out(network(), examples=1).conclusive
    with pytest.raises(InvalidInput, match="for 1 of 4 parameters"):
        try_out(network(), examples=1, blind=("2.bias",))


def test_probing_leaves_modes_gradients_parameters_and_random_states_as_they_were() -> None:
    model = network(nn.Dropout(0.5), nn.BatchNorm1d(6))
    model[3].eval()  # pyright: ignore[reportIndexIssue]
    before = {name: value.clone() for name, value in model.state_dict().items()}
    modes = [module.training for module in model.modules()]
    states = torch.get_rng_state(), random.getstate(), np.random.get_state()[1].copy()  # pyright: ignore # noqa: NPY002
    assert try_out(model).conclusive
    assert torch.equal(states[0], torch.get_rng_state())
    assert states[1] == random.getstate()
    assert np.array_equal(states[2], np.random.get_state()[1])  # pyright: ignore # noqa: NPY002
    assert modes == [module.training for module in model.modules()]
    assert all(torch.equal(value, before[name]) for name, value in model.state_dict().items())
    assert all(parameter.grad is None for parameter in model.parameters())


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


def test_a_weight_used_behind_its_layers_back_is_named() -> None:
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


def test_what_the_clipper_does_not_see_is_refused_in_reduced_precision_too() -> None:
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

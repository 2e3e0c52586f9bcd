"""Couplings that cannot be read off are found on a few examples, and probing leaves nothing behind."""

import random
from collections.abc import Mapping

import numpy as np
import pytest
import torch
from models import tiny
from probed import OneByOne, batch_of, cross_entropy, network, try_out
from torch import Tensor, nn

from hush.errors import InvalidInput
from hush.train.clipping import Clipper
from hush.train.language_models import causal_lm_loss, masked_lm_loss
from hush.train.probes import ProbeResult, is_padded, probe


@pytest.mark.parametrize(
    "middle",
    [nn.LayerNorm(6), nn.GroupNorm(2, 6), nn.RMSNorm(6), nn.Dropout(0.5), nn.BatchNorm1d(6).eval(), nn.Identity()],
    ids=lambda module: type(module).__name__,
)
def test_models_that_treat_examples_apart_pass(middle: nn.Module) -> None:
    model = network(nn.Identity())
    model[2] = middle  # pyright: ignore[reportIndexIssue]
    assert try_out(model) == ProbeResult(examples=3, slots=4)


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


def padded(rows: list[list[int]], *, width: int, left: bool) -> dict[str, Tensor]:
    """Causal texts, each token labelled, as collators make them."""
    tokens = torch.zeros(len(rows), width, dtype=torch.long)
    attended = torch.zeros_like(tokens)
    for number, row in enumerate(rows):
        place = slice(width - len(row), None) if left else slice(len(row))
        tokens[number, place], attended[number, place] = torch.tensor(row), 1
    return {"input_ids": tokens, "attention_mask": attended, "labels": tokens.masked_fill(attended == 0, -100)}


@pytest.mark.parametrize("name", ["gpt2", "llama"])
@pytest.mark.parametrize("left", [False, True])
def test_a_loss_that_depends_on_its_padding_is_refused(name: str, left: bool) -> None:
    model, rows = tiny(name), [[5, 6, 7, 8, 9], [11, 12, 13], [21, 22, 23, 24]]
    batch, real = padded(rows, width=5, left=left), torch.ones(3, dtype=torch.bool)
    with torch.no_grad():  # the second text on its own, and beside one of five tokens
        alone = causal_lm_loss(model, padded(rows[1:2], width=3, left=left))
        beside = causal_lm_loss(model, batch)[1:2]
    assert torch.allclose(alone, beside, rtol=1e-4) != left
    clipper = Clipper(model, causal_lm_loss, clip_norm=1.0)
    if left:
        with pytest.raises(InvalidInput, match="when its padding is removed"):
            probe(model, causal_lm_loss, batch, real, clipper=clipper)
    else:
        assert probe(model, causal_lm_loss, batch, real, clipper=clipper).conclusive


@pytest.mark.parametrize("left", [False, True])
def test_padding_is_tried_on_rows_that_have_some_and_in_full_precision(left: bool) -> None:
    def loss(model: nn.Module, batch: Mapping[str, Tensor]) -> Tensor:
        """A little larger for what stands further behind: by 1 % a place, where bfloat16 may differ by 5 %."""
        tokens, attended = batch["input_ids"].float(), batch["attention_mask"]
        seen = model(tokens.unsqueeze(2)).squeeze(2).float() * (1 + 0.01 * torch.arange(tokens.shape[1]))
        return (seen * attended).sum(1) / attended.sum(1)

    model, text = nn.Linear(1, 1), [[5, 6, 7], [8, 9, 4], [1, 2, 3], [11, 12]]
    batch, real = padded(text, width=3, left=left), torch.ones(4, dtype=torch.bool)
    bf16 = torch.bfloat16
    clipper = Clipper(model, loss, clip_norm=1.0, autocast=bf16)
    if left:
        with pytest.raises(InvalidInput, match="when its padding is removed"):
            probe(model, loss, batch, real, clipper=clipper, autocast=bf16)
    else:
        assert probe(model, loss, batch, real, clipper=clipper, autocast=bf16).conclusive


def test_gaps_inside_texts_do_not_keep_padding_from_being_tried() -> None:
    model = tiny("gpt2")
    tokens = torch.randint(1, 20, (5, 8), generator=torch.Generator().manual_seed(0))
    attended = torch.ones_like(tokens)
    attended[:4, 3] = 0  # tokens that a user hides: nothing to cut off
    attended[4, :4] = 0
    batch = {"input_ids": tokens, "attention_mask": attended, "labels": tokens.masked_fill(attended == 0, -100)}
    with pytest.raises(InvalidInput, match="when its padding is removed"):
        probe(
            model,
            causal_lm_loss,
            batch,
            torch.ones(5, dtype=torch.bool),
            clipper=Clipper(model, causal_lm_loss, clip_norm=1.0),
        )


@pytest.mark.parametrize("name", ["bert", "gpt2"])
def test_padding_without_a_mask_is_tried_by_the_padding_token(name: str) -> None:
    model = tiny(name)
    batch = padded([[5, 6, 7, 8, 9], [11, 12, 13], [21, 22, 23, 24]], width=5, left=False)
    del batch["attention_mask"]
    real, clipper = torch.ones(3, dtype=torch.bool), Clipper(model, masked_lm_loss, clip_norm=1.0)
    assert is_padded(batch, real, padding_id=0)
    if name == "bert":  # attends to the padding
        with pytest.raises(InvalidInput, match="when its padding is removed"):
            probe(model, masked_lm_loss, batch, real, clipper=clipper)
    else:
        assert probe(model, masked_lm_loss, batch, real, clipper=clipper).padded


def test_a_padding_token_with_a_label_is_no_padding() -> None:
    batch = padded([[5, 6, 7], [8, 9, 0], [1, 0, 0]], width=3, left=False)  # 0 also ends texts, and is learnt
    del batch["attention_mask"]
    assert not is_padded(batch, torch.ones(3, dtype=torch.bool), padding_id=0)
    batch["labels"][2, 1:] = -100
    assert is_padded(batch, torch.ones(3, dtype=torch.bool), padding_id=0)


def test_a_loss_that_fails_without_its_padding_is_refused() -> None:
    def loss(model: nn.Module, batch: Mapping[str, Tensor]) -> Tensor:
        return model(batch["input_ids"].float().view(-1, 3)).square().sum(1)

    batch = padded([[1, 2, 3], [4]], width=3, left=False)
    clipper = OneByOne(model := nn.Linear(3, 2), loss)
    with pytest.raises(InvalidInput, match="fails when its padding is removed"):
        probe(model, loss, batch, torch.ones(2, dtype=torch.bool), clipper=clipper)


COLUMNS = {
    "none": {},
    "a number per token": {"segment": torch.ones(2, 3)},
    "a box per token": {"bbox": torch.ones(2, 3, 4)},
    "as long by chance": {"features": torch.ones(2, 3, 8, 8)},
    "an image": {"pixel_values": torch.ones(2, 1, 8, 8)},
    "a vector": {"features": torch.ones(2, 5)},
}


@pytest.mark.parametrize("columns", COLUMNS)
def test_no_other_column_keeps_padding_from_being_tried(columns: str) -> None:
    class Counts(nn.Module):
        """Sees the padding."""

        def __init__(self) -> None:
            super().__init__()
            self.layer = nn.Linear(1, 1)

        def forward(self, tokens: Tensor) -> Tensor:
            return self.layer(torch.full_like(tokens[:, :1], tokens.shape[1]).float())

    def loss(model: nn.Module, batch: Mapping[str, Tensor]) -> Tensor:
        return model(batch["input_ids"]).square().sum(1) * batch["input_ids"].sum(1)

    model, batch = Counts(), padded([[1, 2, 3], [4]], width=3, left=False) | COLUMNS[columns]
    clipper, real = OneByOne(model, loss), torch.ones(2, dtype=torch.bool)
    assert is_padded(batch, real)
    with pytest.raises(InvalidInput, match="when its padding is removed"):
        probe(model, loss, batch, real, clipper=clipper)


@pytest.mark.parametrize("choices", [False, True])
@pytest.mark.parametrize("ignores_padding", [False, True])
def test_columns_by_token_are_cut_with_the_padding_and_others_are_not(ignores_padding: bool, choices: bool) -> None:
    def loss(model: nn.Module, batch: Mapping[str, Tensor]) -> Tensor:
        tokens, attended = batch["input_ids"], batch["attention_mask"]
        seen = attended if ignores_padding else torch.ones_like(attended)
        total = (tokens + batch["bbox"].sum(-1)).float() * seen  # fails if only one of them is cut
        return model(total.flatten(1).sum(1, keepdim=True)).squeeze(1) * batch["image"].view(-1, 7).sum(1)

    text = padded([[1, 2, 3], [4]], width=3, left=False)
    batch = {key: torch.stack([value, value], 1) if choices else value for key, value in text.items()}
    batch |= {"bbox": torch.ones(*batch["input_ids"].shape, 4), "image": torch.ones(2, 7)}
    model, real = nn.Linear(1, 1), torch.ones(2, dtype=torch.bool)
    clipper = OneByOne(model, loss)
    if ignores_padding:
        assert probe(model, loss, batch, real, clipper=clipper).padded
    else:
        with pytest.raises(InvalidInput, match="when its padding is removed"):
            probe(model, loss, batch, real, clipper=clipper)


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


def test_padded_and_equal_rows_are_no_evidence() -> None:
    model = network()
    clipper = OneByOne(model, cross_entropy)
    batch = {key: value[[0, 0, 0, 1]] for key, value in batch_of(2).items()}
    for real, examples in (([1, 1, 1, 1], 2), ([1, 1, 0, 0], 1), ([0, 0, 0, 0], 0)):
        found = probe(model, cross_entropy, batch, torch.tensor(real).bool(), clipper=clipper)
        assert found == ProbeResult(examples=examples, slots=4)
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

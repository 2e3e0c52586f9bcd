"""The private part of an example with slots: exact per example, and what its skeleton lacks."""

import numpy as np
import pytest
import torch
from models import LANGUAGE, MASK, PADDING, VOCABULARY, tiny
from torch import Tensor

from hush.train.clipping import Clipper
from hush.train.language_models import (
    IGNORED,
    CausalCollator,
    Collator,
    DifferenceLoss,
    MaskedCollator,
    causal_lm_loss,
    default_loss,
)
from hush.train.probes import probe

LENGTH = 12


def collator(name: str) -> Collator:
    if name != "bert":
        return CausalCollator(length=LENGTH, padding=PADDING)
    return MaskedCollator(length=LENGTH, padding=PADDING, mask=MASK, vocabulary=VOCABULARY - 1, share=0.4)


def pairs(name: str, *, seed: int = 0) -> dict[str, Tensor]:
    """Four pairs; the third example is secret as a whole, and the fourth has a longer skeleton than text."""
    rng = np.random.default_rng(seed)
    rows = []
    for size, hidden in ((11, 3), (9, 2), (7, 0), (6, 1)):
        tokens = rng.integers(1, MASK, size)
        in_slot = np.isin(np.arange(size), np.arange(2, 2 + hidden))
        fill = [5] * (4 if size == 6 else 1) if hidden else []
        without = np.concatenate([tokens[:2], fill, tokens[2 + hidden :]]).astype(np.int64)
        is_fill = np.isin(np.arange(len(without)), np.arange(2, 2 + len(fill)))
        number = np.flatnonzero(~is_fill)
        places = np.where(in_slot, LENGTH + np.arange(size), 0)
        places[~in_slot] = number
        learnt = np.where(is_fill, IGNORED, without) if hidden else np.full(size, IGNORED)
        skeleton = {"input_ids": without, "labels": learnt, "in_slot": is_fill * 0, "places": np.arange(len(without))}
        rows.append({"input_ids": tokens, "labels": tokens, "in_slot": in_slot, "places": places, "skeleton": skeleton})
    return collator(name)(rows, examples=[7, 8, 9, 10], round=3)


@pytest.mark.parametrize("lora", [False, True])
@pytest.mark.parametrize("name", LANGUAGE)
def test_clipped_sums_of_differences_are_those_of_one_example_at_a_time(name: str, lora: bool) -> None:
    model, batch = tiny(name, lora=lora), pairs(name)
    plain = default_loss(model)
    loss = DifferenceLoss(plain)
    named = {key: parameter for key, parameter in model.named_parameters() if parameter.requires_grad}
    expected = {key: torch.zeros_like(parameter) for key, parameter in named.items()}
    norms = list[float]()
    for row in range(4):  # two forward passes of two texts, each alone
        sides = [{key: value[row : row + 1, side] for key, value in batch.items()} for side in (0, 1)]
        counts = [
            int((side["labels"][:, 1:] if plain is causal_lm_loss else side["labels"]).ne(IGNORED).sum())
            for side in sides
        ]
        difference = plain(model, sides[0]) - plain(model, sides[1]) * counts[1] / max(counts[0], 1)
        grads = torch.autograd.grad(difference.sum(), list(named.values()), allow_unused=True)
        found = {key: torch.zeros_like(p) if g is None else g for (key, p), g in zip(named.items(), grads, strict=True)}
        norms.append(float(torch.stack([g.norm() for g in found.values()]).norm()))
        for key, gradient in found.items():
            expected[key] += gradient * min(1.0, 0.5 / max(norms[-1], 1e-12))
    clipper = Clipper(model, loss, clip_norm=0.5)
    clipped = clipper.accumulate(batch, torch.ones(4, dtype=torch.bool))
    np.testing.assert_allclose(clipped.norms.numpy(), norms, rtol=2e-4)
    for key, total in clipper.take().items():
        torch.testing.assert_close(total, expected[key], rtol=3e-3, atol=3e-5)
    assert all("one by one" not in str(route) for route in clipper.routes())
    assert clipper.plan_for(batch).one_by_one is None


@pytest.mark.parametrize("name", ["bert", "gpt2"])
def test_pairs_pass_the_probes_and_a_lone_row_is_its_plain_loss(name: str) -> None:
    model, batch = tiny(name), pairs(name)
    loss = DifferenceLoss(default_loss(model))
    result = probe(model, loss, batch, torch.ones(4, dtype=torch.bool), clipper=Clipper(model, loss, clip_norm=0.5))
    assert result.conclusive
    assert result.padded
    one_side = {key: value[:, 0] for key, value in batch.items()}
    plain = default_loss(model)(model, one_side)
    assert torch.equal(loss(model, one_side), plain)
    torch.testing.assert_close(loss(model, batch)[2], plain[2])  # secret as a whole: nothing is subtracted


def test_an_empty_slot_teaches_nothing() -> None:
    """If the skeleton is the text, the difference and its gradient are 0."""
    model, batch = tiny("gpt2"), pairs("gpt2")
    same = {key: value[:, :1].expand(-1, 2, -1) for key, value in batch.items()}
    loss = DifferenceLoss(causal_lm_loss)
    clipper = Clipper(model, loss, clip_norm=1.0)
    norms = clipper.accumulate(same, torch.ones(4, dtype=torch.bool)).norms
    assert float(norms.max()) < 1e-5


def test_masks_of_a_text_and_its_skeleton_agree_on_public_tokens() -> None:
    row = {"input_ids": np.arange(20, 60), "labels": np.arange(20, 60)}
    in_slot = np.isin(np.arange(40), [10, 11])
    places = np.arange(40)
    places[12:] -= 1
    places[10:12] += 100
    skeleton = {
        "input_ids": np.arange(20, 59),
        "labels": np.arange(20, 59),
        "in_slot": np.zeros(39),
        "places": np.arange(39),
    }
    collate = MaskedCollator(length=40, padding=0, mask=1, vocabulary=99)
    batch = collate([row | {"in_slot": in_slot, "places": places, "skeleton": skeleton}], examples=[3], round=5)
    full, short = (batch["labels"][0, side] != IGNORED for side in (0, 1))
    assert torch.equal(full[:10], short[:10])
    assert torch.equal(full[12:], short[11:39])
    assert full[10:12].all()
    assert 0 < int(full[12:].sum()) < 28

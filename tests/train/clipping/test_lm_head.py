"""The last layer of language models, at labelled positions and in chunks: exact, and nothing of what overflows."""

import math
from typing import Any

import pytest
import torch
from models import NAMES, PADDING, SIZE, VOCABULARY, batch_of, tiny
from reference import check, difference
from torch import Tensor

from hush.errors import InvalidInput
from hush.train.clipping import Clipper, lm_head
from hush.train.language_models import causal_lm_loss, default_loss


@pytest.mark.parametrize("whole", [False, True])
@pytest.mark.parametrize("kept", [0, 2**28])
@pytest.mark.parametrize("chunk", [1, 700, 10**6])
@pytest.mark.parametrize("name", ["bert", "gemma2"])
def test_chunks_of_the_head_change_nothing(
    name: str, chunk: int, kept: int, whole: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(lm_head.CHUNK_ENTRIES, "cpu", chunk)
    monkeypatch.setitem(lm_head.MAX_KEPT_ENTRIES, "cpu", kept)
    monkeypatch.setattr(lm_head, "DENSE_FROM", 0.0 if whole else math.inf)
    model = tiny(name)
    check(model, default_loss(model), batch_of(name))


@pytest.mark.parametrize("whole", [False, True])
@pytest.mark.parametrize("kept", [0, 2**28])
@pytest.mark.parametrize("name", ["bert", "gpt2"])  # with a bias and without
def test_words_that_are_appended_to_the_head_change_nothing(
    name: str, kept: int, whole: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(lm_head.WORD_MULTIPLE, "cpu", 1000)
    monkeypatch.setitem(lm_head.CHUNK_ENTRIES, "cpu", 2000)
    monkeypatch.setitem(lm_head.MAX_KEPT_ENTRIES, "cpu", kept)
    monkeypatch.setattr(lm_head, "DENSE_FROM", 0.0 if whole else math.inf)
    model = tiny(name)
    check(model, default_loss(model), batch_of(name))


@pytest.mark.parametrize("cap", [None, 100.0])
def test_a_cap_that_no_logit_reaches_yet_keeps_the_head_whole(cap: float | None) -> None:
    model, batch = tiny("gpt2"), batch_of("gpt2")

    def capped(module: Any, inputs: Any, output: Any) -> Any:
        if cap is not None:
            output.logits = torch.tanh(output.logits / cap) * cap
        return output

    model.register_forward_hook(capped)
    clipper = check(model, causal_lm_loss, batch)
    assert any(route.route == "lm head" for route in clipper.routes()) == (cap is None)


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf, 1e38])
@pytest.mark.parametrize("kept", [0, 2**28])
@pytest.mark.parametrize("name", ["bert", "gpt2", "gemma2"])  # with a bias, without, with a soft cap
def test_an_example_that_overflows_in_the_head_adds_exactly_nothing(
    name: str, kept: int, value: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(lm_head.MAX_KEPT_ENTRIES, "cpu", kept)
    monkeypatch.setattr(lm_head, "DENSE_FROM", math.inf)
    model, batch = tiny(name), batch_of(name)
    loss = default_loss(model)
    good = {key: own[1:] for key, own in batch.items()}
    clipper = Clipper(model, loss, clip_norm=0.1)
    clipper.accumulate(good, torch.ones(SIZE - 1, dtype=torch.bool))
    wanted = {key: own.double() for key, own in clipper.take().items()}

    found: Any = clipper._head
    original = found.losses

    def broken(hidden: Tensor, *rest: Any) -> Any:
        return original(hidden * torch.where(torch.arange(len(hidden)) == 0, value, 1.0).view(-1, 1, 1), *rest)

    monkeypatch.setattr(found, "losses", broken)
    monkeypatch.setattr(clipper, "_sharded", True)  # with shards no example gets a pass of its own
    clipped = clipper.accumulate(batch, torch.ones(SIZE, dtype=torch.bool))
    got = clipper.take()
    assert clipped.norms.isfinite().tolist() == [False] + (SIZE - 1) * [True]
    assert difference(got, wanted) < 1e-6


def test_a_model_that_does_more_to_its_logits_is_computed_by_its_own_loss() -> None:
    model: Any = tiny("llama")

    def tempered(*arguments: Any, **keywords: Any) -> Any:
        output = type(model).forward(model, *arguments, **keywords)
        output.logits = output.logits.clamp(-1, 1) * 0.3
        return output

    model.forward = tempered
    clipper = check(model, causal_lm_loss, batch_of("llama"))
    assert clipper._head is None


@pytest.mark.parametrize("name", ["bert", "gpt2", "gemma2", "llama"])
def test_language_models_are_computed_by_the_chunked_head(name: str) -> None:
    model = tiny(name)
    assert check(model, default_loss(model), batch_of(name))._head is not None


@pytest.mark.parametrize("align", [1, 64])
@pytest.mark.parametrize("label", [-1, -101, 10**6])
def test_labels_that_are_no_words_are_refused(label: int, align: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(lm_head.WORD_MULTIPLE, "cpu", align)
    batch = batch_of("gpt2")
    batch["labels"][1, 2] = label
    clipper = Clipper(tiny("gpt2"), causal_lm_loss, clip_norm=1.0)
    with pytest.raises(InvalidInput, match="1 labels are none of the model's"):
        clipper.accumulate(batch, torch.ones(SIZE, dtype=torch.bool))


@pytest.mark.parametrize("name", NAMES)
def test_a_plain_loss_without_the_chunked_head_gives_the_same(name: str) -> None:
    model = tiny(name)
    loss = default_loss(model)
    check(model, lambda *arguments: loss(*arguments), batch_of(name))  # another function: the head is not recognised


def test_a_head_with_a_bias_apart_from_it_is_left_to_the_model() -> None:
    """What follows the head there cannot even take its input, which is narrower than logits."""
    from transformers import EsmConfig, EsmForMaskedLM

    config = EsmConfig(
        vocab_size=VOCABULARY,
        hidden_size=32,
        num_hidden_layers=1,
        num_attention_heads=2,
        intermediate_size=32,
        max_position_embeddings=32,
        pad_token_id=PADDING,
        hidden_dropout_prob=0.0,
        attention_probs_dropout_prob=0.0,
    )
    model: Any = EsmForMaskedLM(config).train()
    check(model, default_loss(model), batch_of("bert"))

"""Losses and collators: each example by itself, and equal to what Hugging Face computes for one example."""

from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from models import LANGUAGE, MASK, NAMES, PADDING, VOCABULARY, tiny, tiny_batch

from hush.errors import InvalidInput
from hush.train.language_models import (
    IGNORED,
    CausalCollator,
    MaskedCollator,
    TokenizedTexts,
    causal_lm_loss,
    classification_loss,
    default_loss,
    masked_lm_loss,
    own_uniforms,
    token_losses,
    tokenise,
)

SIZE = 5


def batch_of(name: str, seed: int = 0) -> dict[str, torch.Tensor]:
    return tiny_batch(name, SIZE, generator=torch.Generator().manual_seed(seed))


@pytest.mark.parametrize("lora", [False, True], ids=["full", "lora"])
@pytest.mark.parametrize("name", NAMES)
def test_each_loss_is_the_models_own_loss_of_that_example_alone(name: str, lora: bool) -> None:
    model, batch = tiny(name, lora=lora), batch_of(name)
    losses = default_loss(model)(model, batch)
    alone = [model(**{key: value[row : row + 1] for key, value in batch.items()}).loss for row in range(SIZE)]
    assert losses.dtype == torch.float32
    torch.testing.assert_close(losses, torch.stack(alone), rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("name", NAMES)
def test_changing_one_example_leaves_every_other_loss_as_it_was(name: str) -> None:
    model, batch, other = tiny(name), batch_of(name), batch_of(name, seed=1)
    if name != "gemma2":  # whose eager attention takes the softmax in float32, where the mask of float64 overflows
        model = model.double()
    if name == "vit":
        batch, other = ({**part, "pixel_values": part["pixel_values"].double()} for part in (batch, other))
    loss = default_loss(model)
    before = loss(model, batch)
    mixed = {key: torch.cat([other[key][:1], value[1:]]) for key, value in batch.items()}
    after = loss(model, mixed)
    assert not torch.equal(before[0], after[0])
    torch.testing.assert_close(before[1:], after[1:], rtol=0, atol=1e-6 if name == "gemma2" else 0)


@pytest.mark.parametrize("name", NAMES)
def test_each_examples_gradient_is_that_of_its_loss_alone(name: str) -> None:
    model, batch = tiny(name), batch_of(name)
    loss = default_loss(model)
    parameters = list(model.parameters())
    row = torch.autograd.grad(loss(model, batch)[2], parameters)
    alone = torch.autograd.grad(model(**{key: value[2:3] for key, value in batch.items()}).loss, parameters)
    torch.testing.assert_close(row, alone, rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize("name", LANGUAGE)
def test_an_example_without_labels_has_loss_and_gradient_zero(name: str) -> None:
    model, batch = tiny(name), batch_of(name)
    batch["labels"][1] = IGNORED
    losses = default_loss(model)(model, batch)
    gradients = torch.autograd.grad(losses[1], list(model.parameters()), allow_unused=True)
    assert losses[1] == 0
    assert all(gradient is None or not gradient.any() for gradient in gradients)


@given(st.integers(0, 2**31))
def test_token_losses_are_a_plain_double_loop_over_labelled_tokens(seed: int) -> None:
    generator = torch.Generator().manual_seed(seed)
    logits = 4 * torch.randn(3, 4, 7, generator=generator, dtype=torch.float64)
    labels = torch.randint(7, (3, 4), generator=generator)
    labels[torch.rand(3, 4, generator=generator) < 0.4] = IGNORED
    expected = []
    for row in range(3):
        tokens = [token for token in range(4) if labels[row, token] != IGNORED]
        each = [-torch.log(logits[row, token].softmax(0)[labels[row, token]]) for token in tokens]
        expected.append(sum(each, torch.tensor(0.0, dtype=torch.float64)) / max(len(each), 1))
    torch.testing.assert_close(token_losses(logits, labels), torch.stack(expected))


def test_log_probabilities_of_a_bfloat16_model_are_taken_in_float32() -> None:
    logits = torch.randn(2, 3, 97, generator=torch.Generator().manual_seed(0)).bfloat16()
    labels = torch.tensor([[1, 2, 3], [4, IGNORED, 6]])
    losses = token_losses(logits, labels)
    assert losses.dtype == torch.float32
    assert torch.equal(losses, token_losses(logits.float(), labels))


@pytest.mark.parametrize("problem", ["regression", "multi_label_classification", "single_label_classification"])
def test_every_kind_of_classification_is_the_models_own(problem: str) -> None:
    model, batch = tiny("vit"), batch_of("vit")
    config: Any = model.config
    config.problem_type = problem
    if problem != "single_label_classification":
        batch["labels"] = torch.rand(SIZE, 5, generator=torch.Generator().manual_seed(2)).round()
    losses = classification_loss(model, batch)
    alone = [model(**{key: value[row : row + 1] for key, value in batch.items()}).loss for row in range(SIZE)]
    torch.testing.assert_close(losses, torch.stack(alone), rtol=1e-5, atol=1e-6)


def test_the_default_loss_goes_by_the_models_class() -> None:
    expected = {"bert": masked_lm_loss, "vit": classification_loss}
    for name in NAMES:
        for lora in (False, True):
            assert default_loss(tiny(name, lora=lora)) is expected.get(name, causal_lm_loss)


def test_a_model_of_an_unknown_task_is_refused_with_the_remedy() -> None:
    with pytest.raises(InvalidInput, match=r"no loss is known for Linear.*pass loss="):
        default_loss(torch.nn.Linear(2, 2))


def test_an_encoder_decoder_is_refused() -> None:
    import transformers as hf

    config = hf.T5Config(vocab_size=9, d_model=8, d_kv=4, d_ff=8, num_layers=1, num_heads=2)
    with pytest.raises(InvalidInput, match="an encoder-decoder"):
        default_loss(hf.T5ForConditionalGeneration(config))


@pytest.mark.parametrize(
    ("extra", "message"),
    [
        ({"position_ids": torch.tensor([[0, 1, 2, 3, 4, 5, 0, 1, 2, 3, 4, 5]] * SIZE)}, "packed"),
        ({"cu_seq_lens_q": torch.tensor([0, 4, 9])}, "packed"),
        ({"num_items_in_batch": torch.tensor(7)}, "count over all examples"),
    ],
)
def test_batches_that_tie_examples_together_are_refused(extra: dict[str, torch.Tensor], message: str) -> None:
    with pytest.raises(InvalidInput, match=message):
        causal_lm_loss(tiny("llama"), batch_of("llama") | extra)


def test_a_batch_without_labels_is_refused() -> None:
    batch = batch_of("bert")
    del batch["labels"]
    with pytest.raises(InvalidInput, match="no 'labels'"):
        masked_lm_loss(tiny("bert"), batch)


@pytest.mark.parametrize("name", ["bert", "gpt2", "vit"])
def test_losses_are_one_graph_to_the_compiler(name: str) -> None:
    model, batch = tiny(name), batch_of(name)
    loss = default_loss(model)
    compiled = torch.compile(lambda batch: loss(model, batch), backend="eager", fullgraph=True)
    torch.testing.assert_close(compiled(batch), loss(model, batch))


def corpus(seed: int = 0, size: int = 40) -> TokenizedTexts:
    random = np.random.default_rng(seed)
    return TokenizedTexts([random.integers(1, MASK, random.integers(1, 13)) for _ in range(size)])


def masked(**options: Any) -> MaskedCollator:
    return MaskedCollator(length=12, padding=PADDING, mask=MASK, vocabulary=VOCABULARY, **options)


@given(st.lists(st.integers(0, 39), min_size=1, max_size=9), st.integers(0, 2**40), st.integers(0, 8))
def test_a_masked_row_is_the_same_in_every_company(examples: list[int], round: int, place: int) -> None:
    texts, collate = corpus(), masked(share=0.5)
    place %= len(examples)
    together = collate([texts[example] for example in examples], examples=examples, round=round)
    alone = collate([texts[examples[place]]], examples=[examples[place]], round=round)
    assert all(torch.equal(together[key][place], alone[key][0]) for key in alone)


@given(st.integers(0, 2**31))
def test_a_masked_row_keeps_what_it_does_not_ask_for_and_asks_for_what_was_there(seed: int) -> None:
    texts, collate = corpus(seed), masked(share=0.5, special=frozenset({1, 2, 3}), seed=seed)
    batch = collate([texts[example] for example in range(40)], examples=range(40), round=seed)
    plain = CausalCollator(length=12, padding=PADDING)([texts[example] for example in range(40)])
    asked = batch["labels"] != IGNORED
    assert torch.equal(batch["attention_mask"], plain["attention_mask"])
    assert torch.equal(batch["input_ids"][~asked], plain["input_ids"][~asked])
    assert torch.equal(batch["labels"][asked], plain["input_ids"][asked])
    assert not torch.isin(plain["input_ids"][asked], torch.tensor([PADDING, 1, 2, 3])).any()
    assert batch["input_ids"].max() < VOCABULARY


def test_masks_differ_between_rounds_examples_and_seeds() -> None:
    row = [{"input_ids": list(range(1, 13))}]
    collate = masked(share=0.5)
    masks = [collate(row, examples=[example], round=round) for round in range(8) for example in range(8)]
    masks += [masked(share=0.5, seed=1)(row)]
    assert len({tuple(batch["labels"][0].tolist()) for batch in masks}) > 60


def test_shares_of_masked_replaced_and_kept_tokens_are_as_stated() -> None:
    count, words = 4000, np.full(100, 5)
    collate = MaskedCollator(length=100, padding=0, mask=MASK, vocabulary=VOCABULARY)
    batch = collate([{"input_ids": words}] * count, examples=range(count), round=3)
    asked = batch["labels"] != IGNORED
    share = asked.double().mean().item()
    seen = batch["input_ids"][asked]
    number = len(seen)
    # Five standard deviations of a binomial share.
    assert abs(share - 0.15) < 5 * (0.15 * 0.85 / asked.numel()) ** 0.5
    for value, expected in ((MASK, 0.8 + 0.1 / VOCABULARY), (5, 0.1 + 0.1 / VOCABULARY)):
        found = (seen == value).double().mean().item()
        assert abs(found - expected) < 5 * (expected * (1 - expected) / number) ** 0.5
    by_row, by_place = asked.double().sum(1), asked.double().sum(0)
    assert abs(by_row.var().item() / (100 * 0.15 * 0.85) - 1) < 5 * (2 / count) ** 0.5
    assert abs(by_place.var().item() / (count * 0.15 * 0.85) - 1) < 5 * (2 / 100) ** 0.5


def test_own_uniforms_are_uniform_and_uncorrelated_between_neighbours() -> None:
    values = own_uniforms(0, 0, np.arange(1000), np.arange(200), draws=2)
    assert 0 <= values.min() < values.max() < 1
    assert abs(values.mean() - 0.5) < 5 * (1 / 12 / values.size) ** 0.5
    centred = values - 0.5
    for one, other in (
        (centred[0], centred[1]),
        (centred[:, 1:], centred[:, :-1]),
        (centred[:, :, 1:], centred[:, :, :-1]),
        (own_uniforms(0, 1, np.arange(1000), np.arange(200), draws=2) - 0.5, centred),
        (own_uniforms(1, 0, np.arange(1000), np.arange(200), draws=2) - 0.5, centred),
    ):
        assert abs((one * other).mean()) < 5 / 12 / one.size**0.5


def test_batches_have_the_length_asked_for_whatever_the_texts() -> None:
    collate = CausalCollator(length=12, padding=PADDING)
    assert collate([corpus()[3]])["input_ids"].shape == (1, 12)
    assert collate([corpus()[3], corpus()[4]], length=16)["input_ids"].shape == (2, 16)


def test_a_text_that_does_not_fit_is_refused_not_cut() -> None:
    with pytest.raises(InvalidInput, match="a row of 3 tokens does not fit into 2"):
        CausalCollator(length=2, padding=PADDING)([{"input_ids": [1, 2, 3]}])


def test_labels_of_rows_are_kept_and_padding_is_never_learnt() -> None:
    batch = CausalCollator(length=4, padding=PADDING)([{"input_ids": [5, 6, 7], "labels": [IGNORED, 6, 7]}])
    assert batch["labels"].tolist() == [[IGNORED, 6, 7, IGNORED]]
    assert batch["attention_mask"].tolist() == [[1, 1, 1, 0]]


def letters(texts: list[str], *, truncation: bool, max_length: int) -> dict[str, list[list[int]]]:
    """A tokenizer: one token a letter."""
    assert truncation
    return {"input_ids": [[ord(letter) % 90 + 1 for letter in text][:max_length] for text in texts]}


@given(st.lists(st.text("abcdef", max_size=20), max_size=9), st.integers(1, 12))
def test_a_corpus_is_the_same_from_texts_rows_or_tokens(texts: list[str], max_length: int) -> None:
    tokens = letters(texts, truncation=True, max_length=99)["input_ids"]
    routes = [
        tokenise(texts, letters, max_length=max_length),
        tokenise([{"body": text} for text in texts], letters, max_length=max_length, column="body"),
        tokenise([{"input_ids": row} for row in tokens], max_length=max_length),
    ]
    for route in routes:
        assert [route[example]["input_ids"].tolist() for example in range(len(route))] == [
            row[:max_length] for row in tokens
        ]
        assert route.lengths.tolist() == [len(row[:max_length]) for row in tokens]


def test_a_corpus_cuts_labels_with_its_tokens() -> None:
    rows = [{"input_ids": [1, 2, 3], "labels": [IGNORED, 2, 3]}, {"input_ids": [4], "labels": [4]}]
    cut = tokenise(rows, max_length=2)
    assert [cut[example]["labels"].tolist() for example in range(2)] == [[IGNORED, 2], [4]]


def test_a_corpus_shows_none_of_its_text_and_refuses_what_it_cannot_read() -> None:
    assert repr(TokenizedTexts([[5, 6], [7]])) == "TokenizedTexts(2 examples, 3 tokens)"
    with pytest.raises(InvalidInput, match=r"no column 'text'.*\['body'\]"):
        tokenise([{"body": "a"}], letters, max_length=3)
    with pytest.raises(InvalidInput, match="need a tokenizer"):
        tokenise(["a"], max_length=3)
    with pytest.raises(InvalidInput, match="max_length=0"):
        tokenise(["a"], letters, max_length=0)
    with pytest.raises(InvalidInput, match="differ in length"):
        TokenizedTexts([[1, 2]], [[1]])
    with pytest.raises(InvalidInput, match=r"share=0\.0"):
        masked(share=0.0)
    with pytest.raises(IndexError):
        TokenizedTexts([[1]])[1]


def test_the_name_of_0_1_0_still_works_and_is_not_listed_as_a_second_one() -> None:
    import hush.train

    assert hush.train.Corpus is hush.train.TokenizedTexts is TokenizedTexts
    assert "TokenizedTexts" in hush.train.__all__
    assert "Corpus" not in hush.train.__all__

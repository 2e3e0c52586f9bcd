"""Texts with slots as tokens: what is public is the same for every filling; what is private holds the slot."""

from functools import cache
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from models import tiny

from hush.errors import InvalidInput
from hush.keys import DataKey
from hush.plan.make import public_examples
from hush.slots import placeholder
from hush.train.language_models import IGNORED, CausalCollator, Collator, MaskedCollator
from hush.train.public.stream import PublicStream
from hush.train.slots.batches import Batches, SkeletonBatches
from hush.train.slots.texts import add_placeholder_tokens, tokenise_slots
from slotted import KINDS, RULES, filled, made_tokenizer, slot_plan, spans_of

PIECES = [["we met ", " near the old ", "."], ["all of it is public, naïvely"], ["", " is the code"], ["no slot"]]
WHOLE = [3]
FILLINGS = [["Ann", "mill"], [], ["12-34"], []]

words = st.text(st.characters(codec="utf-8", exclude_categories=["Cs"]), min_size=1, max_size=30) | st.sampled_from(
    ["a" * 300, " ", "[names]", "[CLS]", "\u0301", "👩‍🔬", "[codes][names]", "\n\n"]
)


@cache
def tokenizer_of(kind: str, special: bool, placeholders: bool) -> Any:
    tokenizer = made_tokenizer(kind, special=special)
    if placeholders:
        model = tiny("gpt2")
        model.resize_token_embeddings(len(tokenizer), mean_resizing=False)  # pyright: ignore
        add_placeholder_tokens(model, tokenizer, RULES)
    return tokenizer


@cache
def reference_plan() -> Any:
    return slot_plan(*filled(PIECES, FILLINGS), WHOLE)


def public_view(
    texts: list[str], columns: Any, tokenizer: Any, max_length: int, part: Any, plan: Any = None
) -> list[Any]:
    """Everything that the public side computes: rows, examples, lengths, and all batches of two rounds."""
    plan = reference_plan()[0] if plan is None else plan  # slots and graph know nothing of the fillings
    _, spans = spans_of(texts, columns, WHOLE)
    made = tokenise_slots(texts, tokenizer, plan, spans, max_length=max_length, part=part, key=DataKey(bytes(32)))
    seen: list[Any] = [public_examples(plan).tolist(), made.skeletons.lengths.tolist(), made.skeletons.fingerprint]
    seen += [{k: v.tolist() for k, v in made.skeletons[n].items()} for n in range(3)]
    collators: list[Collator] = [CausalCollator(length=max_length, padding=0)]
    collators += [MaskedCollator(length=max_length, padding=0, mask=4, vocabulary=len(tokenizer), share=0.5)]
    for collator in collators:
        stream = PublicStream(plan, SkeletonBatches(made.skeletons, collator), batch_size=2)
        for round in range(2):
            seen += [stream.round(round).tolist()]
            seen += [{name: tensor.tolist() for name, tensor in batch.items()} for batch in stream.batches(round)]
    return seen


@settings(max_examples=25)
@given(
    st.sampled_from(KINDS), st.booleans(), st.booleans(), st.sampled_from([4, 9, 64]),
    st.sampled_from(["slot", "difference"]), st.lists(words, min_size=3, max_size=3),
)  # fmt: skip
def test_what_is_public_is_the_same_for_every_filling_of_any_length(
    kind: str, special: bool, placeholders: bool, max_length: int, part: str, secrets: list[str]
) -> None:
    tokenizer = tokenizer_of(kind, special, placeholders)
    reference = public_view(*filled(PIECES, FILLINGS), tokenizer, max_length, "slot")
    assert public_view(*filled(PIECES, [secrets[:2], [], secrets[2:], []]), tokenizer, max_length, part) == reference


public_text = st.lists(
    st.sampled_from(
        ["the old ", "naïve ", "[names]", "[codes]", "[CLS]", "[MASK]", "[PAD]", "ca", "fé", "\u0301", " ", "12-34 "]
    ),
    max_size=6,
).map("".join)


@settings(max_examples=40)
@given(
    st.sampled_from(KINDS), st.booleans(), st.booleans(), st.sampled_from([3, 5, 64]),
    st.lists(public_text, min_size=5, max_size=5), st.lists(words, min_size=3, max_size=3),
)  # fmt: skip
def test_public_text_with_placeholders_and_special_tokens_of_its_own_is_the_same_for_every_filling(
    kind: str, special: bool, placeholders: bool, max_length: int, parts: list[str], secrets: list[str]
) -> None:
    """Whatever stands beside a slot: parts of words, marks, the placeholder's own text, special tokens."""
    tokenizer = tokenizer_of(kind, special, placeholders)
    pieces = [[parts[0] + "a", parts[1] + " ", parts[2]], ["no secret"], [parts[3], parts[4]], ["whole"]]
    given, others = filled(pieces, FILLINGS), filled(pieces, [secrets[:2], [], secrets[2:], []])
    plan, _ = slot_plan(*given, WHOLE)
    assert public_view(*others, tokenizer, max_length, "slot", plan) == public_view(
        *given, tokenizer, max_length, "slot", plan
    )


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("special", [False, True])
def test_private_labels_are_the_tokens_of_slots_and_a_long_text_is_cut_around_one(kind: str, special: bool) -> None:
    pieces = [["the quick brown fox jumps over the lazy dog " * 5, " and naps" * 9], ["no slot"]]
    texts, columns = filled(pieces, [["mill"], []])
    plan, spans = slot_plan(texts, columns, whole=[1], batch_size=1)
    tokenizer = made_tokenizer(kind, special=special)
    for max_length in (12, 400):
        made = tokenise_slots(texts, tokenizer, plan, spans, max_length=max_length)
        row = made[0]
        assert len(row["input_ids"]) <= max_length
        learnt = tokenizer.decode(row["labels"][row["labels"] != IGNORED].tolist()).replace(" ", "")
        assert "mill" in learnt
        assert len(learnt) <= 6
        assert np.array_equal(row["labels"] != IGNORED, row["in_slot"] > 0)
        whole = made[1]
        assert np.array_equal(whole["labels"], whole["input_ids"])
        assert not whole["in_slot"].any()
        assert made.unread.cut == (max_length == 12)
        pair = tokenise_slots(texts, tokenizer, plan, spans, max_length=max_length, part="difference")
        assert (pair[0]["in_slot"] > 0).any()
        assert (pair[0]["skeleton"]["labels"] == IGNORED).any()
        assert (pair[1]["skeleton"]["labels"] == IGNORED).all()


def test_placeholders_become_one_token_whose_embedding_is_the_mean_and_never_a_label() -> None:
    for name, kind in (("gpt2", "bytes"), ("bert", "wordpiece"), ("llama", "unigram")):
        model: Any = tiny(name)
        tokenizer = made_tokenizer(kind, special=True)
        model.resize_token_embeddings(len(tokenizer), mean_resizing=False)
        before, size = model.get_input_embeddings().weight.detach().clone(), len(tokenizer)
        add_placeholder_tokens(model, tokenizer, RULES)
        add_placeholder_tokens(model, tokenizer, RULES)  # a second time changes nothing
        assert len(tokenizer) == model.get_input_embeddings().num_embeddings == size + 2
        after = model.get_input_embeddings().weight.detach()
        assert torch.equal(after[:size], before)
        torch.testing.assert_close(after[size:], before.mean(0).expand(2, -1))
        assert model.get_output_embeddings().weight.shape[0] == size + 2
        logits = model(input_ids=torch.tensor([[size, 5, size + 1]])).logits
        assert logits.shape[-1] == size + 2
        texts, columns = filled(PIECES, FILLINGS)
        plan, spans = slot_plan(texts, columns, WHOLE)
        row = tokenise_slots(texts, tokenizer, plan, spans, max_length=64).skeletons[0]
        places = np.isin(row["input_ids"], [tokenizer.convert_tokens_to_ids(placeholder(rule)) for rule in RULES])
        assert places.sum() == 2
        assert np.array_equal(row["labels"] == IGNORED, places)


def test_an_example_that_is_secret_as_a_whole_has_no_public_part() -> None:
    texts, columns = filled(PIECES, FILLINGS)
    plan, spans = slot_plan(texts, columns, WHOLE)
    made = tokenise_slots(texts, made_tokenizer("bytes", special=False), plan, spans, max_length=64)
    collate = SkeletonBatches(made.skeletons, CausalCollator(length=64, padding=0))
    with pytest.raises(InvalidInput, match="secret as a whole"):
        collate(np.array([0, 3]))
    with pytest.raises(InvalidInput, match="contain a secret"):
        PublicStream(plan, collate, batch_size=1, examples=[1, 3])
    assert PublicStream(plan, collate, batch_size=1).examples.tolist() == [0, 1, 2]


def test_the_stream_takes_examples_with_slots_from_skeletons_only() -> None:
    texts, columns = filled(PIECES, FILLINGS)
    plan, spans = slot_plan(texts, columns, WHOLE)
    made = tokenise_slots(texts, made_tokenizer("bytes", special=False), plan, spans, max_length=64)
    of_texts = Batches(made, CausalCollator(length=64, padding=0), torch.device("cpu")).of
    assert PublicStream(plan, of_texts, batch_size=1).examples.tolist() == [1]
    with pytest.raises(InvalidInput, match="SkeletonBatches"):
        PublicStream(plan, of_texts, batch_size=1, examples=[0])
    other_plan, _ = slot_plan(*filled(PIECES, [["Ann", "mill"], [], [], []]), WHOLE)
    with pytest.raises(InvalidInput, match="not those of the plan"):
        PublicStream(other_plan, SkeletonBatches(made.skeletons, CausalCollator(length=64, padding=0)), batch_size=1)


def test_other_texts_other_skeletons_other_spans_and_slow_tokenizers_are_refused() -> None:
    texts, columns = filled(PIECES, FILLINGS)
    key, tokenizer = DataKey(bytes(32)), made_tokenizer("bytes", special=False)
    plan, spans = slot_plan(texts, columns, WHOLE)
    rows = list(spans.public_rows(plan.incidence, texts))
    named = {"data_fingerprint": key.fingerprint_rows(texts), "skeleton_fingerprint": key.fingerprint_rows(rows)}
    plan, spans = slot_plan(texts, columns, WHOLE, **named)
    made = tokenise_slots(texts, tokenizer, plan, spans, max_length=64, key=key)
    assert made.fingerprint == plan.data_fingerprint
    assert made.skeletons.fingerprint == plan.skeleton_fingerprint
    changed = [texts[0].replace("old", "new"), *texts[1:]]
    with pytest.raises(InvalidInput, match="texts are not those"):
        tokenise_slots(changed, tokenizer, plan, spans, max_length=64, key=key)
    wrong, _ = slot_plan(texts, columns, WHOLE, **named | {"skeleton_fingerprint": key.fingerprint_rows(texts)})
    with pytest.raises(InvalidInput, match="skeletons are not those"):
        tokenise_slots(texts, tokenizer, wrong, spans, max_length=64, key=key)
    for few in (texts[:3], [*texts, "more"]):
        with pytest.raises(InvalidInput, match="4 examples"):
            tokenise_slots(few, tokenizer, plan, spans, max_length=64)
    _, other = slot_plan(*filled(PIECES, [["Ann", "mill"], [], [], []]), WHOLE)
    with pytest.raises(InvalidInput, match="not those of the plan's slots"):
        tokenise_slots(texts, tokenizer, plan, other, max_length=64)
    with pytest.raises(InvalidInput, match="fast tokenizer"):
        tokenise_slots(texts, object(), plan, spans, max_length=64)

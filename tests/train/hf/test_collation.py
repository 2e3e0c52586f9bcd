"""Collators: those that tie examples are refused by name, honest ones never, and every example is collated alone."""

import math
import random
import warnings
from collections.abc import Callable, Sequence
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers import Tokenizer
from tokenizers.models import WordLevel
from transformers import (
    DataCollatorForLanguageModeling,
    DataCollatorForPermutationLanguageModeling,
    DataCollatorForSeq2Seq,
    DataCollatorForTokenClassification,
    DataCollatorWithFlattening,
    DataCollatorWithPadding,
    DefaultDataCollator,
    PreTrainedTokenizerFast,
    default_data_collator,
)
from transformers.data.data_collator import DataCollatorForMultipleChoice

from hush.errors import InvalidInput
from hush.train.hf.collation import collated_alone, padded_together, padding_values, refuse_tied
from hush.train.hf.data import check_collator

VOCABULARY = 40
SPECIAL = {"pad_token": "[PAD]", "mask_token": "[MASK]", "cls_token": "[CLS]", "sep_token": "[SEP]"}
Rows = list[dict[str, Any]]
Collate = Callable[[Rows], dict[str, Any]]


def tokenizer(side: str = "right") -> PreTrainedTokenizerFast:
    words = {word: number for number, word in enumerate([*SPECIAL.values(), *map(str, range(VOCABULARY - 4))])}
    return PreTrainedTokenizerFast(tokenizer_object=Tokenizer(WordLevel(words)), padding_side=side, **SPECIAL)


def rows_of(seed: int, *, count: int = 6, length: int | None = None, labels: str = "") -> Rows:
    """Different texts, of 4 to 20 tokens or all of one length; labels: "token", "class", "target" or none."""
    draw = random.Random(seed)
    rows: Rows = []
    for number in range(count):
        tokens = [2, *(draw.randrange(4, VOCABULARY) for _ in range((length or draw.randrange(4, 21)) - 2)), 3]
        row: dict[str, Any] = {"input_ids": tokens, "attention_mask": [1] * len(tokens)}
        if labels == "token":
            row["labels"] = [token % 5 for token in tokens]
        if labels == "class":
            row["label"] = number % 3
        if labels == "target":
            row["labels"] = tokens[1 : draw.randrange(2, len(tokens))]
        rows.append(row)
    return rows


def whole_words() -> DataCollatorForLanguageModeling:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return DataCollatorForLanguageModeling(tokenizer(), whole_word_mask=True)


def with_offsets(rows: Rows) -> Rows:
    """Every second token continues the word before it."""
    for row in rows:
        offsets = [(number // 2 * 10 + number % 2, number // 2 * 10 + number % 2 + 1) for number in range(99)]
        row["offset_mapping"] = offsets[: len(row["input_ids"])]
        row["special_tokens_mask"] = [int(token in (2, 3)) for token in row["input_ids"]]
    return rows


def choices(rows: Rows) -> Rows:
    return [
        {
            "input_ids": [row["input_ids"], row["input_ids"][::-1]],
            "attention_mask": [row["attention_mask"]] * 2,
            "label": 1,
        }
        for row in rows
    ]


HONEST: dict[str, tuple[Callable[[], Any], Callable[[int], Rows]]] = {
    "padding": (lambda: DataCollatorWithPadding(tokenizer()), lambda seed: rows_of(seed, labels="class")),
    "padding on the left": (lambda: DataCollatorWithPadding(tokenizer("left")), rows_of),
    "padding to a multiple": (lambda: DataCollatorWithPadding(tokenizer(), pad_to_multiple_of=8), rows_of),
    "padding to one length": (lambda: DataCollatorWithPadding(tokenizer(), "max_length", max_length=24), rows_of),
    "masked": (lambda: DataCollatorForLanguageModeling(tokenizer()), rows_of),
    "half masked": (lambda: DataCollatorForLanguageModeling(tokenizer(), mlm_probability=0.5), rows_of),
    "all masked": (lambda: DataCollatorForLanguageModeling(tokenizer(), mlm_probability=1.0), rows_of),
    "masked on the left": (lambda: DataCollatorForLanguageModeling(tokenizer("left")), rows_of),
    "whole words": (whole_words, lambda seed: with_offsets(rows_of(seed, length=12))),
    "causal": (lambda: DataCollatorForLanguageModeling(tokenizer(), mlm=False), rows_of),
    "token classes": (
        lambda: DataCollatorForTokenClassification(tokenizer()),
        lambda seed: rows_of(seed, labels="token"),
    ),
    "sequences": (lambda: DataCollatorForSeq2Seq(tokenizer()), lambda seed: rows_of(seed, labels="target")),
    "permutations": (
        lambda: DataCollatorForPermutationLanguageModeling(tokenizer()),
        lambda seed: rows_of(seed, length=12),
    ),
    "permutations of texts of two lengths": (
        lambda: DataCollatorForPermutationLanguageModeling(tokenizer()),
        lambda seed: rows_of(seed, count=3, length=12) + rows_of(seed + 1, count=3, length=16),
    ),
    "choices": (lambda: DataCollatorForMultipleChoice(tokenizer()), lambda seed: choices(rows_of(seed))),
    "default": (DefaultDataCollator, lambda seed: rows_of(seed, length=9, labels="class")),
    "default function": (lambda: default_data_collator, lambda seed: rows_of(seed, length=9, labels="class")),
    "default function, no padding": (lambda: default_data_collator, rows_of),
}


@pytest.mark.parametrize(
    ("name", "seed"),
    [pytest.param(name, seed, marks=[pytest.mark.slow] if seed else []) for name in HONEST for seed in range(20)],
)
def test_collators_of_transformers_are_never_refused(name: str, seed: int) -> None:
    collator, rows = HONEST[name][0](), HONEST[name][1](seed)
    check_collator(collator, rows, name=name)
    alone = [collated_alone(collator, row) for row in rows]
    batch = padded_together(alone, padding_values(collator, None))
    assert all(len(value) == len(rows) for value in batch.values())


@pytest.mark.parametrize("name", [name for name in HONEST if "left" not in name and "no padding" not in name])
def test_a_batch_of_rows_collated_alone_is_the_collators_own(name: str) -> None:
    """Where nothing is random; there the padding is that of the collator too."""
    collator, rows = HONEST[name][0](), HONEST[name][1](0)
    mine = padded_together([collated_alone(collator, row) for row in rows], padding_values(collator, None))
    theirs = collator([dict(row) for row in rows])
    assert mine.keys() == theirs.keys()
    for key in mine:
        assert mine[key].dtype == theirs[key].dtype
        assert mine[key].shape == theirs[key].shape
        if "masked" not in name and "words" not in name and "permutations" not in name:
            assert torch.equal(mine[key], theirs[key]), key


def test_packing_is_refused_whatever_it_is_called() -> None:
    with pytest.raises(InvalidInput, match=r"one row per example|a row of its own"):
        refuse_tied(DataCollatorWithFlattening(), rows_of(0), name="flattening")


# ---- random collators: a chain of harmless steps, with or without one that ties ----


def padded(rows: Rows, *, side: str = "right") -> dict[str, torch.Tensor]:
    length = max(len(row["input_ids"]) for row in rows)

    def filled(values: Sequence[int], padding: int) -> list[int]:
        more = [padding] * (length - len(values))
        return [*values, *more] if side == "right" else [*more, *values]

    return {
        "input_ids": torch.tensor([filled(row["input_ids"], 0) for row in rows]),
        "attention_mask": torch.tensor([filled([1] * len(row["input_ids"]), 0) for row in rows]),
        "labels": torch.tensor([filled(row["input_ids"], -100) for row in rows]),
    }


def noise_tokens(row: dict[str, Any]) -> dict[str, Any]:
    return {"input_ids": [random.randrange(4, VOCABULARY) if random.random() < 0.2 else t for t in row["input_ids"]]}


OWN_STEPS: dict[str, Callable[[dict[str, Any]], dict[str, Any]]] = {
    "as it is": lambda row: row,
    "reversed": lambda row: {"input_ids": row["input_ids"][::-1]},
    "cut": lambda row: {"input_ids": row["input_ids"][:9]},
    "cut at random": lambda row: {"input_ids": row["input_ids"][: 3 + int(2 * random.random())]},
    "doubled": lambda row: {"input_ids": row["input_ids"] * 2},
    "some replaced": noise_tokens,
    "shuffled": lambda row: {"input_ids": random.sample(row["input_ids"], len(row["input_ids"]))},
    "rotated": lambda row: {"input_ids": row["input_ids"][3:] + row["input_ids"][:3]},
}


def neighbour_in_front(rows: Rows) -> Rows:
    return [{"input_ids": rows[place - 1]["input_ids"][:3] + row["input_ids"]} for place, row in enumerate(rows)]


def neighbour_behind(rows: Rows) -> Rows:
    return [
        {"input_ids": row["input_ids"] + (rows[place - 1]["input_ids"] if len(rows) > 1 else [])}
        for place, row in enumerate(rows)
    ]


def duplicated(rows: Rows) -> Rows:
    return [rows[0]] * len(rows)


def swapped(rows: Rows) -> Rows:
    return rows[::-1]


def permuted_at_random(rows: Rows) -> Rows:
    return random.sample(rows, len(rows))


def last_row_only(rows: Rows) -> Rows:
    """All are left alone but the last, which gets the first token of the first."""
    return [*rows[:-1], {"input_ids": [rows[0]["input_ids"][1], *rows[-1]["input_ids"][1:]]}] if len(rows) > 1 else rows


def cut_to_the_shortest(rows: Rows) -> Rows:
    shortest = min(len(row["input_ids"]) for row in rows)
    return [{"input_ids": row["input_ids"][:shortest]} for row in rows]


def shifted_by_the_mean(rows: Rows) -> Rows:
    total = sum(token for row in rows for token in row["input_ids"]) // len(rows)
    return [{"input_ids": [(token + total) % VOCABULARY for token in row["input_ids"]]} for row in rows]


TIES = [
    neighbour_in_front, neighbour_behind, duplicated, swapped, permuted_at_random, last_row_only, cut_to_the_shortest,
    shifted_by_the_mean,
]  # fmt: skip


def chain(steps: Sequence[str], side: str, tie: Callable[[Rows], Rows] | None = None) -> Collate:
    def collate(rows: Rows) -> dict[str, Any]:
        rows = rows if tie is None else tie(rows)
        for step in steps:
            rows = [OWN_STEPS[step](row) for row in rows]
        return padded(rows, side=side)

    return collate


@settings(max_examples=20, deadline=None)
@given(
    steps=st.lists(st.sampled_from(list(OWN_STEPS)), max_size=3),
    side=st.sampled_from(["right", "left"]),
    seed=st.integers(0, 10**6),
    count=st.integers(1, 6),
)
def test_collators_whose_rows_are_independent_are_never_refused(
    steps: list[str], side: str, seed: int, count: int
) -> None:
    refuse_tied(chain(steps, side), rows_of(seed, count=count), name="honest")


@settings(max_examples=20, deadline=None)
@given(
    tie=st.sampled_from(TIES),
    steps=st.lists(st.sampled_from(["as it is", "rotated", "reversed", "some replaced"]), max_size=1),
    side=st.sampled_from(["right", "left"]),
    seed=st.integers(0, 10**6),
)
def test_collators_that_tie_examples_are_refused_by_name(
    tie: Callable[[Rows], Rows], steps: list[str], side: str, seed: int
) -> None:
    with pytest.raises(InvalidInput, match="tying ties examples together"):
        refuse_tied(chain(steps, side, tie), rows_of(seed), name="tying")


@pytest.mark.parametrize("tie", TIES, ids=lambda tie: tie.__name__)
def test_a_tie_behind_random_masks_is_refused(tie: Callable[[Rows], Rows]) -> None:
    masks = DataCollatorForLanguageModeling(tokenizer())
    rows = [{"input_ids": row["input_ids"]} for row in rows_of(1)]
    with pytest.raises(InvalidInput, match="tying ties examples together"):
        refuse_tied(lambda rows: dict(masks(tie(rows))), rows, name="tying")


def test_a_collator_that_remembers_the_example_before_is_refused() -> None:
    before: Rows = []

    def collate(rows: Rows) -> dict[str, Any]:
        tied = [
            {"input_ids": [*before[0]["input_ids"][:2], *row["input_ids"]] if before else row["input_ids"]}
            for row in rows
        ]
        before[:] = rows[-1:]
        return padded(tied)

    with pytest.raises(InvalidInput, match=r"remembers ties.*depends on the examples that were collated before"):
        refuse_tied(collate, rows_of(0), name="remembers")


class FirstSeen:
    """Numbers labels in the order in which it meets them, in an object that a look at its attributes passes over."""

    def __init__(self) -> None:
        self.numbers = SimpleNamespace()

    def __call__(self, rows: Rows) -> dict[str, Any]:
        known = vars(self.numbers)
        labels = [known.setdefault(str(row["label"]), len(known)) for row in rows]
        return {**padded(rows), "label": torch.tensor(labels)}


@pytest.mark.parametrize("classes", [2, 6])
def test_what_a_collator_has_seen_before_the_check_does_not_hide_its_state(classes: int) -> None:
    rows = [{**row, "label": place % classes} for place, row in enumerate(rows_of(0))]
    with pytest.raises(InvalidInput, match=r"numbers ties.*'label' depends on the examples that were collated before"):
        check_collator(FirstSeen(), rows, name="numbers")


@pytest.mark.parametrize("form", ["attribute", "method", "closure", "default"])
def test_a_collator_that_keeps_what_does_not_show_yet_is_refused(form: str) -> None:
    class Counts:
        """Subtracts the mean of what it has seen, after more examples than any check collates."""

        def __init__(self) -> None:
            self.seen: list[int] = []

        def __call__(self, rows: Rows) -> dict[str, Any]:
            return summed(rows, self.seen)

        def collate(self, rows: Rows) -> dict[str, Any]:
            return summed(rows, self.seen)

    def summed(rows: Rows, seen: list[int]) -> dict[str, Any]:
        seen.extend(row["input_ids"][1] for row in rows)
        return padded(rows) if len(seen) < 2000 else padded([{"input_ids": seen[:5]} for _ in rows])

    seen: list[int] = []

    def closure(rows: Rows) -> dict[str, Any]:
        return summed(rows, seen)

    def default(rows: Rows, seen: list[int] = []) -> dict[str, Any]:  # noqa: B006 - the mistake
        return summed(rows, seen)

    collate = {"attribute": Counts(), "method": Counts().collate, "closure": closure, "default": default}[form]
    refuse_tied(collate, rows_of(0), name="counts")  # nothing shows
    with pytest.raises(InvalidInput, match=r"counts keeps state between calls \((seen|its defaults) changed"):
        check_collator(collate, rows_of(1), name="counts")


def test_collators_may_set_themselves_up_in_the_first_call() -> None:
    class Lazy:
        settings: dict[str, float] | None = None

        def __call__(self, rows: Rows) -> dict[str, Any]:
            self.settings = self.settings or {"share": math.nan}
            return padded(rows)

    check_collator(Lazy(), rows_of(0), name="lazy")


def test_collators_may_add_noise_normalise_by_row_and_have_a_generator() -> None:
    generator = torch.Generator().manual_seed(0)

    def collate(rows: Rows) -> dict[str, Any]:
        images = torch.stack([torch.tensor(row["input_ids"], dtype=torch.float32) for row in rows])
        images = (images - images.mean(dim=1, keepdim=True)) / images.std(dim=1, keepdim=True)
        return {"pixel_values": images, "noisy": images + torch.randn(images.shape, generator=generator)}

    refuse_tied(collate, rows_of(0, length=9), name="noise")

    def by_batch(rows: Rows) -> dict[str, Any]:
        images = collate(rows)["pixel_values"]
        return {"pixel_values": images - images.mean(dim=0, keepdim=True)}

    with pytest.raises(InvalidInput, match="'pixel_values' of an example alone and in a batch differ"):
        refuse_tied(by_batch, rows_of(0, length=9), name="by batch")


def test_the_check_leaves_every_random_state_alone() -> None:
    torch.manual_seed(3)
    random.seed(3)
    expected = torch.rand(1).item(), random.random()
    torch.manual_seed(3)
    random.seed(3)
    refuse_tied(DataCollatorForLanguageModeling(tokenizer()), rows_of(0), name="masked")
    assert (torch.rand(1).item(), random.random()) == expected


# ---- padding ----


def test_rows_are_padded_at_the_end_with_constants_of_the_settings() -> None:
    collator = DataCollatorForTokenClassification(tokenizer("left"), label_pad_token_id=-7)
    short, long = ({"input_ids": [5] * size, "labels": [1] * size} for size in (2, 4))
    batch = padded_together([collated_alone(collator, row) for row in (short, long)], padding_values(collator, None))
    assert batch["input_ids"].tolist() == [[5, 5, 0, 0], [5] * 4]
    assert batch["attention_mask"].tolist() == [[1, 1, 0, 0], [1] * 4]
    assert batch["labels"].tolist() == [[1, 1, -7, -7], [1] * 4]


def test_texts_of_different_lengths_get_a_mask_or_are_refused() -> None:
    rows = [{"input_ids": torch.ones(1, size, dtype=torch.long)} for size in (2, 3)]
    assert padded_together(rows, {})["attention_mask"].tolist() == [[1, 1, 0], [1, 1, 1]]
    assert padded_together(rows[:1] * 2, {}).keys() == {"input_ids"}
    with pytest.raises(InvalidInput, match="takes no attention_mask"):
        padded_together(rows, {}, takes_mask=False)


def test_the_form_of_a_batch_does_not_depend_on_who_is_in_it() -> None:
    """The default collator of transformers takes columns and types of the first row for all."""
    whole, half, none = ([{"x": [1.0], "label": label}] for label in (1, 0.5, None))
    assert default_data_collator(whole + half)["labels"].tolist() == [1, 0]  # half a label is lost
    rows = [collated_alone(default_data_collator, row) for (row,) in (whole, half, none)]
    with pytest.raises(InvalidInput, match=r"makes 'labels' of some examples .*float32.* and of others .*int64"):
        padded_together(rows[:2], {})
    with pytest.raises(InvalidInput, match="gives some examples labels and others not"):
        padded_together(rows[1:], {})


def of_sizes(key: str, *shapes: tuple[int, ...], **more: Any) -> Rows:
    return [{key: torch.ones(1, *shape), **{name: made(shape) for name, made in more.items()}} for shape in shapes]


@pytest.mark.parametrize(
    ("key", "rows"),
    [
        ("input_values", of_sizes("input_values", (5,), (7,))),
        ("input_values", of_sizes("input_values", (5,), (7,), attention_mask=lambda shape: torch.ones(1, *shape))),
        ("pixel_values", of_sizes("pixel_values", (3, 8, 8), (3, 8, 9))),
        ("inputs_embeds", of_sizes("inputs_embeds", (5, 4), (7, 4))),
        ("labels", of_sizes("labels", (5,), (7,))),  # numbers that no loss passes over
        ("input_ids", of_sizes("input_ids", (2, 5), (3, 5))),  # choices, which have no mask
        ("boxes", of_sizes("boxes", (5, 4), (5, 3), input_ids=lambda _: torch.ones(1, 5, dtype=torch.long))),
        ("boxes", of_sizes("boxes", (5, 4), (7, 4), input_ids=lambda _: torch.ones(1, 5, dtype=torch.long))),
        ("attention_mask", of_sizes("attention_mask", (1, 5, 5), (1, 7, 7), input_ids=lambda s: torch.ones(1, s[1]))),
    ],
)
def test_what_no_mask_marks_is_not_padded(key: str, rows: Rows) -> None:
    with pytest.raises(InvalidInput, match=rf"makes '{key}' of different shapes.*the same shape"):
        padded_together(rows, {})


def test_sounds_of_different_lengths_are_refused_before_training() -> None:
    """Also by a collator that cannot stack them, where there is no batch to compare."""
    rows = [{"input_values": torch.ones(size)} for size in (4, 8)]
    for collate in (default_data_collator, DefaultDataCollator()):
        with pytest.raises(InvalidInput, match="makes 'input_values' of different shapes"):
            refuse_tied(collate, rows, name="default")


def test_vectors_of_tokens_and_targets_of_their_own_length_are_padded() -> None:
    rows = [
        {
            "input_ids": torch.ones(1, size, dtype=torch.long),
            "bbox": torch.ones(1, size, 4),
            "labels": torch.ones(1, size + 1, dtype=torch.long),
            "decoder_input_ids": torch.ones(1, size + 1, dtype=torch.long),
        }
        for size in (2, 3)
    ]
    batch = padded_together(rows, {"labels": -100})
    assert {key: tuple(value.shape) for key, value in batch.items()} == {
        "input_ids": (2, 3),
        "bbox": (2, 3, 4),
        "labels": (2, 4),
        "decoder_input_ids": (2, 4),
        "attention_mask": (2, 3),
    }


def test_a_mask_without_an_entry_per_token_is_refused() -> None:
    rows = [{"input_ids": torch.ones(1, n, dtype=torch.long), "attention_mask": torch.ones(1, 3)} for n in (2, 3)]
    with pytest.raises(InvalidInput, match="'attention_mask' of one shape for texts of different lengths"):
        padded_together(rows, {})


def test_a_collator_that_fails_on_several_examples_of_one_shape_is_refused() -> None:
    def collate(rows: Rows) -> dict[str, Any]:
        if len(rows) > 1:
            raise ValueError(f"only one: {rows[0]['input_ids']}")
        return {"input_ids": torch.tensor([row["input_ids"] for row in rows])}

    with pytest.raises(InvalidInput, match=r"single fails on 6 examples together \(ValueError\), although"):
        refuse_tied(collate, rows_of(0, length=9), name="single")

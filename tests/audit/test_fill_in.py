"""The fill-in test: the same as one row at a time, memory found where it is, refusals."""

from functools import cache
from typing import Any

import numpy as np
import pytest
import torch
from memorising import MASK, tiny

from hush.audit.fill_in import FillIn, FillOrder, fill_in, fill_in_batches
from hush.audit.models import Subject
from hush.audit.sequences import Sequences
from hush.errors import InvalidInput

COUNT, SIZE = 16, 3
WAYS: list[FillOrder] = ["together", "in_turn"]


def texts(*, seed: int) -> list[list[int]]:
    """A number, a secret of three random tokens in the middle, and an end of some length."""
    rng = np.random.default_rng(seed)
    starts = rng.permutation(90)[:COUNT] + 3
    return [[int(start), 4, *rng.integers(3, 96, SIZE), *[7] * (1 + k % 4)] for k, start in enumerate(starts)]


def sequences_of(rows: list[list[int]]) -> Sequences:
    return Sequences.of(rows, begin=2, end=2 + SIZE, secret=np.arange(len(rows)) // 2)


@cache
def trained(seed: int) -> Any:
    """A masked language model that learnt these texts' secrets, whole and in part masked, by heart."""
    model: Any = tiny("bert", seed=seed)
    rows = texts(seed=seed)
    width = max(map(len, rows))
    data = torch.tensor([row + [0] * (width - len(row)) for row in rows])
    inside = torch.tensor([[place < len(row) for place in range(width)] for row in rows]).long()
    optimizer = torch.optim.AdamW(model.parameters(), lr=5e-3)
    for step in range(120):
        shown, labels = data.clone(), torch.full_like(data, -100)
        known = 2 + step % SIZE
        shown[:, known : 2 + SIZE] = MASK
        labels[:, known : 2 + SIZE] = data[:, known : 2 + SIZE]
        model(input_ids=shown, attention_mask=inside, labels=labels).loss.backward()
        optimizer.step()
        optimizer.zero_grad()
    return model


def filled_plainly(model: Any, row: list[int], begin: int, end: int, way: FillOrder) -> list[int]:
    """One text, no padding, one pass after another."""
    shown = list(row)
    shown[begin:end] = [MASK] * (end - begin)
    with torch.no_grad():
        if way == "together":
            return model.eval()(input_ids=torch.tensor([shown])).logits[0, begin:end].argmax(-1).tolist()
        for place in range(begin, end):
            shown[place] = int(model.eval()(input_ids=torch.tensor([shown])).logits[0, place].argmax())
    return shown[begin:end]


@pytest.mark.parametrize("way", WAYS)
def test_fills_are_those_of_one_text_at_a_time(way: FillOrder) -> None:
    model: Any = tiny("bert", seed=5).double()
    rng = np.random.default_rng(0)
    rows = [rng.integers(3, 96, rng.integers(8, 20)).tolist() for _ in range(20)]
    begins = rng.integers(0, 4, 20)
    ends = begins + rng.integers(1, 5, 20)
    for row, begin, end in zip(rows[::2], begins[::2], ends[::2], strict=True):
        row[begin:end] = filled_plainly(model, row, begin, end, way)
    found = fill_in(Subject.of(model), Sequences.of(rows, begin=begins, end=ends), mask=MASK, way=way, batch_size=6)
    right = [
        sum(a == b for a, b in zip(filled_plainly(model, row, begin, end, way), row[begin:end], strict=True))
        for row, begin, end in zip(rows, begins, ends, strict=True)
    ]
    assert found.right_N.tolist() == right
    assert found.success.hits == sum(np.array(right) == ends - begins)
    assert found.token_share == pytest.approx(sum(right) / (ends - begins).sum())
    assert 0 < found.success.rate < 1


@pytest.mark.parametrize("way", WAYS)
def test_a_model_that_memorised_puts_nearly_all_back_and_one_that_never_saw_them_none(way: FillOrder) -> None:
    sequences = sequences_of(texts(seed=1))
    found = fill_in(Subject.of(trained(1)), sequences, mask=MASK, way=way)
    without = fill_in(Subject.of(trained(2)), sequences, mask=MASK, way=way)
    assert found.success.rate > 0.9
    assert without.success.hits == 0
    assert sum(one.hits for one in found.by_secret().values() if one) == found.success.hits
    assert len(found.by_secret()) == COUNT // 2


def test_batches_go_on_and_texts_too_long_are_counted() -> None:
    subject = Subject.of(tiny("bert"))
    sequences = Sequences.of([*texts(seed=1), [5] * 40], begin=2, end=4, secret=np.arange(COUNT + 1))
    told: list[tuple[int, int]] = []
    options: dict[str, Any] = {"mask": MASK, "batch_size": 5}
    whole = list(fill_in_batches(subject, sequences, **options, progress=lambda *numbers: told.append(numbers)))
    assert told == [(0, 16), (5, 16), (10, 16), (15, 16), (16, 16)]
    late = list(fill_in_batches(subject, sequences, **options, done=whole[:2]))
    first, again = (FillIn.gather(sequences, subject, "in_turn", some) for some in (whole, [*whole[:2], *late]))
    assert first.right_N.tolist() == again.right_N.tolist()
    assert (first.too_long, first.success.runs, first.by_secret()[COUNT]) == (1, COUNT, None)
    with pytest.raises(InvalidInput, match="not tried yet"):
        FillIn.gather(sequences, subject, "in_turn", whole[:2])


def test_what_cannot_be_tried_is_refused_without_showing_a_token() -> None:
    subject = Subject.of(tiny("bert"))
    cases: list[tuple[str, list[list[int]], dict[str, Any]]] = [
        ("at least one", [], {}),
        ("token of sequence 0", [[5, 912345]], {}),
        ("the mask token", [[5, 6]], {"mask": 97}),
        ("in_turn", [[5, 6]], {"way": "sideways"}),
        ("at least 1", [[5, 6]], {"batch_size": 0}),
        ("takes 32 tokens", [[5] * 33], {}),
    ]
    for match, rows, more in cases:
        with pytest.raises(InvalidInput, match=match) as error:
            fill_in(subject, Sequences.of(rows, begin=1 if rows else []), **{"mask": MASK} | more)
        assert "912345" not in str(error.value)
    assert "95" not in repr(fill_in(subject, Sequences.of([[5, 95]], begin=1), mask=MASK))

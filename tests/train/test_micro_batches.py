"""A draw as micro-batches: every example once, shapes fixed, nothing cut off."""

from math import ceil
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from hush.errors import InvalidInput
from hush.train.round import MicroBatch, check_lengths, micro_batches

draws = st.sets(st.integers(0, 199), max_size=120).map(lambda ids: np.array(sorted(ids), dtype=np.int64))
sizes = st.integers(1, 40)
bucket_lists = st.sets(st.integers(1, 50), min_size=1, max_size=5).map(sorted)


@st.composite
def bucketed(draw: st.DrawFn) -> dict[str, Any]:
    buckets = draw(bucket_lists)
    lengths = np.array(draw(st.lists(st.integers(0, buckets[-1]), min_size=200, max_size=200)))
    return {"examples": draw(draws), "size": draw(sizes), "lengths": lengths, "buckets": buckets}


def real_examples(batches: list[MicroBatch]) -> list[int]:
    return sorted(example for batch in batches for example in batch.examples[batch.real].tolist())


@given(draws, sizes)
def test_every_drawn_example_is_in_exactly_one_micro_batch(examples: np.ndarray, size: int) -> None:
    assert real_examples(list(micro_batches(examples, size=size))) == examples.tolist()


@given(bucketed())
def test_with_buckets_too_every_drawn_example_is_in_exactly_one(arguments: dict[str, Any]) -> None:
    assert real_examples(list(micro_batches(**arguments))) == arguments["examples"].tolist()


@given(bucketed())
def test_no_example_is_longer_than_its_micro_batch(arguments: dict[str, Any]) -> None:
    for batch in micro_batches(**arguments):
        assert batch.length in arguments["buckets"]
        assert arguments["lengths"][batch.examples].max() <= batch.length


@given(st.one_of(bucketed(), st.builds(lambda examples, size: {"examples": examples, "size": size}, draws, sizes)))
def test_shapes_are_fixed_and_padding_repeats_an_example_of_the_micro_batch(arguments: dict[str, Any]) -> None:
    for batch in micro_batches(**arguments):
        assert batch.examples.shape == batch.real.shape == (arguments["size"],)
        assert batch.examples.dtype == np.int64
        assert batch.real.dtype == np.bool_
        assert batch.real.any()
        assert np.isin(batch.examples, batch.examples[batch.real]).all()


@given(draws, sizes)
def test_without_buckets_only_the_last_micro_batch_is_padded(examples: np.ndarray, size: int) -> None:
    batches = list(micro_batches(examples, size=size))
    assert len(batches) == ceil(examples.size / size)
    assert all(batch.real.all() and batch.length is None for batch in batches[:-1])


@given(bucketed())
def test_sharing_never_takes_more_slots_than_each_bucket_by_itself(arguments: dict[str, Any]) -> None:
    edges, size = arguments["buckets"], arguments["size"]
    lengths = arguments["lengths"][arguments["examples"]]
    smallest = [min(edge for edge in edges if edge >= length) for length in lengths.tolist()]
    apart = {edge: ceil(smallest.count(edge) / size) for edge in edges}
    taken = [batch.length for batch in micro_batches(**arguments)]
    for edge in edges:
        assert taken.count(edge) <= apart[edge]


def test_what_is_left_of_a_short_bucket_shares_a_longer_one_where_it_fits() -> None:
    lengths = np.array([10, 10, 10, 20, 20, 20, 20, 20])
    batches = list(micro_batches(np.arange(8), size=4, lengths=lengths, buckets=[10, 20]))
    assert [(batch.length, batch.real.sum()) for batch in batches] == [(20, 4), (20, 4)]
    batches = list(micro_batches(np.arange(7), size=4, lengths=lengths, buckets=[10, 20]))
    assert [(batch.length, batch.real.sum()) for batch in batches] == [(20, 4), (10, 3)]


@pytest.mark.parametrize("arguments", [{}, {"lengths": np.array([3, 4]), "buckets": [4]}])
def test_an_empty_draw_gives_no_micro_batch(arguments: dict[str, Any]) -> None:
    assert list(micro_batches([], size=8, **arguments)) == []
    assert list(micro_batches(np.zeros(0, dtype=np.int64), size=8, **arguments)) == []


def test_an_example_longer_than_every_bucket_is_refused_at_once() -> None:
    lengths = np.array([3, 713, 5])
    with pytest.raises(InvalidInput, match="713 is longer than the largest bucket, 512"):
        micro_batches([0, 1], size=2, lengths=lengths, buckets=[128, 512])
    with pytest.raises(InvalidInput, match="713"):
        check_lengths(lengths, [128, 512])
    check_lengths(lengths, [128, 713])
    check_lengths([], [1])


def test_the_repr_shows_neither_examples_nor_how_many() -> None:
    batch = next(micro_batches([4321], size=3))
    assert repr(batch) == "MicroBatch(3 slots, length None)"


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"size": 0}, "size"),
        ({"size": 1.5}, "size"),
        ({"examples": [1, 1]}, "twice"),
        ({"examples": [-1]}, "at least 0"),
        ({"examples": [0.5]}, "example numbers"),
        ({"examples": [[1]]}, "flat"),
        ({"buckets": [4]}, "both lengths and buckets"),
        ({"lengths": [4, 4]}, "both lengths and buckets"),
        ({"lengths": [4], "buckets": [4]}, "one length for each"),
        ({"lengths": [4, -4], "buckets": [4]}, "-4"),
        ({"lengths": [4, 4.5], "buckets": [4]}, "whole"),
        ({"lengths": [4, 4], "buckets": [4, 4]}, "rise strictly"),
        ({"lengths": [4, 4], "buckets": [0, 4]}, "at least 1"),
        ({"lengths": [4, 4], "buckets": [4.5]}, "whole"),
    ],
)
def test_what_cannot_be_meant_is_refused_before_the_first_micro_batch(arguments: dict[str, Any], message: str) -> None:
    with pytest.raises(InvalidInput, match=message):
        micro_batches(**{"examples": [0, 1], "size": 2, **arguments})

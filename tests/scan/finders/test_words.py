"""The words rule: counts and spans are those of a plain loop, for any merging of blocks."""

import pickle
import random
from collections import Counter
from collections.abc import Sequence

import numpy as np
import pytest
from finder_cases import ascii_words, block_of, lowered, reference, rows_of, texts
from hypothesis import given
from hypothesis import strategies as st

import hush
from hush.scan.finders import Tokens, Words
from hush.scan.finders.text_kernels import find_slot
from hush.scan.finders.words import ChosenWords, WordCounts

corpora = st.lists(texts, max_size=8)
ranges = st.tuples(st.integers(1, 4), st.integers(0, 4)).map(lambda ends: (ends[0], ends[0] + ends[1]))


def surveyed(survey: Words, blocks: Sequence[Sequence[str]]) -> ChosenWords:
    total = None
    for strings in blocks:
        count = survey.count(block_of(strings))
        total = count if total is None else survey.merged(total, count)
    return survey.finder(total)


def ranked(corpus: Sequence[str]) -> list[tuple[str, int]]:
    """By a plain loop: words with the number of texts that hold them, in the order of ranks."""
    counts = Counter(word for text in corpus for word in set(ascii_words(text)))
    return sorted(counts.items(), key=lambda entry: (-entry[1], entry[0]))


@given(corpora, ranges)
def test_words_are_chosen_by_the_number_of_examples_as_a_plain_loop_does(
    corpus: list[str], ends: tuple[int, int]
) -> None:
    finder = surveyed(Words(documents=ends), [corpus])
    expected = [entry for entry in ranked(corpus) if ends[0] <= entry[1] <= ends[1]]
    assert list(zip(finder.words, finder.documents_W.tolist(), strict=True)) == expected


@given(corpora, ranges)
def test_words_are_chosen_by_rank_as_a_plain_loop_does(corpus: list[str], ends: tuple[int, int]) -> None:
    finder = surveyed(Words(ranks=ends), [corpus])
    assert list(zip(finder.words, finder.documents_W.tolist(), strict=True)) == ranked(corpus)[ends[0] - 1 : ends[1]]
    assert finder.rank_W.tolist() == list(range(ends[0], ends[0] + len(finder.words)))


@given(corpora, st.sampled_from(["ascii", "unicode"]))
def test_every_occurrence_is_found_at_its_characters(corpus: list[str], letters) -> None:
    tokens = Tokens(letters=letters)
    corpus = [text.replace("\u0130", "") for text in corpus]
    hits = surveyed(Words(ranks=(1, 1000), tokens=tokens), [corpus]).find(block_of(corpus))
    expected = [(e, b, s, word) for e, text in enumerate(corpus) for b, s, word in reference(text, tokens)]
    assert [row[:4] for row in rows_of(hits)] == expected
    assert all(lowered(corpus[e][b:s]) == word for e, b, s, word in expected)


@given(st.lists(corpora, min_size=1, max_size=6), st.randoms(use_true_random=False))
def test_the_order_and_grouping_of_merges_change_nothing(blocks: list[list[str]], choice: random.Random) -> None:
    survey = Words(documents=(1, 3))
    one_pass = surveyed(survey, [[text for block in blocks for text in block]])
    counts = [survey.count(block_of(block)) for block in blocks]
    while len(counts) > 1:
        one = counts.pop(choice.randrange(len(counts)))
        other = counts.pop(choice.randrange(len(counts)))
        counts.append(pickle.loads(pickle.dumps(survey.merged(one, other))))
    finder = survey.finder(counts[0])
    assert finder.words == one_pass.words
    assert finder.documents_W.tolist() == one_pass.documents_W.tolist()
    assert finder.rank_W.tolist() == one_pass.rank_W.tolist()


def test_merging_leaves_what_was_merged_as_it_was() -> None:
    survey = Words(documents=(1, 9))
    one, other = survey.count(block_of(["a b", "a"])), survey.count(block_of(["a c"]))
    total = survey.merged(one, other)
    assert survey.finder(total).words == ("a", "b", "c")
    assert survey.finder(one).words == ("a", "b")
    assert survey.finder(other).words == ("a", "c")


def test_many_and_long_words_are_counted_exactly() -> None:
    rng = np.random.default_rng(0)
    letters = np.array(list("abcdef"))
    words = ["".join(rng.choice(letters, size)) for size in rng.integers(1, 12, 30_000)] + ["y" * 300_000]
    corpus = [" ".join(words[k::97]) for k in range(97)]
    finder = surveyed(Words(documents=(1, 97)), [corpus[:40], corpus[40:41], corpus[41:], [], [""]])
    assert list(zip(finder.words, finder.documents_W.tolist(), strict=True)) == ranked(corpus)


def test_adding_blocks_holds_no_more_than_twice_the_distinct_words() -> None:
    rng = np.random.default_rng(0)
    total, seen = None, set()
    for _ in range(60):
        words = ["x" + "abcdefghij"[k % 10] * (k // 10 + 1) for k in rng.integers(0, 400, 50)]
        seen.update(words)
        count = WordCounts.of(block_of([" ".join(words)]), Tokens())
        total = count if total is None else total.plus(count)
        assert sum(len(run[2]) for run in total.runs) <= 2 * len(seen)


def test_equal_hashes_are_told_apart_by_the_bytes() -> None:
    letters, offset = np.frombuffer(b"catdog", np.uint8), np.array([0, 3, 6])
    slots, hashes = np.array([0, 1, -1, -1], np.int32), np.zeros(2, np.uint64)
    for word, number in ((b"cat", 0), (b"dog", 1), (b"cow", -1), (b"ca", -1)):
        source = np.frombuffer(word, np.uint8)
        assert find_slot(slots, hashes, letters, offset, source, 0, len(word), np.uint64(0))[1] == number


def test_reasons_give_rank_and_number_of_examples() -> None:
    corpus = ["rare word", "word", "word"]
    hits = surveyed(Words(documents=(1, 1)), [corpus]).find(block_of(corpus))
    assert rows_of(hits) == [(0, 0, 4, "rare", "word of rank 2 in 1 examples")]


def test_a_corpus_without_blocks_has_no_words() -> None:
    finder = Words(ranks=(1, 5)).finder(None)
    assert len(finder.find(block_of(["a b"]))) == 0
    assert len(finder.find(block_of([]))) == 0


@pytest.mark.parametrize(
    "settings",
    [
        {},
        {"documents": (1, 2), "ranks": (1, 2)},
        {"documents": (2, 1)},
        {"ranks": (0, 5)},
        {"ranks": 5},
        {"ranks": (1.0, 2)},
    ],
)
def test_ranges_that_are_none_are_refused(settings) -> None:
    with pytest.raises(hush.InvalidInput, match=r"documents|ranks"):
        Words(**settings)

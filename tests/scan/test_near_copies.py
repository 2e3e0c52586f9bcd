"""Near copies: joined pairs agree with exact set similarity, for any order and any blocks."""

import hashlib
import itertools
import os
import pickle
import re
import subprocess
import sys
import unicodedata
from collections.abc import Sequence

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray
from scipy.sparse import coo_array
from scipy.sparse.csgraph import connected_components

from hush.data.parts import Block
from hush.errors import InvalidInput
from hush.scan.near_copies import Copies

CAPITALS_AND_SCRIPTS = "aAzZ09 _.-/:@[`{'\n\téÉßñΩ漢字ไทคကខ한、。…\u00a0×«»\u2009\u2014ﬁＡ"


def block_of(texts: Sequence[str]) -> Block:
    return Block(texts=pa.array(texts, pa.large_string()), columns={}, rows=np.arange(len(texts)))


def shingles_of(text: str, size: int) -> frozenset[tuple[str, ...]]:
    """The documented words and shingles, by another route: Python's strings and a regular expression."""
    text = unicodedata.normalize("NFKC", text).lower()
    alone = "\u0e00-\u0eff\u1000-\u109f\u1780-\u17ff\u2e80-\u2fff\u3005-\u3007\u3021-\U0010ffff"
    apart = "\x00-/:-@\\[-`{-\xbf×÷\u2000-\u206f\u3000-\u3004\u3008-\u3020"
    words = re.findall(f"[{alone}]|[^{alone}{apart}]+", text)
    if len(words) < size:
        return frozenset([tuple(words) if words else ("no words", text)])
    return frozenset(zip(*(words[k:] for k in range(size)), strict=False))


def jaccard(one: frozenset[object], other: frozenset[object]) -> float:
    return len(one & other) / len(one | other)


def components(linked: NDArray[np.bool_]) -> NDArray[np.int64]:
    """For each example the first one connected with it, by a library."""
    label = connected_components(coo_array(linked.astype(np.int8)), directed=False)[1]
    first = np.full(len(label), len(label))
    np.minimum.at(first, label, np.arange(len(label)))
    return first[label]


def edited(words: NDArray[np.str_], edits: int, rng: np.random.Generator) -> NDArray[np.str_]:
    words = words.copy()
    words[rng.choice(len(words), size=min(edits, len(words)), replace=False)] = f"new{rng.integers(10**9)}"
    return words


def corpus(seed: int, originals: int = 6, copies: int = 24) -> list[str]:
    """Random texts, and copies of copies of them with a few words changed."""
    rng = np.random.default_rng(seed)
    texts = [rng.choice([f"w{k}" for k in range(500)], size=rng.integers(1, 150)) for _ in range(originals)]
    for _ in range(copies):
        texts.append(edited(texts[rng.integers(len(texts))], int(rng.integers(0, 8)), rng))
    order = rng.permutation(len(texts))
    return [" ".join(texts[k]) for k in order]


@given(st.lists(st.text(CAPITALS_AND_SCRIPTS, max_size=30), min_size=2, max_size=2), st.integers(1, 4))
def test_shingles_are_the_documented_ones(texts: list[str], size: int) -> None:
    from hush.scan.near_copies import _normalised
    from hush.scan.near_copies_kernels import shingle_hashes, shingle_offsets

    data, offset = _normalised(block_of(texts).texts)
    start = shingle_offsets(data, offset, size)
    hashes = shingle_hashes(data, offset, size, start)
    one, other = (frozenset(hashes[start[k] : start[k + 1]].tolist()) for k in range(2))
    expected_one, expected_other = (shingles_of(text, size) for text in texts)
    assert (len(one), len(other)) == (len(expected_one), len(expected_other))
    assert len(one & other) == len(expected_one & expected_other)


@given(st.integers(0, 2**32))
@settings(max_examples=25)
def test_groups_lie_between_those_of_clearly_similar_and_of_possibly_similar_pairs(seed: int) -> None:
    """Exact similarity decides: 0.9 or more is always together, 0.4 or less never by itself (1e-9 for each pair)."""
    texts = corpus(seed)
    copies = Copies(similarity=0.8)
    assert copies.missed_at(0.9) < 1e-9
    assert copies.joined_at(0.4) < 1e-9
    first = copies.groups(copies.signatures(block_of(texts))).first_N
    sets = [shingles_of(text, 5) for text in texts]
    exact = np.array([[jaccard(one, other) for other in sets] for one in sets])
    surely, possibly = components(exact >= 0.9), components(exact > 0.4)
    assert (first == first[surely]).all()
    assert (possibly == possibly[first]).all()
    assert (first <= np.arange(len(first))).all()


@given(
    st.integers(0, 2**32),
    st.sampled_from([(0.5, 16, 0.3), (0.7, 24, 0.2), (0.9, 32, 0.01), (1.0, 8, 0.5)]),
    st.integers(1, 60),
    st.integers(1, 3),
)
def test_groups_of_signatures_are_exactly_the_connected_candidates(
    seed: int, settings_: tuple[float, int, float], size: int, letters: int
) -> None:
    """Against all pairs: joined are those with a band in common and enough slots, and what they connect."""
    similarity, permutations, missed = settings_
    copies = Copies(similarity=similarity, permutations=permutations, missed=missed)
    rng = np.random.default_rng(seed)
    # Noise over a few shared patterns: crowded buckets, some of strangers and some of copies.
    pattern = rng.integers(0, 256, size=(3, permutations), dtype=np.uint8)
    signature = pattern[rng.integers(0, 3, size)]
    noisy = rng.random(signature.shape) < rng.choice([0.05, 0.2, 0.4])
    signature[noisy] = rng.integers(0, letters, size=int(noisy.sum()), dtype=np.uint8)
    equal = signature[:, None] == signature[None]
    bands = equal[:, :, : copies.bands * copies.rows].reshape(size, size, copies.bands, copies.rows)
    linked = bands.all(axis=3).any(axis=2) & (equal.sum(axis=2) >= copies.needed)
    assert copies.groups(signature).first_N.tolist() == components(linked).tolist()


@given(st.lists(st.text(max_size=20), min_size=1, max_size=12), st.data())
@settings(max_examples=50)
def test_equal_texts_are_always_joined(texts: list[str], data: st.DataObject) -> None:
    copies = Copies(similarity=data.draw(st.sampled_from([0.3, 0.8, 1.0])), shingle=data.draw(st.integers(1, 6)))
    texts = [data.draw(st.sampled_from(texts)) for _ in range(20)]
    first = copies.groups(copies.signatures(block_of(texts))).first_N
    for one, other in itertools.combinations(range(20), 2):
        assert texts[one] != texts[other] or first[one] == first[other]


@given(st.integers(0, 2**32), st.lists(st.integers(0, 30), max_size=4))
@settings(max_examples=25)
def test_neither_blocks_nor_order_change_the_groups(seed: int, cuts: list[int]) -> None:
    texts = corpus(seed)
    copies = Copies(similarity=0.7)
    whole = copies.signatures(block_of(texts))
    bounds = [0, *sorted(cuts), len(texts)]
    parts = [copies.signatures(block_of(texts[a:b])) for a, b in itertools.pairwise(bounds)]
    assert (np.concatenate(parts) == whole).all()
    sliced = Block(texts=block_of(["before", *texts]).texts.slice(1), columns={}, rows=np.arange(len(texts)))
    assert (copies.signatures(sliced) == whole).all()
    order = np.random.default_rng(seed).permutation(len(texts))
    first, shuffled = copies.groups(whole).first_N, copies.groups(whole[order]).first_N
    together = first[:, None] == first[None]
    assert (together[np.ix_(order, order)] == (shuffled[:, None] == shuffled[None])).all()


def pairs_of_similarity(shared: int, own: int, count: int) -> list[str]:
    """Texts 2k and 2k + 1 share ``shared`` one-word shingles and have ``own`` each to themselves."""
    texts = []
    for k in range(count):
        both = [f"s{k}x{i}" for i in range(shared)]
        texts += [" ".join([*both, *(f"{side}{k}x{i}" for i in range(own))]) for side in "ab"]
    return texts


@pytest.mark.parametrize("own", [1, 5, 40])
def test_misses_and_false_joins_stay_within_the_stated_chances(own: int) -> None:
    """Monte Carlo over short and long texts, with settings loose enough for the chances to be seen."""
    count = 1500
    copies = Copies(similarity=0.8, shingle=1, permutations=24, missed=0.2)
    for shared, similarity in ((8 * own, 0.8), (4 * own, 2 / 3), (2 * own, 0.5)):
        texts = pairs_of_similarity(shared, own, count)
        first = copies.groups(copies.signatures(block_of(texts))).first_N
        joined = float(np.mean(first[::2] == first[1::2]))
        error = 4 * np.sqrt(0.25 / count)
        assert 1 - copies.missed_at(similarity) - error <= joined <= copies.joined_at(similarity) + error


def test_defaults_miss_less_than_one_in_a_thousand_and_ever_fewer_above() -> None:
    for similarity in (0.3, 0.5, 0.8, 0.9, 0.95, 1.0):
        copies = Copies(similarity=similarity)
        missed = [copies.missed_at(s) for s in np.linspace(similarity, 1.0, 20)]
        assert missed[0] <= 1e-3
        assert missed == sorted(missed, reverse=True)
        assert missed[-1] == 0.0


def test_estimates_agree_with_exact_similarity() -> None:
    texts = corpus(seed=5, originals=3, copies=60)
    groups = Copies().groups(Copies().signatures(block_of(texts)))
    one, other = np.triu_indices(len(texts), 1)
    sets = [shingles_of(text, 5) for text in texts]
    exact = np.array([jaccard(sets[a], sets[b]) for a, b in zip(one, other, strict=True)])
    error = groups.similarity(one, other) - exact
    assert np.abs(error).max() < 5 * 0.5 / np.sqrt(128)
    assert abs(error.mean()) < 0.01


def test_edits_of_few_words_case_and_white_space_are_seen_through() -> None:
    rng = np.random.default_rng(0)
    words = np.array([f"word{k}" for k in range(200)])
    stranger = " ".join(rng.permutation(words))
    texts = [" ".join(words), stranger, " ".join(edited(words, 2, rng)), "\n  ".join(words).upper(), "short", "SHORT!"]
    first = Copies().groups(Copies().signatures(block_of(texts))).first_N
    assert first.tolist() == [0, 1, 0, 0, 4, 4]


def test_crowds_of_copies_cost_no_more_than_their_number() -> None:
    """All pairs of these would take an hour."""
    copies = Copies()
    rng = np.random.default_rng(0)
    same = np.tile(rng.integers(0, 256, copies.permutations, dtype=np.uint8), (200_000, 1))
    assert (copies.groups(same).first_N == 0).all()
    same[np.arange(200_000), rng.integers(0, copies.permutations, 200_000)] = rng.integers(0, 256, 200_000)
    assert (copies.groups(same).first_N == 0).all()


def test_reasons_tell_copies_from_chains_and_hold_no_text() -> None:
    copies = Copies(similarity=0.8)
    rng = np.random.default_rng(1)
    chain = [np.array([f"hidden{k}" for k in range(300)])]
    for step in range(8):  # each changes other words, so the ends of the chain are no longer alike
        chain.append(chain[-1].copy())
        chain[-1][step * 30 : step * 30 + 5] = f"changed{rng.integers(10**6)}"
    groups = copies.groups(copies.signatures(block_of([" ".join(words) for words in chain])))
    assert (groups.first_N == 0).all()
    assert "hidden" not in repr(groups)
    next_one, last = groups.reasons([1, 8], [0, 0])
    assert re.fullmatch(r"near copy of example 0 \(similarity about 0\.9\d\)", next_one)
    assert re.fullmatch(r"in a chain of near copies with example 0 \(similarity about 0\.[4-6]\d\)", last)


SIGNED = """
import hashlib, sys, numpy as np, pyarrow as pa
from hush.data.parts import Block
from hush.scan.near_copies import Copies
texts = pa.array([" ".join(f"w{k * k % n}" for k in range(n)) for n in range(1, 400, 7)], pa.large_string())
signature = Copies().signatures(Block(texts=texts, columns={}, rows=np.arange(len(texts))))
print(hashlib.sha256(signature.tobytes()).hexdigest())
"""


def test_signatures_are_the_same_in_another_process_and_without_vector_instructions(
    capsys: pytest.CaptureFixture[str],
) -> None:
    environment = {**os.environ, "RENSA_FORCE_KERNEL": "scalar", "PYTHONHASHSEED": "7"}
    other = subprocess.run([sys.executable, "-c", SIGNED], env=environment, capture_output=True, text=True, check=True)
    texts = [" ".join(f"w{k * k % n}" for k in range(n)) for n in range(1, 400, 7)]
    here = pickle.loads(pickle.dumps(Copies())).signatures(block_of(texts))
    assert other.stdout.strip() == hashlib.sha256(here.tobytes()).hexdigest()


def test_no_examples_have_no_groups() -> None:
    groups = Copies().groups(Copies().signatures(block_of([])))
    assert (len(groups.first_N), groups.num_groups, groups.num_copies) == (0, 0, 0)
    assert groups.reasons([], []) == []


@pytest.mark.parametrize(
    ("wrong", "says"),
    [
        ({"similarity": 0.0}, "similarity=0.0"),
        ({"similarity": float("nan")}, "similarity=nan"),
        ({"shingle": 0}, "shingle=0"),
        ({"permutations": 100}, "multiple of 8"),
        ({"missed": 0.0}, "missed=0.0"),
        ({"similarity": 0.01}, "raise permutations"),
    ],
)
def test_settings_that_cannot_work_are_refused(wrong: dict[str, float], says: str) -> None:
    with pytest.raises(InvalidInput, match=says):
        Copies(**wrong)  # pyright: ignore[reportArgumentType]


def test_signatures_of_other_settings_are_refused() -> None:
    with pytest.raises(InvalidInput, match="make them with the same Copies"):
        Copies().groups(np.zeros((3, 64), dtype=np.uint8))


def test_without_the_library_the_extra_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "rensa", None)
    with pytest.raises(InvalidInput, match=r"hush\[copies\]"):
        Copies().signatures(block_of(["one"]))

"""Memorised or generalised: what any model says is no excess, limits cover, tests are those of SciPy."""

import itertools
from functools import cache
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from memorising import trained_plainly
from scipy.stats import binom, binomtest, fisher_exact, multinomial

from hush.audit.extraction import extract
from hush.audit.models import Subject
from hush.audit.sequences import Sequences
from hush.audit.statistics import Success, excess_over_held_out, excess_over_reference
from hush.errors import InvalidInput

COUNT, LENGTH = 16, 12


def counting(starts: range) -> list[list[int]]:
    """Rows that count up, from 1 over 100 and round again: whoever has seen some can go on with any."""
    return [[100 + (start + step) % 40 for step in range(LENGTH)] for start in starts]


def planted(seed: int) -> list[list[int]]:
    """A number and random letters, with no rule to be learnt."""
    rng = np.random.default_rng(seed)
    return [[200 + number, 199, 198, 197, *rng.integers(1, 90, LENGTH - 4).tolist()] for number in range(COUNT)]


@cache
def found(secrets: int) -> Any:
    """Which rows come out of a model that saw secrets of this seed: planted ones of seed 1, then counting ones."""
    model = trained_plainly(planted(secrets) + counting(range(0, 40, 2)), steps=120)
    rows = planted(1) + counting(range(1, 1 + COUNT, 2)) + counting(range(0, COUNT, 2))
    return extract(Subject.of(model), Sequences.of(rows, begin=4), prompts=[4]).hits(4, "secret")


def test_what_any_model_says_is_no_excess_and_what_was_memorised_is() -> None:
    """Both models continue 1, 2, 3, 4 with 5, 6, 7; only the one that saw it knows the secret."""
    model, reference = found(1), found(2)
    learnt = excess_over_reference(model[:COUNT], reference[:COUNT])
    assert learnt.difference > 0.9
    assert learnt.lower > 0.2
    assert learnt.is_memorised
    any_model = excess_over_reference(model[COUNT:], reference[COUNT:])
    assert any_model.trained.rate > 0.8
    assert abs(any_model.difference) < 0.2
    assert not any_model.is_memorised
    # Counting rows that were trained on, beside those that were not, on the same model.
    seen, unseen = (Success(hits=int(part.sum()), runs=part.size) for part in (model[-8:], model[COUNT:-8]))
    assert not excess_over_held_out(seen, unseen).is_memorised


@given(
    pairs=st.lists(st.tuples(st.booleans(), st.booleans()), min_size=1, max_size=60),
    level=st.floats(0.001, 0.4),
)
def test_excess_over_a_reference(pairs: list[tuple[bool, bool]], level: float) -> None:
    hit, other = map(np.array, zip(*pairs, strict=True))
    excess = excess_over_reference(hit, other, level=level)
    assert excess.difference == pytest.approx(hit.mean() - other.mean())
    assert -1 <= excess.lower <= excess.difference <= excess.upper <= 1
    gained, lost = int((hit & ~other).sum()), int((other & ~hit).sum())
    expected = binomtest(gained, gained + lost, 0.5, alternative="greater").pvalue if gained + lost else 1.0
    assert excess.p_value == pytest.approx(expected)
    mirrored = excess_over_reference(other, hit, level=level)
    assert (mirrored.lower, mirrored.upper) == pytest.approx((-excess.upper, -excess.lower))


@given(
    counts=st.tuples(st.integers(0, 40), st.integers(1, 40), st.integers(0, 40), st.integers(1, 40)),
    level=st.floats(0.001, 0.4),
)
def test_excess_over_held_out_sequences(counts: tuple[int, int, int, int], level: float) -> None:
    one, other = Success(hits=min(counts[:2]), runs=counts[1]), Success(hits=min(counts[2:]), runs=counts[3])
    excess = excess_over_held_out(one, other, level=level)
    assert -1 <= excess.lower <= excess.difference <= excess.upper <= 1
    table = [[one.hits, one.runs - one.hits], [other.hits, other.runs - other.hits]]
    assert excess.p_value == pytest.approx(fisher_exact(np.array(table), alternative="greater").pvalue)
    mirrored = excess_over_held_out(other, one, level=level)
    assert (mirrored.lower, mirrored.upper) == pytest.approx((-excess.upper, -excess.lower))


@pytest.mark.parametrize("chances", [(0.5, 0.1), (0.9, 0.9), (0.02, 0.0)])
def test_limits_of_two_samples_cover_the_truth_as_often_as_stated(chances: tuple[float, float]) -> None:
    """Exactly: every outcome of 12 and 9 sequences, with its probability."""
    level, runs = 0.1, (12, 9)
    weights = [binom.pmf(np.arange(n + 1), n, chance) for n, chance in zip(runs, chances, strict=True)]
    covered = 0.0
    for one, other in itertools.product(range(runs[0] + 1), range(runs[1] + 1)):
        excess = excess_over_held_out(Success(hits=one, runs=12), Success(hits=other, runs=9), level=level)
        if excess.lower <= chances[0] - chances[1] <= excess.upper:
            covered += weights[0][one] * weights[1][other]
    assert covered >= 1 - level


def test_limits_of_pairs_cover_the_truth_as_often_as_stated() -> None:
    """Exactly: every table of 10 pairs that come out of the model alone, of the reference alone, or otherwise."""
    level, chances = 0.1, (0.45, 0.15, 0.4)
    law = multinomial(10, chances)
    covered = 0.0
    for gained in range(11):
        for lost in range(11 - gained):
            hit = np.arange(10) < gained
            other = (np.arange(10) >= gained) & (np.arange(10) < gained + lost)
            excess = excess_over_reference(hit, other, level=level)
            if excess.lower <= chances[0] - chances[1] <= excess.upper:
                covered += float(law.pmf([gained, lost, 10 - gained - lost]))
    assert covered >= 1 - level


def test_pairs_that_do_not_match_are_refused() -> None:
    with pytest.raises(InvalidInput, match="same ones on both"):
        excess_over_reference([True], [True, False])
    with pytest.raises(InvalidInput, match="True or False"):
        excess_over_reference([0.5], [True])
    with pytest.raises(InvalidInput, match="at least one"):
        excess_over_reference(np.zeros(0, dtype=bool), np.zeros(0, dtype=bool))
    with pytest.raises(InvalidInput, match="probability of error"):
        excess_over_reference([True], [True], level=0.99)
    for wrong in (0.99, 0.0, float("nan")):
        with pytest.raises(InvalidInput, match="probability of error"):
            excess_over_held_out(Success(hits=1, runs=2), Success(hits=1, runs=2), level=wrong)

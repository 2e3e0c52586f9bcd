"""The draws of a run: each example with its rate, independently, at the cost of the batch.

Statistical tests run on fixed seeds, so they pass always or never; each bound is one that a correct sampler with a
fresh seed would miss with probability ALARM.
"""

import copy
import pickle
import traceback
from decimal import Decimal, localcontext
from fractions import Fraction
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays
from scipy.stats import binom, chi2, poisson

from hush.errors import InvalidInput
from hush.train import sampler
from hush.train.sampler import Draws

SEED = bytes(range(32))
ALARM = 1e-6

rates_of_any_kind = arrays(
    np.float64,
    st.integers(0, 300),
    elements=st.one_of(
        st.sampled_from([0.0, 1.0, 0.5, 0.25, np.nextafter(0.5, 0), np.nextafter(1.0, 0), 1e-300, 5e-324]),
        st.floats(0, 1),
        st.integers(0, 400).map(lambda k: 0.9**k),
    ),
)


def drawn(draws: Draws, rounds: int) -> np.ndarray:
    """A row for each round, a column for each example: whether it was drawn."""
    table = np.zeros((rounds, draws.num_examples), dtype=bool)
    for index in range(rounds):
        table[index, draws.round(index)] = True
    return table


def chi_square_alarm(statistic: float, freedom: int) -> bool:
    return not chi2.ppf(ALARM / 2, freedom) < statistic < chi2.isf(ALARM / 2, freedom)


# --- inclusion


@pytest.mark.parametrize(
    "rate", [1e-3, 0.1, np.nextafter(0.25, 0), 0.25, 0.3, np.nextafter(0.5, 0), 0.5, 0.7, 1 - 1e-3]
)
def test_an_example_is_drawn_as_often_as_its_rate_says(rate: float) -> None:
    examples, rounds = 500, 1000
    total = drawn(Draws(np.full(examples, rate), seed=SEED), rounds).sum()
    assert binom.ppf(ALARM / 2, examples * rounds, rate) <= total <= binom.isf(ALARM / 2, examples * rounds, rate)


def test_many_different_rates_in_one_draw_all_hold() -> None:
    rates = np.random.default_rng(1).permutation(np.exp(np.linspace(np.log(3e-4), np.log(0.999), 3000)))
    rounds = 4000
    count = drawn(Draws(rates, seed=SEED), rounds).sum(axis=0)
    # Each example by itself, over all of them; then by tenths of the rates, where small errors add up.
    each = ALARM / 2 / rates.size
    assert ((binom.ppf(each, rounds, rates) <= count) & (count <= binom.isf(each, rounds, rates))).all()
    order = np.argsort(rates)
    statistic = 0.0
    for part in np.split(order, 10):
        variance = rounds * (rates[part] * (1 - rates[part])).sum()
        statistic += (count[part].sum() - rounds * rates[part].sum()) ** 2 / variance
    assert not chi_square_alarm(statistic, 10)


def test_no_place_in_a_block_is_favoured() -> None:
    """All 2^(k+3) places of full blocks, and those of a block that is only partly filled."""
    k, rounds = 3, 20_000
    size = 2 ** (k + 3)
    rate = 1.5 * 2.0 ** -(k + 1)
    count = drawn(Draws(np.full(3 * size + 5, rate), seed=SEED), rounds).sum(axis=0)
    statistic = float(((count - rounds * rate) ** 2).sum() / (rounds * rate * (1 - rate)))
    assert not chi_square_alarm(statistic, count.size)


@given(rates_of_any_kind, st.integers(0, 2**30))
def test_a_rate_of_0_is_never_drawn_and_a_rate_of_1_always(rates: np.ndarray, index: int) -> None:
    examples = Draws(rates, seed=SEED).round(index)
    assert np.isin(np.flatnonzero(rates == 1), examples).all()
    assert not np.isin(np.flatnonzero(rates == 0), examples).any()


@given(rates_of_any_kind, st.integers(0, 2**30))
def test_a_draw_is_sorted_distinct_and_in_range(rates: np.ndarray, index: int) -> None:
    examples = Draws(rates).round(index)
    assert examples.dtype == np.int64
    assert (np.diff(examples) > 0).all()
    assert examples.size == 0 or (examples[0] >= 0 and examples[-1] < rates.size)


def test_no_examples_and_one_example_are_fine() -> None:
    assert Draws(np.zeros(0)).round(0).tolist() == []
    assert Draws(np.zeros(3)).round(0).tolist() == []
    assert Draws(np.ones(1)).round(0).tolist() == [0]
    assert 0 < sum(Draws(np.array([0.5]), seed=SEED).round(index).size for index in range(100)) < 100


# --- independence


def test_the_size_of_a_draw_has_the_poisson_binomial_variance() -> None:
    """Any correlation among examples, within a block or across, changes it: the variances of pairs add up."""
    rates = np.exp(np.linspace(np.log(1e-3), np.log(0.9), 400))
    rounds = 20_000
    sizes = drawn(Draws(rates, seed=SEED), rounds).sum(axis=1)
    variance = (rates * (1 - rates)).sum()
    statistic = ((sizes - rates.sum()) ** 2).sum() / variance
    # The size is close enough to normal: its excess kurtosis, below 1/variance = 1/29, moves ALARM but little.
    assert not chi_square_alarm(float(statistic), rounds)


@pytest.mark.parametrize(("rate", "examples"), [(0.12, 128), (0.4, 48), (0.8, 20)])
def test_pairs_of_examples_are_independent_within_a_block_and_across_blocks(rate: float, examples: int) -> None:
    rounds = 20_000
    table = drawn(Draws(np.full(examples, rate), seed=SEED), rounds)
    centred = (table - rate) / np.sqrt(rate * (1 - rate))
    correlation = centred.T @ centred / np.sqrt(rounds)  # standard normal for each pair of independent examples
    block = np.arange(examples) >> (sampler.PLACE_BITS + int(sampler._bucket(np.array([rate]))[0]))
    together = block[:, None] == block
    upper = np.triu(np.ones_like(together), 1)
    for pairs in (upper & together, upper & ~together):
        assert pairs.any()
        assert not chi_square_alarm(float((correlation[pairs] ** 2).sum()), int(pairs.sum()))


def test_rounds_are_independent() -> None:
    rate, rounds = 0.3, 20_000
    table = drawn(Draws(np.full(30, rate), seed=SEED), rounds + 1)
    centred = (table - rate) / np.sqrt(rate * (1 - rate))
    correlation = centred[:-1].T @ centred[1:] / np.sqrt(rounds)  # each example with each one a round later
    assert not chi_square_alarm(float((correlation**2).sum()), correlation.size)


def test_seeds_are_independent_and_fresh_by_default() -> None:
    rates = np.full(2000, 0.5)
    assert not np.array_equal(Draws(rates).round(0), Draws(rates).round(0))
    one, other = drawn(Draws(rates, seed=SEED), 50), drawn(Draws(rates, seed=SEED[::-1]), 50)
    assert binom.ppf(ALARM / 2, one.size, 0.5) <= (one == other).sum() <= binom.isf(ALARM / 2, one.size, 0.5)


# --- ranks


@given(rates_of_any_kind, st.integers(0, 2**30), st.integers(1, 40))
def test_the_ranks_together_draw_what_one_process_draws(rates: np.ndarray, index: int, world: int) -> None:
    draws = Draws(rates, seed=SEED)
    parts = [draws.round(index, rank=rank, world=world) for rank in range(world)]
    together = np.concatenate(parts)
    assert np.unique(together).size == together.size
    assert np.array_equal(np.sort(together), draws.round(index))


def count_words(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    made: list[int] = []
    original = Draws._words

    def counting(self: Draws, index: int, block: np.ndarray, slot: Any) -> np.ndarray:
        made.append(2 * block.size)
        return original(self, index, block, slot)

    monkeypatch.setattr(Draws, "_words", counting)
    return made


def test_a_rank_makes_its_own_words_only(monkeypatch: pytest.MonkeyPatch) -> None:
    draws, world = Draws(np.full(200_000, 0.02), seed=SEED), 8
    made = count_words(monkeypatch)
    draws.round(0)
    whole = sum(made)
    shares = []
    for rank in range(world):
        made.clear()
        draws.round(0, rank=rank, world=world)
        shares.append(sum(made))
    assert sum(shares) == whole
    assert max(shares) < 1.2 * whole / world


# --- cost


@pytest.mark.parametrize("examples", [10**4, 10**6, 10**7])
@pytest.mark.parametrize("spread", [1.0, 1e6], ids=["equal rates", "rates over six decades"])
def test_a_draw_makes_words_for_the_batch_and_not_for_the_data(
    examples: int, spread: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    batch = 500
    rates = np.exp(np.linspace(0, -np.log(spread), examples))
    rates *= batch / rates.sum()
    rates.flags.writeable = False
    draws = Draws(rates, seed=SEED)
    made = count_words(monkeypatch)
    sizes = [draws.round(index).size for index in range(10)]
    # At most batch/4 + 60 blocks, each with a pair of words for its hits and 45/4 more pairs on average.
    blocks = batch / 4 + sampler.ZERO_BUCKET
    assert draws.num_blocks <= blocks
    assert sum(made) <= 2 * (10 * blocks + poisson.isf(ALARM, 10 * blocks * 45 / 4))
    assert poisson.ppf(ALARM / 2, 10 * batch) <= sum(sizes) <= poisson.isf(ALARM / 2, 10 * batch)


def test_equal_rates_need_no_table_and_read_only_rates_no_copy() -> None:
    rates = np.full(1000, 0.01)
    rates.flags.writeable = False
    draws = Draws(rates)
    assert draws._Draws__order is None  # pyright: ignore[reportAttributeAccessIssue]
    assert draws._Draws__rates is rates  # pyright: ignore[reportAttributeAccessIssue]


def test_changing_the_callers_rates_changes_nothing() -> None:
    rates = np.ones(5)
    draws = Draws(rates)
    rates[:] = 0
    assert draws.round(0).tolist() == [0, 1, 2, 3, 4]


# --- rounding: exact arithmetic against what the code compares words with


def test_hits_of_a_block_are_poisson_and_never_more() -> None:
    thresholds = [int(threshold) for threshold in sampler._POISSON]
    assert thresholds == sorted(set(thresholds))
    mean = 45 / 4
    for count, threshold in enumerate(thresholds):
        assert threshold / 2**64 == pytest.approx(poisson.cdf(count, mean), rel=1e-13)
        assert (2**64 - threshold) / 2**64 == pytest.approx(poisson.sf(count, mean), rel=1e-9, abs=2.0**-63)
    # The expected number falls short of the mean by the rounding alone: at most 2^-64 a threshold, and the cut tail.
    expected = Fraction(sum(2**64 - threshold for threshold in thresholds), 2**64)
    assert 0 < Fraction(45, 4) - expected < Fraction(2 * len(thresholds), 2**64)


@given(st.one_of(st.floats(2.0**-60, 1), st.integers(1, 59).map(lambda k: 2.0**-k), st.floats(0.4, 0.5)))
@settings(max_examples=300)
def test_the_probability_that_a_hit_counts_is_just_below_the_exact_one(rate: float) -> None:
    bucket = sampler._bucket(np.array([rate]))
    share = Fraction(int(sampler._threshold(np.array([rate]), bucket)[0]), 2**53)
    assert 0 <= share <= 1
    if bucket[0] == sampler.DENSE_BUCKET:
        assert share == Fraction(rate)
        return
    assert 2.0 ** -(int(bucket[0]) + 1) <= rate < 2.0 ** -int(bucket[0])
    with localcontext(prec=100):
        exact = Fraction(-(1 - Decimal(rate)).ln()) * 2 ** int(bucket[0]) * 32 / 45
    assert exact * (1 - Fraction(1, 2**48)) <= share <= exact


@given(st.floats(0, 2.0**-59))
def test_tiny_rates_are_rounded_down(rate: float) -> None:
    bucket = sampler._bucket(np.array([rate]))
    if rate == 0:
        assert bucket[0] == sampler.ZERO_BUCKET
        return
    share = Fraction(int(sampler._threshold(np.array([rate]), np.minimum(bucket, sampler.LAST_BUCKET))[0]), 2**53)
    # -log(1 - rate) < rate (1 + rate), so this is the rate of the hits that count against what the example may have.
    assert share * Fraction(45, 32) / 2**sampler.LAST_BUCKET <= Fraction(rate) * (1 + Fraction(rate))


# --- state and secrecy


@given(rates_of_any_kind, st.integers(0, 2**30))
def test_a_resumed_run_repeats_its_draws(rates: np.ndarray, index: int) -> None:
    draws = Draws(rates)
    again = Draws.from_state(rates, draws.state())
    assert np.array_equal(draws.round(index), again.round(index))


def test_the_seed_never_shows() -> None:
    seed = bytes([7, 77, 177]) * 10 + b"xy"
    draws = Draws(np.full(4, 0.5), seed=seed)
    for shown in (repr(draws), str(draws), f"{[draws]}"):
        assert shown.strip("[]") == "Draws(4 examples)"
    with pytest.raises(TypeError, match="not pickled"):
        pickle.dumps(draws)
    assert not hasattr(draws, "__dict__")
    assert copy.deepcopy(draws) is copy.copy(draws) is draws
    with pytest.raises(InvalidInput) as caught:
        Draws(np.full(4, 0.5), seed=seed + b"?")
    assert seed.hex()[:6] not in str(caught.value)
    with pytest.raises(InvalidInput) as caught:
        Draws.from_state(np.full(4, 0.5), draws.state() | {"seed": "secret-not-hex"})
    assert "secret-not-hex" not in "".join(traceback.format_exception(caught.value)).split("InvalidInput", 1)[1]


@pytest.mark.parametrize(
    "state",
    [{}, {"kind": "hush draws 0"}, {"kind": "hush draws 1", "num_examples": 4}, None],
)
def test_a_foreign_state_is_refused(state: Any) -> None:
    with pytest.raises(InvalidInput, match="state"):
        Draws.from_state(np.full(4, 0.5), state)


def test_a_state_of_other_data_is_refused() -> None:
    with pytest.raises(InvalidInput, match="4 examples but there are 5 rates"):
        Draws.from_state(np.full(5, 0.5), Draws(np.full(4, 0.5)).state())


@pytest.mark.parametrize("rates", [[0.5, np.nan], [-0.1], [1.1], [[0.5]], ["a"]])
def test_rates_that_are_no_probabilities_are_refused(rates: Any) -> None:
    with pytest.raises(InvalidInput, match="rates"):
        Draws(rates)


@pytest.mark.parametrize("seed", [b"", b"short", "x" * 32, 7, bytearray(32)])
def test_a_seed_of_another_kind_is_refused(seed: Any) -> None:
    with pytest.raises(InvalidInput, match="seed"):
        Draws([0.5], seed=seed)


@pytest.mark.parametrize(
    "arguments", [{"index": -1}, {"index": 0.5}, {"rank": 1}, {"rank": -1}, {"world": 0}, {"index": 2**40}]
)
def test_rounds_and_ranks_out_of_range_are_refused(arguments: dict[str, Any]) -> None:
    with pytest.raises(InvalidInput, match=next(iter(arguments))):
        Draws([0.5]).round(**{"index": 0, **arguments})

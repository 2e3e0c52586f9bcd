"""Intervals, the choice and the file of a rehearsal."""

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from hush.errors import InvalidInput
from hush.rehearse.outcome import (
    Arm,
    ArmForecast,
    Difference,
    Interval,
    Outcome,
    Reached,
    Tried,
    decide,
    difference,
    forecast_interval,
    skips_private_rounds,
)


def at(expected: float, half: float = 0.01) -> Interval:
    return Interval(expected=expected, low=expected - half, high=expected + half)


def forecasts(ordinary: Mapping[Arm, float], like: Mapping[Arm, float]) -> dict[Arm, ArmForecast]:
    return {arm: ArmForecast(arm=arm, ordinary=at(ordinary[arm]), like=at(like[arm])) for arm in ordinary}


def differences(arms: Mapping[Arm, ArmForecast], half: float) -> list[Difference]:
    pairs: list[tuple[Arm, Arm]] = [("hush", "dropping"), ("hush", "redacting"), ("redacting", "dropping")]
    rows = list[Difference]()
    for arm, other in pairs:
        ordinary = arms[arm].ordinary.expected - arms[other].ordinary.expected
        like = arms[arm].like.expected - arms[other].like.expected
        rows.append(Difference(arm=arm, other=other, content="ordinary", difference=at(ordinary, half)))
        rows.append(Difference(arm=arm, other=other, content="like", difference=at(like, half)))
    return rows


def losses(dropping: float, redacting: float, hush: float) -> dict[Arm, float]:
    return {"dropping": dropping, "redacting": redacting, "hush": hush}


CASES = [
    # ordinary, like, half width of differences, slotted -> choice, gains
    (losses(3.0, 3.0, 3.0), losses(5.0, 5.0, 4.0), 0.1, True, "hush", True),
    (losses(3.0, 3.0, 3.0), losses(5.0, 5.0, 4.95), 0.1, True, "redacting", False),  # within the noise of few repeats
    (losses(3.0, 3.0, 3.1), losses(5.0, 5.0, 4.0), 0.01, True, "redacting", False),  # ordinary content suffers
    (losses(3.0, 3.0, 2.5), losses(5.0, 5.0, 4.6), 0.05, True, "redacting", False),  # the stream gains it everywhere
    (losses(3.0, 2.9, 2.9), losses(5.0, 4.5, 4.5), 0.01, True, "redacting", False),
    (losses(2.9, 3.0, 3.0), losses(4.5, 5.0, 5.0), 0.01, True, "dropping", False),  # blanks harm
    (losses(2.9, 3.0, 3.0), losses(4.5, 5.0, 5.0), 0.8, True, "redacting", False),  # by chance, perhaps
    (losses(3.0, 2.9, 3.0), losses(5.0, 4.0, 4.5), 0.01, False, "redacting", True),  # shows more than may be shown
    (losses(3.0, 3.0, 3.0), losses(5.0, 4.6, 4.5), 0.01, False, "hush", True),
    (losses(3.0, 3.0, 3.0), losses(5.0, 5.0, 5.0), 0.01, False, "dropping", False),
]


@pytest.mark.parametrize(("ordinary", "like", "half", "slotted", "choice", "gains"), CASES)
def test_the_choice(
    ordinary: dict[Arm, float], like: dict[Arm, float], half: float, slotted: bool, choice: Arm, gains: bool
) -> None:
    arms = forecasts(ordinary, like)
    assert decide(arms, differences(arms, half), like_share=0.1, slotted=slotted) == (choice, gains)
    outcome = made(arms, choice=choice, gains=gains, slotted=slotted)
    assert skips_private_rounds(outcome) is not gains
    assert (f"Take {choice}" if choice == "hush" else choice) in outcome.sentence
    assert outcome.sentence.startswith("hush is worth it here") is (gains or choice == "hush")


def made(arms: Mapping[Arm, ArmForecast], **changes: object) -> Outcome:
    outcome = Outcome(
        choice="dropping",
        gains=False,
        arms=tuple(arms.values()),
        differences=tuple(differences(arms, 0.1)),
        before={"ordinary": 5.0, "like": 5.5},
        patch={"plan": {"clip_norm": 0.5}, "training": {"lora": {"rank": 4}}},
        tried=(Tried(settings={}, ordinary=3.0, like=4.0), Tried(settings={"plan": {}}, ordinary=None, like=None)),
        repeats=4,
        like_share=0.1,
        scale="a tenth",
        slotted=True,
        documents=100,
        available=200,
        notes=("a note",),
    )
    return replace(outcome, **changes)  # pyright: ignore[reportArgumentType]


def test_an_outcome_is_its_file(tmp_path: Path) -> None:
    outcome = made(forecasts(losses(3, 3, 3), losses(5, 5, 4)))
    outcome.store(tmp_path / "rehearsal.json")
    assert Outcome.load(tmp_path / "rehearsal.json") == outcome
    (tmp_path / "rehearsal.json").write_text("{}")
    with pytest.raises(InvalidInput, match="not the outcome of a rehearsal"):
        Outcome.load(tmp_path / "rehearsal.json")


@pytest.mark.parametrize("shared", [False, True])
@pytest.mark.parametrize("repeats", [2, 4])
def test_nine_tenths_of_later_trainings_fall_into_the_interval(repeats: int, shared: bool) -> None:
    """Trainings that differ by 0.1, judged on 50 examples that differ by 1: on new ones each time, or on the same."""
    rng = np.random.default_rng(repeats)
    covered = 0
    for _ in range(2000):
        same = rng.normal(0, 1.0, 50)

        def training(judged: np.ndarray) -> Reached:
            examples = 3.0 + rng.normal(0, 0.1) + judged
            return Reached(mean=float(examples.mean()), deviation=float(examples.std()), count=50)

        seen = [training(same if shared else rng.normal(0, 1.0, 50)) for _ in range(repeats)]
        interval = forecast_interval(seen, pooled_variance=0.0, held_out=50 if shared else None)
        covered += interval.low <= training(rng.normal(0, 1.0, 50)).mean <= interval.high
    assert 0.88 < covered / 2000 <= (1 if shared else 0.92)  # what is shared may only widen it


@given(st.lists(st.floats(1, 5), min_size=2, max_size=6), st.floats(-1, 1))
def test_a_difference_is_free_of_what_repeats_share(means: list[float], gap: float) -> None:
    first = [Reached(mean=mean + gap, deviation=1.0, count=9) for mean in means]
    second = [Reached(mean=mean, deviation=1.0, count=9) for mean in means]
    interval = difference(first, second)
    assert interval.expected == pytest.approx(gap, abs=1e-9)
    assert interval.high - interval.low < 1e-6


@given(st.lists(st.floats(1, 5), min_size=2, max_size=6), st.floats(0, 1), st.integers(1, 1000))
def test_more_variance_and_fewer_held_out_examples_widen_an_interval(
    means: list[float], variance: float, held_out: int
) -> None:
    repeats = [Reached(mean=mean, deviation=1.0, count=9) for mean in means]
    plain = forecast_interval(repeats, pooled_variance=0.0, held_out=2000)
    wider = forecast_interval(repeats, pooled_variance=variance, held_out=held_out)
    assert wider.low <= plain.low <= plain.expected == wider.expected <= plain.high <= wider.high


def test_where_no_example_is_held_out_the_interval_is_for_the_loss_on_all_of_them() -> None:
    repeats = [Reached(mean=2.0 + 0.01 * number, deviation=0.5, count=100) for number in range(4)]
    none, many = (forecast_interval(repeats, pooled_variance=0.0, held_out=number) for number in (0, 10**9))
    assert none.low == pytest.approx(many.low)
    assert none.high == pytest.approx(many.high)
    assert none.high - none.low < 0.5  # not as if the real loss were measured on a single example

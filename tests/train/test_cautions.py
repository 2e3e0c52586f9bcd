"""A training that is sound and learns nothing is said to: before its first round if that is known, else at its end."""

import math
from typing import Any

import numpy as np
import pytest
import torch
from models import LENGTH
from reference import small_plan

from hush.errors import InvalidInput
from hush.train.cautions import (
    cautions_before,
    owner_cautions,
    refuse_unlabelled,
    release_cautions,
    signal_over_noise,
)
from hush.train.language_models import IGNORED, TokenizedTexts
from hush.train.run_folder import RoundRecord
from hush.train.scores import LOSS

PLAN = small_plan()


def record(norms: list[float], *, losses: float = 1.0, clip_norm: float = 1.0) -> RoundRecord:
    values = np.array(norms)
    settings: Any = {"clip_norm": clip_norm, "signal_to_noise": None, "seconds": 0.0}
    return RoundRecord.of(1, np.full(values.size, losses), values, **settings)


def test_the_signal_is_what_gradients_that_all_agree_would_reach_over_the_noise() -> None:
    rng = np.random.default_rng(0)
    parameters = 400
    noise = PLAN.training_noise_multiplier * rng.standard_normal((2000, PLAN.rounds, parameters)).sum(1)
    agreed = PLAN.rounds * PLAN.batch_size
    measured = agreed / np.sqrt((noise**2).sum(1).mean())
    assert signal_over_noise(PLAN, parameters) == pytest.approx(measured, rel=0.01)
    assert signal_over_noise(small_plan(noise_scale=1e-300), 10) > 1e290


def test_noise_that_drowns_everything_is_said_before_training() -> None:
    enough = math.floor((PLAN.batch_size / PLAN.training_noise_multiplier) ** 2 * PLAN.rounds)
    assert cautions_before(PLAN, enough) == []
    (said,) = cautions_before(PLAN, 100 * enough)
    assert "at most 0.11 of their noise" in said
    assert "Train fewer parameters" in said


@pytest.mark.parametrize(
    "data",
    [
        TokenizedTexts([[1, 2], [3, 4, 5]], [[IGNORED] * 2, [IGNORED] * 3]),
        TokenizedTexts([[1], [], [2]]),
        [{"input_ids": [1, 2], "labels": [IGNORED, IGNORED]}] * 500,
    ],
    ids=["tokenised", "too short", "rows"],
)
def test_data_without_a_label_are_refused(data: Any) -> None:
    with pytest.raises(InvalidInput, match="no token has a label"):
        refuse_unlabelled(data)


@pytest.mark.parametrize(
    "data",
    [
        TokenizedTexts([[1, 2], [3]], [[IGNORED, 2], [IGNORED]]),
        TokenizedTexts([[1, 2]]),
        TokenizedTexts([]),
        [{"input_ids": [1, 2]}] * 3,
        [{"input_ids": [1, 2], "labels": [IGNORED, 2]}] * 3,
        [{"pixels": [0.0], "labels": 0}] * 3,
        ["a text"] * LENGTH,
    ],
    ids=str,
)
def test_data_with_labels_or_whose_collator_adds_them_pass(data: Any) -> None:
    refuse_unlabelled(data)


def test_divergence_is_told_from_what_is_released() -> None:
    finite, broken = torch.ones(3), torch.tensor([1.0, torch.nan])
    assert release_cautions([], [finite], name=LOSS) == []
    assert release_cautions([{LOSS: 5.0}, {LOSS: 4.0}], [finite], name=LOSS) == []
    assert "rose from 5 to 6.5" in release_cautions([{LOSS: 5.0}, {}, {LOSS: 6.5}], [finite], name=LOSS)[0]
    assert "diverged" in release_cautions([{LOSS: 5.0}], [finite, broken], name=LOSS)[0]


@pytest.mark.parametrize(
    ("norms", "said"),
    [
        ([50.0, 60.0, 70.0], "Every gradient was clipped"),
        ([0.1, 0.2], "No gradient was clipped"),
        ([0.0, 0.0], "Every gradient was 0"),
        ([math.nan, math.nan, 2.0], "not finite"),
        ([0.5, 2.0], ""),
        ([2.0, 3.0], ""),  # clipped, and not hard: common and fine
        ([], ""),
    ],
)
def test_what_clipping_did_is_told_to_the_owner(norms: list[float], said: str) -> None:
    found = owner_cautions([record(norms)] * 3, clip_norm=1.0)
    assert [said in line for line in found] == [True] * bool(said)


def test_a_loss_that_rises_is_told_to_the_owner() -> None:
    falling = [record([0.5, 2.0], losses=loss) for loss in np.linspace(5, 4, 20)]
    assert owner_cautions(falling, clip_norm=1.0) == []
    (said,) = owner_cautions(falling[::-1], clip_norm=1.0)
    assert "rose from 4.026 to 4.974" in said

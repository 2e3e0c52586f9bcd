"""The audit finds out a trainer that protects less than promised, vectorised or real, and spares an honest one."""

from collections.abc import Callable

import pytest
import torch
from broken_trainers import (
    correct,
    half_the_noise,
    label_plan,
    label_scenario,
    noise_scaled,
    plan_scenario,
    rates_scaled,
    real_runs,
    seeded,
    twice_the_rate,
    without_noise,
)

from hush.audit.reconstruction import Scenario, Transcripts, attack_runs, train_small_runs
from hush.audit.statistics import Success, exceeded

Trainer = Callable[[Scenario, int, torch.Generator], Transcripts]

LEVEL = 0.01


@pytest.mark.parametrize("train", [without_noise, half_the_noise, twice_the_rate])
def test_a_broken_vectorised_trainer_is_caught(train: Trainer) -> None:
    scenario = label_scenario()
    assert attack_runs(scenario, train(scenario, 300, seeded(11))).lower(LEVEL / 4) > scenario.certified


def test_an_example_missing_from_the_incidence_is_caught() -> None:
    """The promise counts one example with the secret; there are two."""
    promised, true = label_scenario(holders=1), label_scenario(holders=2)
    found = attack_runs(true, correct(true, 300, seeded(12)))
    assert found.lower(LEVEL / 4) > promised.certified
    assert found.lower(LEVEL / 4) <= true.certified


def audits(count: int, runs: int, train: Trainer) -> list[Success]:
    scenario = label_scenario(rounds=5)
    return [attack_runs(scenario, train(scenario, runs, seeded(1000 + audit))) for audit in range(count)]


def test_a_correct_trainer_is_not_flagged_in_20_repeated_audits() -> None:
    certified = label_scenario(rounds=5).certified
    honest = audits(20, 300, correct)
    assert not any(success.lower(LEVEL) > certified for success in honest)
    assert not exceeded(honest, [certified] * 20, level=LEVEL).any()
    assert exceeded([*honest, *audits(1, 300, half_the_noise)], [certified] * 21, level=LEVEL).tolist()[-1]


@pytest.mark.slow
def test_false_alarms_and_misses_are_rare_over_many_audits() -> None:
    certified = label_scenario(rounds=5).certified
    assert sum(success.lower(LEVEL) > certified for success in audits(200, 300, correct)) <= 6
    for broken in (without_noise, half_the_noise, twice_the_rate):
        assert all(success.lower(LEVEL) > certified for success in audits(50, 300, broken))


@pytest.mark.parametrize("fault", ["none", "no noise", "half the noise", "twice the rate", "missing incidence"])
def test_the_real_trainer_is_caught_exactly_when_it_is_broken(fault: str, monkeypatch: pytest.MonkeyPatch) -> None:
    plan = label_plan()
    scenario = plan_scenario(plan, holders=2 if fault == "missing incidence" else 1)
    runs = 40
    if fault in ("no noise", "half the noise"):
        with noise_scaled(monkeypatch, 0.0 if fault == "no noise" else 0.5):
            transcripts = real_runs(plan, scenario, runs)
    elif fault == "twice the rate":
        with rates_scaled(monkeypatch, 2.0):
            transcripts = real_runs(plan, scenario, runs)
    else:
        transcripts = real_runs(plan, scenario, runs)
    found = attack_runs(scenario, transcripts)
    assert (found.lower(LEVEL / 5) > plan.posterior[0, 0]) == (fault != "none")
    assert found.lower(LEVEL) > plan.prior[0, 0]  # the attack works in any case


@pytest.mark.slow
def test_the_real_trainer_and_the_vectorised_one_are_attacked_alike() -> None:
    """Two implementations of the same training: success rates agree."""
    plan = label_plan()
    scenario = plan_scenario(plan)
    real = attack_runs(scenario, real_runs(plan, scenario, 600, seed=1))
    vectorised = attack_runs(scenario, train_small_runs(scenario, runs=2000, generator=seeded(13)))
    assert real.lower(1e-3) < vectorised.upper(1e-3)
    assert vectorised.lower(1e-3) < real.upper(1e-3)
    assert real.lower(LEVEL) <= plan.posterior[0, 0]

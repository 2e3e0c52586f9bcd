"""The same signal over noise on a smaller stage."""

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from planted import LITTLE_NOISE, content_of, corpus, planned

from hush.errors import InfeasiblePlan
from hush.rehearse.cast import choose_cast, split_documents
from hush.rehearse.scaled import MIN_BATCH, Scale, described, replanned, scale_for, stage_plan

DATA = corpus()
PLAN = planned(DATA, slotted=True, batch_size=32, rounds=500, **LITTLE_NOISE)
CONTENT = content_of(DATA, PLAN)
SPLIT = split_documents(CONTENT, seed=0)
CAST = choose_cast(PLAN, CONTENT, SPLIT.train, SPLIT.search, roles="words", seed=(0, 0))


def signal(plan: object) -> float:
    """B·√T/σ of what training adds."""
    from hush.plan import Plan

    assert isinstance(plan, Plan)
    return plan.batch_size * plan.rounds**0.5 / plan.training_noise_multiplier


@given(st.floats(0, 2))
@settings(max_examples=30)
def test_the_signal_budget_is_that_of_the_plan_at_every_scale(work: float) -> None:
    scale = scale_for(PLAN, work)
    stage = stage_plan(PLAN, CAST, scale).plan
    assert signal(stage) == pytest.approx(signal(PLAN), rel=0.03)  # rounds are whole
    if scale.rounds == 1:
        assert stage.training_noise_multiplier / stage.batch_size == pytest.approx(
            PLAN.noise_multiplier / PLAN.batch_size
        )
    else:
        assert scale.batch * PLAN.batch_size == pytest.approx(MIN_BATCH)
    assert stage.rates.max() <= 1
    assert stage.rates[CAST.siblings].max() == stage.rates[CAST.ordinary].max() == 0


@given(st.floats(1e-6, 1))
def test_a_scale_costs_what_was_asked_or_the_least_there_is(work: float) -> None:
    scale = scale_for(PLAN, work)
    assert scale.batch * scale.rounds >= work * (1 - 1e-9)
    least = scale_for(PLAN, 0.0)
    assert scale.batch * scale.rounds == pytest.approx(max(work, least.batch * least.rounds))


def test_a_stage_certifies_nothing() -> None:
    for scale in (Scale(batch=1.0, rounds=1.0), Scale(batch=0.25, rounds=0.5)):
        stage = stage_plan(PLAN, CAST, scale)
        assert stage.plan.certificate.marks
        assert stage.redacting.certificate.marks


def test_the_learning_rate_makes_up_for_rounds_that_are_cut() -> None:
    """Steps of AdamW keep their size, so the way they go keeps its ratio to noise; those of SGD shrink with it."""
    scale = Scale(batch=1.0, rounds=0.25)
    assert scale.learning_rate_factor("adamw") == pytest.approx(2.0)
    assert scale.learning_rate_factor("sgd") == pytest.approx(4.0)
    assert Scale(batch=0.1, rounds=1.0).learning_rate_factor("adamw") == 1.0


def test_a_stage_without_slots_keeps_whole_examples_secret() -> None:
    whole = planned(DATA, slotted=False, **LITTLE_NOISE)
    stage = stage_plan(whole, CAST, Scale(batch=1.0, rounds=1.0))
    assert stage.plan.slots is None
    assert stage.plan.draws_secrets_only
    assert stage.redacting.slots == CAST.spans.slots


def test_a_secret_without_any_weight_cannot_be_rehearsed() -> None:
    with pytest.raises(InfeasiblePlan, match="keeps any weight"):
        stage_plan(PLAN, replace(CAST, weight_N=np.zeros_like(CAST.weight_N)), Scale(batch=1.0, rounds=1.0))


def test_other_settings_give_the_plan_that_they_would_have() -> None:
    assert replanned(PLAN, batch_size=32, rounds=500, keep=None) is PLAN
    other = replanned(PLAN, batch_size=16, rounds=1000, keep=0.5)
    alone = planned(DATA, slotted=True, batch_size=16, rounds=1000, keep=0.5, **LITTLE_NOISE)
    assert other.noise_multiplier == alone.noise_multiplier
    assert np.array_equal(other.weights, alone.weights)


def test_a_scale_in_words() -> None:
    assert described(Scale(batch=1.0, rounds=1.0)) == "the plan's own batch and rounds"
    assert described(Scale(batch=0.5, rounds=1.0)) == "50 % of the batch, at the same signal over noise"
    assert "10 % of the rounds" in described(Scale(batch=0.5, rounds=0.1))

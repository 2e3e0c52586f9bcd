"""What is said before training: true of the plan, of the data and of the remedies that it names."""

import json
import math
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from plan_instances import graph, office, some_slots

import hush
from hush.accounting.signal import HOPELESS
from hush.incidence import Incidence
from hush.plan.make import make_plan_holding_out
from hush.plan.signal import Outlook, plan_budget, remaining, text_shares
from hush.slots import slots_of_spans


def common(*, batch_size: float = 10, keep: float = 1.0, ceiling: float = 1e-3) -> hush.Plan:
    """Three secrets in many examples and several in a few."""
    incidence = graph(np.random.default_rng(2), 200, [60, 40, 30, 5, 4, 3, 2, 1])
    return hush.make_plan(incidence, prior=1e-8, ceiling=ceiling, batch_size=batch_size, rounds=100, keep=keep)


def test_the_signal_counts_private_examples_alone(plan: hush.Plan) -> None:
    bearing = plan.incidence.secrets_per_example > 0
    budget = plan_budget(plan)
    assert budget.private_batch == pytest.approx(plan.rates[bearing].sum())
    expected = plan.rates[bearing].sum() * math.sqrt(plan.rounds) / plan.noise_multiplier
    assert budget.signal == pytest.approx(expected)
    # Held-out examples, and examples that with slots are not drawn, change nothing.
    free = np.flatnonzero(~bearing)[:4]
    instance = office()
    slots = some_slots(np.random.default_rng(0), instance.incidence)
    scoped = make_plan_holding_out(instance.incidence, free, **instance.promises, batch_size=12, slots=slots)
    assert plan_budget(scoped).private_batch == pytest.approx(12)


def test_a_simulation_has_the_signal_of_the_noise_that_it_adds(plan: hush.Plan) -> None:
    quiet = replace(plan, noise_scale=0.1)
    assert plan_budget(quiet).signal == pytest.approx(10 * plan_budget(plan).signal)


@pytest.mark.parametrize("keep", [1.0, 0.6])
def test_a_batch_at_the_elbow_has_the_forecast_signal_when_it_is_planned(keep: float) -> None:
    budget = plan_budget(common(keep=keep))
    at_elbow = plan_budget(common(keep=keep, batch_size=budget.elbow))
    assert at_elbow.signal == pytest.approx(budget.at_elbow, rel=0.08)
    assert plan_budget(common(keep=keep, batch_size=3 * budget.elbow)).signal <= 1.1 * at_elbow.signal


@settings(max_examples=20, deadline=None)
@given(st.integers(0, 10_000))
def test_what_is_left_is_counted_over_all_texts(seed: int) -> None:
    rng = np.random.default_rng(seed)
    incidence = graph(rng, 30, [4, 3, 2])
    characters_N = rng.integers(20, 90, 30)
    secret_E = np.repeat(np.arange(3), incidence.examples_per_secret)
    covered = secret_E < 2  # the third secret covers whole examples
    example, secret = incidence.example_of_entry[covered], secret_E[covered]
    spans = slots_of_spans(
        incidence, ["names"], example=example, begin=secret * 8, end=secret * 8 + 5,
        rule=np.zeros(len(example), dtype=int), secret=secret,
    )  # fmt: skip
    whole = set(incidence.examples_of(2).tolist())
    bearing = set(incidence.example_of_entry.tolist())
    total = characters_N.sum()
    hidden = sum(
        int(characters_N[i]) if i in whole else 5 * sum(i in incidence.examples_of(j) for j in range(2))
        for i in bearing
    )
    shares = text_shares(incidence, characters_N, spans)
    assert shares.dropping == pytest.approx(sum(int(characters_N[i]) for i in range(30) if i not in bearing) / total)
    assert shares.redacting is not None
    assert shares.redacting == pytest.approx(1 - hidden / total)
    dropping, redacting = remaining(incidence, spans.slots, texts=shares)
    assert (dropping.examples, redacting.examples) == (30 - len(bearing), 30 - len(whole))
    assert text_shares(incidence, characters_N).redacting is None


def test_hopeless_is_said_with_remedies_that_hold() -> None:
    plan = common(batch_size=1)
    signal = plan_budget(plan).signal
    parameters = math.ceil((signal / HOPELESS) ** 2 * 1.1)
    outlook = Outlook.of_plan(plan, parameters=parameters)
    assert outlook.is_hopeless
    keep, batch, ceiling, without = outlook.remedies
    names = ("keep", "batch_size", "ceiling", "without_noise")
    assert (keep.name, batch.name, ceiling.name, without.name) == names
    assert keep.signal == pytest.approx(plan_budget(common(batch_size=1, keep=0.5)).signal, rel=0.15)
    assert batch.signal == pytest.approx(plan_budget(common(batch_size=plan_budget(plan).elbow)).signal, rel=0.08)
    assert ceiling.signal == pytest.approx(plan_budget(common(batch_size=1, ceiling=1e-2)).signal, rel=0.08)
    said = outlook.sentences()[-1]
    assert said.startswith("Hopeless")
    free = int((plan.incidence.secrets_per_example == 0).sum())
    for words in ("keep 50 %", "the elbow", "ceilings 10 times", f"leaves {free} examples", "hide spans"):
        assert words in said
    assert not Outlook.of_plan(plan, parameters=parameters // 2).is_hopeless
    assert not any(each.startswith("Hopeless") for each in Outlook.of_plan(plan, parameters=1000).sentences())
    beyond = Outlook.of_plan(common(), parameters=parameters)  # a larger batch would not help, and is not offered
    assert [each.name for each in beyond.remedies] == ["keep", "ceiling", "without_noise"]
    json.dumps(outlook.record(), allow_nan=False)


def test_what_would_not_raise_the_signal_is_no_remedy() -> None:
    """One secret in all examples with a secret: less weight on them all is less of the same signal over the noise."""
    graph = Incidence.from_pairs(range(40), [0] * 40, num_examples=400, num_secrets=1)
    plan = hush.make_plan(graph, prior=0.01, ceiling=0.1, batch_size=20, rounds=100, capacity="none", draw="secrets")
    outlook = Outlook.of_plan(plan, parameters=10**8)
    assert outlook.is_hopeless
    ceiling, without = outlook.remedies
    assert (ceiling.name, without.name) == ("ceiling", "without_noise")
    assert "up to 10 times as high, at most 0.5" in ceiling.text
    assert ceiling.signal is not None
    assert ceiling.signal > 1.1 * outlook.budget.signal


def test_every_line_says_that_it_is_a_forecast_and_for_how_large_a_model() -> None:
    plan = common()
    first, second, *_ = Outlook.of_plan(plan).sentences()
    assert "a forecast, not a bound" in first
    largest = (plan_budget(plan).signal / HOPELESS) ** 2
    assert f"{largest / 1e6:,.3g} million" in second or f"{largest / 1e3:,.3g} thousand" in second
    assert Outlook.of_plan(plan).record()["is_bound"] is False


def test_a_plan_without_secrets_has_nothing_to_say() -> None:
    empty = hush.make_plan(
        Incidence.from_pairs([], [], num_examples=9, num_secrets=1), prior=0.1, ceiling=0.2, batch_size=2, rounds=3
    )
    outlook = Outlook.of_plan(empty, parameters=10**9)
    assert outlook.sentences() == []
    assert not outlook.is_hopeless
    json.dumps(outlook.record(), allow_nan=False)


def test_several_batches_and_rounds_are_compared_and_the_elbow_marks_where_more_buys_nothing() -> None:
    incidence = graph(np.random.default_rng(2), 200, [30, 20, 10])
    compared = hush.frontiers(
        incidence, prior=1e-8, ceiling=1e-3, batch_size=[5, 20, 80], rounds=[50, 100], settings=[1e6]
    )
    assert [(made.rounds, made.batch_size) for made in compared] == [
        (50, 5), (50, 20), (50, 80), (100, 5), (100, 20), (100, 80),
    ]  # fmt: skip
    for small, large in ((compared[1], compared[2]), (compared[4], compared[5])):
        assert small.batch_size > small.rows[0].elbow
        assert large.rows[0].signal < 1.1 * small.rows[0].signal
    assert compared[1].rows[0].signal > 1.1 * compared[0].rows[0].signal
    alone = hush.frontier(incidence, prior=1e-8, ceiling=1e-3, batch_size=20, rounds=50, settings=[1e6])
    assert alone == compared[1]
    assert json.loads(json.dumps(alone.records(), allow_nan=False))[0]["batch_size"] == 20
    with pytest.raises(hush.InvalidInput, match="at least one batch size"):
        hush.frontiers(incidence, prior=1e-8, ceiling=1e-3, batch_size=[], rounds=[50])

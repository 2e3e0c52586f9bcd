"""Where no plan exists, the error says what would do, and it does."""

import re
from typing import Any

import numpy as np
import pytest
from plan_instances import graph, office

import hush


def refused(kind: type[Exception] = hush.InfeasiblePlan, /, **arguments: Any) -> str:
    instance = office()
    settings = {**instance.promises, "batch_size": 12, **arguments}
    with pytest.raises(kind) as caught:
        hush.make_plan(instance.incidence, **settings)
    return str(caught.value)


def number_after(words: str, message: str) -> float:
    found = re.search(re.escape(words) + r" ([\d.e+-]*\d)", message)
    assert found is not None, message
    return float(found[1])


def test_too_little_noise_names_the_least_noise_and_the_largest_batch_and_both_work() -> None:
    instance = office()
    message = refused(batch_size=60, noise_multiplier=0.6)
    noise, batch = number_after("raise it to at least", message), number_after("lower batch_size to at most", message)
    hush.make_plan(instance.incidence, **instance.promises, batch_size=60, noise_multiplier=noise)
    hush.make_plan(instance.incidence, **instance.promises, batch_size=batch, noise_multiplier=0.6)
    refused(batch_size=60, noise_multiplier=0.98 * noise)


def test_the_least_noise_of_a_frontier_is_named_too() -> None:
    instance = office()
    with pytest.raises(hush.InfeasiblePlan, match="raise it to at least"):
        hush.frontier(instance.incidence, **instance.promises, batch_size=60, settings=[0.6])


def test_a_secret_in_every_example_is_named_with_what_its_absence_would_buy() -> None:
    incidence = graph(np.random.default_rng(0), 30, [30, 2, 2])
    arguments: Any = {"prior": 1e-6, "ceiling": 1e-3, "batch_size": 10, "rounds": 50}
    with pytest.raises(hush.InfeasiblePlan, match="everywhere alone forces it") as caught:
        hush.make_plan(incidence, **arguments, noise_multiplier=1.0, secret_ids=["everywhere", "a", "b"])
    assert number_after("a noise of", str(caught.value)) < number_after("raise it to at least", str(caught.value))


@pytest.mark.parametrize("capacity", [{"capacity": "none"}, {"capacity": "paper", "strength": 40.0}])
def test_noise_below_need_names_who_would_break_and_the_noise_that_works(capacity: dict[str, Any]) -> None:
    instance = office()
    settings: Any = {**instance.promises, "batch_size": 12, **capacity}
    need = hush.make_plan(instance.incidence, **settings)
    message = refused(noise_multiplier=0.9 * need.noise_multiplier, **capacity)
    assert need.secret_ids[need.binding[0]] in message
    works = float(re.search(r"rates, ([\d.]+) does", message)[1])  # type: ignore[index]
    hush.make_plan(instance.incidence, **settings, noise_multiplier=works)


def test_a_secret_that_alone_breaks_is_named_with_what_its_absence_would_buy() -> None:
    incidence = hush.Incidence.from_pairs([0, 1, 2, 3, 4], [0, 0, 0, 0, 1], num_examples=20, num_secrets=2)
    arguments: Any = {"prior": 1e-6, "ceiling": 1e-3, "batch_size": 2, "rounds": 50, "capacity": "none"}
    with pytest.raises(hush.InfeasiblePlan, match="big alone forces it: without its promise a noise of"):
        hush.make_plan(incidence, **arguments, secret_ids=["big", "small"], noise_multiplier=0.5)


def test_a_batch_that_the_papers_weights_cannot_fill_comes_with_one_that_they_can() -> None:
    incidence = graph(np.random.default_rng(1), 40, [20, 20, 20, 20])
    arguments: Any = {"prior": 1e-6, "ceiling": 1e-3, "rounds": 50, "capacity": "paper", "strength": 1.0}
    with pytest.raises(hush.InfeasiblePlan, match="sampling probabilities up to") as caught:
        hush.make_plan(incidence, **arguments, batch_size=30)
    batch = number_after("lower batch_size to at most", str(caught.value))
    assert 0 < batch < 30
    hush.make_plan(incidence, **arguments, batch_size=batch)


def test_more_examples_than_there_are_cannot_be_drawn() -> None:
    assert "lower it to at most 100" in refused(batch_size=101)


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ({"batch_size": 0}, "batch_size=0; pass a number above 0"),
        ({"batch_size": float("nan")}, "batch_size=nan; pass"),
        ({"batch_size": "many"}, "batch_size='many'; pass a number"),
        ({"batch_size": 10**400}, "000; pass a number"),
        ({"keep": 0}, "keep=0.0; pass the share"),
        ({"keep": "most"}, "keep='most'; pass a number"),
        ({"clip_norm": "small"}, "clip_norm='small'; pass a number"),
        ({"noise_scale": None}, "noise_scale=None; pass a number"),
        ({"capacity": "paper", "strength": "a"}, "strength='a'; pass a number"),
        ({"keep": float("nan")}, "keep=nan; pass the share"),
        ({"capacity": "all"}, "capacity='all'; choose one of"),
        ({"bound": "best"}, "bound='best'; choose one of"),
        ({"capacity": "paper"}, "give a strength exactly for 'paper'"),
        ({"strength": 2.0}, "give a strength exactly for 'paper'"),
        ({"capacity": "paper", "strength": -1.0}, "strength=-1.0; pass a finite number"),
        ({"noise_multiplier": -1}, "noise_multiplier=-1.0; pass"),
        ({"clip_norm": 0}, "clip_norm=0"),
        ({"noise_scale": float("inf")}, "noise_scale=inf"),
        ({"secret_ids": ["a"]}, "8 secrets but 1 secret_ids"),
        ({"secret_ids": "abcdefgh"}, "pass one id per secret"),
        ({"secret_ids": ["a"] * 8}, "make every id unique"),
        ({"secret_ids": ["\ud800", *"abcdefg"]}, r"secret_ids\[0\] is not"),
        ({"tolerance": 0.0}, "tolerance=0.0"),
        ({"rounds": 0}, "rounds=0"),
    ],
)
def test_bad_arguments_are_refused_by_name(arguments: dict[str, Any], words: str) -> None:
    assert re.search(words if "\\" in words else re.escape(words), refused(hush.InvalidInput, **arguments))


def test_an_incidence_without_examples_is_refused() -> None:
    with pytest.raises(hush.InvalidInput, match="nothing to train on"):
        hush.make_plan(graph(np.random.default_rng(0), 0, []), prior=0.1, ceiling=0.2, batch_size=1, rounds=1)


@pytest.mark.parametrize(
    ("settings", "match"),
    [
        ({"capacity": "accounted", "noise_multiplier": 0.01}, "raise it to at least"),
        ({"capacity": "paper", "strength": 1e-300}, "no example keeps any weight"),
    ],
)
def test_no_advice_is_to_use_nothing(settings: dict[str, Any], match: str) -> None:
    everywhere = hush.Incidence.from_pairs(np.arange(20), np.zeros(20, dtype=int), num_examples=20, num_secrets=1)
    with pytest.raises(hush.InfeasiblePlan, match=match) as caught:
        hush.make_plan(everywhere, prior=1e-6, ceiling=1e-3, rounds=100, batch_size=5, **settings)
    assert "at most 0" not in str(caught.value)

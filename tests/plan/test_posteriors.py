"""Verification proves secrets in groups: what it accepts is what judging every secret alone accepts."""

import dataclasses
from functools import cache, partial
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from plan_instances import Instance, graph, instances

import hush
from hush.accounting import accountant, calibration, counts
from hush.plan import posteriors
from hush.plan.posteriors import Judgement, judge


def judged_alone(plan: hush.Plan) -> dict[str, list[int]]:
    """By the accountant alone, secret after secret: no groups, no shared laws."""
    faults: dict[str, list[int]] = {"broken": [], "larger than stated": [], "binding": []}
    for secret in range(plan.incidence.num_secrets):
        alone = posteriors.Alone(plan, secret, plan.prior[secret])
        listed = secret in plan.binding
        for kind in alone.faults(plan.ceiling[secret], plan.posterior[secret], listed=listed):
            faults[kind].append(secret)
    return faults


@cache
def crowd(seed: int, *, num_secrets: int = 60, several_priors: bool = False) -> hush.Plan:
    """A plan with random weights for many secrets, most of which share a posterior with others."""
    rng = np.random.default_rng(seed)
    incidence = graph(rng, 300, rng.integers(0, 12, num_secrets).tolist())
    prior_S = rng.choice([1e-10, 1e-8, 1e-5], num_secrets) if several_priors else np.full(num_secrets, 1e-8)
    ceiling_S = rng.choice(10.0 ** np.linspace(-3, -0.5, 5), num_secrets)
    weight_N = rng.uniform(0, 1, 300) * rng.choice([0, 1], 300, p=[0.1, 0.9])
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(accountant, "COARSE_GROUPS", 6)
        patch.setattr(calibration, "COARSE_GROUPS", 6)
        promises: Any = {"prior": prior_S, "ceiling": ceiling_S, "rounds": 60}
        found = hush.calibrate(incidence, **promises, rates=20 * weight_N / weight_N.sum())
    return hush.Plan(
        incidence=incidence,
        secret_ids=tuple(f"key-{secret}" for secret in range(num_secrets)),
        prior=prior_S[:, None],
        ceiling=ceiling_S[:, None],
        posterior=found.posterior[:, None],
        binding=found.binding,
        weights=weight_N,
        noise_multiplier=found.noise_multiplier,
        rounds=60,
        batch_size=20.0,
        clip_norm=1.0,
        bound="blowup",
        capacity="accounted",
        weights_gap=0.0,
        noise_scale=1.0,
        created="2026-01-31T12:00:00+00:00",
    )


CHANGES = {
    "nothing": lambda plan, _: {},
    "noise": lambda plan, by: {"noise_multiplier": plan.noise_multiplier * (1 - by), "posterior": plan.ceiling},
    "noise, posteriors": lambda plan, by: {"noise_multiplier": plan.noise_multiplier * (1 - by)},
    "posteriors": lambda plan, by: {"posterior": np.maximum(plan.prior, plan.posterior * (1 - by))},
    "ceilings": lambda plan, by: {
        "ceiling": np.maximum(plan.prior, plan.ceiling * (1 - by)),
        "posterior": np.minimum(plan.posterior, np.maximum(plan.prior, plan.ceiling * (1 - by))),
    },
    "rounds": lambda plan, by: {"rounds": plan.rounds + max(1, int(by * plan.rounds)), "posterior": plan.ceiling},
    "binding": lambda plan, _: {"binding": plan.binding[1:]},
    "more binding": lambda plan, _: {"binding": np.arange(plan.incidence.num_secrets)},
    "loose": lambda plan, _: {"posterior": plan.ceiling},
}


def changed(plan: hush.Plan, change: str, by: float) -> hush.Plan:
    return dataclasses.replace(plan, **CHANGES[change](plan, by))


def agree(found: Judgement, alone: dict[str, list[int]]) -> None:
    """Groups settle at least what single secrets settle; what is left is judged alone, and so alike."""
    assert found.complete
    for kind, secrets in found.secrets.items():
        assert set(secrets) <= set(alone[kind]), kind
    assert {kind for kind, secrets in found.secrets.items() if secrets} == {
        kind for kind, secrets in alone.items() if secrets
    }


@pytest.mark.parametrize("change", CHANGES)
@pytest.mark.parametrize("several_priors", [False, True])
def test_groups_accept_exactly_what_single_secrets_accept(change: str, several_priors: bool) -> None:
    plan = changed(crowd(7, several_priors=several_priors), change, 0.02)
    assert np.unique(plan.posterior).size < plan.incidence.num_secrets
    found = judge(plan)
    agree(found, judged_alone(plan))
    assert any(found.secrets.values()) == (change not in ("nothing", "loose"))


@settings(max_examples=10)
@given(instances(), st.sampled_from(["blowup", "renyi", "kl"]), st.sampled_from(sorted(CHANGES)), st.floats(1e-3, 0.3))
def test_groups_accept_what_single_secrets_accept_in_any_plan(
    instance: Instance, bound: Any, change: str, by: float
) -> None:
    batch = max(0.5, 0.3 * instance.incidence.num_examples)
    made = hush.make_plan(instance.incidence, **instance.promises, batch_size=batch, bound=bound, capacity="none")
    plan = changed(made, change, by)
    agree(judge(plan), judged_alone(plan))


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(25))
@pytest.mark.parametrize("change", CHANGES)
def test_groups_accept_exactly_what_single_secrets_accept_often(change: str, seed: int) -> None:
    rng = np.random.default_rng(seed)
    plan = changed(crowd(seed, several_priors=bool(seed % 2)), change, float(10 ** rng.uniform(-3, -0.5)))
    agree(judge(plan), judged_alone(plan))


def survival(law: counts.CountLaw, size: int) -> np.ndarray:
    """P(count >= k) for k = 0..size - 1."""
    mass = np.zeros(size + 1)
    stop = min(size, law.lowest + law.mass.size)
    mass[law.lowest : stop] = law.mass[: stop - law.lowest]
    mass[size] = law.certain + law.mass[stop - law.lowest :].sum()
    above = mass[::-1].cumsum()[::-1][:size]
    above[0] = 1.0  # the sum of all is rounded
    return above


@pytest.mark.parametrize("many_examples", [posteriors.MANY_EXAMPLES, 4])
@pytest.mark.parametrize("chunk", [posteriors.CHUNK_ENTRIES, 64])
def test_the_law_of_a_group_lies_outside_every_member_and_touches_one(
    monkeypatch: pytest.MonkeyPatch, many_examples: int, chunk: int
) -> None:
    """Second route: the law of each secret by the accountant."""
    monkeypatch.setattr(posteriors, "MANY_EXAMPLES", many_examples)
    monkeypatch.setattr(posteriors, "CHUNK_ENTRIES", chunk)
    plan = crowd(3)
    draws = posteriors._Draws(plan)
    for members in (np.arange(60), np.arange(5, 20), np.array([11])):
        rates = [plan.rates[plan.incidence.examples_of(int(secret))] for secret in members]
        single = np.array([survival(counts.count_law(rate[rate > 0], tail=1e-30), 12) for rate in rates])
        largest = survival(draws.law(members, side="largest", tail=1e-30), 12)
        smallest = survival(draws.law(members, side="smallest", tail=1e-30), 12)
        assert (largest >= single).all()
        np.testing.assert_allclose(largest, single.max(axis=0), rtol=1e-12, atol=1e-29)
        np.testing.assert_allclose(smallest, single.min(axis=0), rtol=1e-12, atol=1e-29)


def test_groups_prove_what_they_settle_one_by_one() -> None:
    """Bounds dominate: whatever a group gives a secret is at least the posterior of that secret."""
    plan = crowd(5, several_priors=True)
    court = posteriors._Court(plan, None)
    court.judge()
    for secret in range(plan.incidence.num_secrets):
        rates = plan.rates[plan.incidence.examples_of(secret)]
        ask: Any = {"noise_multiplier": plan.noise_multiplier, "rounds": plan.rounds, "prior": plan.prior[secret]}
        assert (court._bound_SQ[secret] >= hush.posterior(rates, **ask, side="lower")).all()
        assert (court._bound_SQ[secret] >= (1 - 5e-3) * np.asarray(hush.posterior(rates, **ask))).all()


def test_a_mistake_in_the_laws_that_planning_shares_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    """A joined law that dominates only its first member: calibration would promise too much."""

    def first_only(groups: Any, *, tail: float) -> counts.CountLaw:
        smallest = min(groups, key=lambda rates: rates.sum())
        return joined_law([0.98 * smallest], tail=tail)

    joined_law = counts.joined_law
    assert not any(judge(crowd(9, num_secrets=61)).secrets.values())
    monkeypatch.setattr(accountant, "joined_law", first_only)
    plan = crowd(9, num_secrets=59)
    assert any(judge(plan).secrets.values())


def test_a_plan_with_many_faults_is_not_judged_to_the_end(monkeypatch: pytest.MonkeyPatch) -> None:
    plan = changed(crowd(7), "noise", 0.3)
    everything = judge(plan)
    assert everything.complete
    monkeypatch.setattr(posteriors, "MAX_FAULTS", 1)
    some = judge(plan)
    assert not some.complete
    assert set(some.secrets["broken"]) < set(everything.secrets["broken"])


def test_secrets_drawn_alike_are_computed_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """One example each, all at one rate, all with too small a posterior."""
    incidence = hush.Incidence.from_pairs(np.arange(40), np.arange(40), num_examples=50, num_secrets=40)
    ceiling = np.linspace(0.01, 0.1, 40)
    plan = hush.make_plan(incidence, prior=1e-6, ceiling=ceiling, batch_size=5, rounds=100, capacity="none")
    forged = dataclasses.replace(plan, posterior=0.9 * plan.posterior)
    asked: list[int] = []
    ask = posteriors.posterior
    monkeypatch.setattr(posteriors, "posterior", lambda *a, **k: (asked.append(1), partial(ask, *a)(**k))[1])
    assert len(judge(forged).secrets["larger than stated"]) == 40
    assert len(asked) <= 5

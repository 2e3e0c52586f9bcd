"""A small problem with one secret, and trainers that do not keep its promise, each in one way.

The secret is the label of an example whose input is long and orthogonal to all others: its gradients are clipped, point
apart as far as they can, and nothing else moves along them. So the attack on an honest training comes close to what is
certified, and a training with less protection than promised is found out in few runs.
"""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

import hush
from hush.audit.reconstruction import Scenario, Transcripts, train_recorded_runs, train_small_runs
from hush.train import private_training as training_loop
from hush.train.noise import Noise
from hush.train.sampler import Draws

INPUTS, OTHERS, LENGTH = 4, 6, 20.0


def seeded(seed: int) -> torch.Generator:
    """Random numbers that repeat."""
    return torch.Generator().manual_seed(seed)


def cross_entropy(model: nn.Module, batch: Mapping[str, Tensor]) -> Tensor:
    """One loss per example."""
    return nn.functional.cross_entropy(model(batch["inputs"]), batch["labels"], reduction="none")


def label_problem(*, candidates: int, holders: int, others: int = OTHERS) -> dict[str, Any]:
    """Model, data and candidates: softmax regression from zero; the secret is the label of the first examples."""
    generator = torch.Generator().manual_seed(0)
    model = nn.Linear(INPUTS, candidates, bias=False)
    nn.init.zeros_(model.weight)
    inputs = torch.randn(holders + others, INPUTS, generator=generator)
    inputs[:, -1] = 0.0
    inputs[:holders] = torch.eye(INPUTS)[-1] * LENGTH
    labels = torch.randint(candidates, (holders + others,), generator=generator)
    return {
        "model": model,
        "loss": cross_entropy,
        "data": {"inputs": inputs, "labels": labels},
        "candidates": {
            "inputs": inputs[:holders].expand(candidates, holders, INPUTS),
            "labels": torch.arange(candidates)[:, None].expand(candidates, holders),
        },
        "learning_rate": 0.05,
    }


def label_scenario(
    *, candidates: int = 10, holders: int = 1, rate: float = 0.3, noise_multiplier: float = 1.0, rounds: int = 8
) -> Scenario:
    """The problem with equal rates."""
    size = holders + OTHERS
    return Scenario(
        **label_problem(candidates=candidates, holders=holders),
        holders=np.arange(holders),
        rates=np.full(size, rate),
        noise_multiplier=noise_multiplier,
        rounds=rounds,
        batch_size=rate * size,
        clip_norm=1.0,
    )


# --- faults of the vectorised training: what it does differs from what the scenario says


def correct(scenario: Scenario, runs: int, generator: torch.Generator) -> Transcripts:
    return train_small_runs(scenario, runs=runs, generator=generator)


def without_noise(scenario: Scenario, runs: int, generator: torch.Generator) -> Transcripts:
    return train_small_runs(replace(scenario, noise_multiplier=0.0), runs=runs, generator=generator)


def half_the_noise(scenario: Scenario, runs: int, generator: torch.Generator) -> Transcripts:
    halved = replace(scenario, noise_multiplier=scenario.noise_multiplier / 2)
    return train_small_runs(halved, runs=runs, generator=generator)


def twice_the_rate(scenario: Scenario, runs: int, generator: torch.Generator) -> Transcripts:
    return train_small_runs(replace(scenario, rates=2 * scenario.rates), runs=runs, generator=generator)


# --- the real training under a plan, and its faults


def label_plan(*, candidates: int = 50, rate: float = 0.5, rounds: int = 5, size: int = 1 + OTHERS) -> hush.Plan:
    """Promises that the label of example 0 is named with probability 0.4 at most."""
    incidence = hush.Incidence.from_pairs([0], [0], num_examples=size, num_secrets=1)
    return hush.make_plan(
        incidence, prior=1 / candidates, ceiling=0.4, batch_size=rate * size, rounds=rounds, capacity="none"
    )


def plan_scenario(plan: hush.Plan, *, holders: int = 1) -> Scenario:
    """What is true of the data: the secret stands in the first ``holders`` examples, whatever the plan knows."""
    candidates = round(1 / float(plan.prior[0, 0]))
    problem = label_problem(candidates=candidates, holders=holders, others=plan.rates.size - holders)
    if holders == plan.incidence.examples_of(0).size:
        return Scenario.of_plan(plan, 0, **problem)
    return Scenario(
        **problem,
        holders=np.arange(holders),
        rates=plan.rates,
        noise_multiplier=plan.noise_multiplier,
        rounds=plan.rounds,
        batch_size=plan.batch_size,
        clip_norm=plan.clip_norm,
    )


def real_runs(plan: hush.Plan, scenario: Scenario, runs: int, *, seed: int = 0) -> Transcripts:
    """Runs of ``PrivateTraining``, which can be repeated."""
    return train_recorded_runs(scenario, plan, runs=runs, rng=np.random.default_rng(seed), insecure_seed=seed)


@contextmanager
def noise_scaled(monkeypatch: pytest.MonkeyPatch, factor: float) -> Iterator[None]:
    """The trainer's noise times a factor that nobody was told of."""
    add = Noise.add_

    def fainter(self: Noise, sums: Mapping[str, Tensor], *, scale: float, round: int, rank: int = 0) -> None:
        add(self, sums, scale=factor * scale, round=round, rank=rank)

    with monkeypatch.context() as patch:
        patch.setattr(Noise, "add_", fainter)
        yield


@contextmanager
def rates_scaled(monkeypatch: pytest.MonkeyPatch, factor: float) -> Iterator[None]:
    """The trainer's sampling rates times a factor that nobody was told of."""
    with monkeypatch.context() as patch:
        patch.setattr(training_loop, "Draws", lambda rates, *, seed: Draws(factor * rates, seed=seed))
        yield

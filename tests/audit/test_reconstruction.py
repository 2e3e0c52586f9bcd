"""The attack on trained models: runs and scores against slow definitions, and what it achieves on honest training."""

from dataclasses import replace
from itertools import product
from typing import Any

import numpy as np
import pytest
import torch
from broken_trainers import cross_entropy, label_plan, label_scenario, plan_scenario, seeded
from scipy.special import logsumexp, ndtr
from scipy.stats import chi2, multivariate_normal
from torch import nn

from hush.audit.reconstruction import (
    Scenario,
    attack_runs,
    candidate_scores,
    flat_parameters,
    train_and_record,
    train_small_runs,
)
from hush.audit.statistics import Success
from hush.errors import InvalidInput
from hush.train.private_training import PrivateTraining

LEVEL = 0.01


def random_scenario(*, holders: int, candidates: int = 3, noise_multiplier: float = 0.7, rounds: int = 3) -> Scenario:
    """A small network, inputs as secrets, overlapping gradients and unequal rates: nothing is tuned to the attack."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(3)
        model = nn.Sequential(nn.Linear(3, 4), nn.Tanh(), nn.Linear(4, 2)).double()
        inputs, labels = torch.randn(6, 3, dtype=torch.float64), torch.randint(2, (6,))
        secret = torch.randn(candidates, holders, 3, dtype=torch.float64)
        secret_labels = torch.randint(2, (candidates, holders))
    return Scenario(
        model=model,
        loss=cross_entropy,
        data={"inputs": inputs, "labels": labels},
        holders=np.arange(6)[1 : 1 + holders],
        candidates={"inputs": secret, "labels": secret_labels},
        rates=np.linspace(0.2, 0.8, 6),
        noise_multiplier=noise_multiplier,
        rounds=rounds,
        batch_size=3.0,
        clip_norm=0.6,
        learning_rate=0.5,
    )


# --- the runs


def slow_gradient(scenario: Scenario, at_D: torch.Tensor, example: dict[str, torch.Tensor]) -> torch.Tensor:
    """One backward pass for one example, then clipped."""
    nn.utils.vector_to_parameters(at_D.clone(), scenario.model.parameters())
    scenario.model.zero_grad()
    scenario.loss(scenario.model, {key: value[None] for key, value in example.items()}).sum().backward()
    gradient = torch.cat([p.grad.reshape(-1) for p in scenario.model.parameters() if p.grad is not None])
    return gradient * min(1.0, scenario.clip_norm / float(gradient.norm()))


def test_vectorised_runs_make_the_steps_of_a_plain_loop() -> None:
    """Every example drawn and no noise: each run is gradient descent on the clipped sum, written out."""
    scenario = replace(random_scenario(holders=2, noise_multiplier=0.0), rates=np.ones(6))
    start = flat_parameters(scenario.model)
    transcripts = train_small_runs(scenario, runs=5, generator=seeded(0))
    for run, candidate in enumerate(transcripts.truth.tolist()):
        data, at = scenario.data_with(candidate), start.clone()
        for round in range(scenario.rounds):
            rows = [{key: value[i] for key, value in data.items()} for i in range(6)]
            at = at - 0.5 / 3.0 * sum(slow_gradient(scenario, at, row) for row in rows)
            torch.testing.assert_close(transcripts.iterates[run, round + 1], at)
    nn.utils.vector_to_parameters(start, scenario.model.parameters())
    assert len(set(transcripts.truth.tolist())) > 1


def test_each_example_is_drawn_with_its_rate() -> None:
    """One example alone and no noise: the iterate moves exactly when it is drawn."""
    scenario = replace(label_scenario(rounds=1, noise_multiplier=0.0), rates=np.array([0.3, 0, 0, 0, 0, 0, 0]))
    moved = train_small_runs(scenario, runs=4000, generator=seeded(1)).iterates.diff(dim=1).abs().sum(dim=(1, 2)) > 0
    drawn = Success(hits=int(moved.sum()), runs=4000)
    assert drawn.lower(1e-6) < 0.3 < drawn.upper(1e-6)


def test_the_noise_of_the_runs_has_the_promised_size() -> None:
    scenario = replace(label_scenario(noise_multiplier=1.7, rounds=2), rates=np.zeros(7))
    steps = train_small_runs(scenario, runs=300, generator=seeded(2)).iterates.diff(dim=1).double()
    z = steps / (scenario.learning_rate / scenario.batch_size * 1.7 * scenario.clip_norm)
    law = chi2(z.numel())
    assert law.ppf(1e-9) < float(z.square().sum()) < law.isf(1e-9)


def test_candidates_are_drawn_uniformly() -> None:
    truth = train_small_runs(label_scenario(rounds=1), runs=5000, generator=seeded(3)).truth
    counts = np.bincount(truth, minlength=10)
    assert ((counts - 500) ** 2 / 500).sum() < chi2(9).isf(1e-9)


# --- the scores


@pytest.mark.parametrize("holders", [1, 3])
def test_the_score_is_the_log_of_the_likelihood_ratio(holders: int) -> None:
    """Densities of normal laws from SciPy, summed over who was drawn; another example always is."""
    scenario = random_scenario(holders=holders)
    rates = np.array([1.0, 0, 0, 0, 0, 0])
    rates[scenario.holders] = scenario.rates[scenario.holders]
    scenario = replace(scenario, rates=rates)
    start = flat_parameters(scenario.model)
    transcripts = train_small_runs(scenario, runs=4, generator=seeded(4))
    scores = candidate_scores(scenario, transcripts)
    for run, candidate in product(range(4), range(3)):
        expected = 0.0
        for round in range(scenario.rounds):
            before, after = transcripts.iterates[run, round], transcripts.iterates[run, round + 1]
            always = slow_gradient(scenario, before, {key: value[0] for key, value in scenario.data.items()})
            noisy = ((before - after) * 3.0 / 0.5 - always).numpy()
            rows = [{k: v[candidate, i] for k, v in scenario.candidates.items()} for i in range(holders)]
            gradients = [slow_gradient(scenario, before, row).numpy() for row in rows]
            terms, chances = [], []
            for drawn in product((0, 1), repeat=holders):
                mean = sum((d * g for d, g in zip(drawn, gradients, strict=True)), np.zeros(noisy.size))
                terms.append(multivariate_normal.logpdf(noisy, mean, scenario.noise_deviation**2 * np.eye(noisy.size)))
                rate = scenario.rates[scenario.holders]
                chances.append(np.prod(np.where(drawn, rate, 1 - rate)))
            expected += logsumexp(terms, b=chances)
            expected -= multivariate_normal.logpdf(
                noisy, np.zeros(noisy.size), scenario.noise_deviation**2 * np.eye(noisy.size)
            )
        assert float(scores[run, candidate]) == pytest.approx(expected, rel=1e-6, abs=1e-6)
    nn.utils.vector_to_parameters(start, scenario.model.parameters())


def test_scoring_many_examples_one_by_one_is_exact_where_they_do_not_overlap(monkeypatch: pytest.MonkeyPatch) -> None:
    scenario = label_scenario(candidates=4, holders=3)
    apart = {**scenario.candidates, "inputs": (20.0 * torch.eye(4)[:3]).expand(4, 3, 4)}
    scenario = replace(scenario, candidates=apart)
    transcripts = train_small_runs(scenario, runs=20, generator=seeded(5))
    exact = candidate_scores(scenario, transcripts)
    monkeypatch.setattr("hush.audit.reconstruction.MAX_SUBSET_EXAMPLES", 0)
    torch.testing.assert_close(candidate_scores(scenario, transcripts), exact, rtol=1e-4, atol=1e-4)


def test_where_draws_are_certain_and_gradients_stay_the_last_model_tells_as_much_as_all() -> None:
    """A linear loss; the sum of the updates is then all that matters."""
    scenario = replace(
        label_scenario(candidates=4, holders=2, rate=1.0),
        loss=lambda model, batch: model(batch["inputs"]).gather(1, batch["labels"][:, None]).squeeze(1),
    )
    transcripts = train_small_runs(scenario, runs=25, generator=seeded(17))
    by_all = candidate_scores(scenario, transcripts)
    torch.testing.assert_close(candidate_scores(scenario, transcripts.only([0, 8])), by_all, rtol=1e-4, atol=1e-3)
    # Gradients of one length: the inner product differs by the same amount for all candidates.
    inner = candidate_scores(scenario, transcripts, score="inner")
    shift = inner - by_all
    torch.testing.assert_close(shift, shift[:, :1].expand_as(shift), rtol=1e-4, atol=1e-3)


@pytest.mark.parametrize("score", ["likelihood", "inner"])
def test_scores_see_the_transcript_and_not_the_truth(score: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Nor do they depend on which runs stand beside a run, or on the order of the candidates."""
    scenario = label_scenario(candidates=5)
    transcripts = train_small_runs(scenario, runs=30, generator=seeded(6))
    scores = candidate_scores(scenario, transcripts, score=score)  # pyright: ignore[reportArgumentType]
    monkeypatch.setattr("hush.audit.reconstruction.MAX_GRADIENT_FLOATS", 1)
    order = torch.tensor([3, 0, 4, 1, 2])
    other = replace(scenario, candidates={key: value[order] for key, value in scenario.candidates.items()})
    unknown = replace(transcripts, truth=np.zeros(30, dtype=np.int64))
    again = candidate_scores(other, unknown, score=score)  # pyright: ignore[reportArgumentType]
    torch.testing.assert_close(again, scores[:, order], rtol=1e-4, atol=1e-4)


# --- what the attack achieves


def test_two_opposite_candidates_in_one_round_are_told_apart_as_the_normal_law_says() -> None:
    """Drawn for certain, gradients C and -C: success Phi(1/sigma), which is the certified bound itself."""
    scenario = label_scenario(candidates=2, rate=1.0, rounds=1, noise_multiplier=1.5)
    found = attack_runs(scenario, train_small_runs(scenario, runs=4000, generator=seeded(7)))
    assert scenario.certified == pytest.approx(float(ndtr(1 / 1.5)), rel=2e-3)
    assert found.lower(1e-6) < ndtr(1 / 1.5) < found.upper(1e-6)


@pytest.mark.parametrize("candidates", [2, 10])
def test_the_attack_on_an_honest_training_comes_close_to_the_bound_and_stays_below(candidates: int) -> None:
    scenario = label_scenario(candidates=candidates)
    found = attack_runs(scenario, train_small_runs(scenario, runs=2000, generator=seeded(8)))
    assert found.lower(LEVEL) <= scenario.certified
    assert found.rate > 0.9 * scenario.certified


def test_the_final_model_tells_less_than_all_of_them_and_more_than_nothing() -> None:
    scenario = label_scenario()
    transcripts = train_small_runs(scenario, runs=2000, generator=seeded(9))
    last = transcripts.only([0, scenario.rounds])
    by_all, by_some, by_last = (
        attack_runs(scenario, seen) for seen in (transcripts, transcripts.only([0, 2, 5, 8]), last)
    )
    assert scenario.prior < by_last.lower(1e-6) < by_all.rate
    assert by_last.rate - 0.02 < by_some.rate < by_all.rate + 0.02
    assert attack_runs(scenario, last, score="inner").lower(1e-6) > scenario.prior


def test_an_attack_on_untuned_runs_beats_the_prior_and_not_the_bound() -> None:
    """Overlapping gradients, several examples with the secret, others whose draws disturb."""
    scenario = random_scenario(holders=2, rounds=20)
    found = attack_runs(scenario, train_small_runs(scenario, runs=1500, generator=seeded(10)))
    assert scenario.prior < found.lower(1e-4) < scenario.certified


# --- what is refused, and what is shown


def test_only_plain_descent_can_be_watched() -> None:
    plan = label_plan(rounds=1)
    scenario = plan_scenario(plan)
    model = nn.Linear(4, 50, bias=False)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    private = PrivateTraining(model, optimizer, plan, loss=scenario.loss)
    with pytest.raises(InvalidInput, match="plain SGD"):
        train_and_record(private, scenario.data)


def test_scenarios_and_transcripts_that_fit_nothing_are_refused() -> None:
    scenario = label_scenario()
    for wrong in (
        {"holders": np.array([0, 0])},
        {"holders": np.array([99])},
        {"candidates": {}},
        {"learning_rate": 0.0},
    ):
        with pytest.raises(InvalidInput):
            replace(scenario, **wrong)
    transcripts = train_small_runs(scenario, runs=2, generator=seeded(14))
    with pytest.raises(InvalidInput, match="no model was kept"):
        transcripts.only([0, 99])
    with pytest.raises(InvalidInput, match="in the order of training"):
        transcripts.only([8, 0])
    with pytest.raises(InvalidInput, match="no noise"):
        attack_runs(replace(scenario, noise_multiplier=0.0), transcripts)
    with pytest.raises(InvalidInput, match="runs=0"):
        train_small_runs(scenario, runs=0, generator=seeded(15))


def test_reprs_show_counts_only() -> None:
    scenario = label_scenario(candidates=3, rounds=2)
    assert repr(scenario) == "Scenario(3 candidates in 1 of 7 examples, 2 rounds)"
    assert repr(train_small_runs(scenario, runs=2, generator=seeded(16))) == "Transcripts(2 runs, 3 models of each)"


def test_runs_of_another_scenario_are_refused() -> None:
    scenario: Any = Scenario(
        model=torch.nn.Linear(2, 1), loss=lambda model, batch: model(batch["x"]).squeeze(-1),
        data={"x": torch.zeros(2, 2)}, candidates={"x": torch.eye(2)[:, None]}, holders=np.array([0]),
        rates=np.array([0.5, 0.5]), noise_multiplier=1.0, rounds=2, batch_size=1.0, clip_norm=1.0, learning_rate=1.0,
    )  # fmt: skip
    made = train_small_runs(scenario, runs=4, generator=torch.Generator().manual_seed(0))
    assert attack_runs(scenario, made).runs == 4
    with pytest.raises(InvalidInput, match="truth outside"):
        attack_runs(scenario, replace(made, truth=made.truth + 2))
    with pytest.raises(InvalidInput, match="the scenario, and with it the bound"):
        attack_runs(replace(scenario, rounds=1), made)

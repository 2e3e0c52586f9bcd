"""The training loop: its update against a slow reference, and what it lets out."""

import random
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from private_runs import DATA, PLAN, private_training, values
from reference import EXAMPLES, clipped_sum, cross_entropy, rows, small_model, small_plan, train
from scipy.stats import chi2
from torch import nn

from hush.errors import CannotCertify, InvalidInput
from hush.train.clipping import MARGIN
from hush.train.noise import Noise
from hush.train.private_training import PrivateTraining

# --- the update


@pytest.mark.parametrize("micro_batch", [1, 3, 8, 64])
def test_a_step_is_the_reference_sum_plus_the_plans_noise_over_the_planned_batch(micro_batch: int) -> None:
    model = small_model()
    private = private_training(model, micro_batch=micro_batch, insecure_seed=5)
    sizes = set()
    for index in range(4):
        before, reference = values(model), small_model()
        reference.load_state_dict(model.state_dict())
        (drawn,) = train(private, DATA, until=index + 1)
        sums, norms = clipped_sum(
            reference, cross_entropy, rows(DATA, drawn), torch.ones(len(drawn)).bool(), clip_norm=0.7 * (1 - MARGIN)
        )
        noisy = {name: entry.float() for name, entry in sums.items()}
        scale = PLAN.clip_norm * PLAN.noise_multiplier
        Noise(insecure_seed=5).add_(noisy, scale=scale, round=index)
        for name, parameter in model.named_parameters():
            expected = before[name] - noisy[name] / PLAN.batch_size
            torch.testing.assert_close(parameter.detach(), expected, rtol=1e-5, atol=1e-6)
        assert private.live is not None
        signal = float(torch.cat([entry.flatten() for entry in sums.values()]).norm())
        dimensions = sum(entry.numel() for entry in sums.values())
        assert private.live.signal_to_noise == pytest.approx(signal / (scale * dimensions**0.5), rel=1e-5)
        assert private.live.clipped_share == pytest.approx(float((norms > 0.7).double().mean()))
        sizes.add(len(drawn))
    assert sizes != {8}  # otherwise dividing by the realised size would have passed too


def test_the_noise_has_the_plans_scale_where_gradients_vanish() -> None:
    """Secure mode, no seed to compare with: the squared norm of all coordinates follows its chi-squared law."""
    model = nn.Sequential(nn.Linear(6, 1000), nn.Linear(1000, 3))
    private = private_training(model, loss=lambda model, batch: 0 * cross_entropy(model, batch), insecure_seed=None)
    before = nn.utils.parameters_to_vector(model.parameters()).detach().clone()
    train(private, DATA, until=1)
    after = nn.utils.parameters_to_vector(model.parameters()).detach()
    z = (after - before).double() * PLAN.batch_size / (PLAN.clip_norm * PLAN.noise_multiplier)
    law = chi2(z.numel())
    assert law.ppf(1e-9) < float(z.square().sum()) < law.isf(1e-9)


def test_a_simulation_trains_with_its_scaled_noise_and_is_marked() -> None:
    plan = small_plan(noise_scale=1e-6, rounds=1)
    model = nn.Linear(6, 3)
    before = values(model)
    private = private_training(model, plan=plan, loss=lambda model, batch: 0 * cross_entropy(model, batch))
    train(private, DATA)
    largest = max(float((p.detach() - before[name]).abs().max()) for name, p in model.named_parameters())
    assert 0 < largest < 1e-5
    assert not private.finish().is_real


def test_an_empty_draw_is_a_round_of_noise_alone() -> None:
    plan = small_plan(batch_size=0.02, rounds=4, ceiling=2e-6)
    assert plan.noise_multiplier > 0
    model = small_model()
    private = private_training(model, plan=plan, insecure_seed=2)
    for index, round in enumerate(private.rounds()):
        before = values(model)
        assert list(round.micro_batches()) == []
        private.step()
        noise = {name: torch.zeros_like(p) for name, p in before.items()}
        Noise(insecure_seed=2).add_(noise, scale=plan.clip_norm * plan.noise_multiplier, round=index)
        for name, parameter in model.named_parameters():
            torch.testing.assert_close(parameter.detach(), before[name] - noise[name] / plan.batch_size)
        assert private.live is not None
        assert private.live.loss is None
        assert private.live.clipped_share is None
    assert private.round == 4


def test_a_plan_that_needs_no_noise_gets_none() -> None:
    plan = small_plan(batch_size=0.02, rounds=2, ceiling=0.5)
    assert plan.noise_multiplier == 0
    model = small_model()
    before = values(model)
    private = private_training(model, plan=plan, insecure_seed=2)
    assert [draw.size for draw in train(private, DATA)] == [0, 0]
    assert all(torch.equal(p, before[name]) for name, p in model.named_parameters())


def test_parameters_in_bfloat16_and_momentum_and_schedules_are_the_optimizers_business() -> None:
    model = small_model().to(torch.bfloat16)
    data = DATA | {"inputs": DATA["inputs"].bfloat16()}
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    scheduler = torch.optim.lr_scheduler.LinearLR(optimizer, 1.0, 0.0, total_iters=4)
    before = values(model)
    private = private_training(model, optimizer=optimizer, scheduler=scheduler)
    train(private, data, until=4)
    assert all(p.dtype == torch.bfloat16 and not torch.equal(p, before[name]) for name, p in model.named_parameters())
    settled = values(model)
    train(private, data, until=6)  # the rate has come down to 0
    assert all(torch.equal(p, settled[name]) for name, p in model.named_parameters())


def test_frozen_parameters_stay_and_need_no_place_in_the_optimizer() -> None:
    model = small_model()
    model[0].requires_grad_(False)
    before = values(model)
    train(private_training(model), DATA, until=2)
    after = values(model)
    assert [name for name in before if torch.equal(before[name], after[name])] == ["0.weight", "0.bias"]


# --- what it lets out


@pytest.mark.parametrize("insecure_seed", [None, 1])
def test_random_numbers_of_a_round_cannot_be_foreseen(insecure_seed: int | None) -> None:
    def first_numbers() -> tuple[float, ...]:
        """After seeds that anybody may know, as the Trainer of transformers sets them."""
        random.seed(0)
        np.random.seed(0)  # noqa: NPY002 - a user's collator may draw from it
        torch.manual_seed(0)
        next(private_training(small_model(dropout=0.5), insecure_seed=insecure_seed).rounds())
        return random.random(), float(np.random.rand()), float(torch.rand(()))  # noqa: NPY002

    foreseen = [one == other for one, other in zip(first_numbers(), first_numbers(), strict=True)]
    assert foreseen == [insecure_seed is not None] * 3


def test_reprs_show_nothing_of_the_draw() -> None:
    private = private_training(insecure_seed=987654321)
    for round in private.rounds():
        batches = list(round.micro_batches())
        assert repr(round) == "TrainingRound(index=0)"
        for examples in batches:
            private.accumulate(rows(DATA, examples), examples.real)
        private.step()
        break
    assert repr(private) == "PrivateTraining(round 1 of 12)"
    assert repr(private.live) == "LiveNumbers(round=1, rounds_left=11, the rest for the owner only)"


def test_live_numbers_average_the_examples_of_the_round() -> None:
    model = small_model()
    private = private_training(model)
    assert private.live is None
    with torch.no_grad():
        before = cross_entropy(model, DATA)
    (drawn,) = train(private, DATA, until=1)
    live = private.live
    assert live is not None
    assert live.loss == pytest.approx(float(before[drawn].mean()), rel=1e-5)
    assert (live.round, live.rounds_left) == (1, 11)
    assert live.seconds_left > 0


def test_a_certificate_is_marked_when_the_seed_is_fixed_or_the_caller_says_so() -> None:
    plan = small_plan(rounds=1)
    for seed, own, marks in ((None, [], 0), (1, [], 1), (None, ["the data was not checked"], 1)):
        private = private_training(plan=plan, insecure_seed=seed, marks=own)
        train(private, DATA)
        certificate = private.finish()
        assert len(certificate.marks) == marks
        assert certificate.is_real == (marks == 0)
        assert private.finish() is certificate


def test_without_a_folder_nothing_can_be_saved_or_released() -> None:
    private = private_training()
    for call in (private.save, private.release):
        with pytest.raises(InvalidInput, match="folder="):
            call()


def test_the_draws_are_those_of_the_plans_rates() -> None:
    plan = small_plan(batch_size=8, rounds=1500)
    private = private_training(nn.Linear(6, 3), plan=plan, insecure_seed=None)
    counts = np.bincount([i for round in _draws_only(private, 1500) for i in round], minlength=EXAMPLES)
    expected = plan.rates * 1500
    statistic = float(((counts - expected) ** 2 / (expected * (1 - plan.rates))).sum())
    assert statistic < chi2(EXAMPLES).isf(1e-9)


def _draws_only(private: PrivateTraining, rounds: int) -> list[np.ndarray]:
    return [private._draws.round(index) for index in range(rounds)]


def test_the_certificate_repeats_the_data_fingerprint_only_if_somebody_looked() -> None:
    plan = small_plan(rounds=1, data_fingerprint="a" * 16 + ":" + "b" * 64)

    def certificate(**options: Any) -> Any:
        private = private_training(plan=plan, **options)
        train(private, DATA)
        return private.finish()

    assert "data (keyed)" in plan.certificate.fingerprints
    assert "data (keyed)" not in certificate().fingerprints
    looked = certificate(data_fingerprint=plan.data_fingerprint)
    assert looked.fingerprints["data (keyed)"] == plan.data_fingerprint
    with pytest.raises(InvalidInput, match="plan was made for"):
        certificate(data_fingerprint="c" * 16 + ":" + "b" * 64)


def test_promises_finer_than_the_draws_are_refused_before_anything_is_written(tmp_path: Path) -> None:
    with pytest.raises(CannotCertify, match=r"computed draws and noise of 1,000 rounds .* above the ceiling, by up to"):
        private_training(plan=small_plan(rounds=1000, prior=1e-30, ceiling=1e-18), folder=tmp_path / "run")
    assert not (tmp_path / "run").exists()
    reserved = 2.0**-58 * 1000 * (8.0 / 4 + 60) / 1e-3
    private_training(plan=small_plan(rounds=1000, prior=1e-30, ceiling=2 * reserved))
    with pytest.raises(CannotCertify, match="computed draws"):
        private_training(plan=small_plan(rounds=1000, prior=1e-30, ceiling=1e-4 * reserved))

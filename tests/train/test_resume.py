"""Runs that go on from a checkpoint: as if never stopped, with new noise, and only as they began."""

from pathlib import Path

import numpy as np
import pytest
import torch
from private_runs import DATA, PLAN, parameters, training
from reference import cross_entropy, small_model, small_plan, train
from torch import nn

from hush.errors import InvalidInput
from hush.train.private_training import PrivateTraining
from hush.train.run_folder import RunLog


@pytest.mark.parametrize("stops", [[5], [1, 2, 9], [4, 8, 12]])
def test_with_a_fixed_seed_a_resumed_run_equals_an_uninterrupted_one_bit_for_bit(
    tmp_path: Path, stops: list[int]
) -> None:
    finals = []
    for folder, pauses in ((tmp_path / "whole", []), (tmp_path / "parts", stops)):
        torch.manual_seed(3)
        np.random.seed(3)  # noqa: NPY002
        private = training(folder, insecure_seed=7)
        for stop in pauses:
            train(private, DATA, until=stop)
            private.save()
            private.close()
            torch.manual_seed(99)  # another process
            private = training(folder, insecure_seed=7)
            assert private.round == stop
        train(private, DATA)
        private.finish()
        assert isinstance(private.scheduler, torch.optim.lr_scheduler.OneCycleLR)
        states = private.optimizer.state_dict()["state"].values()
        moments = torch.cat([state[name].flatten() for state in states for name in ("exp_avg", "exp_avg_sq", "step")])
        finals.append((parameters(private), moments, torch.tensor(private.scheduler.get_last_lr())))
        records = RunLog.read(folder / "owner" / "rounds.jsonl")
        assert [record.round for record in records] == list(range(1, 13))
        finals[-1] += (torch.tensor([record.loss or 0.0 for record in records]),)
    assert all(torch.equal(*pair) for pair in zip(*finals, strict=True))


def test_draws_repeat_after_a_crash_and_noise_never_does(tmp_path: Path) -> None:
    runs = []
    for _ in range(2):
        private = training(tmp_path, model=small_model(), save_every=100)
        start = parameters(private)
        draws = train(private, DATA, until=4)
        runs.append((start, parameters(private), draws))
        private.close()  # nothing was saved
    assert torch.equal(runs[0][0], runs[1][0])
    assert all(np.array_equal(*pair) for pair in zip(runs[0][2], runs[1][2], strict=True))
    assert (runs[0][1] != runs[1][1]).all()
    other = training(tmp_path / "other", model=small_model())
    assert any(not np.array_equal(*pair) for pair in zip(train(other, DATA, until=4), runs[0][2], strict=True))


def test_another_plan_is_refused_and_both_are_named(tmp_path: Path) -> None:
    training(tmp_path).close()
    for other, named in (
        (small_plan(rounds=13), "rounds 12 against 13"),
        (small_plan(clip_norm=0.8), "clip_norm 0.7 against 0.8"),
        (small_plan(ceiling=2e-2), "noise_multiplier .* against .*, promises"),
    ):
        with pytest.raises(InvalidInput, match=named):
            training(tmp_path, plan=other)
    training(tmp_path).close()  # and the folder is still good


def test_seeding_cannot_change_on_the_way(tmp_path: Path) -> None:
    training(tmp_path / "secure").close()
    training(tmp_path / "fixed", insecure_seed=1).close()
    for folder, seed in (("secure", 1), ("fixed", None), ("fixed", 2)):
        with pytest.raises(InvalidInput, match="insecure_seed"):
            training(tmp_path / folder, insecure_seed=seed)


def test_another_model_optimizer_or_base_is_refused(tmp_path: Path) -> None:
    def frozen(seed: int) -> nn.Sequential:
        model = small_model(seed=seed)
        model[0].requires_grad_(False)
        return model

    private = training(tmp_path, model=frozen(0))
    train(private, DATA, until=1)
    private.save()
    private.close()
    with pytest.raises(InvalidInput, match="frozen tensors"):
        training(tmp_path, model=frozen(1))
    with pytest.raises(InvalidInput, match=r"frozen tensors|another model"):
        training(tmp_path, model=small_model())
    model = frozen(0)
    with pytest.raises(InvalidInput, match="began with a scheduler"):
        PrivateTraining(
            model,
            torch.optim.AdamW([p for p in model.parameters() if p.requires_grad]),
            PLAN,
            loss=cross_entropy,
            folder=tmp_path,
        )
    assert training(tmp_path, model=frozen(0)).round == 1


def test_a_buffer_that_training_changed_is_neither_saved_nor_released(tmp_path: Path) -> None:
    model = small_model()
    model.register_buffer("seen", torch.zeros(1))
    model.register_buffer("cache", torch.zeros(1), persistent=False)
    private = training(tmp_path, model=model)
    train(private, DATA, until=1)
    model.get_buffer("cache").add_(1)
    private.save()
    train(private, DATA, until=2)
    model.get_buffer("seen").add_(1)
    with pytest.raises(InvalidInput, match="changed a buffer"):
        private.release()
    assert not (tmp_path / "release").exists()

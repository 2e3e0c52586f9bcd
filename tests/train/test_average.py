"""The mean of the last iterates: what it is the mean of, that training does not feel it, and that it is what leaves."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from private_runs import DATA, PLAN, parameters, training
from reference import small_model, train
from torch import nn
from trainers import ROUNDS, Stops, Watches, assert_same, trainer_for, weights
from transformers import AutoModelForCausalLM, TrainerCallback

import hush
from hush.errors import InvalidInput
from hush.train.average import IterateAverage
from hush.train.private_training import PrivateTraining

ALL = PLAN.rounds


def iterates(private: PrivateTraining, *, until: int = ALL) -> list[torch.Tensor]:
    """The model after each round that is left."""
    found: list[torch.Tensor] = []
    while private.round < until:
        train(private, DATA, until=private.round + 1)
        found.append(parameters(private))
    return found


def released(folder: Path) -> torch.Tensor:
    from safetensors.torch import load_file

    stored = load_file(next(folder.glob("*.safetensors")))
    return torch.cat([stored[name].flatten() for name, _ in small_model().named_parameters()])


@given(st.lists(st.floats(-10, 10, width=32), min_size=1, max_size=40), st.floats(0.01, 1))
def test_it_is_the_mean_of_the_last_share(steps: list[float], share: float) -> None:
    model = nn.Linear(1, 1, bias=False)
    average = IterateAverage(model, dict(model.named_parameters()), share=share, rounds=len(steps))
    for done, value in enumerate(steps, start=1):
        nn.init.constant_(model.weight, value)
        average.update(done)
    last = steps[-max(1, round(share * len(steps))) :]
    assert average.count == len(last)
    with average.shown():
        assert model.weight.item() == pytest.approx(np.mean(last), abs=1e-4)
    assert model.weight.item() == np.float32(steps[-1])


@pytest.mark.parametrize("share", [0.25, 1.0])
def test_the_released_model_is_the_mean_and_training_does_not_feel_it(tmp_path: Path, share: float) -> None:
    plain = training(tmp_path / "plain", insecure_seed=3)
    torch.manual_seed(0)
    expected = iterates(plain)
    averaged = training(tmp_path / "averaged", insecure_seed=3, average=share)
    torch.manual_seed(0)
    found: list[torch.Tensor] = []
    on_the_way: list[torch.Tensor] = []
    while averaged.round < ALL:
        found += iterates(averaged, until=averaged.round + 1)
        on_the_way.append(released(averaged.release()))
        assert torch.equal(parameters(averaged), found[-1])  # to the last bit
    assert all(torch.equal(*pair) for pair in zip(found, expected, strict=True))
    averaged.finish()
    first = ALL - int(share * ALL)
    for round, seen in enumerate(on_the_way, start=1):
        part = expected[first:round] if round > first else expected[round - 1 : round]
        torch.testing.assert_close(seen, torch.stack(part).mean(0), rtol=1e-5, atol=1e-6)
    final = released(tmp_path / "averaged" / "release" / "model")
    assert torch.equal(final, on_the_way[-1])
    assert torch.equal(parameters(averaged), final)
    assert not torch.equal(final, expected[-1])


@pytest.mark.parametrize("stops", [[5], [1, 8, 11]])
def test_a_resumed_mean_is_that_of_an_uninterrupted_run_bit_for_bit(tmp_path: Path, stops: list[int]) -> None:
    finals: list[torch.Tensor] = []
    for folder, pauses in ((tmp_path / "whole", []), (tmp_path / "parts", stops)):
        torch.manual_seed(3)
        private = training(folder, insecure_seed=7, average=0.5)
        for stop in pauses:
            train(private, DATA, until=stop)
            private.save()
            private.close()
            torch.manual_seed(99)  # another process
            private = training(folder, insecure_seed=7, average=0.5)
        train(private, DATA)
        private.finish()
        finals.append(released(folder / "release" / "model"))
    assert torch.equal(*finals)


def test_a_pending_release_of_a_killed_run_is_the_mean(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    private = training(tmp_path, insecure_seed=7, average=1.0)
    found = iterates(private, until=6)

    def killed(*_: Any) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr("hush.train.run_folder.RunFolder._write", killed)
        with pytest.raises(KeyboardInterrupt):
            private.release()
    private.close()
    training(tmp_path, insecure_seed=7, average=1.0).close()
    seen = released(tmp_path / "release" / "round-000006")
    torch.testing.assert_close(seen, torch.stack(found).mean(0), rtol=1e-5, atol=1e-6)


def test_another_share_or_none_is_refused(tmp_path: Path) -> None:
    for folder, began in (("mean", 0.5), ("last", None)):
        private = training(tmp_path / folder, average=began)
        train(private, DATA, until=2)
        private.save()
        private.close()
        for other in {0.25, 0.5, None} - {began}:
            with pytest.raises(InvalidInput, match="resume it as it began"):
                training(tmp_path / folder, average=other)
    for wrong in (0.0, 1.5, float("nan")):
        with pytest.raises(InvalidInput, match="average="):
            training(tmp_path / "wrong", average=wrong)


def test_scores_are_of_the_mean(tmp_path: Path) -> None:
    private = training(tmp_path, insecure_seed=1, average=1.0)
    found = iterates(private, until=5)
    with private.released_model():
        torch.testing.assert_close(parameters(private), torch.stack(found).mean(0), rtol=1e-5, atol=1e-6)
        with private.released_model():
            torch.testing.assert_close(parameters(private), torch.stack(found).mean(0), rtol=1e-5, atol=1e-6)
    assert torch.equal(parameters(private), found[-1])


class Sees(TrainerCallback):
    """The model after each round, and the one that is evaluated."""

    def __init__(self) -> None:
        self.iterates: list[dict[str, torch.Tensor]] = []

    def on_step_end(self, *args: Any, model: Any = None, **_: Any) -> None:
        self.iterates.append(weights(model))


def means(seen: list[dict[str, torch.Tensor]]) -> dict[str, torch.Tensor]:
    return {name: torch.stack([one[name] for one in seen]).mean(0) for name in seen[0]}


def close(one: dict[str, torch.Tensor], other: dict[str, torch.Tensor]) -> bool:
    return all(torch.allclose(one[name], other[name], rtol=1e-5, atol=1e-6) for name in other)


def test_the_trainer_saves_scores_and_releases_the_mean(plan: hush.Plan, tmp_path: Path) -> None:
    sees, watches = Sees(), Watches()
    settings = {"save_strategy": "steps", "save_steps": 2, "eval_strategy": "steps", "eval_steps": 3}
    scored: list[dict[str, torch.Tensor]] = []

    class Scores(TrainerCallback):
        def on_prediction_step(self, *args: Any, model: Any = None, **_: Any) -> None:
            scored.append(weights(model))

    trainer = trainer_for(
        plan, tmp_path / "out", settings=settings, average=1.0, callbacks=[sees, watches, Scores()],
        eval_dataset=[{"input_ids": [1, 2, 3], "labels": [1, 2, 3]}] * 2, eval_is_public=True,
    )  # fmt: skip
    trainer.train()
    for step in (2, 4, 6):
        saved = weights(AutoModelForCausalLM.from_pretrained(tmp_path / "out" / f"checkpoint-{step}"))
        assert close(saved, means(sees.iterates[:step]))
    assert close(scored[0], means(sees.iterates[:3]))
    final = weights(AutoModelForCausalLM.from_pretrained(tmp_path / "out-hush" / "release" / "model"))
    assert_same(final, weights(trainer.model))
    assert close(final, means(sees.iterates))
    trainer.save_model(str(tmp_path / "again"))
    assert_same(weights(AutoModelForCausalLM.from_pretrained(tmp_path / "again")), final)
    assert not close(final, sees.iterates[-1])


def test_a_trainer_that_stopped_early_and_resumed_ends_with_the_same_mean(plan: hush.Plan, tmp_path: Path) -> None:
    settings = {"save_strategy": "steps", "save_steps": 2}
    whole = trainer_for(plan, tmp_path / "whole", settings=settings, average=0.8)
    whole.train()
    trainer_for(plan, tmp_path / "parts", settings=settings, average=0.8, callbacks=[Stops(3)]).train()
    resumed = trainer_for(plan, tmp_path / "parts", settings=settings, average=0.8)
    resumed.train(resume_from_checkpoint=True)
    assert resumed.state.global_step == ROUNDS
    assert_same(weights(whole.model), weights(resumed.model))

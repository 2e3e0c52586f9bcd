"""HushTrainer after a crash or an early end: it goes on as if nothing had happened, and overwrites nothing."""

import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from models import tiny
from trainers import ROUNDS, Dies, Stops, assert_same, texts, trainer_for, weights
from transformers import AutoModelForCausalLM, TrainerCallback, TrainerState

import hush
from hush.errors import InvalidInput
from hush.train.hf.releases import Releases
from hush.train.hf.trainer import HushTrainer
from hush.train.private_training import PrivateTraining
from hush.train.run_folder import RunLog


@pytest.mark.parametrize(("crash", "lora"), [(1, False), (3, False), (4, True)])
def test_a_resumed_run_equals_an_uninterrupted_one(plan: hush.Plan, tmp_path: Path, crash: int, lora: bool) -> None:
    settings = {"save_strategy": "steps", "save_steps": 2}

    def one(output: str, **more: Any) -> HushTrainer:
        return trainer_for(
            plan, tmp_path / output, model=tiny("llama", lora=lora, dropout=0.2), settings=settings, **more
        )

    whole = one("whole")
    whole.train()
    broken = one("broken", callbacks=[Dies(crash)])
    with pytest.raises(RuntimeError, match="crash"):
        broken.train()
    resumed = one("broken")
    if crash > 1:
        resumed.train(resume_from_checkpoint=True)
    else:
        resumed.train()  # nothing was saved or released yet
    assert resumed.state.global_step == ROUNDS
    assert_same(weights(whole.model), weights(resumed.model))
    assert sorted(path.name for path in (tmp_path / "broken").iterdir()) == [f"checkpoint-{n}" for n in (2, 4, 6)]
    records = RunLog.read(tmp_path / "broken-hush/owner/rounds.jsonl")
    assert [record.round for record in records] == list(range(1, ROUNDS + 1))


def test_a_checkpoint_can_be_named_if_it_is_the_newest(plan: hush.Plan, tmp_path: Path) -> None:
    settings = {"save_strategy": "steps", "save_steps": 2}
    with pytest.raises(RuntimeError, match="crash"):
        trainer_for(plan, tmp_path / "out", settings=settings, callbacks=[Dies(5)]).train()
    with pytest.raises(InvalidInput, match="not the newest"):
        trainer_for(plan, tmp_path / "out", settings=settings).train(str(tmp_path / "out/checkpoint-2"))
    output = trainer_for(plan, tmp_path / "out", settings=settings).train(str(tmp_path / "out/checkpoint-4"))
    assert output.global_step == ROUNDS


@pytest.mark.parametrize(("owner", "method"), [(Releases, "publish"), (HushTrainer, "_export")])
def test_a_checkpoint_that_a_crash_kept_back_appears_when_resumed(
    plan: hush.Plan, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, owner: type, method: str
) -> None:
    settings = {"save_strategy": "steps", "save_steps": 2}
    trainer_for(plan, tmp_path / "whole", settings=settings).train()

    broken = trainer_for(plan, tmp_path / "broken", settings=settings)
    original: Callable[..., None] = getattr(owner, method)

    def dies(self: Any, *args: Any) -> None:
        if broken.private is not None and broken.private.round == 2:
            raise RuntimeError("crash")
        original(self, *args)

    with monkeypatch.context() as patch:
        patch.setattr(owner, method, dies)
        with pytest.raises(RuntimeError, match="crash"):
            broken.train()
    assert not (tmp_path / "broken/checkpoint-2").exists()
    trainer_for(plan, tmp_path / "broken", settings=settings).train(resume_from_checkpoint=True)
    for step in (2, 4, 6):
        one, other = (
            AutoModelForCausalLM.from_pretrained(tmp_path / kind / f"checkpoint-{step}") for kind in ("whole", "broken")
        )
        assert_same(weights(one), weights(other))


def test_a_run_that_was_stopped_early_may_be_saved_and_resumed(plan: hush.Plan, tmp_path: Path) -> None:
    whole = trainer_for(plan, tmp_path / "whole")
    whole.train()
    stopped = trainer_for(plan, tmp_path / "out", callbacks=[Stops(4)])
    stopped.train()
    assert stopped.certificate is None
    stopped.save_model(str(tmp_path / "saved"))
    assert_same(weights(AutoModelForCausalLM.from_pretrained(tmp_path / "saved")), weights(stopped.model))
    resumed = trainer_for(plan, tmp_path / "out")
    resumed.train(resume_from_checkpoint=True)
    assert resumed.certificate is not None
    assert_same(weights(whole.model), weights(resumed.model))


def test_a_run_that_died_at_its_very_end_is_finished_when_resumed(
    plan: hush.Plan, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    settings = {"save_strategy": "steps", "save_steps": 4}
    broken = trainer_for(plan, tmp_path / "out", settings=settings)
    with monkeypatch.context() as patch:
        patch.setattr(PrivateTraining, "finish", lambda self: 1 / 0)
        with pytest.raises(ZeroDivisionError):
            broken.train()
    resumed = trainer_for(plan, tmp_path / "out", settings=settings)
    assert resumed.train(resume_from_checkpoint=True).global_step == ROUNDS
    assert resumed.certificate is not None
    assert_same(weights(broken.model), weights(resumed.model))


def test_a_used_folder_is_resumed_or_refused_never_overwritten(plan: hush.Plan, tmp_path: Path) -> None:
    settings = {"save_strategy": "steps", "save_steps": 2}
    trainer_for(plan, tmp_path / "out", settings=settings).train()
    with pytest.raises(InvalidInput, match="holds an earlier training"):
        trainer_for(plan, tmp_path / "out", settings=settings).train()
    shutil.rmtree(tmp_path / "out-hush")
    with pytest.raises(InvalidInput, match="checkpoint-6 holds an earlier training"):
        trainer_for(plan, tmp_path / "out", settings=settings).train()
    with pytest.raises(InvalidInput, match="nothing to resume from"):
        trainer_for(plan, tmp_path / "out", settings=settings).train(resume_from_checkpoint=True)


def test_an_owners_folder_that_is_older_than_a_released_checkpoint_is_refused(plan: hush.Plan, tmp_path: Path) -> None:
    settings = {"save_strategy": "steps", "save_steps": 2}
    trainer_for(plan, tmp_path / "out", settings=settings, callbacks=[Stops(2)]).train()
    shutil.copytree(tmp_path / "out-hush", tmp_path / "backup")
    trainer_for(plan, tmp_path / "out", settings=settings, callbacks=[Stops(4)]).train(resume_from_checkpoint=True)
    shutil.rmtree(tmp_path / "out-hush")
    shutil.move(tmp_path / "backup", tmp_path / "out-hush")
    with pytest.raises(
        InvalidInput, match=r"checkpoint-4 was released, but the newest undamaged state .* is of round 2"
    ):
        trainer_for(plan, tmp_path / "out", settings=settings).train(resume_from_checkpoint=True)


class Scores(TrainerCallback):
    """A score that is best in this round."""

    def __init__(self, round: int) -> None:
        self.round = round

    def on_evaluate(self, args: Any, state: TrainerState, control: Any, metrics: Any = None, **_: Any) -> None:
        metrics["eval_set"] = float(state.global_step == self.round)


def test_the_best_model_is_found_again_though_no_checkpoint_says_where_it_lies(plan: hush.Plan, tmp_path: Path) -> None:
    settings = {
        "eval_strategy": "steps", "eval_steps": 2, "save_strategy": "steps", "save_steps": 2,
        "load_best_model_at_end": True, "metric_for_best_model": "set", "greater_is_better": True,
    }  # fmt: skip

    def trainer(*callbacks: TrainerCallback) -> HushTrainer:
        scored = {"eval_dataset": texts(1), "eval_is_public": True, "callbacks": [Scores(2), *callbacks]}
        return trainer_for(plan, tmp_path / "out", settings=settings, **scored)

    with pytest.raises(RuntimeError, match="crash"):
        trainer(Dies(5)).train()
    second = trainer()
    second.train(resume_from_checkpoint=True)
    best = tmp_path / "out" / "checkpoint-2"
    assert second.state.best_model_checkpoint == str(best)
    assert_same(weights(AutoModelForCausalLM.from_pretrained(best)), weights(second.model))
    states = sorted((tmp_path / "out").rglob("trainer_state.json"))
    assert len(states) == 3
    assert all(str(tmp_path) not in path.read_text() for path in states)

"""Who sees what of a run of HushTrainer: nothing of the draw but for the owner, scores by the data that they are of."""

import json
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from models import LENGTH, PADDING, tiny
from trainers import EXAMPLES, ROUNDS, Dies, Logger, Watches, assert_same, texts, trainer_for, weights
from transformers import AutoModelForCausalLM, EarlyStoppingCallback, TrainerCallback, TrainerState

import hush
from hush.train.language_models import CausalCollator


def test_nothing_that_others_see_depends_on_draw_or_data(plan: hush.Plan, tmp_path: Path) -> None:
    seen = []
    for run, (seed, data) in enumerate([(1, texts(1)), (2, texts(2))]):
        output = tmp_path / f"{run}" / "out"
        settings = {"save_strategy": "steps", "save_steps": 2, "logging_first_step": True}
        watcher = Watches()
        trainer = trainer_for(
            plan, output, settings=settings, insecure_seed=seed, train_dataset=data, eval_dataset=texts(3),
            callbacks=[watcher],
        )  # fmt: skip
        result = trainer.train()
        trainer.evaluate()
        trainer.save_state()
        assert {log for entry in watcher.logs for log in entry} == {"learning_rate", "epoch"}
        states = [path.read_text() for path in sorted(output.rglob("trainer_state.json"))]
        times = {path.stat().st_mtime for path in output.rglob("*") if path.parent != output}
        seen.append((watcher.logs, str(result), states, times, trainer.state.log_history))
        assert len(states) == 4
    assert seen[0] == seen[1]


def test_tensorboard_shows_learning_rates_and_nothing_of_the_draw(plan: hush.Plan, tmp_path: Path) -> None:
    reading: Any = pytest.importorskip("tensorboard.backend.event_processing.event_accumulator")
    trainer_for(plan, tmp_path / "out", settings={"report_to": ["tensorboard"]}, eval_dataset=texts(1)).train()
    (events,) = (tmp_path / "out").rglob("events.out.tfevents.*")
    found = reading.EventAccumulator(str(events)).Reload().Tags()["scalars"]
    assert set(found) == {"train/learning_rate", "train/epoch"}


def test_scores_of_public_data_are_logged_after_their_round_is_entered(plan: hush.Plan, tmp_path: Path) -> None:
    class Checks(TrainerCallback):
        def on_log(self, args: Any, state: TrainerState, control: Any, logs: Any = None, **_: Any) -> None:
            if "eval_loss" in logs:
                ledger = json.loads((tmp_path / "out-hush/owner/run.json").read_text())
                entered.append((state.global_step, ledger["released"][-1]))

    entered: list[tuple[int, int]] = []
    settings = {"eval_strategy": "steps", "eval_steps": 2}
    trainer = trainer_for(
        plan,
        tmp_path / "out",
        settings=settings,
        eval_dataset=texts(1),
        eval_is_public=True,
        callbacks=[Checks()],
        compute_metrics=lambda _: {"of_each_class": [0.5, 1.0]},  # a list is no score to release, nor a reason to fail
    )
    trainer.train()
    assert entered == [(2, 2), (4, 4), (6, 6)]
    logged = {entry["step"]: entry["eval_loss"] for entry in trainer.state.log_history if "eval_loss" in entry}
    assert list(logged) == [2, 4, 6]
    lines = (tmp_path / "out-hush/release/evaluations.jsonl").read_text().splitlines()
    # Times are no scores: a round takes as long as its draw is large.
    assert [json.loads(line) for line in lines] == [{"eval_loss": logged[step], "round": step} for step in logged]


def test_scores_of_other_data_reach_the_owner_and_no_logger(plan: hush.Plan, tmp_path: Path) -> None:
    logger, watcher = Logger(), Watches()
    settings = {"eval_strategy": "steps", "eval_steps": 3, "metric_for_best_model": "loss"}
    trainer = trainer_for(plan, tmp_path / "out", settings=settings, eval_dataset=texts(1), callbacks=[logger, watcher])
    trainer.train()
    scores = trainer.evaluate()
    trainer.predict(texts(1))  # pyright: ignore[reportArgumentType]
    assert not any("loss" in name for entry in (*trainer.state.log_history, *logger.logs) for name in entry)
    assert trainer.state.best_metric is None
    assert not logger.scores
    assert "on_predict" not in logger.events
    assert "on_evaluate" in watcher.events
    assert "eval_loss" in scores
    lines = (tmp_path / "out-hush/owner/evaluations.jsonl").read_text().splitlines()
    assert [json.loads(line)["round"] for line in lines] == [3, 6]
    assert (tmp_path / "out-hush/owner/evaluations.jsonl").stat().st_mode & 0o077 == 0


def test_scores_of_a_round_that_a_crash_undid_reach_no_logger(plan: hush.Plan, tmp_path: Path) -> None:
    """Round 3 is done again with other noise, and whoever saw a score of the first one would have looked twice."""
    settings = {"save_strategy": "steps", "save_steps": 2}
    whole = trainer_for(plan, tmp_path / "whole", settings=settings)
    whole.train()
    logger, crash = Logger(), Dies(3)
    trainer = trainer_for(
        plan,
        tmp_path / "out",
        settings=settings,
        eval_dataset=texts(1),
        eval_is_public=True,
        callbacks=[logger, crash],
    )
    with pytest.raises(RuntimeError, match="crash"):
        trainer.train()
    assert "eval_loss" in trainer.evaluate()
    trainer.predict(texts(1))  # pyright: ignore[reportArgumentType]
    assert not logger.scores
    assert "on_predict" not in logger.events
    assert not any("eval_loss" in entry for entry in (*logger.logs, *trainer.state.log_history))
    trainer.remove_callback(crash)
    trainer.train(resume_from_checkpoint=True)
    trainer.evaluate()
    assert "eval_loss" in logger.logs[-1]
    assert_same(weights(trainer.model), weights(whole.model))


def test_the_evaluation_loss_is_the_models_own(plan: hush.Plan, tmp_path: Path) -> None:
    trainer = trainer_for(plan, tmp_path / "out", eval_dataset=texts(1), settings={"per_device_eval_batch_size": 1})
    found = trainer.evaluate()["eval_loss"]
    model = tiny("llama").eval()
    with torch.no_grad():
        batches = [CausalCollator(length=LENGTH, padding=PADDING)([texts(1)[row]]) for row in range(EXAMPLES)]
        expected = np.mean([model(**batch).loss.item() for batch in batches])
    assert found == pytest.approx(expected, rel=1e-5)


def test_the_best_model_by_a_public_score_may_be_kept(plan: hush.Plan, tmp_path: Path) -> None:
    settings = {
        "eval_strategy": "steps", "eval_steps": 2, "save_strategy": "steps", "save_steps": 2,
        "load_best_model_at_end": True, "save_total_limit": 1,
    }  # fmt: skip
    callbacks = [EarlyStoppingCallback(early_stopping_patience=3)]
    trainer = trainer_for(
        plan, tmp_path / "out", settings=settings, eval_dataset=texts(1), eval_is_public=True, callbacks=callbacks
    )
    trainer.train()
    best = trainer.state.best_model_checkpoint
    assert best is not None
    assert Path(best).parent == tmp_path / "out"
    assert_same(weights(AutoModelForCausalLM.from_pretrained(best)), weights(trainer.model))


@pytest.mark.parametrize("terminal", [True, False])
def test_the_owners_terminal_shows_the_private_numbers_and_a_log_does_not(
    plan: hush.Plan,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
    terminal: bool,
) -> None:
    settings = {"disable_tqdm": False, "eval_strategy": "steps", "eval_steps": ROUNDS}
    monkeypatch.setattr(sys.stderr, "isatty", lambda: terminal)
    trainer_for(plan, tmp_path / "out", settings=settings, eval_dataset=texts(1)).train()
    shown = "".join(capsys.readouterr())
    assert f"{ROUNDS}/{ROUNDS}" in shown
    words = ("loss=", "clipped=", "signal/noise=", "for the owner only: {'eval_loss'")
    assert [word in shown for word in words] == [terminal] * len(words)

"""HushTrainer: the plain loop's result, the Trainer's comforts, and nothing of the draw in what others may see."""

import json
import os
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from models import CLASSES, LENGTH, MASK, PADDING, VOCABULARY, tiny
from torch import nn
from transformers import (
    AutoModelForCausalLM,
    DataCollatorWithFlattening,
    EarlyStoppingCallback,
    Trainer,
    TrainerCallback,
    TrainerState,
    TrainingArguments,
    get_scheduler,
)

import hush
from hush.errors import InvalidInput
from hush.train.collate import CausalCollator, Collator, Corpus, MaskedCollator
from hush.train.language import default_loss
from hush.train.private import PrivateTraining
from hush.train.run_log import RunLog
from hush.train.trainer import HushTrainer
from hush.train.trainer_arguments import checked_settings
from hush.train.trainer_releases import Releases, move_into_place

EXAMPLES, ROUNDS = 40, 6


@pytest.fixture(scope="session")
def plan() -> hush.Plan:
    incidence = hush.Incidence.from_pairs([0, 1, 2, 5, 9], [0, 0, 1, 1, 1], num_examples=EXAMPLES, num_secrets=2)
    return hush.make_plan(incidence, prior=1e-6, ceiling=1e-2, rounds=ROUNDS, batch_size=8, clip_norm=1.0)


def texts(seed: int = 0) -> Corpus:
    random = np.random.default_rng(seed)
    return Corpus([random.integers(1, MASK, random.integers(3, LENGTH + 1)) for _ in range(EXAMPLES)])


def images() -> list[dict[str, Any]]:
    generator = torch.Generator().manual_seed(0)
    return [
        {"pixel_values": torch.randn(3, 8, 8, generator=generator), "labels": number % CLASSES, "note": "unused"}
        for number in range(EXAMPLES)
    ]


def collator(name: str) -> Collator | None:
    if name == "bert":
        return MaskedCollator(length=LENGTH, padding=PADDING, mask=MASK, vocabulary=VOCABULARY, share=0.5)
    return None if name == "vit" else CausalCollator(length=LENGTH, padding=PADDING)


def arguments(output: Path, **more: Any) -> TrainingArguments:
    usual: dict[str, Any] = {
        "output_dir": str(output),
        "per_device_train_batch_size": 4,
        "learning_rate": 0.1,
        "logging_steps": 1,
        "save_strategy": "no",
        "report_to": [],
        "use_cpu": True,
        "disable_tqdm": True,
    }
    return TrainingArguments(**usual | more)


def trainer_for(
    plan: hush.Plan,
    output: Path,
    *,
    name: str = "llama",
    model: nn.Module | None = None,
    settings: dict[str, Any] | None = None,
    **more: Any,
) -> HushTrainer:
    """A trainer of a tiny model with SGD, draws and noise fixed, that saves only when told to."""
    model = tiny(name) if model is None else model
    usual: dict[str, Any] = {
        "train_dataset": images() if name == "vit" else texts(),
        "data_collator": collator(name),
        "optimizers": (torch.optim.SGD([p for p in model.parameters() if p.requires_grad], lr=0.1, momentum=0.9), None),
        "insecure_seed": 7,
    }
    return HushTrainer(model, arguments(output, **settings or {}), plan=plan, **usual | more)


def weights(model: Any) -> dict[str, torch.Tensor]:
    return {name: parameter.detach().clone() for name, parameter in model.named_parameters()}


def assert_same(one: dict[str, torch.Tensor], other: dict[str, torch.Tensor]) -> None:
    assert one.keys() == other.keys()
    assert all(torch.equal(one[name], other[name]) for name in one)


class Dies(TrainerCallback):
    """A crash after this round."""

    def __init__(self, round: int) -> None:
        self.round = round

    def on_step_end(self, args: Any, state: TrainerState, control: Any, **_: Any) -> None:
        if state.global_step == self.round:
            raise RuntimeError("crash")


class Stops(Dies):
    """An end before the last round, as a time limit would set."""

    def on_step_end(self, args: Any, state: TrainerState, control: Any, **_: Any) -> None:
        control.should_training_stop = state.global_step == self.round


class Watches(TrainerCallback):
    """Everything that a logger or a callback is told."""

    def __init__(self) -> None:
        self.events: list[str] = []
        self.logs: list[dict[str, float]] = []
        self.scores: list[dict[str, float]] = []

    def __getattribute__(self, name: str) -> Any:
        if name.startswith("on_"):
            self.events.append(name)
        return super().__getattribute__(name)

    def on_log(self, args: Any, state: Any, control: Any, logs: Any = None, **_: Any) -> None:
        self.logs.append(dict(logs))

    def on_evaluate(self, args: Any, state: Any, control: Any, metrics: Any = None, **_: Any) -> None:
        self.scores.append(dict(metrics))


class Logger(Watches):
    """One that counts as a logger of the Trainer's own."""

    __module__ = "transformers.integrations.integration_utils"


@pytest.mark.parametrize(("name", "lora"), [("llama", False), ("llama", True), ("bert", False), ("vit", False)])
def test_the_trainer_does_what_the_plain_loop_does(plan: hush.Plan, tmp_path: Path, name: str, lora: bool) -> None:
    trainer = trainer_for(plan, tmp_path / "out", name=name, model=tiny(name, lora=lora))
    trainer.train()

    model, data, collate = tiny(name, lora=lora), images() if name == "vit" else texts(), collator(name)
    optimizer = torch.optim.SGD([p for p in model.parameters() if p.requires_grad], lr=0.1, momentum=0.9)
    schedule = get_scheduler("linear", optimizer, num_warmup_steps=0, num_training_steps=ROUNDS)
    private = PrivateTraining(
        model, optimizer, plan, loss=default_loss(model), micro_batch=4, scheduler=schedule, insecure_seed=7
    )
    for round in private.rounds():
        for examples in round.micro_batches():
            rows: list[Any] = [data[number] for number in examples.examples.tolist()]
            if collate is None:
                batch = {
                    "pixel_values": torch.stack([row["pixel_values"] for row in rows]),
                    "labels": torch.tensor([row["labels"] for row in rows]),
                }
            else:
                batch = collate(rows, examples=examples.examples, round=round.index)
            private.accumulate(batch, examples.real)
        private.step()
    assert_same(weights(trainer.model), weights(model))
    assert not torch.equal(weights(model)[private_name(model)], weights(tiny(name, lora=lora))[private_name(model)])


def private_name(model: nn.Module) -> str:
    return next(name for name, parameter in model.named_parameters() if parameter.requires_grad)


def test_micro_batches_and_buckets_change_only_rounding(plan: hush.Plan, tmp_path: Path) -> None:
    once, cut = (trainer_for(plan, tmp_path / kind, settings={"per_device_train_batch_size": size}, buckets=buckets)
                 for kind, size, buckets in (("once", 32, ()), ("cut", 3, (5, 9, LENGTH))))  # fmt: skip
    once.train()
    cut.train()
    torch.testing.assert_close(weights(once.model), weights(cut.model), rtol=1e-3, atol=1e-5)


def test_callbacks_fire_once_a_round_and_around_saves_and_evaluations(plan: hush.Plan, tmp_path: Path) -> None:
    watcher = Watches()
    settings = {"save_strategy": "steps", "save_steps": 2, "eval_strategy": "steps", "eval_steps": 3}
    trainer_for(
        plan, tmp_path / "out", settings=settings, callbacks=[watcher], eval_dataset=texts(1), eval_is_public=True
    ).train()
    for event in ("on_step_begin", "on_pre_optimizer_step", "on_optimizer_step", "on_step_end"):
        assert watcher.events.count(event) == ROUNDS
    for event, times in (("on_save", 3), ("on_evaluate", 2), ("on_train_begin", 1), ("on_train_end", 1)):
        assert watcher.events.count(event) == times


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


def test_a_checkpoint_appears_whole_on_another_disk_too(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    staged, target = tmp_path / "staged", tmp_path / "target"
    staged.mkdir()
    (staged / "trainer_state.json").write_text("{}")
    os.utime(staged / "trainer_state.json", (1e9, 1e9))
    rename = Path.rename

    def other_disk(self: Path, to: Path) -> Path:
        if self == staged:
            raise OSError("Invalid cross-device link")
        return rename(self, to)

    monkeypatch.setattr(Path, "rename", other_disk)
    move_into_place(staged, target)
    assert (target / "trainer_state.json").read_text() == "{}"
    assert (target.stat().st_mtime, (target / "trainer_state.json").stat().st_mtime) == (1e9, 1e9)
    assert not list(staged.iterdir())


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


def test_a_model_that_no_ledger_knows_is_not_saved(plan: hush.Plan, tmp_path: Path) -> None:
    broken = trainer_for(plan, tmp_path / "out", callbacks=[Dies(3)])
    with pytest.raises(RuntimeError, match="crash"):
        broken.train()
    with pytest.raises(InvalidInput, match="after round 3 without releasing it"):
        broken.save_model(str(tmp_path / "saved"))


def test_what_is_saved_on_the_way_is_released_first(plan: hush.Plan, tmp_path: Path) -> None:
    class Saves(TrainerCallback):
        def on_step_end(self, args: Any, state: TrainerState, control: Any, **_: Any) -> None:
            if state.global_step == 3:
                trainer.save_model(str(tmp_path / "saved"))
                ledger = json.loads((tmp_path / "out-hush/owner/run.json").read_text())
                assert ledger["released"] == [3]

    trainer = trainer_for(plan, tmp_path / "out", callbacks=[Saves()])
    trainer.train()
    assert (tmp_path / "saved/config.json").exists()


def test_an_upload_is_entered_first_and_leaves_from_where_checkpoints_stay(
    plan: hush.Plan, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    released, sent = [], []

    def ledger() -> list[int]:
        return json.loads((tmp_path / "out-hush/owner/run.json").read_text())["released"]

    monkeypatch.setattr(Trainer, "push_to_hub", lambda self, *args: released.append(ledger()))
    monkeypatch.setattr(Trainer, "_push_from_checkpoint", lambda self, path: sent.append((path, Path(path).is_dir())))

    class Pushes(TrainerCallback):
        def on_step_end(self, args: Any, state: TrainerState, control: Any, **_: Any) -> None:
            if state.global_step == 1:
                trainer.args.push_to_hub = True  # the constructor would look for the hub
            if state.global_step == 3:
                trainer.push_to_hub("on the way")

    settings = {"save_strategy": "steps", "save_steps": 2}
    trainer = trainer_for(plan, tmp_path / "out", settings=settings, callbacks=[Pushes()])
    trainer.train()
    assert released == [[2, 3]]
    assert sent == [(str(tmp_path / "out" / f"checkpoint-{step}"), True) for step in (2, 4, 6)]


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


def test_released_checkpoints_hold_neither_random_states_nor_losses(plan: hush.Plan, tmp_path: Path) -> None:
    trainer_for(plan, tmp_path / "out", settings={"save_strategy": "steps", "save_steps": 3}).train()
    usual = {"config.json", "generation_config.json", "model.safetensors", "trainer_state.json"}
    for path in (tmp_path / "out").iterdir():
        assert {file.name for file in path.iterdir()} == usual
    released = {path.name for path in (tmp_path / "out-hush/release/model").iterdir()}
    assert released == usual - {"trainer_state.json"}
    records = RunLog.read(tmp_path / "out-hush/owner/rounds.jsonl")
    assert len(records) == ROUNDS
    assert (tmp_path / "out-hush/owner").stat().st_mode & 0o077 == 0
    for folder in (tmp_path / "out", tmp_path / "out-hush/release"):
        contents = [path.read_bytes() for path in folder.rglob("*") if path.is_file()]
        for record in records:
            assert not any(str(record.loss)[:8].encode() in content for content in contents)


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


def test_released_models_are_read_by_from_pretrained(plan: hush.Plan, tmp_path: Path) -> None:
    trainer = trainer_for(plan, tmp_path / "out", settings={"save_strategy": "steps", "save_steps": ROUNDS})
    trainer.train()
    trainer.save_model(str(tmp_path / "saved"))
    for folder in (tmp_path / "saved", tmp_path / "out" / f"checkpoint-{ROUNDS}", tmp_path / "out-hush/release/model"):
        assert_same(weights(AutoModelForCausalLM.from_pretrained(folder)), weights(trainer.model))


def test_released_adapters_are_read_by_peft(plan: hush.Plan, tmp_path: Path) -> None:
    from peft import PeftModel

    trainer = trainer_for(plan, tmp_path / "out", model=tiny("llama", lora=True))
    trainer.train()
    read = PeftModel.from_pretrained(tiny("llama"), tmp_path / "out-hush/release/model")  # pyright: ignore[reportArgumentType]
    assert_same(weights(read), weights(trainer.model))


def test_the_certificate_is_real_only_without_a_fixed_seed(plan: hush.Plan, tmp_path: Path) -> None:
    fixed, real = (trainer_for(plan, tmp_path / f"{seed}", insecure_seed=seed) for seed in (7, None))
    for trainer in (fixed, real):
        trainer.train()
    assert fixed.certificate is not None
    assert not fixed.certificate.is_real
    assert real.certificate is not None
    assert real.certificate.is_real
    assert (tmp_path / "None-hush/release/certificate.json").exists()


def test_old_checkpoints_make_room_by_number(plan: hush.Plan, tmp_path: Path) -> None:
    settings = {"save_strategy": "steps", "save_steps": 1, "save_total_limit": 2}
    trainer_for(plan, tmp_path / "out", settings=settings).train()
    assert sorted(path.name for path in (tmp_path / "out").iterdir()) == ["checkpoint-5", "checkpoint-6"]


def test_rounds_without_a_single_example_are_rounds(tmp_path: Path) -> None:
    incidence = hush.Incidence.from_pairs([0], [0], num_examples=EXAMPLES, num_secrets=1)
    sparse = hush.make_plan(incidence, prior=1e-6, ceiling=1e-2, rounds=ROUNDS, batch_size=0.5)
    trainer = trainer_for(sparse, tmp_path / "out")
    trainer.train()
    sizes = [record.examples for record in RunLog.read(tmp_path / "out-hush/owner/rounds.jsonl")]
    assert len(sizes) == ROUNDS
    assert 0 in sizes


def test_bf16_becomes_the_clippers_autocast_and_the_evaluations(plan: hush.Plan, tmp_path: Path) -> None:
    dtypes = []

    def loss(model: nn.Module, batch: Any) -> torch.Tensor:
        dtypes.append((torch.is_autocast_enabled("cpu"), torch.get_autocast_dtype("cpu")))
        return default_loss(model)(model, batch)

    trainer = trainer_for(plan, tmp_path / "out", settings={"bf16": True}, loss=loss, eval_dataset=texts(1))
    trainer.train()
    assert set(dtypes) == {(True, torch.bfloat16)}
    assert "forward" not in vars(trainer.model)  # accelerate wraps nothing a second time
    plain = trainer_for(plan, tmp_path / "plain", model=trainer.model, eval_dataset=texts(1))
    assert trainer.evaluate()["eval_loss"] != plain.evaluate()["eval_loss"]


def test_compiling_is_left_to_the_clipper(plan: hush.Plan, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for variable in ("BACKEND", "MODE"):  # the arguments set them for the whole process; this puts them back
        monkeypatch.setenv(f"ACCELERATE_DYNAMO_{variable}", "no" if variable == "BACKEND" else "default")
    settings = checked_settings(
        arguments(tmp_path / "out", torch_compile=True), plan, callbacks=(), eval_is_public=False
    )
    assert settings.compile
    trainer = trainer_for(plan, tmp_path / "out", settings={"torch_compile": True})
    plugin: Any = trainer.accelerator.state.dynamo_plugin
    assert plugin.backend.value == "NO"


def test_the_trainers_own_optimizer_schedule_and_collator_serve(plan: hush.Plan, tmp_path: Path) -> None:
    rows = [{"input_ids": list(texts()[number]["input_ids"]), "extra": "unused"} for number in range(EXAMPLES)]

    class Pads:
        """As a tokenizer's collator, which pads to the longest."""

        def __call__(self, features: list[dict[str, Any]]) -> dict[str, torch.Tensor]:
            assert all(feature.keys() == {"input_ids"} for feature in features)
            return CausalCollator(length=LENGTH, padding=PADDING)(features)

    settings = {"lr_scheduler_type": "cosine", "warmup_steps": 2, "weight_decay": 0.1}
    trainer = trainer_for(
        plan, tmp_path / "out", train_dataset=rows, data_collator=Pads(), settings=settings, optimizers=(None, None)
    )
    trainer.train()
    rates = [entry["learning_rate"] for entry in trainer.state.log_history]
    assert rates[0] == 0
    assert rates[2] == max(rates) == pytest.approx(0.1)
    assert not torch.equal(weights(trainer.model)["lm_head.weight"], weights(tiny("llama"))["lm_head.weight"])


def test_the_owners_terminal_shows_the_private_numbers(
    plan: hush.Plan, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    settings = {"disable_tqdm": False, "eval_strategy": "steps", "eval_steps": ROUNDS}
    trainer_for(plan, tmp_path / "out", settings=settings, eval_dataset=texts(1)).train()
    shown = "".join(capsys.readouterr())
    assert all(word in shown for word in ("loss=", "clipped=", "signal/noise=", "for the owner only: {'eval_loss'"))


PUBLIC_SCORES: dict[str, Any] = {"eval_strategy": "steps", "eval_steps": 2, "save_steps": 2}


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"max_steps": 5}, "max_steps=5, but the plan has 6 rounds"),
        ({"num_train_epochs": 1.0}, "there are no epochs"),
        ({"gradient_accumulation_steps": 2}, "the draw decides"),
        ({"train_sampling_strategy": "group_by_length"}, "the plan says how examples are drawn"),
        ({"fp16": True}, "loss scaler"),
        ({"label_smoothing_factor": 0.1}, "ties examples together"),
        ({"neftune_noise_alpha": 5.0}, "padded length"),
        ({"optim": "lomo"}, "during the backward pass"),
        ({"optim": "galore_adamw_layerwise"}, "during the backward pass"),
        ({"include_num_input_tokens_seen": "all"}, "realised batch sizes"),
        ({"auto_find_batch_size": True}, "starts the training again"),
        ({"enable_jit_checkpoint": True}, "in the middle of a round"),
        ({"load_best_model_at_end": True, "save_strategy": "steps", **PUBLIC_SCORES}, "chooses the model by a score"),
        ({"save_strategy": "best", "metric_for_best_model": "loss", **PUBLIC_SCORES}, "chooses what is saved"),
        ({"lr_scheduler_type": "reduce_lr_on_plateau", **PUBLIC_SCORES}, "sets the learning rate by a score"),
    ],
)
def test_arguments_that_break_the_guarantee_are_refused(
    plan: hush.Plan, tmp_path: Path, settings: dict[str, Any], message: str
) -> None:
    with pytest.raises(InvalidInput, match=message):
        trainer_for(plan, tmp_path / "out", settings=settings, eval_dataset=texts(1))
    assert not (tmp_path / "out-hush").exists()


def test_arguments_that_agree_with_the_plan_are_accepted_and_left_alone(plan: hush.Plan, tmp_path: Path) -> None:
    args = arguments(tmp_path / "out", max_steps=ROUNDS)
    model = tiny("llama")
    trainer = HushTrainer(model, args, plan=plan, train_dataset=texts(), data_collator=collator("llama"))
    assert trainer.args.max_grad_norm == 0
    assert not trainer.model_accepts_loss_kwargs
    assert (args.max_grad_norm, args.save_only_model) == (1.0, False)


@pytest.mark.parametrize(
    ("flag", "value", "message"),
    [
        ("use_liger_kernel", True, "normalise over the batch"),
        ("fsdp", True, "reduce raw gradients"),
        ("deepspeed", "ds.json", "reduce raw gradients"),
        ("_n_gpu", 2, "runs on one device"),
    ],
)
def test_machinery_that_goes_around_the_clipped_sums_is_refused(
    plan: hush.Plan, tmp_path: Path, flag: str, value: Any, message: str
) -> None:
    args = arguments(tmp_path / "out")
    setattr(args, flag, value)  # their own checks need libraries and machines that are not here
    with pytest.raises(InvalidInput, match=message):
        HushTrainer(tiny("llama"), args, plan=plan, train_dataset=texts(), data_collator=collator("llama"))


@pytest.mark.parametrize("callback", [EarlyStoppingCallback, EarlyStoppingCallback(2)])
def test_early_stopping_by_scores_that_are_not_public_is_refused(
    plan: hush.Plan, tmp_path: Path, callback: Any
) -> None:
    with pytest.raises(InvalidInput, match=r"EarlyStoppingCallback ends the training by a score.*eval_is_public"):
        trainer_for(plan, tmp_path / "out", callbacks=[callback], eval_dataset=texts(1))


def test_early_stopping_that_is_added_later_is_refused_too(plan: hush.Plan, tmp_path: Path) -> None:
    trainer = trainer_for(plan, tmp_path / "out", eval_dataset=texts(1))
    trainer.add_callback(EarlyStoppingCallback(2))
    with pytest.raises(InvalidInput, match="EarlyStoppingCallback ends the training by a score"):
        trainer.train()


def test_the_owners_folder_stays_out_of_what_is_released(plan: hush.Plan, tmp_path: Path) -> None:
    for folder in ("out", "out/owner"):
        with pytest.raises(InvalidInput, match="lies in output_dir"):
            trainer_for(plan, tmp_path / "out", folder=tmp_path / folder)
    assert trainer_for(plan, tmp_path / "out", folder=tmp_path / "other").folder == tmp_path / "other"


def test_data_that_are_not_the_plans_are_refused(plan: hush.Plan, tmp_path: Path) -> None:
    with pytest.raises(InvalidInput, match="2 rows but the plan is for 40 examples"):
        trainer_for(plan, tmp_path / "out", train_dataset=Corpus([[1], [2]]))
    with pytest.raises(InvalidInput, match="cannot be asked for its n-th example"):
        trainer_for(plan, tmp_path / "out", train_dataset=iter(()))


def test_packing_and_buckets_without_lengths_are_refused(plan: hush.Plan, tmp_path: Path) -> None:
    with pytest.raises(InvalidInput, match="packs several examples"):
        trainer_for(plan, tmp_path / "out", data_collator=DataCollatorWithFlattening())
    with pytest.raises(InvalidInput, match="buckets need data that know their lengths"):
        trainer_for(plan, tmp_path / "out", train_dataset=[texts()[n] for n in range(EXAMPLES)], buckets=(LENGTH,))
    with pytest.raises(InvalidInput, match="longer than the largest bucket"):
        trainer_for(plan, tmp_path / "out", buckets=(4,))


def test_a_hyperparameter_search_is_refused(plan: hush.Plan, tmp_path: Path) -> None:
    with pytest.raises(InvalidInput, match="every trial"):
        trainer_for(plan, tmp_path / "out").hyperparameter_search()

"""What HushTrainer releases: entered in the ledger first, readable by others, free of random states and losses."""

import json
import os
from pathlib import Path
from typing import Any

import pytest
from models import tiny
from trainers import ROUNDS, Dies, assert_same, trainer_for, weights
from transformers import AutoModelForCausalLM, Trainer, TrainerCallback, TrainerState

import hush
from hush.errors import InvalidInput
from hush.train.hf.releases import move_into_place
from hush.train.run_folder import RunLog
from limits import no_file_above


def test_a_model_that_no_ledger_knows_is_not_saved(plan: hush.Plan, tmp_path: Path) -> None:
    broken = trainer_for(plan, tmp_path / "out", callbacks=[Dies(3)])
    with pytest.raises(RuntimeError, match="crash"):
        broken.train()
    with pytest.raises(InvalidInput, match="after round 3 without releasing it"):
        broken.save_model(str(tmp_path / "saved"))


@pytest.mark.parametrize("size", [100, 2000, 140_000])
def test_a_full_disk_names_the_file(plan: hush.Plan, tmp_path: Path, size: int) -> None:
    trainer = trainer_for(plan, tmp_path / "out", settings={"save_strategy": "steps", "save_steps": 2})
    with pytest.raises(OSError, match="large") as caught, no_file_above(size):
        trainer.train()
    assert str(caught.value.filename).startswith(str(tmp_path / "out-hush/owner"))


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


def test_old_checkpoints_make_room_by_number(plan: hush.Plan, tmp_path: Path) -> None:
    settings = {"save_strategy": "steps", "save_steps": 1, "save_total_limit": 2}
    trainer_for(plan, tmp_path / "out", settings=settings).train()
    assert sorted(path.name for path in (tmp_path / "out").iterdir()) == ["checkpoint-5", "checkpoint-6"]

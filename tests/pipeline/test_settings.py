"""What training would refuse is refused before the first stage, in the words of the config; what it was is recorded."""

import json
from pathlib import Path
from typing import Any

import huggingface_hub.constants
import pytest
from small_runs import small_config, small_texts

from hush.config import Config
from hush.config.sections import SmallModel
from hush.errors import InfeasiblePlan, InvalidInput
from hush.pipeline import forecast, run_pipeline
from hush.pipeline.base_model import base_model
from hush.pipeline.job import Watch

LENGTH = 32
MISFITS: dict[str, tuple[dict[str, Any], str]] = {
    "a name that nobody has": ({"model": {"name": "no-such-model"}}, "no-such-model: its configuration cannot be load"),
    "an empty folder": ({"model": {"name": "empty"}}, "empty: its configuration cannot be loaded"),
    "no weights": ({"model": {"name": "weightless"}}, "weightless holds no weights"),
    "another task": ({"training": {"task": "masked"}}, "has no mask token; train it with training.task: causal"),
    "too long": ({"training": {"max_length": 4096}}, "training.max_length: 4096; "),
    "no such device": ({"training": {"device": "cuda:99"}}, "training.device: cuda:99 cannot be used here"),
    "no such modules": ({"training": {"lora": {"targets": ["nothing"]}}}, "its modules with training.lora.targets"),
}


@pytest.fixture
def desk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A model, an empty folder, and a model whose weights are missing."""
    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_OFFLINE", True)  # or it would try for a while
    for name in ("model", "weightless"):
        made = base_model(tmp_path / "made", SmallModel(layers=1, width=8, heads=1, length=LENGTH))
        made.rename(tmp_path / name)
    (tmp_path / "weightless" / "model.safetensors").unlink()
    (tmp_path / "empty").mkdir()
    return tmp_path


def config_for(desk: Path, model: dict[str, Any] | None = None, **sections: Any) -> Config:
    return small_config(desk, model={"small": None, "name": "model"} | (model or {}), **sections)


@pytest.mark.parametrize("misfit", MISFITS)
def test_what_does_not_fit_is_refused_before_anything_is_read(desk: Path, misfit: str) -> None:
    sections, words = MISFITS[misfit]
    config, begun = config_for(desk, **sections), []
    watch = Watch(stage=lambda name, _: begun.append(name))
    for refusing in (
        lambda: forecast(config, output=desk / "dry"),
        lambda: run_pipeline(config, output=desk / "run", watch=watch),
    ):
        with pytest.raises(InvalidInput) as caught:
            refusing()
        assert words in str(caught.value)
        assert "--" not in str(caught.value)  # an option of a command that was not called
    assert not begun
    assert not (desk / "dry").exists()


def test_no_weights_are_read_to_see_whether_they_fit(desk: Path) -> None:
    (desk / "model" / "model.safetensors").write_bytes(b"no weights at all")
    for training in ({"max_length": LENGTH}, {"lora": {"targets": ["c_attn"]}}):
        assert forecast(config_for(desk, training=training), output=desk / "dry")


def test_a_finished_training_asks_for_no_device(tmp_path: Path) -> None:
    run_pipeline(small_config(tmp_path), output=tmp_path / "run")
    elsewhere = small_config(tmp_path, training={"device": "cuda:99"})
    assert all(stage.state == "done" for stage in forecast(elsewhere, output=tmp_path / "run"))
    assert run_pipeline(elsewhere, output=tmp_path / "run").ran == ()


@pytest.mark.parametrize("length", [LENGTH, 20, 2])
def test_a_run_records_how_many_texts_were_cut(tmp_path: Path, length: int) -> None:
    config = small_config(tmp_path, training={"max_length": length}, audit=None)
    made = run_pipeline(config, output=tmp_path / "run").outputs["train"]
    assert made["max_length"] == length
    assert made["cut_texts"] == sum(len(text.encode()) >= length for text in small_texts())
    stages = tmp_path / "run" / "stages.json"
    content = json.loads(stages.read_text())
    del content["stages"]["train"]  # as if killed after the last round and before the record
    stages.write_text(json.dumps(content))
    assert run_pipeline(config, output=tmp_path / "run").outputs["train"] == made


@pytest.mark.parametrize("sections", [{"training": {"max_length": 1}}, {"model": {"small": {"length": 1}}}])
def test_one_token_leaves_nothing_to_learn(tmp_path: Path, sections: dict[str, Any]) -> None:
    with pytest.raises(InvalidInput, match="a whole number from 2 on"):
        small_config(tmp_path, **sections)


@pytest.mark.parametrize("hold_out", [0.0, 0.2])
def test_a_batch_larger_than_the_data_is_bad_input(tmp_path: Path, hold_out: float) -> None:
    plan = {"batch_size": 5000, "hold_out": hold_out}
    examples = 30 - int(hold_out * 25)  # five of thirty hold a secret
    with pytest.raises(InvalidInput, match=rf"plan\.batch_size: 5000 is more than the {examples} examples"):
        run_pipeline(small_config(tmp_path, plan=plan), output=tmp_path / "run")
    fits = small_config(tmp_path, plan=plan | {"batch_size": examples, "rounds": 1}, audit=None)
    assert run_pipeline(fits, output=tmp_path / "run").outputs["plan"]["batch_size"] == examples


def test_promises_that_leave_no_room_are_named_by_id(tmp_path: Path) -> None:
    config = small_config(tmp_path, promises={"prior": 0.01, "ceiling": 0.01})
    with pytest.raises(InfeasiblePlan) as caught:
        run_pipeline(config, output=tmp_path / "run")
    said = str(caught.value)
    assert said.startswith("codes-000000, codes-000001, codes-000002: the ceiling is the prior (0.01 for the first)")
    assert "rates" not in said

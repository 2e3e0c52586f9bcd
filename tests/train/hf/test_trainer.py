"""HushTrainer trains as the plain loop does, with the Trainer's own comforts: callbacks, precision, schedules."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from models import LENGTH, PADDING, tiny
from torch import nn
from trainers import EXAMPLES, ROUNDS, Watches, arguments, assert_same, collator, images, texts, trainer_for, weights
from transformers import get_scheduler

import hush
from hush.keys import DataKey
from hush.train.hf.arguments import checked_settings
from hush.train.language_models import CausalCollator, default_loss
from hush.train.private_training import PrivateTraining
from hush.train.public.metric import PublicMetric
from hush.train.run_folder import RunLog


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


def test_a_metric_changes_what_is_trained_and_nothing_else(plan: hush.Plan, tmp_path: Path) -> None:
    data, collate = texts(), CausalCollator(length=LENGTH, padding=PADDING)

    def trained(name: str, metric: PublicMetric | None) -> dict[str, torch.Tensor]:
        trainer = trainer_for(plan, tmp_path / name, metric=metric)
        trainer.train()
        return weights(trainer.model)

    def batch_of(examples: np.ndarray) -> Any:
        return collate([data[int(number)] for number in examples], examples=examples, round=0)

    plain = trained("plain", None)
    assert_same(plain, trained("ones", PublicMetric.of_plan(plan, batch_of, count=6, exponent=0.0)))
    scaled = trained("scaled", PublicMetric.of_plan(plan, batch_of, count=6))
    assert any(not torch.allclose(value, scaled[name], rtol=1e-3) for name, value in plain.items())


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
        if torch.is_grad_enabled():  # what is learnt from; a probe may look without
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


def test_the_certificate_is_real_only_without_a_fixed_seed(plan: hush.Plan, tmp_path: Path) -> None:
    key = DataKey(bytes(32))
    tied = replace(plan, data_fingerprint=key.fingerprint_rows(["text"] * EXAMPLES))
    stated = tied.data_fingerprint
    fixed, real = (
        trainer_for(tied, tmp_path / f"{seed}", insecure_seed=seed, data_fingerprint=stated) for seed in (7, None)
    )
    for trainer in (fixed, real):
        trainer.train()
    assert fixed.certificate is not None
    assert not fixed.certificate.is_real
    assert real.certificate is not None
    assert real.certificate.is_real
    assert (tmp_path / "None-hush/release/certificate.json").exists()

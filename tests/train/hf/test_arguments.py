"""Arguments, data and callbacks that would break the guarantee: HushTrainer refuses them, with a reason."""

from pathlib import Path
from typing import Any

import pytest
from models import LENGTH, tiny
from tokenizers import Tokenizer
from tokenizers.models import WordLevel
from trainers import EXAMPLES, ROUNDS, arguments, collator, texts, trainer_for
from transformers import (
    DataCollatorForLanguageModeling,
    DataCollatorWithFlattening,
    EarlyStoppingCallback,
    PreTrainedTokenizerFast,
)

import hush
from hush.errors import InvalidInput
from hush.train.hf.trainer import HushTrainer
from hush.train.language_models import TokenizedTexts

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
        ("fsdp", True, "shards over several processes, and there is one"),
        ("deepspeed", "ds.json", "reduce raw gradients"),
        ("_n_gpu", 2, "start a process for each GPU"),
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
        trainer_for(plan, tmp_path / "out", train_dataset=TokenizedTexts([[1], [2]]))
    with pytest.raises(InvalidInput, match="which has no rows by number"):
        trainer_for(plan, tmp_path / "out", train_dataset=iter(()))


def test_packing_and_buckets_without_lengths_are_refused(plan: hush.Plan, tmp_path: Path) -> None:
    with pytest.raises(InvalidInput, match="packs several examples"):
        trainer_for(plan, tmp_path / "out", data_collator=DataCollatorWithFlattening())
    with pytest.raises(InvalidInput, match="buckets need data that know their lengths"):
        trainer_for(plan, tmp_path / "out", train_dataset=[texts()[n] for n in range(EXAMPLES)], buckets=(LENGTH,))
    with pytest.raises(InvalidInput, match="longer than the largest bucket"):
        trainer_for(plan, tmp_path / "out", buckets=(4,))


def test_a_collator_that_masks_by_a_known_seed_is_refused(plan: hush.Plan, tmp_path: Path) -> None:
    words = Tokenizer(WordLevel({"[PAD]": 0, "[MASK]": 1}))
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=words, mask_token="[MASK]", pad_token="[PAD]")
    with pytest.raises(InvalidInput, match=r"seed=3\) masks by a known random stream"):
        trainer_for(plan, tmp_path / "out", data_collator=DataCollatorForLanguageModeling(tokenizer, seed=3))
    trainer_for(plan, tmp_path / "out", data_collator=DataCollatorForLanguageModeling(tokenizer))


def test_a_hyperparameter_search_is_refused(plan: hush.Plan, tmp_path: Path) -> None:
    with pytest.raises(InvalidInput, match="every trial"):
        trainer_for(plan, tmp_path / "out").hyperparameter_search()

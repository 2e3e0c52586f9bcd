"""What HushTrainer relies on in transformers.Trainer: an upgrade that changes any of it fails here, loudly.

HushTrainer overrides private methods of the Trainer, which no version promises to keep. pyproject.toml therefore bounds
transformers by the next minor version; raise the bound together with the table below.
"""

import ast
import inspect
import tomllib
from importlib.metadata import version
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.specifiers import SpecifierSet
from transformers import ProgressCallback, Trainer, TrainingArguments
from transformers.trainer_callback import CallbackHandler, TrainerState
from transformers.trainer_utils import TrainOutput, get_last_checkpoint, rotate_checkpoints

from hush.train.hf import arguments, releases, trainer
from hush.train.hf.trainer import HushTrainer

ROOT = Path(__file__).parents[3]

SIGNATURES = {
    # overridden
    "__init__": "model args data_collator train_dataset eval_dataset processing_class model_init compute_loss_func "
    "compute_metrics callbacks optimizers optimizer_cls_and_kwargs preprocess_logits_for_metrics",
    "train": "resume_from_checkpoint trial ignore_keys_for_eval",
    "get_train_dataloader": "",
    "training_step": "model inputs num_items_in_batch",
    "log": "logs start_time",
    "evaluate": "eval_dataset ignore_keys metric_key_prefix",
    "evaluation_loop": "dataloader description prediction_loss_only ignore_keys metric_key_prefix",
    "predict": "test_dataset ignore_keys metric_key_prefix",
    "autocast_smart_context_manager": "cache_enabled",
    "hyperparameter_search": "hp_space compute_objective n_trials direction backend hp_name kwargs",
    "save_model": "output_dir _internal_call",
    "push_to_hub": "commit_message blocking token revision kwargs",
    "_init_training_state": "max_steps num_update_steps_per_epoch num_train_epochs resume_from_checkpoint trial",
    "_prepare_for_training": "max_steps train_dataloader resume_from_checkpoint",
    "_run_epoch": "model epoch train_dataloader steps_in_epoch num_update_steps_per_epoch trial ignore_keys_for_eval "
    "start_time resume_from_checkpoint epochs_trained steps_trained_in_current_epoch",
    "_determine_best_metric": "metrics trial",
    "_get_grad_norm": "model grad_norm",
    "_save_checkpoint": "model trial",
    "_finalize_training": "trial num_train_samples start_time",
    "_load_from_checkpoint": "resume_from_checkpoint model",
    "_maybe_log_save_evaluate": "tr_loss grad_norm model trial epoch ignore_keys_for_eval start_time learning_rate",
    "_move_model_to_device": "model device",
    "_wrap_model": "model training dataloader",
    "store_flos": "",
    "is_world_process_zero": "",
    "_get_output_dir": "trial",
    # called
    "_get_collator_with_removed_columns": "data_collator description",
    "_prepare_inputs": "inputs",
    "_push_from_checkpoint": "checkpoint_folder",
    "pop_callback": "callback",
    "add_callback": "callback",
}


def parameters(function: object) -> list[str]:
    return [name for name in inspect.signature(function).parameters if name != "self"]  # pyright: ignore[reportArgumentType]


def attributes(code: object, owner: str) -> set[str]:
    """The names X of each `owner.X` in the source of a module or class."""
    tree = ast.parse(inspect.getsource(code))  # pyright: ignore[reportArgumentType]
    nodes = [node for node in ast.walk(tree) if isinstance(node, ast.Attribute)]
    return {node.attr for node in nodes if ast.unparse(node.value) == owner}


def test_the_tested_version_is_the_installed_one_and_lies_within_the_bound() -> None:
    extras = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]
    (required,) = (parsed for parsed in map(Requirement, extras["hf"]) if parsed.name == "transformers")
    (pinned,) = (
        line.partition("==")[2]
        for line in (ROOT / "constraints.txt").read_text().splitlines()
        if line.startswith("transformers==")
    )
    major, minor = pinned.split(".")[:2]
    assert f"<{major}.{int(minor) + 1}" in str(required.specifier).split(",")
    assert pinned in required.specifier
    assert version("transformers") in required.specifier
    assert f"{major}.{int(minor) + 1}.0" not in SpecifierSet(str(required.specifier))


@pytest.mark.parametrize("name", SIGNATURES)
def test_a_method_of_the_trainer_has_the_parameters_that_we_rely_on(name: str) -> None:
    assert parameters(getattr(Trainer, name)) == SIGNATURES[name].split()


def test_the_table_names_every_method_that_is_overridden_or_called() -> None:
    used = set(vars(HushTrainer)) | attributes(HushTrainer, "super()") | attributes(HushTrainer, "self")
    assert {name for name in used if inspect.isfunction(getattr(Trainer, name, None))} == set(SIGNATURES)


def test_an_override_takes_whatever_the_trainer_passes() -> None:
    for name in set(SIGNATURES) & set(vars(HushTrainer)) - {"__init__"}:
        kinds = {parameter.kind for parameter in inspect.signature(getattr(HushTrainer, name)).parameters.values()}
        if not {inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD} <= kinds:
            assert parameters(getattr(HushTrainer, name)) == SIGNATURES[name].split(), name


def test_the_trainer_calls_what_we_override() -> None:
    source = inspect.getsource(Trainer)
    private = [name for name in SIGNATURES if name.startswith("_") and name in vars(HushTrainer) and name != "__init__"]
    for name in (*private, "training_step", "get_train_dataloader"):
        assert f"self.{name}(" in source, name
    # _run_epoch's override replaces this argument by name.
    assert "resume_from_checkpoint=resume_from_checkpoint" in source.partition("self._run_epoch(")[2].partition(")")[0]


def test_arguments_and_states_have_the_fields_that_we_read_and_set() -> None:
    fields = attributes(arguments, "args") | attributes(arguments, "copied")
    fields |= attributes(trainer, "self.args") | attributes(releases, "self._args")
    assert fields
    missing = [name for name in fields - {"mixed_precision"} if not hasattr(TrainingArguments(output_dir="x"), name)]
    assert missing == []
    states = attributes(trainer, "self.state")
    assert {"global_step", "best_global_step", "best_model_checkpoint"} <= states
    assert [name for name in states if not hasattr(TrainerState(), name)] == []


def test_helpers_have_the_parameters_that_we_rely_on() -> None:
    assert parameters(rotate_checkpoints)[:3] == ["output_dir", "save_total_limit", "best_model_checkpoint"]
    assert parameters(get_last_checkpoint) == ["folder"]
    assert TrainOutput._fields == ("global_step", "training_loss", "metrics")
    for name in ("on_step_end", "on_evaluate"):
        assert parameters(getattr(ProgressCallback, name)) == ["args", "state", "control", "kwargs"]
    assert "callbacks" in inspect.signature(CallbackHandler.__init__).parameters

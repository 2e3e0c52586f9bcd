"""A part of a model is trained: clipped exactly, noised where it is trained and nowhere else, released as a whole."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from models import LANGUAGE, batch_of, tiny
from private_runs import DATA, PLAN, values
from reference import check, cross_entropy, rows, small_model, train
from torch import nn
from trainers import ROUNDS, assert_same, trainer_for, weights

import hush
from hush.data import read_corpus
from hush.errors import InvalidInput
from hush.run.sections import SmallModel
from hush.run.stage_train import base_model
from hush.train import fit
from hush.train.language_models import causal_lm_loss, masked_lm_loss
from hush.train.pretrained import check_fits
from hush.train.private_training import PrivateTraining
from hush.train.public.stream import PublicStream
from hush.train.settings import Lora, Recipe, Runtime
from hush.train.trainable import train_only

EMBEDDING = {"bert": "cls.predictions.decoder.weight", "gpt2": "lm_head.weight", "gemma2": "lm_head.weight"}


def trained(model: nn.Module) -> set[str]:
    return {name for name, parameter in model.named_parameters() if parameter.requires_grad}


def test_parts_are_what_the_field_calls_them() -> None:
    bert: Any = tiny("bert")
    train_only(bert, ["norms", "biases"])
    matrices = {name for name, parameter in bert.named_parameters() if parameter.ndim > 1}
    assert trained(bert) == dict(bert.named_parameters()).keys() - matrices
    train_only(bert, ["head-bias"])
    assert trained(bert) == {"cls.predictions.bias"}  # its head calls it decoder.bias
    train_only(bert, ["norms"])
    assert {name.rpartition(".")[0].rpartition(".")[2] for name in trained(bert)} == {"LayerNorm"}
    llama = tiny("llama")
    train_only(llama, ["norms"])
    assert all("norm" in name for name in trained(llama))
    assert len(trained(llama)) == 5
    with pytest.raises(InvalidInput, match=r"trainable='head-bias'; the model has no head-bias"):
        train_only(llama, ["norms", "head-bias"])
    with pytest.raises(InvalidInput, match=r"no parameter of the model has such a name.*model\.embed_tokens"):
        train_only(llama, ["*.wait"])
    with pytest.raises(InvalidInput, match="nothing would be trained"):
        train_only(llama, [])


@pytest.mark.parametrize("name", EMBEDDING)
def test_a_tied_parameter_is_trained_if_any_of_its_names_matches(name: str) -> None:
    model: Any = tiny(name)
    train_only(model, [EMBEDDING[name]])
    assert len(trained(model)) == 1
    assert model.get_input_embeddings().weight.requires_grad


@pytest.mark.parametrize("name", LANGUAGE)
@pytest.mark.parametrize("part", ["norms", "biases", "embedding"])
def test_sums_over_a_part_are_those_of_one_example_at_a_time(name: str, part: str) -> None:
    model: Any = tiny(name)
    biased = name in ("bert", "gpt2")
    if part == "biases" and not biased:
        pytest.skip("the model has no biases")
    if name == "bert":
        nn.init.normal_(model.cls.predictions.bias)
    train_only(model, [EMBEDDING.get(name, "*embed_tokens.weight")] if part == "embedding" else [part])
    loss = masked_lm_loss if name == "bert" else causal_lm_loss
    check(model, loss, batch_of(name))
    parameters = trained(model)

    def own(model: nn.Module, batch: Any) -> torch.Tensor:  # not one of hush's: another route of clipping
        return loss(model, batch)

    check(model, own, batch_of(name))
    assert trained(model) == parameters


def test_the_bias_of_the_head_alone() -> None:
    model = tiny("bert")
    train_only(model, ["head-bias"])
    check(model, masked_lm_loss, batch_of("bert"))


def after(names: list[str] | None, *, public: bool, optimizer: Callable[..., Any], rounds: int = 3) -> Any:
    model = small_model()
    if names is not None:
        train_only(model, names)
    stream = PublicStream(PLAN, lambda ids: rows(DATA, ids), batch_size=6, weight=1.0) if public else None
    made = optimizer([p for p in model.parameters() if p.requires_grad], lr=0.1, weight_decay=0.1)
    private = PrivateTraining(model, made, PLAN, loss=cross_entropy, micro_batch=8, insecure_seed=0, public=stream)
    train(private, DATA, until=rounds)
    return private


@pytest.mark.parametrize("public", [False, True])
@pytest.mark.parametrize("optimizer", [torch.optim.SGD, torch.optim.AdamW])
def test_noise_public_part_and_decay_reach_what_is_trained_and_nothing_else(public: bool, optimizer: Any) -> None:
    private = after(["norms", "4.bias"], public=public, optimizer=optimizer)
    before, now = values(small_model()), values(private.model)
    assert private.num_trained == 8 + 8 + 3
    for name in before:
        moved = now[name] != before[name]
        assert bool(moved.all()) if name in ("1.weight", "1.bias", "4.bias") else not bool(moved.any()), name


def test_noise_has_the_norm_of_the_parameters_that_are_trained() -> None:
    """With a learning rate of 1 and gradients of 0, a step is the noise alone."""
    model = small_model()
    train_only(model, ["4.bias", "1.bias"])
    squares: list[float] = []
    for seed in range(200):
        parameters = [p for p in model.parameters() if p.requires_grad]
        silent = lambda model, batch: 0 * cross_entropy(model, batch)  # noqa: E731
        private = PrivateTraining(
            model, torch.optim.SGD(parameters, lr=1.0), PLAN, loss=silent, micro_batch=40, insecure_seed=seed
        )
        before = nn.utils.parameters_to_vector(model.parameters()).detach().clone()
        train(private, DATA, until=1)
        private.close()
        step = nn.utils.parameters_to_vector(model.parameters()).detach() - before
        squares.append(float(step.square().sum()))
    expected = 11 * (PLAN.clip_norm * PLAN.training_noise_multiplier / PLAN.batch_size) ** 2
    assert np.mean(squares) == pytest.approx(expected, rel=4 * (2 / (11 * 200)) ** 0.5)


def test_adapters_and_parts_are_not_for_one_run() -> None:
    with pytest.raises(InvalidInput, match="drop trainable or lora"):
        Recipe(model="m", lora=Lora(), trainable=("norms",))


@pytest.mark.parametrize("average", [None, 0.5])
def test_a_run_releases_the_whole_model_and_resumes_as_if_never_stopped(tmp_path: Path, average: float | None) -> None:
    from transformers import AutoModelForCausalLM

    base = base_model(tmp_path / "base", SmallModel(width=8, length=16))
    (tmp_path / "data.txt").write_text("".join(f"text number {n}\n" for n in range(40)))
    corpus = read_corpus(tmp_path / "data.txt")
    recipe = Recipe(model=str(base), trainable=("norms", "*.c_attn.bias"), average=average, learning_rate=0.1)
    runtime = Runtime(device="cpu", save_every=5)
    options: Any = {"key": None, "unchecked_data": True, "insecure_seed": 1, "runtime": runtime}
    check_fits(recipe)
    results: list[dict[str, torch.Tensor]] = []
    for output, stops in ((tmp_path / "whole", ()), (tmp_path / "parts", (4, 9))):
        for stop in stops:
            rounds = iter(range(1, 100))
            fit.fit(PLAN, recipe, corpus, output=output, stop=lambda at=stop, n=rounds: next(n) + 5 > at, **options)
        done = fit.fit(PLAN, recipe, corpus, output=output, **options)
        assert isinstance(done, fit.Fitted)
        assert done.trained_parameters == 5 * 2 * 8 + 2 * 24
        results.append(weights(AutoModelForCausalLM.from_pretrained(output / "release" / "model")))
    assert_same(*results)
    start = weights(AutoModelForCausalLM.from_pretrained(base))
    for name, value in results[0].items():
        moved = bool((value != start[name]).any())
        assert moved == (name.rpartition(".")[0].rpartition(".")[2].startswith("ln_") or "c_attn.bias" in name), name


def test_with_the_trainer(plan: hush.Plan, tmp_path: Path) -> None:
    model = tiny("llama")
    train_only(model, ["norms"])
    before = weights(model)
    trainer = trainer_for(plan, tmp_path / "out", model=model)
    trainer.train()
    assert trainer.state.global_step == ROUNDS
    after = weights(trainer.model)
    assert all(bool((after[name] != before[name]).any()) == ("norm" in name) for name in before)

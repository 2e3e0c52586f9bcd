"""Frozen down-projections: the best directions by a dense route, exact clipping, ordinary adapters, resumed runs."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from models import LANGUAGE, LORA_TARGETS, batch_of, tiny
from reference import check
from torch import nn
from trainers import assert_same, trainer_for, weights

import hush
from hush.data import read_corpus
from hush.errors import InvalidInput
from hush.plan import make_plan
from hush.run.sections import SmallModel
from hush.run.stage_train import base_model
from hush.train import fit, freeze_down_projections
from hush.train.distributed import Ranks
from hush.train.language_models import Loss, causal_lm_loss, masked_lm_loss
from hush.train.private_training import PrivateTraining
from hush.train.public import down_projections as projections
from hush.train.public.down_projections import ROW_NORM, down_projections
from hush.train.public.stream import PublicStream
from hush.train.settings import Lora, Recipe, Runtime


def loss_of(name: str) -> Loss:
    return masked_lm_loss if name == "bert" else causal_lm_loss


def adapted(name: str) -> nn.Module:
    """With B = 0, as training begins; the dense gradient of a base weight is then that of the plain model."""
    model = tiny(name, lora=True)
    with torch.no_grad():
        for key, parameter in model.named_parameters():
            if "lora_B" in key:
                parameter.zero_()
    return model


def second_moments(name: str, batches: list[dict[str, torch.Tensor]]) -> dict[str, torch.Tensor]:
    """Σ GᵀG / ‖G‖² of each targeted weight of the plain model, one example at a time."""
    model = tiny(name).eval()
    targeted = tuple(f"{target}.weight" for target in LORA_TARGETS[name])
    targets = {key: parameter for key, parameter in model.named_parameters() if key.endswith(targeted)}
    moments = {key: torch.zeros(()) for key in targets}
    for batch in batches:
        for row in range(len(batch["labels"])):
            loss = loss_of(name)(model, {key: value[row : row + 1] for key, value in batch.items()}).sum()
            for key, gradient in zip(targets, torch.autograd.grad(loss, list(targets.values())), strict=True):
                g = (gradient.mT if name == "gpt2" else gradient).double()  # of Conv1D: inputs × outputs
                moments[key] = moments[key] + g.mT @ g / g.square().sum()
    return moments


@pytest.mark.parametrize("name", LANGUAGE)
def test_rows_are_the_leading_eigenvectors_of_the_second_moment(name: str) -> None:
    batches = [batch_of(name, size=4, seed=seed) for seed in range(3)]
    model = adapted(name)
    states = torch.get_rng_state()
    freeze_down_projections(model, loss_of(name), batches)
    assert torch.equal(torch.get_rng_state(), states)
    assert model.training
    moments = second_moments(name, batches)
    found = down_projections(model)
    assert len(found) == len(moments)
    for down, moment in zip(found, moments.values(), strict=True):
        rows = down.double() / ROW_NORM
        torch.testing.assert_close(rows @ rows.mT, torch.eye(len(rows)).double(), atol=1e-5, rtol=0)
        caught = torch.trace(rows @ moment @ rows.mT)
        best = torch.linalg.eigvalsh(moment)[-len(rows) :].sum()
        assert 0.98 * best <= caught <= best * (1 + 1e-6)
        assert caught > 1.5 * len(rows) / moment.shape[0] * torch.trace(moment)  # what random rows catch on average


@pytest.mark.parametrize("name", LANGUAGE)
@pytest.mark.parametrize("public", [False, True])
def test_sums_of_the_up_projections_are_exact_and_nothing_else_is_trained(name: str, public: bool) -> None:
    model = adapted(name) if public else tiny(name, lora=True)
    before = down_projections(model)
    freeze_down_projections(model, loss_of(name), [batch_of(name, seed=5)] if public else [])
    assert all(torch.equal(*pair) != public for pair in zip(before, down_projections(model), strict=True))
    clipper = check(model, loss_of(name), batch_of(name))
    assert clipper is not None
    assert all("lora_B" in key for key, p in model.named_parameters() if p.requires_grad)


def test_adapters_that_have_learnt_keep_their_projections(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    learnt = tiny("gpt2", lora=True)
    with pytest.raises(InvalidInput, match="have learnt something"):
        freeze_down_projections(learnt, causal_lm_loss, [batch_of("gpt2")])
    monkeypatch.setattr(projections, "freeze_down_projections", lambda model, *given: assert_nothing(given))
    before = down_projections(learnt)
    recipe: Any = Recipe(model="m", lora=Lora(down="public"))
    options: Any = {"runtime": Runtime(), "folder": tmp_path, "ranks": Ranks.current()}
    nothing: Any = None
    projections.begun_with(learnt, causal_lm_loss, recipe, nothing, nothing, **options)
    assert all(torch.equal(*pair) for pair in zip(before, down_projections(learnt), strict=True))


def assert_nothing(given: tuple[Any, ...]) -> None:
    assert given == ()


def test_what_has_no_directions_is_refused() -> None:
    with pytest.raises(InvalidInput, match="no LoRA adapters"):
        freeze_down_projections(tiny("gpt2"))
    silent = lambda model, batch: 0 * causal_lm_loss(model, batch)  # noqa: E731
    with pytest.raises(InvalidInput, match="no gradient at a layer"):
        freeze_down_projections(adapted("gpt2"), silent, [batch_of("gpt2")])
    with pytest.raises(InvalidInput, match="need a loss"):
        freeze_down_projections(adapted("gpt2"), batches=[batch_of("gpt2")])
    from peft import LoraConfig, get_peft_model

    embedding: Any = get_peft_model(tiny("gpt2"), LoraConfig(target_modules=["wte"]))  # pyright: ignore[reportArgumentType]
    with pytest.raises(InvalidInput, match="target linear layers"):
        freeze_down_projections(embedding)


def small_run(folder: Path, **lora: Any) -> tuple[hush.Plan, Recipe, Any]:
    base = base_model(folder / "base", SmallModel(width=16, length=16))
    (folder / "data.txt").write_text("".join(f"text number {n}\n" for n in range(40)))
    incidence = hush.Incidence.from_pairs([0, 1, 2], [0, 0, 0], num_examples=40, num_secrets=1)
    plan = make_plan(incidence, prior=1e-6, ceiling=1e-2, batch_size=8, rounds=8, capacity="none")
    return plan, Recipe(model=str(base), lora=Lora(rank=2, **lora), learning_rate=0.1), read_corpus(folder / "data.txt")


@pytest.mark.parametrize("down", ["random", "public"])
def test_a_run_releases_ordinary_adapters_and_resumes_as_if_never_stopped(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, down: Any
) -> None:
    from peft import PeftModel
    from transformers import AutoModelForCausalLM

    plan, recipe, corpus = small_run(tmp_path, down=down)
    options: Any = {"key": None, "unchecked_data": True, "insecure_seed": 1, "runtime": Runtime(device="cpu")}
    released: list[dict[str, torch.Tensor]] = []
    for output, pauses in ((tmp_path / "whole", 0), (tmp_path / "parts", 2)):
        for _ in range(pauses):
            assert isinstance(fit.fit(plan, recipe, corpus, output=output, stop=lambda: True, **options), fit.Stopped)
            # Another machine, that draws and rounds otherwise.
            monkeypatch.setattr(fit.torch, "manual_seed", lambda _: None)
            monkeypatch.setattr(projections, "SEED", 5)
        done = fit.fit(plan, recipe, corpus, output=output, **options)
        monkeypatch.undo()
        assert isinstance(done, fit.Fitted)
        assert done.trained_parameters == 2 * 2 * 48  # B of both layers
        base = AutoModelForCausalLM.from_pretrained(recipe.model)
        released.append(weights(PeftModel.from_pretrained(base, output / "release" / "model")))
    assert_same(*released)
    assert any(bool(value.any()) for key, value in released[0].items() if "lora_B" in key)


def test_a_run_takes_its_directions_from_public_examples_alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    plan, recipe, corpus = small_run(tmp_path, down="public")
    seen: list[int] = []
    plain = PublicStream.round

    def watched(stream: PublicStream, index: int) -> np.ndarray:
        seen.extend(plain(stream, index).tolist())
        return plain(stream, index)

    monkeypatch.setattr(PublicStream, "round", watched)
    fit.fit(plan, recipe, corpus, output=tmp_path / "run", key=None, unchecked_data=True, insecure_seed=1)
    assert sorted(set(seen)) == list(range(3, 40))
    everywhere = hush.Incidence.from_pairs(np.arange(40), np.zeros(40, dtype=int), num_examples=40, num_secrets=1)
    all_secret = make_plan(everywhere, prior=1e-6, ceiling=1e-2, batch_size=8, rounds=8, capacity="none")
    with pytest.raises(InvalidInput, match="no public gradients"):
        fit.fit(all_secret, recipe, corpus, output=tmp_path / "none", key=None, unchecked_data=True, insecure_seed=1)


def test_with_the_trainer(plan: hush.Plan, tmp_path: Path) -> None:
    model = adapted("llama")
    freeze_down_projections(model, causal_lm_loss, [batch_of("llama", seed=9)])
    before = weights(model)
    trainer = trainer_for(plan, tmp_path / "out", model=model, settings={"learning_rate": 0.5})
    trainer.train()
    assert isinstance(trainer.private, PrivateTraining)
    after = weights(trainer.model)
    assert all(bool((after[key] != before[key]).any()) == ("lora_B" in key) for key in before)

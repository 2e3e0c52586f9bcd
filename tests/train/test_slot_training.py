"""Training with slots through every front door: fit, HushTrainer, PrivateTraining."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from models import tiny
from trainers import arguments

from hush.certificate import SKELETON_FINGERPRINT
from hush.data import read_corpus
from hush.errors import InvalidInput
from hush.keys import DataKey
from hush.run.sections import SmallModel
from hush.run.stage_train import base_model
from hush.train import (
    Batches,
    CausalCollator,
    DifferenceLoss,
    PrivateTraining,
    PublicStream,
    SkeletonBatches,
    causal_lm_loss,
    tokenise_slots,
)
from hush.train.distributed import Ranks
from hush.train.fit import Fitted, fit
from hush.train.hf.trainer import HushTrainer
from hush.train.settings import Lora, MetricSettings, PublicPart, Recipe, Runtime
from slotted import filled, made_tokenizer, slot_plan

KEY = DataKey(bytes(32))
PIECES = [[f"item {n} was sold to ", " for much"] if n % 2 else [f"item {n} was not sold"] for n in range(12)]
FILLINGS = [[f"person {n}"] if n % 2 else [] for n in range(12)]
WHOLE = [0]


def planned(fillings: list[list[str]] = FILLINGS, **more: Any) -> tuple[list[str], Any, Any]:
    texts, columns = filled(PIECES, fillings)
    plan, spans = slot_plan(texts, columns, WHOLE, batch_size=4)
    rows = KEY.fingerprint_rows(spans.public_rows(plan.incidence, texts))
    named = {"data_fingerprint": KEY.fingerprint_rows(texts), "skeleton_fingerprint": rows}
    return texts, *slot_plan(texts, columns, WHOLE, batch_size=4, **named | more)


def with_words(model: Any) -> torch.nn.Module:
    """The model with an embedding for each token of the tests' tokenizer."""
    model.resize_token_embeddings(400, mean_resizing=False)
    return model


@pytest.fixture(scope="module")
def base(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return base_model(tmp_path_factory.mktemp("base"), SmallModel(layers=1, width=16, heads=2, length=48))


def fitted(base: Path, folder: Path, *, texts: list[str], plan: Any, spans: Any, **recipe: Any) -> Fitted:
    (folder / "data.txt").write_text("".join(f"{text}\n" for text in texts))
    options: dict[str, Any] = {"runtime": Runtime(device="cpu", micro_batch=3), "insecure_seed": 1}
    settings = Recipe(model=str(base), **recipe)
    done = fit(plan, settings, read_corpus(folder / "data.txt"), key=KEY, output=folder / "run", spans=spans, **options)
    assert isinstance(done, Fitted)
    return done


@pytest.mark.parametrize(
    "recipe",
    [
        {},
        {"part": "difference"},
        {"lora": Lora(rank=2)},
        {"public": PublicPart(weight=2.0, batch=3)},
        {"metric": MetricSettings(count=5, every=1), "part": "difference"},
    ],
)
def test_fit_trains_a_plan_with_slots(base: Path, tmp_path: Path, recipe: dict[str, Any]) -> None:
    texts, plan, spans = planned()
    done = fitted(base, tmp_path, texts=texts, plan=plan, spans=spans, **recipe)
    assert done.certificate.fingerprints[SKELETON_FINGERPRINT] == plan.skeleton_fingerprint
    vocabulary = json.loads((done.release / "model" / "tokenizer.json").read_text())["added_tokens"]
    names = {token["content"] for token in vocabulary}
    assert ("[names]" in names) == ("lora" not in recipe)  # adapters fit the model as it was
    kept = json.loads((done.owner / "recipe.json").read_text())
    assert kept["part"] == recipe.get("part", "slot")


def test_fit_refuses_a_plan_with_slots_without_its_spans_and_other_data(base: Path, tmp_path: Path) -> None:
    texts, plan, spans = planned()
    with pytest.raises(InvalidInput, match="pass scan"):
        fitted(base, tmp_path, texts=texts, plan=plan, spans=None)
    _, _, other = planned([*FILLINGS[:1], [], *FILLINGS[2:]])
    with pytest.raises(InvalidInput, match="not those of the plan"):
        fitted(base, tmp_path, texts=texts, plan=plan, spans=other)
    with pytest.raises(InvalidInput, match="not those that the plan was made for"):
        fitted(base, tmp_path, texts=[texts[0], "x" + texts[1][1:], *texts[2:]], plan=plan, spans=spans)


def test_the_public_part_of_an_update_is_the_same_whatever_stands_in_the_slots() -> None:
    """Gradients of the stream and the factor of the private part, for two fillings of different lengths."""
    found, model = [], with_words(tiny("gpt2"))
    for fillings in (FILLINGS, [[f"somebody else entirely, number {n}"] if n % 2 else [] for n in range(12)]):
        texts, plan, spans = planned(fillings)
        made = tokenise_slots(texts, made_tokenizer("bytes", special=False), plan, spans, max_length=12)
        collate = SkeletonBatches(made.skeletons, CausalCollator(length=12, padding=0))
        stream = PublicStream(plan, collate, batch_size=5, weight=None, micro_batch=2)
        gradients = stream.gradients(model, causal_lm_loss, dict(model.named_parameters()), round=4)
        found.append((gradients, stream.private_scale(gradients, 3.0, Ranks.current())))
    assert found[0][1] == found[1][1]
    assert 0 < found[0][1] < 1
    assert all(torch.equal(found[0][0][name], found[1][0][name]) for name in found[0][0])


def test_noise_has_at_most_its_share_of_the_public_gradient() -> None:
    texts, plan, spans = planned()
    made = tokenise_slots(texts, made_tokenizer("bytes", special=False), plan, spans, max_length=12)
    collate = SkeletonBatches(made.skeletons, CausalCollator(length=12, padding=0))
    gradients = {"a": torch.full((3,), 2.0), "b": torch.ones(4)}  # of norm 4
    for share in (0.1, 0.5):
        stream = PublicStream(plan, collate, batch_size=5, weight=None, noise_share=share)
        for noise in (0.0, 1e-3, 1.0, 100.0):
            scale = stream.private_scale(gradients, noise, Ranks.current())
            assert scale == pytest.approx(min(1.0, share * 4 / noise) if noise else 1.0)
    fixed = PublicStream(plan, collate, batch_size=5, weight=2.0)
    assert fixed.private_scale(gradients, 100.0, Ranks.current()) == 1


@pytest.mark.parametrize("part", ["slot", "difference"])
def test_private_training_and_hush_trainer_make_the_same_model(tmp_path: Path, part: Any) -> None:
    texts, plan, spans = planned()
    tokenizer, collator = made_tokenizer("bytes", special=False), CausalCollator(length=12, padding=0)
    models = [with_words(tiny("gpt2")) for _ in range(2)]
    models[1].load_state_dict(models[0].state_dict())
    made = tokenise_slots(texts, tokenizer, plan, spans, max_length=12, part=part, key=KEY)
    batches = Batches(made, collator, torch.device("cpu"))
    stream = PublicStream(plan, SkeletonBatches(made.skeletons, collator), batch_size=11, weight=None, micro_batch=4)
    loss = DifferenceLoss(causal_lm_loss) if part == "difference" else causal_lm_loss
    optimizer = torch.optim.SGD(models[0].parameters(), lr=0.1)
    private = PrivateTraining(
        models[0], optimizer, plan, loss=loss, micro_batch=4, public=stream, insecure_seed=7,
        data_fingerprint=made.fingerprint,
    )  # fmt: skip
    for round in private.rounds():
        for examples in round.micro_batches():
            private.accumulate(batches.of(examples.examples, 12), examples.real)
        private.step()
    certificate = private.finish()
    again = torch.optim.SGD(models[1].parameters(), lr=0.1)
    trainer = HushTrainer(
        models[1], arguments(tmp_path / "out"), plan=plan, train_dataset=texts, processing_class=tokenizer, spans=spans,
        part=part, data_collator=collator, key=KEY, insecure_seed=7,
        optimizers=(again, torch.optim.lr_scheduler.LambdaLR(again, lambda _: 1.0)),
    )  # fmt: skip
    trainer.train()
    assert trainer.certificate is not None
    assert trainer.certificate.fingerprints[SKELETON_FINGERPRINT] == certificate.fingerprints[SKELETON_FINGERPRINT]
    for one, other in zip(models[0].parameters(), models[1].parameters(), strict=True):
        np.testing.assert_allclose(one.detach().numpy(), other.detach().numpy(), rtol=1e-4, atol=1e-6)


def test_hush_trainer_takes_texts_with_slots_from_a_formatting_func(tmp_path: Path) -> None:
    texts, plan, spans = planned()
    rows = [{"begin": text[:3], "rest": text[3:]} for text in texts]
    usual: dict[str, Any] = {
        "plan": plan,
        "spans": spans,
        "processing_class": made_tokenizer("bytes", special=False),
        "data_collator": CausalCollator(length=12, padding=0),
        "key": KEY,
    }
    plain = {**usual, "train_dataset": texts}
    joined = {**usual, "train_dataset": rows, "formatting_func": lambda row: row["begin"] + row["rest"]}
    made: list[Any] = [
        HushTrainer(with_words(tiny("gpt2")), arguments(tmp_path / "out"), **given) for given in (plain, joined)
    ]
    one, other = (
        [[list(part) for part in trainer.train_dataset[n].values()] for n in range(len(texts))] for trainer in made
    )
    assert one == other


def test_hush_trainer_refuses_a_plan_with_slots_without_spans_or_with_a_collator_of_others(tmp_path: Path) -> None:
    texts, plan, spans = planned()
    model, own = tiny("gpt2"), CausalCollator(length=12, padding=0)
    usual: dict[str, Any] = {
        "plan": plan,
        "train_dataset": texts,
        "processing_class": made_tokenizer("bytes", special=False),
    }
    with pytest.raises(InvalidInput, match="spans="):
        HushTrainer(model, arguments(tmp_path), data_collator=own, **usual)
    with pytest.raises(InvalidInput, match="keeps skeletons and texts apart"):
        HushTrainer(model, arguments(tmp_path), data_collator=lambda rows: rows, spans=spans, **usual)

"""What fine-tuning is made of: schedules, batches, and tokens that are exactly those of the fingerprinted data."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

import hush
from hush.data import read_corpus
from hush.errors import InvalidInput
from hush.keys import DataKey
from hush.plan.make import make_plan_holding_out
from hush.run.sections import SmallModel
from hush.run.stage_train import base_model
from hush.train import fit, reading
from hush.train.language_models import CausalCollator, MaskedCollator, TokenizedTexts
from hush.train.pretrained import Pretrained, blocks_of, load_pretrained
from hush.train.private_training import _test_draw_seed
from hush.train.reading import tokenised
from hush.train.recipe import check_recipe, make_optimizer, make_schedule, store_recipe
from hush.train.sampler import Draws
from hush.train.settings import Lora, PublicPart, Recipe, Runtime
from hush.train.slots.batches import Batches


def shares(recipe: Recipe, rounds: int) -> list[float]:
    """The learning rate of each round, by the schedule itself."""
    optimizer = torch.optim.SGD([torch.nn.Parameter(torch.zeros(1))], lr=1.0)
    schedule = make_schedule(recipe, optimizer, rounds)
    found: list[float] = []
    for _ in range(rounds):
        found.append(optimizer.param_groups[0]["lr"])
        optimizer.step()
        schedule.step()
    return found


@given(st.sampled_from(["constant", "linear", "cosine"]), st.integers(1, 30), st.integers(0, 40))
def test_the_learning_rate_rises_to_its_peak_and_never_after(schedule: Any, rounds: int, warmup: int) -> None:
    found = shares(Recipe(model="m", schedule=schedule, warmup=warmup), rounds)
    peak = min(warmup, rounds)
    assert all(0 < share <= 1 for share in found)
    assert found[:peak] == sorted(found[:peak])
    assert found[peak:] == sorted(found[peak:], reverse=True)
    if warmup < rounds:
        assert found[peak] == 1
        if schedule == "constant":
            assert set(found[peak:]) == {1.0}
        else:
            assert len(set(found[peak:])) == rounds - peak


def test_linear_and_cosine_are_halfway_down_in_the_middle() -> None:
    for schedule in ("linear", "cosine"):
        recipe = Recipe(model="m", schedule=schedule)  # pyright: ignore[reportArgumentType]
        assert shares(recipe, 11)[0] == 1
        assert shares(recipe, 10)[5] == pytest.approx(0.5)


@pytest.mark.parametrize(
    ("settings", "kind", "rate"),
    [
        ({}, torch.optim.AdamW, 5e-4),
        ({"lora": Lora()}, torch.optim.AdamW, 1e-3),
        ({"optimizer": "sgd"}, torch.optim.SGD, 0.1),
        ({"learning_rate": 0.02}, torch.optim.AdamW, 0.02),
    ],
)
def test_the_optimizer_is_the_one_asked_for(settings: dict[str, Any], kind: type, rate: float) -> None:
    made = make_optimizer(Recipe(model="m", **settings), [torch.nn.Parameter(torch.zeros(1))])
    assert type(made) is kind
    assert made.param_groups[0]["lr"] == rate
    assert made.param_groups[0]["weight_decay"] == 0


@pytest.mark.parametrize(
    "settings",
    [
        {"learning_rate": -1.0},
        {"learning_rate": float("nan")},
        {"warmup": -1},
        {"public": {"weight": 1.0}},
        {"public": {"batch": 3}},
        {"metric": "private"},
        {"metric": {"exponent": 0.1}},
        {"metric": {"floor": 0.0}},
    ],
)
def test_recipes_that_nobody_can_mean_are_refused(settings: dict[str, Any]) -> None:
    with pytest.raises(InvalidInput):
        Recipe(model="m", **settings)


@pytest.mark.parametrize("settings", [{"rank": 0}, {"alpha": 0.0}, {"dropout": 1.0}, {"alpha": float("nan")}])
def test_adapters_that_nobody_can_mean_are_refused(settings: dict[str, Any]) -> None:
    with pytest.raises(InvalidInput, match=f"^{next(iter(settings))}="):
        Lora(**settings)


def test_every_setting_of_a_recipe_is_kept_to_the_end(tmp_path: Path) -> None:
    (tmp_path / "owner").mkdir()
    began = Recipe(model="m", lora=Lora(targets=("a", "b")))
    check_recipe(tmp_path, began, resume=False)  # nothing there yet
    store_recipe(tmp_path, began)
    check_recipe(tmp_path, began, resume=True)
    changes: dict[str, Any] = {
        "model": "n", "task": "causal", "lora": None, "optimizer": "sgd", "learning_rate": 1.0, "schedule": "cosine",
        "warmup": 1, "max_length": 9, "bf16": True, "public": {"weight": 1.0, "batch": 1},
        "part": "difference", "metric": "public", "average": 0.5, "public_first": False,
        "learn": "all",
    }  # fmt: skip
    for name, value in changes.items():
        with pytest.raises(InvalidInput, match=f"begun with {name}=.*resume it as it began"):
            check_recipe(tmp_path, Recipe(**{"model": "m", "lora": began.lora, name: value}), resume=True)
    stored = json.loads((tmp_path / "owner" / "recipe.json").read_text())
    assert stored.keys() == changes.keys() | {"trainable"}  # not for one run with adapters
    (tmp_path / "part" / "owner").mkdir(parents=True)
    store_recipe(tmp_path / "part", Recipe(model="m", trainable=("norms",)))
    with pytest.raises(InvalidInput, match="begun with trainable="):
        check_recipe(tmp_path / "part", Recipe(model="m"), resume=True)


def test_a_run_of_version_0_1_0_goes_on_with_its_recipe(tmp_path: Path) -> None:
    (tmp_path / "owner").mkdir()
    lora = {"rank": 4, "alpha": 16.0, "dropout": 0.0, "targets": []}
    old = {
        "model": "m", "task": None, "lora": lora, "optimizer": "adamw", "learning_rate": 1e-3, "schedule": "linear",
        "warmup": 0, "max_length": None, "bf16": False, "public_weight": 0.5, "public_batch": 8,
    }  # fmt: skip
    (tmp_path / "owner" / "recipe.json").write_text(json.dumps(old))
    recipe = Recipe(model="m", lora=Lora(rank=4), learning_rate=1e-3, public=PublicPart(weight=0.5, batch=8))
    check_recipe(tmp_path, recipe, resume=True)
    with pytest.raises(InvalidInput, match="was begun with public="):
        check_recipe(tmp_path, recipe.model_copy(update={"public": None}), resume=True)


def test_a_run_may_be_moved_without_its_model_or_with_it(tmp_path: Path) -> None:
    run, model = tmp_path / "desk" / "run", tmp_path / "desk" / "model"
    (run / "owner").mkdir(parents=True)
    model.mkdir()
    store_recipe(run, Recipe(model=str(model)))
    run.rename(tmp_path / "run")
    check_recipe(tmp_path / "run", Recipe(model=str(model)), resume=True)
    (tmp_path / "run").rename(run)
    (tmp_path / "desk").rename(tmp_path / "moved")
    run, model = tmp_path / "moved" / "run", tmp_path / "moved" / "model"
    check_recipe(run, Recipe(model=str(model)), resume=True)
    (other := tmp_path / "moved" / "other").mkdir()
    for changed in (Recipe(model=str(other)), Recipe(model="other"), Recipe(model=str(model), warmup=1)):
        with pytest.raises(InvalidInput, match="resume it as it began"):
            check_recipe(run, changed, resume=True)


LENGTHS = st.lists(st.integers(0, 300), min_size=1, max_size=12)


@given(LENGTHS, st.data())
def test_every_batch_has_one_of_a_few_lengths_and_cuts_nothing(lengths: list[int], data: st.DataObject) -> None:
    tokens = TokenizedTexts([list(range(1, length + 1)) for length in lengths])
    batches = Batches(tokens, CausalCollator(length=300, padding=0), torch.device("cpu"))
    assert batches.buckets == [32, 64, 128, 256, 300]  # whatever the texts
    examples = np.array(data.draw(st.lists(st.integers(0, len(lengths) - 1), min_size=1, max_size=4)))
    batch = batches.of(examples)
    width = batch["input_ids"].shape[1]
    longest = max(lengths[example] for example in examples)
    assert width == min(bucket for bucket in batches.buckets if bucket >= longest)
    for row, example in enumerate(examples.tolist()):
        assert batch["input_ids"][row, : lengths[example]].tolist() == list(range(1, lengths[example] + 1))
        assert batch["attention_mask"][row].sum() == lengths[example]
    assert batches.of(examples, batches.buckets[-1])["input_ids"].shape[1] == batches.buckets[-1]


def test_released_scores_do_not_depend_on_the_length_of_a_private_text(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Not in any digit: shapes of public batches come from settings, and padding would move the last digits."""
    texts = [f"text {number} of a few, {'and so on ' * (number % 3)}" for number in range(12)]
    base = base_model(tmp_path / "models", SmallModel(layers=1, width=16, heads=2, length=128))
    incidence = hush.Incidence.from_pairs([0], [0], num_examples=len(texts), num_secrets=1)
    held_out = [10, 11]
    settings: Any = {"prior": 1e-3, "ceiling": 0.2, "batch_size": 0.5, "rounds": 2}
    plan = make_plan_holding_out(incidence, held_out, **settings)
    draws = [Draws(plan.rates, seed=_test_draw_seed(seed)) for seed in range(50)]
    never_drawn = [0 not in np.concatenate([draw.round(0), draw.round(1)]) for draw in draws].index(True)
    shapes: list[set[tuple[int, ...]]] = []
    scores: list[list[float]] = []
    plain_loss = fit.Evaluation.loss

    def exact_loss(evaluation: fit.Evaluation) -> float:
        scores[-1].append(plain_loss(evaluation))
        return scores[-1][-1]

    monkeypatch.setattr(fit.Evaluation, "loss", exact_loss)
    released: list[str] = []
    for run, longest in enumerate(["short", "a secret that is longer than any other text " * 2]):
        (tmp_path / "data.txt").write_text("".join(f"{text}\n" for text in [longest, *texts[1:]]))
        scores.append([])
        corpus = read_corpus(tmp_path / "data.txt")
        output = tmp_path / f"run{run}"
        recipe, runtime = Recipe(model=str(base)), Runtime(device="cpu", evaluate_every=1)
        options: Any = {"key": None, "unchecked_data": True, "insecure_seed": never_drawn, "runtime": runtime}
        fit.fit(plan, recipe, corpus, output=output, **options)
        released.append((output / "release" / "evaluations.jsonl").read_text())
        tokens, _ = tokenised(corpus, pretrained := load_pretrained(str(base)), None)
        batches = Batches(tokens, pretrained.collator(pretrained.max_length), torch.device("cpu"))
        shapes.append({tuple(batches.of(np.array(held_out))["input_ids"].shape), tuple(batches.buckets)})
    assert shapes[0] == shapes[1]
    assert scores[0] == scores[1]
    assert released[0] == released[1]
    assert len(scores[0]) == 3


def test_what_is_masked_is_new_in_every_round() -> None:
    tokens = TokenizedTexts([list(range(10, 60))])
    batches = Batches(tokens, MaskedCollator(length=50, padding=0, mask=1, vocabulary=99), torch.device("cpu"))
    first = batches.of(np.array([0]))["labels"]
    assert torch.equal(batches.of(np.array([0]))["labels"], first)
    batches.round = 1
    assert not torch.equal(batches.of(np.array([0]))["labels"], first)
    assert torch.equal(batches.of(np.array([0]), round=0)["labels"], first)  # as evaluation asks, in whatever round


def letters(texts: list[str], *, truncation: bool, max_length: int) -> dict[str, list[list[int]]]:
    """A tokenizer of letters."""
    assert truncation
    return {"input_ids": [[ord(letter) for letter in text[:max_length]] for text in texts]}


@pytest.mark.parametrize("key", [None, DataKey(bytes(32))])
@pytest.mark.parametrize("chunk", [1, 2, 3, 100])
def test_tokens_and_fingerprint_are_of_one_and_the_same_reading(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, chunk: int, key: DataKey | None
) -> None:
    texts = ["one", "", "three", "four four", "é"]
    (tmp_path / "data.txt").write_text("".join(f"{text}\n" for text in texts), encoding="utf-8")
    corpus = read_corpus(tmp_path / "data.txt")
    monkeypatch.setattr(reading, "TEXTS_PER_CALL", chunk)
    model = Pretrained(model=torch.nn.Linear(1, 1), tokenizer=letters, task="causal", max_length=6)
    counted: list[tuple[int, int]] = []
    tokens, fingerprint = tokenised(corpus, model, key, lambda done, total: counted.append((done, total)))
    assert counted == [(min(end, 5), 5) for end in range(chunk, 5 + chunk, chunk)]
    assert fingerprint == (None if key is None else key.fingerprint_rows(texts))
    assert [bytes(tokens[row]["input_ids"].astype(np.uint8)).decode("latin-1") for row in range(5)] == [
        text[:6] for text in texts
    ]


class Layered(torch.nn.Module):
    """Two lists of blocks, one of them in a block; a list without parameters; an embedding outside."""

    def __init__(self) -> None:
        super().__init__()
        self.words = torch.nn.Embedding(5, 3)
        self.layers = torch.nn.ModuleList(torch.nn.Sequential(torch.nn.Linear(3, 3)) for _ in range(3))
        self.layers[0].experts = torch.nn.ModuleList([torch.nn.Linear(3, 3)])
        self.more = torch.nn.ModuleList([torch.nn.Linear(3, 5), torch.nn.ReLU()])


def test_blocks_are_the_members_of_the_outermost_lists() -> None:
    model = Layered()
    assert blocks_of(model) == [*model.layers, model.more[0]]
    assert blocks_of(torch.nn.Linear(2, 2)) == []


def test_a_block_that_shares_weights_with_the_rest_is_none_of_its_own() -> None:
    model: Any = Layered()
    model.more[0].weight = model.words.weight
    model.layers[1] = model.layers[2]  # twice in the list
    assert blocks_of(model) == [model.layers[0]]
    model.layers[0][0].weight = model.layers[0].experts[0].weight  # tied within one block
    assert blocks_of(model) == [model.layers[0]]

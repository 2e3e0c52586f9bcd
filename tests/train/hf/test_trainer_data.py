"""What HushTrainer trains on: the plan's rows in the plan's order, by key; collators and subclasses that change it."""

import random
from dataclasses import replace
from pathlib import Path
from typing import Any

import datasets
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from models import LENGTH, PADDING, tiny
from tokenizers import Tokenizer
from tokenizers.models import WordLevel
from tokenizers.pre_tokenizers import Whitespace
from trainers import EXAMPLES, arguments, collator, texts, trainer_for, trainer_plan, weights
from transformers import (
    DataCollatorForLanguageModeling,
    DataCollatorForPermutationLanguageModeling,
    DataCollatorWithPadding,
    PreTrainedTokenizerFast,
    TrainerCallback,
)

import hush
from hush.errors import InvalidInput
from hush.keys import DataKey
from hush.train.hf.data import checked_fingerprint
from hush.train.hf.trainer import HushTrainer
from hush.train.language_models import CausalCollator, tokenise

KEY = DataKey(bytes(range(32)))
WORDS = {"[PAD]": 0, **{f"w{number}": number for number in range(1, 96)}, "[MASK]": 96}


def tokenizer() -> PreTrainedTokenizerFast:
    made = Tokenizer(WordLevel(WORDS, unk_token="[PAD]"))
    made.pre_tokenizer = Whitespace()
    return PreTrainedTokenizerFast(tokenizer_object=made, pad_token="[PAD]", mask_token="[MASK]")


def strings(seed: int = 0) -> list[str]:
    draw = random.Random(seed)
    return [
        " ".join(f"w{draw.randrange(1, 96)}" for _ in range(draw.randrange(3, LENGTH + 1))) for _ in range(EXAMPLES)
    ]


def tokenised_rows(lines: list[str]) -> datasets.Dataset:
    raw = datasets.Dataset.from_dict({"text": lines})
    return raw.map(lambda row: {"input_ids": tokenizer()(row["text"])["input_ids"]}, load_from_cache_file=False)


@pytest.fixture(scope="module")
def keyed() -> hush.Plan:
    return replace(trainer_plan(), data_fingerprint=KEY.fingerprint_rows(strings()))


def trained(plan: hush.Plan, output: Path, data: Any, **more: Any) -> HushTrainer:
    usual = {"train_dataset": data, "data_collator": DataCollatorForLanguageModeling(tokenizer(), mlm=False)}
    return trainer_for(plan, output, insecure_seed=None, **usual | more)


# ---- the plan's rows, in the plan's order ----


@pytest.mark.parametrize("form", ["dataset", "transform", "rows", "tokens"])
def test_with_the_key_the_plans_data_are_checked_and_certified(keyed: hush.Plan, tmp_path: Path, form: str) -> None:
    lines, more = strings(), {}
    data: Any = tokenised_rows(lines)
    if form == "rows":
        data = list(data)
    if form == "transform":
        data = datasets.Dataset.from_dict({"text": lines}).with_transform(
            lambda rows: {"input_ids": tokenizer()(rows["text"])["input_ids"]}
        )
    if form == "tokens":
        data = tokenise(lines, tokenizer(), max_length=LENGTH, key=KEY)
        more["data_collator"] = collator("llama")
    KEY_FILE = tmp_path / "data.key"
    KEY_FILE.write_text(f"hush data key 1\n{bytes(range(32)).hex()}\n")
    KEY_FILE.chmod(0o600)
    trainer = trained(keyed, tmp_path / "out", data, key=KEY if form == "rows" else KEY_FILE, **more)
    trainer.train()
    assert trainer.certificate is not None
    assert trainer.certificate.is_real
    assert trainer.certificate.fingerprints["data (keyed)"] == keyed.data_fingerprint
    assert hush.verify(tmp_path / "out-hush/release").passed


OTHER_DATA = {
    "shuffled": lambda data: data.shuffle(seed=1),
    "edited": lambda data: data.map(
        lambda row, number: {"text": "w1 w2 w3"} if number == 7 else row, with_indices=True, load_from_cache_file=False
    ),
    "filtered and filled up": lambda data: datasets.concatenate_datasets(
        [data.select([n for n in range(EXAMPLES) if n != 9]), data.select([0])]
    ),
}


@pytest.mark.parametrize("change", OTHER_DATA)
def test_data_that_were_shuffled_filtered_or_edited_are_refused(keyed: hush.Plan, tmp_path: Path, change: str) -> None:
    data = OTHER_DATA[change](tokenised_rows(strings()))
    with pytest.raises(InvalidInput, match=r"not the data that the plan was made for.*not shuffled, filtered"):
        trained(keyed, tmp_path / "out", data, key=KEY)
    assert not (tmp_path / "out-hush").exists()


def test_fewer_rows_are_refused_before_they_are_read(keyed: hush.Plan, tmp_path: Path) -> None:
    with pytest.raises(InvalidInput, match="39 rows but the plan is for 40"):
        trained(keyed, tmp_path / "out", tokenised_rows(strings()).select(range(39)), key=KEY)


@settings(max_examples=50, deadline=None)
@given(order=st.permutations(range(EXAMPLES)), as_dataset=st.booleans())
def test_every_other_order_is_refused_and_the_plans_own_never(order: list[int], as_dataset: bool) -> None:
    lines = strings()
    plan: Any = type("Stub", (), {"data_fingerprint": KEY.fingerprint_rows(lines)})
    moved = [lines[number] for number in order]
    data: Any = datasets.Dataset.from_dict({"text": moved}) if as_dataset else [{"text": line} for line in moved]
    if moved == lines:
        assert checked_fingerprint(data, plan, key=KEY, column="text") == plan.data_fingerprint
    else:
        with pytest.raises(InvalidInput, match=r"not the data that the plan was made for"):
            checked_fingerprint(data, plan, key=KEY, column="text")
    data = datasets.Dataset.from_dict({"text": lines})
    assert checked_fingerprint(data, plan, key=KEY, column="text") == plan.data_fingerprint


def test_data_that_replace_the_checked_ones_are_checked_too(keyed: hush.Plan, tmp_path: Path) -> None:
    data = tokenised_rows(strings())
    trainer = trained(keyed, tmp_path / "out", data, key=KEY)
    trainer.train_dataset = data.shuffle(seed=1)
    with pytest.raises(InvalidInput, match=r"not the data that the plan was made for"):
        trainer.train()
    trainer.train_dataset = data.select(range(EXAMPLES))
    trainer.train()
    assert trainer.certificate is not None
    assert trainer.certificate.is_real


def test_a_list_that_is_shuffled_in_place_after_it_was_checked_is_refused(keyed: hush.Plan, tmp_path: Path) -> None:
    data = list(tokenised_rows(strings()))
    trainer = trained(keyed, tmp_path / "out", data, key=KEY)
    random.Random(0).shuffle(data)
    with pytest.raises(InvalidInput, match=r"not the data that the plan was made for"):
        trainer.train()


class Rows(torch.utils.data.Dataset[dict[str, Any]]):
    """A dataset of one's own, around a list."""

    def __init__(self, rows: list[dict[str, Any]]) -> None:
        self.rows = rows

    def __len__(self) -> int:
        return len(self.rows)

    def __getitem__(self, number: int) -> dict[str, Any]:
        return self.rows[number]


@pytest.mark.parametrize("wrapped", [False, True])
@pytest.mark.parametrize("edit", ["shuffled", "edited"])
def test_rows_that_a_callback_moves_or_edits_in_place_are_never_trained_on(
    keyed: hush.Plan, tmp_path: Path, edit: str, wrapped: bool
) -> None:
    rows: list[Any] = list(tokenised_rows(strings()))

    class Shuffles(TrainerCallback):
        def on_step_begin(self, args: Any, state: Any, control: Any, **_: Any) -> None:
            if state.global_step == 2 and edit == "shuffled":
                rows.reverse()
            elif state.global_step == 2:
                rows[:] = [row | {"text": "w1 w2 w3"} for row in rows]

    data: Any = Rows(rows) if wrapped else rows
    trainer = trained(keyed, tmp_path / "out", data, key=KEY, callbacks=[Shuffles()])
    with pytest.raises(
        InvalidInput, match=r"row \d+ of train_dataset is no longer the row that was compared"
    ) as refused:
        trainer.train()
    assert trainer.certificate is None
    assert not any(line in str(refused.value) for line in strings())


@pytest.mark.parametrize("name", ["train_dataset", "data_collator"])
def test_what_a_callback_replaces_during_training_is_never_trained_on(
    keyed: hush.Plan, tmp_path: Path, name: str
) -> None:
    class Swaps(TrainerCallback):
        def on_step_begin(self, args: Any, state: Any, control: Any, **_: Any) -> None:
            if state.global_step == 2:
                setattr(trainer, name, data[::-1] if name == "train_dataset" else NeighbourInFront())

    data = list(tokenised_rows(strings()))
    trainer = trained(keyed, tmp_path / "out", data, key=KEY, callbacks=[Swaps()])
    with pytest.raises(InvalidInput, match="was replaced during training"):
        trainer.train()
    assert trainer.certificate is None


@pytest.mark.parametrize("fingerprinted", [True, False])
def test_without_the_key_the_certificate_says_that_data_were_not_checked(
    plan: hush.Plan, keyed: hush.Plan, tmp_path: Path, fingerprinted: bool
) -> None:
    trainer = trained(keyed if fingerprinted else plan, tmp_path / "out", tokenised_rows(strings()).shuffle(seed=1))
    trainer.train()
    assert trainer.certificate is not None
    assert [mark.partition(":")[0] for mark in trainer.certificate.marks] == ["data not checked"]
    assert "data (keyed)" not in trainer.certificate.fingerprints
    released = tmp_path / "out-hush/release"
    assert "NOT A CERTIFICATE: data not checked" in (released / "certificate.md").read_text()
    assert not (released / "plan").exists()  # its certificate has no mark


def test_a_fingerprint_that_the_caller_computed_stands_on_the_callers_word(keyed: hush.Plan, tmp_path: Path) -> None:
    trainer = trained(
        keyed, tmp_path / "out", tokenised_rows(strings()), data_fingerprint=KEY.fingerprint_rows(strings())
    )
    trainer.train()
    assert trainer.certificate is not None
    assert trainer.certificate.is_real
    with pytest.raises(InvalidInput, match="have the keyed fingerprint"):
        trained(keyed, tmp_path / "other", texts(), data_fingerprint=KEY.fingerprint_rows(strings(1)))


def test_keys_and_columns_that_cannot_check_are_refused_before_anything_is_read(
    plan: hush.Plan, keyed: hush.Plan, tmp_path: Path
) -> None:
    data = tokenised_rows(strings())
    with pytest.raises(InvalidInput, match="the key can check nothing"):
        trained(plan, tmp_path / "out", data, key=KEY)
    with pytest.raises(InvalidInput, match=f"this key is {DataKey(bytes(32)).id}"):
        trained(keyed, tmp_path / "out", data, key=DataKey(bytes(32)))
    with pytest.raises(FileNotFoundError, match=r"my\.key"):
        trained(keyed, tmp_path / "out", data, key=tmp_path / "my.key")
    with pytest.raises(InvalidInput, match=r"no column 'text', only input_ids; .*leave it out of remove_columns"):
        trained(keyed, tmp_path / "out", data.remove_columns("text"), key=KEY)
    with pytest.raises(InvalidInput, match="no column 'content', only input_ids, text"):
        trained(
            keyed,
            tmp_path / "out",
            [{"input_ids": row, "text": "w1"} for row in data["input_ids"]],
            key=KEY,
            column="content",
        )
    with pytest.raises(InvalidInput, match="row 0 of train_dataset has a list where its text should be"):
        trained(keyed, tmp_path / "out", list(data), key=KEY, column="input_ids")
    with pytest.raises(InvalidInput, match=r"hold tokens only.*key=key"):
        trained(keyed, tmp_path / "out", texts(), key=KEY)


def test_tokenising_with_the_key_fingerprints_the_texts_in_the_same_pass() -> None:
    lines = strings()
    rows = [{"body": line, "input_ids": tokenizer()(line)["input_ids"]} for line in lines]
    for made in (
        tokenise(lines, tokenizer(), max_length=4, key=KEY),
        tokenise(rows, max_length=4, column="body", key=KEY),
    ):
        assert made.fingerprint == KEY.fingerprint_rows(lines)
    assert tokenise(lines, tokenizer(), max_length=4).fingerprint is None
    with pytest.raises(InvalidInput, match="no column 'text' to compare with the plan"):
        tokenise(rows, max_length=4, key=KEY)


# ---- collators ----


class NeighbourInFront:
    """Puts the first tokens of the example before in front of each."""

    def __call__(self, rows: list[dict[str, Any]]) -> dict[str, torch.Tensor]:
        tied = [[*rows[place - 1]["input_ids"][:3], *row["input_ids"]] for place, row in enumerate(rows)]
        return CausalCollator(length=LENGTH + 3, padding=PADDING)([{"input_ids": row} for row in tied])


class PermutesInputs:
    """Inputs of other rows, labels of their own."""

    def __call__(self, rows: list[dict[str, Any]]) -> dict[str, torch.Tensor]:
        batch = CausalCollator(length=LENGTH, padding=PADDING)(rows)
        return {**batch, "input_ids": batch["input_ids"].flip(0)}


@pytest.mark.parametrize("tying", [NeighbourInFront, PermutesInputs])
def test_a_collator_that_ties_examples_is_refused_by_name(plan: hush.Plan, tmp_path: Path, tying: Any) -> None:
    with pytest.raises(InvalidInput, match=f"{tying.__name__} ties examples together"):
        trainer_for(plan, tmp_path / "out", data_collator=tying())
    assert not (tmp_path / "out-hush").exists()
    trainer = trainer_for(plan, tmp_path / "out")
    trainer.data_collator = tying()
    with pytest.raises(InvalidInput, match=f"{tying.__name__} ties examples together"):
        trainer.train()


def test_a_collator_never_sees_two_examples_once_training_begins(plan: hush.Plan, tmp_path: Path) -> None:
    sizes: set[int] = set()

    def pads(rows: list[dict[str, Any]]) -> dict[str, torch.Tensor]:
        sizes.add(len(rows))
        return CausalCollator(length=LENGTH, padding=PADDING)(rows)

    trainer = trainer_for(plan, tmp_path / "out", data_collator=pads)
    assert sizes == {1, 6}
    sizes.clear()
    trainer.train()
    assert sizes == {1}
    own = trainer_for(plan, tmp_path / "own")
    own.train()
    assert all(torch.equal(weights(own.model)[name], value) for name, value in weights(trainer.model).items())


def test_a_transform_of_the_dataset_never_sees_two_examples(plan: hush.Plan, tmp_path: Path) -> None:
    sizes: set[int] = set()

    def encode(rows: dict[str, list[str]]) -> dict[str, Any]:
        sizes.add(len(rows["text"]))
        return {"input_ids": tokenizer()(rows["text"])["input_ids"]}

    data = datasets.Dataset.from_dict({"text": strings()}).with_transform(encode)
    trained(plan, tmp_path / "out", data).train()
    assert sizes == {1}


@pytest.mark.parametrize("masked", [True, False])
def test_collators_of_transformers_train(plan: hush.Plan, tmp_path: Path, masked: bool) -> None:
    collate = DataCollatorForLanguageModeling(tokenizer(), mlm=masked)
    data, name = [{"input_ids": row["input_ids"].tolist()} for row in map(texts().__getitem__, range(EXAMPLES))], "bert"
    trainer = trainer_for(
        plan, tmp_path / "out", name=name if masked else "gpt2", train_dataset=data, data_collator=collate
    )
    trainer.train()
    assert trainer.certificate is not None


@pytest.mark.parametrize("kind", [list, datasets.Dataset.from_list])
def test_texts_that_were_not_tokenised_are_refused_in_our_words(plan: hush.Plan, tmp_path: Path, kind: Any) -> None:
    lines = [{"text": line, "label": number} for number, line in enumerate(strings())]
    with pytest.raises(InvalidInput, match=r"rows with the columns text, label, .* tokenise it first") as caught:
        trainer_for(
            plan,
            tmp_path / "out",
            train_dataset=kind(lines),
            data_collator=None,
        )
    assert lines[0]["text"] not in str(caught.value)
    with pytest.raises(InvalidInput, match="rows of type str"):
        trainer_for(plan, tmp_path / "out", train_dataset=strings(), data_collator=DataCollatorWithPadding(tokenizer()))


def test_a_collator_that_fails_on_one_example_alone_is_named_before_training(plan: hush.Plan, tmp_path: Path) -> None:
    collate = DataCollatorForPermutationLanguageModeling(tokenizer())
    rows = [{"input_ids": [5] * (7 if number == EXAMPLES - 1 else 8)} for number in range(EXAMPLES)]
    with pytest.raises(InvalidInput, match=r"DataCollatorForPermutation\w+ fails on example 39 alone \(ValueError"):
        trainer_for(plan, tmp_path / "out", train_dataset=rows, data_collator=collate)


# ---- subclasses ----


def subclass(**attributes: Any) -> type[HushTrainer]:
    return type("Mine", (HushTrainer,), attributes)


OVERRIDES = {
    "compute_loss": "pass loss=",
    "training_step": "pass loss=",
    "get_train_dataloader": "pass train_dataset= and data_collator=",
    "_get_train_sampler": "pass train_dataset= and data_collator=",
    "get_batch_samples": "pass train_dataset= and data_collator=",
    "log": "pass callbacks=",
    "_prepare_inputs": "PrivateTraining",
    "_export": "PrivateTraining",
}


@pytest.mark.parametrize("name", OVERRIDES)
def test_a_subclass_that_overrides_what_training_relies_on_is_refused(
    plan: hush.Plan, tmp_path: Path, name: str
) -> None:
    def replacement(self: Any, *args: Any, **options: Any) -> Any:
        raise AssertionError("never called")

    given = {"plan": plan, "train_dataset": texts(), "data_collator": collator("llama")}
    with pytest.raises(InvalidInput, match=f"Mine overrides {name}.*{OVERRIDES[name]}"):
        subclass(**{name: replacement})(tiny("llama"), arguments(tmp_path / "out"), **given)
    mixed = type("Mine", (type("Mixin", (), {name: replacement}), HushTrainer), {})
    with pytest.raises(InvalidInput, match=f"Mixin overrides {name}"):
        mixed(tiny("llama"), arguments(tmp_path / "out"), **given)
    trainer = trainer_for(plan, tmp_path / "out")
    setattr(trainer, name, replacement)
    with pytest.raises(InvalidInput, match=f"this trainer overrides {name}"):
        trainer.train()


def test_a_loss_function_of_the_trainer_is_refused(plan: hush.Plan, tmp_path: Path) -> None:
    trainer = trainer_for(plan, tmp_path / "out")
    trainer.compute_loss_func = lambda *_, **__: torch.zeros(())
    with pytest.raises(InvalidInput, match=r"compute_loss_func.*pass loss="):
        trainer.train()


def test_a_subclass_may_add_methods_and_build_its_optimizer(plan: hush.Plan, tmp_path: Path) -> None:
    called: list[str] = []

    class Mine(HushTrainer):  # pyright: ignore[reportGeneralTypeIssues]
        def create_optimizer(self, *args: Any, **options: Any) -> Any:
            called.append("optimizer")
            return super().create_optimizer(*args, **options)

        def mine(self) -> None: ...

    given = {"plan": plan, "train_dataset": texts(), "data_collator": collator("llama"), "insecure_seed": 1}
    Mine(tiny("llama"), arguments(tmp_path / "out"), **given).train()
    assert called == ["optimizer"]

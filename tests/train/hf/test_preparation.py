"""Rows of texts, conversations and prompts as tokens: those of TRL, each row by itself, under TRL's names."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import datasets
import pytest
import torch
from byte_level import TEMPLATE, byte_model, byte_tokenizer
from hypothesis import given, settings
from hypothesis import strategies as st
from models import tiny
from peft import LoraConfig
from trainers import EXAMPLES, arguments, trainer_plan, weights
from trl.trainer.sft_config import SFTConfig
from trl.trainer.sft_trainer import SFTTrainer

import hush
from hush.data import read_corpus
from hush.data.chat_template import ChatTemplate
from hush.errors import InvalidInput
from hush.keys import DataKey
from hush.train import HushConfig, HushTrainer, TokenizedTexts, training_texts
from hush.train.hf.config import RowSettings

KEY = DataKey(bytes(range(32)))


def text(number: int) -> str:
    return f"ticket {number}: the door is {'open' if number % 3 else 'shut'}"


def message(role: str, content: str) -> dict[str, str]:
    return {"role": role, "content": content}


ROWS: dict[str, list[dict[str, Any]]] = {
    "texts": [{"text": text(n)} for n in range(EXAMPLES)],
    "other column": [{"body": text(n), "text": "unused"} for n in range(EXAMPLES)],
    "completions": [{"prompt": f"where is door {n}? ", "completion": text(n)} for n in range(EXAMPLES)],
    "conversations": [
        {"messages": [message("user", f"door {n}?"), message("assistant", text(n)), message("user", "thanks")]}
        for n in range(EXAMPLES)
    ],
    "asked": [
        {"prompt": [message("user", f"door {n}?")], "completion": [message("assistant", text(n))]}
        for n in range(EXAMPLES)
    ],
}
CASES: list[tuple[str, dict[str, Any]]] = [
    ("texts", {}),
    ("texts", {"max_length": 9}),
    ("texts", {"eos_token": "<stop>"}),
    ("other column", {"dataset_text_field": "body"}),
    ("completions", {}),
    ("completions", {"completion_only_loss": False, "max_length": 30}),
    ("conversations", {}),
    ("conversations", {"assistant_only_loss": True}),
    ("asked", {}),
    ("asked", {"completion_only_loss": True, "eos_token": "<stop>"}),
]


def config(output: Path, kind: Any = HushConfig, **more: Any) -> Any:
    usual = {
        "output_dir": str(output),
        "per_device_train_batch_size": 4,
        "learning_rate": 0.1,
        "save_strategy": "no",
        "report_to": [],
        "use_cpu": True,
        "disable_tqdm": True,
    }
    return kind(**usual | more)


def hush_trainer(plan: hush.Plan, args: Any, rows: Any, **more: Any) -> Any:
    usual: dict[str, Any] = {"processing_class": byte_tokenizer(), "insecure_seed": 7}
    return HushTrainer(more.pop("model", None) or byte_model(), args, plan=plan, train_dataset=rows, **usual | more)


def prepared_by_trl(args: Any, rows: list[dict[str, Any]], **more: Any) -> datasets.Dataset:
    trainer = SFTTrainer(
        byte_model(), args, train_dataset=datasets.Dataset.from_list(rows), processing_class=byte_tokenizer(), **more
    )
    found: Any = trainer.train_dataset
    return found


def assert_same_rows(ours: Any, theirs: Any) -> None:
    assert len(ours) == len(theirs) == EXAMPLES
    for mine, other in zip(ours, theirs, strict=True):
        assert list(mine["input_ids"]) == other["input_ids"]
        assert list(mine.get("labels", mine["input_ids"])) == other["labels"]


@pytest.fixture(autouse=True)
def no_bars() -> Any:
    datasets.disable_progress_bars()
    yield
    datasets.enable_progress_bars()


@pytest.mark.parametrize(("rows", "how"), CASES, ids=lambda part: str(part))
def test_tokens_and_labels_are_those_of_trl(plan: hush.Plan, tmp_path: Path, rows: str, how: dict[str, Any]) -> None:
    theirs = prepared_by_trl(config(tmp_path, SFTConfig, **how), ROWS[rows])
    for kind, data in ((HushConfig, ROWS[rows]), (SFTConfig, datasets.Dataset.from_list(ROWS[rows]))):
        trainer = hush_trainer(plan, config(tmp_path / "out", kind, **how), data)
        assert isinstance(trainer.train_dataset, TokenizedTexts)
        assert_same_rows(trainer.train_dataset, theirs)


def test_a_formatting_func_makes_the_text_of_each_row(plan: hush.Plan, tmp_path: Path) -> None:
    rows = [{"subject": f"door {n}", "state": text(n)} for n in range(EXAMPLES)]

    def formatted(row: dict[str, Any]) -> str:
        return f"{row.pop('subject')}: {row['state']}"

    theirs = prepared_by_trl(config(tmp_path, SFTConfig), rows, formatting_func=formatted)
    trainer = hush_trainer(plan, config(tmp_path / "out"), rows, formatting_func=formatted)
    assert_same_rows(trainer.train_dataset, theirs)
    assert rows[0].keys() == {"subject", "state"}
    with pytest.raises(InvalidInput, match="formatting_func makes a list of row 0"):
        hush_trainer(plan, config(tmp_path / "out"), rows, formatting_func=lambda row: [row["state"]])
    with pytest.raises(InvalidInput, match="pass such rows, with the tokenizer"):
        hush_trainer(plan, config(tmp_path / "out"), rows, formatting_func=formatted, processing_class=None)


@pytest.mark.parametrize("rows", ["texts", "completions", "conversations", "asked"])
@given(numbers=st.lists(st.integers(0, EXAMPLES - 1), min_size=1, max_size=6, unique=True))
@settings(max_examples=5)
def test_a_row_has_the_same_tokens_whatever_other_rows_say(rows: str, numbers: list[int]) -> None:
    from hush.train.hf.preparation import RowTexts, _tokens

    fast, how = byte_tokenizer(), RowSettings()
    whole = _tokens(RowTexts(ROWS[rows], fast, how), fast, how, key=None)
    some = _tokens(RowTexts([ROWS[rows][n] for n in numbers], fast, how), fast, how, key=None)
    for place, number in enumerate(numbers):
        assert {name: list(value) for name, value in some[place].items()} == {
            name: list(value) for name, value in whole[number].items()
        }


def test_a_transform_of_a_dataset_gets_one_row_at_a_time() -> None:
    fast, seen = byte_tokenizer(), list[int]()

    def transform(batch: dict[str, list[Any]]) -> dict[str, list[Any]]:
        seen.append(len(batch["text"]))
        return {"text": [part + "!" * len(batch["text"]) for part in batch["text"]]}

    data = datasets.Dataset.from_list(ROWS["texts"]).with_transform(transform)
    assert list(training_texts(data, fast)) == [text(n) + "!" for n in range(EXAMPLES)]
    assert training_texts(data, fast)[2:4] == [text(2) + "!", text(3) + "!"]
    assert set(seen) == {1}


@pytest.mark.parametrize(("rows", "kind"), [("texts", list), ("conversations", datasets.Dataset.from_list)])
def test_the_texts_that_are_planned_for_are_those_that_are_trained_on(tmp_path: Path, rows: str, kind: Any) -> None:
    texts = training_texts(kind(ROWS[rows]), byte_tokenizer(), config(tmp_path / "out"))
    keyed = replace(trainer_plan(), data_fingerprint=KEY.fingerprint_rows(texts))
    trainer = hush_trainer(keyed, config(tmp_path / "out"), kind(ROWS[rows]), key=KEY, insecure_seed=None)
    trainer.train()
    assert trainer.certificate is not None
    assert trainer.certificate.is_real
    moved = [ROWS[rows][1], ROWS[rows][0], *ROWS[rows][2:]]
    with pytest.raises(InvalidInput, match="not the data that the plan was made for"):
        hush_trainer(keyed, config(tmp_path / "out"), kind(moved), key=KEY)


@pytest.mark.parametrize("rows", ["completions", "conversations", "asked"])
def test_a_scan_reads_the_texts_that_are_trained_on(rows: str) -> None:
    fast = byte_tokenizer()
    scanned = read_corpus(datasets.Dataset.from_list(ROWS[rows]), template=ChatTemplate.of_tokenizer(fast))
    assert list(scanned.texts()) == list(training_texts(ROWS[rows], fast))


def test_training_on_rows_is_training_on_their_tokens(plan: hush.Plan, tmp_path: Path) -> None:
    from hush.train import CausalCollator

    given_rows = hush_trainer(plan, config(tmp_path / "rows"), ROWS["conversations"])
    by_hand = hush_trainer(
        plan,
        arguments(tmp_path / "tokens"),
        given_rows.train_dataset,
        data_collator=CausalCollator(length=96, padding=1),
        buckets=(32, 64, 96),
    )
    for trainer in (given_rows, by_hand):
        trainer.train()
    for name, value in weights(given_rows.model).items():
        assert torch.equal(value, weights(by_hand.model)[name])


def test_the_arguments_of_trl_and_adapters_train_too(plan: hush.Plan, tmp_path: Path) -> None:
    args = config(tmp_path / "out", SFTConfig, assistant_only_loss=True)
    assert args.gradient_checkpointing
    assert args.bf16
    lora = LoraConfig(r=2, target_modules=["q_proj"], task_type="CAUSAL_LM")
    trainer = hush_trainer(
        plan, args, ROWS["conversations"], eval_dataset={"seen": ROWS["conversations"][:4]}, peft_config=lora
    )
    before = weights(trainer.model)
    trainer.train()
    moved = {name for name, value in weights(trainer.model).items() if not torch.equal(value, before[name])}
    assert moved == {name for name in before if "lora_" in name}
    assert trainer.evaluate()["eval_seen_loss"] > 0
    again = hush_trainer(plan, args, ROWS["conversations"], peft_config=lora)
    assert all(torch.equal(value, before[name]) for name, value in weights(again.model).items())
    with pytest.raises(InvalidInput, match="has adapters already"):
        hush_trainer(plan, args, ROWS["conversations"], peft_config=lora, model=again.model)


def test_adapters_of_conv1d_layers_need_no_warning(plan: hush.Plan, tmp_path: Path) -> None:
    lora = LoraConfig(r=2, target_modules=["c_attn"], task_type="CAUSAL_LM")
    trainer = hush_trainer(plan, config(tmp_path / "out"), ROWS["texts"], peft_config=lora, model=tiny("gpt2"))
    assert all("lora_" in name for name, p in trainer.model.named_parameters() if p.requires_grad)


def test_the_tokens_that_end_a_text_are_those_of_the_released_model(plan: hush.Plan, tmp_path: Path) -> None:
    template = tmp_path / "template.jinja"
    template.write_text(TEMPLATE.replace("<'", "<|'"))
    fast, own = byte_tokenizer(), byte_model()
    own.generation_config.eos_token_id = 0
    args = config(tmp_path / "out", eos_token="<stop>", chat_template_path=str(template))
    trainer = hush_trainer(plan, args, ROWS["conversations"], processing_class=fast, model=own)
    assert (fast.eos_token, own.config.eos_token_id, own.generation_config.eos_token_id) == ("<stop>", 2, [2, 0])
    assert fast.decode(trainer.train_dataset[0]["input_ids"]).startswith("<|user>door 0?<stop>")
    with pytest.raises(InvalidInput, match="no such token"):
        hush_trainer(plan, config(tmp_path / "out", eos_token="<none>"), ROWS["texts"])


@pytest.mark.parametrize(
    ("how", "message"),
    [
        ({"packing": True}, "packing.*cannot be clipped one by one.*batched by length"),
        ({"padding_free": True}, "padding_free.*cannot be clipped one by one"),
        ({"eval_packing": True}, "eval_packing.*cannot be clipped one by one"),
        ({"shuffle_dataset": True}, "row i must be example i"),
        ({"max_length": None}, "would tell how long it is"),
        ({"loss_type": "dft"}, "pass another to HushTrainer as loss="),
        ({"router_aux_loss_coef": 0.1}, "ties examples together"),
        ({"activation_offloading": True}, "lower per_device_train_batch_size"),
        ({"model_init_kwargs": {"dtype": "bfloat16"}}, "takes a model, not its name"),
        ({"trust_remote_code": True}, "runs no code of a model's repository"),
        ({"chat_template_path": "some/model"}, "clone_chat_template"),
    ],
)
def test_what_trl_offers_and_no_promise_allows_is_refused(
    plan: hush.Plan, tmp_path: Path, how: dict[str, Any], message: str
) -> None:
    with pytest.raises(InvalidInput, match=message):
        hush_trainer(plan, config(tmp_path / "out", SFTConfig, **how), ROWS["texts"])
    if how.keys() <= {"packing", "max_length", "chat_template_path"}:
        with pytest.raises(InvalidInput, match=message):
            hush_trainer(plan, config(tmp_path / "out", **how), ROWS["texts"])


def test_answers_are_learnt_of_rows_that_have_some(plan: hush.Plan, tmp_path: Path) -> None:
    for rows, how, message in (
        ("texts", {"assistant_only_loss": True}, "needs conversations, and the rows are plain texts"),
        ("texts", {"completion_only_loss": True}, "needs prompts with completions, and the rows are plain texts"),
        ("completions", {"assistant_only_loss": True}, "needs conversations, and the rows are prompts"),
        ("conversations", {"completion_only_loss": True}, "and the rows are conversations"),
    ):
        with pytest.raises(InvalidInput, match=message):
            hush_trainer(plan, config(tmp_path / "out", **how), ROWS[rows])


def test_a_row_that_cannot_be_rendered_is_named_and_not_quoted(plan: hush.Plan, tmp_path: Path) -> None:
    rows = [*ROWS["conversations"]]
    rows[17] = {"messages": [{"content": "the code is 4711"}]}
    with pytest.raises(InvalidInput, match="row 17 cannot be prepared: its message 1 has no role") as caught:
        hush_trainer(plan, config(tmp_path / "out"), rows)
    assert "4711" not in repr(caught.value)
    with pytest.raises(InvalidInput, match="row 3 has a int where its text should be"):
        hush_trainer(plan, config(tmp_path / "out"), [*ROWS["texts"][:3], {"text": 5}, *ROWS["texts"][4:]])


def test_conversations_with_slots_learn_their_answers_alone(tmp_path: Path) -> None:
    from hush.slots import slots_of_spans
    from hush.train import CausalCollator

    rows = ROWS["conversations"]
    texts = list(training_texts(rows, byte_tokenizer()))
    held = [0, 3, 6]
    graph = hush.Incidence.from_pairs(held, [0, 1, 2], num_examples=EXAMPLES, num_secrets=3)
    begins = [texts[n].index("shut") for n in held]
    where = {"example": held, "begin": begins, "end": [begin + 4 for begin in begins], "secret": [0, 1, 2]}
    spans = slots_of_spans(graph, ["states"], rule=[0, 0, 0], **where)
    plan = hush.make_plan(
        graph, slots=spans.slots, prior=1e-4, ceiling=0.1, batch_size=2, rounds=2,
        data_fingerprint=KEY.fingerprint_rows(texts),
        skeleton_fingerprint=KEY.fingerprint_rows(spans.skeleton(n, each) for n, each in enumerate(texts)),
    )  # fmt: skip
    args = config(tmp_path / "out", assistant_only_loss=True)
    trainer = hush_trainer(
        plan, args, rows, spans=spans, key=KEY, insecure_seed=None, data_collator=CausalCollator(length=96, padding=1)
    )
    trainer.train()
    assert trainer.certificate.is_real
    fast = byte_tokenizer()

    def learnt(row: Any) -> str:
        return fast.decode([token for token in row["labels"].tolist() if token >= 0])

    assert learnt(trainer.train_dataset[0]) == "shut"
    assert learnt(trainer.train_dataset.skeletons[0]) == "ticket 0: the door is <end>"
    assert learnt(trainer.train_dataset.skeletons[1]) == "ticket 1: the door is open<end>"


def test_instructions_with_outputs_are_prompts_with_completions(plan: hush.Plan, tmp_path: Path) -> None:
    rows = [{"instruction": f"door {n}?", "input": "", "output": text(n)} for n in range(EXAMPLES)]
    ours, asked = (hush_trainer(plan, config(tmp_path / "out"), each).train_dataset for each in (rows, ROWS["asked"]))
    for one, other in zip(ours, asked, strict=True):
        assert one["input_ids"].tolist() == other["input_ids"].tolist()
        assert one["labels"].tolist() == other["labels"].tolist()


def test_rows_that_are_prepared_or_that_a_collator_tokenises_are_left_alone(plan: hush.Plan, tmp_path: Path) -> None:
    tokens = [{"input_ids": [5, 6, 7], "labels": [-100, 6, 7]}] * EXAMPLES
    args = config(tmp_path / "out", dataset_text_field="body")
    assert hush_trainer(plan, args, TokenizedTexts([[5, 6]] * EXAMPLES)).train_dataset[0]["input_ids"].tolist() == [
        5,
        6,
    ]
    assert hush_trainer(plan, args, tokens).train_dataset is tokens
    fast = byte_tokenizer()

    def collate(rows: list[dict[str, Any]]) -> dict[str, torch.Tensor]:
        ids = torch.tensor(fast([row["text"] for row in rows])["input_ids"])
        return {"input_ids": ids, "labels": ids}

    same = [{"text": "the door"}] * EXAMPLES
    plain = arguments(tmp_path / "out", remove_unused_columns=False)
    assert hush_trainer(plan, plain, same, data_collator=collate).train_dataset is same

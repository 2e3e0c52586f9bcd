"""Preference pairs: tokens, reference and loss are those of TRL's DPOTrainer, and a pair is clipped as one example."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import datasets
import numpy as np
import pytest
import torch
from byte_level import byte_model, byte_tokenizer
from reference import check
from trainers import EXAMPLES, arguments, trainer_plan
from trl.trainer.dpo_config import DPOConfig
from trl.trainer.dpo_trainer import DPOTrainer

from hush.errors import InvalidInput
from hush.keys import DataKey
from hush.train import DPOLoss, HushTrainer, PairCollator, pair_texts, tokenise_pairs

KEY = DataKey(bytes(range(32)))
LENGTH = 60


def message(role: str, content: str) -> dict[str, str]:
    return {"role": role, "content": content}


PAIRS: list[dict[str, Any]] = [
    {"prompt": f"door {n}? ", "chosen": "It is open." * (1 + n % 2), "rejected": f"Code {n}{n}."}
    for n in range(EXAMPLES)
]
CONVERSATIONS: list[dict[str, Any]] = [
    {
        "prompt": [message("user", pair["prompt"])],
        "chosen": [message("assistant", pair["chosen"])],
        "rejected": [message("assistant", pair["rejected"])],
    }
    for pair in PAIRS
]


def moved(model: Any) -> Any:
    """The same model after an update, so that it is not its own reference."""
    generator = torch.Generator().manual_seed(3)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(0.05 * torch.randn(parameter.shape, generator=generator))
    return model


def batch_of(pairs: Any, numbers: range) -> dict[str, torch.Tensor]:
    return PairCollator(length=LENGTH, padding=1)([pairs[number] for number in numbers])


@pytest.mark.parametrize("rows", [PAIRS, CONVERSATIONS], ids=["texts", "conversations"])
def test_tokens_reference_and_loss_are_those_of_trl(tmp_path: Path, rows: list[dict[str, Any]]) -> None:
    datasets.disable_progress_bars()
    model, tokenizer = byte_model().eval(), byte_tokenizer()
    args = DPOConfig(
        str(tmp_path), beta=0.3, max_length=LENGTH, precompute_ref_log_probs=True, per_device_train_batch_size=8,
        bf16=False, use_cpu=True, report_to=[], disable_tqdm=True,
    )  # fmt: skip
    theirs: Any = DPOTrainer(
        model, args=args, train_dataset=datasets.Dataset.from_list(rows), processing_class=tokenizer
    )
    pairs = tokenise_pairs(rows, tokenizer, max_length=LENGTH).with_reference(model, max_length=LENGTH)
    assert pairs.reference is not None
    for number, row in enumerate(theirs.train_dataset):
        for side in ("chosen", "rejected"):
            assert list(pairs[number][side]["input_ids"]) == (row["prompt_ids"] + row[f"{side}_ids"])[:LENGTH]
        stated = [row["ref_chosen_logps"], row["ref_rejected_logps"]]
        np.testing.assert_allclose(pairs.reference[number], stated, rtol=1e-4)
    moved(model)
    their_batch = theirs.data_collator([theirs.train_dataset[n] for n in range(8)])
    with torch.no_grad():
        ours = DPOLoss(beta=0.3)(model, batch_of(pairs, range(8)))
        stated = theirs.compute_loss(model, their_batch)
    assert ours.shape == (8,)
    assert ours.std() > 1e-3
    assert float(ours.mean()) == pytest.approx(float(stated), rel=1e-4)


def test_a_pair_is_clipped_as_one_example_in_one_pass() -> None:
    model = byte_model()
    pairs = tokenise_pairs(PAIRS, byte_tokenizer(), max_length=LENGTH).with_reference(model, max_length=LENGTH)
    batch = batch_of(pairs, range(4))
    clipper = check(moved(model), DPOLoss(beta=0.3), batch)
    assert clipper.plan_for(batch).one_by_one is None


def test_the_reference_of_a_pair_is_its_own() -> None:
    model = byte_model()
    pairs = tokenise_pairs(PAIRS, byte_tokenizer(), max_length=LENGTH)
    some = tokenise_pairs(PAIRS[7:10], byte_tokenizer(), max_length=LENGTH)
    together, alone = (each.with_reference(model, max_length=LENGTH, micro_batch=5).reference for each in (pairs, some))
    assert together is not None
    assert alone is not None
    np.testing.assert_allclose(together[7:10], alone, rtol=1e-5)
    assert model.training


def test_hush_trainer_trains_pairs_of_the_plan(tmp_path: Path) -> None:
    model, tokenizer = byte_model(), byte_tokenizer()
    plan = replace(trainer_plan(), data_fingerprint=KEY.fingerprint_rows(pair_texts(PAIRS, tokenizer)))
    pairs = tokenise_pairs(PAIRS, tokenizer, max_length=LENGTH, key=KEY)
    usual: dict[str, Any] = {
        "plan": plan,
        "loss": DPOLoss(),
        "data_collator": PairCollator(length=LENGTH, padding=1),
        "buckets": (32, LENGTH),
        "key": KEY,
    }
    trainer = HushTrainer(
        model, arguments(tmp_path / "out"), train_dataset=pairs.with_reference(model, max_length=LENGTH), **usual
    )
    trainer.train()
    assert trainer.certificate is not None
    assert trainer.certificate.is_real
    other = tokenise_pairs(PAIRS[::-1], tokenizer, max_length=LENGTH, key=KEY)
    with pytest.raises(InvalidInput, match="not the data that the plan was made for"):
        HushTrainer(model, arguments(tmp_path / "out"), train_dataset=other, **usual)
    unkeyed = tokenise_pairs(PAIRS, tokenizer, max_length=LENGTH)
    with pytest.raises(InvalidInput, match=r"tokenise_pairs\("):
        HushTrainer(model, arguments(tmp_path / "out"), train_dataset=unkeyed, **usual)


def test_what_a_pair_lacks_is_said_without_its_text() -> None:
    with pytest.raises(InvalidInput, match="the rows lack rejected"):
        tokenise_pairs([{"prompt": "code 4711", "chosen": "a"}], byte_tokenizer(), max_length=9)
    with pytest.raises(InvalidInput, match="row 1 cannot be prepared") as caught:
        tokenise_pairs([*PAIRS[:1], {**PAIRS[1], "chosen": None}], byte_tokenizer(), max_length=9)
    assert "door" not in repr(caught.value)
    bare = tokenise_pairs(PAIRS, byte_tokenizer(), max_length=LENGTH)
    with pytest.raises(InvalidInput, match="pairs have no reference"):
        DPOLoss()(byte_model(), batch_of(bare, range(2)))

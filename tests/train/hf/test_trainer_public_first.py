"""HushTrainer learns what is public first, if it is asked to."""

from pathlib import Path

import numpy as np
import pytest
import torch
from trainers import collator, texts, trainer_for, weights

import hush
from hush.errors import InvalidInput
from hush.train import PublicFirst, PublicStream

FIRST = PublicFirst(learning_rate=3e-3, batch=8, epochs=6)


def stream(plan: hush.Plan) -> PublicStream:
    data, collate = texts(), collator("llama")
    assert collate is not None

    def batch_of(examples: np.ndarray) -> dict[str, torch.Tensor]:
        return collate([data[number] for number in examples.tolist()], examples=examples)

    return PublicStream(plan, batch_of, batch_size=8, weight=None)


def test_the_certificate_names_both_parts_and_a_resumed_run_repeats_neither(plan: hush.Plan, tmp_path: Path) -> None:
    trainer = trainer_for(plan, tmp_path / "out", public=stream(plan), public_first=FIRST)
    before = weights(trainer.model)
    trainer.train()
    assert trainer.learnt_first is not None
    assert trainer.certificate is not None
    assert trainer.certificate.public_part == {"examples": 35, "skeletons": 0}
    assert not torch.equal(next(iter(before.values())), next(iter(weights(trainer.model).values())))
    again = trainer_for(plan, tmp_path / "out", public=stream(plan), public_first=FIRST)
    again.train(resume_from_checkpoint=True)
    assert again.learnt_first == trainer.learnt_first
    without = trainer_for(plan, tmp_path / "out", public=stream(plan))
    with pytest.raises(InvalidInput, match="public part"):
        without.train(resume_from_checkpoint=True)


def test_it_needs_to_know_how_public_batches_are_made(plan: hush.Plan, tmp_path: Path) -> None:
    with pytest.raises(InvalidInput, match="public=PublicStream") as refused:
        trainer_for(plan, tmp_path / "out", public_first=True).train()
    assert "--" not in str(refused.value)

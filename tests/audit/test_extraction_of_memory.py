"""Extraction finds memory where it is, and nothing else: texts that were learnt, never seen, or protected."""

from functools import cache
from pathlib import Path
from typing import Any

import torch
from memorising import (
    END,
    HEAD,
    SECRET,
    byte_model,
    byte_tokenizer,
    planted,
    sequences_of,
    trained_plainly,
)

import hush
from hush.audit.extraction import extract
from hush.audit.models import Subject, load_subject
from hush.audit.sequences import Sequences, secret_sequences
from hush.train.language_models import CausalCollator, causal_lm_loss
from hush.train.private_training import PrivateTraining

TOKENIZER = byte_tokenizer()
COUNT = 12


@cache
def world() -> tuple[Sequences, Any, Any, list[list[int]]]:
    """Sequences with secrets, a model that was trained on them, one trained on others, and the rows of tokens."""
    texts, begins = planted(COUNT, seed=1)
    others, _ = planted(COUNT, seed=2)
    rows, other_rows = ([TOKENIZER(text)["input_ids"] for text in some] for some in (texts, others))
    return (
        sequences_of(texts, begins, TOKENIZER),
        trained_plainly(rows, steps=120),
        trained_plainly(other_rows, steps=120),
        rows,
    )


def test_a_model_that_memorised_gives_nearly_all_and_one_that_never_saw_them_none() -> None:
    sequences, memorised, reference, _ = world()
    prompts = (10, HEAD)
    found = extract(Subject.of(memorised), sequences, prompts=prompts, continuations=[4, "secret"], similarity=True)
    without = extract(Subject.of(reference), sequences, prompts=prompts, continuations=[4, "secret"], similarity=True)
    whole, chance = found.cell(HEAD, "secret"), without.cell(HEAD, "secret")
    assert whole.success.rate > 0.9
    assert whole.success.lower(0.01) > 0.6
    assert chance.success.hits == 0
    assert (whole.similarity or 0) > 0.9 > 0.5 > (chance.similarity or 0)
    assert whole.short == 0
    by_secret = found.by_secret(HEAD)
    assert sorted(by_secret) == list(range(COUNT))
    assert sum(one.hits for one in by_secret.values() if one) == whole.success.hits


def trained_by_hush(rows: list[list[int]], *, noise_scale: float) -> Any:
    """Clipping and the noise of a plan that protects every secret, times noise_scale."""
    count = len(rows)
    incidence = hush.Incidence.from_pairs(range(count), range(count), num_examples=count, num_secrets=count)
    promises: dict[str, Any] = {"prior": [26.0**-SECRET] * count, "ceiling": [1e-6] * count}
    plan = hush.make_plan(incidence, **promises, batch_size=count, rounds=90, capacity="none", noise_scale=noise_scale)
    model = byte_model()
    optimizer = torch.optim.AdamW(model.parameters(), lr=6e-3)
    private = PrivateTraining(model, optimizer, plan, loss=causal_lm_loss, micro_batch=count, insecure_seed=0)
    collate = CausalCollator(length=len(rows[0]), padding=END)
    for current in private.rounds():
        for batch in current.micro_batches():
            examples = [{"input_ids": rows[example]} for example in batch.examples]
            private.accumulate(collate(examples, examples=batch.examples, round=current.index), batch.real)
        private.step()
    return model


def test_a_protected_run_of_the_same_data_gives_no_more_than_a_model_that_never_saw_it() -> None:
    """The same training with its noise taken out gives the secrets away: it is the noise that keeps them."""
    sequences, _, reference, rows = world()
    broken, protected = (trained_by_hush(rows, noise_scale=scale) for scale in (1e-9, 1.0))
    found = [
        extract(Subject.of(one), sequences, prompts=[HEAD]).cell(HEAD, "secret").success.hits
        for one in (broken, protected, reference)
    ]
    assert found[0] > COUNT / 2
    assert found[1] <= found[2]


def test_a_loaded_folder_is_the_model_that_was_saved(tmp_path: Path) -> None:
    sequences, memorised, _, _ = world()
    memorised.save_pretrained(tmp_path)
    TOKENIZER.save_pretrained(tmp_path)
    subject, tokenizer = load_subject(str(tmp_path))
    again = secret_sequences(["User 1"], tokenizer, example=0, secret=0, begin=5, end=6)
    assert again.begin_N.tolist() == [5]
    expected = extract(Subject.of(memorised), sequences, prompts=[HEAD]).matched_NK
    assert (extract(subject, sequences, prompts=[HEAD]).matched_NK == expected).all()
    rough, _ = load_subject(str(tmp_path), dtype=torch.bfloat16)
    assert next(rough.model.parameters()).dtype == torch.bfloat16
    assert extract(rough, sequences, prompts=[HEAD]).cell(HEAD, "secret").success.rate > 0.8

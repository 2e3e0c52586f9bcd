"""Scores for the attacks of other tools: their columns and their meaning, written for the owner alone."""

import stat
from pathlib import Path
from random import Random
from typing import Any

import numpy as np
import pyarrow.parquet as pq
import pytest
import transformers
from memorising import byte_model, byte_tokenizer

from hush.audit import export_scores
from hush.audit.canaries import Canary, CanarySet, Candidates, Template
from hush.audit.models import Subject
from hush.errors import InvalidInput

WORDS = ["oak", "fir", "elm", "ash", "yew"]


def planting() -> CanarySet:
    canaries = tuple(
        Canary(
            id=f"canary-{number}",
            template=Template.parse(f"Tree {number}: {{secret}}!"),
            truth=number,
            examples=(number,),
        )
        for number in range(3)
    )
    return CanarySet(id="one", canaries=canaries, candidates=Candidates.of_list(WORDS))


def loss_behind(model: Any, text: str, shared: int) -> float:
    """Of a text by itself, behind its first tokens; a byte is a token."""
    import torch

    row = torch.tensor([byte_tokenizer()(text)["input_ids"]])
    with torch.no_grad():
        logits = model(input_ids=row).logits[0, :-1].double()
    losses = torch.nn.functional.cross_entropy(logits, row[0, 1:], reduction="none")
    return float(losses[shared - 1 :].sum())


@pytest.mark.parametrize("with_reference", [False, True])
def test_scores_are_losses_of_what_was_planted_and_of_what_might_have_been(
    tmp_path: Path, with_reference: bool
) -> None:
    model, other = byte_model(seed=1).eval(), byte_model(seed=2).eval()
    reference = (Subject.of(other), byte_tokenizer()) if with_reference else None
    export_scores(
        Subject.of(model), byte_tokenizer(), planting(), tmp_path / "scores",
        max_length=48, others=4, reference=reference, rng=Random(0),
    )  # fmt: skip
    members, others = (
        pq.read_table(tmp_path / "scores" / f"{name}.parquet").to_pandas() for name in ("members", "non_members")
    )
    columns = ["user_id", "canary", "score", "loss", *(["reference_loss"] if with_reference else [])]
    for frame, rows in ((members, 3), (others, 12)):
        assert list(frame.columns) == columns
        assert frame["user_id"].tolist() == list(range(rows))
        assert frame["user_id"].dtype == np.int64
        assert frame["score"].dtype == np.float64
    for number in range(3):
        begin = len(f"Tree {number}: ")
        wanted = loss_behind(model, f"Tree {number}: {WORDS[number]}!", begin)
        assert members["loss"][number] == pytest.approx(wanted, rel=1e-4)
        before = loss_behind(other, f"Tree {number}: {WORDS[number]}!", begin) if with_reference else 0.0
        assert members["score"][number] == pytest.approx(before - wanted, rel=1e-4)
        mine = others[others["canary"] == f"canary-{number}"]
        stated = [loss_behind(model, f"Tree {number}: {word}!", begin) for word in WORDS if word != WORDS[number]]
        assert sorted(mine["loss"]) == pytest.approx(sorted(stated), rel=1e-4)
    held = b"".join(path.read_bytes() for path in (tmp_path / "scores").iterdir())
    assert not any(word.encode() in held for word in (*WORDS, "Tree"))
    assert {stat.S_IMODE(path.stat().st_mode) for path in (tmp_path / "scores").iterdir()} == {0o600}


def test_what_has_no_scores_is_refused(tmp_path: Path) -> None:
    subject, tokenizer = Subject.of(byte_model().eval()), byte_tokenizer()
    for others in (0, 5):
        with pytest.raises(InvalidInput, match="from 1 to 4 other candidates"):
            export_scores(subject, tokenizer, planting(), tmp_path / "scores", max_length=48, others=others)
    config = transformers.BertConfig(
        vocab_size=300, hidden_size=16, num_hidden_layers=1, num_attention_heads=2, intermediate_size=16
    )
    masked = Subject.of(transformers.BertForMaskedLM(config).eval())
    with pytest.raises(InvalidInput, match="causal language models"):
        export_scores(masked, tokenizer, planting(), tmp_path / "scores", max_length=48)
    assert not (tmp_path / "scores").exists()

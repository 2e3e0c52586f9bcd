"""A run on long texts: cut into chunks, all of their text is trained on; without chunks, what is lost is said first."""

import json
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest
from small_runs import CANARIES, SECRETS, small_config, small_texts

import hush
from hush.plan import Plan
from hush.run import run_pipeline
from hush.run.config import Config
from hush.run.job import Watch
from hush.scan.result import Scan
from hush.slots import placeholder
from hush.train.slots.texts import tokenise_slots

SENTENCES = [f"{text}. " for text in small_texts()]
TEXTS = ["".join(SENTENCES[first : first + 10]) for first in range(0, 30, 10)]


def config_of(folder: Path, hides: str, **sections: Any) -> Config:
    config = small_config(folder, rules=[rule(hides)], **sections)
    (folder / "data.txt").write_text("\n".join(TEXTS) + "\n")
    return config


def rule(hides: str) -> dict[str, Any]:
    return {"name": "codes", "find": "patterns", "patterns": [r"QX-\d{4}"], "hides": hides}


@pytest.mark.parametrize("hides", ["example", "span"])
def test_all_of_long_texts_is_trained_on(tmp_path: Path, hides: str) -> None:
    attacks = {"attacks": ["mechanism", "extraction", "exposure"], "canaries": CANARIES, "reference": "base-model"}
    plan = {"batch_size": 3, "rounds": 4, "hold_out": 0.2}
    config = config_of(tmp_path, hides, chunks={"tokens": "auto"}, audit=attacks, plan=plan)
    made = run_pipeline(config, output=tmp_path / "run")
    folder = tmp_path / "run" / "owner"
    texts = pq.read_table(folder / "scan" / "owner" / "data.parquet").column("text").to_pylist()
    assert "".join(texts) == "".join(TEXTS)
    assert made.outputs["train"]["cut_texts"] == 0
    assert all(len(text) <= 32 for text in texts)
    assert not any("longer than" in notice for notice in made.outputs["scan"]["notices"])
    found, planned = Scan.load(folder / "scan"), Plan.load(folder / "plan")
    holds = [any(secret in text for secret in SECRETS) for text in texts]
    assert (found.incidence.secrets_per_example > 0).tolist() == holds
    assert planned.incidence.num_examples == len(texts) + CANARIES["count"]
    assert made.verdict is not None
    # The same again does nothing; another length of the model cuts anew.
    assert run_pipeline(config, output=tmp_path / "run").ran == ()
    shorter = config_of(tmp_path, hides, chunks={"tokens": "auto"}, training={"max_length": 30}, plan=plan)
    assert "scan" in run_pipeline(shorter, output=tmp_path / "run", new_release=True).ran


def test_what_is_beyond_the_model_is_said_before_the_plan_is_made(tmp_path: Path) -> None:
    told: list[str] = []
    config = config_of(tmp_path, "example", audit=None, plan={"batch_size": 2, "hold_out": 0})
    watch = Watch(notice=told.append, stage=lambda name, *_: told.append(f"stage {name}"))
    made = run_pipeline(config, output=tmp_path / "run", watch=watch)
    [said] = [notice for notice in told if "longer than" in notice and "WARNING" in notice]
    unread = sum(len(text) - 32 for text in TEXTS)
    secrets = sum(text.count("QX-") for text in TEXTS)
    beyond = secrets - sum(text[:32].count("QX-") for text in TEXTS)
    assert (
        f"3 of 3 texts are longer than the 32 tokens that the model reads: {unread / sum(map(len, TEXTS)):.1%}".replace(
            "%", " %"
        )
        in said
    )
    assert f"{beyond} of {secrets} occurrences of secrets lie there" in said
    assert told.index(said) < told.index("stage plan")
    assert sum("longer than the 32 tokens" in notice for notice in told) == 2  # training says it again
    assert said in made.outputs["scan"]["notices"]
    assert made.outputs["train"] == made.outputs["train"] | {"max_length": 32, "cut_texts": 3}


def test_chunks_with_slots_are_tokenised_whole_for_every_filling(tmp_path: Path) -> None:
    """From scan to tokens: with secrets of other lengths, the public tokens of a run's data are the same."""
    from hush.run.sections import SmallModel
    from hush.run.stage_train import base_model
    from hush.scan.long_texts import ModelTokens
    from hush.scan.scanner import scan
    from hush.train.pretrained import model_metadata

    small = SmallModel(layers=1, width=8, heads=1, length=32)
    model = model_metadata(str(base_model(tmp_path, small)), task=None, max_length=None)
    tokens = ModelTokens(model.tokenizer, model.max_length)
    seen: list[Any] = []
    for filling in ("QX-1000", "QX-" + "7" * 60):
        texts = [text.replace("QX-1000", filling) for text in TEXTS]
        source = tmp_path / "texts.jsonl"
        source.write_text("".join(json.dumps({"text": text}) + "\n" for text in texts))
        rules = {"defaults": {"prior": 1e-6, "ceiling": 1e-2}, "chunks": {"tokens": "auto", "overlap": 4}}
        patterns = rule("span") | {"patterns": [r"QX-\d+"]}
        found = scan(source, rules | {"rules": [patterns]}, model_tokens=tokens)
        found.save(tmp_path / filling)
        rows = pq.read_table(tmp_path / filling / "owner" / "data.parquet").column("text").to_pylist()
        plan = hush.make_plan(
            found.incidence, prior=1e-6, ceiling=0.1, batch_size=1, rounds=2, slots=found.slots, capacity="none"
        )
        made = tokenise_slots(rows, model.tokenizer, plan, found.spans, max_length=model.max_length)
        assert made.unread.cut == 0
        assert any(placeholder("codes") in found.spans.skeleton(n, row) for n, row in enumerate(rows))
        seen.append([{name: column.tolist() for name, column in made.skeletons[n].items()} for n in range(len(rows))])
    assert seen[0] == seen[1]

"""Runs to audit, made without training: a plan for planted texts, and any model under its certificate.

And what an owner has beside them: texts, the places of their secrets, settings that do not take long.
"""

import json
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import transformers
from memorising import HEAD, SECRET, byte_tokenizer, planted, trained_plainly
from tokenizers import Tokenizer, models, pre_tokenizers

import hush
from hush.audit.auditor import Audit
from hush.audit.folders import AuditedRun, SecretSpans
from hush.audit.session import AuditInputs
from hush.audit.settings import AuditSettings
from hush.audit.verdict import VerdictRow
from hush.data import read_corpus
from hush.plan.earlier import copy_earlier
from hush.storage import folder_digest

TOKENIZER = byte_tokenizer()
TOKENIZER.model_max_length = 48
COUNT, THREE = 12, 3  # secrets of a plan
ROUNDS = 6
FEW = AuditSettings(prompts=(10, HEAD), trials=2000, seed=0)
QUICK = AuditSettings(prompts=(4,), trials=50, candidates=10, seed=0)


def changed(settings: AuditSettings, **changes: Any) -> AuditSettings:
    """The same settings but for these, checked like any others."""
    return AuditSettings(**{name: getattr(settings, name) for name in AuditSettings.model_fields} | changes)


def plan_for(count: int, *, ceiling: float = 1e-6, prior: float = 26.0**-SECRET, **more: Any) -> hush.Plan:
    """A secret in each of the first ``count`` examples; as many follow without one."""
    incidence = hush.Incidence.from_pairs(range(count), range(count), num_examples=2 * count, num_secrets=count)
    promises: dict[str, Any] = {"prior": [prior] * count, "ceiling": [ceiling] * count}
    return hush.make_plan(incidence, **promises, batch_size=6, rounds=ROUNDS, **more)


def write_texts(folder: Path, count: int) -> tuple[list[str], list[int]]:
    """data.jsonl, spans.parquet: the planted texts, then others; and the texts with their secrets' first characters."""
    texts, begins = planted(count, seed=1)
    others = [f"User {number:03d} asked for a new pass." for number in range(count)]
    rows = [json.dumps({"text": text}) + "\n" for text in texts + others]
    (folder / "data.jsonl").write_text("".join(rows))
    columns = {
        "example": list(range(count)),
        "secret": [f"secret-{number:06d}" for number in range(count)],
        "begin": begins,
        "end": [begin + SECRET for begin in begins],
    }
    pq.write_table(pa.table(columns), folder / "spans.parquet")
    return texts, begins


def release(
    folder: Path,
    plan: hush.Plan,
    model: Any,
    tokenizer: Any,
    *,
    marks: tuple[str, ...] = (),
    unnamed: tuple[str, ...] = (),
    after: Sequence[Path] = (),
) -> AuditedRun:
    """What a training under this plan releases, the model being this one.

    unnamed: fingerprints that are left out. after: the folders of the earlier releases of a chain.
    """
    made = folder / "release"
    model.save_pretrained(made / "model")
    tokenizer.save_pretrained(made / "model")
    plan.save(made / "plan")
    copy_earlier([folder / "release" for folder in after], made)
    certificate = plan.certificate
    fingerprints = {**certificate.fingerprints, "model": folder_digest(made / "model")}
    fingerprints = {name: value for name, value in fingerprints.items() if name not in unnamed}
    certificate = replace(certificate, fingerprints=fingerprints, marks=(*certificate.marks, *marks))
    (made / "certificate.json").write_text(json.dumps(certificate.to_dict()))
    return AuditedRun.load(folder)


def masked_bytes() -> tuple[transformers.BertConfig, transformers.PreTrainedTokenizerFast]:
    """A tiny masked model over bytes, and its tokenizer."""
    words = ["<pad>", "<mask>", *sorted(pre_tokenizers.ByteLevel.alphabet())]
    level = Tokenizer(models.BPE(vocab={word: index for index, word in enumerate(words)}, merges=[]))
    level.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer = transformers.PreTrainedTokenizerFast(
        tokenizer_object=level, pad_token="<pad>", mask_token="<mask>", model_max_length=48
    )
    config = transformers.BertConfig(
        vocab_size=len(words), hidden_size=16, num_hidden_layers=1, num_attention_heads=2, intermediate_size=32,
        max_position_embeddings=48, pad_token_id=0,
    )  # fmt: skip
    return config, tokenizer


@cache
def memorised() -> Any:
    texts, _ = planted(COUNT, seed=1)
    return trained_plainly([TOKENIZER(text)["input_ids"] for text in texts], steps=120)


@dataclass(frozen=True, kw_only=True)
class Desk:
    """An owner's files."""

    root: Path
    texts: list[str]

    def inputs(self, run: AuditedRun, **more: Any) -> AuditInputs:
        places = SecretSpans.read(self.root / "spans.parquet", run.plan.secret_ids)
        corpus = read_corpus(self.root / "data.jsonl")
        return AuditInputs(**{"corpus": corpus, "places": places, "reference": str(self.root / "base")} | more)

    def secrets(self) -> list[str]:
        return [text[HEAD : HEAD + 8] for text in self.texts]


def corpus_of(folder: Path, texts: list[str]) -> Any:
    (folder / "texts.jsonl").write_text("".join(json.dumps({"text": text}) + "\n" for text in texts))
    return read_corpus(folder / "texts.jsonl")


def places_of(texts: list[str], secrets: dict[int, str]) -> SecretSpans:
    """Every place of these secrets."""
    found = [
        (example, secret, begin, begin + len(said))
        for secret, said in secrets.items()
        for example, text in enumerate(texts)
        for begin in range(len(text))
        if text.startswith(said, begin)
    ]
    columns = np.array(found, dtype=np.int64).reshape(-1, 4).T
    return SecretSpans(example=columns[0], secret=columns[1], begin=columns[2], end=columns[3])


def rows_of(made: Audit, attack: str) -> list[VerdictRow]:
    return [row for row in made.verdict.rows if row.attempt.attack == attack]

"""Texts with slots for the tests of training: tokenizers made on the spot, fillings of slots, and plans."""

from collections.abc import Sequence
from typing import Any

import numpy as np
from tokenizers import Tokenizer, decoders, models, normalizers, pre_tokenizers, processors, trainers
from transformers import PreTrainedTokenizerFast

import hush
from hush.incidence import Incidence
from hush.plan import Plan
from hush.slots import Spans, slots_of_spans

RULES = ("names", "codes")
SPECIAL = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]
TEXTS = [
    "the quick brown fox jumps over the lazy dog and naps",
    "a river runs past the old mill, where naïve bakers grind their wheat",
    "[names] are written in brackets; codes such as 12-34 are not always secret",
    "café prices went up by 3 % in May — again, and again, and again",
]
KINDS = ("bytes", "wordpiece", "unigram")


def made_tokenizer(kind: str, *, special: bool) -> Any:
    """A small tokenizer of this kind, trained on TEXTS; special: whether it puts tokens around every text."""
    common: dict[str, Any] = {"special_tokens": SPECIAL, "show_progress": False}
    if kind == "bytes":
        inner: Any = Tokenizer(models.BPE())
        alphabet = pre_tokenizers.ByteLevel.alphabet()
        trainer: Any = trainers.BpeTrainer(vocab_size=400, initial_alphabet=alphabet, **common)
        inner.pre_tokenizer, inner.decoder = pre_tokenizers.ByteLevel(add_prefix_space=False), decoders.ByteLevel()
    elif kind == "wordpiece":
        inner = Tokenizer(models.WordPiece(unk_token="[UNK]"))
        trainer = trainers.WordPieceTrainer(vocab_size=200, **common)
        inner.normalizer, inner.pre_tokenizer = normalizers.BertNormalizer(), pre_tokenizers.BertPreTokenizer()
    else:
        inner = Tokenizer(models.Unigram())
        trainer = trainers.UnigramTrainer(vocab_size=120, unk_token="[UNK]", **common)
        inner.normalizer, inner.pre_tokenizer = normalizers.NFKC(), pre_tokenizers.Metaspace()
    inner.train_from_iterator(TEXTS * 3, trainer)
    if special:
        ids = [(token, inner.token_to_id(token)) for token in ("[CLS]", "[SEP]")]
        inner.post_processor = processors.TemplateProcessing(single="[CLS] $A [SEP]", special_tokens=ids)
    names = {"pad_token": "[PAD]", "unk_token": "[UNK]", "mask_token": "[MASK]"}
    return PreTrainedTokenizerFast(tokenizer_object=inner, cls_token="[CLS]", sep_token="[SEP]", **names)


Columns = dict[str, list[int]]


def filled(pieces: Sequence[Sequence[str]], fillings: Sequence[Sequence[str]]) -> tuple[list[str], Columns]:
    """Texts of which piece k is followed by filling k, and where the fillings are; one secret for each filling."""
    texts = list[str]()
    columns: Columns = {"example": [], "begin": [], "end": [], "rule": [], "secret": []}
    for example, (parts, secrets) in enumerate(zip(pieces, fillings, strict=True)):
        text = parts[0]
        for number, secret in enumerate(secrets):
            place = (example, len(text), len(text) + len(secret), number % len(RULES), len(columns["secret"]))
            for column, value in zip(columns.values(), place, strict=True):
                column.append(value)
            text += secret + parts[number + 1]
        texts.append(text)
    return texts, columns


def spans_of(texts: Sequence[str], columns: Columns, whole: Sequence[int] = ()) -> tuple[Incidence, Spans]:
    """Graph and spans of these texts; the examples ``whole`` contain one further secret, and so have no slots."""
    secrets = max(columns["secret"], default=-1) + 1
    pairs = [*zip(columns["example"], columns["secret"], strict=True), *((example, secrets) for example in whole)]
    examples, ids = np.array(pairs, dtype=np.int64).reshape(-1, 2).T
    graph = Incidence.from_pairs(examples, ids, num_examples=len(texts), num_secrets=secrets + bool(whole))
    return graph, slots_of_spans(graph, RULES, **columns)


def slot_plan(texts: Sequence[str], columns: Columns, whole: Sequence[int] = (), **more: Any) -> tuple[Plan, Spans]:
    """A plan and the spans for these texts."""
    graph, spans = spans_of(texts, columns, whole)
    drawn = np.count_nonzero(graph.secrets_per_example)
    settings: dict[str, Any] = {"prior": 1e-4, "ceiling": 0.5, "batch_size": drawn / 2, "rounds": 3, "capacity": "none"}
    return hush.make_plan(graph, slots=spans.slots, **settings | more), spans

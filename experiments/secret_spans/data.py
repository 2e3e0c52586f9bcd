"""From abstracts to what the study trains on: word pieces, which of them lie in a slot, and skeletons.

Split and length are those of the study of secret words: abstracts with one of the words that occur in 50 to 100 of all
abstracts, of which 1/19 each is for validation and for the test. ``hush scan`` finds the words with ``hides: span``, so
that other forms of a word are slots too. The forms of some words coincide with frequent words ("we'll" and "well"):
hiding those would hide a large part of all texts for the sake of a few words, so words whose forms are in more than
``MOST_EXAMPLES`` abstracts are left out of the secrets, and are public.
Shapes: N examples, T word pieces, S secrets, L slots, P pairs of slot and secret.
"""

import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self

import numpy as np
import pyarrow.parquet as pq
from numpy.typing import NDArray

import hush
from experiments.secret_words.data import LENGTH, PARTS, secret_words, word_incidence
from hush.slots import Spans, skeleton, slots_of_spans

__all__ = ["PLACEHOLDER", "PLACEHOLDER_ID", "RULE", "Part", "prepare", "restricted", "slots_found", "split"]

PLACEHOLDER = "[unused1]"  # a word piece that no text has: what stands for every slot
PLACEHOLDER_ID = 2  # its place in BERT's vocabulary
RULE = "rare-words"
NO_SECRET = -1
MOST_EXAMPLES = 1.5  # times the most of the rule
_CHUNK = 4096


@dataclass(frozen=True, eq=False, kw_only=True)
class Part:
    """One part of the split. token_NT: padded with 0; secret_NT: the first secret of the slot of each piece, or -1.

    skeleton_NT: the pieces of the skeletons, cut to the same length as skeletons.
    """

    token_NT: NDArray[np.uint16]
    secret_NT: NDArray[np.int32]
    skeleton_NT: NDArray[np.uint16]

    def save(self, path: Path) -> None:
        np.savez(path, token=self.token_NT, secret=self.secret_NT, skeleton=self.skeleton_NT)

    @classmethod
    def load(cls, path: Path) -> Self:
        with np.load(path) as stored:
            return cls(token_NT=stored["token"], secret_NT=stored["secret"], skeleton_NT=stored["skeleton"])


def prepare(
    abstracts_file: Path,
    vocabulary: Path,
    folder: Path,
    *,
    limit: int | None,
    documents: tuple[int, int],
    seed: int = 0,
) -> None:
    """Write every part, and graph and slots of the training part, into the folder, unless they are there."""
    if (folder / "slots.parquet").exists():
        return
    folder.mkdir(parents=True, exist_ok=True)
    table = pq.read_table(abstracts_file, columns=["abstract"]).slice(0, limit)
    abstracts: list[str] = table.column(0).to_pylist()
    numbers = split(abstracts, documents, seed)
    graph, spans, _ = slots_found(table, folder, documents)
    tokenizer = _tokenizer(vocabulary)
    for name, own in numbers.items():
        _part(tokenizer, abstracts, spans, own).save(folder / f"{name}.npz")
    incidence, trained = restricted(graph, spans, numbers["train"])
    incidence.to_parquet(folder / "incidence.parquet")
    counts = {
        "secrets": incidence.num_secrets,
        "examples": incidence.num_examples,
        "examples with a secret": int((incidence.secrets_per_example > 0).sum()),
        "slots": len(trained.slots),
        "examples of a secret, fewest and most": [
            int(incidence.examples_per_secret.min()), int(incidence.examples_per_secret.max())
        ],
    }  # fmt: skip
    (folder / "counts.json").write_text(json.dumps(counts, indent=1) + "\n")
    trained.slots.to_parquet(folder / "slots.parquet")


def split(abstracts: Sequence[str], documents: tuple[int, int], seed: int = 0) -> dict[str, NDArray[np.int64]]:
    """The abstracts of each part: those with a secret word, of which 1/19 each is for validation and for the test."""
    kept, _ = word_incidence(abstracts, secret_words(abstracts, documents))
    shuffled = np.random.default_rng(seed).permutation(kept)
    held = kept.size // 19
    return dict(zip(PARTS, (shuffled[2 * held :], shuffled[:held], shuffled[held : 2 * held]), strict=True))


def slots_found(table: Any, folder: Path, documents: tuple[int, int]) -> tuple[hush.Incidence, Spans, list[str]]:
    """Graph and spans of the scan, of the words whose forms are not widespread; and these words."""
    from hush.data import read_corpus  # only here: training needs no scan
    from hush.scan import scan

    pq.write_table(table, folder / "abstracts.parquet")
    rules = {
        "defaults": {"prior": 1e-4, "ceiling": 0.1},
        "rules": [{"name": RULE, "find": "words", "documents": list(documents), "hides": "span"}],
    }
    found = scan(read_corpus(folder / "abstracts.parquet", column="abstract"), rules, workers=2)
    graph, spans, slots = found.incidence, found.spans, found.spans.slots
    kept_S = graph.examples_per_secret <= MOST_EXAMPLES * documents[1]
    new_S = np.cumsum(kept_S) - 1
    slot_P = np.repeat(np.arange(len(slots)), np.diff(slots.offset_L))
    slot_P, secret_P = (column[kept_S[slots.secret_P]] for column in (slot_P, slots.secret_P))
    example_P = slots.example_L[slot_P]
    smaller = hush.Incidence.from_pairs(
        example_P, new_S[secret_P], num_examples=graph.num_examples, num_secrets=int(kept_S.sum())
    )
    kept = slots_of_spans(
        smaller, slots.rules, example=example_P, begin=spans.begin_L[slot_P], end=spans.end_L[slot_P],
        rule=slots.rule_L[slot_P], secret=new_S[secret_P],
    )  # fmt: skip
    words = found.secrets.texts or ()
    return smaller, kept, [words[secret] for secret in np.flatnonzero(kept_S)]


def restricted(incidence: hush.Incidence, spans: Spans, examples: NDArray[np.int64]) -> tuple[hush.Incidence, Spans]:
    """Graph and spans of these examples alone, in this order; a secret in none of them stays, without examples."""
    slots = spans.slots
    new_N = np.full(incidence.num_examples, -1)
    new_N[examples] = np.arange(examples.size)
    slot_P = np.repeat(np.arange(len(slots)), np.diff(slots.offset_L))
    is_kept_P = new_N[slots.example_L[slot_P]] >= 0
    slot_P, secret_P = slot_P[is_kept_P], slots.secret_P[is_kept_P]
    example_P = new_N[slots.example_L[slot_P]]
    graph = hush.Incidence.from_pairs(
        example_P, secret_P, num_examples=examples.size, num_secrets=incidence.num_secrets
    )
    return graph, slots_of_spans(
        graph, slots.rules, example=example_P, begin=spans.begin_L[slot_P], end=spans.end_L[slot_P],
        rule=slots.rule_L[slot_P], secret=secret_P,
    )  # fmt: skip


def _tokenizer(vocabulary: Path) -> Any:
    from transformers import BertTokenizer

    tokenizer: Any = BertTokenizer(vocab=str(vocabulary), do_lower_case=True)
    tokenizer.add_special_tokens({"additional_special_tokens": [PLACEHOLDER]})
    return tokenizer


def _part(tokenizer: Any, abstracts: Sequence[str], spans: Spans, examples: NDArray[np.int64]) -> Part:
    token_NT = np.zeros((examples.size, LENGTH), dtype=np.uint16)
    secret_NT = np.full((examples.size, LENGTH), NO_SECRET, dtype=np.int32)
    skeleton_NT = np.zeros((examples.size, LENGTH), dtype=np.uint16)
    for first in range(0, examples.size, _CHUNK):
        numbers: list[int] = examples[first : first + _CHUNK].tolist()
        texts = [abstracts[example] for example in numbers]
        found = [spans.of_example(example) for example in numbers]
        public = [
            skeleton(text, [b for b, _ in own], [e for _, e in own], [f" {PLACEHOLDER} "] * len(own))
            for text, own in zip(texts, found, strict=True)
        ]
        full = tokenizer(texts, truncation=True, max_length=LENGTH, return_offsets_mapping=True)
        cut = tokenizer(public, truncation=True, max_length=LENGTH)
        for row, (example, own) in enumerate(zip(numbers, found, strict=True)):
            tokens, offsets = full["input_ids"][row], np.array(full["offset_mapping"][row])
            token_NT[first + row, : len(tokens)] = tokens
            for slot, (begin, end) in zip(spans.slots.of_example(example), own, strict=True):
                inside = (offsets[:, 0] < end) & (offsets[:, 1] > begin)
                secret_NT[first + row, : len(tokens)][inside] = spans.slots.secrets_of(slot)[0]
            skeleton_NT[first + row, : len(cut["input_ids"][row])] = cut["input_ids"][row]
    return Part(token_NT=token_NT, secret_NT=secret_NT, skeleton_NT=skeleton_NT)

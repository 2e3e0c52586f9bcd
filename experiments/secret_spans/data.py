"""From abstracts to what the study trains on: word pieces, which of them lie in a slot, and skeletons.

Words, split and length are those of the study of secret words: the secrets are the words in 50 to 100 of all abstracts,
abstracts without one are left out, and 1/19 of the others each is for validation and for the test. Here ``hush scan``
finds them with ``hides: span``, so that other forms of a word are slots too.
Shapes: N examples, T word pieces, S secrets.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self

import numpy as np
import pyarrow.parquet as pq
from numpy.typing import NDArray

import hush
from experiments.secret_words.data import LENGTH, PARTS
from hush.slots import Slots, Spans, skeleton

__all__ = ["PLACEHOLDER", "PLACEHOLDER_ID", "Part", "prepare"]

PLACEHOLDER = "[unused1]"  # a word piece that no text has: what stands for every slot
PLACEHOLDER_ID = 2  # its place in BERT's vocabulary
RULE = "rare-words"
NO_SECRET = -1


@dataclass(frozen=True, eq=False, kw_only=True)
class Part:
    """One part of the split. token_NT: padded with 0; secret_NT: the first secret of the slot of each piece, or -1.

    skeleton_NT: the pieces of the skeletons, cut to the same length as skeletons.
    """

    token_NT: NDArray[np.uint16]
    secret_NT: NDArray[np.int32]
    skeleton_NT: NDArray[np.uint16]

    def save(self, path: Path) -> None:
        np.savez_compressed(path, token=self.token_NT, secret=self.secret_NT, skeleton=self.skeleton_NT)

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
    from hush.data import read_corpus  # only here: training needs no scan
    from hush.scan import scan

    table = pq.read_table(abstracts_file, columns=["abstract"]).slice(0, limit)
    pq.write_table(table, folder / "abstracts.parquet")
    rules = {
        "defaults": {"prior": 1e-4, "ceiling": 0.1},
        "rules": [{"name": RULE, "find": "words", "documents": list(documents), "hides": "span"}],
    }
    found = scan(read_corpus(folder / "abstracts.parquet", column="abstract"), rules, workers=2)
    abstracts: list[str] = table.column(0).to_pylist()
    kept = np.flatnonzero(found.incidence.secrets_per_example > 0)
    shuffled = np.random.default_rng(seed).permutation(kept)
    held = kept.size // 19
    numbers = dict(zip(PARTS, (shuffled[2 * held :], shuffled[:held], shuffled[held : 2 * held]), strict=True))
    tokenizer = _tokenizer(vocabulary)
    for name, own in numbers.items():
        _part(tokenizer, abstracts, found.spans, own).save(folder / f"{name}.npz")
    incidence, slots = restricted(found.incidence, found.spans.slots, numbers["train"])
    incidence.to_parquet(folder / "incidence.parquet")
    slots.to_parquet(folder / "slots.parquet")


def restricted(incidence: hush.Incidence, slots: Slots, examples: NDArray[np.int64]) -> tuple[hush.Incidence, Slots]:
    """Graph and slots of these examples alone, in this order; a secret in none of them stays, without examples."""
    new_N = np.full(incidence.num_examples, -1)
    new_N[examples] = np.arange(examples.size)
    secret_E = np.repeat(np.arange(incidence.num_secrets), incidence.examples_per_secret)
    example_E = new_N[incidence.example_of_entry]
    graph = hush.Incidence.from_pairs(
        example_E[example_E >= 0], secret_E[example_E >= 0], num_examples=examples.size,
        num_secrets=incidence.num_secrets,
    )  # fmt: skip
    order = [slot for example in examples.tolist() for slot in slots.of_example(example)]
    secrets = [slots.secrets_of(slot) for slot in order]
    return graph, Slots(
        num_examples=examples.size,
        num_secrets=incidence.num_secrets,
        rules=slots.rules,
        example_L=new_N[slots.example_L[order]],
        place_L=slots.place_L[order],
        rule_L=slots.rule_L[order],
        offset_L=np.cumsum([0, *map(len, secrets)]),
        secret_P=np.concatenate([np.empty(0, dtype=np.int64), *secrets]),
    )


def _tokenizer(vocabulary: Path) -> Any:
    from transformers import BertTokenizer

    tokenizer: Any = BertTokenizer(vocab=str(vocabulary), do_lower_case=True)
    tokenizer.add_special_tokens({"additional_special_tokens": [PLACEHOLDER]})
    return tokenizer


def _part(tokenizer: Any, abstracts: Sequence[str], spans: Spans, examples: NDArray[np.int64]) -> Part:
    token_NT = np.zeros((examples.size, LENGTH), dtype=np.uint16)
    secret_NT = np.full((examples.size, LENGTH), NO_SECRET, dtype=np.int32)
    skeleton_NT = np.zeros((examples.size, LENGTH), dtype=np.uint16)
    numbers: list[int] = examples.tolist()
    for row, example in enumerate(numbers):
        text, own = str(abstracts[example]), spans.of_example(example)
        encoded = tokenizer(text, truncation=True, max_length=LENGTH, return_offsets_mapping=True)
        tokens, offsets = encoded["input_ids"], np.array(encoded["offset_mapping"])
        token_NT[row, : len(tokens)] = tokens
        for slot, (begin, end) in zip(spans.slots.of_example(example), own, strict=True):
            inside = (offsets[:, 0] < end) & (offsets[:, 1] > begin)
            secret_NT[row, : len(tokens)][inside] = spans.slots.secrets_of(slot)[0]
        public = skeleton(text, [b for b, _ in own], [e for _, e in own], [f" {PLACEHOLDER} "] * len(own))
        tokens = tokenizer(public, truncation=True, max_length=LENGTH)["input_ids"]
        skeleton_NT[row, : len(tokens)] = tokens
    return Part(token_NT=token_NT, secret_NT=secret_NT, skeleton_NT=skeleton_NT)

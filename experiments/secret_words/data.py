"""From texts to what the study trains on: secret words, a split, word pieces; and a public corpus to start from.

Secrets are the lower-cased words outside $...$ that occur in 50 to 100 of all abstracts; abstracts without any are left
out; of the others 1/19 are for validation and 1/19 for the test, as in the paper. Only training examples enter the
incidence. The public corpus (books and textbooks, no abstract among them) stands for what a pretrained model has read.
"""

import gzip
import json
import lzma
import re
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet as pq
from numpy.typing import NDArray

import hush

__all__ = [
    "LENGTH", "PARTS", "PUBLIC_PARTS", "Prepared", "prepare", "prepare_public_parts", "public_texts", "secret_words",
    "tokenised", "windows", "word_incidence", "words",
]  # fmt: skip

WORD, FORMULA = re.compile(r"[a-z]+(?:[-'][a-z]+)*"), re.compile(r"\$[^$]*\$")
DOCUMENTS = 50, 100
LENGTH = 128  # word pieces of an abstract that are used, its first; what lies beyond is not trained on
PARTS = ("train", "validation", "test")
PUBLIC_PARTS = (
    "books",
    "free",
)  # what a metric is measured from: windows of the public corpus; abstracts without a secret
BOOKS = 20_000  # windows, drawn at random: a measurement takes some hundreds
_CHUNK = 4096
# Word pieces are numbers of two bytes; the defaults of LZMA, made for bytes, give files 1.4 times as large as these.
FILTERS = [{"id": lzma.FILTER_LZMA2, "preset": 9, "lc": 3, "lp": 1, "pb": 1}]


def words(abstract: str) -> set[str]:
    """Lower-cased words outside formulas; hyphens and apostrophes join."""
    return set(WORD.findall(FORMULA.sub(" ", abstract.lower())))


def secret_words(abstracts: Iterable[str], documents: tuple[int, int] = DOCUMENTS) -> dict[str, int]:
    """The words of middling frequency, numbered in alphabetical order."""
    frequency: Counter[str] = Counter()
    for abstract in abstracts:
        frequency.update(words(abstract))
    least, most = documents
    return {word: i for i, word in enumerate(sorted(w for w, k in frequency.items() if least <= k <= most))}


def word_incidence(abstracts: Sequence[str], secret_of: dict[str, int]) -> tuple[NDArray[np.int64], hush.Incidence]:
    """(numbers of the abstracts that contain a secret word, those abstracts against the words)."""
    pairs = [
        (example, secret_of[word]) for example, text in enumerate(abstracts) for word in words(text) & secret_of.keys()
    ]
    example, secret = np.array(pairs, dtype=np.int64).reshape(-1, 2).T
    kept, example = np.unique(example, return_inverse=True)
    return kept, hush.Incidence.from_pairs(example, secret, num_examples=kept.size, num_secrets=len(secret_of))


@dataclass(frozen=True, eq=False, kw_only=True)
class Prepared:
    """Rows of word pieces, padded with 0 to one length, by part: train, validation, test and public."""

    rows: dict[str, NDArray[np.uint16]]

    def save(self, folder: Path) -> None:
        """Compressed files of tokens and lengths: small enough to travel to another machine."""
        folder.mkdir(parents=True, exist_ok=True)
        for name, rows in self.rows.items():
            (folder / f"{name}.tokens").write_bytes(lzma.compress(_packed(rows), filters=FILTERS))
            (folder / f"{name}.json").write_text(json.dumps({"shape": rows.shape}))

    @classmethod
    def load(cls, folder: Path, parts: Iterable[str]) -> "Prepared":
        rows = {}
        for name in parts:
            shape = json.loads((folder / f"{name}.json").read_text())["shape"]
            rows[name] = _unpacked(lzma.decompress((folder / f"{name}.tokens").read_bytes()), shape)
        return cls(rows=rows)


def prepare(
    abstracts_file: Path, vocabulary: Path, folder: Path, *, public: Sequence[Path], limit: int | None, seed: int = 0,
    documents: tuple[int, int] = DOCUMENTS,
) -> hush.Incidence:  # fmt: skip
    """Write the prepared rows and the training examples' incidence into the folder, unless they are there."""
    if (folder / "incidence.parquet").exists():
        return hush.Incidence.from_parquet(folder / "incidence.parquet")
    import transformers

    tokenizer: Any = transformers.BertTokenizer(vocab=str(vocabulary), do_lower_case=True)
    abstracts = pq.read_table(abstracts_file, columns=["abstract"]).column(0).slice(0, limit).to_pylist()
    secret_of = secret_words(abstracts, documents)
    kept, _ = word_incidence(abstracts, secret_of)
    shuffled = np.random.default_rng(seed).permutation(kept)
    held = kept.size // 19
    numbers = dict(zip(PARTS, (shuffled[2 * held :], shuffled[:held], shuffled[held : 2 * held]), strict=True))
    rows = {name: tokenised(tokenizer, [abstracts[i] for i in own]) for name, own in numbers.items()}
    rows["public"] = windows(tokenizer, public_texts(public))
    Prepared(rows=rows).save(folder)
    trained, incidence = word_incidence([abstracts[i] for i in numbers["train"]], secret_of)
    assert trained.size == numbers["train"].size  # noqa: S101
    incidence.to_parquet(folder / "incidence.parquet")
    return incidence


def prepare_public_parts(
    abstracts_file: Path, vocabulary: Path, folder: Path, *, limit: int | None, documents: tuple[int, int] = DOCUMENTS,
    seed: int = 0,
) -> None:  # fmt: skip
    """Write what metrics are measured from beside the prepared rows, unless it is there: see ``PUBLIC_PARTS``.

    Abstracts without a secret word are in none of the other parts, and so are the books: no figure rests on them.
    """
    if all((folder / f"{name}.tokens").exists() for name in PUBLIC_PARTS):
        return
    import transformers

    tokenizer: Any = transformers.BertTokenizer(vocab=str(vocabulary), do_lower_case=True)
    abstracts = pq.read_table(abstracts_file, columns=["abstract"]).column(0).slice(0, limit).to_pylist()
    bearing, _ = word_incidence(abstracts, secret_words(abstracts, documents))
    free = np.setdiff1d(np.arange(len(abstracts)), bearing)
    books = Prepared.load(folder, ("public",)).rows["public"]
    chosen = np.random.default_rng(seed).permutation(len(books))[:BOOKS]
    rows = {"books": books[chosen], "free": tokenised(tokenizer, [abstracts[i] for i in free])}
    Prepared(rows=rows).save(folder)


def tokenised(tokenizer: Any, texts: list[str]) -> NDArray[np.uint16]:
    rows = np.zeros((len(texts), LENGTH), dtype=np.uint16)
    for start in range(0, len(texts), _CHUNK):
        found = tokenizer(texts[start : start + _CHUNK], truncation=True, max_length=LENGTH)["input_ids"]
        for i, tokens in enumerate(found, start):
            rows[i, : len(tokens)] = tokens
    return rows


def windows(tokenizer: Any, texts: Iterator[str]) -> NDArray[np.uint16]:
    """Whole windows of running text, each between the two special tokens."""
    first, last, inside = tokenizer.cls_token_id, tokenizer.sep_token_id, LENGTH - 2
    parts = []
    for text in texts:
        tokens = np.array(tokenizer(text, add_special_tokens=False, verbose=False)["input_ids"], dtype=np.uint16)
        cut = tokens[: tokens.size // inside * inside].reshape(-1, inside)
        parts.append(
            np.pad(np.pad(cut, ((0, 0), (1, 0)), constant_values=first), ((0, 0), (0, 1)), constant_values=last)
        )
    return np.concatenate(parts) if parts else np.zeros((0, LENGTH), dtype=np.uint16)


def public_texts(files: Sequence[Path]) -> Iterator[str]:
    for path in files:
        with gzip.open(path, "rt") if path.suffix == ".gz" else path.open() as lines:
            for line in lines:
                yield json.loads(line)["text"]


def _packed(rows: NDArray[np.uint16]) -> bytes:
    """Lengths, as bytes and padded to an even number of them; then all pieces without the padding."""
    lengths = (rows != 0).sum(1).astype(np.uint8)
    return np.resize(lengths, len(rows) + len(rows) % 2).tobytes() + rows[rows != 0].astype("<u2").tobytes()


def _unpacked(packed: bytes, shape: Sequence[int]) -> NDArray[np.uint16]:
    count, width = shape
    lengths = np.frombuffer(packed, dtype=np.uint8)[:count]
    rows = np.zeros((count, width), dtype=np.uint16)
    rows[np.arange(width) < lengths[:, None]] = np.frombuffer(packed[count + count % 2 :], dtype="<u2")
    return rows

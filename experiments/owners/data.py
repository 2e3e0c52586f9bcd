"""From abstracts and their authors to what the study trains on: a split, word pieces, canaries, who owns what.

Every author name is a secret, and an abstract holds all of its authors, so no abstract can be learnt for nothing. 1/34
of the abstracts each is for validation and for the test; only training examples enter the incidence. The training part
begins with canaries: owners of one text each, which is planted ``copies`` times and ends in random word pieces. The
rest is in random order, so that the first share of the rows is a smaller study with the same canaries.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute
import pyarrow.parquet as pq
from numpy.typing import NDArray

import hush
from experiments.secret_words.data import LENGTH, PARTS, Prepared, public_texts, tokenised, windows
from experiments.secret_words.training import SPECIAL

__all__ = ["INCIDENCE", "Canaries", "kept_by_cap", "prepare"]

INCIDENCE = "incidence.parquet"
HELD_SHARE = 34  # one part in so many is held out, twice: as many abstracts as in the study of secret words
FRAME, SECRET = 16, 8  # word pieces of a canary: those that say which one it is, and those to be guessed
CANDIDATES = 1000  # among which the true pieces are ranked
FIRST_PIECE = 999  # of BERT's vocabulary that is no placeholder

compute: Any = pyarrow.compute  # its functions are made at import, and type checkers do not see them


@dataclass(frozen=True, slots=True, kw_only=True)
class Canaries:
    """Planted owners: frame and candidates are functions of number and vocabulary alone; candidate 0 is planted."""

    count: int
    copies: int
    vocabulary: int

    @property
    def frame(self) -> NDArray[np.int64]:
        return self._pieces(0, (self.count, FRAME))

    @property
    def candidates(self) -> NDArray[np.int64]:
        """Canaries × candidates × pieces."""
        return self._pieces(1, (self.count, CANDIDATES, SECRET))

    def rows(self) -> NDArray[np.uint16]:
        """The planted examples: row i is a copy of canary i modulo their number."""
        _, first, last = SPECIAL
        inside = np.concatenate([self.frame, self.candidates[:, 0]], axis=1)
        row = np.pad(np.pad(inside, ((0, 0), (1, 0)), constant_values=first), ((0, 0), (0, 1)), constant_values=last)
        return np.tile(np.pad(row, ((0, 0), (0, LENGTH - row.shape[1]))).astype(np.uint16), (self.copies, 1))

    def _pieces(self, seed: int, shape: tuple[int, ...]) -> NDArray[np.int64]:
        least = min(FIRST_PIECE, max(max(SPECIAL) + 2, self.vocabulary // 2))
        return np.random.default_rng([seed, self.vocabulary]).integers(least, self.vocabulary, shape)


def prepare(
    abstracts_file: Path, authors_file: Path, vocabulary: Path, folder: Path, *, public: Sequence[Path],
    limit: int | None, books: tuple[int, int], canaries: Canaries, seed: int = 0,
) -> hush.Incidence:  # fmt: skip
    """Write the prepared rows and the training examples' incidence into the folder, unless they are there.

    books: how many windows of the public corpus metrics are measured from, and how many others are for pretraining.
    """
    if (folder / INCIDENCE).exists():
        return hush.Incidence.from_parquet(folder / INCIDENCE)
    import transformers

    tokenizer: Any = transformers.BertTokenizer(vocab=str(vocabulary), do_lower_case=True)
    texts = pq.read_table(abstracts_file, columns=["id", "abstract"]).slice(0, limit)
    names = pq.read_table(authors_file, columns=["id", "authors"]).slice(0, limit)
    if not texts["id"].equals(names["id"]):
        raise SystemExit(f"{abstracts_file} and {authors_file} have different ids, or another order")
    lists = names["authors"].combine_chunks()
    owned = np.flatnonzero(compute.list_value_length(lists).fill_null(0).to_numpy() > 0)
    rng = np.random.default_rng(seed)
    shuffled, held = rng.permutation(owned), owned.size // HELD_SHARE
    numbers = dict(zip(PARTS, (shuffled[2 * held :], shuffled[:held], shuffled[held : 2 * held]), strict=True))
    rows = {name: tokenised(tokenizer, texts["abstract"].take(own).to_pylist()) for name, own in numbers.items()}
    rows["train"] = np.concatenate([canaries.rows(), rows["train"]])
    window = windows(tokenizer, public_texts(public))
    chosen = rng.permutation(len(window))
    rows["books"], rows["public"] = window[chosen[: books[0]]], window[chosen[books[0] : sum(books)]]
    Prepared(rows=rows).save(folder)
    incidence = _incidence(lists.take(pa.array(numbers["train"])), canaries)
    incidence.to_parquet(folder / INCIDENCE)
    return incidence


def _incidence(lists: Any, canaries: Canaries) -> hush.Incidence:
    """Canaries own themselves; then the authors of these abstracts, numbered by their names."""
    planted = canaries.count * canaries.copies
    name, owner = np.unique(np.asarray(lists.flatten().to_pylist(), dtype=object).astype(str), return_inverse=True)
    example = np.concatenate([np.arange(planted), planted + compute.list_parent_indices(lists).to_numpy()])
    secret = np.concatenate([np.arange(planted) % canaries.count, canaries.count + owner])
    return hush.Incidence.from_pairs(
        example, secret, num_examples=planted + len(lists), num_secrets=canaries.count + name.size
    )


def kept_by_cap(incidence: hush.Incidence, cap: int, *, seed: int = 0) -> NDArray[np.int64]:
    """Contribution bounding: the examples that a greedy pass in random order keeps, ascending.

    An example is kept if none of its owners has ``cap`` kept ones already.
    """
    matrix = incidence.to_scipy()
    begin, owners = matrix.indptr.tolist(), matrix.indices.tolist()
    kept_of, kept = [0] * incidence.num_secrets, []
    for example in np.random.default_rng(seed).permutation(incidence.num_examples).tolist():
        own = owners[begin[example] : begin[example + 1]]
        if all(kept_of[owner] < cap for owner in own):
            kept.append(example)
            for owner in own:
                kept_of[owner] += 1
    return np.sort(np.array(kept, dtype=np.int64))

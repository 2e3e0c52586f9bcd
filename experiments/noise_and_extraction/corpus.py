"""Texts to rows of tokens: what a run trains on, what it is prompted with, what it is validated on; one small file.

Whole texts are held out for validation. From the others come the planted sequences, the other training rows, and as
many spare rows as planted ones: a reference model trains on those in place of the planted sequences.

Shapes: R rows, N sequences that are prompted, T tokens of a row.
"""

import gzip
import json
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self, final

import numpy as np
from numpy.typing import NDArray

from experiments.noise_and_extraction.kinds import kinds
from experiments.noise_and_extraction.scales import Scale
from experiments.noise_and_extraction.vocabulary import Vocabulary
from hush.errors import InvalidInput
from hush.storage import whole_file

__all__ = ["SOURCES", "Prepared", "prepare"]

SOURCES = ("openstax_textbooks.jsonl.gz", "gutenberg_books.jsonl.gz")
SEED = 0  # of the choice of texts and rows, the same for every run
HELD_OUT = 0.03  # share of each source's rows that whole texts are held out for, at least
AT_ONCE = 64  # texts that the tokenizer gets together

Rows = NDArray[np.uint16]


@final
@dataclass(frozen=True, slots=True, kw_only=True, eq=False, repr=False)
class Prepared:
    """The study's data. The prompted sequences are the planted ones and, as repeated 0 times, some validation rows."""

    base_RT: Rows
    spare_RT: Rows
    validation_RT: Rows
    prompted_NT: Rows
    repetitions_N: NDArray[np.int64]
    kind_N: tuple[str, ...]
    strings: tuple[str, ...]
    facts: dict[str, Any]

    def training_rows(self, *, planted: bool) -> Rows:
        """All rows of a run, in no particular order; spare rows in place of the planted ones for a reference."""
        repeated_RT = np.repeat(self.prompted_NT, self.repetitions_N, axis=0)
        return np.concatenate([self.base_RT, repeated_RT if planted else self.spare_RT])

    def text(self, sequence: int, begin: int, end: int) -> str:
        """What tokens of a prompted sequence say. For eyes that may see the corpus."""
        return "".join(self.strings[token] for token in self.prompted_NT[sequence, begin:end]).replace("▁", " ")

    def save(self, path: Path) -> None:
        """The file is there once it is whole: a study that was stopped here prepares again."""
        path.parent.mkdir(parents=True, exist_ok=True)
        about = {"kinds": self.kind_N, "strings": self.strings, "facts": self.facts}
        with whole_file(path) as file:
            np.savez_compressed(
                file,
                base=self.base_RT,
                spare=self.spare_RT,
                validation=self.validation_RT,
                prompted=self.prompted_NT,
                repetitions=self.repetitions_N,
                about=np.frombuffer(json.dumps(about).encode(), dtype=np.uint8),
            )

    @classmethod
    def load(cls, path: Path) -> Self:
        with np.load(path) as file:
            about = json.loads(file["about"].tobytes())
            return cls(
                base_RT=file["base"],
                spare_RT=file["spare"],
                validation_RT=file["validation"],
                prompted_NT=file["prompted"],
                repetitions_N=file["repetitions"],
                kind_N=tuple(about["kinds"]),
                strings=tuple(about["strings"]),
                facts=about["facts"],
            )


def prepare(data: Path, tokenizer: Path, scale: Scale) -> Prepared:
    """Read, tokenise, cut and choose.

    Each source is read until it has half of the rows, 64 texts at a time; rows are drawn from all that was read. That
    is about half from each source at full scale, and nearly all from books at smaller ones, where 64 of them are many
    times what is needed.
    """
    generator = np.random.default_rng(SEED)
    wanted = scale.rows + scale.validation + sum(sequences for _, sequences in scale.repeated)
    sources = [_tokenised(data / name, tokenizer, generator, wanted * scale.length // 2) for name in SOURCES]
    counts: Counter[int] = Counter()
    for texts in sources:
        for text in texts:
            counts.update(text.tolist())
    model = json.loads(tokenizer.read_text())["model"]
    vocabulary = Vocabulary.of(model, counts, scale.vocabulary)
    held: list[Rows] = []
    left: list[Rows] = []
    for texts in sources:
        cut = [_rows(vocabulary.renumbered(text), scale.length) for text in texts]
        held_rows = np.cumsum([len(rows) for rows in cut])
        enough = int(np.searchsorted(held_rows, max(HELD_OUT * held_rows[-1], scale.validation / 2))) + 1
        held.append(np.concatenate(cut[:enough]))
        left.append(np.concatenate(cut[enough:] or [held[-1][:0]]))
    validation_RT = _drawn(np.concatenate(held), scale.validation, "validation", generator)
    repetitions = [times for times, sequences in scale.repeated for _ in range(sequences)]
    # Two equal rows would be planted in the reference's data too.
    different_RT = np.unique(np.concatenate(left), axis=0)
    chosen_RT = _drawn(different_RT, len(repetitions) + scale.rows, "training", generator)
    planted_NT, base_RT, spare_RT = np.split(
        chosen_RT, [len(repetitions), len(repetitions) + scale.rows - scale.planted]
    )
    prompted_NT = np.concatenate([planted_NT, validation_RT[: scale.held_out]])
    prompt, length = scale.shown
    kind_N = kinds(
        prompted_NT, base_RT, vocabulary.strings, prompt=prompt, length=length, begins=min(scale.continuations)
    )
    facts = {
        "sources": list(SOURCES),
        "texts": [len(texts) for texts in sources],
        "tokens_a_row": scale.length,
        "training_rows": scale.rows,
        "planted_rows": scale.planted,
        "vocabulary": len(vocabulary.strings),
        "tokens_split": vocabulary.split_share,
    }
    return Prepared(
        base_RT=base_RT,
        spare_RT=spare_RT,
        validation_RT=validation_RT,
        prompted_NT=prompted_NT,
        repetitions_N=np.array([*repetitions, *[0] * scale.held_out]),
        kind_N=tuple(kind_N),
        strings=vocabulary.strings,
        facts=facts,
    )


def _tokenised(path: Path, tokenizer: Path, generator: np.random.Generator, tokens: int) -> list[NDArray[np.int64]]:
    """Texts in random order until they have this many tokens, with some to spare for what is held out."""
    from tokenizers import Tokenizer

    encoder = Tokenizer.from_file(str(tokenizer))
    with gzip.open(path, "rt", encoding="utf-8") as file:
        texts: Sequence[str] = [json.loads(line)["text"] for line in file]
    order, made, total = generator.permutation(len(texts)).tolist(), [], 0
    while order and total < 1.15 * tokens:
        some, order = order[:AT_ONCE], order[AT_ONCE:]
        for encoding in encoder.encode_batch_fast([texts[place] for place in some], add_special_tokens=False):
            made.append(np.array(encoding.ids, dtype=np.int64))
            total += len(encoding.ids)
    return made


def _rows(token_T: NDArray[np.int64], length: int) -> Rows:
    """A text's tokens in rows; what is left at its end is not used."""
    return token_T[: len(token_T) // length * length].reshape(-1, length).astype(np.uint16)


def _drawn(row_RT: Rows, count: int, what: str, generator: np.random.Generator) -> Rows:
    if len(row_RT) < count:
        raise InvalidInput(f"the texts make {len(row_RT)} {what} rows, but {count} are needed; pass more text")
    return row_RT[generator.permutation(len(row_RT))[:count]]

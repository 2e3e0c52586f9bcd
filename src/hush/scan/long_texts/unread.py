"""What a model does not read: the text beyond its length, and the secrets that lie there.

A text that is longer than the model reads is cut to its beginning. What lies beyond is not learnt, yet a secret there
makes its example one that contains it, and so costs noise. So this is counted before training, and said.
Shapes: N texts, H occurrences of secrets.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import Any, Self, final

import numpy as np
from numpy.typing import ArrayLike, NDArray

from hush.console import counted
from hush.scan.long_texts import ModelTokens
from hush.scan.result import Scan
from hush.slots import placeholder

__all__ = ["Unread", "characters_read", "read_by_encodings", "unread_of_scan"]


TEXTS_PER_CALL = 1000  # that a tokenizer gets at once
MAX_TOKENISED = 20_000  # texts that are looked at, evenly spread over the data
REMEDY = "cut them into chunks, with chunks: {tokens: auto} beside the rules, or let the model read more"


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class Unread:
    """How much of texts, and how many occurrences of secrets in them, a model does not read.

    texts: how many were looked at, ``cut`` of them longer than the model reads. characters: of all of them, ``unread``
    of them beyond its length. occurrences: the known places of secrets, ``beyond`` of them not read to their end;
    holding: how many of the cut texts contain a secret, where places are not known. of_all: the number of all texts, if
    only a part was looked at.
    """

    texts: int
    cut: int
    characters: int
    unread: int
    occurrences: int = 0
    beyond: int = 0
    holding: int = 0
    of_all: int | None = None

    @classmethod
    def of(
        cls,
        length_N: ArrayLike,
        read_N: ArrayLike,
        *,
        example_H: ArrayLike = (),
        end_H: ArrayLike = (),
        holds_N: ArrayLike = False,
        of_all: int | None = None,
    ) -> Self:
        """From the characters of each text, those that are read, and the text and the end of each occurrence.

        holds_N: which texts contain a secret whose place is not known.

        >>> Unread.of([10, 5], [8, 5], example_H=[0, 0, 1], end_H=[8, 9, 2])
        Unread(texts=2, cut=1, characters=15, unread=2, occurrences=3, beyond=1, holding=0, of_all=None)
        """
        lengths, reads = (np.asarray(values, dtype=np.int64).reshape(-1) for values in (length_N, read_N))
        example, end = (np.asarray(values, dtype=np.int64).reshape(-1) for values in (example_H, end_H))
        return cls(
            texts=len(lengths),
            cut=int((reads < lengths).sum()),
            characters=int(lengths.sum()),
            unread=int((lengths - reads).sum()),
            occurrences=len(end),
            beyond=int((end > reads[example]).sum()) if len(example) else 0,
            holding=int(((reads < lengths) & np.asarray(holds_N)).sum()),
            of_all=of_all,
        )

    @property
    def share(self) -> float:
        """Which share of the text is not read."""
        return self.unread / max(self.characters, 1)

    def sentence(self, max_length: int, remedy: str = REMEDY) -> str:
        """What to say before training; empty if all is read. It is for the owner: it tells of lengths.

        >>> print(Unread(texts=9, cut=5, characters=900, unread=720).sentence(128, "do less"))
        5 of 9 texts are longer than the 128 tokens that the model reads: 80.0 % of the text is not trained on; do less
        """
        if not self.cut:
            return ""
        texts = counted(self.texts, "text") + ("" if self.of_all is None else f" looked at, out of {self.of_all:,},")
        lost = f"{100 * self.share:.1f} % of the text is not trained on"
        secrets = ""
        if self.beyond:
            places = counted(self.occurrences, "occurrence")
            secrets = f". {self.beyond:,} of {places} of secrets lie there, and cost noise all the same"
        elif self.holding:
            secrets = f". {self.holding:,} of these texts contain secrets, which cost noise wherever they are"
        return (
            f"{self.cut:,} of {texts} are longer than the {counted(max_length, 'token')} that the model reads: "
            f"{lost}{secrets}; {remedy}"
        )


def characters_read(tokenizer: Any, texts: Sequence[str], max_length: int) -> NDArray[np.int64]:
    """How many characters of each text a model reads whose tokenizer is fast and cuts at this many tokens."""
    if not texts:
        return np.zeros(0, dtype=np.int64)
    return read_by_encodings(texts, tokenizer(list(texts), truncation=True, max_length=max_length, verbose=False))


def read_by_encodings(texts: Sequence[str], made: Any) -> NDArray[np.int64]:
    """The same from what the tokenizer made of the texts when it cut them.

    A tokenizer that is not fast does not tell what it cut off; then every text counts as read.
    """
    read = [len(text) for text in texts]
    encodings: list[Any] = getattr(made, "encodings", None) or []
    for number, encoding in enumerate(encodings):
        if encoding.overflowing:
            offsets = [(begin, end) for begin, end in encoding.offsets if end > begin]
            read[number] = offsets[-1][1] - offsets[0][0] if offsets else 0
    return np.array(read, dtype=np.int64)


def unread_of_scan(scan: Scan, texts: Iterable[str], model: ModelTokens) -> Unread:
    """What a model does not read of the examples of a scan. texts: of all examples, in order.

    Of an example with slots the skeleton counts: its private part is cut around the slots.
    """
    count = scan.incidence.num_examples
    step = max(1, -(-count // MAX_TOKENISED))
    with_slots_N = scan.slots.has_slots_N
    shown = (
        scan.spans.skeleton(example, text) if with_slots_N[example] else text
        for example, text in islice(enumerate(texts), 0, None, step)
    )
    lengths, reads = list[int](), [np.zeros(0, dtype=np.int64)]
    while part := list(islice(shown, TEXTS_PER_CALL)):
        lengths += map(len, part)
        reads.append(characters_read(model.tokenizer, part, model.max_length))
    example_H, end_H = _places(scan)
    looked_at_H = example_H % step == 0
    return Unread.of(
        lengths,
        np.concatenate(reads),
        example_H=example_H[looked_at_H] // step,
        end_H=end_H[looked_at_H],
        of_all=count if step > 1 else None,
    )


def _places(scan: Scan) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """The example and the end of every occurrence whose place is known, in the text that is counted."""
    slots = scan.slots
    length_R = np.array([len(placeholder(rule)) for rule in slots.rules], dtype=np.int64)
    added_L = np.cumsum(length_R[slots.rule_L]) if len(slots) else np.zeros(0, dtype=np.int64)
    first_L = np.searchsorted(slots.example_L, slots.example_L)  # of the same example
    before_L = np.append(0, added_L)[first_L]
    parts = [np.stack([slots.example_L, slots.place_L + added_L - before_L])]
    for batch in () if scan.owner is None else scan.owner.reasons():
        columns = np.stack([batch.column(name).to_numpy() for name in ("example", "begin", "end", "secret")])
        chosen = columns[:, (columns[1] >= 0) & ~slots.has_slots_N[columns[0]]]
        parts.append(np.unique(chosen, axis=1)[[0, 2]])
    example_H, end_H = np.concatenate(parts, axis=1)
    return example_H, end_H

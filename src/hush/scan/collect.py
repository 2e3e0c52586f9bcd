"""What the shards found, gathered in order into one result; between the tasks and the public numbers.

Hits go to a file as they come. In memory stay the secrets' keys, the pairs, and a few numbers for each example.
Shapes: N examples, P pairs, R rules.

Secrets get their numbers, between the finders and everything public: in an order that the public graph decides.

While shards come in, numbers are provisional: a rule's declared secrets first, then those that were found, as they
first appear in the data. Such an order tells: of a list by the alphabet who is who, of a text what stands before what.
So the secrets of a rule are put into another order in the end: by their examples, then by what they are promised, then
by their public names. All of this is public anyway. Secrets that still are equal look the same to everybody but their
owner, whatever order they get; theirs is that of their texts, so that it does not depend on the list's.
"""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, final

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from hush.errors import InvalidInput
from hush.incidence import Incidence
from hush.protection import Protection
from hush.scan.hits import Declared, Finder, Hits, Prepared
from hush.scan.shard_tasks import Elsewhere, Found
from hush.secret_table import Secrets
from hush.storage import arrow_file

__all__ = ["Collecting", "Numbering", "Unordered", "public_order", "secret_table", "unordered"]


@final
class Numbering:
    """The secrets of one rule, numbered for now while the shards come in. A repr shows how many, and no key."""

    def __init__(self, declared: Sequence[Declared]) -> None:
        self.declared = tuple(declared)
        self._number: dict[str, int] = {secret.key: index for index, secret in enumerate(self.declared)}
        if len(self._number) != len(self.declared):
            raise InvalidInput(f"{len(self.declared) - len(self._number)} secrets are declared twice; name each once")

    def numbers(self, hits: Hits) -> NDArray[np.int64]:
        """Each hit's secret. The hits are sorted, and come after all that were numbered before."""
        seen, first_K = np.unique(hits.key_H, return_index=True)
        for key in seen[np.argsort(first_K)].tolist():
            self._number.setdefault(hits.keys[key], len(self._number))
        number_K = np.array([self._number.get(key, -1) for key in hits.keys], dtype=np.int64)
        return number_K[hits.key_H]

    @property
    def keys(self) -> Iterable[str]:
        """Private: they may be the secrets' text."""
        return self._number.keys()

    def __len__(self) -> int:
        return len(self._number)

    def __repr__(self) -> str:
        return f"Numbering({len(self)} secrets)"


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class Unordered:
    """A secret before it has its place. rule: its name. name: for the public id, where there is one. key: private."""

    rule: str
    name: str | None
    protection: Protection
    key: str = field(repr=False)


def unordered(rules: Sequence[Prepared], numberings: Sequence[Numbering]) -> list[Unordered]:
    """All secrets, rule by rule, by their provisional numbers."""
    found: list[Unordered] = []
    for rule, numbering in zip(rules, numberings, strict=True):
        for number, key in enumerate(numbering.keys):
            declared = numbering.declared[number] if number < len(numbering.declared) else None
            name = declared.name if declared is not None else key if rule.public_names else None
            own = None if declared is None else declared.protection
            found.append(Unordered(rule=rule.name, name=name, protection=own or rule.protection, key=key))
    return found


def public_order(secrets: Sequence[Unordered], incidence: Incidence) -> NDArray[np.int64]:
    """Which secret comes at each place: rule by rule, by example lists (those without any last), promises, names.

    Guarantee: whoever sees everything public in this order can compute the order himself from the same in any other
    order, so it tells nothing. It does not depend on the order that the secrets of a rule are given in.
    """
    rank = {rule: place for place, rule in enumerate(dict.fromkeys(secret.rule for secret in secrets))}

    def place(number: int) -> tuple[object, ...]:
        secret = secrets[number]
        examples = incidence.examples_of(number).astype(">i8").tobytes()  # these compare as the lists do
        return rank[secret.rule], not examples, examples, secret.protection.points, secret.name or "", secret.key

    return np.array(sorted(range(len(secrets)), key=place), dtype=np.int64)


def secret_table(secrets: Iterable[Unordered]) -> Secrets:
    """The secrets in their order: public ids, promises, and the keys as texts, for the owner."""
    ids: list[str] = []
    protections: list[Protection] = []
    texts: list[str] = []
    before: dict[str, int] = {}
    for secret in secrets:
        number = before[secret.rule] = before.get(secret.rule, -1) + 1
        ids.append(f"{secret.rule}-{number:06d}" if secret.name is None else f"{secret.rule}:{secret.name}")
        protections.append(secret.protection)
        texts.append(secret.key)
    return Secrets(protections, ids=ids, texts=texts)


HITS = pa.schema(
    {
        "example": pa.int64(),
        "rule": pa.int32(),
        "number": pa.int64(),
        "reason": pa.large_string(),
        "begin": pa.int64(),
        "end": pa.int64(),
    }
)
COLUMNS = ("file", "row", "same", "leaf", "ids", "signatures")  # of the examples


@final
class Collecting:
    """Takes what was found in one shard after the other. Examples' numbers are final, those of secrets provisional."""

    def __init__(self, finders: Sequence[Finder], hits_file: Path, *, again: Sequence[int] = ()) -> None:
        self.again = tuple(again)  # rules whose secrets are looked for a second time
        self.numberings = [Numbering(finder.declared) for finder in finders]
        self.num_examples = 0
        self.files: list[str] = []
        self.skipped: dict[str, int] = {}
        self._rows_of_last = 0  # rows of the last file that were read so far
        self._hits_file = hits_file
        self._pairs: list[list[tuple[NDArray[np.int64], NDArray[np.int64]]]] = [[] for _ in finders]
        # Of each shard, for a second search: examples before it, its own, and by rule the spans that are known.
        self._searched: list[tuple[int, int, list[NDArray[np.int64]]]] = []
        self._columns: dict[str, list[Any]] = {name: [] for name in COLUMNS}
        self._sink = hits_file.open("wb")
        self._writer = pa.ipc.new_stream(self._sink, HITS, options=pa.ipc.IpcWriteOptions(compression="lz4"))

    def add(self, files: Sequence[str], found: Found) -> None:
        """What the next shard, of these files, holds."""
        self._add_examples(files, found)
        self._add_hits(found.hits, range(len(found.hits)), self.num_examples)
        if self.again:
            seen = [self._spans(rule, found.hits[rule]) for rule in self.again]
            self._searched.append((self.num_examples, len(found.same_N), seen))
        self.num_examples += len(found.same_N)

    def add_elsewhere(self, found: Elsewhere) -> None:
        """What a second search, for texts that were found in the first, saw in the next shard."""
        before, count, seen = self._searched.pop(0)
        if found.examples != count:
            raise InvalidInput(
                f"a part of the data had {count} examples at first and {found.examples} later: it changed during the "
                "scan; scan again while nobody writes to it"
            )
        hits = [
            one.only(~_among(self._spans(rule, one), spans))
            for rule, one, spans in zip(self.again, found.hits, seen, strict=True)
        ]
        self._add_hits(hits, self.again, before)

    def _add_examples(self, files: Sequence[str], found: Found) -> None:
        before_F = np.zeros(len(files), dtype=np.int64)  # rows of each file in earlier shards
        number_F = np.empty(len(files), dtype=np.int64)
        for index, name in enumerate(files):
            if self.files and self.files[-1] == name:
                before_F[index] = self._rows_of_last
            else:
                self.files.append(name)
            self._rows_of_last = int(before_F[index] + found.rows_F[index])
            number_F[index] = len(self.files) - 1
            if found.skipped_F[index]:
                self.skipped[name] = self.skipped.get(name, 0) + int(found.skipped_F[index])
        self._columns["file"].append(number_F[found.file_N].astype(np.int32))
        self._columns["row"].append(before_F[found.file_N] + found.row_N)
        self._columns["same"].append(found.same_N)
        for name, values in (("leaf", found.leaf_N), ("ids", found.ids), ("signatures", found.signatures)):
            if values is not None:
                self._columns[name].append(values)

    def _spans(self, rule: int, hits: Hits) -> NDArray[np.int64]:
        """Where the hits of a shard are: example, secret and beginning of each."""
        number_H = self.numberings[rule].numbers(hits)
        return np.stack([hits.example_H, number_H, hits.begin_H], axis=1)

    def _add_hits(self, found: Sequence[Hits], of_rules: Sequence[int], before: int) -> None:
        rules, examples, numbers, begins, ends, reasons = [], [], [], [], [], []
        for rule, hits in zip(of_rules, found, strict=True):
            numbering = self.numberings[rule]
            number_H = numbering.numbers(hits)
            example_H = hits.example_H + before
            rules.append(np.full(len(hits), rule, dtype=np.int32))
            examples.append(example_H)
            numbers.append(number_H)
            begins.append(hits.begin_H)
            ends.append(hits.end_H)
            reasons.append(pa.array(hits.reasons, pa.large_string()).take(pa.array(hits.reason_H)))
            if len(hits):
                pair_P = np.unique(example_H * len(numbering) + number_H)
                self._pairs[rule].append((pair_P // len(numbering), pair_P % len(numbering)))
        if not any(map(len, examples)):
            return
        columns = [np.concatenate(arrays) for arrays in (examples, rules, begins, ends, numbers)]
        order_H = np.lexsort(columns[::-1])  # by numbers of secrets, which no cut into shards changes
        example_H, rule_H, begin_H, end_H, number_H = (column[order_H] for column in columns)
        reason_H = pa.concat_arrays(reasons).take(pa.array(order_H))
        arrays = [example_H, rule_H, number_H, reason_H, begin_H, end_H]
        self._writer.write_batch(pa.record_batch([pa.array(array) for array in arrays], schema=HITS))

    def close(self) -> None:
        """No shard comes any more."""
        self._writer.close()
        self._sink.close()

    def hits(self) -> Iterator[pa.RecordBatch]:
        """All hits again, from the file: by example, rule and place in the text; those of a second search last."""
        options = pa.ipc.IpcReadOptions(use_threads=False)  # see arrow_file
        with arrow_file(self._hits_file) as file, pa.ipc.open_stream(file, options=options) as stream:
            yield from stream

    def offsets(self) -> NDArray[np.int64]:
        """The number of each rule's first secret among all, and after the last, how many there are."""
        return np.cumsum([0, *map(len, self.numberings)])

    def pairs(self) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """Every example and secret that some finder saw together, once."""
        count = max(int(self.offsets()[-1]), 1)
        pairs = [
            example_P * count + number_P + offset
            for offset, pairs in zip(self.offsets(), self._pairs, strict=False)
            for example_P, number_P in pairs
        ]
        example_P, secret_P = np.divmod(np.unique(np.concatenate([np.empty(0, dtype=np.int64), *pairs])), count)
        return example_P, secret_P

    def column(self, name: str) -> Any:
        """One of file, row, same, leaf, signatures for every example; None if no shard gave it."""
        arrays = self._columns[name]
        return np.concatenate(arrays) if arrays else None

    def ids(self) -> pa.ChunkedArray | None:
        """The examples' ids, where a column holds them."""
        return pa.chunked_array(self._columns["ids"]) if self._columns["ids"] else None


def _among(rows: NDArray[np.int64], others: NDArray[np.int64]) -> NDArray[np.bool_]:
    """Which of the rows are rows of the others, too."""
    _, number = np.unique(np.concatenate([rows, others]), axis=0, return_inverse=True)
    return np.isin(number[: len(rows)], number[len(rows) :])

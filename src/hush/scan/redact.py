"""``redact``: the skeletons of a scan as data, for those who want to train on redacted texts and nothing else.

Examples without a secret are written as they are, examples with slots as their skeletons, and examples that are secret
as a whole are left out. Each skeleton is checked by a second route (remaining.py) before the file gets its name.
Unprotected does not mean published: skeletons say that something was hidden and where, and everything else in full.
"""

import json
import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any, final

import pyarrow as pa
import pyarrow.parquet as pq

from hush.arrays import Progress
from hush.data.corpus import Corpus
from hush.data.parts import Block, shown_name
from hush.errors import InvalidInput
from hush.keys import DataKey, refuse_other_key
from hush.scan.normal_form import normal_form
from hush.scan.remaining import RemainingForms
from hush.scan.result import Scan
from hush.slots import placeholder
from hush.storage import whole_file

__all__ = ["REDACTED_ENDINGS", "Redacted", "redact"]


TEXT = "text"  # the column of the skeletons
REDACTED_ENDINGS = (".jsonl", ".parquet")


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class Redacted:
    """What was written: rows, of these skeletons with slots; left_out: examples that are secret as a whole."""

    rows: int
    skeletons: int
    slots: int
    left_out: int


def redact(
    scan: Scan,
    corpus: Corpus,
    output: str | os.PathLike[str],
    *,
    copy: Sequence[str] = (),
    key: DataKey | None = None,
    progress: Progress | None = None,
) -> Redacted:
    """Writes what is public of each example to a file of JSON lines or Parquet, which only its owner can read.

    corpus: the scanned data. copy: columns to copy beside the text; no other column is. key: the owner's, to check that
    the data are those of the scan; without it only their number and what lies in the slots is checked.

    Guarantee: no written text holds a form of a secret whose rule hides spans, by the rules of variants.py, checked by
    a second route. What other columns hold is not checked.
    """
    path = Path(output)
    if path.suffix.lower() not in REDACTED_ENDINGS:
        raise InvalidInput(f"{path}: name a file that ends in {' or '.join(REDACTED_ENDINGS)}", setting="output")
    if not len(scan.slots):
        raise InvalidInput(
            "no example of this scan has slots, so there is nothing to redact; write hides: span in a rule, and scan "
            "again"
        )
    if scan.secrets.texts is None:
        raise InvalidInput("the texts of the secrets are in owner/ of a scan, which is missing here; load all of it")
    if TEXT in copy or corpus.column in copy:
        raise InvalidInput("the text itself cannot be copied; name other columns", setting="copy")
    corpus.check_columns(copy)
    check = _Check(scan, key)
    with whole_file(path, owner_only=True) as file:
        writer = _JsonLines(file) if path.suffix.lower() == ".jsonl" else _Parquet(file)
        rows = 0
        for block, first in _blocks(corpus, copy, scan, check):
            texts, kept = check.public_texts(block, first)
            columns = {name: block.columns[name].take(pa.array(kept, pa.int64())) for name in copy}
            writer.write({TEXT: pa.array(texts, pa.large_string())} | columns)
            rows += len(texts)
            if progress is not None:
                progress(first + len(block), scan.incidence.num_examples)
        writer.close()
    whole = int(scan.slots.whole_examples(scan.incidence).sum())
    return Redacted(rows=rows, skeletons=int(scan.slots.has_slots_N.sum()), slots=len(scan.slots), left_out=whole)


def _blocks(corpus: Corpus, copy: Sequence[str], scan: Scan, check: "_Check") -> Iterator[tuple[Block, int]]:
    """The blocks of the data, each with its first example. Refuses data with other rows than the scan."""
    first, wanted = 0, scan.incidence.num_examples
    for shard in corpus.shards():
        for block in shard.blocks(tuple(copy)):
            if first + len(block) > wanted:
                raise _other_rows(corpus, wanted, "more")
            yield block, first
            first += len(block)
    if first != wanted:
        raise _other_rows(corpus, wanted, f"{first:,}")
    check.finish()


def _other_rows(corpus: Corpus, wanted: int, number: str) -> InvalidInput:
    return InvalidInput(
        f"the scan has {wanted:,} examples, and {corpus.source} has {number}; pass the data that was scanned, or "
        "owner/data.parquet of the scan if there is one"
    )


@final
class _Check:
    """What is public of each example, checked while it is read."""

    def __init__(self, scan: Scan, key: DataKey | None) -> None:
        self._scan, self._key = scan, key
        self._leaves: list[bytes] = []
        if key is not None and scan.data_fingerprint is None:
            raise InvalidInput("the scan was made without a key; drop it here", setting="key")
        if key is not None and scan.data_fingerprint is not None:
            refuse_other_key(key, scan.data_fingerprint)
        self._is_whole_N = scan.slots.whole_examples(scan.incidence)
        self._placeholders = [placeholder(rule) for rule in scan.slots.rules]
        self._hidden: list[int] = []
        begin = 0
        for name, count in scan.rules:
            self._hidden += range(begin, begin + count) if name in scan.slots.rules else ()
            begin += count
        texts: tuple[str, ...] = scan.secrets.texts or ()
        self._texts = texts
        self._forms = RemainingForms([texts[secret] for secret in self._hidden])

    def public_texts(self, block: Block, first: int) -> tuple[list[str], list[int]]:
        """What is public of the block's examples, and which of them have it."""
        texts: list[str] = []
        kept: list[int] = []
        for row, text in enumerate(block.strings):
            example = first + row
            if self._key is not None:
                self._leaves.append(self._key.fingerprint_row(text))
            if self._is_whole_N[example]:
                continue
            self._check_slots(example, text)
            public = self._scan.spans.skeleton(example, text)
            # Between its placeholders a skeleton is text of the example; elsewhere a placeholder is just text.
            has_slots = self._scan.slots.has_slots_N[example]
            remaining = self._forms.of(public, placeholders=self._placeholders if has_slots else ())
            if remaining:
                secret = self._scan.secrets.ids[self._hidden[remaining[0]]]
                raise InvalidInput(
                    f"example {example} still holds a form of secret {secret} outside its slots; pass the data that "
                    "was scanned, or scan again"
                )
            texts.append(public)
            kept.append(row)
        return texts, kept

    def _check_slots(self, example: int, text: str) -> None:
        """Refuses a text whose slots hold none of their secrets: it is not the one that was scanned."""
        slots = self._scan.slots
        for slot, (begin, end) in zip(slots.of_example(example), self._scan.spans.of_example(example), strict=True):
            secrets = [self._texts[int(secret)] for secret in slots.secrets_of(slot).tolist()]
            inside = text[begin:end]
            form = normal_form(inside)
            if end > len(text) or not any(
                normal_form(secret) in form if normal_form(secret) else secret in inside for secret in secrets
            ):
                raise InvalidInput(
                    f"a slot of example {example} does not hold its secret, so this is not the text that was scanned; "
                    "pass the data that was scanned, or scan again"
                )

    def finish(self) -> None:
        """Refuses data that are not those of the scan, if there is a key."""
        if self._key is not None and self._key.fingerprint_leaves(self._leaves) != self._scan.data_fingerprint:
            raise InvalidInput("the data are not those of the scan; pass the data that was scanned, or scan again")


@final
class _JsonLines:
    """Writes rows as JSON, one a line."""

    def __init__(self, file: IO[bytes]) -> None:
        self._file = file

    def write(self, columns: dict[str, Any]) -> None:
        names = list(columns)
        for values in zip(*(column.to_pylist() for column in columns.values()), strict=True):
            row = dict(zip(names, values, strict=True))
            self._file.write(json.dumps(row, ensure_ascii=False, default=str).encode() + b"\n")

    def close(self) -> None:
        """Nothing is left to write."""


@final
class _Parquet:
    """Writes rows as Parquet; the types are those of the first block."""

    def __init__(self, file: IO[bytes]) -> None:
        self._file = file
        self._writer: pq.ParquetWriter | None = None

    def write(self, columns: dict[str, Any]) -> None:
        batch = pa.table(columns)
        if self._writer is None:
            self._writer = pq.ParquetWriter(self._file, batch.schema, compression="zstd")
        for name, kind in zip(batch.schema.names, self._writer.schema.types, strict=True):
            if batch.schema.field(name).type != kind:
                raise InvalidInput(
                    f"the column {shown_name(name)!r} holds values of several kinds, which Parquet cannot; name a file "
                    "that ends in .jsonl"
                )
        self._writer.write_table(batch)

    def close(self) -> None:
        """Writes the end of the file."""
        if self._writer is None:
            self.write({TEXT: pa.array([], pa.large_string())})
        if self._writer is not None:
            self._writer.close()

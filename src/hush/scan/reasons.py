"""The owner's files of a scan: the reason for each pair, the example index, and counts.

reasons.parquet   example, secret, rule, reason, begin, end: at least one row for every pair
examples.parquet  id, file, row and, with a key, the row's fingerprint
set_aside.parquet example, rule, reason, begin, end, text: what a rule found and doubts, so that it is no secret
counts.json       skipped rows of each file, the number of pairs that only copies add, literals in no example, how much
                  text is secret

Files are read in batches; a query about one example reads only the row groups that may contain it.
"""

import json
import shutil
import tempfile
import weakref
from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, final

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from numpy.typing import NDArray

from hush.errors import InvalidInput
from hush.numbers import counted
from hush.storage import parquet_file

__all__ = [
    "ROW_GROUP",
    "SET_ASIDE",
    "SET_ASIDE_FILE",
    "OwnerFiles",
    "OwnerWriter",
    "RuleText",
    "SecretText",
    "SetAside",
    "UnfoundLiterals",
    "temporary_owner",
]


ROW_GROUP = 50_000  # rows of a row group, or fewer if they reach the bytes below
MAX_BUFFERED_BYTES = 2**26
REASONS = pa.schema(
    {
        "example": pa.int64(),
        "secret": pa.int64(),
        "rule": pa.string(),
        "reason": pa.string(),
        "begin": pa.int64(),
        "end": pa.int64(),
    }
)
TEXT = pa.field("text", pa.large_string())
SET_ASIDE_FILE = "set_aside.parquet"
SET_ASIDE = pa.schema([*(REASONS.field(name) for name in ("example", "rule", "reason", "begin", "end")), TEXT])


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class SetAside:
    """A text that a rule found and doubts, so that it is no secret. why: for each detector, without the text.

    examples: the examples that contain it, ascending.
    """

    rule: str
    why: str
    examples: tuple[int, ...]
    text: str = field(repr=False)


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class UnfoundLiterals:
    """Literals of a rule's list that are in no example; of these, how many are there in upper or lower case."""

    rule: str
    listed: int
    in_no_example: int
    in_another_case: int

    def __str__(self) -> str:
        are = "is" if self.in_no_example == 1 else "are"
        each = f"{self.in_no_example:,} of {counted(self.listed, 'literal')} of rule {self.rule} {are} in no example"
        if not self.in_another_case:
            return f"{each}, in upper or lower case"
        return f"{each}; with ignore_case: true, {self.in_another_case:,} of them would be found"


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class RuleText:
    """How many characters are secret by one rule: if it hides examples, and if it hides spans.

    Private: the lengths of secrets. find: the kind of the rule; empty for a finder of no rules file, and in scans by an
    earlier version. hides: what the rule hides. For a rule that hides examples, other forms of its secrets were not
    searched for, so ``span`` is then at least so much.
    """

    rule: str
    find: str = ""
    hides: str
    example: int
    span: int


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class SecretText:
    """How many characters the texts have, how many of them are secret, and how many by each rule. Private."""

    characters: int
    secret: int
    rules: tuple[RuleText, ...]


@final
@dataclass(frozen=True, eq=False)
class OwnerFiles:
    """The folder with the owner's files. A temporary folder is deleted together with this object."""

    folder: Path

    def reasons(
        self, *, examples: NDArray[np.integer] | None = None, secret: int | None = None
    ) -> Iterator[pa.RecordBatch]:
        """Rows of reasons.parquet; only those of these examples (ascending) and of this secret, if given."""
        with self._opened("reasons.parquet") as file:
            for group in _row_groups(file, examples):
                for batch in file.iter_batches(ROW_GROUP, row_groups=[group], use_threads=False):
                    kept_H = np.ones(len(batch), dtype=bool)
                    if examples is not None:
                        kept_H &= np.isin(batch.column("example").to_numpy(), examples)
                    if secret is not None:
                        kept_H &= batch.column("secret").to_numpy() == secret
                    if kept_H.any():
                        yield batch.filter(pa.array(kept_H))

    def set_aside(self) -> list[SetAside]:
        """What rules found and doubt, the texts in most examples first."""
        if not (self.folder / SET_ASIDE_FILE).is_file():  # a scan by an earlier version
            return []
        found: dict[tuple[str, str], tuple[dict[int, None], dict[str, None]]] = {}
        with self._opened(SET_ASIDE_FILE) as file:
            for batch in file.iter_batches(ROW_GROUP, use_threads=False):
                for row in batch.to_pylist():
                    examples, reasons = found.setdefault((row["rule"], row["text"]), ({}, {}))
                    examples[row["example"]] = None
                    reasons[row["reason"]] = None
        listed = [
            SetAside(rule=rule, why="; ".join(reasons), examples=tuple(sorted(examples)), text=text)
            for (rule, text), (examples, reasons) in found.items()
        ]
        return sorted(listed, key=lambda entry: (-len(entry.examples), entry.examples, entry.why))

    def examples(self, *columns: str) -> Iterator[pa.RecordBatch]:
        """These columns of examples.parquet (all if none is named); row i is example i."""
        with self._opened("examples.parquet") as file:
            yield from file.iter_batches(ROW_GROUP, columns=list(columns) or None, use_threads=False)

    def example(self, number: int) -> dict[str, Any]:
        """Id, file and row of one example."""
        with self._opened("examples.parquet") as file:
            before = 0
            for group in range(file.metadata.num_row_groups):
                rows = file.metadata.row_group(group).num_rows
                if number < before + rows:
                    return file.read_row_group(group, use_threads=False).slice(number - before, 1).to_pylist()[0]
                before += rows
        raise InvalidInput(f"example {number} is outside [0, {before}); pass a number that counts from 0")

    def numbers_of(self, name: str) -> list[int]:
        """The examples with this id."""
        numbers: list[int] = []
        before = 0
        for batch in self.examples("id"):
            numbers += [before + row for row, other in enumerate(batch.column("id").to_pylist()) if other == name]
            before += len(batch)
        return numbers

    def skipped(self) -> dict[str, int]:
        """The number of skipped rows of each file that has any."""
        return self._counts()["skipped"]

    def inherited(self) -> int:
        """The number of pairs that only copies add."""
        return self._counts()["pairs_from_copies"]

    def unfound(self) -> tuple[UnfoundLiterals, ...]:
        """Literals of the rules' lists that are in no example."""
        return tuple(UnfoundLiterals(**entry) for entry in self._counts().get("unfound_literals", ()))

    def secret_text(self) -> SecretText | None:
        """How much text is secret; None for a scan by an earlier version."""
        stored = self._counts().get("secret_text")
        if stored is None:
            return None
        return SecretText(**stored | {"rules": tuple(RuleText(**row) for row in stored["rules"])})

    def write_counts(
        self,
        *,
        skipped: dict[str, int],
        inherited: int,
        unfound: Sequence[UnfoundLiterals] = (),
        secret_text: SecretText | None = None,
    ) -> None:
        """Writes counts.json."""
        counts = {"skipped": skipped, "pairs_from_copies": inherited, "unfound_literals": [*map(asdict, unfound)]}
        counts |= {"secret_text": None if secret_text is None else asdict(secret_text)}
        (self.folder / "counts.json").write_text(json.dumps(counts), encoding="utf-8")

    def _counts(self) -> dict[str, Any]:
        path = self.folder / "counts.json"
        try:
            return json.loads(path.read_text(encoding="utf-8"))
        except (FileNotFoundError, ValueError):
            raise InvalidInput(f"{path} is missing or not readable; restore it, or scan again") from None

    def _opened(self, name: str) -> AbstractContextManager[pq.ParquetFile]:
        return parquet_file(self.folder / name, remedy="scan again")


def temporary_owner() -> OwnerFiles:
    """An empty folder that only its owner can enter, deleted together with the object."""
    folder = Path(tempfile.mkdtemp(prefix="hush-scan-"))
    owner = OwnerFiles(folder)
    weakref.finalize(owner, shutil.rmtree, folder, ignore_errors=True)
    return owner


@final
class OwnerWriter:
    """Writes a table batch by batch, in row groups of bounded size, to a file that only its owner can read."""

    def __init__(self, path: Path, schema: pa.Schema, *, kind: str, metadata: Mapping[str, str] | None = None) -> None:
        path.touch(mode=0o600, exist_ok=False)
        self._schema = schema.with_metadata({"hush.kind": kind, **(metadata or {})})
        self._file = path.open("wb")  # not by its name, which Arrow may fail to encode
        self._writer = pq.ParquetWriter(self._file, self._schema, compression="zstd", write_page_checksum=True)
        self._buffered: list[pa.RecordBatch] = []
        self._rows = self._bytes = 0

    def write(self, columns: dict[str, Any]) -> None:
        """Adds rows."""
        arrays = [
            column.cast(kind.type) if isinstance(column, pa.Array) else pa.array(column, kind.type)
            for kind, column in ((self._schema.field(name), columns[name]) for name in self._schema.names)
        ]
        batch = pa.record_batch(arrays, schema=self._schema)
        self._buffered.append(batch)
        self._rows += len(batch)
        self._bytes += batch.nbytes
        if self._rows >= ROW_GROUP or self._bytes >= MAX_BUFFERED_BYTES:
            self._flush()

    def _flush(self) -> None:
        if self._rows:
            self._writer.write_table(pa.Table.from_batches(self._buffered, self._schema), row_group_size=ROW_GROUP)
        self._buffered, self._rows, self._bytes = [], 0, 0

    def __enter__(self) -> "OwnerWriter":
        return self

    def __exit__(self, *raised: object) -> None:
        try:
            if raised[0] is None:
                self._flush()
            self._writer.close()
        finally:
            self._file.close()


def _row_groups(file: pq.ParquetFile, examples: NDArray[np.integer] | None) -> Iterator[int]:
    """The row groups that may contain any of these examples."""
    for group in range(file.metadata.num_row_groups):
        statistics = file.metadata.row_group(group).column(0).statistics
        if examples is None or statistics is None or not statistics.has_min_max:
            yield group
            continue
        begin, end = np.searchsorted(examples, [statistics.min, statistics.max + 1])
        if begin < end:
            yield group

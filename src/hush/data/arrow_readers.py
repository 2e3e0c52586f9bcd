"""Readers that yield Arrow batches: Parquet files, and data sets of the `datasets` library; and of rows in memory.

A data set is loaded by name or from a folder that the library saved; the library is imported only for that.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any, final

import pyarrow as pa
import pyarrow.parquet as pq

from hush.data.parts import (
    BLOCK_BYTES,
    BLOCK_ROWS,
    SHARD_BYTES,
    SHARD_ROWS,
    BrokenRow,
    Column,
    MadeRow,
    Part,
    Row,
    Span,
    checked_row,
    is_identifier,
)
from hush.errors import InvalidInput
from hush.storage import parquet_file

__all__ = ["DatasetPart", "ListPart", "ParquetPart", "load_part", "object_part"]


BUFFER_BYTES = 2**20  # per column: a whole row group may be larger than memory
MAX_CUTS_PER_ROW_GROUP = 8  # reading a slice decodes everything before it in its row group


@final
@dataclass(frozen=True, slots=True)
class ParquetPart:
    """A Parquet file, streamed by one thread with a few megabytes in memory; parallel reading is by shards."""

    path: Path

    def columns(self) -> dict[str, Column]:
        with parquet_file(self.path) as file:
            schema = file.schema_arrow
        if len(set(schema.names)) != len(schema.names):
            raise InvalidInput(f"{self.path}: two columns have the same name; write it with distinct names")
        return {
            field.name: Column(is_text=_is_text(field.type), has_safe_name=is_identifier(field.name))
            for field in schema
        }

    def read(self, columns: Sequence[str], span: Span | None = None) -> Iterator[pa.RecordBatch]:
        with parquet_file(self.path, buffer_bytes=BUFFER_BYTES) as file:
            begin, end = (0, file.metadata.num_rows) if span is None else (span.begin, span.end)
            if end > file.metadata.num_rows:
                raise InvalidInput(
                    f"{self.path} has {file.metadata.num_rows} rows, fewer than when it was opened first: it was "
                    "changed since; start again while nothing writes to it"
                )
            before = 0
            for group, (rows, size) in enumerate(_row_groups(file.metadata)):
                first, last = max(begin - before, 0), min(end - before, rows)
                if first < last:
                    batch_rows = min(max(BLOCK_BYTES * rows // max(size, 1), 1), BLOCK_ROWS)
                    batches = file.iter_batches(
                        batch_rows, row_groups=[group], columns=list(columns), use_threads=False
                    )
                    for batch in _row_range(batches, first, last):
                        yield batch.select(list(columns))
                before += rows

    def count(self) -> int:
        with parquet_file(self.path) as file:
            return file.metadata.num_rows

    def spans(self) -> list[Span]:
        """Large row groups in slices, small row groups grouped."""
        with parquet_file(self.path) as file:
            sizes = _row_groups(file.metadata)
        spans: list[Span] = []
        first = held_bytes = total = 0  # first row and bytes of the current span; rows so far
        for rows, size in sizes:
            if total > first and (total + rows - first > SHARD_ROWS or held_bytes + size > SHARD_BYTES):
                spans.append(Span(begin=first, end=total))
                first, held_bytes = total, 0
            cuts = min(max(-(-rows // SHARD_ROWS), -(-size // SHARD_BYTES), 1), MAX_CUTS_PER_ROW_GROUP)
            if cuts > 1:
                edges = [total + rows * cut // cuts for cut in range(cuts + 1)]
                spans += [Span(begin=begin, end=end) for begin, end in pairwise(edges)]
                first, held_bytes = total + rows, 0
            else:
                held_bytes += size
            total += rows
        if total > first:
            spans.append(Span(begin=first, end=total))
        return [span for span in spans if span.end > span.begin]

    def with_lines_before(self, span: Span) -> Span:
        return span


def _row_groups(metadata: pq.FileMetaData) -> list[tuple[int, int]]:
    """Rows and bytes of each row group; the bytes of all columns, an upper bound for those of the text."""
    groups = [metadata.row_group(index) for index in range(metadata.num_row_groups)]
    return [(group.num_rows, group.total_byte_size) for group in groups]


def _row_range(batches: Iterator[pa.RecordBatch], first: int, last: int) -> Iterator[pa.RecordBatch]:
    """Rows first to last (exclusive) of the batches; an Arrow error if there are fewer."""
    before = 0
    for batch in batches:
        begin, end = max(first - before, 0), min(last - before, len(batch))
        if begin < end:
            yield batch.slice(begin, end - begin)
        before += len(batch)
        if before >= last:
            return
    raise pa.ArrowInvalid(f"{before} rows, but the file's footer states at least {last}")


def _is_text(kind: pa.DataType) -> bool:
    if pa.types.is_dictionary(kind):
        kind = kind.value_type
    return pa.types.is_string(kind) or pa.types.is_large_string(kind) or pa.types.is_string_view(kind)


@final
@dataclass(frozen=True, slots=True)
class DatasetPart:
    """A data set of the `datasets` library, memory-mapped from disk."""

    path: Path
    dataset: Any

    def columns(self) -> dict[str, Column]:
        kinds = {name: getattr(feature, "dtype", None) for name, feature in self.dataset.features.items()}
        return {
            name: Column(is_text=kind in ("string", "large_string"), has_safe_name=is_identifier(name))
            for name, kind in kinds.items()
        }

    def read(self, columns: Sequence[str], span: Span | None = None) -> Iterator[pa.RecordBatch]:
        chosen = self.dataset if span is None else self.dataset.select(range(span.begin, span.end))
        batch_rows = self._rows_within(BLOCK_BYTES, BLOCK_ROWS)
        for table in chosen.select_columns(list(columns)).with_format("arrow").iter(batch_size=batch_rows):
            yield from table.select(list(columns)).combine_chunks().to_batches()

    def count(self) -> int:
        return len(self.dataset)

    def spans(self) -> list[Span]:
        step, rows = self._rows_within(SHARD_BYTES, SHARD_ROWS), len(self.dataset)
        return [Span(begin=begin, end=min(begin + step, rows)) for begin in range(0, rows, step)]

    def with_lines_before(self, span: Span) -> Span:
        return span

    def _rows_within(self, size: int, rows: int) -> int:
        """The number of rows that have about ``size`` bytes, at most ``rows``."""
        return min(max(size * len(self.dataset) // max(self.dataset.data.nbytes, 1), 1), rows)


def object_part(source: Any) -> Part:
    """Rows that are in memory: a data set of the library, its only split, or a list of texts or of rows."""
    if isinstance(source, Mapping) and all(hasattr(split, "features") for split in source.values()):
        if len(source) != 1:
            names = ", ".join(map(repr, source)) or "none"
            raise InvalidInput(f"a DatasetDict holds the splits {names}; pass one of them, such as data['train']")
        return object_part(next(iter(source.values())))
    if hasattr(source, "features") and hasattr(source, "select_columns"):
        if not hasattr(source, "__len__"):
            raise InvalidInput(
                "a streamed data set has no fixed rows, and a plan is made for fixed ones; load it without streaming, "
                "or write it to a file"
            )
        return DatasetPart(Path("(a data set)"), source)
    if isinstance(source, Sequence) and not isinstance(source, str | bytes):
        return ListPart(tuple(source))
    raise InvalidInput(
        f"the data are a {type(source).__name__}; pass a path, the name of a data set, a datasets.Dataset, or a list "
        "of texts or of rows"
    )


@final
@dataclass(frozen=True, slots=True, repr=False)
class ListPart:
    """A list of texts, or of rows with named values, in memory."""

    rows: tuple[Any, ...]

    @property
    def path(self) -> Path:
        return Path("(a list)")

    def columns(self) -> dict[str, Column]:
        first = next((row for row in self.rows if isinstance(row, Mapping)), None)
        if first is None:
            return {"text": Column(is_text=True, has_safe_name=True)} if self.rows else {}
        return {
            str(name): Column(is_text=isinstance(value, str), has_safe_name=is_identifier(str(name)))
            for name, value in first.items()
        }

    def read(
        self, columns: Sequence[str], span: Span | None = None, *, made: MadeRow = checked_row
    ) -> Iterator[Row | BrokenRow]:
        for number, row in enumerate(self.rows):
            is_row = isinstance(row, Mapping)
            found = made(tuple(row.get(name) if is_row else row for name in columns))
            yield BrokenRow(where=f"row {number}", why=found, file=str(self.path)) if isinstance(found, str) else found

    def count(self) -> int:
        return len(self.rows)

    def spans(self) -> None:
        return None  # every process would get all rows

    def with_lines_before(self, span: Span) -> Span:
        return span

    def __repr__(self) -> str:
        return f"ListPart({len(self.rows)} rows)"


def load_part(source: str) -> Part:
    """The data set NAME, NAME:SPLIT or NAME:CONFIG:SPLIT, where NAME is a name of the hub or a saved folder."""
    try:
        import datasets  # pyright: ignore[reportMissingImports]
    except ImportError:
        raise InvalidInput(
            f"{source} is not a file or folder here; if it is the name of a data set, "
            'install the library that loads it: pip install "hush[hf]"'
        ) from None
    name, *rest = source.split(":")
    if len(rest) > 2:
        raise InvalidInput(f"{source}: name a data set as NAME, NAME:SPLIT or NAME:CONFIG:SPLIT")
    split = rest[-1] if rest else "train"
    try:
        if Path(name).is_dir():
            loaded: Any = datasets.load_from_disk(name)
            loaded = loaded[split] if isinstance(loaded, datasets.DatasetDict) else loaded
        else:
            config = rest[0] if len(rest) == 2 else None
            loaded = datasets.load_dataset(name, config, split=split, trust_remote_code=False)
    except (OSError, ValueError, KeyError, RuntimeError) as error:
        raise InvalidInput(
            f"{source} is not a file or folder here, and the datasets library cannot load it "
            f"({type(error).__name__}); check the name, the split and the network"
        ) from None
    return DatasetPart(Path(source), loaded)

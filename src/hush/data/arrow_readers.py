"""Parquet files: read as Arrow batches, cut by rows.

Data sets that the `datasets` library knows, by name or in a folder that it saved; loaded only when asked for.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any, final

import pyarrow as pa
import pyarrow.parquet as pq

from hush.data.parts import BLOCK_BYTES, BLOCK_ROWS, SHARD_BYTES, SHARD_ROWS, Column, Part, Span, is_identifier
from hush.errors import InvalidInput
from hush.storage import parquet_file

__all__ = ["ParquetPart", "load_part"]


BUFFER_BYTES = 2**20  # of each column: what a row group holds of it may be larger than memory
CUTS = 8  # at most, of one row group: to read a slice is to decode everything before it in its group


@final
@dataclass(frozen=True, slots=True)
class ParquetPart:
    """A Parquet file, of which a few megabytes are in memory at once. One thread reads it: processes share shards."""

    path: Path

    def columns(self) -> dict[str, Column]:
        with parquet_file(self.path) as file:
            schema = file.schema_arrow
        if len(set(schema.names)) != len(schema.names):
            raise InvalidInput(f"{self.path}: two columns have one name; write it with distinct names")
        return {field.name: Column(is_text=_is_text(field.type), is_form=is_identifier(field.name)) for field in schema}

    def read(self, columns: Sequence[str], span: Span | None = None) -> Iterator[pa.RecordBatch]:
        with parquet_file(self.path, buffer_bytes=BUFFER_BYTES) as file:
            begin, end = (0, file.metadata.num_rows) if span is None else (span.begin, span.end)
            if end > file.metadata.num_rows:
                raise InvalidInput(
                    f"{self.path} has {file.metadata.num_rows} rows, fewer than when it was opened first: it changed "
                    "meanwhile; start again while nobody writes to it"
                )
            before = 0
            for group, (rows, size) in enumerate(_row_groups(file.metadata)):
                first, last = max(begin - before, 0), min(end - before, rows)
                if first < last:
                    fitting = min(max(BLOCK_BYTES * rows // max(size, 1), 1), BLOCK_ROWS)
                    batches = file.iter_batches(fitting, row_groups=[group], columns=list(columns), use_threads=False)
                    for batch in _between(batches, first, last):
                        yield batch.select(list(columns))
                before += rows

    def count(self) -> int:
        with parquet_file(self.path) as file:
            return file.metadata.num_rows

    def spans(self) -> list[Span]:
        """Slices of large row groups, and small row groups together."""
        with parquet_file(self.path) as file:
            sizes = _row_groups(file.metadata)
        spans: list[Span] = []
        first = held = total = 0  # where the span under way begins, and what it holds so far
        for rows, size in sizes:
            if total > first and (total + rows - first > SHARD_ROWS or held + size > SHARD_BYTES):
                spans.append(Span(begin=first, end=total))
                first, held = total, 0
            cuts = min(max(-(-rows // SHARD_ROWS), -(-size // SHARD_BYTES), 1), CUTS)
            if cuts > 1:
                edges = [total + rows * cut // cuts for cut in range(cuts + 1)]
                spans += [Span(begin=one, end=other) for one, other in pairwise(edges)]
                first, held = total + rows, 0
            else:
                held += size
            total += rows
        if total > first:
            spans.append(Span(begin=first, end=total))
        return [span for span in spans if span.end > span.begin]

    def located(self, span: Span) -> Span:
        return span


def _row_groups(metadata: pq.FileMetaData) -> list[tuple[int, int]]:
    """Rows and bytes of each row group; bytes of all its columns, which is at least those of the text."""
    groups = [metadata.row_group(index) for index in range(metadata.num_row_groups)]
    return [(group.num_rows, group.total_byte_size) for group in groups]


def _between(batches: Iterator[pa.RecordBatch], first: int, last: int) -> Iterator[pa.RecordBatch]:
    """Rows first to last of what comes in batches; an error of Arrow's if it ends before."""
    before = 0
    for batch in batches:
        begin, end = max(first - before, 0), min(last - before, len(batch))
        if begin < end:
            yield batch.slice(begin, end - begin)
        before += len(batch)
        if before >= last:
            return
    raise pa.ArrowInvalid(f"{before} rows where the file's footer promises at least {last}")


def _is_text(kind: pa.DataType) -> bool:
    if pa.types.is_dictionary(kind):
        kind = kind.value_type
    return pa.types.is_string(kind) or pa.types.is_large_string(kind) or pa.types.is_string_view(kind)


@final
@dataclass(frozen=True, slots=True)
class DatasetPart:
    """A data set of the `datasets` library, which maps it from disk."""

    path: Path
    dataset: Any

    def columns(self) -> dict[str, Column]:
        kinds = {name: getattr(feature, "dtype", None) for name, feature in self.dataset.features.items()}
        return {
            name: Column(is_text=kind in ("string", "large_string"), is_form=is_identifier(name))
            for name, kind in kinds.items()
        }

    def read(self, columns: Sequence[str], span: Span | None = None) -> Iterator[pa.RecordBatch]:
        chosen = self.dataset if span is None else self.dataset.select(range(span.begin, span.end))
        fitting = self._rows_within(BLOCK_BYTES, BLOCK_ROWS)
        for table in chosen.select_columns(list(columns)).with_format("arrow").iter(batch_size=fitting):
            yield from table.select(list(columns)).combine_chunks().to_batches()

    def count(self) -> int:
        return len(self.dataset)

    def spans(self) -> list[Span]:
        step, rows = self._rows_within(SHARD_BYTES, SHARD_ROWS), len(self.dataset)
        return [Span(begin=begin, end=min(begin + step, rows)) for begin in range(0, rows, step)]

    def located(self, span: Span) -> Span:
        return span

    def _rows_within(self, size: int, rows: int) -> int:
        """How many rows have about this many bytes, and no more than so many."""
        return min(max(size * len(self.dataset) // max(self.dataset.data.nbytes, 1), 1), rows)


def load_part(source: str) -> Part:
    """The data set of this name: NAME, NAME:SPLIT or NAME:CONFIG:SPLIT, where NAME is of the hub or a saved folder."""
    try:
        import datasets  # pyright: ignore[reportMissingImports]
    except ImportError:
        raise InvalidInput(
            f"{source} is no file or folder here; if it is the name of a data set, "
            'install the library that loads those with pip install "hush[hf]"'
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
            loaded = datasets.load_dataset(name, rest[0] if len(rest) == 2 else None, split=split)
    except (OSError, ValueError, KeyError, RuntimeError) as error:
        raise InvalidInput(
            f"{source} is no file or folder here, and the datasets library cannot load it "
            f"({type(error).__name__}); check the name, the split and the network"
        ) from None
    return DatasetPart(Path(source), loaded)

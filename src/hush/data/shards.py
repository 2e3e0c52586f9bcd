"""A corpus cut into shards, each of which one process reads, block by block.

A shard states only which bytes or rows of which files it covers, so it can be sent to any process that sees the same
files. In order, the shards are the corpus, each example once. Below the shards, ``BlockBuilder`` and ``batch_blocks``
turn single rows and Arrow batches into blocks of a few megabytes.
"""

import json
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Protocol, final

import numpy as np
import pyarrow as pa

from hush.data.parts import BLOCK_BYTES, BLOCK_ROWS, SHARD_BYTES, Block, BrokenRow, Part, Row, Span, shown_name
from hush.errors import InvalidInput, Setting

__all__ = [
    "BlockBuilder",
    "ReadableShard",
    "Shard",
    "ShardSource",
    "batch_blocks",
    "split_into_shards",
    "unreadable_rows_error",
]


MAX_LISTED_ROWS = 5  # broken rows that a message lists
GROUPED_FILE_BYTES = SHARD_BYTES // 4  # small files share a shard up to this size
MAX_FILES_PER_SHARD = 1000


class ReadableShard(Protocol):
    """What the scan needs of a shard."""

    @property
    def files(self) -> tuple[str, ...]:
        """The files it reads, in order; neighbouring shards may share only the first and the last."""
        ...

    def blocks(self, columns: Sequence[str] = (), *, skip_bad: bool = False) -> Iterator[Block]:
        """Its examples in order, with these columns besides the text."""
        ...


class ShardSource(Protocol):
    """What the scan needs of a corpus."""

    @property
    def source(self) -> str:
        """The path or name it was read from, for messages."""
        ...

    def shards(self) -> Sequence[ReadableShard]:
        """All its shards, in order."""
        ...

    def check_columns(self, names: Sequence[str]) -> None:
        """Raises InvalidInput for a column that it lacks."""
        ...


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class Piece:
    """A part, or one span of it."""

    part: Part
    span: Span | None = None


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class Shard:
    """Consecutive examples that one process reads. column: the column of the text."""

    pieces: tuple[Piece, ...]
    column: str

    @property
    def files(self) -> tuple[str, ...]:
        return tuple(str(piece.part.path) for piece in self.pieces)

    def blocks(self, columns: Sequence[str] = (), *, skip_bad: bool = False) -> Iterator[Block]:
        """Its examples in order, a few megabytes at a time, with these columns besides the text.

        Rows that cannot be read raise an ``InvalidInput`` that names the first of them by file and line; with skip_bad
        they are skipped and listed in ``broken`` of the blocks.
        """
        for block in self._blocks(columns):
            if block.broken and not skip_bad:
                raise unreadable_rows_error(self._broken_rows(columns), self.column)
            if self.column in columns:
                yield replace(block, columns={**block.columns, self.column: block.texts})
            else:
                yield block

    def _blocks(self, columns: Sequence[str]) -> Iterator[Block]:
        wanted = tuple(dict.fromkeys((self.column, *columns)))
        builder = BlockBuilder(columns=wanted)
        for file, piece in enumerate(self.pieces):
            number = 0
            for item in piece.part.read(wanted, piece.span):
                if not isinstance(item, tuple | BrokenRow):
                    first_row = number + (piece.span.begin if piece.span is not None else 0)
                    path = str(piece.part.path)
                    yield from batch_blocks(item, path=path, first_row=first_row, first_number=number, file=file)
                    number += len(item)
                    continue
                if isinstance(item, BrokenRow):
                    builder.skip(item)
                else:
                    builder.add(item, number, file)
                number += 1
                if builder.is_full:
                    yield builder.build()
        if builder:
            yield builder.build()

    def _broken_rows(self, columns: Sequence[str]) -> Iterator[BrokenRow]:
        """Its broken rows, read again so that each is named by its line number in the file."""
        pieces = tuple(
            replace(piece, span=None if piece.span is None else piece.part.with_lines_before(piece.span))
            for piece in self.pieces
        )
        for block in replace(self, pieces=pieces)._blocks(columns):
            yield from block.broken


def unreadable_rows_error(broken: Iterable[BrokenRow], column: str) -> InvalidInput:
    """The error that names the first broken rows."""
    listed: list[str] = []
    for row in broken:
        if len(listed) == MAX_LISTED_ROWS:
            listed.append("and more")
            break
        listed.append(str(row))
    return InvalidInput(
        f"rows without readable text in column {shown_name(column)!r}: {'; '.join(listed)}; correct or remove them, or "
        "scan with ",
        Setting("skip_bad"),
        ", which skips them and saves the other rows as the data to train on",
    )


def split_into_shards(parts: Iterable[Part], column: str) -> Iterator[Shard]:
    """The shards of these parts, in order: large files by span, small files grouped."""
    grouped: list[Piece] = []
    size = 0
    for part in parts:
        spans = part.spans()
        if spans is not None and len(spans) > 1:
            if grouped:
                yield Shard(pieces=tuple(grouped), column=column)
                grouped, size = [], 0
            yield from (Shard(pieces=(Piece(part=part, span=span),), column=column) for span in spans)
            continue
        file_bytes = part.path.stat().st_size if part.path.is_file() else GROUPED_FILE_BYTES
        if grouped and (size + file_bytes > GROUPED_FILE_BYTES or len(grouped) == MAX_FILES_PER_SHARD):
            yield Shard(pieces=tuple(grouped), column=column)
            grouped, size = [], 0
        grouped.append(Piece(part=part))
        size += file_bytes
    if grouped:
        yield Shard(pieces=tuple(grouped), column=column)


# From rows and batches to blocks


@final
@dataclass(kw_only=True, repr=False)
class BlockBuilder:
    """Collects single rows, of one or more files, into a block."""

    columns: Sequence[str]
    _rows: list[Row] = field(default_factory=list)
    _numbers: list[int] = field(default_factory=list)
    _files: list[int] = field(default_factory=list)
    _broken: list[BrokenRow] = field(default_factory=list)
    _size: int = 0

    def add(self, row: Row, number: int, file: int) -> None:
        """Adds an example with its row number in its file, and the index of that file."""
        self._rows.append(row)
        self._numbers.append(number)
        self._files.append(file)
        self._size += len(row[0])  # pyright: ignore[reportArgumentType]

    def skip(self, broken: BrokenRow) -> None:
        """Notes a row that cannot be read."""
        self._broken.append(broken)

    @property
    def is_full(self) -> bool:
        return self._size >= BLOCK_BYTES or max(len(self._rows), len(self._broken)) >= BLOCK_ROWS

    def __bool__(self) -> bool:
        return bool(self._rows or self._broken)

    def __repr__(self) -> str:
        return f"BlockBuilder({len(self._rows)} examples)"

    def build(self) -> Block:
        """The block of the collected rows; the builder is empty afterwards."""
        texts = pa.array([row[0] for row in self._rows], pa.large_string())
        columns = {name: _array([row[index] for row in self._rows]) for index, name in enumerate(self.columns) if index}
        block = Block(
            texts=texts,
            columns=columns,
            rows=np.array(self._numbers, dtype=np.int64),
            files=np.array(self._files, dtype=np.int64),
            broken=tuple(self._broken),
        )
        self._rows, self._numbers, self._files, self._broken, self._size = [], [], [], [], 0
        return block


def batch_blocks(batch: pa.RecordBatch, *, path: str, first_row: int, first_number: int, file: int) -> Iterator[Block]:
    """The blocks of a batch whose first column is the text; rows without readable text are broken.

    path: the file. first_row: the number of the batch's first row in it. first_number: the same among the rows that the
    shard reads. file: the index of the file in the shard.
    """
    texts = _decoded(batch.column(0)).cast(pa.large_string())
    columns = {name: _decoded(batch.column(index)) for index, name in enumerate(batch.schema.names) if index}
    problems = _problems([texts, *columns.values()])
    broken = [BrokenRow(where=f"{path}, row {first_row + row}", why=why, file=path) for row, why in problems.items()]
    rows = np.arange(len(batch))
    if problems:
        kept = np.delete(rows, list(problems))
        texts, rows = texts.take(pa.array(kept)), kept
        columns = {name: array.take(pa.array(kept)) for name, array in columns.items()}
    for begin, end in _cuts(texts):
        yield Block(
            texts=texts.slice(begin, end - begin),
            columns={name: array.slice(begin, end - begin) for name, array in columns.items()},
            rows=rows[begin:end] + first_number,
            files=np.full(end - begin, file, dtype=np.int64),
            broken=tuple(broken),
        )
        broken = []
    if broken:
        empty = {name: array.slice(0, 0) for name, array in columns.items()}
        none = np.empty(0, dtype=np.int64)
        yield Block(texts=texts.slice(0, 0), columns=empty, rows=none, files=none, broken=tuple(broken))


def _problems(columns: Sequence[Any]) -> dict[int, str]:
    """The broken rows of a batch and what is wrong: no text, or text in any column that is not UTF-8."""
    texts = columns[0]
    problems = {int(row): "empty" for row in np.flatnonzero(texts.is_null().to_numpy(zero_copy_only=False))}
    for column in columns:
        try:
            column.validate(full=True)
        except pa.ArrowInvalid:
            for row in range(len(column)):
                try:
                    column.take(pa.array([row])).validate(
                        full=True
                    )  # a slice would include the values of other rows' lists
                except pa.ArrowInvalid:
                    problems.setdefault(row, "not UTF-8")
    return dict(sorted(problems.items()))


def _cuts(texts: pa.LargeStringArray) -> Iterator[tuple[int, int]]:
    """The ranges of rows for blocks of a few megabytes of text; a longer row is a block by itself."""
    offsets = np.frombuffer(texts.buffers()[1] or b"\0" * 8, dtype=np.int64)[
        texts.offset : texts.offset + len(texts) + 1
    ]
    begin = 0
    while begin < len(texts):
        end = int(np.searchsorted(offsets, offsets[begin] + BLOCK_BYTES, side="right")) - 1
        end = min(max(end, begin + 1), begin + BLOCK_ROWS, len(texts))
        yield begin, end
        begin = end


def _decoded(array: Any) -> Any:
    """A column without dictionary encoding."""
    return array.cast(array.type.value_type) if pa.types.is_dictionary(array.type) else array


def _array(values: list[Any]) -> pa.Array:
    """JSON values as text, or as lists of text if any value is a list; the cut into blocks changes no value."""
    if any(isinstance(value, list) for value in values):
        lists = [value if isinstance(value, list) or value is None else [value] for value in values]
        return pa.array(
            [None if values is None else [_text(value) for value in values] for values in lists],
            pa.large_list(pa.large_string()),
        )
    return pa.array([_text(value) for value in values], pa.large_string())


def _text(value: Any) -> str | None:
    if value is None or value != value:  # NaN: many writers put it in place of a missing number
        return None
    if isinstance(value, float) and value.is_integer():  # such writers write 7 as 7.0 in that column
        value = int(value)
    return value if isinstance(value, str) else json.dumps(value, sort_keys=True)

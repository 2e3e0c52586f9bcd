"""A corpus in shards, between the files and whoever reads them in parallel.

A shard is small enough for one process, and says only which bytes or rows of which files it is: it can be sent to any
process that sees the same files. Together, in order, the shards are the corpus, each example once.

From what the parts read to blocks: rows gathered into columns, batches checked, and both cut to a few megabytes.
"""

import json
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Protocol, final

import numpy as np
import pyarrow as pa

from hush.data.parts import BLOCK_BYTES, BLOCK_ROWS, SHARD_BYTES, Block, Broken, Part, Row, Span, shown
from hush.errors import InvalidInput

__all__ = ["Gathering", "Readable", "Shard", "ShardSource", "batch_blocks", "cut_parts", "refusal"]


@final
@dataclass(kw_only=True, repr=False)
class Gathering:
    """Rows on their way into a block, whatever file they are from; full once it holds a block's worth."""

    columns: Sequence[str]
    _rows: list[Row] = field(default_factory=list)
    _numbers: list[int] = field(default_factory=list)
    _files: list[int] = field(default_factory=list)
    _broken: list[Broken] = field(default_factory=list)
    _size: int = 0

    def add(self, row: Row, number: int, file: int) -> None:
        """An example: its number in its file, and which file that is."""
        self._rows.append(row)
        self._numbers.append(number)
        self._files.append(file)
        self._size += len(row[0])  # pyright: ignore[reportArgumentType]

    def skip(self, broken: Broken) -> None:
        """A row that cannot be read."""
        self._broken.append(broken)

    @property
    def is_full(self) -> bool:
        return self._size >= BLOCK_BYTES or max(len(self._rows), len(self._broken)) >= BLOCK_ROWS

    def __bool__(self) -> bool:
        return bool(self._rows or self._broken)

    def __repr__(self) -> str:
        return f"Gathering({len(self._rows)} examples)"

    def taken(self) -> Block:
        """What was gathered, which is then forgotten here."""
        texts = pa.array([row[0] for row in self._rows], pa.large_string())
        columns = {name: _array([row[place] for row in self._rows]) for place, name in enumerate(self.columns) if place}
        block = Block(
            texts=texts,
            columns=columns,
            rows=np.array(self._numbers, dtype=np.int64),
            files=np.array(self._files, dtype=np.int64),
            broken=tuple(self._broken),
        )
        self._rows, self._numbers, self._files, self._broken, self._size = [], [], [], [], 0
        return block


def batch_blocks(batch: pa.RecordBatch, *, place: str, first: int, number: int, file: int) -> Iterator[Block]:
    """The blocks of a batch whose first column is the text; rows without a readable text are broken.

    place: the file. first: the batch's first row in it; number: the same in its shard. file: which file of the shard.
    """
    texts = _decoded(batch.column(0)).cast(pa.large_string())
    columns = {name: _decoded(batch.column(index)) for index, name in enumerate(batch.schema.names) if index}
    why = _problems([texts, *columns.values()])
    broken = [Broken(where=f"{place}, row {first + row}", why=said, file=place) for row, said in why.items()]
    rows = np.arange(len(batch))
    if why:
        kept = np.delete(rows, list(why))
        texts, rows = texts.take(pa.array(kept)), kept
        columns = {name: array.take(pa.array(kept)) for name, array in columns.items()}
    for begin, end in _cuts(texts):
        yield Block(
            texts=texts.slice(begin, end - begin),
            columns={name: array.slice(begin, end - begin) for name, array in columns.items()},
            rows=rows[begin:end] + number,
            files=np.full(end - begin, file, dtype=np.int64),
            broken=tuple(broken),
        )
        broken = []
    if broken:
        empty = {name: array.slice(0, 0) for name, array in columns.items()}
        none = np.empty(0, dtype=np.int64)
        yield Block(texts=texts.slice(0, 0), columns=empty, rows=none, files=none, broken=tuple(broken))


def _problems(columns: Sequence[Any]) -> dict[int, str]:
    """Which rows of a batch are broken, and why: no text, or text in any column that is not UTF-8."""
    texts = columns[0]
    why = {int(row): "empty" for row in np.flatnonzero(texts.is_null().to_numpy(zero_copy_only=False))}
    for column in columns:
        try:
            column.validate(full=True)
        except pa.ArrowInvalid:
            for row in range(len(column)):
                try:
                    column.take(pa.array([row])).validate(full=True)  # a slice would bring along what is in its lists
                except pa.ArrowInvalid:
                    why.setdefault(row, "not UTF-8")
    return dict(sorted(why.items()))


def _cuts(texts: pa.LargeStringArray) -> Iterator[tuple[int, int]]:
    """Where to cut so that every block has a few megabytes of text, or one longer row."""
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
    """A column without the dictionary that its file may keep it with."""
    return array.cast(array.type.value_type) if pa.types.is_dictionary(array.type) else array


def _array(values: list[Any]) -> pa.Array:
    """Values of JSON as text, or as lists of text where any is a list; each by itself, so cuts change nothing."""
    if any(isinstance(value, list) for value in values):
        lists = [value if isinstance(value, list) or value is None else [value] for value in values]
        return pa.array(
            [None if some is None else [_text(value) for value in some] for some in lists],
            pa.large_list(pa.large_string()),
        )
    return pa.array([_text(value) for value in values], pa.large_string())


def _text(value: Any) -> str | None:
    if value is None or value != value:  # NaN, which many writers put where a number is missing
        return None
    if isinstance(value, float) and value.is_integer():  # as they then write 7 in the same column, which is 7.0 to them
        value = int(value)
    return value if isinstance(value, str) else json.dumps(value, sort_keys=True)


TOLD = 5  # broken rows that a message lists
SMALL = SHARD_BYTES // 4  # bytes of files that are read together
TOGETHER = 1000  # files at most in one shard


class Readable(Protocol):
    """What the scan needs of a shard."""

    @property
    def files(self) -> tuple[str, ...]:
        """The files it reads, in order; only the first and the last may be shared with its neighbours."""
        ...

    def blocks(self, columns: Sequence[str] = (), *, skip_bad: bool = False) -> Iterator[Block]:
        """Its examples in order, with these columns besides the text."""
        ...


class ShardSource(Protocol):
    """What the scan needs of a corpus."""

    @property
    def source(self) -> str:
        """Where it comes from, for messages."""
        ...

    def shards(self) -> Sequence[Readable]:
        """The whole of it, in order."""
        ...

    def check_columns(self, names: Sequence[str]) -> None:
        """Refuse columns that it lacks."""
        ...


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class Piece:
    """A part, or a span of it."""

    part: Part
    span: Span | None = None


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class Shard:
    """Consecutive examples that one process reads by itself. column: which one holds the text."""

    pieces: tuple[Piece, ...]
    column: str

    @property
    def files(self) -> tuple[str, ...]:
        return tuple(str(piece.part.path) for piece in self.pieces)

    def blocks(self, columns: Sequence[str] = (), *, skip_bad: bool = False) -> Iterator[Block]:
        """Its examples in order, a few megabytes at a time, with these columns besides the text.

        Rows that cannot be read are an ``InvalidInput`` that names the first of them by file and line; with skip_bad
        they are passed over, and told in the blocks' ``broken``.
        """
        for block in self._blocks(columns):
            if block.broken and not skip_bad:
                raise refusal(self._broken(columns), self.column)
            if self.column in columns:
                yield replace(block, columns={**block.columns, self.column: block.texts})
            else:
                yield block

    def _blocks(self, columns: Sequence[str]) -> Iterator[Block]:
        wanted = tuple(dict.fromkeys((self.column, *columns)))
        gathering = Gathering(columns=wanted)
        for file, piece in enumerate(self.pieces):
            number = 0
            for item in piece.part.read(wanted, piece.span):
                if not isinstance(item, tuple | Broken):
                    first = number + (piece.span.begin if piece.span is not None else 0)
                    yield from batch_blocks(item, place=str(piece.part.path), first=first, number=number, file=file)
                    number += len(item)
                    continue
                if isinstance(item, Broken):
                    gathering.skip(item)
                else:
                    gathering.add(item, number, file)
                number += 1
                if gathering.is_full:
                    yield gathering.taken()
        if gathering:
            yield gathering.taken()

    def _broken(self, columns: Sequence[str]) -> Iterator[Broken]:
        """Its broken rows again, now with the number of each line in its file."""
        located = [
            replace(piece, span=None if piece.span is None else piece.part.located(piece.span)) for piece in self.pieces
        ]
        for block in replace(self, pieces=tuple(located))._blocks(columns):
            yield from block.broken


def refusal(broken: Iterable[Broken], column: str) -> InvalidInput:
    """The error that names the first broken rows."""
    told: list[str] = []
    for row in broken:
        if len(told) == TOLD:
            told.append("and more")
            break
        told.append(str(row))
    return InvalidInput(
        f"rows without a readable text in column {shown(column)!r}: {'; '.join(told)}; mend or remove them, or let "
        "hush scan --skip-bad pass them over, which writes the rest as data of its own"
    )


def cut_parts(parts: Iterable[Part], column: str) -> Iterator[Shard]:
    """The shards of these parts, in order: large files in spans, small ones together."""
    held: list[Piece] = []
    size = 0
    for part in parts:
        spans = part.spans()
        if spans is not None and len(spans) > 1:
            if held:
                yield Shard(pieces=tuple(held), column=column)
                held, size = [], 0
            yield from (Shard(pieces=(Piece(part=part, span=span),), column=column) for span in spans)
            continue
        bytes_here = part.path.stat().st_size if part.path.is_file() else SMALL
        if held and (size + bytes_here > SMALL or len(held) == TOGETHER):
            yield Shard(pieces=tuple(held), column=column)
            held, size = [], 0
        held.append(Piece(part=part))
        size += bytes_here
    if held:
        yield Shard(pieces=tuple(held), column=column)

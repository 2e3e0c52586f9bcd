"""A corpus in shards, between the files and whoever reads them in parallel.

A shard is small enough for one process, and says only which bytes or rows of which files it is: it can be sent to any
process that sees the same files. Together, in order, the shards are the corpus, each example once.
"""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Protocol, final

from hush.corpus.blocks import Block
from hush.corpus.columns import shown
from hush.corpus.filling import Gathering, batch_blocks
from hush.corpus.parts import SHARD_BYTES, Broken, Part, Span
from hush.errors import InvalidInput

__all__ = ["Readable", "Shard", "ShardSource", "cut_parts", "refusal"]

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

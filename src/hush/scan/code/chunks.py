r"""Files of code as examples: text cut into chunks of lines or tokens, and the chunks of a repository as a corpus.

No character is lost: without overlap, the chunks of a file joined in order are its text. A line ends after "\n" only.
Chunks end at line ends; only a line with more tokens than a chunk may hold is cut, before a token.
"""

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import accumulate, pairwise
from pathlib import Path
from typing import final

from hush.data.corpus import Corpus
from hush.data.parts import BrokenRow, Column, Row, Span
from hush.errors import InvalidInput
from hush.scan.code.repository import Repository, text_or_problem
from hush.scan.code.settings import Chunks

__all__ = ["Chunk", "CodePart", "chunks_of", "code_corpus"]


COLUMNS = ("text", "path", "id")
_TOKEN = re.compile(r"\w+|[^\w\s]")
_LINE_END = re.compile(r"\n")


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class Chunk:
    """Characters ``begin`` to ``end`` of a file. place: its lines, as in L1-L80; with columns if a line is cut."""

    begin: int
    end: int
    place: str


@final
@dataclass(frozen=True, slots=True)
class _Piece:
    """A unit that is never cut: a line, or a part of a long one. weight: its number of tokens."""

    begin: int
    end: int
    weight: int
    line: int
    line_begin: int


def chunks_of(text: str, settings: Chunks) -> Iterator[Chunk]:
    """The chunks of a text; an empty text has none.

    >>> [chunk.place for chunk in chunks_of("a = 1\\nb = 2\\nc = 3\\n", Chunks(lines=2))]
    ['L1-L2', 'L3-L3']
    >>> [chunk.place for chunk in chunks_of("a = 1\\nb = [2, 3]\\n", Chunks(tokens=4))]
    ['L1-L1', 'L2C1-L2C6', 'L2C7-L2C11']
    """
    if settings.unit == "lines":
        yield from _chunks_of_lines(text, settings)
        return
    pieces = list(_pieces(text, settings))
    weight_before = [0, *accumulate(piece.weight for piece in pieces)]
    begin = end = 0  # pieces of the current chunk; all pieces before ``end`` are in some chunk
    while end < len(pieces):
        while begin < end and weight_before[end + 1] - weight_before[begin] > settings.size:
            begin += 1  # repeat less, so that a new piece fits
        end += 1
        while end < len(pieces) and weight_before[end + 1] - weight_before[begin] <= settings.size:
            end += 1
        first, last = pieces[begin], pieces[end - 1]
        yield Chunk(begin=first.begin, end=last.end, place=_place(text, first, last))
        begin = _repeated_from(weight_before, begin, end, settings.overlap)


def _chunks_of_lines(text: str, settings: Chunks) -> Iterator[Chunk]:
    """The chunks of a text whose unit is the line: all lines weigh the same, so chunks begin at equal distances."""
    starts = [0, *(match.end() for match in _LINE_END.finditer(text))]
    if starts[-1] < len(text):
        starts.append(len(text))
    num_lines = len(starts) - 1
    first = 0
    while first < num_lines:
        last = min(first + settings.size, num_lines)
        yield Chunk(begin=starts[first], end=starts[last], place=f"L{first + 1}-L{last}")
        first = last - settings.overlap if last < num_lines else num_lines


def _repeated_from(weight_before: Sequence[int], begin: int, end: int, overlap: int) -> int:
    """The first piece of the next chunk: it repeats as much as the overlap allows, but not the whole chunk."""
    start = end
    while overlap and start - 1 > begin and weight_before[end] - weight_before[start - 1] <= overlap:
        start -= 1
    return start


def _pieces(text: str, settings: Chunks) -> Iterator[_Piece]:
    begin, line = 0, 1
    while begin < len(text):
        end = text.find("\n", begin) + 1 or len(text)
        starts = [match.start() for match in _TOKEN.finditer(text, begin, end)]
        cuts = [begin, *starts[settings.size :: settings.size], end]
        for number, (left, right) in enumerate(pairwise(cuts)):
            tokens = min(settings.size, len(starts) - number * settings.size)
            yield _Piece(left, right, tokens, line, begin)
        begin, line = end, line + 1


def _place(text: str, first: _Piece, last: _Piece) -> str:
    """First and last line; with columns, counted from 1, if either of them is cut."""
    last_line_ends = last.end == len(text) or text[last.end - 1] == "\n"
    if first.begin == first.line_begin and last_line_ends:
        return f"L{first.line}-L{last.line}"
    return f"L{first.line}C{first.begin - first.line_begin + 1}-L{last.line}C{last.end - last.line_begin}"


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class CodePart:
    """One file of a repository as rows of text, path (from the root, with slashes) and id."""

    root: Path
    file: str
    chunks: Chunks

    @property
    def path(self) -> Path:
        return self.root / self.file

    def columns(self) -> dict[str, Column]:
        return dict.fromkeys(COLUMNS, Column(is_text=True, has_safe_name=True))

    def read(self, columns: Sequence[str], span: Span | None = None) -> Iterator[Row | BrokenRow]:
        text, problem = text_or_problem(self.root, self.file)
        if text is None:
            yield BrokenRow(where=str(self.path), why=f"it was text and is now {problem}", file=str(self.path))
            return
        for chunk in chunks_of(text, self.chunks):
            row = {"text": text[chunk.begin : chunk.end], "path": self.file, "id": f"{self.file}#{chunk.place}"}
            yield tuple(row[column] for column in columns)

    def count(self) -> None:
        return None

    def spans(self) -> None:
        return None

    def with_lines_before(self, span: Span) -> Span:
        return span


def code_corpus(repository: Repository, chunks: Chunks | None = None) -> Corpus:
    """The chunks of a repository as a corpus, in the order of the files' paths; an empty file has no chunk."""
    files = [file for file in repository.examples if repository.sizes[file]]
    if not files:
        num_skipped = sum(len(paths) for paths in repository.passed_over.values())
        remedy = "pass a folder with source files"
        if repository.tracked:
            remedy = "add files with git add, or copy the folder out of its repository to scan it as plain files"
        folder = repository.root / repository.below
        raise InvalidInput(f"{folder} has no text file to make examples of ({num_skipped} passed over); {remedy}")
    parts = tuple(CodePart(root=repository.root, file=file, chunks=chunks or Chunks()) for file in files)
    return Corpus(source=str(repository.root / repository.below), column="text", parts=parts)

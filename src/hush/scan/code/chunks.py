r"""Files of code as examples: text cut into chunks of lines or tokens, and the chunks of a repository as a corpus.

No character is lost: without overlap, the chunks of a file joined in order are its text. A line ends after "\n" only.
Chunks end at line ends; only a line with more tokens than a chunk may hold is cut, before a token.

If rules hide spans of a file (definitions or lines), the file is cut as its skeleton: every hidden span counts as one
token, has no line end and is never cut. So neither the borders of the chunks nor their ids depend on what is hidden.
"""

import hashlib
import os
import re
from bisect import bisect_left
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import accumulate, chain, pairwise
from pathlib import Path
from typing import Self, final

from hush.data.corpus import Corpus
from hush.data.parts import BrokenRow, Column, Row, Span
from hush.errors import InvalidInput
from hush.scan.code.repository import Repository, text_or_problem
from hush.scan.code.settings import Chunks

__all__ = ["Chunk", "CodePart", "HiddenSpans", "chunks_of", "code_corpus", "merged_spans"]


COLUMNS = ("text", "path", "id", "offset")
SLOT = "\0"  # stands for a hidden span where a file is cut: one token, and no line end
DIGEST_BYTES = 16
_TOKEN = re.compile(r"\w+|[^\w\s]")
_LINE_END = re.compile(r"\n")


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class Chunk:
    """Characters ``begin`` to ``end`` of a file. place: its lines, as in L1-L80; with columns if a line is cut.

    Lines and columns of a file with hidden spans are those of its skeleton.
    """

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


def merged_spans(spans: Iterable[tuple[int, int]]) -> tuple[tuple[int, int], ...]:
    """The spans in order; those that overlap or touch become one.

    >>> merged_spans([(5, 7), (0, 2), (1, 3), (7, 8)])
    ((0, 3), (5, 8))
    """
    merged: list[tuple[int, int]] = []
    for begin, end in sorted(spans):
        if merged and begin <= merged[-1][1]:
            merged[-1] = (merged[-1][0], max(end, merged[-1][1]))
        else:
            merged.append((begin, end))
    return tuple(merged)


def chunks_of(text: str, settings: Chunks, hidden: Iterable[tuple[int, int]] = ()) -> Iterator[Chunk]:
    """The chunks of a text; an empty text has none. hidden: spans that count as one token each and are never cut.

    Guarantee: texts that differ only inside their hidden spans are cut at the same places of their skeletons.

    >>> [chunk.place for chunk in chunks_of("a = 1\\nb = 2\\nc = 3\\n", Chunks(lines=2))]
    ['L1-L2', 'L3-L3']
    >>> [chunk.place for chunk in chunks_of("a = 1\\nb = [2, 3]\\n", Chunks(tokens=4))]
    ['L1-L1', 'L2C1-L2C6', 'L2C7-L2C11']
    >>> [chunk.place for chunk in chunks_of("a = (\\n1)\\nb = 2\\n", Chunks(lines=1), [(0, 8)])]
    ['L1-L1', 'L2-L2']
    """
    spans = merged_spans(hidden)
    if not spans:
        yield from _cut(text, settings)
        return
    parts, places, done, length = list[str](), list[int](), 0, 0
    added = [0]  # characters that the hidden spans before each place have more than their stand-ins
    for begin, end in spans:
        parts += (text[done:begin], SLOT)
        length += begin - done
        places.append(length)
        added.append(added[-1] + end - begin - 1)
        length, done = length + 1, end
    cut_text = "".join((*parts, text[done:]))
    for chunk in _cut(cut_text, settings):
        begin, end = (place + added[bisect_left(places, place)] for place in (chunk.begin, chunk.end))
        yield Chunk(begin=begin, end=end, place=chunk.place)


def _cut(text: str, settings: Chunks) -> Iterator[Chunk]:
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
class HiddenSpans:
    """The spans of a file that rules hide, and a keyed digest of the text in which they were found. Private."""

    spans: tuple[tuple[int, int], ...] = field(repr=False)
    key: bytes = field(repr=False)
    digest: bytes = field(repr=False)

    @classmethod
    def of(cls, text: str, spans: Iterable[tuple[int, int]]) -> Self:
        """The hidden spans of this text."""
        key = os.urandom(DIGEST_BYTES)  # a plain hash of a secret text would help to guess it
        return cls(spans=merged_spans(spans), key=key, digest=_digest(text, key))

    def are_of(self, text: str) -> bool:
        """Whether the text is still the one in which the spans were found."""
        return _digest(text, self.key) == self.digest


def _digest(text: str, key: bytes) -> bytes:
    return hashlib.blake2b(text.encode(), digest_size=DIGEST_BYTES, key=key).digest()


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class CodePart:
    """One file of a repository as rows of text, path (from the root, with slashes), id, and offset.

    offset: the place of the chunk's first character in the file, in digits. hidden: for each rule, the spans of the
    file that it hides; private, and so is the offset then.
    """

    root: Path
    file: str
    chunks: Chunks
    hidden: tuple[HiddenSpans, ...] = field(default=(), repr=False)

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
        if not all(each.are_of(text) for each in self.hidden):
            why = "it was changed after the rules were read; scan again while nothing changes it"
            yield BrokenRow(where=str(self.path), why=why, file=str(self.path))
            return
        for chunk in chunks_of(text, self.chunks, chain.from_iterable(each.spans for each in self.hidden)):
            row = {"text": text[chunk.begin : chunk.end], "path": self.file, "id": f"{self.file}#{chunk.place}"}
            row["offset"] = str(chunk.begin)
            yield tuple(row[column] for column in columns)

    def count(self) -> None:
        return None

    def spans(self) -> None:
        return None

    def with_lines_before(self, span: Span) -> Span:
        return span


def code_corpus(
    repository: Repository, chunks: Chunks | None = None, hidden: Sequence[Mapping[str, HiddenSpans]] = ()
) -> Corpus:
    """The chunks of a repository as a corpus, in the order of the files' paths; an empty file has no chunk.

    hidden: for each rule, the spans that it hides, by file; such a file is cut as its skeleton.
    """
    files = [file for file in repository.examples if repository.sizes[file]]
    if not files:
        num_skipped = sum(len(paths) for paths in repository.passed_over.values())
        remedy = "pass a folder with source files"
        if repository.tracked:
            remedy = "add files with git add, or copy the folder out of its repository to scan it as plain files"
        folder = repository.root / repository.below
        raise InvalidInput(f"{folder} has no text file to make examples of ({num_skipped} passed over); {remedy}")
    chunks = chunks or Chunks()
    parts = tuple(
        CodePart(
            root=repository.root,
            file=file,
            chunks=chunks,
            hidden=tuple(of_rule[file] for of_rule in hidden if file in of_rule),
        )
        for file in files
    )
    return Corpus(source=str(repository.root / repository.below), column="text", parts=parts)

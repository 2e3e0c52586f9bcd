"""Files as bytes and lines: opened as their names say, cut where lines end, read from anywhere between."""

import io
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import Any

import pyarrow as pa

from hush.corpus.parts import SHARD_BYTES, Span
from hush.errors import InvalidInput
from hush.storage import arrow_file

__all__ = ["COMPRESSED", "line_spans", "lines_before", "lines_of", "opened"]

COMPRESSED = {".gz": "gzip", ".bz2": "bz2", ".zst": "zstd", ".lz4": "lz4"}
CHUNK = 2**20  # read at once where only line breaks matter
SPAN_BYTES = SHARD_BYTES // 4  # lines may be short: a span has at most so many as it has bytes


@contextmanager
def opened(path: Path) -> Iterator[io.BufferedReader]:
    """A file's bytes, decompressed as its name says."""
    codec = COMPRESSED.get(path.suffix.lower())
    if codec is None:
        with path.open("rb") as file:
            yield file
        return
    stream: Any = pa.CompressedInputStream(arrow_file(path), codec)
    try:
        with io.BufferedReader(stream) as file:
            yield file
    except OSError as error:
        if error.errno is not None:
            raise
        raise InvalidInput(f"{path} cannot be decompressed; write it again") from None


def line_spans(path: Path) -> list[Span] | None:
    """The file cut after line breaks into spans of some megabytes, a longer line whole; None if it is compressed."""
    if path.suffix.lower() in COMPRESSED:
        return None
    size = path.stat().st_size
    edges = [0]
    with path.open("rb") as file:
        while edges[-1] + SPAN_BYTES < size:
            file.seek(edges[-1] + SPAN_BYTES - 1)  # the line that holds this byte is the last of the span
            while (piece := file.readline(CHUNK)) and not piece.endswith(b"\n"):
                pass
            edges.append(file.tell())
    if edges[-1] < size:
        edges.append(size)
    return [Span(begin=begin, end=end) for begin, end in pairwise(edges)]


def lines_of(file: io.BufferedReader, span: Span | None) -> Iterator[tuple[str, bytes]]:
    """Every line of a span with its break, and its place: "line 12", or "line 3 from byte 4096"."""
    before, place, left = 0, "", None
    if span is not None:
        file.seek(span.begin)
        left = span.end - span.begin
        if span.lines_before is not None:
            before = span.lines_before
        elif span.begin:
            place = f" from byte {span.begin}"
    for index, line in enumerate(file):
        if left is not None:
            if left <= 0:
                return
            left -= len(line)
        yield f"line {before + index + 1}{place}", line


def lines_before(path: Path, span: Span) -> Span:
    """The span with the number of lines before it, which reads the file up to there."""
    count = 0
    with path.open("rb") as file:
        left = span.begin
        while left > 0 and (chunk := file.read(min(CHUNK, left))):
            count += chunk.count(b"\n")
            left -= len(chunk)
    return replace(span, lines_before=count)

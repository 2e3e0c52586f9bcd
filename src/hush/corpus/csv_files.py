"""CSV files: read row by row, under a header that is not trusted to be one."""

import csv
import io
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, final

from hush.corpus.columns import USUAL, Column
from hush.corpus.lines import opened
from hush.corpus.parts import Broken, Row, Span, row_problem
from hush.errors import InvalidInput

__all__ = ["CsvPart"]

SEPARATORS: Mapping[bytes, str] = {b";": "semicolons", b"\t": "tabs", b"|": "bars"}
LONGEST_HEADER = 2**16  # bytes of a line in which separators are counted


@final
@dataclass(frozen=True, slots=True)
class CsvPart:
    """A CSV file with a header; every cell is text. Bytes that are not UTF-8 make their row a broken one."""

    path: Path

    def columns(self) -> dict[str, Column]:
        with self._reader() as reader:
            header = self._header(reader)
        return {name: Column(is_text=True, is_form=name.strip().casefold() in USUAL) for name in header}

    def separator(self) -> str | None:
        """What the first two lines seem to be separated by, if that is no comma."""
        with opened(self.path) as file:
            first, second = (file.readline(LONGEST_HEADER) for _ in range(2))
        for sign, name in SEPARATORS.items():
            if first.count(sign) > first.count(b",") and (not second or second.count(sign) >= first.count(sign)):
                return name
        return None

    def read(self, columns: Sequence[str], span: Span | None = None) -> Iterator[Row | Broken]:
        with self._reader() as reader:
            header = self._header(reader)
            places = [header.index(name) for name in columns]
            while True:
                begin = reader.line_num + 1
                try:
                    cells = next(reader)
                except StopIteration:
                    return
                except csv.Error:  # from here on nobody knows where a row ends, so there is nothing to pass over
                    raise InvalidInput(
                        f"{self.path}, line {begin}: quotes do not close or hold what CSV does not allow; mend the row"
                    ) from None
                if not cells:
                    continue  # an empty line
                if len(cells) != len(header):
                    why = f"{len(cells)} cells under {len(header)} columns"
                else:
                    row = tuple(cells[place] for place in places)
                    why = row_problem(row)
                    if why is None:
                        yield row
                        continue
                yield Broken(where=f"{self.path}, line {begin}", why=why, file=str(self.path))

    def count(self) -> None:
        return None

    def spans(self) -> None:
        return None  # a line break may be within quotes

    def located(self, span: Span) -> Span:
        return span

    @contextmanager
    def _reader(self) -> Iterator[Any]:
        csv.field_size_limit(min(sys.maxsize, 2**31 - 1))  # an example may be longer than the module's 128 KiB
        with opened(self.path) as file:
            text = io.TextIOWrapper(file, encoding="utf-8-sig", errors="surrogateescape", newline="")
            try:
                yield csv.reader(text, strict=True)
            finally:
                text.detach()  # or it would close the file on its own

    def _header(self, reader: Any) -> list[str]:
        try:
            header = next(reader, [])
        except csv.Error:
            separator = self.separator()
            said = "" if separator is None else f" (it looks separated by {separator})"
            raise InvalidInput(
                f"{self.path}, line 1: not a CSV header{said}; write the names of the columns there, with commas"
            ) from None
        if len(set(header)) != len(header):
            raise InvalidInput(
                f"{self.path}, line 1: two columns have one name; give the file a header of distinct names"
            )
        return header

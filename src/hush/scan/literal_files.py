"""Lists of literals from files: one on each line of plain text, or tables that also name and promise them.

A message names the row of a file, never what stands in it.
"""

import csv
import io
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, final

from hush.errors import InvalidInput
from hush.scan.public_formats import LEAST_PRIOR
from hush.storage import parquet_table

__all__ = ["Literal", "check_names", "read_literals"]

COLUMNS = ("text", "name", "prior", "ceiling")
_TABLE = f"a table of literals has the column text, and may have {', '.join(COLUMNS[1:])}"


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class Literal:
    """One literal: where it stands, and what the table says of it besides its text."""

    where: str
    text: str = field(repr=False)
    name: str | None = None
    prior: float | None = None
    ceiling: float | None = None


def read_literals(path: Path) -> list[Literal]:
    """The literals of a .txt, .csv or .parquet file, in its order.

    Of plain text, spaces around a literal and empty lines do not count; in tables every character does.
    """
    ending = path.suffix.lower()
    rows = _rows_of_text(path) if ending == ".txt" else _rows_of_csv(path) if ending == ".csv" else _rows(path)
    found = [_literal(where, row) for where, row in rows]
    if not found:
        raise InvalidInput(f"{path} holds no literal; write one on each line, or drop the rule")
    nameless = [literal for literal in found if literal.name is None]
    if nameless and len(nameless) < len(found):
        raise InvalidInput(f"{nameless[0].where}: this literal has no name but others do; name all of them, or none")
    return found


def check_names(listed: Sequence[Literal], *, whole_words: bool) -> None:
    """Refuse a name, which is public, in which the scan would find a literal of the list, be its case as it may."""
    import numpy as np
    import pyarrow as pa

    from hush.corpus.blocks import Block
    from hush.scan.finders.literals import Literals

    finder = Literals(values=[literal.text for literal in listed], ignore_case=True, whole_words=whole_words)
    names = pa.array([literal.name or "" for literal in listed], pa.large_string())
    found = finder.find(Block(texts=names, columns={}, rows=np.arange(len(names))))
    if len(found):
        raise InvalidInput(
            f"{listed[found.example_H[0]].where}: the name holds the text of a literal of this list, and names are "
            "public; choose one that does not"
        )


def _rows_of_text(path: Path) -> Iterator[tuple[str, Mapping[str, Any]]]:
    for number, line in enumerate(re.split(r"\r\n?|\n", _text_of(path)), 1):
        if line.strip():
            yield f"{path}, line {number}", {"text": line.strip()}


def _rows_of_csv(path: Path) -> Iterator[tuple[str, Mapping[str, Any]]]:
    reader = csv.reader(io.StringIO(_text_of(path), newline=""), strict=True)
    try:
        header = [name.strip() for name in next(reader, [])]
        _check_columns(header, path)
        for cells in reader:
            where = f"{path}, line {reader.line_num}"
            if not cells:
                continue
            if len(cells) != len(header):
                raise InvalidInput(f"{where}: {len(cells)} cells under {len(header)} columns; mend the row")
            yield where, {name: cell or None for name, cell in zip(header, cells, strict=True)}
    except csv.Error:
        raise InvalidInput(f"{path}, line {reader.line_num}: this is not CSV; check its quotes") from None


def _rows(path: Path) -> Iterator[tuple[str, Mapping[str, Any]]]:
    table = parquet_table(path)
    _check_columns(table.column_names, path)
    for number, row in enumerate(table.to_pylist()):
        yield f"{path}, row {number}", row


def _check_columns(names: list[str], path: Path) -> None:
    strange = [place for place, name in enumerate(names, 1) if name not in COLUMNS]
    if "text" not in names or strange or len(set(names)) != len(names):
        which = f"; column {strange[0]} of {len(names)} is none of them" if strange else ""
        raise InvalidInput(f"{path}: {_TABLE}, each once{which}")


def _literal(where: str, row: Mapping[str, Any]) -> Literal:
    text, name = row["text"], row.get("name")
    if not isinstance(text, str) or not text.strip():
        raise InvalidInput(f"{where}: there is no text; write the literal there, or remove the row")
    if name is not None and not (isinstance(name, str) and name.strip()):
        raise InvalidInput(f"{where}: the name is not text; write a public name there, or leave it empty")
    if name is not None and text.strip().casefold() in name.casefold():
        raise InvalidInput(f"{where}: the name holds the text, and names are public; choose one that does not")
    numbers = {column: _probability(where, column, row.get(column)) for column in ("prior", "ceiling")}
    return Literal(where=where, text=text, name=name, **numbers)


def _probability(where: str, column: str, cell: object) -> float | None:
    if cell is None:
        return None
    try:
        number = float(cell) if isinstance(cell, str | int | float) else 0.0
    except ValueError:
        number = 0.0
    if not LEAST_PRIOR <= number < 1.0:  # written so that NaN fails
        raise InvalidInput(f"{where}: the {column} is no number from {LEAST_PRIOR} to less than 1; write one there")
    return number


def _text_of(path: Path) -> str:
    try:
        return path.read_bytes().decode("utf-8-sig")
    except UnicodeDecodeError as error:
        line = error.object.count(b"\n", 0, error.start) + 1
        raise InvalidInput(f"{path}, line {line}: this is not UTF-8; write the file as UTF-8") from None

r"""The literals rule: given strings are secrets, all searched for at once (Aho-Corasick over UTF-8).

Every occurrence of every literal is found, also if literals overlap or contain each other. ``ignore_case`` compares
code point by code point, with all forms of a letter equal (``caseless`` of unicode.py), so an occurrence has as many
characters as its literal. ``whole_words``: the characters on both sides must not match ``\w`` (letters and digits of
all scripts, underscore). With ``whole_words="ascii"`` only those of ASCII must not be there, and the letter of an
escaped line break or tab may precede: scripts without spaces and JSON within a text hide no occurrence.

Lists of literals come from the rules file or from files (``read_literals``): one literal per line of plain text, or
tables that also give names and promises. A message about such a file names the row, never its content.
"""

import csv
import io
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from itertools import chain
from pathlib import Path
from typing import Any, final
from typing import Literal as TypingLiteral

import numpy as np
from numpy.typing import NDArray

from hush.data.parts import Block
from hush.errors import InvalidInput
from hush.protection import Protection
from hush.scan.finders.unicode import bytes_of, caseless, caseless_table, is_word, read_only
from hush.scan.hits import DeclaredSecret, Hits, pickled_fields
from hush.scan.rules.promises import LEAST_PRIOR
from hush.storage import parquet_table

__all__ = ["ListedLiteral", "Literals", "check_names", "read_literals"]


@final
@dataclass(frozen=True, kw_only=True, repr=False)
class Literals:
    """Finds these strings, which are declared as secrets in this order; equal ones count once.

    ids: a public name for each, or None. protections: for each, or None for that of the rule. A literal's key is its
    text, folded with ``ignore_case``. distinctive: keys that also count inside words, despite ``whole_words``.

    >>> Literals(values=["Ada", "Alan"], ignore_case=True)
    Literals(2 literals, ignore_case=True, whole_words=False)
    """

    values: Sequence[str]
    ids: Sequence[str] | None = None
    protections: Sequence[Protection | None] | None = None
    ignore_case: bool = False
    whole_words: bool | TypingLiteral["ascii"] = False
    distinctive: frozenset[str] = frozenset()

    def __post_init__(self) -> None:
        if isinstance(self.values, str):
            raise InvalidInput("values is a string; pass a list of literals")
        for name in ("values", "ids", "protections"):
            given = getattr(self, name)
            if given is not None:
                object.__setattr__(self, name, tuple(given))
                if len(getattr(self, name)) != len(self.values):
                    raise InvalidInput(
                        f"{name} has {len(given)} entries for {len(self.values)} literals; pass one for each"
                    )
        for index, value in enumerate(self.values, 1):
            if not isinstance(value, str) or not value:
                kind = "empty" if value == "" else f"a {type(value).__name__}, not a string"
                raise InvalidInput(f"literal {index} of the list is {kind}; remove it, or pass its text")
            if not value.isprintable() and any("\ud800" <= character <= "\udfff" for character in value):
                raise InvalidInput(
                    f"literal {index} of the list contains half a surrogate pair, which is not valid text; correct it"
                )
        named = [name for name, _ in self._named]
        if self.ids is not None and len(set(named)) < len(named):
            raise InvalidInput("ids: two different literals have the same name; give each its own")

    @property
    def columns(self) -> tuple[str, ...]:
        return ()

    @property
    def declared(self) -> Sequence[DeclaredSecret]:
        return [
            DeclaredSecret(key=key, name=name, protection=protection)
            for key, (name, protection) in zip(self._positions, self._named, strict=True)
        ]

    def find(self, block: Block) -> Hits:
        """Every occurrence, sorted by example and end."""
        from hush.scan.finders.text_kernels import fold_texts, place_matches

        data, offset_N = bytes_of(block.texts)
        if self.ignore_case:
            data, offset_N = map(read_only, fold_texts(data, offset_N, caseless_table()))
        # One call for all texts of the block; matches that cross from one text into the next are dropped afterwards.
        searched = data[offset_N[0] : offset_N[-1]].data
        matches = self._automaton.find_matches_as_indexes(searched, overlapping=True)
        match_H3 = np.fromiter(chain.from_iterable(matches), np.int64, 3 * len(matches)).reshape(-1, 3)
        key_H, bytes_H, end_H = match_H3[:, 0], match_H3[:, 2] - match_H3[:, 1], match_H3[:, 2] + offset_N[0]
        characters_H = self._characters[key_H]
        in_ascii = self.whole_words == "ascii"
        word = is_word()[:128] if in_ascii else is_word() if self.whole_words else read_only(np.empty(0, np.bool_))
        is_bounded_H = self._is_bounded[key_H]
        example_H, begin_H = place_matches(
            data, offset_N, end_H, bytes_H, characters_H, is_bounded_H, word, escapes=in_ascii
        )
        kept_H = example_H >= 0
        present, key_H = np.unique(key_H[kept_H], return_inverse=True)
        keys = tuple(self._keys[key] for key in present)
        return Hits.of(
            example_H[kept_H],
            key_H,
            begin=begin_H[kept_H],
            end=(begin_H + characters_H)[kept_H],
            reason=key_H,
            keys=keys,
            reasons=tuple(f"literal {self._positions[key]:,} of the list" for key in keys),
        )

    @cached_property
    def _positions(self) -> dict[str, int]:
        """The distinct keys with their first position in the list, from 1."""
        positions: dict[str, int] = {}
        for index, value in enumerate(self.values, 1):
            positions.setdefault(caseless(value) if self.ignore_case else value, index)
        return positions

    @cached_property
    def _keys(self) -> tuple[str, ...]:
        return tuple(self._positions)

    @cached_property
    def _characters(self) -> NDArray[np.int64]:
        """The number of characters of each distinct literal."""
        return np.fromiter(map(len, self._keys), np.int64, len(self._keys))

    @cached_property
    def _is_bounded(self) -> NDArray[np.bool_]:
        """Which of the distinct literals must not be inside a word."""
        return np.array([bool(self.whole_words) and key not in self.distinctive for key in self._keys], np.bool_)

    @cached_property
    def _named(self) -> list[tuple[str | None, Protection | None]]:
        """Name and protection of each distinct literal, which must be the same for all its repetitions."""
        entries: dict[int, tuple[str | None, Protection | None]] = {}
        for index, value in enumerate(self.values, 1):
            entry = (
                None if self.ids is None else self.ids[index - 1],
                None if self.protections is None else self.protections[index - 1],
            )
            position = self._positions[caseless(value) if self.ignore_case else value]
            if entries.setdefault(position, entry) != entry:
                raise InvalidInput(
                    f"literals {position} and {index} of the list are equal but have different names or promises; "
                    "keep one of them"
                )
        return list(entries.values())

    @cached_property
    def _automaton(self) -> Any:
        import ahocorasick_rs

        compact = ahocorasick_rs.Implementation.ContiguousNFA  # a DFA of many thousand literals would need gigabytes
        return ahocorasick_rs.BytesAhoCorasick([key.encode() for key in self._keys], implementation=compact)

    def __getstate__(self) -> dict[str, Any]:
        return pickled_fields(self)

    def __repr__(self) -> str:
        return f"Literals({len(self.values)} literals, ignore_case={self.ignore_case}, whole_words={self.whole_words})"


COLUMNS = ("text", "name", "prior", "ceiling")
_TABLE = f"a table of literals has the column text, and may have {', '.join(COLUMNS[1:])}"


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class ListedLiteral:
    """One literal of a file. where: its file and row, for messages."""

    where: str
    text: str = field(repr=False)
    name: str | None = None
    prior: float | None = None
    ceiling: float | None = None


def read_literals(path: Path) -> list[ListedLiteral]:
    """The literals of a .txt, .csv or .parquet file, in its order.

    In plain text, spaces around a literal and empty lines are ignored; in tables every character counts.
    """
    readers = {".txt": _rows_of_text, ".csv": _rows_of_csv}
    read_rows = readers.get(path.suffix.lower(), _rows_of_parquet)
    literals = [_literal(where, row) for where, row in read_rows(path)]
    if not literals:
        raise InvalidInput(f"{path} contains no literal; write one on each line, or drop the rule")
    nameless = [literal for literal in literals if literal.name is None]
    if nameless and len(nameless) < len(literals):
        raise InvalidInput(f"{nameless[0].where}: this literal has no name but others do; name all of them, or none")
    return literals


def check_names(listed: Sequence[ListedLiteral], *, whole_words: bool) -> None:
    """Refuses a name, which is public, that contains a literal of the list in any case."""
    import pyarrow as pa

    finder = Literals(values=[literal.text for literal in listed], ignore_case=True, whole_words=whole_words)
    names = pa.array([literal.name or "" for literal in listed], pa.large_string())
    hits = finder.find(Block(texts=names, columns={}, rows=np.arange(len(names))))
    if len(hits):
        raise InvalidInput(
            f"{listed[hits.example_H[0]].where}: the name contains the text of a literal of this list, and names are "
            "public; choose another name"
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
                raise InvalidInput(f"{where}: {len(cells)} cells under {len(header)} columns; correct the row")
            yield where, {name: cell or None for name, cell in zip(header, cells, strict=True)}
    except csv.Error:
        raise InvalidInput(f"{path}, line {reader.line_num}: this is not CSV; check its quotes") from None


def _rows_of_parquet(path: Path) -> Iterator[tuple[str, Mapping[str, Any]]]:
    table = parquet_table(path)
    _check_columns(table.column_names, path)
    for number, row in enumerate(table.to_pylist()):
        yield f"{path}, row {number}", row


def _check_columns(names: list[str], path: Path) -> None:
    unknown = [position for position, name in enumerate(names, 1) if name not in COLUMNS]
    if "text" not in names or unknown or len(set(names)) != len(names):
        which = f"; column {unknown[0]} of {len(names)} is none of them" if unknown else ""
        raise InvalidInput(f"{path}: {_TABLE}, each once{which}")


def _literal(where: str, row: Mapping[str, Any]) -> ListedLiteral:
    text, name = row["text"], row.get("name")
    if not isinstance(text, str) or not text.strip():
        raise InvalidInput(f"{where}: there is no text; write the literal there, or remove the row")
    if name is not None and not (isinstance(name, str) and name.strip()):
        raise InvalidInput(f"{where}: the name is not text; write a public name there, or leave it empty")
    if name is not None and text.strip().casefold() in name.casefold():
        raise InvalidInput(f"{where}: the name contains the text, and names are public; choose another name")
    probabilities = {column: _probability(where, column, row.get(column)) for column in ("prior", "ceiling")}
    return ListedLiteral(where=where, text=text, name=name, **probabilities)


def _probability(where: str, column: str, cell: object) -> float | None:
    if cell is None:
        return None
    try:
        number = float(cell) if isinstance(cell, str | int | float) else 0.0
    except ValueError:
        number = 0.0
    if not LEAST_PRIOR <= number < 1.0:  # written so that NaN fails
        raise InvalidInput(f"{where}: the {column} is not a number from {LEAST_PRIOR} to less than 1; write one there")
    return number


def _text_of(path: Path) -> str:
    try:
        return path.read_bytes().decode("utf-8-sig")
    except UnicodeDecodeError as error:
        line = error.object.count(b"\n", 0, error.start) + 1
        raise InvalidInput(f"{path}, line {line}: this is not UTF-8; write the file as UTF-8") from None

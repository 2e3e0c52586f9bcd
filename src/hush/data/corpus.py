"""The ordered table of examples that a file, a folder or a data set is, and the column that holds their text.

Example i of an incidence or a plan is row i of this table. Folders are read in the order of their files' names, so the
same folder gives the same order on every machine.
"""

import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import final

from hush.data.arrow_readers import ParquetPart
from hush.data.parts import Broken, Part, Row, guessed, listed, shown
from hush.data.shards import Shard, cut_parts
from hush.data.text_readers import CsvPart, JsonPart, TextPart, Unit, kind_of, means_path
from hush.errors import InvalidInput

__all__ = ["Corpus", "read_corpus"]


MAKERS: Mapping[str, Callable[[Path], Part]] = {"parquet": ParquetPart, "json": JsonPart, "csv": CsvPart}
_FORMS = (
    "Parquet, JSON lines, CSV or text (.parquet, .jsonl, .json, .csv, .txt; all but Parquet also .gz, .bz2 or .zst)"
)


@final
@dataclass(frozen=True, kw_only=True, eq=False)
class Corpus:
    """Examples in order. Reading streams: a corpus may be larger than memory, and may be read again and again."""

    source: str
    column: str
    parts: tuple[Part, ...]

    def __len__(self) -> int:
        return self._length

    @cached_property
    def _length(self) -> int:
        counts = [part.count() for part in self.parts]
        return sum(
            sum(1 for _ in part.read((self.column,))) if count is None else count
            for part, count in zip(self.parts, counts, strict=True)
        )

    def shards(self) -> tuple[Shard, ...]:
        """The corpus cut for several processes: together, in order, its examples, each once."""
        return tuple(cut_parts(self.parts, self.column))

    def rows(self, *columns: str) -> Iterator[Row | Broken]:
        """These columns of every example, the text first; a ``Broken`` stands in for a row that cannot be read."""
        for part in self.parts:
            for item in part.read(columns):
                if isinstance(item, tuple | Broken):
                    yield item
                    continue
                try:
                    yield from zip(*(item.column(name).to_pylist() for name in columns), strict=True)
                except UnicodeDecodeError:
                    raise InvalidInput(f"{part.path} holds text that is not UTF-8; write the file again") from None
                except OverflowError:
                    names = [shown(name) for name in columns]
                    raise InvalidInput(
                        f"{part.path} holds a time that no calendar has, in one of {names}; write the column as text"
                    ) from None

    def texts(self) -> Iterator[str]:
        """The text of every example, in order. Rows without one are an error that names them and shows none of them."""
        for shard in self.shards():
            for block in shard.blocks():
                yield from block.strings

    def check_columns(self, names: Sequence[str]) -> None:
        """Refuse columns that a part of the corpus lacks."""
        for part in self.parts if names else ():
            table = part.columns()
            for name in names:
                if table and name not in table:
                    raise InvalidInput(f"{part.path} has no column {shown(name)!r}; it has {_told(part)}")

    def __repr__(self) -> str:
        return f"Corpus(source={self.source!r}, column={shown(self.column)!r})"


def read_corpus(source: str | os.PathLike[str], *, column: str | None = None, unit: Unit | None = None) -> Corpus:
    """The examples of a file, a folder of files of one kind, or a data set that the `datasets` library knows by name.

    column: which one holds the text; by default "text", or the only one that holds text, unless its name may be data:
    that of a CSV file, where a header may be missing, has to be a usual one. unit: whether plain text has
    an example on each line or in each file; by default lines for a single file and files for a folder. A data set is
    named as NAME, NAME:SPLIT or NAME:CONFIG:SPLIT; the split is "train" by default.
    """
    path, name = Path(source), os.fspath(source).split(":")[0]
    if path.is_dir() and not (path / "dataset_info.json").is_file() and not (path / "dataset_dict.json").is_file():
        parts = _folder(path, unit)
    elif path.is_file():
        parts = (_file(path, unit or "line"),)
    elif not Path(name).is_dir() and (means_path(name) or means_path(os.fspath(source))):
        raise InvalidInput(f"{path} does not exist; pass a file or a folder with {_FORMS}, or the name of a data set")
    else:
        from hush.data.arrow_readers import load_part

        parts = (load_part(os.fspath(source)),)
    if unit is not None and not all(isinstance(part, TextPart) for part in parts):
        raise InvalidInput(f"{path} is not plain text, so its rows are the examples; drop unit={unit!r}")
    return Corpus(source=os.fspath(source), column=_column(parts, column, path), parts=parts)


def _file(path: Path, unit: Unit) -> Part:
    kind = kind_of(path)
    if kind is None:
        raise InvalidInput(f"{path} has an unknown ending; pass {_FORMS}, or rename it")
    return TextPart(path, unit) if kind == "text" else MAKERS[kind](path)


def _folder(folder: Path, unit: Unit | None) -> tuple[Part, ...]:
    """All files below a folder whose names have a known ending, by name; hidden ones are passed over."""
    found: list[Path] = []
    for place, folders, names in os.walk(folder, onerror=_not_listed):
        folders[:] = [name for name in folders if not name.startswith(".")]
        found += [Path(place, name) for name in names if not name.startswith(".")]
    files = sorted((path for path in found if kind_of(path)), key=lambda path: path.relative_to(folder).as_posix())
    kinds = sorted({str(kind_of(path)) for path in files})
    if not files:
        raise InvalidInput(f"{folder} holds {len(found)} files but none that is {_FORMS}")
    if len(kinds) > 1:
        raise InvalidInput(f"{folder} holds {' and '.join(kinds)} files; pass a folder with one kind")
    return tuple(_file(path, unit or "file") for path in files)


def _not_listed(error: OSError) -> None:
    """A folder that cannot be looked into may hold examples."""
    raise error


def _column(parts: Sequence[Part], wanted: str | None, path: Path) -> str:
    """The column that holds the text in every part."""
    tables = [part.columns() for part in parts]
    first = next((table for table in tables if table), {})
    if not first:
        raise InvalidInput(f"{path} holds no row that can be read; pass data with at least one example")
    if wanted is None:
        wanted = guessed(first)
        if wanted is None:
            part = parts[tables.index(first)]
            raise InvalidInput(
                f"{path} has the columns {_told(part)}; name the one that holds the text with --column"
                f"{_or_write_header(part)}"
            )
    for part, table in zip(parts, tables, strict=True):
        if table and wanted not in table:
            raise InvalidInput(
                f"{part.path} has no column {shown(wanted)!r}; it has {_told(part)}; name another one"
                f"{_or_write_header(part)}"
            )
        if table and not table[wanted].is_text:
            raise InvalidInput(f"{part.path}: the column {shown(wanted)!r} holds no text; it has {_told(part)}")
    return wanted


def _told(part: Part) -> str:
    """The columns of a part, for a message; how they seem to be separated if not as they should."""
    separator = part.separator() if isinstance(part, CsvPart) else None
    said = "" if separator is None else f", read with commas between them, but the file looks separated by {separator}"
    return listed(part.columns()) + said


def _or_write_header(part: Part) -> str:
    if not isinstance(part, CsvPart):
        return ""
    if part.separator() is not None:
        return ", or write the file with commas"
    return "; if its first line is data, write the names of the columns above it"

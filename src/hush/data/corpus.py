"""The corpus: the ordered table of examples in a file, a folder or a data set, and the column that holds their text.

Example i of an incidence or a plan is row i of this table. The files of a folder are read in the order of their names,
so the same folder gives the same order on every machine.
"""

import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any, final

from hush.data.arrow_readers import ParquetPart, object_part
from hush.data.chat import Range, Rendering, chat_columns, is_chat
from hush.data.chat_template import ChatTemplate
from hush.data.parts import BrokenRow, Part, Row, default_text_column, shown_columns, shown_name
from hush.data.rendered import ANSWERS, TEXT, RenderedPart, ranges_of, stored_rendering
from hush.data.shards import Shard, split_into_shards
from hush.data.text_readers import CsvPart, JsonPart, TextPart, Unit, kind_of, means_path
from hush.errors import InvalidInput, Setting

__all__ = ["Corpus", "read_corpus"]


READERS: Mapping[str, Callable[[Path], Part]] = {"parquet": ParquetPart, "json": JsonPart, "csv": CsvPart}
_SUPPORTED_FORMATS = (
    "Parquet, JSON lines, CSV or text (.parquet, .jsonl, .json, .csv, .tsv, .txt; all but Parquet also .gz, .bz2 or "
    ".zst)"
)


@final
@dataclass(frozen=True, kw_only=True, eq=False)
class Corpus:
    """Examples in order. Reading streams: a corpus may be larger than memory, and can be read repeatedly.

    rendering: how rows became texts, if they are conversations or have several parts.
    """

    source: str
    column: str
    parts: tuple[Part, ...]
    rendering: Rendering | None = None

    @property
    def is_rendering(self) -> bool:
        """Whether its rows become texts while they are read; otherwise they are texts already."""
        return any(isinstance(part, RenderedPart) for part in self.parts)

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
        """The corpus cut into shards: together, in order, they hold each example once."""
        return tuple(split_into_shards(self.parts, self.column))

    def rows(self, *columns: str) -> Iterator[Row | BrokenRow]:
        """These columns of every example, the text first; a ``BrokenRow`` in place of a row that cannot be read."""
        for part in self.parts:
            for item in part.read(columns):
                if isinstance(item, tuple | BrokenRow):
                    yield item
                    continue
                try:
                    yield from zip(*(item.column(name).to_pylist() for name in columns), strict=True)
                except UnicodeDecodeError:
                    raise InvalidInput(
                        f"{part.path} contains text that is not UTF-8; write the file as UTF-8"
                    ) from None
                except OverflowError:
                    names = [shown_name(name) for name in columns]
                    raise InvalidInput(
                        f"{part.path} contains a date out of range in one of the columns {names}; write it as text"
                    ) from None

    def texts_with_answers(self) -> Iterator[tuple[str, tuple[Range, ...] | None]]:
        """Texts as in ``texts``, and where the answers in each are; None where they cannot be told, or there are none.

        Without a rendering no text has answers.
        """
        if self.rendering is None:
            yield from ((text, None) for text in self.texts())
            return
        for shard in self.shards():
            for block in shard.blocks((ANSWERS,)):
                yield from zip(block.strings, map(ranges_of, block.columns[ANSWERS].to_pylist()), strict=True)

    def texts(self) -> Iterator[str]:
        """The text of every example, in order. A row without text raises an error that names the row only."""
        for shard in self.shards():
            for block in shard.blocks():
                yield from block.strings

    def check_columns(self, names: Sequence[str]) -> None:
        """Raises InvalidInput for a column that a part of the corpus lacks."""
        for part in self.parts if names else ():
            table = part.columns()
            for name in names:
                if table and name not in table:
                    raise InvalidInput(f"{part.path} has no column {shown_name(name)!r}; it has {_columns_shown(part)}")

    def __repr__(self) -> str:
        return f"Corpus(source={self.source!r}, column={shown_name(self.column)!r})"


def read_corpus(
    source: Any,
    *,
    column: str | None = None,
    unit: Unit | None = None,
    columns: Sequence[str] = (),
    template: ChatTemplate | Callable[[], ChatTemplate] | None = None,
) -> Corpus:
    """The examples of a file, a folder of files of one kind, or a data set that the `datasets` library knows by name;
    or of a data set or a list in memory.

    column: the column of the text; by default "text", or the only column with text, unless its name may be data (in a
    CSV file, whose header may be missing, it must be a common name). unit: whether an example of plain text is a line
    or a file; by default lines for a single file and files for a folder. A data set is named NAME, NAME:SPLIT or
    NAME:CONFIG:SPLIT; the default split is "train".

    Rows of several parts become one text each (``hush.data.chat``): conversations and prompts with completions if no
    column holds the text otherwise, or if their template is given; columns: several that hold text, joined in this
    order. template: what renders conversations, or a function that loads it, called only if it is needed.
    """
    if not isinstance(source, str | os.PathLike):
        part = object_part(source)
        return _corpus(str(part.path), part.path, (part,), column, columns, template)
    path, name = Path(source), os.fspath(source).split(":")[0]
    if path.is_dir() and not (path / "dataset_info.json").is_file() and not (path / "dataset_dict.json").is_file():
        parts = _folder(path, unit)
    elif path.is_file():
        parts = (_file(path, unit or "line"),)
    elif not Path(name).is_dir() and (means_path(name) or means_path(os.fspath(source))):
        raise InvalidInput(
            f"{path} does not exist; pass a file or a folder with {_SUPPORTED_FORMATS}, or the name of a data set"
        )
    else:
        from hush.data.arrow_readers import load_part

        parts = (load_part(os.fspath(source)),)
    if unit is not None and not all(isinstance(part, TextPart) for part in parts):
        raise InvalidInput(
            f"{path} is not plain text, so its rows are the examples; drop this setting", setting="unit", value=unit
        )
    named = (*columns, *([] if column is None else [column]))
    parts = tuple(replace(part, names=named) if isinstance(part, CsvPart) else part for part in parts)
    return _corpus(os.fspath(source), path, parts, column, columns, template)


def _corpus(
    source: str,
    path: Path,
    parts: tuple[Part, ...],
    column: str | None,
    columns: Sequence[str],
    template: ChatTemplate | Callable[[], ChatTemplate] | None,
) -> Corpus:
    """The corpus of these parts: of a column of text, or rendered."""
    if (rendering := stored_rendering(parts)) is not None:
        return Corpus(source=source, column=_column(parts, column, path), parts=parts, rendering=rendering)
    if column is not None and columns:
        raise InvalidInput("one column is named, and several; drop one of the two", setting="columns")
    table = next((table for part in parts if (table := part.columns())), {})
    is_asked = isinstance(template, ChatTemplate)
    if column is None and (columns or (is_chat(table) and (is_asked or default_text_column(table) != TEXT))):
        if not columns and template is None and any(not table[name].is_text for name in chat_columns(table)):
            template = ChatTemplate.load(None)  # which says what to name
        found = template() if callable(template) and not columns else template
        rendering = Rendering.of_columns(
            table, template=found if isinstance(found, ChatTemplate) else None, columns=columns
        )
        rendered = tuple(RenderedPart(part, rendering) for part in parts)
        return Corpus(source=source, column=_column(rendered, TEXT, path), parts=rendered, rendering=rendering)
    return Corpus(source=source, column=_column(parts, column, path), parts=parts)


def _file(path: Path, unit: Unit) -> Part:
    kind = kind_of(path)
    if kind is None:
        raise InvalidInput(f"{path} has an unknown ending; pass {_SUPPORTED_FORMATS}, or rename it")
    return TextPart(path, unit) if kind == "text" else READERS[kind](path)


def _folder(folder: Path, unit: Unit | None) -> tuple[Part, ...]:
    """All files below a folder whose names have a known ending, by name; hidden files are skipped."""
    visible: list[Path] = []
    for place, folders, names in os.walk(folder, onerror=_not_listed):
        folders[:] = [name for name in folders if not name.startswith(".")]
        visible += [Path(place, name) for name in names if not name.startswith(".")]
    files = sorted((path for path in visible if kind_of(path)), key=lambda path: path.relative_to(folder).as_posix())
    kinds = sorted({str(kind_of(path)) for path in files})
    if not files:
        raise InvalidInput(
            f"{folder} holds {len(visible)} files, but none in a known format; pass {_SUPPORTED_FORMATS}"
        )
    if len(kinds) > 1:
        raise InvalidInput(f"{folder} holds {' and '.join(kinds)} files; pass a folder with one kind")
    return tuple(_file(path, unit or "file") for path in files)


def _not_listed(error: OSError) -> None:
    """Stops at a folder that cannot be listed: it may hold examples."""
    raise error


def _column(parts: Sequence[Part], wanted: str | None, path: Path) -> str:
    """The column of the text, checked in every part."""
    tables = [part.columns() for part in parts]
    first = next((table for table in tables if table), {})
    if not first:
        raise InvalidInput(f"{path} holds no row that can be read; pass data with at least one example")
    if wanted is None:
        wanted = default_text_column(first)
        if wanted is None:
            part = parts[tables.index(first)]
            raise InvalidInput(
                f"{path} has the columns {_columns_shown(part)}; name the one that holds the text with ",
                Setting("column"),
                _or_write_header(part),
                setting="column",
            )
    for part, table in zip(parts, tables, strict=True):
        if table and wanted not in table:
            raise InvalidInput(
                f"{part.path} has no column {shown_name(wanted)!r}; it has {_columns_shown(part)}; name another "
                "one with ",
                Setting("column"),
                _or_write_header(part),
                setting="column",
            )
        if table and not table[wanted].is_text:
            raise InvalidInput(
                f"{part.path}: the column {shown_name(wanted)!r} holds no text; it has {_columns_shown(part)}; name "
                "another one with ",
                Setting("column"),
                setting="column",
            )
    return wanted


def _columns_shown(part: Part) -> str:
    """The columns of a part, for a message; with the separator that a CSV file seems to use instead of commas."""
    separator = part.separator() if isinstance(part, CsvPart) else None
    hint = "" if separator is None else f", read with commas between them, but the file looks separated by {separator}"
    return shown_columns(part.columns()) + hint


def _or_write_header(part: Part) -> str:
    if not isinstance(part, CsvPart):
        return ""
    if part.separator() is not None:
        return ", or write the file with commas"
    return "; if its first line is data, write the column names above it"

"""Data sets that the `datasets` library knows, by name or in a folder that it saved; loaded only when asked for."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, final

import pyarrow as pa

from hush.corpus.columns import Column, is_identifier
from hush.corpus.parts import BLOCK_BYTES, BLOCK_ROWS, SHARD_BYTES, SHARD_ROWS, Part, Span
from hush.errors import InvalidInput

__all__ = ["load_part"]


@final
@dataclass(frozen=True, slots=True)
class DatasetPart:
    """A data set of the `datasets` library, which maps it from disk."""

    path: Path
    dataset: Any

    def columns(self) -> dict[str, Column]:
        kinds = {name: getattr(feature, "dtype", None) for name, feature in self.dataset.features.items()}
        return {
            name: Column(is_text=kind in ("string", "large_string"), is_form=is_identifier(name))
            for name, kind in kinds.items()
        }

    def read(self, columns: Sequence[str], span: Span | None = None) -> Iterator[pa.RecordBatch]:
        chosen = self.dataset if span is None else self.dataset.select(range(span.begin, span.end))
        fitting = self._rows_within(BLOCK_BYTES, BLOCK_ROWS)
        for table in chosen.select_columns(list(columns)).with_format("arrow").iter(batch_size=fitting):
            yield from table.select(list(columns)).combine_chunks().to_batches()

    def count(self) -> int:
        return len(self.dataset)

    def spans(self) -> list[Span]:
        step, rows = self._rows_within(SHARD_BYTES, SHARD_ROWS), len(self.dataset)
        return [Span(begin=begin, end=min(begin + step, rows)) for begin in range(0, rows, step)]

    def located(self, span: Span) -> Span:
        return span

    def _rows_within(self, size: int, rows: int) -> int:
        """How many rows have about this many bytes, and no more than so many."""
        return min(max(size * len(self.dataset) // max(self.dataset.data.nbytes, 1), 1), rows)


def load_part(source: str) -> Part:
    """The data set of this name: NAME, NAME:SPLIT or NAME:CONFIG:SPLIT, where NAME is of the hub or a saved folder."""
    try:
        import datasets  # pyright: ignore[reportMissingImports]
    except ImportError:
        raise InvalidInput(
            f"{source} is no file or folder here; if it is the name of a data set, "
            'install the library that loads those with pip install "hush[hf]"'
        ) from None
    name, *rest = source.split(":")
    if len(rest) > 2:
        raise InvalidInput(f"{source}: name a data set as NAME, NAME:SPLIT or NAME:CONFIG:SPLIT")
    split = rest[-1] if rest else "train"
    try:
        if Path(name).is_dir():
            loaded: Any = datasets.load_from_disk(name)
            loaded = loaded[split] if isinstance(loaded, datasets.DatasetDict) else loaded
        else:
            loaded = datasets.load_dataset(name, rest[0] if len(rest) == 2 else None, split=split)
    except (OSError, ValueError, KeyError, RuntimeError) as error:
        raise InvalidInput(
            f"{source} is no file or folder here, and the datasets library cannot load it "
            f"({type(error).__name__}); check the name, the split and the network"
        ) from None
    return DatasetPart(Path(source), loaded)

"""Data sets that the `datasets` library knows, by name or in a folder that it saved; loaded only when asked for."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, final

from hush.corpus.formats import ROWS, Part, Row
from hush.errors import InvalidInput

__all__ = ["load_part"]


@final
@dataclass(frozen=True, slots=True)
class DatasetPart:
    """A data set of the `datasets` library, which maps it from disk."""

    path: Path
    dataset: Any

    def columns(self) -> dict[str, bool]:
        kinds = {name: getattr(feature, "dtype", None) for name, feature in self.dataset.features.items()}
        return {name: kind in ("string", "large_string") for name, kind in kinds.items()}

    def rows(self, columns: Sequence[str]) -> Iterator[Row]:
        for batch in self.dataset.select_columns(list(columns)).with_format("arrow").iter(batch_size=ROWS):
            yield from zip(*(batch.column(name).to_pylist() for name in columns), strict=True)

    def count(self) -> int:
        return len(self.dataset)


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

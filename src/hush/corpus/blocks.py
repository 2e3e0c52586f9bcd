"""A block of examples, between the readers of files and whoever looks at texts: columns in memory, a few megabytes."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import final

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from hush.corpus.parts import Broken

__all__ = ["Block"]


@final
@dataclass(frozen=True, kw_only=True, eq=False, repr=False)
class Block:
    """Consecutive examples of a shard.

    texts: one for each example, without nulls, as UTF-8 with 64-bit offsets. columns: what else was asked for, by name.
    rows: each example's number among the rows of its shard, broken ones counted; where a shard reads several files,
    among the rows of its file. files: which of the shard's files each example is from; None where it has one. broken:
    rows that were passed over since the block before.
    """

    texts: pa.LargeStringArray
    columns: Mapping[str, pa.Array]
    rows: NDArray[np.int64]
    broken: tuple[Broken, ...] = field(default=())
    files: NDArray[np.int64] | None = None

    def __len__(self) -> int:
        return len(self.texts)

    @cached_property
    def strings(self) -> list[str]:
        """The texts as Python strings, made once however many finders ask."""
        return self.texts.to_pylist()

    def __repr__(self) -> str:
        return f"Block({len(self)} examples)"

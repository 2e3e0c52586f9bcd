"""Where secrets stand in the examples: from a scan, from planted canaries, or from a table of the owner's."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Self, final

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from hush.audit.canary_files import Planting
from hush.errors import InvalidInput
from hush.scan.result import Scan
from hush.storage import parquet_table

__all__ = ["CANARIES", "Places"]

Integers = NDArray[np.int64]
CANARIES = "canaries"  # the class of all of them
COLUMNS = ("example", "secret", "begin", "end")


@final
@dataclass(frozen=True, slots=True, kw_only=True, eq=False, repr=False)
class Places:
    """Characters of examples at which secrets of a plan stand; -1 where nobody can say. classes: secrets by kind."""

    example: Integers
    secret: Integers
    begin: Integers
    end: Integers
    classes: Mapping[int, str] = field(default_factory=dict)

    @classmethod
    def of_scan(cls, scan: Scan, ids: Sequence[str]) -> Self:
        """All that a scan can point at; ids are the plan's, in its order. Secrets of one rule make a class."""
        if scan.owner is None:
            raise InvalidInput("the scan has no owner's side, which says where secrets stand; load the whole folder")
        number_S = _numbers(scan.secrets.ids, ids)
        parts = [
            [batch.column(name).to_numpy(zero_copy_only=False) for name in COLUMNS] for batch in scan.owner.reasons()
        ]
        rules = [name for name, count in scan.rules for _ in range(count)]
        columns = [np.concatenate([part[place] for part in parts] or [np.empty(0, np.int64)]) for place in range(4)]
        columns[1] = number_S[columns[1]]
        return cls._of(columns, dict(zip(number_S.tolist(), rules, strict=True)))

    @classmethod
    def of_canaries(cls, planting: Planting, ids: Sequence[str]) -> Self:
        """Every example of every canary."""
        canaries, candidates = planting.canaries, planting.candidates
        number_S = _numbers([canary.id for canary in canaries], ids).tolist()
        rows = [
            (example, number, len(canary.template.before), len(candidates.text(canary.truth)))
            for number, canary in zip(number_S, canaries, strict=True)
            for example in canary.examples
        ]
        table = np.array(rows, dtype=np.int64).reshape(-1, 4)
        table[:, 3] += table[:, 2]
        return cls._of(list(table.T), dict.fromkeys(number_S, CANARIES))

    @classmethod
    def read(cls, path: str | Path, ids: Sequence[str]) -> Self:
        """A Parquet table of the owner's: example, secret (its id), begin, end."""
        table = parquet_table(path, columns=COLUMNS)
        if not set(COLUMNS) <= set(table.column_names):
            raise InvalidInput(f"{path} lacks some of the columns {', '.join(COLUMNS)}; add them")
        columns: list[Integers] = []
        for name in COLUMNS:
            column = table.column(name)
            if column.null_count or (name != "secret" and not pa.types.is_integer(column.type)):
                raise InvalidInput(f"{path}: the column {name} must hold whole numbers, none missing")
            columns.append(_numbers(column.to_pylist(), ids) if name == "secret" else column.to_numpy())
        return cls._of(columns, {})

    @classmethod
    def _of(cls, columns: Sequence[NDArray[np.integer]], classes: Mapping[int, str]) -> Self:
        example, secret, begin, end = (np.asarray(column, dtype=np.int64) for column in columns)
        return cls(example=example, secret=secret, begin=begin, end=end, classes=classes)

    def with_(self, other: "Places") -> "Places":
        """These and others."""
        columns = [np.concatenate([getattr(self, name), getattr(other, name)]) for name in COLUMNS]
        return Places._of(columns, {**self.classes, **other.classes})

    def __len__(self) -> int:
        return len(self.example)

    def __repr__(self) -> str:
        return f"Places({len(self)} places)"


def _numbers(names: Sequence[str], ids: Sequence[str]) -> Integers:
    """The plan's numbers of these secrets."""
    number_of = {name: number for number, name in enumerate(ids)}
    missing = sum(name not in number_of for name in names)
    if missing:  # not repeated: a name that is unknown may be a text by mistake
        raise InvalidInput(
            f"{missing} of {len(names)} secrets are not in the plan; audit with what the plan was made from"
        )
    return np.array([number_of[name] for name in names], dtype=np.int64)

"""The chain of a plan in its folder: a field of plan.json, and chain.parquet with a row for each secret.

plan.json, "chain": kind, predecessors (digests), ancestors, raised, uncovered, sampling; of a series also number and
shapes (pairs of noise and rounds), of a filter share. chain.parquet: of a series the column limit, with a number for
each announced release; of a filter order, conceded, before, after, granted and allowed, with a number for each promised
point.
"""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from hush.accounting.releases import Shape
from hush.errors import HushError, InvalidInput
from hush.numbers import is_number
from hush.plan.chain import Chain, Filter, Series
from hush.storage import read_table, table_digest, write_table

__all__ = [
    "CHAIN_FILE",
    "chain_digest",
    "chain_record",
    "check_chain_record",
    "columns_of",
    "fields_of_chain",
    "read_chain",
    "rows_of",
    "write_chain",
]

CHAIN_FILE, CHAIN_TABLE = "chain.parquet", "plan chain"
SERIES, FILTER = "series", "filter"
COMMON_FIELDS = ("kind", "predecessors", "ancestors", "raised", "uncovered", "sampling")
FIELDS = {SERIES: ("number", "shapes"), FILTER: ("share",)}
COLUMNS = {SERIES: ("limit",), FILTER: ("order", "conceded", "before", "after", "granted", "allowed")}
SAMPLING = ("total", "before", "limit")


def fields_of_chain(record: Mapping[str, Any]) -> tuple[str, ...]:
    """The fields of a chain of this kind in plan.json."""
    return (*COMMON_FIELDS, *FIELDS[record["kind"]])


def columns_of(record: Mapping[str, Any]) -> tuple[str, ...]:
    """The columns of its table."""
    return COLUMNS[record["kind"]]


def chain_record(chain: Chain) -> dict[str, Any]:
    """The field of plan.json."""
    kind = SERIES if isinstance(chain.kind, Series) else FILTER
    own: dict[str, Any]
    if isinstance(chain.kind, Series):
        shapes = [[shape.noise_multiplier, shape.rounds] for shape in chain.kind.shapes]
        own = {"number": chain.kind.number, "shapes": shapes}
    else:
        own = {"share": chain.kind.share}
    return {
        "kind": kind,
        "predecessors": list(chain.predecessors),
        "ancestors": {name: list(ids) for name, ids in chain.ancestors.items()},
        "raised": list(chain.raised),
        "uncovered": list(chain.uncovered),
        "sampling": {name: getattr(chain, f"sampling_{name}") for name in SAMPLING},
        **own,
    }


def check_chain_record(record: Any, path: Path) -> None:
    """Refuse a field that has another form than ``chain_record`` gives it; unknown parts are ignored."""
    kind = record.get("kind") if isinstance(record, dict) else None
    if kind not in FIELDS or not all(_CHECKS[name](record.get(name)) for name in fields_of_chain(record)):
        raise InvalidInput(f"{path}: chain does not describe releases as hush writes them; make the plan again")


def write_chain(chain: Chain, path: Path) -> None:
    """Write chain.parquet."""
    write_table(_table(chain), path, kind=CHAIN_TABLE)


def chain_digest(chain: Chain) -> str:
    """SHA-256, in hex, of the file that ``write_chain`` writes with this version of Arrow."""
    return table_digest(_table(chain), kind=CHAIN_TABLE)


def read_chain(record: Mapping[str, Any], path: Path) -> Chain:
    """The chain of a plan from its field and its table."""
    columns = columns_of(record)
    table, _ = read_table(path, kind=CHAIN_TABLE, columns=columns)
    rows = {f"{name}_SQ": rows_of(table.column(name), path) for name in columns}
    kind: Series | Filter
    try:
        if record["kind"] == SERIES:
            shapes = tuple(Shape(noise_multiplier=float(noise), rounds=rounds) for noise, rounds in record["shapes"])
            kind = Series(shapes=shapes, number=record["number"], limit_SR=rows["limit_SQ"])
        else:
            kind = Filter(share=float(record["share"]), **rows)
        return Chain(
            kind=kind,
            predecessors=tuple(record["predecessors"]),
            ancestors={name: tuple(ids) for name, ids in record["ancestors"].items()},
            raised=tuple(record["raised"]),
            uncovered=tuple(record["uncovered"]),
            **{f"sampling_{name}": float(record["sampling"][name]) for name in SAMPLING},
        )
    except HushError as error:
        raise type(error)(f"{path.parent}: {error}") from error


def rows_of(column: pa.ChunkedArray, path: Path) -> np.ndarray:
    """A column of equally long lists of numbers as a matrix."""
    if not pa.types.is_fixed_size_list(column.type) or not pa.types.is_float64(column.type.value_type):
        raise InvalidInput(
            f"{path} has a column of type {column.type}; pass a folder that hush plan or Plan.save wrote"
        )
    flat = column.combine_chunks().flatten()
    if flat.null_count:
        raise InvalidInput(f"{path} has empty cells; pass a folder that hush plan or Plan.save wrote")
    return flat.to_numpy().reshape(len(column), column.type.list_size)


def _table(chain: Chain) -> pa.Table:
    kind = chain.kind
    if isinstance(kind, Series):
        arrays = {"limit": kind.limit_SR}
    else:
        arrays = {name: getattr(kind, f"{name}_SQ") for name in COLUMNS[FILTER]}
    return pa.table(
        {
            name: pa.FixedSizeListArray.from_arrays(pa.array(array.ravel()), array.shape[1])
            for name, array in arrays.items()
        }
    )


def _are_texts(value: Any) -> bool:
    return isinstance(value, list) and all(isinstance(one, str) for one in value)


def _are_shapes(value: Any) -> bool:
    pairs = isinstance(value, list) and all(isinstance(one, list) and len(one) == 2 for one in value)
    return pairs and all(is_number(noise) and type(rounds) is int for noise, rounds in value)


_CHECKS = {
    "kind": lambda value: value in FIELDS,
    "predecessors": _are_texts,
    "ancestors": lambda value: isinstance(value, dict) and all(map(_are_texts, value.values())),
    "raised": _are_texts,
    "uncovered": _are_texts,
    "sampling": lambda value: (
        isinstance(value, dict) and set(value) == set(SAMPLING) and all(map(is_number, value.values()))
    ),
    "number": lambda value: type(value) is int,
    "shapes": _are_shapes,
    "share": is_number,
}

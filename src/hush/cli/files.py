"""Files that the command line is given: numbers and graphs, in JSON or Parquet.

A message names the file, the field and its type, never a value that is not a number: a file that was passed by
mistake may hold the text of a secret.
"""

import json
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from hush.console import counted
from hush.errors import InvalidInput
from hush.incidence import Incidence
from hush.storage import parquet_table

__all__ = ["graph_from_json", "is_parquet", "read_rates"]

_NEEDED = ("num_examples", "num_secrets", "pairs")
_OPTIONAL = ("rates", "prior", "ceiling", "rounds")
_FLAT = "pass plain numbers in [0, 1], one sampling probability for each example"


def read_rates(path: Path) -> NDArray[np.float64]:
    """Sampling probabilities from JSON (a list, or an object with "rates") or from the Parquet column "rate"."""
    if not is_parquet(path):
        content = _read_json(path)
        return _numbers(content.get("rates") if isinstance(content, dict) else content, f"{path}: rates")
    import pyarrow as pa

    table = parquet_table(path)
    if "rate" not in table.column_names:
        raise InvalidInput(
            f"{path} has {counted(table.num_columns, 'column')} but none named 'rate'; name the column rate"
        )
    column = table.column("rate")
    if column.null_count or not (pa.types.is_floating(column.type) or pa.types.is_integer(column.type)):
        raise InvalidInput(
            f"{path}: the column rate has type {column.type} and {column.null_count} empty cells; {_FLAT}"
        )
    return column.to_numpy().astype(np.float64)


def graph_from_json(path: Path) -> tuple[Incidence, dict[str, Any]]:
    """A graph, and what else its file states of rates, prior, ceiling and rounds."""
    content = _read_json(path)
    if not isinstance(content, dict):
        raise InvalidInput(f"{path} holds {_kind(content)}; pass an object with {', '.join(_NEEDED)}")
    missing = [name for name in _NEEDED if name not in content]
    if missing:
        raise InvalidInput(f"{path} lacks {', '.join(missing)}; an incidence needs {', '.join(_NEEDED)}")
    unknown = len(content.keys() - {*_NEEDED, *_OPTIONAL})
    if unknown:
        allowed = ", ".join(_NEEDED + _OPTIONAL)
        raise InvalidInput(f"{path} has {counted(unknown, 'unknown field')}; it may hold only {allowed}")
    given = {name: content[name] for name in _OPTIONAL if name in content}
    if "rounds" in given and type(given["rounds"]) is not int:
        raise InvalidInput(f"{path}: rounds is {_kind(given['rounds'])}; pass a whole number >= 1")
    for name in given.keys() - {"rounds"}:
        if not isinstance(given[name], list):
            given[name] = float(_numbers([given[name]], f"{path}: {name}")[0])
        elif name == "rates":
            given[name] = _numbers(given[name], f"{path}: {name}")
    sizes = {name: content[name] for name in ("num_examples", "num_secrets")}
    for name, size in sizes.items():
        if type(size) is not int:
            raise InvalidInput(f"{path}: {name} is {_kind(size)}; pass a whole number >= 0")
    return Incidence.from_pairs(*_pairs(content["pairs"], path), **sizes), given


def _pairs(pairs: object, path: Path) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    expected = f"{path}: pairs must be a list of [example, secret], two whole numbers counted from 0"
    if not isinstance(pairs, list):
        raise InvalidInput(f"{expected}; it is {_kind(pairs)}")
    for place, pair in enumerate(pairs):
        if not isinstance(pair, list) or len(pair) != 2 or any(type(index) is not int for index in pair):
            raise InvalidInput(f"{expected}; number {place} of {len(pairs)} is not")
    try:
        array = np.array(pairs, dtype=np.int64).reshape(-1, 2)
    except OverflowError as error:
        raise InvalidInput(f"{expected}; one of them is beyond 2**63") from error
    return array[:, 0], array[:, 1]


def _numbers(values: object, name: str) -> NDArray[np.float64]:
    if not isinstance(values, list):
        raise InvalidInput(f"{name} is {_kind(values)}; {_FLAT}")
    for place, value in enumerate(values):
        if type(value) not in (int, float):
            raise InvalidInput(f"{name}: number {place} of {len(values)} is {_kind(value)}; pass plain numbers")
    try:
        return np.array(values, dtype=np.float64)
    except OverflowError as error:
        raise InvalidInput(f"{name} holds a number beyond 1e308; pass plain numbers") from error


def is_parquet(path: Path) -> bool:
    """Whether a file begins as Parquet files do."""
    with path.open("rb") as file:
        return file.read(4) == b"PAR1"


def _read_json(path: Path) -> object:
    try:
        return json.loads(path.read_text(encoding="utf-8"))
    except json.JSONDecodeError as error:
        where = f"line {error.lineno}, column {error.colno}"
        raise InvalidInput(f"{path} is neither Parquet nor JSON ({error.msg} at {where}); pass one of them") from error
    except (UnicodeDecodeError, RecursionError) as error:
        raise InvalidInput(f"{path} is neither Parquet nor JSON; pass one of them") from error


def _kind(value: object) -> str:
    """The JSON name of a value's type: what a message may say about a value that could be text."""
    names = {dict: "an object", list: "a list", str: "a string", bool: "a boolean", int: "a number", float: "a number"}
    return names.get(type(value), "missing or null")

"""What the command line is given, turned into arguments of the library: files of rates, graphs and promises.

A message names the file, the field and its type, never a value that is not a number: a file that was passed by
mistake may hold the text of a secret.
"""

import json
import os
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from hush.errors import InfeasiblePlan, InvalidInput
from hush.incidence import Incidence
from hush.secret_table import Secrets

__all__ = ["Problem", "check_output", "equal_rates", "read_problem", "read_rates"]

MOST_EXAMPLES = 10_000_000  # of one secret
_NEEDED = ("num_examples", "num_secrets", "pairs")
_OPTIONAL = ("rates", "prior", "ceiling", "rounds")
_REMEDY = {
    "rates": "pass --batch-size B, --rate X or --rates FILE",
    "prior": "pass --prior and --ceiling, or --secrets FILE",
    "ceiling": "pass --prior and --ceiling, or --secrets FILE",
    "rounds": "pass --rounds T",
}
_FLAT = "pass plain numbers in [0, 1], one sampling probability for each example"


@dataclass(frozen=True, slots=True, kw_only=True)
class Problem:
    """All that ``calibrate`` needs. ``ids`` are the public names of the secrets, where they have any."""

    incidence: Incidence
    prior: ArrayLike
    ceiling: ArrayLike
    rates: ArrayLike
    rounds: int
    ids: tuple[str, ...] | None

    @property
    def arguments(self) -> dict[str, Any]:
        """The keyword arguments of ``calibrate`` besides the bound."""
        return {"prior": self.prior, "ceiling": self.ceiling, "rates": self.rates, "rounds": self.rounds}

    def rates_of(self, secret: int) -> NDArray[np.float64]:
        """Sampling probabilities of the examples that contain this secret."""
        rate_N = np.broadcast_to(np.asarray(self.rates, dtype=np.float64), self.incidence.num_examples)
        return rate_N[self.incidence.examples_of(secret)]


def equal_rates(rate: float | None, examples: int | None) -> NDArray[np.float64]:
    """``examples`` equal rates; both must be given."""
    if rate is None or examples is None:
        raise InvalidInput(f"--rate={rate} with --examples={examples}: give both, or --rates FILE instead of them")
    if not 1 <= examples <= MOST_EXAMPLES:
        raise InvalidInput(f"--examples={examples}; pass a whole number from 1 to {MOST_EXAMPLES}")
    return np.full(examples, rate)


def read_rates(path: Path) -> NDArray[np.float64]:
    """Sampling probabilities from JSON (a list, or an object with "rates") or from the Parquet column "rate"."""
    if not _is_parquet(path):
        content = _read_json(path)
        return _numbers(content.get("rates") if isinstance(content, dict) else content, f"{path}: rates")
    import pyarrow as pa
    import pyarrow.parquet as pq

    try:
        with path.open("rb") as file:
            table = pq.read_table(file)
    except pa.ArrowException as error:
        raise InvalidInput(f"{path} is not a readable Parquet file; write it again") from error
    if "rate" not in table.column_names:
        raise InvalidInput(f"{path} has {table.num_columns} columns but none named 'rate'; name the column rate")
    column = table.column("rate")
    if column.null_count or not (pa.types.is_floating(column.type) or pa.types.is_integer(column.type)):
        raise InvalidInput(
            f"{path}: the column rate has type {column.type} and {column.null_count} empty cells; {_FLAT}"
        )
    return column.to_numpy().astype(np.float64)


def read_problem(
    path: Path,
    *,
    rates_path: Path | None = None,
    rate: float | None = None,
    batch_size: int | None = None,
    prior: float | None = None,
    ceiling: float | None = None,
    secrets_path: Path | None = None,
    rounds: int | None = None,
) -> Problem:
    """The graph at ``path`` with its rates and promises; an argument that is given counts before the file's own."""
    if _is_parquet(path):
        incidence, given = Incidence.from_parquet(path), {}
    else:
        incidence, given = _graph_from_json(path)
    ids = None
    if secrets_path is not None:
        if prior is not None or ceiling is not None:
            raise InvalidInput("--secrets brings its own priors and ceilings; drop --prior and --ceiling, or --secrets")
        secrets = Secrets.from_parquet(secrets_path)
        if len(secrets) != incidence.num_secrets:
            raise InvalidInput(
                f"{secrets_path} holds {len(secrets)} secrets but {path} has {incidence.num_secrets}; "
                "pass the table whose rows are the secrets of this graph, in its order"
            )
        given |= {"prior": secrets.prior, "ceiling": secrets.ceiling}
        ids = secrets.ids
    options = {"prior": prior, "ceiling": ceiling, "rounds": rounds}
    options["rates"] = _chosen_rates(incidence, rates_path, rate, batch_size)
    given |= {name: value for name, value in options.items() if value is not None}
    for name, remedy in _REMEDY.items():
        if name not in given:
            raise InvalidInput(f"{path} states no {name}; {remedy}")
    return Problem(incidence=incidence, ids=ids, **given)


def check_output(path: Path | None, *inputs: Path | None) -> None:
    """Refuse, before any work, a path that cannot be written or that holds what is being read."""
    if path is None:
        return
    if path.is_dir() or not path.parent.is_dir():
        raise InvalidInput(f"--output={path}: pass the path of a file in a folder that exists")
    if not os.access(path.parent, os.W_OK):
        raise InvalidInput(f"--output={path}: the folder is not writable; pass a file in one that is")
    if any(os.path.realpath(path) == os.path.realpath(source) for source in inputs if source is not None):
        raise InvalidInput(f"--output={path} would replace an input; pass another path")


def _chosen_rates(
    incidence: Incidence, rates_path: Path | None, rate: float | None, batch_size: int | None
) -> ArrayLike | None:
    options = {"--rates": rates_path, "--rate": rate, "--batch-size": batch_size}
    named = [name for name, value in options.items() if value is not None]
    if len(named) > 1:
        raise InvalidInput(f"{' and '.join(named)} all set the sampling rates; pass one of them")
    if rates_path is not None:
        return read_rates(rates_path)
    if batch_size is None:
        return rate
    examples = incidence.num_examples
    if batch_size < 1:
        raise InvalidInput(f"--batch-size={batch_size}; pass a whole number >= 1, the expected examples per round")
    if batch_size > examples:
        raise InfeasiblePlan(
            f"--batch-size={batch_size} of {examples} examples needs sampling probabilities up to "
            f"{batch_size / examples if examples else np.inf:.4g} > 1; lower it to at most {examples}"
        )
    return batch_size / examples


def _graph_from_json(path: Path) -> tuple[Incidence, dict[str, Any]]:
    content = _read_json(path)
    if not isinstance(content, dict):
        raise InvalidInput(f"{path} holds {_kind(content)}; pass an object with {', '.join(_NEEDED)}")
    missing = [name for name in _NEEDED if name not in content]
    if missing:
        raise InvalidInput(f"{path} lacks {', '.join(missing)}; an incidence needs {', '.join(_NEEDED)}")
    unknown = len(content.keys() - {*_NEEDED, *_OPTIONAL})
    if unknown:
        raise InvalidInput(f"{path} has {unknown} unknown fields; it may hold only {', '.join(_NEEDED + _OPTIONAL)}")
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


def _is_parquet(path: Path) -> bool:
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

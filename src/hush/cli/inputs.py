"""What the command line is given, turned into arguments of the library: rates, graphs and promises.

Files that the command line is given: numbers and graphs, in JSON or Parquet.

A message names the file, the field and its type, never a value that is not a number: a file that was passed by
mistake may hold the text of a secret.

What commands that read the owner's data share: its keyed fingerprint, and whether it is what was scanned.

Models, and libraries that only commands with models need: named if missing, kept from drawing bars of their own.
"""

import json
import re
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from hush.console import counted
from hush.errors import InfeasiblePlan, InvalidInput
from hush.incidence import Incidence
from hush.secret_table import Secrets
from hush.storage import parquet_table

__all__ = [
    "Problem",
    "Promises",
    "check_batch_size",
    "equal_rates",
    "graph_from_json",
    "is_parquet",
    "named_by_id",
    "read_incidence",
    "read_problem",
    "read_promises",
    "read_rates",
]


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


MOST_EXAMPLES = 10_000_000  # of one secret
_REMEDY = {
    "rates": "pass --batch-size B, --rate X or --rates FILE",
    "prior": "pass --prior and --ceiling, or --secrets FILE",
    "ceiling": "pass --prior and --ceiling, or --secrets FILE",
    "rounds": "pass --rounds T",
}


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


@dataclass(frozen=True, slots=True, kw_only=True)
class Promises:
    """A graph and what is promised over how many rounds, before rates are chosen."""

    incidence: Incidence
    prior: ArrayLike
    ceiling: ArrayLike
    rounds: int
    ids: tuple[str, ...] | None

    @property
    def arguments(self) -> dict[str, Any]:
        """Keyword arguments that ``make_plan`` and ``frontier`` share."""
        return {"prior": self.prior, "ceiling": self.ceiling, "rounds": self.rounds}


def equal_rates(rate: float | None, examples: int | None) -> NDArray[np.float64]:
    """``examples`` equal rates; both must be given."""
    if rate is None or examples is None:
        raise InvalidInput(f"--rate={rate} with --examples={examples}: give both, or --rates FILE instead of them")
    if not 1 <= examples <= MOST_EXAMPLES:
        raise InvalidInput(f"--examples={examples}; pass a whole number from 1 to {MOST_EXAMPLES}")
    return np.full(examples, rate)


def read_problem(
    path: Path,
    *,
    rates_path: Path | None = None,
    rate: float | None = None,
    batch_size: float | None = None,
    prior: float | None = None,
    ceiling: float | None = None,
    secrets_path: Path | None = None,
    rounds: int | None = None,
) -> Problem:
    """The graph at ``path`` with its rates and promises; an argument that is given counts before the file's own."""
    incidence, given, ids = _read_graph(path, prior, ceiling, secrets_path, rounds)
    chosen = _chosen_rates(incidence, rates_path, rate, batch_size)
    if chosen is not None:
        given["rates"] = chosen
    _need(given, path, "rates", "prior", "ceiling", "rounds")
    return Problem(incidence=incidence, ids=ids, **given)


def read_promises(
    path: Path,
    *,
    prior: float | None = None,
    ceiling: float | None = None,
    secrets_path: Path | None = None,
    rounds: int | None = None,
) -> Promises:
    """As ``read_problem`` where the rates are yet to be chosen; rates that the file states are not looked at."""
    incidence, given, ids = _read_graph(path, prior, ceiling, secrets_path, rounds)
    _need(given, path, "prior", "ceiling", "rounds")
    given.pop("rates", None)
    return Promises(incidence=incidence, ids=ids, **given)


def read_incidence(path: Path) -> Incidence:
    """A graph from Parquet or JSON."""
    return Incidence.from_parquet(path) if is_parquet(path) else graph_from_json(path)[0]


def _read_graph(
    path: Path, prior: float | None, ceiling: float | None, secrets_path: Path | None, rounds: int | None
) -> tuple[Incidence, dict[str, Any], tuple[str, ...] | None]:
    """The graph, what is known about rates, promises and rounds, and the ids if there are any."""
    if path.is_dir():
        inside = path / "public" / "incidence.parquet"
        instead = str(inside) if inside.is_file() else "a file, such as that of a scan, public/incidence.parquet"
        raise InvalidInput(f"{path} is a folder; pass {instead}")
    if is_parquet(path):
        incidence, given = Incidence.from_parquet(path), {}
    else:
        incidence, given = graph_from_json(path)
    ids = None
    if secrets_path is not None:
        if prior is not None or ceiling is not None:
            raise InvalidInput("--secrets brings its own priors and ceilings; drop --prior and --ceiling, or --secrets")
        secrets = Secrets.from_parquet(secrets_path)
        if len(secrets) != incidence.num_secrets:
            raise InvalidInput(
                f"{secrets_path} holds {counted(len(secrets), 'secret')} but {path} has {incidence.num_secrets}; "
                "pass the table whose rows are the secrets of this graph, in its order"
            )
        given |= {"prior": secrets.prior, "ceiling": secrets.ceiling}
        ids = secrets.ids
    options = {"prior": prior, "ceiling": ceiling, "rounds": rounds}
    return incidence, given | {name: value for name, value in options.items() if value is not None}, ids


@contextmanager
def named_by_id(ids: tuple[str, ...] | None) -> Iterator[None]:
    """Errors of the library, which knows secrets by their number, with ids in their place where there are any."""
    try:
        yield
    except (InvalidInput, InfeasiblePlan) as error:
        if ids is None:
            raise
        said = re.sub(r"\bsecret (\d+)\b", lambda found: ids[int(found[1])], str(error))
        raise (InfeasiblePlan if isinstance(error, InfeasiblePlan) else InvalidInput)(said) from error


def check_batch_size(batch_size: float, examples: int, *, held_out: int = 0) -> None:
    """Refuse a batch size that is no number above 0, or more than the examples that are not held out."""
    if not batch_size > 0:  # written so that NaN is refused
        raise InvalidInput(f"--batch-size={batch_size:g}; pass a number above 0, the expected examples per round")
    if batch_size > examples - held_out:
        apart = f" that are not held out, of {examples:,}" if held_out else ""
        raise InvalidInput(
            f"--batch-size={batch_size:g} is more than the {counted(examples - held_out, 'example')}{apart}; lower it"
        )


def _need(given: dict[str, Any], path: Path, *names: str) -> None:
    for name in names:
        if name not in given:
            raise InvalidInput(f"{path} states no {name}; {_REMEDY[name]}")


def _chosen_rates(
    incidence: Incidence, rates_path: Path | None, rate: float | None, batch_size: float | None
) -> ArrayLike | None:
    options = {"--rates": rates_path, "--rate": rate, "--batch-size": batch_size}
    named = [name for name, value in options.items() if value is not None]
    if len(named) > 1:
        raise InvalidInput(f"{' and '.join(named)} all set the sampling rates; pass one of them")
    if rates_path is not None:
        return read_rates(rates_path)
    if batch_size is None:
        return rate
    check_batch_size(batch_size, incidence.num_examples)
    return batch_size / incidence.num_examples

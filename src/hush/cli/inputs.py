"""Input files and options of the accounting and planning commands as arguments of the library.

Graphs, sampling rates and promises are read from JSON or Parquet; options override what a file states. Messages name
the file, the field and its type, but no value that is not a number: a file that was passed by mistake may hold the text
of a secret.
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
from hush.errors import InfeasiblePlan, InvalidInput, Setting
from hush.incidence import Incidence
from hush.secret_table import Secrets
from hush.settings import Auto
from hush.storage import parquet_table

__all__ = [
    "Problem",
    "Promises",
    "equal_rates",
    "graph_from_json",
    "is_parquet",
    "read_ancestors",
    "read_incidence",
    "read_problem",
    "read_promises",
    "read_rates",
    "secrets_named_by_id",
]


# --- Files


_REQUIRED_FIELDS = ("num_examples", "num_secrets", "pairs")
_OPTIONAL_FIELDS = ("rates", "prior", "ceiling", "rounds")
_RATES_HELP = "pass numbers in [0, 1], one sampling probability for each example"


def read_rates(path: Path) -> NDArray[np.float64]:
    """Sampling probabilities from JSON (a list, or an object with "rates") or from the Parquet column "rate"."""
    if not is_parquet(path):
        content = _read_json(path)
        return _numbers(content.get("rates") if isinstance(content, dict) else content, f"{path}: rates")
    import pyarrow as pa

    table = parquet_table(path)
    if "rate" not in table.column_names:
        raise InvalidInput(
            f"{path} has {counted(table.num_columns, 'column')} but none named rate; name the column of the rates rate"
        )
    column = table.column("rate")
    if column.null_count or not (pa.types.is_floating(column.type) or pa.types.is_integer(column.type)):
        raise InvalidInput(
            f"{path}: the column rate has type {column.type} and {column.null_count} empty cells; {_RATES_HELP}"
        )
    return column.to_numpy().astype(np.float64)


def graph_from_json(path: Path) -> tuple[Incidence, dict[str, Any]]:
    """A graph, and whichever of rates, prior, ceiling and rounds its file states."""
    content = _read_json(path)
    if not isinstance(content, dict):
        raise InvalidInput(f"{path} holds {_json_type(content)}; pass an object with {', '.join(_REQUIRED_FIELDS)}")
    missing = [name for name in _REQUIRED_FIELDS if name not in content]
    if missing:
        raise InvalidInput(f"{path} lacks {', '.join(missing)}; an incidence needs {', '.join(_REQUIRED_FIELDS)}")
    unknown = len(content.keys() - {*_REQUIRED_FIELDS, *_OPTIONAL_FIELDS})
    if unknown:
        allowed = ", ".join(_REQUIRED_FIELDS + _OPTIONAL_FIELDS)
        raise InvalidInput(f"{path} has {counted(unknown, 'unknown field')}; it may hold only {allowed}")
    stated = {name: content[name] for name in _OPTIONAL_FIELDS if name in content}
    if "rounds" in stated and type(stated["rounds"]) is not int:
        raise InvalidInput(f"{path}: rounds is {_json_type(stated['rounds'])}; pass a whole number >= 1")
    for name in stated.keys() - {"rounds"}:
        if not isinstance(stated[name], list):
            stated[name] = float(_numbers([stated[name]], f"{path}: {name}")[0])
        elif name == "rates":
            stated[name] = _numbers(stated[name], f"{path}: {name}")
    sizes = {name: content[name] for name in ("num_examples", "num_secrets")}
    for name, size in sizes.items():
        if type(size) is not int:
            raise InvalidInput(f"{path}: {name} is {_json_type(size)}; pass a whole number >= 0")
    return Incidence.from_pairs(*_pairs(content["pairs"], path), **sizes), stated


def _pairs(pairs: object, path: Path) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    expected = f"{path}: pairs must be a list of [example, secret], two whole numbers counted from 0"
    if not isinstance(pairs, list):
        raise InvalidInput(f"{expected}; it is {_json_type(pairs)}")
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
        raise InvalidInput(f"{name} is {_json_type(values)}; {_RATES_HELP}")
    for place, value in enumerate(values):
        if type(value) not in (int, float):
            raise InvalidInput(f"{name}: number {place} of {len(values)} is {_json_type(value)}; pass only numbers")
    try:
        return np.array(values, dtype=np.float64)
    except OverflowError as error:
        raise InvalidInput(f"{name} holds a number beyond 1e308; pass smaller numbers") from error


def is_parquet(path: Path) -> bool:
    """Whether a file starts with the magic bytes of Parquet."""
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


def _json_type(value: object) -> str:
    """The JSON name of a value's type, which is all that a message may reveal of a value that could be text."""
    names = {dict: "an object", list: "a list", str: "a string", bool: "a boolean", int: "a number", float: "a number"}
    return names.get(type(value), "missing or null")


# --- Arguments of the library


MAX_EXAMPLES_PER_SECRET = 10_000_000  # of --examples: an array of this length takes 80 MB
_HOW_TO_STATE = {
    "rates": "pass --batch-size B, --rate X or --rates FILE",
    "prior": "pass --prior and --ceiling, or --secrets FILE",
    "ceiling": "pass --prior and --ceiling, or --secrets FILE",
    "rounds": "pass --rounds T",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Problem:
    """The arguments of ``calibrate``. ids: the public ids of the secrets, if they have any."""

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
    """A graph, its promises and the number of rounds (or auto), before rates are chosen."""

    incidence: Incidence
    prior: ArrayLike
    ceiling: ArrayLike
    rounds: int | Auto
    ids: tuple[str, ...] | None

    @property
    def arguments(self) -> dict[str, Any]:
        """Keyword arguments that ``make_plan`` and ``frontier`` share."""
        return {"prior": self.prior, "ceiling": self.ceiling, "rounds": self.rounds}


def equal_rates(rate: float | None, examples: int | None) -> NDArray[np.float64]:
    """``examples`` equal rates; both must be given."""
    if rate is None or examples is None:
        raise InvalidInput(f"--rate={rate} with --examples={examples}: pass both, or --rates FILE instead")
    if not 1 <= examples <= MAX_EXAMPLES_PER_SECRET:
        raise InvalidInput(f"--examples={examples}; pass a whole number from 1 to {MAX_EXAMPLES_PER_SECRET}")
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
    """The graph at ``path`` with its rates and promises; arguments override what the file states."""
    incidence, stated, ids = _read_graph(path, prior, ceiling, secrets_path, rounds)
    chosen = _chosen_rates(incidence, rates_path, rate, batch_size)
    if chosen is not None:
        stated["rates"] = chosen
    _check_stated(stated, path, "rates", "prior", "ceiling", "rounds")
    return Problem(incidence=incidence, ids=ids, **stated)


def read_promises(
    path: Path,
    *,
    prior: float | None = None,
    ceiling: float | None = None,
    secrets_path: Path | None = None,
    rounds: int | Auto | None = None,
) -> Promises:
    """Like ``read_problem``, but for rates that are chosen later: rates that the file states are ignored."""
    incidence, stated, ids = _read_graph(path, prior, ceiling, secrets_path, rounds)
    _check_stated(stated, path, "prior", "ceiling", "rounds")
    stated.pop("rates", None)
    return Promises(incidence=incidence, ids=ids, **stated)


def read_ancestors(path: Path | None) -> dict[str, list[str]] | None:
    """For ids of merged or split secrets their earlier ids, from a JSON file."""
    if path is None:
        return None
    content: Any = _read_json(path)
    lists = isinstance(content, dict) and all(isinstance(one, list) for one in content.values())
    if not lists or not all(isinstance(name, str) for names in content.values() for name in names):
        raise InvalidInput(f"{path} is not an object of ids, each with a list of earlier ids; write it so")
    return content


def read_incidence(path: Path) -> Incidence:
    """A graph from Parquet or JSON."""
    return Incidence.from_parquet(path) if is_parquet(path) else graph_from_json(path)[0]


def _read_graph(
    path: Path, prior: float | None, ceiling: float | None, secrets_path: Path | None, rounds: int | Auto | None
) -> tuple[Incidence, dict[str, Any], tuple[str, ...] | None]:
    """The graph, what is stated of rates, promises and rounds, and the ids of the secrets if there are any."""
    if path.is_dir():
        scanned = path / "public" / "incidence.parquet"
        instead = str(scanned) if scanned.is_file() else "a file, such as public/incidence.parquet of a scan"
        raise InvalidInput(f"{path} is a folder; pass {instead}")
    if is_parquet(path):
        incidence, stated = Incidence.from_parquet(path), {}
    else:
        incidence, stated = graph_from_json(path)
    ids = None
    if secrets_path is not None:
        if prior is not None or ceiling is not None:
            raise InvalidInput("--secrets states priors and ceilings; drop --prior and --ceiling, or drop --secrets")
        secrets = Secrets.from_parquet(secrets_path)
        if len(secrets) != incidence.num_secrets:
            raise InvalidInput(
                f"{secrets_path} holds {counted(len(secrets), 'secret')} but {path} has {incidence.num_secrets}; "
                "pass the table whose rows are the secrets of this graph, in its order"
            )
        stated |= {"prior": secrets.prior, "ceiling": secrets.ceiling}
        ids = secrets.ids
    options = {"prior": prior, "ceiling": ceiling, "rounds": rounds}
    return incidence, stated | {name: value for name, value in options.items() if value is not None}, ids


@contextmanager
def secrets_named_by_id(ids: tuple[str, ...] | None) -> Iterator[None]:
    """Errors raised inside name secrets by id, if there are ids; the library names them by number."""
    try:
        yield
    except (InvalidInput, InfeasiblePlan) as error:
        if ids is not None:
            error.args = tuple(_with_ids(part, ids) for part in error.args)
        raise


def _with_ids(part: str, ids: tuple[str, ...]) -> str:
    if isinstance(part, Setting):  # shown by its flag later
        return part
    return re.sub(r"\bsecret (\d+)\b", lambda match: ids[int(match[1])], part)


def _check_stated(stated: dict[str, Any], path: Path, *names: str) -> None:
    for name in names:
        if name not in stated:
            raise InvalidInput(f"{path} states no {name}; {_HOW_TO_STATE[name]}")


def _chosen_rates(
    incidence: Incidence, rates_path: Path | None, rate: float | None, batch_size: float | None
) -> ArrayLike | None:
    options = {"--rates": rates_path, "--rate": rate, "--batch-size": batch_size}
    passed = [name for name, value in options.items() if value is not None]
    if len(passed) > 1:
        raise InvalidInput(f"{' and '.join(passed)} each set the sampling rates; pass one of them")
    if rates_path is not None:
        return read_rates(rates_path)
    if batch_size is None:
        return rate
    from hush.weights.choose import checked_batch_size

    checked_batch_size(batch_size, incidence.num_examples)
    return batch_size / incidence.num_examples

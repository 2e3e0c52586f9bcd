"""What the command line is given, turned into arguments of the library: rates, graphs and promises."""

import os
import re
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from hush.cli.files import graph_from_json, is_parquet, read_rates
from hush.console import counted
from hush.errors import InfeasiblePlan, InvalidInput
from hush.incidence import Incidence
from hush.secret_table import Secrets

__all__ = [
    "Problem",
    "Promises",
    "check_apart",
    "check_batch_size",
    "check_folder_free",
    "check_output",
    "equal_rates",
    "is_inside",
    "named_by_id",
    "read_incidence",
    "read_problem",
    "read_promises",
    "read_rates",
]

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


def check_output(
    path: Path | None,
    *inputs: Path | None,
    force: bool,
    option: str = "--output",
    forms: tuple[str, ...] | None = None,
) -> None:
    """Refuse, before any work, a path that cannot be written, that holds what is being read, or anything at all."""
    if path is None:
        return
    if path.is_dir() or not path.parent.is_dir():
        raise InvalidInput(f"{option}={path}: pass the path of a file in a folder that exists")
    if not os.access(path.parent, os.W_OK):
        raise InvalidInput(f"{option}={path}: the folder is not writable; pass a file in one that is")
    if any(os.path.realpath(path) == os.path.realpath(source) for source in inputs if source is not None):
        raise InvalidInput(f"{option}={path} would replace an input; pass another path")
    if forms is not None and path.suffix.removeprefix(".").lower() not in forms:
        raise InvalidInput(f"{option}={path}: let the name end in .{' or .'.join(forms)}")
    if path.exists() and not force:
        raise InvalidInput(f"{option}={path} exists; pass --force to replace it, or name another file")


def check_apart(folder: Path, data: str | None) -> None:
    """Refuse a folder inside that of the data: what is written there would be read as data the next time."""
    if data is not None and Path(data).is_dir() and is_inside(folder, Path(data)):
        raise InvalidInput(f"--output={folder} lies inside the data, {data}; name a folder elsewhere")


def is_inside(path: Path, folder: Path) -> bool:
    """Whether a path, where links lead, is a folder or anything below it."""
    return Path(os.path.realpath(path)).is_relative_to(os.path.realpath(folder))


def check_folder_free(folder: Path, what: str, *, force: bool) -> None:
    """Refuse, before any work, a folder that cannot be written, or holds an older result that is not to be replaced."""
    above = next(place for place in Path(os.path.realpath(folder)).parents if place.exists())
    if not above.is_dir():
        raise InvalidInput(f"--output={folder}: {above} is a file; name a folder elsewhere")
    if not os.access(above, os.W_OK):
        raise InvalidInput(f"--output={folder}: {above} is not writable; name a folder elsewhere")
    if folder.is_dir() and any(folder.iterdir()) and not force:
        raise InvalidInput(f"{folder} holds {what} already; pass --force to replace it, or name a new folder")


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

"""Checks that commands make before they begin: output paths, models, libraries, and whether the data were scanned.

Separate from :mod:`hush.cli.inputs`, so that `hush --help` loads no numerical library.
"""

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from hush.cli.options import TextUnit
from hush.console import counted
from hush.errors import InvalidInput

if TYPE_CHECKING:
    from hush.incidence import Incidence
    from hush.slots import Slots

__all__ = [
    "check_folder_free",
    "check_model",
    "check_output",
    "check_outside_data",
    "check_scanned",
    "has_other_processes",
    "is_inside",
    "missing_library_explained",
    "quiet_libraries",
    "read_data_fingerprint",
    "read_slots",
]


def check_output(
    path: Path | None,
    *inputs: Path | None,
    force: bool,
    option: str = "--output",
    forms: tuple[str, ...] | None = None,
) -> None:
    """Refuse a file that cannot be written, is an input, has a wrong suffix, or exists and is not to be overwritten."""
    if path is None:
        return
    if path.is_dir() or not path.parent.is_dir():
        raise InvalidInput(f"{option}={path}: pass the path of a file in an existing folder")
    if not os.access(path.parent, os.W_OK):
        raise InvalidInput(f"{option}={path}: the folder is not writable; pass a file in a writable folder")
    if any(os.path.realpath(path) == os.path.realpath(source) for source in inputs if source is not None):
        raise InvalidInput(f"{option}={path} would overwrite an input; pass another path")
    if forms is not None and path.suffix.removeprefix(".").lower() not in forms:
        raise InvalidInput(f"{option}={path}: pass a name that ends in .{' or .'.join(forms)}")
    if path.exists() and not force:
        raise InvalidInput(f"{option}={path} exists; pass --force to overwrite it, or another path")


def has_other_processes() -> bool:
    """Whether this is one of several processes that torchrun started."""
    return os.environ.get("WORLD_SIZE", "1") != "1"


def check_outside_data(folder: Path, data: str | None) -> None:
    """Refuse an output folder inside the data folder: its files would be read as data the next time."""
    if data is not None and Path(data).is_dir() and is_inside(folder, Path(data)):
        raise InvalidInput(f"--output={folder} is inside the data folder {data}; pass a folder elsewhere")


def is_inside(path: Path, folder: Path) -> bool:
    """Whether a path is a folder or anything below it, after links are resolved."""
    return Path(os.path.realpath(path)).is_relative_to(os.path.realpath(folder))


def check_folder_free(folder: Path, what: str, *, force: bool) -> None:
    """Refuse a folder that cannot be written, or that holds an older result, unless force."""
    parent = next(place for place in Path(os.path.realpath(folder)).parents if place.exists())
    if not parent.is_dir():
        raise InvalidInput(f"--output={folder}: {parent} is a file; pass a folder elsewhere")
    if not os.access(parent, os.W_OK):
        raise InvalidInput(f"--output={folder}: {parent} is not writable; pass a folder elsewhere")
    if folder.is_dir() and any(folder.iterdir()) and not force:
        raise InvalidInput(f"{folder} already holds {what}; pass --force to overwrite it, or a new folder")


def read_data_fingerprint(
    data: str | None, key: Path | None, *, column: str | None, unit: TextUnit | None, rows: int
) -> str | None:
    """The fingerprint of the data under the key at this path, created on first use; None without data."""
    from hush.data import read_corpus
    from hush.data.text_readers import kind_of
    from hush.keys import DataKey, check_key_apart

    if data is None:
        stray = {"--key": key, "--column": column, "--unit": unit}
        for option in [name for name, value in stray.items() if value is not None]:
            raise InvalidInput(f"{option} needs --data; pass --data, or drop {option}")
        return None
    if key is None:
        raise InvalidInput("--data needs --key KEYFILE: a plan may only hold a keyed fingerprint of private data")
    check_key_apart(key, data, read_as_data=kind_of(key) is not None)
    corpus = read_corpus(data, column=column, unit=None if unit is None else unit.value)
    if len(corpus) != rows:
        raise InvalidInput(
            f"{data} has {counted(len(corpus), 'row')}, but the incidence has {counted(rows, 'example')}; pass the "
            "data whose row i is example i"
        )
    return DataKey.load_or_create(key).fingerprint_rows(corpus.texts())


def check_scanned(incidence: Path, fingerprint: str | None) -> None:
    """Refuse data that the incidence was not scanned from, if the files of the scan are next to it."""
    from hush.keys import key_id_of
    from hush.scan.result import scanned_fingerprint

    scanned = None if fingerprint is None else scanned_fingerprint(incidence)
    if fingerprint is None or scanned is None or scanned == fingerprint:
        return
    if key_id_of(scanned) != key_id_of(fingerprint):
        raise InvalidInput(f"{incidence} was scanned with another key than --key; pass that key, or scan again")
    raise InvalidInput(
        f"{incidence} was not scanned from --data: a text, the order or the column differs, so it would assign secrets "
        "to wrong examples; pass the scanned data with the same --column and --unit, or scan again"
    )


def read_slots(
    incidence: Path,
    graph: "Incidence",
    *,
    data: str | None = None,
    key: Path | None = None,
    column: str | None = None,
    unit: TextUnit | None = None,
) -> "tuple[Slots | None, str | None]":
    """The slots beside an incidence file, and the keyed fingerprint of the skeletons, as stated or of the data."""
    from hush.data import read_corpus
    from hush.keys import DataKey
    from hush.scan.result import scanned_slots
    from hush.slots import SPANS_FILE, Spans

    slots, skeletons = scanned_slots(incidence)
    if slots is None:
        return None, None
    slots.check_against(graph)
    path = incidence.parent.parent / SPANS_FILE
    if skeletons is None and data is not None and key is not None and path.is_file():
        corpus = read_corpus(data, column=column, unit=None if unit is None else unit.value)
        rows = Spans.from_parquet(path, slots).public_rows(graph, corpus.texts())
        skeletons = DataKey.load(key).fingerprint_rows(rows)
    return slots, skeletons


def check_model(name: str, option: str) -> None:
    """Refuse a path that is not a folder, and a name if the hub cannot be reached, before anything is read."""
    from hush.data.text_readers import means_path
    from hush.run.preflight import check_reachable

    if Path(name).is_dir():
        return
    if Path(name).exists() or means_path(name):
        raise InvalidInput(
            f"{option}={name} is not a folder; pass the folder of a model, or its NAME or OWNER/NAME on the hub"
        )
    with missing_library_explained("a model from the hub"):
        check_reachable(name)


@contextmanager
def missing_library_explained(what: str) -> Iterator[None]:
    """If an import inside fails, the message says what to install."""
    try:
        yield
    except ModuleNotFoundError as error:
        raise InvalidInput(f'{what} needs the library {error.name}; pip install "hush[hf]"') from error


def quiet_libraries(*, silent: bool) -> None:
    """Turn off the progress bars of other libraries, and, if silent, their warnings: another process shows the same."""
    os.environ["TQDM_DISABLE"] = "1"  # also in processes that this one starts
    try:
        from transformers.utils import logging
    except ImportError:
        return  # the message comes where the library is needed
    logging.disable_progress_bar()
    if silent:
        logging.set_verbosity_error()

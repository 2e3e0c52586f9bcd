"""What commands check before they begin: places to write to, models, libraries, and whether data are what was scanned.

Apart from :mod:`hush.cli.inputs`, so that `hush --help` loads no numerical library.
"""

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from hush.cli.options import TextUnit
from hush.console import counted
from hush.errors import InvalidInput

__all__ = [
    "check_apart",
    "check_folder_free",
    "check_model",
    "check_output",
    "check_scanned",
    "is_inside",
    "needed_for",
    "quiet_libraries",
    "read_data_fingerprint",
]


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


def read_data_fingerprint(
    data: str | None, key: Path | None, *, column: str | None, unit: TextUnit | None, rows: int
) -> str | None:
    """The fingerprint of the data under the key at this path, which is made on first use; None without data."""
    from hush.data import read_corpus
    from hush.data.text_readers import kind_of
    from hush.keys import DataKey, check_key_apart

    if data is None:
        stray = {"--key": key, "--column": column, "--unit": unit}
        for option in [name for name, value in stray.items() if value is not None]:
            raise InvalidInput(f"{option} is about data, but --data is not given; pass --data, or drop {option}")
        return None
    if key is None:
        raise InvalidInput("--data needs --key KEYFILE: only a keyed fingerprint of private data may stand in a plan")
    check_key_apart(key, data, read_as_data=kind_of(key) is not None)
    corpus = read_corpus(data, column=column, unit=None if unit is None else unit.value)
    if len(corpus) != rows:
        raise InvalidInput(
            f"{data} has {counted(len(corpus), 'row')} but the incidence {counted(rows, 'example')}; pass the data "
            "whose row i is example i"
        )
    return DataKey.load_or_create(key).fingerprint_rows(corpus.texts())


def check_scanned(incidence: Path, fingerprint: str | None) -> None:
    """Refuse data other than what the incidence was scanned from, where its scan lies beside it."""
    from hush.keys import key_id_of
    from hush.scan.result import scanned_fingerprint

    scanned = None if fingerprint is None else scanned_fingerprint(incidence)
    if fingerprint is None or scanned is None or scanned == fingerprint:
        return
    if key_id_of(scanned) != key_id_of(fingerprint):
        raise InvalidInput(f"{incidence} was scanned under another key than --key; pass that one, or scan again")
    raise InvalidInput(
        f"--data is not what {incidence} was scanned from: a text, the order or the column is another, so who contains "
        "what would be wrong; pass the very data, with the same --column and --unit, or scan again"
    )


def check_model(name: str, option: str) -> None:
    """Refuse what is meant as a folder and is none, and what the hub cannot be asked for, before anything is read."""
    from hush.data.text_readers import means_path
    from hush.run.preflight import check_reachable

    if Path(name).is_dir():
        return
    if Path(name).exists() or means_path(name):
        raise InvalidInput(f"{option}={name} is no folder; pass that of a model, or its NAME or OWNER/NAME on the hub")
    with needed_for("a model of the hub"):
        check_reachable(name)


@contextmanager
def needed_for(what: str) -> Iterator[None]:
    """Imports inside may fail; the message then says what to install."""
    try:
        yield
    except ModuleNotFoundError as error:
        raise InvalidInput(f'{what} needs the library {error.name}; pip install "hush[hf]"') from error


def quiet_libraries(*, silent: bool) -> None:
    """No bars of the libraries beneath ours; their warnings stay, unless another process shows the same."""
    try:
        from transformers.utils import logging
    except ImportError:
        return  # said where the library is needed
    logging.disable_progress_bar()
    if silent:
        logging.set_verbosity_error()
